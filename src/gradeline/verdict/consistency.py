"""The consistency gate: how many cases pass again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import comb, fsum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.model import described
from gradeline.verdict.aggregation import interval_of
from gradeline.verdict.columns import Clustering, Column, cases_of, clustering_of, groups_of_cases, passes_of
from gradeline.verdict.comparing import fraction, holds, statement
from gradeline.verdict.gate import Evidence, Finding, GateResult, LeafGate
from gradeline.verdict.simple import MetricKey, Op, key_or_first, out_of_reach

_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_COUNT = "a whole number from 1 to 10,000"


class _Wanted(NamedTuple):
    passes: int
    repeats: int


class ConsistencyGate(LeafGate, frozen=True, kw_only=True, tag="consistency"):
    """A bound on the share of cases of which k of n repeats pass, or on pass^k, the chance that k repeats all pass.

    A case of which fewer repeats have a score is left out and missing from the coverage. One that has
    more counts with the share of its choices of n repeats in which k pass.
    """

    metric_key: MetricKey = UNSET
    k: Annotated[_Count | UnsetType, described("So many repeats of a case must pass…", expected=_COUNT)] = UNSET
    n: Annotated[_Count | UnsetType, described("…of so many.", expected=_COUNT)] = UNSET
    pass_hat: Annotated[
        _Count | UnsetType, described("Instead of k and n: so many repeats must all pass (pass^k).", expected=_COUNT)
    ] = UNSET
    pass_threshold: Annotated[
        float | UnsetType,
        described("The score from which a repeat passes; by default as it was graded.", expected="a number"),
    ] = UNSET
    op: Op
    value: Annotated[
        float, described("The share of cases; a fraction up to 1, a percentage above.", expected="a number")
    ]

    def faults(self) -> Iterator[Problem]:
        if self.pass_hat is not UNSET:
            for name in ("k", "n"):
                if getattr(self, name) is not UNSET:
                    yield Problem(name, "stands beside pass_hat; keep either k and n, or pass_hat")
        elif self.k is UNSET and self.n is UNSET:
            yield Problem("k", "is required: give k and n (k of n repeats pass), or pass_hat")
        elif self.k is UNSET or self.n is UNSET:
            yield Problem("k" if self.k is UNSET else "n", "is required: k of n repeats")
        elif self.k > self.n:
            yield Problem("k", f"{self.k} of {self.n} repeats can never pass; k is at most n")

    def warnings(self) -> Iterator[Problem]:
        yield from out_of_reach("accuracy", self.value)

    @property
    def wanted(self) -> _Wanted:
        """So many passes of so many repeats."""
        if self.k is not UNSET and self.n is not UNSET:
            return _Wanted(self.k, self.n)
        every = 1 if self.pass_hat is UNSET else self.pass_hat
        return _Wanted(every, every)

    @property
    def named(self) -> str:
        return f"{self.k}_of_{self.n}" if self.pass_hat is UNSET else f"pass_hat_{self.pass_hat}"

    @property
    def needed(self) -> str:
        return f"have a score in a case with {self.wanted.repeats} of them"

    def passes(self, column: Column) -> Sequence[int]:
        """Whether each repeat passes."""
        if self.pass_threshold is UNSET:
            return passes_of(column)
        return [int(score >= self.pass_threshold) for score in column.scores]

    def looks_at(self, graders: Sequence[str]) -> tuple[str, ...]:
        return key_or_first(self.metric_key, graders)

    def outline(self, keys: Sequence[str]) -> GateResult:
        return GateResult(
            kind=self.kind,
            metric_key=next(iter(keys), None),
            aggregation=self.named,
            op=self.op,
            value=fraction(self.value),
        )

    def usable(self, column: Column) -> Column:
        """The scores of cases with enough repeats.

        Counting a case that passed early, but not one that might still pass, would flatter the share.
        """
        cases = cases_of(column)
        repeats = Counter(cases)
        rows = zip(column.scores, cases, passes_of(column), strict=True)
        kept = [row for row in rows if repeats[row[1]] >= self.wanted.repeats]
        return column._replace(
            scores=[score for score, _, _ in kept],
            cases=[case for _, case, _ in kept],
            passes=[passed for _, _, passed in kept],
        )

    def measure(self, evidence: Evidence) -> Finding:
        ((key, column),) = evidence.columns.items()
        if not column.scores:
            repeats = self.wanted.repeats
            return Finding("undecided", f"{key}: no case has {repeats} scored repeats; run with repeats: {repeats}")
        tries = Counter(column.cases)
        passed = Counter(case for passes, case in zip(self.passes(column), column.cases, strict=True) if passes)
        chances = [_chance(self.wanted, count, passed[case]) for case, count in tries.items()]
        found, bound = fsum(chances) / len(chances), fraction(self.value)
        return Finding(
            "pass" if holds(self.op, found, bound) else "fail",
            f"{key}: {self._told(clustering_of(column) or len(chances))} {statement(self.op, found, bound)}",
            found,
            interval_of(chances, groups_of_cases(column, list(tries))),
        )

    def _told(self, cases: Clustering | int) -> str:
        over = "1 case" if cases == 1 else f"{cases} cases" if isinstance(cases, int) else str(cases)
        if self.pass_hat is not UNSET:
            return f"pass^{self.pass_hat} over {over}"
        return f"share of {over} with {self.k} of {self.n} repeats passed"


def _chance(wanted: _Wanted, tries: int, passed: int) -> float:
    """The share of all choices of n tries in which at least k pass: 0 or 1 where there are just n tries."""
    ways = sum(
        comb(passed, hits) * comb(tries - passed, wanted.repeats - hits)
        for hits in range(wanted.passes, min(passed, wanted.repeats) + 1)
    )
    return ways / comb(tries, wanted.repeats)
