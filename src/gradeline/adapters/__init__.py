"""Speaking with models: one adapter per wire format, on the one HTTP client.

    from gradeline.adapters import RunConfig, create

    answer = create("openai", "gpt-6-luna").complete("Say hello.", RunConfig(model=""))

Adapters are loaded when first used, and the HTTP client when they first call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gradeline.adapters.budget import BudgetTracker, Spent
from gradeline.adapters.chat import ChatRequest, ChatResponse, Note, TokenLogprob, Tool
from gradeline.adapters.failures import ModelError
from gradeline.adapters.registry import create, create_embeddings
from gradeline.model.llm import EmbeddingAdapter, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.response import Usage

if TYPE_CHECKING:
    from gradeline.adapters.anthropic import AnthropicAdapter
    from gradeline.adapters.base import ChatAdapter
    from gradeline.adapters.embeddings import OpenAIEmbeddings, WordLlamaEmbeddings
    from gradeline.adapters.endpoint import Settings
    from gradeline.adapters.gemini import GeminiAdapter
    from gradeline.adapters.openai_chat import OpenAIChatAdapter
    from gradeline.adapters.openai_responses import OpenAIResponsesAdapter
    from gradeline.adapters.pace import RateLimit
    from gradeline.adapters.prices import Price, Prices
    from gradeline.adapters.sending import ModelTransport

__all__ = [
    "AnthropicAdapter",
    "BudgetTracker",
    "ChatAdapter",
    "ChatRequest",
    "ChatResponse",
    "EmbeddingAdapter",
    "GeminiAdapter",
    "LLMAdapter",
    "LLMResponse",
    "ModelError",
    "ModelTransport",
    "Note",
    "OpenAIChatAdapter",
    "OpenAIEmbeddings",
    "OpenAIResponsesAdapter",
    "Price",
    "Prices",
    "RateLimit",
    "RunConfig",
    "Settings",
    "Spent",
    "TokenLogprob",
    "Tool",
    "Usage",
    "WordLlamaEmbeddings",
    "create",
    "create_embeddings",
]

_HOMES = {
    "AnthropicAdapter": "anthropic",
    "ChatAdapter": "base",
    "GeminiAdapter": "gemini",
    "ModelTransport": "sending",
    "OpenAIChatAdapter": "openai_chat",
    "OpenAIEmbeddings": "embeddings",
    "OpenAIResponsesAdapter": "openai_responses",
    "Price": "prices",
    "Prices": "prices",
    "RateLimit": "pace",
    "Settings": "endpoint",
    "WordLlamaEmbeddings": "embeddings",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gradeline.adapters' has no attribute {name!r}")
    value: object = getattr(import_module(f"gradeline.adapters.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
