"""What ``gradeline export`` holds in memory, by the number of records: it must not grow with them.

``--million`` adds a million records, which takes minutes; ``--postgres`` measures a PostgreSQL store too, on a server
of its own. The figure is the most that the exporting process ever held.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradeline.errors import Outcome
from gradeline.model import Grade, GradeKey, Response, ResponseKey, RunGrader, Sample
from gradeline.store import PostgresStorage, Run, SqliteStorage
from measure import (
    COMMAND,
    FAILED,
    ROOT,
    RunFailedError,
    exit_code,
    finished,
    flags,
    judged,
    print_machine,
    print_table,
    scratch,
    show_progress,
)

SIZES = (10_000, 100_000)
MILLION = 1_000_000
FORMATS = ("jsonl", "csv", "parquet")
GROWTH_MB = 20.0
"""How much more memory more records than 10,000 may take; a Parquet file must remember where its groups of rows are."""
PARQUET_GROWTH_MB = 100.0
"""What DuckDB may hold more of 100,000 records than of 10,000, which are a single group."""
TEXT = "Paris is the capital of France, and has been for a long time. " * 8
_AT_ONCE = 500


async def stored(storage: SqliteStorage | PostgresStorage, records: int) -> None:
    graders = {"exact": RunGrader("exact", "f" * 32)}
    run = storage.save_run(Run(name="many", suite="bench", status="completed", graders=graders, total=records))
    numbers = iter(range(records))
    async with storage.writer() as writer:

        async def write() -> None:
            for number in numbers:
                key = ResponseKey(run, f"case-{number}")
                passed = number % 3 > 0
                grade = Grade("exact", "f" * 32, Outcome.PASS if passed else Outcome.FAIL, float(passed), passed)
                sample = Sample(key.case, f"What is {number}?", str(number))
                answer = Response(text=f"{number} {TEXT}", latency_ms=float(number % 97))
                await writer.put_response(key, answer, sample, number)
                await writer.put_grade(GradeKey(*key, "exact"), grade, answer.text)

        await asyncio.gather(*(write() for _ in range(_AT_ONCE)))


def fill(store: str, records: int) -> int:
    """In a process of its own: a measured process is counted with what the one that starts it holds."""
    with PostgresStorage(store) if "://" in store else SqliteStorage(store) as storage:
        asyncio.run(stored(storage, records))
    return 0


@contextmanager
def stores(folder: Path, *, postgres: bool) -> Iterator[dict[str, str]]:
    found = {"SQLite": str(folder / "store.db")}
    if not postgres:
        yield found
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from postgres_server import Server

    server = Server({"fsync": "on", "shared_buffers": "256MB", "autovacuum": "on"})
    try:
        yield {**found, "PostgreSQL": server.url}
    finally:
        server.stop()


def exported(name: str, store: str, wanted: str, records: int, least_mb: float | None) -> tuple[float, tuple[str, ...]]:
    show_progress(f"{name}, {wanted}, {records:,} records …")
    with scratch() as folder:
        try:
            done = finished([COMMAND, "--store", store, "export", "--format", wanted, "--output", "out"], folder)
        except RunFailedError as error:
            return 0.0, (name, wanted, f"{records:,}", "", "", "", "", f"{FAILED}{error}")
        size = (folder / "out").stat().st_size
    memory = done.peak_kib / 1024
    more = PARQUET_GROWTH_MB if wanted == "parquet" else GROWTH_MB
    target = judged(memory, None if least_mb is None else least_mb + more, at_least=False)
    figures = (f"{done.seconds:.1f}", f"{size / 1e6:,.0f}", f"{memory:.0f}", target)
    return memory, (name, wanted, f"{records:,}", *figures, "")


def rows(sizes: tuple[int, ...], *, postgres: bool) -> Iterator[tuple[str, ...]]:
    least: dict[tuple[str, str], float] = {}
    for records in sizes:
        with scratch() as folder, stores(folder, postgres=postgres) as found:
            for name, store in found.items():
                show_progress(f"{name}, storing {records:,} records …")
                finished([sys.executable, __file__, "--fill", store, str(records)], folder)
                for wanted in FORMATS:
                    memory, row = exported(name, store, wanted, records, least.get((name, wanted)))
                    least.setdefault((name, wanted), memory)
                    yield row


def main() -> int:
    if sys.argv[1:2] == ["--fill"]:
        return fill(sys.argv[2], int(sys.argv[3]))
    asked = flags(
        __doc__,
        million="also a million records, which takes minutes",
        postgres="a PostgreSQL store too",
    )
    print_machine()
    sizes = (*SIZES, MILLION) if "million" in asked else SIZES
    table = list(rows(sizes, postgres="postgres" in asked))
    show_progress("")
    print_table(
        "memory of an export, MB (one grade a record)",
        ("store", "format", "records", "seconds", "file MB", "memory MB", "target", ""),
        table,
    )
    return exit_code(table)


if __name__ == "__main__":
    sys.exit(main())
