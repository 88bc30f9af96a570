"""Suites from Python: read, checked and run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

from gradeline.api.options import (
    CaseProgress,
    Overrides,
    RunSuiteOptions,
    check_names,
    override_strings,
    run_request,
    with_python_names,
)
from gradeline.api.results import OpenStore, RunGroup, RunResult
from gradeline.api.suite_data import SuiteData, listed_cases, separate_functions, with_rows
from gradeline.engine import orchestrate
from gradeline.engine.components import InProcessCode
from gradeline.engine.definition import command
from gradeline.engine.execute import INTERRUPTED_REASON, Stop
from gradeline.engine.lifecycle import RunObserver, wait_for
from gradeline.engine.orchestrate import RunRequest, SuiteOutcome
from gradeline.engine.plan import CompletedCase, LookReport, ProgressCallback, ProgressCount
from gradeline.engine.prepare import PreparedRun
from gradeline.engine.validation import placed_problems, read_with_code
from gradeline.engine.variants import check_variants
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage
from gradeline.suite.problems import SuiteProblem
from gradeline.suite.read import read_suite
from gradeline.suite.spec import SuiteDefinition

_log = logging.getLogger("gradeline")


class Suite:
    """Cases, a target and graders. `load` reads a suite file, `from_dict` takes data and functions."""

    def __init__(
        self, source: Path | SuiteData, overrides: tuple[str, ...] = (), rows: list[Any] | None = None
    ) -> None:
        """``rows`` replace the cases of the suite."""
        self._source = source
        self._overrides = overrides
        self._rows = rows
        self._spec = self._read()

    @classmethod
    def load(cls, path: str | Path, overrides: Overrides = ()) -> Self:
        """Read a suite file; `ConfigError` names everything that is wrong in it with file, line and column."""
        return cls(Path(path), override_strings(overrides))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], folder: str | Path | None = None, overrides: Overrides = ()) -> Self:
        """A suite with the keys of a suite file. Its relative paths begin at ``folder``, by default the current one.

        The dataset may be a list of mappings or of `Sample`, or a data frame of Polars, pandas or Arrow. The target may
        be a function; graders may be functions marked with ``@grader`` and `Grader` objects. These run in this process,
        without isolation.
        """
        return cls(separate_functions(data, folder), override_strings(overrides))

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def description(self) -> str | None:
        return self._spec.description

    @property
    def file(self) -> Path | None:
        """The suite file, if it is all of the suite."""
        return self._spec.file if isinstance(self._source, Path) and self._rows is None else None

    @property
    def graders(self) -> dict[str, str]:
        """The kind of each grader, by its key."""
        return {grader.key: grader.kind for grader in self._spec.graders}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings, such as options without effect."""
        return self._spec.warnings

    def validate(self) -> list[SuiteProblem]:
        """All problems that keep the suite from running, found without calling its agent; a file is read again."""
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
        return Suite(self._source, (*self._overrides, *overrides), self._rows) if overrides else self

    def _with_dataset(self, dataset: object) -> Suite:
        problems: list[Problem] = []
        rows = listed_cases(dataset, problems)
        if problems:
            raise ConfigError(problems)
        if rows is not None:
            return Suite(self._source, self._overrides, rows)
        if isinstance(dataset, str | list | tuple):
            return self._with((f"dataset={json.dumps(dataset)}",))
        reason = f"expected a data frame, a list of cases, a path or a list of paths, not {type(dataset).__name__}"
        raise ConfigError(Problem("dataset", reason))

    @property
    def _in_process(self) -> InProcessCode | None:
        return None if isinstance(self._source, Path) else self._source.in_process

    async def _run(self, storage: Storage, request: RunRequest, observer: RunObserver) -> SuiteOutcome:
        suite = await read_with_code(self._read)
        observer.warn_all(suite.warnings)
        options = request.options._replace(overrides=self._overrides)
        request = request._replace(suite=suite, options=options, in_process=self._in_process)
        return await orchestrate.run_suite(storage, request, observer)

    def _read(self) -> SuiteDefinition:
        try:
            if isinstance(self._source, Path):
                suite = read_suite(self._source, self._overrides)
            else:
                suite = self._source.read(self._overrides)
            return suite if self._rows is None else with_rows(suite, self._rows)
        except ConfigError as error:
            raise with_python_names(error) from None

    async def _problems(self) -> list[SuiteProblem]:
        try:
            suite = await read_with_code(self._read)
        except ConfigError as error:
            return placed_problems(error, None)
        return (await check_variants(suite, self._in_process)).problems


def run_suite(suite: str | Path | Suite | Mapping[str, Any], **options: Unpack[RunSuiteOptions]) -> RunResult:
    """Run a suite against its agent, grade the responses, and store everything.

    A suite is a path, a `Suite`, or a mapping (see `Suite.from_dict`). With several variants the result is a
    `RunGroup`. Works inside a running event loop too, which it blocks: there, await `arun_suite`.

    Raises `ConfigError` if the suite or an option is invalid; failures of agents and graders are in the records.
    The first `KeyboardInterrupt` finishes the calls in flight, a second stops now; either way ``gradeline resume``
    continues the run of a suite file.
    """
    check_names("run_suite", options)
    return wait_for(lambda stop: _run(suite, options, stop))


async def arun_suite(suite: str | Path | Suite | Mapping[str, Any], **options: Unpack[RunSuiteOptions]) -> RunResult:
    """`run_suite` in the running event loop. After a cancellation ``gradeline resume`` continues the run of a file."""
    check_names("arun_suite", options)
    return await _run(suite, options, Stop())


async def _run(suite: str | Path | Suite | Mapping[str, Any], options: RunSuiteOptions, stop: Stop) -> RunResult:
    request = run_request(options)
    wanted = await read_with_code(lambda: as_suite(suite, options.get("folder"), request.options.overrides))
    if options.get("dataset") is not None:
        dataset = options["dataset"]
        wanted = await read_with_code(lambda: wanted._with_dataset(dataset))
    baseline = options.get("baseline")
    store = options.get("store")
    if store is None and isinstance(baseline, RunResult):
        store = baseline.store
    opened = OpenStore(store)
    begun: list[Run] = []
    named = str(store) if isinstance(store, str | Path) else None
    observer = RunObserver(_log.warning, lambda prepared, run: _watched(options, begun, prepared, run), stop, named)
    try:
        done = await wanted._run(opened.storage, request, observer)
        _write_output(done)
    except BaseException as error:
        opened.close()
        if isinstance(error, ConfigError):
            raise with_python_names(error) from None
        if begun and opened.is_durable and wanted.file is not None:
            error.add_note(f"continue with: {command('resume', begun[-1].id, named)}")
        raise
    if stop.reason == INTERRUPTED_REASON:  # the caller gets an exception and no result
        opened.close()
        if begun and opened.is_durable and wanted.file is not None:
            _log.warning("interrupted; continue with: %s", command("resume", begun[-1].id, named))
    results = [RunResult(ran, opened) for ran in done.runs]
    return results[0] if len(results) == 1 else RunGroup(results, opened)


def _write_output(done: SuiteOutcome) -> None:
    """Write letta-evals result files, if the suite names a folder."""
    if done.suite.output is not None:
        from gradeline.letta.result_files import LettaRun, write_letta_layout  # few suites do

        write_letta_layout(done.suite.output, [LettaRun.of(ran.report, done.suite.masked) for ran in done.runs])


def as_suite(
    suite: str | Path | Suite | Mapping[str, Any],
    folder: str | Path | None = None,
    overrides: tuple[str, ...] = (),
) -> Suite:
    """The suite as an object."""
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
    callback = options.get("on_progress")
    if callback is None:
        yield lambda _: None
        return
    total, done = prepared.expected(run), 0

    def advance(case: CompletedCase | ProgressCount | LookReport) -> None:
        nonlocal done
        if not isinstance(case, CompletedCase):
            return  # cases done by Ray workers, which are reported in numbers only, or a look
        done += 1
        grades = {key: one.grade for key, one in case.graded.items()}
        callback(CaseProgress(run, done, total, case.planned.key.case, case.planned.key.repeat, case.response, grades))

    yield advance
