"""The result of a stored run: its summary with intervals, its verdict, and its exit code."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, log
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.anchor_records import AnchorFinding, anchor_findings
from gradeline.engine.comparison import paired
from gradeline.engine.corrected import labelled_scores
from gradeline.engine.definition import FAIL_FAST, Rules, run_data, stopped_data
from gradeline.engine.judge_probes import flagged_sentences, probe_findings
from gradeline.engine.judge_trust import JudgeTrust, judge_states
from gradeline.errors import Outcome
from gradeline.model import (
    Columns,
    Counts,
    EarlyStopping,
    GradeColumns,
    GraderCounts,
    Record,
    ResponseColumns,
    Run,
    RunGrader,
    Storage,
)
from gradeline.model.calibration import JudgeState
from gradeline.model.grade import PASS_SCORE
from gradeline.model.probe import ProbeFinding
from gradeline.model.response import known_cost
from gradeline.model.run import OrderCounts, SelectiveCounts, TurnRule
from gradeline.stats import Interval, percentile, score_sums_interval, wilson
from gradeline.verdict import (
    Gate,
    JudgeDoubt,
    OrderFinding,
    PairedScores,
    SelectiveFinding,
    Verdict,
    baselines_of,
    decide,
    graders_of,
    order_finding,
    selective_finding,
)
from gradeline.verdict.corrected import CorrectedRate, LabelledScores, corrected_rate
from gradeline.verdict.evidence import ScoreColumn, groups_of, interval_of

INTERRUPTED = 130

_EXIT_CODES = {"pass": 0, "fail": 1, "undecided": 3}
_NOTHING_GRADED = 4

EXACT = 50_000
_STEP = log(1.005)
"""Above `EXACT` calls a percentile is accurate to 0.5 %."""


class Latencies:
    """Mean and percentiles of milliseconds: exact up to `EXACT` calls, accurate to 0.5 % above."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._values = array("d")
        self._steps: Counter[int] = Counter()

    def extend(self, times: Sequence[float]) -> None:
        """Add these times in milliseconds."""
        self._count += len(times)
        self._sum = sum(times, self._sum)
        if self._steps:
            self._steps.update(map(_step, times))
            return
        self._values.extend(times)
        if len(self._values) > EXACT:
            self._steps.update(map(_step, self._values))
            self._values = array("d")

    def summary(self) -> dict[str, float] | None:
        """None if there was no call."""
        if not self._count:
            return None
        ordered = sorted(self._values)
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        return {"mean": self._sum / self._count, **{name: self._at(ordered, at) for name, at in shares.items()}}

    def _at(self, ordered: list[float], share: float) -> float:
        if ordered:
            return percentile(ordered, share)
        wanted, seen = ceil(share * (self._count - 1)) + 1, 0
        for step in sorted(self._steps):
            seen += self._steps[step]
            if seen >= wanted:
                break
        return float(1.005**step) if step > _LEAST else 0.0


_LEAST = -10_000


def _step(ms: float) -> int:
    """The nearest power of 1.005; a time of 0 has its own."""
    return round(log(ms) / _STEP) if ms > 1e-9 else _LEAST


class GraderSummary(msgspec.Struct, frozen=True):
    """One grader's column: every number with its denominator."""

    kind: str
    fingerprint: str
    mean: float | None
    mean_ci: tuple[float, float] | None
    pass_rate: float | None
    pass_rate_ci: tuple[float, float] | None
    scored: int
    total: int
    passed: int
    failed: int
    errors: int
    skipped: int
    not_applicable: int = 0
    """Cases that the grader leaves out; not in ``total``."""
    self_reported_errors: int = 0
    judges: tuple[str, ...] = ()
    """The models that the scores come from."""
    pass_threshold: float | None = None
    """The score from which a grade passes; None: the grader decides."""
    turns: TurnRule | None = None
    """When a conversation passes; None in runs of versions that only used the mean."""
    orders: OrderFinding | None = None
    """How often the order of two answers decided; None for a grader that does not compare in both orders."""
    calibration: JudgeState | None = None
    """None for a grader without a judge."""
    selective: SelectiveFinding | None = None
    """What a judge decided that decides only what it is sure of; None for other graders."""
    probes: tuple[ProbeFinding, ...] = ()
    """What probes of the judge found; empty for a judge that was never probed."""
    anchors: AnchorFinding | None = None
    """What the anchors that the run judged again showed; None without any."""
    corrected: CorrectedRate | None = None
    """The pass rate corrected by labels; None without any label of this run."""
    corrected_mean: CorrectedRate | None = None
    """The mean corrected by labels with a score; None without any."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the numbers."""
        findings = (None if one is None else one.sentence for one in (self.orders, self.selective))
        judge = None if self.calibration is None else self.calibration.note
        found = (self.pass_rule, self.left_out, *findings, judge)
        return (*(note for note in found if note is not None), *self.corrections, *self.biases, *self.drift)

    @property
    def biases(self) -> tuple[str, ...]:
        """The biases of the judge that probes flagged."""
        return flagged_sentences(self.probes)

    @property
    def drift(self) -> tuple[str, ...]:
        """What anchors say of the system; what they say of the judge is its state."""
        if self.anchors is None or self.anchors.answer == "judge":
            return ()
        text = self.anchors.sentence if self.anchors.answer == "system" else self.anchors.advice
        return () if text is None else (f"anchors: {text}",)

    @property
    def corrections(self) -> tuple[str, ...]:
        """What labels say about the rate and the mean."""
        rate = () if self.corrected is None else (f"pass rate {self.corrected.sentence}",)
        mean = () if self.corrected_mean is None else (f"mean {self.corrected_mean.sentence}",)
        return (*rate, *mean)

    @property
    def left_out(self) -> str | None:
        """The number of grades of cases to which the grader does not apply, as text."""
        if not self.not_applicable:
            return None
        return f"not applicable to {self.not_applicable:,} response{'s' if self.not_applicable > 1 else ''}"

    @property
    def pass_rule(self) -> str | None:
        """The pass rule as text, if it is not the grader's own."""
        least = PASS_SCORE if self.pass_threshold is None else self.pass_threshold
        rules = [] if self.pass_threshold is None else [f"passes from {least:g}"]
        if self.turns == "mean":
            rules.append(f"a conversation passes from a mean of {least:g} over its turns")
        return "; ".join(rules) or None


class Summary(msgspec.Struct, frozen=True):
    """The numbers of a run."""

    cases: int
    repeats: int
    responses: dict[str, int]
    coverage: float
    """The lowest share of cases with a score, over the graders."""
    sentence: str
    graders: dict[str, GraderSummary]
    latency_ms: dict[str, float] | None = None
    """Mean and percentiles of the successful calls; None if there is none."""
    cost: dict[str, float | None] = msgspec.field(default_factory=lambda: {"agent": None, "judge": None})
    """The sum of the known costs; None is unknown, not free."""
    cost_unknown: int = 0
    """Responses of unknown cost, which are not in the sum."""
    clusters: int | None = None
    """Number of clusters of the cases; None if no case has one."""


class RunCost(NamedTuple):
    """What a run cost so far. A sum is None if no cost is known: unknown is not free."""

    calls: int = 0
    agent: float | None = None
    judges: float | None = None
    unknown: int = 0
    """Successful calls of the agent without a known cost."""

    def plus(self, page: Columns) -> RunCost:
        """With the cost of some records; this is the only place that adds up the costs of a stored run."""
        responses, grades = page
        unknown = responses.costs.count(None)
        if unknown and responses.statuses.count("success") < len(responses.statuses):
            called = zip(responses.statuses, responses.costs, strict=True)
            unknown = sum(status == "success" and cost is None for status, cost in called)
        return RunCost(
            self.calls + len(responses.statuses),
            known_cost((self.agent, *responses.costs)),
            known_cost((self.judges, *grades.costs)),
            self.unknown + unknown,
        )

    @property
    def total(self) -> float:
        return known_cost((self.agent, self.judges)) or 0.0


def run_cost(storage: Storage, run: str) -> RunCost:
    """What a stored run cost so far."""
    cost = RunCost()
    for page in storage.columns(run, named=False):
        cost = cost.plus(page)
    return cost


class Measured(NamedTuple):
    """The numbers that need the rows: scores of each grader, latencies, costs."""

    columns: dict[str, ScoreColumn]
    latencies: Latencies
    self_reported: Counter[str]
    passes: dict[str, array[int]]
    """For each score 1 if it passes, else 0."""
    cost: RunCost
    clusters: int | None = None
    """Number of clusters of the cases; None if no case has one."""


def measure(
    run: Run, pages: Iterable[Columns], counts: Counts, clusters: Mapping[str, str] = MappingProxyType({})
) -> Measured:
    """Read the rows of a run once; a score takes eight bytes, some more if cases are repeated or have clusters.

    The pages are those of `Storage.columns`, ``named`` where cases are repeated, have clusters, or are left out by a
    grader.
    """
    latencies = Latencies()
    columns = _Scores(run, clusters, _not_applicable(counts))
    failed = 0
    count = 0
    cost = RunCost()
    for page in pages:
        responses, grades = page
        cost = cost.plus(page)
        count += len(responses.statuses)
        if responses.statuses.count("success") == len(responses.statuses):
            latencies.extend(_known(responses.latencies_ms))
        else:
            answered = zip(responses.statuses, responses.latencies_ms, strict=True)
            latencies.extend([ms for status, ms in answered if status == "success" and ms is not None])
            failed += sum(status != "success" for status in responses.statuses)
        columns.add(responses, grades)
    if not columns.grouped:
        columns.count_passes(counts)
    total = count if run.total is None else run.total
    return Measured(
        columns.of(total, failed),
        latencies,
        columns.self_reported,
        columns.passes,
        cost,
        len(set(columns.clusters)) if clusters else None,
    )


class _Scores:
    """The scores of each grader, page by page."""

    def __init__(self, run: Run, clusters: Mapping[str, str], not_applicable: Mapping[str, int]) -> None:
        self.grouped = run.repeats > 1 or bool(clusters) or bool(not_applicable)
        self.clusters = array("q")
        """The number of each case's cluster, by the number of the case."""
        self._cluster_of = clusters
        self._numbers: dict[str, int] = {}
        self._scores = {key: array("d") for key in run.graders}
        self._cases = {key: array("q") for key in run.graders}
        self._not_applicable = not_applicable
        self._failed_cases = {key: array("q") for key in run.graders}
        self.passes = {key: array("b") for key in run.graders}
        self.self_reported: Counter[str] = Counter()
        self._case = -1
        self._last = ""

    def of(self, total: int, failed: int) -> dict[str, ScoreColumn]:
        return {
            key: ScoreColumn(
                scores,
                total - self._not_applicable.get(key, 0),
                len(self._failed_cases[key]) if self.grouped else failed,
                self._cases[key],
                self._failed_cases[key],
                self.passes[key],
                self.clusters,
            )
            for key, scores in self._scores.items()
        }

    def count_passes(self, counts: Counts) -> None:
        """Without repeats it does not matter which scores pass: their number is in the counts."""
        for key, scores in self._scores.items():
            found = counts.graders.get(key)
            passed = min(len(scores), 0 if found is None else found.outcomes.get(Outcome.PASS, 0))
            self.passes[key] = array("b", bytes([1]) * passed + bytes(len(scores) - passed))

    def add(self, responses: ResponseColumns, grades: GradeColumns) -> None:
        if any(grades.self_reported_errors):
            reported = zip(grades.graders, grades.scores, grades.self_reported_errors, strict=True)
            self.self_reported.update(key for key, score, error in reported if error and score is not None)
        if self.grouped:  # else each score is of another case
            self._add_cases(responses, grades)
        elif len(self._scores) == 1 and grades.graders.count(*self._scores) == len(grades.graders):
            for scores in self._scores.values():
                scores.extend(_known(grades.scores))
        else:
            for key, score in zip(grades.graders, grades.scores, strict=True):
                if score is not None and key in self._scores:
                    self._scores[key].append(score)

    def _add_cases(self, responses: ResponseColumns, grades: GradeColumns) -> None:
        numbers: dict[str, int] = {}
        failed: list[str] = []
        for case, status in zip(responses.cases, responses.statuses, strict=True):
            if self._case < 0 or case != self._last:
                self._case, self._last = self._case + 1, case
                if self._cluster_of:
                    self.clusters.append(self._cluster(case))
            numbers[case] = self._case
            if status != "success":
                failed.append(case)
        rows = list(zip(grades.cases, grades.graders, grades.outcomes, grades.scores, strict=True))
        left_out = {(case, key) for case, key, outcome, _ in rows if outcome == Outcome.NOT_APPLICABLE}
        for key, failed_cases in self._failed_cases.items():
            failed_cases.extend(numbers[case] for case in failed if (case, key) not in left_out)
        for case, key, outcome, score in rows:
            if score is not None and key in self._scores and case in numbers:
                self._scores[key].append(score)
                self._cases[key].append(numbers[case])
                self.passes[key].append(outcome == Outcome.PASS)

    def _cluster(self, case: str) -> int:
        """The number of a case's cluster; a case without one is a cluster of its own."""
        name = self._cluster_of.get(case)
        number = len(self.clusters)
        return number if name is None else self._numbers.setdefault(name, number)


def _not_applicable(counts: Counts) -> dict[str, int]:
    """By grader, the number of grades of cases to which it does not apply; only graders with such cases."""
    found = {key: grader.outcomes.get(Outcome.NOT_APPLICABLE, 0) for key, grader in counts.graders.items()}
    return {key: number for key, number in found.items() if number}


def _known(values: Sequence[float | None]) -> Sequence[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def complete(summary: Summary, measured: Measured) -> Summary:
    """The summary with the numbers that need the rows."""
    columns = {
        key: msgspec.structs.replace(
            column, self_reported_errors=measured.self_reported[key], **_by_group(key, measured)
        )
        for key, column in summary.graders.items()
    }
    return msgspec.structs.replace(
        summary,
        graders=columns,
        latency_ms=measured.latencies.summary(),
        cost={"agent": measured.cost.agent, "judge": measured.cost.judges},
        cost_unknown=measured.cost.unknown,
        clusters=measured.clusters,
    )


def _by_group(key: str, measured: Measured) -> dict[str, tuple[float, float] | None]:
    """The intervals if cases are repeated or have clusters: responses to one case say less than those to different
    cases."""
    column = measured.columns[key]
    if not column.cases:
        return {}
    groups = groups_of(column)
    return {"mean_ci": interval_of(column.scores, groups), "pass_rate_ci": interval_of(measured.passes[key], groups)}


def order_findings(storage: Storage, run: Run, counts: Counts) -> dict[str, OrderFinding]:
    """What both orders say about the judges of a run that are shown two answers; the store adds up the cases."""
    keys = [key for key, grader in run.graders.items() if grader.both_orders]
    if not keys:
        return {}
    decided = storage.order_counts(run.id)
    found = {}
    for key in keys:
        first, second = decided.get(key, OrderCounts(0, 0))
        outcomes = counts.graders[key].outcomes if key in counts.graders else {}
        found[key] = order_finding(first, second, outcomes.get(Outcome.PASS, 0) + outcomes.get(Outcome.FAIL, 0))
    return found


def with_selective(storage: Storage, run: Run, summary: Summary) -> Summary:
    """The summary with what judges decided that decide only what they are sure of."""
    thresholds = {key: grader.selective for key, grader in run.graders.items() if grader.selective is not None}
    if not thresholds:
        return summary
    counts = storage.selective_counts(run.id)
    graders = dict(summary.graders)
    for key, threshold in thresholds.items():
        second, unsure = counts.get(key, SelectiveCounts(0, 0))
        finding = selective_finding(threshold, graders[key].scored, second, unsure)
        graders[key] = msgspec.structs.replace(graders[key], selective=finding)
    return msgspec.structs.replace(summary, graders=graders)


def with_orders(summary: Summary, orders: Mapping[str, OrderFinding]) -> Summary:
    """The summary with the findings on its judges of two answers."""
    graders = {
        key: msgspec.structs.replace(column, orders=orders.get(key)) if key in orders else column
        for key, column in summary.graders.items()
    }
    return msgspec.structs.replace(summary, graders=graders)


def summarise(run: Run, counts: Counts) -> Summary:
    """The summary of a run's counts; a case without a grade is only in the total."""
    answered = sum(counts.responses.values())
    total = answered if run.total is None else run.total
    graders = {key: _grader_summary(grader, counts.graders.get(key), total) for key, grader in run.graders.items()}
    shares = [column.scored / column.total for column in graders.values() if column.total]
    return Summary(
        -(-total // run.repeats),
        run.repeats,
        counts.responses,
        min(shares, default=0.0),
        _sentence(counts.responses, graders),
        graders,
    )


def _grader_summary(grader: RunGrader, counts: GraderCounts | None, total: int) -> GraderSummary:
    outcomes: Mapping[str, int] = counts.outcomes if counts is not None else {}
    passed, failed = outcomes.get(Outcome.PASS, 0), outcomes.get(Outcome.FAIL, 0)
    scored = passed + failed
    not_applicable = outcomes.get(Outcome.NOT_APPLICABLE, 0)
    mean = counts.score_sum / scored if counts is not None and scored else None
    mean_ci = score_sums_interval(scored, counts.score_sum, counts.score_squares) if counts and scored else None
    return GraderSummary(
        kind=grader.kind,
        fingerprint=grader.fingerprint,
        judges=grader.judges,
        pass_threshold=grader.pass_threshold,
        turns=grader.turns,
        mean=mean,
        mean_ci=_bounds(mean_ci),
        pass_rate=passed / scored if scored else None,
        pass_rate_ci=_bounds(wilson(passed, scored)) if scored > 1 else None,
        scored=scored,
        total=total - not_applicable,
        passed=passed,
        failed=failed,
        errors=outcomes.get(Outcome.ERROR, 0),
        skipped=outcomes.get(Outcome.SKIPPED, 0),
        not_applicable=not_applicable,
    )


def _bounds(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)


def _sentence(responses: Mapping[str, int], graders: Mapping[str, GraderSummary]) -> str:
    graded = max((column.scored for column in graders.values()), default=0)
    parts = [f"{_number(graded, 'response')} graded"]
    errors = sum(column.errors for column in graders.values())
    failed = sum(count for status, count in responses.items() if status != "success")
    if errors:
        parts.append(_number(errors, "grader error"))
    if failed:
        parts.append(_number(failed, "failed call"))
    return ", ".join(parts)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


class RunReport(NamedTuple):
    """A run with its summary and its verdict."""

    run: Run
    summary: Summary
    verdict: Verdict
    exit_code: int
    records: Callable[[], Iterator[Record]]

    def to_data(self) -> dict[str, Any]:
        """The report as ``--json`` prints it."""
        return {
            "run": run_data(self.run),
            "summary": msgspec.to_builtins(self.summary),
            "verdict": msgspec.to_builtins(self.verdict._asdict()),
            "exit_code": self.exit_code,
            **stopped_data(self.run),
        }


def conclude(storage: Storage, run: Run, rules: Rules | None = None) -> RunReport:
    """The report of a stored run, by its own rules or by others."""
    rules = Rules.of(run) if rules is None else rules
    trust = judge_states(storage, run)
    summary, measured = measured_summary(storage, run)
    summary = with_probes(with_calibrations(summary, trust), probe_findings(storage, run))
    summary = with_anchors(summary, anchor_findings(storage, run))
    labelled = labelled_scores(storage, run)
    summary = with_corrections(summary, labelled, rules)
    gate = rules.read(run)
    verdict = decide(
        gate,
        measured.columns,
        coverage_floor=rules.coverage_floor,
        agent_errors=rules.agent_errors,
        require_calibrated=rules.require_calibrated,
        primary=rules.primary_of(run, tuple(run.graders)),
        uncalibrated=doubts(run, trust),
        paired=_pairs(storage, run, gate),
        orders={key: column.orders for key, column in summary.graders.items() if column.orders is not None},
        labelled=labelled,
        corrected=rules.corrected,
    )
    verdict = _of_looks(run, _of_a_part(run, verdict))
    return RunReport(run, summary, verdict, _exit_code(verdict, summary), lambda: storage.records(run.id))


def doubts(run: Run, trust: Mapping[str, JudgeTrust]) -> dict[str, JudgeDoubt]:
    """The graders whose judge is not calibrated, as gates take them."""
    return {
        key: JudgeDoubt(one.state, one.reason, _needed_by(run.graders[key], one))
        for key, one in trust.items()
        if one.state != "calibrated"
    }


def _needed_by(grader: RunGrader, trust: JudgeTrust) -> str | None:
    """The option that promises an agreement which the labels of this judge, if there are any, no longer show."""
    if grader.selective is None or (grader.selective.promised and trust.state == "failed"):
        return None
    return f"agreement: {grader.selective.agreement:g}"


def with_calibrations(summary: Summary, trust: Mapping[str, JudgeTrust]) -> Summary:
    """The summary with the states of its judges."""
    graders = {
        key: msgspec.structs.replace(column, calibration=JudgeState(trust[key].state, trust[key].reason))
        if key in trust
        else column
        for key, column in summary.graders.items()
    }
    return msgspec.structs.replace(summary, graders=graders)


def with_anchors(summary: Summary, found: Mapping[str, AnchorFinding]) -> Summary:
    """The summary with what anchors showed."""
    graders = {
        key: msgspec.structs.replace(column, anchors=found[key]) if key in found else column
        for key, column in summary.graders.items()
    }
    return msgspec.structs.replace(summary, graders=graders)


def with_probes(summary: Summary, found: Mapping[str, tuple[ProbeFinding, ...]]) -> Summary:
    """The summary with what probes found of its judges."""
    graders = {
        key: msgspec.structs.replace(column, probes=found[key]) if key in found else column
        for key, column in summary.graders.items()
    }
    return msgspec.structs.replace(summary, graders=graders)


def with_corrections(summary: Summary, labelled: Mapping[str, LabelledScores], rules: Rules) -> Summary:
    """The summary with the rates that labels correct, for graders with labels."""
    graders = {key: _corrected(column, labelled.get(key), rules) for key, column in summary.graders.items()}
    return msgspec.structs.replace(summary, graders=graders)


def _corrected(column: GraderSummary, labelled: LabelledScores | None, rules: Rules) -> GraderSummary:
    if labelled is None or not labelled.total:
        return column
    of_failed = rules.agent_errors == "fail"
    rate = corrected_rate(labelled, "pass_rate", rules.coverage_floor, count_failed_calls=of_failed)
    mean = None
    if any(one.label_score is not None for one in labelled.labelled):
        mean = corrected_rate(labelled, "mean_score", rules.coverage_floor, count_failed_calls=of_failed)
    return msgspec.structs.replace(column, corrected=rate, corrected_mean=mean)


def measured_summary(storage: Storage, run: Run) -> tuple[Summary, Measured]:
    """The numbers of a stored run; its rows are read once."""
    counts = storage.counts(run.id)
    measured = measure_run(storage, run, counts)
    summary = with_orders(complete(summarise(run, counts), measured), order_findings(storage, run, counts))
    return with_selective(storage, run, summary), measured


def measure_run(storage: Storage, run: Run, counts: Counts) -> Measured:
    """The numbers of a stored run that need its rows."""
    clusters = storage.clusters(run.id)
    named = run.repeats > 1 or bool(clusters) or bool(_not_applicable(counts))
    return measure(run, storage.columns(run.id, named=named), counts, clusters)


def _pairs(storage: Storage, run: Run, gate: Gate | None) -> dict[tuple[str, str], PairedScores]:
    """For each baseline that the gate names, the scores of the cases that both runs have."""
    if gate is None:
        return {}
    keys = graders_of(gate, tuple(run.graders))
    return {
        (name, key): pair
        for name in baselines_of(gate)
        for key, pair in paired(storage, storage.find_run(name, run.suite), run, keys).items()
    }


def _of_a_part(run: Run, verdict: Verdict) -> Verdict:
    """A run that is not complete decides nothing, whatever its cases so far show."""
    if run.status == "completed":
        return verdict
    why = f": {run.error_message}" if run.error_message else ""
    reasons = (f"the run is not complete ({run.status}{why})", *verdict.reasons)
    if run.error_message is not None and run.error_message.startswith(FAIL_FAST):
        return verdict._replace(result="fail", reasons=reasons)
    return verdict._replace(result="none" if verdict.result == "none" else "undecided", reasons=reasons)


def _of_looks(run: Run, verdict: Verdict) -> Verdict:
    """The verdict with the number of cases of the last look, if there were looks."""
    reason = None if run.early is None or run.status != "completed" else _looks_in_words(run, run.early)
    return verdict if reason is None else verdict._replace(reasons=(reason, *verdict.reasons))


def _looks_in_words(run: Run, early: EarlyStopping) -> str | None:
    if early.obstacle is not None:
        return f"all cases were run, without an early stop: {early.obstacle}"
    if early.stopped:
        saved = run.calls_saved
        calls = f"; {saved:,} call{'s' * (saved != 1)} saved" if run.parent is None else ""
        return f"decided after {early.n:,} of {early.of:,} cases{calls}"
    if early.all_cases and 0 < early.n < early.of:
        return f"all {early.of:,} cases have run: this verdict replaces the one after {early.n:,} of them"
    return None


def _exit_code(verdict: Verdict, summary: Summary) -> int:
    """A judge of both orders has graded, even if the order decided every case."""
    if not any(column.scored or (column.orders and column.orders.decided) for column in summary.graders.values()):
        return _NOTHING_GRADED
    if verdict.result == "none":
        return 3 if verdict.reasons else 0
    return _EXIT_CODES[verdict.result]


def worst_of(codes: list[int]) -> int:
    """The exit code of several runs: the most urgent one."""
    return next((code for code in (INTERRUPTED, 4, 2, 1, 3) if code in codes), 0)
