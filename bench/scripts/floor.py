"""The least that does a run's job: asyncio, sqlite3, and aiohttp where the agent is one of the network.

    python floor.py CASES STORE CONCURRENCY [URL]

Reads the cases, asks, compares, and stores response and grade durably, in batches. Nothing is checked,
nothing survives a kill but whole batches, nothing is said but the share that passed.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from agent import answer

Ask = Callable[[str], Awaitable[str]]
BATCH = 500


class Store:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE responses (case_key PRIMARY KEY, sample, response)")
        self._connection.execute("CREATE TABLE grades (case_key, grader, score, PRIMARY KEY (case_key, grader))")
        self._rows: list[tuple[str, str, str, float]] = []

    def put(self, case: str, line: str, response: str, score: float) -> None:
        self._rows.append((case, line, response, score))
        if len(self._rows) >= BATCH:
            self.commit()

    def commit(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO responses VALUES (?, ?, ?)", (row[:3] for row in self._rows))
        self._connection.executemany(
            "INSERT INTO grades VALUES (?, 'exact', ?)", ((row[0], row[3]) for row in self._rows)
        )
        self._connection.execute("COMMIT")
        self._rows.clear()

    def passed(self) -> tuple[int, int]:
        found: tuple[int, int] = self._connection.execute("SELECT sum(score = 1.0), count(*) FROM grades").fetchone()
        return found


async def run(lines: Iterable[str], store: Store, concurrency: int, ask: Ask) -> None:
    async def worker() -> None:
        for line in lines:
            case = json.loads(line)
            response = await ask(case["input"])
            store.put(case["id"], line, response, float(response.strip() == case["ground_truth"].strip()))

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
