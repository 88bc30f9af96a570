from __future__ import annotations

import asyncio

import pytest

import gradeline.testing
from gradeline.adapters import BudgetTracker, ChatRequest, LLMAdapter, LLMResponse, RunConfig, Usage
from gradeline.errors import BudgetExceeded, ConfigError
from gradeline.model import Message
from gradeline.testing import ScriptedAdapter

CONFIG = RunConfig(model="m")


def test_it_is_an_llm_adapter_with_a_name() -> None:
    assert isinstance(ScriptedAdapter([]), LLMAdapter)
    assert (ScriptedAdapter([]).adapter_id, ScriptedAdapter([], "other").adapter_id) == ("scripted", "other")
    assert gradeline.testing.__all__ == ["ScriptedAdapter"]


def test_replies_come_in_order_and_calls_are_recorded() -> None:
    whole = LLMResponse("two", model="x", finish_reason="length")
    adapter = ScriptedAdapter(["one", whole])
    assert adapter.complete("a", CONFIG) == LLMResponse("one", model="m", finish_reason="stop")
    request = ChatRequest((Message("user", "b"), Message("assistant", "c")))
    assert asyncio.run(adapter.acomplete(request, CONFIG)) == whole
    assert [(call.prompt, call.text, call.run_config) for call in adapter.calls] == [
        ("a", "a", CONFIG),
        (request, "b", CONFIG),
    ]


def test_a_call_after_the_last_reply_is_a_config_error() -> None:
    adapter = ScriptedAdapter(["one"])
    adapter.complete("a", CONFIG)
    with pytest.raises(ConfigError, match=r"^scripted: was called 2 times and has only 1 replies$"):
        adapter.complete("b", CONFIG)


def test_one_string_is_the_reply_to_every_call() -> None:
    adapter = ScriptedAdapter("same")
    assert [adapter.complete(prompt, CONFIG).content for prompt in "ab"] == ["same", "same"]


def test_a_mapping_replies_by_prompt_and_a_function_by_prompt_and_config() -> None:
    known = ScriptedAdapter({"a": "A"})
    assert known.complete("a", CONFIG).content == "A"
    with pytest.raises(ConfigError, match=r"^scripted: has no reply to 'b'$"):
        known.complete("b", CONFIG)
    echo = ScriptedAdapter(lambda prompt, config: f"{prompt} {config.model}")
    assert echo.complete("hi", CONFIG).content == "hi m"


def test_an_error_is_raised() -> None:
    adapter = ScriptedAdapter([ValueError("no"), "yes"])
    with pytest.raises(ValueError, match=r"^no$"):
        adapter.complete("a", CONFIG)
    assert adapter.complete("a", CONFIG).content == "yes"


def test_the_budget_is_charged() -> None:
    adapter = ScriptedAdapter(["one", LLMResponse("two", usage=Usage(1, 1, None, 0.25)), "three"])
    budget = BudgetTracker(calls=2, cost=1)
    config = RunConfig(model="m", max_tokens=9, budget=budget)
    adapter.complete("1234", config)
    adapter.complete("1234", config)
    assert budget.spent == (2, 12, 0.25, 0)
    with pytest.raises(BudgetExceeded, match=r"^scripted: the budget of 2 calls is used up"):
        adapter.complete("1234", config)
    assert len(adapter.calls) == 2
    with pytest.raises(BudgetExceeded, match="the price of this call is unknown"):
        ScriptedAdapter("x", cost=None).complete("a", RunConfig(model="m", budget=BudgetTracker(cost=1)))
