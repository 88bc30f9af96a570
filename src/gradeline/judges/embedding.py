"""Similarity of meaning: the cosine of two texts' embedding vectors, as a judge and as a grader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from math import fsum, hypot, isfinite
from operator import mul
from typing import Annotated, Any, Literal, SupportsFloat, cast

from msgspec import Meta

from gradeline.adapters import create_embeddings, sync
from gradeline.adapters.errors import CallerRefused, ModelError
from gradeline.adapters.registry import OFFLINE
from gradeline.errors import ConfigError, Problem, UngradableError
from gradeline.judges.base import JudgeEndpoint, JudgeGrader, call_failure
from gradeline.judges.calls import require_name
from gradeline.judges.options import DEFAULT_TIMEOUT_S, ApiKeyEnv, BaseUrl, model_faults
from gradeline.model import Config, GradeContext, GradeResult, MeteredResult, described, fingerprint
from gradeline.model.config import canonical_options
from gradeline.model.llm import EmbeddingAdapter, GradingResult, LLMResponse, RunConfig
from gradeline.model.text import quote

_VERSION = 1
_SMALL, _LARGE = 1e-100, 1e100
"""Between these lengths no square overflows or underflows."""


@dataclass
class EmbeddingSimilarityJudge:
    """The cosine of the two answers' vectors, from one call for both, clamped to 0..1.

    A zero vector, as of an empty text, scores 0.0. Vectors show whether answers are about the same subject, not
    whether they are right: "it is open" and "it is not open" are close.
    """

    embedding_adapter: EmbeddingAdapter
    grader_id: str = "embedding-similarity"

    def __post_init__(self) -> None:
        require_name(self.grader_id)

    @property
    def fingerprint(self) -> str:
        """Changes with whatever could change a score."""
        return fingerprint("embedding-similarity", _VERSION, {"adapter": self._name})

    def judge(
        self,
        baseline_response: LLMResponse,
        candidate_response: LLMResponse,
        *,
        prompt: str,  # noqa: ARG002 - the protocol passes it, the comparison does not need it
        run_config: RunConfig,  # noqa: ARG002
    ) -> GradingResult:
        """Compare the two texts; `ValueError` if the adapter returns invalid vectors."""
        adapter, texts = self.embedding_adapter, [baseline_response.content, candidate_response.content]
        vectors = adapter.embed(texts) if hasattr(adapter, "embed") else sync.run(_embedded(adapter, texts))
        return self._result(vectors, baseline_response, candidate_response)

    async def ajudge(
        self,
        baseline_response: LLMResponse,
        candidate_response: LLMResponse,
        *,
        prompt: str,  # noqa: ARG002
        run_config: RunConfig,  # noqa: ARG002
    ) -> GradingResult:
        """Like `judge`."""
        vectors = await _embedded(self.embedding_adapter, [baseline_response.content, candidate_response.content])
        return self._result(vectors, baseline_response, candidate_response)

    def _result(
        self, vectors: Sequence[Sequence[float]], baseline_response: LLMResponse, candidate_response: LLMResponse
    ) -> GradingResult:
        found = cosine_of_two(vectors, self._name)
        clamped = min(1.0, max(0.0, found))
        notes = f"cosine similarity {found:.4f} by {self._name}{'' if found >= 0 else ', clamped to 0'}"
        return GradingResult(clamped, notes, self.grader_id, baseline_response, candidate_response)

    @property
    def _name(self) -> str:
        return str(getattr(self.embedding_adapter, "adapter_id", type(self.embedding_adapter).__name__))


async def _embedded(adapter: EmbeddingAdapter, texts: Sequence[str]) -> Sequence[Sequence[float]]:
    if hasattr(adapter, "aembed"):
        return await adapter.aembed(texts)
    return await asyncio.to_thread(adapter.embed, texts)


def cosine_of_two(vectors: Iterable[Iterable[object]], adapter_id: str) -> float:
    """The cosine of two vectors, 0.0 if one is all zeros; `UngradableError` for anything that is not two vectors."""
    try:
        pair = [list(vector) for vector in vectors]
    except TypeError:
        raise UngradableError(f"{adapter_id} returned {quote(vectors, 80)}, which is not a list of vectors") from None
    if len(pair) != 2:
        raise UngradableError(f"{adapter_id} returned {len(pair)} vectors for 2 texts")
    found = _plain_cosine(*pair)
    if found is not None:
        return found
    first, second = ([_number(value, adapter_id) for value in vector] for vector in pair)
    if len(first) != len(second):
        raise UngradableError(f"{adapter_id} returned vectors of unequal lengths, {len(first)} and {len(second)}")
    if not first:
        raise UngradableError(f"{adapter_id} returned empty vectors")
    return fsum(one * other for one, other in zip(_direction(first), _direction(second), strict=True))


def _plain_cosine(first: list[object], second: list[object]) -> float | None:
    """The cosine in the usual case, in C: only floats, equal lengths, neither tiny nor huge. Otherwise None."""
    if len(first) != len(second) or set(map(type, first)) | set(map(type, second)) != {float}:
        return None
    one, other = cast("list[float]", first), cast("list[float]", second)
    lengths = hypot(*one), hypot(*other)
    if not all(_SMALL < length < _LARGE for length in lengths):
        return None
    return fsum(map(mul, one, other)) / lengths[0] / lengths[1]


def _number(value: object, adapter_id: str) -> float:
    # Adapters may return numbers of another library.
    if isinstance(value, SupportsFloat) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            if isfinite(number):
                return number
    raise UngradableError(f"{adapter_id} returned a vector with {quote(value, 40)}, which is not a finite number")


def _direction(vector: list[float]) -> list[float]:
    """The vector scaled to length 1; zeros stay zeros. Scaled first, so that no square overflows or underflows."""
    largest = max(map(abs, vector))
    if not largest:
        return vector
    scaled = [value / largest for value in vector]
    length = hypot(*scaled)
    return [value / length for value in scaled]


_NOT_IN_FINGERPRINT = ("api_key_env", "max_retries", "timeout")


class EmbeddingConfig(Config, frozen=True, kw_only=True):
    """Options of `EmbeddingGrader`."""

    provider: Annotated[
        Literal["wordllama", "openai", "ollama", "vllm"],
        described("Provider of the vectors; wordllama runs on this machine, with gradeline[embeddings]."),
    ] = "wordllama"
    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None, described("Embedding model; not for wordllama, which has its own.")
    ] = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1)] | None, described("Length of the vectors, if not the model's default.")
    ] = None
    max_retries: Annotated[int, described("Retries of a call after 429, 5xx and connection errors.", ge=0, le=20)] = 2
    timeout: Annotated[float, described("Timeout of a call in seconds, including retries.", gt=0, le=86_400)] = (
        DEFAULT_TIMEOUT_S
    )

    def faults(self) -> Iterator[Problem]:
        if self.provider == OFFLINE:
            for name in ("model", "base_url", "api_key_env", "dimensions"):
                if getattr(self, name) is not None:
                    yield Problem(name, f"has no effect with {OFFLINE}; name another provider, or leave it out")
            return
        if self.model is None:
            yield Problem("model", f"is required: name an embedding model of {self.provider}")
        yield from model_faults(self.provider, self.model or "-", self.base_url, self.api_key_env)


class EmbeddingGrader(JudgeGrader[EmbeddingConfig]):
    """Compares the meaning of the submission with that of the ground truth, by the cosine of their vectors.

    A blank text has no vector and is an error. ``adapter`` replaces the configured provider.
    """

    kind = "embedding"
    name = "Embedding similarity"
    scoring_guide = (
        "The cosine of both texts' vectors, 0.0 where it is negative. Passes from 0.5; set pass_threshold after a look"
        " at your own texts, because typical values differ between models."
    )
    caveats = (
        "Vectors show whether texts are about the same subject, not whether they say the same about it:"
        ' "it is open" and "it is not open" are close.',
    )

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        adapter: EmbeddingAdapter | None = None,
    ) -> None:
        super().__init__(grader_id, config)
        self._adapter_override = adapter

    @property
    def judges(self) -> tuple[str, ...]:
        """None: vectors need no calibration."""
        return ()

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The price of vectors is unknown, unless they are computed on this machine."""
        return () if self.options.provider == OFFLINE else (self._adapter.adapter_id,)

    @cached_property
    def fingerprint(self) -> str:
        """Covers the adapter and its options; never a key."""
        options = canonical_options(self.options)
        decided = {name: value for name, value in options.items() if name not in _NOT_IN_FINGERPRINT}
        override = None if self._adapter_override is None else self._adapter_override.adapter_id
        return fingerprint(self.noun, self.kind, self.version, override, decided)

    def prepare(self) -> None:
        offline = self._adapter_override is None and self.options.provider == OFFLINE
        if offline and find_spec(OFFLINE) is None:
            remedy = "install it with pip install 'gradeline[embeddings]', or name another provider"
            raise ConfigError(Problem("provider", f"{OFFLINE} is not installed; {remedy}"))
        self._adapter.adapter_id  # noqa: B018 - creates it, which needs its key

    @cached_property
    def _endpoint(self) -> JudgeEndpoint:
        return JudgeEndpoint.of(self.options)

    @cached_property
    def _adapter(self) -> EmbeddingAdapter:
        if self._adapter_override is not None:
            return self._adapter_override
        options, environment = self.options, self.resources.environment
        if options.provider == OFFLINE:
            return create_embeddings(OFFLINE)
        with self._endpoint.explain_missing_key():
            return create_embeddings(
                options.provider,
                options.model,
                base_url=options.base_url,
                api_key=self._endpoint.key(environment),
                dimensions=options.dimensions,
                settings=self._endpoint.settings(self.resources),
                environment=environment,
            )

    def result(self, ctx: GradeContext) -> GradeResult:
        if self.options.provider != OFFLINE or self._adapter_override is not None:
            return super().result(ctx)
        return self._graded(self._adapter.embed(_texts(ctx)))

    async def grade_case(self, ctx: GradeContext) -> MeteredResult:
        texts = _texts(ctx)
        try:
            vectors = await self._access.call(lambda: self._adapter.aembed(texts))
        except (ModelError, CallerRefused) as error:
            failed = call_failure(error, self._adapter.adapter_id, self._endpoint)
            return MeteredResult(failed.error, failed.usage)
        return MeteredResult(self._graded(vectors))

    def _graded(self, vectors: list[list[float]]) -> GradeResult:
        name = self._adapter.adapter_id
        found = cosine_of_two(vectors, name)
        score = min(1.0, max(0.0, found))
        return GradeResult(score, f"cosine similarity {found:.4f} by {name}", {"cosine": found, "model": name})


def _texts(ctx: GradeContext) -> list[str]:
    expected = ctx.expected
    if expected is None:
        raise UngradableError("the case has no ground_truth to compare with")
    for what, text in (("ground_truth", expected), ("submission", ctx.submission)):
        if not text.strip():
            raise UngradableError(f"the {what} is blank, so it has no embedding vector to compare")
    return [expected, ctx.submission]
