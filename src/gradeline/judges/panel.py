"""Several models as judges of one submission."""

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
from gradeline.judges.base import JudgeGrader, together
from gradeline.judges.model_judge import ModelJudge, prompt_remarks
from gradeline.judges.options import ApiKeyEnv, BaseUrl, Model, PromptOptions, Provider, model_faults
from gradeline.model import Config, GradeContext, GradeResult, MeteredResult, Sample, described, fingerprint
from gradeline.model.config import canonical_options
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
"""By the first word of a model's name; a word that is not here is a family of its own."""
_WORD = re.compile(r"[a-z]+")


def family(judge: str) -> str:
    """The family of a model (``claude-sonnet-4``) or of an adapter's id (``openai:gpt-6-luna``)."""
    model = judge.partition(":")[2] or judge
    word = _WORD.search(model.rpartition("/")[2].lower())
    return _FAMILIES.get(word[0], word[0]) if word else judge


def one_family(judges: Iterable[str]) -> str | None:
    """The family that all of them are of; None where there are several."""
    found = {family(judge) for judge in judges}
    return found.pop() if len(found) == 1 else None


_OWN = ("judges", "aggregation", "quorum")
"""Options of the panel that are none of its members'."""


class Member(Config, frozen=True, kw_only=True):
    """A judge of a panel; what it does not say itself, the panel says."""

    provider: Provider = "openai"
    model: Model = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, described("This judge's own temperature.")] = None
    max_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, described("This judge's own limit of tokens.")] = None
    seed: Annotated[int | None, described("This judge's own seed.")] = None
    model_params: Annotated[dict[str, Any] | None, described("This judge's own further parameters.")] = None

    def faults(self) -> Iterator[Problem]:
        yield from model_faults(self.provider, self.model, self.base_url, self.api_key_env)


class PanelConfig(PromptOptions, frozen=True, kw_only=True):
    """Options of `PanelGrader`."""

    judges: Annotated[list[Member], described("The judges, at least two, best of different families.", min_length=2)]
    aggregation: Annotated[Literal["mean", "median"], described("How the judges' scores become one.")] = "mean"
    quorum: Annotated[
        Annotated[int, Meta(ge=1)] | None, described("How many judges must give a score: all, unless said.")
    ] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        for number, member in enumerate(self.judges):
            yield from (fault.within(f"judges[{number}]") for fault in member.faults())
        if self.quorum is not None and self.quorum > len(self.judges):
            yield Problem("quorum", f"asks for {self.quorum} of {len(self.judges)} judges")


class PanelError(GraderError):
    """Too few judges of a panel gave a score. Its type is that of the first failure."""

    def __init__(self, message: str, error_type: str) -> None:
        super().__init__(message)
        self.type = error_type


class PanelGrader(JudgeGrader[PanelConfig]):
    """Asks several language models to grade the submission by the same rubric, and takes their mean or median.

    How much they disagree is kept with the grade. Judges of one family share their biases: mix families. ``adapters``
    asks others than the configured models, in their order.
    """

    kind = "panel"
    name = "Panel of judges"
    case_rubrics = True
    scoring_guide = (
        "The mean (or median) of the judges' scores; a judge without one makes an error unless `quorum` allows it."
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
                Problem("adapters", f"there are {len(adapters)} for {len(self.options.judges)} judges; give as many")
            )
        self._given = adapters

    @property
    def judges(self) -> tuple[str, ...]:
        return tuple(member.judges[0] for member in self._members)

    @cached_property
    def fingerprint(self) -> str:
        """Covers its members, and how their scores become one."""
        options = self.options
        members = [member.fingerprint for member in self._members]
        return fingerprint(self.noun, self.kind, self.version, members, options.aggregation, options.quorum)

    def make_ready(self) -> None:
        problems: list[Problem] = []
        for number, member in enumerate(self._members):
            try:
                member.make_ready()
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
        return tuple(judge for member in self._members for judge in member.unpriced)

    async def aclose(self) -> None:
        for member in self._members:
            await member.aclose()

    def remarks(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:
        yield from prompt_remarks(self.options, folder, case)
        shared = one_family(self.judges)
        if shared is not None:
            told = f"all judges are of the family {shared}, and share its biases; add one of another family"
            yield ConfigIssue(Problem("judges", told))

    @cached_property
    def _members(self) -> tuple[ModelJudge, ...]:
        options = canonical_options(self.options)
        shared = {name: value for name, value in options.items() if name not in _OWN}
        adapters: Sequence[LLMAdapter | None] = self._given or [None] * len(self.options.judges)
        members = []
        for member, adapter in zip(self.options.judges, adapters, strict=True):
            judge = ModelJudge(config={**shared, **canonical_options(member)}, adapter=adapter, budget=self.budget)
            judge.resources = self.resources
            members.append(judge)
        return tuple(members)

    async def judged(self, ctx: GradeContext) -> MeteredResult:
        rubric, _ = self._members[0].question(ctx)
        words = await together(member.agrade(ctx) for member in self._members)
        usage = total_usage(word.usage for word in words)
        scores = [
            word.result.score
            for word in words
            if isinstance(word.result, GradeResult) and word.result.score is not None
        ]
        failed = [
            (judge, word.result)
            for judge, word in zip(self.judges, words, strict=True)
            if isinstance(word.result, GraderError)
        ]
        if failed and len(scores) < (self.options.quorum or len(words)):
            reasons = "; ".join(f"{judge}: {error}" for judge, error in failed)
            message = f"{len(failed)} of {len(words)} judges gave no score: {reasons}"
            return MeteredResult(PanelError(message, failed[0][1].type), usage)
        return MeteredResult(self._graded(words, scores, rubric.pass_score), usage)

    def _graded(self, words: Sequence[MeteredResult], scores: Sequence[float], pass_score: float) -> GradeResult:
        score = fmean(scores) if self.options.aggregation == "mean" else median(scores)
        members = [_shown(judge, word.result) for judge, word in zip(self.judges, words, strict=True)]
        metadata: dict[str, Any] = {
            "aggregation": self.options.aggregation,
            "judges": members,
            "disagreement": {
                "range": max(scores) - min(scores),
                "sd": stdev(scores) if len(scores) > 1 else 0.0,
            },
        }
        shared = one_family(self.judges)
        if shared is not None:
            metadata["one_family"] = shared
        reasons = [f"{one['judge']} {one['score']:.2f}: {one['rationale']}" for one in members if "rationale" in one]
        return GradeResult(score, "\n".join(reasons) or None, metadata, score >= pass_score)


def _shown(judge: str, word: GradeResult | GraderError) -> dict[str, Any]:
    if isinstance(word, GraderError):
        return {"judge": judge, "family": family(judge), "error": {"type": word.type, "message": str(word)}}
    told = {"rationale": word.rationale} if word.rationale else {}
    return {"judge": judge, "family": family(judge), "score": word.score, **told, **_kept(word.metadata)}


def _kept(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name != "judge"}
