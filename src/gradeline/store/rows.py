"""What the stores have in common: rows, counts, and how a person names a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from secrets import choice as chosen
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import msgspec

from gradeline.errors import ConfigError, Outcome, Problem, StoreError
from gradeline.model.grade import Grade
from gradeline.model.record import Record, ResponseKey, digest_of, from_json, sample_digest, to_json
from gradeline.model.response import Response
from gradeline.model.run import Counts, GraderCounts, Run
from gradeline.model.sample import Sample

SCORE_UNIT = 10**12
"""Scores are summed in these whole units: a sum of floats would depend on the order of the rows, so
that a roll-up could not equal its recomputation."""

_STATUSES = ("success", "error", "timeout")
_LATEST = re.compile(r"latest(?:~([0-9]{1,9}))?")
_SHOWN = 5
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
"""None that could be taken for another."""
_ID_LETTERS = 12
"""Sixty bits: among a million runs the odds that two are the same are one in two million, and then one is refused."""


class ResponseRow(NamedTuple):
    """A response as it is written."""

    run: str
    case: str
    repeat: int
    status: str
    response: str
    latency_ms: float | None
    cost: float | None
    cache_key: str | None
    digest: str
    """Of the case as it was asked: it may be edited since."""
    sample: str
    position: int | None
    cluster: str | None


class GradeRow(NamedTuple):
    """A grade as it is written."""

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
    """A part of the counts of a grader: one outcome, its number, and its scores in `SCORE_UNIT`."""

    grader: str
    outcome: str
    number: int
    units: int
    squares: int


def new_id() -> str:
    """An id that no other case has."""
    return str(uuid4())


def new_run_id() -> str:
    """An id that no other run has, as short as that can be: people type it, and every row of a run holds it."""
    return "".join(chosen(_LETTERS) for _ in range(_ID_LETTERS))


def validate_run(run: Run) -> Run:
    """The run with an id, as it will come back, or `DataError`: a store takes no status it does not know."""
    return from_json(Run, to_json(run if run.id else msgspec.structs.replace(run, id=new_run_id())))


def with_changes(run: Run, changes: dict[str, Any]) -> Run:
    """The run with some fields replaced."""
    unknown = sorted(set(changes) - set(Run.__struct_fields__))
    if unknown:
        raise ConfigError(Problem("", f"a run has no field to change named {', '.join(map(repr, unknown))}"))
    return validate_run(msgspec.structs.replace(run, **changes))


def with_owner(run: Run, owner: str, previous: str | None) -> Run | None:
    """The run as the new owner has it; None where it is not the previous owner's any more."""
    if run.owner != previous:
        return None
    return validate_run(msgspec.structs.replace(run, owner=owner, status="running", error_message=None))


def response_row(
    key: ResponseKey, response: Response, sample: Sample, position: int | None, cache_key: str | None = None
) -> ResponseRow:
    run, case, repeat = key
    asked = to_json(sample)
    row = (
        run,
        case,
        repeat,
        response.status,
        to_json(response),
        response.latency_ms,
        None if response.usage is None else response.usage.cost,
        cache_key,
        sample_digest(sample) if sample.cluster else digest_of(asked),
        asked,
        position,
        sample.cluster or None,
    )
    return tuple.__new__(ResponseRow, row)  # a third of what naming each column takes


def grade_row(key: tuple[str, str, int, str], grade: Grade, submission: str | None) -> GradeRow:
    """``key`` is a `GradeKey`, or what it is made of."""
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
    """The join of what is stored; each grade comes as (grader, grade, submission)."""
    return Record(
        *key,
        from_json(Sample, sample),
        from_json(Response, response),
        {grader: submission for grader, _, submission in grades if submission is not None},
        {grader: from_json(Grade, grade) for grader, grade, _ in grades},
    )


def score_units(score: float | None) -> tuple[int, int]:
    """A score and its square in `SCORE_UNIT`; no score adds nothing."""
    if not score:
        return 0, 0
    if score == 1.0:
        return SCORE_UNIT, SCORE_UNIT
    return round(score * SCORE_UNIT), round(score * score * SCORE_UNIT)


def counts_of(responses: Iterable[tuple[str, int]], grades: Iterable[Tally]) -> Counts:
    """Counts from numbers by status and tallies by grader and outcome, in any grouping."""
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


def steps_back(wanted: str) -> int | None:
    """How many runs before the newest ``latest`` or ``latest~N`` means; None for any other word."""
    found = _LATEST.fullmatch(wanted)
    return int(found[1] or 0) if found else None


def choose_run(wanted: str, matching: Sequence[Run]) -> Run | None:
    """The run meant among those that match: its id, else its name, else the start of its id. None if none matches."""
    by_id = [run for run in matching if run.id == wanted]
    by_name = [run for run in matching if run.name == wanted]
    by_prefix = [run for run in matching if run.id.startswith(wanted)]
    found = by_id or by_name or by_prefix
    if len(found) > 1:
        what = "is the name of" if by_name else "begins the id of"
        raise ConfigError(Problem("", f"{wanted!r} {what} several runs; name one by its id: {_listed(found)}"))
    return found[0] if found else None


def unknown_run(wanted: str, recent: Sequence[Run]) -> ConfigError:
    """No run is meant by ``wanted``."""
    hint = (
        f"the newest are {_listed(recent)}"
        if recent
        else "the store holds no runs yet; start one with: gradeline run SUITE"
    )
    return ConfigError(Problem("", f"no run {wanted!r}; {hint}"))


def unsaved_run(run: str) -> StoreError:
    return StoreError(f"no run {run!r} in the store: save_run comes before its rows")


def unknown_case(run: str, case: str) -> ConfigError:
    return ConfigError(Problem("after", f"run {run!r} has no case {case!r} to go on from"))


def unknown_parent(run: Run) -> ConfigError:
    return ConfigError(Problem("parent", f"no run {run.parent!r} in the store for {run.id!r} to regrade"))


def parent_in_use(run: str, children: Sequence[str]) -> ConfigError:
    names = ", ".join(children[:_SHOWN])
    return ConfigError(Problem("", f"run {run!r} holds the responses of {names}, which regrade it; delete those first"))


def _listed(runs: Sequence[Run]) -> str:
    shown = [f"{run.id} ({run.name}{f', {run.started_at}' if run.started_at else ''})" for run in runs[:_SHOWN]]
    return ", ".join(shown) + (", …" if len(runs) > _SHOWN else "")
