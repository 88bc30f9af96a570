"""One entry of the quality ledger: what a grader said of a candidate beside its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from numbers import Real
from typing import Literal, NamedTuple, get_args
from uuid import uuid4

import msgspec

from gradeline.errors import ConfigError, Problem, closest
from gradeline.model.fingerprint import fingerprint
from gradeline.model.grade import valid_score
from gradeline.model.text import clean_text, quote

CalibrationState = Literal["uncalibrated", "calibrated", "failed", "expired", "drifted"]
CALIBRATION_STATES: tuple[CalibrationState, ...] = get_args(CalibrationState)


class Observation(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """What a grader said once, when, and what the candidate's answer cost. `new_observation` makes a sound one."""

    id: int = 0
    """Given by the store, counting from 1 in the order of arrival; 0 before that."""
    task_family: str
    baseline_adapter: str
    candidate_adapter: str
    grader_id: str
    grader_fingerprint: str
    score: float | None
    """None: no verdict. It counts against the coverage and nowhere else."""
    baseline_digest: str
    candidate_digest: str
    cost: float | None = None
    """Unknown is None, never 0."""
    latency_ms: float | None = None
    calibration_state: CalibrationState = "uncalibrated"
    observed_at: str
    """UTC to the microsecond and always as long, so that the order of the texts is that of the times."""
    idempotency_key: str
    case_key: str | None = None
    """The case that was answered, whatever the time; None: unknown, and then it is a case of its own."""


class ObservationFilter(NamedTuple):
    """Which observations are meant: those that have all that is named here."""

    task_family: str | None = None
    candidate_adapter: str | None = None
    baseline_adapter: str | None = None
    grader_id: str | None = None
    grader_fingerprint: str | None = None
    calibration_state: str | None = None

    def chosen(self) -> dict[str, str]:
        """What is asked for, by the field of an `Observation`."""
        return {name: value for name, value in zip(self._fields, self, strict=True) if value is not None}

    def admits(self, observation: Observation) -> bool:
        """Whether an observation is among those meant."""
        return all(getattr(observation, name) == value for name, value in self.chosen().items())


EVERYTHING = ObservationFilter()


class ObservationSums(NamedTuple):
    """What one judge observed of one adapter against one baseline in one task family, in sums.

    A case counts once, with the mean of its scores, however often it was observed.
    """

    task_family: str
    candidate_adapter: str
    baseline_adapter: str
    grader_id: str
    total: int
    """Observations."""
    scored: int
    """Observations that have a score."""
    cases: int
    """Cases that have a score."""
    score_sum: float
    """Of the cases' means."""
    score_squares: float
    latest: str
    """When the newest was observed."""


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
    """An observation as it is stored, or `ConfigError` with everything that is wrong with it.

    ``observed_at`` is now where it is None. Without an idempotency key, an observation whose time is given is known by
    all of its content; one whose time is not given is one of its own. Without a case key it is a case of its own.
    """
    check = _Check()
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
        raise ConfigError(check.problems, "the observation cannot be kept")
    if idempotency_key is not None:
        return observation
    key = uuid4().hex if observed_at is None else fingerprint("observation", _content(observation))
    return msgspec.structs.replace(observation, idempotency_key=key)


_WITHOUT_CASE = tuple(name for name in Observation.__struct_fields__ if name != "case_key")
_Caseless = msgspec.defstruct("_Caseless", _WITHOUT_CASE, tag_field="schema", tag=1)


def _content(observation: Observation) -> msgspec.Struct:
    """What tells it from others; an unknown case does not, so that keys of earlier releases stay the same."""
    if observation.case_key is not None:
        return observation
    return _Caseless(*(getattr(observation, name) for name in _WITHOUT_CASE))


def judged_key(run: str, case: str, repeat: int, grader: str) -> str:
    """The idempotency key of what a grader of a run said of a pair."""
    return fingerprint("judged", run, case, repeat, grader)


def prompt_key(prompt: str | Sequence[str]) -> str:
    """The case key of what was asked, where the case has no other: a digest of the prompt, or of all its turns."""
    turns = [prompt] if isinstance(prompt, str) else prompt
    return fingerprint("prompt", [clean_text(turn).text for turn in turns])


def calibration_state(state: object) -> CalibrationState:
    """The state that is meant, or `ConfigError` with those there are."""
    check = _Check()
    known = check.state(state)
    if check.problems:
        raise ConfigError(check.problems)
    return known


def utc_text(moment: datetime) -> str:
    """A time as observations hold it."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


class _Check:
    """Takes values one by one and gathers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def name(self, path: str, value: object) -> str:
        if isinstance(value, str) and value.strip():
            return clean_text(value).text
        self._wrong(path, f"expected a name that is not empty, got {quote(value)}")
        return ""

    def text(self, path: str, value: object) -> str:
        if isinstance(value, str):
            return clean_text(value).text
        self._wrong(path, f"expected a text, got {quote(value)}")
        return ""

    def score(self, value: object) -> float | None:
        if value is None:
            return None
        try:
            return valid_score(value)
        except ValueError as error:
            self._wrong("score", f"{error}; None says that there is no verdict")
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
        self._wrong(path, f"expected a finite number that is not negative, or None for unknown, got {quote(value)}")
        return None

    def state(self, value: object) -> CalibrationState:
        for state in CALIBRATION_STATES:
            if value == state:
                return state
        close = closest(value, CALIBRATION_STATES) if isinstance(value, str) else None
        hint = f"did you mean {close!r}?" if close else f"there are {', '.join(CALIBRATION_STATES)}"
        self._wrong("calibration_state", f"no state {quote(value)}; {hint}")
        return "uncalibrated"

    def time(self, value: object) -> str:
        if value is None:
            return utc_text(datetime.now(UTC))
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            if isinstance(moment, datetime) and moment.tzinfo is not None:
                return utc_text(moment)
        except (ValueError, OverflowError):  # no time, or one whose UTC lies outside the years 1 to 9999
            pass
        remedy = "write ISO 8601 with a zone, such as 2026-01-15T10:00:00Z"
        self._wrong("observed_at", f"{quote(value)} is no time with a zone; {remedy}")
        return ""

    def _wrong(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))
