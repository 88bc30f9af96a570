"""The PostgreSQL store: what it refuses, and what survives lost servers, killed clients and clients at the same work."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import asyncpg
import pytest

from gradeline.errors import ConfigError
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample
from gradeline.model.observation import new_observation
from gradeline.model.sample import TestCase
from gradeline.store import PostgresStorage, Run, StoreError, maintenance, open_storage, postgres_schema
from gradeline.store.postgres_connections import PostgresConnectionPool, PostgresUrl, numbered, read_url, take_time
from gradeline.store.postgres_records import (
    GRADE_COLUMNS,
    KEY_PAGE,
    KEYS_OF_CASES,
    MEASURE_PAGE,
    PAGE_ROWS,
    RECORD,
    RECORD_PAGE,
    RESPONSE_COLUMNS,
    SAMPLE_PAGE,
    put_rows,
)
from gradeline.store.postgres_schema import MIGRATIONS, migrate
from gradeline.store.rows import RecordRow, Tally, counts_of, grade_row, response_row, score_units
from postgres_server import Server, execute, why_no_server

RESPONSES, GRADES = "responses_pkey", "grades_pkey"


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStorage]:
    with PostgresStorage(postgres_url) as storage:
        yield storage


def put(storage: PostgresStorage, run: str, case: int | str, text: str = "Paris") -> None:
    storage.put_response(ResponseKey(run, str(case)), Response(text=text), Sample(case, "capital of France?"))


def graded(run: str, cases: Sequence[str], score: float = 1.0) -> list[RecordRow]:
    """Rows of answers, and of a grade for each."""
    outcome = Outcome.PASS if score >= 0.5 else Outcome.FAIL
    grade = Grade(kind="k", fingerprint="f", outcome=outcome, score=score, passed=score >= 0.5)
    keys = [ResponseKey(run, case) for case in cases]
    responses = [response_row(key, Response(text="a"), Sample(0, "q"), place, None) for place, key in enumerate(keys)]
    return [*responses, *(grade_row(GradeKey(*key, "g"), grade, None) for key in keys)]


def reached_by(plan: dict[str, Any]) -> Iterator[str]:
    """The indexes of a plan; a table that is read as a whole counts as one."""
    if "Index Name" in plan:
        yield plan["Index Name"]
    elif plan["Node Type"] == "Seq Scan":
        yield f"all of {plan['Relation Name']}"
    for part in plan.get("Plans", ()):
        yield from reached_by(part)


def check_intact(url: str, run: str) -> set[tuple[str, int]]:
    """The keys are unique and the counts equal the rows; returns the keys of the responses."""
    with PostgresStorage(url) as storage:
        records = list(storage.records(run))
        keys = [(record.case, record.repeat) for record in records]
        assert len(set(keys)) == len(keys)
        assert storage.counts(run) == counts_of(
            [(record.response.status, 1) for record in records],
            [
                Tally(grader, grade.outcome.value, 1, *score_units(grade.score))
                for record in records
                for grader, grade in record.grades.items()
            ],
        )
    return set(keys)


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "place"),
        [
            ("postgresql://me:secret@db.example:5433/evals", "postgresql://db.example:5433/evals"),
            ("postgres://me:secret@[::1]/evals?sslmode=require", "postgresql://[::1]/evals"),
            ("postgresql+asyncpg://db/evals?password=secret", "postgresql://db/evals"),
            ("postgresql:///evals?host=/var/run/postgresql", "postgresql:///var/run/postgresql/evals"),
            ("postgresql://me:se%2Fcret@a:1,b:2/evals", "postgresql://a:1,b:2/evals"),
        ],
    )
    def test_its_place_contains_no_secret(self, url: str, place: str) -> None:
        found = read_url(url)
        assert found.location == place
        assert repr(found) == f"PostgresUrl({place!r})"

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("postgresql://me:secret@host", "names no database; write postgresql://user@host:5432/database"),
            ("postgresql://me:pa/secret@host/db", "cannot be parsed; write '@', ':'"),
            ("postgresql://me:secret@secret@host/db", "cannot be parsed; write '@', ':'"),
            ("postgresql://me:#secret@host/db", "cannot be parsed; write '@', ':'"),
            ("postgresql://host:secret/db", "cannot be parsed; write '@', ':'"),
            ("postgresql://host/db?secret", "cannot be parsed; write '@', ':'"),
            ("postgresql://host/db?sslmode=secret", "invalid option in the URL of postgresql://host/db"),
        ],
    )
    def test_an_invalid_url_is_reported_without_being_shown(self, url: str, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            open_storage(url)
        assert message in str(caught.value)
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_options_of_the_store_are_not_sent_to_the_server(self) -> None:
        plain = read_url("postgresql://me@db/evals?sslmode=require")
        assert (plain.pool_size, plain.statement_seconds) == (8, 60.0)
        url = read_url("postgresql://me@db/evals?pool_size=3&sslmode=require&statement_timeout=1500")
        assert url == PostgresUrl("postgresql://me@db/evals?sslmode=require", "postgresql://db/evals", 3, 1.5)
        assert read_url("postgresql://me@db/evals?pool_size=3").dsn == "postgresql://me@db/evals"

    @pytest.mark.parametrize("option", ["pool_size=0", "pool_size=101", "pool_size=-1", "pool_size=many"])
    def test_an_invalid_number_of_connections_is_refused(self, option: str) -> None:
        with pytest.raises(ConfigError, match="pool_size in the URL of the PostgreSQL store must be a whole number"):
            open_storage(f"postgresql://me:secret@db/evals?{option}")

    @pytest.mark.parametrize("option", ["statement_timeout=0", "statement_timeout=1s", "statement_timeout=²"])
    def test_an_invalid_timeout_is_refused(self, option: str) -> None:
        with pytest.raises(ConfigError, match=r"statement_timeout .* a whole number .* \(milliseconds\)"):
            open_storage(f"postgresql://me:secret@db/evals?{option}")

    def test_a_server_that_cannot_be_reached(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="cannot be reached; check that the server runs") as caught:
            PostgresStorage(f"postgresql://me:secret@/db?host={tmp_path}")
        assert caught.value.retryable
        assert "secret" not in str(caught.value)

    def test_a_database_that_does_not_exist(self, postgres_url: str) -> None:
        name = postgres_url.partition("?")[0].rpartition("/")[2]
        with pytest.raises(StoreError, match="does not exist; create the database with: createdb") as caught:
            PostgresStorage(postgres_url.replace(f"/{name}", "/nowhere"))
        assert not caught.value.retryable


def test_its_repr_names_only_the_place(store: PostgresStorage) -> None:
    assert repr(store) == f"PostgresStorage({store.location!r})"
    assert "gradeline@" not in repr(store)


def test_nothing_loads_the_driver_before_it_is_needed(tmp_path: Path) -> None:
    script = (
        "import sys, gradeline, gradeline.store\n"
        "gradeline.store.open_storage(sys.argv[1]).close()\n"
        "assert 'asyncpg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "store.db")], check=True)


def test_without_the_driver_the_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "import gradeline.store\n"
        "for act in (lambda: gradeline.store.open_storage('postgres://me:secret@host/db'), "
        "lambda: gradeline.store.PostgresStorage):\n"
        "    try: act()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    report = "a PostgreSQL store needs the extra 'postgres': pip install 'gradeline[postgres]'"
    assert done.stdout.splitlines() == [f"ConfigError store: {report}", f"ImportError {report}"]


class TestDatabase:
    def test_stored_rows_exist_after_reopening(self, postgres_url: str) -> None:
        with PostgresStorage(postgres_url) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            put(storage, run, 1)
        with PostgresStorage(postgres_url) as storage:
            assert [record.response for record in storage.records(run)] == [Response(text="Paris")]

    def test_texts_are_stored_byte_for_byte(self, store: PostgresStorage) -> None:
        run = store.save_run(Run(name="n", suite="s"))
        store.put_response(
            ResponseKey(run, "1"), Response(text="1.0e0 \\u0000 é"), Sample(1, "q", metadata={"b": 1.50, "a": {}})
        )
        stored = store._read("SELECT sample FROM samples")[0][0]
        assert '"metadata":{"b":1.5,"a":{}}' in stored

    def test_keys_are_ordered_by_code_points_whatever_the_language(self, store: PostgresStorage) -> None:
        found = store._read(
            "SELECT DISTINCT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)"
            " JOIN pg_class ON pg_class.oid = indrelid JOIN pg_type ON pg_type.oid = atttypid"
            " JOIN pg_collation ON pg_collation.oid = attcollation"
            " WHERE relnamespace = 'gradeline'::regnamespace AND typname = 'text' AND collname <> 'C'"
        )
        assert found == []

    def test_a_commit_is_synchronous_whatever_the_server_default(self, postgres_url: str) -> None:
        database = postgres_url.partition("?")[0].rpartition("/")[2]
        execute(postgres_url, f"ALTER DATABASE {database} SET synchronous_commit = off")
        try:
            with PostgresStorage(postgres_url) as storage:
                assert storage._read("SELECT current_setting('synchronous_commit')")[0][0] == "on"
        finally:
            execute(postgres_url, f"ALTER DATABASE {database} RESET synchronous_commit")

    def test_a_page_of_large_texts_has_fewer_rows(self, store: PostgresStorage) -> None:
        run = store.save_run(Run(name="n", suite="s"))
        for case in range(6):
            put(store, run, case, "x" * 3_000_000)
        assert len(store._read(RECORD_PAGE, run, -1, "", -1, PAGE_ROWS, run)) == 2
        assert [len(record.response.text or "") for record in store.records(run)] == [3_000_000] * 6

    @pytest.mark.parametrize(
        ("statement", "values", "indexes"),
        [
            (RECORD_PAGE, ("r", 700, "c", 0, 50, "r"), {"samples_run_position_case_key_key", RESPONSES, GRADES}),
            (KEY_PAGE, ("r", 700, "c", 0, 50, "r"), {"samples_run_position_case_key_key", RESPONSES, GRADES}),
            (MEASURE_PAGE, ("r", 700, "c", 0, 50, "r"), {"samples_run_position_case_key_key", RESPONSES, GRADES}),
            (KEYS_OF_CASES, ("r", ["c1", "c2"], "r"), {"samples_pkey", RESPONSES, GRADES}),
            (RECORD, ("r", "c1", 0, "r"), {"samples_pkey", RESPONSES, GRADES, "runs_id_key"}),
            (SAMPLE_PAGE, ("r", 700, "c", 50), {"samples_run_position_case_key_key"}),
            ("SELECT status, count FROM response_counts WHERE run = $1", ("r",), {"response_shares_pkey"}),
            (numbered(maintenance._NEXT["grades"]), ("r", "c5", 10), {GRADES}),
            (numbered(maintenance._DELETE["responses"]), ("r", "c5", "c6"), {RESPONSES}),
        ],
    )
    def test_frequent_queries_use_an_index(
        self, store: PostgresStorage, statement: str, values: tuple[object, ...], indexes: set[str]
    ) -> None:
        async def explained(connection: Any) -> str:
            await connection.execute("SET LOCAL enable_seqscan = off")  # so few rows are read faster without one
            return str(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *values))

        found = reached_by(json.loads(store._pool.write(explained))[0]["Plan"])
        assert set(found) == indexes

    @pytest.mark.parametrize("place", [0, 10_000, 15_000, 19_000, 19_900])
    def test_the_cost_of_a_page_does_not_depend_on_its_offset(
        self, store: PostgresStorage, postgres_url: str, place: int
    ) -> None:
        """Not only where the database thinks that many are still to come. The order of the ids is not that of the cases."""
        for run in (store.save_run(Run(id=name, name=name, suite="s")) for name in "ab"):
            for insert in (
                "samples (run, case_key, position, sample) SELECT $1, reverse(to_char(n, 'fm00000')), n, repeat('q', 50)",
                "responses (run, case_key, repeat, status, digest, response)"
                " SELECT $1, reverse(to_char(n, 'fm00000')), 0, 'success', '', repeat('a', 200)",
                "grades (run, case_key, repeat, grader, fingerprint, outcome, units, squares, reported_error, grade)"
                " SELECT $1, reverse(to_char(n, 'fm00000')), 0, 'g', 'f', 'pass', 1, 1, 0, repeat('g', 100)",
            ):
                execute(postgres_url, f"INSERT INTO gradeline.{insert} FROM generate_series(0, 19999) AS n", run)
        for table in ("samples", "responses", "grades"):
            execute(postgres_url, f"ANALYZE gradeline.{table}")

        def plan(statement: str, *values: object) -> dict[str, Any]:
            ((explained,),) = store._read(f"EXPLAIN (FORMAT JSON) {statement}", *values)
            found: dict[str, Any] = json.loads(explained)[0]["Plan"]
            return found

        for page in (RECORD_PAGE, KEY_PAGE, MEASURE_PAGE):
            found = set(reached_by(plan(page, "a", place, f"{place:05}"[::-1], 0, PAGE_ROWS, "a")))
            assert found == {"samples_run_position_case_key_key", RESPONSES, GRADES}
        first = 5 * place
        responses = plan(RESPONSE_COLUMNS, "a", f"{first:05}", 0, PAGE_ROWS)
        assert set(reached_by(responses)) == {RESPONSES}
        grades = plan(GRADE_COLUMNS, "a", f"{first:05}", 0, f"{first + PAGE_ROWS:05}", 0)
        assert set(reached_by(grades)) == {GRADES}
        assert grades["Plans"][0]["Plan Rows"] < PAGE_ROWS

    def test_the_cost_of_a_row_does_not_depend_on_their_number(self, postgres_url: str) -> None:
        """The plan of a statement may be as old as the connection: from a time when every table was empty."""
        batches, rows = 40, 25
        with PostgresStorage(postgres_url) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            for batch in range(batches):
                cases = range(batch * rows, (batch + 1) * rows)
                assert not any(storage._commit(graded(run, [f"c{case}" for case in cases])))
        statement = (
            "SELECT relname, coalesce(seq_tup_read, 0), n_tup_ins FROM pg_stat_user_tables"
            " WHERE schemaname = 'gradeline' AND relname IN ('samples', 'responses', 'grades')"
        )
        deadline = time.monotonic() + 60
        while True:  # the server counts when a session ends, or a little later
            counted = execute(postgres_url, statement)
            if all(inserted == batches * rows for _, _, inserted in counted):
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert {name: read for name, read, _ in counted} == {"samples": 0, "responses": 0, "grades": 0}

    def test_writers_of_one_run_do_not_wait_for_each_other(self, store: PostgresStorage, postgres_url: str) -> None:
        """One of them has not committed yet. (One session in 16 has the same shard of the counters.)"""
        run = store.save_run(Run(name="n", suite="s"))
        ((mine,),) = store._read("SELECT my_share()")

        async def beside() -> None:
            while True:
                other = await asyncpg.connect(postgres_url)
                if await other.fetchval("SELECT gradeline.my_share()") != mine:
                    break
                await other.close()
            try:
                await other.execute("SET search_path = gradeline")
                async with other.transaction():
                    await put_rows(other, graded(run, ["theirs"]))
                    async with asyncio.timeout(30):
                        assert not any(await asyncio.to_thread(store._commit, graded(run, ["mine"], 0.0)))
            finally:
                await other.close()

        asyncio.run(beside())
        assert check_intact(postgres_url, run) == {("mine", 0), ("theirs", 0)}

    def test_a_batch_of_large_texts_is_split(self, store: PostgresStorage) -> None:
        run = store.save_run(Run(name="n", suite="s"))

        async def write() -> None:
            async with store.writer() as writer:
                await asyncio.gather(
                    *(
                        writer.put_response(
                            ResponseKey(run, str(case)), Response(text="y" * 3_000_000), Sample(case, "q")
                        )
                        for case in range(8)
                    )
                )

        asyncio.run(write())
        assert store.counts(run).responses["success"] == 8

    def test_a_closed_store_is_an_error(self, postgres_url: str) -> None:
        storage = PostgresStorage(postgres_url)
        storage.close()
        storage.close()
        for act in (storage.list_runs, lambda: storage.save_run(Run(name="n", suite="s"))):
            with pytest.raises(StoreError, match="is closed"):
                act()

    def test_calls_work_inside_a_running_event_loop(self, store: PostgresStorage) -> None:
        async def act() -> str:
            return store.save_run(Run(name="n", suite="s"))

        assert asyncio.run(act()) == store.find_run("latest").id

    def test_a_forked_process_must_open_its_own_store(self, postgres_url: str) -> None:
        script = (
            "import os, sys, warnings; from gradeline.store import PostgresStorage, StoreError\n"
            "warnings.simplefilter('ignore')\n"
            "store = PostgresStorage(sys.argv[1])\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    try: store.list_runs()\n"
            "    except StoreError as error: print(error, flush=True)\n"
            "    store.close(); os._exit(0)\n"
            "os.waitpid(child, 0); assert store.list_runs() == []\n"
        )
        done = subprocess.run([sys.executable, "-c", script, postgres_url], check=True, capture_output=True, text=True)
        assert "was opened by the parent process of this one; open it again" in done.stdout

    def test_an_unclosed_store_does_not_hold_up_the_end(self, postgres_url: str) -> None:
        script = (
            "import sys; from gradeline.store import PostgresStorage; s = PostgresStorage(sys.argv[1]); s.list_runs()"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, postgres_url], check=True, capture_output=True, text=True, timeout=60
        )
        assert done.stderr == ""


class TestUnstorableText:
    @pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"])
    def test_unstorable_text_is_not_found(self, store: PostgresStorage, odd: str) -> None:
        run = store.save_run(Run(name="n", suite="s"))
        key = ResponseKey(run, odd)
        assert (store.get_run(odd), store.get_test_case(odd), store.get_sample(run, odd)) == (None, None, None)
        assert (store.get_response(key), store.get_record(key), store.delete_run(odd)) == (None, None, False)
        assert store.get_response(ResponseKey(run, "1", 2**70)) is None
        for act in (store.find_run, store.update_run, store.counts, lambda id_: store.claim_run(id_, "me", None)):
            with pytest.raises(ConfigError, match="no run"):
                act(odd)

    @pytest.mark.parametrize("odd", ["a\0b", "a\ud800b", "".join(map(str, range(3000)))])
    def test_only_the_row_with_unstorable_text_is_refused(self, store: PostgresStorage, odd: str) -> None:
        run = store.save_run(Run(name="n", suite="s"))
        cases = ["1", odd, "2", "3"]

        async def write() -> list[BaseException | None]:
            async with store.writer() as writer:
                return await asyncio.gather(
                    *(
                        writer.put_response(ResponseKey(run, case), Response(text="a"), Sample("s", "q"))
                        for case in cases
                    ),
                    return_exceptions=True,
                )

        report = asyncio.run(write())
        assert [error is None for error in report] == [True, False, True, True]
        assert str(report[1]).startswith(f"cannot store {run}/")
        assert [record.case for record in store.records(run)] == ["1", "2", "3"]


def migrated(url: str, *steps: Any) -> None:
    pool = PostgresConnectionPool(read_url(url), retry_seconds=0)
    try:
        pool.write(lambda connection: migrate(connection, steps or None))
    finally:
        pool.close()


class TestMigrations:
    def test_an_older_store_is_migrated(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with PostgresStorage(postgres_url) as storage:
            storage.save_test_case(TestCase(id="c1", input="i", expected_output="o"))

        async def add_colour(connection: Any) -> None:
            await connection.execute("ALTER TABLE test_cases ADD COLUMN colour text DEFAULT 'red'")

        monkeypatch.setattr(postgres_schema, "MIGRATIONS", (*MIGRATIONS, add_colour))
        with PostgresStorage(postgres_url, mode="read") as storage:
            assert storage.list_test_cases() == [TestCase(id="c1", input="i", expected_output="o")]
            assert storage.database.read("SELECT colour FROM test_cases") == [("red",)]
            assert storage.note == f"the store {storage.location} was migrated from version 1 to 2 to read it"
        assert execute(postgres_url, "SELECT version FROM gradeline.schema_version") == [(2,)]

    def test_a_failed_step_is_rolled_back(self, postgres_url: str) -> None:
        async def breaks(connection: Any) -> None:
            await connection.execute("CREATE TABLE half (x int)")
            raise RuntimeError("power cut")

        with pytest.raises(RuntimeError, match="power cut"):
            migrated(postgres_url, MIGRATIONS[0], breaks)
        assert execute(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname = 'gradeline'") == []
        PostgresStorage(postgres_url).close()

    def test_a_newer_store_is_refused(self, postgres_url: str) -> None:
        PostgresStorage(postgres_url).close()
        execute(postgres_url, "UPDATE gradeline.schema_version SET version = version + 1")
        with pytest.raises(StoreError, match=r"was written by a newer gradeline, .*; upgrade with"):
            PostgresStorage(postgres_url)

    def test_the_schema_of_another_program_is_refused(self, postgres_url: str) -> None:
        execute(postgres_url, "CREATE SCHEMA gradeline")
        execute(postgres_url, "CREATE TABLE gradeline.theirs (x int)")
        with pytest.raises(StoreError, match="has a schema 'gradeline' of another program; use another database"):
            PostgresStorage(postgres_url)

    def test_an_empty_schema_made_beforehand_is_used(self, postgres_url: str) -> None:
        execute(postgres_url, "CREATE SCHEMA gradeline")
        PostgresStorage(postgres_url).close()

    def test_tables_of_other_programs_may_share_the_schema(self, postgres_url: str) -> None:
        execute(postgres_url, "CREATE TABLE public.runs (x int)")
        try:
            with PostgresStorage(postgres_url) as storage:
                assert storage.list_runs() == []
        finally:
            execute(postgres_url, "DROP TABLE public.runs")

    def test_a_database_of_another_encoding_is_refused(self, postgres_url: str) -> None:
        name = postgres_url.partition("?")[0].rpartition("/")[2]
        execute(postgres_url, f"CREATE DATABASE {name}_ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            with pytest.raises(StoreError, match=r"has the encoding SQL_ASCII, .* createdb --encoding UTF8"):
                PostgresStorage(postgres_url.replace(f"/{name}", f"/{name}_ascii"))
        finally:
            execute(postgres_url, f"DROP DATABASE {name}_ascii WITH (FORCE)")


def test_concurrent_claims_give_a_run_one_owner(store: PostgresStorage, postgres_url: str) -> None:
    run = store.save_run(Run(name="n", suite="s"))
    with PostgresStorage(postgres_url) as other, ThreadPoolExecutor(8) as threads:
        claims = list(
            threads.map(lambda number: (store, other)[number % 2].claim_run(run, f"w{number}", None), range(16))
        )
    (winner,) = [claim for claim in claims if claim is not None]
    assert store.get_run(run) == winner


def test_the_ledger_is_append_only_for_every_writer(store: PostgresStorage, postgres_url: str) -> None:
    observation = new_observation(
        task_family="f", baseline_adapter="b", candidate_adapter="c", grader_id="g", grader_fingerprint="p",
        score=0.25, baseline_digest="1", candidate_digest="2", idempotency_key="k",
    )  # fmt: skip
    store.put_observations([observation])
    for statement in ("UPDATE %s SET score = 1", "DELETE FROM %s", "TRUNCATE %s"):
        with pytest.raises(Exception, match="the quality ledger is append-only: add an observation instead"):
            execute(postgres_url, statement % "gradeline.observations")
    assert [one.score for one in store.observations()] == [0.25]


class TestLostServer:
    def test_calls_fail_while_it_is_away_and_work_when_it_is_back(
        self, postgres_server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Only the caller gets the error: the driver's own log would be a traceback in the terminal."""
        with PostgresStorage(postgres_server.url, retry_seconds=0.2) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            postgres_server.halt()
            for act in (storage.list_runs, lambda: put(storage, run, 1)):
                with pytest.raises(StoreError, match="cannot be reached; check that the server runs") as caught:
                    act()
                assert caught.value.retryable
            postgres_server.start()
            put(storage, run, 1)
            assert [record.case for record in storage.records(run)] == ["1"]
        assert not caplog.records

    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    def test_a_restart_is_waited_for(self, postgres_server: Server, mode: str) -> None:
        with PostgresStorage(postgres_server.url, retry_seconds=60) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            put(storage, run, 1)
            postgres_server.halt(mode)
            back = Thread(target=postgres_server.start)
            back.start()
            put(storage, run, 2)
            back.join()
            assert [record.case for record in storage.records(run)] == ["1", "2"]

    def test_the_writer_works_again_when_the_server_is_back(self, postgres_server: Server) -> None:
        async def write() -> None:
            async with storage.writer() as writer:
                one = (ResponseKey(run, "1"), Response(text="a"), Sample(1, "q"))
                with pytest.raises(StoreError, match="cannot be reached") as caught:
                    await writer.put_response(*one)
                assert caught.value.retryable
                await asyncio.to_thread(postgres_server.start)
                await writer.put_response(*one)

        with PostgresStorage(postgres_server.url, retry_seconds=0.2) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            postgres_server.halt()
            asyncio.run(write())
            assert len(list(storage.records(run))) == 1

    def test_a_commit_without_a_reply_is_reported_as_unknown(self, postgres_server: Server) -> None:
        """With a standby that never answers, a commit is done but its reply is withheld."""
        with PostgresStorage(postgres_server.url, retry_seconds=30) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            execute(postgres_server.url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            execute(postgres_server.url, "SELECT pg_reload_conf()")
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(put, storage, run, 1)
                self._until(lambda: self._waits_for_standby(postgres_server.url))
                postgres_server.halt("immediate")
                with pytest.raises(
                    StoreError, match="lost during a commit: whether its rows are stored is unknown"
                ) as caught:
                    waiting.result()
            assert not caught.value.retryable

    @staticmethod
    def _waits_for_standby(url: str) -> bool:
        return bool(execute(url, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))

    @staticmethod
    def _until(happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def test_closing_the_store_fails_waiting_calls(self, postgres_server: Server) -> None:
        storage = PostgresStorage(postgres_server.url, retry_seconds=600)
        postgres_server.halt()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(storage.list_runs)
            self._until(waiting.running)
            storage.close()
            with pytest.raises(StoreError, match="is closed"):
                waiting.result()

    def test_a_server_that_does_not_answer_in_time(self, postgres_url: str) -> None:
        with (
            PostgresStorage(postgres_url, retry_seconds=0) as store,
            pytest.raises(StoreError, match="did not answer in time; check its load") as caught,
        ):
            store._pool.write(lambda connection: connection.execute("SELECT pg_sleep(60)", timeout=0.05))
        assert caught.value.retryable

    def test_a_dropped_connection_is_replaced_transparently(self, store: PostgresStorage, postgres_url: str) -> None:
        run = store.save_run(Run(name="n", suite="s"))
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gradeline'"
        for case in range(3):
            execute(postgres_url, cut)
            put(store, run, case)
        assert store.counts(run).responses["success"] == 3


def with_options(url: str, options: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{options}"


class TestStatementTimeout:
    def test_the_server_ends_it(self, postgres_url: str) -> None:
        with (
            PostgresStorage(with_options(postgres_url, "statement_timeout=100"), retry_seconds=0) as store,
            pytest.raises(
                StoreError, match=r"stopped a statement that took too long; .*\?statement_timeout="
            ) as report,
        ):
            store._pool.read("SELECT pg_sleep(60)")
        assert report.value.retryable

    def test_the_store_works_afterwards(self, postgres_url: str) -> None:
        with PostgresStorage(with_options(postgres_url, "statement_timeout=100"), retry_seconds=0) as store:
            run = store.save_run(Run(name="n", suite="s"))
            with pytest.raises(StoreError, match="took too long"):
                store._pool.write(lambda connection: connection.execute("SELECT pg_sleep(60)"))
            put(store, run, 1)
            assert store.counts(run).responses["success"] == 1

    def test_every_connection_has_the_timeouts_of_the_server(self, store: PostgresStorage) -> None:
        names = ("statement_timeout", "idle_in_transaction_session_timeout")
        found = [store._read("SELECT current_setting($1)", name)[0][0] for name in names]
        assert found == ["1min", "10s"]

    def test_long_operations_have_a_longer_statement_timeout(self, postgres_url: str) -> None:
        async def long(connection: Any) -> Any:
            await take_time(connection)
            await connection.execute("SELECT pg_sleep(0.3)")
            return await connection.fetchval("SELECT current_setting('statement_timeout')")

        with PostgresStorage(with_options(postgres_url, "statement_timeout=100"), retry_seconds=0) as store:
            assert store._pool.write(long) == "1h"
            assert store._read("SELECT current_setting('statement_timeout')")[0][0] == "100ms"


class TestConnectionLimit:
    @pytest.fixture
    def server(self) -> Iterator[Server]:
        if reason := why_no_server():
            pytest.skip(reason)
        server = Server({"max_connections": "4", "superuser_reserved_connections": "0"})
        yield server
        server.stop()

    @staticmethod
    async def _open_connections(url: str, number: int) -> list[Any]:
        return [await asyncpg.connect(url) for _ in range(number)]

    def test_exhausted_connections_are_reported_with_a_remedy(self, server: Server) -> None:
        async def act() -> None:
            others = await self._open_connections(server.url, 4)
            with pytest.raises(StoreError, match=r"has no free connection; .* \?pool_size=2 in the URL") as report:
                await asyncio.to_thread(PostgresStorage, server.url)
            assert report.value.retryable
            await others.pop().close()
            await asyncio.to_thread(self._until_opened, server.url)
            for other in others:
                await other.close()

        asyncio.run(act())

    @staticmethod
    def _until_opened(url: str) -> None:
        """The server notices a moment later that a connection is closed."""
        while True:
            with suppress(StoreError):
                return PostgresStorage(url).close()

    def test_a_store_works_with_fewer_connections(self, server: Server) -> None:
        """It would take eight for eight threads, and finds one."""

        async def act() -> None:
            with PostgresStorage(server.url, retry_seconds=60) as store:
                run = store.save_run(Run(name="n", suite="s"))
                others = await self._open_connections(server.url, 3)
                with ThreadPoolExecutor(8) as threads:
                    await asyncio.to_thread(list, threads.map(lambda case: put(store, run, case), range(40)))
                assert store.counts(run).responses["success"] == 40
                for other in others:
                    await other.close()

        asyncio.run(act())

    def test_it_takes_no_more_than_it_is_allowed(self, server: Server) -> None:
        with PostgresStorage(with_options(server.url, "pool_size=2")) as store, ThreadPoolExecutor(8) as threads:
            run = store.save_run(Run(name="n", suite="s"))
            list(threads.map(lambda number: put(store, run, number), range(40)))
            found = store._read("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gradeline'")
            assert (store.counts(run).responses["success"], found[0][0]) == (40, 2)


OPENING = """
import sys
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample
from gradeline.store import PostgresStorage, Run

sys.stdin.readline()
with PostgresStorage(sys.argv[1]) as storage:
    storage.save_run(Run(id="r", name="n", suite="s"))
    for case in range(50):
        storage.put_response(ResponseKey("r", str(case)), Response(text="the same"), Sample(case, "q"))
        storage.put_grade(GradeKey("r", str(case), 0, sys.argv[2]), Grade("k", "f", Outcome.PASS, 1.0, True))
        storage.put_grade(GradeKey("r", str(case), 0, "same"), Grade("k", "f", Outcome.PASS, 1.0, True))
"""


def test_several_processes_open_and_write_one_fresh_database(postgres_url: str) -> None:
    command = [sys.executable, "-c", OPENING, postgres_url]
    children = [subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, text=True) for number in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
    assert [child.returncode for child in children] == [0] * 4
    assert len(check_intact(postgres_url, "r")) == 50
    assert execute(postgres_url, "SELECT count(*) FROM gradeline.grades") == [(250,)]


BATCHES = """
import asyncio, random, sys
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample
from gradeline.store import PostgresStorage

async def main(worker):
    cases = list(range(300))
    random.Random(worker).shuffle(cases)
    with PostgresStorage(sys.argv[1], retry_seconds=60) as storage:
        async with storage.writer() as writer:
            async def one(case):
                run = "ab"[case % 2]
                key = ResponseKey(run, str(case))
                # every second answer differs from process to process, so that grades are dropped, too
                text = f"by {worker}" if case % 4 < 2 else "the same"
                await writer.put_response(key, Response(text=text), Sample(case, "q"), case)
                await writer.put_grade(GradeKey(*key, f"g{case % 3}"), Grade("k", "f", Outcome.PASS, case / 300, True))
            for start in range(0, 300, 50):
                await asyncio.gather(*map(one, cases[start : start + 50]))

asyncio.run(main(int(sys.argv[2])))
"""


def test_processes_that_write_the_same_keys_in_any_order_write_them_once(
    store: PostgresStorage, postgres_url: str
) -> None:
    for run in "ab":
        store.save_run(Run(id=run, name="n", suite="s"))
    command = [sys.executable, "-c", BATCHES, postgres_url]
    children = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [child.wait(120) for child in children] == [0, 0, 0]
    for run, first in (("a", 0), ("b", 1)):
        assert check_intact(postgres_url, run) == {(str(case), 0) for case in range(first, 300, 2)}


WRITING = """
import asyncio, itertools, sys
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample
from gradeline.store import PostgresStorage, Run

async def main():
    with PostgresStorage(sys.argv[1]) as storage:
        storage.save_run(Run(id="r", name="n", suite="s"))
        cases = itertools.count(int(sys.argv[2]))
        async with storage.writer() as writer:
            async def caller():
                for case in cases:
                    key = ResponseKey("r", str(case))
                    await writer.put_response(key, Response(text="Paris " * 50), Sample(case, "q"))
                    print("response", case, flush=True)
                    await writer.put_grade(GradeKey(*key, "exact"), Grade("k", "f", Outcome.PASS, case % 7 / 10 + 0.3, True))
                    print("grade", case, flush=True)
            await asyncio.gather(*(caller() for _ in range(20)))

asyncio.run(main())
"""


def test_acknowledged_rows_survive_kill_9(postgres_url: str) -> None:
    chance = random.Random(20260115)
    acknowledged: dict[str, set[str]] = {"response": set(), "grade": set()}
    for _ in range(6):
        # Each child begins among the cases of the one before, as a resumed run does.
        first = max(0, len(acknowledged["response"]) - 10)
        with subprocess.Popen(
            [sys.executable, "-c", WRITING, postgres_url, str(first)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(chance.randrange(1, 400))]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.readlines()
        assert child.returncode == -signal.SIGKILL
        for line in lines:
            if line.endswith(b"\n"):  # the last one may be cut short
                what, case = line.decode().split()
                acknowledged[what].add(case)
        keys = check_intact(postgres_url, "r")
        assert acknowledged["response"] <= {case for case, _ in keys}
        with PostgresStorage(postgres_url) as storage:
            assert acknowledged["grade"] <= {record.case for record in storage.records("r") if record.grades}
    assert len(acknowledged["grade"]) > 100


def test_a_batch_is_stored_as_if_row_by_row(store: PostgresStorage) -> None:
    run = store.save_run(Run(name="n", suite="s"))
    grade = Grade("k", "f", Outcome.PASS, 1.0, True)

    async def write() -> None:
        async with store.writer() as writer:
            key = ResponseKey(run, "1")
            await asyncio.gather(
                writer.put_response(key, Response(text="first"), Sample(1, "q")),
                writer.put_grade(GradeKey(*key, "exact"), grade),
                writer.put_response(key, Response(text="second"), Sample(1, "edited")),
                writer.put_response(ResponseKey(run, "1", 1), Response(text="repeat"), Sample(1, "edited again")),
                writer.put_grade(GradeKey(*key, "other"), grade),
                writer.put_response(ResponseKey(run, "0"), Response(text="placed"), Sample(0, "q"), 0),
            )

    asyncio.run(write())
    assert [
        (record.case, record.repeat, record.response.text, set(record.grades)) for record in store.records(run)
    ] == [
        ("0", 0, "placed", set()),
        ("1", 0, "second", {"other"}),
        ("1", 1, "repeat", set()),
    ]
    assert store.get_sample(run, "1") == Sample(1, "edited again")
