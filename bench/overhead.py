"""What a harness costs: an agent that answers at once, an exact match, whole processes.

The floor is the least Python that does the job: asyncio, sqlite3, no checks. gradeline and the floor
keep every answer and grade on disk, synced; the last column shows what the others keep.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from contest import Entry, Result, contest
from measure import FAILED, exit_code, flags, judged, print_machine, print_table
from peers import WITHOUT_PEERS, Absent, installed, print_absent
from tools import floor, gradeline, peer

SAMPLES = 10_000
CONCURRENCY = 100
ROUNDS, PEER_ROUNDS = 5, 2
PEERS = {
    "pydantic-evals": (SAMPLES, "keeps nothing"),
    "letta-evals": (SAMPLES, "no calls; grades stored responses; JSONL, not synced"),
    "deepeval": (5_000, "no calls; grades responses from a file; one JSON at the end"),
    "promptfoo": (1_000, "its SQLite; at 10,000 it ends without a result"),
    "inspect-ai": (1_000, "its log file"),
}


def ours(samples: int) -> list[Entry]:
    return [
        Entry(gradeline("none"), samples, ROUNDS, 10_000),
        Entry(gradeline("worker"), samples, ROUNDS, 6_000),
        Entry(gradeline("custom"), samples, ROUNDS, 6_000),
        Entry(floor(), samples, ROUNDS),
    ]


def theirs() -> Iterator[Entry]:
    for name, (count, note) in PEERS.items():
        env = installed(name)
        if not isinstance(env, Absent):
            yield Entry(peer(env), count, PEER_ROUNDS, note=note)


def row(result: Result) -> tuple[str, ...]:
    entry, timing = result.entry, result.timing
    if timing is None:
        return entry.tool.name, f"{entry.samples:,}", *[""] * 5, f"{FAILED}{result.failure}"
    rate = entry.samples / timing.median
    return (
        entry.tool.name,
        f"{entry.samples:,}",
        f"{timing.best:.2f}",
        f"{timing.median:.2f}",
        f"{entry.samples / timing.best:,.0f}",
        f"{rate:,.0f}",
        judged(rate, entry.target, at_least=True),
        entry.note,
    )


def main() -> int:
    alone = flags(__doc__, without_peers=WITHOUT_PEERS)
    print_machine()
    entries = ours(SAMPLES) if alone else [*ours(SAMPLES), *theirs()]
    rows = [row(result) for result in contest(entries, CONCURRENCY)]
    print_table(
        f"an agent that answers at once, {CONCURRENCY} at a time, whole process",
        ("tool", "samples", "best s", "median s", "best/s", "median/s", "target", "what it keeps"),
        rows,
    )
    if not alone:
        print_absent()
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
