"""What a sample costs as runs grow, next to the floor: time, memory and disk from 1,000 samples on.

The cost of a sample is (t(100,000) - t(10,000)) / 90,000, so that what starting and ending cost is not in it. Whole
processes, an agent that answers at once, an exact match, a fresh SQLite file that is synced at every commit. The tools
take turns, and the best of several rounds counts: whatever else the machine does only ever adds. ``--large`` adds a
million samples, which takes minutes.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from measure import (
    FAILED,
    RunFailedError,
    exit_code,
    finished,
    flags,
    judged,
    print_machine,
    print_table,
    record,
    scratch,
    show_progress,
)
from tools import Job, Tool, bare, floor, gradeline, write_cases

SIZES = (1_000, 10_000, 100_000)
LARGE = 1_000_000
CONCURRENCY = 100
ROUNDS = 5
LARGE_ROUNDS = 1
FLOORS = 2.5
"""How many times the floor's a sample may cost."""
_JSON = (("samples", "sample"), ("responses", "response"), ("grades", "grade"))


class Size(NamedTuple):
    """The best result of a tool for a number of samples."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    disk_bytes: int
    json_bytes: int | None
    """What the records are as JSON text; None for a tool that keeps no JSON."""

    def best(self, other: Size | None) -> Size:
        if other is None:
            return self
        return self._replace(
            seconds=min(self.seconds, other.seconds),
            cpu_seconds=min(self.cpu_seconds, other.cpu_seconds),
            peak_mb=min(self.peak_mb, other.peak_mb),
        )


class Marginal(NamedTuple):
    """What one more sample costs, in microseconds."""

    wall: float
    cpu: float

    @classmethod
    def between(cls, few: Size, many: Size, samples: int) -> Marginal:
        return cls(1e6 * (many.seconds - few.seconds) / samples, 1e6 * (many.cpu_seconds - few.cpu_seconds) / samples)


def measured(tool: Tool, samples: int) -> Size:
    with scratch() as folder:
        job = Job(folder, samples, CONCURRENCY)
        write_cases(job.cases, samples)
        done = finished(tool.prepare(job), folder, tool.variables)
        store = folder / "store.db"
        disk = sum(file.stat().st_size for file in folder.glob("store.db*"))
        passed = tool.passed(job, done.output)
        if passed != samples:
            raise RunFailedError(f"it found {passed:,} of {samples:,} answers right")
        return Size(done.seconds, done.cpu_seconds, done.peak_kib / 1024, disk, json_bytes(store))


def json_bytes(store: Path) -> int | None:
    """The size of all records as JSON text."""
    connection = sqlite3.connect(store)
    try:
        parts = [f"(SELECT sum(length({column})) FROM {table})" for table, column in _JSON]
        total: int = connection.execute(f"SELECT {' + '.join(parts)}").fetchone()[0]
    except sqlite3.OperationalError:
        return None
    finally:
        connection.close()
    return total


class Growth:
    """What each tool did at each size."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tools
        self.sizes: dict[tuple[str, int], Size] = {}
        self.failures: dict[tuple[str, int], str] = {}

    def measure(self, samples: int, rounds: int) -> None:
        for number in range(rounds):
            for tool in self.tools:
                place = tool.name, samples
                if place in self.failures:
                    continue
                show_progress(f"{tool.name}, {samples:,} samples, round {number + 1} of {rounds} …")
                try:
                    self.sizes[place] = measured(tool, samples).best(self.sizes.get(place))
                except RunFailedError as error:
                    self.failures[place] = str(error)

    def marginal(self, tool: Tool, few: int, many: int) -> Marginal | None:
        sizes = self.sizes
        if (tool.name, few) not in sizes or (tool.name, many) not in sizes:
            return None
        return Marginal.between(sizes[tool.name, few], sizes[tool.name, many], many - few)


def size_rows(growth: Growth, samples: Sequence[int]) -> Iterator[tuple[str, ...]]:
    for tool in growth.tools:
        for number in samples:
            place = tool.name, number
            if place not in growth.sizes:
                yield tool.name, f"{number:,}", *[""] * 6, f"{FAILED}{growth.failures.get(place, 'not measured')}"
                continue
            one = growth.sizes[place]
            record("growth", tool=tool.name, samples=number, **one._asdict())
            yield (
                tool.name,
                f"{number:,}",
                f"{one.seconds:.2f}",
                f"{one.cpu_seconds:.2f}",
                f"{number / one.seconds:,.0f}",
                f"{one.peak_mb:.0f}",
                f"{one.disk_bytes / number:,.0f}",
                "" if one.json_bytes is None else f"{one.json_bytes / number:,.0f}",
                "",
            )


def marginal_rows(growth: Growth, few: int, many: int) -> Iterator[tuple[str, ...]]:
    """The second tool is the floor, which the others are compared with."""
    base = growth.marginal(growth.tools[1], few, many)
    for place, tool in enumerate(growth.tools):
        one = growth.marginal(tool, few, many)
        if one is None or base is None:
            yield tool.name, *[""] * 5, f"{FAILED}no figure to compare"
            continue
        record("marginal", tool=tool.name, few=few, many=many, **one._asdict())
        ratio = one.wall / base.wall
        target = judged(ratio, FLOORS if place == 0 else None, at_least=False, digits=1)
        yield tool.name, f"{one.wall:.1f}", f"{one.cpu:.1f}", f"{ratio:.2f}", target, f"{one.cpu / base.cpu:.2f}", ""


def main() -> int:
    large = flags(__doc__, large="also a million samples, which takes minutes")
    print_machine()
    growth = Growth([gradeline("none"), floor(), bare()])
    for samples in SIZES:
        growth.measure(samples, ROUNDS)
    if large:
        growth.measure(LARGE, LARGE_ROUNDS)
    show_progress("")
    sizes = [*size_rows(growth, (*SIZES, LARGE) if large else SIZES)]
    print_table(
        f"a run by its size (an agent that answers at once, {CONCURRENCY} at a time, whole process, best of {ROUNDS})",
        ("tool", "samples", "s", "CPU s", "samples/s", "peak MB", "disk B/sample", "JSON B/sample", ""),
        sizes,
    )
    print()
    steps = [(SIZES[1], SIZES[2]), *([(SIZES[2], LARGE)] if large else [])]
    found = []
    for few, many in steps:
        rows = [*marginal_rows(growth, few, many)]
        print_table(
            f"what one more sample costs, from {few:,} to {many:,} samples",
            ("tool", "µs", "CPU µs", "times the floor", "target", "by CPU", ""),
            rows,
        )
        found += rows
    if not large:
        print("a million samples, which takes minutes: python bench/growth.py --large")
    return exit_code([*sizes, *found])


if __name__ == "__main__":
    sys.exit(main())
