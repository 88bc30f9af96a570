"""Evaluations: runs that the REST API starts, shows, cancels, resumes and deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from gradeline.engine.definition import RunDefinition, RunOptions, command, now
from gradeline.engine.early_stopping import in_run_order, include_all_cases, obstacle_warning
from gradeline.engine.orchestrate import RunRequest, plan_regrade, plan_runs
from gradeline.engine.prepare import PreparedRun
from gradeline.errors import ConfigError
from gradeline.model import Run, Sample, quote
from gradeline.rest_types import EarlyStop, Evaluation, EvaluationPage
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.auth import Caller
from gradeline.service.baselines import Baselines
from gradeline.service.claimed_run import CANCELLED
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.events import ENDED, STOPPED, EventBroker
from gradeline.service.requests import IdempotencyKeys, PageRequest
from gradeline.service.run_access import (
    ServiceEgress,
    check_document,
    limit_concurrency,
    open_secrets,
    run_access,
    suite_for_run,
)
from gradeline.service.run_cache import VerdictCache
from gradeline.service.run_list import RunFilter, RunList
from gradeline.service.runner import Runner
from gradeline.service.secrets import Secrets
from gradeline.service.settings import ServeSettings
from gradeline.service.suite_builder import (
    MAX_RESULTS,
    BuiltSuite,
    EvaluationRequest,
    SuiteBuilder,
    config_error,
    suite_yaml,
)
from gradeline.store.database import Database, SharedStorage, Transaction
from gradeline.store.maintenance import usage_of_run
from gradeline.store.queries import baseline_names, insert_run, insert_samples, read_run
from gradeline.store.sql_storage import response_source

DEFAULT_TIMEOUT_S = 30.0
"""Seconds of a call of an HTTP agent, by default."""
_RETRY = {"Retry-After": "5"}
_TAKEN_UP = "is resumed by the service itself; nothing has to be done"


class RunStorage(Struct, frozen=True):
    """The size of a run in the store."""

    rows: int
    estimated_bytes: int
    """Bytes of its values, without indexes and database overhead, as in `gradeline store usage`."""


class _DuplicateRequestError(Exception):
    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


class Evaluations:
    """Starts, resumes, cancels and deletes runs; `ServiceError` if that is not possible."""

    def __init__(
        self,
        settings: ServeSettings,
        storage: SharedStorage,
        database: Database,
        egress: ServiceEgress,
        secrets: Secrets,
        events: EventBroker,
        runner: Runner,
        suites: SuiteBuilder,
        baselines: Baselines,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._database = database
        self._egress = egress
        self._secrets = secrets
        self._events = events
        self._runner = runner
        self._queue = runner.queue
        self._suites = suites
        self._baselines = baselines
        self._keys = IdempotencyKeys(database)
        self._list = RunList(database)
        self._verdicts = VerdictCache(storage)

    def start(
        self, request: EvaluationRequest, caller: Caller, key: str | None = None, record: Recorder = unrecorded
    ) -> tuple[Evaluation, bool]:
        """Start a run; also returns True if the same request started it before."""
        body = msgspec.to_builtins(request)
        sender = caller.key_id or "local"
        with self._keys.during(sender, key):
            known = self._keys.known(sender, key, body)
            if known is None:
                self._require_room(self._queue.waiting())
                runs, samples, request = self._new_runs(request, caller)
                try:
                    self._database.transact(
                        lambda transaction: self._store(
                            transaction, runs, samples, request, (sender, key, body), record
                        )
                    )
                except _DuplicateRequestError as error:
                    known = error.run
        if known is not None:
            return self.get(known), True
        self._runner.wake()
        return self.get(runs[0].id), False

    def _store(
        self,
        transaction: Transaction,
        runs: Sequence[Run],
        samples: Sequence[Sample],
        request: EvaluationRequest,
        key: tuple[str, str | None, object],
        record: Recorder,
    ) -> None:
        """Store the runs, their cases, their places in the queue and the idempotency key in one transaction."""
        self._require_room(self._queue.waiting(transaction.run))
        stored_request = msgspec.json.encode(replace(request, suite=None, target=None)).decode()
        for run in runs:
            insert_run(transaction, run)
            insert_samples(transaction, run.id, in_run_order(run, samples))
            self._queue.add(transaction, run, stored_request)
            record(transaction, run.id, {"name": run.name})
        caller, name, body = key
        first = self._keys.store(transaction, caller, name, body, runs[0].id, now())
        if first != runs[0].id:
            raise _DuplicateRequestError(first)

    def _require_room(self, waiting: int) -> None:
        if waiting >= self._settings.queue_limit:
            message = f"{waiting:,} evaluations wait already; try again later"
            raise ServiceError(Code.RATE_LIMITED, message, headers=_RETRY)

    def _new_runs(
        self, request: EvaluationRequest, caller: Caller
    ) -> tuple[list[Run], list[Sample], EvaluationRequest]:
        """The runs, their cases, and the request with the id of its baseline."""
        made = self._suites.build(request, caller)
        request = self._with_baseline(request, str(made.document.get("name", "")))
        lead = "suite" if request.suite is not None else ""
        try:
            return asyncio.run(self._plan_runs(made, request)), made.samples, request
        except ConfigError as error:
            raise config_error(error, lead) from None

    def _with_baseline(self, request: EvaluationRequest, suite: str) -> EvaluationRequest:
        """The request with the id of the run that ``baseline_id`` names, by id or as a baseline of the suite."""
        if request.baseline_id is None:
            return request
        try:
            return replace(request, baseline_id=self._baselines.find(request.baseline_id, suite).id)
        except ServiceError:
            unknown = (
                f"no evaluation {quote(request.baseline_id, 60)}, and no baseline of {quote(suite, 60)} with this name"
            )
            errors = [{"field": "baseline_id", "message": unknown}]
            message = f"Field 'baseline_id': {unknown}"
            raise ServiceError(Code.INVALID_INPUT, message, details={"errors": errors}) from None

    async def _plan_runs(self, made: BuiltSuite, request: EvaluationRequest) -> list[Run]:
        """A run for each variant, as it is stored; the runner executes it."""
        secrets = open_secrets(made.document, self._secrets)
        suite = suite_for_run(made.document, secrets, self._settings)
        access = run_access(secrets, self._egress, self._settings.max_concurrency)
        run_request = RunRequest(
            suite,
            RunOptions(tags=() if made.tag is None else (made.tag,)),
            baseline=request.baseline_id,
            stop_early=request.stop_early,
            document=made.document,
            samples=made.samples,
        )
        async with plan_runs(self._storage, run_request, access=access) as specs:
            for spec in specs:
                _check_cases(spec.prepared, made.samples)
                total = len(made.samples) * spec.run.repeats
                if total > MAX_RESULTS:
                    raise ServiceError(Code.INVALID_INPUT, f"{total:,} results are too many; at most {MAX_RESULTS:,}")
            return [spec.run for spec in specs]

    def get(self, run: str) -> Evaluation:
        """One evaluation with its progress and its results."""
        now_ = self._events.run_state(run)
        request, outcome = self._list.requests([run]).get(run, (None, None))
        shown = _shown(now_.run, request, now_.progress.answered)
        verdict, comparison = (outcome or {}).get("verdict"), (outcome or {}).get("comparison")
        judged = any(grader.judges for grader in now_.run.graders.values())
        if now_.run.status == "completed" and (request is None or judged):
            # the verdict on a judged run changes with what is known of the judge
            verdict = self._verdicts.get(now_.run) or verdict
        return replace(
            shown,
            baselines=baseline_names(self._database.read, [run]).get(run, ()),
            progress=now_.progress,
            held_by_service=now_.in_queue,
            verdict=verdict,
            comparison=comparison,
        )

    def storage(self, run: str) -> RunStorage:
        """The size of a run in the store; all its rows are read."""
        found = usage_of_run(self._database, run)
        if found is None:
            raise not_found("evaluation", run)
        return RunStorage(found.rows, found.bytes)

    def page(self, page: PageRequest, where: RunFilter) -> EvaluationPage:
        """A page of the list, the newest first."""
        found = self._list.page(page, where)
        ids = [run.id for run in found.runs]
        kept, counts = self._list.requests(ids), self._list.result_counts(found.runs)
        rates = self._list.pass_rates(found.runs, counts)
        names = baseline_names(self._database.read, ids)
        shown = [_shown(run, kept.get(run.id, (None, None))[0], counts[run.id]) for run in found.runs]
        return EvaluationPage(
            evaluations=[
                replace(one, test_case_ids=None, pass_rates=rates[one.id], baselines=names.get(one.id, ()))
                for one in shown
            ],
            count=len(shown),
            total=found.total,
            total_is_capped=True if found.capped else UNSET,
            next_cursor=found.next_cursor,
        )

    def suite(self, run_id: str) -> str:
        """The run's suite as YAML, with its cases."""
        run = self._required(run_id)
        document = RunDefinition.of(run).document if run.definition else None
        if document is None:
            raise ServiceError(Code.NOT_FOUND, f"The evaluation {quote(run_id, 60)} keeps no suite: it has a file")
        return suite_yaml(document, self._storage.samples(response_source(self._database.read, run_id)))

    def cancel(self, run_id: str, record: Recorder = unrecorded) -> Evaluation:
        """Cancel a run; calls in flight are finished first."""
        self._required(run_id)
        if self._queue.cancel(run_id, CANCELLED, record) is None:
            run = self._required(run_id)
            raise _conflict(run, "cannot be cancelled" if run.status in ENDED else _no_job(run))
        self._events.changed(run_id)
        self._runner.wake()
        return self.get(run_id)

    def resume(
        self, run_id: str, caller: Caller, record: Recorder = unrecorded, *, all_cases: bool = False
    ) -> Evaluation:
        """Resume a run that was cancelled or interrupted, or failed: what is missing is called and graded.

        With ``all_cases`` also one that ended early: it runs the skipped cases, without interim looks.
        """
        self._check_secrets(self._required(run_id), caller)

        def resumable(run: Run) -> Run:
            stopped = run.early is not None and run.early.stopped
            if run.status == "completed" and all_cases and stopped:
                return _with_all_cases(run)
            if run.status in ("cancelled", "failed", "interrupted"):
                return _with_all_cases(run) if all_cases else run
            why_not = "cannot be resumed"
            if run.status == "completed" and all_cases:
                why_not = "did not end early: no case is left to run"
            elif run.status == "completed" and stopped:
                why_not = 'cannot be resumed; it ended early, so send {"all": true} to run its other cases'
            raise _conflict(run, why_not)

        details = {"all": True} if all_cases else None
        return self._again(run_id, resumable, partial(record, details=details), options=("--all",) * all_cases)

    def retry_failed(self, run_id: str, caller: Caller, record: Recorder = unrecorded) -> Evaluation:
        """Repeat failed calls, and failed grades."""
        run = self._required(run_id)
        self._check_secrets(run, caller)
        counts = self._storage.counts(run_id)
        failed = sum(count for status, count in counts.responses.items() if status != "success")
        errors = sum(grader.outcomes["error"] for grader in counts.graders.values())
        if run.status in STOPPED and not failed + errors:
            raise _conflict(run, "has nothing that failed")

        def retriable(run: Run) -> Run:
            if run.status not in STOPPED:
                raise _conflict(run, "cannot be retried")
            return run

        return self._again(run_id, retriable, record, retry_failed=True)

    def _again(
        self,
        run_id: str,
        continued: Callable[[Run], Run],
        record: Recorder,
        *,
        retry_failed: bool = False,
        options: Sequence[str] = (),
    ) -> Evaluation:
        """Queue a run again, as ``continued`` returns it; ``options`` are those of ``gradeline resume``."""

        def work(transaction: Transaction) -> None:
            run = read_run(transaction, run_id)
            if run is None:
                raise not_found("evaluation", run_id)
            new = continued(run)
            self._require_room(self._queue.waiting(transaction.run))
            if self._queue.add_again(transaction, new, retry_failed=retry_failed) is None:
                elsewhere = self._queue.state(transaction, run_id) is None
                raise _conflict(run, _no_job(run, *options) if elsewhere else _TAKEN_UP)
            record(transaction, run_id)

        self._required(run_id)
        self._database.transact(work)
        self._events.changed(run_id)
        self._runner.wake()
        return self.get(run_id)

    def _check_secrets(self, run: Run, caller: Caller) -> None:
        document = RunDefinition.of(run).document if run.definition else None
        if document is not None and run.status in STOPPED:
            check_document(document, self._secrets, caller, calls_target=run.parent is None)

    def regrade(
        self,
        run_id: str,
        grader_ids: Sequence[str | Mapping[str, Any]],
        caller: Caller,
        name: str | None = None,
        record: Recorder = unrecorded,
    ) -> Evaluation:
        """A new run that grades the responses of a run with other graders; the agent is not called."""
        parent = self._required(run_id)
        if parent.status not in STOPPED:
            raise _conflict(parent, "cannot be regraded before it ends")
        document = self._regraded(parent, self._suites.build_graders(grader_ids, caller))
        try:
            new = asyncio.run(self._plan_regrade(parent, document, name))
        except ConfigError as error:
            raise config_error(error) from None
        total = self._events.run_state(run_id).progress.answered
        run = replace(new, total=total)
        request = EvaluationRequest(grader_ids=list(map(_plain, grader_ids)), name=name)

        def work(transaction: Transaction) -> None:
            self._require_room(self._queue.waiting(transaction.run))
            insert_run(transaction, run)
            self._queue.add(transaction, run, msgspec.json.encode(request).decode())
            record(transaction, run.id, {"parent": run_id})

        self._database.transact(work)
        self._runner.wake()
        return self.get(run.id)

    def _regraded(self, parent: Run, graders: dict[str, Any]) -> dict[str, Any]:
        """The parent's suite with other graders, without its gate, which is about the former ones."""
        document = RunDefinition.of(parent).document if parent.definition else None
        if document is None:
            document = {"name": parent.suite, "target": {"kind": "replay", "run": parent.id}, "dataset": []}
        return {**{key: value for key, value in document.items() if key not in ("gate", "reward")}, "graders": graders}

    async def _plan_regrade(self, parent: Run, document: dict[str, Any], name: str | None) -> Run:
        secrets = open_secrets(document, self._secrets, calls_target=False)
        suite = suite_for_run(document, secrets, self._settings)
        access = run_access(secrets, self._egress, self._settings.max_concurrency)
        options = limit_concurrency(RunOptions(repeats=parent.repeats, variant=parent.variant), suite, self._settings)
        planning = plan_regrade(
            self._storage, parent, suite, options, name or parent.name, document=document, access=access
        )
        async with planning as spec:
            return spec.run

    def delete(self, run_id: str, record: Recorder = unrecorded) -> None:
        """Delete a run with all its rows."""
        run = self._required(run_id)
        states = self._database.read("SELECT state FROM jobs WHERE run = ?", run_id)
        if run.status == "running" or any(state != "done" for (state,) in states):
            raise _conflict(run, "cannot be deleted; cancel it first")
        try:
            self._storage.delete_run(run_id, lambda transaction: record(transaction, run_id))
        except ConfigError as error:
            raise ServiceError(Code.CONFLICT, str(error)) from None
        self._events.changed(run_id)

    def _required(self, run_id: str) -> Run:
        run = self._storage.get_run(run_id)
        if run is None:
            raise not_found("evaluation", run_id)
        return run


def _check_cases(prepared: PreparedRun, samples: Sequence[Sample]) -> None:
    for sample in samples:
        problems = prepared.target.problems_with(sample)
        if problems:
            raise ConfigError([problem.within("target") for problem in problems], f"case {quote(sample.case_key)}")


def _no_job(run: Run, *options: str) -> str:
    resume = command("resume", run.id, None, *options)
    return f"was started by the command line, not here; continue there with: {resume}"


def _with_all_cases(run: Run) -> Run:
    try:
        return include_all_cases(run)
    except ConfigError:
        parent = quote(run.parent)
        why = f"grades the responses of {parent}; resume that evaluation with all its cases, then regrade it"
        raise _conflict(run, why) from None


def _conflict(run: Run, why: str) -> ServiceError:
    return ServiceError(Code.CONFLICT, f"The evaluation {quote(run.id)} is {run.status} and {why}")


def _plain(entry: str | Mapping[str, Any]) -> str | dict[str, Any]:
    return entry if isinstance(entry, str) else dict(entry)


def _timeout_s(run: Run, request: EvaluationRequest) -> float | None:
    """The timeout of each call of the agent; None if the target has another option for it."""
    timeout = request.timeout_s if request.timeout_s is not None else run.target.get("timeout")
    if isinstance(timeout, int | float):
        return float(timeout)
    return DEFAULT_TIMEOUT_S if run.target.get("kind") == "http" else None


def _early_stop(run: Run) -> EarlyStop | None:
    early = run.early
    return EarlyStop(early.look, early.n, early.of) if early is not None and early.stopped else None


def _warnings(run: Run) -> tuple[str, ...]:
    """The run's warnings, and why it does not stop early; the verdict of a completed run has that."""
    obstacle = None if run.status == "completed" else obstacle_warning(run)
    return run.warnings if obstacle is None else (*run.warnings, obstacle)


def _shown(run: Run, request: EvaluationRequest | None, results: int) -> Evaluation:
    request = request or EvaluationRequest()
    url = run.target.get("url")
    return Evaluation(
        id=run.id,
        name=run.name,
        status=run.status,
        agent_endpoint_url=url if isinstance(url, str) else None,
        target={key: value for key, value in run.target.items() if key != "fingerprint"},
        variant=UNSET if run.variant is None else run.variant,
        test_case_ids=request.test_case_ids,
        tag=request.tag,
        grader_ids=list(run.graders),
        repeats=run.repeats,
        concurrency=request.concurrency,
        timeout_s=_timeout_s(run, request),
        baseline_id=request.baseline_id,
        stop_early=request.stop_early,
        stopped=_early_stop(run),
        calls_saved=run.calls_saved,
        warnings=_warnings(run),
        started_at=run.started_at,
        completed_at=run.completed_at,
        result_count=results,
        error_message=run.error_message,
        group=run.group,
        parent=run.parent,
    )
