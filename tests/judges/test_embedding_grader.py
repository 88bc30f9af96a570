"""The embedding grader, offline and over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gradeline import GradeContext, GradeResult, Sample
from gradeline.adapters.errors import ErrorReport, ModelError
from gradeline.errors import ConfigError, GraderError
from gradeline.graders import create, run_grader
from gradeline.judges.embedding import EmbeddingGrader
from gradeline.model import AsyncGrader, MeteredResult
from gradeline.model.resources import Resources


class Vectors:
    """Returns the given value, or raises it."""

    adapter_id = "reason"

    def __init__(self, reason: Any) -> None:
        self.reason = reason
        self.asked: list[list[str]] = []

    def embed(self, texts: list[str]) -> list[list[float]]:
        raise AssertionError("the grader waits for aembed")

    async def aembed(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(list(texts))
        if isinstance(self.reason, Exception):
            raise self.reason
        vectors: list[list[float]] = self.reason
        return vectors


def context(submission: str = "Paris is the capital.", expected: str | None = "The capital is Paris.") -> GradeContext:
    return GradeContext(Sample("s", "q", expected), submission)


def ask(reason: Any, ctx: GradeContext | None = None) -> MeteredResult:
    adapter: Any = Vectors(reason)
    return asyncio.run(EmbeddingGrader(adapter=adapter).agrade(ctx or context()))


@pytest.mark.parametrize(
    ("vectors", "cosine", "score"),
    [
        ([[1.0, 0.0], [2.0, 0.0]], 1.0, 1.0),
        ([[3.0, 4.0], [4.0, 3.0]], 0.96, 0.96),
        ([[1.0, 0.0], [-1.0, 0.0]], -1.0, 0.0),
    ],
)
def test_the_cosine_is_the_score_and_no_less_than_zero(vectors: Any, cosine: float, score: float) -> None:
    judged = ask(vectors)
    assert isinstance(judged.result, GradeResult)
    assert judged.result.score == pytest.approx(score)
    assert judged.result.metadata == {"cosine": pytest.approx(cosine), "model": "reason"}
    assert judged.result.rationale == f"cosine similarity {cosine:.4f} by reason"


def test_offline_it_makes_no_calls() -> None:
    pytest.importorskip("wordllama")
    grader = create("embedding")
    assert isinstance(grader, EmbeddingGrader)
    assert isinstance(grader, AsyncGrader)
    assert grader.judges == ()
    placed = grader.bind(Resources(environment={}))
    near, far = placed.grade(context()), placed.grade(context("Bananas are yellow."))
    assert near.passed
    assert near.score > 0.9 > far.score
    assert asyncio.run(placed.agrade(context())).result == near


@pytest.mark.parametrize(
    ("ctx", "message"),
    [
        (context(expected=None), "the case has no ground_truth to compare with"),
        (context(expected=" "), "the ground_truth is blank, so it has no embedding vector to compare"),
        (context(" \n"), "the submission is blank, so it has no embedding vector to compare"),
    ],
)
def test_a_string_without_words_is_an_error(ctx: GradeContext, message: str) -> None:
    error = run_grader(create("embedding"), ctx).error
    assert error is not None
    assert (error.type, error.message) == ("ungradable", message)


def test_invalid_vectors_are_an_error() -> None:
    assert isinstance(ask([[1.0], [1.0, 2.0]]).result, GraderError)


def test_a_failed_call_is_this_cases_error_and_a_refused_key_ends_the_run() -> None:
    failed = ask(ModelError("status", "answered 500", http_status=500)).result
    assert isinstance(failed, GraderError)
    assert failed.type == "judge_failed"
    with pytest.raises(ConfigError, match=r"judge reason: the provider does not accept this key \(HTTP 401: 'no'\)"):
        ask(ModelError("status", "answered 401", http_status=401, report=ErrorReport("no")))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model": "m"}, "model: has no effect with wordllama; name another provider, or leave it out"),
        ({"provider": "openai"}, "model: is required: name an embedding model of openai"),
        (
            {"provider": "gemini", "model": "x"},
            "provider: expected one of wordllama, openai, ollama, vllm, got 'gemini'",
        ),
    ],
)
def test_every_fault_is_reported(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create("embedding", config)
    assert str(caught.value.problems[0]).removeprefix("config.") == problem


def test_a_missing_key_is_reported_before_any_call() -> None:
    grader = EmbeddingGrader(config={"provider": "openai", "model": "text-embedding-3-small"})
    with pytest.raises(ConfigError, match="needs a key; put a valid key into OPENAI_API_KEY"):
        grader.bind(Resources(environment={}))


def test_the_fingerprint_is_of_the_embedding_model() -> None:
    configs: list[dict[str, Any]] = [{}, {"provider": "openai", "model": "a"}, {"provider": "openai", "model": "b"}]
    assert len({create("embedding", config).fingerprint for config in configs}) == len(configs)
    assert create("embedding", {"timeout": 1}).fingerprint == create("embedding").fingerprint
