from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gradeline.adapters import BudgetTracker, ChatRequest, Tool, Usage
from gradeline.adapters.chat import prompt_tokens
from gradeline.adapters.costs import Spent
from gradeline.errors import BudgetExceeded, ConfigError, GradelineError
from gradeline.model import Message, ToolCall
from gradeline.model.llm import Budget


def refusal(budget: BudgetTracker, tokens: int = 1, cost: float | None = 0.0) -> str:
    with pytest.raises(BudgetExceeded) as caught:
        budget.admit(tokens=tokens, cost=cost)
    return str(caught.value)


def test_implements_budget_and_raises_a_gradeline_error() -> None:
    assert isinstance(BudgetTracker(), Budget)
    assert issubclass(BudgetExceeded, GradelineError)


def test_without_limits_everything_is_counted() -> None:
    budget = BudgetTracker()
    budget.admit(tokens=100, cost=None)
    budget.admit(tokens=50, cost=0.25)
    assert budget.spent == Spent(calls=2, tokens=150, cost=0.25, unpriced=1)


@pytest.mark.parametrize("limit", ["calls", "tokens", "cost"])
def test_zero_allows_nothing(limit: str) -> None:
    budget = BudgetTracker(**{limit: 0})
    assert refusal(budget).startswith(f"the budget of 0 {limit} is used up: 0 spent, ")
    assert budget.spent == Spent()


def test_a_limit_can_be_reached_but_not_exceeded() -> None:
    budget = BudgetTracker(tokens=100, calls=3, cost=0.3)
    budget.admit(tokens=60, cost=0.1)
    assert refusal(budget, 41, 0.1) == "the budget of 100 tokens is used up: 60 spent, the next call needs 41"
    assert refusal(budget, 1, 0.21) == "the budget of 0.3 cost is used up: 0.1 spent, the next call needs 0.21"
    budget.admit(tokens=40, cost=0.2)  # 0.1 + 0.2 is a little more than 0.3
    assert refusal(budget, 0, 0.0) == "the budget of 100 tokens is used up: 100 spent, the next call needs 0"


def test_an_unknown_price_is_refused_under_a_cost_limit() -> None:
    assert refusal(BudgetTracker(cost=5), cost=None) == (
        "the price of this call is unknown, so a budget of 5 cannot limit it;"
        " set a price for the model, or limit tokens or calls instead"
    )


def test_actual_usage_replaces_the_estimate() -> None:
    budget = BudgetTracker(tokens=100, cost=1)
    budget.admit(tokens=90, cost=0.9)
    budget.settle(Usage(10, 5, None, 0.125))
    assert budget.spent == Spent(1, 15, 0.125)


@pytest.mark.parametrize("usage", [Usage(), Usage(10), Usage(None, 5)])
def test_the_estimate_is_kept_when_usage_is_unknown(usage: Usage) -> None:
    budget = BudgetTracker()
    budget.admit(tokens=90, cost=0.9)
    budget.settle(usage)
    assert budget.spent == Spent(1, 90, 0.9)


def test_a_price_that_becomes_known_is_counted() -> None:
    budget = BudgetTracker(tokens=1000)
    budget.admit(tokens=90, cost=None)
    budget.settle(Usage(10, 5, None, 0.5))
    assert budget.spent == Spent(1, 15, 0.5, unpriced=0)


def test_each_task_settles_its_own_estimate() -> None:
    budget = BudgetTracker()
    both_admitted = asyncio.Event()

    async def call(estimate: int, used: int) -> None:
        budget.admit(tokens=estimate, cost=0.0)
        if estimate == 100:
            await both_admitted.wait()
        else:
            both_admitted.set()
        budget.settle(Usage(used, 0))

    async def main() -> None:
        await asyncio.gather(call(100, 1), call(1000, 2))

    asyncio.run(main())
    assert budget.spent == Spent(2, 3)
    assert budget._open == {}


def test_concurrent_threads_cannot_exceed_a_limit() -> None:
    budget = BudgetTracker(calls=50)

    def call(_: int) -> bool:
        try:
            budget.admit(tokens=10, cost=None)
        except BudgetExceeded:
            return False
        budget.settle(Usage(1, 1))
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(call, range(400))) == 50
    assert budget.spent == Spent(50, 100, 0.0, unpriced=50)


def test_settling_without_an_estimate_adds_to_the_total() -> None:
    budget = BudgetTracker()
    budget.settle(Usage(3, 4, None, 0.5))
    assert budget.spent == Spent(0, 7, 0.5)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "5"])
def test_an_invalid_limit_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^cost: invalid limit .*: use a number from 0 up, or None for no limit$"):
        BudgetTracker(cost=wrong)


def test_the_estimate_counts_every_text_of_a_prompt() -> None:
    assert prompt_tokens(ChatRequest.of("")) == 1
    assert prompt_tokens(ChatRequest.of("12345")) == 2
    assert prompt_tokens(ChatRequest.of("日本語"), "123") == 3, "bytes, not characters: 9 + 3"
    message = Message("assistant", "1234", (ToolCall("name", "{}  "),))
    tool = Tool("tool", "1234", {"a": 1})
    assert prompt_tokens(ChatRequest((message,), tools=(tool,), response_schema={"b": 1})) == (4 + 8 + 8 + 8 + 8) // 4
