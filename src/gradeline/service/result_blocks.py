"""The block index of a run: which blocks of its results can match a filter, so that a page skips all others.

A block is about a thousand consecutive results. The index has, for each block, everything that a filter can name:
statuses, outcomes, tags, bins of scores and latencies. It never excludes a block with a match, but a block that is not
excluded need not have one. Statuses and outcomes are counted, so that ``skip`` passes over whole blocks. A run in
progress, and a text, are searched result by result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf

import msgspec
from msgspec import Struct

from gradeline.errors import StoreError
from gradeline.model import Run, Storage
from gradeline.service.events import ENDED
from gradeline.service.run_cache import RunCache
from gradeline.store.database import Database
from gradeline.store.queries import BlockQueries
from gradeline.store.result_pages import (
    ANY,
    ROWS_EXAMINED,
    Range,
    ResultFilter,
    ResultPosition,
    last_position,
)

_RESULTS = 1_000
"""Results in a block."""
_BLOCKS_PER_QUERY = 10
"""Blocks that one statement reads, so that no statement takes long."""
_MAX_TAGS = 5_000
"""Distinct tags in an index; in a run with more, tags are searched result by result."""

_SCORES = tuple(number / 20 for number in range(1, 20))
_LATENCIES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5)
"""The ends of the bins of scores and of latencies; one more bin has the values above."""


class BlockIndex(Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """Blocks are numbered from 0. A set of blocks is a hexadecimal number whose bit n is block n.

    Counts are lists with a number for each block.
    """

    positions: int
    """Positions in a block: block n begins at position ``n * positions``."""
    blocks: int
    statuses: dict[str, list[int]]
    """Results by status."""
    latencies: list[str]
    """Blocks with a successful response, by bin of the latency."""
    outcomes: dict[str, dict[str, list[int]]]
    """Results by grader and outcome."""
    scores: dict[str, list[str]]
    """Blocks by grader and bin of the score."""
    tags: dict[str, str] | None
    """Blocks by tag; None if there are too many tags."""

    def ranges(self, where: ResultFilter, start: ResultPosition) -> Iterator[tuple[int, int]]:
        """The ranges of positions from ``start`` on where results may match, each with its first and its end."""
        first = max(start.position, 0)
        left = self._candidates(where) >> (first // self.positions) << (first // self.positions)
        while left:
            block = (left & -left).bit_length() - 1
            end = block + _trailing_ones(left >> block)
            yield max(first, block * self.positions), end * self.positions
            left = left >> end << end

    def skipped(self, where: ResultFilter, start: ResultPosition, skip: int) -> tuple[ResultPosition, int]:
        """A position at or after ``start``, and the number of matching results still to skip from there."""
        counts = self._counts(where)
        position = max(start.position, 0)
        block, within = divmod(position, self.positions)
        if within or start.repeat >= 0 or not counts:
            return start, skip
        while block < self.blocks and (number := sum(by_block[block] for by_block in counts)) <= skip:
            block, skip = block + 1, skip - number
        return ResultPosition(block * self.positions, "", -1), skip

    def _counts(self, where: ResultFilter) -> list[list[int]]:
        """Counts whose sum is the number of matching results in each block; empty if that is unknown."""
        if where == ResultFilter():
            return list(self.statuses.values())
        if where == ResultFilter(status=where.status):
            return [self.statuses.get(where.status or "", [0] * self.blocks)]
        if where == ResultFilter(grader=where.grader, outcome=where.outcome):
            # several graders may have given the same result the outcome
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


class BlockIndexes:
    """The block indexes of the runs of a store, built in the background when a filter first needs one."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage
        self._indexes = RunCache(database, BlockIndex, "result_blocks")

    def of(self, run: Run, source: str, where: ResultFilter, skip: int) -> BlockIndex | None:
        """The index of a run with the responses of ``source``; None if it is of no use, or not built yet."""
        if run.status not in ENDED or not (skip or where.is_indexed):
            return None
        counts = self._storage.counts(run.id)
        if sum(counts.responses.values()) <= ROWS_EXAMINED:  # one page examines all of them
            return None
        index = self._indexes.lookup(run, counts)
        if index is None:
            self._indexes.compute_in_background(run, counts, lambda: self.build(run, source))
        return index

    def build(self, run: Run, source: str) -> BlockIndex:
        """Reads all rows of the run."""
        positions = max(1, _RESULTS // run.repeats)
        last = last_position(self._database, source)
        blocks = 0 if last is None else last // positions + 1
        queries = BlockQueries(self._database, source, positions)
        parts = list(_parts(positions, blocks))
        statuses: dict[str, list[int]] = defaultdict(lambda: [0] * blocks)
        latencies = [0] * (len(_LATENCIES) + 1)
        outcomes: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0] * blocks))
        scores: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_SCORES) + 1))
        for part in parts:
            for block, status, bin_, number in queries.responses(*part, _LATENCIES):
                statuses[status][block] += number
                if status == "success" and bin_ is not None:
                    latencies[bin_] |= 1 << block
        for part in parts:
            for block, grader, outcome, bin_, number in queries.grades(run.id, *part, _SCORES):
                outcomes[grader][outcome][block] += number
                if bin_ is not None:
                    scores[grader][bin_] |= 1 << block
        return BlockIndex(
            positions=positions,
            blocks=blocks,
            statuses=dict(statuses),
            latencies=[f"{found:x}" for found in latencies],
            outcomes={grader: dict(counts) for grader, counts in outcomes.items()},
            scores={grader: [f"{found:x}" for found in bins] for grader, bins in scores.items()},
            tags=_tags(queries, parts),
        )


def _tags(queries: BlockQueries, parts: Iterable[tuple[int, int]]) -> dict[str, str] | None:
    found: dict[str, int] = defaultdict(int)
    decoder = msgspec.json.Decoder(list[str])
    # a case may be nested too deeply for the JSON functions of the database
    with suppress(StoreError):
        for part in parts:
            for block, tags in queries.tags(*part):
                for tag in () if tags is None else decoder.decode(tags):
                    found[tag] |= 1 << block
            if len(found) > _MAX_TAGS:
                return None
        return {tag: f"{blocks:x}" for tag, blocks in found.items()}
    return None


def _parts(positions: int, blocks: int) -> Iterator[tuple[int, int]]:
    """The first and the end of the positions that each statement reads."""
    step = positions * _BLOCKS_PER_QUERY
    return ((first, first + step) for first in range(0, positions * blocks, step))


def _occupied(counts: Iterable[int]) -> int:
    return _union(1 << block for block, number in enumerate(counts) if number)


def _union(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _within(bins: Sequence[str], ends: Sequence[float], limits: Range) -> int:
    """The blocks with a value in one of the bins that overlap a range."""
    starts = (-inf, *ends)
    return _union(
        int(found, 16)
        for found, start, end in zip(bins, starts, (*ends, inf), strict=False)
        if (limits.high is None or start <= limits.high) and (limits.low is None or limits.low < end)
    )


def _trailing_ones(number: int) -> int:
    return (~number & (number + 1)).bit_length() - 1
