"""The calibration of a judge by labels: its numbers, its state, and the sentences about what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from gradeline.model.calibration import AgreementTable, Calibration
from gradeline.stats import Confusion, cohen_kappa, kappa_lower_bound, wilson
from gradeline.trust.calibration import (
    CalibratedJudge,
    JudgeCandidate,
    JudgedResults,
    LabelSource,
    best_judge,
    calibrate,
)
from gradeline.trust.label_and_verdict import LabelAndVerdict, share_interval, weights_of

JUDGE = CalibratedJudge("support", "quality", "quality", "run1", ("openai:m",), "f1", "p1")
AT = "2026-11-19T10:00:00Z"


def labelled(tp: int, fp: int, fn: int, tn: int, missing: int = 0) -> list[LabelAndVerdict]:
    cells = [(True, True)] * tp + [(False, True)] * fp + [(True, False)] * fn + [(False, False)] * tn
    verdicts: list[tuple[bool, bool | None]] = [*cells, *[(True, None)] * missing]
    return [
        LabelAndVerdict(f"c{number}", label, verdict, None if verdict is None else float(verdict), probability=0.1)
        for number, (label, verdict) in enumerate(verdicts)
    ]


def calibrated(items: Sequence[LabelAndVerdict], unlabelled: Sequence[float] = (1.0, 0.0) * 450) -> Calibration:
    missing = sum(one.verdict is None for one in items)
    results = JudgedResults(unlabelled, len(items) + len(unlabelled), missing)
    return calibrate(JUDGE, items, results, AT)


def test_the_numbers_are_those_of_the_table() -> None:
    found = calibrated(labelled(55, 6, 5, 34))
    assert found.state == "calibrated"
    assert found.reasons == ()
    assert found.table == AgreementTable(tp=55, fp=6, fn=5, tn=34)
    assert (found.labels, found.positives, found.negatives) == (100, 60, 40)
    table = Confusion(55, 6, 5, 34)
    kappa = cohen_kappa(table)
    assert kappa is not None
    assert found.kappa is not None
    assert (found.kappa.estimate, found.kappa.low, found.kappa.high) == (kappa.estimate, *kappa)
    assert found.kappa_lower == kappa_lower_bound(table)
    assert (found.agreement, found.sensitivity, found.specificity) == (0.89, 55 / 60, 34 / 40)
    assert found.agreement_ci == pytest.approx(tuple(wilson(89, 100)))
    assert found.sensitivity_ci == pytest.approx(tuple(wilson(55, 60)))
    assert found.specificity_ci == pytest.approx(tuple(wilson(34, 40)))
    assert found.headline == "agreement 0.890, kappa 0.77 (0.64–0.90) on 100 labels"
    assert not found.weighted
    assert found.conclusive


def test_too_few_labels_say_how_many_more_and_how_to_get_them() -> None:
    found = calibrated(labelled(50, 0, 0, 4))
    assert found.state == "failed"
    assert found.reasons == (
        "only 54 labels, 46 more are needed: gradeline label run1 --grader quality --sample 100",
        "only 4 labels of results that fail, 6 more are needed:"
        " gradeline label run1 --grader quality --sample 150 --stratify",
    )
    assert not found.conclusive


def test_more_labels_are_asked_for_than_a_sample_has_that_was_labelled_completely() -> None:
    left_out = LabelSource(unresolved=3, stale=4)
    found = calibrate(JUDGE, labelled(90, 0, 0, 3), JudgedResults([1.0] * 900, 993, 0), AT, left_out)
    assert found.reasons == (
        "only 93 labels, 7 more are needed: gradeline label run1 --grader quality --sample 107",
        "only 3 labels of results that fail, 7 more are needed:"
        " gradeline label run1 --grader quality --sample 350 --stratify",
    )
    (only,) = calibrated(labelled(98, 0, 0, 9), [1.0] * 2).reasons
    assert only.endswith("1 more is needed: gradeline label run1 --grader quality --sample 109 --stratify")


def test_a_run_with_too_few_results_needs_cases_not_labels() -> None:
    found = calibrated(labelled(20, 0, 0, 10), [1.0] * 9)
    assert found.reasons == ("only 30 labels, 70 more are needed: run more cases, as run run1 has only 39 results",)
    whole = calibrated(labelled(20, 0, 0, 10), ())
    assert whole.reasons == (
        "only 30 labels, 70 more are needed: run more cases, as every result of run run1 has a label",
    )


def test_the_name_of_a_question_is_quoted_for_a_shell() -> None:
    asked = JUDGE._replace(question="is it $(right)?")
    found = calibrate(asked, labelled(9, 0, 0, 9), JudgedResults((), 900, 0), AT)
    assert found.reasons[0].endswith("gradeline label run1 --question 'is it $(right)?' --sample 100")


def test_labels_of_another_question_are_drawn_by_its_name() -> None:
    found = calibrate(JUDGE._replace(question="human"), labelled(9, 0, 0, 9), JudgedResults((), 900, 0), AT)
    assert found.reasons[0].endswith("82 more are needed: gradeline label run1 --question human --sample 100")


def test_a_judge_that_agrees_by_chance_fails() -> None:
    found = calibrated(labelled(30, 20, 30, 20))
    assert found.state == "failed"
    assert found.reasons == ("kappa is 0.00, and its lower bound (one-sided, 95 %) -0.161 is below 0.4",)
    assert found.conclusive


def test_a_judge_that_always_gives_the_same_verdict_fails() -> None:
    found = calibrated(labelled(60, 40, 0, 0), (1.0,) * 900)
    assert found.state == "failed"
    assert found.kappa is not None
    assert found.kappa.estimate == 0.0
    assert found.value is not None
    assert found.value.sentence.startswith("This judge saves no labels")


def test_without_failures_kappa_is_undefined() -> None:
    found = calibrated(labelled(120, 0, 0, 0))
    assert found.state == "failed"
    assert found.kappa is None
    assert found.reasons[-1].startswith("kappa is undefined")


def test_errors_of_the_judge_are_missing_and_never_a_verdict() -> None:
    found = calibrated(labelled(60, 0, 0, 40, missing=20), ())
    assert found.table == AgreementTable(tp=60, fp=0, fn=0, tn=40, missing=20)
    assert found.headline == "agreement 1.000, kappa 1.00 (1.00–1.00) on 100 of 120 labels"
    assert found.agreement == 1.0
    assert found.labels == 120
    assert found.missing_rate == pytest.approx(20 / 120)
    assert found.reasons == ("no verdict on 20 of 120 results (16.7%), above 5%",)


def test_no_labels_at_all() -> None:
    found = calibrated([])
    assert found.state == "failed"
    assert found.reasons == ("there are no labels: gradeline label run1 --grader quality --sample 100",)
    assert (found.agreement, found.kappa, found.curve, found.value, found.length_rule) == (None,) * 5


def stratified(seed: int, rate: float = 0.95) -> list[LabelAndVerdict]:
    """50 labels of the judge's passes and 50 of its failures, of 1,000 results of which few fail.

    Given the judge passes, the label passes in 0.98; given that it fails, in 0.3.
    """
    random = Random(seed)
    passes, fails = rate * 1000, (1 - rate) * 1000
    drawn = [(True, 50 / passes, 0.98)] * 50 + [(False, 50 / fails, 0.3)] * 50
    return [
        LabelAndVerdict(f"c{number}", random.random() < chance, verdict, probability=probability)
        for number, (verdict, probability, chance) in enumerate(drawn)
    ]


def test_labels_drawn_with_known_probabilities_are_weighted() -> None:
    agreements = []
    covered = sure = 0
    truth = 0.95 * 0.98 + 0.05 * 0.7
    kappa = cohen_kappa(Confusion(0.95 * 0.98, 0.95 * 0.02, 0.05 * 0.3, 0.05 * 0.7))
    assert kappa is not None
    for seed in range(200):
        found = calibrated(stratified(seed), (1.0,) * 900)
        assert found.weighted
        assert found.agreement is not None
        assert found.agreement_ci is not None
        agreements.append(found.agreement)
        covered += found.agreement_ci[0] <= truth <= found.agreement_ci[1]
        assert found.kappa_lower is not None
        sure += found.kappa_lower <= kappa.estimate
        table = found.table
        assert table.tp + table.fp + table.fn + table.tn == pytest.approx(100)
    assert sum(agreements) / len(agreements) == pytest.approx(truth, abs=0.005)
    assert covered >= 186
    assert sure >= 188


def test_labels_not_drawn_at_random_give_way_to_those_that_were() -> None:
    other = [one._replace(case=f"x{one.case}", probability=None) for one in labelled(5, 5, 5, 5)]
    found = calibrated([*labelled(55, 6, 5, 34), *other])
    assert found.labels == 100
    assert found.notes == ("20 labels left out: not drawn at random from the run",)
    found = calibrated([*labelled(5, 0, 0, 5), *other])
    assert found.labels == 30
    assert found.unknown_probability == 20
    assert found.notes == (
        "20 of 30 labels were not drawn at random, so the numbers are those of the labelled results, not of the run",
    )


def test_labels_of_all_results_need_no_probability() -> None:
    items = [one._replace(probability=None) for one in labelled(55, 6, 5, 34)]
    found = calibrated(items, ())
    assert (found.notes, found.unknown_probability) == ((), 0)


def test_repeats_of_a_case_count_as_one() -> None:
    once = labelled(55, 6, 5, 34)
    thrice = [one._replace(repeat=repeat) for one in once for repeat in range(3)]
    single, tripled = calibrated(once), calibrated(thrice)
    assert single.kappa is not None
    assert tripled.kappa is not None
    assert tripled.kappa.estimate == pytest.approx(single.kappa.estimate)
    assert tripled.kappa.low == pytest.approx(single.kappa.low, abs=1e-9)
    assert single.agreement_ci is not None
    assert tripled.agreement_ci is not None
    assert tripled.agreement_ci == pytest.approx(single.agreement_ci, abs=0.003)


def test_cases_of_a_cluster_are_not_independent() -> None:
    items = labelled(55, 6, 5, 34)
    clustered = [one._replace(cluster=f"k{number // 5}") for number, one in enumerate(items)]
    alone, together = calibrated(items), calibrated(clustered)
    assert alone.kappa is not None
    assert together.kappa is not None
    assert together.kappa.low < alone.kappa.low - 0.05


def test_the_rows_of_tags_have_numbers_from_ten_labels_on() -> None:
    items = [
        one._replace(tags=("a", "b") if number % 10 == 0 else ("a",))
        for number, one in enumerate(labelled(50, 6, 5, 34))
    ]
    rows = {row.tag: row for row in calibrated(items).tags}
    assert (rows["a"].labels, rows["a"].agreement) == (95, pytest.approx(84 / 95))
    assert (rows["b"].labels, rows["b"].positives, rows["b"].negatives) == (10, 6, 4)
    assert rows["b"].agreement is not None
    few = calibrated([one._replace(tags=("few",)) for one in labelled(5, 0, 0, 4)]).tags[0]
    assert (few.labels, few.agreement, few.kappa, few.sensitivity) == (9, None, None, None)


def test_the_cost_of_an_agreement() -> None:
    items = [one._replace(cost=0.01) for one in labelled(55, 6, 5, 34)]
    found = calibrated(items)
    assert found.cost == pytest.approx(1.0)
    assert found.cost_per_agreement == pytest.approx(1.0 / 89)
    assert calibrated([*items[1:], items[0]._replace(cost=None)]).cost_per_agreement is None


def test_the_curve_of_scores() -> None:
    random = Random(3)
    scores = [random.random() for _ in range(400)]
    items = [
        LabelAndVerdict(f"c{number}", random.random() < score, score >= 0.5, score, probability=0.5)
        for number, score in enumerate(scores)
    ]
    curve = calibrated(items).curve
    assert curve is not None
    assert [one.low for one in curve.bins] == pytest.approx([number / 10 for number in range(10)])
    assert sum(one.labels for one in curve.bins) == 400
    assert all(abs(one.score - one.passed) < 0.2 for one in curve.bins)
    assert [one.isotonic for one in curve.bins] == sorted(one.isotonic for one in curve.bins)
    assert curve.brier == pytest.approx(1 / 6, abs=0.03)


def test_a_method_in_place_of_people_is_named_and_asks_for_cases() -> None:
    items = [one._replace(probability=None) for one in labelled(8, 0, 0, 9)]
    found = calibrate(JUDGE, items, JudgedResults((), 17, 0), AT, LabelSource("exact", notes=("why",)))
    assert found.against == "exact"
    assert found.notes == ("why",)
    assert found.headline.endswith("on 17 verdicts of exact")
    assert found.reasons[0].startswith("only 17 verdicts of exact, 83 more are needed")
    assert found.reasons[1].startswith("only 8 verdicts of exact of results that pass, 2 more are needed")
    assert [reason.rpartition(": ")[2] for reason in found.reasons] == ["run more cases", *["run other cases"] * 2]


def test_weights_are_inverse_probabilities_with_a_mean_of_one() -> None:
    items = [LabelAndVerdict("a", True, True, probability=0.1), LabelAndVerdict("b", True, True, probability=0.3)]
    assert weights_of(items) == pytest.approx([1.5, 0.5])
    assert weights_of([items[0], items[1]._replace(probability=None)]) == [1.0, 1.0]
    assert weights_of([]) == []


def test_a_share_of_one_group_says_nothing() -> None:
    twice = [LabelAndVerdict("a", True, True), LabelAndVerdict("a", True, False, repeat=1)]
    share = share_interval(twice, [1.0, 1.0])
    assert share is not None
    assert (tuple(share), share.estimate) == ((0.0, 1.0), 0.5)
    assert share_interval([], []) is None
    assert share_interval(twice, [1.0, 1.0], of=False) is None


def simulated(random: Random, sensitivity: float, specificity: float, rate: float = 0.6) -> Calibration:
    items = []
    for number in range(100):
        label = random.random() < rate
        right = random.random() < (sensitivity if label else specificity)
        items.append(LabelAndVerdict(f"c{number}", label, label if right else not label, probability=0.1))
    return calibrated(items)


@pytest.mark.parametrize(
    ("sensitivity", "specificity", "least", "most"),
    [(0.95, 0.95, 1.0, 1.0), (0.9, 0.85, 0.95, 1.0), (0.5, 0.5, 0.0, 0.0), (0.1, 0.1, 0.0, 0.0)],
)
def test_good_judges_pass_and_random_ones_do_not(
    sensitivity: float, specificity: float, least: float, most: float
) -> None:
    random = Random(11)
    passed = sum(simulated(random, sensitivity, specificity).state == "calibrated" for _ in range(300)) / 300
    assert least <= passed <= most


def test_the_best_judge_agrees_most_and_of_equals_the_cheapest() -> None:
    first, second = JudgeCandidate("a", 0.8, 2.0), JudgeCandidate("b", 0.9, 3.0)
    assert best_judge([first, second]) == second
    assert best_judge([first, second, JudgeCandidate("c", 0.9, 1.0)]) == JudgeCandidate("c", 0.9, 1.0)
    assert best_judge([second, JudgeCandidate("free?", 0.9, None)]) == second
    assert best_judge([JudgeCandidate("unknown", None, 0.0), first]) == first
    assert best_judge([JudgeCandidate("unknown", None)]) is None
    assert best_judge([]) is None


def test_a_panel_must_be_better_than_every_single_judge() -> None:
    single, panel = JudgeCandidate("one", 0.9, 9.0), JudgeCandidate("panel", 0.9, 1.0, panel=True)
    assert best_judge([panel, single]) == single
    better = panel._replace(agreement=0.91)
    assert best_judge([single, better]) == better
    assert best_judge([panel]) == panel
