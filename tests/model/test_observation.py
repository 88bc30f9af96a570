"""Valid entries of the quality ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.model.observation import Observation, ObservationFilter, new_observation

FIELDS: dict[str, Any] = {
    "task_family": "support",
    "baseline_adapter": "openai:large",
    "candidate_adapter": "openai:small",
    "grader_id": "exact-match",
    "grader_fingerprint": "f1",
    "score": 0.5,
    "baseline_digest": "d1",
    "candidate_digest": "d2",
}
TIME = "2026-01-15T10:00:00Z"


def test_an_observation_has_its_fields() -> None:
    more = {"cost": 0.01, "latency_ms": 12, "calibration_state": "drifted", "idempotency_key": "k"}
    assert new_observation(**FIELDS, **more, observed_at=TIME) == Observation(
        task_family="support",
        baseline_adapter="openai:large",
        candidate_adapter="openai:small",
        grader_id="exact-match",
        grader_fingerprint="f1",
        score=0.5,
        baseline_digest="d1",
        candidate_digest="d2",
        cost=0.01,
        latency_ms=12.0,
        calibration_state="drifted",
        observed_at="2026-01-15T10:00:00.000000Z",
        idempotency_key="k",
    )


def test_an_unknown_case_keeps_the_key_of_earlier_versions() -> None:
    created = new_observation(**FIELDS, observed_at=TIME)
    assert created.idempotency_key == "0e870f9f260371b83ba6ad0249475e5a"
    assert new_observation(**FIELDS, observed_at=TIME, case_key="c").idempotency_key != created.idempotency_key


def test_unknown_fields_are_none_and_calibrated_is_false() -> None:
    created = new_observation(**FIELDS)
    assert (created.cost, created.latency_ms, created.calibration_state) == (None, None, "uncalibrated")


def test_the_default_time_is_now() -> None:
    before = datetime.now(UTC)
    created = new_observation(**FIELDS)
    assert before <= datetime.fromisoformat(created.observed_at) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("entry", "stored"),
    [
        ("2026-01-15T10:00:00+02:00", "2026-01-15T08:00:00.000000Z"),
        ("2026-01-15 10:00:00.25Z", "2026-01-15T10:00:00.250000Z"),
        (datetime(2026, 1, 15, tzinfo=timezone(timedelta(hours=-1))), "2026-01-15T01:00:00.000000Z"),
    ],
)
def test_times_are_kept_in_utc(entry: Any, stored: str) -> None:
    assert new_observation(**FIELDS, observed_at=entry).observed_at == stored


@pytest.mark.parametrize("score", [None, 0, 0.0, 1, 1.0, 0.25])
def test_a_score_is_a_number_from_0_to_1_or_no_verdict(score: Any) -> None:
    assert new_observation(**{**FIELDS, "score": score}).score == score


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("score", value) for value in (True, -0.1, 1.1, float("nan"), float("inf"), "0.5", 10**400)),
        *(
            (field, value)
            for field in ("task_family", "baseline_adapter", "candidate_adapter", "grader_id", "grader_fingerprint")
            for value in ("", " \n", None, 7)
        ),
        *((field, None) for field in ("baseline_digest", "candidate_digest")),
        *((field, value) for field in ("cost", "latency_ms") for value in (-1, True, float("nan"), "1", 10**400)),
        *(("calibration_state", value) for value in ("calibratd", "", None)),
        *(
            ("observed_at", value)
            for value in ("yesterday", "2026-01-15", "2026-01-15T10:00:00", datetime(2026, 1, 15), 1.5)
        ),
        ("observed_at", "0001-01-01T00:00:00+10:00"),
        *(("idempotency_key", value) for value in ("", " ", 7)),
    ],
)
def test_anything_else_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        new_observation(**{**FIELDS, field: value})
    assert [problem.path for problem in caught.value.problems] == [field]


def test_all_problems_are_reported_at_once_with_remedies() -> None:
    with pytest.raises(ConfigError) as caught:
        new_observation(
            **{**FIELDS, "grader_id": " ", "score": 1.5}, calibration_state="calibratd", observed_at="2026-01-15"
        )
    assert str(caught.value) == (
        "invalid observation: "
        "\n  grader_id: expected a non-empty string, got ' '"
        "\n  score: score must be a finite number from 0.0 to 1.0, got 1.5; use None for no verdict"
        "\n  calibration_state: unknown state 'calibratd'; did you mean 'calibrated'?"
        "\n  observed_at: invalid time '2026-01-15'; use ISO 8601 with a time zone, such as 2026-01-15T10:00:00Z"
    )


def test_names_that_no_store_can_hold_are_cleaned() -> None:
    created = new_observation(**{**FIELDS, "task_family": "a\0b\ud800"}, idempotency_key="\0")
    assert (created.task_family, created.idempotency_key) == ("a\u2400b\ufffd", "\u2400")


class TestDefaultKey:
    def test_an_observation_with_a_time_is_identified_by_its_content(self) -> None:
        keys = {
            new_observation(**FIELDS, observed_at=time).idempotency_key for time in (TIME, "2026-01-15T11:00+01:00")
        }
        assert len(keys) == 1

    @pytest.mark.parametrize(
        "change", [{"score": None}, {"candidate_digest": "d3"}, {"latency_ms": 1.0}, {"observed_at": "2026-01-16T00Z"}]
    )
    def test_any_other_content_has_another_key(self, change: dict[str, Any]) -> None:
        entry = {**FIELDS, "observed_at": TIME}
        assert new_observation(**entry).idempotency_key != new_observation(**{**entry, **change}).idempotency_key

    def test_equal_observations_without_a_time_have_different_keys(self) -> None:
        assert new_observation(**FIELDS).idempotency_key != new_observation(**FIELDS).idempotency_key


def test_filter_criteria_are_the_set_fields() -> None:
    assert ObservationFilter().criteria() == {}
    assert ObservationFilter("support", calibration_state="uncalibrated").criteria() == {
        "task_family": "support",
        "calibration_state": "uncalibrated",
    }
