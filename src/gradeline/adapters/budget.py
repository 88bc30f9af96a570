"""Limits on what is spent on model calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable
from functools import reduce
from itertools import chain
from math import isfinite
from threading import Lock, get_ident
from typing import NamedTuple

from gradeline.adapters.chat import ChatRequest
from gradeline.errors import BudgetExceeded, ConfigError, Problem
from gradeline.model.response import Usage

_BYTES_PER_TOKEN = 4
_TINY = 1e-9
"""Of a limit: sums of decimal prices miss it by less."""


class Spent(NamedTuple):
    """What is spent, the estimates of calls under way included. ``unpriced`` calls cost nobody knows what."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def plus(self, other: Spent) -> Spent:
        """The two together."""
        return Spent(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
        )


class BudgetTracker:
    """Limits on cost, tokens and calls, None for no limit; zero allows nothing. Safe among threads and tasks.

    An adapter calls `admit` before a call is sent and `settle` after it, from the same task (or thread); in between
    the estimate counts as spent, so calls side by side cannot pass a limit together.
    """

    def __init__(self, cost: float | None = None, tokens: int | None = None, calls: int | None = None) -> None:
        self.cost = _limit("cost", cost)
        self.tokens = _limit("tokens", tokens)
        self.calls = _limit("calls", calls)
        self._settled = Spent()
        self._open: dict[Hashable, list[Spent]] = {}
        self._lock = Lock()

    @property
    def spent(self) -> Spent:
        with self._lock:
            return self._so_far()

    def admit(self, *, tokens: int, cost: float | None) -> None:
        """Take the estimate of one call off the budget, or raise `BudgetExceeded`."""
        with self._lock:
            spent = self._so_far()
            _check("calls", self.calls, spent.calls, 1)
            _check("tokens", self.tokens, spent.tokens, tokens)
            if cost is not None:
                _check("cost", self.cost, spent.cost, cost)
            elif self.cost is not None:
                raise BudgetExceeded(
                    f"the price of this call is unknown, so it cannot be kept within the cost of {self.cost:g};"
                    " give the model a price, or limit tokens or calls instead"
                )
            estimate = Spent(1, tokens, cost or 0.0, int(cost is None))
            self._open.setdefault(_caller(), []).append(estimate)

    def settle(self, usage: Usage) -> None:
        """Replace the caller's last estimate by what the call really used; of what is unknown the estimate stays."""
        with self._lock:
            used = self._take_estimate()
            if usage.input_tokens is not None and usage.output_tokens is not None:
                used = used._replace(tokens=usage.input_tokens + usage.output_tokens)
            if usage.cost is not None:
                used = used._replace(cost=usage.cost, unpriced=0)
            self._settled = self._settled.plus(used)

    def _so_far(self) -> Spent:
        return reduce(Spent.plus, chain.from_iterable(self._open.values()), self._settled)

    def _take_estimate(self) -> Spent:
        caller = _caller()
        estimates = self._open.get(caller)
        if not estimates:  # settled from elsewhere than admitted: what was used comes on top
            return Spent()
        estimate = estimates.pop()
        if not estimates:
            del self._open[caller]
        return estimate


def prompt_tokens(request: ChatRequest, system: str | None = None) -> int:
    """An estimate of a prompt's tokens: one for four bytes of all its texts and schemas."""
    texts = [system or ""]
    for message in request.messages:
        texts += [message.content, *(call.name + call.arguments for call in message.tool_calls)]
    schemas = [tool.parameters for tool in request.tools] + [request.response_schema or {}]
    texts += [tool.name + tool.description for tool in request.tools]
    texts += [json.dumps(schema, default=str) for schema in schemas if schema]
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return max(1, -(-size // _BYTES_PER_TOKEN))


def _limit(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ConfigError(Problem(name, f"{value!r} is no limit; give a number from 0 up, or None for no limit"))
    return value


def _check(name: str, limit: float | None, spent: float, more: float) -> None:
    if limit is None:
        return
    if spent >= limit or spent + more > limit * (1 + _TINY):
        raise BudgetExceeded(f"the budget of {limit:g} {name} allows no more: {spent:g} spent, {more:g} to come")


def _caller() -> Hashable:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        task = None
    return ("thread", get_ident()) if task is None else ("task", id(task))
