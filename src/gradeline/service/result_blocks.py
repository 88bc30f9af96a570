"""The block index of a run: which blocks of its results can match a filter, so that a page skips all others.

A block is about a thousand results in a row. The index keeps, for each block, what a filter can ask for: statuses,
outcomes, tags, bins of scores and latencies. It never leaves out a block that has a match; that a block is not left
out does not mean that it has one. Statuses and outcomes are counted, so that ``skip`` passes over whole blocks. What
has no index (a run that is not ended, a text) is searched result by result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf

import msgspec
from msgspec import Struct

from gradeline.errors import StoreError
from gradeline.model import Run, Storage
from gradeline.service.findings import Findings
from gradeline.service.result_scan import ANY, ROWS_EXAMINED, Place, Range, ResultFilter, fence, joined
from gradeline.service.run_rows import ENDED
from gradeline.store.database import Database, Dialect, Row, Step, Transaction, migrate

_RESULTS = 1_000
"""In a block."""
_BLOCKS_AT_ONCE = 10
"""That one statement reads, so that no statement takes long."""
_MAX_TAGS = 5_000
"""Different tags of a run that are kept; of a run with more, tags are searched result by result."""
_TAGS = {"sqlite": "json_extract(sample, '$.tags')", "postgresql": "(sample::json -> 'tags')::text"}

_SCORES = tuple(number / 20 for number in range(1, 20))
_LATENCIES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5)
"""Where the bins of scores and of latencies end; one more takes what lies above."""


class BlockIndex(Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """Blocks are numbered from 0. A set of blocks is a number in base 16, whose bit n is block n.

    Counts are lists, one number for each block.
    """

    positions: int
    """Of a block: block n begins at position ``n * positions``."""
    blocks: int
    statuses: dict[str, list[int]]
    """Results by status."""
    latencies: list[str]
    """Of successful responses, by bin."""
    outcomes: dict[str, dict[str, list[int]]]
    """Results by grader and outcome."""
    scores: dict[str, list[str]]
    """By grader and bin."""
    tags: dict[str, str] | None
    """None: not known."""

    def stretches(self, where: ResultFilter, start: Place) -> Iterator[tuple[int, int]]:
        """The positions, from a place on, where results may match: first and end of each stretch, in order."""
        first = max(start.position, 0)
        left = self._candidates(where) >> (first // self.positions) << (first // self.positions)
        while left:
            block = (left & -left).bit_length() - 1
            end = block + _trailing_ones(left >> block)
            yield max(first, block * self.positions), end * self.positions
            left = left >> end << end

    def skipped(self, where: ResultFilter, start: Place, skip: int) -> tuple[Place, int]:
        """A place behind ``start``, and how many results that match are still to be skipped from there."""
        counts = self._counts(where)
        position = max(start.position, 0)
        block, within = divmod(position, self.positions)
        if within or start.repeat >= 0 or not counts:
            return start, skip
        while block < self.blocks and (number := sum(by_block[block] for by_block in counts)) <= skip:
            block, skip = block + 1, skip - number
        return Place(block * self.positions, "", -1), skip

    def _counts(self, where: ResultFilter) -> list[list[int]]:
        """What adds up to the results that match in each block; nothing where that is not known."""
        if where == ResultFilter():
            return list(self.statuses.values())
        if where == ResultFilter(status=where.status):
            return [self.statuses.get(where.status or "", [0] * self.blocks)]
        if where == ResultFilter(grader=where.grader, outcome=where.outcome):
            # of several graders, more than one may have given a result the outcome
            graders = list(self.outcomes) if where.grader is None else [where.grader]
            if len(graders) == 1:
                outcomes = self.outcomes.get(graders[0], {})
                return [
                    counts
                    for outcome, counts in outcomes.items()
                    if where.outcome is None or outcome == where.outcome.value
                ] or [[0] * self.blocks]
        return []

    def _candidates(self, where: ResultFilter) -> int:
        found = (1 << self.blocks) - 1
        if where.status is not None:
            found &= _occupied(self.statuses.get(where.status, ()))
        if where.latency_ms != ANY:
            found &= _within(self.latencies, _LATENCIES, where.latency_ms)
        if where.grader is not None or where.outcome is not None:
            graders = self.outcomes if where.grader is None else (where.grader,)
            found &= _union(self._graded(grader, where) for grader in graders)
        if where.tag is not None and self.tags is not None:
            found &= _union(int(blocks, 16) for tag, blocks in self.tags.items() if where.tag in tag)
        return found

    def _graded(self, grader: str, where: ResultFilter) -> int:
        outcomes = self.outcomes.get(grader, {})
        wanted = outcomes.values() if where.outcome is None else [outcomes.get(where.outcome.value, [])]
        found = _union(map(_occupied, wanted))
        return found if where.score == ANY else found & _within(self.scores.get(grader, []), _SCORES, where.score)


def _create_blocks(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        """CREATE TABLE result_blocks (
            run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
            version TEXT NOT NULL,
            blocks TEXT NOT NULL
        )"""
    )


STEPS: tuple[Step, ...] = (_create_blocks,)


class ResultBlocks:
    """The block indexes of a store's runs, built in the background when a filter first needs one."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage
        self._indexes = Findings(database, BlockIndex, "result_blocks", "blocks")
        migrate(database, "result_blocks", STEPS)

    def of(self, run: Run, source: str, where: ResultFilter, skip: int) -> BlockIndex | None:
        """The index of a run, whose responses are those of ``source``; None where it is of no use, or not there yet."""
        if run.status not in ENDED or not (skip or where.is_indexed):
            return None
        counts = self._storage.counts(run.id)
        if sum(counts.responses.values()) <= ROWS_EXAMINED:  # which one page looks through anyway
            return None
        index = self._indexes.known(run, counts)
        if index is None:
            self._indexes.find_in_background(run, counts, lambda: self.build(run, source))
        return index

    def build(self, run: Run, source: str) -> BlockIndex:
        """Reads all rows of the run."""
        positions = max(1, _RESULTS // run.repeats)
        ((last,),) = self._database.read("SELECT max(position) FROM samples WHERE run = ?", source)
        blocks = 0 if last is None else int(last) // positions + 1
        statuses: dict[str, list[int]] = defaultdict(lambda: [0] * blocks)
        latencies = [0] * (len(_LATENCIES) + 1)
        outcomes: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0] * blocks))
        scores: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_SCORES) + 1))
        for block, status, place, number in self._responses(source, positions, blocks):
            statuses[status][block] += number
            if status == "success" and place is not None:
                latencies[place] |= 1 << block
        for block, grader, outcome, place, number in self._grades(run.id, source, positions, blocks):
            outcomes[grader][outcome][block] += number
            if place is not None:
                scores[grader][place] |= 1 << block
        return BlockIndex(
            positions=positions,
            blocks=blocks,
            statuses=dict(statuses),
            latencies=[f"{found:x}" for found in latencies],
            outcomes={grader: dict(counts) for grader, counts in outcomes.items()},
            scores={grader: [f"{found:x}" for found in bins] for grader, bins in scores.items()},
            tags=self._tags(source, positions, blocks),
        )

    def _responses(self, source: str, positions: int, blocks: int) -> Iterator[Row]:
        statement = f"""SELECT samples.position / ?, responses.status,
                {_bin_of("responses.latency_ms", _LATENCIES)}, count(*)
            FROM {joined("responses", self._database.dialect)} AND samples.run = ?
                AND samples.position >= ? AND samples.position < ? GROUP BY 1, 2, 3"""  # noqa: S608 - made of constants
        for first, end in _parts(positions, blocks):
            yield from self._database.read(statement, positions, source, source, first, end)

    def _grades(self, run: str, source: str, positions: int, blocks: int) -> Iterator[Row]:
        """Of responses that exist: a grade without one is not a result."""
        statement = f"""SELECT samples.position / ?, grades.grader, grades.outcome,
                {_bin_of("grades.score", _SCORES)}, count(*)
            FROM {joined("grades", self._database.dialect)} AND samples.run = ?
                AND samples.position >= ? AND samples.position < ? AND EXISTS (
                    SELECT 1 FROM responses WHERE responses.run = samples.run
                        AND responses.case_key = samples.case_key AND responses.repeat = grades.repeat
                        {fence(self._database.dialect)})
            GROUP BY 1, 2, 3, 4"""  # noqa: S608 - made of constants
        for first, end in _parts(positions, blocks):
            yield from self._database.read(statement, positions, run, source, first, end)

    def _tags(self, source: str, positions: int, blocks: int) -> dict[str, str] | None:
        found: dict[str, int] = defaultdict(int)
        decoder = msgspec.json.Decoder(list[str])
        statement = f"""SELECT DISTINCT position / ?, {_TAGS[self._database.dialect.name]} FROM samples
            WHERE run = ? AND position >= ? AND position < ?"""  # noqa: S608 - made of constants
        # a case may be nested deeper than the database's own reader of JSON goes
        with suppress(StoreError):
            for first, end in _parts(positions, blocks):
                for block, tags in self._database.read(statement, positions, source, first, end):
                    for tag in () if tags is None else decoder.decode(tags):
                        found[tag] |= 1 << block
                if len(found) > _MAX_TAGS:
                    return None
            return _written(found)
        return None


def _parts(positions: int, blocks: int) -> Iterator[tuple[int, int]]:
    """First and end of the positions that one statement reads."""
    step = positions * _BLOCKS_AT_ONCE
    return ((first, first + step) for first in range(0, positions * blocks, step))


def _written(sets: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{blocks:x}" for name, blocks in sets.items()}


def _occupied(counts: Iterable[int]) -> int:
    return _union(1 << block for block, number in enumerate(counts) if number)


def _union(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _bin_of(column: str, ends: Sequence[float]) -> str:
    """The place of the bin that a value is in; NULL where there is none."""
    whens = " ".join(f"WHEN {column} < {end!r} THEN {place}" for place, end in enumerate(ends))
    return f"CASE WHEN {column} IS NULL THEN NULL {whens} ELSE {len(ends)} END"


def _within(bins: Sequence[str], ends: Sequence[float], wanted: Range) -> int:
    """The blocks with a value in one of the bins that overlap a range."""
    starts = (-inf, *ends)
    return _union(
        int(found, 16)
        for found, start, end in zip(bins, starts, (*ends, inf), strict=False)
        if (wanted.high is None or start <= wanted.high) and (wanted.low is None or wanted.low < end)
    )


def _trailing_ones(number: int) -> int:
    return (~number & (number + 1)).bit_length() - 1
