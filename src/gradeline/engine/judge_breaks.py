"""When judges drifted: scores before and after are not comparable, so series of them break there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from gradeline.model import Run, Storage
from gradeline.model.anchors import ANCHOR_CHECK
from gradeline.model.observation import utc_text
from gradeline.store.database import SharedStorage
from gradeline.store.trust_records import records


class JudgeBreak(NamedTuple):
    """A time from which a judge's scores are others."""

    judge_fingerprint: str
    at: str
    """In the format of `utc_text`."""
    found: str
    """When anchors showed it."""
    run: str | None
    """The first run with the new scores; None: a check showed it."""


class _Answer(msgspec.Struct, frozen=True):
    """What of a check matters here."""

    set: str
    at: str
    run: str | None = None
    answer: str = "none"
    onset: str | None = None


def judge_breaks(storage: Storage, suite: str, grader: str) -> list[JudgeBreak]:
    """The breaks of a grader of a suite, oldest first: one for each set of anchors that its judge left behind.

    A break is at the start of the first run that contributed to the alarm.
    """
    if not isinstance(storage, SharedStorage):
        return []
    found: dict[str, JudgeBreak] = {}
    looks: dict[tuple[str, str], str | None] = {}
    after = 0
    while page := records(storage, ANCHOR_CHECK, suite=suite, grader=grader, after=after):
        after = page[-1].n
        for row in page:
            try:
                one = msgspec.json.decode(row.body, type=_Answer)
            except msgspec.MsgspecError:  # of a later version
                continue
            looks.setdefault((one.set, one.at), one.run)
            if one.answer == "judge" and one.set not in found:
                onset = one.onset or one.at
                run = looks.get((one.set, onset))
                began = None if run is None else storage.get_run(run)
                started = onset if began is None or began.started_at is None else began.started_at
                found[one.set] = JudgeBreak(row.judge, _utc(started), one.at, run)
    return sorted(found.values(), key=lambda one: one.at)


def breaks_before(breaks: Sequence[JudgeBreak], run: Run, grader: str) -> list[JudgeBreak]:
    """Those of the run's own judge before its start, and that which it is the first run of."""
    started = _utc(run.started_at) if run.started_at is not None else ""
    judge = run.graders[grader].calibrated_as
    return [one for one in breaks if one.judge_fingerprint == judge and (one.at < started or one.run == run.id)]


def _utc(at: str) -> str:
    return utc_text(datetime.fromisoformat(at))
