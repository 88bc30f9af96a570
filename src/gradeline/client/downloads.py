"""Copies a run of a service into a store, so that a run on this machine can be compared with it.

As in `gradeline.client.uploads`, a generator makes the calls for both clients.
"""

from __future__ import annotations

from collections.abc import Generator
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from gradeline.client.endpoints import baselines
from gradeline.client.protocol import ApiCall, ApiRequest, api_path, read_data
from gradeline.client.uploads import ENDED_STATUSES, open_database_store
from gradeline.errors import ConfigError, DataError, Problem
from gradeline.model.text import quote
from gradeline.rest_types import RunCopy

if TYPE_CHECKING:
    from gradeline.model import Run, Storage
    from gradeline.store.database import SharedStorage

_COPYING = "the copy of this run from a service is incomplete"

DownloadSteps: TypeAlias = Generator[ApiCall[Any], Any, str]
"""Yields calls and gets the result of each, or its `ApiError`; returns the id of the run."""


def download_steps(run: str, store: str | PathLike[str] | Storage | None, suite: str | None) -> DownloadSteps:
    """The calls that copy a run, after the runs whose responses it grades.

    ``run`` is an id, or the name of a baseline (of ``suite``). A run that the store has is not copied again.
    """
    found = yield from _find(run, suite)
    with open_database_store(store, "create") as storage:
        yield from _download(storage, found, ())
    return found


def _find(name: str, suite: str | None) -> DownloadSteps:
    """The id of a run of the service."""
    listing = baselines(suite=suite)
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = yield listing.page(cursor)
        found.update((one.suite, one.evaluation_id) for one in page.entries if one.name == name)
        cursor = page.next_cursor
        if cursor is None:
            break
    if len(found) > 1:
        raise ConfigError(Problem("", f"several suites of the service have a baseline {quote(name)}; name the suite"))
    return next(iter(found.values()), name)


def _download(storage: SharedStorage, run_id: str, children: tuple[str, ...]) -> Generator[ApiCall[Any], Any, None]:
    from gradeline.store.leases import this_process
    from gradeline.store.transfer import put_cases

    present = storage.get_run(run_id)
    if present is not None and present.status in ENDED_STATUSES:
        return
    if present is not None and (present.status != "interrupted" or present.error_message != _COPYING):
        reason = "another process is copying it" if present.error_message == _COPYING else "it is not a copy"
        raise ConfigError(Problem("", f"the store has a run {quote(run_id)} that is {present.status}; {reason}"))
    page: RunCopy = yield _page_call(run_id, None)
    run = _checked(page, run_id, children)
    if run.parent is not None:
        yield from _download(storage, run.parent, (run_id, *children))
    if present is not None:
        storage.delete_run(run_id)  # a copy that was interrupted
    # until it is complete, nothing can resume it
    copying = {"status": "running", "owner": this_process(), "definition": None, "early": None}
    storage.save_run(msgspec.structs.replace(run, **copying, error_message=_COPYING))
    put_cases(storage, run_id, page.cases)
    while page.next_cursor is not None:
        page = yield _page_call(run_id, page.next_cursor)
        put_cases(storage, run_id, page.cases)
    storage.save_run(run)


def _checked(page: RunCopy, run_id: str, children: tuple[str, ...]) -> Run:
    from gradeline.engine.definition import RunDefinition
    from gradeline.model import Run, from_json

    run = from_json(Run, msgspec.json.encode(page.run))
    if run.id != run_id or run.status not in ENDED_STATUSES or run.parent in (run_id, *children):
        raise DataError(f"the service sent another run than {quote(run_id)}, or one that has not ended")
    definition = None
    if run.definition is not None:
        definition = msgspec.json.encode(RunDefinition.of(run).without_suite()).decode()
    return msgspec.structs.replace(run, owner=None, definition=definition)


def _page_call(run_id: str, cursor: str | None) -> ApiCall[RunCopy]:
    return ApiCall(
        ApiRequest("GET", api_path("uploads", run_id), {"cursor": cursor}, repeatable=True), read_data(RunCopy)
    )
