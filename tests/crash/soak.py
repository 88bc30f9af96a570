"""Kill runs at random points, and check after every kill that nothing is lost.

    make soak                                          1,000 kills
    python tests/crash/soak.py --kills 200 --seed 3    other points, and fewer
    python tests/crash/soak.py --seed 3 --chain 17     repeat one chain of kills

The seed determines every point and time; where a run is at a given time depends on the machine.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import traceback
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import NamedTuple

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from counting_agent import CountingAgent
from crash_harness import After, AtCall, AtFailpoint, AtSyscall, KillPoint, Rig, answer, why_no_strace

from gradeline.failpoints import FAILPOINTS

LINE_EVERY = 50
MOST_PASSES = {"run-saved": 1, "run-ending": 1, "run-ended": 1}
MOST_BATCHES = 25
MOST_CASES = 110


class Chain(NamedTuple):
    """One run with all its kills, and the result."""

    number: int
    kills: Counter[str]
    calls: int
    lost: int
    repeated: int
    failure: str | None


def random_kill_point(chance: random.Random) -> KillPoint:
    """Mostly at the named places, else during a call, at any time, or at a sync where strace can do that."""
    kind = chance.choices(("failpoint", "call", "time", "sync"), (6, 1, 2, 0 if why_no_strace() else 2))[0]
    if kind == "call":
        return AtCall(chance.randint(1, MOST_CASES))
    if kind == "time":
        return After(chance.uniform(0.05, 1.2))
    if kind == "sync":
        return AtSyscall(str(chance.randint(1, MOST_BATCHES)))
    name = chance.choice(FAILPOINTS)
    most = MOST_BATCHES if name.startswith("batch") else MOST_PASSES.get(name, MOST_CASES)
    return AtFailpoint(name, chance.randint(1, most))


def name_of(kill_point: KillPoint) -> str:
    """The key under which its kills are counted."""
    if isinstance(kill_point, AtFailpoint):
        return kill_point.name
    if isinstance(kill_point, AtCall):
        return "during a call"
    return "at any time" if isinstance(kill_point, After) else "at a sync"


def run_chain(seed: int, number: int) -> Chain:
    """Kill a run some times in a row, then let it finish. The folder of a failed one is not deleted."""
    chance = random.Random(f"{seed}/{number}")
    folder = Path(mkdtemp(prefix=f"soak-{seed}-{number}-"))
    kills: Counter[str] = Counter()
    kill_points: list[KillPoint] = []
    failure = None
    with CountingAgent(answer) as agent, closing(Rig(folder, agent)) as rig:
        try:
            for _ in range(chance.randint(2, 8)):
                kill_points.append(random_kill_point(chance))
                ended = rig.run_until(kill_points[-1])
                if not ended.killed:
                    assert ended.code == 0, ended.err
                    break
                kills[name_of(kill_points[-1])] += 1
            rig.finish()
        except Exception:
            failure = f"chain {number} in {folder}, after {kill_points}:\n{traceback.format_exc()}"
    if failure is None:
        shutil.rmtree(folder)
    return Chain(number, kills, len(agent.calls), rig.lost, rig.repeated, failure)


class Totals:
    """The sums over all chains."""

    def __init__(self) -> None:
        self.kills: Counter[str] = Counter()
        self.runs = self.calls = self.lost = self.repeated = self.failures = 0
        self._began = monotonic()

    def add(self, chain: Chain) -> None:
        """Count a chain; prints its failures, and from time to time the progress of the soak."""
        lines = self.kills.total() // LINE_EVERY
        self.kills += chain.kills
        self.runs += 1
        self.calls += chain.calls
        self.lost += chain.lost
        self.repeated += chain.repeated
        if chain.failure is not None:
            self.failures += 1
            click.echo(chain.failure)
        if self.kills.total() // LINE_EVERY > lines:
            click.echo(self.line())

    def line(self) -> str:
        return (
            f"{self.kills.total():,} kills of {self.runs:,} runs: {self.calls:,} calls, {self.lost:,} of them in flight"
            f" at a kill, {self.repeated:,} made again because they had failed; {self.failures} runs went wrong"
            f" ({monotonic() - self._began:.0f} s)"
        )


@click.command()
@click.option("--kills", type=int, default=1000, envvar="GRADELINE_SOAK_KILLS", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--jobs", type=int, default=os.cpu_count() or 1, show_default=True, help="Runs at the same time.")
@click.option("--chain", type=int, help="Only the chain of this number.")
def main(kills: int, seed: int, jobs: int, chain: int | None) -> None:
    """Kill runs up to this number of kills; the exit code is 1 if something was lost."""
    if reason := why_no_strace():
        click.echo(f"not run: kills at a sync ({reason})")
    totals = Totals()
    numbers = count() if chain is None else iter([chain])
    running: set[Future[Chain]] = set()
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and totals.kills.total() < kills and (number := next(numbers, None)) is not None:
                running.add(pool.submit(run_chain, seed, number))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                totals.add(future.result())
    click.echo(totals.line())
    for name, times in sorted(totals.kills.items()):
        click.echo(f"  {times:5} {name}")
    sys.exit(1 if totals.failures else 0)


if __name__ == "__main__":
    main()
