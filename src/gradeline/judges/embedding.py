"""How near two answers are in meaning, by their vectors."""

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
from gradeline.judges.base import JudgeGrader, Place, not_asked
from gradeline.judges.calls import require_name
from gradeline.judges.options import DEFAULT_TIMEOUT_S, ApiKeyEnv, BaseUrl, model_faults
from gradeline.model import Config, GradeContext, GradeResult, MeteredResult, described, fingerprint
from gradeline.model.config import canonical_options
from gradeline.model.llm import EmbeddingAdapter, GradingResult, LLMResponse, RunConfig
from gradeline.model.text import quote

_VERSION = 1
_SMALL, _LARGE = 1e-100, 1e100
"""Between these lengths no square overflows or vanishes."""


@dataclass
class EmbeddingSimilarityJudge:
    """The cosine of the two answers' vectors, from one call for both, clamped to 0..1.

    An answer without a direction (all zeros, as of an empty text) is like nothing: 0.0. Vectors say whether answers
    are about the same things, not whether they are right: "it is open" and "it is not open" are near.
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
        prompt: str,  # noqa: ARG002 - the protocol's: what was asked makes no difference here
        run_config: RunConfig,  # noqa: ARG002
    ) -> GradingResult:
        """Compares the two texts; `ValueError` where the adapter's vectors are no vectors."""
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
    """The cosine of exactly two vectors, 0.0 where one is all zeros; `UngradableError` says what is no vector."""
    try:
        given = [list(vector) for vector in vectors]
    except TypeError:
        raise UngradableError(f"{adapter_id} gave {quote(vectors, 80)}, which is no list of vectors") from None
    if len(given) != 2:
        raise UngradableError(f"{adapter_id} gave {len(given)} vectors for 2 texts")
    found = _plain_cosine(*given)
    if found is not None:
        return found
    first, second = ([_number(value, adapter_id) for value in vector] for vector in given)
    if len(first) != len(second):
        raise UngradableError(f"{adapter_id} gave vectors of unequal lengths, {len(first)} and {len(second)}")
    if not first:
        raise UngradableError(f"{adapter_id} gave vectors of no length")
    return fsum(one * other for one, other in zip(_direction(first), _direction(second), strict=True))


def _plain_cosine(first: list[object], second: list[object]) -> float | None:
    """The cosine in the usual case, in C: floats alone, as many in both, neither tiny nor huge. Else None."""
    if len(first) != len(second) or set(map(type, first)) | set(map(type, second)) != {float}:
        return None
    one, other = cast("list[float]", first), cast("list[float]", second)
    lengths = hypot(*one), hypot(*other)
    if not all(_SMALL < length < _LARGE for length in lengths):
        return None
    return fsum(map(mul, one, other)) / lengths[0] / lengths[1]


def _number(value: object, adapter_id: str) -> float:
    # Adapters may give numbers of another library.
    if isinstance(value, SupportsFloat) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            if isfinite(number):
                return number
    raise UngradableError(f"{adapter_id} gave a vector with {quote(value, 40)}, which is no finite number")


def _direction(vector: list[float]) -> list[float]:
    """The vector at length 1; zeros stay zeros. Scaled first, so that no square overflows or vanishes."""
    largest = max(map(abs, vector))
    if not largest:
        return vector
    scaled = [value / largest for value in vector]
    length = hypot(*scaled)
    return [value / length for value in scaled]


_NOT_DECIDING = ("api_key_env", "max_retries", "timeout")


class EmbeddingConfig(Config, frozen=True, kw_only=True):
    """Options of `EmbeddingGrader`."""

    provider: Annotated[
        Literal["wordllama", "openai", "ollama", "vllm"],
        described("Who makes the vectors; wordllama does on this machine, with gradeline[embeddings]."),
    ] = "wordllama"
    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None, described("The embedding model; wordllama has its own.")
    ] = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    dimensions: Annotated[Annotated[int, Meta(ge=1)] | None, described("How long the vectors are to be.")] = None
    max_retries: Annotated[
        int, described("How often a call is tried again after 429, 5xx and connection faults.", ge=0, le=20)
    ] = 2
    timeout: Annotated[float, described("Seconds that one call may take, retries included.", gt=0, le=86_400)] = (
        DEFAULT_TIMEOUT_S
    )

    def faults(self) -> Iterator[Problem]:
        if self.provider == OFFLINE:
            for name in ("model", "base_url", "api_key_env", "dimensions"):
                if getattr(self, name) is not None:
                    yield Problem(name, f"has no effect with {OFFLINE}; name another provider, or leave it out")
            return
        if self.model is None:
            yield Problem("model", f"is required: which embedding model of {self.provider}")
        yield from model_faults(self.provider, self.model or "-", self.base_url, self.api_key_env)


class EmbeddingGrader(JudgeGrader[EmbeddingConfig]):
    """Compares the submission with the ground truth in meaning, by the cosine of their vectors.

    A text without words has no direction, and is an error. ``adapter`` makes the vectors in place of the provider.
    """

    kind = "embedding"
    name = "Embedding similarity"
    scoring_guide = (
        "The cosine of both texts' vectors, 0.0 where it is negative. Passes from 0.5; set pass_threshold after a look"
        " at your own texts, for what is near differs from model to model."
    )
    caveats = (
        "Vectors tell whether texts are about the same things, not whether they say the same of them:"
        ' "it is open" and "it is not open" are near.',
    )

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        adapter: EmbeddingAdapter | None = None,
    ) -> None:
        super().__init__(grader_id, config)
        self._given = adapter

    @property
    def judges(self) -> tuple[str, ...]:
        """None: there is nobody to calibrate."""
        return ()

    @property
    def unpriced(self) -> tuple[str, ...]:
        """What vectors cost is not known, unless they are made on this machine."""
        return () if self.options.provider == OFFLINE else (self._adapter.adapter_id,)

    @cached_property
    def fingerprint(self) -> str:
        """Covers what makes the vectors; never a key."""
        options = canonical_options(self.options)
        decided = {name: value for name, value in options.items() if name not in _NOT_DECIDING}
        given = None if self._given is None else self._given.adapter_id
        return fingerprint(self.noun, self.kind, self.version, given, decided)

    def make_ready(self) -> None:
        offline = self._given is None and self.options.provider == OFFLINE
        if offline and find_spec(OFFLINE) is None:
            remedy = "install it with pip install 'gradeline[embeddings]', or name another provider"
            raise ConfigError(Problem("provider", f"{OFFLINE} is not installed; {remedy}"))
        self._adapter.adapter_id  # noqa: B018 - makes it, which needs its key

    @cached_property
    def _place(self) -> Place:
        return Place.of(self.options)

    @cached_property
    def _adapter(self) -> EmbeddingAdapter:
        if self._given is not None:
            return self._given
        options, environment = self.options, self.resources.environment
        if options.provider == OFFLINE:
            return create_embeddings(OFFLINE)
        with self._place.asking_for_key():
            return create_embeddings(
                options.provider,
                options.model,
                base_url=options.base_url,
                api_key=self._place.key(environment),
                dimensions=options.dimensions,
                settings=self._place.settings(self.resources),
                environment=environment,
            )

    def result(self, ctx: GradeContext) -> GradeResult:
        if self.options.provider != OFFLINE or self._given is not None:
            return super().result(ctx)
        return self._graded(self._adapter.embed(_texts(ctx)))

    async def judged(self, ctx: GradeContext) -> MeteredResult:
        texts = _texts(ctx)
        try:
            vectors = await self._access.call(lambda: self._adapter.aembed(texts))
        except (ModelError, CallerRefused) as error:
            failed = not_asked(error, self._adapter.adapter_id, self._place)
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
            raise UngradableError(f"the {what} is blank, and a text without words has no direction")
    return [expected, ctx.submission]
