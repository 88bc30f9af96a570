"""Plans follow people's labels, not the judge's flattery; every gate refuses with its reason."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from routed_store import NOW, filled_store, put_calibration, route

from gradeline.errors import ConfigError
from gradeline.model.route import RequestOutcome, RouteChoice, RoutePromise
from gradeline.store.database import SharedStorage
from gradeline.store.route_log import create_route_tables, put_requests
from gradeline.trust.outcomes import record_outcomes
from gradeline.trust.policy import PolicyRules
from gradeline.trust.route_file import ArmEntry, RouteFile
from gradeline.trust.route_log_rows import logged_request
from gradeline.trust.route_plan import ArmResult, ArmResults, plan_split, promise_sentence, upper_bound
from gradeline.trust.route_tables import (
    RoutePlan,
    current_table,
    plan_route,
    publish,
    roll_back,
    shares_of,
    table_history,
)


@pytest.fixture(scope="module")
def good() -> SharedStorage:
    """Only read by the tests."""
    return filled_store()


def failed(plan: RoutePlan) -> dict[tuple[str, str | None], str]:
    return {(gate.name, gate.arm): gate.detail for gate in plan.table.failed_gates}


def test_traffic_goes_where_labels_say_that_nothing_is_lost(good: SharedStorage) -> None:
    plan = plan_route(good, route(margin=0.1), now=NOW)
    assert not plan.refused
    assert failed(plan) == {}
    easy, hard = plan.table.families["easy"], plan.table.families["hard"]
    assert easy["small"].state == "proven"
    assert easy["small"].share > 0.2
    assert easy["small"].quality == pytest.approx(0.92, abs=0.05)
    # the judge passes 86 % there, people 35 %
    assert hard["small"].quality == pytest.approx(0.35, abs=0.1)
    assert (hard["small"].state, hard["small"].share) == ("worse", 0.0)
    promise = plan.table.promise
    assert promise is not None
    assert promise.kept
    assert promise_sentence(promise).startswith("at most ")
    assert "of routed requests are worse than the baseline, 90% sure" in promise_sentence(promise)


@pytest.mark.parametrize(
    ("store", "changes", "gate", "words"),
    [
        ({"calibrated": False}, {}, ("calibrated", "small"), "is uncalibrated: never compared with labels"),
        ({"labels": {"big": 250, "small": 12}}, {}, ("per-arm errors", "small"), "12 of its answers have labels: label 18 more"),
        ({"probes": None}, {}, ("probes", None), "not probed for position, length, format: gradeline probe"),
        ({"probes": "not_enough_data"}, {}, ("probes", None), "not probed for"),
        ({"probes": "flagged"}, {}, ("probes", None), "the judge is biased: position: flagged"),
        ({"age_days": 100.0}, {}, ("evidence", "big"), "is 100.0 days old, more than 90: run it again"),
        ({"cost": None}, {"cost_weight": 1.0}, ("cost", "small"), "unknown, and lambda weighs it"),
        ({}, {"max_cost": 0.001}, ("cost", "small"), "0.01 US dollars per request, more than the 0.001 allowed"),
        ({"cost": None}, {"max_cost": 1.0}, ("cost", "small"), "unknown, and max_cost limits it"),
        ({}, {"enabled": False}, ("enabled", None), "enabled: false"),
        ({}, {"suite": "other"}, ("evidence", "small"), "no completed run of the suite 'other'"),
        ({}, {"grader": "tone"}, ("evidence", "small"), "with the grader 'tone'"),
    ],
)  # fmt: skip
def test_a_failed_gate_refuses_and_says_why(
    store: dict[str, Any], changes: dict[str, Any], gate: tuple[str, str | None], words: str
) -> None:
    storage = filled_store(**store)
    opened = route(**changes)
    plan = publish(storage, opened, plan_route(storage, opened, now=NOW))
    assert plan.refused
    assert words in failed(plan)[gate]
    status = current_table(storage, opened, NOW)
    assert status.table is None
    assert shares_of(opened, status.table, "easy") == {"big": 1.0, "small": 0.0}
    if opened.enabled:
        assert status.refusal is not None


def test_a_judge_of_the_candidates_family_is_refused() -> None:
    storage = filled_store(judges=("openai:gpt-5",))
    small = ArmEntry(name="small", model="gpt-5-mini", run="small")
    plan = plan_route(storage, route(candidates=(small,)), now=NOW)
    assert "of the same model family" in failed(plan)["own family", "small"]


@pytest.mark.parametrize("state", ["failed", "expired", "drifted"])
def test_the_last_safe_table_stays_when_the_judge_loses_trust(state: str) -> None:
    storage, opened = filled_store(), route(margin=0.1)
    first = publish(storage, opened, plan_route(storage, opened, now=NOW))
    assert first.table.moves_traffic
    if state == "failed":
        put_calibration(storage, state="failed", reasons=("kappa 0.1",))
        later = NOW
    elif state == "expired":
        later = NOW + timedelta(days=89.5)  # the calibration is older than the table
    else:
        from gradeline.store.trust_records import TrustRecord, put_record

        body = '{"answer": "judge", "onset": "2026-11-19T00:00:00Z"}'
        put_record(storage, TrustRecord("anchor_check", "s", "quality", "f1", "2026-11-19T00:00:00Z", body))
        later = NOW
    second = publish(storage, opened, plan_route(storage, opened, now=later))
    assert second.refused
    assert any(state in detail for detail in failed(second).values())
    status = current_table(storage, opened, later)
    assert status.table is not None
    assert (status.table.number, status.reason) == (first.table.number, "frozen: the latest plan was refused")
    expired = current_table(storage, opened, NOW + timedelta(days=91))
    assert expired.table is None
    assert "91 days old" in expired.reason


def test_rolling_back_is_one_step_and_then_the_baseline(good: SharedStorage) -> None:
    storage, opened = filled_store(), route(margin=0.1)
    with pytest.raises(ConfigError, match="nothing to roll back"):
        roll_back(storage, opened)
    first = publish(storage, opened, plan_route(storage, opened, now=NOW))
    second = publish(storage, opened, plan_route(storage, opened, now=NOW, seed=5))
    back = roll_back(storage, opened, NOW)
    assert (back.copied_from, back.families) == (first.table.number, first.table.families)
    status = current_table(storage, opened, NOW)
    assert status.table == back
    none = roll_back(storage, opened, NOW)
    assert none.copied_from is None
    assert "rolled back to the baseline" in current_table(storage, opened, NOW).reason
    with pytest.raises(ConfigError, match="nothing to roll back"):
        roll_back(storage, opened, NOW)
    assert len(table_history(storage, "support")) == 4
    assert second.table.number > first.table.number


def test_a_route_in_postgresql(postgres_url: str) -> None:
    from gradeline.store import PostgresStorage

    opened = route(margin=0.1)
    with PostgresStorage(postgres_url) as storage:
        filled_store(storage=storage)
        plan = publish(storage, opened, plan_route(storage, opened, now=NOW))
        assert current_table(storage, opened, NOW).table == plan.table
        assert plan.table.families["easy"]["small"].state == "proven"
        assert roll_back(storage, opened, NOW).copied_from is None


def test_another_limit_needs_another_plan() -> None:
    storage, opened = filled_store(), route(margin=0.1)
    publish(storage, opened, plan_route(storage, opened, now=NOW))
    assert "has changed" in current_table(storage, route(margin=0.2), NOW).reason


def test_a_grader_without_a_model_needs_no_labels() -> None:
    storage = filled_store({}, judges=(), probes=None)
    plan = plan_route(storage, route(margin=0.1), now=NOW)
    assert not plan.refused
    assert plan.table.judge == ""
    assert plan.table.families["easy"]["small"].state == "proven"


def test_the_loss_allowed_decides_what_is_routed(good: SharedStorage) -> None:
    plan = plan_route(good, route(margin=0.1, alpha=0.001), now=NOW)
    assert not plan.refused  # it explores
    assert "more than the 0.1% allowed" in failed(plan)["promise", None]
    assert plan.table.families["easy"]["small"].state == "unproven"
    assert plan.table.families["easy"]["small"].share <= 0.05


def test_outcomes_of_routed_requests_are_evidence_in_the_ledger_too() -> None:
    storage, opened = filled_store(), route(margin=0.1)
    database = create_route_tables(storage)
    choices = [RouteChoice(f"id{n}", "new", "small", {"big": 0.5, "small": 0.5}) for n in range(80)]
    put_requests(database, [logged_request(opened, one, served_by="small", at=NOW) for one in choices])
    at = "2026-11-19T11:00:00.000000Z"
    verdicts = [RequestOutcome(f"id{n}", 1.0, "judge:f1", at) for n in range(40, 80)]
    number = record_outcomes(
        storage, opened, [RequestOutcome(f"id{n}", 1.0, "label", at) for n in range(40)] + verdicts
    )
    assert number == 80
    cell = plan_route(storage, opened, now=NOW).table.families["new"]["small"]
    assert 40 < cell.n < 60  # 40 labels; 40 verdicts of a judge that flatters are worth little
    assert {row.candidate_adapter for row in storage.observation_sums()} == {"small"}
    uncounted = [RequestOutcome(f"id{n}", 1.0, "judge:other", at) for n in range(80)]
    record_outcomes(storage, opened, uncounted)
    assert plan_route(storage, opened, now=NOW).table.families["new"]["small"].n == pytest.approx(cell.n)
    with pytest.raises(ConfigError, match="'nope'"):
        record_outcomes(storage, opened, [RequestOutcome("nope", 1.0, "label", at)])


def test_old_evidence_weighs_less() -> None:
    new = plan_route(filled_store(age_days=0), route(margin=0.1), now=NOW).table.families["easy"]["big"].n
    old = plan_route(filled_store(age_days=30), route(margin=0.1), now=NOW).table.families["easy"]["big"].n
    assert old == pytest.approx(new / 2)


def test_the_bound_is_wider_than_that_of_the_expectation() -> None:
    from gradeline.stats import clopper_pearson

    assert upper_bound(0, 0) is None
    assert upper_bound(10, 10) == 1.0
    bound = upper_bound(10, 200)
    assert bound is not None
    assert clopper_pearson(10, 200, 0.8).high < bound < 0.12


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_promised_of_a_candidate_that_is_often_worse(seed: int) -> None:
    random = Random(seed)
    arms = {
        arm: ArmResults(
            [ArmResult(f"f{n % 5}", f"c{n}", 0, random.random() < rate) for n in range(1000)], 0.0, judged=False
        )
        for arm, rate in (("big", 0.9), ("small", 0.6))
    }
    made = plan_split(arms, "big", PolicyRules(margin=1.0, exploration=0.02), 0.1, seed=seed)
    assert not made.promise.kept
    assert max(row["small"].share for row in made.families.values()) <= 0.02 + 1e-9


def test_repeats_of_a_case_are_one_witness() -> None:
    def promise(repeats: int) -> RoutePromise:
        arms = {
            arm: ArmResults(
                [ArmResult("f", f"c{n}", k, n % 20 > 0 or arm == "small") for n in range(200) for k in range(repeats)],
                0.0,
                judged=False,
            )
            for arm in ("big", "small")
        }
        return plan_split(arms, "big", PolicyRules(), 0.1).promise

    assert promise(1).bound is not None
    assert promise(5).bound == promise(1).bound


def test_only_the_arm_that_the_promise_is_about_is_proven() -> None:
    random = Random(1)
    rates = {"big": 0.85, "small": 0.9, "tiny": 0.88}
    ease = [random.random() for _ in range(600)]
    arms = {
        arm: ArmResults([ArmResult("f", f"c{n}", 0, ease[n] < rate) for n in range(600)], 0.0, judged=False)
        for arm, rate in rates.items()
    }
    made = plan_split(arms, "big", PolicyRules(), 0.1)
    assert {arm: cell.state for arm, cell in made.families["f"].items()} == {
        "big": "baseline",
        "small": "proven",
        "tiny": "unproven",
    }
    assert made.families["f"]["tiny"].share <= 0.05


def test_too_few_results_in_a_family_are_named() -> None:
    arms = {
        arm: ArmResults([ArmResult(f"f{n % 20}", f"c{n}", 0, n % 10 < rate) for n in range(400)], 0.0, judged=False)
        for arm, rate in (("big", 5), ("small", 9))
    }
    made = plan_split(arms, "big", PolicyRules(), 0.1)
    (gate,) = [gate for gate in made.gates if gate.name == "promise"]
    assert gate.detail == "no family that would be routed has 30 results of both arms: add cases"


def test_digest_ignores_addresses_and_keys() -> None:
    one = route()
    moved = ArmEntry(name="big", model="big", base_url="http://elsewhere/v1", api_key_env="KEY")
    assert route(baseline=moved).digest == one.digest
    assert route(alpha=0.2).digest != one.digest
    assert isinstance(one, RouteFile)
