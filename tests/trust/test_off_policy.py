"""Off-policy values have the coverage that they claim, and are refused where the log says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from gradeline.trust import LoggedReward, evaluate_policy
from gradeline.trust.off_policy import NoSupportError

TRUTH = {("easy", "a"): 0.9, ("easy", "b"): 0.85, ("hard", "a"): 0.7, ("hard", "b"): 0.2}
LOGGED = {"easy": {"a": 0.7, "b": 0.3}, "hard": {"a": 0.8, "b": 0.2}}


def always(arm: str) -> Mapping[str, float]:
    return {arm: 1.0}


def log(random: Random, n: int, shares: Mapping[str, Mapping[str, float]] = LOGGED) -> list[LoggedReward]:
    rows = []
    for _ in range(n):
        family = random.choice(("easy", "hard"))
        arm = "a" if random.random() < shares[family]["a"] else "b"
        rows.append(LoggedReward(family, arm, shares[family], float(random.random() < TRUTH[family, arm])))
    return rows


@pytest.mark.parametrize("arm", ["a", "b"])
def test_intervals_cover_the_true_value(arm: str) -> None:
    truth = (TRUTH["easy", arm] + TRUTH["hard", arm]) / 2
    random = Random(7)
    covered = dict.fromkeys(("ips", "snips", "doubly_robust"), 0)
    for _ in range(200):
        value = evaluate_policy(log(random, 300), lambda _: always(arm))
        for name in covered:
            interval = getattr(value, name)
            covered[name] += interval.low <= truth <= interval.high
    assert min(covered.values()) >= 180


def test_the_logging_policy_itself_is_worth_the_mean_reward() -> None:
    rows = log(Random(1), 500)
    value = evaluate_policy(rows, lambda family: LOGGED[family])
    mean = sum(row.reward for row in rows) / 500
    assert value.ips.estimate == pytest.approx(mean)
    assert value.snips.estimate == pytest.approx(mean)
    assert value.effective == pytest.approx(500)
    assert value.requests == 500


def test_doubly_robust_is_narrower_where_families_differ() -> None:
    rows = log(Random(3), 2000)
    value = evaluate_policy(rows, lambda _: always("b"))
    assert (value.doubly_robust.se or 0) < (value.ips.se or 0)


def test_an_arm_without_a_chance_is_refused_by_name() -> None:
    shares = {"easy": {"a": 0.5, "b": 0.5}, "hard": {"a": 1.0, "b": 0.0}}
    with pytest.raises(NoSupportError, match=r"'b' in family 'hard' \(\d+ requests\)"):
        evaluate_policy(log(Random(1), 200, shares), lambda _: always("b"))


def test_too_few_effective_requests_are_refused() -> None:
    shares = {"easy": {"a": 0.97, "b": 0.03}, "hard": {"a": 0.97, "b": 0.03}}
    with pytest.raises(NoSupportError, match="at least 30"):
        evaluate_policy(log(Random(1), 300, shares), lambda _: always("b"))
    with pytest.raises(NoSupportError, match="no logged request has an outcome"):
        evaluate_policy([], lambda _: always("a"))
