"""Corrected means and differences of items in clusters."""

from __future__ import annotations

from random import Random

import pytest

from gradeline.stats.clustered_correction import clustered_difference, clustered_mean
from gradeline.stats.intervals import score_interval
from gradeline.stats.prediction_powered import corrected_difference, corrected_mean

DRAWS = 120


def judged_run(random: Random, cases: int, repeats: int) -> tuple[list[float], list[float], list[int]]:
    """Labels, the judge's verdicts and cases; 2/3 of the results pass on average, and the judge errs in 15 %."""
    labels, scores, groups = [], [], []
    for case in range(cases):
        chance = random.betavariate(0.5, 0.25)
        for _ in range(repeats):
            label = random.random() < chance
            labels.append(float(label))
            scores.append(float(label if random.random() > 0.15 else not label))
            groups.append(case)
    return labels, scores, groups


def drawn(random: Random, cases: int, repeats: int, m: int) -> tuple[list[float], list[float], list[float], list[int]]:
    labels, scores, groups = judged_run(random, cases, repeats)
    chosen = random.sample(range(len(labels)), m)
    rest = sorted(set(range(len(labels))) - set(chosen))
    return (
        [labels[place] for place in chosen],
        [scores[place] for place in chosen],
        [scores[place] for place in rest],
        [groups[place] for place in [*chosen, *rest]],
    )


def test_independent_items_have_about_the_result_of_the_formula_without_clusters() -> None:
    labels, judged, rest, _ = drawn(Random(2), 400, 1, 100)
    one, other = clustered_mean(labels, judged, rest, range(400)), corrected_mean(labels, judged, rest)
    assert one.estimate == pytest.approx(other.estimate, abs=0.003)
    assert one.se == pytest.approx(other.se, rel=0.02)
    assert one.weight == pytest.approx(other.weight, rel=0.03)
    assert one.groups == other.groups == 100
    plain, paired = (function(labels, judged, rest, *more) for function, *more in (
        (corrected_difference,), (clustered_difference, range(400)),
    ))  # fmt: skip
    assert paired.interval.low == pytest.approx(plain.interval.low, abs=0.005)


def test_where_everything_is_labelled_it_is_the_mean_over_clusters() -> None:
    labels, scores, groups = judged_run(Random(3), 30, 4)
    found, known = clustered_mean(labels, scores, [], groups), score_interval(labels, groups)
    assert known is not None
    assert found.estimate == pytest.approx(known.estimate)
    assert tuple(found.interval) == pytest.approx(tuple(known))
    assert found.weight == 0.0


def test_repeats_of_a_case_count_as_one() -> None:
    """The formula for independent items covers far less than it promises; that for clusters covers."""
    random, hits = Random(4), {"clustered": 0, "independent": 0}
    for _ in range(DRAWS):
        labels, judged, rest, groups = drawn(random, 30, 10, 100)
        for name, found in (
            ("clustered", clustered_mean(labels, judged, rest, groups)),
            ("independent", corrected_mean(labels, judged, rest)),
        ):
            hits[name] += found.interval.low <= 2 / 3 <= found.interval.high
    assert hits["clustered"] / DRAWS >= 0.90
    assert hits["independent"] / DRAWS <= 0.85


def test_weights_undo_a_sample_by_the_verdict() -> None:
    random, hits = Random(5), 0
    for _ in range(DRAWS):
        labels, scores, groups = judged_run(random, 100, 3)
        chosen, weights = [], []
        for verdict in (0.0, 1.0):
            stratum = [place for place, score in enumerate(scores) if score == verdict]
            some = random.sample(stratum, min(50, len(stratum)))
            chosen += some
            weights += [len(stratum) / len(some)] * len(some)
        rest = sorted(set(range(len(labels))) - set(chosen))
        found = clustered_mean(
            [labels[place] for place in chosen],
            [scores[place] for place in chosen],
            [scores[place] for place in rest],
            [groups[place] for place in [*chosen, *rest]],
            weights,
        )
        hits += found.interval.low <= 2 / 3 <= found.interval.high
    assert hits / DRAWS >= 0.90


def test_invalid_input_is_named() -> None:
    with pytest.raises(ValueError, match="3 items but 2 clusters"):
        clustered_mean([1.0], [1.0], [0.0, 1.0], [0, 1])
    with pytest.raises(ValueError, match="of 1 cluster"):
        clustered_mean([1.0, 0.0], [1.0, 1.0], [0.0], [0, 0, 1])
    with pytest.raises(ValueError, match="2 labels but 1 judge's"):
        clustered_mean([1.0, 0.0], [1.0], [0.0], [0, 0, 1])
    with pytest.raises(ValueError, match="2 labels but 1 weights"):
        clustered_mean([1.0, 0.0], [1.0, 0.0], [0.0], [0, 1, 2], [1.0])
