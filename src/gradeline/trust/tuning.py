"""Finds a better rubric for a judge: candidates grade the labelled answers of a run, and are compared on the labels.

The verdicts are those of a run whose target returns the stored answers, so that budget, retries, interrupts and storage
are those of every run; the agent is never called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from gradeline import graders
from gradeline.engine.aggregate import run_cost
from gradeline.engine.definition import RunDefinition, RunOptions, now
from gradeline.engine.lifecycle import NO_OBSERVER, Engine, RunObserver, RunSpec, execute_run, local_engine
from gradeline.engine.orchestrate import suite_of_run
from gradeline.engine.prepare import PreparedRun, prepare
from gradeline.engine.variants import suite_of_variant
from gradeline.errors import ConfigError, Problem
from gradeline.graders.base import as_text
from gradeline.judges.base import JudgeEndpoint, JudgeGrader
from gradeline.judges.model_judge import ModelJudge
from gradeline.judges.options import SELECTIVE_OPTIONS
from gradeline.model import Record, ResponseKey, Run, Storage, fingerprint, quote
from gradeline.model.label import ReferenceLabel
from gradeline.model.response import Usage
from gradeline.store.rows import PROBE_RUN, new_run_id
from gradeline.store.trust_records import TrustRecord, latest_record, put_record
from gradeline.suite.spec import GraderSpec, SuiteDefinition
from gradeline.trust.calibration_data import judged_graders, read_labels
from gradeline.trust.probes import ChangedAnswers
from gradeline.trust.rubric_choice import RubricChoice, RubricVerdicts, choose_rubric, shortage, split_groups
from gradeline.trust.rubric_proposals import Disagreement, propose_rubrics

OWN = "suite"
"""The name of the rubric that the suite has."""
PROPOSED_RECORD = "proposed_rubrics"
_REPLACED = ("prompt", "prompt_path", "rubric", *SELECTIVE_OPTIONS)
"""Options of the grader that a candidate does not have."""
_SEARCHED = 500
"""Runs to look through for one to continue."""


class TuneRequest(NamedTuple):
    """The judge to improve, and the rubrics to try."""

    run: str
    grader: str | None = None
    question: str | None = None
    """The question that the labels answer; None: that of the grader."""
    rubrics: Mapping[str, str] = {}
    """Rubrics by name."""
    propose: int = 0
    """Number of rubrics that a model proposes; it sees half of the labels, and the rubrics are compared on the rest."""
    seed: int = 0
    options: RunOptions = RunOptions()
    """Concurrency, budget and prices."""


class TuneReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which rubric to use."""

    suite: str
    grader: str
    question: str
    run: str
    tune_run: str
    at: str
    choice: RubricChoice
    rubrics: dict[str, str]
    """The text of each rubric."""
    shown: int
    """Labels that the model saw that proposed rubrics; these take no further part."""
    cost: float | None
    """Of the verdicts; None if unknown."""
    proposal_usage: Usage | None = None


class TuneOutcome(NamedTuple):
    """The report, or why tuning ended early; then the same request continues it."""

    run: Run
    report: TuneReport | None
    stopped: str | None = None


class TuneDefinition(msgspec.Struct, frozen=True):
    """What the run of a tuning stores as its definition: the same request continues it."""

    suite: str
    grader: str
    question: str
    run: str
    rubrics: dict[str, str]
    cases: str
    """Digest of the labelled results."""


class _Labelled(NamedTuple):
    """A labelled result that the judge has graded."""

    label: ReferenceLabel
    passed: bool
    group: str
    """Its cluster, else its case."""


class _Proposed(msgspec.Struct, frozen=True):
    rubrics: dict[str, str] = {}
    usage: Usage | None = None


class _Tuning(NamedTuple):
    """A request with what it refers to."""

    storage: Storage
    request: TuneRequest
    run: Run
    key: str
    question: str
    suite: SuiteDefinition
    spec: GraderSpec
    definition: RunDefinition

    @property
    def options(self) -> RunOptions:
        stored, asked = self.definition.options, self.request.options
        return stored._replace(
            budget=asked.budget,
            concurrency=asked.concurrency or stored.concurrency,
            prices=asked.prices or stored.prices,
            graders=(),
            output=None,
            repeats=1,
            samples=(),
        )


async def tune_judge(
    storage: Storage, request: TuneRequest, observer: RunObserver = NO_OBSERVER, engine: Engine = local_engine
) -> TuneOutcome:
    """Judge the labelled answers with each rubric, and compare the rubrics; `ConfigError` if that is impossible."""
    tuning = _open(storage, request)
    labelled = _labelled(tuning)
    groups = [one.group for one in labelled]
    shown = split_groups(groups, request.seed) if request.propose else [False] * len(labelled)
    compared = [one for one, seen in zip(labelled, shown, strict=True) if not seen]
    _require_labels(tuning, compared, halved=bool(request.propose))
    proposed = _Proposed()
    if request.propose:
        proposed = await _propose(tuning, [one for one, seen in zip(labelled, shown, strict=True) if seen], observer)
    rubrics = {**request.rubrics, **proposed.rubrics}
    if not rubrics:
        raise ConfigError(Problem("--rubric", "is required: name a file with a rubric to try, or use --propose 3"))
    async with _planned(tuning, rubrics, compared, observer) as spec:
        own = _own_rubric(spec.prepared)
        executed = await execute_run(storage, spec, None, observer, engine)
    if executed.stopped is not None:
        return TuneOutcome(executed.run, None, executed.stopped)
    choice = _choose(tuning, executed.run, [OWN, *rubrics], compared)
    report = TuneReport(
        suite=tuning.run.suite,
        grader=tuning.key,
        question=tuning.question,
        run=tuning.run.id,
        tune_run=executed.run.id,
        at=now(),
        choice=choice,
        rubrics={OWN: own, **rubrics},
        shown=sum(shown),
        cost=run_cost(storage, executed.run.id).judges,
        proposal_usage=proposed.usage,
    )
    return TuneOutcome(executed.run, report)


def _open(storage: Storage, request: TuneRequest) -> _Tuning:
    run = storage.find_run(request.run)
    judged = judged_graders(run, [] if request.grader is None else [request.grader])
    if len(judged) > 1:
        raise ConfigError(
            Problem("--grader", f"run {run.id} has several graders with a judge: name one of {', '.join(judged)}")
        )
    (key,) = judged
    definition = RunDefinition.of(run)
    suite = suite_of_variant(suite_of_run(definition), definition.options, required=False)
    spec = next((one for one in suite.graders if one.key == key), None)
    if spec is None:
        raise ConfigError(Problem("--grader", f"the suite no longer has the grader {quote(key)}"))
    declaration = graders.registry.get(spec.kind)
    replaceable = issubclass(declaration, JudgeGrader) and "prompt_path" in declaration.option_names()
    if spec.function is not None or not replaceable:
        raise ConfigError(Problem(f"graders.{key}", f"the kind {spec.kind} has no rubric that can be replaced"))
    own = {OWN} & set(request.rubrics)
    if own:
        raise ConfigError(Problem("--rubric", f"the name {OWN!r} is that of the suite's own rubric; use another one"))
    return _Tuning(storage, request, run, key, request.question or key, suite, spec, definition)


def _labelled(tuning: _Tuning) -> list[_Labelled]:
    """The labelled results that the judge has graded, whether or not it gave a verdict."""
    data = read_labels(tuning.storage, tuning.run, tuning.key, tuning.question)
    clusters = tuning.storage.clusters(tuning.run.id)
    return [
        _Labelled(label, passed, clusters.get(label.case, f"case {label.case}")) for label, passed, _ in data.grades
    ]


def _require_labels(tuning: _Tuning, compared: Sequence[_Labelled], *, halved: bool) -> None:
    reason = shortage([one.passed for one in compared])
    if reason is None:
        return
    half = " (the other half is shown to the model that proposes)" if halved else ""
    remedy = f"gradeline label {tuning.run.id} --grader {tuning.key} --sample 100"
    raise ConfigError(Problem("labels", f"{reason}{half}; label more with: {remedy}"))


async def _propose(tuning: _Tuning, shown: Sequence[_Labelled], observer: RunObserver) -> _Proposed:
    """The rubrics that a model proposes; those of the same request are not paid again."""
    results = [(one.label.case, one.label.repeat, one.passed) for one in shown]
    asked = fingerprint("proposed", tuning.spec.config, results, tuning.request.propose, tuning.request.seed)
    stored = latest_record(tuning.storage, PROPOSED_RECORD, suite=tuning.run.suite, grader=tuning.key, judge=asked)
    if stored is not None:
        return msgspec.json.decode(stored.body, type=_Proposed)
    async with _prepared(tuning, [tuning.spec]) as prepared:
        grader = prepared.graders[0].grader
        if not isinstance(grader, ModelJudge):
            raise ConfigError(
                Problem("--propose", f"needs a grader of kind model_judge, and {quote(tuning.key)} is a {grader.kind}")
            )
        disagreements = [found for one in shown if (found := _disagreement(tuning, one)) is not None]
        if not disagreements:
            raise ConfigError(
                Problem("--propose", f"the judge agrees with all {len(shown)} labels that the model would be shown")
            )
        observer.note(f"asking {grader.judges[0]} for {tuning.request.propose} rubrics")
        adapter = JudgeEndpoint.of(grader.options).adapter(grader.resources)
        try:
            proposals = await propose_rubrics(
                adapter, grader.options.model or "", grader.rubric.whole_text, disagreements, tuning.request.propose
            )
        finally:
            close = getattr(adapter, "aclose", None)
            if close is not None:
                await close()
    named = {f"proposal {number}": text for number, text in enumerate(proposals.rubrics, 1)}
    proposed = _Proposed(named, proposals.usage)
    body = msgspec.json.encode(proposed).decode()
    put_record(tuning.storage, TrustRecord(PROPOSED_RECORD, tuning.run.suite, tuning.key, asked, now(), body))
    return proposed


def _disagreement(tuning: _Tuning, one: _Labelled) -> Disagreement | None:
    record = _record(tuning.storage, tuning.run, one.label)
    grade = None if record is None else record.grades.get(tuning.key)
    if record is None or grade is None or grade.passed is None or grade.passed is one.passed:
        return None
    answer = record.submissions.get(tuning.key) or record.response.text or ""
    return Disagreement(as_text(record.sample.input) or "", answer, one.passed, grade.rationale)


@asynccontextmanager
async def _planned(
    tuning: _Tuning, rubrics: Mapping[str, str], compared: Sequence[_Labelled], observer: RunObserver
) -> AsyncIterator[RunSpec]:
    """The run that judges the labelled results with each rubric, or the one that the same request began."""
    storage, parent = tuning.storage, tuning.run
    specs = [tuning.spec, *(_with_rubric(tuning.spec, name, text) for name, text in rubrics.items())]
    specs[0] = msgspec.structs.replace(specs[0], key=OWN, config=_without(specs[0].config, SELECTIVE_OPTIONS))
    records = [record for one in compared if (record := _record(storage, parent, one.label)) is not None]
    samples = [msgspec.structs.replace(record.sample, id=_case_of(record.case, record.repeat)) for record in records]
    responses = {sample.case_key: record.response for sample, record in zip(samples, records, strict=True)}
    definition = TuneDefinition(
        str(tuning.suite.file), tuning.key, tuning.question, parent.id, dict(rubrics), fingerprint(sorted(responses))
    )
    async with AsyncExitStack() as resources:
        prepared = await resources.enter_async_context(_prepared(tuning, specs))
        options = prepared.options._replace(samples=tuple(responses))
        prepared = prepared._replace(target=ChangedAnswers(responses), options=options)
        begun = _begun(storage, definition, prepared)
        run = _new_run(tuning, prepared, definition, len(samples)) if begun is None else begun
        if begun is not None:
            observer.note(f"the same rubrics were compared before, or begun, in {run.id}: its verdicts are used")
        else:
            observer.note(f"{len(specs)} rubrics judge {len(samples):,} labelled answers of the run {parent.id}")
        yield RunSpec(run, prepared, resources, is_stored=begun is not None, samples=lambda: samples)


def _case_of(case: str, repeat: int) -> str:
    """The ID in the run of the rubrics: there each repeat is a case."""
    return f"{case} #{repeat}" if repeat else case


@asynccontextmanager
async def _prepared(tuning: _Tuning, specs: Sequence[GraderSpec]) -> AsyncIterator[PreparedRun]:
    suite = msgspec.structs.replace(
        tuning.suite, graders=tuple(specs), gate=None, reward=None, setup=None, cache=False, primary=()
    )
    baselines = {spec.key: run for spec in specs for run in tuning.definition.baselines.values()}
    async with prepare(suite, tuning.options, tuning.storage, calls_agent=False, baselines=baselines) as prepared:
        yield prepared


def _with_rubric(spec: GraderSpec, name: str, text: str) -> GraderSpec:
    return msgspec.structs.replace(spec, key=name, config={**_without(spec.config, _REPLACED), "prompt": text})


def _without(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def _own_rubric(prepared: PreparedRun) -> str:
    grader = prepared.graders[0].grader
    return grader.rubric.whole_text if isinstance(grader, ModelJudge) else ""


def _new_run(tuning: _Tuning, prepared: PreparedRun, definition: TuneDefinition, cases: int) -> Run:
    name = f"rubrics of {tuning.key}"
    run = prepared.new_run(name)
    return msgspec.structs.replace(
        run,
        id=f"{PROBE_RUN}{new_run_id()}",
        suite=f"{tuning.run.suite}: {name}",
        definition=msgspec.json.encode(definition).decode(),
        total=cases,
        repeats=1,
        warnings=(),
    )


def _begun(storage: Storage, definition: TuneDefinition, prepared: PreparedRun) -> Run | None:
    text = msgspec.json.encode(definition).decode()
    fingerprints = {key: one.fingerprint for key, one in prepared.run_graders().items()}
    for run in storage.list_runs(_SEARCHED):
        if run.definition != text or run.status == "running" or not run.id.startswith(PROBE_RUN):
            continue
        if {key: one.fingerprint for key, one in run.graders.items()} == fingerprints:
            return run
    return None


def _choose(tuning: _Tuning, run: Run, names: Sequence[str], compared: Sequence[_Labelled]) -> RubricChoice:
    keys = [ResponseKey(run.id, _case_of(one.label.case, one.label.repeat)) for one in compared]
    records = [tuning.storage.get_record(key) for key in keys]
    verdicts = [
        RubricVerdicts(
            name, [None if one is None or name not in one.grades else one.grades[name].passed for one in records]
        )
        for name in names
    ]
    labels, groups = [one.passed for one in compared], [one.group for one in compared]
    try:
        return choose_rubric(labels, groups, verdicts, seed=tuning.request.seed)
    except ValueError as error:
        raise ConfigError(Problem("labels", str(error))) from None


def _record(storage: Storage, run: Run, label: ReferenceLabel) -> Record | None:
    return storage.get_record(ResponseKey(run.id, label.case, label.repeat))
