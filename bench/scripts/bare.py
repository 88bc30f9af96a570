"""Less than a run: it stores response and score only, after grading, so that a kill loses responses that were paid for.

    python bare.py CASES STORE CONCURRENCY

Compared with the floor, it shows what durable storage costs.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path

from agent import answer

BATCH = 500


class Store:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE answers (case_key PRIMARY KEY, answer, score)")
        self._rows: list[tuple[str, str, float]] = []

    def put(self, case: str, text: str, score: float) -> None:
        self._rows.append((case, text, score))
        if len(self._rows) >= BATCH:
            self.commit()

    def commit(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO answers VALUES (?, ?, ?)", self._rows)
        self._connection.execute("COMMIT")
        self._rows.clear()

    def passed(self) -> tuple[int, int]:
        found: tuple[int, int] = self._connection.execute("SELECT sum(score = 1.0), count(*) FROM answers").fetchone()
        return found


async def run(lines: Iterable[str], store: Store, concurrency: int) -> None:
    async def worker() -> None:
        for line in lines:
            case = json.loads(line)
            text = await answer(case["input"])
            store.put(case["id"], text, float(text.strip() == case["ground_truth"].strip()))

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    store.commit()


def main(cases: str, path: str, concurrency: str) -> None:
    store = Store(path)
    with Path(cases).open(encoding="utf-8") as lines:
        asyncio.run(run(lines, store, int(concurrency)))
    passed, total = store.passed()
    print(f"{passed} of {total} passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
