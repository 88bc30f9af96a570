"""Comparisons over REST: of two evaluations, of several, and of one suite over time."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gradeline.analysis.ranking import FEWEST
from gradeline.analysis.trend import LAST
from gradeline.errors import ConfigError
from gradeline.rest_types import EvaluationComparison, RankedEvaluations, SuiteTrend
from gradeline.service.auth import KeyScope, requires
from gradeline.service.comparisons import Excerpts, compare_runs, rank_runs, suite_trend
from gradeline.service.errors import Code, ServiceError
from gradeline.service.openapi import document_responses
from gradeline.service.requests import require_clean
from gradeline.service.responses import success
from gradeline.service.results import Results
from gradeline.service.service import service_of
from gradeline.verdict.paired_decision import MARGIN

# must come before the route of an evaluation by id
router = APIRouter(prefix="/api/evaluations", tags=["results"])

_EXAMPLE: dict[str, Any] = {
    "baseline_id": "7d4cka529f5x",
    "candidate_id": "b0d0t8f063ac",
    "comparability": {"comparable": True, "reasons": []},
    "margin": 0.02,
    "decision": "undecided",
    "sentence": "undecided (string-match)",
    "primary": ["string-match"],
    "warnings": [],
    "graders": {
        "string-match": {
            "difference": 0.02,
            "low": -0.01,
            "high": 0.06,
            "decision": "undecided",
            "n": 100,
            "reasons": [
                "a loss above 0.01 is ruled out",
                "963 cases in all (863 more) settle it with a power of 80 % if both are equally good",
            ],
            "cases_to_decide": 963,
            "coverage": 1.0,
            "bounds_low": 0.02,
            "bounds_high": 0.02,
            "baseline": 0.9,
            "candidate": 0.92,
            "p_value": 0.375,
            "p_adjusted": 0.375,
            "test": "mcnemar_mid_p",
            "noise_threshold": 0.0434,
            "noise": 0.0,
            "within_noise": 0,
            "skewed": False,
            "largest_drops": [{"case": "5b0d2c5e-9d0f-4f0e-8f0e-2f0c1d7c9a11", "baseline": 1.0, "candidate": 0.0}],
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
            "changes": {"string-match": "improved"},
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


@router.get("/compare", responses=document_responses(EvaluationComparison, errors=(400, 404, 409), example=_EXAMPLE))
@requires(KeyScope.READ)
def compare_evaluations(
    request: Request,
    baseline: Annotated[str, Query(description="The id of the baseline, or its name as a baseline.")],
    candidate: Annotated[str, Query(description="The id of the candidate, or its name as a baseline.")],
    suite: Annotated[
        str | None,
        Query(max_length=1000, description="The suite of a baseline's name; by default that of the candidate."),
    ] = None,
    force: Annotated[bool, Query(description="Compare even if the graders differ.")] = False,
    margin: Annotated[float, Query(ge=0, le=1, description="Mean loss that still counts as not worse.")] = MARGIN,
) -> Response:
    """Compare two evaluations, paired by case: the candidate is better, not worse, worse, or it is undecided.

    Evaluations that are not comparable are compared only with `force`: `comparability` has the reasons.
    """
    service = service_of(request)
    require_clean([suite], "suite")
    first, second = service.baselines.find_pair(baseline, candidate, suite or None)
    excerpts = Excerpts(service.database)
    return success(compare_runs(service.storage, excerpts, first, second, margin=margin, force=force))


_RANKED: dict[str, Any] = {
    "comparability": {"comparable": True, "reasons": []},
    "margin": 0.02,
    "cases": 100,
    "left_out": 0,
    "edited": [],
    "primary": ["string-match"],
    "noise": {"string-match": 0.0},
    "warnings": [],
    "best": ["b0d0t8f063ac"],
    "sentence": "best by string-match: 'large'",
    "evaluations": [
        {
            "evaluation_id": "b0d0t8f063ac",
            "name": "large",
            "cost_per_case": 0.002,
            "cost_unknown": 0,
            "latency_ms": {"mean": 812.0, "p50": 790.0, "p95": 1200.0, "p99": 1400.0},
            "on_front": True,
            "scores": {
                "string-match": {
                    "mean": 0.92,
                    "low": 0.85,
                    "high": 0.96,
                    "rank_best": 1,
                    "rank_worst": 1,
                    "scored": 100,
                    "total": 100,
                }
            },
        }
    ],
    "pairs": {
        "string-match": [
            {
                "baseline_id": "7d4cka529f5x",
                "candidate_id": "b0d0t8f063ac",
                "difference": 0.12,
                "low": 0.02,
                "high": 0.22,
                "p_value": 0.002,
                "p_adjusted": 0.006,
                "decision": "better",
                "winner_id": "b0d0t8f063ac",
            }
        ]
    },
}
_MAX_EVALUATIONS = 50
"""Maximum number of evaluations in a ranking, which compares every pair."""


@router.get("/ranking", responses=document_responses(RankedEvaluations, example=_RANKED))
@requires(KeyScope.READ)
def rank_evaluations(
    request: Request,
    ids: Annotated[str, Query(max_length=5000, description="Three or more ids, separated by commas.")],
    force: Annotated[bool, Query(description="Compare even if the graders differ.")] = False,
    margin: Annotated[float, Query(ge=0, le=1, description="Mean loss that still counts as not worse.")] = MARGIN,
) -> Response:
    """Rank three or more evaluations on the cases that all of them have; uncertain differences are ties.

    Evaluations that are not comparable are compared only with `force`: `comparability` has the reasons.
    """
    wanted = [id_.strip() for id_ in ids.split(",") if id_.strip()]
    twice = sorted({id_ for id_ in wanted if wanted.count(id_) > 1})
    if twice:
        raise ServiceError(Code.INVALID_INPUT, f"ids: {', '.join(twice)} is listed twice; list each evaluation once")
    if not FEWEST <= len(wanted) <= _MAX_EVALUATIONS:
        raise ServiceError(
            Code.INVALID_INPUT, f"ids: expected {FEWEST} to {_MAX_EVALUATIONS} evaluations, got {len(wanted)}"
        )
    service = service_of(request)
    results: Results = service.results
    runs = [results.run(id_) for id_ in wanted]
    return success(rank_runs(service.storage, runs, margin=margin, force=force))


_TREND: dict[str, Any] = {
    "suite": "capitals",
    "grader": "string-match",
    "runs": 1,
    "points": [
        {
            "evaluation_id": "7d4cka529f5x",
            "name": "capitals",
            "started_at": "2026-11-16T09:00:00Z",
            "mean": 0.9,
            "low": 0.82,
            "high": 0.94,
            "scored": 100,
            "total": 100,
            "cost": 0.2,
            "cost_unknown": 0,
            "latency_ms": {"mean": 812.0, "p50": 790.0, "p95": 1200.0, "p99": 1400.0},
            "segment": 0,
            "changes": [],
            "reasons": [],
        }
    ],
}


@router.get("/trend", responses=document_responses(SuiteTrend, example=_TREND))
@requires(KeyScope.READ)
def trend_of_suite(
    request: Request,
    suite: Annotated[str, Query(min_length=1, max_length=1000, description="The name of the suite.")],
    grader: Annotated[
        str | None, Query(max_length=1000, description="The grader; by default the primary one of the newest.")
    ] = None,
    last: Annotated[int, Query(ge=1, le=200, description="Number of the newest evaluations.")] = LAST,
) -> Response:
    """The evaluations of one suite over time, the oldest first.

    A new `segment` begins where the grader changed: means are comparable only within one.
    """
    try:
        return success(suite_trend(service_of(request).storage, suite, grader, last))
    except ConfigError as error:
        raise ServiceError(Code.NOT_FOUND, str(error)) from None
