"""Requests to and responses of language models, and the protocols of adapters and judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from gradeline.model.grade import valid_score
from gradeline.model.response import Usage
from gradeline.model.trajectory import ToolCall


@runtime_checkable
class Budget(Protocol):
    """Refuses a call that would exceed a limit before it is sent."""

    def admit(self, *, tokens: int, cost: float | None) -> None:
        """Reserve the estimate of one call, or raise."""

    def settle(self, usage: Usage) -> None:
        """Replace an estimate by the actual usage."""


@dataclass(frozen=True)
class RunConfig:
    """Parameters of a model call."""

    model: str
    temperature: float | None = None
    max_tokens: int | None = None
    system: str | None = None
    timeout_s: float | None = None
    model_params: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | None = None

    def replace(self, **changes: Any) -> RunConfig:
        """A changed copy."""
        return replace(self, **changes)


STOP_REASONS = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "completed"), "stop"),
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), "length"
    ),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), "tool_calls"),
    **dict.fromkeys(
        ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety"),
        "content_filter",
    ),
    "refusal": "refusal",
}
"""The common name of the reasons of OpenAI, Anthropic, Gemini and compatible servers, which are in lower case here."""


def common_stop_reason(reason: str) -> str:
    """``stop``, ``length``, ``tool_calls``, ``content_filter``, ``refusal`` or ``other``, of a provider's own word."""
    return STOP_REASONS.get(reason.lower(), "other")


@dataclass(frozen=True)
class LLMResponse:
    """The response of a model. Unknown is None, never 0."""

    content: str
    model: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    latency_ms: float | None = None
    raw: Mapping[str, Any] | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class GradingResult:
    """A judge's verdict on a candidate against its baseline, with both responses."""

    quality_score: float
    notes: str
    grader_id: str
    baseline_response: LLMResponse
    candidate_response: LLMResponse

    def __post_init__(self) -> None:
        object.__setattr__(self, "quality_score", valid_score(self.quality_score))
        if not isinstance(self.grader_id, str) or not self.grader_id.strip():
            raise ValueError(f"grader_id must name the grader, got {self.grader_id!r}")


@runtime_checkable
class LLMAdapter(Protocol):
    """Calls the models of one provider."""

    adapter_id: str

    def complete(self, prompt: str, run_config: RunConfig) -> LLMResponse: ...

    async def acomplete(self, prompt: str, run_config: RunConfig) -> LLMResponse: ...


@runtime_checkable
class EmbeddingAdapter(Protocol):
    """Computes embedding vectors of strings."""

    adapter_id: str

    def embed(self, texts: Sequence[str]) -> list[list[float]]: ...

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]: ...


@runtime_checkable
class Judge(Protocol):
    """Compares a candidate's response with a baseline's."""

    grader_id: str

    def judge(
        self,
        baseline_response: LLMResponse,
        candidate_response: LLMResponse,
        *,
        prompt: str,
        run_config: RunConfig,
    ) -> GradingResult: ...

    async def ajudge(
        self,
        baseline_response: LLMResponse,
        candidate_response: LLMResponse,
        *,
        prompt: str,
        run_config: RunConfig,
    ) -> GradingResult: ...
