"""The database of a store, for tables in addition to those of runs: the same on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample, to_json
from gradeline.store import PostgresStorage, Run, SqliteStorage, StoreError
from gradeline.store.database import Dialect, SharedStorage, Transaction, migrate
from gradeline.store.postgres_connections import numbered
from gradeline.store.rows import RecordRow

STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest) -> Callable[[], SharedStorage]:
    """Opens the same store each time."""
    return lambda: STORES[request.param](request)


@pytest.fixture
def store(make: Callable[[], SharedStorage]) -> Iterator[SharedStorage]:
    with make() as storage:
        yield storage


def create_notes(transaction: Transaction, dialect: Dialect) -> None:
    transaction.run(f"CREATE TABLE notes (n {dialect.serial}, name TEXT NOT NULL UNIQUE, value BIGINT NOT NULL)")


def add_size(transaction: Transaction, dialect: Dialect) -> None:
    transaction.run("ALTER TABLE notes ADD COLUMN size DOUBLE PRECISION")


def noted(store: SharedStorage) -> list[tuple[object, ...]]:
    return store.database.read("SELECT name, value FROM notes ORDER BY n")


@pytest.fixture
def notes(store: SharedStorage) -> SharedStorage:
    migrate(store.database, "notes", (create_notes, add_size))
    store.database.transact(
        lambda transaction: transaction.run("INSERT INTO notes (name, value) VALUES (?, ?)", "a", 0)
    )
    return store


def test_written_rows_can_be_read(notes: SharedStorage) -> None:
    def work(transaction: Transaction) -> list[tuple[object, ...]]:
        transaction.run("INSERT INTO notes (name, value, size) VALUES (?, ?, ?)", "it's ?", 2**40, 0.1)
        return transaction.run("UPDATE notes SET value = value + 1 WHERE name = ? RETURNING value, size", "it's ?")

    assert notes.database.transact(work) == [(2**40 + 1, 0.1)]
    assert noted(notes) == [("a", 0), ("it's ?", 2**40 + 1)]
    assert notes.database.read("SELECT name FROM notes WHERE name <> '?' AND value > ? LIMIT ?", 0, 5) == [("it's ?",)]


@pytest.mark.parametrize("error", [ValueError("mine"), StoreError("mine"), KeyError("mine")])
def test_an_exception_rolls_back_and_propagates_unchanged(notes: SharedStorage, error: Exception) -> None:
    def work(transaction: Transaction) -> None:
        transaction.run("UPDATE notes SET value = 7")
        raise error

    with pytest.raises(type(error), match="mine"):
        notes.database.transact(work)
    assert noted(notes) == [("a", 0)]


def test_a_statement_that_fails_is_a_store_error(notes: SharedStorage) -> None:
    for act in (
        lambda: notes.database.read("SELECT * FROM nowhere"),
        lambda: notes.database.transact(lambda transaction: transaction.run("SELECT * FROM nowhere")),
        lambda: notes.database.transact(
            lambda transaction: transaction.run("INSERT INTO notes (name, value) VALUES ('a', 1)")
        ),
    ):
        with pytest.raises(StoreError):
            act()
    assert noted(notes) == [("a", 0)]


def test_concurrent_read_modify_write_loses_no_update(notes: SharedStorage, make: Callable[[], SharedStorage]) -> None:
    def add(store: SharedStorage) -> None:
        def work(transaction: Transaction) -> None:
            ((value,),) = transaction.run("SELECT value FROM notes WHERE name = ?", "a")
            transaction.run("UPDATE notes SET value = ? WHERE name = ?", value + 1, "a")

        store.database.transact(work)

    with make() as other, ThreadPoolExecutor(4) as threads:
        list(threads.map(add, [notes, other] * 20))
    assert noted(notes) == [("a", 40)]


def test_concurrent_opening_of_the_same_schema(store: SharedStorage, make: Callable[[], SharedStorage]) -> None:
    with make() as other, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda one: migrate(one.database, "notes", (create_notes, add_size)), [store, other] * 3))
    assert store.database.read("SELECT name, version FROM parts") == [("notes", 2)]


def test_the_tables_of_the_store_can_be_read(store: SharedStorage) -> None:
    run = store.save_run(Run(name="n", suite="s"))
    assert store.database.read("SELECT id FROM runs WHERE name = ?", "n") == [(run,)]
    assert store.database.read("SELECT count(*) FROM test_cases WHERE deleted = 0") == [(0,)]


def test_a_replaced_response_is_kept_with_its_grades(store: SharedStorage) -> None:
    run = store.save_run(Run(name="n", suite="s"))
    key, grade = ResponseKey(run, "1"), Grade("k", "f", Outcome.PASS, 1.0, True)
    texts = ("first", "second", "second", "third")
    for text in texts:
        store.put_response(key, Response(text=text), Sample(1, "q"))
        store.put_grade(GradeKey(*key, "exact"), grade, text)
    responses = store.database.read(
        "SELECT attempt, response FROM response_history WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY attempt",
        *key,
    )
    assert responses == [(1, to_json(Response(text="first"))), (2, to_json(Response(text="second")))]
    grades = store.database.read("SELECT attempt, grader, grade, submission FROM grade_history ORDER BY attempt")
    assert grades == [(1, "exact", to_json(grade), "first"), (2, "exact", to_json(grade), "second")]
    assert store.delete_run(run)
    assert store.database.read("SELECT * FROM grade_history") == []


class TestCommitHook:
    def test_the_hook_is_committed_with_the_rows(self, notes: SharedStorage) -> None:
        run = notes.save_run(Run(name="n", suite="s"))

        def count(transaction: Transaction, rows: Sequence[RecordRow]) -> None:
            transaction.run("UPDATE notes SET value = value + ? WHERE name = ?", len(rows), "a")

        async def write() -> list[BaseException | None]:
            async with notes.writer(count) as writer:
                keys = [ResponseKey(run, "1"), ResponseKey("nope", "2"), ResponseKey(run, "3")]
                return await asyncio.gather(
                    *(writer.put_response(key, Response(text="a"), Sample(key.case, "q")) for key in keys),
                    return_exceptions=True,
                )

        assert [type(error) for error in asyncio.run(write())] == [type(None), StoreError, type(None)]
        assert noted(notes) == [("a", 2)]

    def test_nothing_is_stored_if_the_hook_raises(self, notes: SharedStorage) -> None:
        run = notes.save_run(Run(name="n", suite="s"))

        def refuse(transaction: Transaction, rows: Sequence[RecordRow]) -> None:
            raise StoreError("another has the run")

        async def write() -> None:
            async with notes.writer(refuse) as writer:
                await writer.put_response(ResponseKey(run, "1"), Response(text="a"), Sample(1, "q"))

        with pytest.raises(StoreError, match="another has the run"):
            asyncio.run(write())
        assert list(notes.records(run)) == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("a = ? AND b = ?", "a = $1 AND b = $2"),
        ("a = '?' AND b = ?", "a = '?' AND b = $1"),
        ("a = 'it''s ?' AND \"b?\" = ?", "a = 'it''s ?' AND \"b?\" = $1"),
        ("SELECT 1", "SELECT 1"),
    ],
)
def test_values_are_numbered_for_postgresql(statement: str, found: str) -> None:
    assert numbered(statement) == found
