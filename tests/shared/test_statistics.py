"""Our formulas agree with scipy, statsmodels and published tables."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

import pytest

from gradeline import stats


@pytest.fixture
def oracles(shared_rows) -> dict[str, Any]:
    return load(shared_rows, "stat_oracles/oracles.json")


def load(shared_rows, name: str) -> Any:
    return json.loads("\n".join(shared_rows.lines(name)))


def test_binomial_intervals(oracles: dict[str, Any]) -> None:
    for counts, expected in oracles["binomial_intervals_95"].items():
        k, n = map(int, counts.split("/"))
        assert stats.wilson(k, n) == pytest.approx(tuple(expected["wilson"]), abs=1e-12)
        assert stats.clopper_pearson(k, n) == pytest.approx(tuple(expected["clopper_pearson"]), abs=1e-10)


@pytest.mark.parametrize(("name", "formula"), [("pass_at_k", stats.pass_at_k), ("pass_hat_k", stats.pass_hat_k)])
def test_repeats(oracles: dict[str, Any], name: str, formula: Any) -> None:
    for case, expected in oracles[name].items():
        assert formula(*map(int, re.findall(r"\d+", case))) == pytest.approx(expected, abs=1e-12)


def test_mcnemar(oracles: dict[str, Any]) -> None:
    for case in oracles["mcnemar"].values():
        (_, b), (c, _) = case["table"]
        assert stats.mcnemar(b, c) == pytest.approx((case["exact_p"], case["midp"]), rel=1e-9)


def test_permutation_and_multiple_comparisons(oracles: dict[str, Any]) -> None:
    maize = oracles["paired_permutation"]
    assert stats.sign_flip_test(maize["darwin_maize_diffs"]) == maize["exact_two_sided_p"]
    several = oracles["multiple_comparisons"]
    assert stats.holm(several["p"]) == pytest.approx(several["holm"])
    assert stats.benjamini_hochberg(several["p"]) == pytest.approx(several["fdr_bh"])


def test_power(oracles: dict[str, Any]) -> None:
    power = oracles["power"]
    assert stats.cases_needed(0.03, 1 / 9) == pytest.approx(power["miller_n delta=.03 omega2=1/9 sigma2/K=0"])
    assert stats.cases_needed(0.03, 1 / 9, 1 / 6, 1 / 6, 10, 10) == pytest.approx(
        power["miller_n with sigma2=1/6,K=10 each"]
    )
    assert stats.minimum_detectable_effect(198, 1 / 9, 1 / 6, 1 / 6) == pytest.approx(
        power["mde n=198 omega2=1/9 sigma2=1/6 K=1"]
    )
    assert stats.minimum_detectable_effect(198, 1 / 9, 1 / 6, 1 / 6, 10, 10) == pytest.approx(power["mde n=198 K=10"])


def test_clustered_and_paired_errors_on_mmlu(shared_rows) -> None:
    expected = load(shared_rows, "routellm_mmlu/expected.json")
    rows = list(shared_rows("routellm_mmlu/rows.jsonl"))
    subjects = [row["subject"] for row in rows]
    gpt4, mixtral = [row["gpt4"] for row in rows], [row["mixtral"] for row in rows]
    for name, values in (("gpt4", gpt4), ("mixtral", mixtral)):
        assert stats.mean_interval(values).se == pytest.approx(expected[name]["se_naive_sample"])
        assert stats.mean_interval(values, subjects).se == pytest.approx(expected[name]["statsmodels_CR1"])
    paired = expected["paired_diff"]
    found = stats.paired_difference(gpt4, mixtral, subjects)
    assert (found.estimate, found.se) == pytest.approx((paired["mean"], paired["statsmodels_CR1"]))
    assert stats.paired_difference(gpt4, mixtral).se == pytest.approx(paired["se_naive_sample"])
    changes = [(a, b) for a, b in zip(gpt4, mixtral, strict=True)]
    assert [changes.count((1, 0)), changes.count((0, 1))] == expected["mcnemar_bc"]


def test_reliability_on_tau_airline(shared_rows) -> None:
    expected = load(shared_rows, "tau_airline/expected.json")
    rewards: dict[int, list[float]] = defaultdict(list)
    for row in shared_rows("tau_airline/trajectories.jsonl"):
        rewards[row["item_id"]].append(row["reward"])
    for name, formula in (("pass_hat_k", stats.pass_hat_k), ("pass_at_k", stats.pass_at_k)):
        for k, value in enumerate(expected[name], 1):
            per_task = [formula(len(tries), sum(reward == 1.0 for reward in tries), k) for tries in rewards.values()]
            assert sum(per_task) / len(per_task) == pytest.approx(value)


def test_agreement(oracles: dict[str, Any]) -> None:
    expected = oracles["cohen_kappa"]
    for table, name in (
        ([[20, 5], [10, 15]], "wikipedia_20_5_10_15"),
        ([[90, 5], [5, 0]], "prevalence_paradox_90_5_5_0"),
    ):
        kappa = stats.cohen_kappa(table)
        assert kappa is not None
        assert kappa.estimate == pytest.approx(expected[name])
    ratings = oracles["krippendorff_alpha"]
    columns = zip(*ratings["data_rows_raters_cols_units_null_missing"], strict=True)
    units = [{str(rater): value for rater, value in enumerate(column) if value is not None} for column in columns]
    for level, value in ratings["classic_4x12"].items():
        alpha = stats.krippendorff_alpha(units, level)
        assert alpha is not None
        assert alpha.estimate == pytest.approx(value)


def test_rogan_gladen(oracles: dict[str, Any]) -> None:
    expected = oracles["rogan_gladen"]
    found = stats.rogan_gladen(400, 1_000, 0.9, 200, 0.7, 200)
    assert found.estimate == pytest.approx(expected["p=.4,q0=.7,q1=.9"])
    assert tuple(found.interval) == pytest.approx(tuple(expected["ci n=1000,m0=m1=200"]), abs=1e-12)
    estimate, interval = expected["p=.8,q0=.85,q1=.9,n=500,m0=m1=100"]
    second = stats.rogan_gladen(400, 500, 0.9, 100, 0.85, 100)
    assert second.estimate == pytest.approx(estimate)
    assert tuple(second.interval) == pytest.approx(tuple(interval), abs=1e-12)


def test_calibration_of_scores(oracles: dict[str, Any]) -> None:
    curve = oracles["isotonic"]
    fit = stats.isotonic(curve["x"], curve["y"])
    assert list(fit.values) == pytest.approx(curve["fit"])
    assert [fit(2.5), fit(9)] == pytest.approx(curve["predict_2.5_and_9"])
    metrics = oracles["calibration_metrics"]
    scores, labels = metrics["scores"], metrics["labels"]
    assert list(stats.isotonic(scores, labels).values) == pytest.approx(metrics["isotonic_fit"])
    assert stats.brier(scores, labels) == pytest.approx(metrics["brier"])
    assert stats.expected_calibration_error(scores, labels, 5) == pytest.approx(metrics["ece_5_equal_width_bins"])
