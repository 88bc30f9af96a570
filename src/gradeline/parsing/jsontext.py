"""JSON in the text of an agent: whole, in a code fence, or somewhere in the prose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

# Possessive: it must stay linear in hostile text.
_OPENING = re.compile(r"[ \t]*+(?P<fence>`{3,}+|~{3,}+)[ \t]*+[\w+-]*+[ \t\r]*+")
_START = re.compile(r"[{\[]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_STARTS = 200
"""How many brackets in the prose are tried."""
_MAX_READ = 10_000_000
"""How many characters these tries may read in all."""
_MAX_REASON = 200


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
        raise NotJsonError(_reason(str(error), text)) from None


def parse_fenced_json(text: str) -> Any:
    """Like `parse_json`, with one code fence around the value allowed."""
    stripped = text.strip()
    line, _, rest = stripped.partition("\n")
    opening = _OPENING.fullmatch(line)
    if opening is not None and rest.endswith(opening["fence"]):
        return parse_json(rest.removesuffix(opening["fence"]))
    return parse_json(text)


def find_json(text: str) -> Any:
    """The first JSON object or array in the text: the whole of it, else a fenced block, else in the prose."""
    try:
        return parse_json(text)
    except NotJsonError:
        pass
    for block in _fenced_blocks(text):
        try:
            return parse_json(block)
        except NotJsonError:
            continue
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    position = read = 0
    for _ in range(_MAX_STARTS):
        start = _START.search(text, position)
        if start is None or read > _MAX_READ:
            break
        position = start.end()
        try:
            _, end = decoder.raw_decode(text, start.start())
            return parse_json(text[start.start() : end])
        except json.JSONDecodeError as error:
            read += error.pos - start.start()
        except (ValueError, RecursionError):
            read += len(text) - start.start()  # they do not say how far they read
    raise NotJsonError("no JSON object or array found")


def _fenced_blocks(text: str) -> Iterator[str]:
    if "```" not in text and "~~~" not in text:
        return
    fence = ""
    lines: list[str] = []
    for line in text.split("\n"):
        if not fence:
            opening = _OPENING.fullmatch(line)
            fence = opening["fence"] if opening else ""
        elif line.lstrip(" \t").startswith(fence):
            yield "\n".join(lines)
            fence = ""
            lines = []
        else:
            lines.append(line)


def _reason(message: str, text: str) -> str:
    if message == "Input data was truncated":
        # what msgspec says of half a surrogate pair too
        return "it holds half of a surrogate pair" if _SURROGATE.search(text) else "it ends too early"
    reason = message.removeprefix("JSON is malformed: ")
    return reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}…"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
