"""Embeddings: over HTTP from any server with OpenAI's API, or offline from weights in a wheel."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from gradeline.adapters import sync
from gradeline.adapters.errors import ModelError, find_error
from gradeline.adapters.wire import AdapterSettings, Endpoint, count, items, number, to_body
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.transport import HttpResponse

MAX_TEXTS = 2048
"""The maximum number of texts in one request to OpenAI."""


class OpenAIEmbeddings:
    """Any server with OpenAI's embeddings API; ``base_url`` is the part before ``/embeddings``."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: str | None = None,
        dimensions: int | None = None,
        adapter_id: str | None = None,
        settings: AdapterSettings | None = None,
    ) -> None:
        if not model:
            raise ConfigError(Problem("model", "embeddings require the name of a model"))
        self.model = model
        self.adapter_id = adapter_id or f"openai:{model}"
        self.settings = settings or AdapterSettings()
        self._dimensions = dimensions
        credentials = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._endpoint = Endpoint(base_url, credentials, api_key, self.settings)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector per text, in order; works inside a running event loop too, which it blocks."""
        return sync.run(self.aembed(texts))

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector per text, in order; one request for up to 2048 texts."""
        vectors: list[list[float]] = []
        for start in range(0, len(texts), MAX_TEXTS):
            vectors += await self._embed(list(texts[start : start + MAX_TEXTS]))
        return vectors

    async def aclose(self) -> None:
        """Close the connections of this event loop; they also close when it ends."""
        await self._endpoint.close()

    async def _embed(self, texts: list[str]) -> list[list[float]]:
        tree: dict[str, Any] = {"model": self.model, "input": texts, "encoding_format": "float"}
        if self._dimensions is not None:
            tree["dimensions"] = self._dimensions
        if self.settings.rate is not None:
            await self.settings.rate.wait()
        path = "/embeddings"
        answer = await self._endpoint.post(
            path,
            to_body(tree, self.adapter_id),
            deadline_s=self.settings.timeout_s,
            retries=self.settings.retries,
        )
        try:
            return self._vectors(answer, len(texts))
        except ModelError as error:
            raise self._endpoint.with_context(error, path, answer) from None

    def _vectors(self, answer: HttpResponse, expected: int) -> list[list[float]]:
        body = self._endpoint.parse_body(answer)
        report = find_error(body)
        if report is not None:
            raise report.to_error("its body")
        vectors: dict[int, list[float]] = {}
        for position, entry in enumerate(items(body, "data")):
            index = count(entry, "index")
            values = [number(value) for value in items(entry, "embedding")]
            known = [value for value in values if value is not None]
            if not known or len(known) < len(values):
                raise ModelError("bad_response", f"vector {position} is not a list of finite numbers")
            vectors[position if index is None else index] = known
        if sorted(vectors) != list(range(expected)) or len(items(body, "data")) != expected:
            raise ModelError("bad_response", f"{len(items(body, 'data'))} vectors for {expected} texts")
        if len({len(vector) for vector in vectors.values()}) > 1:
            raise ModelError("bad_response", "vectors of unequal lengths")
        return [vectors[index] for index in range(expected)]


class _WordLlama(Protocol):
    def embed(self, texts: list[str], *, norm: bool, return_np: bool) -> list[list[float]]: ...


class WordLlamaEmbeddings:
    """Vectors from word weights in the ``wordllama`` wheel: no network, no key, no torch.

    They show whether texts are about the same things, not whether they make the same statement.
    """

    DIMENSIONS = 256

    def __init__(self, adapter_id: str = "wordllama:l2_supercat_256") -> None:
        self.adapter_id = adapter_id
        self._lock = Lock()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector per text, in order; an empty text has all zeros."""
        nonempty = [text for text in texts if text.strip()]
        with self._lock:  # the tokenizer's padding settings are not thread-safe
            vectors = iter(self._model.embed(nonempty, norm=False, return_np=False) if nonempty else [])
        return [next(vectors) if text.strip() else [0.0] * self.DIMENSIONS for text in texts]

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        """Like `embed`, in a thread."""
        return await asyncio.to_thread(self.embed, texts)

    @cached_property
    def _model(self) -> _WordLlama:
        # with threads, which the tokenizer uses even for two texts, it takes three times as long
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with _undisturbed_logging():
            try:
                wordllama = import_module("wordllama")  # an extra, and slow to load
            except ImportError:
                raise ConfigError(
                    Problem("embeddings", "wordllama is not installed; run: pip install 'gradeline[embeddings]'")
                ) from None
            home = Path(str(wordllama.__file__)).parent
            model: _WordLlama = wordllama.WordLlama.load(cache_dir=home, disable_download=True)
        return model


@contextmanager
def _undisturbed_logging() -> Iterator[None]:
    """Undo the logging setup of the whole process that importing wordllama does."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
        root.setLevel(level)
