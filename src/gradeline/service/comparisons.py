"""Two runs side by side, as the API shows them: whether they can be compared, what changed, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gradeline.engine.compare import Comparison, compare
from gradeline.engine.conclude import Rules
from gradeline.engine.pairing import RunScores, read_scores
from gradeline.model import Run, Storage
from gradeline.service.excerpts import NOTHING, Excerpts
from gradeline.stats.changes import change_of
from gradeline.verdict.columns import AgentErrors, case_score
from gradeline.verdict.comparison import MARGIN, Decision, Drop, GraderComparison

MOST_CASES = 10_000
"""Cases that are listed one by one; those that changed come first in line."""

Change = Literal["improved", "worse", "mixed", "same", "missing", "edited"]
_KINDS: tuple[Change, ...] = ("improved", "worse", "mixed", "same", "missing", "edited")

_Means: TypeAlias = dict[str, float | None]
"""The mean score of a case over its repeats, by grader."""


class Comparability(Struct, frozen=True):
    """Whether like would be compared with like. The reasons also tell what else differs."""

    comparable: bool
    reasons: tuple[str, ...]


class GraderDifference(Struct, frozen=True, kw_only=True):
    """What one grader says: candidate minus baseline over the n cases that have a score in both runs.

    With ``noise``, the difference is the mean of the changes that count; the two means are those of the scores.
    """

    difference: float | None
    low: float | None
    high: float | None
    decision: Decision
    n: int
    reasons: tuple[str, ...]
    """Why it is undecided, and what is certain all the same."""
    cases_to_decide: int | None
    """The number of cases in all that settles it 4 times of 5 if both runs are equally good."""
    coverage: float | None
    """The share of the baseline's cases, without edited ones, that have a score in both runs."""
    bounds_low: float | None
    """The difference over all cases of the baseline with each missing score at its worst."""
    bounds_high: float | None
    """The same with each missing score at its best."""
    baseline: float | None
    candidate: float | None
    p_value: float | None
    p_adjusted: float | None
    test: str | None
    """``mcnemar_mid_p``, ``sign_flip_exact`` or ``paired_t``."""
    noise_threshold: float | None
    """A smaller mean difference is what chance makes of changes such as these."""
    noise: float
    """The suite's threshold for this grader: a smaller change of a case counts as same."""
    within_noise: int
    """The cases that count as same only because of it."""
    skewed: bool
    """Whether some changes are so much larger than the others that Student's t is unreliable."""
    largest_drops: tuple[Drop, ...]
    """The cases that fell most, at most 5."""
    improved: int
    worse: int
    same: int
    missing: int
    clusters: int | None = None
    """The clusters of the n cases, which are the unit of the interval; null where no case has one."""


class CaseChange(Struct, frozen=True, kw_only=True):
    """One case. ``mixed``: some graders say better, some worse; ``missing``: no grader scored it in both runs."""

    test_case_id: str
    change: Change
    changes: dict[str, Change]
    """The same by grader; a change below the grader's noise is ``same``."""
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
    sentence: str | None
    """The decision with the graders behind it, and what is known of the others."""
    primary: tuple[str, ...]
    """The graders that decide; any other can only veto, by a significant loss."""
    warnings: tuple[str, ...]
    """What to know of the cases and graders of either run, such as near duplicates without a cluster."""
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
        sentence=found.sentence,
        primary=found.primary,
        warnings=found.warnings,
        graders={key: _difference(grader) for key, grader in found.graders.items()},
        cases=listed,
        case_counts=counts,
        cases_omitted=len(changes) - len(listed),
    )


def _difference(grader: GraderComparison) -> GraderDifference:
    low, high = grader.difference_ci or (None, None)
    bounds_low, bounds_high = grader.difference_bounds or (None, None)
    return GraderDifference(
        difference=grader.difference,
        low=low,
        high=high,
        decision=grader.decision,
        n=grader.pairs,
        reasons=grader.reasons,
        cases_to_decide=grader.cases_to_decide,
        coverage=grader.coverage,
        bounds_low=bounds_low,
        bounds_high=bounds_high,
        baseline=grader.baseline,
        candidate=grader.candidate,
        p_value=grader.p_value,
        p_adjusted=grader.p_adjusted,
        test=grader.test,
        noise_threshold=grader.noise_threshold,
        noise=grader.noise,
        within_noise=grader.within_noise,
        skewed=grader.skewed,
        largest_drops=grader.largest_drops,
        improved=grader.improved,
        worse=grader.worse,
        same=grader.same,
        missing=grader.missing,
        clusters=grader.clusters,
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
    before, after = (read_scores(storage, run, keys) for run in (found.baseline, found.candidate))
    return list(_case_changes(before, after, keys, frozenset(found.edited), Rules.of(found.candidate).agent_errors))


def _case_changes(
    before: RunScores, after: RunScores, keys: Sequence[str], edited: frozenset[str], agent_errors: AgentErrors
) -> Iterator[CaseChange]:
    def means(scores: RunScores, place: int | None) -> _Means:
        return {key: None if place is None else case_score(scores.graders[key][place], agent_errors) for key in keys}

    noise = after.noise
    places = {case: place for place, case in enumerate(before.cases)}
    for place, case in enumerate(after.cases):
        first, second = means(before, places.pop(case, None)), means(after, place)
        yield _case_change(case, first, second, noise, case in edited)
    for case, place in places.items():
        yield _case_change(case, means(before, place), means(after, None), noise, case in edited)


def _case_change(case: str, before: _Means, after: _Means, noise: Mapping[str, float], edited: bool) -> CaseChange:
    changes: dict[str, Change] = {
        key: "edited" if edited else _direction(score, after[key], noise.get(key, 0.0)) for key, score in before.items()
    }
    change = "edited" if edited else _of_all(frozenset(changes.values()))
    return CaseChange(test_case_id=case, change=change, changes=changes, baseline=before, candidate=after)


def _direction(before: float | None, after: float | None, noise: float) -> Change:
    if before is None or after is None:
        return "missing"
    change = change_of(before, after, noise)
    return "improved" if change > 0.0 else "worse" if change < 0.0 else "same"


def _of_all(changes: frozenset[Change]) -> Change:
    """What all graders say of a case together."""
    if {"improved", "worse"} <= changes:
        return "mixed"
    order: tuple[Change, ...] = ("improved", "worse", "same")
    return next((change for change in order if change in changes), "missing")
