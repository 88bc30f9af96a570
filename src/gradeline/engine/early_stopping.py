"""Early stopping: a run ends as soon as its comparison with a baseline is decided. Case order and interim looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from hashlib import blake2b
from itertools import chain
from mmap import ACCESS_READ, mmap
from secrets import randbelow
from typing import Any

from msgspec.structs import replace

from gradeline.engine.comparison import RunScores, is_same_grader, noise_of, read_scores
from gradeline.engine.definition import Rules, RunDefinition, command
from gradeline.engine.execute import Stop
from gradeline.engine.pipeline import RunTask
from gradeline.engine.plan import CompletedCase, LookReport, ProgressCallback, ProgressCount
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.model import (
    EarlyStopping,
    Grade,
    GradeMeasure,
    Measure,
    Run,
    Sample,
    Storage,
    digest_of,
    from_json,
    quote,
    sample_digest,
    to_json,
)
from gradeline.suite.spec import SuiteDefinition
from gradeline.verdict.early_stopping import (
    MIN_CASES,
    NEEDS_LABELS,
    LookResult,
    StoppingRule,
    WatchedGate,
    enables_early_stopping,
    obstacles,
    watched_gates,
)
from gradeline.verdict.evidence import RepeatScores
from gradeline.verdict.gate import GateSettings

STOP_EARLY = "--stop-early"
"""The path of its problems."""
DECIDED = "decided"
_READS = 100
"""Maximum reads of the store for cases that other processes finish."""

_Scores = tuple[RepeatScores | None, ...]
"""Scores of one (case, repeat), or of all repeats of a case, by watched grader."""


def with_baseline_gate(suite: SuiteDefinition, baseline: Run, margin: float | None = None) -> SuiteDefinition:
    """The suite with a gate that no grader is worse than in the baseline, in addition to its own."""
    own_gate = suite.shown.get("gate")
    gate: dict[str, Any] = {"kind": "regression", "baseline": baseline.id}
    if margin is not None:
        gate["margin"] = margin
    if isinstance(own_gate, dict):
        own = own_gate if "kind" in own_gate else {**own_gate, "kind": "simple"}
        gate = {"kind": "logical", "operator": "and", "conditions": [own, gate]}
    return replace(suite, shown={**suite.shown, "gate": gate})


def with_early_stopping(suite: SuiteDefinition) -> SuiteDefinition:
    """The suite with a gate that stops early; `ConfigError` if the gate compares with no run."""
    gate = _gate_with_early_stopping(suite.shown.get("gate"))
    if gate is None:
        reason = "needs a run to compare with: name one with --baseline RUN, or give the suite a regression gate"
        raise ConfigError(Problem(STOP_EARLY, reason))
    return replace(suite, shown={**suite.shown, "gate": gate})


def _gate_with_early_stopping(gate: object) -> dict[str, Any] | None:
    """The gate with every regression gate in it set to stop early; None if it has none."""
    if not isinstance(gate, dict):
        return None
    if gate.get("kind") == "regression":
        return {**gate, "stop_early": True}
    conditions = gate.get("conditions")
    changed = list(map(_gate_with_early_stopping, conditions)) if isinstance(conditions, list) else []
    if not any(changed):
        return None
    return {**gate, "conditions": [new or old for new, old in zip(changed, conditions or (), strict=True)]}


class ShuffledSamples:
    """The cases of a run in the order of its seed: a random sample, whatever the order of the dataset.

    They wait in a temporary file, so that memory holds only their names and digests.
    """

    def __init__(self, samples: Iterable[Sample], seed: int) -> None:
        from tempfile import TemporaryFile  # few runs end early

        self._file = TemporaryFile()  # noqa: SIM115 - `close` closes it
        self.digests: dict[str, str] = {}
        self.clusters: dict[str, str] = {}
        places: dict[str, int] = {}
        end = 0
        for sample in samples:
            text, case = to_json(sample), sample.case_key
            places[case] = end
            self.digests[case] = sample_digest(sample) if sample.cluster else digest_of(text)
            if sample.cluster:
                self.clusters[case] = sample.cluster
            end += self._file.write(text.encode() + b"\n")
        self.cases = sorted(places, key=lambda case: _random_place(seed, case))
        self._places = [places[case] for case in self.cases]
        self._file.flush()
        self._map = mmap(self._file.fileno(), 0, access=ACCESS_READ) if end else None

    def __call__(self) -> Iterator[Sample]:
        rows = self._map
        if rows is None:
            return
        for place in self._places:
            yield from_json(Sample, rows[place : rows.find(b"\n", place)])

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        self._file.close()


def in_run_order(run: Run, samples: Sequence[Sample]) -> Sequence[Sample]:
    """The cases in the order of the run."""
    if run.early is None or run.early.obstacle is not None:
        return samples
    return sorted(samples, key=lambda sample: _random_place(run.seed or 0, sample.case_key))


def _random_place(seed: int, case: str) -> bytes:
    return blake2b(f"{seed} {case}".encode(), digest_size=16).digest()


def stops_early(run: Run) -> bool:
    """True if the gate of a run stops it early."""
    return enables_early_stopping(Rules.of(run).read(run))


def with_seed(run: Run) -> Run:
    """The run with a seed, for the order of its cases."""
    return replace(run, seed=randbelow(2**32)) if run.seed is None else run


def obstacle_warning(run: Run) -> str | None:
    """A warning if a run cannot stop early."""
    if run.early is None or run.early.obstacle is None:
        return None
    return f"all cases are run, without an early stop: {run.early.obstacle}"


def include_all_cases(run: Run) -> Run:
    """The run with the cases that an early stop left out: no look decides it from then on.

    `ConfigError` for a run that grades the responses of another: it has no cases to ask.
    """
    early = run.early
    if early is None:
        return run
    if early.stopped and run.parent is not None:
        finish = command("resume", run.parent, None, "--all")
        reason = f"grades the responses of the run {run.parent}; finish that with: {finish}, then regrade it"
        raise ConfigError(Problem(run.id, reason))
    return replace(run, early=replace(early, all_cases=True), total=early.cases * run.repeats)


def plan_looks(storage: Storage, run: Run, digests: Mapping[str, str]) -> Run:
    """A new run that `stops_early` with the looks at it; ``digests`` are those of its cases.

    If something prevents an early end, the run reports it and runs all its cases. `ConfigError` where its baseline
    cannot be compared with at all.
    """
    gates = _watched(run)
    baseline = storage.find_run(gates[0].baseline, run.suite)
    before = read_scores(storage, baseline, ())
    places = before.places
    common = [case for case in digests if case in places]
    _require_comparable(run, baseline, common)
    edited = [case for case in common if before.digests[places[case]] != digests[case]]
    obstacle = next(_obstacles(run, gates, baseline, edited, len(common), len(before.cases)), None)
    keys = {key for gate in gates for key in gate.keys}
    return replace(run, early=EarlyStopping(baseline.id, len(common), len(digests), len(keys), obstacle=obstacle))


def _watched(run: Run) -> list[WatchedGate]:
    rules = Rules.of(run)
    gate, graders = rules.read(run), tuple(run.graders)
    if gate is None:
        return []
    primary = rules.primary_of(run, graders)
    settings = GateSettings(
        rules.coverage_floor, rules.agent_errors, rules.require_calibrated, primary, rules.corrected
    )
    return list(watched_gates(gate, settings, graders))


def _require_comparable(run: Run, baseline: Run, common: Sequence[str]) -> None:
    remedy = f"name a run of this suite as the baseline, or leave out {STOP_EARLY}"
    if baseline.suite != run.suite and RunDefinition.of(run).document is None:  # one without a file has any name
        other = f"the baseline {baseline.id} is a run of the suite {quote(baseline.suite)}, this is {quote(run.suite)}"
        raise ConfigError(Problem(STOP_EARLY, f"{other}; {remedy}"))
    if not common:
        raise ConfigError(
            Problem(STOP_EARLY, f"the baseline {baseline.id} has no case in common with this run; {remedy}")
        )


def _obstacles(
    run: Run, gates: Sequence[WatchedGate], baseline: Run, edited: Sequence[str], common: int, cases: int
) -> Iterator[str]:
    """Reasons why the run cannot stop early."""
    rules = Rules.of(run)
    gate = rules.read(run)
    if gate is not None:
        yield from obstacles(gate)
    if rules.corrected and any(run.graders[key].judges for one in gates for key in one.keys):
        yield NEEDS_LABELS
    baselines = {gate.baseline for gate in gates}
    if len(baselines) > 1:
        yield f"the gate compares with {len(baselines)} runs"
    keys = dict.fromkeys(key for gate in gates for key in gate.keys)
    floor = max(gate.rule.coverage_floor for gate in gates)
    for key in keys:
        if not is_same_grader(baseline, run, key):
            yield f"the grader {quote(key)} is not the same in the baseline {baseline.id}"
    if baseline.early is not None and baseline.early.stopped:
        asked = f"{baseline.early.n:,} of {baseline.early.of:,} cases"
        finish = command("resume", baseline.id, None, "--all")
        yield f"the baseline {baseline.id} ended early itself, after {asked}; finish it with: {finish}"
    if baseline.repeats != run.repeats:
        yield f"the baseline ran each case {_times(baseline.repeats)}, this run runs it {_times(run.repeats)}"
    if edited:
        more = f" and {len(edited) - 1:,} more" if len(edited) > 1 else ""
        yield f"case {quote(edited[0])}{more} was edited since the baseline {baseline.id}"
    if common < MIN_CASES:
        yield f"{common:,} cases in common with the baseline are fewer than the {MIN_CASES} that it takes"
    if common / cases < floor - 1e-12:
        yield f"only {common:,} of the baseline's {cases:,} cases are run, below the coverage floor of {floor:g}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


class LookMonitor:
    """Looks at a run while its cases finish in any order, and stops it when the cases so far, in order, decide it.

    A look waits for every case before it: cases that take long may be hard ones.
    """

    def __init__(
        self,
        storage: Storage,
        run: Run,
        early: EarlyStopping,
        order: Sequence[str],
        clusters: Mapping[str, str],
        advance: ProgressCallback,
        stop: Stop,
    ) -> None:
        """``order`` has the cases as planned, ``clusters`` the cluster of each."""
        self.reached = replace(early, look=0, n=0, place=0)
        """The last look."""
        self._storage = storage
        self._run = run
        self._rule = StoppingRule(_watched(run), early.of, noise_of(run))
        self._order = order
        self._advance = advance
        self._stop = stop
        self._baseline = _by_case(read_scores(storage, storage.find_run(early.baseline), self._rule.keys))
        self._clusters = {**storage.clusters(early.baseline), **clusters}
        self._stored = {(one.case, one.repeat): self._measured(one) for one in storage.measures(run.id)}
        """Scores that earlier processes stored."""
        self._waiting: dict[int, list[_Scores]] = {}
        """Finished cases, or some of their repeats, that wait for a case before them."""
        self._place = 0
        self._done = 0
        self._next_read = 0

    def __call__(self, done: CompletedCase | ProgressCount | LookReport) -> None:
        """Count finished cases, and report them."""
        self._advance(done)
        if self._stop.decided:
            return
        if isinstance(done, CompletedCase):
            self._done += 1
            self._add(done)
        elif isinstance(done, ProgressCount) and done.done:
            self._done += done.done
            self._read_new()

    def last(self) -> EarlyStopping:
        """The last look, with the cases that other processes stored."""
        if self._place < len(self._order) and not self._stop.decided:
            self._next_read = 0
            self._read_new()
        return self.reached

    def _add(self, done: CompletedCase) -> None:
        place, scores = done.planned.position, self._graded(done)
        if place == self._place and self._run.repeats == 1:
            self._take((scores,))
        else:
            self._waiting.setdefault(place, []).append(scores)
        while self._waiting and len(self._waiting.get(self._place, ())) == self._run.repeats:
            self._take(self._waiting.pop(self._place))

    def _graded(self, done: CompletedCase) -> _Scores:
        """The scores of a finished case, with the stored ones of graders that did not run again."""
        key, response = done.planned.key, done.response
        stored = self._stored.get((key.case, key.repeat))
        if response is None:
            return stored if stored is not None else ((),) * len(self._rule.keys)
        failed = response.status != "success"
        found: list[RepeatScores | None] = []
        for number, grader in enumerate(self._rule.keys):
            one = done.graded.get(grader)
            if one is None and stored is not None and not failed:
                found.append(stored[number])
            else:
                found.append(_try(None if one is None else one.grade, failed=failed))
        return tuple(found)

    def _read_new(self) -> None:
        """Read cases that other processes finished, if they may complete the next look."""
        if self._done < self._next_read:
            return
        found: dict[str, list[_Scores]] = {}
        for one in self._storage.measures(self._run.id):
            if one.status != "success" or one.grades.keys() >= set(self._rule.keys):
                found.setdefault(one.case, []).append(self._measured(one))
        while self._place < len(self._order) and not self._stop.decided:
            scores = found.get(self._order[self._place], ())
            if len(scores) < self._run.repeats:
                break
            self._take(scores)
        self._next_read = self._done + max(1, len(self._order) * self._run.repeats // _READS)

    def _take(self, scores: Sequence[_Scores]) -> None:
        """The next case in order."""
        case = self._order[self._place]
        before = self._baseline.get(case)
        self._place += 1
        if before is None or self._stop.decided:
            return
        first, *others = scores
        after = [_joined(tries) for tries in zip(*scores, strict=True)] if others else first
        look = self._rule.add(before, after, self._clusters.get(case))
        if look is None:
            return
        self.reached = replace(self.reached, look=look.look, n=look.n, place=self._place)
        self._advance(LookReport(describe_look(look)))
        if look.stops:
            self._stop.decide(DECIDED)

    def _measured(self, one: Measure) -> _Scores:
        failed = one.status != "success"
        grades = (one.grades.get(key) for key in self._rule.keys)
        return tuple(_try(grade, failed=failed) for grade in grades)


def describe_look(look: LookResult) -> str:
    """A look in one line: ``after 95 of 492: +0.031 (-0.020 to +0.080), continuing``."""
    shown = look.graders.get(look.primary)
    text = f"after {look.n:,} of {look.of:,}"
    if shown is not None:
        low, high = shown.interval
        text += f": {shown.mean:+.3f} ({low:+.3f} to {high:+.3f})"
    if look.obstacle is not None:
        return f"{text}, continuing: {look.obstacle}"
    return f"{text}, {'continuing' if look.decision == 'undecided' else look.decision.replace('_', ' ')}"


def _try(grade: Grade | GradeMeasure | None, *, failed: bool) -> RepeatScores | None:
    """The score of one repeat; None if the grader does not apply to the case."""
    if grade is not None and grade.outcome is Outcome.NOT_APPLICABLE:
        return None
    score = None if grade is None else grade.score
    return (score,) if failed or score is not None else ()


def _joined(tries: Sequence[RepeatScores | None]) -> RepeatScores | None:
    known = [one for one in tries if one is not None]
    return tuple(chain.from_iterable(known)) if len(known) == len(tries) else None


def _by_case(scores: RunScores) -> dict[str, _Scores]:
    columns: list[Sequence[RepeatScores | None]] = []
    for key, column in scores.graders.items():
        left_out = scores.not_applicable.get(key)
        columns.append(
            column
            if not left_out
            else [None if case in left_out else one for case, one in zip(scores.cases, column, strict=True)]
        )
    return dict(zip(scores.cases, zip(*columns, strict=True), strict=True))


@contextmanager
def early_stopping(storage: Storage, task: RunTask, stop: Stop | None) -> Iterator[tuple[RunTask, Stop | None]]:
    """The task with its cases in random order and with looks, and a stop of this run only.

    Both are as they were where the run does not end early.
    """
    run, early = task.run, task.run.early
    if early is None or early.obstacle is not None or not task.calls_agent:
        yield task, stop
        return
    with ExitStack() as stack:
        samples = task.samples
        if not isinstance(samples, ShuffledSamples):
            samples = stack.enter_context(closing(ShuffledSamples(samples(), run.seed or 0)))
        task = task._replace(samples=samples)
        if early.decides:
            stop = Stop(stop or Stop())
            looks = LookMonitor(storage, run, early, samples.cases, samples.clusters, task.on_progress, stop)
            task = task._replace(on_progress=looks, looks=looks)
        yield task, stop
