"""What a call of user code in a worker process costs, next to the floor: the same call in this process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from gradeline.model import GradeResult, Sample
from gradeline.usercode.loader import CodeRequest, CodeSpec
from gradeline.usercode.pool import WorkerPool
from gradeline.usercode.protocol import Job, Task
from measure import exit_code, judged, print_table

SOURCE = """
from gradeline import GradeResult
from gradeline.usercode.decorators import grader

@grader
def same(sample, submission):
    return GradeResult(score=1.0 if submission == sample.ground_truth else 0.0)

@grader
def hang(sample, submission):
    while True:
        pass
"""
SAMPLE = Sample(id=0, input="What is the capital of France?", ground_truth="Paris")
BUDGETS = {"64 at once": 60.0, "one at a time": 150.0, "recovery": 50.0, "cold start": 100.0}
JOB = Job(SAMPLE, (Task("grader", "graders.py:same", "Paris"),))


def floor() -> float:
    """Microseconds of the bare function."""
    count = 100_000
    started = perf_counter()
    for _ in range(count):
        GradeResult(score=1.0 if SAMPLE.ground_truth == "Paris" else 0.0)
    return (perf_counter() - started) / count * 1e6


async def at_once(pool: WorkerPool, calls: int, concurrency: int) -> float:
    """Microseconds per call, with a number of concurrent callers."""

    async def caller() -> None:
        for _ in range(calls // concurrency):
            await pool.run(JOB)

    started = perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    return (perf_counter() - started) / calls * 1e6


async def recovery(pool: WorkerPool) -> float:
    """Milliseconds from the death of every worker that takes jobs to the next answer."""
    rounds = []
    for _ in range(5):
        await asyncio.sleep(0.5)  # until a spare worker is ready again
        victims = pool.pids[:-1]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        started = perf_counter()
        await pool.run(JOB)
        rounds.append((perf_counter() - started) * 1000)
    return median(rounds)


async def cold_start(spec: CodeSpec) -> float:
    """Milliseconds from nothing to a worker that has loaded the code."""
    rounds = []
    for _ in range(7):
        started = perf_counter()
        pool = WorkerPool(spec, size=1)
        await pool.start()
        rounds.append((perf_counter() - started) * 1000)
        await pool.close()
    return median(rounds)


async def measure() -> int:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "graders.py").write_text(SOURCE)
        spec = CodeSpec(folder=folder, requests=(CodeRequest("grader", "graders.py:same"),))
        async with WorkerPool(spec, size=2) as pool:
            await pool.start()
            await asyncio.sleep(1.0)
            await at_once(pool, 2_000, 64)
            found = {
                "64 at once": median([await at_once(pool, 20_000, 64) for _ in range(3)]),
                "one at a time": median([await at_once(pool, 3_000, 1) for _ in range(3)]),
            }
        async with WorkerPool(spec, size=1) as pool:
            await pool.start()
            found["recovery"] = await recovery(pool)
        found["cold start"] = await cold_start(spec)
    rows = [("in this process (the floor)", f"{floor():.2f} µs", "", "")]
    for name, cost in found.items():
        unit = "µs" if name in ("64 at once", "one at a time") else "ms"
        rows.append((name, f"{cost:.1f} {unit}", judged(cost, BUDGETS[name], at_least=False), ""))
    print_table("a trivial Python grader in a worker", ("call", "measured", "budget", ""), rows)
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(asyncio.run(measure()))
