"""Reading what a provider sent: JSON whose shape nobody vouches for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

from gradeline.adapters.failures import ModelError
from gradeline.model.text import clean_text
from gradeline.model.trajectory import ToolCall
from gradeline.parsing.jsontext import NotJsonError, parse_json

_LARGEST = 2**53
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


class Tokens(NamedTuple):
    """What a call used, as told. ``input`` is the whole prompt, ``cached`` and ``written`` are parts of it: read
    from a cache and put into one. None is unknown; ``cost`` is what the server says it charged. ``extra`` is True where
    more than tokens at the usual rate was charged (another tier, searches), so that no price table tells the cost."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    written: int | None = None
    cost: float | None = None
    extra: bool = False


def parse(text: str) -> Any:
    """The JSON that the text is, or `ModelError`. Halves of a surrogate pair pass: streams are cut between them."""
    try:
        return parse_json(text)
    except NotJsonError as error:
        if not _SURROGATE.search(text):
            raise ModelError("bad_response", f"no JSON: {error}") from None
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ModelError("bad_response", f"no JSON: {str(error)[:200]}") from None


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def mapping(data: object, *path: str | int) -> Mapping[str, Any]:
    """The mapping at a path, an empty one where there is none."""
    found = at(data, *path)
    return found if isinstance(found, Mapping) else {}


def items(data: object, *path: str | int) -> list[Any]:
    """The list at a path, an empty one where there is none."""
    found = at(data, *path)
    return found if isinstance(found, list) else []


def text_at(data: object, *path: str | int) -> str | None:
    """The text at a path; None where there is none."""
    found = at(data, *path)
    return found if isinstance(found, str) else None


def at(data: object, *path: str | int) -> Any:
    """What is at a path, None for nothing."""
    for step in path:
        if isinstance(step, str) and isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(step, int) and isinstance(data, list) and -len(data) <= step < len(data):
            data = data[step]
        else:
            return None
    return data


def count(data: object, *path: str | int) -> int | None:
    """A number of tokens; what cannot be one is unknown."""
    found = at(data, *path)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _LARGEST else None


def number(data: object, *path: str | int) -> float | None:
    """A finite number; None where there is none."""
    found = at(data, *path)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        return None
    return float(found)


def charged(data: object, *path: str | int) -> float | None:
    """An amount of money that a server told; None where there is none."""
    cost = number(data, *path)
    return cost if cost is not None and cost >= 0 else None


def another_tier(tier: object) -> bool:
    """Whether a service tier is one that is not charged by the usual prices."""
    return tier not in (None, "default", "standard", "auto")


def total(*counts: int | None) -> int | None:
    """The sum of those that are known; None where none is."""
    known = [one for one in counts if one is not None]
    return sum(known) if known else None


def joined(pieces: Iterable[str]) -> str:
    """Texts put together; a character that was cut between two of them is whole again."""
    text = "".join(pieces)
    if _HALF.search(text):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def tool_call(name: object, arguments: object, ident: object) -> ToolCall:
    """A call as told; arguments that are no text are written as JSON, those that are stay as they came."""
    if not isinstance(name, str) or not name:
        raise ModelError("bad_response", "a tool call without a name")
    if arguments is None or arguments == "":
        arguments = "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return ToolCall(
        clean_text(name).text,
        clean_text(joined([arguments])).text,
        None if ident is None else clean_text(str(ident)).text,
    )


def texts_in(parts: Iterable[Any], key: str = "text") -> Iterator[str]:
    """The texts of content parts."""
    for part in parts:
        text = part if isinstance(part, str) else text_at(part, key)
        if text is not None:
            yield text
