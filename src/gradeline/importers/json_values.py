"""The text in inputs and outputs of other tools, which may be any JSON: text, messages, mappings with a known key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gradeline.errors import AgentError, ConfigError, NeedsIsolationError, Problem, UngradableError
from gradeline.extractors.base import compact_json
from gradeline.model import Message, clean_text, quote
from gradeline.parsing.jmespath import BadPathError, JmesPath
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.targets.answer_values import read_messages

INPUT_KEYS = ("input", "question", "query", "prompt", "user_input", "message", "text", "content", "inputs")
OUTPUT_KEYS = (
    *("output", "answer", "response", "output_text", "completion", "result", "reply", "text", "content", "message"),
    *("outputs", "expected", "expected_output", "reference"),
)
_MAX_DEPTH = 8
"""Maximum depth at which a text is searched."""
_LANGCHAIN_ROLES = {
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "HumanMessage": "user",
    "HumanMessageChunk": "user",
    "SystemMessage": "system",
    "ToolMessage": "tool",
}


class JsonText(NamedTuple):
    """The text of a value."""

    text: str
    differs: str = ""
    """How it differs from the value; empty if it does not."""
    is_part: bool = False
    """Whether the value has more than this text."""

    def difference(self, rest: str) -> str:
        """How the text differs from the value, and where the rest of the value is."""
        return f"{self.differs}; {rest}" if self.is_part else self.differs


def input_text(value: object) -> JsonText:
    """The text of an input: of messages the last one of the user; JSON if there is no text in it."""
    return _text_of(value, INPUT_KEYS, "user")


def output_text(value: object) -> JsonText:
    """The text of an output or an expected value: of messages the last one of the assistant."""
    return _text_of(value, OUTPUT_KEYS, "assistant")


def decoded(value: object) -> object:
    """The value; a string that is a JSON object or list, as exports to tables have it, is parsed."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(value)
        except NotJsonError:
            return value
    return value


def messages_of(value: object) -> tuple[Message, ...]:
    """The messages in an input or output: chat messages, completions, LangChain's generations; empty if none."""
    found = _message_list(decoded(value), 0)
    try:
        return read_messages(found) or ()
    except AgentError:
        return ()


def _text_of(value: object, keys: tuple[str, ...], role: str) -> JsonText:
    value = decoded(value)
    messages = messages_of(value)
    texts = [message.content for message in messages if message.role == role and message.content.strip()]
    if texts:
        others = sum(1 for message in messages if message.content.strip()) > 1
        return JsonText(texts[-1], f"is the last message of the {role}" if others else "", others)
    return _found_in(value, keys, 0)


def _found_in(value: object, keys: tuple[str, ...], depth: int) -> JsonText:
    if isinstance(value, str):
        return JsonText(clean_text(value).text)
    if value is None:
        return JsonText("")
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        key = next((key for key in keys if value.get(key) not in (None, "")), None)
        if key is None and len(value) == 1:
            key = next(iter(value))
        if key is not None:
            inner = _found_in(value[key], keys, depth + 1)
            return inner if len(value) == 1 else JsonText(inner.text, f"is its {quote(key, 40)}", is_part=True)
    if isinstance(value, bool | int | float):
        return JsonText(json_text(value))
    return JsonText(json_text(value), "is JSON without a text field; choose a part of it with --input or --expected")


def json_text(value: object) -> str:
    """The value as JSON, or the value itself if it is a string."""
    if isinstance(value, str):
        return clean_text(value).text
    try:
        return clean_text(compact_json(value)).text
    except UngradableError as error:
        return f"({error})"


def _message_list(value: object, depth: int) -> list[Any] | None:
    """The list of messages somewhere in a value; None if it has none."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, list):
        return _of_list(value, depth)
    if not isinstance(value, Mapping):
        return None
    if _is_message(value):
        return [_plain(value)]
    for key in ("messages", "choices", "generations", "message", "output", "outputs", "input", "inputs"):
        if isinstance(value.get(key), list | Mapping):
            found = _message_list(value[key], depth + 1)
            if found is not None:
                return found
    return None


def _of_list(value: list[Any], depth: int) -> list[Any] | None:
    if value and all(isinstance(item, Mapping) and _is_message(item) for item in value):
        return [_plain(item) for item in value]
    inner = value[0] if value else None
    if isinstance(inner, list) or (isinstance(inner, Mapping) and "message" in inner):
        return _message_list(inner, depth + 1)  # a batch of one, or the choices of a completion
    return None


def _is_message(item: Mapping[str, Any]) -> bool:
    if _langchain_role(item) is not None:
        return True
    role = item.get("role") or item.get("type")
    return isinstance(role, str) and (
        "content" in item or "tool_calls" in item or isinstance(item.get("data"), Mapping)
    )


def _langchain_role(item: Mapping[str, Any]) -> str | None:
    names = item.get("id")
    last = names[-1] if isinstance(names, list) and names and isinstance(item.get("kwargs"), Mapping) else None
    return _LANGCHAIN_ROLES.get(last) if isinstance(last, str) else None


def _plain(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message in the form of chat messages; LangChain nests its fields when it serializes an object."""
    role = _langchain_role(item)
    if role is not None:
        return {**item["kwargs"], "role": role}
    data = item.get("data")
    if isinstance(data, Mapping) and "content" not in item:
        return {**data, "role": item.get("role") or item.get("type")}
    return item


class ValuePath:
    """Where a case's input or expected value is, in JSON of any form."""

    def __init__(self, option: str, path: str | None) -> None:
        """``option`` is the name for error messages; without a path, the text is detected."""
        self._option = option
        try:
            self._path = None if path is None else JmesPath(path)
        except BadPathError as error:
            raise ConfigError(Problem(option, str(error))) from None

    @property
    def is_default(self) -> bool:
        """Whether no path was chosen."""
        return self._path is None

    def find(self, value: object) -> object:
        """The value at the path; `LookupError` with the reason if there is none."""
        value = decoded(value)
        if self._path is None:
            return value
        try:
            found = self._path.search(value)
        except NeedsIsolationError:
            raise LookupError(f"{self._option} takes too long on this value; use a simpler path") from None
        except UngradableError as error:
            raise LookupError(f"{self._option}: {error}") from None
        if found is None:
            raise LookupError(f"has no value at {self._option} {quote(str(self._path), 60)}; correct the path")
        return found


def expected_value(value: object) -> str | list[str] | None:
    """An expected value: None, one text, or a list of texts, each of which is accepted."""
    value = decoded(value)
    if value is None:
        return None
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return [clean_text(item).text for item in value]
    return output_text(value).text
