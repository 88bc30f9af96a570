"""Executes chunks of a run in a process of the cluster, under a rate limit that all workers share.

Only the rate limit imports Ray.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import msgspec

from gradeline import __version__
from gradeline.engine.components import Access, WorkerObserver
from gradeline.engine.definition import RunBudget, RunOptions
from gradeline.engine.execute import CallSlots, ConnectionBreaker, Rate, Stop
from gradeline.engine.lifecycle import WriterFactory
from gradeline.engine.pipeline import Pipeline, RunTask
from gradeline.engine.plan import CompletedCase, LookReport, Planned, ProgressCount
from gradeline.engine.prepare import PreparedRun, prepare
from gradeline.engine.ray.chunks import Chunk, ChunkResult, replanned
from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.model import Counts, Run, RunGrader
from gradeline.model.rate_limit import RateLimiter
from gradeline.model.secrets import SecretSet
from gradeline.store import open_storage
from gradeline.suite.dataset_source import DatasetSource
from gradeline.suite.spec import SuiteDefinition
from gradeline.transport.egress import ReportingPolicy

_MAX_LEASES = 1000

if TYPE_CHECKING:
    from gradeline.model import Storage
    from gradeline.transport import EgressPolicy


class RunJob(NamedTuple):
    """Everything a worker needs to know of a run. It has secrets, and its repr does not show them."""

    run: Run
    suite: SuiteDefinition
    options: RunOptions
    baselines: Mapping[str, str]
    store: str
    """The URL of the store."""
    environment: Mapping[str, str]
    """The environment variables with the run's keys."""
    policy: EgressPolicy | None
    secrets: SecretSet | None
    """The secrets whose markers the target and the judges have."""
    shipped: bool
    """True if the suite's folder was sent to the node, where it is the current folder."""
    retry_failed: bool
    calls_agent: bool
    fail_fast: bool
    open_writer: WriterFactory
    target: str
    """The fingerprint of the target; it and those of the graders must be the same on the worker."""
    graders: Mapping[str, RunGrader]
    before: Counts | None = None
    """The counts of the run when the driver claimed it."""
    calibrations: Mapping[str, int] = {}
    """The calibrations that the judges of the driver use."""
    version: str = __version__

    @classmethod
    def of(
        cls, prepared: PreparedRun, task: RunTask, run: Run, store: str, open_writer: WriterFactory, *, shipped: bool
    ) -> Self:
        """The job of a run, without the dataset: the chunks have the cases."""
        environment = prepared.environment.read
        used = {*environment.values(), *prepared.suite.target.secrets}
        return cls(
            run=run,
            suite=msgspec.structs.replace(prepared.suite, dataset=DatasetSource()),
            options=prepared.options,
            baselines=dict(prepared.baselines),
            store=store,
            environment=environment,
            policy=prepared.policy,
            secrets=None if prepared.secrets is None else prepared.secrets.limited_to(used),
            shipped=shipped,
            retry_failed=task.retry_failed,
            calls_agent=task.calls_agent,
            fail_fast=task.fail_fast,
            open_writer=open_writer,
            target=prepared.target.fingerprint,
            graders=prepared.run_graders(),
            before=task.before,
            calibrations=dict(prepared.calibrations),
        )

    def __repr__(self) -> str:
        return f"Job({self.run.id!r})"


class OpenedWorker(NamedTuple):
    """A worker that is ready, or the problems why it is not."""

    node: str
    process: int
    problems: tuple[Problem, ...] = ()
    lost_store: str | None = None


class WorkerReport(NamedTuple):
    """What happened in a worker since the last report."""

    tally: ProgressCount
    stopped: str | None


class ChunkWorker:
    """Executes chunks of one run; ``share`` is the maximum of calls in flight of all its chunks together.

    Chunks are read one after the other: the next begins when the last case of the one before is taken, so that its
    calls replace those that end, and the chunks never run out of cases at the same time.
    """

    def __init__(self, job: RunJob, share: int, leases: CallLeases | None = None) -> None:
        self._job = job
        self._share = share
        self._leases = leases
        self._stack = AsyncExitStack()
        self._stop = Stop()
        self._stops: set[Stop] = set()
        self._turn = asyncio.Lock()
        """Held by the chunk whose cases are taken."""
        self._working: set[asyncio.Task[ChunkResult]] = set()
        self._tally = ProgressCount()
        self._deaths: tuple[str, ...] = ()
        self._refusals = 0
        self._storage: Storage | None = None
        self._task: RunTask | None = None

    async def open(self) -> OpenedWorker:
        """Open the store, load the code, create the graders and open the target."""
        opened = OpenedWorker(socket.gethostname(), os.getpid())
        job = self._job
        if job.version != __version__:
            reason = (
                f"has gradeline {__version__}, and the run was begun by {job.version}; install the same on every node"
            )
            return opened._replace(problems=(Problem(opened.node, reason),))
        try:
            self._storage = self._stack.enter_context(open_storage(job.store))
            prepared = await self._prepare(self._storage)
        except ConfigError as error:
            return opened._replace(problems=tuple(error.problems))
        except StoreError as error:
            return opened._replace(lost_store=str(error))
        other = _other_code(job, prepared)
        if other:
            reason = (
                f"{', '.join(other)}: the code there is not what the run was begun with; install the same packages on"
                " every node"
            )
            return opened._replace(problems=(Problem(opened.node, reason),))
        limits = prepared.call_limits()._replace(concurrency=self._share, rate=None, budget=RunBudget())
        turns = None if self._leases is None else LeasedRateLimiter(self._leases)
        slots = CallSlots(self._share, turns, ConnectionBreaker(limits.connection_failures))
        self._task = prepared.task(job.run)._replace(
            limits=limits,
            slots=slots,
            retry_failed=job.retry_failed,
            calls_agent=job.calls_agent,
            fail_fast=job.fail_fast,
            on_progress=self._advance,
            before=job.before,
        )
        return opened

    async def work(self, chunk: Chunk) -> ChunkResult:
        """Execute what is missing of a chunk; all of that is stored when this returns."""
        working = asyncio.create_task(self._work(chunk))
        self._working.add(working)
        working.add_done_callback(self._working.discard)
        return await working

    async def _work(self, chunk: Chunk) -> ChunkResult:
        stop = Stop()
        if self._stop.reason is not None:
            stop.set(self._stop.reason)
        self._stops.add(stop)
        try:
            with ExitStack() as turn:
                await self._turn.acquire()
                turn.callback(self._turn.release)
                began = monotonic()
                done = await self._go_through(chunk, stop, turn.close)
                deaths, self._deaths = self._deaths, ()
                refusals, self._refusals = self._refusals, 0
                return done._replace(seconds=monotonic() - began, deaths=deaths, refusals=refusals)
        finally:
            self._stops.discard(stop)

    async def _go_through(self, chunk: Chunk, stop: Stop, last_taken: Callable[[], None]) -> ChunkResult:
        storage, task = self._storage, self._task
        if storage is None or task is None:
            raise RuntimeError("the worker was not opened")
        done = ChunkResult({}, 0.0)
        try:
            planned: Iterator[Planned] = replanned(chunk, task, storage) if chunk.tries else iter(chunk.planned)
            async with self._job.open_writer(storage) as writer:
                pipeline = Pipeline(storage, writer, task, stop)
                await pipeline.execute(_with_callback(planned, last_taken))
            done = done._replace(work=dict(pipeline.done))
            return done._replace(refused=stop.reason) if stop.failed else done._replace(stopped=stop.reason)
        except ConfigError as error:
            return done._replace(faults=tuple(error.problems))
        except StoreError as error:
            return done._replace(lost_store=str(error))
        except BaseExceptionGroup as group:  # the first error ended the others
            first = group.exceptions[0]
            if not isinstance(first, StoreError):
                raise first from None
            return done._replace(lost_store=str(first))

    async def report(self) -> WorkerReport:
        """What happened since the last report."""
        tally, self._tally = self._tally, ProgressCount()
        # a refusal comes with its chunk: another worker's calls may have succeeded
        reasons = (stop.reason for stop in self._stops if not stop.failed)
        return WorkerReport(tally, next((reason for reason in reasons if reason is not None), None))

    async def stop(self, reason: str) -> None:
        """Finish the calls in flight, and begin no new ones."""
        self._stop.set(reason)
        for stop in self._stops:
            stop.set(reason)

    async def close(self) -> None:
        """Close connections and processes; calls still in flight are cancelled first."""
        # else calls would fail with their connections, and be stored as failures of the agent
        for working in self._working:
            working.cancel()
        if self._working:
            await asyncio.wait(self._working)
        await self._stack.aclose()

    def _advance(self, case: CompletedCase | ProgressCount | LookReport) -> None:
        if isinstance(case, CompletedCase) and case.response is not None:  # stored cases were reported before
            self._tally = self._tally.plus(ProgressCount.of(case))

    def _died(self, reason: str) -> None:
        self._deaths += (reason,)

    def _refused(self) -> None:
        self._refusals += 1

    async def _prepare(self, storage: Storage) -> PreparedRun:
        job = self._job
        suite = job.suite
        if job.shipped:
            suite = msgspec.structs.replace(suite, file=Path.cwd() / suite.file.name)
        policy = None if job.policy is None else ReportingPolicy(job.policy, self._refused)
        preparing = prepare(
            suite,
            job.options._replace(concurrency=self._share),
            storage,
            calls_agent=job.calls_agent,
            baselines=job.baselines,
            access=Access(job.environment, policy, job.secrets, observer=WorkerObserver(self._died)),
            calibrations=job.calibrations,
        )
        return await self._stack.enter_async_context(preparing)


def _other_code(job: RunJob, prepared: PreparedRun) -> list[str]:
    """The components whose code differs from that of the driver."""
    here = prepared.run_graders()
    other = [key for key, grader in job.graders.items() if here.get(key) != grader]
    return other if prepared.target.fingerprint == job.target else ["the target", *other]


def _with_callback(planned: Iterator[Planned], last_taken: Callable[[], None]) -> Iterator[Planned]:
    """The same cases; calls ``last_taken`` when the last one is taken."""
    ahead = next(planned, None)
    while ahead is not None:
        one, ahead = ahead, next(planned, None)
        if ahead is None:
            last_taken()
        yield one


class RateLimitActor:
    """A rate limit that all workers of an endpoint share; runs as a Ray actor."""

    def __init__(self, rate: Rate) -> None:
        self._limiter = RateLimiter(rate.calls, rate.per)

    def lease(self, wanted: int) -> list[float]:
        """The delays in seconds after which the next calls may begin."""
        return [self._limiter.reserve() for _ in range(min(wanted, _MAX_LEASES))]


class CallLeases(Protocol):
    """Grants leases for calls."""

    async def lease(self, wanted: int) -> list[float]: ...


class ActorCallLeases:
    """Gets leases from the `RateLimitActor` of this name in the cluster, and creates it if there is none.

    An actor ends with the process that created it, so others may have to create it again.
    """

    def __init__(self, name: str, rate: Rate) -> None:
        self._name = name
        self._rate = rate
        self._actor: Any = None

    def __reduce__(self) -> tuple[type[ActorCallLeases], tuple[str, Rate]]:
        return ActorCallLeases, (self._name, self._rate)

    def find(self) -> Any:
        """The actor, created if needed."""
        import ray  # joined by now

        if self._actor is None:
            actor = ray.remote(RateLimitActor).options(name=self._name, get_if_exists=True, num_cpus=0)
            self._actor = actor.remote(self._rate)
        return self._actor

    async def lease(self, wanted: int) -> list[float]:
        from ray.exceptions import RayActorError  # as above

        try:
            delays: list[float] = await self.find().lease.remote(wanted)
        except RayActorError:
            self._actor = None
            delays = await self.find().lease.remote(wanted)
        return delays


class LeasedRateLimiter:
    """The rate limit of one worker. It requests one lease per waiting call, so that no lease expires unused."""

    def __init__(self, leases: CallLeases) -> None:
        self._leases = leases
        self._waiting: deque[asyncio.Future[float]] = deque()
        self._asking: asyncio.Task[None] | None = None

    async def wait(self, stop: Stop) -> None:
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        delay = await turn
        if delay > 0:
            await stop.sleep(delay)

    async def _ask(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, deque()
            try:
                delays = await self._leases.lease(len(waiting))
            except Exception as error:
                for turn in waiting:
                    if not turn.done():
                        turn.set_exception(error)
                continue
            for turn in list(waiting)[len(delays) :]:
                self._waiting.append(turn)
            for turn, delay in zip(waiting, delays, strict=False):
                if not turn.done():
                    turn.set_result(delay)
