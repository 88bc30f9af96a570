"""What the routing proxy adds to a request, next to a bare proxy: an aiohttp program that only passes requests on.

The model answers at once, so that only the proxies count. The three roads take turns, a round each; a figure is the
median over all requests of all rounds. Latency: one request at a time; rate: twenty at a time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

import aiohttp
import msgspec

from gradeline.model.observation import utc_text
from gradeline.model.route import RouteCell, RouteTable
from gradeline.store import SqliteStorage
from gradeline.store.trust_records import TrustRecord, put_record
from gradeline.trust.route_file import read_route
from measure import (
    COMMAND,
    SCRIPTS,
    environment,
    exit_code,
    flags,
    judged,
    print_machine,
    print_table,
    scratch,
    show_progress,
)

ROUNDS, CALLS, AT_ONCE = 5, 400, 20
TARGET_MS = 1.0
"""Maximum time that routing and its log add to a request, on top of the bare proxy."""
ROADS = ("no proxy", "bare aiohttp proxy", "gradeline route serve")
BODY = {"model": "any", "messages": [{"role": "user", "content": "What is the capital of France? " * 20}]}
ROUTE = """\
route: bench
suite: bench
grader: right
baseline: {{name: big, model: big, base_url: {url}/v1}}
candidates: [{{name: small, model: small, base_url: {url}/v1}}]
family: {{header: x-task-family}}
"""


class Measured(NamedTuple):
    """The latencies of one road, in milliseconds, and its rates, in requests per second."""

    latencies: list[float]
    rates: list[float]


@contextmanager
def server(*command: str) -> Iterator[str]:
    """A process that prints its URL as JSON."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        process.wait()


def prepare(folder: Path, url: str) -> tuple[Path, Path]:
    """A route file, and a store with a table that sends half of the requests to each arm."""
    route, store = folder / "route.yaml", folder / "store.db"
    route.write_text(ROUTE.format(url=url))
    opened = read_route(route)
    cells = {"big": RouteCell(share=0.5, state="baseline"), "small": RouteCell(share=0.5, state="proven")}
    at = utc_text(datetime.now(UTC))
    table = RouteTable(route="bench", at=at, baseline="big", families={"f": cells}, rules=opened.digest)
    with SqliteStorage(store) as storage:
        put_record(storage, TrustRecord("route_table", "bench", "right", "", at, msgspec.json.encode(table).decode()))
    return route, store


async def measure_road(url: str, *, stream: bool) -> Measured:
    async with aiohttp.ClientSession(url, headers={"x-task-family": "f"}) as session:

        async def call() -> float:
            started = perf_counter()
            async with session.post("/v1/chat/completions", json=BODY | {"stream": stream}) as response:
                await response.read()
                assert response.status == 200
            return (perf_counter() - started) * 1000

        await call()
        latencies = [await call() for _ in range(CALLS)]
        started = perf_counter()
        waiting = iter(range(CALLS))

        async def client() -> None:
            for _ in waiting:
                await call()

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
        return Measured(latencies, [CALLS / (perf_counter() - started)])


def rows_of(found: dict[str, Measured], kind: str) -> Iterator[tuple[str, ...]]:
    direct = median(found[ROADS[0]].latencies)
    bare = median(found[ROADS[1]].latencies)
    for road in ROADS:
        middle = median(found[road].latencies)
        target = judged(middle - bare, TARGET_MS, at_least=False, digits=2) if road == ROADS[2] else ""
        yield (
            f"{road}, {kind}",
            f"{middle:.2f}",
            f"{quantiles(found[road].latencies, n=20)[-1]:.2f}",
            f"{middle - direct:+.2f}" if road != ROADS[0] else "",
            f"{middle - bare:+.2f}" if road == ROADS[2] else "",
            f"{median(found[road].rates):,.0f}",
            target,
        )


def main() -> int:
    flags(__doc__)
    print_machine()
    rows: list[tuple[str, ...]] = []
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        script = str(SCRIPTS / "route_servers.py")
        model = stack.enter_context(server(sys.executable, script, "model"))
        bare = stack.enter_context(server(sys.executable, script, "proxy", model))
        route, store = prepare(folder, model)
        command = (COMMAND, "route", "serve", str(route), "--port", "0", "--store", str(store), "--json")
        routed = stack.enter_context(server(*command))
        urls = dict(zip(ROADS, (model, bare, routed), strict=True))
        for kind, stream in (("whole", False), ("streamed", True)):
            found: dict[str, Measured] = defaultdict(lambda: Measured([], []))
            for number in range(ROUNDS):
                for road, url in urls.items():
                    show_progress(f"{kind}, round {number + 1} of {ROUNDS}, {road} …")
                    one = asyncio.run(measure_road(url, stream=stream))
                    found[road].latencies.extend(one.latencies)
                    found[road].rates.extend(one.rates)
            rows += rows_of(found, kind)
    show_progress("")
    print_table(
        f"A chat completion through each road: {ROUNDS} rounds of {CALLS} calls, then {CALLS} by {AT_ONCE} clients",
        ("road", "ms", "p95 ms", "over none", "over bare", "per second", "target"),
        rows,
    )
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
