"""Comparisons of runs as the API returns them: of two, of several, and of one suite over time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, get_args

from msgspec.structs import replace

from gradeline.analysis.ranking import ComparedRun, ManyComparison, RunScore, compare_many
from gradeline.analysis.trend import TrendPoint, trend
from gradeline.engine.comparison import Comparison, RunScores, compare, read_scores
from gradeline.engine.definition import Rules
from gradeline.model import Run, Storage
from gradeline.rest_types import (
    CaseChange,
    ChangeKind,
    Comparability,
    EvaluationComparison,
    EvaluationPair,
    EvaluationScore,
    GraderDifference,
    RankedEvaluation,
    RankedEvaluations,
    SuiteTrend,
    SuiteTrendPoint,
)
from gradeline.stats.paired import score_change
from gradeline.store.database import Database
from gradeline.store.queries import excerpts as read_excerpts
from gradeline.store.sql_storage import response_source
from gradeline.verdict.evidence import AgentErrors, case_score
from gradeline.verdict.paired_decision import MARGIN, GraderComparison
from gradeline.verdict.ranking import PairDifference

LONGEST = 200
"""Characters of an excerpt."""

_READ_CHARS = 2 * LONGEST
"""More than is returned, because whitespace is collapsed."""


class Excerpt(NamedTuple):
    """The beginnings of an input and of the response to it; None if there is none."""

    input: str | None
    output: str | None


NOTHING = Excerpt(None, None)


class Excerpts:
    """Reads excerpts of the cases of runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, run: str, cases: Sequence[str]) -> dict[str, Excerpt]:
        """The excerpts of cases at their first repeat; a run that regrades has those of its parent."""
        read = self._database.read
        rows = read_excerpts(read, self._database.dialect, response_source(read, run), cases, _READ_CHARS)
        return {case: Excerpt(one_line(first), one_line(second)) for case, first, second in rows}


def one_line(text: str | None) -> str | None:
    """The beginning of a text on one line, with an ellipsis if it is cut."""
    if text is None:
        return None
    line = " ".join(text.split())
    whole = len(line) <= LONGEST and len(text) < _READ_CHARS
    return line if whole else f"{line[: LONGEST - 1]}…"


MOST_CASES = 10_000
"""Maximum number of cases in a comparison; changed cases are listed first."""

_KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)

_Means: TypeAlias = dict[str, float | None]
"""The mean score of a case over its repeats, by grader."""


def compare_runs(
    storage: Storage,
    excerpts: Excerpts,
    baseline: Run,
    candidate: Run,
    *,
    margin: float = MARGIN,
    force: bool = False,
) -> EvaluationComparison:
    """The comparison of two stored runs, paired by case."""
    found = compare(storage, baseline, candidate, margin=margin, force=force)
    changes = _changes(storage, found) if found.graders else []
    counts = dict.fromkeys(map(str, _KINDS), 0)
    for change in changes:
        counts[change.change] += 1
    listed = _with_texts(_first(changes), excerpts, baseline.id, candidate.id)
    return EvaluationComparison(
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
        corrected=grader.corrected,
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
        input_ = first.input if second.input is None else second.input
        found.append(replace(change, input=input_, baseline_output=first.output, candidate_output=second.output))
    return found


def _changes(storage: Storage, found: Comparison) -> list[CaseChange]:
    """Every case of both runs: in the order of the candidate, then those that only the baseline has."""
    keys = list(found.graders)
    before, after = (read_scores(storage, run, keys) for run in (found.baseline, found.candidate))
    return list(_case_changes(before, after, keys, frozenset(found.edited), Rules.of(found.candidate).agent_errors))


def _case_changes(
    before: RunScores, after: RunScores, keys: Sequence[str], edited: frozenset[str], agent_errors: AgentErrors
) -> Iterator[CaseChange]:
    def means(scores: RunScores, place: int | None) -> _Means:
        return {key: None if place is None else case_score(scores.graders[key][place], agent_errors) for key in keys}

    def change_of(case: str, first: _Means, second: _Means) -> CaseChange:
        left_out = {
            key
            for key in keys
            if case in before.not_applicable.get(key, ()) or case in after.not_applicable.get(key, ())
        }
        return _case_change(case, first, second, after.noise, case in edited, left_out)

    places = {case: place for place, case in enumerate(before.cases)}
    for place, case in enumerate(after.cases):
        first, second = means(before, places.pop(case, None)), means(after, place)
        yield change_of(case, first, second)
    for case, place in places.items():
        yield change_of(case, means(before, place), means(after, None))


def _case_change(
    case: str, before: _Means, after: _Means, noise: Mapping[str, float], edited: bool, left_out: Collection[str]
) -> CaseChange:
    changes: dict[str, ChangeKind] = {}
    for key, score in before.items():
        if edited or key in left_out:
            changes[key] = "edited" if edited else "not_applicable"
        else:
            changes[key] = _direction(score, after[key], noise.get(key, 0.0))
    change = "edited" if edited else _of_all(frozenset(changes.values()))
    return CaseChange(test_case_id=case, change=change, changes=changes, baseline=before, candidate=after)


def _direction(before: float | None, after: float | None, noise: float) -> ChangeKind:
    if before is None or after is None:
        return "missing"
    change = score_change(before, after, noise)
    return "improved" if change > 0.0 else "worse" if change < 0.0 else "same"


def _of_all(changes: frozenset[ChangeKind]) -> ChangeKind:
    """The change of a case over all graders."""
    if {"improved", "worse"} <= changes:
        return "mixed"
    order: tuple[ChangeKind, ...] = ("improved", "worse", "same", "missing", "not_applicable")
    return next((change for change in order if change in changes), "missing")


def rank_runs(storage: Storage, runs: list[Run], *, margin: float = MARGIN, force: bool = False) -> RankedEvaluations:
    """The comparison of three or more stored runs."""
    found = compare_many(storage, runs, margin=margin, force=force)
    return RankedEvaluations(
        comparability=Comparability(found.comparable, found.reasons),
        margin=margin,
        cases=found.cases,
        left_out=found.left_out,
        edited=found.edited,
        primary=found.primary,
        noise={key: grader.noise for key, grader in found.graders.items()},
        warnings=found.warnings,
        best=tuple(one.run.id for one in found.best),
        sentence=found.sentence,
        evaluations=tuple(_evaluation(found, one) for one in found.ordered),
        pairs={key: tuple(map(_pair, grader.pairs)) for key, grader in found.graders.items()},
    )


def _evaluation(found: ManyComparison, one: ComparedRun) -> RankedEvaluation:
    return RankedEvaluation(
        evaluation_id=one.run.id,
        name=one.run.name,
        cost_per_case=one.cost_per_case,
        cost_unknown=one.cost_unknown,
        latency_ms=one.latency_ms,
        on_front=one.on_front,
        scores={key: _score(grader.runs[one.run.id]) for key, grader in found.graders.items()},
    )


def _score(score: RunScore) -> EvaluationScore:
    low, high = score.mean_ci or (None, None)
    best, worst = score.rank or (None, None)
    return EvaluationScore(
        mean=score.mean, low=low, high=high, rank_best=best, rank_worst=worst, scored=score.scored, total=score.total
    )


def _pair(pair: PairDifference) -> EvaluationPair:
    low, high = pair.difference_ci
    return EvaluationPair(
        baseline_id=pair.baseline,
        candidate_id=pair.candidate,
        difference=pair.difference,
        low=low,
        high=high,
        p_value=pair.p_value,
        p_adjusted=pair.p_adjusted,
        decision=pair.decision,
        winner_id=pair.winner,
    )


def suite_trend(storage: Storage, suite: str, grader: str | None, last: int) -> SuiteTrend:
    """The trend of stored runs; `ConfigError` for an unknown suite or grader."""
    found = trend(storage, suite, grader=grader, last=last)
    return SuiteTrend(suite=found.suite, grader=found.grader, runs=found.runs, points=tuple(map(_point, found.points)))


def _point(point: TrendPoint) -> SuiteTrendPoint:
    low, high = point.mean_ci or (None, None)
    return SuiteTrendPoint(
        evaluation_id=point.run.id,
        name=point.run.name,
        started_at=point.run.started_at,
        mean=point.mean,
        low=low,
        high=high,
        scored=point.scored,
        total=point.total,
        cost=point.cost["agent"],
        cost_unknown=point.cost_unknown,
        latency_ms=point.latency_ms,
        segment=point.segment,
        changes=point.changes,
        reasons=point.reasons,
    )
