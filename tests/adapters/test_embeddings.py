from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from gradeline.adapters import AdapterSettings, EmbeddingAdapter, ModelError, WordLlamaEmbeddings, create_embeddings
from gradeline.errors import ConfigError

Serve = Callable[..., Any]
KEY = "sk-test-0123456789abcdef"


def vectors(*rows: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    return {"object": "list", "model": "e", "data": data, "usage": {"prompt_tokens": 2, "total_tokens": 2}}


def create_client(server: Any, **options: Any) -> Any:
    settings = AdapterSettings(retries=0)
    return create_embeddings("openai", "e", base_url=f"{server.url}/v1", api_key=KEY, settings=settings, **options)


def test_texts_are_sent_in_one_request_and_keep_their_order(serve: Serve, reply: Any) -> None:
    answer = vectors([1.0, 0.0], [0, 1])
    answer["data"].reverse()
    server = serve(reply(answer))
    assert create_client(server, dimensions=2).embed(("one", "two")) == [[1.0, 0.0], [0.0, 1.0]]
    (request,) = server.seen
    assert (request.path, request.headers["authorization"]) == ("/v1/embeddings", f"Bearer {KEY}")
    assert request.body == {"model": "e", "input": ["one", "two"], "encoding_format": "float", "dimensions": 2}


def test_the_async_form_gives_the_same_vectors(serve: Serve, reply: Any) -> None:
    server = serve(reply(vectors([1.0])))
    assert asyncio.run(create_client(server).aembed(["one"])) == [[1.0]]


def test_no_texts_send_no_request(serve: Serve) -> None:
    server = serve()
    assert create_client(server).embed([]) == []
    assert server.seen == []


def test_many_texts_are_sent_in_several_requests(serve: Serve, reply: Any) -> None:
    server = serve(reply(vectors(*[[1.0]] * 2048)), reply(vectors([2.0])))
    assert create_client(server).embed(["x"] * 2049) == [[1.0]] * 2048 + [[2.0]]
    assert [len(body["input"]) for body in server.bodies] == [2048, 1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (vectors([1.0]), "1 vectors for 2 texts"),
        (vectors([1.0], [1.0], [1.0]), "3 vectors for 2 texts"),
        (vectors([1.0], []), "vector 1 is not a list of finite numbers"),
        (vectors([1.0], [None]), "vector 1 is not a list of finite numbers"),
        (vectors([1.0], [True]), "vector 1 is not a list of finite numbers"),
        (vectors([1.0], "AACAPw=="), "vector 1 is not a list of finite numbers"),
        (vectors([1.0], [1.0, 2.0]), "vectors of unequal lengths"),
        ({}, "0 vectors for 2 texts"),
        ({"error": "no such model"}, "the provider reported an error: 'no such model'"),
        (b'{"data": [{"embedding": [1e999]}]}', "not JSON"),
    ],
)
def test_invalid_vectors_are_an_error(answer: Any, message: str, serve: Serve, reply: Any) -> None:
    with pytest.raises(ModelError, match=message):
        create_client(serve(reply(answer))).embed(["one", "two"])


def test_the_error_of_a_failed_call_does_not_contain_the_key(serve: Serve, reply: Any) -> None:
    with pytest.raises(ModelError) as caught:
        create_client(serve(reply({"error": {"message": f"bad key {KEY}"}}, 401))).embed(["one"])
    assert (caught.value.http_status, KEY in str(caught.value)) == (401, False)


def test_a_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match="embeddings require the name of a model"):
        create_embeddings("openai", api_key="k")


@pytest.mark.skipif(find_spec("wordllama") is not None, reason="wordllama is installed")
def test_a_missing_extra_is_reported_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'gradeline\[embeddings\]'"):
        WordLlamaEmbeddings().embed(["one"])


@pytest.mark.skipif(find_spec("wordllama") is None, reason="wordllama is absent (the extra embeddings)")
class TestOffline:
    @staticmethod
    def likeness(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))

    def test_texts_on_one_subject_are_more_similar(self) -> None:
        cat, kitten, tax = WordLlamaEmbeddings().embed(["The cat sleeps.", "A kitten is asleep.", "Taxes are due."])
        assert (len(cat), {type(value) for value in cat}) == (256, {float})
        assert self.likeness(cat, kitten) > 0.5 > self.likeness(cat, tax)

    def test_an_empty_text_is_the_zero_vector(self) -> None:
        empty, word = asyncio.run(WordLlamaEmbeddings().aembed(["", "word"]))
        assert (set(empty), len(empty), any(word)) == ({0.0}, 256, True)

    def test_a_vector_does_not_depend_on_the_batch(self) -> None:
        create_client = WordLlamaEmbeddings()
        assert create_client.embed(["cat"])[0] == pytest.approx(
            create_client.embed(["a much longer text next to it", "cat"])[1]
        )

    def test_logging_is_not_reconfigured(self) -> None:
        root = logging.getLogger()
        before = (list(root.handlers), root.level)
        WordLlamaEmbeddings().embed(["word"])
        assert (list(root.handlers), root.level) == before

    def test_implements_embedding_adapter(self) -> None:
        assert isinstance(WordLlamaEmbeddings(), EmbeddingAdapter)
