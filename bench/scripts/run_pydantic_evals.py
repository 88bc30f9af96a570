"""The same run with pydantic-evals, which stores nothing.

python run_pydantic_evals.py CASES CONCURRENCY [URL]
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agent import answer
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected


async def main(path: str, concurrency: str, url: str = "") -> None:
    with Path(path).open(encoding="utf-8") as lines:
        rows = map(json.loads, lines)
        cases = [Case(name=row["id"], inputs=row["input"], expected_output=row["ground_truth"]) for row in rows]
    dataset = Dataset(name="bench", cases=cases, evaluators=[EqualsExpected()])
    if not url:
        report = await dataset.evaluate(answer, max_concurrency=int(concurrency), progress=False)
    else:
        from aiohttp import ClientSession, TCPConnector  # only where it is used

        async with ClientSession(connector=TCPConnector(limit=int(concurrency))) as session:

            async def ask(text: str) -> str:
                async with session.post(url, json={"input": text}) as reply:
                    return (await reply.json())["response"]

            report = await dataset.evaluate(ask, max_concurrency=int(concurrency), progress=False)
    passed = sum(all(found.value for found in case.assertions.values()) for case in report.cases)
    print(f"{passed} of {len(report.cases) + len(report.failures)} passed")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
