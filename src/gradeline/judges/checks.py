"""The grader of kind checks: each case brings its own rules and criteria, and a judge checks the criteria."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from msgspec import field
from msgspec.structs import replace

from gradeline.errors import CaseLeftOut, GraderError, MissingDataError, NeedsIsolationError, Outcome, Problem
from gradeline.graders.base import DeclaredGrader
from gradeline.graders.checks import (
    CaseCheck,
    CaseChecks,
    CheckResult,
    JudgeCheck,
    PassRule,
    grade_checks,
    read_checks,
)
from gradeline.graders.rules.base import Rule
from gradeline.judges.base import JudgeGrader, gather_all
from gradeline.judges.model_judge import ModelJudge, ModelJudgeConfig
from gradeline.judges.options import ApiKeyEnv, BaseUrl, CallOptions, Model, Provider, Reasoning, model_faults
from gradeline.model import GradeContext, GradeResult, MeteredResult, described, fingerprint
from gradeline.model.config import canonical_options
from gradeline.model.grade import PASS_SCORE
from gradeline.model.llm import Budget, LLMAdapter
from gradeline.model.response import total_usage

_CRITERION = "Does the submission meet this criterion?\n\n{criterion}\n\nScore 1.0 if it does, 0.0 if it does not."
_NO_JUDGE = "is for a judge, and the grader has none; set provider and model on the grader of kind checks"
_NOT_SCORING = ("metrics", "provider", "model", "api_key_env", "max_retries", "timeout")
"""Options that the fingerprint covers in another form, or that do not affect scores."""


class ChecksConfig(CallOptions, frozen=True, kw_only=True):
    """Options of `ChecksGrader`."""

    mode: Annotated[
        Literal["all", "any", "weighted"],
        described("Pass if all checks hold (default), any holds, or the score reaches `threshold`."),
    ] = "all"
    threshold: Annotated[float, described("For mode weighted: minimum score to pass (default 0.5).", ge=0, le=1)] = 0.5
    default: Annotated[
        list[Any], described("Checks of cases that have none of their own (default: those are skipped).")
    ] = field(default_factory=list)
    metrics: Annotated[
        list[str] | None,
        described("Metrics of the checks that get a column of their own (default: all that the cases name)."),
    ] = None

    provider: Provider = "openai"
    model: Model = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    reasoning: Reasoning = False

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        if self.model is not None:
            yield from model_faults(self.provider, self.model, self.base_url, self.api_key_env)
        problems: list[Problem] = []
        read_checks(self.default, "default", problems)
        yield from problems

    @property
    def pass_rule(self) -> PassRule:
        return PassRule(self.mode, self.threshold)


class ChecksGrader(DeclaredGrader[ChecksConfig]):
    """Runs the checks that each case brings with it: rules, and criteria in words for a judge."""

    kind = "checks"
    name = "Checks of the case"
    scoring_guide = (
        "The weighted share of the case's checks that hold, 0.0 when a required one does not; `mode` decides whether"
        " that passes. A case without checks is skipped."
    )

    @classmethod
    def class_for(cls, config: Mapping[str, Any]) -> type[DeclaredGrader[Any]]:
        return cls if config.get("model") is None else JudgedChecksGrader

    def result(self, ctx: GradeContext) -> GradeResult:
        checks = case_checks(self.options, ctx)
        results = checks.run_rules(ctx)
        missing = {at: MissingDataError(f"the check {_NO_JUDGE}") for at, _ in checks.criteria}
        return grade_checks(self.options.pass_rule, _complete(checks, results, missing))


class JudgedChecksGrader(JudgeGrader[ChecksConfig]):
    """`ChecksGrader` with a judge. ``adapter`` replaces the configured model."""

    kind = ChecksGrader.kind
    name = ChecksGrader.name
    scoring_guide = ChecksGrader.scoring_guide

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        adapter: LLMAdapter | None = None,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(grader_id, config, budget=budget)
        self._adapter_override = adapter

    @property
    def judges(self) -> tuple[str, ...]:
        return self._judge.judges

    @cached_property
    def fingerprint(self) -> str:
        """Covers the options and the judge; the checks themselves belong to the case."""
        options = canonical_options(self.options)
        scoring = {name: value for name, value in options.items() if name not in _NOT_SCORING}
        return fingerprint(self.noun, self.kind, self.version, self.judges, _CRITERION, scoring)

    @property
    def prompt_hash(self) -> str:
        return self._judge.prompt_hash

    @cached_property
    def _judge(self) -> ModelJudge:
        own = self.options
        config: dict[str, Any] = canonical_options(own)
        config = {key: value for key, value in config.items() if key in ModelJudgeConfig.__struct_fields__}
        judge = ModelJudge(
            self.grader_id, {**config, "prompt": _CRITERION}, adapter=self._adapter_override, budget=self.budget
        )
        judge.resources = self.resources
        return judge

    def prepare(self) -> None:
        self._judge.prepare()

    def resume_access(self, *, succeeded: bool, failed: int | None = None) -> None:
        self._judge.resume_access(succeeded=succeeded, failed=failed)

    @property
    def unpriced(self) -> tuple[str, ...]:
        return self._judge.unpriced

    async def aclose(self) -> None:
        await self._judge.aclose()

    async def grade_case(self, ctx: GradeContext) -> MeteredResult:
        checks = case_checks(self.options, ctx)
        results = await self._rules(checks, ctx)
        answers = await gather_all(self._judge.agrade(_asked(ctx, check)) for _, check in checks.criteria)
        judged = {at: answer.result for (at, _), answer in zip(checks.criteria, answers, strict=True)}
        usage = total_usage(answer.usage for answer in answers)
        try:
            return MeteredResult(grade_checks(self.options.pass_rule, _complete(checks, results, judged)), usage)
        except GraderError as error:
            return MeteredResult(error, usage)

    async def _rules(self, checks: CaseChecks, ctx: GradeContext) -> list[CheckResult | None]:
        """The results of the rules; from a worker if they could take too long here."""
        try:
            return checks.run_rules(ctx)
        except NeedsIsolationError:
            own = ctx.sample.checks or self.options.default
            return await asyncio.to_thread(_rules_in_worker, checks, own, ctx)


def case_checks(options: ChecksConfig, ctx: GradeContext) -> CaseChecks:
    """The checks of a case, or those of the grader. Raises `CaseLeftOut` if there are none."""
    checks = CaseChecks.of(ctx)
    if checks is not None:
        return checks
    if not options.default:
        raise CaseLeftOut(Outcome.SKIPPED, "the case has no checks")
    return CaseChecks(read_checks(options.default, "default", []))


def _asked(ctx: GradeContext, check: JudgeCheck) -> GradeContext:
    """The context in which the judge grades one criterion: it is the case's rubric."""
    criterion = check.judge.replace("{", "{{").replace("}", "}}")  # braces in it are not placeholders
    rubric = _CRITERION.replace("{criterion}", criterion)
    return replace(ctx, sample=replace(ctx.sample, rubric=rubric, rubric_path=None))


def _complete(
    checks: CaseChecks, results: Sequence[CheckResult | None], judged: Mapping[int, GradeResult | GraderError]
) -> list[CheckResult]:
    """The results of all checks, with those of the judge."""
    return [_judged(checks.checks[at], judged[at]) if result is None else result for at, result in enumerate(results)]


def _judged(check: CaseCheck, result: GradeResult | GraderError) -> CheckResult:
    if isinstance(result, GraderError) or result.score is None:
        error = result if isinstance(result, GraderError) else GraderError("the judge gave no score")
        return CheckResult(check, Outcome.ERROR, None, str(error), error)
    score = 1.0 - result.score if check.part.negate else result.score
    outcome = Outcome.PASS if score >= PASS_SCORE else Outcome.FAIL
    return CheckResult(check, outcome, score, result.rationale or f"score {result.score:g}")


def _rules_in_worker(checks: CaseChecks, own: Sequence[Any], ctx: GradeContext) -> list[CheckResult | None]:
    """The results of the rules among a case's ``own`` checks, from a worker with a deadline."""
    rules = [item for item, check in zip(own, checks.checks, strict=True) if isinstance(check.part, Rule)]
    only_rules = replace(ctx, sample=replace(ctx.sample, checks=rules))
    try:
        answers = iter(ChecksGrader().isolated(only_rules).metadata["checks"])
    except GraderError as error:
        return [
            CheckResult(check, Outcome.ERROR, None, str(error), error) if isinstance(check.part, Rule) else None
            for check in checks.checks
        ]
    return [_from_data(check, next(answers)) if isinstance(check.part, Rule) else None for check in checks.checks]


def _from_data(check: CaseCheck, data: dict[str, Any]) -> CheckResult:
    return CheckResult(check, Outcome(data["outcome"]), data["score"], data["saw"])
