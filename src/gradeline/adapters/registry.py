"""Adapters by provider name: the class, the base URL and the environment variables of the key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from gradeline.errors import ConfigError, Problem, UnknownNameError
from gradeline.model.llm import EmbeddingAdapter

if TYPE_CHECKING:
    from gradeline.adapters.chat import ChatAdapter
    from gradeline.adapters.wire import AdapterSettings


class Provider(NamedTuple):
    """How a provider is called. A key from the environment is not sent to a base URL that the caller passes."""

    home: str
    """``module:class``."""
    base_url: str
    key_names: tuple[str, ...] = ()
    url_name: str | None = None
    needs_key: bool = True


_OPENAI = ("https://api.openai.com/v1", ("OPENAI_API_KEY",), "OPENAI_BASE_URL")

PROVIDERS = {
    "openai": Provider("gradeline.adapters.openai:OpenAIChatAdapter", *_OPENAI),
    "openai_responses": Provider("gradeline.adapters.openai:OpenAIResponsesAdapter", *_OPENAI),
    "anthropic": Provider(
        "gradeline.adapters.anthropic:AnthropicAdapter",
        "https://api.anthropic.com",
        ("ANTHROPIC_API_KEY",),
        "ANTHROPIC_BASE_URL",
    ),
    "gemini": Provider(
        "gradeline.adapters.gemini:GeminiAdapter",
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "GOOGLE_GEMINI_BASE_URL",
    ),
    "ollama": Provider("gradeline.adapters.openai:OpenAIChatAdapter", "http://127.0.0.1:11434/v1", needs_key=False),
    "vllm": Provider("gradeline.adapters.openai:OpenAIChatAdapter", "http://127.0.0.1:8000/v1", needs_key=False),
}
EMBEDDINGS = {
    "openai": Provider("gradeline.adapters.embeddings:OpenAIEmbeddings", *_OPENAI),
    "ollama": PROVIDERS["ollama"]._replace(home="gradeline.adapters.embeddings:OpenAIEmbeddings"),
    "vllm": PROVIDERS["vllm"]._replace(home="gradeline.adapters.embeddings:OpenAIEmbeddings"),
}
OFFLINE = "wordllama"


def create(
    provider: str,
    model: str | None = None,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    adapter_id: str | None = None,
    settings: AdapterSettings | None = None,
    environment: Mapping[str, str] | None = None,
) -> ChatAdapter:
    """The adapter of a provider: openai, openai_responses, anthropic, gemini, ollama or vllm.

    Without ``base_url`` the provider's own is used, or the one that OPENAI_BASE_URL, ANTHROPIC_BASE_URL or
    GOOGLE_GEMINI_BASE_URL names; a key from the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY or
    GOOGLE_API_KEY) is only sent there. Any other URL gets ``api_key``, or none. ``environment`` replaces the
    environment of this process.
    """
    found = PROVIDERS.get(provider)
    if found is None:
        raise UnknownNameError("model provider", provider, PROVIDERS)
    url, key = _resolve(provider, found, base_url, api_key, environment)
    adapter_id = adapter_id or (f"{provider}:{model}" if model else provider)
    adapter: ChatAdapter = _class(found)(model, base_url=url, api_key=key, adapter_id=adapter_id, settings=settings)
    return adapter


def create_embeddings(
    provider: str,
    model: str | None = None,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    dimensions: int | None = None,
    adapter_id: str | None = None,
    settings: AdapterSettings | None = None,
    environment: Mapping[str, str] | None = None,
) -> EmbeddingAdapter:
    """The embedding adapter of a provider: openai, ollama, vllm, or wordllama (offline). See `create`."""
    if provider == OFFLINE:
        from gradeline.adapters.embeddings import WordLlamaEmbeddings

        return WordLlamaEmbeddings(adapter_id) if adapter_id else WordLlamaEmbeddings()
    found = EMBEDDINGS.get(provider)
    if found is None:
        raise UnknownNameError("embedding provider", provider, [*EMBEDDINGS, OFFLINE])
    url, key = _resolve(provider, found, base_url, api_key, environment)
    adapter: EmbeddingAdapter = _class(found)(
        model,
        base_url=url,
        api_key=key,
        dimensions=dimensions,
        adapter_id=adapter_id or f"{provider}:{model}",
        settings=settings,
    )
    return adapter


def _resolve(
    name: str, provider: Provider, base_url: str | None, api_key: str | None, environment: Mapping[str, str] | None
) -> tuple[str, str | None]:
    if base_url:
        return base_url, api_key or None
    known = os.environ if environment is None else environment
    url = provider_url(provider, known)
    key = api_key or next((known[one] for one in provider.key_names if known.get(one)), None)
    if key is None and provider.needs_key and url == provider.base_url:
        remedy = f"set {' or '.join(provider.key_names)}, or pass api_key"
        raise ConfigError(Problem("api_key", f"{name} requires a key; {remedy}"))
    return url, key


def provider_url(provider: Provider, environment: Mapping[str, str]) -> str:
    """The base URL of a provider if none is given: the only URL that gets its key from the environment."""
    named = environment.get(provider.url_name) if provider.url_name else None
    return named or provider.base_url


def _class(provider: Provider) -> Any:
    module, _, name = provider.home.partition(":")
    return getattr(import_module(module), name)
