"""Which results are drawn for labelling, and with which probability."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest

from gradeline.trust.sampling import SampledResult, allocate, draw, suggested_method


def candidates(passed: int, failed: int = 0, none: int = 0) -> list[SampledResult]:
    strata = ["pass"] * passed + ["fail"] * failed + ["none"] * none
    return [SampledResult(f"c{number}", 0, stratum) for number, stratum in enumerate(strata)]


def test_a_sample_is_the_same_for_the_same_seed_in_any_order_of_results() -> None:
    found = candidates(80, 20)
    assert draw(found, 30, 1, "random") == draw(found[::-1], 30, 1, "random")
    assert draw(found, 30, 1, "random") != draw(found, 30, 2, "random")


def test_a_larger_sample_begins_with_the_smaller_one() -> None:
    found = candidates(80, 20)
    for method in ("random", "stratified"):
        small = draw(found, 30, 1, method)  # type: ignore[arg-type]
        keys = [(one.case, one.repeat) for one in small]
        large = draw(found, 60, 1, method, keys)  # type: ignore[arg-type]
        assert [(one.case, one.repeat) for one in large[:30]] == keys
        assert len({(one.case, one.repeat) for one in large}) == 60


def test_every_result_of_a_random_sample_has_the_same_probability() -> None:
    drawn = draw(candidates(80, 15, 5), 25, 1, "random")
    assert {one.probability for one in drawn} == {0.25}
    sizes = {"pass": 80, "fail": 15, "none": 5}
    assert all(one.stratum_size == sizes[one.stratum] for one in drawn)


def test_a_sample_is_no_larger_than_the_run() -> None:
    drawn = draw(candidates(3, 2), 100, 1, "random")
    assert len(drawn) == 5
    assert {one.probability for one in drawn} == {1.0}


@pytest.mark.parametrize(
    ("size", "sizes", "expected"),
    [
        (100, {"pass": 900, "fail": 100}, {"pass": 50, "fail": 50}),
        (101, {"pass": 900, "fail": 100}, {"pass": 51, "fail": 50}),
        (100, {"pass": 980, "fail": 20}, {"pass": 80, "fail": 20}),
        (100, {"pass": 20, "fail": 980}, {"pass": 20, "fail": 80}),
        (100, {"pass": 800, "fail": 100, "none": 100}, {"pass": 45, "fail": 45, "none": 10}),
        (10, {"pass": 3, "fail": 2}, {"pass": 3, "fail": 2}),
        (10, {"": 50}, {"pass": 0, "fail": 0, "": 10}),
    ],
)
def test_half_of_a_stratified_sample_is_of_each_verdict(
    size: int, sizes: dict[str, int], expected: dict[str, int]
) -> None:
    assert allocate(size, sizes) == expected


def test_the_probability_in_a_stratified_sample_is_the_drawn_share_of_the_verdict() -> None:
    drawn = draw(candidates(900, 100), 100, 1, "stratified")
    assert Counter((one.stratum, one.probability) for one in drawn) == {
        ("pass", 50 / 900): 50,
        ("fail", 50 / 100): 50,
    }
    first = Counter(one.stratum for one in drawn[:40])
    assert min(first.values()) >= 10, "a sample that is only begun has results of both verdicts"


def test_weights_of_a_stratified_sample_give_back_the_whole_run() -> None:
    found = candidates(900, 100)
    truth = {one.case: int(one.case[1:]) % 7 == 0 for one in found}
    expected = fmean(truth.values())
    estimates = []
    for seed in range(200):
        drawn = draw(found, 100, seed, "stratified")
        weights = [1 / one.probability for one in drawn if one.probability]
        estimates.append(sum(w * truth[one.case] for w, one in zip(weights, drawn, strict=True)) / sum(weights))
    assert abs(fmean(estimates) - expected) < 0.01


def test_every_result_is_drawn_equally_often() -> None:
    found = candidates(8, 2)
    counts = Counter(one.case for seed in range(2000) for one in draw(found, 3, seed, "random"))
    assert set(counts) == {one.case for one in found}
    assert all(520 <= number <= 680 for number in counts.values())


def test_results_with_disagreement_come_first_and_have_no_probability() -> None:
    found = [one._replace(disagreement=0.5 if one.case in ("c3", "c7") else 0.0) for one in candidates(10)]
    found[5] = found[5]._replace(disagreement=1.0)
    drawn = draw(found, 5, 1, "disagreement")
    assert drawn[0].case == "c5"
    assert {one.case for one in drawn[1:3]} == {"c3", "c7"}
    assert {one.probability for one in drawn} == {None}


@pytest.mark.parametrize(
    ("sizes", "method"),
    [
        ((81, 19), "stratified"),
        ((19, 81), "stratified"),
        ((80, 20), "random"),
        ((100, 0), "random"),
        ((0, 0), "random"),
    ],
)
def test_a_rare_verdict_gets_half_of_the_sample(sizes: tuple[int, int], method: str) -> None:
    assert suggested_method(candidates(*sizes)) == method


def test_a_sample_has_at_least_one_result() -> None:
    with pytest.raises(ValueError, match="invalid sample size 0: draw 1 result or more"):
        draw(candidates(3), 0, 1, "random")
