"""The rule that sees only lengths, which any judge should beat."""

from __future__ import annotations

from random import Random

import pytest

from gradeline.trust.label_and_verdict import LabelAndVerdict
from gradeline.trust.length_rule import length_rule


def answers(lengths: list[tuple[int, bool]]) -> list[LabelAndVerdict]:
    return [LabelAndVerdict(f"c{number}", label, None, length=length) for number, (length, label) in enumerate(lengths)]


def ones(items: list[LabelAndVerdict]) -> list[float]:
    return [1.0] * len(items)


def test_of_two_answers_the_longer_wins() -> None:
    items = [
        LabelAndVerdict("a", True, None, length=9, other_length=5),
        LabelAndVerdict("b", True, None, length=5, other_length=9),
        LabelAndVerdict("c", False, None, length=5, other_length=9),
        LabelAndVerdict("d", True, None, length=5, other_length=5),
    ]
    rule = length_rule(items, ones(items))
    assert rule is not None
    assert (rule.kind, rule.agreement, rule.labels, rule.threshold) == ("longer_wins", 0.75, 4, None)


def test_a_length_that_decides_is_found() -> None:
    items = answers([(length, length >= 60) for length in range(100)])
    rule = length_rule(items, ones(items))
    assert rule is not None
    assert (rule.kind, rule.threshold, rule.labels) == ("longer_passes", 60, 100)
    assert rule.agreement >= 0.97


def test_lengths_that_say_nothing_agree_as_the_more_frequent_label() -> None:
    random = Random(5)
    items = answers([(random.randrange(10, 500), random.random() < 0.7) for _ in range(1000)])
    rule = length_rule(items, ones(items))
    assert rule is not None
    assert rule.agreement == pytest.approx(0.7, abs=0.04)


def test_the_agreement_is_measured_on_other_cases_than_the_length() -> None:
    random = Random(7)
    agreements = []
    for _ in range(30):
        items = answers([(random.randrange(10_000), random.random() < 0.5) for _ in range(60)])
        rule = length_rule(items, ones(items))
        assert rule is not None
        agreements.append(rule.agreement)
    assert sum(agreements) / len(agreements) < 0.53  # the best length of all labels would agree with 0.59


def test_no_answer_passes_or_every_one() -> None:
    fails = length_rule(answers([(length, False) for length in range(20)]), [1.0] * 20)
    assert fails is not None
    assert (fails.threshold, fails.agreement) == (None, 1.0)
    passes = length_rule(answers([(length, True) for length in range(20)]), [1.0] * 20)
    assert passes is not None
    assert (passes.threshold, passes.agreement) == (0, 1.0)


def test_unknown_or_equal_lengths_have_no_rule() -> None:
    assert length_rule([LabelAndVerdict("a", True, True)], [1.0]) is None
    assert length_rule(answers([(5, True)] * 30), [1.0] * 30) is None
    assert length_rule([], []) is None


def test_labels_count_by_their_weight() -> None:
    items = answers([(length, length >= 10) for length in range(20)])
    contrary = answers([(length, length < 10) for length in range(20)])
    rule = length_rule(items + contrary, [3.0] * 20 + [1.0] * 20)
    assert rule is not None
    assert rule.agreement == pytest.approx(0.75, abs=0.08)
