"""The exact status and number of requests for every answer and failure of a judge's server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gradeline.adapters import AdapterSettings, ChatAdapter, ChatRequest, ChatResponse, ModelError, Note, create
from gradeline.judges import GradingResult, LLMJudge, ReplyError
from gradeline.judges.calls import JudgeAnswer, ask
from gradeline.judges.reply_parsing import JudgeVerdict, read_verdict, require_reply
from gradeline.model.llm import LLMResponse, RunConfig
from gradeline.model.response import Usage
from gradeline.testing.fake_judge import FakeJudge, with_mark
from gradeline.transport import Backoff

STATUSES = {
    "invalid_reply": "invalid",
    "empty_reply": "invalid",
    "refused": "refused",
    "truncated": "truncated",
}
CONFIG = RunConfig(model="caller", max_tokens=200_000)
BASELINE = LLMResponse(with_mark("The usual.", "base", quality=0.5))
CANDIDATE = LLMResponse(with_mark("Something else.", "cand", quality=0.75))


def adapter_at(base_url: str, provider: str = "openai", **settings: Any) -> ChatAdapter:
    quick = Backoff(base_s=0.001, cap_s=0.002, random=Random(7))
    return create(provider, "fake-judge", base_url=base_url, settings=AdapterSettings(backoff=quick, **settings))


async def status_of(judging: Coroutine[Any, Any, GradingResult]) -> str:
    """One of the five statuses; every event has exactly one."""
    try:
        result = await judging
    except ReplyError as error:
        return STATUSES[error.type]
    except ModelError:
        return "error"
    assert result.quality_score == 0.75
    return "valid"


async def judge_once(
    behaviour: str, *, seed: int | None = None, wrap: Callable[[ChatAdapter], Any] = lambda one: one, **settings: Any
) -> tuple[str, int]:
    async with FakeJudge() as server, adapter_at(server.base_url(behaviour), **settings) as adapter:
        judge = LLMJudge(wrap(adapter), seed=seed)
        status = await status_of(judge.ajudge(BASELINE, CANDIDATE, prompt="Do it.", run_config=CONFIG))
        return status, server.counts().requests


@pytest.mark.parametrize(
    ("behaviour", "status", "requests"),
    [
        ("perfect", "valid", 1),
        # JSON in a code fence, text before or after, BOM, single quotes, trailing comma, comments
        ("fenced", "valid", 1),
        ("text-before", "valid", 1),
        ("text-after", "valid", 1),
        ("wrapped", "valid", 1),
        ("bom", "valid", 1),
        ("single-quotes", "invalid", 1),
        ("trailing-comma", "invalid", 1),
        ("comments", "invalid", 1),
        ("invalid-json", "invalid", 1),
        ("prose", "invalid", 1),
        # two JSON objects, or an echoed example from the prompt
        ("two-objects", "invalid", 1),
        ("echoed-example", "invalid", 1),
        ("same-twice", "valid", 1),
        # "0.8", "80%", 8/10, 80, 1.2, -0.1
        ("score-text", "invalid", 1),
        ("score-percent", "invalid", 1),
        ("score-fraction", "invalid", 1),
        ("score-hundred", "invalid", 1),
        ("score-above", "invalid", 1),
        ("score-below", "invalid", 1),
        # NaN, Infinity, null, true, missing key, duplicate key, nested
        ("score-nan", "invalid", 1),
        ("score-infinity", "invalid", 1),
        ("score-null", "invalid", 1),
        ("score-true", "invalid", 1),
        ("missing-key", "invalid", 1),
        ("duplicate-key", "invalid", 1),
        ("nested", "invalid", 1),
        # notes huge, with control characters, or containing JSON
        ("notes-huge", "valid", 1),
        ("notes-control", "valid", 1),
        ("notes-raw-control", "valid", 1),
        ("notes-json", "valid", 1),
        ("long", "valid", 1),
        # refusal in text; message.refusal with content null; content_filter
        ("refusal-text", "refused", 1),
        ("refusal", "refused", 1),
        ("content-filter", "refused", 1),
        # finish_reason length, cut JSON: one retry with a larger limit
        ("truncated", "truncated", 2),
        ("truncated-whole", "truncated", 2),
        # empty choices, empty content, tool call instead of content
        ("no-choices", "error", 1),
        ("empty", "invalid", 1),
        ("blank", "invalid", 1),
        ("tool-call", "invalid", 1),
        # 429 with Retry-After in seconds, as a date, none, absurd; quota
        ("429,retry_after_s=0", "error", 3),
        ("429-date,retry_after_s=0", "error", 3),
        ("429-bare", "error", 3),
        ("429-absurd", "error", 3),
        ("429-quota", "error", 1),
        ("429-bare,tries=2", "valid", 3),
        # 5xx, 529, connection faults
        ("500", "error", 3),
        ("502", "error", 3),
        ("503", "error", 3),
        ("504", "error", 3),
        ("529", "error", 3),
        ("reset", "error", 3),
        ("close", "error", 3),
        ("cut", "error", 3),
        ("529,tries=1", "valid", 2),
        ("reset,tries=2", "valid", 3),
        # what no repetition mends
        ("400-context", "error", 1),
        ("401", "error", 1),
        ("403", "error", 1),
        ("404", "error", 1),
        # slow, but there
        ("slow-start,delay_s=0.01", "valid", 1),
        ("split,delay_s=0.001", "valid", 1),
        # wrong model echoed, changed fingerprint, usage missing or zero
        ("wrong-model", "valid", 1),
        ("changed-fingerprint,k=0", "valid", 1),
        ("no-usage", "valid", 1),
        ("zero-usage", "valid", 1),
        # what the server does not support is left out
        ("unsupported,param=temperature", "valid", 2),
        ("unsupported,param=response_format", "valid", 2),
        ("unsupported,param=temperature|response_format", "valid", 3),
    ],
)
def test_a_reply_has_one_status_and_a_number_of_requests(behaviour: str, status: str, requests: int) -> None:
    assert asyncio.run(judge_once(behaviour)) == (status, requests)


@pytest.mark.parametrize("provider", ["openai", "openai_responses", "anthropic", "gemini"])
@pytest.mark.parametrize(
    ("behaviour", "status", "requests"),
    [
        ("perfect", "valid", 1),
        ("refusal", "refused", 1),
        ("truncated", "truncated", 2),
        ("prose", "invalid", 1),
        ("529", "error", 3),
    ],
)
def test_replies_of_every_provider_are_read_alike(provider: str, behaviour: str, status: str, requests: int) -> None:
    async def judged() -> tuple[str, int]:
        async with FakeJudge(behaviour) as server:
            base_url = server.base_url() if provider.startswith("openai") else server.url
            async with adapter_at(base_url, provider) as adapter:
                judge = LLMJudge(adapter, seed=7)
                found = await status_of(judge.ajudge(BASELINE, CANDIDATE, prompt="Do it.", run_config=CONFIG))
                return found, server.counts().requests

    assert asyncio.run(judged()) == (status, requests)


def test_a_seed_that_is_not_supported_is_left_out() -> None:
    assert asyncio.run(judge_once("unsupported,param=seed", seed=7)) == ("valid", 2)
    assert asyncio.run(judge_once("unsupported,param=seed")) == ("valid", 1)


@pytest.mark.parametrize("behaviour", ["hang", "stall"])
def test_a_silent_judge_times_out_without_a_retry(behaviour: str) -> None:
    assert asyncio.run(judge_once(behaviour, timeout_s=0.2)) == ("error", 1)


@pytest.mark.parametrize(
    ("base_url", "error_type"), [("http://judge.invalid/v1", "dns"), ("https://127.0.0.1:{port}/v1", "tls")]
)
def test_a_host_without_a_name_and_a_broken_handshake_are_errors(base_url: str, error_type: str) -> None:
    async def failing() -> ModelError:
        async with FakeJudge() as server:
            async with adapter_at(base_url.format(port=server.url.rpartition(":")[2])) as adapter:
                with pytest.raises(ModelError) as caught:
                    await LLMJudge(adapter).ajudge(BASELINE, CANDIDATE, prompt="Do it.", run_config=CONFIG)
            return caught.value

    assert asyncio.run(failing()).type == error_type


class Streaming:
    """Requests a streamed answer."""

    def __init__(self, adapter: ChatAdapter) -> None:
        self.adapter_id = adapter.adapter_id
        self._adapter = adapter

    async def acomplete(self, prompt: str | ChatRequest, run_config: RunConfig) -> ChatResponse:
        return await self._adapter.acomplete(replace(ChatRequest.of(prompt), stream=True), run_config)


@pytest.mark.parametrize(
    ("behaviour", "status", "requests"),
    [
        ("perfect", "valid", 1),
        ("slow-stream,delay_s=0.001", "valid", 1),
        ("keep-alive,delay_s=0.001", "valid", 1),
        ("split,delay_s=0.001", "valid", 1),
        ("no-done", "error", 3),
        ("error-in-stream", "error", 3),
        ("cut", "error", 3),
        ("truncated", "truncated", 2),
        ("refusal", "refused", 1),
    ],
)
def test_part_of_a_stream_is_never_a_verdict(behaviour: str, status: str, requests: int) -> None:
    assert asyncio.run(judge_once(behaviour, wrap=Streaming)) == (status, requests)


def test_a_stalled_stream_times_out() -> None:
    assert asyncio.run(judge_once("stall", wrap=Streaming, timeout_s=0.2)) == ("error", 1)


def test_a_truncated_reply_is_requested_again_with_a_sufficient_limit() -> None:
    async def judged() -> tuple[float, int]:
        async with FakeJudge("long") as server, adapter_at(server.base_url()) as adapter:
            config = RunConfig(model="", max_tokens=100)
            answered = await ask(adapter, _prompt(), config, _read, larger=20)
            return answered.value.score, server.counts().requests

    assert asyncio.run(judged()) == (0.75, 2)


class TestRecordedDetails:
    def answered(self, behaviour: str, **params: Any) -> JudgeAnswer[JudgeVerdict]:
        async def asked() -> JudgeAnswer[JudgeVerdict]:
            async with FakeJudge() as server, adapter_at(server.base_url(behaviour)) as adapter:
                return await ask(adapter, _prompt(), RunConfig(model="", model_params=params), _read)

        return asyncio.run(asked())

    def test_the_model_that_answered(self) -> None:
        assert self.answered("wrong-model").model == "another-model"

    def test_the_systems_fingerprint(self) -> None:
        raw = self.answered("changed-fingerprint,k=0").response.raw
        assert raw is not None
        assert raw["body"]["system_fingerprint"] == "fp_fake_1_changed"

    def test_a_missing_capability_of_the_server(self) -> None:
        [note] = self.answered("unsupported,param=seed", seed=7).notes
        assert isinstance(note, Note)
        assert note.what == "seed"

    @pytest.mark.parametrize("behaviour", ["no-usage", "zero-usage"])
    def test_unreported_usage_is_not_zero(self, behaviour: str) -> None:
        assert self.answered(behaviour).usage is None

    def test_unknown_price_is_not_zero(self) -> None:
        usage = self.answered("perfect").usage
        assert isinstance(usage, Usage)
        assert usage.cost is None
        assert usage.input_tokens


def test_the_statuses_add_up_to_the_items() -> None:
    """Each item has one of five statuses, and their counts equal the events of the server."""
    shares = "fenced,rate=0.2+score-above,rate=0.2+refusal,rate=0.2+truncated,rate=0.2+500,rate=0.2,tries=0"
    items = 200

    async def judged() -> tuple[Counter[str], Counter[str], int]:
        async with FakeJudge(shares, seed=11) as server, adapter_at(server.base_url()) as adapter:
            judge = LLMJudge(adapter)
            gate = asyncio.Semaphore(20)

            async def one(number: int) -> str:
                candidate = LLMResponse(with_mark(f"Answer {number}.", f"item-{number}", quality=0.75))
                async with gate:
                    return await status_of(judge.ajudge(BASELINE, candidate, prompt="Do it.", run_config=CONFIG))

            statuses = Counter(await asyncio.gather(*map(one, range(items))))
            failures = server.counts().outcomes["500"]
            return statuses, Counter(decision.shape for decision in server.decisions), failures

    statuses, shapes, failures = asyncio.run(judged())
    assert set(statuses) == {"valid", "invalid", "refused", "truncated", "error"}
    assert sum(statuses.values()) == items
    assert statuses["valid"] == shapes["fenced"] + shapes["plain"]
    assert (statuses["invalid"], statuses["refused"]) == (shapes["score-above"], shapes["refusal"])
    assert 2 * statuses["truncated"] == shapes["truncated"]
    assert 3 * statuses["error"] == failures


def _prompt() -> str:
    return f'Reply with "quality_score" and "notes".\n<candidate>\n{CANDIDATE.content}\n</candidate>'


def _read(response: LLMResponse) -> JudgeVerdict:
    return read_verdict(require_reply(response), "quality_score", "notes")
