"""Finds what is wrong with a suite before a run begins, all of it in one error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gradeline.engine.components import target_files
from gradeline.engine.definition import RunOptions
from gradeline.engine.execute import AGENT
from gradeline.engine.grade import GraderUse
from gradeline.engine.pipeline import paid_parts, unpriced_of
from gradeline.errors import ConfigError, Problem
from gradeline.suite.dataset import open_dataset
from gradeline.suite.dataset_source import DatasetSource
from gradeline.suite.problems import SourceError, SuiteProblem
from gradeline.suite.read import SuiteFileError, locate
from gradeline.suite.spec import CodeReference, SuiteDefinition
from gradeline.targets.base import DeclaredTarget
from gradeline.usercode.loader import SETUP, CodeRequest, CodeSpec, LoadError, LoadFault, ReservedName
from gradeline.usercode.pool import WorkerPool

T = TypeVar("T")

MAX_BYTES_READ = 5_000_000
"""The largest dataset that is read only to check it."""


class ProblemCollector:
    """Collects the problems of several steps, so that one error can report all of them."""

    def __init__(self, suite: SuiteDefinition) -> None:
        self._suite = suite
        self._errors: list[ConfigError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Store a `ConfigError` of the block, so that the next step can still be taken."""
        try:
            yield
        except ConfigError as error:
            self._errors.append(error)

    def raise_collected(self) -> None:
        """Raise one error with everything that was collected, if anything was."""
        if not self._errors:
            return
        first = self._errors[0]
        if len(self._errors) == 1 and not isinstance(first, LoadError):
            raise first
        found = [problem for error in self._errors for problem in placed_problems(error, self._suite)]
        raise SourceError(_in_order(found))


def placed_problems(error: ConfigError, suite: SuiteDefinition | None) -> list[SuiteProblem]:
    """The problems of an error, each with its file and line as far as they are known."""
    references = () if suite is None else suite.references
    file = next((reference.file for reference in references), "")
    if isinstance(error, SourceError):
        known = list(error.suite_problems)
        return [one if one.file else locate(Problem(one.path, one.message), file) for one in known]
    if isinstance(error, LoadError):
        return list(_code_problems(error.faults, references))
    return [locate(problem, file) for problem in error.problems]


async def read_with_code(read: Callable[[], T]) -> T:
    """Read a suite; if that fails, the error also has the problems of the code that the suite names."""
    try:
        return read()
    except SuiteFileError as error:
        found = error
    spec = _code_of(found.folder, found.references)
    if spec is None:
        raise found
    try:
        async with WorkerPool(spec, size=1) as pool:
            await pool.start()
    except LoadError as error:
        code = _code_problems(error.faults, found.references)
        raise SourceError(_in_order([*found.suite_problems, *code])) from None
    except ConfigError:
        pass  # this system cannot run code; the problems of the file are reported all the same
    raise found


def _code_of(folder: Path, references: Sequence[CodeReference]) -> CodeSpec | None:
    own = [reference for reference in references if reference.origin is None]
    if not own:
        return None
    return CodeSpec(
        str(folder),
        tuple(CodeRequest(reference.role, reference.name) for reference in own if reference.role != SETUP),
        next((reference.name for reference in own if reference.role == SETUP), None),
        target_files(own),
        tuple(
            ReservedName(reference.role, reference.name, reference.origin)
            for reference in references
            if reference.origin is not None
        ),
    )


def _code_problems(faults: Iterable[LoadFault], references: Sequence[CodeReference]) -> Iterator[SuiteProblem]:
    """Problems of code with the key path that names it; a file that several keys use is reported once."""
    by_name = {(reference.role, reference.name): reference for reference in reversed(references)}
    seen: dict[tuple[str | None, int | None, str], SuiteProblem] = {}
    for fault in faults:
        named = by_name.get((fault.role, fault.reference))
        path = fault.reference if named is None else named.path
        if fault.file is not None or named is None:
            problem = SuiteProblem(fault.file or "", fault.line or 0, 0, path, fault.message)
        else:
            problem = SuiteProblem(named.file, named.line, named.column, path, fault.message)
        key = (fault.file or fault.reference, fault.line, fault.message)
        if key not in seen or not seen[key].path:
            seen[key] = problem
    yield from seen.values()


def _in_order(problems: Iterable[SuiteProblem]) -> list[SuiteProblem]:
    """The problems of the suite's own file first: only those have columns.

    A problem of the code that the file has too is left out: both are checked for names of built-ins.
    """
    found = list(problems)
    own = next((problem.file for problem in found if problem.column), "")
    known = {(one.path, one.message) for one in found if one.file == own}
    kept = [one for one in found if one.file == own or (one.path, one.message) not in known]
    return sorted(kept, key=lambda one: (one.file != own, one.file, one.line, one.column))


def is_small(dataset: DatasetSource) -> bool:
    """True for a dataset that can be read only to check or count its cases."""
    return dataset.is_within(MAX_BYTES_READ)


def check_rows(suite: SuiteDefinition, options: RunOptions) -> None:
    """`ConfigError` for an invalid row; the run itself reports those of a large dataset."""
    if not is_small(suite.dataset):
        return
    for _ in open_dataset(suite.dataset, tags=options.tags or suite.tags, folder=suite.folder, cluster=suite.cluster):
        pass


def budget_notes(
    suite: SuiteDefinition,
    options: RunOptions,
    target: DeclaredTarget[Any],
    uses: Sequence[GraderUse],
    *,
    calls_agent: bool,
) -> Iterator[str]:
    """What a cost limit does not cover; `ConfigError` if it covers nothing."""
    limit = suite.budget.cost if options.budget is None else options.budget.cost
    parts = paid_parts(target, uses, calls_agent=calls_agent)
    without = {use.key: [judge.partition(":")[2] for judge in unpriced_of(use)] for use in uses if unpriced_of(use)}
    if parts.get(AGENT, True) is False:
        without = {AGENT: [target.model or target.kind], **without}
    if limit is None or not without:
        return
    models = [model for named in without.values() for model in named]
    unpriced = "no price is known for " + ", ".join(f"{name} ({', '.join(named)})" for name, named in without.items())
    remedy = (
        f"give one with prices: {{{models[0]}: {{input: …, output: …}}}} in the suite, or with --assume-price"
        f" {models[0]}=INPUT/OUTPUT (US dollars per million tokens), or limit calls instead"
    )
    if len(without) < len(parts):
        yield f"the budget of {limit:g} does not count all calls: {unpriced}; {remedy}"
        return
    place = "budget.cost" if options.budget is None else "--budget"
    raise ConfigError(Problem(place, f"{unpriced}, so a budget of {limit:g} would limit nothing; {remedy}"))
