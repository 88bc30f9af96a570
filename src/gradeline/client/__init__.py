"""A client of the service: `Client` for code that waits, `AsyncClient` for an event loop, the same calls in both."""

from __future__ import annotations

from gradeline.client.asynchronous import AsyncClient
from gradeline.client.blocking import Client
from gradeline.client.errors import ApiError, ServiceUnreachableError, WaitTimeoutError
from gradeline.client.shapes import (
    Bin,
    CaseChange,
    Comparison,
    Evaluation,
    Event,
    Exchange,
    Grader,
    GraderDifference,
    Histograms,
    RankedEvaluation,
    RankedPair,
    RankedScore,
    Ranking,
    Result,
    ResultDetail,
    Score,
    Stopped,
    Summary,
    TestCase,
    Trend,
    TrendPoint,
    Tried,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "Bin",
    "CaseChange",
    "Client",
    "Comparison",
    "Evaluation",
    "Event",
    "Exchange",
    "Grader",
    "GraderDifference",
    "Histograms",
    "RankedEvaluation",
    "RankedPair",
    "RankedScore",
    "Ranking",
    "Result",
    "ResultDetail",
    "Score",
    "ServiceUnreachableError",
    "Stopped",
    "Summary",
    "TestCase",
    "Trend",
    "TrendPoint",
    "Tried",
    "WaitTimeoutError",
]
