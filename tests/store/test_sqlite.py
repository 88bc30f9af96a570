"""The SQLite file: what it refuses, and what survives full disks, broken disks, locks and kill -9."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest

from gradeline.errors import Outcome
from gradeline.model import (
    Counts,
    Grade,
    Response,
    ResponseKey,
    Sample,
    TestCase,
)
from gradeline.store import Run, SqliteStorage, StoreError, sqlite_schema
from gradeline.store import writer as writer_module
from gradeline.store.rows import RecordRow, Tally, counts_of, grade_row, response_row, score_units
from gradeline.store.sqlite_connections import BUSY_SECONDS, CHECKPOINT_COMMITS, require_store
from gradeline.store.sqlite_records import KEY_PAGE, RECORD_PAGE
from gradeline.store.sqlite_schema import APPLICATION_ID, MIGRATIONS, migrate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def put(storage: SqliteStorage, run: str, case: int, text: str = "Paris") -> None:
    storage.put_response(ResponseKey(run, str(case)), Response(text=text), Sample(case, "capital of France?"))


def check_intact(path: Path, run: str) -> set[tuple[str, int]]:
    """The file is intact, its keys are unique, its counts equal the rows; returns the keys of the responses."""
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert query(path, "PRAGMA foreign_key_check") == []
    with SqliteStorage(path) as storage:
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


class TestFile:
    def test_its_settings(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            pragmas = {
                name: storage._pool.connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in (
                    "journal_mode",
                    "synchronous",
                    "foreign_keys",
                    "busy_timeout",
                    "application_id",
                    "user_version",
                )
            }
        assert pragmas == {
            "journal_mode": "wal",
            "synchronous": 2,
            "foreign_keys": 1,
            "busy_timeout": 0,
            "application_id": APPLICATION_ID,
            "user_version": len(MIGRATIONS),
        }

    def test_stored_rows_exist_after_reopening(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            put(storage, run, 1)
        with SqliteStorage(path) as storage:
            assert [record.response for record in storage.records(run)] == [Response(text="Paris")]

    @pytest.mark.parametrize("page", [RECORD_PAGE, KEY_PAGE])
    def test_pages_are_read_in_order_without_sorting(self, path: Path, page: str) -> None:
        with SqliteStorage(path) as storage:
            plan = storage._read(f"EXPLAIN QUERY PLAN {page}", "r", 0, "", 0, 10)
        steps = [row[3] for row in plan]
        assert not any("TEMP B-TREE" in step or step.startswith("SCAN") for step in steps), steps

    def test_large_responses_do_not_accumulate_in_memory(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            for case in range(6):
                put(storage, run, case, "x" * 3_000_000)
            assert [len(record.response.text or "") for record in storage.records(run)] == [3_000_000] * 6

    def test_idle_readers_are_limited(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            put(storage, run, 1)
            for _ in range(20):
                next(storage.records(run))  # left unfinished
            assert len(storage._pool._readers) == 1

    def test_a_closed_store_is_an_error(self, path: Path) -> None:
        storage = SqliteStorage(path)
        storage.close()
        storage.close()
        for act in (storage.list_runs, lambda: storage.save_run(Run(name="n", suite="s"))):
            with pytest.raises(StoreError, match="is closed"):
                act()


class TestMigrations:
    @pytest.fixture
    def old(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A store of the first version, when there is a second."""
        with SqliteStorage(path) as storage:
            storage.save_test_case(TestCase(id="c1", input="i", expected_output="o"))
            storage.make_single_file()

        def add_colour(connection: sqlite3.Connection) -> None:
            connection.execute("ALTER TABLE test_cases ADD COLUMN colour TEXT DEFAULT 'red'")

        monkeypatch.setattr(sqlite_schema, "MIGRATIONS", (*MIGRATIONS, add_colour))
        return path

    def test_an_older_store_is_migrated(self, old: Path) -> None:
        with SqliteStorage(old) as storage:
            assert storage.list_test_cases() == [TestCase(id="c1", input="i", expected_output="o")]
            assert storage.note is None
        assert query(old, "SELECT colour FROM test_cases") == [("red",)]
        assert query(old, "PRAGMA user_version") == [(2,)]

    def test_an_older_store_is_read_from_a_migrated_copy(self, old: Path) -> None:
        content = old.read_bytes()
        with SqliteStorage(old, read_only=True) as storage:
            assert storage.database.read("SELECT colour FROM test_cases") == [("red",)]
            assert storage.note == (
                f"the store {old} has an older schema (version 1, latest 2): a temporary copy was read; the next run in"
                " it migrates it"
            )
        assert old.read_bytes() == content
        assert [file.name for file in old.parent.iterdir()] == [old.name]

    def test_a_failed_step_is_rolled_back(self, path: Path) -> None:
        def breaks(connection: sqlite3.Connection) -> None:
            connection.execute("CREATE TABLE half (x)")
            raise RuntimeError("power cut")

        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            with pytest.raises(RuntimeError, match="power cut"):
                migrate(connection, (MIGRATIONS[0], breaks))
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            assert (tables, connection.execute("PRAGMA user_version").fetchone()) == ([], (0,))

    def test_a_newer_store_is_refused(self, path: Path) -> None:
        SqliteStorage(path).close()
        query(path, f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        with pytest.raises(StoreError, match=rf"{path} was written by a newer gradeline, .*; upgrade with"):
            SqliteStorage(path)


@contextmanager
def as_user_nobody() -> Iterator[Path]:
    """A folder for a user without root's power to write everywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        user = os.geteuid()
        if user == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
        try:
            yield folder
            folder.chmod(0o700)
        finally:
            os.seteuid(user)


class TestRefusedFiles:
    def test_a_file_that_is_not_a_database(self, path: Path) -> None:
        path.write_text("name: capitals\n" * 100)
        with pytest.raises(StoreError, match=rf"{path} is not a gradeline store .*; use another file"):
            SqliteStorage(path)
        assert path.read_text() == "name: capitals\n" * 100

    def test_the_database_of_another_program(self, path: Path) -> None:
        query(path, "CREATE TABLE theirs (x)")
        before = path.read_bytes()
        with pytest.raises(StoreError, match=f"{path} is a SQLite database of another program; use another file"):
            SqliteStorage(path)
        assert path.read_bytes() == before

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=f"{tmp_path} is a folder; name a file in it"):
            SqliteStorage(tmp_path)

    def test_a_folder_that_cannot_be_created(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(
            StoreError, match=r"the folder .*file/sub of the store cannot be created .*; use another store"
        ):
            SqliteStorage(tmp_path / "file" / "sub" / "store.db")

    def test_a_read_only_file(self) -> None:
        with as_user_nobody() as folder:
            path = folder / "store.db"
            SqliteStorage(path).close()
            path.chmod(0o400)
            with pytest.raises(StoreError, match=f"the store {path} is read-only; make it writable"):
                SqliteStorage(path)

    def test_a_read_only_folder(self) -> None:
        with as_user_nobody() as folder:
            folder.chmod(0o500)
            with pytest.raises(StoreError, match=f"the folder of the store, {folder} is read-only; make it writable"):
                SqliteStorage(folder / "store.db")


class TestLocks:
    def test_a_lock_timeout_is_reported_and_loses_nothing(self, path: Path) -> None:
        with SqliteStorage(path, busy_seconds=0.05) as storage, closing(sqlite3.connect(path)) as other:
            run = storage.save_run(Run(name="n", suite="s"))
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match=rf"{path} is locked by another process; try again") as caught:
                put(storage, run, 1)
            assert caught.value.retryable
            assert storage.list_runs() != []
            other.rollback()
            put(storage, run, 1)
            assert len(list(storage.records(run))) == 1

    def test_a_new_file_locked_by_another_process(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreError, match="is locked by another process"):
                SqliteStorage(path, busy_seconds=0.05)

    def test_a_lock_fails_the_writers_batch_but_not_the_writer(self, path: Path) -> None:
        async def write() -> None:
            async with storage.writer() as writer:
                put_one = (ResponseKey(run, "1"), Response(text="a"), Sample(1, "q"))
                with pytest.raises(StoreError, match="locked") as caught:
                    await writer.put_response(*put_one)
                assert caught.value.retryable
                other.rollback()
                await writer.put_response(*put_one)

        with SqliteStorage(path, busy_seconds=0.05) as storage, closing(sqlite3.connect(path)) as other:
            run = storage.save_run(Run(name="n", suite="s"))
            other.execute("BEGIN IMMEDIATE")
            asyncio.run(write())
            assert len(list(storage.records(run))) == 1


class TestFullDisk:
    def test_every_waiter_gets_the_error_and_the_writer_stops(self, path: Path) -> None:
        async def write() -> list[BaseException | None]:
            writer = storage.writer()
            message = await asyncio.gather(
                *(
                    writer.put_response(ResponseKey(run, str(case)), Response(text="x" * 10_000), Sample(case, "q"))
                    for case in range(100)
                ),
                return_exceptions=True,
            )
            with pytest.raises(StoreError, match="stopped after a failed commit"):
                await writer.flush()
            await writer.close()
            return message

        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            pages = storage._pool.connection.execute("PRAGMA page_count").fetchone()[0]
            storage._pool.connection.execute(f"PRAGMA max_page_count = {pages + 20}")
            message = asyncio.run(write())
            stored = {int(record.case) for record in storage.records(run)}
            failed = {case for case, error in enumerate(message) if error is not None}
            assert failed
            assert stored | failed == set(range(100))
            assert stored & failed == set()
            assert all(
                isinstance(message[case], StoreError) and "the disk is full" in str(message[case]) for case in failed
            )
            storage._pool.connection.execute("PRAGMA max_page_count = 100000")
            put(storage, run, 1000)
        check_intact(path, run)


FAILING_DISK = """
import resource, sys
from gradeline.model import Response, ResponseKey, Sample
from gradeline.store import Run, SqliteStorage, StoreError
from gradeline.store import writer as writer_module

with SqliteStorage(sys.argv[1]) as storage:
    storage.save_run(Run(id="r", name="n", suite="s"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    acknowledged = 0
    try:
        for case in range(1000):
            storage.put_response(ResponseKey("r", str(case)), Response(text="x" * 5000), Sample(case, "q"))
            acknowledged += 1
    except StoreError as error:
        print(acknowledged)
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        storage.put_response(ResponseKey("r", "late"), Response(text="x"), Sample("late", "q"))
    except StoreError as error:
        print(error)
    assert storage.get_run("r") is not None
"""


def test_after_an_io_error_nothing_is_written_until_the_store_is_opened_again(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FAILING_DISK, str(path)], check=True, capture_output=True, text=True)
    acknowledged, failure, refusal = done.stdout.splitlines()
    assert "the disk reports an error; check it, then open the store again" in failure
    assert refusal == failure
    keys = check_intact(path, "r")
    assert {(str(case), 0) for case in range(int(acknowledged))} <= keys
    assert ("late", 0) not in keys


OPENING = """
import sys
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample
from gradeline.store import Run, SqliteStorage

sys.stdin.readline()
with SqliteStorage(sys.argv[1]) as storage:
    storage.save_run(Run(id="r", name="n", suite="s"))
    for case in range(50):
        storage.put_response(ResponseKey("r", str(case)), Response(text="the same"), Sample(case, "q"))
        storage.put_grade(GradeKey("r", str(case), 0, sys.argv[2]), Grade("k", "f", Outcome.PASS, 1.0, True))
"""


def test_several_processes_open_and_write_one_fresh_file(path: Path) -> None:
    command = [sys.executable, "-c", OPENING, str(path)]
    children = [subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, text=True) for number in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert len(check_intact(path, "r")) == 50
    assert query(path, "SELECT count(*) FROM grades") == [(200,)]


WRITING = """
import asyncio, itertools, sys
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample
from gradeline.store import Run, SqliteStorage

async def main():
    with SqliteStorage(sys.argv[1]) as storage:
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


class RacingConnection:
    """A connection after whose first read of the file another process makes it a store."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path: Path | None = path

    def execute(self, statement: str) -> Any:
        with closing(self._connection.execute(statement)) as cursor:
            found = Mock(fetchone=Mock(return_value=cursor.fetchone()))
        if self._path is not None:
            SqliteStorage(self._path).close()
            self._path = None
        return found


def test_a_new_file_may_become_a_store_while_another_process_opens_it(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as own:
        assert require_store(RacingConnection(own, path), path) == len(MIGRATIONS)  # type: ignore[arg-type]


def test_acknowledged_rows_survive_kill_9(path: Path) -> None:
    chance = random.Random(20260115)
    acknowledged: dict[str, set[str]] = {"response": set(), "grade": set()}
    for _ in range(10):
        # Each child begins among the cases of the one before, as a resumed run does.
        first = max(0, len(acknowledged["response"]) - 10)
        with subprocess.Popen([sys.executable, "-c", WRITING, str(path), str(first)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(chance.randrange(1, 400))]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.readlines()
        assert child.returncode == -signal.SIGKILL
        for line in lines:
            if line.endswith(b"\n"):  # the last one may be cut short
                what, case = line.decode().split()
                acknowledged[what].add(case)
        keys = check_intact(path, "r")
        assert acknowledged["response"] <= {case for case, _ in keys}
        with SqliteStorage(path) as storage:
            assert acknowledged["grade"] <= {record.case for record in storage.records("r") if record.grades}
    assert len(acknowledged["grade"]) > 100


def counted(path: Path, run: str) -> Counts:
    """The counts of a run by going through all of its rows."""
    with closing(sqlite3.connect(path)) as connection:
        responses = connection.execute("SELECT status, count(*) FROM responses WHERE run = ? GROUP BY 1", (run,))
        grades = connection.execute(
            "SELECT grader, outcome, count(*), sum(units), sum(squares) FROM grades WHERE run = ? GROUP BY 1, 2", (run,)
        )
        return counts_of(responses.fetchall(), [Tally(*row) for row in grades])


class TestCounting:
    """New rows are counted by the caller, replaced rows by the database."""

    def rows(self, run: str, cases: Sequence[int], score: float) -> list[RecordRow]:
        answered: list[RecordRow] = [
            response_row(ResponseKey(run, str(case)), Response(text=f"{score}"), Sample(case, "q"), case)
            for case in cases
        ]
        grade = Grade("exact", "f", Outcome.PASS if score >= 0.5 else Outcome.FAIL, score, score >= 0.5)
        return answered + [grade_row((run, str(case), 0, "exact"), grade, "x") for case in cases]

    def test_new_rows_next_to_existing_rows(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            storage._commit(self.rows(run, range(0, 100, 3), 0.25))
            storage._commit(self.rows(run, range(150), 0.75))
            storage._commit(self.rows(run, range(149, 200), 1 / 3))
            storage._commit(self.rows(run, range(200), 1.0))
            counts = storage.counts(run)
        assert counts == counted(path, run)
        assert (counts.responses["success"], counts.graders["exact"].outcomes["pass"]) == (200, 200)

    def test_a_row_that_is_twice_in_a_batch(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            rows = [*self.rows(run, [1, 2], 0.25), *self.rows(run, [2, 3, 2], 1.0)]
            assert storage._commit(rows) == [None] * len(rows)
            counts = storage.counts(run)
            texts = [record.response.text for record in storage.records(run)]
        assert counts == counted(path, run)
        assert texts == ["0.25", "1.0", "1.0"], "the last of a batch is the one that stays"
        assert counts.graders["exact"].outcomes == {
            "pass": 2,
            "fail": 1,
            "error": 0,
            "skipped": 0,
            "not_applicable": 0,
        }

    def test_rows_of_several_runs_in_a_batch(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            runs = [storage.save_run(Run(name=name, suite="s")) for name in "ab"]
            storage._commit([*self.rows(runs[0], range(5), 1.0), *self.rows(runs[1], range(7), 0.0)])
            assert [storage.counts(run) for run in runs] == [counted(path, run) for run in runs]


class TestImmediateCommit:
    def test_it_does_not_wait_for_a_lock(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            rows = [response_row(ResponseKey(run, "1"), Response(text="a"), Sample(1, "q"), 0)]
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                began = monotonic()
                assert storage._try_commit(rows) is None
                assert monotonic() - began < BUSY_SECONDS / 2
                other.execute("ROLLBACK")
            assert storage._try_commit(rows) == [None]
            assert len(list(storage.records(run))) == 1

    def test_a_run_continues_while_another_process_writes(self, path: Path) -> None:
        """The event loop has its turns although the store's file is locked; what is put is stored afterwards."""

        async def write(storage: SqliteStorage, run: str, other: sqlite3.Connection) -> None:
            async with storage.writer() as writer:
                stored = asyncio.ensure_future(
                    writer.put_response(ResponseKey(run, "1"), Response(text="a"), Sample(1, "q"), 0)
                )
                for _ in range(20):
                    await asyncio.sleep(0.005)
                    assert not stored.done()
                other.execute("ROLLBACK")
                await stored

        with SqliteStorage(path) as storage, closing(sqlite3.connect(path, isolation_level=None)) as other:
            run = storage.save_run(Run(name="n", suite="s"))
            other.execute("BEGIN IMMEDIATE")
            asyncio.run(write(storage, run, other))
            assert [record.case for record in storage.records(run)] == ["1"]


class TestWal:
    def test_it_is_checkpointed_when_idle(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is written afterwards begins at its beginning, and makes it no longer."""
        monkeypatch.setattr(writer_module, "QUICK_SECONDS", inf)  # on a busy machine no commit is quick
        log = path.with_name(path.name + "-wal")

        async def write(storage: SqliteStorage, run: str) -> None:
            async with storage.writer() as writer:
                for number in range(3 * CHECKPOINT_COMMITS):
                    key = ResponseKey(run, str(number))
                    await writer.put_response(key, Response(text="x"), Sample(number, "q"), number)
                while storage._pool.commits_in_log:  # on a busy machine it is the next idle moment
                    await writer.post_grades(key, {"exact": ("x", Grade("exact", "f", Outcome.PASS, 1.0, True))})
                    await asyncio.sleep(3 * writer_module.POSTED_SECONDS)
                assert query(path, "SELECT count(*) FROM grades") == [(1,)]

        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            asyncio.run(write(storage, run))
            length = log.stat().st_size
            for number in range(CHECKPOINT_COMMITS):
                put(storage, run, number, "another")
            assert log.stat().st_size == length
        check_intact(path, run)

    def test_a_few_commits_are_not_checkpointed(self, path: Path) -> None:
        with SqliteStorage(path) as storage:
            run = storage.save_run(Run(name="n", suite="s"))
            for number in range(CHECKPOINT_COMMITS - 2):  # the run is the first
                put(storage, run, number)
            storage._pool.checkpoint()
            assert storage._pool.commits_in_log == CHECKPOINT_COMMITS - 1
            put(storage, run, CHECKPOINT_COMMITS)
            storage._pool.checkpoint()
            assert storage._pool.commits_in_log == 0

    def test_other_readers_and_writers_do_not_delay_it(self, path: Path) -> None:
        with SqliteStorage(path) as storage, closing(sqlite3.connect(path, isolation_level=None)) as other:
            run = storage.save_run(Run(name="n", suite="s"))
            for begin in ("BEGIN", "BEGIN IMMEDIATE"):
                for number in range(CHECKPOINT_COMMITS):
                    put(storage, run, number, begin)
                other.execute(begin)
                other.execute("SELECT count(*) FROM responses").fetchone()
                began = monotonic()
                storage._pool.checkpoint()
                assert monotonic() - began < BUSY_SECONDS / 2
                other.execute("ROLLBACK")
            put(storage, run, 1, "afterwards")
        check_intact(path, run)


def test_the_id_of_a_run_is_short(path: Path) -> None:
    with SqliteStorage(path) as storage:
        ids = {storage.save_run(Run(name="n", suite="s")) for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch("[0-9a-hjkmnp-tv-z]{12}", one) for one in ids)
