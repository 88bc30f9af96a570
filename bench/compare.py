"""What comparing runs costs, next to the floor: reading the rows that it needs.

The store holds two runs of 100,000 cases and ten of 10,000, with one grader. A comparison is a whole process of the
command line with ``--json``; the floor reads the same rows with SQLite and nothing else.
The best of several rounds counts: whatever else the machine does only ever adds.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from time import perf_counter
from typing import NamedTuple

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample, Usage
from gradeline.store import SqliteStorage
from gradeline.store.rows import RecordRow, grade_row, response_row
from gradeline.store.sqlite_records import put_rows
from measure import Finished, exit_code, finished, judged, print_machine, print_table, record, scratch, show_progress

ROUNDS = 3
GRADER = RunGrader("exact_match", "1")
_BATCH = 5_000


class Comparing(NamedTuple):
    """Some runs to compare, and the seconds that it may take."""

    runs: int
    cases: int
    seconds: float


SIZES = (Comparing(2, 100_000, 2.0), Comparing(10, 10_000, 5.0))


def names(size: Comparing) -> list[str]:
    return [f"{size.cases}-{number}" for number in range(size.runs)]


def fill(store: Path) -> None:
    """The runs, their scores drawn by a seed."""
    with SqliteStorage(store) as storage:
        runs = {
            name: storage.save_run(
                Run(name=name, suite="bench", status="completed", graders={"right": GRADER}, total=size.cases)
            )
            for size in SIZES
            for name in names(size)
        }
    connection = sqlite3.connect(store, isolation_level=None)
    for size in SIZES:
        for number, name in enumerate(names(size)):
            rows = rows_of(runs[name], size.cases, 0.7 + 0.02 * number)
            connection.execute("BEGIN IMMEDIATE")
            while batch := list(islice(rows, _BATCH)):
                put_rows(connection, batch)
            connection.execute("COMMIT")
    connection.close()


def rows_of(run: str, cases: int, share: float) -> Iterator[RecordRow]:
    draw = Random(run)
    for number in range(cases):
        key = ResponseKey(run, f"case-{number:06}")
        response = Response(text="Paris", latency_ms=20.0 + 10.0 * draw.random(), usage=Usage(cost=0.001))
        yield response_row(key, response, Sample(key.case, f"What is {number}?"), number)
        yield grade_row(GradeKey(*key, "right"), grade(draw.random() < share), None)


def grade(passed: bool) -> Grade:
    outcome = Outcome.PASS if passed else Outcome.FAIL
    return Grade(GRADER.kind, GRADER.fingerprint, outcome, float(passed), passed)


def floor(store: Path, size: Comparing) -> float:
    """Seconds to read the scores, digests, latencies and costs of the runs."""
    connection = sqlite3.connect(store)
    started = perf_counter()
    for name in names(size):
        (run,) = connection.execute("SELECT id FROM runs WHERE name = ?", (name,)).fetchone()
        for _ in connection.execute(
            "SELECT case_key, repeat, status, latency_ms, cost, digest FROM responses WHERE run = ?", (run,)
        ):
            pass
        for _ in connection.execute("SELECT case_key, repeat, grader, score, cost FROM grades WHERE run = ?", (run,)):
            pass
    seconds = perf_counter() - started
    connection.close()
    return seconds


def compared(store: Path, size: Comparing) -> Finished:
    # what it decides is its exit code: that of two runs is not 0 for every decision
    script = "import sys; from gradeline.cli import run; sys.exit(run(sys.argv[1:]) in (2, 4))"
    command = [sys.executable, "-c", script, "compare", *names(size), "--json", "--store", str(store)]
    return finished(command, store.parent)


def row(store: Path, size: Comparing) -> tuple[str, ...]:
    show_progress(f"{size.runs} runs of {size.cases:,} cases …")
    floors = min(floor(store, size) for _ in range(ROUNDS))
    rounds = [compared(store, size) for _ in range(ROUNDS)]
    seconds, cpu = min(one.seconds for one in rounds), min(one.cpu_seconds for one in rounds)
    peak = max(one.peak_kib for one in rounds) / 1024
    record("compare", runs=size.runs, cases=size.cases, seconds=seconds, cpu=cpu, floor=floors, peak_mb=peak)
    return (
        f"{size.runs} runs of {size.cases:,} cases",
        f"{seconds:.2f}",
        judged(seconds, size.seconds, at_least=False, digits=1),
        f"{cpu:.2f}",
        f"{floors:.2f}",
        f"{seconds / floors:.1f}",
        f"{peak:.0f}",
        "",
    )


def main(sizes: Sequence[Comparing] = SIZES) -> int:
    print_machine()
    with scratch() as folder:
        store = folder / "store.db"
        fill(store)
        rows = [row(store, size) for size in sizes]
    show_progress("")
    print_table(
        f"comparing runs (whole process, one grader, best of {ROUNDS})",
        ("", "s", "target", "CPU s", "floor s", "times the floor", "peak MB", ""),
        rows,
    )
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
