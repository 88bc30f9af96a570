"""Executes the runs of the queue, some at the same time, with the same engine as the command line.

One thread claims runs and sends heartbeats; another has an event loop that executes the runs. So no request waits for a
run, and no busy run loses its claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event as Signal
from threading import Lock, Thread
from time import monotonic
from typing import NamedTuple

from gradeline.engine.components import Access, WorkerObserver
from gradeline.engine.definition import RunDefinition
from gradeline.engine.lifecycle import Engine, RunLoop, RunObserver, execute_run, local_engine
from gradeline.engine.orchestrate import plan_stored_run
from gradeline.errors import ConfigError, GradelineError, Problem, StoreError
from gradeline.service.claimed_run import CANCELLED, ClaimedRun, release_quietly
from gradeline.service.errors import ServiceError
from gradeline.service.events import EventBroker, EventLog
from gradeline.service.queue import MAX_ATTEMPTS, Claim, LostClaimError, Queue, baseline_of
from gradeline.service.run_access import (
    RunSecrets,
    ServiceEgress,
    document_of,
    limit_concurrency,
    open_secrets,
    run_access,
    suite_for_run,
)
from gradeline.service.secrets import Secrets
from gradeline.service.settings import ServeSettings
from gradeline.service.telemetry import LabelledCounter
from gradeline.store.database import Database, SharedStorage

_log = logging.getLogger("gradeline.service")

_POLL_S = 1.0
_CANCEL_GRACE_S = 3.0
"""Seconds that the calls in flight of a cancelled run may take to finish."""
_CANCELLED_TASKS_S = 1.0
"""Seconds that cancelled tasks may take to end."""
_PROBATION_S = 30.0
"""Seconds that a run during which a process died is executed without any other."""
_BACKOFF_BASE_S = 2.0
"""Base of the pause before a run whose rows could not be stored is released; the exponent is the attempt."""
_MAX_BACKOFF_S = 60.0


class RunEngine(NamedTuple):
    """The engine that executes runs, and its capacity."""

    engine: Engine
    max_runs: int
    """Runs that can be executed at the same time."""
    is_remote: bool = False
    """Calls are made by other processes, which are sent everything that they need to know."""
    shutdown_s: float = 0.0
    """The time that it takes to release those processes."""


_RAY_SHUTDOWN_S = 3.0


@contextmanager
def open_run_engine(settings: ServeSettings) -> Iterator[RunEngine]:
    """The engine that the settings name; `ConfigError` if it is unavailable. Call it in the main thread."""
    if settings.engine == "local":
        for name, value in (("--ray-address", settings.ray_address), ("--ray-workers", settings.ray_workers)):
            if value is not None:
                raise ConfigError(Problem(name, "is for --engine ray"))
        yield RunEngine(local_engine, settings.runs_at_once)
        return
    from gradeline.engine.ray.driver import RayEngine  # few services need a cluster

    with RayEngine(settings.store, settings.ray_address, settings.ray_workers, at_once=settings.runs_at_once) as engine:
        engine.join(settings.graders_dir)
        yield RunEngine(engine, engine.at_once, is_remote=True, shutdown_s=_RAY_SHUTDOWN_S)


class Runner:
    """Executes runs of the queue while it is started, as many at the same time as its engine takes."""

    def __init__(
        self,
        settings: ServeSettings,
        storage: SharedStorage,
        database: Database,
        secrets: Secrets,
        egress: ServiceEgress,
        events: EventBroker,
        run_engine: RunEngine,
    ) -> None:
        self.log: EventLog = events.log
        self.queue = Queue(database, self.log, settings.lease_s)
        self.worker_deaths = LabelledCounter()
        """Number of worker processes that died or were killed, by reason."""
        self._settings = settings
        self._storage = storage
        self._secrets = secrets
        self._database = database
        self._egress = egress
        self._events = events
        self._run_engine = run_engine
        self._claimed: dict[str, ClaimedRun] = {}
        self._tasks: dict[str, Future[None]] = {}
        self._lock = Lock()
        self._wake = Signal()
        self._stopping = Signal()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[Thread] = []

    def start(self) -> None:
        """Begin to claim runs."""
        if self._loop is not None:
            return
        self._loop = RunLoop()
        self._stopping.clear()
        self._threads = [
            Thread(target=self._loop.run_forever, name="gradeline-runs", daemon=True),
            Thread(target=self._watch, name="gradeline-queue", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, drain_s: float = 8.0) -> None:
        """Claim no more runs, finish calls in flight, and release the runs that are not done in this time."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._stopping.set()
        self._wake.set()
        self._threads[1].join()
        self._guarded(self.queue.announce_stop)
        deadline = monotonic() + max(0.0, drain_s - 2 * _CANCELLED_TASKS_S - self._run_engine.shutdown_s)
        with self._lock:
            claimed, tasks = list(self._claimed.values()), list(self._tasks.values())
        for one in claimed:
            one.released = True
            loop.call_soon_threadsafe(one.stop.set, "the service stops")
        self._await(tasks, deadline - monotonic())
        for one in claimed:
            loop.call_soon_threadsafe(one.abort)
        ended = asyncio.run_coroutine_threadsafe(_others_done(), loop)
        with suppress(TimeoutError):
            ended.result(_CANCELLED_TASKS_S + self._run_engine.shutdown_s / 2)
        loop.call_soon_threadsafe(loop.stop)
        self._threads[0].join(_CANCELLED_TASKS_S)
        if not self._threads[0].is_alive():
            loop.close()

    def wake(self) -> None:
        """Look at the queue now."""
        self._wake.set()

    @property
    def stopping(self) -> bool:
        """True if no more runs are claimed."""
        return self._stopping.is_set()

    @property
    def running(self) -> int:
        """Number of runs that are executed here."""
        return len(self._claimed)

    def _await(self, tasks: list[Future[None]], seconds: float) -> None:
        """Wait for the tasks, and send heartbeats for those that are left."""
        deadline = monotonic() + seconds
        while monotonic() < deadline and not all(task.done() for task in tasks):
            self._guarded(self._beat)
            for task in tasks:
                if not task.done():
                    with suppress(Exception):
                        task.exception(min(self._pause, max(0.0, deadline - monotonic())))
                    break

    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._guarded(self._beat)
            self._guarded(self._claim)
            self._wake.wait(self._pause)
            self._wake.clear()

    @property
    def _pause(self) -> float:
        return min(_POLL_S, self._settings.lease_s / 5)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Log an error of the store, which may be unavailable for a while: fencing tokens then decide who has a run."""
        try:
            work()
        except StoreError as error:
            _log.warning("the queue cannot be reached: %s", error)
        except Exception:
            _log.exception("the queue")

    def _claim(self) -> None:
        while not self._stopping.is_set() and len(self._claimed) < self._run_engine.max_runs and not self._on_probation:
            claim = self.queue.claim(self._claimed)
            if claim is None:
                return
            self._begin(claim)

    @property
    def _on_probation(self) -> bool:
        """True while a run during which a process died is executed alone, to find out whether it is the cause."""
        with self._lock:
            suspects = [one for one in self._claimed.values() if one.claim.crashes]
        return any(monotonic() - one.started < _PROBATION_S for one in suspects)

    def _begin(self, claim: Claim) -> None:
        claimed = ClaimedRun(self._storage, self.queue, self.log, claim, self._events.changed)
        self._events.changed(claim.run)
        loop = self._loop
        if loop is None:
            release_quietly(claimed)
            return
        with self._lock:
            self._claimed[claim.run] = claimed
            task = asyncio.run_coroutine_threadsafe(self._work(claimed), loop)
            self._tasks[claim.run] = task
        task.add_done_callback(lambda _: self._forget(claim.run, claimed))

    def _forget(self, run: str, claimed: ClaimedRun) -> None:
        with self._lock:
            if self._claimed.get(run) is claimed:
                del self._claimed[run], self._tasks[run]
        self._wake.set()

    def _beat(self) -> None:
        with self._lock:
            claimed = dict(self._claimed)
        requested = self.queue.heartbeat(one.claim for one in claimed.values())
        for run, one in claimed.items():
            if run not in requested:
                if not one.ended and not one.lost:
                    one.lost = True
                    self._soon(one.abort)
            elif requested[run] == "cancel" and not one.cancelled:
                self._cancel(one)

    def _cancel(self, claimed: ClaimedRun) -> None:
        loop = self._loop
        if loop is not None:
            claimed.cancelled = True
            self._soon(claimed.stop.set, CANCELLED)
            self._soon(loop.call_later, _CANCEL_GRACE_S, claimed.abort)

    def _soon(self, act: Callable[..., object], *arguments: object) -> None:
        """Call this in the event loop, if there is one."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(act, *arguments)

    async def _work(self, claimed: ClaimedRun) -> None:
        """Execute one run; no error of it may end the runner."""
        run_id = claimed.claim.run
        claimed.task = asyncio.current_task()
        try:
            if claimed.claim.attempts > MAX_ATTEMPTS:
                message = f"failed after {MAX_ATTEMPTS} attempts without storing a result; see the server's log"
                claimed.end(status="failed", error_message=message)
                return
            await self._execute(claimed)
        except LostClaimError:
            _log.warning("run %s: another process has it now", run_id)
        except StoreError as error:
            if claimed.lost:
                _log.warning("run %s: another process has it now", run_id)
                return
            _log.warning("run %s: broken off, and begun again soon: %s", run_id, error)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(min(_MAX_BACKOFF_S, _BACKOFF_BASE_S**claimed.claim.attempts))
            release_quietly(claimed)
        except (GradelineError, ServiceError) as error:
            _end_quietly(claimed, error, str(error))
        except asyncio.CancelledError as error:
            _end_quietly(claimed, error, "the run was broken off")
        except Exception as error:
            _log.exception("run %s", run_id)
            _end_quietly(claimed, error, f"a defect of gradeline: {type(error).__name__}")

    async def _execute(self, claimed: ClaimedRun) -> None:
        run = claimed.begin()
        definition = RunDefinition.of(run)
        document = document_of(definition, run.id)
        secrets = open_secrets(document, self._secrets, calls_target=run.parent is None)
        suite = suite_for_run(document, secrets, self._settings)
        claimed.baseline = baseline_of(self._database, run.id)
        # an operator may have lowered the maximum since the run was started
        options = limit_concurrency(definition.options, suite, self._settings)
        planning = plan_stored_run(
            self._storage, run, suite, options, self._access(secrets), retry_failed=claimed.claim.retry_failed
        )
        async with planning as spec:
            observer = RunObserver(stop=claimed.stop)
            await execute_run(self._storage, spec, claimed, observer, self._run_engine.engine)

    def _access(self, secrets: RunSecrets) -> Access:
        access = run_access(secrets, self._egress, self._settings.max_concurrency)
        observer = WorkerObserver(self.worker_deaths.add, partial(self._egress.refusals.add, "connection"))
        access = access._replace(observer=observer)
        return access._replace(policy=self._egress.current()) if self._run_engine.is_remote else access


def _end_quietly(claimed: ClaimedRun, cause: BaseException, message: str) -> None:
    """Store that the run failed, unless it has ended or another process has it."""
    with suppress(StoreError):
        claimed.end(cause, status="failed", error_message=message[:2000])


async def _others_done() -> None:
    """Wait until every other task of this loop is done."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*(task for task in others if task is not None), return_exceptions=True)
