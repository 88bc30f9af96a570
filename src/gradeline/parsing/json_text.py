"""JSON in the text of an agent (whole, in a code fence, or within prose); equality, size and depth of JSON values."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from gradeline.model.text import quote

# possessive, to stay linear in untrusted text
_OPENING = re.compile(r"[ \t]*+(?P<fence>`{3,}+|~{3,}+)[ \t]*+[\w+-]*+[ \t\r]*+")
_START = re.compile(r"[{\[]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_STARTS = 200
"""Maximum brackets tried in prose."""
_MAX_READ = 10_000_000
"""Maximum characters read by these attempts in total."""
_MAX_REASON = 200


class NotJsonError(ValueError):
    """The text is not JSON; the message says why."""


class JsonDefectError(ValueError):
    """Valid JSON syntax with a defect: a duplicate key, NaN or a number that overflows. The message is a noun."""


def parse_json(text: str) -> Any:
    """Parse JSON strictly: no NaN, no overflow, no integers of thousands of digits, no excessive nesting."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise NotJsonError("nested too deeply") from None
    except UnicodeEncodeError:
        raise NotJsonError("lone surrogates are not text") from None
    except ValueError as error:
        raise NotJsonError(_reason(str(error), text)) from None


def strict_decoder(*, strict: bool = True) -> json.JSONDecoder:
    """A decoder that raises `JsonDefectError`. Unlike `parse_json` it accepts escapes of lone surrogates.

    ``strict=False`` allows raw control characters in strings.
    """
    return json.JSONDecoder(
        object_pairs_hook=_unique_keys, parse_float=_finite, parse_constant=_refuse_constant, strict=strict
    )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise JsonDefectError(f"the duplicate key {quote(duplicate, 40)}")
    return data


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise JsonDefectError(f"the number {quote(text, 40)}, which is too large")
    return value


def _refuse_constant(name: str) -> float:
    raise JsonDefectError(f"{name}, which is not JSON")


def parse_fenced_json(text: str) -> Any:
    """Like `parse_json`, but allows a code fence around the value."""
    stripped = text.strip()
    line, _, rest = stripped.partition("\n")
    opening = _OPENING.fullmatch(line)
    if opening is not None and rest.endswith(opening["fence"]):
        return parse_json(rest.removesuffix(opening["fence"]))
    return parse_json(text)


def find_json(text: str) -> Any:
    """The first JSON object or array: the whole text, else a fenced block, else within prose."""
    for found in all_json(text):
        return found
    raise NotJsonError("no JSON object or array found")


def all_json(text: str) -> Iterator[Any]:
    """Every JSON value of a text: the whole text if it is one, else those of fenced blocks and those within prose."""
    try:
        yield parse_json(text)
        return
    except NotJsonError:
        pass
    for block in _fenced_blocks(text):
        try:
            yield parse_json(block)
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
            found = parse_json(text[start.start() : end])
        except json.JSONDecodeError as error:
            read += error.pos - start.start()
        except (ValueError, RecursionError):
            read += len(text) - start.start()  # the position is unknown
        else:
            read += end - start.start()
            position = end
            yield found


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
        # msgspec's message for half a surrogate pair too
        return "it contains half of a surrogate pair" if _SURROGATE.search(text) else "it ends too early"
    reason = message.removeprefix("JSON is malformed: ")
    return reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}…"


def json_equal(left: Any, right: Any) -> bool:
    """Equal as JSON: in any key order, 1 equals 1.0, and true does not equal 1."""
    return json_key(left) == json_key(right)


def json_within(expected: object, found: object) -> bool:
    """Whether a value has everything that is expected: all keys of objects; lists of the same length."""
    pending = [(expected, found)]
    while pending:
        left, right = pending.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if not left.keys() <= right.keys():
                return False
            pending += [(value, right[key]) for key, value in left.items()]
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pending += zip(left, right, strict=True)
        elif isinstance(left, str) and isinstance(right, str):
            if left != right:
                return False
        elif isinstance(left, dict | list) or isinstance(right, dict | list) or json_key(left) != json_key(right):
            return False
    return True


def json_key(value: Any) -> str:
    """A string that is the same for two JSON values if and only if they are equal as by `json_equal`.

    Iterative, so that nesting cannot exhaust the stack. A string, because only hashes of strings are salted and cannot
    be made to collide.
    """
    pieces: list[str] = []
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            pieces.append(f"{len(item)}:{item}")
        elif isinstance(item, bool) or item is None:
            pieces.append(f"{item},")
        elif isinstance(item, int | float):
            pieces.append(f"{_number_key(item)},")
        elif isinstance(item, Mapping):
            pieces.append(f"{{{len(item)},")
            for name in sorted(item, reverse=True):
                pending += (item[name], name)
        else:
            pieces.append(f"[{len(item)},")
            pending += reversed(item)
    return "".join(pieces)


def _number_key(number: float) -> str:
    try:
        as_float = float(number)
    except OverflowError:
        return hex(int(number))
    # adding 0.0 turns -0.0 into 0.0
    return (as_float + 0.0).hex() if as_float == number else hex(int(number))


def levels(value: object, most: int | None = None) -> list[list[Any]]:
    """Objects and lists in a value by depth, outermost first; at most ``most`` levels."""
    levels: list[list[Any]] = []
    level = [value] if isinstance(value, dict | list) else []
    while level and len(levels) != most:
        levels.append(level)
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    return levels


class Size(NamedTuple):
    """Size of a JSON value."""

    values: int
    """Number of values, itself included."""
    chars: int
    """Characters of all strings and keys."""


def size_of(value: object, most: int | None = None) -> Size:
    """The size of a JSON value; counting stops after ``most`` values."""
    values = chars = 0
    pending = [value]
    while pending:
        item = pending.pop()
        values += 1
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, dict):
            chars += sum(map(len, item))
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        if most is not None and values > most:
            break
    return Size(values, chars)
