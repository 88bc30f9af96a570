"""What a grader is: the public base class, and the declared graders built on it."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, overload

import msgspec

from gradeline.errors import DataError, GraderError, Problem
from gradeline.model import Config, GradeContext, GradeResult, Need, Sample, clean_data, clean_text, quote
from gradeline.model.config import canonical_options
from gradeline.model.declared import Declared

C = TypeVar("C", bound=Config)

LINEAR_CHARS = 10_000_000
"""Size bound of graders whose time grows with the text."""
QUADRATIC_CHARS = 100_000
"""Size bound of graders whose time grows with its square."""

_MISSING: Any = object()


class Surroundings(NamedTuple):
    """Where a grader is used: the folder that relative paths begin at, and the variables that hold keys."""

    folder: Path | None = None
    environment: Mapping[str, str] | None = None
    """None: those of this process."""
    open_transport: Callable[[], Any] | None = None
    """Makes what a grader that asks models calls them through; a service's keeps to its egress policy."""


class Remark(NamedTuple):
    """What a look at a grader's surroundings tells about its options; a fatal one keeps it from being used."""

    problem: Problem
    fatal: bool = False


class Grader:
    """Base class to subclass: keep options in ``config``, override `grade`.

    ``grade(actual, expected)`` may return a `GradeResult`, a number, a bool, or a mapping with
    ``score`` and optionally ``passed`` and ``details``. A grader that needs more than two texts
    takes one `GradeContext` instead.
    """

    grader_id: str
    config: Mapping[str, Any]

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        if isinstance(grader_id, Mapping):
            grader_id, config = None, grader_id
        self.grader_id = grader_id or type(self).__name__
        self.config = {} if config is None else config

    def grade(self, *args: Any, **kwargs: Any) -> Any:
        """Score a single response."""
        raise NotImplementedError(f"{type(self).__name__} must override grade()")


class DeclaredGrader(Declared[C], Grader):
    """A grader with a kind and typed options; implement `result`.

    Called with a `GradeContext`, `grade` gives a `GradeResult` or raises a `GraderError`.
    Called with two texts it gives the plain dict of a text grader and never raises: what cannot
    be graded scores 0.0 there and ``details["reason"]`` says why.
    """

    noun = "grader"
    scoring_guide: ClassVar[str]
    caveats: ClassVar[tuple[str, ...]] = ()
    """What is known to bend its scores."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    max_chars: ClassVar[int] = LINEAR_CHARS
    reads_submission: ClassVar[bool] = True

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        if isinstance(grader_id, Mapping):
            grader_id, config = None, grader_id
        self.grader_id = grader_id or self.kind
        super().__init__(config)

    def within(self, surroundings: Surroundings) -> Self:  # noqa: ARG002 - most graders are the same everywhere
        """The grader, ready to be used there; `ConfigError` for what is missing there."""
        return self

    def remarks(self, folder: Path, case: Sample | None) -> Iterator[Remark]:  # noqa: ARG002 - as `within`
        """What is wrong or odd with the options there, as far as files tell; ``case`` is one of those to grade."""
        return iter(())

    @abstractmethod
    def result(self, ctx: GradeContext) -> GradeResult:
        """Grade one submission."""

    @overload
    def grade(self, ctx: GradeContext, /) -> GradeResult: ...
    @overload
    def grade(self, agent_response: str | None, expected_output: str | None = ...) -> dict[str, Any]: ...
    @overload
    def grade(self, *, actual: str | None, expected: str | None = ...) -> dict[str, Any]: ...
    def grade(
        self,
        agent_response: object = _MISSING,
        expected_output: object = None,
        *,
        actual: object = _MISSING,
        expected: object = _MISSING,
    ) -> GradeResult | dict[str, Any]:
        """Grade a context, or two texts."""
        if isinstance(agent_response, GradeContext):
            return self.result(agent_response)
        if actual is not _MISSING:
            agent_response = actual
        if expected is not _MISSING:
            expected_output = expected
        if agent_response is _MISSING:
            raise TypeError("grade() needs the agent's response")
        return self.compare(agent_response, expected_output)

    def compare(self, actual: object, expected: object) -> dict[str, Any]:
        """The text grader's dict; never raises."""
        sample = Sample(id=0, input="", ground_truth=as_text(expected))
        try:
            result = self.result(GradeContext(sample, as_text(actual) or ""))
        except (GraderError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            error_type = getattr(error, "type", type(error).__name__)
            return {"passed": False, "score": 0.0, "details": {"reason": reason, "error": error_type}}
        return {
            "passed": result.passed,
            "score": result.score,
            "details": {"reason": result.rationale, **result.metadata},
        }

    @classmethod
    def takes(cls, option: str) -> bool:
        """Whether there is an option of that name."""
        return any(field.encode_name == option for field in msgspec.structs.fields(cls._config_type))

    def definition(self) -> dict[str, Any]:
        """The canonical stored form; `gradeline.graders.from_definition` rebuilds the grader from it."""
        definition: dict[str, Any] = {"kind": self.kind}
        config = canonical_options(self.options)
        if config:
            definition["config"] = config
        return definition

    @classmethod
    def describe(cls) -> dict[str, Any]:
        return {**super().describe(), "scoring_guide": cls.scoring_guide, "caveats": list(cls.caveats)}


def as_text(value: object) -> str | None:
    """Any object as a text to grade: data as JSON, what is none as its ``repr``."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return clean_text(value).text
    try:
        return json.dumps(clean_data(value), ensure_ascii=False)
    except DataError:
        return quote(value)


def verdict(holds: bool, rationale: str, metadata: dict[str, Any] | None = None) -> GradeResult:
    """A grade that is all or nothing."""
    return GradeResult(1.0 if holds else 0.0, rationale, metadata or {}, holds)


def without_originals(details: dict[str, Any]) -> dict[str, Any]:
    """The details of a text grader less both texts, which the record holds already."""
    return {key: value for key, value in details.items() if key not in ("expected_original", "actual_original")}
