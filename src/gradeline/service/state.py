"""What every request of a service hangs on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Protocol, TypeVar, cast, runtime_checkable

from starlette.requests import Request

from gradeline.errors import ConfigError, Problem
from gradeline.model import Storage
from gradeline.service.audit import Audit, Recorder
from gradeline.service.audit_list import AuditList
from gradeline.service.caller import Caller
from gradeline.service.egress import ServiceEgress
from gradeline.service.evaluations import Evaluations
from gradeline.service.events import Events
from gradeline.service.judge_places import provider_secrets
from gradeline.service.keys import Keys
from gradeline.service.labels import Labels
from gradeline.service.limits import TrialPool, address_of
from gradeline.service.metrics import Gauge, Metrics
from gradeline.service.readiness import Readiness
from gradeline.service.results import Results
from gradeline.service.retention import RetentionTask
from gradeline.service.runner import Runner
from gradeline.service.secrets import Secrets
from gradeline.service.sessions import Sessions
from gradeline.service.settings import ServeSettings
from gradeline.service.stored_graders import StoredGraders
from gradeline.service.suites_of import SuiteMaker
from gradeline.service.test_cases import TestCases
from gradeline.service.trials import Trials
from gradeline.service.workplace import Workplace, open_workplace
from gradeline.store import open_storage
from gradeline.store.database import Database
from gradeline.store.shared import SharedStorage

__all__ = [
    "Caller",
    "Service",
    "build",
    "caller_of",
    "database_of",
    "is_loopback",
    "recorder_of",
    "service_of",
    "tried_in_pool",
]


T = TypeVar("T")


@runtime_checkable
class _WithDatabase(Protocol):
    @property
    def database(self) -> Database: ...


@dataclass(slots=True, repr=False)
class Service:
    """A service that is built, and after `start` at work. `stop` may be called twice."""

    settings: ServeSettings
    storage: SharedStorage
    database: Database
    secrets: Secrets
    keys: Keys
    sessions: Sessions
    audit: Audit
    audit_list: AuditList
    egress: ServiceEgress
    metrics: Metrics
    readiness: Readiness
    cases: TestCases
    graders: StoredGraders
    events: Events
    results: Results
    labels: Labels
    runner: Runner
    evaluations: Evaluations
    trials: Trials
    retention: RetentionTask | None
    _closing: ExitStack = field(default_factory=ExitStack)
    _draining: Thread | None = None

    @property
    def local(self) -> bool:
        """Whether anybody on this machine may do everything: bound to loopback, and no key was ever made."""
        return is_loopback(self.settings.host) and not self.keys.exist()

    def start(self) -> None:
        """Take up the work that waits in the store."""
        self.runner.start()
        if self.retention is not None:
            self.retention.start()

    @property
    def draining(self) -> bool:
        """Whether a stop has begun."""
        return self._draining is not None

    @property
    def drained(self) -> bool:
        """Whether a stop has begun and no run is worked on any more."""
        return self._draining is not None and not self._draining.is_alive()

    def begin_stop(self) -> None:
        """End event streams, so that their connections do not hold up the stop, and take up no more work."""
        if self._draining is None:
            self.events.close()
            if self.retention is not None:
                self.retention.stop()
            self._draining = Thread(target=self.runner.stop, args=(self.settings.drain_s,), name="gradeline-drain")
            self._draining.start()

    def stop(self) -> None:
        """Let what is in flight finish, within `drain_s`; give back what is not, and close the store."""
        with self._closing:
            self.begin_stop()
            if self._draining is not None:
                self._draining.join()


def build(settings: ServeSettings) -> Service:
    """A service on the store that the settings name; ``memory://`` is a SQLite file that is deleted with it."""
    with ExitStack() as opened:
        url = settings.store
        if url == "memory://":
            folder = opened.enter_context(TemporaryDirectory(prefix="gradeline-"))
            url = str(Path(folder) / "store.db")
        workplace = opened.enter_context(open_workplace(settings))
        storage = opened.enter_context(open_storage(url))
        service = _assembled(settings, _shared(storage), workplace)
        service._closing = opened.pop_all()
        return service


def database_of(storage: Storage) -> Database:
    """The database of a store; one in memory has none."""
    return _shared(storage).database


def _shared(storage: Storage) -> SharedStorage:
    if not isinstance(storage, _WithDatabase):
        raise ConfigError(Problem("store", "a store in a database is needed here: sqlite:///path, or a path"))
    return cast("SharedStorage", storage)


def _assembled(settings: ServeSettings, storage: SharedStorage, workplace: Workplace) -> Service:
    database = storage.database
    keys = Keys(database, settings)
    secrets = Secrets(database, settings)
    secrets.hide(secret.value for secret in provider_secrets())
    egress = ServiceEgress(settings.allow_agent_net, local=lambda: is_loopback(settings.host) and not keys.exist())
    cases = TestCases(database)
    graders = StoredGraders(database, settings, egress)
    events = Events(database)
    runner = Runner(settings, storage, database, secrets, egress, events, workplace)
    maker = SuiteMaker(settings, storage, cases, graders, egress, secrets)
    return Service(
        settings=settings,
        storage=storage,
        database=database,
        secrets=secrets,
        keys=keys,
        sessions=Sessions(database, keys, settings),
        audit=Audit(database),
        audit_list=AuditList(database),
        egress=egress,
        metrics=_metrics(database, runner, events, egress),
        readiness=Readiness(database),
        cases=cases,
        graders=graders,
        events=events,
        results=Results(database, storage, settings),
        labels=Labels(database),
        runner=runner,
        evaluations=Evaluations(settings, storage, database, egress, secrets, events, runner, maker),
        trials=Trials(settings, storage, cases, egress, secrets, maker),
        retention=None if settings.retention is None else RetentionTask(storage, settings.retention),
    )


def _metrics(database: Database, runner: Runner, events: Events, egress: ServiceEgress) -> Metrics:
    def runs() -> dict[str, float]:
        return {
            state: float(count) for state, count in database.read("SELECT state, count(*) FROM jobs GROUP BY state")
        }

    metrics = Metrics()
    metrics.gauge(Gauge("gradeline_runs", "Runs of the service by state, in all its processes.", runs, "state"))
    metrics.gauge(Gauge("gradeline_queue_length", "Runs that wait.", runner.queue.waiting))
    metrics.gauge(Gauge("gradeline_runs_here", "Runs that this process works on.", lambda: runner.running))
    metrics.gauge(Gauge("gradeline_event_readers", "Open event streams.", lambda: events.readers))
    lease_age = "Seconds since the oldest heartbeat of a claimed run, in all processes; above the lease it is stuck."
    metrics.gauge(Gauge("gradeline_lease_age_seconds", lease_age, runner.queue.lease_age))
    deaths = "Worker processes of user code, and Ray workers, that died or were killed in runs of this process."
    metrics.gauge(Gauge("gradeline_worker_deaths_total", deaths, runner.worker_deaths.counts, "reason", kind="counter"))
    refusals = "Addresses refused by the egress policy, in requests and runs of this process."
    metrics.gauge(Gauge("gradeline_egress_refusals_total", refusals, egress.refusals.counts, "place", kind="counter"))
    metrics.gauge(Gauge("gradeline_draining", "1 while the service is stopping.", lambda: float(runner.stopping)))
    return metrics


def is_loopback(host: str) -> bool:
    """Whether a server bound to this host is reached from its own machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    service: Service = request.app.state.service
    return service


async def tried_in_pool(request: Request, work: Callable[[], T]) -> T:
    """Do what waits on an agent or a judge, within the caller's share of the threads for that."""
    pool: TrialPool = request.app.state.trials
    return await pool.run(caller_of(request).key_id or address_of(request.scope), work)


def recorder_of(request: Request, action: str) -> Recorder:
    """Records what a request does, in the transaction that does it."""
    return service_of(request).audit.recorder(caller_of(request), action)


def caller_of(request: Request) -> Caller:
    """Who sends a request."""
    caller: Caller = request.state.caller
    return caller
