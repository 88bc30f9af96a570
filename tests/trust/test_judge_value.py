"""How many labels a judge saves."""

from __future__ import annotations

from random import Random

import pytest

from gradeline.trust.judge_value import judge_value
from gradeline.trust.label_and_verdict import LabelAndVerdict


def items(tp: int, fp: int, fn: int, tn: int) -> list[LabelAndVerdict]:
    cells = [(True, True)] * tp + [(False, True)] * fp + [(True, False)] * fn + [(False, False)] * tn
    return [LabelAndVerdict(f"c{number}", label, verdict) for number, (label, verdict) in enumerate(cells)]


def test_a_good_judge_saves_labels() -> None:
    found = judge_value(items(55, 4, 5, 36), [1.0] * 100, [1.0] * 590 + [0.0] * 410)
    assert found is not None
    assert found.correlation == pytest.approx(0.814, abs=0.001)
    assert found.width_ratio < 0.75
    assert found.labels_saved == pytest.approx(100 * (1 / found.width_ratio**2 - 1))
    assert 10 <= found.labels_saved_low < found.labels_saved
    assert not found.projected
    assert found.sentence.startswith(f"This judge saves about {found.labels_saved:.0f} labels: 100 labels with it are")


def test_a_judge_that_knows_nothing_saves_none() -> None:
    found = judge_value(items(30, 20, 30, 20), [1.0] * 100, [1.0, 0.0] * 500)
    assert found is not None
    assert found.labels_saved == pytest.approx(0.0, abs=0.5)
    assert found.labels_saved_low == 0.0
    assert found.sentence.startswith("This judge saves no labels: its verdicts hardly follow them (correlation 0.00)")


@pytest.mark.parametrize("unlabelled", [(), [1.0, 0.0] * 10])
def test_where_most_results_are_labelled_the_value_is_that_in_a_larger_run(unlabelled: list[float]) -> None:
    found = judge_value(items(55, 4, 5, 36), [1.0] * 100, unlabelled)
    assert found is not None
    assert found.projected
    assert found.labels_saved == pytest.approx(100 * (1 / (1 - 0.8142**2) - 1), rel=0.01)
    assert "in a run with many more results" in found.sentence


def test_nothing_is_said_of_few_labels_or_of_equal_ones() -> None:
    assert judge_value(items(5, 0, 0, 4), [1.0] * 9, [1.0] * 50) is None
    assert judge_value(items(20, 0, 10, 0), [1.0] * 30, [1.0] * 50) is None


def test_a_judge_that_never_errs_on_the_labels_has_a_finite_value() -> None:
    found = judge_value(items(60, 0, 0, 40), [1.0] * 100, [1.0, 0.0] * 500)
    assert found is not None
    assert 500 < found.labels_saved < 5_000
    assert 200 < found.labels_saved_low < found.labels_saved
    projected = judge_value(items(60, 0, 0, 40), [1.0] * 100, ())
    assert projected is not None
    assert 500 < projected.labels_saved < 5_000


def test_an_inverted_judge_saves_none() -> None:
    found = judge_value(items(5, 36, 55, 4), [1.0] * 100, [1.0, 0.0] * 500)
    assert found is not None
    assert found.labels_saved == pytest.approx(0.0, abs=0.5)
    assert found.sentence.startswith("This judge saves no labels")


def test_useless_judges_are_rarely_said_to_save_labels() -> None:
    """With a correlation of 0.25, as that of real judges of chat answers."""
    random = Random(2)
    saving = 0
    for _ in range(200):
        labelled = []
        for number in range(100):
            label = random.random() < 0.5
            verdict = label if random.random() < 0.625 else not label
            labelled.append(LabelAndVerdict(f"c{number}", label, verdict))
        found = judge_value(labelled, [1.0] * 100, [1.0, 0.0] * 500)
        assert found is not None
        saving += not found.sentence.startswith("This judge saves no labels")
    assert saving <= 8


def test_a_sample_by_verdict_is_compared_with_labels_drawn_at_random() -> None:
    """Of 1,000 results the judge fails 100; half of the labels are of these."""
    labelled = items(49, 1, 5, 45)
    weights = [18.0 if one.verdict else 2.0 for one in labelled]
    mean = sum(weights) / len(weights)
    found = judge_value(labelled, [weight / mean for weight in weights], [1.0] * 850 + [0.0] * 50)
    assert found is not None
    assert found.correlation > 0.75
    assert found.labels_saved > 20
    assert found.sentence.startswith("This judge saves about ")
