"""The router sends traffic where quality minus cost is best, and to the baseline when in doubt."""

from __future__ import annotations

from random import Random

import pytest

from gradeline.errors import ConfigError, UnknownNameError
from gradeline.trust import ArmEvidence, JudgeRates, PolicyRules, RouteJudge, Router

COSTS = {"strong": 1.0, "cheap": 0.01}
FREE = PolicyRules(exploration=1.0, margin=1.0, minimum_samples=0, baseline_share=0.0)
CALIBRATED = RouteJudge("calibrated", {name: JudgeRates(0.9, 100, 0.85, 100) for name in COSTS})


def taught(router: Router, rates: dict[str, float], n: int = 400, family: str = "f") -> Router:
    random = Random(1)
    for arm, rate in rates.items():
        for _ in range(n):
            router.observe(family, arm, random.random() < rate)
    return router


def test_the_better_arm_wins_and_the_propensities_are_those_of_the_decisions() -> None:
    router = taught(Router(COSTS, "strong", rules=FREE, seed=1), {"strong": 0.8, "cheap": 0.78})
    choices = [router.decide("f") for _ in range(2000)]
    share = sum(one.arm == "cheap" for one in choices) / 2000
    assert sum(choices[0].propensities.values()) == pytest.approx(1.0)
    assert share == pytest.approx(choices[0].propensities["cheap"], abs=0.04)
    assert 0.02 < share < 0.7
    assert len({one.id for one in choices}) == 2000


def test_cost_tips_the_scales() -> None:
    rates = {"strong": 0.8, "cheap": 0.75}
    rules = PolicyRules(cost_weight=0.125, exploration=1.0, margin=1.0, minimum_samples=0, baseline_share=0.0)
    assert taught(Router(COSTS, "strong", rules=FREE, seed=1), rates).split("f").shares["cheap"] < 0.2
    assert taught(Router(COSTS, "strong", rules=rules, seed=1), rates).split("f").shares["cheap"] > 0.8


def test_the_same_seed_decides_the_same() -> None:
    def arms(seed: int) -> list[str]:
        router = taught(Router(COSTS, "strong", rules=FREE, seed=seed), {"strong": 0.7, "cheap": 0.7}, n=20)
        return [router.decide("f").arm for _ in range(60)]

    assert arms(3) == arms(3) != arms(4)


def test_an_unproven_arm_stays_within_the_exploration_cap() -> None:
    router = taught(Router(COSTS, "strong", seed=1), {"strong": 0.6, "cheap": 0.9}, n=25)
    split = router.split("f")
    assert split.states["cheap"] == "unproven"
    assert split.shares == {"strong": 0.95, "cheap": pytest.approx(0.05)}
    split = taught(router, {"strong": 0.6, "cheap": 0.9}, n=200).split("f")
    assert split.states["cheap"] == "proven"
    assert split.shares["strong"] == pytest.approx(0.05)  # the baseline keeps its minimum


def test_an_arm_that_loses_more_than_the_margin_gets_nothing() -> None:
    split = taught(Router(COSTS, "strong", seed=1), {"strong": 0.9, "cheap": 0.5}).split("f")
    assert (split.states["cheap"], split.shares["cheap"]) == ("worse", 0.0)


def test_other_families_are_the_prior() -> None:
    router = taught(Router(COSTS, "strong", rules=FREE, seed=1), {"strong": 0.9, "cheap": 0.3})
    unseen = router.split("new").beliefs
    assert unseen["strong"].mean > 0.7 > 0.4 > unseen["cheap"].mean
    assert router.split("new").shares["cheap"] < 0.2


@pytest.mark.parametrize(
    "judge",
    [
        RouteJudge(),
        RouteJudge("failed", CALIBRATED.rates),
        RouteJudge("expired", CALIBRATED.rates),
        RouteJudge("drifted", CALIBRATED.rates),
        RouteJudge("calibrated", {"strong": JudgeRates(0.9, 100, 0.85, 100)}),  # nothing is known of the cheap arm
        RouteJudge("calibrated", {name: JudgeRates(0.55, 100, 0.5, 100) for name in COSTS}),
    ],
)
def test_a_judge_that_is_not_trusted_moves_no_traffic(judge: RouteJudge) -> None:
    router = Router(COSTS, "strong", rules=FREE, judge=judge, seed=1)
    for _ in range(2000):
        router.observe_judged("f", "strong", False)
        router.observe_judged("f", "cheap", True)
    assert {router.decide("f").arm for _ in range(200)} == {"strong"}
    assert [gate.name for gate in router.gates() if not gate.passed]


def test_flattery_moves_labelled_traffic_no_further_than_the_labels_do() -> None:
    plain = taught(Router(COSTS, "strong", rules=FREE, seed=1), {"strong": 0.9, "cheap": 0.5})
    flattered = taught(Router(COSTS, "strong", rules=FREE, seed=1), {"strong": 0.9, "cheap": 0.5})
    for _ in range(5000):
        flattered.observe_judged("f", "cheap", True)
    assert flattered.split("f").shares == plain.split("f").shares


def test_verdicts_of_a_calibrated_judge_are_corrected() -> None:
    """Both arms are right in 70 %, but the judge passes every answer of the cheap arm that is wrong half of the time."""
    flattering = {"strong": JudgeRates(0.9, 2000, 0.9, 2000), "cheap": JudgeRates(0.9, 2000, 0.5, 2000)}
    router = Router(COSTS, "strong", rules=FREE, judge=RouteJudge("calibrated", flattering), seed=1)
    for place in range(1000):
        router.observe_judged("f", "strong", place % 1000 < 660)  # 0.7·0.9 + 0.3·0.1
        router.observe_judged("f", "cheap", place % 1000 < 780)  # 0.7·0.9 + 0.3·0.5
    beliefs = router.split("f").beliefs
    assert beliefs["cheap"].mean == pytest.approx(beliefs["strong"].mean, abs=0.02)
    assert not [gate for gate in router.gates() if not gate.passed]


def test_no_verdict_is_not_a_failure() -> None:
    router = Router(COSTS, "strong", rules=FREE, judge=CALIBRATED, seed=1)
    for _ in range(100):
        router.observe_judged("f", "strong", True)
        router.observe_judged("f", "cheap", True)
    before = router.split("f").beliefs["cheap"]
    for _ in range(100):
        router.observe_judged("f", "cheap", None)
    assert router.split("f").beliefs["cheap"] == before


@pytest.mark.parametrize("costs", [{"strong": 1.0, "cheap": None}, {"strong": None, "cheap": 0.01}])
def test_an_unknown_cost_is_not_zero(costs: dict[str, float | None]) -> None:
    rules = PolicyRules(cost_weight=0.1, exploration=1.0, margin=1.0, minimum_samples=0, baseline_share=0.0)
    router = taught(Router(costs, "strong", rules=rules, seed=1), {"strong": 0.2, "cheap": 0.9})
    assert router.split("f").shares == {"strong": 1.0, "cheap": 0.0}
    assert any("unknown" in gate.detail and gate.name == "cost" for gate in router.gates())
    free = taught(Router(costs, "strong", rules=FREE, seed=1), {"strong": 0.2, "cheap": 0.9})
    assert free.split("f").shares["cheap"] > 0.9


def test_what_is_known_already_counts() -> None:
    known = {("f", "strong"): ArmEvidence(80, 20), ("f", "cheap"): ArmEvidence(95, 5)}
    assert Router(COSTS, "strong", evidence=known, seed=1).split("f").states["cheap"] == "proven"


def test_faults_are_reported_together() -> None:
    with pytest.raises(ConfigError, match="nope") as caught:
        Router(COSTS, "nope")
    with pytest.raises(ConfigError) as caught:
        Router(COSTS, "strong", rules=PolicyRules(exploration=2, cost_weight=-1, draws=0))
    assert [problem.path for problem in caught.value.problems] == ["exploration", "cost_weight", "draws"]
    with pytest.raises(ConfigError, match="at least one candidate"):
        Router(["strong"], "strong")
    with pytest.raises(UnknownNameError, match="cheap"):
        Router(COSTS, "strong").observe("f", "chaep", True)
