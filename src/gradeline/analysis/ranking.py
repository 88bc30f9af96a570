"""Three or more stored runs over the same cases: their means, costs and ranks, and which of them are tied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import fsum
from typing import Any, NamedTuple, TypedDict

import msgspec
from msgspec import Struct

from gradeline.engine.aggregate import Summary, measured_summary
from gradeline.engine.comparison import (
    NOT_COMPARABLE,
    Overlap,
    RunScores,
    noise_of,
    paired_scores,
    read_scores,
    run_warnings,
)
from gradeline.engine.definition import Rules, command, run_data
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage, quote
from gradeline.stats import score_interval
from gradeline.stats.paired import Range
from gradeline.verdict.evidence import AgentErrors, PairedScores, case_score
from gradeline.verdict.paired_decision import MARGIN, ComparisonRule
from gradeline.verdict.ranking import PairDifference, compare_pairs, pareto_front, rank_ranges

FEWEST = 3
_NAMED = 5


class RunScore(Struct, frozen=True, kw_only=True):
    """The result of one run by one grader."""

    mean: float | None
    """Mean over the cases that have a score in every run."""
    mean_ci: Range | None
    rank: tuple[int, int] | None = None
    """The best and the worst possible rank."""
    scored: int
    total: int
    """Number of the run's own cases with a score."""

    @property
    def coverage(self) -> float:
        """The share of the run's own cases with a score."""
        return self.scored / self.total if self.total else 0.0


class GraderRanking(Struct, frozen=True, kw_only=True):
    """The results of all runs by one grader, by run id."""

    cases: int
    """Cases with a score in every run: means, ranks and differences are over these."""
    missing: int
    """Cases that every run has, but not with a score in each."""
    noise: float = 0.0
    """Smaller changes of a case count as same in pairs and ranks, not in means."""
    runs: dict[str, RunScore]
    pairs: tuple[PairDifference, ...]


class ComparedRun(Struct, frozen=True, kw_only=True):
    """A run with its costs and latencies."""

    run: Run
    cost: dict[str, float | None]
    """Total costs of agent and judges; None is unknown, not free."""
    cost_per_case: float | None
    """Mean cost of a response; None if the cost of any response is unknown."""
    cost_unknown: int
    latency_ms: dict[str, float] | None
    on_front: bool | None
    """True if no other run is as good for less or better for as much; None if its mean or its cost is unknown."""


class ManyComparison(Struct, frozen=True, kw_only=True):
    """Three or more runs compared. Runs that are not comparable have no ``graders`` here, unless that was forced.

    ``cases`` are in every run, and the same there. Those that were ``edited`` are not, ``left_out`` counts those that
    some runs do not have.
    """

    runs: tuple[ComparedRun, ...]
    margin: float
    comparable: bool
    reasons: tuple[str, ...]
    cases: int
    left_out: int
    edited: tuple[str, ...]
    graders: dict[str, GraderRanking]
    primary: tuple[str, ...]
    """The graders that decide; the first of them defines the order and the front."""

    @property
    def deciding(self) -> str | None:
        """The grader that defines the order and the front; None if nothing was compared."""
        return next((key for key in (*self.primary, *self.graders) if key in self.graders), None)

    @property
    def ordered(self) -> list[ComparedRun]:
        """The runs, the highest mean first; in the order of the arguments if there is no mean."""
        if self.deciding is None:
            return list(self.runs)
        scores = self.graders[self.deciding].runs
        return sorted(self.runs, key=lambda one: -(scores[one.run.id].mean or 0.0))

    @property
    def best(self) -> list[ComparedRun]:
        """The runs that may be the best: no other is significantly better."""
        if self.deciding is None:
            return []
        scores = self.graders[self.deciding].runs
        return [one for one in self.ordered if (rank := scores[one.run.id].rank) is not None and rank[0] == 1]

    @property
    def sentence(self) -> str | None:
        """The best run, or the tied runs; None if nothing was compared."""
        best = [quote(one.run.name) for one in self.best]
        if not best:
            return None
        if len(best) == 1:
            return f"best by {self.deciding}: {best[0]}"
        named = ", ".join(best[:_NAMED]) + (f" and {len(best) - _NAMED} more" if len(best) > _NAMED else "")
        return f"tied for the best by {self.deciding}: {named}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the cases and graders of the runs."""
        return run_warnings({f"{one.run.name} ({one.run.id})": one.run for one in self.runs})

    @property
    def exit_code(self) -> int:
        """0 compared, 2 not comparable."""
        return 0 if self.graders else NOT_COMPARABLE

    def to_data(self) -> dict[str, Any]:
        """The comparison as ``--json`` prints it."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {
            **data,
            "runs": [{**one, "run": run_data(run.run)} for one, run in zip(data["runs"], self.runs, strict=True)],
            "graders": {key: _grader_data(grader) for key, grader in self.graders.items()},
            "warnings": list(self.warnings),
            "best": [one.run.id for one in self.best],
            "sentence": self.sentence,
            "exit_code": self.exit_code,
        }


def _grader_data(grader: GraderRanking) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(grader)
    for id_, score in grader.runs.items():
        data["runs"][id_]["coverage"] = score.coverage
    return data


class ScoreMatrix(NamedTuple):
    """The grades of every case by the graders that all runs have, run by run."""

    runs: Sequence[Run]
    graders: Sequence[str]
    scores: Sequence[RunScores]
    common: Sequence[tuple[int, ...]]
    """The cases that every run has with the same sample: the index of each in every run."""
    edited: Sequence[str]
    left_out: int
    agent_errors: AgentErrors

    def rows(self) -> Iterator[MatrixRow]:
        """A row for each case and grader, the cases in the order of the first run that has them."""
        places = [one.places for one in self.scores]
        compared = {self.scores[0].cases[place[0]] for place in self.common}
        for case in dict.fromkeys(case for one in self.scores for case in one.cases):
            for key in self.graders:
                scores = tuple(
                    None if case not in where else case_score(one.graders[key][where[case]], self.agent_errors)
                    for one, where in zip(self.scores, places, strict=True)
                )
                yield MatrixRow(case, key, case in compared and None not in scores, scores)


class MatrixRow(NamedTuple):
    """The scores of one case by one grader."""

    case: str
    grader: str
    compared: bool
    """True if it is compared: every run has the same case with a score."""
    scores: tuple[float | None, ...]
    """The mean over the repeats in each run, or None."""


def find_pair(storage: Storage, baseline: str, candidate: str, suite: str | None = None) -> list[Run]:
    """The two runs of a comparison; the name of a baseline is one of ``suite``, else of the candidate's suite."""
    try:
        second = storage.find_run(candidate, suite)
    except ConfigError:
        storage.find_run(baseline, suite)  # if both are unknown, the first is reported
        raise
    return [storage.find_run(baseline, suite or second.suite), second]


def find_runs(storage: Storage, names: Sequence[str], suite: str | None = None) -> list[Run]:
    """The runs of these names, each once; `ConfigError` lists all unknown names."""
    found: dict[str, tuple[str, Run]] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            run = storage.find_run(name, suite)
        except ConfigError as error:
            problems += error.problems
            continue
        if run.id in found:
            first = found[run.id][0]
            same = f"{quote(name)} is named twice" if first == name else f"{quote(first)} and {quote(name)} are one run"
            problems.append(Problem("", f"{same} ({run.id}); name each run once"))
        found.setdefault(run.id, (name, run))
    if problems:
        raise ConfigError(problems)
    return [run for _, run in found.values()]


def find_group(storage: Storage, wanted: str) -> list[Run]:
    """The runs of a group, the oldest first; the name is its id or any of its runs."""
    runs = list(all_runs(storage))
    group = wanted if any(run.group == wanted for run in runs) else storage.find_run(wanted).group
    if group is None:
        reason = (
            f"run {quote(wanted)} is in no group: a group is what one command with several variants or"
            " models makes (gradeline run SUITE --model A --model B); name the runs instead"
        )
        raise ConfigError(Problem("--group", reason))
    found = [run for run in runs if run.group == group][::-1]
    if len(found) < 2:
        raise ConfigError(Problem("--group", f"group {quote(group)} has one run only, {quote(found[0].name)}"))
    return found


def all_runs(storage: Storage) -> Iterator[Run]:
    """Every run of a store, the newest first."""
    before: str | None = None
    while page := storage.list_runs(200, before):
        yield from page
        before = page[-1].id


def read_matrix(storage: Storage, runs: Sequence[Run]) -> ScoreMatrix:
    """The scores of the runs; the rows of each are read once."""
    keys = [key for key in runs[0].graders if all(key in run.graders for run in runs)]
    # the same rule for every pair, in either direction
    scores = [read_scores(storage, run, keys)._replace(noise=noise_of(runs[-1])) for run in runs]
    common, edited, left_out = _common_cases(scores)
    return ScoreMatrix(runs, keys, scores, common, edited, left_out, Rules.of(runs[-1]).agent_errors)


def compare_many(
    storage: Storage, runs: Sequence[Run], *, margin: float = MARGIN, force: bool = False
) -> ManyComparison:
    """Compare three or more runs on the cases that all of them have; a case counts with its mean over the repeats.

    The coverage floor, what a failed agent call counts as, the noise of each grader and the primary graders are those
    of the last run's suite.
    Runs whose graders differ, or that share no case, are not compared without ``force``.
    """
    if not 0.0 <= margin <= 1.0:
        raise ConfigError(Problem("margin", f"expected a number from 0 to 1, got {quote(margin)}"))
    if len(runs) < FEWEST or len({run.id for run in runs}) < len(runs):
        raise ConfigError(Problem("runs", f"expected {FEWEST} or more different runs, got {len(runs)}"))
    rules = Rules.of(runs[-1])
    matrix = read_matrix(storage, runs)
    summaries = {run.id: measured_summary(storage, run)[0] for run in runs}
    stopped = tuple(_stopped(runs))
    obstacles = (*_other_graders(matrix), *_no_common_case(matrix), *stopped)
    graders: dict[str, GraderRanking] = {}
    if matrix.common and not stopped and (force or not obstacles):
        rule = ComparisonRule(margin, rules.coverage_floor, rules.agent_errors)
        graders = {key: _ranking(matrix, key, summaries, rule) for key in matrix.graders}
    primary = rules.primary_of(runs[-1], matrix.graders)
    first = next((key for key in (*primary, *graders) if key in graders), None)
    means = {run.id: None if first is None else graders[first].runs[run.id].mean for run in runs}
    costs = {id_: _cost_per_case(summary) for id_, summary in summaries.items()}
    front = pareto_front({run.id: (means[run.id], costs[run.id]) for run in runs})
    return ManyComparison(
        runs=tuple(
            ComparedRun(
                run=run,
                cost=summaries[run.id].cost,
                cost_per_case=costs[run.id],
                cost_unknown=summaries[run.id].cost_unknown,
                latency_ms=summaries[run.id].latency_ms,
                on_front=front[run.id],
            )
            for run in runs
        ),
        margin=margin,
        comparable=not obstacles,
        reasons=(*obstacles, *_differences(matrix), *_thin_runs(runs, graders, rules.coverage_floor)),
        cases=len(matrix.common),
        left_out=matrix.left_out,
        edited=tuple(matrix.edited),
        graders=graders,
        primary=primary,
    )


def _ranking(matrix: ScoreMatrix, key: str, summaries: Mapping[str, Summary], rule: ComparisonRule) -> GraderRanking:
    columns = [[case_score(tries, rule.agent_errors) for tries in one.graders[key]] for one in matrix.scores]
    complete = [
        places
        for places in matrix.common
        if all(column[place] is not None for column, place in zip(columns, places, strict=True))
    ]
    numbers = {run.id: number for number, run in enumerate(matrix.runs)}
    own = {
        id_: RunScore(
            **_mean(columns[number], matrix.scores[number], [places[number] for places in complete]),
            scored=len(columns[number]) - columns[number].count(None),
            total=max(len(columns[number]), summaries[id_].cases),
        )
        for id_, number in numbers.items()
    }
    pairs: tuple[PairDifference, ...] = ()
    if complete:
        coverage = {id_: score.coverage for id_, score in own.items()}
        pairs = compare_pairs(partial(_paired, matrix, key, complete, numbers), coverage, rule)
        placed = rank_ranges(list(own), pairs)
        own = {id_: msgspec.structs.replace(score, rank=placed[id_]) for id_, score in own.items()}
    return GraderRanking(
        cases=len(complete),
        missing=len(matrix.common) - len(complete),
        noise=matrix.runs[-1].graders[key].noise,
        runs=own,
        pairs=pairs,
    )


class _MeanScore(TypedDict):
    mean: float | None
    mean_ci: Range | None


def _mean(column: Sequence[float | None], run: RunScores, places: Sequence[int]) -> _MeanScore:
    known = {place: score for place in places if (score := column[place]) is not None}
    clusters = None
    if run.clusters:
        clusters = [(run.clusters[place] is None, run.clusters[place] or run.cases[place]) for place in known]
    interval = score_interval(known.values(), clusters) if known else None
    mean = fsum(known.values()) / len(known) if known else None
    return {"mean": mean, "mean_ci": None if interval is None else (interval.low, interval.high)}


def _paired(
    matrix: ScoreMatrix,
    key: str,
    complete: Sequence[tuple[int, ...]],
    numbers: Mapping[str, int],
    baseline: str,
    candidate: str,
) -> PairedScores:
    first, second = numbers[baseline], numbers[candidate]
    cases = Overlap([(places[first], places[second]) for places in complete], [], [], [])
    return paired_scores(matrix.scores[first], matrix.scores[second], cases, key)


def _cost_per_case(summary: Summary) -> float | None:
    """Mean cost of a response, if the cost of every response is known."""
    cost, answers = summary.cost["agent"], summary.responses.get("success", 0)
    return None if cost is None or summary.cost_unknown or not answers else cost / answers


def _common_cases(scores: Sequence[RunScores]) -> tuple[list[tuple[int, ...]], list[str], int]:
    """The cases that all runs share, those that differ between runs, and the number that some runs lack."""
    first = scores[0]
    if all(one[:2] == first[:2] for one in scores):
        return [(place,) * len(scores) for place in range(len(first.cases))], [], 0
    everywhere = [one.places for one in scores]
    common: list[tuple[int, ...]] = []
    edited: list[str] = []
    left_out = 0
    for case in dict.fromkeys(case for one in scores for case in one.cases):
        places = [where.get(case) for where in everywhere]
        digests = {one.digests[place] for one, place in zip(scores, places, strict=True) if place is not None}
        if len(digests) > 1:
            edited.append(case)
        elif None in places:
            left_out += 1
        else:
            common.append(tuple(place for place in places if place is not None))
    return common, edited, left_out


def _stopped(runs: Sequence[Run]) -> Iterator[str]:
    """A warning for runs that stopped early: these intervals hold only for cases that were not selected by results."""
    for run in runs:
        if run.early is not None and run.early.stopped:
            finish = command("resume", run.id, None, "--all")
            yield (
                f"run {quote(run.name)} ended early, after {run.early.n:,} of {run.early.of:,} cases; compare it with"
                f" one other run, or run its other cases with: {finish}"
            )


def _other_graders(matrix: ScoreMatrix) -> Iterator[str]:
    runs = matrix.runs
    if not matrix.graders:
        have = "; ".join(f"{quote(run.name)} has {', '.join(map(quote, run.graders)) or 'none'}" for run in runs)
        yield f"no grader is in all runs: {have}; grade them by the same suite with gradeline regrade RUN --suite SUITE"
    for key in matrix.graders:
        users: dict[str, list[str]] = {}
        for run in runs:
            users.setdefault(f"{run.graders[key].kind} {run.graders[key].fingerprint}", []).append(quote(run.name))
        if len(users) > 1:
            have = "; ".join(f"{', '.join(names)}: {grader}" for grader, names in users.items())
            yield (
                f"grader {quote(key)} is not the same in all runs: {have}; regrade the runs with the same graders"
                " (gradeline regrade RUN), leave some out, or force it"
            )


def _no_common_case(matrix: ScoreMatrix) -> Iterator[str]:
    if matrix.common:
        return
    suites = sorted({run.suite for run in matrix.runs})
    edited = f", {_cases(len(matrix.edited))} of the same name were edited" if matrix.edited else ""
    of = f": they are of the suites {', '.join(map(quote, suites))}" if len(suites) > 1 else ""
    yield f"no case is in all runs{of}{edited}; compare runs over the same dataset, or leave out the run that differs"


def _differences(matrix: ScoreMatrix) -> Iterator[str]:
    """Other differences between the runs."""
    runs = matrix.runs
    for run in runs:
        if run.status != "completed":
            yield f"run {quote(run.name)} is not complete ({run.status}): its other cases count as missing"
    suites = sorted({run.suite for run in runs})
    if len(suites) > 1:
        yield f"suites: {', '.join(map(quote, suites))}"
    elif len({run.suite_digest for run in runs}) > 1:
        yield f"suite: {quote(suites[0])} was edited between the runs"
    repeats = sorted({run.repeats for run in runs})
    if len(repeats) > 1:
        yield f"repeats: {', '.join(map(str, repeats))}"
    for key in dict.fromkeys(key for run in runs for key in run.graders):
        without = [quote(run.name) for run in runs if key not in run.graders]
        if without:
            yield f"grader {quote(key)} is not in {', '.join(without)}: it is left out"
    for key in matrix.graders:
        noise = sorted({run.graders[key].noise for run in runs})
        if len(noise) > 1:
            each = ", ".join(f"{one:g}" for one in noise)
            yield f"grader {quote(key)}: noise {each}; that of the last run, {quote(runs[-1].name)}, is used"
    if matrix.left_out:
        yield (
            f"cases: {_cases(matrix.left_out)} left out that some runs do not have; cost and latency are over each"
            " run's own cases"
        )
    if matrix.edited:
        yield f"cases: {_cases(len(matrix.edited))} edited between the runs, left out"


def _thin_runs(runs: Sequence[Run], graders: Mapping[str, GraderRanking], floor: float) -> Iterator[str]:
    for key, grader in graders.items():
        for run in runs:
            score = grader.runs[run.id]
            if score.coverage < floor - 1e-12:
                yield (
                    f"{key}: only {score.scored:,} of {score.total:,} cases of {quote(run.name)} have a score, below"
                    f" the floor of {floor:g}: it is not ranked above another run"
                )
        if grader.missing:
            yield f"{key}: {_cases(grader.missing)} left out that have no score in some run"


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count:,} cases"
