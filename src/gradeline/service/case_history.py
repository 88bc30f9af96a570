"""The same case in other runs: how its answer and its grades changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from gradeline.model import Record, Run, Sample, case_digest, from_json
from gradeline.rest_types import Result
from gradeline.service.run_rows import source_of
from gradeline.store.database import Database, Value
from gradeline.store.leases import observed_run

RUNS_SEARCHED = 1_000
"""How many of the newest runs are looked at."""
_AT_ONCE = 100
_BEHIND_ALL = 2**62


class CaseRun(Struct, frozen=True, kw_only=True):
    """The case in one run."""

    evaluation_id: str
    name: str
    started_at: str | None
    result: Result


class CaseHistory(Struct, frozen=True, kw_only=True):
    """The same case in other runs, the newest run first.

    A case is the same when its id and its content (input, expected output, metadata) are the same and it belongs to the
    same suite; a stored test case is the same in every suite. Of the store, the newest 1,000 runs are searched.
    """

    evaluation_id: str
    result_id: str
    runs: list[CaseRun]


class SameCase:
    """Finds the runs that have the same case."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def runs(self, run: Run, record: Record) -> Iterator[Run]:
        """Other runs with this case, the newest first."""
        wanted = case_digest(record.sample)
        everywhere = self._is_stored(record.case)
        for chunk in self._chunks():
            others = [one for one in chunk if one.id != run.id and (everywhere or one.suite == run.suite)]
            samples = self._samples(others, record.case)
            yield from (one for one in others if one.id in samples and case_digest(samples[one.id]) == wanted)

    def _is_stored(self, case: str) -> bool:
        """Whether the id is that of a stored test case, deleted ones included: no other case has it."""
        return bool(self._database.read("SELECT 1 FROM test_cases WHERE id = ?", case))

    def _chunks(self) -> Iterator[list[Run]]:
        before, searched = _BEHIND_ALL, 0
        while searched < RUNS_SEARCHED:
            rows = self._database.read("SELECT n, run FROM runs WHERE n < ? ORDER BY n DESC LIMIT ?", before, _AT_ONCE)
            if not rows:
                return
            yield [observed_run(text, self._database.read) for _, text in rows]
            before, searched = int(rows[-1][0]), searched + len(rows)

    def _samples(self, runs: list[Run], case: str) -> Mapping[str, Sample]:
        """The case as each run has it; a run that regrades has those of its parent."""
        if not runs:
            return {}
        read = self._database.read
        sources = {run.id: run.id if run.parent is None else source_of(read, run.id) for run in runs}
        values: list[Value] = [case, *sorted(set(sources.values()))]
        places = ", ".join("?" * (len(values) - 1))
        statement = f"SELECT run, sample FROM samples WHERE case_key = ? AND run IN ({places})"  # noqa: S608
        found: dict[str, str] = dict(read(statement, *values))
        return {run: from_json(Sample, found[source]) for run, source in sources.items() if source in found}
