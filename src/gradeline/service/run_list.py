"""The list of runs, of the service and of the command line: newest first, filtered, in pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.definition import RunDefinition
from gradeline.errors import ConfigError
from gradeline.model import Run
from gradeline.rest_types import Figure
from gradeline.service.errors import Code, ServiceError
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor
from gradeline.service.suite_builder import EvaluationRequest
from gradeline.stats import wilson
from gradeline.store.database import Database
from gradeline.store.queries import (
    NEWEST,
    count_outcomes,
    count_responses,
    count_runs,
    newest_runs,
    response_sources,
    runs_with_clusters,
    select_in,
)

MAX_COUNTED = 10_000

_PER_QUERY = 200
_STORED_AS = {"interrupted": ("running", "pending")}


class RunFilter(NamedTuple):
    """Conditions on runs. Times are times of creation; ``until`` is excluded."""

    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tag: str | None = None
    """The tag by which the cases were chosen."""
    q: str | None = None
    """Part of the name of the run or of its suite."""

    def matches(self, run: Run) -> bool:
        if self.status is not None and run.status != self.status:
            return False
        if self.q and self.q.casefold() not in f"{run.name}\n{run.suite}".casefold():
            return False
        return self._in_time(run) and (self.tag is None or self.tag in _tags(run))

    def _in_time(self, run: Run) -> bool:
        if self.since is None and self.until is None:
            return True
        if run.started_at is None:
            return False
        started = parse_time(run.started_at, "started_at")
        return (self.since is None or started >= self.since) and (self.until is None or started < self.until)


class RunPage(NamedTuple):
    """A page of the list."""

    runs: list[Run]
    total: int
    capped: bool
    """There are more runs than ``total``; counting stopped there."""
    next_cursor: str | None


class RunList:
    """Reads the list of runs of a store."""

    def __init__(self, database: Database) -> None:
        self._read = database.read

    def page(self, page: PageRequest, where: RunFilter) -> RunPage:
        """A page of the list; a cursor continues after the last run of the previous page."""
        before = NEWEST if page.cursor is None else int(decode_cursor(page.cursor, int)[0])
        if where == RunFilter():
            runs = newest_runs(self._read, before, page.limit + 1, page.skip)
            return _cut(runs, page.limit, count_runs(self._read), capped=False)
        return self._filtered(page, where, before)

    def requests(self, runs: Sequence[str]) -> dict[str, tuple[EvaluationRequest, dict[str, Any] | None]]:
        """For each run of the service, the request that started it, and its verdict and comparison as stored."""
        found: dict[str, tuple[EvaluationRequest, dict[str, Any] | None]] = {}
        for run, request, outcome in select_in(
            self._read, "SELECT run, asked, outcome FROM jobs WHERE run IN ({places})", runs
        ):
            decoded = msgspec.json.decode(request, type=EvaluationRequest)
            found[run] = (decoded, None if outcome is None else msgspec.json.decode(outcome))
        return found

    def result_counts(self, runs: Sequence[Run]) -> dict[str, int]:
        """The number of results of each run so far; a run that regrades has those of its parent."""
        sources = response_sources(self._read, runs)
        counted = count_responses(self._read, sources.values())
        return {run: counted.get(source, 0) for run, source in sources.items()}

    def pass_rates(self, runs: Sequence[Run], results: Mapping[str, int]) -> dict[str, dict[str, Figure]]:
        """The pass rate by run and grader, from counters; ``results`` are the `result_counts`."""
        counted = count_outcomes(self._read, (run.id for run in runs))
        grouped = {run.id for run in runs if run.repeats > 1} | self._clustered(runs)
        return {
            run.id: {
                key: _rate(counted.get((run.id, key), {}), results[run.id], grouped=run.id in grouped)
                for key in run.graders
            }
            for run in runs
        }

    def _clustered(self, runs: Sequence[Run]) -> set[str]:
        """The runs whose cases, or those of the run they regrade, have clusters."""
        sources = response_sources(self._read, runs)
        found = runs_with_clusters(self._read, (*sources, *sources.values()))
        return {run for run, source in sources.items() if run in found or source in found}

    def _filtered(self, page: PageRequest, where: RunFilter, before: int) -> RunPage:
        """One scan finds the page and the total; it ends when both are known."""
        total = passed = 0
        found: list[tuple[int, Run]] = []
        for n, run in self._scan(where):
            total += 1
            if n < before:
                passed += 1
                if passed > page.skip and len(found) <= page.limit:
                    found.append((n, run))
            if total > MAX_COUNTED and len(found) > page.limit:
                break
        return _cut(found, page.limit, min(total, MAX_COUNTED), capped=total > MAX_COUNTED)

    def _scan(self, where: RunFilter) -> Iterator[tuple[int, Run]]:
        statuses = () if where.status is None else _STORED_AS.get(where.status, (where.status,))
        before = NEWEST
        while rows := newest_runs(self._read, before, _PER_QUERY, statuses=statuses):
            yield from ((n, run) for n, run in rows if where.matches(run))
            before = rows[-1][0]


def _rate(outcomes: Mapping[str, int], total: int, *, grouped: bool) -> Figure:
    passed = outcomes.get("pass", 0)
    scored = passed + outcomes.get("fail", 0)
    if not scored:
        return Figure(None, None, None, 0, total)
    # repeats of a case, or cases of a cluster, are not independent: their interval needs all rows
    interval = None if grouped else wilson(passed, scored)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Figure(passed / scored, low, high, scored, total)


def parse_time(text: str, field: str) -> datetime:
    """A time in a request; without a zone it is in UTC."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        message = f"Parameter '{field}' must be a time such as 2026-01-31T12:00:00Z"
        raise ServiceError(Code.INVALID_INPUT, message) from None


def _cut(found: list[tuple[int, Run]], limit: int, total: int, *, capped: bool) -> RunPage:
    shown = found[:limit]
    cursor = encode_cursor(shown[-1][0]) if len(found) > limit else None
    return RunPage([run for _, run in shown], total, capped, cursor)


def _tags(run: Run) -> tuple[str, ...]:
    try:
        return RunDefinition.of(run).options.tags
    except ConfigError:
        return ()
