"""Conditions on the JSON or the number in a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Annotated, Any, Literal

from msgspec import UNSET

from gradeline.errors import Problem, UngradableError
from gradeline.graders.case_values import REFERENCES, Reference, case_value, is_reference, reference_faults
from gradeline.graders.rules.base import Check, PlainRule, Rule, Subject, number_value
from gradeline.model import described, quote
from gradeline.parsing.jmespath import BadPathError, JmesPath
from gradeline.parsing.json_schema import SchemaError, compile_schema
from gradeline.parsing.json_text import NotJsonError, all_json, json_equal, parse_fenced_json, parse_json
from gradeline.parsing.numbers import NumberTooLargeError, find_number, show_number


class _WholeJsonRule(Rule, frozen=True):
    fenced: Annotated[bool, described("Allow a code fence around the JSON (default true).")] = True

    def parse(self, subject: Subject) -> Any:
        """The text as JSON; `NotJsonError` if it is not."""
        return parse_fenced_json(subject.text) if self.fenced else parse_json(subject.text)

    def reason(self, subject: Subject) -> str:
        try:
            self.parse(subject)
        except NotJsonError as error:
            return f"not JSON: {error}"
        return subject.shown


class IsJson(_WholeJsonRule, PlainRule, frozen=True, tag="is_json"):
    """The text is JSON; a code fence around it is allowed."""

    def holds(self, subject: Subject) -> bool:
        try:
            self.parse(subject)
        except NotJsonError:
            return False
        return True

    def seen(self, subject: Subject) -> str:
        return self.reason(subject)


Schema = dict[str, Any] | bool
_FORMATS = "Check `format`, such as date or email, too (default false)."


def _schema_faults(schema: Schema) -> Iterator[Problem]:
    try:
        compile_schema(schema)
    except SchemaError as error:
        yield Problem("value", str(error))


class JsonSchemaRule(_WholeJsonRule, frozen=True, kw_only=True, tag="json_schema"):
    """The text is JSON that conforms to the schema."""

    value: Annotated[Schema, described("JSON Schema.")]
    formats: Annotated[bool, described(_FORMATS)] = False

    def faults(self) -> Iterator[Problem]:
        yield from _schema_faults(self.value)

    def compile(self, path: str) -> Check:
        schema = compile_schema(self.value, formats=self.formats)

        def check(subject: Subject) -> bool | None:
            try:
                return schema.is_valid(self.parse(subject), len(subject.text))
            except NotJsonError:
                return None
            except SchemaError as error:
                raise UngradableError(f"{path}.value: {error}") from None

        return check

    def seen(self, subject: Subject) -> str:
        try:
            errors = compile_schema(self.value, formats=self.formats).errors(self.parse(subject), most=2)
        except NotJsonError:
            return self.reason(subject)
        return "; ".join(errors) or subject.shown


class ContainsJson(Rule, frozen=True, tag="contains_json"):
    """The text contains a JSON object or array: as a whole, in a code fence, or within prose."""

    value: Annotated[Schema, described("JSON Schema that it conforms to (default: any JSON).")] = True
    formats: Annotated[bool, described(_FORMATS)] = False

    def faults(self) -> Iterator[Problem]:
        yield from _schema_faults(self.value)

    def compile(self, path: str) -> Check:
        schema = compile_schema(self.value, formats=self.formats)

        def check(subject: Subject) -> bool:
            for found in all_json(subject.text):
                subject.check_time()
                try:
                    if isinstance(found, dict | list) and schema.is_valid(found, len(subject.text)):
                        return True
                except SchemaError as error:
                    raise UngradableError(f"{path}.value: {error}") from None
            return False

        return check


Operator = Literal["equals", "not_equals", "contains", "gt", "gte", "lt", "lte", "exists"]


class Json(Rule, frozen=True, tag="json"):
    """A comparison of a value within the JSON of the text. Missing and null values only match `exists`."""

    path: Annotated[str, described("JMESPath of the value.")]
    operator: Annotated[Operator, described("Comparison operator (default equals).")] = "equals"
    value: Annotated[Any, described("Value or reference to compare with; not needed for `exists`.")] = UNSET

    def faults(self) -> Iterator[Problem]:
        try:
            JmesPath(self.path)
        except BadPathError as error:
            yield Problem("path", str(error))
        if self.operator == "exists":
            if self.value is not UNSET and not isinstance(self.value, bool):
                yield Problem("value", f"must be true or false (or omitted) with 'exists', got {quote(self.value)}")
        elif self.value is UNSET:
            yield Problem("value", f"is required with {self.operator!r}")
        elif self.operator in _ORDERED and not _is_number(self.value) and not is_reference(self.value):
            yield Problem("value", f"must be a number with {self.operator!r}, got {quote(self.value)}")

    @property
    def label(self) -> str:
        value = "" if self.value is UNSET else f" {quote(self.value, 80)}"
        return f"json {self.path} {self.operator}{value}"

    def compile(self, path: str) -> Check:
        expression = JmesPath(self.path)
        compare = _COMPARISONS[self.operator]
        value, value_path = self.value, f"{path}.value"

        def check(subject: Subject) -> bool | None:
            expected = case_value(value, subject.ctx, value_path) if is_reference(value) else value
            try:
                found = expression.search(parse_fenced_json(subject.text))
            except NotJsonError:
                return None
            if found is None and expected is not None and self.operator != "exists":
                return None
            return compare(found, expected)

        return check

    def seen(self, subject: Subject) -> str:
        try:
            return quote(JmesPath(self.path).search(parse_fenced_json(subject.text)), 80)
        except NotJsonError:
            return _json_reason(subject)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _contains(found: object, expected: object) -> bool:
    if isinstance(found, str):
        return isinstance(expected, str) and expected in found
    if isinstance(found, list):
        return any(json_equal(item, expected) for item in found)
    return isinstance(found, dict) and expected in found


def _ordered(compare: Callable[[float, float], bool]) -> Callable[[object, object], bool]:
    def check(found: object, expected: object) -> bool:
        if isinstance(found, bool) or isinstance(expected, bool):
            return False
        return isinstance(found, int | float) and isinstance(expected, int | float) and compare(found, expected)

    return check


_ORDERED = {
    "gt": _ordered(lambda found, expected: found > expected),
    "gte": _ordered(lambda found, expected: found >= expected),
    "lt": _ordered(lambda found, expected: found < expected),
    "lte": _ordered(lambda found, expected: found <= expected),
}
_COMPARISONS: dict[str, Callable[[object, object], bool]] = {
    "equals": json_equal,
    "not_equals": lambda found, expected: not json_equal(found, expected),
    "contains": _contains,
    "exists": lambda found, expected: (found is not None) is (expected is not False),
    **_ORDERED,
}


def _json_reason(subject: Subject) -> str:
    try:
        parse_fenced_json(subject.text)
    except NotJsonError as error:
        return f"not JSON: {error}"
    return subject.shown


class _NumberRule(Rule, frozen=True):
    def seen(self, subject: Subject) -> str:
        number = _number(subject)
        return "no number" if number is None else show_number(number)


class NumericEquals(_NumberRule, frozen=True, tag="numeric_equals"):
    """The final number in the text equals the value."""

    value: Annotated[float | Reference, described("Number, or a reference to one.", expected=f"a number, {REFERENCES}")]
    tolerance: Annotated[float, described("Maximum difference (default 0).", ge=0)] = 0.0

    def faults(self) -> Iterator[Problem]:
        yield from reference_faults("value", self.value, "a number")

    @property
    def label(self) -> str:
        return f"numeric_equals {self.value}"

    def compile(self, path: str) -> Check:
        value = number_value(self.value, f"{path}.value")
        tolerance = _exact(self.tolerance, f"{path}.tolerance")

        def check(subject: Subject) -> bool | None:
            expected = _exact(value(subject), f"{path}.value")
            number = _number(subject)
            return None if number is None else abs(number - expected) <= tolerance

        return check


class NumericRange(_NumberRule, frozen=True, tag="numeric_range"):
    """The final number in the text is in the range, including both ends."""

    value: Annotated[tuple[float, float], described("[low, high]", expected="two numbers [low, high]")]

    def faults(self) -> Iterator[Problem]:
        if not self.value[0] <= self.value[1]:
            yield Problem("value", f"must be [low, high] with low <= high, got {list(self.value)}")

    @property
    def label(self) -> str:
        return f"numeric_range {list(self.value)}"

    def compile(self, path: str) -> Check:
        low, high = (_exact(end, f"{path}.value") for end in self.value)

        def check(subject: Subject) -> bool | None:
            number = _number(subject)
            return None if number is None else low <= number <= high

        return check


def _number(subject: Subject) -> Fraction | None:
    try:
        return find_number(subject.text)
    except NumberTooLargeError as error:
        raise UngradableError(f"submission: {error}") from None


def _exact(value: float, path: str) -> Fraction:
    try:
        return Fraction(repr(value) if isinstance(value, float) else value)
    except ValueError:
        raise UngradableError(f"{path}: {value!r} is not a finite number") from None
