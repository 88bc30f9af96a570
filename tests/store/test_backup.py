"""Copying a whole store: everything in it, between any two databases, verified, and all of it or nothing."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from full_store import MASTER_KEY, SECRET, fill

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, Sample, Storage
from gradeline.service.service import PARTS, build_service
from gradeline.service.settings import ServeSettings
from gradeline.store import PostgresStorage, SqliteStorage, StoreError, backup, open_storage
from gradeline.store import database as tables
from gradeline.store.backup import copy_store, write_backup
from gradeline.store.database import SharedStorage, Transaction
from postgres_server import Database as ServerDatabase
from postgres_server import execute

PAIRS = [("sqlite", "sqlite"), ("sqlite", "postgresql"), ("postgresql", "sqlite")]


BOTH_WAYS = PAIRS[1:]


def url_of(kind: str, request: pytest.FixtureRequest, name: str) -> str:
    if kind == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / name}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=PAIRS, ids=lambda pair: "-to-".join(pair))
def urls(request: pytest.FixtureRequest) -> tuple[str, str]:
    source, destination = request.param
    return url_of(source, request, "source.db"), url_of(destination, request, "destination.db")


@pytest.fixture
def opened() -> Iterator[OpenStores]:
    stores = OpenStores()
    yield stores
    stores.close()


class OpenStores:
    """Opens stores, and closes them after the test."""

    def __init__(self) -> None:
        self._open: list[Storage] = []

    def __call__(self, url: str) -> SharedStorage:
        storage = open_storage(url)
        assert isinstance(storage, SqliteStorage | PostgresStorage)
        self._open.append(storage)
        return storage

    def close(self) -> None:
        for storage in self._open:
            storage.__exit__(None, None, None)


def everything(storage: SharedStorage) -> dict[str, list[object]]:
    """All rows of all tables with data."""
    database = storage.database

    def read(transaction: object) -> dict[str, list[object]]:
        found = tables.tables_of(transaction, database.dialect)  # type: ignore[arg-type]
        return {
            name: sorted(
                (row for page in tables.pages_of(transaction, database.dialect, table) for row in page),  # type: ignore[arg-type]
                key=repr,
            )
            for name, table in found.items()
            if name not in backup._INTERNAL
        }

    return database.snapshot(read)


def test_every_row_is_copied_and_the_source_is_unchanged(
    urls: tuple[str, str], opened: OpenStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 5)
    runs = fill(urls[0])
    source, destination = opened(urls[0]), opened(urls[1])
    before = everything(source)
    copied = copy_store(source.database, destination.database, PARTS)
    assert everything(source) == before == everything(destination)
    assert {one.name: one.rows for one in copied if one.name in before} == {
        name: len(rows) for name, rows in before.items()
    }
    for run in runs:
        assert source.counts(run) == destination.counts(run)
        assert list(source.records(run)) == list(destination.records(run))
    assert source.observation_sums() == destination.observation_sums()


def test_a_copied_store_is_a_service_with_its_keys_secrets_and_counters(
    urls: tuple[str, str], opened: OpenStores
) -> None:
    fill(urls[0])
    copy_store(opened(urls[0]).database, opened(urls[1]).database, PARTS)
    service = build_service(ServeSettings(store=urls[1], secret_key=MASTER_KEY))
    try:
        assert [key.name for key in service.keys.all()] == ["me"]
        assert service.secrets.open(["agent"])["agent"].value == SECRET
        # new rows count on from those that came
        before = {n for (n,) in service.database.read("SELECT n FROM runs")}
        service.storage.save_run(Run(name="new", suite="s"))
        service.cases.create({"input": "One more", "expected_output": "x"})
        ((newest,),) = service.database.read("SELECT n FROM runs WHERE name = 'new'")
        assert newest == max(before) + 1
        assert service.database.read("SELECT live FROM case_totals") == [(3,)]
        assert service.runner.queue.waiting() == 2
    finally:
        service.stop()


@pytest.mark.parametrize("urls", BOTH_WAYS, indirect=True)
def test_a_store_that_is_not_empty_is_refused_and_unchanged(urls: tuple[str, str], opened: OpenStores) -> None:
    fill(urls[0])
    destination = opened(urls[1])
    destination.save_run(Run(id="mine", name="n", suite="s"))
    before = everything(destination)
    with pytest.raises(StoreError, match=r"not empty: it has rows in runs; .* --replace"):
        copy_store(opened(urls[0]).database, destination.database, PARTS)
    assert {name: rows for name, rows in everything(destination).items() if rows} == {"runs": before["runs"]}


def test_replace_overwrites_the_whole_destination(urls: tuple[str, str], opened: OpenStores) -> None:
    fill(urls[0])
    fill(urls[1], runs=3, cases=4)
    source, destination = opened(urls[0]), opened(urls[1])
    copy_store(source.database, destination.database, PARTS, replace=True)
    assert everything(destination) == everything(source)
    with pytest.raises(StoreError, match="append-only"):  # what guards the ledger is in place again
        destination.database.transact(lambda transaction: transaction.run("DELETE FROM observations"))


@pytest.mark.parametrize("urls", BOTH_WAYS, indirect=True)
def test_a_copy_that_differs_is_not_stored(
    urls: tuple[str, str], opened: OpenStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(urls[0])
    insert = backup._insert

    def with_a_flaw(transaction: object, table: tables.Table, rows: list[tuple[object, ...]]) -> None:
        if table.name == "grades":
            place = table.columns.index("submission")
            rows = [
                (*row[:place], f"{row[place]}!", *row[place + 1 :]) if n == 3 else row for n, row in enumerate(rows)
            ]
        insert(transaction, table, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(backup, "_insert", with_a_flaw)
    destination = opened(urls[1])
    with pytest.raises(
        StoreError, match=r"the copy of the table grades differs from the source \(13 rows.*nothing was"
    ):
        copy_store(opened(urls[0]).database, destination.database, PARTS)
    assert not any(everything(destination).values())


INTERRUPTED = """
import os, signal, sys
from gradeline.service.service import PARTS
from gradeline.store import backup, open_storage

insert = backup._insert

def killed(transaction, table, rows):
    if table.name == "grades":
        os.kill(os.getpid(), signal.SIGKILL)
    insert(transaction, table, rows)

backup._insert = killed
backup.copy_store(open_storage(sys.argv[1]).database, open_storage(sys.argv[2]).database, PARTS)
"""


def test_a_copy_that_is_killed_leaves_an_empty_store_and_can_be_repeated(
    urls: tuple[str, str], opened: OpenStores
) -> None:
    fill(urls[0])
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, *urls], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    source, destination = opened(urls[0]), opened(urls[1])
    assert not any(everything(destination).values())
    copy_store(source.database, destination.database, PARTS)
    assert everything(destination) == everything(source)


CTRL_C = """
import os, signal, sys, time
from gradeline.service.service import PARTS
from gradeline.store import backup, open_storage

insert = backup._insert

def interrupted(transaction, table, rows):
    if table.name == "grades":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    insert(transaction, table, rows)

backup._insert = interrupted
with open_storage(sys.argv[1]) as source, open_storage(sys.argv[2]) as destination:
    backup.copy_store(source.database, destination.database, PARTS)
"""


@pytest.mark.parametrize("urls", BOTH_WAYS, indirect=True)
def test_nothing_is_written_after_ctrl_c(urls: tuple[str, str], opened: OpenStores) -> None:
    fill(urls[0])
    done = subprocess.run([sys.executable, "-c", CTRL_C, *urls], check=False, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert not any(everything(opened(urls[1])).values())


def test_a_thread_that_outlives_its_transaction_can_write_nothing(tmp_path: Path) -> None:
    transactions: list[Transaction] = []
    with SqliteStorage(tmp_path / "store.db") as storage:
        storage.database.transact_in_bulk(transactions.append)
        with pytest.raises(StoreError, match="the transaction has ended"):
            transactions[0].run("INSERT INTO deleted_runs (run) VALUES ('late')")
        assert storage.database.read("SELECT run FROM deleted_runs") == []


@pytest.mark.parametrize("urls", [("sqlite", "postgresql")], indirect=True)
def test_an_error_of_the_destination_is_reported_as_such(urls: tuple[str, str], opened: OpenStores) -> None:
    source, destination = opened(urls[0]), opened(urls[1])
    source.save_run(Run(id="r", name="n", suite="s"))
    with closing(sqlite3.connect(urls[0].removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE runs SET name = 'a' || char(0) || 'b'")
    with pytest.raises(StoreError, match=r"the store postgresql://.*0x00"):
        copy_store(source.database, destination.database, PARTS)


def test_rows_written_during_a_copy_are_not_copied(urls: tuple[str, str], opened: OpenStores) -> None:
    (run, *_) = fill(urls[0])
    source, other, destination = opened(urls[0]), opened(urls[0]), opened(urls[1])
    before = everything(source)

    def write(table: str, rows: int) -> None:
        if table == "samples" and rows:
            key = ResponseKey(run, f"late-{rows}")
            other.put_response(key, Response(text="late"), Sample(key.case, "q"))
            other.put_grade(GradeKey(*key, "exact"), Grade("exact", "f", Outcome.PASS, 1.0, True))

    copy_store(source.database, destination.database, PARTS, progress=write)
    assert everything(destination) == before
    assert len(list(source.records(run))) == len(list(destination.records(run))) + 1


def test_remaining_rows_of_a_deleted_run_are_not_copied(urls: tuple[str, str], opened: OpenStores) -> None:
    (_, run, _) = fill(urls[0])
    source, destination = opened(urls[0]), opened(urls[1])
    # as a deletion that was killed after its first step leaves it
    if isinstance(source, SqliteStorage):
        from gradeline.store.maintenance import hide_run

        with source._pool.writing(foreign_keys=False) as connection:
            hide_run(connection, run)
    else:
        execute(urls[0], "DELETE FROM gradeline.runs WHERE id = $1", run)
        execute(urls[0], "INSERT INTO gradeline.deleted_runs VALUES ($1)", run)
    assert source.database.read("SELECT count(*) FROM responses WHERE run = ?", run) != [(0,)]
    copy_store(source.database, destination.database, PARTS)
    assert destination.database.read("SELECT count(*) FROM responses WHERE run = ?", run) == [(0,)]
    assert destination.database.read("SELECT count(*) FROM deleted_runs") == [(0,)]


@pytest.mark.parametrize("urls", [("sqlite", "postgresql")], indirect=True)
def test_tables_of_an_earlier_version_are_brought_up_to_date_in_the_copy(
    urls: tuple[str, str], opened: OpenStores
) -> None:
    fill(urls[0])
    newer = {**PARTS, "labels": (*PARTS["labels"], lambda t, _: t.run("ALTER TABLE labels ADD COLUMN colour TEXT"))}
    source, destination = opened(urls[0]), opened(urls[1])
    before = everything(source)
    copy_store(source.database, destination.database, newer)
    assert destination.database.read("SELECT colour FROM labels") == [(None,)]
    assert destination.database.read("SELECT version FROM parts WHERE name = 'labels'") == [(2,)]
    assert everything(source) == before


@pytest.mark.parametrize("urls", [("sqlite", "postgresql")], indirect=True)
def test_tables_of_a_newer_version_are_refused(urls: tuple[str, str], opened: OpenStores) -> None:
    fill(urls[0])
    source, destination = opened(urls[0]), opened(urls[1])
    for parts in ({**PARTS, "labels": ()}, {name: steps for name, steps in PARTS.items() if name != "labels"}):
        with pytest.raises(StoreError, match=r"tables 'labels' of version 1, this gradeline knows 0; upgrade"):
            copy_store(source.database, destination.database, parts)


@pytest.mark.parametrize("urls", BOTH_WAYS, indirect=True)
def test_large_rows_are_read_few_at_a_time(urls: tuple[str, str], opened: OpenStores) -> None:
    source, destination = opened(urls[0]), opened(urls[1])
    run = source.save_run(Run(name="n", suite="s"))
    for case in range(8):
        source.put_response(ResponseKey(run, str(case)), Response(text="x" * 1_500_000), Sample(str(case), "q"), case)
    steps: list[int] = []

    def note(table: str, rows: int) -> None:
        if table == "responses":
            steps.append(rows)

    copy_store(source.database, destination.database, PARTS, progress=note)
    assert steps == [3, 6, 8]  # a page ends with the row that reaches 4 MB


@pytest.mark.parametrize("table", ["samples", "responses", "grades", "response_history", "grade_history"])
def test_pages_are_found_by_key(tmp_path: Path, table: str) -> None:
    statements: list[str] = []

    class Noting:
        def run(self, statement: str, *_: object) -> list[tuple[object, ...]]:
            statements.append(statement)
            return [tuple(found[table].columns)] if len(statements) == 1 else []

    with SqliteStorage(tmp_path / "store.db") as storage:
        dialect = storage.database.dialect
        found = storage.database.snapshot(lambda transaction: tables.tables_of(transaction, dialect))
        list(backup._rows_of(Noting(), dialect, found[table]))
        places = "x" * len(found[table].key)
        plan = storage.database.read(f"EXPLAIN QUERY PLAN {statements[1]}", *places)
    key = ",".join(found[table].key)
    assert any(f"({key})>(" in str(row[3]) for row in plan), plan


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_backup_is_one_file_and_a_store(kind: str, request: pytest.FixtureRequest, opened: OpenStores) -> None:
    url, folder = url_of(kind, request, "source.db"), request.getfixturevalue("tmp_path") / "backups"
    folder.mkdir()
    fill(url)
    source = opened(url)
    write_backup(source.database, folder / "one.db", PARTS)
    assert [file.name for file in folder.iterdir()] == ["one.db"]
    assert everything(opened(str(folder / "one.db"))) == everything(source)


def test_a_backup_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(str(tmp_path / "source.db"))
    (tmp_path / "backups").mkdir()

    def fails(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(backup, "_insert", fails)
    with SqliteStorage(tmp_path / "source.db") as source, pytest.raises(StoreError, match="the disk is full"):
        write_backup(source.database, tmp_path / "backups" / "one.db", PARTS)
    assert list((tmp_path / "backups").iterdir()) == []


def test_between_two_postgresql_databases(
    postgres_url: str, postgres_database: ServerDatabase, opened: OpenStores
) -> None:
    other = ServerDatabase(postgres_database._server)
    try:
        fill(postgres_url)
        source, destination = opened(postgres_url), opened(other.url)
        copy_store(source.database, destination.database, PARTS)
        assert everything(destination) == everything(source)
    finally:
        opened.close()
        other.drop()
