"""Rewards of logged requests: outcomes minus weighted cost, with unknown costs left out."""

from __future__ import annotations

from typing import Any

import pytest
from routed_store import route

from gradeline.model.route import RequestOutcome, RouteCall, RouteChoice
from gradeline.store import InMemoryStorage
from gradeline.store.route_log import create_route_tables, put_outcomes, put_requests
from gradeline.trust.route_file import ArmEntry, RouteFile
from gradeline.trust.route_log_rows import logged_request, logged_rewards

AT = "2026-11-19T11:00:00.000000Z"
SHARES = {"big": 0.25, "small": 0.75}


def rewards(opened: RouteFile, calls: list[tuple[RouteCall, ...]], outcomes: list[RequestOutcome]) -> Any:
    with InMemoryStorage() as storage:
        database = create_route_tables(storage)
        choices = [RouteChoice(f"r{n}", "f", "small", SHARES) for n in range(len(calls))]
        rows = [
            logged_request(opened, one, served_by="big", calls=made) for one, made in zip(choices, calls, strict=True)
        ]
        put_requests(database, rows)
        put_outcomes(database, outcomes)
        return logged_rewards(storage, opened)


def call(cost: float | None) -> tuple[RouteCall, ...]:
    return (RouteCall(arm="small", status=200, cost=cost),)


def test_a_reward_is_the_outcome_minus_the_weighted_cost_of_all_calls() -> None:
    both = (RouteCall(arm="small", status=500, cost=0.0), RouteCall(arm="big", status=200, cost=0.02))
    outcomes = [RequestOutcome("r0", 1.0, "label", AT), RequestOutcome("r1", 0.5, "label", AT)]
    found, left_out = rewards(route(cost_weight=10.0), [both, call(0.01), call(0.01)], outcomes)
    assert [one.reward for one in found] == [pytest.approx(0.8), pytest.approx(0.4)]
    # the decision was for the small arm, whoever answered
    assert {(one.arm, one.propensities["small"]) for one in found} == {("small", 0.75)}
    assert left_out == 1


def test_a_label_comes_before_a_verdict() -> None:
    outcomes = [RequestOutcome("r0", 0.0, "label", AT), RequestOutcome("r0", 1.0, "judge:f", AT)]
    found, _ = rewards(route(), [call(None)], outcomes)
    assert [one.reward for one in found] == [0.0]


def test_an_unknown_cost_is_the_arms_own_or_leaves_the_request_out() -> None:
    outcomes = [RequestOutcome("r0", 1.0, "label", AT)]
    assert rewards(route(cost_weight=10.0), [call(None)], outcomes) == ([], 1)
    small = ArmEntry(name="small", model="small", cost=0.05)
    found, left_out = rewards(route(cost_weight=10.0, candidates=(small,)), [call(None)], outcomes)
    assert ([one.reward for one in found], left_out) == ([pytest.approx(0.5)], 0)
    free, _ = rewards(route(), [call(None)], outcomes)
    assert [one.reward for one in free] == [1.0]
