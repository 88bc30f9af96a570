"""The difference of two runs on cases that are labelled in both, and decisions by it."""

from __future__ import annotations

from random import Random

import pytest

from gradeline.stats import corrected_difference
from gradeline.stats.distributions import student_two_sided
from gradeline.verdict import PairedScores
from gradeline.verdict.corrected_difference import LabelledPair, LabelledPairs, corrected_pairs
from gradeline.verdict.evidence import Clustering, Look
from gradeline.verdict.paired_decision import (
    ComparisonRule,
    GraderComparison,
    adjust_p_values,
    compare_cases,
    overall_decision,
)


def two_runs(
    *, true_change: float, seen_change: float, labels: int = 150, cases: int = 1_000, seed: int = 1
) -> tuple[PairedScores, LabelledPairs]:
    """People see one change of the pass rate, the judge another one on top of errors that both runs share."""
    random = Random(seed)
    pairs, before, after = [], [], []
    for place in range(cases):
        level = random.random()
        first, second = level < 0.5, level < 0.5 + true_change
        flattered = level < 0.5 + seen_change
        judged = [float(one if random.random() > 0.1 else not one) for one in (first, flattered)]
        before.append((judged[0],))
        after.append((judged[1],))
        label = float(second) - float(first) if place < labels else None
        difference = judged[1] - judged[0]
        pairs.append(LabelledPair(place, difference, label, difference, None if label is None else labels / cases))
    names = [f"case-{place}" for place in range(cases)]
    labelled = LabelledPairs(pairs, labels, labels)
    return PairedScores(names, before, after, labels=labelled), labelled


def test_it_is_the_formula_over_paired_differences() -> None:
    _, pairs = two_runs(true_change=-0.2, seen_change=-0.3)
    found = corrected_pairs(pairs)
    labelled = [pair for pair in pairs.pairs if pair.label is not None]
    plain = corrected_difference(
        [pair.label or 0.0 for pair in labelled],
        [pair.judged_labelled for pair in labelled],
        [pair.judged for pair in pairs.pairs if pair.label is None],
    )
    assert found.method == "ppi++"
    assert (found.estimate, found.interval) == (plain.estimate, tuple(plain.interval))
    assert found.p_value == student_two_sided(plain.estimate / plain.se, plain.groups - 1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < -0.2 < found.high
    assert found.sentence.startswith(
        f"{found.judge:+.3f} judge → {found.estimate:+.3f} ({found.low:+.3f}…{found.high:+.3f}), 150 cases labelled in both"
    )


@pytest.mark.parametrize("true_change", [-0.08, 0.0, 0.08])
def test_the_interval_holds_the_truth_in_most_draws(true_change: float) -> None:
    hits = 0
    for seed in range(80):
        _, pairs = two_runs(true_change=true_change, seen_change=0.05, cases=300, labels=100, seed=seed)
        found = corrected_pairs(pairs)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= true_change <= found.high
    assert hits / 80 >= 0.90


def test_labels_without_a_change_do_not_prove_that_nothing_changed() -> None:
    pairs = [LabelledPair(n, 0.0, 0.0, 0.0, 0.5) for n in range(50)] + [LabelledPair(50 + n, 0.0) for n in range(50)]
    found = corrected_pairs(LabelledPairs(pairs, 50, 50))
    assert found.estimate == 0.0
    assert found.low is not None
    assert found.high is not None
    assert found.low < -0.02
    assert found.high > 0.02
    assert found.p_value == 1.0


@pytest.mark.parametrize(
    ("pairs", "reason", "missing"),
    [
        (
            LabelledPairs(),
            "neither run has labels; label the same cases of the baseline: gradeline label BASE --sample 100 --random --seed"
            " 1 and the candidate: gradeline label CAND --sample 100 --random --seed 1",
            30,
        ),
        (
            LabelledPairs([LabelledPair(0, 0.0)], 1, 0),
            "no label of the candidate: gradeline label CAND --sample 100 --random --seed 1, if the other run"
            " has that sample",
            30,
        ),
        (
            LabelledPairs([LabelledPair(n, 0.0, 0.0, 0.0, 0.5) for n in range(12)] + [LabelledPair(99, 0.0)], 40, 20),
            "12 cases are labelled in both runs (40 in the baseline, 20 in the candidate), and at least 30 are needed:"
            " label 18 more in both, drawn with gradeline label BASE --sample 100 --random --seed 1 and gradeline label"
            " CAND --sample 100 --random --seed 1",
            18,
        ),
        (
            LabelledPairs([LabelledPair(n, 0.0, 0.0) for n in range(40)] + [LabelledPair(99, 0.0)], 40, 40),
            "40 labels were not drawn at random: draw the same cases of both runs with gradeline label BASE --sample 100"
            " --random --seed 1 and gradeline label CAND --sample 100 --random --seed 1",
            30,
        ),
        (LabelledPairs((), 40, 40, obstacle="it ended early"), "it ended early", None),
        (
            LabelledPairs(
                [LabelledPair(n % 3, 0.0, 0.0, 0.0, 0.5) for n in range(40)] + [LabelledPair(99, 0.0)],
                40,
                40,
                cases=Clustering(40, 3),
            ),
            "the labels are of 40 cases in 3 clusters, and fewer than 6 clusters decide nothing; add cases of other"
            " clusters",
            None,
        ),
    ],
)
def test_too_little_is_refused(pairs: LabelledPairs, reason: str, missing: int | None) -> None:
    found = corrected_pairs(pairs)
    assert (found.refusal, found.missing_labels, found.estimate) == (reason, missing, None)
    assert found.sentence.endswith(f"not corrected: {reason}")


class TestDecision:
    def test_labels_decide_against_the_judge(self) -> None:
        """The judge sees a gain, people a loss."""
        paired, _ = two_runs(true_change=-0.2, seen_change=0.1, labels=300)
        by_judge = compare_cases(paired, ComparisonRule(corrected=False))
        assert (by_judge.decision, by_judge.corrected) == ("better", None)
        found = compare_cases(paired)
        assert (found.decision, found.difference) == ("worse", by_judge.difference)
        assert found.by_labels is found.corrected
        assert found.deciding_p == found.corrected.p_value != found.p_value  # type: ignore[union-attr]
        assert found.summary.startswith("+0.")
        assert "300 cases labelled in both runs" in found.summary

    def test_too_few_labels_leave_the_decision_to_the_judge_unless_they_are_required(self) -> None:
        paired, _ = two_runs(true_change=-0.2, seen_change=0.1, labels=20)
        found = compare_cases(paired)
        assert found.decision == "better"
        assert found.corrected is not None
        assert found.corrected.missing_labels == 10
        required = compare_cases(paired, ComparisonRule(corrected=True))
        assert (required.decision, required.cases_to_decide) == ("undecided", None)
        assert required.reasons == (required.corrected.sentence,)  # type: ignore[union-attr]

    def test_missing_scores_still_leave_it_undecided(self) -> None:
        paired, labels = two_runs(true_change=0.3, seen_change=0.3, labels=300)
        fewer = paired._replace(candidate=[*paired.candidate[:900], *[()] * 100])
        found = compare_cases(fewer._replace(labels=labels._replace(pairs=labels.pairs[:900])))
        assert found.by_labels is not None
        assert found.decision == "undecided"
        assert found.reasons[0].startswith("only 900 of the baseline's 1,000 cases have a score in both runs")

    def test_an_open_question_asks_for_more_labels(self) -> None:
        paired, _ = two_runs(true_change=0.0, seen_change=0.0, labels=40)
        found = compare_cases(paired)
        assert (found.decision, found.cases_to_decide) == ("undecided", None)
        assert found.reasons[-1] == "label more of the same cases in both runs to narrow it"

    def test_a_veto_uses_the_corrected_p(self) -> None:
        paired, _ = two_runs(true_change=-0.2, seen_change=0.1, labels=300)
        graders: dict[str, GraderComparison] = adjust_p_values(
            {"first": compare_cases(PairedScores(["a"], [(1.0,)], [(1.0,)])), "judged": compare_cases(paired)}
        )
        assert graders["judged"].p_adjusted == pytest.approx(2 * (graders["judged"].deciding_p or 0.0))
        assert overall_decision(graders, ["first"]) == "worse"

    def test_a_run_that_could_end_early_is_decided_by_its_looks(self) -> None:
        paired, labels = two_runs(true_change=-0.2, seen_change=0.1, labels=300)
        stopped = paired._replace(look=Look(20, 0.05), labels=labels._replace(obstacle="by looks"))
        assert compare_cases(stopped).decision == "better"
