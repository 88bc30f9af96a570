"""JSON in the text of an agent: whole, in a code fence, or somewhere in the prose."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_FENCE = re.compile(r"\A\s*(`{3,}|~{3,})[ \t]*[\w+-]*[ \t]*\r?\n(?P<body>.*?)\r?\n?[ \t]*\1\s*\Z", re.DOTALL)
_FENCES = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*[\w+-]*[ \t]*\r?\n(?P<body>.*?)^[ \t]*\1", re.DOTALL | re.MULTILINE)
_START = re.compile(r"[{\[]")
_MAX_STARTS = 200
"""How many brackets in the prose are tried: each try may read to the end of the text."""


class NotJsonError(ValueError):
    """The text holds no JSON; the message says why."""


def parse_json(text: str) -> Any:
    """The JSON value that the text is, or `NotJsonError`.

    Strict: no NaN, no numbers that overflow, no integers of thousands of digits, and no
    nesting that would exhaust the stack.
    """
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise NotJsonError("nested too deeply") from None
    except UnicodeEncodeError:
        raise NotJsonError("lone surrogates are not text") from None
    except ValueError as error:
        raise NotJsonError(_reason(str(error))) from None


def parse_fenced_json(text: str) -> Any:
    """Like `parse_json`, with one code fence around the value allowed."""
    fence = _FENCE.match(text)
    return parse_json(fence["body"] if fence else text)


def find_json(text: str) -> Any:
    """The first JSON object or array in the text: the whole of it, else a fenced block, else in the prose."""
    try:
        return parse_json(text)
    except NotJsonError:
        pass
    for fence in _FENCES.finditer(text):
        try:
            return parse_json(fence["body"])
        except NotJsonError:
            continue
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    position = 0
    for _ in range(_MAX_STARTS):
        start = _START.search(text, position)
        if start is None:
            break
        try:
            _, end = decoder.raw_decode(text, start.start())
            return parse_json(text[start.start() : end])
        except (ValueError, RecursionError):
            position = start.end()
    raise NotJsonError("no JSON object or array found")


def _reason(message: str) -> str:
    if message == "Input data was truncated":
        return "it ends too early"
    return message.removeprefix("JSON is malformed: ")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
