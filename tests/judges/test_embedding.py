"""Embedding similarity: one call, checked vectors, a cosine in 0..1."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf, nan, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.adapters import create_embeddings
from gradeline.errors import UngradableError
from gradeline.judges import EmbeddingSimilarityJudge, GradingResult, Judge
from gradeline.judges.embedding import cosine_of_two
from gradeline.model.llm import LLMResponse, RunConfig

CONFIG = RunConfig(model="m")


class FixedVectors:
    """Returns these vectors and records its calls."""

    adapter_id = "fixed"

    def __init__(self, vectors: Any) -> None:
        self.vectors = vectors
        self.asked: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> Any:
        self.asked.append(list(texts))
        return self.vectors


class FixedVectorsAsync:
    adapter_id = "fixed"

    async def aembed(self, texts: Sequence[str]) -> Any:
        return [[1.0], [1.0]]


def judged(adapter: Any, baseline: str = "a", candidate: str = "b") -> GradingResult:
    judge = EmbeddingSimilarityJudge(adapter)
    return judge.judge(LLMResponse(baseline), LLMResponse(candidate), prompt="?", run_config=CONFIG)


@pytest.mark.parametrize(
    ("vectors", "score", "notes"),
    [
        ([[1, 0], [1, 0]], 1.0, "cosine similarity 1.0000 by fixed"),
        ([[1, 0], [0, 1]], 0.0, "cosine similarity 0.0000 by fixed"),
        ([[1, 0], [1, 1]], 1 / sqrt(2), "cosine similarity 0.7071 by fixed"),
        ([[1, 0], [-1, 0]], 0.0, "cosine similarity -1.0000 by fixed, clamped to 0"),
        ([[0, 0], [1, 0]], 0.0, "cosine similarity 0.0000 by fixed"),
        ([[0, 0], [0, 0]], 0.0, "cosine similarity 0.0000 by fixed"),
        ([[1e300, 1e300], [1e300, 1e300]], 1.0, "cosine similarity 1.0000 by fixed"),
        ([[1e-300, 0], [1e300, 0]], 1.0, "cosine similarity 1.0000 by fixed"),
        (((3, 4), (6, 8)), 1.0, "cosine similarity 1.0000 by fixed"),
    ],
)
def test_the_cosine_is_clamped_to_0_to_1(vectors: Any, score: float, notes: str) -> None:
    adapter = FixedVectors(vectors)
    result = judged(adapter)
    assert (result.quality_score, result.notes) == (pytest.approx(score), notes)
    assert (result.baseline_response, result.candidate_response) == (LLMResponse("a"), LLMResponse("b"))
    assert adapter.asked == [["a", "b"]]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([], "fixed returned 0 vectors for 2 texts"),
        ([[1.0]], "fixed returned 1 vectors for 2 texts"),
        ([[1.0], [1.0], [1.0]], "fixed returned 3 vectors for 2 texts"),
        ([[1.0], [1.0, 2.0]], "fixed returned vectors of unequal lengths, 1 and 2"),
        ([[], []], "fixed returned empty vectors"),
        ([[nan], [1.0]], "fixed returned a vector with nan, which is not a finite number"),
        ([[1.0], [inf]], "fixed returned a vector with inf, which is not a finite number"),
        ([["1"], [1.0]], "fixed returned a vector with '1', which is not a finite number"),
        ([[True], [1.0]], "fixed returned a vector with True, which is not a finite number"),
        ([[None], [1.0]], "fixed returned a vector with None, which is not a finite number"),
        ([[10**400], [1.0]], "which is not a finite number"),
        (None, "fixed returned None, which is not a list of vectors"),
        ([1.0, 2.0], "fixed returned [1.0, 2.0], which is not a list of vectors"),
    ],
)
def test_an_invalid_pair_of_vectors_is_a_value_error(vectors: Any, message: str) -> None:
    with pytest.raises(UngradableError) as caught:
        judged(FixedVectors(vectors))
    assert isinstance(caught.value, ValueError)
    assert message in str(caught.value)


VECTOR = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3)


@given(VECTOR, VECTOR)
def test_any_finite_vectors_have_a_score(first: list[float], second: list[float]) -> None:
    assert -1.0000001 <= cosine_of_two([first, second], "x") <= 1.0000001
    assert 0.0 <= judged(FixedVectors([first, second])).quality_score <= 1.0


def test_both_forms_work_with_adapters_that_have_one() -> None:
    first, second = LLMResponse("a"), LLMResponse("b")
    for adapter in (FixedVectors([[1.0], [1.0]]), FixedVectorsAsync()):
        judge = EmbeddingSimilarityJudge(adapter, "mine")  # type: ignore[arg-type]
        expected = GradingResult(1.0, "cosine similarity 1.0000 by fixed", "mine", first, second)
        assert judge.judge(first, second, prompt="?", run_config=CONFIG) == expected
        assert asyncio.run(judge.ajudge(first, second, prompt="?", run_config=CONFIG)) == expected
        assert isinstance(judge, Judge)


@pytest.mark.slow
def test_offline_vectors_distinguish_similar_from_different() -> None:
    pytest.importorskip("wordllama")
    adapter = create_embeddings("wordllama")
    like = judged(adapter, "The cat sat on the mat.", "A cat is sitting on a mat.").quality_score
    unlike = judged(adapter, "The cat sat on the mat.", "Interest rates rose by half a percent.").quality_score
    same = judged(adapter, "The cat sat on the mat.", "The cat sat on the mat.").quality_score
    assert same == pytest.approx(1.0)
    assert unlike < 0.5 < like < same
    assert judged(adapter, "The cat sat on the mat.", "").quality_score == 0.0


def test_an_empty_name_is_refused_before_any_call() -> None:
    with pytest.raises(ValueError, match="grader_id must name the judge"):
        EmbeddingSimilarityJudge(FixedVectors([]), " ")  # type: ignore[arg-type]


def test_the_fingerprint_names_the_adapter() -> None:
    one, other = FixedVectors([]), FixedVectors([])
    other.adapter_id = "other"
    prints = [EmbeddingSimilarityJudge(adapter).fingerprint for adapter in (one, FixedVectors([]), other)]  # type: ignore[arg-type]
    assert prints[0] == prints[1] != prints[2]
