"""Base classes of graders: the public `Grader`, and declared graders with typed options."""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, overload

from gradeline.errors import BadReplyError, ConfigError, DataError, GraderError, NeedsIsolationError, Problem
from gradeline.model import (
    Config,
    GradeContext,
    GradeResult,
    GraderProtocol,
    Need,
    Sample,
    clean_data,
    clean_text,
    fingerprint,
    quote,
)
from gradeline.model.config import canonical_options
from gradeline.model.context import copy_context
from gradeline.model.grade import plain_scalar
from gradeline.model.registry import Declaration
from gradeline.model.resources import Resources
from gradeline.model.text import plain_str, quote_typed
from gradeline.parsing.isolation import is_killable, needs_worker

C = TypeVar("C", bound=Config)

LINEAR_CHARS = 10_000_000
"""Maximum characters for graders with linear running time."""
LOCAL_CHARS = 400_000
"""Characters for which the slowest of the linear graders takes 50 ms, 120 ns each."""
QUADRATIC_CHARS = 100_000
"""Maximum characters for graders with quadratic running time."""

DEFAULT_EXTRACTOR = "last_assistant"
"""The default for most graders: the agent's last message."""

_MISSING: Any = object()


class ConfigIssue(NamedTuple):
    """A problem of a grader's options that only files show; a fatal one prevents its use."""

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
    default_extractor: ClassVar[str] = DEFAULT_EXTRACTOR
    """The extractor of the submission, unless the suite names one."""
    resources: Resources = Resources()
    """Resources of the run; call servers through ``resources.transport()``, which enforces the egress policy."""

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        if isinstance(grader_id, Mapping):
            grader_id, config = None, grader_id
        self.grader_id = grader_id or type(self).__name__
        self.config = {} if config is None else config

    def bind(self, resources: Resources) -> Self:
        """A copy of the grader with these resources; `ConfigError` if something is missing there."""
        bound = copy(self)
        bound.resources = resources
        return bound

    def grade(self, *args: Any, **kwargs: Any) -> Any:
        """Score a single response."""
        raise NotImplementedError(f"{type(self).__name__} must override grade()")


class DeclaredGrader(Declaration[C], Grader):
    """A grader with a kind and typed options; implement `result`.

    Called with a `GradeContext`, `grade` returns a `GradeResult` or raises a `GraderError`; if `result` raises
    `NeedsIsolationError`, `grade` runs it in a worker process. Called with two strings it returns the plain dict of a
    text grader and never raises: errors score 0.0 there, with the reason in ``details["reason"]``.
    """

    noun = "grader"
    scoring_guide: ClassVar[str]
    caveats: ClassVar[tuple[str, ...]] = ()
    """Known biases of its scores."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    runs_programs: ClassVar[bool] = False
    """Whether it runs a program that its options name."""
    case_rubrics: ClassVar[bool] = False
    """Whether a case's own rubric replaces the grader's."""
    max_chars: ClassVar[int] = LINEAR_CHARS
    local_chars: ClassVar[int] = LOCAL_CHARS
    """Maximum characters of submission and ground truth together in a process that is not a worker.

    For any text of this length `result` takes at most `isolation.MOST_NS`, or raises `NeedsIsolationError` itself.
    """

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        if isinstance(grader_id, Mapping):
            grader_id, config = None, grader_id
        self.grader_id = grader_id or self.kind
        super().__init__(config)

    @property
    def reads_submission(self) -> bool:
        """Whether an empty submission scores 0.0 without a call of the grader."""
        return True

    def config_issues(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:  # noqa: ARG002 - few have any
        """Problems of the options that only files in the folder show; ``case`` is one of the cases to grade."""
        return iter(())

    @classmethod
    def class_for(cls, config: Mapping[str, Any]) -> type[DeclaredGrader[Any]]:  # noqa: ARG003 - few kinds have several
        """The class that implements this kind with these options."""
        return cls

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns whose grades it reads from ``ctx.grades``; any makes ``grades`` one of its needs."""
        return ()

    @abstractmethod
    def result(self, ctx: GradeContext) -> GradeResult:
        """Grade one submission."""

    def local_result(self, ctx: GradeContext, chars: int) -> GradeResult:
        """`result`, with ``chars`` in both texts; `NeedsIsolationError` if only a worker process may grade them."""
        if chars > self.local_chars and self.reads_submission and not is_killable():
            raise needs_worker(f"grading {chars:,} characters by {self.kind}")
        return self.result(ctx)

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
            try:
                chars = len(agent_response.submission) + len(agent_response.expected or "")
                return self.local_result(agent_response, chars)
            except NeedsIsolationError:
                return self.isolated(agent_response)
        if actual is not _MISSING:
            agent_response = actual
        if expected is not _MISSING:
            expected_output = expected
        if agent_response is _MISSING:
            raise TypeError("grade() requires the agent's response")
        # most texts are plain already, and a call takes time
        if type(agent_response) is not str and isinstance(agent_response, str):
            agent_response = plain_str(agent_response)
        if type(expected_output) is not str and isinstance(expected_output, str):
            expected_output = plain_str(expected_output)
        return self.compare(agent_response, expected_output)

    def isolated(self, ctx: GradeContext) -> GradeResult:
        """The result from a worker process; `GraderError` of type ``timeout`` or ``memory`` at its limits."""
        pools: Any = import_module("gradeline.usercode.pools")  # a higher layer, which starts processes
        result: GradeResult = pools.ISOLATED.grade(self.kind, canonical_options(self.options), ctx)
        return result

    def compare(self, actual: object, expected: object) -> dict[str, Any]:
        """The text grader's dict; never raises."""
        sample = Sample(id=0, input="", ground_truth=as_text(expected))
        ctx = GradeContext(sample, as_text(actual) or "")
        try:
            try:
                result = self.local_result(ctx, len(ctx.submission) + len(ctx.expected or ""))
            except NeedsIsolationError:
                result = self.isolated(ctx)
        except (GraderError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            error_type = getattr(error, "type", type(error).__name__)
            return {"passed": False, "score": 0.0, "details": {"reason": reason, "error": error_type}}
        details = {"reason": result.rationale, **result.metadata}
        if result.score is None:
            return {"passed": False, "score": 0.0, "details": {**details, "error": "no_score"}}
        return {"passed": result.passed, "score": result.score, "details": details}

    def definition(self) -> dict[str, Any]:
        """The canonical stored form; `gradeline.graders.from_definition` rebuilds the grader from it."""
        definition: dict[str, Any] = {"kind": self.kind}
        config = canonical_options(self.options)
        if config:
            definition["config"] = config
        return definition

    @classmethod
    def describe(cls) -> dict[str, Any]:
        return {
            **super().describe(),
            "scoring_guide": cls.scoring_guide,
            "caveats": list(cls.caveats),
            "default_extractor": cls.default_extractor,
        }


def as_text(value: object) -> str | None:
    """Any object as a text to grade: data as JSON, other objects as their ``repr``."""
    if value is None:
        return None
    if isinstance(value, str):
        return plain_str(value)
    if isinstance(value, bytes):
        return clean_text(value).text
    try:
        return json.dumps(clean_data(value), ensure_ascii=False)
    except DataError:
        return quote(value)


def binary_result(holds: bool, rationale: str, metadata: dict[str, Any] | None = None) -> GradeResult:
    """A result of 1.0 or 0.0."""
    return GradeResult(1.0 if holds else 0.0, rationale, metadata or {}, holds)


def drop_originals(details: dict[str, Any]) -> dict[str, Any]:
    """The details of a text grader without both texts, which the record contains already."""
    return {key: value for key, value in details.items() if key not in ("expected_original", "actual_original")}


class AdaptedGrader:
    """Adapter for a user's `Grader` subclass with either signature of ``grade``."""

    needs: frozenset[Need] = frozenset()
    max_chars = LINEAR_CHARS
    reads_submission = True

    def __init__(self, grader: Grader, kind: str) -> None:
        self._grader = grader
        self._takes_context = _takes_context(grader)
        self.kind = kind

    def bind(self, resources: Resources) -> AdaptedGrader:
        """As `Grader.bind`."""
        return AdaptedGrader(self._grader.bind(resources), self.kind)

    @property
    def grader_id(self) -> str:
        return self._grader.grader_id

    @cached_property
    def fingerprint(self) -> str:
        """Covers the bytes of the defining file and the config."""
        try:
            source = Path(inspect.getfile(type(self._grader))).read_bytes().hex()
        except (OSError, TypeError):
            source = None
        config = clean_data(self._grader.config, "config")
        return fingerprint("grader", self.kind, type(self._grader).__qualname__, source, config)

    def grade(self, ctx: GradeContext, /) -> GradeResult:
        if self._takes_context:
            return as_result(self._grader.grade(copy_context(ctx)))
        return as_result(self._grader.grade(ctx.submission, ctx.expected))


def as_grader(grader: Grader, kind: str | None = None) -> GraderProtocol:
    """Any grader with the engine's interface."""
    if isinstance(grader, DeclaredGrader):
        return grader
    return AdaptedGrader(grader, kind or grader.grader_id)


def as_result(value: object) -> GradeResult:
    """The return value of a grader as a `GradeResult`; `BadReplyError` if it is not valid."""
    if type(value) is GradeResult:
        return value
    try:
        if isinstance(value, GradeResult):  # a subclass may have left out the checks
            return GradeResult(value.score, value.rationale, value.metadata, value.passed)
        value = plain_scalar(value)
        if isinstance(value, Mapping):
            details: Mapping[str, Any] = value.get("details") or {}
            passed: Any = value.get("passed")
            return GradeResult(value["score"], details.get("reason"), dict(details), passed)
        if isinstance(value, bool):
            return GradeResult(1.0 if value else 0.0, passed=value)
        if isinstance(value, int | float):
            return GradeResult(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadReplyError(f"the grader returned {quote(value)}: {error}") from error
    raise BadReplyError(f"the grader returned {quote_typed(value)}; return a GradeResult with a score from 0.0 to 1.0")


def _takes_context(grader: Grader) -> bool:
    signature = inspect.signature(grader.grade)
    for arguments, takes_context in (((None, None), False), ((None,), True)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return takes_context
    cls: Any = type(grader)
    raise ConfigError(
        Problem(
            f"{cls.__module__}.{cls.__qualname__}.grade{signature}",
            "must take (actual, expected) or (ctx)",
        )
    )
