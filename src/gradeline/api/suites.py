"""Suites from Python: read, checked and run."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

from gradeline.api.given import GivenSuite, read_given
from gradeline.api.options import (
    CaseProgress,
    Overrides,
    RunSuiteOptions,
    check_names,
    in_python_terms,
    override_texts,
    run_request,
)
from gradeline.api.results import RunGroup, RunResult
from gradeline.api.stores import OpenStore
from gradeline.api.threads import wait_for
from gradeline.engine import orchestrate
from gradeline.engine.definition import RunOptions, command
from gradeline.engine.execute import Stop
from gradeline.engine.orchestrate import INTERRUPTED_REASON, RunObserver, RunRequest, SuiteOutcome
from gradeline.engine.plan import CompletedCase, LookReport, ProgressCallback, ProgressCount
from gradeline.engine.prepare import PreparedRun, placed_problems, prepare, read_with_code
from gradeline.errors import ConfigError
from gradeline.model import Run, Storage
from gradeline.suite import spec
from gradeline.suite.places import SuiteProblem
from gradeline.suite.read import read_suite

_log = logging.getLogger("gradeline")


class Suite:
    """What to ask, whom, and how to grade it. `load` makes one of a file, `from_dict` one of data and functions."""

    def __init__(self, source: Path | GivenSuite, overrides: tuple[str, ...] = ()) -> None:
        self._source = source
        self._overrides = overrides
        self._spec = self._read()

    @classmethod
    def load(cls, path: str | Path, overrides: Overrides = ()) -> Self:
        """Read a suite file; `ConfigError` names everything that is wrong in it with file, line and column."""
        return cls(Path(path), override_texts(overrides))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], folder: str | Path | None = None, overrides: Overrides = ()) -> Self:
        """A suite with the keys of a suite file. Its relative paths begin at ``folder``, by default the current one.

        The dataset may be a list of mappings or of `Sample`. The target may be a function; graders may be functions
        marked with ``@grader`` and `Grader` objects. These run in this process, without isolation.
        """
        return cls(read_given(data, folder), override_texts(overrides))

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def description(self) -> str | None:
        return self._spec.description

    @property
    def file(self) -> Path | None:
        """None where the suite was not read from one."""
        return self._spec.file if isinstance(self._source, Path) else None

    @property
    def graders(self) -> dict[str, str]:
        """The kind of each grader, by its key."""
        return {grader.key: grader.kind for grader in self._spec.graders}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has no effect, and the like."""
        return self._spec.warnings

    def validate(self) -> list[SuiteProblem]:
        """Everything that would keep the suite from running, found without calling its agent; a file is read anew."""
        return wait_for(lambda _: self._problems())

    def run(self, **options: Unpack[RunSuiteOptions]) -> RunResult:
        """As `run_suite`."""
        return run_suite(self, **options)

    async def arun(self, **options: Unpack[RunSuiteOptions]) -> RunResult:
        """As `arun_suite`."""
        return await arun_suite(self, **options)

    def __repr__(self) -> str:
        return f"<Suite {self.name!r}: {', '.join(self.graders)}>"

    def _with(self, overrides: tuple[str, ...]) -> Suite:
        return Suite(self._source, (*self._overrides, *overrides)) if overrides else self

    async def _run(self, storage: Storage, order: RunRequest, watcher: RunObserver) -> SuiteOutcome:
        order = order._replace(suite=self._spec.file, choice=order.choice._replace(overrides=self._overrides))
        if isinstance(self._source, Path):
            return await orchestrate.run_suite(storage, order, watcher)
        return await _run_given(storage, self._source, order, watcher)

    def _read(self) -> spec.Suite:
        try:
            if isinstance(self._source, Path):
                return read_suite(self._source, self._overrides)
            return self._source.read(self._overrides)
        except ConfigError as error:
            raise in_python_terms(error) from None

    async def _problems(self) -> list[SuiteProblem]:
        suite: spec.Suite | None = None
        try:
            suite = await read_with_code(self._read)
            choice = RunOptions(model=next(iter(suite.target.models), None))
            given = None if isinstance(self._source, Path) else self._source
            async with _prepared(suite, choice, given) as prepared:
                for _ in prepared.samples():
                    pass
        except ConfigError as error:
            return placed_problems(error, suite)
        return []


def run_suite(suite: str | Path | Suite | Mapping[str, Any], **options: Unpack[RunSuiteOptions]) -> RunResult:
    """Run a suite against its agent, grade the answers, and store everything.

    A suite is a path, a `Suite`, or a mapping (see `Suite.from_dict`). With several models the result is a
    `RunGroup`. Works inside a running event loop too, which it blocks: there, await `arun_suite`.

    Raises `ConfigError` where the suite or an option is wrong; what agents and graders do wrong is in the records.
    The first `KeyboardInterrupt` finishes and stores what is in flight, a second ends at once; either way the run
    of a suite file goes on with ``gradeline resume``.
    """
    check_names("run_suite", options)
    return wait_for(lambda stop: _run(suite, options, stop))


async def arun_suite(suite: str | Path | Suite | Mapping[str, Any], **options: Unpack[RunSuiteOptions]) -> RunResult:
    """`run_suite` in the running event loop. Cancelled, the run of a suite file goes on with ``gradeline resume``."""
    check_names("arun_suite", options)
    return await _run(suite, options, Stop())


async def _run(suite: str | Path | Suite | Mapping[str, Any], options: RunSuiteOptions, stop: Stop) -> RunResult:
    order = run_request(options)
    wanted = await read_with_code(lambda: as_suite(suite, options.get("folder"), order.choice.overrides))
    baseline = options.get("baseline")
    store = options.get("store")
    if store is None and isinstance(baseline, RunResult):
        store = baseline.store
    opened = OpenStore(store)
    begun: list[Run] = []
    named = str(store) if isinstance(store, str | Path) else None
    watcher = RunObserver(_log.warning, lambda prepared, run: _watched(options, begun, prepared, run), stop, named)
    try:
        done = await wanted._run(opened.storage, order, watcher)
        _write_output(done)
    except BaseException as error:
        opened.close()
        if isinstance(error, ConfigError):
            raise in_python_terms(error) from None
        if begun and opened.lasts and wanted.file is not None:
            error.add_note(f"continue with: {command('resume', begun[-1].id, named)}")
        raise
    if stop.reason == INTERRUPTED_REASON:  # the caller is told by an exception, and gets no result
        opened.close()
        if begun and opened.lasts and wanted.file is not None:
            _log.warning("interrupted; continue with: %s", command("resume", begun[-1].id, named))
    results = [RunResult(ran, opened) for ran in done.runs]
    return results[0] if len(results) == 1 else RunGroup(results, opened)


def _write_output(done: SuiteOutcome) -> None:
    """Letta's files, where the suite wants them."""
    if done.suite.output is not None:
        from gradeline.letta.result_files import LettaRun, write_letta_layout  # few suites do

        write_letta_layout(done.suite.output, [LettaRun.of(ran.report, done.suite.masked) for ran in done.runs])


def as_suite(
    suite: str | Path | Suite | Mapping[str, Any],
    folder: str | Path | None = None,
    overrides: tuple[str, ...] = (),
) -> Suite:
    """The suite that is meant."""
    if isinstance(suite, Mapping):
        return Suite.from_dict(suite, folder, overrides)
    if folder is not None:
        raise TypeError("folder= is for a suite that is a mapping; the paths of any other begin at its file")
    if isinstance(suite, Suite):
        return suite._with(overrides)
    if isinstance(suite, str | Path):
        return Suite.load(suite, overrides)
    raise TypeError(f"a suite is a path, a Suite or a mapping, not {type(suite).__name__}")


@contextmanager
def _watched(options: RunSuiteOptions, begun: list[Run], prepared: PreparedRun, run: Run) -> Iterator[ProgressCallback]:
    begun.append(run)
    tell = options.get("on_progress")
    if tell is None:
        yield lambda _: None
        return
    total, done = prepared.expected(run), 0

    def advance(case: CompletedCase | ProgressCount | LookReport) -> None:
        nonlocal done
        if not isinstance(case, CompletedCase):
            return  # cases done by Ray workers, which are reported in numbers only, or a look
        done += 1
        grades = {key: one.grade for key, one in case.graded.items()}
        tell(CaseProgress(run, done, total, case.planned.key.case, case.planned.key.repeat, case.response, grades))

    yield advance


@asynccontextmanager
async def _prepared(
    suite: spec.Suite, choice: RunOptions, given: GivenSuite | None, storage: Storage | None = None
) -> AsyncIterator[PreparedRun]:
    """A suite made ready, the objects that were given for it included."""
    async with prepare(suite if given is None else given.with_placeholders(suite), choice, storage) as prepared:
        yield prepared if given is None else given.filled(prepared, suite)


async def _run_given(storage: Storage, given: GivenSuite, order: RunRequest, watcher: RunObserver) -> SuiteOutcome:
    suite = given.read(order.choice.overrides)
    for warning in suite.warnings:
        watcher.warn(warning)
    complete = partial(given.filled, suite=suite)
    order = order._replace(suite=given.with_placeholders(suite), complete=complete)
    return await orchestrate.run_suite(storage, order, watcher)
