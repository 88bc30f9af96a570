"""What a run holds in memory, by the size of its dataset, and whether it goes on at the same rate.

``--million`` adds a million samples, which takes minutes. The main process is measured by the system
(the most it ever held); all processes together by looking ten times a second: pages that they share
are counted for each of them, so that figure is an upper bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from measure import (
    FAILED,
    RunFailedError,
    exit_code,
    flags,
    judged,
    print_machine,
    print_table,
    scratch,
    show_progress,
    started,
)
from tools import Job, Tool, gradeline, write_cases

SIZES = (10_000, 100_000)
MILLION = 1_000_000
CONCURRENCY = 100
MOST_MB = 150.0
"""At 100,000 samples."""
GROWTH = 20.0
"""Per cent that a million samples may differ from 100,000, in memory and in rate."""
_EVERY = 0.1
_PROC = Path("/proc")


class Measured(NamedTuple):
    """A run's samples a second, and its memory."""

    rate: float
    main_mb: float
    all_mb: float


class Watch:
    """Adds up the memory of a process and its children until it is stopped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._end = Event()
        self._thread = Thread(target=self._look, daemon=True)
        self.peak_kib = 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(_EVERY):
            self.peak_kib = max(self.peak_kib, sum(_resident_kib(pid) for pid in _family(self._pid)))


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for one in found:
        try:
            for task in (_PROC / str(one) / "task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
    return found


def _resident_kib(pid: int) -> int:
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)


def measured(tool: Tool, samples: int) -> Measured:
    show_progress(f"{tool.name}, {samples:,} samples …")
    with scratch() as folder:
        job = Job(folder, samples, CONCURRENCY)
        write_cases(job.cases, samples)
        with started(tool.prepare(job), folder, tool.variables) as process, Watch(process.pid) as watch:
            done = process.wait()
        passed = tool.passed(job, done.output)
    if passed != samples:
        raise RunFailedError(f"it found {passed:,} of {samples:,} answers right")
    main = done.peak_kib / 1024
    return Measured(samples / done.seconds, main, max(main, watch.peak_kib / 1024))


def row(tool: Tool, samples: int, one: Measured, base: Measured | None) -> tuple[str, ...]:
    """``base`` is the same with 100,000 samples, to which a million is compared."""
    memory, rate = "", ""
    if samples == SIZES[-1]:
        memory = judged(one.all_mb, MOST_MB, at_least=False)
    elif base is not None:
        memory = judged(one.all_mb, base.all_mb * (1 + GROWTH / 100), at_least=False)
        rate = judged(one.rate, base.rate * (1 - GROWTH / 100), at_least=True)
    figures = (f"{one.rate:,.0f}", rate, f"{one.main_mb:.0f}", f"{one.all_mb:.0f}", memory)
    return tool.name, f"{samples:,}", *figures, ""


def rows_of(tool: Tool, sizes: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    base: Measured | None = None
    for samples in sizes:
        try:
            one = measured(tool, samples)
        except RunFailedError as error:
            yield tool.name, f"{samples:,}", *[""] * 5, f"{FAILED}{error}"
            continue
        yield row(tool, samples, one, base)
        if samples == SIZES[-1]:
            base = one


def main() -> int:
    million = flags(__doc__, million="also a million samples, which takes minutes")
    print_machine()
    sizes = (*SIZES, MILLION) if million else SIZES
    rows = [line for variant in ("none", "worker") for line in rows_of(gradeline(variant), sizes)]
    show_progress("")
    print_table(
        f"memory of a run, MB (an agent that answers at once, {CONCURRENCY} at a time)",
        ("tool", "samples", "samples/s", "target", "main process", "all processes", "target", ""),
        rows,
    )
    if not million:
        print("a million samples, which takes minutes: python bench/memory.py --million")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
