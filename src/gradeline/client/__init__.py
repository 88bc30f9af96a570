"""A client of the service: `Client` for code that waits, `AsyncClient` for an event loop, the same calls in both."""

from __future__ import annotations

from gradeline.client.asynchronous import AsyncClient
from gradeline.client.blocking import Client
from gradeline.client.errors import ApiError, ServiceUnreachableError, WaitTimeoutError
from gradeline.client.shapes import (
    CaseChange,
    Comparison,
    Evaluation,
    Event,
    Grader,
    GraderDifference,
    Result,
    ResultDetail,
    Score,
    Summary,
    TestCase,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "CaseChange",
    "Client",
    "Comparison",
    "Evaluation",
    "Event",
    "Grader",
    "GraderDifference",
    "Result",
    "ResultDetail",
    "Score",
    "ServiceUnreachableError",
    "Summary",
    "TestCase",
    "WaitTimeoutError",
]
