"""Samples that are drawn and labelled as the tool does it give corrected rates whose intervals hold the truth."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from gradeline.model.label import LabelRow, SamplingMethod
from gradeline.stats.prediction_powered import corrected_mean
from gradeline.store.labels import LabelDraw, probabilities
from gradeline.trust.sampling import SampledResult, draw

SEEDS = 120
RESULTS = 1000


@pytest.mark.parametrize(
    ("method", "labelled"), [("random", 100), ("random", 60), ("stratified", 100), ("stratified", 60)]
)
def test_a_rate_by_a_sample_of_100_holds_the_truth_however_far_labelling_is(
    method: SamplingMethod, labelled: int
) -> None:
    chance = Random(5)
    judged = {f"c{number}": chance.random() > 0.1 for number in range(RESULTS)}
    said = {case: chance.random() < (0.9 if passed else 0.3) for case, passed in judged.items()}
    results = [SampledResult(case, 0, "pass" if passed else "fail") for case, passed in judged.items()]
    truth = fmean(said.values())
    found = [corrected(results, judged, said, method, labelled, seed) for seed in range(SEEDS)]
    assert sum(low <= truth <= high for _, low, high in found) >= 0.9 * SEEDS
    assert abs(fmean(estimate for estimate, _, _ in found) - truth) < 0.015


def corrected(
    results: list[SampledResult],
    judged: dict[str, bool],
    said: dict[str, bool],
    method: SamplingMethod,
    labelled: int,
    seed: int,
) -> tuple[float, float, float]:
    drawn = draw(results, 100, seed, method)
    draws = [
        LabelDraw(
            "s", "q", place, one.case, 0, method, seed, one.probability, one.stratum, one.stratum_size, RESULTS, ""
        )
        for place, one in enumerate(drawn)
    ]
    labels = [label(one.case, one.probability) for one in drawn[:labelled]]
    known = probabilities(draws, labels, {(one.case, 0) for one in labels})
    weights = [1.0 / known[one.case, 0] for one in labels]
    rest = [float(judged[case]) for case in judged.keys() - {one.case for one in labels}]
    answers = [float(said[one.case]) for one in labels]
    rate = corrected_mean(answers, [float(judged[one.case]) for one in labels], rest, weights)
    return rate.estimate, rate.interval.low, rate.interval.high


def label(case: str, probability: float | None) -> LabelRow:
    return LabelRow(case, 0, "q", "pass", None, None, "", "ada", "rater", probability, "s", "", None, None, "", "", "")
