"""One-line JavaScript assertions as rules. Anything that has no exact rule is left to Node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import NamedTuple

from gradeline.graders.case_values import is_reference
from gradeline.importers.promptfoo_expressions import (
    Array,
    Arrow,
    Binary,
    Call,
    Literal,
    Member,
    Name,
    Node,
    Not,
    NotTranslatedError,
    RegexLiteral,
    TypeOf,
    parse_expression,
)
from gradeline.importers.promptfoo_patterns import SPACE, re2_pattern
from gradeline.parsing.patterns import compile_pattern

_MAX_RULES = 200

Rule = dict[str, object]


def translate(code: str, variables: Mapping[str, object], config: Mapping[str, object] | None = None) -> Rule:
    """A rule that holds where the expression is true; `NotTranslatedError` if there is no exact one.

    ``context.vars`` and ``context.config`` are replaced with their values.
    """
    known = {"context": {"vars": variables, "config": config or {}}}
    body = re.sub(r"\Areturn\b", "", code.strip()).strip().removesuffix(";")
    return _Translator(known).condition(parse_expression(body), negated=False)


class _JsonValue(NamedTuple):
    """A value in ``JSON.parse(output)``: its JMESPath, and that of what the code throws on if it is null."""

    path: str
    holder: str | None


class _Text(NamedTuple):
    """The output, with the changes that the code makes to it."""

    lowered: bool = False
    raised: bool = False
    trimmed: bool = False

    @property
    def plain(self) -> bool:
        return self == _Text()


_JSON_ONLY: Rule = {"condition": "is_json", "fenced": False}
_OPPOSITE = {"===": "!==", "!==": "===", "==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ORDERS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_CHANGES: Mapping[str, Callable[[str], str]] = {"toLowerCase": str.lower, "toUpperCase": str.upper, "trim": str.strip}
_METHODS = {"toLowerCase": "lowered", "toUpperCase": "raised", "trim": "trimmed"}


class _Translator:
    def __init__(self, known: Mapping[str, object]) -> None:
        self._known = known
        self._rules = 0
        self._steps = 0
        """The most steps of a path in JSON: with two of them the code may throw where JSON is valid."""

    def condition(self, node: Node, *, negated: bool, truthy: bool = False) -> Rule:
        """The rule for a condition. Negation is pushed inside, because a rule on a missing value never holds.

        With ``truthy``, a value that is not a boolean counts as one.
        """
        self._rules += 1
        if self._rules > _MAX_RULES:
            raise NotTranslatedError(f"more than {_MAX_RULES} conditions")
        if isinstance(node, Not):
            return self.condition(node.operand, negated=not negated, truthy=True)
        if isinstance(node, Binary) and node.operator in ("&&", "||"):
            combined = "all" if (node.operator == "&&") is not negated else "any"
            parts = [self.condition(part, negated=negated, truthy=truthy) for part in (node.left, node.right)]
            if combined == "any":
                self._require_same_errors(node.left, node.right)
            return {combined: [rule for part in parts for rule in _within(part, combined)]}
        if isinstance(node, Binary):
            return self._comparison(node, negated)
        if isinstance(node, Call):
            if not truthy and isinstance(node.callee, Member) and node.callee.name == "match":
                raise NotTranslatedError("a list of matches, which promptfoo takes for no verdict")
            return self._call(node, negated)
        raise NotTranslatedError("a value that is not a condition")

    def _require_same_errors(self, first: Node, second: Node) -> None:
        """Of two alternatives the first must not throw where the second holds: a rule would not notice it."""
        while isinstance(second, Not) or (isinstance(second, Binary) and second.operator in ("&&", "||")):
            second = second.operand if isinstance(second, Not) else second.left  # what is evaluated first
        if _parses(first) and (not _parses(second) or self._steps > 1):
            raise NotTranslatedError("an alternative to code that throws")

    def _call(self, node: Call, negated: bool) -> Rule:
        callee = node.callee
        if not isinstance(callee, Member) or len(node.arguments) != 1:
            raise NotTranslatedError("a call of a function")
        argument = node.arguments[0]
        if isinstance(callee.object, Array):
            return self._of_list(callee.object, str(callee.name), argument, negated)
        if isinstance(callee.object, RegexLiteral) and callee.name == "test":
            return _negate(self._matches(callee.object, argument), negated)
        if callee == Member(Name("Array"), "isArray"):
            return self._json_type(argument, "array", negated)
        value = self._json_value(callee.object)
        if value is not None and callee.name == "includes":
            listed = f"type({value.path}) == 'array' || type({value.path}) == 'string'"
            rule: Rule = {"condition": "json", "path": listed, "value": True}
            found: Rule = {"condition": "json", "path": value.path, "operator": "contains"}
            self._steps += 1
            found["value"] = self._string(argument)
            return {"all": [dict(_JSON_ONLY), rule, _negate(found, negated)]}
        text = self._text(callee.object)
        if callee.name == "match" and isinstance(argument, RegexLiteral):
            return _negate(_pattern_rule(argument, text), negated)
        condition = {"includes": "contains", "startsWith": "starts_with", "endsWith": "ends_with"}.get(str(callee.name))
        if condition is None:
            raise NotTranslatedError(f"the method {str(callee.name)!r}")
        return _negate(_text_rule(condition, text, self._string(argument)), negated)

    def _of_list(self, items: Array, method: str, argument: Node, negated: bool) -> Rule:
        """``[…].some(x => …)``, ``[…].every(x => …)``, ``[…].includes(output)``."""
        if method == "includes":
            values = [self._string(item) for item in items.items]
            return _any_equal(values, self._text(argument), negated)
        if method not in ("some", "every") or not isinstance(argument, Arrow) or not items.items:
            raise NotTranslatedError(f"the method {method!r} of a list")
        combined = "any" if (method == "some") is not negated else "all"
        rules: list[Rule] = []
        for item in items.items:
            inner = _Translator({**self._known, argument.parameter: self._value(item)})
            inner._rules = self._rules
            rules.append(inner.condition(argument.body, negated=negated, truthy=True))
            self._rules = inner._rules
            self._steps = max(self._steps, inner._steps)
        if combined == "any":
            self._require_same_errors(argument.body, argument.body)
        return {combined: rules}

    def _comparison(self, node: Binary, negated: bool) -> Rule:
        left, right, operator = node.left, node.right, node.operator
        if self._is_constant(left):
            left, right, operator = right, left, _MIRRORED.get(operator, operator)
        value = self._compared_value(left)
        if negated and operator in _ORDERS and value is not None:  # not the opposite: a missing value has no order
            return _json(value, _ORDERS[operator], self._number(right), negated=True)
        operator = _OPPOSITE[operator] if negated else operator
        for compare in (self._compare_length, self._compare_position, self._compare_type, self._compare_json):
            rule = compare(left, operator, right)
            if rule is not None:
                return rule
        if isinstance(left, Call) and right == Literal(None) and operator in ("===", "==", "!==", "!="):
            return self._call_of_match(left, negated=operator in ("===", "=="))
        if operator not in ("===", "==", "!==", "!="):
            raise NotTranslatedError(f"{operator!r} of texts")
        return _any_equal([self._string(right)], self._text(left), operator.startswith("!"))

    def _call_of_match(self, node: Call, *, negated: bool) -> Rule:
        if not isinstance(node.callee, Member) or node.callee.name != "match":
            raise NotTranslatedError("a comparison with null")
        return self._call(node, negated)

    def _compare_length(self, left: Node, operator: str, right: Node) -> Rule | None:
        if not isinstance(left, Member) or left.name != "length" or self._json_value(left.object) is not None:
            return None
        number = self._number(right)
        measured = self._measured(left.object, number, operator)
        least, most = _bounds(operator, number)
        if least is None and most is None:
            raise NotTranslatedError("a number that never or always holds")
        if operator in ("!==", "!="):
            return {"none": [measured(least, most)]}
        return measured(least, most)

    def _measured(self, node: Node, number: float, operator: str) -> Callable[[int | None, int | None], Rule]:
        """What a length is the length of, as a rule with bounds."""
        if isinstance(node, Binary) and node.operator == "||" and node.right == Array(()):
            return self._matches_counted(node.left)
        if isinstance(node, Call) and isinstance(node.callee, Member) and node.callee.name == "split":
            return self._parts_counted(node, number, operator)
        if not self._text(node).plain:
            raise NotTranslatedError("the length of a changed text")
        return lambda least, most: _both_bounds("length", least, most)

    def _matches_counted(self, node: Node) -> Callable[[int | None, int | None], Rule]:
        """``(output.match(/…/g) || []).length``."""
        if not isinstance(node, Call) or not isinstance(node.callee, Member) or node.callee.name != "match":
            raise NotTranslatedError("a length")
        pattern = node.arguments[0] if len(node.arguments) == 1 else None
        if (
            not isinstance(pattern, RegexLiteral)
            or "g" not in pattern.flags
            or not self._text(node.callee.object).plain
        ):
            raise NotTranslatedError("the length of a match")
        rule: Rule = {"condition": "count", "pattern": re2_pattern(pattern.pattern, pattern.flags)}
        return lambda least, most: {**rule, **_min_max(least, most)}

    def _parts_counted(self, node: Call, number: float, operator: str) -> Callable[[int | None, int | None], Rule]:
        """``output.split(…).length``."""
        assert isinstance(node.callee, Member)  # noqa: S101 - checked by the caller
        text = self._text(node.callee.object)
        separator = node.arguments[0] if len(node.arguments) == 1 else None
        if text == _Text(trimmed=True) and separator == RegexLiteral(r"\s+", ""):
            if operator not in ("<", "<=", ">", ">=") or number < 2:
                raise NotTranslatedError("a number of words that counts an empty text as one")
            return lambda least, most: _both_bounds("word_count", least, most, words="whitespace")
        if not text.plain:
            raise NotTranslatedError("the parts of a changed text")
        rule: Rule = {"condition": "split"}
        if isinstance(separator, RegexLiteral):
            rule["pattern"] = _splitting_pattern(separator)
        else:
            rule["separator"] = _not_empty(self._string(separator) if separator is not None else "")
        return lambda least, most: {**rule, **_min_max(least, most)}

    def _compare_position(self, left: Node, operator: str, right: Node) -> Rule | None:
        """``output.indexOf(x) !== -1`` and its other forms."""
        if not isinstance(left, Call) or not isinstance(left.callee, Member) or len(left.arguments) != 1:
            return None
        if left.callee.name not in ("indexOf", "search") or self._json_value(left.callee.object) is not None:
            return None
        forms = {("!==", -1): True, ("!=", -1): True, (">", -1): True, (">=", 0): True}
        forms |= {("===", -1): False, ("==", -1): False, ("<", 0): False, ("<=", -1): False}
        found = forms.get((operator, int(self._number(right))))
        if found is None:
            raise NotTranslatedError("a position in the text")
        text, argument = self._text(left.callee.object), left.arguments[0]
        if isinstance(argument, RegexLiteral):
            return _negate(_pattern_rule(argument, text), not found)
        return _negate(_text_rule("contains", text, self._string(argument)), not found)

    def _compare_type(self, left: Node, operator: str, right: Node) -> Rule | None:
        if not isinstance(left, TypeOf):
            return None
        if operator not in ("===", "==", "!==", "!="):
            raise NotTranslatedError("an order of types")
        name = self._string(right)
        if name not in ("string", "number", "boolean"):
            raise NotTranslatedError(f"the type {name!r}")
        return self._json_type(left.operand, name, operator.startswith("!"))

    def _json_type(self, node: Node, name: str, negated: bool) -> Rule:
        value = self._json_value(node)
        if value is None:
            raise NotTranslatedError("the type of a value that is not in the JSON")
        rule: Rule = {"condition": "json", "path": f"type({value.path})", "value": name}
        return {"all": [dict(_JSON_ONLY), *_exists(value.holder), _negate(rule, negated)]}

    def _compare_json(self, left: Node, operator: str, right: Node) -> Rule | None:
        found = self._compared_value(left)
        if found is None:
            return None
        value = self._value(right)
        if value is None:
            return _json_null(found, operator)
        if operator in _ORDERS:
            return _json(found, _ORDERS[operator], self._number(right), negated=False)
        if operator in ("==", "!="):
            raise NotTranslatedError("a comparison that converts types")
        return _json(found, "equals", value, negated=operator.startswith("!"))

    def _compared_value(self, node: Node) -> _JsonValue | None:
        """As `_json_value`, also for the length of such a value."""
        value = self._json_value(node)
        if value is None and isinstance(node, Member) and node.name == "length":
            inner = self._json_value(node.object)
            if inner is not None:
                self._steps += 1
                sized = f"[{inner.path}][?type(@) == 'array' || type(@) == 'string'].length(@) | [0]"
                return _JsonValue(sized, inner.path)
        return value

    def _json_value(self, node: Node) -> _JsonValue | None:
        """A value in ``JSON.parse(output)``; None if the node is something else."""
        steps: list[str | int] = []
        while isinstance(node, Member):
            steps.append(node.name)
            node = node.object
        if not isinstance(node, Call) or node.callee != Member(Name("JSON"), "parse") or len(node.arguments) != 1:
            return None
        text = self._text(node.arguments[0])
        if text not in (_Text(), _Text(trimmed=True)):
            raise NotTranslatedError("JSON in a changed text")
        if steps and steps[0] == "length":
            return None
        self._steps = max(self._steps, len(steps))
        return _JsonValue(json_path(steps[::-1]), json_path(steps[:0:-1]) if steps else None)

    def _text(self, node: Node) -> _Text:
        """The output with changes; `NotTranslatedError` for any other value."""
        if node == Name("output"):
            return _Text()
        if isinstance(node, Call) and node.callee == Name("String") and len(node.arguments) == 1:
            return self._text(node.arguments[0])
        if isinstance(node, Call) and isinstance(node.callee, Member) and not node.arguments:
            change = _METHODS.get(str(node.callee.name))
            text = self._text(node.callee.object)
            if change is not None:
                return text._replace(**{change: True})
            if node.callee.name == "toString":
                return text
        raise NotTranslatedError("a value that is not the output")

    def _matches(self, pattern: RegexLiteral, argument: Node) -> Rule:
        return _pattern_rule(pattern, self._text(argument))

    def _is_constant(self, node: Node) -> bool:
        try:
            self._value(node)
        except NotTranslatedError:
            return False
        return True

    def _value(self, node: Node) -> object:
        """A literal, or the value of a variable."""
        if isinstance(node, Literal):
            return node.value
        if isinstance(node, Call) and isinstance(node.callee, Member) and not node.arguments:
            return self._changed(node.callee)
        steps: list[str | int] = []
        while isinstance(node, Member):
            steps.append(node.name)
            node = node.object
        if not isinstance(node, Name) or node.name not in self._known:
            raise NotTranslatedError("a value that is not a literal")
        found: object = self._known[node.name]
        for step in reversed(steps):
            if not isinstance(found, Mapping) or step not in found:
                raise NotTranslatedError(f"the variable {step!r}, which is not set")
            found = found[step]
        if not isinstance(found, str | int | float | bool):
            raise NotTranslatedError("a variable that is not a text, number or boolean")
        return found

    def _changed(self, callee: Member) -> str:
        """``context.vars.name.toLowerCase()``."""
        change = _CHANGES.get(str(callee.name))
        if change is None:
            raise NotTranslatedError(f"the method {str(callee.name)!r}")
        return change(self._string(callee.object))

    def _string(self, node: Node) -> str:
        value = self._value(node)
        if not isinstance(value, str):
            raise NotTranslatedError("a value that is not a text")
        if is_reference(value):
            raise NotTranslatedError("a text that a rule reads as a reference")
        return value

    def _number(self, node: Node) -> float:
        value = self._value(node)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise NotTranslatedError("a value that is not a number")
        return value


def json_path(steps: Sequence[str | int]) -> str:
    """The JMESPath of keys and indices."""
    parts = [f"[{step}]" if isinstance(step, int) else f".{json.dumps(step)}" for step in steps]
    return "".join(parts).removeprefix(".") or "@"


def _splitting_pattern(pattern: RegexLiteral) -> str:
    written = re2_pattern(pattern.pattern, pattern.flags)
    compiled = compile_pattern(written)
    if compiled.groups or compiled.search("") is not None:
        raise NotTranslatedError("a pattern that splits at empty matches or keeps groups")
    return written


def _pattern_rule(pattern: RegexLiteral, text: _Text) -> Rule:
    if not text.plain:
        raise NotTranslatedError("a pattern on a changed text")
    return {"condition": "regex", "value": re2_pattern(pattern.pattern, pattern.flags)}


def _text_rule(condition: str, text: _Text, value: str) -> Rule:
    _not_empty(value)
    if text.trimmed and condition != "contains":
        raise NotTranslatedError("the start or end of a trimmed text")
    if text.trimmed and value != value.strip():
        raise NotTranslatedError("whitespace at the end of a trimmed text")
    return {"condition": condition, "value": value, "case_sensitive": _case_sensitive(text, value)}


def _case_sensitive(text: _Text, value: str) -> bool:
    if not (text.lowered or text.raised):
        return True
    if value != (value.lower() if text.lowered else value.upper()) or (text.lowered and text.raised):
        raise NotTranslatedError("a text that never occurs in that case")
    return False


def _any_equal(values: list[str], text: _Text, negated: bool) -> Rule:
    if not values:
        raise NotTranslatedError("an empty list")
    sensitive = {_case_sensitive(text, value) for value in values} == {True}
    if text.trimmed:
        if any(value != value.strip() for value in values):
            raise NotTranslatedError("whitespace at the end of a trimmed text")
        found = "|".join(re.escape(value) for value in values)
        case = "" if sensitive else "(?i)"
        pattern = rf"{case}\A{SPACE}*(?:{found}){SPACE}*\z"
        return _negate({"condition": "regex", "value": pattern}, negated)
    condition: Rule = {"condition": "equals", "value": values[0]}
    if len(values) > 1:
        condition = {"condition": "one_of", "value": values}
    return _negate({**condition, "case_sensitive": sensitive}, negated)


def _not_empty(value: str) -> str:
    if not value:
        raise NotTranslatedError("an empty text")
    return value


def _negate(rule: Rule, negated: bool) -> Rule:
    return {**rule, "negate": True} if negated else rule


def _json(found: _JsonValue, operator: str, value: object, negated: bool) -> Rule:
    """A comparison of a value in the JSON. Negated it also holds for a missing value, as in JavaScript."""
    if is_reference(value):
        raise NotTranslatedError("a text that a rule reads as a reference")
    rule: Rule = {"condition": "json", "path": found.path, "operator": operator, "value": value}
    if negated:
        missing: Rule = {"condition": "json", "path": found.path, "operator": "exists", "value": False}
        rule = {"any": [missing, {**rule, "negate": True}]}
    return {"all": [dict(_JSON_ONLY), *(_exists(found.holder) if negated else ()), rule]}


def _json_null(found: _JsonValue, operator: str) -> Rule:
    if operator not in ("==", "!="):
        raise NotTranslatedError("a comparison with null or undefined")
    rule: Rule = {"condition": "json", "path": found.path, "operator": "exists", "value": operator == "!="}
    return {"all": [dict(_JSON_ONLY), *_exists(found.holder), rule]}


def _exists(holder: str | None) -> list[Rule]:
    """The rule that the code does not throw because of a null."""
    return [] if holder is None else [{"condition": "json", "path": holder, "operator": "exists"}]


def _parses(node: object) -> bool:
    """Whether the code may throw, because it parses JSON."""
    if node == Name("JSON"):
        return True
    return isinstance(node, tuple) and any(map(_parses, node))


def _bounds(operator: str, number: float) -> tuple[int | None, int | None]:
    """The least and the greatest whole number for which a comparison holds; both None if that is every or none."""
    if operator == ">":
        least = floor(number) + 1
        return (least, None) if least > 0 else (None, None)
    if operator == ">=":
        least = ceil(number)
        return (least, None) if least > 0 else (None, None)
    if operator in ("<", "<="):
        most = ceil(number) - 1 if operator == "<" else floor(number)
        return (None, most) if most >= 0 else (None, None)
    return (int(number), int(number)) if number == int(number) and number >= 0 else (None, None)


def _both_bounds(measure: str, least: int | None, most: int | None, **options: object) -> Rule:
    rules: list[Rule] = []
    if least is not None:
        rules.append({"condition": f"{measure}_min", "value": least, **options})
    if most is not None:
        rules.append({"condition": f"{measure}_max", "value": most, **options})
    return rules[0] if len(rules) == 1 else {"all": rules}


def _min_max(least: int | None, most: int | None) -> Rule:
    if least == most:
        return {"equals": least}
    return {name: bound for name, bound in (("min", least), ("max", most)) if bound is not None}


def _within(rule: Rule, combined: str) -> list[Rule]:
    """The rules of a combinator of the same kind, so that chains do not nest."""
    inner = rule.get(combined)
    return inner if isinstance(inner, list) and len(rule) == 1 else [rule]
