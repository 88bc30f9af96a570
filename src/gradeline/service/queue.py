"""The queue of runs, in the database: which runs wait, and which process has claimed which run.

Clocks of different machines are never compared. The owner of a run increments its ``beat`` as a heartbeat; a process
that sees the same beat for a whole lease, by its own monotonic clock, may take the run over. That increments the
fencing ``token`` of the run, and from then on every transaction of the former owner is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from gradeline.errors import StoreError
from gradeline.model import Run
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.events import EventLog, NewEvent, run_state
from gradeline.store.database import Database, Dialect, Transaction, migrate
from gradeline.store.leases import HEARTBEAT_S, is_alive, silence, this_process, write_heartbeat
from gradeline.store.queries import read_run, update_run

MAX_ATTEMPTS = 5
"""Attempts to execute a run without storing a single row, after which it fails."""

MAX_CRASHES = 2
"""Processes that may end while they execute a run before it is quarantined. One that an operator was stopping does not
count; the sender of a SIGKILL is unknown, so a killed one does."""
QUARANTINED = (
    f"quarantined: {MAX_CRASHES} server processes ended while they executed this run, so no process takes it up again;"
    " find the cause in the server's log, then resume the run"
)

_CLAIM = """
    UPDATE jobs SET state = 'claimed', owner = ?, token = token + 1, beat = beat + 1, tries = tries + 1
    WHERE state = 'queued' AND run = (SELECT run FROM jobs WHERE state = 'queued' ORDER BY n LIMIT 1)
    RETURNING run, token, attempt, retry_failed, tries, deaths"""
_TAKE_OVER = """
    UPDATE jobs SET owner = ?, token = token + 1, beat = beat + 1, tries = tries + 1,
        deaths = deaths + CASE WHEN wanted = 'stop' THEN 0 ELSE ? END,
        wanted = CASE WHEN wanted = 'stop' THEN NULL ELSE wanted END
    WHERE run = ? AND state = 'claimed' AND token = ? AND beat = ?
    RETURNING run, token, attempt, retry_failed, tries, deaths"""
_STOPPING = "UPDATE jobs SET wanted = 'stop' WHERE owner = ? AND state = 'claimed' AND wanted IS NULL"
_HEARTBEAT = "UPDATE jobs SET beat = beat + 1 WHERE run = ? AND token = ? AND state = 'claimed' RETURNING wanted"


class Claim(NamedTuple):
    """A claim on a run, valid as long as its token is the newest."""

    run: str
    token: int
    generation: int
    """Counts how often the run was started, resumed or retried by request; a takeover does not change it."""
    retry_failed: bool
    attempts: int
    """Claims since a row of the run was last stored."""
    crashes: int = 0
    """Processes that ended while they executed the run, since it was last started by request."""


class LostClaimError(StoreError):
    """Another process has taken the run over."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the run {run} was taken over by another process and continues there")


class _Abandoned(NamedTuple):
    """A claim that may be taken over."""

    run: str
    token: int
    beat: int
    died: bool
    """The process that had it is gone; otherwise it is this one."""


class _Sighting(NamedTuple):
    token: int
    beat: int
    since: float


def _jobs(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE jobs (run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE, n BIGINT NOT NULL,"
        " state TEXT NOT NULL, owner TEXT, token BIGINT NOT NULL, beat BIGINT NOT NULL, tries INTEGER NOT NULL,"
        " deaths INTEGER NOT NULL DEFAULT 0,"
        " attempt INTEGER NOT NULL, wanted TEXT, retry_failed INTEGER NOT NULL, last_event BIGINT NOT NULL,"
        " asked TEXT NOT NULL, outcome TEXT)"
    )
    transaction.run("CREATE INDEX jobs_by_state ON jobs (state, n)")


STEPS = (_jobs,)


class Queue:
    """The queued and the claimed runs, as one of several processes sees them."""

    def __init__(
        self, database: Database, log: EventLog, lease_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        migrate(database, "queue", STEPS)
        self._database = database
        self._log = log
        self.lease_s = lease_s
        self._clock = clock
        self._seen: dict[str, _Sighting] = {}
        self._last_heartbeat = -HEARTBEAT_S
        """When the heartbeats for readers of the store were last written."""
        self.owner = f"{this_process()}|{uuid4().hex[:8]}"

    def add(self, transaction: Transaction, run: Run, request: str) -> None:
        """Put a run into the queue, with the request that started it."""
        transaction.run(
            "INSERT INTO jobs (run, n, state, token, beat, tries, attempt, retry_failed, last_event, asked)"
            " SELECT ?, coalesce(max(n), 0) + 1, 'queued', 0, 0, 0, 1, 0, 0, ? FROM jobs",
            run.id,
            request,
        )
        self._log.append(transaction, run.id, [NewEvent("status", {"status": run.status})])

    def add_again(self, transaction: Transaction, run: Run, *, retry_failed: bool) -> Run | None:
        """Put a run that has ended back into the queue; None if it has not ended, or never was in the queue."""
        rows = transaction.run(
            "UPDATE jobs SET state = 'queued', owner = NULL, token = token + 1, tries = 0, deaths = 0,"
            " attempt = attempt + 1,"
            " wanted = NULL, retry_failed = ?, outcome = NULL, n = (SELECT max(n) + 1 FROM jobs)"
            " WHERE run = ? AND state = 'done' RETURNING run",
            int(retry_failed),
            run.id,
        )
        if not rows:
            return None
        new = update_run(transaction, run, status="pending", error_message=None, completed_at=None)
        self._log.append(transaction, run.id, [NewEvent("status", {"status": new.status})])
        return new

    def state(self, transaction: Transaction, run: str) -> str | None:
        """``queued``, ``claimed`` or ``done``; None for a run that never was in the queue."""
        rows = transaction.run("SELECT state FROM jobs WHERE run = ?", run)
        return str(rows[0][0]) if rows else None

    def waiting(self, read: Callable[..., list[tuple[Any, ...]]] | None = None) -> int:
        """The number of queued runs."""
        read = read or self._database.read
        return int(read("SELECT count(*) FROM jobs WHERE state = 'queued'")[0][0])

    def lease_age(self) -> float:
        """The age in seconds of the oldest heartbeat of a claimed run, by the database's clock; 0 if no run is claimed.

        Heartbeats are written every 10 seconds.
        """
        claimed = self._database.read("SELECT run FROM jobs WHERE state = 'claimed'")
        silences = (silence(self._database.read, run) for (run,) in claimed)
        return max((seconds for seconds in silences if seconds is not None), default=0.0)

    def claim(self, held: Collection[str] = ()) -> Claim | None:
        """Claim a run whose owner is gone, or the first in the queue; ``held`` are the runs of this process."""
        for abandoned in self._abandoned(held):
            claim = self._database.transact(partial(self._take_over, abandoned))
            if claim is not None:
                return claim
        return self._database.transact(self._claim_first) if self.waiting() else None

    def _claim_first(self, transaction: Transaction) -> Claim | None:
        rows = transaction.run(_CLAIM, self.owner)
        if not rows:
            return None
        run = read_run(transaction, rows[0][0])
        if run is not None and run.status == "running" and run.owner != this_process():
            # the command line resumed it while it was in the queue
            transaction.run("UPDATE jobs SET state = 'done', owner = NULL WHERE run = ?", run.id)
            return None
        return self._begin(transaction, rows[0], run)

    def _take_over(self, abandoned: _Abandoned, transaction: Transaction) -> Claim | None:
        run, token, beat, died = abandoned
        rows = transaction.run(_TAKE_OVER, self.owner, int(died), run, token, beat)
        if rows and died and rows[0][-1] >= MAX_CRASHES:
            self._finish(transaction, run, {"status": "failed", "error_message": QUARANTINED}, None)
            return None
        return self._begin(transaction, rows[0], read_run(transaction, run)) if rows else None

    def _abandoned(self, held: Collection[str]) -> Iterable[_Abandoned]:
        """Claims of processes that are gone, or sent no heartbeat for a whole lease."""
        rows = self._database.read("SELECT run, owner, token, beat FROM jobs WHERE state = 'claimed' ORDER BY n")
        now = self._clock()
        seen: dict[str, _Sighting] = {}
        for run, owner, token, beat in rows:
            if owner == self.owner:
                if run not in held:
                    yield _Abandoned(
                        run, token, beat, died=False
                    )  # it could not be released while the store was unavailable
                continue
            last = self._seen.get(run)
            if last is None or (last.token, last.beat) != (token, beat):
                last = _Sighting(token, beat, now)
            seen[run] = last
            if now - last.since >= self.lease_s or _is_gone(owner):
                yield _Abandoned(run, token, beat, died=True)
        self._seen = seen

    def _begin(self, transaction: Transaction, row: tuple[Any, ...], run: Run | None) -> Claim | None:
        """Mark the run as running, and return the claim."""
        if run is None:
            return None
        run_id, token, generation, retry_failed, attempts, crashes = row
        update_run(transaction, run, status="running", owner=this_process(), error_message=None)
        write_heartbeat(transaction.run, run.id)
        if run.status != "running":
            self._log.append(transaction, run.id, [NewEvent("status", {"status": "running"})])
        return Claim(run_id, token, generation, bool(retry_failed), attempts, crashes)

    def heartbeat(self, claims: Iterable[Claim]) -> dict[str, str | None]:
        """Renew the claims; returns by run what was requested (``cancel``, ``stop``), without lost claims."""
        held = list(claims)
        if not held:
            return {}
        now = self._clock()
        due = now - self._last_heartbeat >= HEARTBEAT_S

        def work(transaction: Transaction) -> dict[str, str | None]:
            found: dict[str, str | None] = {}
            for claim in held:
                for (requested,) in transaction.run(_HEARTBEAT, claim.run, claim.token):
                    found[claim.run] = requested
                    if due:
                        write_heartbeat(transaction.run, claim.run)
            return found

        found = self._database.transact(work)
        self._last_heartbeat = now if due else self._last_heartbeat
        return found

    def announce_stop(self) -> None:
        """Store that this process is stopping: if it ends before it releases its runs, they are not the cause."""
        self._database.transact(lambda transaction: transaction.run(_STOPPING, self.owner))

    def require(self, transaction: Transaction, claim: Claim) -> None:
        """`LostClaimError` if the claim is lost; otherwise it cannot be lost before the transaction ends."""
        rows = transaction.run(
            "UPDATE jobs SET beat = beat + 1, tries = 0 WHERE run = ? AND token = ? AND state = 'claimed'"
            " RETURNING run",
            claim.run,
            claim.token,
        )
        if not rows:
            raise LostClaimError(claim.run)

    def finish(self, claim: Claim, changes: dict[str, Any], outcome: str | None = None) -> Run:
        """Store the end of a run, with its events."""

        def work(transaction: Transaction) -> Run:
            self.require(transaction, claim)
            return self._finish(transaction, claim.run, changes, outcome)

        return self._database.transact(work)

    def release(self, claim: Claim) -> Run:
        """Put the run back into the queue, for any process."""

        def work(transaction: Transaction) -> Run:
            rows = transaction.run(
                "UPDATE jobs SET state = 'queued', owner = NULL, token = token + 1,"
                " wanted = CASE WHEN wanted = 'stop' THEN NULL ELSE wanted END"
                " WHERE run = ? AND token = ? AND state = 'claimed' RETURNING run",
                claim.run,
                claim.token,
            )
            run = read_run(transaction, claim.run) if rows else None
            if run is None:
                raise LostClaimError(claim.run)
            new = update_run(transaction, run, status="pending", owner=None)
            self._log.append(transaction, run.id, [NewEvent("status", {"status": "pending"})])
            return new

        return self._database.transact(work)

    def cancel(self, run_id: str, reason: str, record: Recorder = unrecorded) -> Run | None:
        """End a queued run, or request its owner to end it; None if it has ended or never was in the queue."""

        def work(transaction: Transaction) -> Run | None:
            rows = transaction.run(
                "UPDATE jobs SET wanted = 'cancel' WHERE run = ? AND state <> 'done' RETURNING state", run_id
            )
            if not rows:
                return None
            record(transaction, run_id)
            if rows[0][0] == "queued":
                return self._finish(transaction, run_id, {"status": "cancelled", "error_message": reason}, None)
            return read_run(transaction, run_id)

        return self._database.transact(work)

    def _finish(self, transaction: Transaction, run_id: str, changes: dict[str, Any], outcome: str | None) -> Run:
        run = read_run(transaction, run_id)
        if run is None:
            raise LostClaimError(run_id)
        new = update_run(transaction, run, owner=None, **changes)
        transaction.run(
            "UPDATE jobs SET state = 'done', owner = NULL, token = token + 1, wanted = NULL, outcome = ? WHERE run = ?",
            outcome,
            run_id,
        )
        state = run_state(transaction.run, run_id)
        status = {"status": new.status, "error_message": new.error_message}
        progress = {} if state is None else msgspec.structs.asdict(state.progress)
        self._log.append(
            transaction,
            run_id,
            [NewEvent("progress", progress), NewEvent("status", status), NewEvent("done", {**status, **progress})],
        )
        return new


def baseline_of(database: Database, run: str) -> str | None:
    """The run that this one is compared with when it is done."""
    rows = database.read("SELECT asked FROM jobs WHERE run = ?", run)
    found: object = msgspec.json.decode(rows[0][0]).get("baseline_id") if rows else None
    return found if isinstance(found, str) else None


def _is_gone(owner: str | None) -> bool:
    """Whether the owner's process is known to be dead; for one on another host only the lease decides."""
    process, _, queue = (owner or "").partition("|")
    return "|" not in queue and is_alive(process) is False  # earlier versions wrote more parts
