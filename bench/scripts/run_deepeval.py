"""The same run with deepeval. It asks no agent: the answers are made before, it grades them.

python run_deepeval.py CASES CONCURRENCY
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agent import answer
from deepeval import evaluate
from deepeval.evaluate import AsyncConfig, CacheConfig, DisplayConfig
from deepeval.metrics import ExactMatchMetric
from deepeval.test_case import LLMTestCase


async def answered(path: str) -> list[LLMTestCase]:
    with Path(path).open(encoding="utf-8") as lines:
        rows = list(map(json.loads, lines))
    return [
        LLMTestCase(input=row["input"], actual_output=await answer(row["input"]), expected_output=row["ground_truth"])
        for row in rows
    ]


def main(path: str, concurrency: str) -> None:
    found = evaluate(
        asyncio.run(answered(path)),
        [ExactMatchMetric()],
        async_config=AsyncConfig(max_concurrent=int(concurrency)),
        display_config=DisplayConfig(show_indicator=False, print_results=False, inspect_after_run=False),
        cache_config=CacheConfig(write_cache=False),
    )
    print(f"{sum(bool(one.success) for one in found.test_results)} of {len(found.test_results)} passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
