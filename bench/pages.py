"""What a page of a large list costs next to the same page of a small one, over HTTP.

Two services run at the same time, each on a store of its own: one has 10,000 results and 1,000 test cases, the other
1,000,000 and 100,000. Every page is requested from both in turn, so that whatever else the machine does slows both.
One answer in all, at seven tenths of the run, has the status, outcome, score, latency, tag and word that the filters
called "1 match" look for. CPU is what the service, and the sessions of PostgreSQL, computed for a page: where other
programs keep the machine busy, it says more than the time. ``--keep`` names a folder whose stores are used again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import clock_gettime, perf_counter
from typing import Any, NamedTuple

import aiohttp

from gradeline.errors import Outcome
from gradeline.model import ErrorInfo, Fault, Grade, GradeKey, Response, ResponseKey, RunGrader, Sample
from gradeline.model.record import to_json
from gradeline.model.sample import TestCase
from gradeline.service.requests import encode_cursor
from gradeline.service.results import _cursor
from gradeline.service.test_cases import TestCases
from gradeline.store import PostgresStorage, Run, SqliteStorage, sqlite_records
from gradeline.store.result_pages import ResultPosition
from gradeline.store.rows import GradeRow, ResponseRow, grade_row, response_row
from measure import MISSED, exit_code, print_machine, print_table, scratch, show_progress
from postgres import _GRADE_COLUMNS, _RESPONSE_COLUMNS, _SAMPLE_COLUMNS, SETTINGS, connected
from service import Service, serving

from postgres_server import Server, execute  # isort: skip - `postgres` has put the folder of the tests on the path

SMALL, LARGE, FEWER = 10_000, 1_000_000, 100_000
SMALL_CASES, LARGE_CASES = 1_000, 100_000
LIMIT = 100
ROUNDS, BURSTS, CLIENTS = 15, 4, 10
WARM_UP = 2
INDEX_SECONDS = 300
AT_ONCE = 10_000
TIMEOUT_EVERY = 1_000
WORD = "xylophone"
TWICE, FIVE_TIMES = 2.0, 5.0
_COLUMNS = (
    *(f"{size} {figure}" for size in ("small", "large") for figure in ("p50", "p95", "CPU")),
    *("p50 ratio", "p95 ratio", "CPU ratio"),
)
_CPU_CLOCK = 2
"""As `clock_getcpuclockid` names the clock of another process."""
_TEXT = "Paris is the capital of France. " * 10
_GRADERS = {"exact": RunGrader("exact", "f" * 32)}
_TIMEOUT = ErrorInfo("timeout", "no answer within 30 s", Fault.AGENT)


class Size(NamedTuple):
    """How much a store holds."""

    results: int
    cases: int


class Loaded(NamedTuple):
    """A service, its store, and the run whose pages are requested."""

    service: Service
    store: str
    run: str
    size: Size

    def cpu_seconds(self) -> float:
        """What the service has computed so far, and the sessions of its database, where that is a server."""
        processes = [self.service.pid]
        if self.store.startswith("postgresql:"):
            sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'gradeline' AND datname = $1"
            rows = execute(self.store, sessions, f"pages_{self.size.results}")
            processes += [int(str(pid)) for (pid,) in rows]
        return sum(clock_gettime((~process << 3) | _CPU_CLOCK) for process in processes)


class Taken(NamedTuple):
    """What the pages of one list took."""

    seconds: list[float]
    cpu_seconds: float
    """On average."""

    def at(self, share: float) -> float:
        times = sorted(self.seconds)
        return median(times) if share == 0.5 else times[min(int(len(times) * share), len(times) - 1)]


class Scenario(NamedTuple):
    """A page: the parameters of its request, and the place behind which it starts, counted from the end where it is
    negative: as many results are left of the small list as of the large one."""

    name: str
    params: Mapping[str, str | float]
    start: int = 0
    path: str = "results"
    clients: int = 1


_SPARSE: dict[str, dict[str, str | float]] = {
    "status, 1 match": {"status": "error"},
    "status, every 1,000th": {"status": "timeout", "limit": SMALL // TIMEOUT_EVERY},  # all that the small run has
    "outcome, 1 match": {"outcome": "error"},
    "outcome, only in the last tenth": {"outcome": "skipped"},
    "score range, 1 match": {"grader": "exact", "score_min": 0.4, "score_max": 0.6},
    "latency range, 1 match": {"latency_min": 5_000},
    "tag, 1 match": {"tag": "needle"},
    "text, 1 match": {"q": WORD},
    "status and tag, no match": {"status": "timeout", "tag": "needle"},
}
_DENSE: dict[str, dict[str, str | float]] = {
    "no filter": {},
    "status, nearly all": {"status": "success"},
    "grader, all": {"grader": "exact"},
    "outcome, a third": {"outcome": "fail"},
    "score range, a third": {"grader": "exact", "score_max": 0.3},
    "latency range, half": {"latency_min": 48},
    "tag, every 20th": {"tag": "group-7"},
    "text, all": {"q": "capital of france"},
    "outcome, latency range and tag": {"outcome": "pass", "latency_max": 50, "tag": "group-1"},
}
_STARTS = {"first": 0, "deepest": -3_000}


def scenarios() -> Iterator[Scenario]:
    for name, params in _DENSE.items():
        for place, start in _STARTS.items():
            yield Scenario(f"{name}, {place}", params, start)
    for name, params in _SPARSE.items():
        yield Scenario(name, params)
    yield Scenario("text, 1 match, 5,000 left", {"q": WORD}, -5_000)
    yield Scenario(f"no filter, {CLIENTS} clients", {}, -5_000, clients=CLIENTS)
    yield Scenario("test cases, no filter", {}, path="cases")
    yield Scenario("test cases, tag of a fifth", {"tag": "part-3"}, path="cases")
    yield Scenario("test cases, tag of a fifth, deepest", {"tag": "part-3"}, -600, path="cases")
    yield Scenario("test cases, part of five tags", {"tag": "part-"}, path="cases")
    yield Scenario("test cases, tag with 1 match", {"tag": "needle"}, path="cases")
    yield Scenario("test cases, unknown tag", {"tag": "nothing-has-it"}, path="cases")


def rows_of(run: str, numbers: Sequence[int], total: int) -> tuple[list[ResponseRow], list[GradeRow]]:
    responses, grades = [], []
    needle = total * 7 // 10
    for number in numbers:
        key = ResponseKey(run, f"case-{number}")
        passed = number % 3 > 0
        outcome = Outcome.PASS if passed else Outcome.FAIL
        score: float | None = float(passed)
        response = Response(text=_TEXT, latency_ms=number % 97)
        tags = (f"group-{number % 20}",)
        if number % TIMEOUT_EVERY == TIMEOUT_EVERY - 1:
            response = Response("timeout", error=_TIMEOUT)
        elif number == needle:
            outcome, score, tags = Outcome.ERROR, None, (*tags, "needle")
            response = Response("error", text=f"{_TEXT} {WORD}", error=_TIMEOUT)
        elif number == needle + 1:
            score, response = 0.5, Response(text=_TEXT, latency_ms=10_000)
        elif number >= total * 9 // 10 and number % 5 == 0:
            outcome, score = Outcome.SKIPPED, None
        sample = Sample(key.case, f"What is {number}?", str(number), tags=tags)
        why = _TIMEOUT if outcome is Outcome.ERROR else None
        grade = Grade("exact", "f" * 32, outcome, score, None if score is None else passed, "as expected", error=why)
        responses.append(response_row(key, response, sample, number))
        grades.append(grade_row(GradeKey(*key, "exact"), grade, None))
    return responses, grades


def case_rows(cases: int) -> Iterator[tuple[str, str]]:

    for number in range(cases):
        tags = ("all", f"part-{number % 5}", *(("needle",) if number == cases * 7 // 10 else ()))
        case = TestCase(id=f"stored-{number}", input=f"What is {number}?", expected_output=str(number), tags=tags)
        yield case.id, to_json(case)


def run_of(size: Size) -> Run:
    return Run(id="pages", name="pages", suite="bench", status="completed", graders=_GRADERS, total=size.results)


def fill_sqlite(store: Path, size: Size) -> None:
    with SqliteStorage(store) as storage:
        run = storage.save_run(run_of(size))
        for start in range(0, size.results, AT_ONCE):
            show_progress(f"storing results: {start:,} of {size.results:,}")
            responses, grades = rows_of(run, range(start, min(start + AT_ONCE, size.results)), size.results)
            with storage._pool.writing() as connection:
                sqlite_records.put_rows(connection, [*responses, *grades])
        show_progress("storing test cases")
        TestCases(storage.database).add_rows(case_rows(size.cases))


async def copy_to_postgres(url: str, run: str, total: int) -> None:
    async with connected(url) as connection:
        for start in range(0, total, AT_ONCE):
            show_progress(f"storing results: {start:,} of {total:,}")
            responses, grades = rows_of(run, range(start, min(start + AT_ONCE, total)), total)
            samples = [(row.run, row.case, row.position, row.sample) for row in responses]
            async with connection.transaction():
                for table, columns, rows in (
                    ("samples", _SAMPLE_COLUMNS, samples),
                    ("responses", _RESPONSE_COLUMNS, [row[:9] for row in responses]),
                    ("grades", _GRADE_COLUMNS, grades),
                ):
                    await connection.copy_records_to_table(table, records=rows, columns=columns)


def fill_postgres(url: str, size: Size) -> None:
    with PostgresStorage(url) as storage:
        run = storage.save_run(run_of(size))
        asyncio.run(copy_to_postgres(url, run, size.results))
        TestCases(storage.database).add_rows(case_rows(size.cases))
    execute(url, "VACUUM ANALYZE")


class Pages:
    """Requests pages from both services in turn."""

    def __init__(self, session: aiohttp.ClientSession, small: Loaded, large: Loaded) -> None:
        self._session = session
        self._both = (small, large)

    async def page(self, loaded: Loaded, scenario: Scenario) -> tuple[float, dict[str, Any]]:
        """Seconds, and what came."""
        of_cases = scenario.path == "cases"
        path = "test-cases" if of_cases else f"evaluations/{loaded.run}/results"
        params: dict[str, str | float] = {"limit": LIMIT, **scenario.params}
        if scenario.start:
            position = scenario.start % (loaded.size.cases if of_cases else loaded.size.results)
            behind = ResultPosition(position, f"case-{position}", 0)
            params["cursor"] = encode_cursor(position) if of_cases else _cursor(loaded.run, behind, 0)
        began = perf_counter()
        async with self._session.get(f"{loaded.service.url}/api/{path}", params=params) as response:
            answer = await response.json()
            seconds = perf_counter() - began
        if response.status != 200:
            raise RuntimeError(f"{scenario.name}: {answer}")
        return seconds, answer["data"]

    async def timed(self, scenario: Scenario) -> list[Taken]:
        """What the page took, of the small and of the large list."""
        rounds = ROUNDS if scenario.clients == 1 else BURSTS
        times: list[list[float]] = [[], []]
        before = [0.0, 0.0]
        for number in range(WARM_UP + rounds):
            if number == WARM_UP:  # what is read for the first time is in no cache
                before = [await asyncio.to_thread(loaded.cpu_seconds) for loaded in self._both]
                times = [[], []]
            for taken, loaded in zip(times, self._both, strict=True):
                burst = await asyncio.gather(*(self.page(loaded, scenario) for _ in range(scenario.clients)))
                taken += [seconds for seconds, _ in burst]
        after = [await asyncio.to_thread(loaded.cpu_seconds) for loaded in self._both]
        return [
            Taken(taken, (last - first) / len(taken)) for taken, first, last in zip(times, before, after, strict=True)
        ]

    async def is_indexed(self) -> bool:
        """Whether a filter that skips most of a run leads to its match at once."""
        pages = [await self.page(loaded, Scenario("", {"status": "error"})) for loaded in self._both]
        return all(data["results"] for _, data in pages)

    async def requests_to_the_match(self, scenario: Scenario) -> int:
        """How many pages of the large run lead to the first match."""
        large = self._both[1]
        number, params = 1, dict(scenario.params)
        while True:
            _, data = await self.page(large, scenario._replace(params=params))
            if data["results"] or data["next_cursor"] is None:
                return number
            number, params = number + 1, {**params, "cursor": data["next_cursor"]}


def compared(name: str, small: Taken, large: Taken, target: float) -> tuple[str, ...]:
    ratios = [
        large.at(0.5) / small.at(0.5),
        large.at(0.95) / small.at(0.95),
        large.cpu_seconds / small.cpu_seconds,
    ]
    times = (small.at(0.5), small.at(0.95), small.cpu_seconds, large.at(0.5), large.at(0.95), large.cpu_seconds)
    missed = f" {MISSED}" if ratios[0] > target else ""
    return (
        name,
        *(f"{seconds * 1000:.1f}" for seconds in times),
        *(f"{ratio:.2f}" for ratio in ratios),
        f"≤ {target:g}{missed}",
    )


async def measured(title: str, small: Loaded, large: Loaded, chosen: Callable[[str], bool]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        pages = Pages(session, small, large)
        for loaded in (small, large):  # sums each run up, which happens once
            await pages.page(loaded, Scenario("", {}))
        began = perf_counter()
        while not await pages.is_indexed() and perf_counter() - began < INDEX_SECONDS:
            await asyncio.sleep(0.5)
        for scenario in filter(lambda one: chosen(one.name), scenarios()):
            show_progress(f"{title}: {scenario.name}")
            rows.append(compared(scenario.name, *await pages.timed(scenario), TWICE))
        for name, params in {"skip": {}, "skip, of two thirds": {"outcome": "pass"}}.items():
            if chosen(name):
                skips = (0, 1_000, 10_000)
                taken = {skip: (await pages.timed(Scenario(name, {**params, "skip": skip})))[1] for skip in skips}
                rows += [compared(f"{name} 0 and {skip:,}", taken[0], taken[skip], FIVE_TIMES) for skip in skips[1:]]
        for name, wanted in _SPARSE.items():
            if chosen(name) and "no match" not in name:
                number = await pages.requests_to_the_match(Scenario(name, wanted))
                rows.append((f"requests to the first match: {name}", *[""] * 3, str(number), *[""] * 6))
    return rows


@contextmanager
def sqlite_stores(folder: Path, sizes: Sequence[Size]) -> Iterator[list[str]]:
    stores = [folder / f"{size.results}.db" for size in sizes]
    for store, size in zip(stores, sizes, strict=True):
        if not store.exists():
            fill_sqlite(store, size)
    yield [str(store) for store in stores]


@contextmanager
def postgres_stores(_: Path, sizes: Sequence[Size]) -> Iterator[list[str]]:
    server = Server(SETTINGS)
    try:
        urls = []
        for size in sizes:
            execute(server.url, f"CREATE DATABASE pages_{size.results}")
            urls.append(server.url.replace("/postgres?", f"/pages_{size.results}?"))
            fill_postgres(urls[-1], size)
        yield urls
    finally:
        server.stop()


BACKENDS = {"SQLite": sqlite_stores, "PostgreSQL": postgres_stores}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{FEWER:,} results in the large run")
    parser.add_argument("--backend", choices=tuple(BACKENDS), action="append", help="Backend to measure (default all)")
    parser.add_argument("--keep", type=Path, help="Folder of the SQLite stores (default a temporary one)")
    parser.add_argument("--only", default="", help="Measure only pages whose name contains this")
    asked = parser.parse_args()
    print_machine()
    sizes = (Size(SMALL, SMALL_CASES), Size(FEWER if asked.quick else LARGE, LARGE_CASES))
    rows: list[tuple[str, ...]] = []
    for name in asked.backend or BACKENDS:
        with ExitStack() as opened:
            folder = asked.keep or opened.enter_context(scratch())
            stores = opened.enter_context(BACKENDS[name](folder, sizes))
            served = [opened.enter_context(serving(store)) for store in stores]
            small, large = (
                Loaded(service, store, "pages", size)
                for service, store, size in zip(served, stores, sizes, strict=True)
            )
            found = asyncio.run(measured(name, small, large, lambda text: asked.only in text))
        show_progress("")
        print_table(
            f"{name}: a page of {LIMIT}, {sizes[0].results:,} and {sizes[1].results:,} results,"
            f" {sizes[0].cases:,} and {sizes[1].cases:,} test cases, ms",
            ("page", *_COLUMNS, "target"),
            found,
        )
        print()
        rows += found
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
