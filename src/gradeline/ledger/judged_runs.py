"""What a run that judges pairs adds to the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from gradeline.engine.definition import RunDefinition
from gradeline.ledger.quality import QualityLedger, response_digest
from gradeline.model import Grade, LLMResponse, Record, Response, ResponseKey, Run, RunGrader, Storage
from gradeline.model.observation import Observation, judgement_key, new_observation, prompt_key

FAMILY = "task_family"
"""The metadata of a case that says which kind of task it is."""


def record_run(storage: Storage, run: Run) -> int:
    """Add every grade of the run that was made beside a baseline, and give their number.

    A grade without a score is "no verdict". Doing it again adds nothing.
    """
    return len(QualityLedger(storage).append_many(observations_of(storage, run)))


def observations_of(storage: Storage, run: Run) -> Iterator[Observation]:
    """The observations in a run, in the order of its records."""
    compared = {key: storage.find_run(name) for key, name in RunDefinition.of(run).baselines.items()}
    for record in storage.records(run.id):
        for key, baseline in compared.items():
            grade = record.grades.get(key)
            if grade is not None:
                yield _observation(storage, run, record, key, grade, baseline)


def _observation(storage: Storage, run: Run, record: Record, key: str, grade: Grade, baseline: Run) -> Observation:
    other = storage.get_response(ResponseKey(baseline.id, record.case, record.repeat % baseline.repeats))
    family = record.sample.metadata.get(FAMILY)
    return new_observation(
        task_family=str(family) if family else next(iter(record.sample.tags), run.suite),
        baseline_adapter=adapter_of(baseline),
        candidate_adapter=adapter_of(run),
        grader_id=grader_of(run.graders[key]),
        grader_fingerprint=grade.fingerprint,
        score=grade.score,
        baseline_digest=_digest(other),
        candidate_digest=_digest(record.response),
        cost=None if record.response.usage is None else record.response.usage.cost,
        latency_ms=record.response.latency_ms,
        observed_at=run.started_at,
        idempotency_key=judgement_key(run.id, record.case, record.repeat, key),
        case_key=prompt_key(record.sample.input),
    )


def adapter_of(run: Run) -> str:
    """Who answered in a run, as adapters name themselves."""
    kind, model = run.target.get("kind") or run.suite, run.target.get("model")
    return f"{kind}:{model}" if model else str(kind)


def grader_of(grader: RunGrader) -> str:
    """Who judged; runs of earlier releases name the model and not the version of the judge."""
    return grader.judge_id or ":".join((grader.kind, *grader.judges))


def _digest(response: Response | None) -> str:
    """A digest of what was said; a call that failed said nothing."""
    calls = () if response is None else tuple(call for one in response.steps.messages() for call in one.tool_calls)
    return response_digest(LLMResponse((None if response is None else response.text) or "", tool_calls=calls))
