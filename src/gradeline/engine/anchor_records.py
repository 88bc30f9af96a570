"""Anchors and their checks in the store, and what the check of a run showed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gradeline.model import Run, Storage
from gradeline.model.anchors import ANCHOR_CHECK, ANCHORS, AnchorCheck, AnchorSet
from gradeline.store.database import SharedStorage
from gradeline.store.trust_records import TrustRecord, latest_record, put_record, records


class AnchorFinding(msgspec.Struct, frozen=True):
    """What a run's own check of anchors showed, with all checks before it."""

    answer: str
    """``none``, ``system`` or ``judge``: what changed since the anchors were frozen."""
    sentence: str
    judged: int
    """Anchors judged again by then."""
    changed: int
    """Of these, the ones with another score."""
    advice: str | None = None
    """What to do next."""


def anchors_in_use(storage: Storage, suite: str, grader: str) -> AnchorSet | None:
    """The anchors of a grader of a suite; None if it has none."""
    if not isinstance(storage, SharedStorage):
        return None
    row = latest_record(storage, ANCHORS, suite=suite, grader=grader)
    found = None if row is None else read_anchor_set(row)
    return found if found is not None and found.anchors else None


def read_anchor_set(row: TrustRecord) -> AnchorSet | None:
    """The set in a record of the store; None for one of a later version that this one cannot read."""
    try:
        return msgspec.json.decode(row.body, type=AnchorSet)
    except msgspec.MsgspecError:
        return None


def checks_of(storage: Storage, anchors: AnchorSet) -> list[AnchorCheck]:
    """All checks of a set, oldest first."""
    return [check for check in _checks(storage, anchors.suite, anchors.grader) if check.set == anchors.id]


def _checks(storage: Storage, suite: str, grader: str) -> Iterator[AnchorCheck]:
    """All checks of a grader of a suite; those of a later version are left out."""
    after = 0
    while page := records(storage, ANCHOR_CHECK, suite=suite, grader=grader, after=after):
        after = page[-1].n
        for row in page:
            try:
                yield msgspec.json.decode(row.body, type=AnchorCheck)
            except msgspec.MsgspecError:
                continue


def save_check(storage: Storage, anchors: AnchorSet, check: AnchorCheck) -> None:
    """Store a check under the judge that the anchors were frozen with."""
    body = msgspec.json.encode(check).decode()
    record = TrustRecord(ANCHOR_CHECK, anchors.suite, anchors.grader, anchors.judge_fingerprint, check.at, body)
    put_record(storage, record)


def anchor_findings(storage: Storage, run: Run) -> dict[str, AnchorFinding]:
    """By grader of a run, what its check of anchors showed; graders without one are left out."""
    if not isinstance(storage, SharedStorage):
        return {}
    found = {}
    for key in (key for key, grader in run.graders.items() if grader.judges):
        check = next((one for one in _checks(storage, run.suite, key) if one.run == run.id), None)
        if check is not None:
            from gradeline.engine.anchor_text import advice, headline  # loads what decides on drift

            found[key] = AnchorFinding(check.answer, headline(check), check.judged, check.changed, advice(check))
    return found
