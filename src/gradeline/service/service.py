"""The service: its parts, how they are built, and how requests reach them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import TypeVar

from starlette.requests import Request

from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.model import Storage
from gradeline.rest_types import utc_timestamp
from gradeline.service import queue
from gradeline.service.audit import AUDIT_STEPS, Audit, AuditList, Recorder
from gradeline.service.auth import KEY_STEPS, SESSION_STEPS, ApiKeys, Caller, Sessions
from gradeline.service.baselines import Baselines
from gradeline.service.evaluations import Evaluations
from gradeline.service.events import EVENT_STEPS, EventBroker
from gradeline.service.graders import GRADER_STEPS, StoredGraders
from gradeline.service.label_samples import LabelSamples
from gradeline.service.labels import Labels
from gradeline.service.limits import TrialPool, address_of
from gradeline.service.requests import IDEMPOTENCY_STEPS
from gradeline.service.results import Results
from gradeline.service.retention import RetentionTask
from gradeline.service.run_access import ServiceEgress, provider_secrets
from gradeline.service.run_cache import RUN_CACHE_STEPS
from gradeline.service.runner import RunEngine, Runner, open_run_engine
from gradeline.service.secrets import SECRET_STEPS, Secrets
from gradeline.service.settings import ServeSettings
from gradeline.service.suite_builder import SuiteBuilder
from gradeline.service.telemetry import Gauge, ServiceMetrics
from gradeline.service.test_cases import TEST_CASE_STEPS, TestCases
from gradeline.service.trials import Trials
from gradeline.service.uploads import UPLOAD_STEPS, Uploads
from gradeline.store import InMemoryStorage, open_storage
from gradeline.store.backup import Parts
from gradeline.store.database import Database, Dialect, SharedStorage, Transaction, migrate
from gradeline.store.labels import LABEL_STEPS
from gradeline.store.route_log import ROUTE_STEPS
from gradeline.store.trust_records import TRUST_STEPS

_CHECK_INTERVAL_S = 1.0


def _tables(transaction: Transaction, _: Dialect) -> None:
    transaction.run("CREATE TABLE readiness (name TEXT PRIMARY KEY, at TEXT NOT NULL)")


READINESS_STEPS = (_tables,)


class Readiness:
    """Checks that the store can be written, at most once a second: anyone may send the request."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = Lock()
        self._checked = float("-inf")
        self._failure: StoreError | None = None
        migrate(database, "readiness", READINESS_STEPS)

    def check(self) -> None:
        """Raise `StoreError` while the store cannot be written."""
        with self._lock:
            if self._clock() - self._checked >= _CHECK_INTERVAL_S:
                self._failure = self._write()
                self._checked = self._clock()
        if self._failure is not None:
            raise self._failure

    def _write(self) -> StoreError | None:
        statement = "INSERT INTO readiness (name, at) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET at = excluded.at"
        now = utc_timestamp(time.time())
        try:
            self._database.transact(lambda transaction: transaction.run(statement, "service", now))
        except StoreError as error:
            return error
        return None


T = TypeVar("T")


@dataclass(slots=True, repr=False)
class Service:
    """A service; after `start` it executes runs. `stop` may be called twice."""

    settings: ServeSettings
    storage: SharedStorage
    database: Database
    secrets: Secrets
    keys: ApiKeys
    sessions: Sessions
    audit: Audit
    audit_list: AuditList
    egress: ServiceEgress
    metrics: ServiceMetrics
    readiness: Readiness
    cases: TestCases
    graders: StoredGraders
    events: EventBroker
    results: Results
    labels: Labels
    label_samples: LabelSamples
    runner: Runner
    baselines: Baselines
    uploads: Uploads
    evaluations: Evaluations
    trials: Trials
    retention: RetentionTask | None
    _closing: ExitStack = field(default_factory=ExitStack)
    _draining: Thread | None = None

    @property
    def local(self) -> bool:
        """Local mode, in which no key is needed: bound to loopback, and no key was ever created."""
        return is_loopback(self.settings.host) and not self.keys.exist()

    def start(self) -> None:
        """Start to execute the queued runs."""
        self.runner.start()
        if self.retention is not None:
            self.retention.start()

    @property
    def draining(self) -> bool:
        """Whether a stop has begun."""
        return self._draining is not None

    @property
    def drained(self) -> bool:
        """Whether a stop has begun and no run is in progress any more."""
        return self._draining is not None and not self._draining.is_alive()

    def begin_stop(self) -> None:
        """Claim no more runs, and end event streams, whose connections would delay the stop."""
        if self._draining is None:
            self.events.close()
            if self.retention is not None:
                self.retention.stop()
            self._draining = Thread(target=self.runner.stop, args=(self.settings.drain_s,), name="gradeline-drain")
            self._draining.start()

    def stop(self) -> None:
        """Let calls in flight finish within `drain_s`, release unfinished runs, and close the store."""
        with self._closing:
            self.begin_stop()
            if self._draining is not None:
                self._draining.join()


def build_service(settings: ServeSettings) -> Service:
    """A service on the store that the settings name; ``memory://`` is a SQLite file that is deleted with it."""
    with ExitStack() as opened:
        url = settings.store
        if url == "memory://":
            folder = opened.enter_context(TemporaryDirectory(prefix="gradeline-"))
            url = str(Path(folder) / "store.db")
        engine = opened.enter_context(open_run_engine(settings))
        storage = opened.enter_context(open_storage(url))
        service = _wire(settings, _shared(storage), engine)
        service._closing = opened.pop_all()
        return service


def database_of(storage: Storage) -> Database:
    """The database of a store; `ConfigError` for one in memory, which no other process could read."""
    return _shared(storage).database


def _shared(storage: Storage) -> SharedStorage:
    if not isinstance(storage, SharedStorage) or isinstance(storage, InMemoryStorage):
        raise ConfigError(
            Problem("store", "memory:// ends with this process; use a path, sqlite:///path or postgresql://")
        )
    return storage


def _wire(settings: ServeSettings, storage: SharedStorage, engine: RunEngine) -> Service:
    database = storage.database
    keys = ApiKeys(database, settings)
    secrets = Secrets(database, settings)
    secrets.hide(secret.value for secret in provider_secrets())
    egress = ServiceEgress(settings.allow_agent_net, local=lambda: is_loopback(settings.host) and not keys.exist())
    cases = TestCases(database)
    graders = StoredGraders(database, settings, egress)
    events = EventBroker(database)
    runner = Runner(settings, storage, database, secrets, egress, events, engine)
    suites = SuiteBuilder(settings, storage, cases, graders, egress, secrets)
    baselines = Baselines(database, storage)
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
        label_samples=LabelSamples(storage),
        runner=runner,
        baselines=baselines,
        uploads=Uploads(storage, secrets, events, settings),
        evaluations=Evaluations(settings, storage, database, egress, secrets, events, runner, suites, baselines),
        trials=Trials(settings, storage, cases, egress, secrets, suites),
        retention=None if settings.retention is None else RetentionTask(storage, settings.retention),
    )


def _metrics(database: Database, runner: Runner, events: EventBroker, egress: ServiceEgress) -> ServiceMetrics:
    def runs() -> dict[str, float]:
        return {
            state: float(count) for state, count in database.read("SELECT state, count(*) FROM jobs GROUP BY state")
        }

    metrics = ServiceMetrics()
    metrics.gauge(Gauge("gradeline_runs", "Runs of the service by state, in all its processes.", runs, "state"))
    metrics.gauge(Gauge("gradeline_queue_length", "Queued runs.", runner.queue.waiting))
    metrics.gauge(Gauge("gradeline_runs_here", "Runs in progress in this process.", lambda: runner.running))
    metrics.gauge(Gauge("gradeline_event_readers", "Open event streams.", lambda: events.readers))
    lease_age = "Seconds since the oldest heartbeat of a claimed run, in all processes; a run above the lease is stuck."
    metrics.gauge(Gauge("gradeline_lease_age_seconds", lease_age, runner.queue.lease_age))
    deaths = "Worker processes of user code, and Ray workers, that died or were killed in runs of this process."
    metrics.gauge(Gauge("gradeline_worker_deaths_total", deaths, runner.worker_deaths.counts, "reason", kind="counter"))
    refusals = "Addresses refused by the egress policy, in requests and runs of this process."
    metrics.gauge(Gauge("gradeline_egress_refusals_total", refusals, egress.refusals.counts, "place", kind="counter"))
    metrics.gauge(Gauge("gradeline_draining", "1 while the service is stopping.", lambda: float(runner.stopping)))
    return metrics


def is_loopback(host: str) -> bool:
    """Whether a server bound to this host can be reached only from its own machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def service_of(request: Request) -> Service:
    """The service that handles a request."""
    service: Service = request.app.state.service
    return service


async def run_in_trial_pool(request: Request, work: Callable[[], T]) -> T:
    """Run work that waits for an agent or a judge, within the caller's share of the threads for it."""
    pool: TrialPool = request.app.state.trials
    return await pool.run(caller_of(request).key_id or address_of(request.scope), work)


def recorder_of(request: Request, action: str) -> Recorder:
    """A recorder for the audit log, used in the transaction that makes the change."""
    return service_of(request).audit.recorder(caller_of(request), action)


def caller_of(request: Request) -> Caller:
    """The caller of a request."""
    caller: Caller = request.state.caller
    return caller


PARTS: Parts = {
    "audit": AUDIT_STEPS,
    "events": EVENT_STEPS,
    "graders": GRADER_STEPS,
    "idempotency": IDEMPOTENCY_STEPS,
    "keys": KEY_STEPS,
    "labels": LABEL_STEPS,
    "queue": queue.STEPS,
    "readiness": READINESS_STEPS,
    "routes": ROUTE_STEPS,
    "run_cache": RUN_CACHE_STEPS,
    "secrets": SECRET_STEPS,
    "sessions": SESSION_STEPS,
    "test_cases": TEST_CASE_STEPS,
    "trust": TRUST_STEPS,
    "uploads": UPLOAD_STEPS,
}
"""The migrations of all tables of the service, by part, for copying a store without starting a service."""
