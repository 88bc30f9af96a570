"""The list of runs, whoever started them: the newest first, filtered, in pages."""

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
from gradeline.service.run_rows import source_of
from gradeline.service.suites_of import EvaluationRequest
from gradeline.stats import wilson
from gradeline.store.database import Database, Value
from gradeline.store.leases import observed_run

MAX_COUNTED = 10_000

_AT_ONCE = 200
_STORED_AS = {"interrupted": ("running", "pending")}
_BEHIND_ALL = 2**62


class RunFilter(NamedTuple):
    """Which runs are wanted. Times are those of creation; ``until`` is not included."""

    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tag: str | None = None
    """The tag by which its cases were chosen."""
    q: str | None = None
    """A text in the name of the run or its suite."""

    def matches(self, run: Run) -> bool:
        """Whether the run is one of them."""
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
        started = moment_of(run.started_at, "started_at")
        return (self.since is None or started >= self.since) and (self.until is None or started < self.until)


class RunPage(NamedTuple):
    """A part of the list."""

    runs: list[Run]
    total: int
    capped: bool
    """There are more than ``total``; they were not counted."""
    next_cursor: str | None


class RunList:
    """Reads runs as rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, page: PageRequest, wanted: RunFilter) -> RunPage:
        """A part of the list; a cursor goes on behind the last run of the part before."""
        before = _BEHIND_ALL if page.cursor is None else int(decode_cursor(page.cursor, int)[0])
        if wanted == RunFilter():
            rows = self._database.read(
                "SELECT n, run FROM runs WHERE n < ? ORDER BY n DESC LIMIT ? OFFSET ?",
                before,
                page.limit + 1,
                page.skip,
            )
            total = int(self._database.read("SELECT count(*) FROM runs")[0][0])
            runs = [(int(n), observed_run(text, self._database.read)) for n, text in rows]
            return _cut(runs, page.limit, total, capped=False)
        return self._filtered(page, wanted, before)

    def kept(self, runs: Sequence[str]) -> dict[str, tuple[EvaluationRequest, dict[str, Any] | None]]:
        """What was asked for each run that was started here, and what it came to."""
        found: dict[str, tuple[EvaluationRequest, dict[str, Any] | None]] = {}
        for start in range(0, len(runs), _AT_ONCE):
            rows = self._among("SELECT run, asked, outcome FROM jobs WHERE run IN ({places})", runs[start:][:_AT_ONCE])
            for run, asked, outcome in rows:
                decoded = msgspec.json.decode(asked, type=EvaluationRequest)
                found[run] = (decoded, None if outcome is None else msgspec.json.decode(outcome))
        return found

    def result_counts(self, runs: Sequence[Run]) -> dict[str, int]:
        """How many results each run has so far; a run that regrades has those of its parent."""
        sources = {run.id: run.id if run.parent is None else source_of(self._database.read, run.id) for run in runs}
        wanted = list(set(sources.values()))
        counted: dict[str, int] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            rows = self._among(
                "SELECT run, CAST(sum(count) AS BIGINT) FROM response_counts WHERE run IN ({places}) GROUP BY run",
                wanted[start:][:_AT_ONCE],
            )
            counted.update(dict(rows))
        return {run: counted.get(source, 0) for run, source in sources.items()}

    def pass_rates(self, runs: Sequence[Run], results: Mapping[str, int]) -> dict[str, dict[str, Figure]]:
        """How many of its scores each grader let pass, from the counters; ``results`` is what `result_counts` gave."""
        ids = [run.id for run in runs]
        counted: dict[tuple[str, str], dict[str, int]] = {}
        for start in range(0, len(ids), _AT_ONCE):
            rows = self._among(
                "SELECT run, grader, outcome, count FROM grade_counts WHERE run IN ({places})"
                " AND outcome IN ('pass', 'fail') AND count > 0",
                ids[start:][:_AT_ONCE],
            )
            for run, grader, outcome, count in rows:
                counted.setdefault((run, grader), {})[outcome] = int(count)
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
        sources = {run.id: run.id if run.parent is None else source_of(self._database.read, run.id) for run in runs}
        wanted = list({*sources, *sources.values()})
        found: set[str] = set()
        for start in range(0, len(wanted), _AT_ONCE):
            rows = self._among(
                "SELECT id FROM runs WHERE id IN ({places})"
                " AND EXISTS (SELECT 1 FROM clusters WHERE clusters.run = runs.id)",
                wanted[start:][:_AT_ONCE],
            )
            found.update(run for (run,) in rows)
        return {run for run, source in sources.items() if run in found or source in found}

    def _among(self, statement: str, runs: Sequence[str]) -> list[tuple[Any, ...]]:
        values: list[Value] = list(runs)
        return self._database.read(statement.format(places=", ".join("?" * len(values))), *values)

    def _filtered(self, page: PageRequest, wanted: RunFilter, before: int) -> RunPage:
        """One walk gives the page and the total; it ends when both are known."""
        total = passed = 0
        found: list[tuple[int, Run]] = []
        for n, run in self._scan(wanted):
            total += 1
            if n < before:
                passed += 1
                if passed > page.skip and len(found) <= page.limit:
                    found.append((n, run))
            if total > MAX_COUNTED and len(found) > page.limit:
                break
        return _cut(found, page.limit, min(total, MAX_COUNTED), capped=total > MAX_COUNTED)

    def _scan(self, wanted: RunFilter) -> Iterator[tuple[int, Run]]:
        # the stored form has the status as it is written here: the database leaves out most of what cannot match
        stored = _STORED_AS.get(wanted.status or "", (wanted.status,) * 2)
        likely = tuple("%" if status is None else f'%"status":"{status}"%' for status in stored)
        before = _BEHIND_ALL
        while True:
            rows = self._database.read(
                "SELECT n, run FROM runs WHERE n < ? AND (run LIKE ? OR run LIKE ?) ORDER BY n DESC LIMIT ?",
                before,
                *likely,
                _AT_ONCE,
            )
            if not rows:
                return
            for n, text in rows:
                run = observed_run(text, self._database.read)
                if wanted.matches(run):
                    yield int(n), run
            before = int(rows[-1][0])


def _rate(outcomes: Mapping[str, int], total: int, *, grouped: bool) -> Figure:
    passed = outcomes.get("pass", 0)
    scored = passed + outcomes.get("fail", 0)
    if not scored:
        return Figure(None, None, None, 0, total)
    # repeats of a case, or cases of a cluster, say less than as many cases: their interval takes a walk over them
    interval = None if grouped else wilson(passed, scored)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Figure(passed / scored, low, high, scored, total)


def moment_of(text: str, field: str) -> datetime:
    """A time that a caller wrote; without a zone it is in UTC."""
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
        return RunDefinition.of(run).choice.tags
    except ConfigError:
        return ()
