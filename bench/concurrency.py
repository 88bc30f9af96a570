"""How well an agent of the network is kept busy: calls of 100 ms, a hundred at a time.

Ideal is calls x delay / concurrency. The run phase is what the agent sees: from the arrival of the first
call to the end of the last. The whole process is all a user waits for: start-up, and what comes after
the last answer. The agent is a process of its own on the loopback interface.

The run phase must reach 90 % of the ideal, and at most 2 points less than the floor, bare aiohttp, in the same run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
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
RUN_PHASE, BELOW_FLOOR, WHOLE = 90.0, 2.0, 80.0
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
        """Keep what the agent saw since the last call of this."""
        times = self._times()
        if times["calls"] != entry.samples:
            raise RunFailedError(f"the agent was called {times['calls']:,} times, not {entry.samples:,}")
        self.seen[entry.tool.name].append(Seen(times["last"] - times["first"], int(times["most_at_once"])))

    def _times(self) -> dict[str, float]:
        with urlopen(f"{self.url}/times") as reply:
            times: dict[str, float] = json.load(reply)
        return times


@contextmanager
def agent() -> Iterator[Agent]:
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
            raise RuntimeError("the agent did not start; see its output above")
        yield Agent(url)


def ours() -> list[Entry]:
    return [Entry(gradeline_http(), CALLS, ROUNDS, WHOLE), Entry(floor("aiohttp"), CALLS, ROUNDS)]


def theirs() -> Iterator[Entry]:
    for name, calls in PEERS.items():
        env = installed(name)
        if not isinstance(env, Absent):
            yield Entry(peer(env), calls, PEER_ROUNDS)


def share_of_ideal(entry: Entry, seen: list[Seen]) -> float:
    """The share of the ideal that the run phase reached, in percent."""
    return 100 * entry.samples * DELAY / CONCURRENCY / Timing.of([one.seconds for one in seen]).median


def row(result: Result, seen: list[Seen], run_phase: float) -> tuple[str, ...]:
    entry, timing = result.entry, result.timing
    if timing is None:
        return entry.tool.name, f"{entry.samples:,}", *[""] * 7, f"{FAILED}{result.failure}"
    ideal = entry.samples * DELAY / CONCURRENCY
    phase = Timing.of([one.seconds for one in seen])
    busy, whole = share_of_ideal(entry, seen), 100 * ideal / timing.median
    ours = entry.target is not None
    return (
        entry.tool.name,
        f"{entry.samples:,}",
        f"{ideal:.2f}",
        f"{phase.median:.2f}",
        f"{busy:.1f} %",
        judged(busy, run_phase if ours else None, at_least=True, digits=1),
        f"{timing.median:.2f}",
        f"{whole:.1f} %",
        judged(whole, entry.target, at_least=True),
        f"{max(one.most_at_once for one in seen)} calls at once",
    )


def main() -> int:
    alone = flags(__doc__, without_peers=WITHOUT_PEERS)
    print_machine()
    entries = ours() if alone else [*ours(), *theirs()]
    with agent() as running:
        results = contest(entries, CONCURRENCY, running.url, running.forget, running.note)
        bare = next(result for result in results if result.entry.target is None)
        run_phase = RUN_PHASE
        if bare.timing is not None:
            run_phase = max(RUN_PHASE, share_of_ideal(bare.entry, running.seen[bare.entry.tool.name]) - BELOW_FLOOR)
        rows = [row(result, running.seen[result.entry.tool.name], run_phase) for result in results]
    print_table(
        f"an agent that takes {DELAY * 1000:.0f} ms, {CONCURRENCY} at a time; medians; run phase as the agent sees it",
        ("tool", "calls", "ideal s", "run s", "of ideal", "target", "process s", "of ideal", "target", "the agent saw"),
        rows,
    )
    if not alone:
        print_absent()
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
