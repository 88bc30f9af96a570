"""A panel: several models as judges of one submission."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Annotated, Any, Literal

from msgspec import Meta

from gradeline.errors import ConfigError, GraderError, Problem
from gradeline.graders.base import ConfigIssue
from gradeline.judges.base import JudgeGrader, gather_all
from gradeline.judges.model_judge import ModelJudge, prompt_issues
from gradeline.judges.options import SELECTIVE_OPTIONS, JudgeModel, PromptOptions
from gradeline.judges.selective import Confidence
from gradeline.judges.weighting import panel_probability
from gradeline.model import GradeContext, GradeResult, MeteredResult, Sample, described, fingerprint
from gradeline.model.config import canonical_options
from gradeline.model.grade import PASS_SCORE
from gradeline.model.learned_judging import LabelledConfidences, PanelWeighting, PanelWeights
from gradeline.model.llm import Budget, LLMAdapter
from gradeline.model.response import total_usage

_FAMILIES: Mapping[str, str] = {
    "gpt": "openai",
    "chatgpt": "openai",
    "o": "openai",
    "claude": "anthropic",
    "gemini": "google",
    "gemma": "google",
    "llama": "meta",
    "mistral": "mistral",
    "mixtral": "mistral",
    "ministral": "mistral",
    "magistral": "mistral",
    "codestral": "mistral",
    "command": "cohere",
    "phi": "microsoft",
}
"""Model families by the first word of a model's name; any other word is its own family."""
_WORD = re.compile(r"[a-z]+")


def family(judge: str) -> str:
    """The family of a model (``claude-sonnet-4``) or of an adapter ID (``openai:gpt-6-luna``)."""
    model = judge.partition(":")[2] or judge
    word = _WORD.search(model.rpartition("/")[2].lower())
    return _FAMILIES.get(word[0], word[0]) if word else judge


def shared_family(judges: Iterable[str]) -> str | None:
    """The family of all judges; None if there are several families."""
    found = {family(judge) for judge in judges}
    return found.pop() if len(found) == 1 else None


_PANEL_OPTIONS = ("judges", "aggregation", "weights", "quorum", *SELECTIVE_OPTIONS)
"""Options of the panel that its members do not have."""


class PanelConfig(PromptOptions, frozen=True, kw_only=True):
    """Options of `PanelGrader`."""

    judges: Annotated[
        list[JudgeModel], described("Judges, at least two, preferably of different families.", min_length=2)
    ]
    aggregation: Annotated[Literal["mean", "median"], described("Combine the judges' scores by mean or median.")] = (
        "mean"
    )
    weights: Annotated[
        Literal["equal", "calibrated"],
        described(
            "Weight all judges equally, or by what gradeline calibrate learned from labels (calibrated); without that"
            " their mean or median is used."
        ),
    ] = "equal"
    quorum: Annotated[
        Annotated[int, Meta(ge=1)] | None, described("Minimum number of judges with a score (default all).")
    ] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        for number, member in enumerate(self.judges):
            yield from (fault.within(f"judges[{number}]") for fault in member.faults())
        if self.quorum is not None and self.quorum > len(self.judges):
            yield Problem("quorum", f"requires {self.quorum} of {len(self.judges)} judges")


class PanelError(GraderError):
    """Too few judges of a panel gave a score. Its type is that of the first failure."""

    def __init__(self, message: str, error_type: str, metadata: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.type = error_type
        self.metadata = metadata


class PanelGrader(JudgeGrader[PanelConfig]):
    """Has several language models grade the submission by the same rubric, and takes their mean or median.

    The grade stores their disagreement. Judges of one family share biases: mix families. ``adapters`` replace the
    configured models, in order.
    """

    kind = "panel"
    name = "Panel of judges"
    case_rubrics = True
    scoring_guide = (
        "The mean (or median) of the judges' scores; a judge without a score is an error unless `quorum` allows it."
        " Beware of the biases of judges: length, format, position, self-preference."
    )

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        adapters: Sequence[LLMAdapter] | None = None,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(grader_id, config, budget=budget)
        if adapters is not None and len(adapters) != len(self.options.judges):
            raise ConfigError(
                Problem(
                    "adapters", f"there are {len(adapters)} for {len(self.options.judges)} judges; pass one per judge"
                )
            )
        self._adapter_override = adapters

    @property
    def reads_submission(self) -> bool:
        return self.options.shows_submission

    @property
    def judges(self) -> tuple[str, ...]:
        return tuple(member.judges[0] for member in self._members)

    @cached_property
    def fingerprint(self) -> str:
        """Covers its members, how their scores become one, and what it learned."""
        weights = self.weights
        own = self.judge_fingerprint
        return self.with_learned(own if weights is None else fingerprint("weights", own, weights.digest))

    @cached_property
    def judge_fingerprint(self) -> str:
        options = self.options
        members = [member.fingerprint for member in self._members]
        weights = () if options.weights == "equal" else (options.weights,)
        return fingerprint(self.noun, self.kind, self.version, members, options.aggregation, options.quorum, *weights)

    @property
    def learns(self) -> bool:
        return super().learns or self.options.weights == "calibrated"

    @property
    def weights(self) -> PanelWeights | None:
        """The weights that its members have; None if all count equally."""
        learned = self.learned if self.options.weights == "calibrated" else None
        weights = None if learned is None else learned.panel
        fits = weights is not None and weights.consistent and len(weights.members) == len(self.options.judges)
        return weights if fits else None

    @property
    def weighting(self) -> PanelWeighting:
        if self.options.weights == "equal":
            return "equal"
        return "unlearned" if self.weights is None else "learned"

    @property
    def labelled_confidences(self) -> LabelledConfidences | None:
        return super().labelled_confidences if self.weights is None else self.weights.confidences

    def pass_score_of(self, ctx: GradeContext) -> float:
        if self.pass_threshold is not None or self.weights is not None:
            return super().pass_score_of(ctx)  # a probability passes from 0.5, whatever the rubric's scale
        return self._members[0].pass_score_of(ctx)

    def confidence_of(self, ctx: GradeContext, score: float) -> Confidence:
        if self.weights is None:
            return super().confidence_of(ctx, score)
        return Confidence.of_probability(score, self.pass_score_of(ctx))

    def second_judge(self, model: JudgeModel) -> ModelJudge:
        """A judge by the same rubric, who is not a panel."""
        config = {**self._shared_options, **canonical_options(model), "agreement": self.options.agreement}
        judge = ModelJudge(self.grader_id, config, budget=self.budget)
        judge.resources = self.resources
        judge.pass_threshold = self.pass_threshold
        return judge

    @property
    def prompt_hash(self) -> str:
        return self._members[0].prompt_hash

    @property
    def rubric_version(self) -> str:
        return self._members[0].rubric_version

    def prepare(self) -> None:
        problems: list[Problem] = []
        for number, member in enumerate(self._members):
            try:
                member.prepare()
            except ConfigError as error:
                found = [
                    one if one.path == "prompt_path" else one.within(f"judges[{number}]") for one in error.problems
                ]
                problems += [problem for problem in found if problem not in problems]
        if problems:
            raise ConfigError(dict.fromkeys(problems))

    def resume_access(self, *, succeeded: bool, failed: int | None = None) -> None:
        for member in self._members:
            member.resume_access(succeeded=succeeded, failed=failed)

    @property
    def unpriced(self) -> tuple[str, ...]:
        second = () if self.second is None else self.second.unpriced
        return (*(judge for member in self._members for judge in member.unpriced), *second)

    async def aclose(self) -> None:
        for member in self._members:
            await member.aclose()
        await super().aclose()

    def config_issues(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:
        yield from prompt_issues(self.options, folder, case)
        shared = shared_family(self.judges)
        if shared is not None:
            reason = f"all judges are of the family {shared} and share its biases; add one of another family"
            yield ConfigIssue(Problem("judges", reason))

    @property
    def _shared_options(self) -> dict[str, Any]:
        """The options that its members take from the panel."""
        options = canonical_options(self.options)
        return {name: value for name, value in options.items() if name not in _PANEL_OPTIONS}

    @cached_property
    def _members(self) -> tuple[ModelJudge, ...]:
        shared = self._shared_options
        adapters: Sequence[LLMAdapter | None] = self._adapter_override or [None] * len(self.options.judges)
        members = []
        for member, adapter in zip(self.options.judges, adapters, strict=True):
            judge = ModelJudge(config={**shared, **canonical_options(member)}, adapter=adapter, budget=self.budget)
            judge.resources = self.resources
            members.append(judge)
        return tuple(members)

    async def grade_case(self, ctx: GradeContext) -> MeteredResult:
        rubric, _ = self._members[0].question(ctx)
        grades = await gather_all(member.agrade(ctx) for member in self._members)
        usage = total_usage(grade.usage for grade in grades)
        results = [grade.result for grade in grades]
        scores = [result.score for result in results if isinstance(result, GradeResult) and result.score is not None]
        failed = [
            (judge, result)
            for judge, result in zip(self.judges, results, strict=True)
            if isinstance(result, GraderError)
        ]
        members = [_member_metadata(judge, result) for judge, result in zip(self.judges, results, strict=True)]
        if failed and len(scores) < (self.options.quorum or len(results)):
            reasons = "; ".join(f"{judge}: {error}" for judge, error in failed)
            message = f"{len(failed)} of {len(results)} judges gave no score: {reasons}"
            return MeteredResult(PanelError(message, failed[0][1].type, {"judges": members}), usage)
        return MeteredResult(self._graded(ctx, members, scores, rubric.pass_score), usage)

    def _graded(
        self, ctx: GradeContext, members: Sequence[dict[str, Any]], scores: Sequence[float], pass_score: float
    ) -> GradeResult:
        score = fmean(scores) if self.options.aggregation == "mean" else median(scores)
        metadata: dict[str, Any] = {
            "aggregation": self.options.aggregation,
            "judges": list(members),
            "disagreement": {
                "range": max(scores) - min(scores),
                "sd": stdev(scores) if len(scores) > 1 else 0.0,
            },
        }
        if self.weights is not None:
            metadata["weights"] = {"labels": self.weights.labels, "unweighted": score}
            score = panel_probability(self.weights, ctx.sample.case_key, [member.get("score") for member in members])
            pass_score = PASS_SCORE
        shared = shared_family(self.judges)
        if shared is not None:
            metadata["one_family"] = shared
        reasons = [f"{one['judge']} {one['score']:.2f}: {one['rationale']}" for one in members if "rationale" in one]
        return GradeResult(score, "\n".join(reasons) or None, metadata, score >= pass_score)


def _member_metadata(judge: str, result: GradeResult | GraderError) -> dict[str, Any]:
    if isinstance(result, GraderError):
        return {"judge": judge, "family": family(judge), "error": {"type": result.type, "message": str(result)}}
    rationale = {"rationale": result.rationale} if result.rationale else {}
    metadata = {name: value for name, value in result.metadata.items() if name != "judge"}
    return {"judge": judge, "family": family(judge), "score": result.score, **rationale, **metadata}
