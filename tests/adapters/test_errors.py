"""Which errors are permanent, with each provider's error texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from gradeline.adapters import AdapterSettings, ChatAdapter, ChatRequest, ModelError, RunConfig, create
from gradeline.adapters.errors import ErrorReport, parse_error_text
from gradeline.errors import Fault, response_policy
from gradeline.model import Message
from gradeline.testing.fake_judge import FakeJudge
from gradeline.transport import Backoff

Serve = Callable[..., Any]
MakeAdapter = Callable[..., ChatAdapter]

CONFIG = RunConfig(model="m")
QUICK = AdapterSettings(backoff=Backoff(base_s=0.001, cap_s=0.002, random=Random(7)))
PROVIDERS = ["openai", "openai_responses", "anthropic", "gemini"]
LIMITS = "generativelanguage.googleapis.com/generate_content_free_tier_requests"


def violation(quota: str, value: str = "250") -> dict[str, Any]:
    dimensions = {"location": "global", "model": "gemini-flash"}
    return {"quotaMetric": LIMITS, "quotaId": quota, "quotaDimensions": dimensions, "quotaValue": value}


def exhausted(*violations: dict[str, Any], message: str = "You exceeded your current quota.") -> dict[str, Any]:
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": list(violations)},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0s"},
    ]
    return {"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details}}


def anthropic(kind: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": "req_1"}


def failure(adapter: ChatAdapter) -> ModelError:
    with pytest.raises(ModelError) as caught:
        adapter.complete("hi", CONFIG)
    return caught.value


BY_DAY = violation("GenerateRequestsPerDayPerProjectPerModel-FreeTier")
BY_MINUTE = violation("GenerateRequestsPerMinutePerProjectPerModel-FreeTier")
USED_UP = [
    pytest.param("openai", 429, {"error": {"message": "x", "code": "insufficient_quota"}}, id="openai"),
    pytest.param("openai", 429, {"error": {"message": "x", "code": None, "type": "insufficient_quota"}}, id="by-type"),
    pytest.param("openai", 429, {"error": {"message": "x", "code": "billing_not_active"}}, id="inactive"),
    pytest.param("openai", 402, {"error": {"message": "Insufficient credits", "code": 402}}, id="gateway"),
    pytest.param(
        "anthropic", 400, anthropic("invalid_request_error", "Your credit balance is too low to go on."), id="credit"
    ),
    pytest.param(
        "anthropic",
        400,
        anthropic("invalid_request_error", "You have reached your specified workspace API usage limits. You will …"),
        id="spend-limit",
    ),
    pytest.param(
        "anthropic",
        429,
        anthropic("rate_limit_error", "x", details={"error_code": "enforced_spend_limit_reached"}),
        id="spend-limit-429",
    ),
    pytest.param("anthropic", 402, anthropic("billing_error", "Billing error"), id="billing"),
    pytest.param("gemini", 429, exhausted(BY_MINUTE, BY_DAY), id="by-the-day"),
    pytest.param("gemini", 429, exhausted(violation("PerMinute-FreeTier", "0")), id="not-in-the-plan"),
    pytest.param("gemini", 429, exhausted(message="Your prepayment credits are depleted."), id="prepaid"),
    pytest.param("gemini", 429, exhausted(message="You passed your monthly spending cap."), id="cap"),
]


class TestQuota:
    @pytest.mark.parametrize(("provider", "status", "body"), USED_UP)
    def test_an_exhausted_account_is_called_once(
        self, provider: str, status: int, body: Any, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(body, status))
        failed = failure(adapter(server, provider))
        assert (len(server.seen), failed.type, failed.http_status, failed.obstacle) == (1, "quota", status, "quota")
        assert (failed.retryable, failed.unbilled) == (False, True)

    def test_a_limit_per_minute_is_retried(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(exhausted(BY_MINUTE), 429))
        failed = failure(adapter(server, "gemini"))
        assert (len(server.seen), failed.type, failed.obstacle) == (3, "rate_limited", None)

    def test_an_error_too_long_for_a_message_is_still_classified(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        body = json.dumps(exhausted(BY_DAY, *[BY_MINUTE] * 30), indent=2).encode()
        assert len(body) > 4096
        server = serve(reply(body, 429))
        failed = failure(adapter(server, "gemini"))
        assert (len(server.seen), failed.type, failed.code) == (1, "quota", "RESOURCE_EXHAUSTED")

    def test_a_quota_error_within_a_stream(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(events=[anthropic("billing_error", "Billing error")]))
        with pytest.raises(ModelError) as caught:
            adapter(server, "anthropic").complete(ChatRequest((Message("user", "hi"),), stream=True), CONFIG)
        assert (len(server.seen), caught.value.type, caught.value.http_status) == (1, "quota", 402)

    def test_the_policy_of_a_quota_error(self) -> None:
        assert response_policy("quota") == (Fault.INFRASTRUCTURE, False, "skipped")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("fault", "error_type", "obstacle"),
    [
        ("400-context", "status", None),
        ("401", "status", "key"),
        ("403", "status", "key"),
        ("404", "status", "model"),
        ("429-quota", "quota", "quota"),
    ],
)
def test_permanent_errors_are_not_retried(provider: str, fault: str, error_type: str, obstacle: str | None) -> None:
    with FakeJudge().in_thread() as server:
        base = server.base_url(fault) if provider.startswith("openai") else server.base_url(fault, "")
        failed = failure(create(provider, "m", base_url=base, settings=QUICK))
        assert (failed.type, failed.obstacle, failed.attempts) == (error_type, obstacle, 1)
        assert server.counts().outcomes == {fault[:3]: 1}


@pytest.mark.parametrize(
    ("text", "expected_message", "code", "reasons"),
    [
        ("", "", None, ()),
        ("<html>{", "<html>{", None, ()),
        ('{"error":{"type":"rate_limit_error","message":"sl', None, "rate_limit_error", ()),
        ('{"error":{"message": "\\"x\\"", "details": [{"reason": "A", "quotaId": "B"}, {', '"x"', None, ("A", "B")),
        ('{"error":{"message": "\\q", "code": "c', None, None, ()),
    ],
)
def test_the_message_of_an_error(
    text: str, expected_message: str | None, code: str | None, reasons: tuple[str, ...]
) -> None:
    assert parse_error_text(text) == ErrorReport(
        text if expected_message is None else expected_message, code, None, reasons
    )


def test_an_error_that_quotes_the_question_is_not_an_exhausted_account() -> None:
    quoted = "Invalid prompt: 'why is my credit balance is too low? unknown model'"
    assert not parse_error_text(json.dumps({"error": {"message": quoted}})).quota_exhausted
    assert parse_error_text("Your credit balance is too low to go on").quota_exhausted


def test_hostile_error_details_are_treated_as_data() -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    report = parse_error_text(
        json.dumps({"error": {"message": "m", "details": [deep, {"reason": 7, "quotaId": None}, 3]}})
    )
    assert (report.message, report.reasons, report.quota_exhausted) == ("m", (), False)
