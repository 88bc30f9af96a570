"""All faults of a suite at once: those of its file, of its code, and of what is made of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gradeline.errors import ConfigError, Problem
from gradeline.suite.places import PlacedError, SuiteProblem
from gradeline.suite.read import SuiteFileError, locate
from gradeline.suite.spec import CodeReference, Suite
from gradeline.usercode.loader import SETUP, TARGET, CodeSpec, LoadError, LoadFault, Reserved, Wanted
from gradeline.usercode.pool import WorkerPool

T = TypeVar("T")


class Faults:
    """Collects what is wrong with a suite step by step, so that one error can report all of it."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._errors: list[ConfigError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """What is wrong within is kept, and the next step can still be taken."""
        try:
            yield
        except ConfigError as error:
            self._errors.append(error)

    def report(self) -> None:
        """Raise what was collected, if anything was."""
        if not self._errors:
            return
        first = self._errors[0]
        if len(self._errors) == 1 and not isinstance(first, LoadError):
            raise first
        found = [problem for error in self._errors for problem in placed_problems(error, self._suite)]
        raise PlacedError(_in_order(found))


def placed_problems(error: ConfigError, suite: Suite | None) -> list[SuiteProblem]:
    """The faults of an error, each with its file and line as far as they are known."""
    references = () if suite is None else suite.references
    file = next((reference.file for reference in references), "")
    if isinstance(error, PlacedError):
        known = list(error.placed)
        return [one if one.file else locate(Problem(one.path, one.message), file) for one in known]
    if isinstance(error, LoadError):
        return list(_code_problems(error.faults, references))
    return [locate(problem, file) for problem in error.problems]


async def read_with_code(read: Callable[[], T]) -> T:
    """Read a suite; where it is wrong, the faults of the code that it names are reported too."""
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
        raise PlacedError(_in_order([*found.placed, *code])) from None
    except ConfigError:
        pass  # this system cannot run code; what is wrong in the file is reported all the same
    raise found


def _code_of(folder: Path, references: Sequence[CodeReference]) -> CodeSpec | None:
    own = [reference for reference in references if reference.origin is None]
    if not own:
        return None
    target = next((reference.name for reference in own if reference.role == TARGET), "")
    return CodeSpec(
        str(folder),
        tuple(Wanted(reference.role, reference.name) for reference in own if reference.role != SETUP),
        next((reference.name for reference in own if reference.role == SETUP), None),
        (target.rpartition(":")[0],) if ".py:" in target else (),
        tuple(
            Reserved(reference.role, reference.name, reference.origin)
            for reference in references
            if reference.origin is not None
        ),
    )


def _code_problems(faults: Iterable[LoadFault], references: Sequence[CodeReference]) -> Iterator[SuiteProblem]:
    """Faults of code with the key path that names it; a file that several keys need is reported once."""
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
    """Those of the suite's own file first: only that has columns.

    A fault of the code that the file has too is left out: both are checked for names that a built-in has.
    """
    found = list(problems)
    own = next((problem.file for problem in found if problem.column), "")
    known = {(one.path, one.message) for one in found if one.file == own}
    kept = [one for one in found if one.file == own or (one.path, one.message) not in known]
    return sorted(kept, key=lambda one: (one.file != own, one.file, one.line, one.column))
