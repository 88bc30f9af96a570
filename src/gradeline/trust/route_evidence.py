"""What a store knows of the arms of a route: their runs, labels and judges, and outcomes of routed requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from math import fsum
from typing import NamedTuple

from gradeline.engine.judge_probes import latest_findings, probe_reports
from gradeline.engine.judge_trust import JudgeTrust, judge_states
from gradeline.errors import Outcome
from gradeline.model import Record, Run, Storage
from gradeline.model.observation import task_family
from gradeline.model.route import RouteGate
from gradeline.model.text import quote
from gradeline.stats.prediction_powered import rogan_gladen
from gradeline.store.labels import reference_labels
from gradeline.store.route_log import judged_requests
from gradeline.trust.outcomes import JUDGE, LABEL
from gradeline.trust.policy import NO_EVIDENCE, ArmEvidence, evidence_of
from gradeline.trust.route_file import ArmEntry, RouteFile
from gradeline.trust.route_plan import ArmResult, ArmResults
from gradeline.trust.router import JudgeRates

PASS_SCORE = 0.5
"""An outcome of a routed request passes from this score."""
_RUNS_AT_ONCE = 100
_MAX_RUNS = 5_000
"""Runs that are searched for those of the arms, newest first."""
_PROBED = ("position", "length", "format", "self_preference")
_NEEDED = ("position", "length", "format")
"""Probes that must have had enough data; of the judge's own family there are often no answers, and it has a gate."""
_DAY_S = 86_400.0
_MODEL_FAMILIES = (
    "gpt",
    "claude",
    "gemini",
    "gemma",
    "llama",
    "mistral",
    "mixtral",
    "qwen",
    "deepseek",
    "grok",
    "command",
)


class ArmRun(NamedTuple):
    """The run with an arm's results."""

    arm: ArmEntry
    run: Run | None
    trust: JudgeTrust | None = None
    """None for a grader without a model."""
    age_days: float = 0.0


class RouteEvidence(NamedTuple):
    """Everything that planning needs."""

    arms: dict[str, ArmResults]
    runs: dict[str, str]
    """Run ID by arm."""
    gates: list[RouteGate]
    """Gates of the judge and the runs; those of single arms are added by planning."""
    judge: str
    """Fingerprint; empty for a grader without a model."""


def read_evidence(storage: Storage, route: RouteFile, now: datetime | None = None) -> RouteEvidence:
    """The results of each arm's run, with labels, and the gates that they and the judge pass or fail."""
    now = now or datetime.now(UTC)
    found = _runs_of(storage, route, now)
    gates = [*_run_gates(route, found), *_judge_gates(storage, route, found)]
    arms = {one.arm.name: _results(storage, route, one) for one in found}
    gates += [_cost_gate(route, name, results.cost) for name, results in arms.items() if _cost_counts(route, name)]
    runs = {one.arm.name: one.run.id for one in found if one.run is not None}
    return RouteEvidence(arms, runs, gates, _judge_of(route, found))


def outcome_evidence(
    storage: Storage,
    route: RouteFile,
    rates: Mapping[str, JudgeRates | None],
    judge: str,
    now: datetime | None = None,
) -> dict[tuple[str, str], ArmEvidence]:
    """Evidence by family and arm from outcomes of routed requests; one request counts once, by its label if it has one.

    Verdicts of a judge count if it is this one and its rates on the arm are known.
    """
    now = now or datetime.now(UTC)
    labels: dict[tuple[str, str], ArmEvidence] = defaultdict(ArmEvidence)
    verdicts: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    for (family, arm), passed, source, at in _single_outcomes(storage, route, JUDGE + judge if judge else LABEL):
        age = _age_days(at, now)
        if age > route.max_age_days:
            continue
        weight = 0.5 ** (age / route.half_life_days)
        if source == LABEL:
            labels[family, arm] = labels[family, arm].plus(ArmEvidence(passed * weight, (not passed) * weight))
        else:
            verdicts[family, arm].append((passed, weight))
    for key, seen in verdicts.items():
        labels[key] = labels[key].plus(_corrected(seen, rates.get(key[1])))
    return dict(labels)


def _single_outcomes(
    storage: Storage, route: RouteFile, judge: str
) -> Iterator[tuple[tuple[str, str], bool, str, str]]:
    """Family and arm, verdict, source and time of each request's outcome: a label, else the verdict of this judge."""
    known: dict[str, tuple[tuple[str, str], bool, str, str]] = {}
    arms = {arm.name for arm in route.arms}
    after = 0
    while page := judged_requests(storage, route.route, after):
        after = page[-1].request.n
        for request, outcome in page:
            before = known.get(request.id)
            counted = outcome.source in (LABEL, judge) and request.served_by in arms
            if counted and (before is None or before[2] != LABEL or outcome.source == LABEL):
                cell = (request.family, request.served_by or "")
                known[request.id] = (cell, outcome.score >= PASS_SCORE, outcome.source, outcome.at)
    yield from known.values()


def _corrected(seen: list[tuple[bool, float]], rates: JudgeRates | None) -> ArmEvidence:
    if rates is None:
        return NO_EVIDENCE
    try:
        found = rogan_gladen(sum(passed for passed, _ in seen), len(seen), *rates)
    except ValueError:
        return NO_EVIDENCE
    return evidence_of(found.estimate, found.se, len(seen), len(seen)).times(fsum(w for _, w in seen) / len(seen))


def _runs_of(storage: Storage, route: RouteFile, now: datetime) -> list[ArmRun]:
    wanted = {arm.name: storage.find_run(arm.run, route.suite) for arm in route.arms if arm.run is not None}
    missing = [arm for arm in route.arms if arm.name not in wanted]
    for run in _completed_runs(storage, route) if missing else ():
        for arm in missing:
            if arm.name not in wanted and _is_of(run, arm):
                wanted[arm.name] = run
        if len(wanted) == len(route.arms):
            break
    return [_arm_run(storage, route, arm, wanted.get(arm.name), now) for arm in route.arms]


def _completed_runs(storage: Storage, route: RouteFile) -> Iterator[Run]:
    before: str | None = None
    for _ in range(_MAX_RUNS // _RUNS_AT_ONCE):
        page = storage.list_runs(_RUNS_AT_ONCE, before)
        if not page:
            return
        before = page[-1].id
        for run in page:
            if run.suite == route.suite and run.status == "completed" and route.grader in run.graders:
                yield run


def _is_of(run: Run, arm: ArmEntry) -> bool:
    """Whether a run has the results of an arm: by the name of its variant, else by its model."""
    return run.variant in (arm.name, arm.model) if run.variant else run.target.get("model") == arm.model


def _arm_run(storage: Storage, route: RouteFile, arm: ArmEntry, run: Run | None, now: datetime) -> ArmRun:
    if run is None:
        return ArmRun(arm, None)
    trust = judge_states(storage, run, now).get(route.grader)
    return ArmRun(arm, run, trust, _age_days(run.completed_at or run.started_at or "", now))


def _age_days(at: str, now: datetime) -> float:
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return float("inf")  # unknown is not new
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (now - moment).total_seconds() / _DAY_S)


def _results(storage: Storage, route: RouteFile, found: ArmRun) -> ArmResults:
    run = found.run
    judged = _is_judged(route, run)
    if run is None or found.age_days > route.max_age_days or route.grader not in run.graders:
        return ArmResults((), found.arm.cost, judged)
    labels = {
        (one.case, one.repeat): (one.passed, one.probability)
        for one in reference_labels(storage, run, route.grader).labels
        if one.passed is not None and one.probability is not None
    }
    results, costs, unpriced = [], [], 0
    for record in storage.records(run.id):
        results.append(_result(route, run, record, labels.get((record.case, record.repeat))))
        cost = None if record.response.usage is None else record.response.usage.cost
        if cost is not None:
            costs.append(cost)
        elif record.response.error is None:
            unpriced += 1
    measured = fsum(costs) / len(costs) if costs and not unpriced else None
    cost = found.arm.cost if found.arm.cost is not None else measured
    weight = 0.5 ** (found.age_days / route.half_life_days)
    return ArmResults(results, cost, judged, weight, _record_rates(found))


def _result(route: RouteFile, run: Run, record: Record, label: tuple[bool | None, float | None] | None) -> ArmResult:
    grade = record.grades.get(route.grader)
    decided = grade is not None and grade.outcome in (Outcome.PASS, Outcome.FAIL)
    verdict = grade.outcome == Outcome.PASS if grade is not None and decided else None
    passed, probability = label or (None, None)
    return ArmResult(task_family(record.sample, run.suite), record.case, record.repeat, verdict, passed, probability)


def _is_judged(route: RouteFile, run: Run | None) -> bool:
    return run is None or route.grader not in run.graders or bool(run.graders[route.grader].judges)


def _record_rates(found: ArmRun) -> JudgeRates | None:
    record = None if found.trust is None else found.trust.calibration
    if record is None or record.sensitivity is None or record.specificity is None:
        return None
    return JudgeRates(record.sensitivity, record.positives, record.specificity, record.negatives)


def _judge_of(route: RouteFile, found: list[ArmRun]) -> str:
    for one in found:
        grader = None if one.run is None else one.run.graders.get(route.grader)
        if grader is not None and grader.judges:
            return grader.calibrated_as
    return ""


def _run_gates(route: RouteFile, found: list[ArmRun]) -> Iterator[RouteGate]:
    yield RouteGate(
        name="enabled", passed=route.enabled, detail="true" if route.enabled else "the route file has enabled: false"
    )
    for one in found:
        yield _fresh_gate(route, one)
    if any(one.run is None for one in found):
        return
    prints = {
        one.run.graders[route.grader].calibrated_as for one in found if one.run and route.grader in one.run.graders
    }
    if len(prints) > 1:
        detail = f"the runs were graded by {len(prints)} versions of {quote(route.grader)}: regrade the older ones"
        yield RouteGate(name="same grader", passed=False, detail=detail)


def _fresh_gate(route: RouteFile, found: ArmRun) -> RouteGate:
    name = found.arm.name
    if found.run is None:
        detail = (
            f"no completed run of the suite {quote(route.suite)} with the grader {quote(route.grader)} has the variant"
            f" {quote(name)} or the model {quote(found.arm.model)}: run it, or name one with run:"
        )
        return RouteGate(name="evidence", passed=False, detail=detail, arm=name)
    if route.grader not in found.run.graders:
        detail = f"run {found.run.id} has no grader {quote(route.grader)}; it has {', '.join(found.run.graders)}"
        return RouteGate(name="evidence", passed=False, detail=detail, arm=name)
    fresh = found.age_days <= route.max_age_days
    detail = f"run {found.run.id} is {found.age_days:.1f} days old" + (
        "" if fresh else f", more than {route.max_age_days:g}: run it again"
    )
    return RouteGate(name="evidence", passed=fresh, detail=detail, arm=name)


def _judge_gates(storage: Storage, route: RouteFile, found: list[ArmRun]) -> Iterator[RouteGate]:
    if not _judge_of(route, found):
        return
    for one in found:
        if one.run is None or route.grader not in one.run.graders:
            continue
        trust = one.trust or JudgeTrust("uncalibrated", "nothing is known of it")
        detail = f"the judge {quote(route.grader)} is {trust.state}: {trust.reason}"
        name = "drift" if trust.state == "drifted" else "calibrated"
        yield RouteGate(name=name, passed=trust.state == "calibrated", detail=detail, arm=one.arm.name)
        yield from _family_gate(route, one)
    if route.require_probes:
        yield _probe_gate(storage, route, _judge_of(route, found))


def _family_gate(route: RouteFile, found: ArmRun) -> Iterator[RouteGate]:
    """A judge that is of an arm's own model family may prefer it; several judges may correct each other."""
    judges = () if found.run is None else found.run.graders[route.grader].judges
    own = _model_family(found.arm.model)
    if own is not None and judges and all(_model_family(judge) == own for judge in judges):
        detail = f"the judge {', '.join(judges)} is of the same model family as the arm: use another judge, or a panel"
        yield RouteGate(name="own family", passed=False, detail=detail, arm=found.arm.name)


def _model_family(model: str) -> str | None:
    name = model.rpartition(":")[2].rpartition("/")[2].lower()
    return next((family for family in _MODEL_FAMILIES if name.startswith(family)), None)


def _probe_gate(storage: Storage, route: RouteFile, judge: str) -> RouteGate:
    findings = {one.probe: one for one in latest_findings(probe_reports(storage, judge))}
    flagged = [name for name in _PROBED if name in findings and findings[name].verdict == "flagged"]
    open_ones = [name for name in _NEEDED if name not in findings or findings[name].verdict == "not_enough_data"]
    if flagged:
        detail = f"the judge is biased: {', '.join(findings[name].sentence for name in flagged)}"
    elif open_ones:
        detail = (
            f"not probed for {', '.join(open_ones)}: gradeline probe {route.grader} SUITE, or require_probes: false"
        )
    else:
        detail = f"no bias found: {', '.join(name for name in _PROBED if name in findings)}"
    return RouteGate(name="probes", passed=not flagged and not open_ones, detail=detail)


def _cost_counts(route: RouteFile, arm: str) -> bool:
    return route.cost_weight > 0 or (route.max_cost is not None and arm != route.baseline.name)


def _cost_gate(route: RouteFile, arm: str, cost: float | None) -> RouteGate:
    limit = None if arm == route.baseline.name else route.max_cost
    if cost is None:
        detail = f"unknown, and {'lambda weighs it' if route.cost_weight > 0 else 'max_cost limits it'}: write cost:"
        return RouteGate(name="cost", passed=False, detail=detail, arm=arm)
    detail = f"{cost:.6g} US dollars per request"
    if limit is not None and cost > limit:
        return RouteGate(name="cost", passed=False, detail=f"{detail}, more than the {limit:g} allowed", arm=arm)
    return RouteGate(name="cost", passed=True, detail=detail, arm=arm)
