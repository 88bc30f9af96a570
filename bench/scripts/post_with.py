"""Asks an agent about each case with an HTTP client as it is installed, CONCURRENCY calls at a time, no retries.

    python post_with.py CLIENT CASES CONCURRENCY URL

Prints how many answers were right: ``12 of 12 passed``. A call that raised is an answer that was not right.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

Case = dict[str, str]


async def with_aiohttp(cases: Sequence[Case], concurrency: int, url: str) -> int:
    import aiohttp  # each environment has one client only

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(body: object) -> str:
            async with session.post(url, json=body) as reply:
                return str((await reply.json())["response"])

        return await right_answers(cases, concurrency, post, aiohttp.ClientError)


async def with_httpx(cases: Sequence[Case], concurrency: int, url: str) -> int:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=30) as client:

        async def post(body: object) -> str:
            return str((await client.post(url, json=body)).json()["response"])

        return await right_answers(cases, concurrency, post, httpx.HTTPError)


async def right_answers(
    cases: Sequence[Case], concurrency: int, post: Callable[[object], Awaitable[str]], failure: type[Exception]
) -> int:
    waiting = iter(cases)

    async def ask() -> int:
        right = 0
        for case in waiting:
            try:
                right += await post({"input": case["input"]}) == case["ground_truth"]
            except failure:
                continue
        return right

    return sum(await asyncio.gather(*(ask() for _ in range(concurrency))))


def with_requests(cases: Sequence[Case], concurrency: int, url: str) -> int:
    import requests

    own = local()

    def ask(case: Case) -> bool:
        session = vars(own).setdefault("session", requests.Session())
        try:
            reply = session.post(url, json={"input": case["input"]}, timeout=30)
        except requests.RequestException:
            return False
        return bool(reply.json()["response"] == case["ground_truth"])

    with ThreadPoolExecutor(concurrency) as threads:
        return sum(threads.map(ask, cases))


def main(client: str, path: str, concurrency: int, url: str) -> None:
    cases = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    match client:
        case "aiohttp":
            right = asyncio.run(with_aiohttp(cases, concurrency, url))
        case "httpx":
            right = asyncio.run(with_httpx(cases, concurrency, url))
        case "requests":
            right = with_requests(cases, concurrency, url)
        case _:
            raise SystemExit(f"unknown client {client!r}: aiohttp, httpx or requests")
    print(f"{right} of {len(cases)} passed")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
