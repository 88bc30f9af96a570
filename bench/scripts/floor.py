"""The least that does a run's job: asyncio, sqlite3, and aiohttp where the agent is one of the network.

    python floor.py CASES STORE CONCURRENCY [URL]

Reads the cases, asks, stores each answer durably before it compares it, then stores the grade: the rows that
gradeline keeps of a case, under the same keys, in group commits. Nothing is checked, counted or encoded, a run
cannot be resumed, only the share that passed is printed.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from agent import answer

Ask = Callable[[str], Awaitable[str]]
RUN = str(uuid4())
TABLES = (
    "samples (run, case_key, position, sample, PRIMARY KEY (run, case_key))",
    "responses (run, case_key, repeat, status, text, latency_ms, PRIMARY KEY (run, case_key, repeat))",
    "grades (run, case_key, repeat, grader, fingerprint, outcome, score, submission,"
    " PRIMARY KEY (run, case_key, repeat, grader))",
)


class Store:
    """All that is put in one turn of the event loop goes into one transaction, with the grades made since the last."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        for table in TABLES:
            self._connection.execute(f"CREATE TABLE {table}")
        self._samples: list[tuple[str, str, int, str]] = []
        self._responses: list[tuple[str, str, str, float]] = []
        self._grades: list[tuple[str, str, str, float, str]] = []
        self._waiting: list[asyncio.Future[None]] = []

    def put_response(self, case: str, position: int, line: str, text: str, latency_ms: float) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self.commit)
        done = loop.create_future()
        self._samples.append((RUN, case, position, line))
        self._responses.append((RUN, case, text, latency_ms))
        self._waiting.append(done)
        return done

    def put_grade(self, case: str, right: bool, text: str) -> None:
        self._grades.append((RUN, case, "pass" if right else "fail", float(right), text))

    def commit(self) -> None:
        execute = self._connection.executemany
        self._connection.execute("BEGIN IMMEDIATE")
        execute("INSERT INTO samples VALUES (?, ?, ?, ?)", self._samples)
        execute("INSERT INTO responses VALUES (?, ?, 0, 'success', ?, ?)", self._responses)
        execute("INSERT INTO grades VALUES (?, ?, 0, 'exact', '1', ?, ?, ?)", self._grades)
        self._connection.execute("COMMIT")
        waiting, self._waiting = self._waiting, []
        for rows in (self._samples, self._responses, self._grades):
            rows.clear()
        for done in waiting:
            done.set_result(None)

    def passed(self) -> tuple[int, int]:
        found: tuple[int, int] = self._connection.execute(
            "SELECT sum(outcome = 'pass'), count(*) FROM grades"
        ).fetchone()
        return found


async def run(lines: Iterable[str], store: Store, concurrency: int, ask: Ask) -> None:
    numbered = enumerate(lines)

    async def worker() -> None:
        for position, line in numbered:
            case = json.loads(line)
            began = perf_counter()
            text = await ask(case["input"])
            await store.put_response(case["id"], position, line, text, (perf_counter() - began) * 1000)
            store.put_grade(case["id"], text.strip() == case["ground_truth"].strip(), text)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    store.commit()


async def over_http(lines: Iterable[str], store: Store, concurrency: int, url: str) -> None:
    from aiohttp import ClientSession, TCPConnector  # only where it is used

    async with ClientSession(connector=TCPConnector(limit=concurrency)) as session:

        async def ask(text: str) -> str:
            async with session.post(url, json={"input": text}) as reply:
                found: str = (await reply.json())["response"]
                return found

        await run(lines, store, concurrency, ask)


def main(cases: str, path: str, concurrency: str, url: str = "") -> None:
    store = Store(path)
    with Path(cases).open(encoding="utf-8") as lines:
        if url:
            asyncio.run(over_http(lines, store, int(concurrency), url))
        else:
            asyncio.run(run(lines, store, int(concurrency), answer))
    passed, total = store.passed()
    print(f"{passed} of {total} passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
