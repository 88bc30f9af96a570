"""A run in this process: the four phases as one pipeline.

So many coroutines share the plan; each takes the next case, asks, stores, grades, stores. The
agent's slots are fewer than they, so that slow grading keeps no agent waiting, and the plan is
read only as fast as they take from it: memory stays flat whatever the size of the dataset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from gradeline.engine.aggregate import Summary, summarise
from gradeline.engine.execute import Executor, Rate
from gradeline.engine.grade import GraderUse, Grading
from gradeline.engine.owner import this_process
from gradeline.engine.plan import Planned, Work, plan
from gradeline.model import GradeKey, Run, Sample, Storage, Target
from gradeline.model.protocols import StoreWriter
from gradeline.usercode.pool import WorkerPool

_log = logging.getLogger("gradeline")

_GRADING = 64
"""Cases that may be in grading beyond those that wait for the agent."""
_REUSED_AT_ONCE = 256


class RunTask(NamedTuple):
    """All that a run needs beside the store."""

    run: Run
    samples: Callable[[], Iterable[Sample]]
    """Gives the cases in the order of the dataset, each time anew."""
    target: Target
    graders: tuple[GraderUse, ...]
    concurrency: int = 15
    rate: Rate | None = None
    pool: WorkerPool | None = None
    retry_failed: bool = True
    """Ask again where the call failed; a regrade never asks."""
    on_progress: Callable[[Planned], None] = lambda _: None
    """Called when a case is done with, whatever it needed."""


class RunResult(NamedTuple):
    """A run that ended, or was stopped."""

    run: Run
    summary: Summary
    work: dict[Work, int]
    """How many cases were reused, regraded and rerun."""


async def run_local(storage: Storage, task: RunTask, stop: asyncio.Event | None = None) -> RunResult:
    """Do what is missing of a run. ``stop`` ends it early: what is in flight is finished and stored."""
    run = storage.update_run(task.run.id, status="running", owner=this_process(), error_message=None)
    done: Counter[Work] = Counter()
    stopped = stop or asyncio.Event()
    fingerprints = {use.key: use.grader.fingerprint for use in task.graders}
    stored = storage.keys_of(run.id)
    planned = plan(run.id, task.samples(), run.repeats, fingerprints, stored, retry_failed=task.retry_failed)
    _log.info("run %s: planned", run.id)
    try:
        async with storage.writer() as writer:
            pipeline = _Pipeline(storage, writer, task, done, stopped)
            async with asyncio.TaskGroup() as group:
                for _ in range(task.concurrency + _GRADING):
                    group.create_task(pipeline.work(planned))
    except BaseException as error:
        # the first fault ended the others
        cause = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        interrupted = isinstance(cause, asyncio.CancelledError | KeyboardInterrupt)
        status = "cancelled" if interrupted else "failed"
        storage.update_run(run.id, status=status, error_message=f"{type(cause).__name__}: {cause}"[:2000])
        raise cause from None
    status = "cancelled" if stopped.is_set() else "completed"
    ended = {} if stopped.is_set() else {"total": sum(done.values()), "completed_at": now()}
    run = storage.update_run(run.id, status=status, **ended)
    _log.info("run %s: %s, %s", run.id, status, ", ".join(f"{count} {work}" for work, count in sorted(done.items())))
    return RunResult(run, summarise(run, storage.counts(run.id)), dict(done))


class _Pipeline:
    def __init__(
        self, storage: Storage, writer: StoreWriter, task: RunTask, done: Counter[Work], stopped: asyncio.Event
    ) -> None:
        self._storage = storage
        self._writer = writer
        self._executor = Executor(task.target, writer, task.concurrency, task.rate, stopped)
        self._grading = Grading(task.graders, task.pool)
        self._on_progress = task.on_progress
        self._done = done
        self._stopped = stopped

    async def work(self, planned: Iterable[Planned]) -> None:
        """Take cases from the shared plan until there are no more."""
        for one in planned:
            if one.work is not Work.REUSE:
                if not await self._case(one):
                    return
            elif self._done[Work.REUSE] % _REUSED_AT_ONCE == 0:
                await asyncio.sleep(0)  # a long row of them must not keep everybody else waiting
            self._done[one.work] += 1
            self._on_progress(one)
            if self._stopped.is_set():
                return

    async def _case(self, planned: Planned) -> bool:
        """Ask, store, grade, store; false where the run was stopped before it was asked."""
        stored = self._storage.get_response(planned.key) if planned.work is Work.REGRADE else None
        response = await self._executor.execute(planned) if stored is None else stored
        if response is None:
            return False
        graded = await self._grading.grade(planned.sample, response, planned.graders)
        puts = [
            self._writer.put_grade(GradeKey(*planned.key, key), one.grade, one.submission)
            for key, one in graded.items()
        ]
        await asyncio.gather(*puts)
        return True


def now() -> str:
    """The time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
