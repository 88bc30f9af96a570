"""Only complete log-probabilities give an expected score."""

from __future__ import annotations

from math import log

import pytest

from gradeline.adapters.chat import TokenLogprob
from gradeline.judges.logprobs import (
    ExpectedScore,
    LabelScores,
    Scale,
    expected_score,
    json_label_span,
    json_score_span,
    pattern_score_span,
)

WHOLE = Scale(1, 10, whole=True)


def likely(text: str, *shares: tuple[str, float]) -> TokenLogprob:
    return TokenLogprob(text, log(shares[0][1]), tuple((token, log(share)) for token, share in shares))


def test_the_mean_of_the_alternatives_is_expected() -> None:
    tokens = [TokenLogprob("[[", 0.0), likely("8", ("8", 0.5), ("7", 0.25), ("9", 0.25)), TokenLogprob("]]", 0.0)]
    found = expected_score(tokens, "[[8]]", (2, 3), WHOLE)
    assert found.reason is None
    assert found.score == pytest.approx((8 - 1) / 9)


def test_a_number_with_a_decimal_point_is_complete_on_any_scale() -> None:
    text = '{"score": 0.8}'
    tokens = [TokenLogprob('{"score":', 0.0), likely(" 0.8", (" 0.8", 0.6), (" 0.6", 0.4)), TokenLogprob("}", 0.0)]
    found = expected_score(tokens, text, json_score_span(text), Scale())
    assert found.score == pytest.approx(0.72)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([], "the judge returned no log-probabilities"),
        (
            [TokenLogprob("[[", 0.0), TokenLogprob("1", 0.0), TokenLogprob("0", 0.0), TokenLogprob("]]", 0.0)],
            "the score is not one token of the reply",
        ),
        ([TokenLogprob("another text", 0.0)], "the score is not one token of the reply"),
        (
            [TokenLogprob("[[", 0.0), likely("10", ("10", 0.6), ("8", 0.2)), TokenLogprob("]]", 0.0)],
            "the returned alternatives cover only 80% of the probability",
        ),
        (
            [TokenLogprob("[[", 0.0), likely("10", ("10", 0.7), ("N/A", 0.3)), TokenLogprob("]]", 0.0)],
            "the returned alternatives cover only 70% of the probability",
        ),
        (
            [TokenLogprob("[[", 0.0), likely("10", ("10", 0.7), ("99", 0.3)), TokenLogprob("]]", 0.0)],
            "the returned alternatives cover only 70% of the probability",
        ),
    ],
)
def test_incomplete_probabilities_give_a_reason_and_no_score(tokens: list[TokenLogprob], reason: str) -> None:
    assert expected_score(tokens, "[[10]]", (2, 4), WHOLE) == ExpectedScore(None, reason)


def test_a_bare_zero_may_be_the_start_of_a_fraction() -> None:
    text = '{"score": 1}'
    tokens = [TokenLogprob('{"score": ', 0.0), likely("1", ("1", 0.6), ("0", 0.4)), TokenLogprob("}", 0.0)]
    assert expected_score(tokens, text, json_score_span(text), Scale()).score is None


def test_an_ambiguous_position_has_no_score() -> None:
    assert expected_score([TokenLogprob("x", 0.0)], "x", None, WHOLE).reason == (
        "the reply does not contain exactly one score"
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"score": 0.75, "rationale": "x"}', (10, 14)),
        ('{"score":1}', (9, 10)),
        ('{"score": 0.5} or {"score": 0.5}', None),
        ("none", None),
    ],
)
def test_position_of_the_score_in_json(text: str, place: tuple[int, int] | None) -> None:
    assert json_score_span(text) == place


@pytest.mark.parametrize(
    ("text", "place"), [("Good: [[8]]", (8, 9)), ("[[8]] [[8]]", None), ("8", None), ("é [[10]]", (4, 6))]
)
def test_position_of_a_rating(text: str, place: tuple[int, int] | None) -> None:
    assert pattern_score_span(r"\[\[(\d+)\]\]", text) == place


def test_labels_are_weighted_by_their_scores() -> None:
    text = '{"label": "B"}'
    tokens = [
        TokenLogprob('{"label": "', 0.0),
        likely("B", ("B", 0.6), ("b", 0.1), ("A", 0.3)),
        TokenLogprob('"}', 0.0),
    ]
    found = expected_score(tokens, text, json_label_span(text), LabelScores({"a": 1.0, "b": 0.5}))
    assert found.score == pytest.approx(0.65)


def test_a_label_that_may_begin_a_longer_one_is_incomplete() -> None:
    scores = LabelScores({"correct": 1.0, "correct in part": 0.5})
    assert (scores.score_of("Correct"), scores.score_of("correct in part")) == (None, 0.5)
