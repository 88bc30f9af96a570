"""How well an agent of the network is kept busy: calls of 100 ms, a hundred at a time.

Ideal is calls x delay / concurrency. The run phase is what the agent sees: from the arrival of the first
call to the end of the last. The whole process is all a user waits for: start-up, and what comes after
the last answer. The agent is a process of its own on the loopback interface. It stands for another machine, so it has
a core to itself and the tools have the others; a second table tells how it is where all share all cores, and the
scheduler puts the agent now and then in the place of the tool that asks it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple
from urllib.request import urlopen

from contest import Entry, Result, contest
from measure import (
    FAILED,
    SCRIPTS,
    RunFailedError,
    Timing,
    environment,
    exit_code,
    flags,
    judged,
    print_machine,
    print_table,
)
from peers import WITHOUT_PEERS, Absent, installed, print_absent
from tools import floor, gradeline_http, peer

CALLS = 2_000
CONCURRENCY = 100
DELAY = 0.1
ROUNDS, PEER_ROUNDS = 5, 2
RUN_PHASE, WHOLE = 95.0, 80.0
PEERS = {"pydantic-evals": CALLS, "inspect-ai": 1_000, "promptfoo": 1_000}


class Seen(NamedTuple):
    """What the agent saw of a run."""

    seconds: float
    most_at_once: int


class Agent:
    """The agent's process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: dict[str, list[Seen]] = defaultdict(list)

    def forget(self) -> None:
        """Count anew, whatever became of the last run."""
        self._times()

    def note(self, entry: Entry) -> None:
        """Keep what the agent saw since it was last asked."""
        times = self._times()
        if times["calls"] != entry.samples:
            raise RunFailedError(f"the agent was called {times['calls']:,} times, not {entry.samples:,}")
        self.seen[entry.tool.name].append(Seen(times["last"] - times["first"], int(times["most_at_once"])))

    def _times(self) -> dict[str, float]:
        with urlopen(f"{self.url}/times") as reply:
            times: dict[str, float] = json.load(reply)
        return times


@contextmanager
def agent(*, apart: bool) -> Iterator[Agent]:
    """The agent; ``apart`` on a core where nothing else of what this process starts will run."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "http_agent.py"), str(DELAY)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # at its end the agent's input is closed, and with it the agent
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("the agent did not start; what it said stands above")
        with _kept_off_the_core_of(process.pid) if apart else nullcontext():
            yield Agent(url)


@contextmanager
def _kept_off_the_core_of(pid: int) -> Iterator[None]:
    """Give a process a core to itself, as far as this process and its children are concerned."""
    cores = os.sched_getaffinity(0)
    own = {max(cores)}
    if cores == own:
        print("one core for all: the agent and the tools take turns", file=sys.stderr)
        yield
        return
    os.sched_setaffinity(pid, own)
    os.sched_setaffinity(0, cores - own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def ours(whole: float | None = None) -> list[Entry]:
    """gradeline, held to this share of the ideal, and the floor."""
    return [Entry(gradeline_http(), CALLS, ROUNDS, whole), Entry(floor("aiohttp"), CALLS, ROUNDS)]


def theirs() -> Iterator[Entry]:
    for name, calls in PEERS.items():
        env = installed(name)
        if not isinstance(env, Absent):
            yield Entry(peer(env), calls, PEER_ROUNDS)


def row(result: Result, seen: list[Seen]) -> tuple[str, ...]:
    entry, timing = result.entry, result.timing
    if timing is None:
        return entry.tool.name, f"{entry.samples:,}", *[""] * 7, f"{FAILED}{result.failure}"
    ideal = entry.samples * DELAY / CONCURRENCY
    phase = Timing.of([one.seconds for one in seen])
    busy, whole = 100 * ideal / phase.median, 100 * ideal / timing.median
    ours = entry.target is not None
    return (
        entry.tool.name,
        f"{entry.samples:,}",
        f"{ideal:.2f}",
        f"{phase.median:.2f}",
        f"{busy:.1f} %",
        judged(busy, RUN_PHASE if ours else None, at_least=True),
        f"{timing.median:.2f}",
        f"{whole:.1f} %",
        judged(whole, entry.target, at_least=True),
        f"{max(one.most_at_once for one in seen)} calls at once",
    )


def table(place: str, entries: Sequence[Entry], *, apart: bool) -> list[tuple[str, ...]]:
    with agent(apart=apart) as running:
        results = contest(entries, CONCURRENCY, running.url, running.forget, running.note)
        rows = [row(result, running.seen[result.entry.tool.name]) for result in results]
    print_table(
        f"an agent that takes {DELAY * 1000:.0f} ms, {CONCURRENCY} at a time; medians; run phase as the agent sees it;"
        f" {place}",
        ("tool", "calls", "ideal s", "run s", "of ideal", "target", "process s", "of ideal", "target", "the agent saw"),
        rows,
    )
    return rows


def main() -> int:
    alone = flags(__doc__, without_peers=WITHOUT_PEERS)
    print_machine()
    entries = ours(WHOLE) if alone else [*ours(WHOLE), *theirs()]
    rows = table("the agent on a core of its own", entries, apart=True)
    rows += table("the agent and the tools on all cores", ours(), apart=False)
    if not alone:
        print_absent()
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
