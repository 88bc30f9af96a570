"""Expressions of JavaScript as a tree: the part of the language that one-line assertions consist of.

The text is parsed, never executed, with bounds on its size and depth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MAX_CODE = 4_000
"""Maximum characters of code that is parsed."""
_MAX_DEPTH = 40


class NotTranslatedError(ValueError):
    """Code that has no exact counterpart in rules; the message names the part."""


class Token(NamedTuple):
    """A token; ``kind`` is name, number, string, regex or sign."""

    kind: str
    text: str


class Literal(NamedTuple):
    """A string, number, boolean or null."""

    value: object


class RegexLiteral(NamedTuple):
    """``/pattern/flags``."""

    pattern: str
    flags: str


class Name(NamedTuple):
    """A variable."""

    name: str


class Member(NamedTuple):
    """``object.name``; an index is the number or the string in brackets."""

    object: Node
    name: str | int


class Call(NamedTuple):
    """``callee(arguments)``."""

    callee: Node
    arguments: tuple[Node, ...]


class Not(NamedTuple):
    """``!operand``."""

    operand: Node


class Binary(NamedTuple):
    """Two operands and a logical operator or a comparison."""

    operator: str
    left: Node
    right: Node


class Array(NamedTuple):
    """``[a, b]``."""

    items: tuple[Node, ...]


class Arrow(NamedTuple):
    """``parameter => body``."""

    parameter: str
    body: Node


class TypeOf(NamedTuple):
    """``typeof operand``."""

    operand: Node


Node = Literal | RegexLiteral | Name | Member | Call | Not | Binary | Array | Arrow | TypeOf

_TOKEN = re.compile(
    r"""\s++|(?P<number>\d++(?:\.\d++)?(?![\w.]))|(?P<name>[A-Za-z_$][\w$]*+)
    |(?P<string>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|`(?:[^`\\$]|\\.|\$(?!\{))*+`)
    |(?P<sign>===|!==|==|!=|<=|>=|=>|&&|\|\||[!<>().,\[\]-])""",
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(r"/(?P<pattern>(?:[^/\\\[\n]|\\[^\n]|\[(?:[^\]\\\n]|\\[^\n])*+\])++)/(?P<flags>[a-z]*+)")
_OPERAND_END = frozenset(")]")
_ESCAPE = re.compile(
    r"\\(?:u\{(?P<long>[0-9A-Fa-f]{1,6})\}|u(?P<four>[0-9A-Fa-f]{4})|x(?P<two>[0-9A-Fa-f]{2})|(?P<one>.))", re.DOTALL
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": ""}
_CONSTANTS: Mapping[str, object] = {"true": True, "false": False, "null": None}


def tokens_of(code: str) -> list[Token]:
    """The tokens of an expression; `NotTranslatedError` for text that is none."""
    if len(code) > MAX_CODE:
        raise NotTranslatedError(f"code of {len(code):,} characters")
    found: list[Token] = []
    at = 0
    while at < len(code):
        match = _TOKEN.match(code, at) or (_REGEX.match(code, at) if _starts_operand(found) else None)
        if match is None:
            raise NotTranslatedError(f"the character {code[at]!r}")
        if match.re is _REGEX:
            found.append(Token("regex", match[0]))
        elif match.lastgroup is not None:
            found.append(Token(match.lastgroup, match[0]))
        at = match.end()
    return found


def _starts_operand(before: Sequence[Token]) -> bool:
    return not before or (before[-1].kind == "sign" and before[-1].text not in _OPERAND_END)


def _string(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        code = match["long"] or match["four"] or match["two"]
        if code is None:
            return _ESCAPED.get(match["one"], match["one"])
        number = int(code, 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise NotTranslatedError(f"the escape {match[0]}")
        return chr(number)

    return _ESCAPE.sub(replaced, text[1:-1])


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._either()
        if self._at < len(self._tokens):
            raise NotTranslatedError(f"{self._tokens[self._at].text!r}")
        return node

    def _next(self) -> Token:
        if self._at >= len(self._tokens):
            raise NotTranslatedError("code that ends early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, *texts: str) -> str | None:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is None or token.kind in ("string", "regex") or token.text not in texts:
            return None
        self._at += 1
        return token.text

    def _require(self, text: str) -> None:
        if self._takes(text) is None:
            raise NotTranslatedError(f"code without {text!r} where it is needed")

    def _either(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotTranslatedError(f"code that is nested more than {_MAX_DEPTH} levels deep")
        node = self._both()
        while self._takes("||"):
            node = Binary("||", node, self._both())
        self._depth -= 1
        return node

    def _both(self) -> Node:
        node = self._comparison()
        while self._takes("&&"):
            node = Binary("&&", node, self._comparison())
        return node

    def _comparison(self) -> Node:
        node = self._unary()
        operator = self._takes("===", "!==", "==", "!=", "<=", ">=", "<", ">")
        return node if operator is None else Binary(operator, node, self._unary())

    def _unary(self) -> Node:
        count = 0
        while self._takes("!"):
            count += 1
        if self._takes("typeof"):
            node: Node = TypeOf(self._postfix())
        elif self._takes("-"):
            node = self._negative()
        else:
            node = self._postfix()
        for _ in range(count):
            node = Not(node)
        return node

    def _negative(self) -> Node:
        token = self._next()
        if token.kind != "number":
            raise NotTranslatedError("'-'")
        return Literal(-float(token.text))

    def _postfix(self) -> Node:
        node = self._primary()
        for _ in range(_MAX_DEPTH):
            if self._takes("."):
                name = self._next()
                if name.kind != "name":
                    raise NotTranslatedError(f"{name.text!r} after a dot")
                node = Member(node, name.text)
            elif self._takes("["):
                node = Member(node, self._index())
            elif self._takes("("):
                node = Call(node, self._list(")"))
            else:
                return node
        raise NotTranslatedError(f"a chain of more than {_MAX_DEPTH} members")

    def _index(self) -> str | int:
        token = self._next()
        self._require("]")
        if token.kind == "number" and token.text.isdecimal():
            return int(token.text)
        if token.kind != "string":
            raise NotTranslatedError("an index that is not a literal")
        return _string(token.text)

    def _list(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while self._takes(end) is None:
            if items:
                self._require(",")
            items.append(self._either())
        return tuple(items)

    def _primary(self) -> Node:
        token = self._next()
        if token.kind == "string":
            return Literal(_string(token.text))
        if token.kind == "number":
            return Literal(float(token.text) if "." in token.text else int(token.text))
        if token.kind == "regex":
            pattern, _, flags = token.text[1:].rpartition("/")
            return RegexLiteral(pattern, flags)
        if token.kind == "name":
            return self._name(token.text)
        if token.text == "[":
            return Array(self._list("]"))
        if token.text == "(":
            return self._parenthesis()
        raise NotTranslatedError(f"{token.text!r}")

    def _name(self, name: str) -> Node:
        if self._takes("=>"):
            return Arrow(name, self._either())
        return Literal(_CONSTANTS[name]) if name in _CONSTANTS else Name(name)

    def _parenthesis(self) -> Node:
        node = self._either()
        self._require(")")
        if self._takes("=>"):
            if not isinstance(node, Name):
                raise NotTranslatedError("a function with these parameters")
            return Arrow(node.name, self._either())
        return node


def parse_expression(code: str) -> Node:
    """The tree of an expression; `NotTranslatedError` for code beyond the supported part of the language."""
    return _Parser(tokens_of(code)).whole()
