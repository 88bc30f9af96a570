"""Rates corrected by labels: the estimate, the refusals, and what each says."""

from __future__ import annotations

from random import Random

import pytest

from gradeline.stats import corrected_mean
from gradeline.verdict.corrected import (
    CorrectedRate,
    JudgedLabel,
    LabelCounts,
    LabelledScores,
    borrowed_rate,
    corrected_rate,
)
from gradeline.verdict.evidence import Clustering


def run_with(
    labels: int = 100,
    rest: int = 900,
    *,
    pass_rate: float = 0.4,
    flattery: float = 0.5,
    probability: float | None = 0.1,
    seed: int = 1,
) -> LabelledScores:
    """A run of which ``pass_rate`` passes by people, and of the rest ``flattery`` by the judge too."""
    random = Random(seed)

    def verdicts() -> tuple[bool, bool]:
        label = random.random() < pass_rate
        return label, label or random.random() < flattery

    labelled = []
    for place in range(labels):
        label, passed = verdicts()
        labelled.append(JudgedLabel(place, float(passed), passed, label, None, probability))
    passes = [int(verdicts()[1]) for _ in range(rest)]
    return LabelledScores(
        labelled,
        [float(passed) for passed in passes],
        passes,
        range(labels, labels + rest),
        total=labels + rest,
        has_judge=True,
        command="gradeline label nightly",
    )


def of(passes: int, fails: int, rest: int = 100) -> LabelledScores:
    """Labels that the judge agrees with."""
    labelled = [JudgedLabel(n, float(n < passes), n < passes, n < passes, None, 0.5) for n in range(passes + fails)]
    count = passes + fails
    return LabelledScores(
        labelled, [1.0] * rest, [1] * rest, range(count, count + rest), total=count + rest, has_judge=True
    )


def test_a_flattering_judge_is_corrected() -> None:
    run = run_with()
    found = corrected_rate(run)
    plain = corrected_mean(
        [float(bool(one.label)) for one in run.labelled], [one.score for one in run.labelled], run.scores
    )
    assert (found.estimate, found.low, found.high) == (plain.estimate, plain.interval.low, plain.interval.high)
    assert found.judge == pytest.approx(0.7, abs=0.03)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.4 < found.high < found.judge
    assert (found.labels, found.method, found.refusal, found.notes) == (100, "ppi++", None, ())
    assert found.sentence == (
        f"{found.judge:.3f} judge → {found.estimate:.3f} ({found.low:.3f}–{found.high:.3f}), 100 labels"
    )


def test_the_interval_holds_the_truth_in_most_draws() -> None:
    hits = 0
    for seed in range(150):
        found = corrected_rate(run_with(rest=400, seed=seed, probability=0.2))
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.4 <= found.high
    assert hits / 150 >= 0.90


@pytest.mark.parametrize(
    ("run", "reason", "missing"),
    [
        (of(0, 0), "no labels; label 30 or more results: gradeline label RUN --sample 100", 30),
        (
            of(6, 6),
            "12 labels, at least 30 are needed: label 18 more: gradeline label RUN --sample 50",
            18,
        ),
        (
            of(38, 2),
            "40 labels, only 2 fail, and at least 5 are needed: label 60 more: gradeline label RUN --sample 100",
            60,
        ),
        (
            of(0, 40),
            "40 labels, only 0 pass, and at least 5 are needed: label 100 more: gradeline label RUN --sample 140",
            100,
        ),
        (
            of(0, 40)._replace(scores=[1.0], passes=[1], groups=[99], total=42),
            "40 labels, only 0 pass, and at least 5 are needed: label 1 more: gradeline label RUN --sample 42",
            1,
        ),
        (
            of(6, 6)._replace(scores=[1.0], passes=[1], groups=[99], total=13),
            "12 labels, at least 30 are needed: run more cases, as the judge scored only 13 results here",
            18,
        ),
        (
            of(20, 6)._replace(stale=8, unresolved=20),
            "26 labels, at least 30 are needed: label 4 more: gradeline label RUN --sample 100",
            4,
        ),
        (
            run_with(probability=None),
            "100 labels were not drawn at random: draw them with gradeline label nightly --sample 100 --random",
            30,
        ),
        (
            run_with()._replace(total=1_100),
            "the judge scored only 1,000 of 1,100 results, below the coverage floor of 0.95",
            None,
        ),
        (
            run_with()._replace(cases=Clustering(100, 4)),
            "the labels are of 100 cases in 4 clusters, and fewer than 6 clusters decide nothing; add cases of other"
            " clusters",
            None,
        ),
        (
            LabelledScores((), [1.0], [1], [0], total=2, unjudged=1),
            "none of 1 label is of a result that the judge scored",
            30,
        ),
    ],
)
def test_too_little_is_refused_with_the_reason_and_what_is_missing(
    run: LabelledScores, reason: str, missing: int | None
) -> None:
    found = corrected_rate(run)
    assert (found.refusal, found.missing_labels) == (reason, missing)
    assert (found.estimate, found.low, found.high, found.method, found.weight) == (None,) * 5
    assert found.sentence == f"{found.judge:.3f} judge, not corrected: {reason}"


def test_a_judge_that_knows_nothing_leaves_the_labels_own_estimate() -> None:
    random = Random(3)
    labelled = [
        JudgedLabel(n, passed := float(random.random() < 0.5), bool(passed), n % 2 == 0, None, 0.1) for n in range(100)
    ]
    run = LabelledScores(labelled, [1.0, 0.0] * 450, [1, 0] * 450, range(100, 1000), total=1000)
    found = corrected_rate(run)
    own = corrected_mean([float(n % 2 == 0) for n in range(100)], [0.0] * 100, [])
    assert found.weight is not None
    assert found.weight < 0.1
    assert (found.method, found.estimate, found.refusal) == ("labels", 0.5, None)
    assert (found.low, found.high) == tuple(own.interval)
    assert found.notes == ("the judge adds nothing: this is the labels' own estimate",)
    assert found.sentence.endswith("100 labels; the judge adds nothing: this is the labels' own estimate")


def test_where_all_results_are_labelled_they_need_not_be_of_both_classes() -> None:
    found = corrected_rate(of(40, 0, rest=0))
    assert (found.estimate, found.method, found.refusal) == (1.0, "labels", None)
    assert found.low is not None
    assert 0.85 < found.low < 1.0
    assert corrected_rate(of(40, 0)).refusal is not None


def test_where_all_results_are_labelled_they_need_no_sample() -> None:
    run = run_with(labels=60, rest=0, probability=None)
    found = corrected_rate(run)
    assert found.estimate == pytest.approx(sum(bool(one.label) for one in run.labelled) / 60)
    assert (found.method, found.notes) == ("labels", ("every judged result has a label",))


def test_few_results_without_a_label_are_not_the_judges_fault() -> None:
    found = corrected_rate(of(60, 60, rest=4))
    assert found.notes == (
        "too few results without a label for the judge to add anything: this is the labels' own estimate",
    )


def test_labels_that_were_not_drawn_are_left_out_and_said() -> None:
    run = run_with()
    others = [JudgedLabel(5_000 + n, 1.0, True, False) for n in range(20)]
    found = corrected_rate(
        run._replace(labelled=[*run.labelled, *others], total=1_020, unjudged=3, unresolved=2, stale=1)
    )
    assert found.labels == 100
    # the judge's scores of those 20 still count
    assert found.judge == pytest.approx((sum(run.passes) + sum(one.passed for one in run.labelled) + 20) / 1_020)
    assert found.notes == (
        "20 other labels were not drawn at random and left out",
        "3 labels of results without a score of the judge left out",
        "raters disagree about 2 more",
        "1 label of replaced responses left out",
    )


def test_scores_without_a_verdict_of_the_judge_are_said() -> None:
    found = corrected_rate(run_with()._replace(total=1_020))
    assert found.notes == ("over the 1,000 of 1,020 results that the judge scored",)
    assert corrected_rate(run_with()._replace(total=1_020), coverage_floor=0.99).estimate is None


def test_a_mean_needs_scores_of_people() -> None:
    graded = [JudgedLabel(n, 0.7, True, True, None, 0.1) for n in range(40)]
    run = LabelledScores(graded, [0.7] * 100, [1] * 100, range(40, 140), total=140)
    assert corrected_rate(run, "mean_score").refusal == (
        "none of 40 labels has a score; the pass rate can be corrected (aggregation: accuracy)"
    )
    scored = [one._replace(label_score=n % 5 / 4) for n, one in enumerate(graded)]
    found = corrected_rate(run._replace(labelled=scored), "mean_score")
    assert (found.judge, found.estimate) == (pytest.approx(0.7), pytest.approx(0.5))


def test_pass_and_fail_are_scores_where_every_score_is_0_or_1() -> None:
    assert corrected_rate(run_with(), "mean_score").estimate == corrected_rate(run_with()).estimate


def test_stratified_labels_are_weighted() -> None:
    """Of 900 passes and 100 failures by the judge 50 each are labelled; people fail a tenth of the passes."""
    labelled = [JudgedLabel(n, 1.0, True, n % 10 > 0, None, 50 / 900) for n in range(50)]
    labelled += [JudgedLabel(50 + n, 0.0, False, False, None, 0.5) for n in range(50)]
    run = LabelledScores(labelled, [1.0] * 850 + [0.0] * 50, [1] * 850 + [0] * 50, range(100, 1000), total=1000)
    found = corrected_rate(run)
    assert found.judge == 0.9
    assert found.estimate == pytest.approx(0.9 * 0.9, abs=1e-9)


def test_failed_calls_may_count_as_failures_that_are_certain() -> None:
    run = of(50, 50)._replace(scores=[1.0, 0.0] * 50, passes=[1, 0] * 50, failed_calls=range(1_000, 1_050), total=250)
    assert corrected_rate(run).refusal is not None  # 200 of 250
    found, without = corrected_rate(run, count_failed_calls=True), corrected_rate(run._replace(total=200))
    assert without.estimate is not None
    assert found.estimate == pytest.approx(without.estimate * 200 / 250)
    assert found.labels == 100


def test_json_has_the_documented_names() -> None:
    import msgspec

    data = msgspec.to_builtins(corrected_rate(run_with()))
    assert set(data) == {
        "measure", "judge", "estimate", "low", "high", "labels", "lambda", "method", "refusal", "missing_labels", "notes",
        "sentence",
    }  # fmt: skip


class TestBorrowedRates:
    def test_the_errors_of_a_calibration_give_the_rate(self) -> None:
        run = LabelledScores((), [1.0] * 400 + [0.0] * 600, [1] * 400 + [0] * 600, range(1000), total=1000)
        found = borrowed_rate(run, LabelCounts(0.9, 200, 0.7, 200))
        assert found.estimate == pytest.approx(1 / 6)
        assert (found.low, found.high) == (pytest.approx(0.05635, abs=1e-5), pytest.approx(0.26273, abs=1e-5))
        assert (found.method, found.labels) == ("rogan_gladen", 400)
        assert found.sentence.startswith("0.400 judge → 0.167 (0.056–0.263), 400 labels of a calibration; Rogan-Gladen")

    def test_a_judge_that_hardly_depends_on_the_truth_is_refused(self) -> None:
        run = LabelledScores((), [1.0] * 400, [1] * 400, range(400), total=400)
        found: CorrectedRate = borrowed_rate(run, LabelCounts(0.6, 200, 0.45, 200))
        assert found.estimate is None
        assert found.refusal is not None
        assert "= 0.050 is below 0.1" in found.refusal
