"""How near two answers are in meaning, by their vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import fsum, hypot, isfinite
from operator import mul
from typing import SupportsFloat, cast

from gradeline.adapters import sync
from gradeline.errors import UngradableError
from gradeline.judges.calls import require_name
from gradeline.model.fingerprint import fingerprint
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
