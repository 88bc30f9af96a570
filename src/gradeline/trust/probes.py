"""Probes a judge: its verdicts on stored answers are compared with those on changed copies of them.

The verdicts are those of a run, so that budget, retries, interrupts and storage are those of every run. Its target
returns the changed copies; the agent is never called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gradeline import extractors, graders
from gradeline.engine.aggregate import run_cost
from gradeline.engine.components import UNRESTRICTED, Access, needs_baseline
from gradeline.engine.definition import RunOptions, now
from gradeline.engine.grade import GraderUse
from gradeline.engine.judge_probes import save_probe_report
from gradeline.engine.lifecycle import NO_OBSERVER, Engine, RunObserver, RunSpec, execute_run, local_engine
from gradeline.engine.plan import is_by_turn
from gradeline.engine.prepare import PreparedRun, prepare
from gradeline.engine.validation import read_with_code
from gradeline.engine.variants import suite_of_variant
from gradeline.errors import ConfigError, GradelineError, Problem
from gradeline.graders.base import DEFAULT_EXTRACTOR
from gradeline.judges.base import JudgeGrader
from gradeline.judges.panel import family
from gradeline.judges.selective import first_metadata, stored_confidence
from gradeline.model import (
    AsyncGrader,
    Extractor,
    Grade,
    Record,
    Response,
    ResponseKey,
    Run,
    Sample,
    Storage,
    quote,
)
from gradeline.model.probe import PROBE_NAMES, ProbeFinding, ProbeName, ProbeReport
from gradeline.store.rows import PROBE_RUN, new_run_id
from gradeline.suite.dataset import open_dataset
from gradeline.suite.read import read_suite
from gradeline.suite.spec import GraderSpec, SuiteDefinition
from gradeline.targets.base import DeclaredTarget, Pricing, TargetConfig
from gradeline.trust.gold_answers import (
    GoldAnswers,
    JudgeIdentity,
    KnownVerdict,
    gold_answers,
    known_verdicts,
    labelled_lengths,
)
from gradeline.trust.length_coefficient import length_coefficient
from gradeline.trust.probe_cases import (
    ORIGINAL,
    ProbeAnswer,
    ProbeCase,
    UnusableAnswers,
    choose_answers,
    probe_cases,
)
from gradeline.trust.probe_findings import (
    MISSING,
    JudgedAnswer,
    self_preference_finding,
    without_finding,
)
from gradeline.trust.probe_verdicts import ProbeVerdicts

_LABELLED: frozenset[ProbeName] = frozenset({"length", "self_preference"})
"""The probes that use labels."""
_SEARCHED = 500
"""Runs to look through for one to use."""


class ProbeRequest(NamedTuple):
    """The judge to probe, and with what."""

    suite: Path
    grader: str
    run: str | None = None
    """The run whose answers to change; None: the latest of the suite, else the expected values."""
    baseline: str | None = None
    """For a judge of two answers: the run with the other answers."""
    probes: tuple[ProbeName, ...] = PROBE_NAMES
    pairs: int = 200
    seed: int = 0
    options: RunOptions = RunOptions()
    """Concurrency, budget, prices and overrides."""
    again: bool = False
    """Ask for all verdicts again, even if the same probe was made or begun before."""


class ProbeOutcome(NamedTuple):
    """The findings, or why the probe ended early; then it can be continued."""

    run: Run
    report: ProbeReport | None
    stopped: str | None = None


class AnswerSource(NamedTuple):
    """Where the answers come from."""

    words: str
    run: Run | None


class ProbeDefinition(msgspec.Struct, frozen=True):
    """What a probe's run stores as its definition: the same probe is continued, another one is not."""

    suite: str
    grader: str
    judge: str
    run: str | None
    baseline: str | None
    probes: tuple[ProbeName, ...]
    pairs: int
    seed: int


class ChangedAnswers(DeclaredTarget[TargetConfig]):
    """Returns the answers of a probe by case."""

    kind = "probe"
    name = "Answers of a probe"
    timed = False

    def __init__(self, responses: dict[str, Response]) -> None:
        super().__init__({})
        self._responses = responses

    @property
    def pricing(self) -> Pricing:
        return "free"

    async def call(self, sample: Sample) -> Response:
        return self._responses[sample.case_key]


class PlannedProbe(NamedTuple):
    """A probe before it is run: nothing is stored, and no call is made."""

    spec: RunSpec
    use: GraderUse
    suite: str
    judge: str
    """Fingerprint of the judge, without what it learned from labels."""
    judges: tuple[str, ...]
    source: AnswerSource
    answers: list[ProbeAnswer]
    left_out: dict[str, int]
    cases: list[ProbeCase]
    probes: tuple[ProbeName, ...]
    compares: bool
    request: ProbeRequest

    @property
    def summary(self) -> str:
        """What will be asked of the judge, in words."""
        number = len(self.answers)
        count = f"{len(self.cases):,} verdicts on {number:,} answer{'s' * (number != 1)}"
        return f"{count} from {self.source.words}, and on changed copies"


async def probe_judge(
    storage: Storage, request: ProbeRequest, observer: RunObserver = NO_OBSERVER, engine: Engine = local_engine
) -> ProbeOutcome:
    """Ask for the verdicts and store the findings with the judge."""
    async with plan_probe(storage, request, observer) as planned:
        observer.note(planned.summary)
        executed = await execute_run(storage, planned.spec, None, observer, engine)
        if executed.stopped is not None:
            return ProbeOutcome(executed.run, None, executed.stopped)
        report = _report(storage, planned, executed.run)
        save_probe_report(storage, report)
        return ProbeOutcome(executed.run, report)


@asynccontextmanager
async def plan_probe(
    storage: Storage, request: ProbeRequest, observer: RunObserver = NO_OBSERVER, access: Access = UNRESTRICTED
) -> AsyncIterator[PlannedProbe]:
    """Prepare the judge and the answers; `ConfigError` if the grader is not a judge or there are no answers."""
    suite = await read_with_code(lambda: read_suite(request.suite, request.options.overrides))
    spec = _judge_spec(suite, request.grader)
    suite = suite_of_variant(suite, request.options, required=False)
    suite = msgspec.structs.replace(suite, gate=None, cache=False, reward=None, setup=None)
    compared = needs_baseline(spec)
    source = _source(storage, suite, request.run)
    baseline = _baseline(storage, suite, spec, request, source)
    options = request.options._replace(graders=(spec.key,), samples=())
    other = baseline or source.run
    known = {spec.key: other.id} if compared and other is not None else {}
    async with AsyncExitStack() as resources:
        preparing = prepare(suite, options, storage, calls_agent=False, baselines=known, access=access)
        prepared = await resources.enter_async_context(preparing)
        (use,) = prepared.graders
        if not isinstance(use.grader, AsyncGrader) or not use.grader.judges:
            raise ConfigError(Problem(spec.key, f"calls no model, so there is no judge to probe{_judges_of(suite)}"))
        left_out = UnusableAnswers()
        reading = _AnswerReader(storage, suite, use, baseline, left_out)
        answers = choose_answers(reading.answers(source), request.pairs, request.seed, left_out)
        compares = bool(getattr(use.grader, "both_orders", False))
        probes = tuple(name for name in PROBE_NAMES if name in request.probes)
        cases = list(probe_cases(answers, probes, compares=compares))
        if not cases:
            raise ConfigError(_nothing_to_judge(request, source, answers, left_out.reasons, compares=compares))
        judge = prepared.run_graders()[use.key].calibrated_as
        definition = ProbeDefinition(
            str(suite.file), use.key, judge, None if source.run is None else source.run.id,
            None if baseline is None else baseline.id, probes, request.pairs, request.seed,
        )  # fmt: skip
        ready = _prepared(prepared, use, cases)
        run = None if request.again else _begun(storage, definition, ready)
        new = run is None
        run = _new_run(ready, suite, definition, len(cases)) if run is None else run
        if not new:
            observer.note(f"the same probe was begun or made before, as {run.id}: its verdicts are used")
        run_spec = RunSpec(run, ready, resources, is_stored=not new, samples=lambda: [case.sample for case in cases])
        yield PlannedProbe(
            run_spec,
            use,
            suite.name,
            judge,
            use.grader.judges,
            source,
            answers,
            left_out.reasons,
            cases,
            probes,
            compares,
            request,
        )


def _judge_spec(suite: SuiteDefinition, key: str) -> GraderSpec:
    spec = next((one for one in suite.graders if one.key == key), None)
    if spec is None:
        raise ConfigError(Problem(str(suite.file), f"has no grader {quote(key)}{_judges_of(suite)}"))
    if not _may_judge(spec):
        raise ConfigError(
            Problem(f"graders.{key}", f"calls no model, so there is no judge to probe{_judges_of(suite)}")
        )
    return spec


def _judges_of(suite: SuiteDefinition) -> str:
    keys = [spec.key for spec in suite.graders if _may_judge(spec)]
    return f"; its judges are {', '.join(keys)}" if keys else "; the suite has no judge"


def _may_judge(spec: GraderSpec) -> bool:
    """Whether the grader calls a model, as far as the suite shows."""
    if spec.kind == "baseline" and spec.config.get("judge") != "llm":
        return False
    return spec.function is None and issubclass(graders.registry.get(spec.kind), JudgeGrader)


def _source(storage: Storage, suite: SuiteDefinition, name: str | None) -> AnswerSource:
    run = storage.find_run(name, suite.name) if name is not None else _latest_run(storage, suite.name)
    if run is not None and run.id.startswith(PROBE_RUN):
        raise ConfigError(
            Problem("--run", f"{run.id} is a probe, whose answers were changed; name the run of an agent")
        )
    if run is None:
        return AnswerSource("the expected values of the cases, because the store has no run of the suite", None)
    return AnswerSource(f"the run {run.id} ({run.name})", run)


def _latest_run(storage: Storage, suite: str) -> Run | None:
    """The latest run of the suite that has a response."""
    found = (run for run in storage.list_runs(_SEARCHED) if run.suite == suite)
    return next((run for run in found if any(True for _ in storage.keys_of(run.id))), None)


def _baseline(
    storage: Storage, suite: SuiteDefinition, spec: GraderSpec, request: ProbeRequest, source: AnswerSource
) -> Run | None:
    """The run with the other answers, for a judge that is shown two."""
    if not needs_baseline(spec):
        if request.baseline is not None:
            reason = f"has no effect: {spec.key} judges one answer at a time; leave it out"
            raise ConfigError(Problem("--baseline", reason))
        return None
    name = request.baseline or spec.config.get("baseline")
    if not name and source.run is None:
        reason = "compares two answers, which need a stored run: start one with gradeline run"
        raise ConfigError(Problem(spec.key, reason))
    return storage.find_run(str(name), suite.name) if name else None


def _nothing_to_judge(
    request: ProbeRequest,
    source: AnswerSource,
    answers: Sequence[ProbeAnswer],
    left_out: dict[str, int],
    *,
    compares: bool,
) -> Problem:
    """Why no verdict can be asked for."""
    if not answers:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in left_out.items())
        found = f"{source.words}: no answer that can be changed{f' ({reasons})' if reasons else ''}"
        return Problem(str(request.suite), found)
    if request.probes == ("self_preference",):
        return Problem("--probe", "self_preference uses the verdicts of other probes here; choose another one too")
    nothing = ProbeVerdicts(answers, frozenset(), {}, compares)
    reasons = "; ".join(
        f"{name}: {nothing.finding(name).reason}" for name in request.probes if name != "self_preference"
    )
    return Problem("--probe", f"there is nothing to judge: {reasons}")


class _AnswerReader(NamedTuple):
    """Reads the answers that a judge is probed with."""

    storage: Storage
    suite: SuiteDefinition
    use: GraderUse
    baseline: Run | None
    left_out: UnusableAnswers

    def answers(self, source: AnswerSource) -> Iterator[ProbeAnswer]:
        return self._expected() if source.run is None else self._stored(source.run)

    def _stored(self, run: Run) -> Iterator[ProbeAnswer]:
        for record in self.storage.records(run.id):
            if record.repeat:
                continue  # the repeats of a case are not independent
            reason = self._left_out(record.sample)
            if reason is None and record.response.error is not None:
                reason = "failed call"
            text = self._submission(record) if reason is None else None
            if text is None:
                self.left_out.add(reason or "no submission")
                continue
            yield ProbeAnswer(record.sample, record.response, text, self._other(record.sample))

    def _expected(self) -> Iterator[ProbeAnswer]:
        suite = self.suite
        if suite.dataset.hub_datasets:
            raise ConfigError(Problem("dataset", "is not on this machine yet: run the suite first, with gradeline run"))
        for sample in open_dataset(suite.dataset, tags=suite.tags, limit=suite.limit, folder=suite.folder):
            expected = sample.ground_truth
            reason = self._left_out(sample) or (None if isinstance(expected, str) else "no expected value")
            if reason is not None or not isinstance(expected, str):
                self.left_out.add(reason or "no expected value")
                continue
            yield ProbeAnswer(sample, Response(text=expected), expected)

    def _left_out(self, sample: Sample) -> str | None:
        if is_by_turn(sample):
            return "conversation graded turn by turn"
        if self.use.when is not None and not self.use.when.holds(sample):
            return "case to which the grader does not apply"
        return None

    def _submission(self, record: Record) -> str | None:
        stored = record.submissions.get(self.use.key)
        return self._extracted(record.response) if stored is None else stored

    def _extracted(self, response: Response) -> str | None:
        extractor = self.use.extractor
        if not isinstance(extractor, Extractor):
            return None  # user code, which only a run calls
        try:
            return extractor.extract(response)
        except GradelineError:
            return None

    def _other(self, sample: Sample) -> str | None:
        """Another answer to the case: the baseline's, else the expected value."""
        if self.baseline is None:
            return sample.ground_truth if isinstance(sample.ground_truth, str) else None
        response = self.storage.get_response(ResponseKey(self.baseline.id, sample.case_key, 0))
        return None if response is None or response.error is not None else self._extracted(response)


def _prepared(prepared: PreparedRun, use: GraderUse, cases: Sequence[ProbeCase]) -> PreparedRun:
    """The run of the probe: the judge grades the changed copies as they are."""
    others = {case.key: case.baseline for case in cases if case.baseline is not None}

    def baseline(sample: Sample, _: int) -> Response:
        return Response(text=others.get(sample.case_key))

    judge = use._replace(
        extractor=extractors.create(DEFAULT_EXTRACTOR), baseline=baseline, when=None, expected=use.expected
    )
    target = ChangedAnswers({case.key: case.response for case in cases})
    options = prepared.options._replace(samples=tuple(case.key for case in cases))
    return prepared._replace(graders=(judge,), target=target, options=options)


def _new_run(prepared: PreparedRun, suite: SuiteDefinition, definition: ProbeDefinition, total: int) -> Run:
    name = f"probe of {definition.grader}"
    run = prepared.new_run(name, seed=definition.seed)
    text = msgspec.json.encode(definition).decode()
    return msgspec.structs.replace(
        run,
        id=f"{PROBE_RUN}{new_run_id()}",
        suite=f"{suite.name}: {name}",
        definition=text,
        total=total,
        repeats=1,
        warnings=(),
    )


def _begun(storage: Storage, definition: ProbeDefinition, prepared: PreparedRun) -> Run | None:
    """The run of the same probe of the same judge, if it was begun before."""
    text = msgspec.json.encode(definition).decode()
    fingerprints = {key: one.fingerprint for key, one in prepared.run_graders().items()}
    for run in storage.list_runs(_SEARCHED):
        if not run.id.startswith(PROBE_RUN) or run.definition != text or run.status == "running":
            continue
        if {key: one.fingerprint for key, one in run.graders.items()} == fingerprints:
            return run
    return None


def _report(storage: Storage, planned: PlannedProbe, run: Run) -> ProbeReport:
    judged = judged_answers(storage, run, planned.use.key, compares=planned.compares)
    verdicts = ProbeVerdicts(planned.answers, frozenset(case.key for case in planned.cases), judged, planned.compares)
    request = planned.request
    return ProbeReport(
        suite=planned.suite,
        grader=planned.use.key,
        judges=planned.judges,
        judge=planned.judge,
        at=now(),
        source=planned.source.words,
        run=None if planned.source.run is None else planned.source.run.id,
        probe_run=run.id,
        seed=request.seed,
        pairs=request.pairs,
        answers=len(planned.answers),
        left_out=planned.left_out,
        verdicts=len(planned.cases),
        errors=sum(1 for case in planned.cases if judged.get(case.key, MISSING).value is None),
        cost=run_cost(storage, run.id).judges,
        findings=tuple(_findings(storage, planned, verdicts)),
    )


def judged_answers(storage: Storage, run: Run, key: str, *, compares: bool) -> dict[str, JudgedAnswer]:
    """The verdicts of a probe's run, by the keys of its cases."""
    records = storage.records(run.id)
    return {one.case: judged_answer(one.grades[key], compares=compares) for one in records if key in one.grades}


def judged_answer(grade: Grade, *, compares: bool) -> JudgedAnswer:
    """The judge's own verdict in a grade, also where it did not count because the judge was not sure of it.

    Of a judge of two answers the difference, also where the order decided.
    """
    own = stored_confidence(grade.metadata)
    score, passed = (grade.score, grade.passed) if own is None else (own.score, own.passed)
    if not compares:
        return JudgedAnswer(score, passed)
    metadata = first_metadata(grade.metadata)
    difference = metadata.get("difference")
    if isinstance(difference, bool) or not isinstance(difference, int | float):
        return MISSING
    favoured = metadata.get("favoured")
    position: Literal["first", "second"] | None = favoured if favoured in ("first", "second") else None
    return JudgedAnswer(float(difference), passed, position)


def _findings(storage: Storage, planned: PlannedProbe, verdicts: ProbeVerdicts) -> Iterator[ProbeFinding]:
    labelled: list[KnownVerdict] = []
    judge = JudgeIdentity(planned.suite, planned.use.key, planned.judge, planned.judges)
    if _LABELLED.intersection(planned.probes):
        labelled = known_verdicts(storage, judge, _own_verdicts(planned, verdicts))
    for probe in planned.probes:
        if probe == "self_preference":
            yield _self_preference(gold_answers(storage, judge, labelled), planned.judges)
        elif probe == "length":
            yield _with_length_coefficient(verdicts.finding(probe), labelled)
        else:
            yield verdicts.finding(probe)


def _own_verdicts(planned: PlannedProbe, verdicts: ProbeVerdicts) -> Callable[[str, str], JudgedAnswer]:
    """The verdicts of the probe on the unchanged answers, by run and case."""
    source = planned.source.run

    def verdict(run: str, case: str) -> JudgedAnswer:
        if planned.compares or source is None or source.id != run:
            return MISSING
        return verdicts.judged.get(f"{ORIGINAL}: {case}", MISSING)

    return verdict


def _self_preference(gold: GoldAnswers, judges: Sequence[str]) -> ProbeFinding:
    if not gold.answers:
        reason = (
            "no answer has both a known quality (a label, or the score of a grader without a model) and a known writer"
            " (the model of its run, or the metadata key producer of its case)"
        )
        return without_finding("self_preference", "not_enough_data", reason)
    return self_preference_finding(gold.answers, " or ".join(sorted(set(map(family, judges)))), gold.gold)


def _with_length_coefficient(finding: ProbeFinding, labelled: Sequence[KnownVerdict]) -> ProbeFinding:
    """The finding with the influence of the length on labelled answers, if there are labels."""
    coefficient = length_coefficient(labelled_lengths(labelled))
    if coefficient is None:
        return finding
    numbers = {
        "length_coefficient": coefficient.coefficient,
        "length_z": coefficient.z,
        "length_labels": coefficient.n,
    }
    given = f"on {coefficient.n} labelled answers, length given the label has z {coefficient.z:+.1f}"
    sentence = f"{finding.sentence}; {given}"
    return msgspec.structs.replace(finding, sentence=sentence, details={**finding.details, **numbers})
