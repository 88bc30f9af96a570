"""Shared by the stores: rows, counts, run references, and their errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from secrets import choice as chosen
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import msgspec

from gradeline.errors import ConfigError, Outcome, Problem, StoreError
from gradeline.model.grade import Grade
from gradeline.model.observation import Observation, ObservationSums
from gradeline.model.record import Record, ResponseKey, digest_of, from_json, sample_digest, to_json
from gradeline.model.response import Response
from gradeline.model.run import Counts, GraderCounts, Run
from gradeline.model.sample import Sample

SCORE_UNIT = 10**12
"""Scores are summed in this integer unit: a sum of floats would depend on the order of the rows, and a stored total
could differ from its recomputation."""

_STATUSES = ("success", "error", "timeout")
_LATEST = re.compile(r"latest(?:~([0-9]{1,9}))?")
_SHOWN = 5
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Without letters that look alike."""
_ID_LETTERS = 12
"""60 bits: in a million runs the probability of a collision is one in two million, and then saving the run fails."""


class ResponseRow(NamedTuple):
    """A response as a row."""

    run: str
    case: str
    repeat: int
    status: str
    response: str
    latency_ms: float | None
    cost: float | None
    cache_key: str | None
    digest: str
    """Of the case at the time of the call; it may have been edited since."""
    sample: str
    position: int | None
    cluster: str | None


class GradeRow(NamedTuple):
    """A grade as a row."""

    run: str
    case: str
    repeat: int
    grader: str
    fingerprint: str
    outcome: str
    units: int
    squares: int
    grade: str
    submission: str | None
    score: float | None
    reported_error: bool
    cost: float | None


RecordRow: TypeAlias = ResponseRow | GradeRow


class Tally(NamedTuple):
    """Part of a grader's counts: the number of grades with one outcome, and their scores in `SCORE_UNIT`."""

    grader: str
    outcome: str
    number: int
    units: int
    squares: int


def new_id() -> str:
    """A unique ID of a case."""
    return str(uuid4())


PROBE_RUN = "probe-"
"""Beginning of the IDs of runs that probe a judge; ``latest`` never means such a run."""


def new_run_id() -> str:
    """A unique ID of a run; short, because people type it and every row of a run contains it."""
    return "".join(chosen(_LETTERS) for _ in range(_ID_LETTERS))


def validate_run(run: Run) -> Run:
    """The run with an ID, as it will be read back; `DataError` for invalid fields such as an unknown status."""
    return from_json(Run, to_json(run if run.id else msgspec.structs.replace(run, id=new_run_id())))


def with_changes(run: Run, changes: dict[str, Any]) -> Run:
    """The run with some fields replaced."""
    unknown = sorted(set(changes) - set(Run.__struct_fields__))
    if unknown:
        raise ConfigError(Problem("", f"a run has no field to change named {', '.join(map(repr, unknown))}"))
    return validate_run(msgspec.structs.replace(run, **changes))


def with_owner(run: Run, owner: str, previous: str | None) -> Run | None:
    """The run with the new owner; None if it no longer belongs to the previous owner."""
    if run.owner != previous:
        return None
    return validate_run(msgspec.structs.replace(run, owner=owner, status="running", error_message=None))


def response_row(
    key: ResponseKey, response: Response, sample: Sample, position: int | None, cache_key: str | None = None
) -> ResponseRow:
    run, case, repeat = key
    encoded = to_json(sample)
    row = (
        run,
        case,
        repeat,
        response.status,
        to_json(response),
        response.latency_ms,
        None if response.usage is None else response.usage.cost,
        cache_key,
        sample_digest(sample) if sample.cluster else digest_of(encoded),
        encoded,
        position,
        sample.cluster or None,
    )
    return tuple.__new__(ResponseRow, row)  # takes a third of the time of keyword arguments


def grade_row(key: tuple[str, str, int, str], grade: Grade, submission: str | None) -> GradeRow:
    """``key`` is a `GradeKey` or an equal tuple."""
    run, case, repeat, grader = key
    score = grade.score
    units, squares = score_units(score)
    row = (
        run,
        case,
        repeat,
        grader,
        grade.fingerprint,
        grade.outcome._value_,
        units,
        squares,
        to_json(grade),
        submission,
        score,
        grade.self_reported_error,
        None if grade.usage is None else grade.usage.cost,
    )
    return tuple.__new__(GradeRow, row)


def record_of(key: ResponseKey, sample: str, response: str, grades: Sequence[tuple[str, str, str | None]]) -> Record:
    """The record of stored rows; each grade is a tuple (grader, grade, submission)."""
    return Record(
        *key,
        from_json(Sample, sample),
        from_json(Response, response),
        {grader: submission for grader, _, submission in grades if submission is not None},
        {grader: from_json(Grade, grade) for grader, grade, _ in grades},
    )


def score_units(score: float | None) -> tuple[int, int]:
    """A score and its square in `SCORE_UNIT`; 0 without a score."""
    if not score:
        return 0, 0
    if score == 1.0:
        return SCORE_UNIT, SCORE_UNIT
    return round(score * SCORE_UNIT), round(score * score * SCORE_UNIT)


def counts_of(responses: Iterable[tuple[str, int]], grades: Iterable[Tally]) -> Counts:
    """Counts by status, and tallies by grader and outcome, summed up."""
    by_status = dict.fromkeys(_STATUSES, 0)
    for status, count in responses:
        by_status[status] += count
    outcomes: dict[str, dict[str, int]] = {}
    moments: dict[str, tuple[int, int]] = {}
    for tally in grades:
        by_outcome = outcomes.setdefault(tally.grader, dict.fromkeys(map(str, Outcome), 0))
        by_outcome[tally.outcome] += tally.number
        units, squares = moments.get(tally.grader, (0, 0))
        moments[tally.grader] = (units + tally.units, squares + tally.squares)
    return Counts(
        by_status,
        {
            grader: GraderCounts(outcomes[grader], moments[grader][0] / SCORE_UNIT, moments[grader][1] / SCORE_UNIT)
            for grader in sorted(outcomes)
        },
    )


def steps_back(reference: str) -> int | None:
    """The N of ``latest~N`` (0 for ``latest``); None for any other reference."""
    found = _LATEST.fullmatch(reference)
    return int(found[1] or 0) if found else None


def choose_run(reference: str, matching: Sequence[Run]) -> Run | None:
    """The run with that ID, or else that name, or else an ID with that prefix; None if there is none."""
    by_id = [run for run in matching if run.id == reference]
    by_name = [run for run in matching if run.name == reference]
    by_prefix = [run for run in matching if run.id.startswith(reference)]
    found = by_id or by_name or by_prefix
    if len(found) > 1:
        what = "is the name of" if by_name else "is a prefix of the IDs of"
        raise ConfigError(Problem("", f"{reference!r} {what} several runs; use the ID of one: {_listed(found)}"))
    return found[0] if found else None


def unknown_run(reference: str, recent: Sequence[Run]) -> ConfigError:
    """The error for a reference that matches no run."""
    hint = (
        f"the newest are {_listed(recent)}"
        if recent
        else "the store has no runs yet; start one with: gradeline run SUITE"
    )
    return ConfigError(Problem("", f"no run {reference!r}; {hint}"))


def unsaved_run(run: str) -> StoreError:
    return StoreError(f"no run {run!r} in the store: call save_run before you store its rows")


def unknown_case(run: str, case: str) -> ConfigError:
    return ConfigError(Problem("after", f"run {run!r} has no case {case!r} to continue after"))


def unknown_parent(run: Run) -> ConfigError:
    return ConfigError(Problem("parent", f"no run {run.parent!r} in the store for {run.id!r} to regrade"))


def parent_in_use(run: str, children: Sequence[str]) -> ConfigError:
    names = ", ".join(children[:_SHOWN])
    return ConfigError(Problem("", f"run {run!r} holds the responses of {names}, which regrade it; delete those first"))


def run_in_use(run: str, baselines: Sequence[tuple[str, str]]) -> ConfigError:
    """The error for deleting a run that is these baselines, given as (name, suite)."""
    names = ", ".join(f"{name!r} of the suite {suite!r}" for name, suite in baselines[:_SHOWN])
    remedy = f"set another run, or clear it first: gradeline baseline clear {baselines[0][0]}"
    return ConfigError(Problem("", f"run {run!r} is the baseline {names}; {remedy}"))


def _listed(runs: Sequence[Run]) -> str:
    shown = [f"{run.id} ({run.name}{f', {run.started_at}' if run.started_at else ''})" for run in runs[:_SHOWN]]
    return ", ".join(shown) + (", …" if len(runs) > _SHOWN else "")


OBSERVATION_FIELDS = tuple(name for name in Observation.__struct_fields__ if name != "id")
OBSERVATION_COLUMNS = ", ".join((*OBSERVATION_FIELDS, "units"))


def observation_row(observation: Observation) -> tuple[object, ...]:
    """The values of `OBSERVATION_COLUMNS`."""
    return *(getattr(observation, name) for name in OBSERVATION_FIELDS), score_units(observation.score)[0]


def observation_of_row(row: Sequence[Any]) -> Observation:
    return Observation(id=row[0], **dict(zip(OBSERVATION_FIELDS, row[1:], strict=True)))


def sums_of_row(row: Sequence[Any]) -> ObservationSums:
    family, candidate, baseline, grader, total, scored, cases, units, squares, latest = row
    return ObservationSums(
        family,
        candidate,
        baseline,
        grader,
        int(total),
        int(scored),
        int(cases),
        int(units) / SCORE_UNIT,
        int(squares) / SCORE_UNIT,
        latest,
    )
