"""Whether a run's judges are calibrated, by the store's records about them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

import msgspec

from gradeline.engine.definition import Rules, command
from gradeline.errors import ConfigError
from gradeline.model import Grade, Run, RunGrader, Storage
from gradeline.model.anchors import ANCHOR_CHECK
from gradeline.model.calibration import CALIBRATION, Calibration
from gradeline.model.observation import CalibrationState
from gradeline.store.database import SharedStorage
from gradeline.store.labels import has_label_tables, labels_of_run, last_label_number
from gradeline.store.sql_storage import response_chain
from gradeline.store.trust_records import TrustRecord, last_record_number, latest_record, records
from gradeline.verdict import baselines_of

_FIRST_RECORDS = 5
MAX_AGE = timedelta(days=90)
"""A calibration expires after this time."""


class JudgeTrust(NamedTuple):
    """Whether a judge is calibrated, why, and the record that says so."""

    state: CalibrationState
    reason: str
    calibration: Calibration | None = None


def judge_states(storage: Storage, run: Run, now: datetime | None = None) -> Mapping[str, JudgeTrust]:
    """The state of each grader of the run that has a judge; some of its records are read."""
    judged = {key: grader for key, grader in run.graders.items() if grader.judges}
    if not judged:
        return {}
    if not isinstance(storage, SharedStorage):  # a store of another kind keeps no records
        return {key: JudgeTrust("uncalibrated", _never(storage, run, key)) for key in judged}
    now = datetime.now(UTC) if now is None else now
    return {key: _state(storage, run, key, grader, now) for key, grader in judged.items()}


def trust_version(storage: Storage, run: Run, now: datetime | None = None) -> tuple[int, int, str]:
    """Changes when the verdict of a run with judges may: with labels, with records about judges, and with the day."""
    if not isinstance(storage, SharedStorage) or not any(grader.judges for grader in run.graders.values()):
        return 0, 0, ""
    read = storage.database.read
    labels = 0
    if has_label_tables(read):
        runs = [one for compared in (run.id, *_baselines(run)) for one in response_chain(read, compared)]
        labels = last_label_number(read, runs)
    return last_record_number(storage), labels, f"{datetime.now(UTC) if now is None else now:%Y-%m-%d}"


def _baselines(run: Run) -> tuple[str, ...]:
    """The runs that the run's gate compares with: their labels decide too."""
    try:
        gate = Rules.of(run).read(run)
    except ConfigError:
        return ()
    return () if gate is None else baselines_of(gate)


def calibrations_of(storage: Storage, suite: str, grader: str) -> list[Calibration]:
    """All calibrations of a grader of a suite, oldest first; those of versions to come are left out."""
    return [filed.record for filed in _filed(storage, suite, grader)]


def newest_calibration(storage: Storage, suite: str, grader: str, identity: str) -> tuple[int, Calibration] | None:
    """The calibration that counts for a grader whose judge has this fingerprint, with its number in the store."""
    return _best([one for one in _filed(storage, suite, grader) if one.record.judge_fingerprint == identity])


class _FiledCalibration(NamedTuple):
    number: int
    record: Calibration


def _filed(storage: Storage, suite: str, grader: str) -> list[_FiledCalibration]:
    found: list[_FiledCalibration] = []
    after = 0
    while page := records(storage, CALIBRATION, suite=suite, grader=grader, after=after):
        after = page[-1].n
        read = ((row.n, read_calibration(row)) for row in page)
        found += [_FiledCalibration(number, record) for number, record in read if record is not None]
    return found


def read_calibration(row: TrustRecord) -> Calibration | None:
    """The calibration in a record of the store; None for one of a later version that this one cannot read."""
    try:
        return msgspec.json.decode(row.body, type=Calibration)
    except msgspec.MsgspecError:
        return None


def _state(storage: Storage, run: Run, key: str, grader: RunGrader, now: datetime) -> JudgeTrust:
    identity = grader.calibrated_as
    filed = _filed(storage, run.suite, key)
    best = _best([one for one in filed if one.record.judge_fingerprint == identity])
    own = None if best is None else best.record
    drifted = _drift(storage, run.suite, key, identity, None if own is None else own.at)
    if drifted is not None:
        return JudgeTrust("drifted", drifted, own)
    if own is None:
        if not filed:
            return JudgeTrust("uncalibrated", _never(storage, run, key))
        last = filed[-1].record
        return JudgeTrust("expired", f"{change_since(last, grader)} since {last.at[:10]}", last)
    served = _new_models(storage, run, key, own)
    if served:
        before = ", ".join(own.served)
        return JudgeTrust(
            "expired", f"the provider answered as {', '.join(served)}, and as {before} when it was calibrated", own
        )
    if own.panel is not None and grader.weights == "unlearned":
        return JudgeTrust("uncalibrated", f"graded before its weights were learned: gradeline regrade {run.id}", own)
    return _by_age(own, now)


def served_models(grade: Grade) -> set[str]:
    """The models that gave a grade, as the provider named them."""
    members = grade.metadata.get("judges")
    answers = [grade.metadata, *(members if isinstance(members, list) else ())]
    names = (one.get("model") for one in answers if isinstance(one, Mapping))
    return {name for name in names if isinstance(name, str) and name}


def _new_models(storage: Storage, run: Run, key: str, record: Calibration) -> list[str]:
    """The models that answered in the run's first records, but not when the judge was calibrated."""
    if not record.served:
        return []
    first = islice(storage.records(run.id), _FIRST_RECORDS)
    found = {model for one in first if key in one.grades for model in served_models(one.grades[key])}
    return sorted(found.difference(record.served))


def state_of_record(storage: Storage, record: Calibration, now: datetime | None = None) -> JudgeTrust:
    """The state of the judge that a stored record is about, as long as the judge does not change."""
    drifted = _drift(storage, record.suite, record.grader, record.judge_fingerprint, record.at)
    if drifted is not None:
        return JudgeTrust("drifted", drifted, record)
    return _by_age(record, datetime.now(UTC) if now is None else now)


def _by_age(record: Calibration, now: datetime) -> JudgeTrust:
    if now - _time(record.at) > MAX_AGE:
        return JudgeTrust("expired", f"calibrated on {record.at[:10]}, more than {MAX_AGE.days} days ago", record)
    if record.state == "calibrated":
        return JudgeTrust("calibrated", f"{record.headline}, {record.at[:10]}", record)
    return JudgeTrust(record.state, "; ".join(record.reasons) or record.headline, record)


def _best(filed: Sequence[_FiledCalibration]) -> _FiledCalibration | None:
    """The latest of those with the strongest evidence: labels of people before any method, enough before too few."""
    by_people = [one for one in filed if one.record.against is None] or filed
    enough = [one for one in by_people if one.record.conclusive] or by_people
    return enough[-1] if enough else None


def _never(storage: Storage, run: Run, key: str) -> str:
    """What to do about a judge that was never calibrated: label, unless there are labels."""
    option = ("--grader", shlex.quote(key)) if len(run.graders) > 1 else ()
    label = "" if _has_labels(storage, run, key) else f"{command('label', run.id, None, *option)} --sample 100, then "
    return f"never compared with labels: {label}{command('calibrate', run.id, None, *option)}"


def _has_labels(storage: Storage, run: Run, question: str) -> bool:
    if not isinstance(storage, SharedStorage) or not has_label_tables(storage.database.read):
        return False
    read = storage.database.read
    return any(labels_of_run(read, one, question) for one in response_chain(read, run.id))


def change_since(record: Calibration, grader: RunGrader) -> str:
    """What of a judge changed since its calibration, as a clause: ``the prompt changed``."""
    changed = []
    if record.judge != grader.judges:
        changed.append(f"the model changed from {', '.join(record.judge)} to {', '.join(grader.judges)}")
    if record.rubric_version != grader.rubric_version:
        before, after = (name or "the suite's own" for name in (record.rubric_version, grader.rubric_version))
        changed.append(f"the rubric changed from {before} to {after}")
    elif record.prompt_hash and grader.prompt_hash and record.prompt_hash != grader.prompt_hash:
        changed.append("the prompt changed")
    return " and ".join(changed) or "the judge's options changed"


class _AnchorAnswer(msgspec.Struct, frozen=True):
    answer: str = "none"
    onset: str | None = None


def _drift(storage: Storage, suite: str, key: str, identity: str, calibrated_at: str | None) -> str | None:
    """Why the judge counts as drifted; None where it does not. A calibration that is newer settles it."""
    row = latest_record(storage, ANCHOR_CHECK, suite=suite, grader=key, judge=identity)
    if row is None or (calibrated_at is not None and _time(calibrated_at) > _time(row.at)):
        return None
    try:
        found = msgspec.json.decode(row.body, type=_AnchorAnswer)
    except msgspec.MsgspecError:
        return None
    if found.answer != "judge":
        return None
    return f"its scores of frozen answers changed by {(found.onset or row.at)[:10]}; calibrate it again"


def _time(at: str) -> datetime:
    found = datetime.fromisoformat(at)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
