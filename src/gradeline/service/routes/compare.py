"""Two evaluations compared over REST."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gradeline.service.access import Scope, requires
from gradeline.service.comparisons import Compared, compared
from gradeline.service.documented import documented
from gradeline.service.envelope import success
from gradeline.service.excerpts import Excerpts
from gradeline.service.results import Results
from gradeline.service.state import service_of
from gradeline.verdict.comparison import MARGIN

# Its path must be looked at before that of an evaluation by its id.
router = APIRouter(prefix="/api/evaluations", tags=["results"])

_EXAMPLE: dict[str, Any] = {
    "baseline_id": "7d4cka529f5x",
    "candidate_id": "b0d0t8f063ac",
    "comparability": {"comparable": True, "reasons": []},
    "margin": 0.02,
    "decision": "undecided",
    "graders": {
        "string-match": {
            "difference": 0.02,
            "low": -0.01,
            "high": 0.06,
            "decision": "undecided",
            "n": 100,
            "cases_to_decide": 430,
            "baseline": 0.9,
            "candidate": 0.92,
            "p_value": 0.5,
            "p_adjusted": 0.5,
            "improved": 3,
            "worse": 1,
            "same": 96,
            "missing": 0,
        }
    },
    "cases": [
        {
            "test_case_id": "1c7c9c0e-2f5a-4f0e-9a70-6c1f6f0b9d55",
            "change": "improved",
            "baseline": {"string-match": 0.0},
            "candidate": {"string-match": 1.0},
            "input": "What is the capital of France?",
            "baseline_output": "Lyon",
            "candidate_output": "Paris",
        }
    ],
    "case_counts": {"improved": 3, "worse": 1, "mixed": 0, "same": 96, "missing": 0, "edited": 0},
    "cases_omitted": 0,
}


@router.get("/compare", responses=documented(Compared, example=_EXAMPLE))
@requires(Scope.READ)
def compare_evaluations(
    request: Request,
    baseline: Annotated[str, Query(description="The id of the evaluation to compare with.")],
    candidate: Annotated[str, Query(description="The id of the evaluation that may be better or worse.")],
    force: Annotated[bool, Query(description="Compare even where the graders differ.")] = False,
    margin: Annotated[float, Query(ge=0, le=1, description="How much worse on average is still not worse.")] = MARGIN,
) -> Response:
    """Is the candidate better than the baseline, not worse, worse, or is it undecided? Paired by case.

    Evaluations that are not comparable are not compared, unless that is forced: `comparability` says why.
    """
    service = service_of(request)
    results: Results = service.results
    first, second = results.run(baseline), results.run(candidate)
    excerpts = Excerpts(service.database)
    return success(compared(service.storage, excerpts, first, second, margin=margin, force=force))
