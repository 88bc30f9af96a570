"""A value out of the JSON in the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from gradeline.errors import Problem
from gradeline.extractors.base import DeclaredExtractor, assistant_texts, compact_json
from gradeline.model import Config, Response, described
from gradeline.parsing.jmes import BadPathError, JmesPath
from gradeline.parsing.jsontext import NotJsonError, find_json


class JsonConfig(Config, frozen=True):
    """Options of `JsonExtractor`."""

    path: Annotated[str, described("The JMESPath of the value; '@' is all of the JSON.")] = "@"

    def faults(self) -> Iterator[Problem]:
        try:
            JmesPath(self.path)
        except BadPathError as error:
            yield Problem("path", str(error))


class JsonExtractor(DeclaredExtractor[JsonConfig]):
    """Takes a value out of the JSON in the last assistant message: the whole text, a code fence, or in the prose.

    A text is taken as it is, any other value as compact JSON text. Null, and no JSON at all,
    mean that nothing was found.
    """

    kind = "json"
    name = "JSON value"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self._path = JmesPath(self.options.path)

    def extract(self, response: Response) -> str:
        texts = assistant_texts(response.steps.messages())
        if not texts:
            return ""
        try:
            data = find_json(texts[-1])
        except NotJsonError:
            return ""
        value = self._path.search(data)
        if value is None:
            return ""
        return value if isinstance(value, str) else compact_json(value)
