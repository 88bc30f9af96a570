"""What a store does for a service: its cases in order, and commit hooks of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gradeline.errors import ConfigError, StoreError
from gradeline.model import Response, ResponseKey, Run, Sample, Storage
from gradeline.store import InMemoryStorage, SqliteStorage
from gradeline.store.database import Transaction
from gradeline.store.rows import RecordRow


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return InMemoryStorage() if request.param == "memory" else SqliteStorage(tmp_path / "store.db")


def test_cases_are_in_the_order_in_which_they_were_stored(storage: Storage) -> None:
    with storage:
        storage.save_run(Run(id="r", name="r", suite="s"))
        samples = [Sample(f"{n % 7}-{n}", f"input {n}") for n in range(1200)]
        storage.put_samples("r", samples)
        assert list(storage.samples("r")) == samples
        with pytest.raises(ConfigError, match="no run 'nobody'"):
            list(storage.samples("nobody"))


def put(storage: SqliteStorage, beside: object) -> None:
    async def write() -> None:
        async with storage.writer(beside) as writer:  # type: ignore[arg-type]
            await writer.put_response(ResponseKey("r", "a"), Response(text="x"), Sample("a", "?"))

    asyncio.run(write())


def test_a_commit_hook_is_stored_with_the_batch(tmp_path: Path) -> None:
    cases: list[str] = []

    def beside(transaction: Transaction, rows: Sequence[RecordRow]) -> None:
        cases.extend(row.case for row in rows)
        transaction.run("INSERT INTO notes (text) VALUES (?)", "beside")

    with SqliteStorage(tmp_path / "store.db") as storage:
        storage.save_run(Run(id="r", name="r", suite="s"))
        storage.database.transact(lambda transaction: transaction.run("CREATE TABLE notes (text TEXT)"))
        put(storage, beside)
        assert (cases, storage.database.read("SELECT text FROM notes")) == (["a"], [("beside",)])


def test_an_error_in_a_commit_hook_rolls_the_batch_back(tmp_path: Path) -> None:
    def refuse(transaction: Transaction, rows: Sequence[RecordRow]) -> None:
        transaction.run("DELETE FROM runs WHERE id = 'other'")
        raise StoreError("not yours any more")

    with SqliteStorage(tmp_path / "store.db") as storage:
        for name in ("r", "other"):
            storage.save_run(Run(id=name, name=name, suite="s"))
        with pytest.raises(StoreError, match="not yours any more"):
            put(storage, refuse)
        assert storage.get_response(ResponseKey("r", "a")) is None
        assert storage.get_run("other") is not None


def test_a_replaced_response_stays_in_the_history(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "store.db") as storage:
        storage.save_run(Run(id="r", name="r", suite="s"))
        key, sample = ResponseKey("r", "a"), Sample("a", "?")
        for text in ("one", "one", "two", "three"):
            storage.put_response(key, Response(text=text), sample)
        rows = storage.database.read("SELECT attempt, response FROM response_history ORDER BY attempt")
    assert [(attempt, '"text":"one"' in text, '"text":"two"' in text) for attempt, text in rows] == [
        (1, True, False),
        (2, False, True),
    ]
