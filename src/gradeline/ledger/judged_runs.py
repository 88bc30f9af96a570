"""Record the grades of a judged run in the quality ledger."""

from __future__ import annotations

from collections.abc import Iterator

from gradeline.engine.definition import RunDefinition
from gradeline.engine.judge_breaks import breaks_before, judge_breaks
from gradeline.engine.judge_trust import judge_states
from gradeline.ledger.quality import QualityLedger, response_digest
from gradeline.model import Grade, LLMResponse, Record, Response, ResponseKey, Run, RunGrader, Storage
from gradeline.model.observation import (
    CalibrationState,
    Observation,
    judgement_key,
    new_observation,
    prompt_key,
    task_family,
)


def record_run(storage: Storage, run: Run) -> int:
    """Add every grade of the run that compares with a baseline; returns their number.

    A grade without a score counts as "no verdict". Calling it again adds nothing. The observations have the state that
    the judge has now: a later calibration does not change them.
    """
    return len(QualityLedger(storage).append_many(observations_of(storage, run)))


def observations_of(storage: Storage, run: Run) -> Iterator[Observation]:
    """The observations in a run, in the order of its records."""
    baselines = {key: storage.find_run(name) for key, name in RunDefinition.of(run).baselines.items()}
    states = {key: trust.state for key, trust in judge_states(storage, run).items()}
    judges = {key: observed_judge(storage, run, key) for key in baselines}
    for record in storage.records(run.id):
        for key, baseline in baselines.items():
            grade = record.grades.get(key)
            if grade is not None:
                state = states.get(key, "uncalibrated")
                yield _observation(storage, run, record, key, grade, baseline, state, judges[key])


def observed_judge(storage: Storage, run: Run, key: str) -> str:
    """The ID of a run's judge in the ledger: after a drift it is that of another judge, so that its line breaks."""
    drifts = len(breaks_before(judge_breaks(storage, run.suite, key), run, key))
    return grader_of(run.graders[key]) + (f":drift{drifts}" if drifts else "")


def _observation(
    storage: Storage,
    run: Run,
    record: Record,
    key: str,
    grade: Grade,
    baseline: Run,
    state: CalibrationState,
    judge: str,
) -> Observation:
    other = storage.get_response(ResponseKey(baseline.id, record.case, record.repeat % baseline.repeats))
    return new_observation(
        task_family=task_family(record.sample, run.suite),
        baseline_adapter=adapter_of(baseline),
        candidate_adapter=adapter_of(run),
        grader_id=judge,
        grader_fingerprint=grade.fingerprint,
        score=grade.score,
        baseline_digest=_digest(other),
        candidate_digest=_digest(record.response),
        cost=None if record.response.usage is None else record.response.usage.cost,
        latency_ms=record.response.latency_ms,
        calibration_state=state,
        observed_at=run.started_at,
        idempotency_key=judgement_key(run.id, record.case, record.repeat, key),
        case_key=prompt_key(record.sample.input),
    )


def adapter_of(run: Run) -> str:
    """The adapter ID of a run's target: its kind, with its variant or its model."""
    kind, name = run.target.get("kind") or run.suite, run.variant or run.target.get("model")
    return f"{kind}:{name}" if name else str(kind)


def grader_of(grader: RunGrader) -> str:
    """The ID of a run's judge; runs of earlier releases have the model, but not the judge's version."""
    return grader.judge_id or ":".join((grader.kind, *grader.judges))


def _digest(response: Response | None) -> str:
    """Digest of a response; a failed call counts as an empty one."""
    calls = () if response is None else tuple(call for one in response.steps.messages() for call in one.tool_calls)
    return response_digest(LLMResponse((None if response is None else response.text) or "", tool_calls=calls))
