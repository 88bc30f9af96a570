"""What the service holds: agents kept busy, runs side by side, pages of a million results, idle readers, overload.

The service is a process of its own with its defaults, on a SQLite file; the agent and the clients are other processes
on the same machine. Ten clients request pages, each waiting for its answer. ``--quick`` stores fewer results.
"""

from __future__ import annotations

import asyncio
import random
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import aiohttp

from gradeline.client import AsyncClient
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, RunGrader, Sample
from gradeline.store import Run, SqliteStorage
from measure import (
    COMMAND,
    MISSED,
    SCRIPTS,
    environment,
    exit_code,
    flags,
    print_machine,
    print_table,
    scratch,
    show_progress,
)

CASES, DELAY_S, CONCURRENCY = 200, 1.0, 50
SIDE_BY_SIDE = 3
RESULTS, FEWER_RESULTS = 1_000_000, 50_000
PAGE, WALKED = 50, 1000
CLIENTS, PAGES_EACH = 10, 60
READERS, ADDRESSES = 500, 5
"""One address may have 200 event streams."""
LISTENERS, LISTENED_CASES, LISTENED_DELAY_S = 50, 4_000, 0.1
FLOOD, FLOOD_AT_ONCE = 4_000, 800
RECOVERY_S = 5.0
_FOR_EVER_S = 3_000
_TEXT = "Paris is the capital of France. " * 10


class Figure(NamedTuple):
    """One line of the table."""

    name: str
    value: str
    target: str
    note: str = ""


def held(value: float, target: float, unit: str, digits: int = 2) -> tuple[str, str]:
    """A value, and its target with whether it was missed."""
    return f"{value:,.{digits}f} {unit}", f"≤ {target:,.{digits}f} {unit}{f' {MISSED}' if value > target else ''}"


class Service(NamedTuple):
    """The service's process."""

    url: str
    pid: int

    def memory_mb(self) -> float:
        """What it holds in memory now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


@contextmanager
def serving(store: Path) -> Iterator[Service]:
    command = [COMMAND, "serve", "--port", "0", "--store", str(store), "--log-level", "error"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True)
        with process:
            assert process.stdout is not None
            said = process.stdout.readline()
            try:
                [url] = [word.rstrip("/.,") for word in said.split() if word.startswith("http://")] or [""]
                if not url:
                    errors.seek(0)
                    raise RuntimeError(f"the service did not start: {said}{errors.read()}")
                yield Service(url, process.pid)
            finally:
                process.terminate()


@contextmanager
def agent(delay_s: float) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "http_agent.py"), str(delay_s)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # at its end the agent's input is closed, and with it the agent
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def suite(url: str, cases: int, timeout_s: float = 30) -> dict[str, object]:
    return {
        "name": "bench",
        "target": {"kind": "http", "url": url, "timeout": timeout_s},
        "graders": {"exact": {"kind": "exact_match"}},
        "concurrency": CONCURRENCY,
        "dataset": [
            {"id": str(n), "input": f"What is {n} plus {n}?", "ground_truth": str(2 * n)} for n in range(cases)
        ],
    }


async def timed_run(client: AsyncClient, url: str) -> float:
    """Seconds from asking for a run to hearing that it is done."""
    began = perf_counter()
    run = await client.start_evaluation(suite=suite(url, CASES))
    async for event in client.events(run.id):
        if event.type == "done":
            break
    seconds = perf_counter() - began
    summary = await client.summary(run.id)
    if summary.grader_pass_counts != {"exact": CASES}:
        raise RuntimeError(f"the run went wrong: {summary.sentence}")
    return seconds


async def runs(service: Service, url: str) -> list[Figure]:
    ideal = CASES * DELAY_S / CONCURRENCY
    async with AsyncClient(service.url) as client:
        show_progress("one run by itself")
        alone = await timed_run(client, url)
        show_progress(f"{SIDE_BY_SIDE} runs side by side")
        together = await asyncio.gather(*(timed_run(client, url) for _ in range(SIDE_BY_SIDE)))
    return [
        Figure(
            f"{CASES} cases, an agent of {DELAY_S:g} s, {CONCURRENCY} at a time",
            *held(alone, 1.2 * ideal, "s"),
            f"ideal {ideal:.2f} s",
        ),
        Figure(
            f"the slowest of {SIDE_BY_SIDE} such runs at once",
            *held(max(together), 1.2 * ideal, "s"),
            f"{max(together) / alone:.2f} times one such run by itself",
        ),
    ]


async def stored(store: Path, results: int) -> str:
    """A run with a number of results, written as the engine writes them."""
    with SqliteStorage(store) as storage:
        graders = {"exact": RunGrader("exact", "f" * 32)}
        run = storage.save_run(Run(name="many", suite="bench", status="completed", graders=graders, total=results))
        numbers = iter(range(results))
        async with storage.writer() as writer:

            async def write() -> None:
                for number in numbers:
                    key = ResponseKey(run, f"case-{number}")
                    passed = number % 3 > 0
                    outcome = Outcome.PASS if passed else Outcome.FAIL
                    grade = Grade("exact", "f" * 32, outcome, float(passed), passed, "as expected")
                    sample = Sample(key.case, f"What is {number}?", str(number))
                    await writer.put_response(key, Response(text=_TEXT, latency_ms=number % 97), sample, number)
                    await writer.put_grade(GradeKey(*key, "exact"), grade)

            await asyncio.gather(*(write() for _ in range(500)))
    return run


class Pages:
    """Asks for pages of one run, and keeps how long each took."""

    def __init__(self, session: aiohttp.ClientSession, service: Service, run: str) -> None:
        self._session = session
        self._url = f"{service.url}/api/evaluations/{run}/results"

    async def page(self, cursor: str | None, limit: int = PAGE) -> tuple[float, str | None, int]:
        """Seconds, the next cursor, and how many results there were."""
        params = {"limit": str(limit), **({} if cursor is None else {"cursor": cursor})}
        began = perf_counter()
        async with self._session.get(self._url, params=params) as response:
            answer = await response.json()
            seconds = perf_counter() - began
        if response.status != 200:
            raise RuntimeError(f"a page was refused: {answer}")
        return seconds, answer["data"]["next_cursor"], len(answer["data"]["results"])

    async def walk(self) -> tuple[list[str | None], int]:
        """The cursors of all pages, and how many results they have."""
        cursors: list[str | None] = [None]
        seen = 0
        while True:
            _, cursor, count = await self.page(cursors[-1], WALKED)
            seen += count
            if cursor is None:
                return cursors, seen
            cursors.append(cursor)
            show_progress(f"walking through all pages: {seen:,}")

    async def by_clients(self, choose: Callable[[], str | None]) -> list[float]:
        """How long pages take that ten clients ask for."""

        async def client() -> list[float]:
            return [(await self.page(choose()))[0] for _ in range(PAGES_EACH)]

        return sorted(chain.from_iterable(await asyncio.gather(*(client() for _ in range(CLIENTS)))))


async def pages(service: Service, run: str, results: int) -> list[Figure]:
    chance = random.Random(0)
    async with aiohttp.ClientSession() as session:
        asked = Pages(session, service, run)
        show_progress("the first page after the start, which sums the run up")
        began = perf_counter()
        await asked.page(None)
        first_of_all = perf_counter() - began
        cursors, seen = await asked.walk()
        if seen != results:
            raise RuntimeError(f"{seen:,} results came, not {results:,}")
        show_progress("pages by ten clients")
        anywhere = await asked.by_clients(lambda: chance.choice(cursors))
        first = await asked.by_clients(lambda: None)
        deepest = await asked.by_clients(lambda: cursors[-1])
    p95 = anywhere[int(0.95 * len(anywhere))] * 1000
    ratio = max(median(first), median(deepest)) / min(median(first), median(deepest))
    return [
        Figure(
            f"a page of {results:,} results, {CLIENTS} clients, p95",
            *held(p95, 100, "ms", 0),
            f"p50 {median(anywhere) * 1000:.0f} ms; once per run, summing it up: {first_of_all:.1f} s",
        ),
        Figure(
            "first and deepest page, medians",
            *held(ratio, 1.5, "times"),
            f"{median(first) * 1000:.0f} and {median(deepest) * 1000:.0f} ms",
        ),
    ]


@asynccontextmanager
async def following(session: aiohttp.ClientSession, url: str) -> AsyncIterator[None]:
    """A reader that has seen the first event and waits for more."""
    async with session.get(url) as response:
        async for line in response.content:
            if line.startswith(b"data:"):
                break
        yield


async def readers(service: Service) -> list[Figure]:
    show_progress(f"{READERS} readers of events")
    with agent(_FOR_EVER_S) as url:
        async with AsyncClient(service.url) as client, AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(_many(f"127.0.0.{number}")) for number in range(1, ADDRESSES + 1)
            ]
            run = await client.start_evaluation(suite=suite(url, 1, _FOR_EVER_S))
            events = f"{service.url}/api/evaluations/{run.id}/events"
            async with following(sessions[0], events):  # what the first one loads is not what each costs
                before = service.memory_mb()
                opened = [following(sessions[n % ADDRESSES], events) for n in range(READERS)]
                await asyncio.gather(*(one.__aenter__() for one in opened))
                grown = service.memory_mb() - before
                began = perf_counter()
                await client.get_evaluation(run.id)
                answered = perf_counter() - began
                await asyncio.gather(*(one.__aexit__(None, None, None) for one in opened))
            await client.cancel(run.id)
    return [
        Figure(
            f"{READERS} idle readers of events, memory",
            *held(grown, 150, "MB", 0),
            f"{grown * 1024 / READERS:.0f} KB each; another request meanwhile: {answered * 1000:.0f} ms",
        )
    ]


async def listeners(service: Service) -> list[Figure]:
    """Requests by ten clients next to a live run that fifty listeners follow."""
    show_progress(f"{LISTENERS} listeners of a live run")
    took: list[float] = []
    done = asyncio.Event()
    with agent(LISTENED_DELAY_S) as url:
        async with AsyncClient(service.url) as client, _many() as session:
            run = await client.start_evaluation(suite=suite(url, LISTENED_CASES))
            place = f"{service.url}/api/evaluations/{run.id}"

            async def listen() -> int:
                async with session.get(f"{place}/events") as response:
                    return len([line async for line in response.content if line.startswith(b"event: result")])

            async def ask() -> None:
                while not done.is_set():
                    began = perf_counter()
                    async with session.get(place) as response:
                        await response.read()
                    took.append(perf_counter() - began)

            began = perf_counter()
            clients = [asyncio.create_task(ask()) for _ in range(CLIENTS)]
            seen = await asyncio.gather(*(listen() for _ in range(LISTENERS)))
            seconds = perf_counter() - began
            done.set()
            await asyncio.gather(*clients)
    took.sort()
    p50, p99 = (took[int(share * len(took))] * 1000 for share in (0.5, 0.99))
    return [
        Figure(
            f"{LISTENERS} listeners of a live run, requests of {CLIENTS} clients, p99",
            *held(p99, 1000, "ms", 0),
            f"{len(took) / seconds:,.0f} requests a second, p50 {p50:.0f} ms; {LISTENED_CASES:,} cases in"
            f" {seconds:.1f} s, {sum(seen) / seconds:,.0f} events a second",
        )
    ]


async def overload(service: Service, run: str) -> list[Figure]:
    show_progress(f"{FLOOD:,} requests, {FLOOD_AT_ONCE} at once")
    url = f"{service.url}/api/evaluations/{run}/results?limit={PAGE}"
    statuses: Counter[int] = Counter()
    patient: Counter[bool] = Counter()
    async with _many() as session:
        left = iter(range(FLOOD))

        async def flood() -> None:
            for _ in left:
                async with session.get(url) as response:
                    await response.read()
                    statuses[response.status] += 1
                    if response.status != 200:
                        patient["Retry-After" in response.headers] += 1

        began = perf_counter()
        await asyncio.gather(*(flood() for _ in range(FLOOD_AT_ONCE)))
        flooded = perf_counter() - began
        recovered = await _until(lambda: _is_good(session, url))
    wrong = sum(count for status, count in statuses.items() if status not in (200, 429, 503)) + patient[False]
    listed = ", ".join(f"{count:,} x {status}" for status, count in sorted(statuses.items()))
    refused = f"{wrong:,} wrong", f"0 wrong{f' {MISSED}' if wrong or len(statuses) == 1 else ''}"
    return [
        Figure(
            f"{FLOOD:,} requests at {FLOOD_AT_ONCE} at once: 200, or 429 / 503 with Retry-After",
            *refused,
            f"{listed}; {statuses[200] / flooded:,.0f} good ones a second",
        ),
        Figure("until it responds again", *held(recovered, RECOVERY_S, "s")),
    ]


def _many(address: str = "127.0.0.1") -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, local_addr=(address, 0))
    return aiohttp.ClientSession(connector=connector, timeout=timeout)


async def _is_good(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(url) as response:
        return response.status == 200


async def _until(good: Callable[[], Awaitable[bool]]) -> float:
    began = perf_counter()
    while not await good():
        await asyncio.sleep(0.05)
    return perf_counter() - began


async def measured(folder: Path, results: int, *, only_listeners: bool) -> list[Figure]:
    store = folder / "store.db"
    if only_listeners:
        with serving(store) as service:
            return await listeners(service)
    show_progress(f"storing {results:,} results")
    run = await stored(store, results)
    with serving(store) as service, agent(DELAY_S) as url:
        return [
            *await runs(service, url),
            *await pages(service, run, results),
            *await readers(service),
            *await listeners(service),
            *await overload(service, run),
        ]


def main() -> int:
    given = flags(__doc__, quick=f"store {FEWER_RESULTS:,} results only", listeners="only the listeners of a live run")
    print_machine()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    with scratch() as folder:
        results = FEWER_RESULTS if "quick" in given else RESULTS
        figures = asyncio.run(measured(folder, results, only_listeners="listeners" in given))
    show_progress("")
    print_table("the service on SQLite, one process", ("what", "figure", "target", "for comparison"), figures)
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
