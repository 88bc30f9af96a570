"""What a second worker of a Ray cluster gives, and what a sample, a chunk and a row cost there.

The driver is a process of its own for every run, on a cluster of only this machine; workers, driver, PostgreSQL and
the agent share its cores. A run counts from the moment its first chunk is handed out to the moment the last one is
back, as the driver sees it: starting a cluster is no part of it. Ideal is samples x delay / concurrency. PostgreSQL is
one of our own that syncs every commit, as it does by default.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from measure import (
    COMMAND,
    EXIT_MISSED,
    MISSED,
    ROOT,
    environment,
    flags,
    print_machine,
    print_table,
    record,
    scratch,
    show_progress,
)

sys.path.insert(0, str(ROOT / "tests"))

from postgres_server import Server

SLOW_SAMPLES, DELAY, CONCURRENCY = 10_000, 0.1, 100
IDEALS = 1.15
WORDS, GRADED = 2_000, 6_000
SPEED_UP = 1.4
FEW, MANY = 5_000, 45_000
"""The difference is what samples cost, without what starting and ending cost."""
SETTINGS = {"fsync": "on", "full_page_writes": "on", "autovacuum": "on", "shared_buffers": "256MB"}
TICK = os.sysconf("SC_CLK_TCK")
PLANNED = 10_000_000
CORES = 8
"""Of a node in the forecast, each a worker."""
NODES = (1, 10, 100)

AGENT = """
import asyncio

async def answer(text):
    await asyncio.sleep({delay})
    return text{more}
"""


class Driven(NamedTuple):
    """A run on a cluster."""

    seconds: float
    """From the first chunk's start to the last one's end."""
    chunks: int
    driver_cpu: float
    worker_cpu: float
    database_cpu: float
    run: str


def main() -> int:
    flags(__doc__)
    print_machine()
    server = Server(SETTINGS)
    try:
        with scratch() as folder:
            rows = [*waiting(folder, server), *computing(folder, server)]
            print_table(
                "a second worker of a Ray cluster on two cores (first chunk's start to last one's end)",
                ("what", "samples", "workers", "s", "in all", "target"),
                rows,
            )
            forecast(folder)
    finally:
        server.stop()
    return EXIT_MISSED if any(MISSED in row[-1] for row in rows) else 0


def waiting(folder: Path, server: Server) -> Iterator[tuple[str, ...]]:
    """An agent that takes 100 ms, with a fixed number of calls in flight for any number of workers."""
    suite = write(folder / "slow", SLOW_SAMPLES, DELAY, {"kind": "exact_match"})
    ideal = SLOW_SAMPLES * DELAY / CONCURRENCY
    for workers in (1, 2):
        show_progress(f"{SLOW_SAMPLES:,} calls of {DELAY * 1000:.0f} ms, {workers} workers")
        driven = drive(server, suite, workers)
        target = f"≤ {IDEALS}" if workers == 2 else ""
        missed = f" {MISSED}" if workers == 2 and driven.seconds > IDEALS * ideal else ""
        times = f"{driven.seconds / ideal:.3f} x the ideal {ideal:.1f} s"
        name = f"agent of {DELAY * 1000:.0f} ms, {CONCURRENCY} at a time"
        yield name, f"{SLOW_SAMPLES:,}", str(workers), f"{driven.seconds:.2f}", times, target + missed


def computing(folder: Path, server: Server) -> Iterator[tuple[str, ...]]:
    """Answers that are there already, graded by a built-in that computes."""
    suite = write(folder / "graded", GRADED, 0.0, {"kind": "rouge"}, WORDS)
    run = drive(server, suite, 2).run
    alone = 0.0
    for workers in (1, 2):
        show_progress(f"{GRADED:,} answers of {WORDS:,} words regraded, {workers} workers")
        seconds = drive(server, suite, workers, "regrade", run).seconds
        alone = alone or seconds
        target = f"≥ {SPEED_UP}" if workers == 2 else ""
        missed = f" {MISSED}" if workers == 2 and alone / seconds < SPEED_UP else ""
        name = f"regrade by rouge, {WORDS:,} words each"
        yield (
            name,
            f"{GRADED:,}",
            str(workers),
            f"{seconds:.2f}",
            f"{alone / seconds:.2f} x one worker",
            target + missed,
        )


def forecast(folder: Path) -> None:
    """What is used up by a sample, and how long ten million take where that is all there is."""
    server = Server(SETTINGS)  # in which nothing of what was measured before is still tidied up
    try:
        drive(server, write(folder / "warm", FEW, 0.0, {"kind": "exact_match"}), 2)
        few, many = (quick(server, folder, samples) for samples in (FEW, MANY))
    finally:
        server.stop()
    worker, driver, rows = (
        1e6 * (after - before) / (MANY - FEW)
        for before, after in (
            (few.worker_cpu, many.worker_cpu),
            (few.driver_cpu, many.driver_cpu),
            (few.database_cpu, many.database_cpu),
        )
    )
    seconds = 1e6 * (many.seconds - few.seconds) / (MANY - FEW)
    print_table(
        "what a sample costs on a Ray cluster (CPU; an answer at once, an exact match)",
        ("where", "µs a sample", "note"),
        (
            ("worker", f"{worker:.1f}", "asks, encodes, grades, writes"),
            (
                "driver",
                f"{driver:.1f}",
                f"reads, plans, hands out chunks: {driver * MANY / many.chunks / 1000:,.1f} ms each",
            ),
            ("PostgreSQL", f"{rows:.1f}", f"{rows / 3:.1f} a row: the case, the answer, the grade"),
            ("wall time", f"{seconds:.1f}", "two workers, driver and PostgreSQL on these two cores"),
        ),
    )
    lines = [forecast_line(nodes, worker, driver, rows) for nodes in NODES]
    record("forecast", worker_us=worker, driver_us=driver, database_us=rows)
    print_table(
        f"what that predicts for {PLANNED:,} samples ({CORES} workers a node, {CONCURRENCY} calls of"
        f" {DELAY * 1000:.0f} ms in flight at each; PostgreSQL on {CORES} cores of its own)",
        ("nodes", "workers s", "driver s", "PostgreSQL s", "agent s", "the whole", "bottleneck"),
        lines,
    )


def quick(server: Server, folder: Path, samples: int) -> Driven:
    show_progress(f"{samples:,} calls of no time, 2 workers")
    return drive(server, write(folder / f"quick-{samples}", samples, 0.0, {"kind": "exact_match"}), 2)


def forecast_line(nodes: int, worker: float, driver: float, rows: float) -> tuple[str, ...]:
    """The parts work at the same time, so the slowest decides. The driver is one thread; PostgreSQL uses its cores
    for as many connections as there are."""
    seconds = {
        "the workers": PLANNED * worker / 1e6 / (nodes * CORES),
        "the driver": PLANNED * driver / 1e6,
        "PostgreSQL": PLANNED * rows / 1e6 / CORES,
        "the agent": PLANNED * DELAY / (nodes * CORES * CONCURRENCY),
    }
    slowest = max(seconds, key=lambda name: seconds[name])
    return (
        str(nodes),
        *(f"{value:,.0f}" for value in seconds.values()),
        f"{seconds[slowest] / 60:,.1f} min",
        slowest,
    )


def write(folder: Path, samples: int, delay: float, grader: dict[str, Any], words: int = 0) -> Path:
    folder.mkdir()
    more = f' + " " + " ".join(text + str(n) for n in range({words}))' if words else ""
    (folder / "agent.py").write_text(AGENT.format(delay=delay, more=more))
    with (folder / "cases.jsonl").open("w", encoding="utf-8") as file:
        for number in range(samples):
            text = f"q{number}"
            truth = text if not words else " ".join(f"{text}{n}" for n in range(0, 2 * words, 2))
            file.write(json.dumps({"id": f"case-{number}", "input": text, "ground_truth": truth}) + "\n")
    suite = {
        "name": folder.name,
        "dataset": "cases.jsonl",
        "target": {"kind": "python", "function": "agent.py:answer", "isolation": "none"},
        "graders": {"it": grader},
        "concurrency": CONCURRENCY,
    }
    path = folder / "suite.json"
    path.write_text(json.dumps(suite))
    return path


def drive(server: Server, suite: Path, workers: int, what: str = "run", name: str = "") -> Driven:
    """Work on a run in a process of its own, and see what every part of it computed."""
    before = postgres_cpu(server)
    done = subprocess.run(
        [sys.executable, __file__, "--drive", what, name or str(suite), server.url, str(workers)],
        env=environment({"PYTHONWARNINGS": "ignore"}),
        cwd=suite.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{COMMAND} {what}: {done.returncode}")
    measured_values = json.loads(done.stdout.splitlines()[-1])
    return Driven(**measured_values, database_cpu=postgres_cpu(server) - before)


def driven(what: str, name: str, store: str, workers: str) -> None:
    """In the process of the driver."""
    from gradeline.engine.orchestrate import RunRequest, regrade_run, run_suite
    from gradeline.engine.ray.driver import RayEngine
    from gradeline.store import open_storage

    times: list[float] = []

    class Noted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("chunk "):
                times.append(record.created)

    logging.getLogger("gradeline").addHandler(Noted())
    logging.getLogger("gradeline").setLevel(logging.DEBUG)
    with RayEngine(store, None, int(workers)) as engine, open_storage(store) as storage, watched_workers() as cpu:
        if what == "run":
            ran = asyncio.run(run_suite(storage, RunRequest(Path(name)), engine=engine)).runs[0]
        else:
            ran = asyncio.run(regrade_run(storage, name, engine=engine))
        used = resource.getrusage(resource.RUSAGE_SELF)
        measured_values = {
            "seconds": times[-1] - times[0],
            "chunks": len(times) // 2,
            "driver_cpu": used.ru_utime + used.ru_stime,
            "worker_cpu": sum(cpu.values()),
            "run": ran.report.run.id,
        }
    print(json.dumps(measured_values))


@contextmanager
def watched_workers() -> Iterator[dict[int, float]]:
    """What each worker has computed, as of the last look; they are gone before anybody can ask."""
    cpu: dict[int, float] = {}
    over = Event()

    def look() -> None:
        while not over.wait(0.1):
            cpu.update(seconds_of("ray::ChunkWorker"))

    thread = Thread(target=look, daemon=True)
    thread.start()
    yield cpu
    over.set()
    thread.join()


def postgres_cpu(server: Server) -> float:
    """What the server's processes have computed, those that have ended included."""
    leader = server.pid
    fields = Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()
    total = sum(int(field) for field in fields[11:15]) / TICK  # its own, and that of children that have ended
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                child = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(child[1]) == leader:
                total += (int(child[11]) + int(child[12])) / TICK
    return total


def seconds_of(command: str) -> Iterator[tuple[int, float]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if command.encode() not in (entry / "cmdline").read_bytes():
                    continue
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(entry.name), (int(fields[11]) + int(fields[12])) / TICK


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        driven(*sys.argv[2:])
    else:
        sys.exit(main())
