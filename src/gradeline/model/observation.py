"""Observations: the entries of the quality ledger, each a grader's score of a candidate against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from numbers import Real
from typing import Literal, NamedTuple, get_args
from uuid import uuid4

import msgspec

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model.fingerprint import fingerprint
from gradeline.model.grade import valid_score
from gradeline.model.sample import Sample
from gradeline.model.text import clean_text, quote

CalibrationState = Literal["uncalibrated", "calibrated", "failed", "expired", "drifted"]
CALIBRATION_STATES: tuple[CalibrationState, ...] = get_args(CalibrationState)


class Observation(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """One score of a candidate against a baseline. `new_observation` validates the fields."""

    id: int = 0
    """Assigned by the store in order of arrival, from 1; 0 before that."""
    task_family: str
    baseline_adapter: str
    candidate_adapter: str
    grader_id: str
    grader_fingerprint: str
    score: float | None
    """None: no verdict, which only lowers the coverage."""
    baseline_digest: str
    candidate_digest: str
    cost: float | None = None
    """Unknown is None, never 0."""
    latency_ms: float | None = None
    calibration_state: CalibrationState = "uncalibrated"
    observed_at: str
    """UTC with microseconds and of fixed length, so that strings sort by time."""
    idempotency_key: str
    case_key: str | None = None
    """Key of the case; None: unknown, and the observation counts as its own case."""


class ObservationFilter(NamedTuple):
    """Selects observations that match all given fields."""

    task_family: str | None = None
    candidate_adapter: str | None = None
    baseline_adapter: str | None = None
    grader_id: str | None = None
    grader_fingerprint: str | None = None
    calibration_state: str | None = None

    def criteria(self) -> dict[str, str]:
        """The fields to match, by name."""
        return {name: value for name, value in zip(self._fields, self, strict=True) if value is not None}


EVERYTHING = ObservationFilter()


class ObservationSums(NamedTuple):
    """Sums over the observations of one judge on one adapter against one baseline in one task family.

    A case counts once, with the mean of its scores.
    """

    task_family: str
    candidate_adapter: str
    baseline_adapter: str
    grader_id: str
    total: int
    """Observations."""
    scored: int
    """Observations with a score."""
    cases: int
    """Cases with a score."""
    score_sum: float
    """Sum of the means of the cases."""
    score_squares: float
    latest: str
    """Time of the newest observation."""


def new_observation(
    *,
    task_family: str,
    baseline_adapter: str,
    candidate_adapter: str,
    grader_id: str,
    grader_fingerprint: str,
    score: float | None,
    baseline_digest: str,
    candidate_digest: str,
    cost: float | None = None,
    latency_ms: float | None = None,
    calibration_state: str = "uncalibrated",
    observed_at: str | datetime | None = None,
    idempotency_key: str | None = None,
    case_key: str | None = None,
) -> Observation:
    """A valid observation; `ConfigError` lists all faults.

    ``observed_at`` defaults to now. Without an idempotency key, the key is a digest of the content if a time is given,
    else random. Without a case key the observation counts as its own case.
    """
    check = _Validator()
    observation = Observation(
        task_family=check.name("task_family", task_family),
        baseline_adapter=check.name("baseline_adapter", baseline_adapter),
        candidate_adapter=check.name("candidate_adapter", candidate_adapter),
        grader_id=check.name("grader_id", grader_id),
        grader_fingerprint=check.name("grader_fingerprint", grader_fingerprint),
        score=check.score(score),
        baseline_digest=check.text("baseline_digest", baseline_digest),
        candidate_digest=check.text("candidate_digest", candidate_digest),
        cost=check.amount("cost", cost),
        latency_ms=check.amount("latency_ms", latency_ms),
        calibration_state=check.state(calibration_state),
        observed_at=check.time(observed_at),
        idempotency_key="" if idempotency_key is None else check.name("idempotency_key", idempotency_key),
        case_key=None if case_key is None else check.name("case_key", case_key),
    )
    if check.problems:
        raise ConfigError(check.problems, "invalid observation")
    if idempotency_key is not None:
        return observation
    key = uuid4().hex if observed_at is None else fingerprint("observation", _content(observation))
    return msgspec.structs.replace(observation, idempotency_key=key)


_WITHOUT_CASE = tuple(name for name in Observation.__struct_fields__ if name != "case_key")
_Caseless = msgspec.defstruct("_Caseless", _WITHOUT_CASE, tag_field="schema", tag=1)


def _content(observation: Observation) -> msgspec.Struct:
    """The content that identifies it; an unknown case is omitted, to keep the keys of earlier releases."""
    if observation.case_key is not None:
        return observation
    return _Caseless(*(getattr(observation, name) for name in _WITHOUT_CASE))


def judgement_key(run: str, case: str, repeat: int, grader: str) -> str:
    """The idempotency key of a run's grade of a pair."""
    return fingerprint("judged", run, case, repeat, grader)


def prompt_key(prompt: str | Sequence[str]) -> str:
    """The case key of a case without one: a digest of the prompt or of all its turns."""
    turns = [prompt] if isinstance(prompt, str) else prompt
    return fingerprint("prompt", [clean_text(turn).text for turn in turns])


TASK_FAMILY = "task_family"
"""Key of a case's metadata with its task family."""


def task_family(sample: Sample, suite: str) -> str:
    """The task family of a case: its metadata's, else its first tag, else the name of its suite."""
    family = sample.metadata.get(TASK_FAMILY)
    return str(family) if family else next(iter(sample.tags), suite)


def calibration_state(state: object) -> CalibrationState:
    """A valid calibration state; `ConfigError` lists the known ones."""
    check = _Validator()
    known = check.state(state)
    if check.problems:
        raise ConfigError(check.problems)
    return known


def utc_text(moment: datetime) -> str:
    """A time in the format of observations."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


class _Validator:
    """Validates fields one by one and collects the problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def name(self, path: str, value: object) -> str:
        if isinstance(value, str) and value.strip():
            return clean_text(value).text
        self._report(path, f"expected a non-empty string, got {quote(value)}")
        return ""

    def text(self, path: str, value: object) -> str:
        if isinstance(value, str):
            return clean_text(value).text
        self._report(path, f"expected a string, got {quote(value)}")
        return ""

    def score(self, value: object) -> float | None:
        if value is None:
            return None
        try:
            return valid_score(value)
        except ValueError as error:
            self._report("score", f"{error}; use None for no verdict")
            return None

    def amount(self, path: str, value: object) -> float | None:
        if value is None:
            return None
        if isinstance(value, Real) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = -1.0
            if isfinite(number) and number >= 0.0:
                return number
        self._report(path, f"expected a finite number from 0, or None for unknown, got {quote(value)}")
        return None

    def state(self, value: object) -> CalibrationState:
        for state in CALIBRATION_STATES:
            if value == state:
                return state
        close = closest_match(value, CALIBRATION_STATES) if isinstance(value, str) else None
        hint = f"did you mean {close!r}?" if close else f"use one of {', '.join(CALIBRATION_STATES)}"
        self._report("calibration_state", f"unknown state {quote(value)}; {hint}")
        return "uncalibrated"

    def time(self, value: object) -> str:
        if value is None:
            return utc_text(datetime.now(UTC))
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            if isinstance(moment, datetime) and moment.tzinfo is not None:
                return utc_text(moment)
        except (ValueError, OverflowError):  # invalid, or outside the years 1 to 9999 in UTC
            pass
        remedy = "use ISO 8601 with a time zone, such as 2026-01-15T10:00:00Z"
        self._report("observed_at", f"invalid time {quote(value)}; {remedy}")
        return ""

    def _report(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))
