"""An adapter that says what it was told to say: for tests of judges and of whatever else asks a model."""

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
"""A text, a whole response, or an error to raise."""

ScriptedReplies = (
    str | Iterable[ScriptedReply] | Mapping[str, ScriptedReply] | Callable[[str, RunConfig], ScriptedReply]
)


class ScriptedCall(NamedTuple):
    """One call that was made; the prompt is a text where it came as one."""

    prompt: str | ChatRequest
    run_config: RunConfig

    @property
    def text(self) -> str:
        """What the user said last."""
        request = ChatRequest.of(self.prompt)
        return next((one.content for one in reversed(request.messages) if one.role == "user"), "")


class ScriptedAdapter:
    """Gives ``replies`` one after the other; safe among threads and tasks.

    A single text is the reply to everything; a mapping is asked by the prompt, a function by prompt and config; an
    exception is raised. A script that has come to its end is a `ConfigError`. ``calls`` keeps what was asked. ``cost``
    is what each call is charged against a budget, None for an unknown price.
    """

    def __init__(self, replies: ScriptedReplies, adapter_id: str = "scripted", *, cost: float | None = 0.0) -> None:
        self.adapter_id = adapter_id
        self.calls: list[ScriptedCall] = []
        self._lock = Lock()
        self._cost = cost
        self._say = self._sayer(replies)

    def complete(self, prompt: str | ChatRequest, run_config: RunConfig) -> LLMResponse:
        """The next reply."""
        asked = ScriptedCall(prompt, run_config)
        budget = run_config.budget
        if budget is None:
            return self._reply(asked)
        tokens = prompt_tokens(ChatRequest.of(prompt), run_config.system) + (run_config.max_tokens or 0)
        try:
            budget.admit(tokens=tokens, cost=self._cost)
        except BudgetExceeded as error:
            raise BudgetExceeded(f"{self.adapter_id}: {error}") from None
        usage = Usage(cost=self._cost)
        try:
            response = self._reply(asked)
            usage = response.usage or usage
            return response
        finally:
            budget.settle(usage)

    async def acomplete(self, prompt: str | ChatRequest, run_config: RunConfig) -> LLMResponse:
        """The next reply."""
        return self.complete(prompt, run_config)

    def _reply(self, asked: ScriptedCall) -> LLMResponse:
        with self._lock:
            self.calls.append(asked)
            reply = self._say(asked)
        if isinstance(reply, BaseException):
            raise reply
        response = LLMResponse(reply, finish_reason="stop") if isinstance(reply, str) else reply
        return response if response.model is not None else replace(response, model=asked.run_config.model)

    def _sayer(self, replies: ScriptedReplies) -> Callable[[ScriptedCall], ScriptedReply]:
        if isinstance(replies, str):
            return lambda _: replies
        if callable(replies):
            return lambda asked: replies(asked.text, asked.run_config)
        if isinstance(replies, Mapping):
            return lambda asked: self._known(replies, asked.text)
        remaining = iter(replies)
        return lambda _: self._next(remaining)

    def _known(self, replies: Mapping[str, ScriptedReply], prompt: str) -> ScriptedReply:
        if prompt not in replies:
            raise ConfigError(Problem(self.adapter_id, f"has no reply to {quote(prompt)}"))
        return replies[prompt]

    def _next(self, remaining: Iterable[ScriptedReply]) -> ScriptedReply:
        for reply in remaining:
            return reply
        asked = len(self.calls)
        raise ConfigError(Problem(self.adapter_id, f"was asked {asked} times and has only {asked - 1} replies"))
