"""What storing a run costs through the writer, next to the floor: the same texts by one executemany."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample, to_json
from gradeline.store import Run, SqliteStorage
from measure import print_table

RESPONSES = 10_000
ROUNDS = 3
TEXT = "Paris is the capital of France. " * 30


def response(number: int) -> Response:
    return Response(text=f"{number}: {TEXT}", latency_ms=12.5)


def grade(number: int) -> Grade:
    passed = number % 3 > 0
    return Grade("exact", "f" * 32, Outcome.PASS if passed else Outcome.FAIL, float(passed), passed, "as expected")


def floor(folder: Path) -> float:
    """Rows a second, every one known beforehand, in one transaction."""
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    for table in ("responses", "grades"):
        connection.execute(f"CREATE TABLE {table} (run, case_key, repeat, body, PRIMARY KEY (run, case_key, repeat))")
    started = perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    for table, make in (("responses", response), ("grades", grade)):
        rows = (("run", str(number), 0, to_json(make(number))) for number in range(RESPONSES))
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)
    connection.execute("COMMIT")
    rate = 2 * RESPONSES / (perf_counter() - started)
    connection.close()
    return rate


async def through_writer(folder: Path, responses: int, concurrency: int) -> float:
    """Rows a second of tasks that each wait for their response's commit, then for their grade's."""
    with SqliteStorage(folder / "store.db") as storage:
        run = storage.save_run(Run(name="bench", suite="bench"))
        async with storage.writer() as writer:
            numbers = iter(range(responses))

            async def caller() -> None:
                for number in numbers:
                    key = ResponseKey(run, str(number))
                    await writer.put_response(key, response(number), Sample(number, "What is it?"), number)
                    await writer.put_grade(GradeKey(*key, "exact"), grade(number), TEXT)

            started = perf_counter()
            await asyncio.gather(*(caller() for _ in range(concurrency)))
            return 2 * responses / (perf_counter() - started)


def reading(folder: Path) -> tuple[float, float]:
    """Records and keys a second."""
    with SqliteStorage(folder / "store.db") as storage:
        run = storage.find_run("latest").id
        started = perf_counter()
        records = sum(1 for _ in storage.records(run))
        middle = perf_counter()
        keys = sum(1 for _ in storage.keys_of(run))
        return records / (middle - started), keys / (perf_counter() - middle)


def in_folder(measure: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        return measure(Path(folder))


def writing(responses: int, concurrency: int) -> Callable[[Path], float]:
    return lambda folder: asyncio.run(through_writer(folder, responses, concurrency))


def main() -> None:
    measures = {
        "executemany, one transaction (the floor)": floor,
        "writer, 100 at once": writing(RESPONSES, 100),
        "writer, one at a time": writing(500, 1),
    }
    rows = [
        (name, f"{median([in_folder(measure) for _ in range(ROUNDS)]):,.0f}", "") for name, measure in measures.items()
    ]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        asyncio.run(through_writer(Path(folder), RESPONSES, 100))
        records, keys = reading(Path(folder))
    rows += [("records read (response, sample, grade)", f"{records:,.0f}", ""), ("keys read", f"{keys:,.0f}", "")]
    print_table(f"{RESPONSES:,} responses and grades in SQLite", ("way", "rows/s", ""), rows)


if __name__ == "__main__":
    main()
