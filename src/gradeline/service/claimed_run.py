"""A run claimed by this process: each batch of its rows is committed under the claim, together with its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Any

import msgspec

from gradeline.engine.aggregate import conclude
from gradeline.engine.comparison import compare
from gradeline.engine.definition import Rules
from gradeline.engine.execute import Stop
from gradeline.engine.lifecycle import WriterFactory
from gradeline.errors import ConfigError, Outcome, StoreError
from gradeline.model import ResponseKey, Run, Storage, canonical_json
from gradeline.model.protocols import StoreWriter
from gradeline.rest_types import result_id
from gradeline.service.events import EventLog, NewEvent, run_state
from gradeline.service.queue import Claim, LostClaimError, Queue
from gradeline.store.database import SharedStorage, Transaction
from gradeline.store.rows import GradeRow, RecordRow, ResponseRow

CANCELLED = "cancelled by request"

_MAX_FAILED_RESPONSES = 10_000


class ClaimedRun:
    """A `gradeline.engine.lifecycle.RunLock` for a run of the queue."""

    def __init__(
        self,
        storage: SharedStorage,
        queue: Queue,
        log: EventLog,
        claim: Claim,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``on_change`` is called with the run's id when its log has new events."""
        self.claim = claim
        self.started = monotonic()
        self.stop = Stop()
        self.task: asyncio.Task[None] | None = None
        """Executes the run. This task is cancelled, not a future for it: the run stays claimed until the task ends."""
        self.lost = False
        """Another process has taken the run over."""
        self.released = False
        """The run is to go back into the queue instead of ending."""
        self.cancelled = False
        self.baseline: str | None = None
        """The run that the finished one is compared with."""
        self.ended = False
        self._storage = storage
        self._queue = queue
        self._log = log
        self._on_change = on_change
        self._failed_responses: dict[tuple[str, int], str] = {}

    def abort(self) -> None:
        """Cancel the work without waiting for calls in flight. Call it in the event loop."""
        if self.task is not None:
            self.task.cancel()

    def begin(self) -> Run:
        run = self._storage.get_run(self.claim.run)
        if run is None:
            raise LostClaimError(self.claim.run)
        return run

    def writer(self) -> StoreWriter:
        return self._storage.writer(self._commit_hook)

    def remote_writer(self) -> WriterFactory:
        return partial(_claimed_writer, claim=self.claim, lease_s=self._queue.lease_s)

    def end(self, cause: BaseException | None = None, **changes: Any) -> Run:
        """Store how the run ended, or release it if only this process stops working on it."""
        if self.ended:
            return self.begin()
        if self.lost:
            raise LostClaimError(self.claim.run)
        if isinstance(cause, StoreError):
            raise cause  # not a fault of the run: it is started again
        if changes.get("status") != "completed" and self.released:
            return self._settle(lambda: self._queue.release(self.claim))
        if self.cancelled and changes.get("status") != "completed":
            changes = {"status": "cancelled", "error_message": CANCELLED}
        outcome = self._outcome(changes) if changes.get("status") == "completed" else None
        return self._settle(lambda: self._queue.finish(self.claim, changes, outcome))

    def _settle(self, settle: Callable[[], Run]) -> Run:
        self.ended = True
        try:
            run = settle()
        except StoreError as error:
            self.ended = False
            self.lost = self.lost or isinstance(error, LostClaimError)
            raise
        self._on_change(run.id)
        return run

    def _commit_hook(self, transaction: Transaction, rows: Sequence[RecordRow]) -> None:
        try:
            self._queue.require(transaction, self.claim)
        except LostClaimError:
            self.lost = True
            raise
        events = self._result_events(rows)
        state = run_state(transaction.run, self.claim.run)
        if state is not None:
            events.append(NewEvent("progress", state.progress))
        self._log.append(transaction, self.claim.run, events)
        self._on_change(self.claim.run)

    def _result_events(self, rows: Sequence[RecordRow]) -> list[NewEvent]:
        """An event for each graded case; all grades of one case are in one batch."""
        graded: dict[tuple[str, int], list[GradeRow]] = {}
        for row in rows:
            if isinstance(row, ResponseRow):
                if row.status != "success":
                    self._failed_responses[row.case, row.repeat] = row.status
            else:
                graded.setdefault((row.case, row.repeat), []).append(row)
        return [self._result_event(case, repeat, grades) for (case, repeat), grades in graded.items()]

    def _result_event(self, case: str, repeat: int, grades: Sequence[GradeRow]) -> NewEvent:
        scores = [
            {"grader_id": grade.grader, "score_status": grade.outcome, "score_value": grade.score} for grade in grades
        ]
        data = {
            "result_id": result_id(case, repeat),
            "test_case_id": case,
            "repeat": repeat,
            "response_status": self._response_status(case, repeat, grades),
            "scores": scores,
        }
        # graded again after a crash with the same scores, it is the same event
        once = blake2b(canonical_json([case, repeat, self.claim.generation, scores]), digest_size=16).hexdigest()
        return NewEvent("result", data, once)

    def _response_status(self, case: str, repeat: int, grades: Sequence[GradeRow]) -> str:
        if any(grade.outcome != Outcome.SKIPPED for grade in grades):
            return "success"
        if (case, repeat) not in self._failed_responses:
            response = self._storage.get_response(ResponseKey(self.claim.run, case, repeat))
            return "error" if response is None else response.status
        status = self._failed_responses[case, repeat]
        if len(self._failed_responses) > _MAX_FAILED_RESPONSES:
            self._failed_responses.clear()
        return status

    def _outcome(self, changes: dict[str, Any]) -> str | None:
        """The verdict of the finished run, and its comparison with the baseline, as JSON."""
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
    """A writer in another process than the one that claimed the run."""
    if not isinstance(storage, SharedStorage):
        raise StoreError("only a store in a database can be written to by another process")
    log = EventLog(storage.database)
    return ClaimedRun(storage, Queue(storage.database, log, lease_s), log, claim).writer()


def release_quietly(claimed: ClaimedRun) -> None:
    """Put the run back into the queue; if the store is unavailable, the lease expires."""
    claimed.released = True
    with suppress(StoreError):
        claimed.end()
