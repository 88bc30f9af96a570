"""Two runs side by side, as the API shows them: whether they can be compared, what changed, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gradeline.engine.compare import Comparison, compare
from gradeline.engine.pairing import RunScores, Tries, scores_of
from gradeline.model import Run, Storage
from gradeline.service.excerpts import NOTHING, Excerpts
from gradeline.verdict.comparison import MARGIN, Decision, GraderComparison

MOST_CASES = 10_000
"""Cases that are listed one by one; those that changed come first in line."""

_DECIMALS = 12

Change = Literal["improved", "worse", "mixed", "same", "missing", "edited"]
_KINDS: tuple[Change, ...] = ("improved", "worse", "mixed", "same", "missing", "edited")


class Comparability(Struct, frozen=True):
    """Whether like would be compared with like. The reasons also tell what else differs."""

    comparable: bool
    reasons: tuple[str, ...]


class GraderDifference(Struct, frozen=True, kw_only=True):
    """What one grader says: candidate minus baseline over the n cases that have a score in both runs."""

    difference: float | None
    low: float | None
    high: float | None
    decision: Decision
    n: int
    cases_to_decide: int | None
    """How many cases in all would settle what is undecided, about."""
    baseline: float | None
    candidate: float | None
    p_value: float | None
    p_adjusted: float | None
    improved: int
    worse: int
    same: int
    missing: int


class CaseChange(Struct, frozen=True, kw_only=True):
    """One case. ``mixed``: some graders say better, some worse; ``missing``: no grader scored it in both runs."""

    test_case_id: str
    change: Change
    baseline: dict[str, float | None]
    """The mean score over the repeats, by grader; null where there is none."""
    candidate: dict[str, float | None]
    input: str | None = None
    """The beginning of what was asked, at most 200 characters, on one line."""
    baseline_output: str | None = None
    """That of the answer at the first repeat; null where there was none."""
    candidate_output: str | None = None


class Compared(Struct, frozen=True, kw_only=True):
    """Candidate against baseline. Runs that are not comparable have neither graders nor cases, unless forced."""

    baseline_id: str
    candidate_id: str
    comparability: Comparability
    margin: float
    decision: Decision | None
    graders: dict[str, GraderDifference]
    cases: list[CaseChange]
    case_counts: dict[str, int]
    cases_omitted: int


def compared(
    storage: Storage,
    excerpts: Excerpts,
    baseline: Run,
    candidate: Run,
    *,
    margin: float = MARGIN,
    force: bool = False,
) -> Compared:
    """The comparison of two stored runs, paired by case."""
    found = compare(storage, baseline, candidate, margin=margin, force=force)
    changes = _changes(storage, found) if found.graders else []
    counts = dict.fromkeys(map(str, _KINDS), 0)
    for change in changes:
        counts[change.change] += 1
    listed = _with_texts(_first(changes), excerpts, baseline.id, candidate.id)
    return Compared(
        baseline_id=baseline.id,
        candidate_id=candidate.id,
        comparability=Comparability(found.comparable, found.reasons),
        margin=margin,
        decision=found.decision,
        graders={key: _difference(grader) for key, grader in found.graders.items()},
        cases=listed,
        case_counts=counts,
        cases_omitted=len(changes) - len(listed),
    )


def _difference(grader: GraderComparison) -> GraderDifference:
    low, high = grader.difference_ci or (None, None)
    return GraderDifference(
        difference=grader.difference,
        low=low,
        high=high,
        decision=grader.decision,
        n=grader.pairs,
        cases_to_decide=grader.cases_to_decide,
        baseline=grader.baseline,
        candidate=grader.candidate,
        p_value=grader.p_value,
        p_adjusted=grader.p_adjusted,
        improved=grader.improved,
        worse=grader.worse,
        same=grader.same,
        missing=grader.missing,
    )


def _first(changes: list[CaseChange]) -> list[CaseChange]:
    if len(changes) <= MOST_CASES:
        return changes
    return sorted(changes, key=lambda change: change.change == "same")[:MOST_CASES]


def _with_texts(changes: list[CaseChange], excerpts: Excerpts, baseline: str, candidate: str) -> list[CaseChange]:
    cases = [change.test_case_id for change in changes]
    before, after = excerpts.of(baseline, cases), excerpts.of(candidate, cases)
    found = []
    for change in changes:
        first, second = before.get(change.test_case_id, NOTHING), after.get(change.test_case_id, NOTHING)
        asked = first.input if second.input is None else second.input
        found.append(replace(change, input=asked, baseline_output=first.output, candidate_output=second.output))
    return found


def _changes(storage: Storage, found: Comparison) -> list[CaseChange]:
    """Every case of both runs: in the order of the candidate, then those of the baseline alone."""
    keys = list(found.graders)
    before = scores_of(storage.measures(found.baseline.id, digests=True), keys)
    after = scores_of(storage.measures(found.candidate.id, digests=True), keys)
    return list(_case_changes(before, after, keys, frozenset(found.edited)))


def _case_changes(
    before: RunScores, after: RunScores, keys: Sequence[str], edited: frozenset[str]
) -> Iterator[CaseChange]:
    places = {case: place for place, case in enumerate(before.cases)}
    for place, case in enumerate(after.cases):
        yield _case_change(case, _means(before, places.pop(case, None), keys), _means(after, place, keys), edited)
    for case, place in places.items():
        yield _case_change(case, _means(before, place, keys), _means(after, None, keys), edited)


def _case_change(
    case: str, before: dict[str, float | None], after: dict[str, float | None], edited: frozenset[str]
) -> CaseChange:
    change = "edited" if case in edited else _direction(before, after)
    return CaseChange(test_case_id=case, change=change, baseline=before, candidate=after)


def _direction(before: dict[str, float | None], after: dict[str, float | None]) -> Change:
    differences = [
        round(second - first, _DECIMALS)
        for first, second in zip(before.values(), after.values(), strict=True)
        if first is not None and second is not None
    ]
    if not differences:
        return "missing"
    up, down = any(one > 0 for one in differences), any(one < 0 for one in differences)
    if up and down:
        return "mixed"
    return "improved" if up else "worse" if down else "same"


def _means(scores: RunScores, place: int | None, keys: Sequence[str]) -> dict[str, float | None]:
    return {key: None if place is None else _mean(scores.graders[key][place]) for key in keys}


def _mean(tries: Tries) -> float | None:
    known = [score for score in tries if score is not None]
    return sum(known) / len(known) if known else None
