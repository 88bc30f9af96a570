"""JMESPath that is checked before it is used."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import UngradableError
from gradeline.parsing.jmespath import BadPathError, JmesPath

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=4),
    max_leaves=12,
)


def test_finds_the_value_at_the_path() -> None:
    assert JmesPath("a[?b > `1`].c").search({"a": [{"b": 1, "c": "x"}, {"b": 2, "c": "y"}]}) == ["y"]


def test_a_missing_value_is_none() -> None:
    assert JmesPath("a.b[3]").search({"a": []}) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "'' is not a valid JMESPath: cannot be empty"),
        ("a[", "'a[' is not a valid JMESPath: Incomplete expression"),
        ("a]", "'a]' is not a valid JMESPath: Unexpected token: ]: Parse error at column 1, token \"]\" (RBRACKET)"),
        ("a %", "'a %' is not a valid JMESPath: Unknown token %"),
        ("[::0]", "'[::0]' is not a valid JMESPath: the step of a slice cannot be 0"),
        ("[?lenght(@)]", "'[?lenght(@)]' is not a valid JMESPath: no function named 'lenght'; did you mean 'length'?"),
        ("length(a, b)", "'length(a, b)' is not a valid JMESPath: length() takes 1 argument, got 2"),
        ("join(a)", "'join(a)' is not a valid JMESPath: join() takes 2 arguments, got 1"),
        ("merge()", "'merge()' is not a valid JMESPath: merge() takes at least 1 argument, got 0"),
    ],
)
def test_refuses_an_invalid_path_with_the_reason(path: str, reason: str) -> None:
    with pytest.raises(BadPathError) as caught:
        JmesPath(path)
    assert str(caught.value) == reason


def test_lists_the_functions_if_none_is_close() -> None:
    with pytest.raises(BadPathError, match=r"no function named 'q'; use one of abs, avg, ceil, .*, values$"):
        JmesPath("q(@)")


def test_refuses_a_path_nested_too_deeply() -> None:
    with pytest.raises(BadPathError, match="nested too deeply"):
        JmesPath("(" * 9_000)


def test_refuses_a_path_that_is_too_long() -> None:
    with pytest.raises(BadPathError, match=r"a JMESPath of 100,000 characters is too long \(at most 10,000\): "):
        JmesPath("a" * 100_000)


def test_literals_of_older_syntax_are_read() -> None:
    assert JmesPath("a == `b`").search({"a": "b"}) is True


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        ("sum(@)", {"a": 1}, "sum() takes array-number, got {'a': 1}"),
        ("sort_by(@, &a)", [{"a": []}], "sort_by() takes string or number, got {'a': []}"),
        ("a < b", {"a": 1, "b": "x"}, "'<' not supported between instances of 'int' and 'str'"),
        ("ceil(to_number(@))", "inf", "cannot convert float infinity to integer"),
    ],
)
def test_data_of_the_wrong_type_is_ungradable(path: str, data: Any, reason: str) -> None:
    with pytest.raises(UngradableError) as caught:
        JmesPath(path).search(data)
    assert str(caught.value) == f"the JMESPath {path!r} fails on this data: {reason}"


def test_a_message_shows_little_of_a_huge_value() -> None:
    with pytest.raises(UngradableError) as caught:
        JmesPath("sum(@)").search("a" * 10_000_000)
    assert len(str(caught.value)) < 400


@given(st.text("abc@.*[]?:&|!=<>'\"`{}(),- 01", max_size=15) | st.text(max_size=10), _json)
def test_any_path_is_refused_or_gives_a_value_or_an_error(path: str, data: Any) -> None:
    with suppress(BadPathError, UngradableError):
        JmesPath(path).search(data)


_functions = st.sampled_from(
    ["abs", "avg", "ceil", "floor", "keys", "length", "max", "min", "reverse", "sort", "sum", "to_array", "to_number"]
)
_paths = st.recursive(
    st.sampled_from(["@", "a", "[0]", "[]", "*"]), lambda inner: st.builds("{}({})".format, _functions, inner)
)


@given(_paths, _json)
def test_any_function_gives_a_value_or_an_error(path: str, data: Any) -> None:
    with suppress(UngradableError):
        JmesPath(path).search(data)
