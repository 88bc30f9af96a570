"""A store with rows in every table, those of the service included."""

from __future__ import annotations

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.model.label import HumanVerdict
from gradeline.model.observation import Observation
from gradeline.model.route import LoggedRequest, RequestOutcome
from gradeline.service.auth import Caller, KeyScope
from gradeline.service.secrets import Binding
from gradeline.service.service import PARTS, build_service
from gradeline.service.settings import ServeSettings
from gradeline.store.backup import TableCopy
from gradeline.store.database import SharedStorage, Transaction, tables_of
from gradeline.store.labels import LabelDraw, put_draws
from gradeline.store.route_log import create_route_tables, put_outcomes, put_requests
from gradeline.store.trust_records import TrustRecord, put_record

MASTER_KEY = b"a master key of the tests, long enough"
SECRET = "sk-secret-of-the-tests"
CHECKS = [{"condition": "contains", "value": "☃"}]
GRADE = Grade("exact", "f1", Outcome.PASS, 1.0, True)
BOOKKEEPING = {"deleted_runs", "parts", "schema_version"}


def fill(store: str, runs: int = 2, cases: int = 6) -> list[str]:
    """The ids of the runs; the first one is the parent of the last one."""
    service = build_service(ServeSettings(store=store, secret_key=MASTER_KEY))
    try:
        storage, database = service.storage, service.database
        run_ids = [_run(storage, f"run {n}", cases) for n in range(runs)]
        child = storage.save_run(
            Run(name="again", suite="s", parent=run_ids[0], graders={"exact": RunGrader("exact", "f1")})
        )
        storage.put_grade(GradeKey(child, "case-1", 0, "exact"), GRADE)
        storage.put_clusters(run_ids[0], [(f"case-{case}", f"document {case % 2}") for case in range(cases)])
        for run in (run_ids[0], child):
            storage.claim_run(run, "elsewhere:1:2", None)
            storage.update_run(run, status="completed", owner=None, completed_at="2026-01-02T00:00:00Z")
        first = storage.get_run(run_ids[0])
        record = storage.get_record(ResponseKey(run_ids[0], "case-1"))
        assert first is not None
        assert record is not None
        service.labels.put(first, record, "exact", HumanVerdict("pass", "right"), "me")
        drawn = LabelDraw(
            *("random-1", "exact", 0, "case-1", 0, "random", 1, 0.5, "pass", 6, 6, "2026-01-02T00:00:00Z"),
        )
        database.transact(lambda transaction: put_draws(transaction, run_ids[0], [drawn]))
        for n in range(3):
            case = service.cases.create(
                {"input": f"Question {n} ☃", "expected_output": "x", "tags": ["a"], "checks": CHECKS}
            )
            if n == 0:
                service.cases.delete(case.id)
        service.graders.create({"name": "Short", "type": "custom-rules", "config": RULES})
        key, _ = service.keys.create(KeyScope.ADMIN, "me")
        service.sessions.open(key)
        service.secrets.put("agent", SECRET, Binding(("agent.example",)))
        service.audit.note(Caller(None, KeyScope.ADMIN, "r"), "key.create", key.id, {})
        service.readiness.check()
        for run in run_ids:
            found = storage.get_run(run)
            assert found is not None

            def waits(transaction: object, found: Run = found) -> None:
                service.runner.queue.add(transaction, found, '{"baseline_id": null}')  # type: ignore[arg-type]
                transaction.run(  # type: ignore[attr-defined]
                    "INSERT INTO idempotency_keys (caller, name, digest, run, created_at) VALUES ('c', ?, 'd', ?, 'now')",
                    found.id,
                    found.id,
                )
                # stored for large runs only
                transaction.run(  # type: ignore[attr-defined]
                    "INSERT INTO run_cache (run, name, version, value) VALUES (?, 'statistics', 'v', '{}')", found.id
                )

            database.transact(waits)
        database.transact(_import_under_way)
        database.transact(lambda transaction: _upload(transaction, run_ids[0]))
        storage.put_observations([_observation(n) for n in range(5)])
        create_route_tables(storage)
        put_requests(database, [LoggedRequest("r", "route", "now", "f", "a", "{}", "a", 0, "", "[]", None, None)])
        put_outcomes(database, [RequestOutcome("r", 1.0, "label", "now")])
        put_record(storage, TrustRecord("calibration", "s", "exact", "f1", "2026-01-02T00:00:00Z", "{}"))
        storage.set_baseline("main", first, by="me", at="2026-01-02T00:00:00Z")
        tables = database.snapshot(lambda transaction: tables_of(transaction, database.dialect))
        empty = [name for name in tables if not database.read(f'SELECT 1 FROM "{name}" LIMIT 1')]
        assert set(empty) <= BOOKKEEPING, f"nothing is in {empty}"
        assert {name for (name,) in database.read("SELECT name FROM parts")} == set(PARTS)
        return [*run_ids, child]
    finally:
        service.stop()


def _upload(transaction: Transaction, run: str) -> None:
    transaction.run(
        "INSERT INTO uploads (run, digest, cases, received, so_far, size, started_at, completed_at)"
        " VALUES (?, 'd', 6, 6, 'd', 100, '2026-01-02T00:00:00Z', '2026-01-02T00:00:00Z')",
        run,
    )


def _import_under_way(transaction: Transaction) -> None:
    transaction.run(
        "INSERT INTO case_imports (id, owner, at, complete) VALUES ('i', 'elsewhere:1:2', '2026-01-01 00:00:00', 0)"
    )
    transaction.run("INSERT INTO imported_cases (import, id, test_case) VALUES ('i', 'c', '{}')")


RULES = {"rules": [{"condition": "contains", "value": "x"}]}


def _run(storage: SharedStorage, name: str, cases: int) -> str:
    run = storage.save_run(Run(name=name, suite="s", status="completed", graders={"exact": RunGrader("exact", "f1")}))
    for case in range(cases):
        for text in ("first", "second, of which the first stays in the history: é ☃ 😀"):
            key = ResponseKey(run, f"case-{case}")
            storage.put_response(key, Response(text=text, latency_ms=case / 3), Sample(key.case, "q"), case)
            storage.put_grade(GradeKey(*key, "exact"), GRADE, submission=text)
    return run


def _observation(number: int) -> Observation:
    return Observation(
        task_family="f",
        baseline_adapter="a",
        candidate_adapter="b",
        grader_id="exact",
        grader_fingerprint="f1",
        score=None if number == 4 else number / 4,
        baseline_digest="1",
        candidate_digest="2",
        calibration_state="calibrated",
        observed_at="2026-01-01T00:00:00Z",
        idempotency_key=f"k{number}",
        case_key=None if number == 0 else f"c{number % 2}",
    )


def rows_by_table(copied: list[TableCopy]) -> dict[str, int]:
    return {one.name: one.rows for one in copied}
