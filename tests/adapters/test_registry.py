from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import gradeline.adapters
from gradeline.adapters import (
    AdapterSettings,
    ChatAdapter,
    EmbeddingAdapter,
    LLMAdapter,
    RunConfig,
    create,
    create_embeddings,
)
from gradeline.adapters.registry import PROVIDERS
from gradeline.errors import ConfigError, UnknownNameError

KEYS = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"]
URLS = ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"]
ANSWERS = {
    "choices": [{"message": {"content": "ok"}}],
    "status": "completed",
    "output": [],
    "content": [],
    "candidates": [{"finishReason": "STOP"}],
}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, *URLS):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("provider", "kind", "url"),
    [
        ("openai", "OpenAIChatAdapter", "https://api.openai.com/v1"),
        ("openai_responses", "OpenAIResponsesAdapter", "https://api.openai.com/v1"),
        ("anthropic", "AnthropicAdapter", "https://api.anthropic.com"),
        ("gemini", "GeminiAdapter", "https://generativelanguage.googleapis.com"),
        ("ollama", "OpenAIChatAdapter", "http://127.0.0.1:11434/v1"),
        ("vllm", "OpenAIChatAdapter", "http://127.0.0.1:8000/v1"),
    ],
)
def test_a_provider_by_its_name(provider: str, kind: str, url: str) -> None:
    created = create(provider, "m", api_key="k")
    assert isinstance(created, LLMAdapter)
    assert (type(created).__name__, created.base_url, created.adapter_id) == (kind, url, f"{provider}:m")
    assert create(provider, api_key="k").adapter_id == provider
    assert create(provider, "m", api_key="k", adapter_id="mine").adapter_id == "mine"


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no model provider named 'opanai'; did you mean 'openai'\?"):
        create("opanai", "m")
    with pytest.raises(UnknownNameError, match="use one of ollama, openai, vllm, wordllama"):
        create_embeddings("anthropic", "m")


@pytest.mark.parametrize("provider", ["openai", "openai_responses", "anthropic", "gemini"])
def test_a_missing_key_is_refused(provider: str) -> None:
    names = " or ".join(PROVIDERS[provider].key_names)
    with pytest.raises(ConfigError, match=f"^api_key: {provider} requires a key; set {names}, or pass"):
        create(provider, "m")


@pytest.mark.parametrize(
    ("provider", "url_name", "key_name", "header", "value"),
    [
        ("openai", "OPENAI_BASE_URL", "OPENAI_API_KEY", "authorization", "Bearer from-env"),
        ("openai_responses", "OPENAI_BASE_URL", "OPENAI_API_KEY", "authorization", "Bearer from-env"),
        ("anthropic", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "x-api-key", "from-env"),
        ("gemini", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "x-goog-api-key", "from-env"),
        ("gemini", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY", "x-goog-api-key", "from-env"),
    ],
)
def test_url_and_key_come_from_the_environment(
    provider: str,
    url_name: str,
    key_name: str,
    header: str,
    value: str,
    serve: Callable[..., Any],
    reply: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = serve(reply(ANSWERS))
    monkeypatch.setenv(url_name, server.url)
    monkeypatch.setenv(key_name, "from-env")
    create(provider, "m").complete("hi", RunConfig(model=""))
    assert server.seen[0].headers[header] == value


@pytest.mark.parametrize("provider", ["openai", "openai_responses", "anthropic", "gemini"])
def test_a_key_from_the_environment_is_not_sent_to_a_custom_url(
    provider: str, serve: Callable[..., Any], reply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "from-env")
    server = serve(reply(ANSWERS))
    create(provider, "m", base_url=server.url).complete("hi", RunConfig(model=""))
    create(provider, "m", base_url=server.url, api_key="given").complete("hi", RunConfig(model=""))
    sent = [
        [value for name, value in one.headers.items() if name in ("authorization", "x-api-key", "x-goog-api-key")]
        for one in server.seen
    ]
    assert (sent[0], [value.removeprefix("Bearer ") for value in sent[1]]) == ([], ["given"])


def test_user_headers_are_sent(serve: Callable[..., Any], reply: Any) -> None:
    server = serve(reply(ANSWERS))
    settings = AdapterSettings(headers={"api-key": "azure", "X-Team": "eval"})
    create("openai", "m", base_url=server.url, settings=settings).complete("hi", RunConfig(model=""))
    assert {name: server.seen[0].headers.get(name) for name in ("api-key", "x-team", "authorization")} == {
        "api-key": "azure",
        "x-team": "eval",
        "authorization": None,
    }


def test_gemini_takes_a_base_url_with_a_version_and_a_tuned_model(serve: Callable[..., Any], reply: Any) -> None:
    server = serve(reply(ANSWERS))
    for base, model in (("/v1", "m"), ("", "tunedModels/mine"), ("/proxy/v1beta/", "a b")):
        create("gemini", model, base_url=server.url + base).complete("hi", RunConfig(model=""))
    assert [one.path for one in server.seen] == [
        "/v1/models/m:generateContent",
        "/v1beta/tunedModels/mine:generateContent",
        "/proxy/v1beta/models/a%20b:generateContent",
    ]


def test_an_invalid_url_is_refused() -> None:
    created: ChatAdapter = create("openai", "m", base_url="ftp://user:hidden@host")
    with pytest.raises(ConfigError, match="must begin with http:// or https://") as caught:
        created.complete("hi", RunConfig(model=""))
    assert "hidden" not in str(caught.value)


def test_embedding_adapters_by_name() -> None:
    for provider in ("openai", "ollama", "vllm"):
        created = create_embeddings(provider, "e", api_key="k")
        assert isinstance(created, EmbeddingAdapter)
        assert created.adapter_id == f"{provider}:e"
    assert create_embeddings("wordllama").adapter_id == "wordllama:l2_supercat_256"


def test_the_public_names() -> None:
    assert gradeline.adapters.__all__ == sorted(gradeline.adapters.__all__)
    for name in gradeline.adapters.__all__:
        assert getattr(gradeline.adapters, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nobody'"):
        _ = gradeline.adapters.Nobody


def test_the_http_client_is_loaded_at_the_first_call() -> None:
    script = (
        "import sys, json, gradeline.adapters as a; a.create('openai', 'm', api_key='k');"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = set(json.loads(done.stdout))
    assert loaded.isdisjoint({"aiohttp", "numpy", "wordllama", "gradeline.adapters.anthropic"})


def test_a_passed_environment_replaces_that_of_the_process(
    serve: Callable[..., Any], reply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(reply({**ANSWERS, "data": [{"index": 0, "embedding": [1.0]}]}))
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-process")
    variables = {"OPENAI_API_KEY": "of-the-suite", "OPENAI_BASE_URL": server.url}
    create("openai", "m", environment=variables).complete("hi", RunConfig(model=""))
    create_embeddings("openai", "e", environment=variables).embed(["hi"])
    assert [one.headers["authorization"] for one in server.seen] == ["Bearer of-the-suite"] * 2
    with pytest.raises(ConfigError, match="requires a key; set OPENAI_API_KEY"):
        create("openai", "m", environment={})
