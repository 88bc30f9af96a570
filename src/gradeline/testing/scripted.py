"""An adapter with scripted replies, for tests of judges and of other code that calls a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from gradeline.adapters.chat import ChatRequest, prompt_tokens
from gradeline.errors import BudgetExceeded, ConfigError, Problem
from gradeline.model.llm import LLMResponse, RunConfig
from gradeline.model.response import Usage
from gradeline.model.text import quote

ScriptedReply = str | LLMResponse | BaseException
"""The text of a response, a whole response, or an error to raise."""

ScriptedReplies = (
    str | Iterable[ScriptedReply] | Mapping[str, ScriptedReply] | Callable[[str, RunConfig], ScriptedReply]
)


class ScriptedCall(NamedTuple):
    """One call of the adapter; the prompt is a string where it was passed as one."""

    prompt: str | ChatRequest
    run_config: RunConfig

    @property
    def text(self) -> str:
        """The text of the last user message."""
        request = ChatRequest.of(self.prompt)
        return next((one.content for one in reversed(request.messages) if one.role == "user"), "")


class ScriptedAdapter:
    """Returns ``replies`` one after another; safe for threads and tasks.

    A single string is the reply to every call; a mapping has replies by prompt; a function gets the prompt and the
    config. An exception is raised. `ConfigError` when no reply is left. ``calls`` records the calls. Each call charges
    ``cost`` to the budget; None is an unknown price.
    """

    def __init__(self, replies: ScriptedReplies, adapter_id: str = "scripted", *, cost: float | None = 0.0) -> None:
        self.adapter_id = adapter_id
        self.calls: list[ScriptedCall] = []
        self._lock = Lock()
        self._cost = cost
        self._next_reply = self._reply_function(replies)

    def complete(self, prompt: str | ChatRequest, run_config: RunConfig) -> LLMResponse:
        """The next reply."""
        call = ScriptedCall(prompt, run_config)
        budget = run_config.budget
        if budget is None:
            return self._reply(call)
        tokens = prompt_tokens(ChatRequest.of(prompt), run_config.system) + (run_config.max_tokens or 0)
        try:
            budget.admit(tokens=tokens, cost=self._cost)
        except BudgetExceeded as error:
            raise BudgetExceeded(f"{self.adapter_id}: {error}") from None
        usage = Usage(cost=self._cost)
        try:
            response = self._reply(call)
            usage = response.usage or usage
            return response
        finally:
            budget.settle(usage)

    async def acomplete(self, prompt: str | ChatRequest, run_config: RunConfig) -> LLMResponse:
        """The next reply."""
        return self.complete(prompt, run_config)

    def _reply(self, call: ScriptedCall) -> LLMResponse:
        with self._lock:
            self.calls.append(call)
            reply = self._next_reply(call)
        if isinstance(reply, BaseException):
            raise reply
        response = LLMResponse(reply, finish_reason="stop") if isinstance(reply, str) else reply
        return response if response.model is not None else replace(response, model=call.run_config.model)

    def _reply_function(self, replies: ScriptedReplies) -> Callable[[ScriptedCall], ScriptedReply]:
        if isinstance(replies, str):
            return lambda _: replies
        if callable(replies):
            return lambda call: replies(call.text, call.run_config)
        if isinstance(replies, Mapping):
            return lambda call: self._known(replies, call.text)
        remaining = iter(replies)
        return lambda _: self._next(remaining)

    def _known(self, replies: Mapping[str, ScriptedReply], prompt: str) -> ScriptedReply:
        if prompt not in replies:
            raise ConfigError(Problem(self.adapter_id, f"has no reply to {quote(prompt)}"))
        return replies[prompt]

    def _next(self, remaining: Iterable[ScriptedReply]) -> ScriptedReply:
        for reply in remaining:
            return reply
        calls = len(self.calls)
        raise ConfigError(Problem(self.adapter_id, f"was called {calls} times and has only {calls - 1} replies"))
