"""A document as a tree of values with their positions, built by the parsers of YAML and JSON."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from json import JSONDecodeError, JSONDecoder
from math import isfinite
from typing import Any, Literal, NoReturn

from gradeline.model import quote
from gradeline.suite.problems import DocumentError, KeyPath, SuiteProblem, file_error, show_path

_MAX_DEPTH = 100
_MAX_REPEATED = 200_000
"""Maximum number of values that all aliases together repeat; a long string counts one more per 100 characters."""
_MAX_PROBLEMS = 100
_MAX_DIGITS = 1_000


@dataclass(slots=True)
class Node:
    """A value and its position. Aliases share children, so the tree is small even where the data is large."""

    value: Any
    line: int
    column: int
    weight: int = 1
    height: int = 0


def child(value: Any, step: str | int) -> Node | None:
    if isinstance(value, dict):
        return value.get(step)
    inside = isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value)
    return value[step] if inside else None


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_BEGINS_NUMBER = frozenset("-+.0123456789")
_INTEGER = re.compile(r"[-+]?[0-9]++|0o[0-7]++|0x[0-9a-fA-F]++")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]++|[0-9]++(?:\.[0-9]*+)?)(?:[eE][-+]?[0-9]++)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = {f"{_TAG}{name}": name for name in ("str", "int", "float", "bool", "null")}


@dataclass(slots=True)
class _Frame:
    """A list or mapping that is not closed yet."""

    node: Node
    anchor: str | None
    expects_key: bool
    label: str = ""
    action: Literal["keep", "merge", "drop"] = "keep"
    """What to do with the value after the current key."""
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    merged: list[Node] = field(default_factory=list)


class TreeBuilder:
    """Builds the tree from the events of a parser, within limits, and collects faults."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._root: Node | None = None
        self._open: list[_Frame] = []
        self._anchors: dict[str, Node | None] = {}
        """None while the anchored value is still open."""
        self._repeated = 0
        self._problems: list[SuiteProblem] = []

    def finish(self) -> Node:
        """The root, or `DocumentError` with all faults."""
        if self._problems:
            raise DocumentError(self._problems)
        if self._root is None:
            raise file_error(self.file, "is empty")
        return self._root

    def fail(self, line: int, column: int, message: str, path: KeyPath = ()) -> NoReturn:
        """Stop at this fault; the earlier ones are reported too."""
        self._problems.append(SuiteProblem(self.file, line, column, show_path(path), message))
        raise DocumentError(self._problems)

    def open(self, value: dict[str, Node] | list[Node], line: int, column: int, anchor: str | None = None) -> None:
        if len(self._open) >= _MAX_DEPTH:
            self.fail(line, column, f"nested more than {_MAX_DEPTH} levels deep", self._path()[:5])
        self._refuse_as_key("a list or mapping cannot be a key; use a string", line, column)
        if anchor:
            self._anchors[anchor] = None
        self._open.append(_Frame(Node(value, line, column, height=1), anchor, expects_key=isinstance(value, dict)))

    def close(self) -> None:
        frame = self._open.pop()
        if frame.merged:
            merged: dict[str, Node] = {}
            for part in frame.merged:
                for key, item in part.value.items():
                    merged.setdefault(key, item)
            frame.node.value = merged | frame.node.value
        if frame.anchor:
            self._anchors[frame.anchor] = frame.node
        self._attach(frame.node)

    def scalar(
        self, text: str, line: int, column: int, *, plain: bool, tag: str | None = None, anchor: str | None = None
    ) -> None:
        """A scalar as written; only an unquoted (``plain``) one can be other than a string."""
        if not (self._open or text or tag) and plain:
            return  # a document with only comments
        if self._open and self._open[-1].expects_key:
            if tag:
                self._problem(line, column, f"a key cannot have a tag, got {_short_tag(tag)}")
            self._key(text, line, column, plain=plain and not tag)
            node = Node(text, line, column)
        else:
            value = self._resolve(text, line, column, plain, tag)
            node = Node(value, line, column, 1 + len(text) // 100)
            self._attach(node)
        if anchor:
            self._anchors[anchor] = node

    def value(self, value: object, line: int, column: int) -> None:
        """A scalar that is already converted."""
        self._attach(Node(value, line, column))

    def alias(self, name: str, line: int, column: int) -> None:
        self._refuse_as_key("an alias cannot be a key; write the key out", line, column)
        target = self._anchors.get(name)
        if target is None:
            reason = f"*{name} refers to itself" if name in self._anchors else f"no anchor &{name} above"
            self._problem(line, column, reason)
            target = Node(None, line, column)
        self._repeated += target.weight
        if self._repeated > _MAX_REPEATED:
            self.fail(line, column, f"aliases repeat more than {_MAX_REPEATED:,} values; use fewer")
        if len(self._open) + target.height > _MAX_DEPTH:
            self.fail(line, column, f"*{name} is nested more than {_MAX_DEPTH} levels deep")
        self._attach(Node(target.value, line, column, target.weight, target.height))

    def check_tag(self, tag: str | None, kind: Literal["map", "seq"], line: int, column: int) -> None:
        if tag not in (None, "!", f"{_TAG}{kind}"):
            self._problem(line, column, f"the tag {_short_tag(str(tag))} is not supported here; leave it out")

    def _attach(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        frame = self._open[-1]
        parent = frame.node
        parent.weight += node.weight
        parent.height = max(parent.height, node.height + 1)
        if isinstance(parent.value, list):
            parent.value.append(node)
            return
        if frame.expects_key:
            frame.expects_key = False  # already refused as a key; its value is dropped too
            frame.label, frame.action = "?", "drop"
            return
        if frame.action == "keep":
            parent.value[frame.label] = node
        elif frame.action == "merge":
            self._merge(frame, node)
        frame.expects_key = True

    def _key(self, text: str, line: int, column: int, *, plain: bool) -> None:
        frame = self._open[-1]
        first = frame.keys.setdefault(text, (line, column))
        if plain and not text:
            self._problem(line, column, "a key is missing before ':'")
        elif first != (line, column):
            above = f"line {first[0]}, column {first[1]}"
            self._problem(line, column, f"the key is written twice (first in {above}); keep one", text)
        valid = first == (line, column) and bool(text or not plain)
        frame.label = text
        frame.action = "drop" if not valid else "merge" if plain and text == "<<" else "keep"
        frame.expects_key = False

    def _merge(self, frame: _Frame, node: Node) -> None:
        parts = node.value if isinstance(node.value, list) else [node]
        if all(isinstance(part.value, dict) for part in parts):
            frame.merged.extend(parts)
        else:
            self._problem(node.line, node.column, "<<: requires a mapping or a list of mappings, such as *name")

    def _resolve(self, text: str, line: int, column: int, plain: bool, tag: str | None) -> object:
        if tag is None:
            return self._implicit(text, line, column) if plain else text
        kind = "str" if tag == "!" else _SCALAR_TAGS.get(tag)
        if kind is None:
            self._problem(line, column, f"the tag {_short_tag(tag)} is not supported; leave it out")
            return text
        if kind == "str":
            return text
        value = self._implicit(text, line, column)
        if kind == "float" and type(value) is int:
            return float(value)
        if type(value).__name__ != {"null": "NoneType"}.get(kind, kind):
            self._problem(line, column, f"{quote(text)} is not a valid {kind}")
        return value

    def _implicit(self, text: str, line: int, column: int) -> object:
        """The value of a plain scalar in the core schema."""
        if not text or text[0] not in _BEGINS_NUMBER:
            return _WORDS.get(text, text)
        if _INTEGER.fullmatch(text):
            if len(text) > _MAX_DIGITS:
                self._problem(line, column, f"a number of {len(text):,} digits is too large; put a string in quotes")
                return 0
            return int(text, 0 if text[1:2] in ("o", "x") else 10)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if isfinite(number):
                return number
        elif not _NOT_FINITE.fullmatch(text):
            return text
        self._problem(line, column, f"{quote(text)} is not a finite number; leave it out, or put a string in quotes")
        return None

    def _refuse_as_key(self, message: str, line: int, column: int) -> None:
        if self._open and self._open[-1].expects_key:
            self._problem(line, column, message)

    def _problem(self, line: int, column: int, message: str, *further: str) -> None:
        if len(self._problems) >= _MAX_PROBLEMS:
            self.fail(line, column, "there are more problems; fix those above first")
        path = show_path((*self._path(), *further))
        self._problems.append(SuiteProblem(self.file, line, column, path, message))

    def _path(self) -> KeyPath:
        steps: list[str | int] = []
        for frame in self._open:
            if isinstance(frame.node.value, list):
                steps.append(len(frame.node.value))
            elif not frame.expects_key:
                steps.append(frame.label)
        return tuple(steps)


def _short_tag(tag: str) -> str:
    return tag.replace(_TAG, "!!")


_SPACE = re.compile(r"[ \t\r\n]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?([eE][-+]?[0-9]++)?")
_NAME = re.compile(r"[-+]?[\w.]++")
_DECODER = JSONDecoder()
_LITERALS = {"true": True, "false": False, "null": None}


class JsonParser:
    """Parses JSON: libyaml refuses surrogate pairs and long keys, and reports faults in terms of YAML."""

    def __init__(self, text: str, builder: TreeBuilder) -> None:
        self._text = text
        self._builder = builder
        self._breaks = [match.end() for match in re.finditer("\n", text)]
        self._at = 0
        self._fresh = False
        """True right after a list or mapping was opened, where no comma is expected."""

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
                self._fail(f"a comma before '{closer}' is not allowed in JSON")
        if closer == "}":
            self._key()
        self._value(closers)

    def _key(self) -> None:
        if self._skip_space() != '"':
            self._fail(f"expected a key in double quotes, got {self._rest()}")
        line, column = self._position(self._at)
        self._builder.scalar(self._string(), line, column, plain=False)
        if self._skip_space() != ":":
            self._fail(f"expected ':' after the key, got {self._rest()}")
        self._at += 1

    def _value(self, closers: list[str]) -> None:
        character = self._skip_space()
        line, column = self._position(self._at)
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
            self._fail("a string contains half a surrogate pair; write the character itself")
        return text

    def _skip_space(self) -> str:
        """Skip whitespace; returns the next character, empty at the end."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _rest(self) -> str:
        name = _NAME.match(self._text, self._at)
        rest = name[0] if name else self._text[self._at : self._at + 1]
        return quote(rest, 40) if rest else "the end of the file"

    def _position(self, at: int) -> tuple[int, int]:
        line = bisect_right(self._breaks, at)
        return line + 1, at - (self._breaks[line - 1] if line else 0) + 1

    def _fail(self, reason: str) -> NoReturn:
        self._builder.fail(*self._position(self._at), f"not JSON: {reason}")
