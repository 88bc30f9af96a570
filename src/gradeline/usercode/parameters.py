"""Which values the parameters of a target's function get."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gradeline.errors import closest_match

NAMES = ("input", "messages", "session", "sample", "model")
"""The parameter names that have a meaning, in any position."""
_SEES_THE_INPUT = frozenset({"input", "messages", "sample"})
_BY_TURN = frozenset({"input", "messages", "session"})
_REMEDY = "give it a parameter for the user's text, such as def answer(input), or messages or sample"

_Parameter = inspect.Parameter


class ParameterError(TypeError):
    """A function that cannot be called as a target; the message names what to change."""


class Parameters(NamedTuple):
    """How a function is called: what goes to it by position, and what by keyword."""

    positional: tuple[tuple[str | None, Any], ...]
    """A name of `NAMES`, or None with the parameter's own default."""
    keywords: tuple[tuple[str, str], ...]
    """Pairs of the parameter's name and a name of `NAMES`."""
    gets: frozenset[str]

    @property
    def by_turn(self) -> bool:
        """Whether it is called once per user turn; a function of ``sample`` sees all turns and is called once."""
        return bool(self.gets & _BY_TURN)

    def call(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        positional = [default if name is None else values[name] for name, default in self.positional]
        return function(*positional, **{parameter: values[name] for parameter, name in self.keywords})


ONE_TEXT = Parameters((("input", None),), (), frozenset({"input"}))
"""Of a function that is called with the text and nothing else."""


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """How to call this function, or `ParameterError`."""
    try:
        return _cached(function)
    except ParameterError:
        raise
    except TypeError:  # an object that cannot be hashed
        return _matched(function)


def _matched(function: Callable[..., Any]) -> Parameters:
    """Names of `NAMES` get what they name; the first other parameter gets the text where ``input`` is not one."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a callable written in C that does not describe itself
        return ONE_TEXT
    text = _text_parameter(parameters)
    positional: list[tuple[str | None, Any]] = []
    keywords: list[tuple[str, str]] = []
    gets: set[str] = set()
    in_order = True
    for parameter in parameters:
        name = "input" if parameter is text else parameter.name if parameter.name in NAMES else None
        if parameter.kind is _Parameter.VAR_KEYWORD or (parameter.kind is _Parameter.VAR_POSITIONAL and name is None):
            continue
        if name is not None:
            gets.add(name)
        if parameter.kind is _Parameter.POSITIONAL_ONLY or parameter.kind is _Parameter.VAR_POSITIONAL:
            positional.append((name, parameter.default))
        elif name is None:
            in_order = False
        elif in_order and parameter.kind is _Parameter.POSITIONAL_OR_KEYWORD:
            positional.append((name, None))
        else:
            keywords.append((parameter.name, name))
    if not gets & _SEES_THE_INPUT:
        raise ParameterError(f"takes no input; {_REMEDY}")
    matched = Parameters(tuple(positional), tuple(keywords), frozenset(gets))
    return ONE_TEXT if matched == ONE_TEXT else matched


_cached = lru_cache(maxsize=64)(_matched)


def _text_parameter(parameters: list[inspect.Parameter]) -> inspect.Parameter | None:
    """The parameter that has none of the names and so gets the text; `ParameterError` for a second such one."""
    others = [one for one in parameters if one.name not in NAMES and one.kind is not _Parameter.VAR_KEYWORD]
    required = [one for one in others if one.default is one.empty and one.kind is not _Parameter.VAR_POSITIONAL]
    named_input = any(one.name == "input" for one in parameters)
    extra = required if named_input else required[1:]
    if extra:
        name = extra[0].name
        near = closest_match(name, NAMES)
        hint = f"did you mean {near!r}?" if near else f"give it a default, or one of the names {', '.join(NAMES)}"
        raise ParameterError(f"takes the parameter {name!r}, which gets no value; {hint}")
    if named_input:
        return None
    if required:
        return required[0]
    sees_the_input = any(one.name in _SEES_THE_INPUT for one in parameters)
    return None if sees_the_input or not others else others[0]
