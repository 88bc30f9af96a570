"""``${NAME}`` in strings of a suite, replaced by variables of the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gradeline.errors import closest_match

_REFERENCE = re.compile(r"(?P<escape>\$\$(?=\{))|\$\{(?P<name>[^{}]*+)(?P<end>\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+")


class FilledText(NamedTuple):
    """A string with its variables replaced; a faulty reference is not replaced."""

    text: str
    values: tuple[str, ...] = ()
    """The values that were inserted, which must never be shown or stored."""
    faults: tuple[str, ...] = ()


def fill_variables(text: str, environment: Mapping[str, str]) -> FilledText:
    """Replace each ``${NAME}`` in a string; ``$${X}`` becomes ``${X}``."""
    if "${" not in text:
        return FilledText(text)
    values: list[str] = []
    faults: list[str] = []

    def fill(match: re.Match[str]) -> str:
        if match["escape"]:
            return "$"
        fault = _fault(match, environment)
        if fault:
            faults.append(fault)
            return match[0]
        value = environment[match["name"]]
        if value:
            values.append(value)
        return value

    filled = _REFERENCE.sub(fill, text)
    return FilledText(filled, tuple(values), tuple(faults))


def variable_names(text: str) -> Iterator[str]:
    """The names of the variables in a string."""
    yield from (match["name"] for match in _REFERENCE.finditer(text) if match["name"] and match["end"])


def _fault(match: re.Match[str], environment: Mapping[str, str]) -> str | None:
    name = match["name"]
    if not match["end"]:
        return "'${' without '}'; write ${NAME}, or $${ for the characters themselves"
    if not _NAME.fullmatch(name):
        return (
            f"{match[0]!r} is not a valid variable; write ${{NAME}}, or $${match[0][1:]} for the characters themselves"
        )
    if name not in environment:
        close = closest_match(name, environment)
        hint = f"did you mean {close}?" if close else "export it, or write it into .env in the suite's folder"
        return f"the variable {name} is not set; {hint}"
    if not _is_text(environment[name]):
        return f"the value of {name} is not UTF-8"
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
