"""JMESPath that is checked before it is used: syntax, names of functions and their arguments."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

from gradeline.errors import UngradableError, closest
from gradeline.model import quote

_PREFIX = re.compile(r"\A(?:Bad|Invalid) jmespath expression: ", re.IGNORECASE)


class BadPathError(ValueError):
    """The text is no JMESPath; the message quotes it and says why."""


class JmesPath:
    """A JMESPath, ready for any number of searches."""

    def __init__(self, path: str) -> None:
        import jmespath  # 10 ms that most commands never need

        try:
            with warnings.catch_warnings(action="ignore"):  # an old way to write literals, still read
                compiled = jmespath.compile(path)
        except RecursionError:
            raise BadPathError(f"{quote(path)} is no JMESPath: nested too deeply") from None
        except (ValueError, LookupError) as error:
            raise BadPathError(f"{quote(path)} is no JMESPath: {_first_line(error)}") from None
        for fault in _misused(compiled.parsed):
            raise BadPathError(f"{quote(path)} is no JMESPath: {fault}")
        self._path = path
        self._compiled = compiled
        self._field: str | None = compiled.parsed["value"] if compiled.parsed["type"] == "field" else None
        """The whole path, where it is one name: then no interpreter is needed."""

    def search(self, data: object) -> Any:
        """What the path finds, None for nothing; `UngradableError` where a function cannot take the data."""
        if self._field is not None and type(data) is dict:
            return data.get(self._field)
        from jmespath.exceptions import JMESPathTypeError

        try:
            return self._compiled.search(data)
        except JMESPathTypeError as error:
            # its own text holds the whole value
            reason = (
                f"{error.function_name}() takes {' or '.join(error.expected_types)}, got {quote(error.current_value)}"
            )
        except RecursionError:
            reason = "the data is nested too deeply"
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
            reason = _first_line(error)
        raise UngradableError(f"the JMESPath {quote(self._path)} fails on this data: {reason}")


def _misused(tree: dict[str, Any]) -> Iterator[str]:
    """What jmespath itself would say only once it evaluates the path."""
    from jmespath.functions import Functions

    known = Functions.FUNCTION_TABLE
    nodes: list[Any] = [tree]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, dict):
            continue
        children = node.get("children", [])
        nodes += children
        if node["type"] == "slice" and children[2] == 0:
            yield "the step of a slice cannot be 0"
        if node["type"] != "function_expression":
            continue
        name, given = node["value"], len(children)
        if name not in known:
            close = closest(name, known)
            yield f"no function named {name!r}; " + (
                f"did you mean {close!r}?" if close else f"known are {', '.join(sorted(known))}"
            )
            continue
        signature = known[name]["signature"]
        variadic = bool(signature) and signature[-1].get("variadic", False)
        if given < len(signature) or (given > len(signature) and not variadic):
            arguments = "argument" if len(signature) == 1 else "arguments"
            yield f"{name}() takes {'at least ' if variadic else ''}{len(signature)} {arguments}, got {given}"


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0].removesuffix(", for expression:").rstrip(":.")
    return _PREFIX.sub("", line)[:200] or type(error).__name__
