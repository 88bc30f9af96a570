"""Calls that fail because the agent closed a kept connection: gradeline next to aiohttp, httpx and requests.

2,000 POSTs, 50 at a time, against agents that answer at once and close connections without announcing it: after a
number of answers, or after an idle time. A call fails where no answer arrived. gradeline is the whole ``gradeline run``
of a suite; the other clients only post, with their defaults and no limit on connections. The agent is a process of its
own on the loopback interface and counts the requests that reached it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from urllib.request import urlopen

from gradeline.store import SqliteStorage
from measure import (
    COMMAND,
    FAILED,
    SCRIPTS,
    RunFailedError,
    environment,
    exit_code,
    finished,
    flags,
    judged,
    print_machine,
    print_table,
    scratch,
    show_progress,
)
from peers import WITHOUT_PEERS, Installed, all_clients, print_absent
from tools import Job, Tool, passed_told, write_cases

CALLS = 2_000
CONCURRENCY = 50


class Closing(NamedTuple):
    """When the agent closes a connection."""

    name: str
    answers: int = 0
    idle_ms: int = 0


CLOSINGS = (
    Closing("never"),
    Closing("after 10 answers", answers=10),
    Closing("after each answer", answers=1),
    Closing("after 1 ms idle", idle_ms=1),
    Closing("after 2 ms idle", idle_ms=2),
    Closing("after 5 ms idle", idle_ms=5),
)


class Entry(NamedTuple):
    tool: Tool
    target: float | None = None
    """The highest share of failed calls, in percent."""


@contextmanager
def agent(closing: Closing) -> Iterator[str]:
    """The address of an agent; it ends when its standard input is closed."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "closing_agent.py"), str(closing.answers), str(closing.idle_ms)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("the agent did not start; its error is printed above")
        yield url


def gradeline(name: str, options: dict[str, int]) -> Tool:
    return Tool(name, partial(_prepare_gradeline, options), _answered_in_store)


def _prepare_gradeline(options: dict[str, int], job: Job) -> list[str]:
    target = {
        "kind": "http",
        "url": f"{job.url}/ask",
        "request": {"input": "{{input}}"},
        "response": {"output": "response"},
        "concurrency": job.concurrency,
        **options,
    }
    suite = {
        "name": "bench",
        "dataset": job.cases.name,
        "target": target,
        "graders": {"exact": {"kind": "exact_match"}},
    }
    (job.folder / "suite.json").write_text(json.dumps(suite))
    return [COMMAND, "run", "suite.json", "--quiet", "--store", "store.db"]


def _answered_in_store(job: Job, _: str) -> int:
    with SqliteStorage(job.folder / "store.db") as storage:
        return storage.counts(storage.find_run("latest").id).graders["exact"].outcomes["pass"]


def client(name: str, python: str, label: str) -> Tool:
    return Tool(label, partial(_prepare_client, name, python), passed_told)


def _prepare_client(name: str, python: str, job: Job) -> list[str]:
    arguments = [name, str(job.cases), str(job.concurrency), f"{job.url}/ask"]
    return [python, str(SCRIPTS / "post_with.py"), *arguments]


def entries(*, alone: bool) -> Iterator[Entry]:
    yield Entry(gradeline("gradeline", {}), 0.0)
    yield Entry(gradeline("gradeline, retries: 0", {"retries": 0}), 2.0)
    yield Entry(client("aiohttp", sys.executable, "aiohttp"))
    for found in [] if alone else all_clients():
        if isinstance(found, Installed):
            yield Entry(client(found.peer.name, found.program("python")[0], found.label))


def row(closing: Closing, entry: Entry, url: str) -> tuple[str, ...]:
    """One client against one agent."""
    show_progress(f"{entry.tool.name}, connections closed {closing.name} …")
    _counts(url)
    try:
        with scratch() as folder:
            job = Job(folder, CALLS, CONCURRENCY, url)
            write_cases(job.cases, CALLS)
            done = finished(entry.tool.prepare(job), folder)
            failed = CALLS - entry.tool.passed(job, done.output)
    except RunFailedError as error:
        return f"{closing.name}, {entry.tool.name}", *[""] * 6, f"{FAILED}{error}"
    counts = _counts(url)
    share = 100 * failed / CALLS
    return (
        f"{closing.name}, {entry.tool.name}",
        f"{failed:,}",
        f"{share:.2f} %",
        judged(share, entry.target, at_least=False),
        f"{counts['calls']:,}",
        f"{counts['connections']:,}",
        f"{done.seconds:.2f}",
        "",
    )


def _counts(url: str) -> dict[str, int]:
    with urlopen(f"{url}/counts") as reply:
        counts: dict[str, int] = json.load(reply)
    return counts


def main() -> int:
    alone = bool(flags(__doc__, without_peers=WITHOUT_PEERS))
    print_machine()
    rows = []
    for closing in CLOSINGS:
        with agent(closing) as url:
            rows += [row(closing, entry, url) for entry in entries(alone=alone)]
    show_progress("")
    print_table(
        f"{CALLS:,} POSTs, {CONCURRENCY} at a time; the agent closes connections without announcing it",
        ("the agent closes", "failed", "share", "target", "requests", "connections", "process s", ""),
        rows,
    )
    if not alone:
        print_absent(all_clients())
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
