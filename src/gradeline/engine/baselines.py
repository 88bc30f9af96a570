"""The answers of another run, for graders that compare with them."""

from __future__ import annotations

from gradeline.engine.grade import Baseline
from gradeline.errors import MissingDataError
from gradeline.model import ErrorInfo, Response, ResponseKey, Sample, Storage, quote, sample_digest


def answers_of(storage: Storage, run_id: str) -> Baseline:
    """What that run answered. A repeat that it does not have is compared with one that it has."""
    run = storage.find_run(run_id)

    def answer(sample: Sample, repeat: int) -> Response:
        record = storage.get_record(ResponseKey(run.id, sample.case_key, repeat % run.repeats))
        case = f"case {quote(sample.case_key)}"
        if record is None:
            raise MissingDataError(f"the baseline {run.id} has no answer to {case}")
        if sample_digest(record.sample) != sample_digest(sample):
            raise MissingDataError(f"{case} was edited since the baseline {run.id} answered it")
        if record.response.error is not None:
            raise MissingDataError(f"the baseline {run.id} failed at {case}: {_told(record.response.error)}")
        return record.response

    return answer


def _told(error: ErrorInfo) -> str:
    return f"{error.type}: {error.message}"
