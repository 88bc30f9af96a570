"""Uploads a run of a store to a service, in parts.

The requests are made by a generator, so that both clients send the same ones: it yields a call and gets the
result. The service reports which part is next, so that an upload that was killed continues, and a complete run is not
sent again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from gradeline.client.endpoints import get_evaluation
from gradeline.client.errors import ApiError
from gradeline.client.protocol import ApiCall, ApiRequest, api_path, json_request, read_data
from gradeline.errors import ConfigError, Problem
from gradeline.rest_types import RunUpload

if TYPE_CHECKING:
    from gradeline.model import Run, Storage
    from gradeline.model.secrets import Mask
    from gradeline.store import StoreMode
    from gradeline.store.database import Database, SharedStorage

_PART_BYTES = 1_000_000
_PART_CASES = 500
ENDED_STATUSES = ("completed", "failed", "cancelled")
"""The statuses of runs that are copied."""
_LINES = "application/x-ndjson"
_NOT_FOUND = 404


class UploadProgress(NamedTuple):
    """How much of a run the service has."""

    run: Run
    received: int
    cases: int


ReportProgress = Callable[[UploadProgress], None]
UploadSteps = Generator[ApiCall[Any], Any, RunUpload]
"""Yields calls and gets the result of each, or its `ApiError`; returns the state of the upload at the end."""


def ignore_progress(_: UploadProgress) -> None:
    """Report nothing."""


def upload_steps(
    run: str, store: str | PathLike[str] | Storage | None, suite: str | None, report: ReportProgress
) -> UploadSteps:
    """The calls that upload a run of a store, after the runs that it needs: its parents and the baselines of its
    gate."""
    with open_database_store(store, "read") as storage:
        found = storage.find_run(run, suite)
        mask = _environment_mask()
        for needed in _needed_runs(storage, found):
            if not (yield from _is_there(needed)):
                yield from _upload(storage.database, needed, mask, report)
        return (yield from _upload(storage.database, found, mask, report))


@contextmanager
def open_database_store(store: str | PathLike[str] | Storage | None, mode: StoreMode) -> Iterator[SharedStorage]:
    """The store with this path or URL, the project's store, or an open store, which is left open."""
    from gradeline.store import default_store, open_storage  # the client alone needs no store
    from gradeline.store.database import SharedStorage

    with ExitStack() as opened:
        if store is None or isinstance(store, str | PathLike):
            storage = opened.enter_context(open_storage(os.fspath(store or default_store()), mode=mode))
        else:
            storage = store
        if not isinstance(storage, SharedStorage):
            raise ConfigError(Problem("store", f"{type(storage).__name__} is not a store in a database"))
        yield storage


def _is_there(run: Run) -> Generator[ApiCall[Any], Any, bool]:
    """Whether the service has the complete run; its content may differ, for example after it was labelled there."""
    try:
        found = yield get_evaluation(run.id)
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        return False
    return bool(found.ended)


def _upload(database: Database, run: Run, mask: Mask, report: ReportProgress) -> UploadSteps:
    from gradeline.store.transfer import case_lines, content_of, header_of

    if run.status not in ENDED_STATUSES:
        remedy = "finish it first with: gradeline resume"
        raise ConfigError(Problem("", f"run {run.id} is {run.status}; {remedy} {run.id}"))
    header = mask.tree(header_of(run))

    def lines() -> Iterator[bytes]:
        return (mask.json(line) for line in case_lines(database, run.id))

    content = content_of(header, lines())
    fields = {"run": header, "digest": content.digest, "cases": content.cases, "size": content.size}
    begin = json_request("PUT", api_path("uploads", run.id), fields)._replace(repeatable=True)
    state: RunUpload = yield ApiCall(begin, read_data(RunUpload))
    report(UploadProgress(run, state.received, state.cases))
    while not state.completed:
        before = state.received
        for part in _parts(islice(lines(), before, None)):
            expected = state.received + part.count(b"\n")
            state = yield _part_call(run.id, content.digest, state.received, part)
            report(UploadProgress(run, state.received, state.cases))
            if state.received != expected:
                break  # another request has stored parts; continue after these
        if not state.completed and state.received <= before:
            raise ConfigError(Problem("", f"run {run.id} was changed while it was read; push it again"))
    return state


def _parts(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines in parts of bounded size; a line that is longer is a part of its own."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        if part and (size + len(line) > _PART_BYTES or len(part) >= _PART_CASES):
            yield b"".join(part)
            part, size = [], 0
        part += (line, b"\n")
        size += len(line) + 1
    if part:
        yield b"".join(part)


def _part_call(run: str, digest: str, start: int, part: bytes) -> ApiCall[RunUpload]:
    params = {"start": start, "digest": digest}
    target = api_path("uploads", run, "cases")
    return ApiCall(
        ApiRequest("PUT", target, params, {"Content-Type": _LINES}, part, repeatable=True), read_data(RunUpload)
    )


def _needed_runs(storage: Storage, run: Run) -> Iterator[Run]:
    """The runs whose responses this run grades or with which it was compared, as far as the store still has them."""
    seen = {run.id}
    for name in _baselines_of(run):
        with suppress(ConfigError):  # it was deleted since
            yield from _with_parents(storage, storage.find_run(name, run.suite), seen)
    if run.parent is not None:
        yield from _with_parents(storage, storage.find_run(run.parent), seen)


def _with_parents(storage: Storage, run: Run, seen: set[str]) -> Iterator[Run]:
    if run.id in seen:
        return
    seen.add(run.id)
    if run.parent is not None:
        yield from _with_parents(storage, storage.find_run(run.parent), seen)
    yield run


def _baselines_of(run: Run) -> list[str]:
    """The ids of the runs that this one was compared with."""
    from gradeline.engine.definition import Rules, RunDefinition  # the client alone needs no engine
    from gradeline.verdict import baselines_of

    try:
        definition = RunDefinition.of(run)
        gate = Rules.of(run).read(run)
    except ConfigError:
        return []
    return list(dict.fromkeys((*definition.baselines.values(), *(() if gate is None else baselines_of(gate)))))


def _environment_mask() -> Mask:
    """Masks the values of variables whose names end like that of a secret, such as OPENAI_API_KEY.

    Not paths: PWD is the working directory, and the file with a secret is not one.
    """
    from gradeline.model.secrets import Mask, is_secret_name

    named = (value for name, value in os.environ.items() if is_secret_name(name.rpartition("_")[2]))
    return Mask(value for value in named if not value.startswith(os.sep))
