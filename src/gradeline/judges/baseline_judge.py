"""The judges of paired grading as a grader: compares the submission with a baseline run's answer to the same case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from gradeline.adapters import create_embeddings
from gradeline.adapters.registry import OFFLINE
from gradeline.errors import Problem
from gradeline.judges.base import (
    VERSION_DIGITS,
    JudgeFailure,
    OneModelGrader,
    ask_judge,
    notes_metadata,
    usage_metadata,
)
from gradeline.judges.embedding import EmbeddingSimilarityJudge
from gradeline.judges.llm import RUBRIC_HASH, LLMJudge
from gradeline.judges.options import DEFAULT_TIMEOUT_S, ApiKeyEnv, BaseUrl, Model, Provider, model_faults
from gradeline.judges.paired import ExactMatchJudge
from gradeline.judges.pairwise import baseline_text
from gradeline.model import Config, GradeContext, GradeResult, MeteredResult, described, fingerprint
from gradeline.model.llm import EmbeddingAdapter, LLMAdapter, LLMResponse, RunConfig

_MODEL_OPTIONS = ("model", "base_url", "api_key_env", "seed")


class BaselineConfig(Config, frozen=True, kw_only=True):
    """Options of `BaselineJudge`."""

    judge: Annotated[
        Literal["exact-match", "embedding", "llm"],
        described("Comparison: exact-match, embedding (offline, needs gradeline[embeddings]) or llm."),
    ] = "exact-match"
    baseline: Annotated[str | None, described("Run to compare with: ID, name or latest.")] = None
    case_sensitive: Annotated[bool, described("For exact-match: distinguish upper and lower case.")] = True
    normalize_whitespace: Annotated[bool, described("For exact-match: collapse runs of whitespace.")] = False
    provider: Provider = "openai"
    model: Model = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    seed: Annotated[int | None, described("For llm: seed for reproducible replies.")] = None
    max_retries: Annotated[int, described("Retries of a call after 429, 5xx and connection errors.", ge=0, le=20)] = 2
    timeout: Annotated[float, described("Timeout of a call in seconds, including retries.", gt=0, le=86_400)] = (
        DEFAULT_TIMEOUT_S
    )

    def faults(self) -> Iterator[Problem]:
        if self.judge == "llm":
            yield from model_faults(self.provider, self.model, self.base_url, self.api_key_env)
        else:
            for name in _MODEL_OPTIONS:
                if getattr(self, name) is not None:
                    yield Problem(name, f"has no effect with judge: {self.judge}; write judge: llm, or leave it out")
        if self.judge != "exact-match" and (self.normalize_whitespace or not self.case_sensitive):
            name = "normalize_whitespace" if self.normalize_whitespace else "case_sensitive"
            yield Problem(name, f"has no effect with judge: {self.judge}; write judge: exact-match, or leave it out")


class BaselineJudge(OneModelGrader[BaselineConfig]):
    """Scores the submission against a baseline run's answer to the same case, as `gradeline pair` does.

    `exact-match` compares the texts, `embedding` their meaning, and `llm` has a model score the submission by a fixed
    rubric that also shows the baseline's answer. ``adapter`` and ``embeddings`` replace the configured models.
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
        super().__init__(grader_id, config, adapter=adapter)
        self._embeddings = embeddings

    @property
    def judges(self) -> tuple[str, ...]:
        return super().judges if self.options.judge == "llm" else ()

    @cached_property
    def fingerprint(self) -> str:
        """Covers the judge and the baseline; never a key."""
        return self._digest(self.options.baseline)

    @property
    def judge_fingerprint(self) -> str:
        return self._digest(None)

    @property
    def prompt_hash(self) -> str:
        return RUBRIC_HASH if self.options.judge == "llm" else ""

    @property
    def judge_id(self) -> str:
        return f"{':'.join((self.options.judge, *self.judges))}@{self.judge_fingerprint[:VERSION_DIGITS]}"

    def _digest(self, baseline: str | None) -> str:
        options = self.options
        method = RUBRIC_HASH if options.judge == "llm" else self._judge.fingerprint
        return fingerprint(
            self.noun, self.kind, self.version, baseline, self.judges, options.base_url, options.seed, method
        )

    def prepare(self) -> None:
        if self.options.judge == "llm":
            self._adapter.adapter_id  # noqa: B018 - creates it, which needs its key
        else:
            self._judge.grader_id  # noqa: B018 - creates it, which may need a package

    @cached_property
    def _judge(self) -> ExactMatchJudge | EmbeddingSimilarityJudge:
        if self.options.judge == "embedding":
            return EmbeddingSimilarityJudge(self._embeddings or create_embeddings(OFFLINE))
        return ExactMatchJudge(
            case_sensitive=self.options.case_sensitive, normalize_whitespace=self.options.normalize_whitespace
        )

    async def grade_case(self, ctx: GradeContext) -> MeteredResult:
        baseline, candidate = LLMResponse(baseline_text(ctx)), LLMResponse(ctx.submission)
        asked = ctx.sample.input if isinstance(ctx.sample.input, str) else "\n".join(ctx.sample.input)
        config = RunConfig(model="", timeout_s=self.options.timeout)
        if self.options.judge != "llm":
            result = await self._judge.ajudge(baseline, candidate, prompt=asked, run_config=config)
            return MeteredResult(GradeResult(result.quality_score, result.notes, {"judge": result.grader_id}))
        judge = LLMJudge(self._adapter, seed=self.options.seed, model=self.options.model)
        question = judge.question(asked, baseline, candidate)
        answered = await ask_judge(
            self._adapter, self._endpoint, self._access, question, judge.config(config), judge.read
        )
        if isinstance(answered, JudgeFailure):
            return MeteredResult(answered.error, answered.usage)
        metadata: dict[str, Any] = {
            "judge": judge.grader_id,
            "model": answered.model,
            "usage": usage_metadata(answered.usage),
        }
        notes = notes_metadata([answered])
        if notes:
            metadata["notes"] = notes
        return MeteredResult(GradeResult(answered.value.score, answered.value.notes, metadata), answered.usage)
