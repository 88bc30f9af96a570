"""Templates of promptfoo with tags: ``if``, ``for`` and ``set`` of Nunjucks, rendered with the variables of a test.

Nothing of a template is executed as code: the tags are read into a tree, which is rendered within bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gradeline.importers.promptfoo_templates import (
    MAX_RENDERED,
    MAX_TEMPLATE,
    Template,
    TemplateError,
    Variable,
    parse_template,
    render,
    text_of,
    value_of,
)
from gradeline.model import quote

_MAX_DEPTH = 20
_MAX_STEPS = 100_000
"""Blocks and rounds of loops that are rendered."""
_OPENING = re.compile(r"\{(?:\{|%|#)")
_CLOSING = {"{{": "}}", "{%": "%}", "{#": "#}"}
_RAW = re.compile(r"-?\s*+raw\s*+-?")
_END_RAW = re.compile(r"\{%-?\s*+endraw\s*+-?%\}")
_SPACES = re.compile(r"\s*+")
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
_CONSTANTS: Mapping[str, object] = {"true": True, "false": False, "none": None, "null": None}
_WORD = re.compile(
    r"\s*+(?:(?P<operator>===|!==|==|!=|<=|>=|<|>|\(|\)|(?:and|or|not|in|is)(?![\w.\[|]))"
    r"|(?P<value>'[^'\\]*+'|\"[^\"\\]*+\"|[^\s()=!<>|]++(?:\s*+\|\s*+\w++(?:\([^()]*+\))?)*+))"
)
_NAME = r"[A-Za-z_$][\w$]*+"
_FOR = re.compile(rf"({_NAME})(?:\s*+,\s*+({_NAME}))?\s++in\s++(.+)", re.DOTALL)
_SET = re.compile(rf"({_NAME})\s*+=\s*+(.+)", re.DOTALL)


class Constant(NamedTuple):
    """A literal."""

    value: object


class TemplateCondition(NamedTuple):
    """A condition: a value, or an operator with one or two conditions."""

    operator: str
    left: Condition
    right: Condition | None = None


Expression = Variable | Constant
Condition = Expression | TemplateCondition


class IfBlock(NamedTuple):
    """``{% if %}``: the first branch whose condition holds; the last one may have none."""

    branches: Sequence[tuple[Condition | None, Sequence[Node]]]


class ForBlock(NamedTuple):
    """``{% for %}``: the body for each item, or ``otherwise`` if there is none."""

    names: tuple[str, ...]
    items: Expression
    body: Sequence[Node]
    otherwise: Sequence[Node]


class SetTag(NamedTuple):
    """``{% set %}``."""

    name: str
    value: Expression


Node = Template | IfBlock | ForBlock | SetTag


class TagTemplate(NamedTuple):
    """A template with tags."""

    nodes: Sequence[Node]

    @property
    def variables(self) -> Iterator[Variable]:
        """The variables that it reads, with those of its loops."""
        return _variables(self.nodes)


def _variables(nodes: Sequence[Node]) -> Iterator[Variable]:
    for node in nodes:
        match node:
            case Template():
                yield from node.variables
            case IfBlock():
                for condition, body in node.branches:
                    yield from _variables_of(condition)
                    yield from _variables(body)
            case ForBlock():
                yield from _variables_of(node.items)
                yield from _variables([*node.body, *node.otherwise])
            case SetTag():
                yield from _variables_of(node.value)


def _variables_of(condition: Condition | None) -> Iterator[Variable]:
    if isinstance(condition, Variable):
        yield condition
    elif isinstance(condition, TemplateCondition):
        yield from _variables_of(condition.left)
        yield from _variables_of(condition.right)


@lru_cache(256)
def parse_page(text: str) -> TagTemplate:
    """The tree of a template; `TemplateError` for other tags, and for expressions that are not supported."""
    if len(text) > MAX_TEMPLATE:
        raise TemplateError(f"has {len(text):,} characters, more than {MAX_TEMPLATE:,}")
    parser = _PageParser(text)
    nodes, end = parser.block(())
    if end:
        raise TemplateError(f"has the tag {quote(end, 40)} without its beginning")
    return TagTemplate(nodes)


class _PageParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def block(self, ends: Sequence[str]) -> tuple[list[Node], str]:
        """The nodes up to one of the tags, and that tag; empty at the end of the text."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise TemplateError(f"has tags that are nested more than {_MAX_DEPTH} levels deep")
        nodes: list[Node] = []
        while (tag := self._next(nodes)) is not None:
            word, _, rest = tag.partition(" ")
            if word in ends or word.startswith("end") or word in ("else", "elif", "elseif"):
                if word not in ends:
                    raise TemplateError(f"has the tag {quote(tag, 40)} without its beginning")
                self._depth -= 1
                return nodes, tag
            nodes.append(self._tag(word, rest.strip(), tag))
        if ends:
            raise TemplateError(f"has a tag without {ends[-1]}")
        return nodes, ""

    def _next(self, nodes: list[Node]) -> str | None:
        """Add the text before the next tag; the tag's words, or None at the end."""
        start = at = self._at
        while (opening := _OPENING.search(self._text, at)) is not None:
            end = self._text.find(_CLOSING[opening[0]], opening.end())
            if end < 0:
                raise TemplateError(f"{quote(self._text[opening.start() : opening.start() + 60], 40)} is not closed")
            at = end + 2
            if opening[0] != "{%":
                continue
            inside = self._text[opening.end() : end]
            if _RAW.fullmatch(inside):
                closed = _END_RAW.search(self._text, at)
                if closed is None:
                    raise TemplateError("has {% raw %} without {% endraw %}")
                at = closed.end()
                continue
            before = self._text[start : opening.start()]
            self._add(nodes, before.rstrip() if inside.startswith("-") else before)
            spaces = _SPACES.match(self._text, at) if inside.endswith("-") else None
            self._at = spaces.end() if spaces else at
            return " ".join(inside.removeprefix("-").removesuffix("-").split(None, 1)).strip()
        self._add(nodes, self._text[start:])
        self._at = len(self._text)
        return None

    @staticmethod
    def _add(nodes: list[Node], text: str) -> None:
        if text:
            nodes.append(parse_template(text))

    def _tag(self, word: str, rest: str, tag: str) -> Node:
        if word == "if":
            return self._if(rest)
        if word == "for" and (loop := _FOR.fullmatch(rest)) is not None:
            return self._for(loop)
        if word == "set" and (made := _SET.fullmatch(rest)) is not None:
            return SetTag(made[1], _value(made[2]))
        raise TemplateError(f"has the tag {quote(tag, 60)}, which is not translated")

    def _if(self, rest: str) -> IfBlock:
        branches: list[tuple[Condition | None, Sequence[Node]]] = []
        condition: Condition | None = parse_condition(rest)
        while True:
            last = condition is None
            body, end = self.block(("endif",) if last else ("elif", "elseif", "else", "endif"))
            branches.append((condition, body))
            word, _, rest = end.partition(" ")
            if word == "endif":
                return IfBlock(branches)
            condition = None if word == "else" else parse_condition(rest)

    def _for(self, loop: re.Match[str]) -> ForBlock:
        names = tuple(filter(None, (loop[1], loop[2])))
        body, end = self.block(("else", "endfor"))
        otherwise: Sequence[Node] = []
        if end == "else":
            otherwise, _ = self.block(("endfor",))
        return ForBlock(names, _value(loop[3]), body, otherwise)


def _value(text: str) -> Expression:
    """A value: a variable with filters, or a literal."""
    plain = text.strip()
    if plain in _CONSTANTS:
        return Constant(_CONSTANTS[plain])
    if _NUMBER.fullmatch(plain):
        return Constant(float(plain))
    if not plain or "{{" in plain or "}}" in plain:
        raise TemplateError(f"has the expression {quote(plain, 40)}, which is not translated")
    parts = parse_template(f"{{{{ {plain} }}}}").parts
    return parts[0] if parts and isinstance(parts[0], Variable) else Constant("".join(map(str, parts)))


def parse_condition(text: str) -> Condition:
    """The tree of a condition; `TemplateError` for anything but values, comparisons and logical operators."""
    words: list[tuple[bool, str]] = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _WORD.match(text, at)
        if found is None or len(words) > 200:
            raise TemplateError(f"has the condition {quote(text, 60)}, which is not translated")
        words.append((found["operator"] is not None, found["operator"] or found["value"]))
        at = found.end()
    parser = _ConditionParser(words, text)
    return parser.whole()


class _ConditionParser:
    def __init__(self, words: Sequence[tuple[bool, str]], text: str) -> None:
        self._words = words
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        condition = self._either()
        if self._at < len(self._words):
            raise self._error()
        return condition

    def _error(self) -> TemplateError:
        return TemplateError(f"has the condition {quote(self._text, 60)}, which is not translated")

    def _takes(self, *operators: str) -> str | None:
        if self._at < len(self._words) and self._words[self._at][0] and self._words[self._at][1] in operators:
            self._at += 1
            return self._words[self._at - 1][1]
        return None

    def _either(self) -> Condition:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error()
        condition = self._both()
        while self._takes("or"):
            condition = TemplateCondition("or", condition, self._both())
        self._depth -= 1
        return condition

    def _both(self) -> Condition:
        condition = self._negated()
        while self._takes("and"):
            condition = TemplateCondition("and", condition, self._negated())
        return condition

    def _negated(self) -> Condition:
        count = 0
        while self._takes("not"):
            count += 1
        condition = self._compared()
        return TemplateCondition("not", condition) if count % 2 else condition

    def _compared(self) -> Condition:
        left = self._operand()
        operator = self._takes("===", "!==", "==", "!=", "<=", ">=", "<", ">", "in")
        if operator is not None:
            return TemplateCondition(operator, left, self._operand())
        if self._takes("not") and self._takes("in"):
            return TemplateCondition("not", TemplateCondition("in", left, self._operand()))
        if self._takes("is"):
            negated = self._takes("not") is not None
            word = self._words[self._at] if self._at < len(self._words) else (True, "")
            self._at += 1
            if word[0] or word[1] not in ("defined", "undefined", "none"):
                raise self._error()
            known: Condition = TemplateCondition("defined", left)
            return known if (word[1] == "defined") is not negated else TemplateCondition("not", known)
        return left

    def _operand(self) -> Condition:
        if self._takes("("):
            condition = self._either()
            if not self._takes(")"):
                raise self._error()
            return condition
        if self._at >= len(self._words) or self._words[self._at][0]:
            raise self._error()
        self._at += 1
        return _value(self._words[self._at - 1][1])


def render_page(page: TagTemplate, variables: Mapping[str, object]) -> str:
    """The text of a template; `TemplateError` if it gets too long, or a value cannot be used as the template does."""
    return _Renderer().text(page.nodes, dict(variables))


class _Renderer:
    def __init__(self) -> None:
        self._steps = 0
        self._size = 0

    def text(self, nodes: Sequence[Node], scope: dict[str, object]) -> str:
        parts: list[str] = []
        for node in nodes:
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise TemplateError(f"has loops of more than {_MAX_STEPS:,} rounds")
            match node:
                case Template():
                    parts.append(self._counted(render(node, scope)))
                case IfBlock():
                    parts += [self.text(body, scope) for body in self._branch(node, scope)]
                case ForBlock():
                    parts += self._rounds(node, scope)
                case SetTag():
                    scope[node.name] = self._value(node.value, scope)
        return "".join(parts)

    def _counted(self, text: str) -> str:
        self._size += len(text)
        if self._size > MAX_RENDERED:
            raise TemplateError(f"has more than {MAX_RENDERED:,} characters with its variables")
        return text

    def _branch(self, block: IfBlock, scope: Mapping[str, object]) -> Sequence[Sequence[Node]]:
        for condition, body in block.branches:
            if condition is None or _is_true(self._result(condition, scope)):
                return [body]
        return []

    def _rounds(self, block: ForBlock, scope: Mapping[str, object]) -> Iterator[str]:
        found = self._value(block.items, scope)
        if found is not None and not isinstance(found, list | Mapping):
            raise TemplateError(f"has a loop over {quote(found, 40)}, which is not a list")
        if isinstance(found, Mapping):
            if len(block.names) != 2:
                raise TemplateError("has a loop over a mapping without two names")
            rows: list[Sequence[object]] = [[key, value] for key, value in found.items()]
        else:
            rows = [[item] if len(block.names) == 1 else item for item in found or []]
        if not rows:
            yield self.text(block.otherwise, dict(scope))
        for index, row in enumerate(rows):
            if not isinstance(row, list) or len(row) < len(block.names):
                raise TemplateError("has a loop with two names over items that are not pairs")
            loop = {
                "index": index + 1,
                "index0": index,
                "first": not index,
                "last": index == len(rows) - 1,
                "length": len(rows),
            }
            yield self.text(block.body, {**scope, **dict(zip(block.names, row, strict=False)), "loop": loop})

    @staticmethod
    def _value(expression: Expression, scope: Mapping[str, object]) -> object:
        return expression.value if isinstance(expression, Constant) else value_of(expression, scope)

    def _result(self, condition: Condition, scope: Mapping[str, object]) -> object:
        if not isinstance(condition, TemplateCondition):
            return self._value(condition, scope)
        left = self._result(condition.left, scope)
        operator = condition.operator
        if operator == "not":
            return not _is_true(left)
        if operator == "defined":
            return left is not None
        if operator in ("and", "or"):
            return left if _is_true(left) is (operator == "or") else self._result_of(condition.right, scope)
        return _compare(operator, left, self._result_of(condition.right, scope))

    def _result_of(self, condition: Condition | None, scope: Mapping[str, object]) -> object:
        return None if condition is None else self._result(condition, scope)


def _is_true(value: object) -> bool:
    """Whether a value counts as true in JavaScript: lists and mappings always do."""
    return isinstance(value, list | Mapping) or bool(value)


def _compare(operator: str, left: object, right: object) -> bool:
    if operator == "in":
        if isinstance(right, str):
            return text_of(left) in right
        return text_of(left) in right if isinstance(right, Mapping) else isinstance(right, list) and left in right
    if operator in ("==", "===", "!=", "!=="):
        same = _same(left, right)
        return same if operator.startswith("=") else not same
    one, other = _number(left), _number(right)
    if isinstance(left, str) and isinstance(right, str):
        one, other = 0.0, 0.0 if left == right else 1.0 if left < right else -1.0
    if one is None or other is None:
        return False
    return {"<": one < other, ">": one > other, "<=": one <= other, ">=": one >= other}[operator]


def _same(left: object, right: object) -> bool:
    """Whether values are equal; a number equals the text that says it."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, str) is isinstance(right, str):
        return left == right
    one, other = _number(left), _number(right)
    return one is not None and one == other


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
