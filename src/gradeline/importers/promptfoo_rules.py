"""promptfoo's assertions about the text of an output, as rules of a case's checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import floor

from gradeline.graders.case_values import is_reference
from gradeline.importers.promptfoo_expressions import NotTranslatedError
from gradeline.importers.promptfoo_files import FileReferenceError, parse_data
from gradeline.importers.promptfoo_patterns import re2_pattern
from gradeline.importers.promptfoo_types import Assertion, NoCounterpartError, RuleCheck, Scope, number_of, number_text
from gradeline.model import quote

Rule = dict[str, object]
_NOT_JSON: Rule = {"condition": "is_json", "fenced": False, "negate": True}


def contains(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
    return _searched("contains", assertion, case_sensitive=True)


def icontains(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
    return _searched("contains", assertion, case_sensitive=False)


def starts_with(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
    return _searched("starts_with", assertion, case_sensitive=True)


def _searched(condition: str, assertion: Assertion, *, case_sensitive: bool) -> RuleCheck:
    text = literal(assertion.text())
    if not text:
        raise NoCounterpartError("has an empty value, which every text contains; write what must be contained")
    return RuleCheck({"condition": condition, "value": text, "case_sensitive": case_sensitive})


def contains_list(condition: str, *, case_sensitive: bool) -> Callable[[Assertion, Scope], RuleCheck]:
    """A mapping for one of the types with a list of texts."""

    def mapping(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
        texts = [literal(text) for text in texts_of(assertion)]
        full = [text for text in texts if text]
        differs = "" if len(full) == len(texts) else "empty texts are left out; promptfoo finds them in every output"
        if not full:
            raise NoCounterpartError("has no texts; write what must be contained")
        return RuleCheck({"condition": condition, "value": full, "case_sensitive": case_sensitive}, differs=differs)

    return mapping


def texts_of(assertion: Assertion) -> list[str]:
    """The texts of a list, or of a string with commas."""
    value = assertion.value
    if isinstance(value, str):
        return split_texts(value)
    if not isinstance(value, list):
        raise NoCounterpartError(f"needs a list of strings as its value, got {quote(value, 60)}")
    return [text if isinstance(text, str) else number_text(number_of(text, "value")) for text in value]


_FIELD = re.compile(r'\s*+(?:"(?P<quoted>(?:[^"\\]|\\.|"")*+)"\s*+(?=,|\Z)|(?P<plain>[^",][^,]*+|))(?:,|\Z)', re.DOTALL)


def split_texts(text: str) -> list[str]:
    """The fields of a string with commas, which may be quoted as in CSV; empty ones that are not quoted are dropped."""
    found: list[str] = []
    at = 0
    while at < len(text):
        field = _FIELD.match(text, at)
        if field is None:
            raise NoCounterpartError(f"has a quoted text without its end or a comma after it: {quote(text[at:], 60)}")
        if field["quoted"] is not None:
            found.append(re.sub(r'\\(["\\])|""', lambda escape: escape[1] or '"', field["quoted"]))
        elif field["plain"].strip():
            found.append(field["plain"].strip())
        at = field.end()
    return found


def equals(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
    value = assertion.value
    if isinstance(value, dict | list):
        same: Rule = {"condition": "json", "path": "@", "value": value}
        return RuleCheck({"all": [{**_NOT_JSON, "negate": False}, same]})
    if isinstance(value, bool):
        value = "true" if value else "false"
    text = value if isinstance(value, str) else assertion.text()
    return RuleCheck({"condition": "equals", "value": literal(text), "case_sensitive": True})


def regex(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
    """`NotTranslatedError` for a pattern that RE2 does not have."""
    return RuleCheck({"condition": "regex", "value": literal(re2_pattern(assertion.text()))})


def is_json(assertion: Assertion, scope: Scope) -> RuleCheck:
    schema = schema_of(assertion, scope)
    if schema is None:
        return RuleCheck({"condition": "is_json", "fenced": False})
    rule: Rule = {"condition": "json_schema", "value": schema, "fenced": False, "formats": True}
    return RuleCheck(rule, unless=_NOT_JSON)


def contains_json(assertion: Assertion, scope: Scope) -> RuleCheck:
    schema = schema_of(assertion, scope)
    rule: Rule = {"condition": "contains_json"} | ({} if schema is None else {"value": schema, "formats": True})
    return RuleCheck(rule)


def schema_of(assertion: Assertion, scope: Scope) -> object:  # noqa: ARG001
    """The JSON Schema of an assertion, which may be written as YAML; None if it has none."""
    value = assertion.value
    if isinstance(value, str) and value.strip():
        try:
            value = parse_data(value, "value")
        except FileReferenceError as error:
            raise NoCounterpartError(f"has a schema that is not YAML or JSON: {error}") from None
    if value is None or value == "":
        return None
    if not isinstance(value, Mapping | bool):
        raise NoCounterpartError(f"needs a JSON Schema as its value, got {quote(value, 60)}")
    return value


def xml(condition: str) -> Callable[[Assertion, Scope], RuleCheck]:
    """A mapping for ``is-xml`` or ``contains-xml``."""

    def mapping(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
        rule: Rule = {"condition": condition}
        elements = _elements(assertion.value)
        return RuleCheck({**rule, "elements": elements} if elements else rule)

    return mapping


def _elements(value: object) -> list[str]:
    if isinstance(value, Mapping):
        value = value.get("requiredElements")
    if isinstance(value, str):
        value = [path.strip() for path in value.split(",")]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise NoCounterpartError(f"needs paths of elements as its value, got {quote(value, 60)}")
    return [re.sub(r"(?<=\.)@_", "@", path) for path in value if path]


def plain(condition: str, differs: str = "") -> Callable[[Assertion, Scope], RuleCheck]:
    """A mapping for a type without a value."""

    def mapping(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
        return RuleCheck({"condition": condition}, differs=differs)

    return mapping


def levenshtein(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
    if not isinstance(assertion.value, str):
        raise NoCounterpartError(f"needs a string as its value, got {quote(assertion.value, 60)}")
    most = 5 if assertion.threshold is None else floor(assertion.threshold)
    rule: Rule = {"condition": "edit_distance_max", "value": literal(assertion.value), "max": most}
    return RuleCheck({**rule, "case_sensitive": True})


def word_count(assertion: Assertion, scope: Scope) -> RuleCheck:  # noqa: ARG001
    value = assertion.value
    bounds = value if isinstance(value, Mapping) else {"min": value, "max": value}
    least, most = (_count(bounds.get(name)) for name in ("min", "max"))
    if least is None and most is None:
        raise NoCounterpartError("needs a number, or min or max, as its value")
    if least is not None and most is not None and least > most:
        raise NoCounterpartError(f"has a min of {least}, which is more than its max, {most}")
    rules = [
        {"condition": f"word_count_{name}", "value": bound, "words": "whitespace"}
        for name, bound in (("min", least), ("max", most))
        if bound is not None
    ]
    return RuleCheck(rules[0] if len(rules) == 1 else {"all": rules})


def _count(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if value is None:
        return None
    number = number_of(value, "number of words")
    if number < 0 or number != int(number):
        raise NoCounterpartError(f"needs a whole number of words, got {quote(value, 40)}")
    return int(number)


def literal(text: str) -> str:
    """A text that a rule must take as it is; `NoCounterpartError` for one that a rule reads as a reference."""
    if is_reference(text):
        raise NoCounterpartError(
            f"has the value {quote(text, 40)}, which a rule reads as a value of the case; reword it"
        )
    return text


def negate_check(check: RuleCheck) -> Rule:
    """The rule for ``not-``, which also holds where there is nothing to test, as in promptfoo."""
    rule = {**check.rule, "negate": True}
    return rule if check.unless is None else {"any": [check.unless, rule]}


RULES: Mapping[str, Callable[[Assertion, Scope], RuleCheck]] = {
    "contains": contains,
    "contains-all": contains_list("contains_all", case_sensitive=True),
    "contains-any": contains_list("contains_any", case_sensitive=True),
    "contains-html": plain("contains_html"),
    "contains-json": contains_json,
    "contains-xml": xml("contains_xml"),
    "equals": equals,
    "icontains": icontains,
    "icontains-all": contains_list("contains_all", case_sensitive=False),
    "icontains-any": contains_list("contains_any", case_sensitive=False),
    "is-html": plain("is_html"),
    "is-json": is_json,
    "is-refusal": plain("is_refusal", "a blank output is not a refusal here; the list of phrases is gradeline's own"),
    "is-xml": xml("is_xml"),
    "levenshtein": levenshtein,
    "regex": regex,
    "starts-with": starts_with,
    "word-count": word_count,
}
"""The types that become rules, with their mappings. A mapping may raise `NotTranslatedError`: Node can still run it."""

__all__ = ["RULES", "NotTranslatedError", "literal", "negate_check", "split_texts", "texts_of"]


def rule_name(rule: Mapping[str, object]) -> str:
    """What a rule is, for the report."""
    names: Sequence[str] = [key for key in ("all", "any", "none", "weighted") if key in rule]
    return f"rule {rule.get('condition') or names[0]}"
