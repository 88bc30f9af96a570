"""A client of the REST API: `Client` blocks, `AsyncClient` runs in an event loop; both have the same methods."""

from __future__ import annotations

from gradeline.client.async_client import AsyncClient
from gradeline.client.client import Client
from gradeline.client.errors import ApiError, ServiceUnreachableError, WaitTimeoutError
from gradeline.client.protocol import EvaluationEvent
from gradeline.client.uploads import UploadProgress
from gradeline.model import TestCase
from gradeline.rest_types import (
    Bin,
    CaseChange,
    Evaluation,
    EvaluationComparison,
    EvaluationPair,
    EvaluationScore,
    EvaluationSummary,
    GraderDifference,
    GraderInfo,
    NamedBaseline,
    RankedEvaluation,
    RankedEvaluations,
    Result,
    ResultDetail,
    RunHistograms,
    RunUpload,
    Score,
    ShownExchange,
    SuiteTrend,
    SuiteTrendPoint,
    TrialResult,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "Bin",
    "CaseChange",
    "Client",
    "Evaluation",
    "EvaluationComparison",
    "EvaluationEvent",
    "EvaluationPair",
    "EvaluationScore",
    "EvaluationSummary",
    "GraderDifference",
    "GraderInfo",
    "NamedBaseline",
    "RankedEvaluation",
    "RankedEvaluations",
    "Result",
    "ResultDetail",
    "RunHistograms",
    "RunUpload",
    "Score",
    "ServiceUnreachableError",
    "ShownExchange",
    "SuiteTrend",
    "SuiteTrendPoint",
    "TestCase",
    "TrialResult",
    "UploadProgress",
    "WaitTimeoutError",
]
