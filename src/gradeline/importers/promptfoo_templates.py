"""Templates of promptfoo: the part of Nunjucks that inserts variables, as data that is rendered or translated.

Tags such as ``{% if %}``, calls and operators are not supported: a template with them is refused with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gradeline.model import quote
from gradeline.model.text import scalar_text

MAX_TEMPLATE = 1_000_000
"""Maximum characters of a template."""
MAX_RENDERED = 5_000_000
"""Maximum characters of a rendered template."""
ENVIRONMENT = "env"
"""The variable whose keys are variables of the environment."""

_OPENING = re.compile(r"\{(?:\{|%|#)")
_CLOSING = {"{{": "}}", "{%": "%}", "{#": "#}"}
_END_RAW = re.compile(r"\{%-?\s*+endraw\s*+-?%\}")
_STEP = r"(?:\.[A-Za-z_$][\w$]*+|\[\s*+(?:\d{1,9}|'[^'\\]*+'|\"[^\"\\]*+\")\s*+\])"
_PATH = re.compile(rf"(?P<name>[A-Za-z_$][\w$]*+)(?P<steps>{_STEP}*+)")
_STEPS = re.compile(r"\.([A-Za-z_$][\w$]*+)|\[\s*+(\d+)\s*+\]|\[\s*+['\"]([^'\"]*+)['\"]\s*+\]")
_LITERAL = r"'[^'\\]*+'|\"[^\"\\]*+\"|-?\d{1,15}(?:\.\d{1,15})?|true|false|none|null"
_FILTER = re.compile(
    rf"\s*+\|\s*+(?P<name>\w++)(?:\(\s*+(?P<arguments>(?:{_LITERAL})(?:\s*+,\s*+(?:{_LITERAL}))*+)?\s*+\))?"
)
_ARGUMENT = re.compile(_LITERAL)


class TemplateError(ValueError):
    """A template that cannot be translated; the message names the part and why."""


class Filter(NamedTuple):
    """A filter with its arguments, which are literals."""

    name: str
    arguments: tuple[object, ...] = ()


class Variable(NamedTuple):
    """``{{ name.key[0] | filter }}``."""

    name: str
    path: tuple[str | int, ...] = ()
    filters: tuple[Filter, ...] = ()

    @property
    def is_environment(self) -> bool:
        """True for ``env.NAME``."""
        return self.name == ENVIRONMENT and len(self.path) == 1


class Template(NamedTuple):
    """The parts of a template: text, and variables."""

    parts: tuple[str | Variable, ...]

    @property
    def variables(self) -> Iterator[Variable]:
        return (part for part in self.parts if isinstance(part, Variable))

    @property
    def names(self) -> list[str]:
        """The names of the variables in their order, each once, without those of the environment."""
        return list(dict.fromkeys(part.name for part in self.variables if not part.is_environment))


@lru_cache(512)
def parse_template(text: str) -> Template:
    """The parts of a template; `TemplateError` for anything but variables with simple filters."""
    if len(text) > MAX_TEMPLATE:
        raise TemplateError(f"has {len(text):,} characters, more than {MAX_TEMPLATE:,}")
    parts: list[str | Variable] = []
    at, strip = 0, False
    while (opening := _OPENING.search(text, at)) is not None:
        before = text[at : opening.start()]
        parts.append(before.lstrip() if strip else before)
        inside, at = _inside_marks(text, opening)
        if inside.startswith("-"):
            parts[-1] = before.rstrip()
        strip = inside.endswith("-")
        inside = inside.strip("-").strip()
        if opening[0] == "{{":
            parts.append(_expression(inside))
        elif opening[0] == "{%":
            raw, at = _raw(text, inside, at)
            parts.append(raw)
    rest = text[at:]
    parts.append(rest.lstrip() if strip else rest)
    return Template(tuple(_joined(parts)))


def _inside_marks(text: str, opening: re.Match[str]) -> tuple[str, int]:
    """What is between an opening mark and its end, and where it ends."""
    end = text.find(_CLOSING[opening[0]], opening.end())
    if end < 0:
        raise TemplateError(f"{quote(text[opening.start() :], 40)} is not closed")
    return text[opening.end() : end], end + 2


def _raw(text: str, tag: str, at: int) -> tuple[str, int]:
    """The text up to ``{% endraw %}``, and where that ends; other tags are refused."""
    if tag != "raw":
        raise TemplateError(f"has the tag {quote(tag, 60)}, and only variables are translated")
    end = _END_RAW.search(text, at)
    if end is None:
        raise TemplateError("has {% raw %} without {% endraw %}")
    return text[at : end.start()], end.end()


def _joined(parts: Sequence[str | Variable]) -> Iterator[str | Variable]:
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text


def _expression(text: str) -> str | Variable:
    if _ARGUMENT.fullmatch(text):
        return text_of(_literal(text))
    found = _PATH.match(text)
    if found is None:
        raise _not_translated(text)
    end, filters = found.end(), list[Filter]()
    while end < len(text):
        one = _FILTER.match(text, end)
        if one is None:
            raise _not_translated(text)
        filters.append(Filter(one["name"], tuple(map(_literal, _ARGUMENT.findall(one["arguments"] or "")))))
        if one["name"] not in _FILTERS:
            raise TemplateError(f"has the filter {quote(one['name'], 40)}, which is not translated")
        end = one.end()
    steps = (int(index) if index else name or key for name, index, key in _STEPS.findall(found["steps"]))
    return Variable(found["name"], tuple(steps), tuple(filters))


def _not_translated(text: str) -> TemplateError:
    return TemplateError(f"has the expression {quote(text, 60)}, and only variables are translated")


def _literal(text: str) -> object:
    if text[0] in "'\"":
        return text[1:-1]
    return None if text == "none" else json.loads(text)


def render(template: Template, variables: Mapping[str, object]) -> str:
    """The template with the values of the variables; one that is not set is empty, as in promptfoo.

    `TemplateError` if a filter does not apply to its value, for a variable of the environment, and if it gets too long.
    """
    parts: list[str] = []
    size = 0
    for part in template.parts:
        text = part if isinstance(part, str) else text_of(value_of(part, variables))
        size += len(text)
        if size > MAX_RENDERED:
            raise TemplateError(f"has more than {MAX_RENDERED:,} characters with its variables")
        parts.append(text)
    return "".join(parts)


def value_of(variable: Variable, variables: Mapping[str, object]) -> object:
    """The value that a variable inserts; None if it is not set."""
    if variable.is_environment and ENVIRONMENT not in variables:
        raise TemplateError(f"reads {variable.path[0]} of the environment, which an import does not")
    value = variables.get(variable.name)
    for step in variable.path:
        value = _inside(value, step)
    for one in variable.filters:
        try:
            value = _FILTERS[one.name](value, *one.arguments)
        except (TypeError, ValueError, AttributeError):
            raise TemplateError(f"has the filter {one.name!r}, which does not apply to {quote(value, 40)}") from None
    return value


def _inside(value: object, step: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(str(step))
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return len(value) if step == "length" and isinstance(value, str | list) else None


def text_of(value: object) -> str:
    """A value as text, as promptfoo inserts it: lists and mappings as JSON, nothing for null."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return scalar_text(value) if isinstance(value, bool | int | float) else json.dumps(value, ensure_ascii=False)


def _default(value: object, other: object = "", falsy: object = False) -> object:
    return other if value is None or (falsy and not value) else value


def _dump(value: object, indent: object = None) -> str:
    spaces = indent if isinstance(indent, int) and 0 <= indent <= 10 else None
    separators = (",", ":") if spaces is None else (",", ": ")
    return json.dumps(value, ensure_ascii=False, indent=spaces, separators=separators)


def _join(value: object, separator: object = "") -> str:
    if not isinstance(value, list):
        raise TypeError
    return text_of(separator).join(map(text_of, value))


def _replace(value: object, old: object, new: object) -> str:
    if not old:
        raise ValueError
    return text_of(value).replace(text_of(old), text_of(new))


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | list | Mapping) else 0


_FILTERS: Mapping[str, Callable[..., object]] = {
    "capitalize": lambda value: text_of(value).capitalize(),
    "default": _default,
    "d": _default,
    "dump": _dump,
    "tojson": _dump,
    "join": _join,
    "length": _length,
    "lower": lambda value: text_of(value).lower(),
    "replace": _replace,
    "safe": lambda value: value,
    "string": text_of,
    "trim": lambda value: text_of(value).strip(),
    "upper": lambda value: text_of(value).upper(),
}
