"""The checks of a case: rules, and criteria for a judge, that are part of a row of the dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from time import perf_counter_ns
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import msgspec

from gradeline.errors import CaseLeftOut, GraderError, MissingDataError, Outcome, Problem, closest_match
from gradeline.graders.base import DeclaredGrader
from gradeline.graders.rules.base import Rule, Subject
from gradeline.graders.rules.grader import AnyRule, Measure, measure_rule, read_rule, rule_name, takes_long
from gradeline.model import Config, GradeContext, GradeResult, described, quote, read_struct
from gradeline.model.config import Reading

MAX_CHECKS = 1_000
_MAX_NAMED = 10
_MAX_METRIC = 80
_MAX_KEPT = 1_024
_MAX_KEPT_BYTES = 4_000
"""Lists of checks that are kept as read, and the most bytes that one of them has as JSON."""
_EXAMPLE = "{condition: contains, value: …} or {judge: …}"


class JudgeCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A criterion in words, which a model checks."""

    judge: Annotated[str, described("The criterion, in words.", min_length=1, max_length=20_000)]
    weight: Annotated[float, described("Weight in the score (default 1).", ge=0, le=1e6)] = 1.0
    required: Annotated[bool, described("Score 0.0 for the whole grade if it does not hold.")] = False
    negate: Annotated[bool, described("The submission must not meet the criterion.")] = False


class CaseCheck(NamedTuple):
    """One check of a case."""

    path: str
    part: Rule | JudgeCheck
    metric: str | None
    name: str
    """The check in a few words."""

    @classmethod
    def of(cls, path: str, part: Rule | JudgeCheck, metric: str | None) -> Self:
        if isinstance(part, Rule):
            return cls(path, part, metric, rule_name(part))
        return cls(path, part, metric, f"{'not ' if part.negate else ''}judge {quote(part.judge, 80)}")


class CheckResult(NamedTuple):
    """The result of one check; ``seen`` is the text that decided it, the judge's reason, or the error."""

    check: CaseCheck
    outcome: Outcome
    score: float | None
    seen: str
    error: GraderError | None = None

    def to_data(self) -> dict[str, Any]:
        """The result for the metadata of a grade."""
        part = self.check.part
        data: dict[str, Any] = {"check": self.check.name, "outcome": self.outcome.value, "score": self.score}
        data["saw" if isinstance(part, Rule) and self.error is None else "reason"] = self.seen
        if self.check.metric is not None:
            data["metric"] = self.check.metric
        if part.weight != 1:
            data["weight"] = part.weight
        if part.required:
            data["required"] = True
        return data


def read_checks(data: object, path: str, problems: list[Problem]) -> list[CaseCheck]:
    """The checks in a list; appends the faults of each to ``problems``."""
    if not isinstance(data, list | tuple):
        problems.append(Problem(path, f"expected a list of checks such as {_EXAMPLE}, got {quote(data)}"))
        return []
    if len(data) > MAX_CHECKS:
        problems.append(Problem(path, f"has {len(data):,} checks; at most {MAX_CHECKS:,} are read"))
        return []
    known = len(problems)
    found = [_read_check(item, f"{path}[{index}]", problems) for index, item in enumerate(data)]
    problems[known:] = [_with_metric(problem, path) for problem in problems[known:]]
    checks = [check for check in found if check is not None]
    if checks and len(problems) == known and not sum(check.part.weight for check in checks):
        problems.append(Problem(path, "all weights are 0: set a weight above 0 for at least one check"))
    return checks


def _read_check(item: object, path: str, problems: list[Problem]) -> CaseCheck | None:
    if not isinstance(item, Mapping):
        problems.append(Problem(path, f"expected a check such as {_EXAMPLE}, got {quote(item)}"))
        return None
    metric = None
    if "metric" in item:
        metric = item["metric"]
        item = {key: value for key, value in item.items() if key != "metric"}
        if not isinstance(metric, str) or not metric.strip() or len(metric) > _MAX_METRIC or not metric.isprintable():
            expected = f"a name of at most {_MAX_METRIC} characters"
            problems.append(Problem(f"{path}.metric", f"expected {expected}, got {quote(metric)}"))
            return None
    part = _plain_rule(item)
    if part is not None:
        return CaseCheck.of(path, part, metric)
    if "judge" not in item:
        rule = read_rule(item, path, problems)
        return None if rule is None else CaseCheck.of(path, rule, metric)
    reading: Reading[JudgeCheck] = read_struct(JudgeCheck, item, path)
    problems += [*reading.problems, *reading.unknown]
    if reading.options is None or reading.problems or reading.unknown:
        return None
    if not reading.options.judge.strip():
        problems.append(Problem(f"{path}.judge", "is empty: write the criterion in words"))
        return None
    return CaseCheck.of(path, reading.options, metric)


def _with_metric(problem: Problem, checks: str) -> Problem:
    """A fault that suggests ``metric``, which checks have in addition to the options of their rule or criterion."""
    place, _, key = problem.path.rpartition(".")
    if not problem.message.startswith("unknown option") or not closest_match(key, ("metric",)):
        return problem
    if "." not in place.removeprefix(checks):
        return problem._replace(message="unknown option; did you mean 'metric'?")
    message = "unknown option: only a whole check has a metric, not a rule inside it"
    return problem._replace(message=message) if key == "metric" else problem


class _RuleHolder(msgspec.Struct):
    """For `msgspec.convert`, which remembers how to read a struct, and works it out for each call for a union."""

    rule: AnyRule


def _plain_rule(item: Mapping[Any, Any]) -> Rule | None:
    """A rule in its most common form, read on a fast path; None for others, which `read_rule` reads and explains."""
    if "condition" not in item or not all(type(value) is not str or value.isascii() for value in item.values()):
        return None
    try:
        rule: Rule = msgspec.convert({"rule": item}, _RuleHolder).rule
    except (msgspec.ValidationError, RecursionError):
        return None
    return None if getattr(rule, "rules", ()) or next(rule.faults(), None) is not None else rule


def metrics_of(data: object) -> list[str]:
    """The names of the metrics in a list of checks, each once; faults are ignored."""
    if not isinstance(data, list):
        return []
    names = (item.get("metric") for item in data if isinstance(item, dict))
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def has_judge(data: object) -> bool:
    """True if one of the checks in a list needs a judge."""
    return isinstance(data, list) and any(isinstance(item, dict) and "judge" in item for item in data)


class PassRule(NamedTuple):
    """When the checks of a case pass together."""

    mode: Literal["all", "any", "weighted"] = "all"
    threshold: float = 0.5


class CaseChecks:
    """The checks of one case, ready to run."""

    def __init__(self, checks: Sequence[CaseCheck]) -> None:
        self.checks = checks
        self.criteria = [(at, check.part) for at, check in enumerate(checks) if isinstance(check.part, JudgeCheck)]
        """The checks for a judge, with their places."""
        self._rules = [check.part for check in checks if isinstance(check.part, Rule)]
        self._measures: list[Measure | None] = [
            measure_rule(check.part, check.path) if isinstance(check.part, Rule) else None for check in checks
        ]

    @classmethod
    def of(cls, ctx: GradeContext) -> CaseChecks | None:
        """The case's own checks; None if it has none. `MissingDataError` if they are faulty."""
        if not ctx.sample.checks:
            return None
        checks, problems = checks_of_case(ctx.sample.checks)
        if problems:
            raise MissingDataError("; ".join(map(str, problems)))
        return checks

    def run_rules(self, ctx: GradeContext) -> list[CheckResult | None]:
        """The results of the rules; None for each check that is for a judge."""
        watched = takes_long(ctx.submission, self._rules)
        subject = Subject(ctx.submission, ctx, perf_counter_ns() if watched else None)
        return [
            None if measure is None else _rule_result(check, measure, subject)
            for check, measure in zip(self.checks, self._measures, strict=True)
        ]


def checks_of_case(data: object) -> tuple[CaseChecks, list[Problem]]:
    """The checks of a case and their faults. What was read before is not read again: a case is read, then graded."""
    try:
        text = msgspec.json.encode(data)
    except (TypeError, ValueError, RecursionError):  # no JSON data
        text = b""
    known = _valid_checks(text) if 0 < len(text) <= _MAX_KEPT_BYTES else None
    if known is not None:
        return known, []
    problems: list[Problem] = []
    return CaseChecks(read_checks(data, "checks", problems)), problems


@lru_cache(_MAX_KEPT)
def _valid_checks(text: bytes) -> CaseChecks | None:
    problems: list[Problem] = []
    checks = CaseChecks(read_checks(msgspec.json.decode(text), "checks", problems))
    return None if problems else checks


def _rule_result(check: CaseCheck, measure: Measure, subject: Subject) -> CheckResult:
    part = check.part
    assert isinstance(part, Rule)  # noqa: S101 - only rules have a measure
    try:
        subject.check_time()
        share, holds = measure(subject)
        seen = part.seen(subject)
    except CaseLeftOut:
        raise
    except GraderError as error:
        if error.type == "needs_isolation":
            raise
        return CheckResult(check, Outcome.ERROR, None, str(error), error)
    return CheckResult(check, Outcome.PASS if holds else Outcome.FAIL, share, seen)


class ChecksFailedError(GraderError):
    """A check has no result, so the case has no score; ``metadata`` has the results of all."""

    def __init__(self, failed: CheckResult, results: Sequence[CheckResult]) -> None:
        error = failed.error or GraderError("no result")
        super().__init__(f"{failed.check.path} ({failed.check.name}): {error}")
        self.type = error.type
        self.metadata = {"checks": [result.to_data() for result in results]}


def grade_checks(rule: PassRule, results: Sequence[CheckResult]) -> GradeResult:
    """The grade of a case from the results of its checks; `ChecksFailedError` if one that counts has none."""
    counted = [result for result in results if result.check.part.weight or result.check.part.required]
    failed = [result for result in counted if result.outcome is not Outcome.PASS]
    broken = next((result for result in failed if result.score is None), None)
    if broken is not None:
        raise ChecksFailedError(broken, results)
    fatal = any(result.check.part.required for result in failed)
    score = 0.0 if fatal else _share(results)
    passed = not fatal and _passes(rule, score, len(counted) - len(failed), len(counted))
    metadata = {"checks": [result.to_data() for result in results]}
    return GradeResult(score, _rationale(failed, len(counted)), metadata, passed)


def _share(results: Sequence[CheckResult]) -> float:
    total = credit = 0.0
    for check, _, score, *_ in results:
        total += check.part.weight
        credit += check.part.weight * (score or 0.0)
    return min(1.0, credit / total)


def _passes(rule: PassRule, score: float, held: int, count: int) -> bool:
    if rule.mode == "weighted":
        return score >= rule.threshold
    return held > 0 if rule.mode == "any" else held == count


def _rationale(failed: Sequence[CheckResult], count: int) -> str:
    if not failed:
        return f"All {count} checks hold" if count > 1 else "The check holds"
    named = [f"{result.check.name} (saw {result.seen})" for result in failed[:_MAX_NAMED]]
    more = f"; and {len(failed) - _MAX_NAMED} more" if len(failed) > _MAX_NAMED else ""
    return f"{count - len(failed)} of {count} checks hold; failed: {'; '.join(named)}{more}"


class ChecksMetricConfig(Config, frozen=True, kw_only=True):
    """Options of `ChecksMetricGrader`."""

    metric: Annotated[str, described("The metric, as checks name it.", min_length=1)]
    checks: Annotated[str, described("The grader of kind checks.", min_length=1)] = "checks"


class ChecksMetricGrader(DeclaredGrader[ChecksMetricConfig]):
    """The checks of one metric, as a column of its own."""

    kind = "checks_metric"
    name = "Metric of checks"
    scoring_guide = "The weighted share of the metric's checks that hold; passes if all of them do."
    needs = frozenset({"grades"})
    reads_submission: ClassVar[bool] = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.options.checks,)

    def result(self, ctx: GradeContext) -> GradeResult:
        name = self.options.checks
        grade = ctx.grades.get(name)
        if grade is None:
            raise MissingDataError(f"there is no grade by {name}")
        results = list(_results_in(grade.metadata))
        own = [result for result in results if result.get("metric") == self.options.metric]
        if not own and grade.outcome is Outcome.ERROR and not results:
            raise MissingDataError(f"{name} has no results" + (f": {grade.error.message}" if grade.error else ""))
        if not own:
            raise CaseLeftOut(Outcome.NOT_APPLICABLE, f"no check of this case has the metric {self.options.metric}")
        broken = next((result for result in own if result["score"] is None), None)
        if broken is not None:
            raise MissingDataError(f"{broken['check']}: {broken.get('reason', 'no result')}")
        weights = [result.get("weight", 1.0) for result in own]
        if not sum(weights):  # of checks that only measure, each counts the same
            weights = [1.0] * len(own)
        score = sum(weight * result["score"] for weight, result in zip(weights, own, strict=True)) / sum(weights)
        failed = [result["check"] for result in own if result["outcome"] != "pass"]
        held = f"{len(own) - len(failed)} of {len(own)} checks hold" if len(own) > 1 or failed else "The check holds"
        rationale = held + (f"; failed: {'; '.join(failed)}" if failed else "")
        return GradeResult(min(1.0, score), rationale, None, not failed)


def _results_in(metadata: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The results of checks in a grade's metadata, those of all turns of a conversation."""
    yield from metadata.get("checks", ())
    for turn in metadata.get("per_turn_grades", ()):
        yield from turn.get("metadata", {}).get("checks", ())
