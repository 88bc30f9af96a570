"""A run that the service works on: every row is written under its claim, together with the events that tell of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Any

import msgspec

from gradeline.engine.comparison import compare
from gradeline.engine.conclude import conclude
from gradeline.engine.definition import Rules
from gradeline.engine.execute import Stop
from gradeline.engine.ownership import WriterFactory
from gradeline.errors import ConfigError, Outcome, StoreError
from gradeline.model import ResponseKey, Run, Storage, canonical_json
from gradeline.model.protocols import StoreWriter
from gradeline.rest_types import result_id
from gradeline.service.events import EventLog, Happened
from gradeline.service.queue import Claim, LostClaimError, Queue
from gradeline.service.run_rows import standing
from gradeline.store.database import SharedStorage, Transaction
from gradeline.store.rows import GradeRow, RecordRow, ResponseRow

CANCELLED = "cancelled by request"

_MOST_REMEMBERED = 10_000


class ClaimedRun:
    """Keeps a run for the engine as long as its claim holds; see `gradeline.engine.ownership.RunLock`."""

    def __init__(
        self,
        storage: SharedStorage,
        queue: Queue,
        log: EventLog,
        claim: Claim,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``told`` is called with the run's id when there is something new in its log."""
        self.claim = claim
        self.since = monotonic()
        self.stop = Stop()
        self.task: asyncio.Task[None] | None = None
        """Works on the run. It, and not a future that stands for it, is cancelled: the run is held until it ends."""
        self.lost = False
        """Somebody else works on it now."""
        self.released = False
        """It is to be given back instead of ended."""
        self.cancelled = False
        self._storage = storage
        self._queue = queue
        self._log = log
        self._told = told
        self.baseline: str | None = None
        """The run that the finished one is to be compared with."""
        self._failed: dict[tuple[str, int], str] = {}
        self.over = False
        """It has ended, or just ends."""

    def break_off(self) -> None:
        """End the work without waiting for what is in flight; in the event loop alone."""
        if self.task is not None:
            self.task.cancel()

    def begin(self) -> Run:
        run = self._storage.get_run(self.claim.run)
        if run is None:
            raise LostClaimError(self.claim.run)
        return run

    def writer(self) -> StoreWriter:
        return self._storage.writer(self._beside)

    def writer_elsewhere(self) -> WriterFactory:
        return partial(_claimed_writer, claim=self.claim, lease_s=self._queue.lease_s)

    def end(self, cause: BaseException | None = None, **changes: Any) -> Run:
        """Tell how the run ended, or give it back: where it is only broken off here, it goes on elsewhere or later."""
        if self.over:
            return self.begin()
        if self.lost:
            raise LostClaimError(self.claim.run)
        if isinstance(cause, StoreError):
            raise cause  # it is no fault of the run, which is begun again
        if changes.get("status") != "completed" and self.released:
            return self._settled(lambda: self._queue.give_back(self.claim))
        if self.cancelled and changes.get("status") != "completed":
            changes = {"status": "cancelled", "error_message": CANCELLED}
        outcome = self._outcome(changes) if changes.get("status") == "completed" else None
        return self._settled(lambda: self._queue.finish(self.claim, changes, outcome))

    def _settled(self, settle: Callable[[], Run]) -> Run:
        self.over = True
        try:
            run = settle()
        except StoreError as error:
            self.over = False
            self.lost = self.lost or isinstance(error, LostClaimError)
            raise
        self._told(run.id)
        return run

    def _beside(self, transaction: Transaction, rows: Sequence[RecordRow]) -> None:
        try:
            self._queue.require(transaction, self.claim)
        except LostClaimError:
            self.lost = True
            raise
        happened = self._results(rows)
        now = standing(transaction.run, self.claim.run)
        if now is not None:
            happened.append(Happened("progress", now.progress))
        self._log.append(transaction, self.claim.run, happened)
        self._told(self.claim.run)

    def _results(self, rows: Sequence[RecordRow]) -> list[Happened]:
        """An event for each case that was graded; all grades of one case are in one batch."""
        graded: dict[tuple[str, int], list[GradeRow]] = {}
        for row in rows:
            if isinstance(row, ResponseRow):
                if row.status != "success":
                    self._failed[row.case, row.repeat] = row.status
            else:
                graded.setdefault((row.case, row.repeat), []).append(row)
        return [self._result(case, repeat, grades) for (case, repeat), grades in graded.items()]

    def _result(self, case: str, repeat: int, grades: Sequence[GradeRow]) -> Happened:
        scores = [
            {"grader_id": grade.grader, "score_status": grade.outcome, "score_value": grade.score} for grade in grades
        ]
        data = {
            "result_id": result_id(case, repeat),
            "test_case_id": case,
            "repeat": repeat,
            "response_status": self._status(case, repeat, grades),
            "scores": scores,
        }
        # graded again after a crash to the same end, it is the same event
        once = blake2b(canonical_json([case, repeat, self.claim.attempt, scores]), digest_size=16).hexdigest()
        return Happened("result", data, once)

    def _status(self, case: str, repeat: int, grades: Sequence[GradeRow]) -> str:
        if any(grade.outcome != Outcome.SKIPPED for grade in grades):
            return "success"
        if (case, repeat) not in self._failed:
            response = self._storage.get_response(ResponseKey(self.claim.run, case, repeat))
            return "error" if response is None else response.status
        status = self._failed[case, repeat]
        if len(self._failed) > _MOST_REMEMBERED:
            self._failed.clear()
        return status

    def _outcome(self, changes: dict[str, Any]) -> str | None:
        """What the finished run comes to beside its summary: its verdict, and the comparison that was asked for."""
        run = msgspec.structs.replace(self.begin(), **changes)
        found: dict[str, Any] = {}
        try:
            if Rules.of(run).gate is not None:
                found["verdict"] = conclude(self._storage, run).to_data()["verdict"]
            baseline = None if self.baseline is None else self._storage.get_run(self.baseline)
            if baseline is not None:
                found["comparison"] = compare(self._storage, baseline, run).to_data()
        except ConfigError as error:
            found["error"] = str(error)
        return msgspec.json.encode(found).decode() if found else None


def _claimed_writer(storage: Storage, *, claim: Claim, lease_s: float) -> StoreWriter:
    """Writes under a claim that another process holds; here nobody waits to be told of events."""
    if not isinstance(storage, SharedStorage):
        raise StoreError("only a store in a database can be written to from elsewhere")
    log = EventLog(storage.database)
    return ClaimedRun(storage, Queue(storage.database, log, lease_s), log, claim).writer()


def give_back_quietly(held: ClaimedRun) -> None:
    """Let the run wait again, where the store lets that happen; else its lease runs out."""
    held.released = True
    with suppress(StoreError):
        held.end()
