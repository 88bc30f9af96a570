"""The judges of paired grading as a grader: an answer beside a baseline run's answer to the same case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from gradeline.adapters import create_embeddings
from gradeline.adapters.registry import OFFLINE
from gradeline.errors import Problem
from gradeline.judges.base import (
    VERSION_DIGITS,
    Failed,
    JudgeGrader,
    Place,
    notes_shown,
    put_question,
    usage_shown,
)
from gradeline.judges.embedding import EmbeddingSimilarityJudge
from gradeline.judges.llm import RUBRIC_HASH, LLMJudge
from gradeline.judges.options import DEFAULT_TIMEOUT_S, ApiKeyEnv, BaseUrl, Model, Provider, model_faults
from gradeline.judges.paired import ExactMatchJudge
from gradeline.judges.pairwise import baseline_text
from gradeline.model import Config, GradeContext, GradeResult, MeteredResult, described, fingerprint
from gradeline.model.llm import EmbeddingAdapter, LLMAdapter, LLMResponse, RunConfig

_OF_THE_MODEL = ("model", "base_url", "api_key_env", "seed")


class BaselineConfig(Config, frozen=True, kw_only=True):
    """Options of `BaselineJudge`."""

    judge: Annotated[
        Literal["exact-match", "embedding", "llm"],
        described("Who compares: exact-match, embedding (offline, with gradeline[embeddings]), or llm."),
    ] = "exact-match"
    baseline: Annotated[
        str | None, described("The run whose answers are the other side: its id, its name, or latest.")
    ] = None
    case_sensitive: Annotated[bool, described("For exact-match: whether case counts.")] = True
    normalize_whitespace: Annotated[bool, described("For exact-match: take white space of any length for one.")] = False
    provider: Provider = "openai"
    model: Model = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    seed: Annotated[int | None, described("For llm: asks for the same reply to the same question.")] = None
    max_retries: Annotated[
        int, described("How often a call is tried again after 429, 5xx and connection faults.", ge=0, le=20)
    ] = 2
    timeout: Annotated[float, described("Seconds that one call may take, retries included.", gt=0, le=86_400)] = (
        DEFAULT_TIMEOUT_S
    )

    def faults(self) -> Iterator[Problem]:
        if self.judge == "llm":
            yield from model_faults(self.provider, self.model, self.base_url, self.api_key_env)
        else:
            for name in _OF_THE_MODEL:
                if getattr(self, name) is not None:
                    yield Problem(name, f"has no effect with judge: {self.judge}; write judge: llm, or leave it out")
        if self.judge != "exact-match" and (self.normalize_whitespace or not self.case_sensitive):
            name = "normalize_whitespace" if self.normalize_whitespace else "case_sensitive"
            yield Problem(name, f"has no effect with judge: {self.judge}; write judge: exact-match, or leave it out")


class BaselineJudge(JudgeGrader[BaselineConfig]):
    """Scores the submission beside a baseline run's answer to the same case, as `gradeline pair` does.

    `exact-match` says whether they are the same text, `embedding` how near they are in meaning, and `llm` asks a model
    how good the submission is, by a fixed rubric that shows it the baseline's answer. ``adapter`` asks another than
    the configured model, ``embeddings`` makes the vectors in its place.
    """

    kind = "baseline"
    name = "Baseline judge"
    scoring_guide = (
        "exact-match: 1.0 for the same text, else 0.0. embedding: the cosine of both vectors, 0.0 where it is negative."
        " llm: the model's quality score; beware of the biases of judges: length, format, position, self-preference."
    )
    needs = frozenset({"baseline"})

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        adapter: LLMAdapter | None = None,
        embeddings: EmbeddingAdapter | None = None,
    ) -> None:
        super().__init__(grader_id, config)
        self._given = adapter
        self._embeddings = embeddings

    @property
    def judges(self) -> tuple[str, ...]:
        if self.options.judge != "llm":
            return ()
        return (self._place.judge if self._given is None else self._given.adapter_id,)

    @cached_property
    def fingerprint(self) -> str:
        """Covers the judge and the baseline; never a key."""
        return self._digest(self.options.baseline)

    @property
    def judge_id(self) -> str:
        return f"{':'.join((self.options.judge, *self.judges))}@{self._digest(None)[:VERSION_DIGITS]}"

    def _digest(self, baseline: str | None) -> str:
        options = self.options
        told = RUBRIC_HASH if options.judge == "llm" else self._judge.fingerprint
        return fingerprint(
            self.noun, self.kind, self.version, baseline, self.judges, options.base_url, options.seed, told
        )

    def make_ready(self) -> None:
        if self.options.judge == "llm":
            self._adapter.adapter_id  # noqa: B018 - makes it, which needs its key
        else:
            self._judge.grader_id  # noqa: B018 - makes it, which may need a package

    @cached_property
    def _place(self) -> Place:
        return Place.of(self.options)

    @cached_property
    def _adapter(self) -> LLMAdapter:
        return self._given or self._place.adapter(self.resources)

    @cached_property
    def _judge(self) -> ExactMatchJudge | EmbeddingSimilarityJudge:
        if self.options.judge == "embedding":
            return EmbeddingSimilarityJudge(self._embeddings or create_embeddings(OFFLINE))
        return ExactMatchJudge(
            case_sensitive=self.options.case_sensitive, normalize_whitespace=self.options.normalize_whitespace
        )

    async def judged(self, ctx: GradeContext) -> MeteredResult:
        baseline, candidate = LLMResponse(baseline_text(ctx)), LLMResponse(ctx.submission)
        asked = ctx.sample.input if isinstance(ctx.sample.input, str) else "\n".join(ctx.sample.input)
        config = RunConfig(model="", timeout_s=self.options.timeout)
        if self.options.judge != "llm":
            result = await self._judge.ajudge(baseline, candidate, prompt=asked, run_config=config)
            return MeteredResult(GradeResult(result.quality_score, result.notes, {"judge": result.grader_id}))
        judge = LLMJudge(self._adapter, seed=self.options.seed, model=self.options.model)
        question = judge.question(asked, baseline, candidate)
        answered = await put_question(
            self._adapter, self._place, self._access, question, judge.config(config), judge.read
        )
        if isinstance(answered, Failed):
            return MeteredResult(answered.error, answered.usage)
        metadata: dict[str, Any] = {
            "judge": judge.grader_id,
            "model": answered.model,
            "usage": usage_shown(answered.usage),
        }
        notes = notes_shown([answered])
        if notes:
            metadata["notes"] = notes
        return MeteredResult(GradeResult(answered.value.score, answered.value.notes, metadata), answered.usage)
