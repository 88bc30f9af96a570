"""Retrieval metrics against the textbook formulas, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradeline import run_suite
from gradeline.errors import ConfigError, GraderError, MissingDataError, Outcome
from gradeline.graders import create, run_grader
from gradeline.graders.retrieval import retrieval_metrics
from gradeline.model import Document, GradeContext, GradeResult, Response, Sample


def context(ids: Sequence[str | None] | None, metadata: Mapping[str, Any] | None = None) -> GradeContext:
    documents = None if ids is None else tuple(Document("text", ident) for ident in ids)
    return GradeContext(Sample(0, "q", None, dict(metadata or {})), "", Response(text="", documents=documents))


def grade(ids: Sequence[str | None] | None, relevant: object = ("a", "b"), **config: Any) -> GradeResult:
    return create("retrieval", config).grade(context(ids, {"relevant": relevant}))


# The oracle: Manning, Raghavan and Schuetze, Introduction to Information Retrieval (2008), section 8.4: precision at k
# = relevant retrieved in the first k / k, recall = relevant retrieved / relevant, NDCG with the gain 2^R - 1 and the
# discount log2(1 + rank). Linear gain: Jaervelin and Kekaelaeinen 2002, as scikit-learn's ndcg_score. Reciprocal rank:
# Voorhees 1999. Written with sets and slices, unlike the implementation.


def oracle(ranking: list[str], grades: dict[str, float], k: int, *, exponential: bool) -> dict[str, float]:
    relevant = {ident for ident, value in grades.items() if value > 0}
    top = ranking[:k]

    def gain(value: float) -> float:
        return 2.0**value - 1.0 if exponential else value

    dcg = 0.0
    for index in range(len(top)):
        dcg += gain(grades.get(top[index], 0.0)) / log2(index + 2)
    ideal = 0.0
    for index, value in enumerate(sorted(grades.values())[::-1][:k]):
        ideal += gain(value) / log2(index + 2)
    reciprocal = 0.0
    for index in range(len(top) - 1, -1, -1):
        if top[index] in relevant:
            reciprocal = 1.0 / (index + 1)
    return {
        "precision": len(relevant & set(top)) / k,
        "recall": len(relevant & set(top)) / len(relevant),
        "mrr": reciprocal,
        "ndcg": dcg / ideal,
    }


@pytest.mark.parametrize("exponential", [False, True])
@pytest.mark.parametrize("graded", [False, True])
def test_the_metrics_are_those_of_the_textbook_on_random_rankings(graded: bool, exponential: bool) -> None:
    random = Random(20)
    pool = [f"d{number}" for number in range(40)]
    for _ in range(1_000):
        ranking = random.sample(pool, random.randint(0, 30))
        chosen = random.sample(pool, random.randint(1, 12))
        grades = {ident: float(random.randint(0, 4)) if graded else 1.0 for ident in chosen}
        grades[chosen[0]] = max(grades[chosen[0]], 1.0)
        k = random.randint(1, 35)
        found = retrieval_metrics(ranking, grades, k, exponential=exponential)
        assert found._asdict() == pytest.approx(oracle(ranking, grades, k, exponential=exponential), abs=1e-12)


@pytest.mark.parametrize(
    ("config", "score"),
    [
        ({}, 1.0),
        ({"metric": "precision"}, 2 / 3),
        ({"metric": "precision", "k": 1}, 0.0),
        ({"metric": "precision", "k": 10}, 0.2),
        ({"metric": "recall", "k": 2}, 0.5),
        ({"metric": "mrr"}, 0.5),
        ({"metric": "mrr", "k": 1}, 0.0),
        ({"metric": "ndcg"}, (1 / log2(3) + 1 / log2(4)) / (1 + 1 / log2(3))),
    ],
)
def test_one_metric_is_the_score(config: dict[str, Any], score: float) -> None:
    assert grade(["x", "a", "b"], **config).score == pytest.approx(score)


def test_the_metadata_has_all_metrics_and_the_rationale_what_was_not_found() -> None:
    graded = grade(["a", "x"], ["a", "b"], k=2)
    assert graded.score == 0.5
    assert graded.rationale == "recall@2 0.500; found 1 of 2 relevant documents, not 'b'"
    assert graded.metadata["metrics"] == pytest.approx(
        {"precision": 0.5, "recall": 0.5, "mrr": 1.0, "ndcg": 1 / (1 + 1 / log2(3))}
    )


def test_duplicates_count_once_at_their_first_rank() -> None:
    once, twice = grade(["x", "a", "b"], k=3, metric="ndcg"), grade(["x", "x", "a", "x", "a", "b"], k=3, metric="ndcg")
    assert once == twice


def test_grades_of_relevance_weigh_the_gain() -> None:
    relevant = {"a": 3, "b": 1, "c": 0}
    assert grade(["a", "b"], relevant, metric="ndcg").score == 1.0
    assert grade(["b", "a"], relevant, metric="ndcg").score == pytest.approx((1 + 3 / log2(3)) / (3 + 1 / log2(3)))
    exponential = grade(["b", "a"], relevant, metric="ndcg", gain="exponential").score
    assert exponential == pytest.approx((1 + 7 / log2(3)) / (7 + 1 / log2(3)))
    assert grade(["c"], relevant).score == 0.0


def test_numbers_are_ids_too_and_one_id_needs_no_list() -> None:
    assert grade(["7"], 7).score == 1.0
    assert grade(["7"], [7, "7"]).score == 1.0


def test_nothing_retrieved_scores_zero_because_that_is_known() -> None:
    graded = grade([])
    assert (graded.score, graded.passed) == (0.0, False)
    assert grade([], metric="precision").score == 0.0


@pytest.mark.parametrize(
    ("ids", "relevant", "message"),
    [
        (None, ["a"], "the documents of the response are unknown"),
        (["a", None], ["a"], "document 2 of 2 has no id"),
        (["a"], [], "has no relevant id"),
        (["a"], {"a": 0}, "has no relevant id"),
    ],
)
def test_what_is_missing_is_an_error_and_not_zero(ids: Any, relevant: object, message: str) -> None:
    with pytest.raises(MissingDataError, match=message):
        grade(ids, relevant)


def test_a_case_without_ids_is_missing() -> None:
    graded = run_grader(create("retrieval"), context(["a"]))
    assert graded.error is not None
    assert (graded.outcome, graded.error.type) == (Outcome.ERROR, "missing")


@pytest.mark.parametrize("relevant", [3.5, True, [["a"]], {"a": -1}, {"a": "high"}, {"a": 1e9}, [None]])
def test_relevant_ids_of_another_shape_are_refused(relevant: object) -> None:
    with pytest.raises(GraderError):
        grade(["a"], relevant)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"metric": "map"}, "metric"),
        ({"k": 0}, "k"),
        ({"relevant": "metadata.x"}, "relevant"),
        ({"metric": "recall", "gain": "exponential"}, "gain"),
    ],
)
def test_faulty_options_are_refused(config: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create("retrieval", config)
    assert [problem.path.removeprefix("config.") for problem in caught.value.problems] == [path]


def test_a_suite_grades_what_a_python_agent_retrieved(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "def answer(text):\n"
        "    ids = {'one': ['a', 'x'], 'two': []}.get(text)\n"
        "    documents = None if ids is None else [{'text': 't', 'id': i} for i in ids]\n"
        "    return {'text': text, 'documents': documents}\n"
    )
    cases = [{"id": name, "input": name, "metadata": {"gold": {"ids": ["a"]}}} for name in ("one", "two", "three")]
    suite = {
        "name": "retrieval",
        "dataset": cases,
        "target": {"kind": "python", "function": "agent.py:answer"},
        "graders": {"found": {"kind": "retrieval", "relevant": "$metadata.gold.ids", "k": 5}},
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    records = run_suite(tmp_path / "suite.yaml", store="memory://").records()
    grades = {record.case: record.grades["found"] for record in records}
    assert {case: (one.outcome, one.score) for case, one in grades.items()} == {
        "one": (Outcome.PASS, 1.0),
        "two": (Outcome.FAIL, 0.0),
        "three": (Outcome.ERROR, None),
    }
    assert grades["three"].error is not None
    assert grades["three"].error.type == "missing"
