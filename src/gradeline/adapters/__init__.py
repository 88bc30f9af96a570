"""Model adapters: one per provider wire format, all on the same HTTP client.

    from gradeline.adapters import RunConfig, create

    response = create("openai", "gpt-6-luna").complete("Say hello.", RunConfig(model=""))

Adapters are loaded on first use, and the HTTP client with the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradeline.adapters.registry import create, create_embeddings
from gradeline.lazy_exports import lazy_exports
from gradeline.model.llm import EmbeddingAdapter, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.response import Usage

if TYPE_CHECKING:
    from gradeline.adapters.anthropic import AnthropicAdapter
    from gradeline.adapters.chat import ChatAdapter, ChatRequest, ChatResponse, Note, TokenLogprob, Tool
    from gradeline.adapters.costs import BudgetTracker, Price, Prices, Spent
    from gradeline.adapters.embeddings import OpenAIEmbeddings, WordLlamaEmbeddings
    from gradeline.adapters.errors import ModelError
    from gradeline.adapters.gemini import GeminiAdapter
    from gradeline.adapters.openai import OpenAIChatAdapter, OpenAIResponsesAdapter
    from gradeline.adapters.transport import ModelTransport
    from gradeline.adapters.wire import AdapterSettings
    from gradeline.model.rate_limit import RateLimiter

__all__ = [
    "AdapterSettings",
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
    "RateLimiter",
    "RunConfig",
    "Spent",
    "TokenLogprob",
    "Tool",
    "Usage",
    "WordLlamaEmbeddings",
    "create",
    "create_embeddings",
]

_HOMES = {
    "AnthropicAdapter": "gradeline.adapters.anthropic",
    "BudgetTracker": "gradeline.adapters.costs",
    "ChatAdapter": "gradeline.adapters.chat",
    "ChatRequest": "gradeline.adapters.chat",
    "ChatResponse": "gradeline.adapters.chat",
    "GeminiAdapter": "gradeline.adapters.gemini",
    "ModelError": "gradeline.adapters.errors",
    "ModelTransport": "gradeline.adapters.transport",
    "Note": "gradeline.adapters.chat",
    "OpenAIChatAdapter": "gradeline.adapters.openai",
    "OpenAIEmbeddings": "gradeline.adapters.embeddings",
    "OpenAIResponsesAdapter": "gradeline.adapters.openai",
    "Price": "gradeline.adapters.costs",
    "Prices": "gradeline.adapters.costs",
    "RateLimiter": "gradeline.model.rate_limit",
    "AdapterSettings": "gradeline.adapters.wire",
    "Spent": "gradeline.adapters.costs",
    "TokenLogprob": "gradeline.adapters.chat",
    "Tool": "gradeline.adapters.chat",
    "WordLlamaEmbeddings": "gradeline.adapters.embeddings",
}

__getattr__, __dir__ = lazy_exports(globals(), _HOMES)
