"""JSON read token by token, so that every value has its place and every fault its own words."""

from __future__ import annotations

import re
from bisect import bisect_right
from json import JSONDecodeError, JSONDecoder
from typing import NoReturn

from gradeline.model import quote
from gradeline.suite.tree import TreeBuilder

_SPACE = re.compile(r"[ \t\r\n]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?([eE][-+]?[0-9]++)?")
_NAME = re.compile(r"[-+]?[\w.]++")
_DECODER = JSONDecoder()
_LITERALS = {"true": True, "false": False, "null": None}


class JsonFeed:
    """JSON read by hand: libyaml refuses surrogate pairs and long keys, and tells faults as YAML's."""

    def __init__(self, text: str, builder: TreeBuilder) -> None:
        self._text = text
        self._builder = builder
        self._breaks = [match.end() for match in re.finditer("\n", text)]
        self._at = 0
        self._fresh = False
        """Whether a list or mapping was opened just now, so that no comma is due."""

    def run(self) -> None:
        self._skip_space()
        if self._at == len(self._text):
            return
        closers: list[str] = []
        self._value(closers)
        while closers:
            self._next(closers)
        if self._skip_space():
            self._fail(f"expected the end of the file, got {self._rest()}")

    def _next(self, closers: list[str]) -> None:
        """Read one item of the innermost list or mapping, or its end."""
        closer = closers[-1]
        character = self._skip_space()
        fresh, self._fresh = self._fresh, False
        if character == closer:
            self._at += 1
            closers.pop()
            self._builder.close()
            return
        if not fresh:
            if character != ",":
                self._fail(f"expected ',' or '{closer}', got {self._rest()}")
            self._at += 1
            if self._skip_space() == closer:
                self._fail(f"a comma stands before '{closer}'; JSON allows none there")
        if closer == "}":
            self._key()
        self._value(closers)

    def _key(self) -> None:
        if self._skip_space() != '"':
            self._fail(f"expected a key in double quotes, got {self._rest()}")
        line, column = self._place(self._at)
        self._builder.scalar(self._string(), line, column, plain=False)
        if self._skip_space() != ":":
            self._fail(f"expected ':' after the key, got {self._rest()}")
        self._at += 1

    def _value(self, closers: list[str]) -> None:
        character = self._skip_space()
        line, column = self._place(self._at)
        if character in ("{", "["):
            self._builder.open({} if character == "{" else [], line, column)
            closers.append("}" if character == "{" else "]")
            self._at += 1
            self._fresh = True
        elif character == '"':
            self._builder.scalar(self._string(), line, column, plain=False)
        elif number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            self._builder.scalar(number[0], line, column, plain=True)
        else:
            name = _NAME.match(self._text, self._at)
            if name is None or name[0] not in _LITERALS:
                self._fail(f"expected a value, got {self._rest()}")
            self._at = name.end()
            self._builder.value(_LITERALS[name[0]], line, column)

    def _string(self) -> str:
        start = self._at
        try:
            decoded, self._at = _DECODER.raw_decode(self._text, start)
            text = str(decoded)
            text.encode()
        except JSONDecodeError as error:
            self._at = error.pos
            reason = error.msg[:1].lower() + error.msg[1:].removesuffix(" at")
            self._fail(f"{reason}, got {self._rest()}")
        except UnicodeEncodeError:
            self._at = start
            self._fail("a text holds half a surrogate pair; write the character itself")
        return text

    def _skip_space(self) -> str:
        """The next character that means something; empty at the end."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _rest(self) -> str:
        name = _NAME.match(self._text, self._at)
        rest = name[0] if name else self._text[self._at : self._at + 1]
        return quote(rest, 40) if rest else "the end of the file"

    def _place(self, at: int) -> tuple[int, int]:
        line = bisect_right(self._breaks, at)
        return line + 1, at - (self._breaks[line - 1] if line else 0) + 1

    def _fail(self, reason: str) -> NoReturn:
        self._builder.fail(*self._place(self._at), f"not JSON: {reason}")
