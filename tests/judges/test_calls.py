"""Calls of a judge: requests, retries and costs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gradeline.adapters import ChatRequest, ChatResponse, ModelError, Note
from gradeline.errors import BudgetExceeded, ConfigError, Problem
from gradeline.judges.calls import JudgeAnswer, ask, ask_sync, takes_requests
from gradeline.judges.reply_parsing import InvalidReply, RefusedReply, ReplyError, TruncatedReply, require_reply
from gradeline.model.llm import LLMResponse, RunConfig
from gradeline.model.response import Usage, usage_of_calls
from gradeline.model.trajectory import Message
from gradeline.testing import ScriptedAdapter

CONFIG = RunConfig(model="judge", max_tokens=100)
CUT = LLMResponse("half", finish_reason="length", usage=Usage(10, 5, 0, 0.25), latency_ms=3.0)
WHOLE = LLMResponse("whole", finish_reason="stop", usage=Usage(10, 7, 0, 0.5), latency_ms=4.0)
SCHEMA = {"type": "object"}
REQUEST = ChatRequest((Message("system", "Be fair."), Message("user", "Judge.")), response_schema=SCHEMA, logprobs=5)


class OnlySync:
    adapter_id = "plain"

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.prompts: list[object] = []

    def complete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
        self.threads.append(threading.current_thread().name)
        self.prompts.append(prompt)
        return WHOLE


class OnlyAsync:
    adapter_id = "plain"

    async def acomplete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
        await asyncio.sleep(0)
        return WHOLE


def both_ways(replies: list[LLMResponse | BaseException], config: RunConfig = CONFIG) -> list[JudgeAnswer[str]]:
    """The answer by the synchronous and by the asynchronous form."""
    return [
        ask_sync(ScriptedAdapter(replies), "Judge.", config, require_reply),
        asyncio.run(ask(ScriptedAdapter(replies), "Judge.", config, require_reply)),
    ]


def test_a_reply_has_its_cost() -> None:
    expected = JudgeAnswer("whole", WHOLE.usage, "judge", (), 1, 4.0, LLMResponse(**{**vars(WHOLE), "model": "judge"}))
    assert both_ways([WHOLE]) == [expected, expected]


def test_a_truncated_reply_is_requested_again_with_a_larger_limit() -> None:
    adapter = ScriptedAdapter([CUT, WHOLE])
    answered = ask_sync(adapter, "Judge.", CONFIG, require_reply)
    assert (answered.value, answered.calls, answered.usage) == ("whole", 2, Usage(20, 12, 0, 0.75))
    assert answered.latency_ms == 7.0
    assert [call.run_config for call in adapter.calls] == [CONFIG, CONFIG.replace(max_tokens=400)]
    assert [call.prompt for call in adapter.calls] == ["Judge.", "Judge."]


def test_the_larger_limit_can_be_set() -> None:
    adapter = ScriptedAdapter([CUT, WHOLE])
    ask_sync(adapter, "Judge.", CONFIG, require_reply, larger=2)
    assert adapter.calls[1].run_config.max_tokens == 200


@pytest.mark.parametrize(
    ("used", "limit"), [(None, 4096), (Usage(output_tokens=5), 4096), (Usage(output_tokens=3000), 12000)]
)
def test_an_unset_limit_becomes_larger_than_the_truncated_reply(used: Usage | None, limit: int) -> None:
    adapter = ScriptedAdapter([LLMResponse("half", finish_reason="length", usage=used), WHOLE])
    ask_sync(adapter, "Judge.", RunConfig(model="judge"), require_reply)
    assert adapter.calls[1].run_config.max_tokens == limit


def test_a_second_truncation_is_final_and_reports_the_cost_of_both() -> None:
    for call in (ask_sync, lambda *args: asyncio.run(ask(*args))):
        adapter = ScriptedAdapter([CUT, CUT])
        with pytest.raises(TruncatedReply) as caught:
            call(adapter, "Judge.", CONFIG, require_reply)
        assert (caught.value.calls, caught.value.usage, len(adapter.calls)) == (2, Usage(20, 10, 0, 0.5), 2)


@pytest.mark.parametrize("kind", [InvalidReply, RefusedReply])
def test_any_other_bad_reply_is_raised_at_once_with_its_cost(kind: type[ReplyError]) -> None:
    def read(response: LLMResponse) -> str:
        raise kind("no", response.content)

    adapter = ScriptedAdapter([WHOLE])
    with pytest.raises(kind) as caught:
        ask_sync(adapter, "Judge.", CONFIG, read)
    assert (caught.value.calls, caught.value.usage, caught.value.raw) == (1, WHOLE.usage, "whole")


@pytest.mark.parametrize(
    "error",
    [ModelError("timeout", "late"), BudgetExceeded("spent"), ConfigError(Problem("model", "none")), StopIteration()],
)
def test_the_adapters_own_errors_pass_through(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        ask_sync(ScriptedAdapter([error]), "Judge.", CONFIG, require_reply)
    assert caught.value is error


class TestUsage:
    def test_usage_is_the_sum_over_the_calls(self) -> None:
        assert usage_of_calls([Usage(1, 2, 3, 0.5), Usage(10, 20, 30, 0.25)]) == Usage(11, 22, 33, 0.75)

    def test_usage_is_unknown_if_that_of_any_call_is_unknown(self) -> None:
        assert usage_of_calls([Usage(1, 2, None, 0.5), Usage(1, 2, 3, None)]) == Usage(2, 4, None, None)
        assert usage_of_calls([Usage(1, 2, 3, 0.5), None]) is None
        assert usage_of_calls([None]) is None

    def test_usage_of_zero_is_zero(self) -> None:
        assert usage_of_calls([Usage(0, 0, 0, 0.0)]) == Usage(0, 0, 0, 0.0)


class TestAdapters:
    def test_asynchronous_calls_run_a_complete_only_adapter_in_a_thread(self) -> None:
        adapter = OnlySync()
        assert asyncio.run(ask(adapter, "Judge.", CONFIG, require_reply)).value == "whole"  # type: ignore[arg-type]
        assert adapter.threads != [threading.current_thread().name]

    def test_synchronous_calls_run_a_complete_only_adapter_in_this_thread(self) -> None:
        adapter = OnlySync()
        assert ask_sync(adapter, "Judge.", CONFIG, require_reply).value == "whole"  # type: ignore[arg-type]
        assert adapter.threads == [threading.current_thread().name]

    def test_an_acomplete_only_adapter_works_in_both_forms_and_inside_a_running_loop(self) -> None:
        async def inside() -> str:
            return ask_sync(OnlyAsync(), "Judge.", CONFIG, require_reply).value  # type: ignore[arg-type]

        assert ask_sync(OnlyAsync(), "Judge.", CONFIG, require_reply).value == "whole"  # type: ignore[arg-type]
        assert asyncio.run(ask(OnlyAsync(), "Judge.", CONFIG, require_reply)).value == "whole"  # type: ignore[arg-type]
        assert asyncio.run(inside()) == "whole"

    def test_a_string_only_adapter_gets_a_string_and_what_is_lost_is_noted(self) -> None:
        adapter = OnlySync()
        answered = ask_sync(adapter, REQUEST, CONFIG, require_reply)  # type: ignore[arg-type]
        assert adapter.prompts == ["Be fair.\n\nJudge."]
        assert answered.notes == (
            Note("response_schema", "the adapter only takes strings"),
            Note("logprobs", "the adapter only takes strings"),
        )

    def test_an_adapter_that_accepts_requests_gets_the_request(self) -> None:
        adapter = ScriptedAdapter([WHOLE])
        ask_sync(adapter, REQUEST, CONFIG, require_reply)
        assert adapter.calls[0].prompt is REQUEST
        assert takes_requests(adapter)
        assert not takes_requests(OnlySync())  # type: ignore[arg-type]

    def test_ignored_parameters_and_the_answering_model_are_recorded(self) -> None:
        notes = (Note("seed", "the server refused it"),)
        response = ChatResponse("whole", model="judge-2026-01", finish_reason="stop", notes=notes)
        answered = ask_sync(ScriptedAdapter([response]), "Judge.", CONFIG, require_reply)
        assert (answered.model, answered.notes) == ("judge-2026-01", notes)
