"""The JSON value extractor."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, GraderError, Problem, UngradableError
from gradeline.extractors import create, extract
from gradeline.model import Message, Response, Trajectory

ANSWER = '{"city": "Paris", "size": {"km2": 105.4, "people": 2102650}, "tags": ["é", "b"], "old": true, "mayor": null}'


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("city", "Paris"),
        ("size", '{"km2":105.4,"people":2102650}'),
        ("size.people", "2102650"),
        ("size.km2", "105.4"),
        ("tags", '["é","b"]'),
        ("tags[-1]", "b"),
        ("old", "true"),
        ("mayor", ""),
        ("river", ""),
        ("length(tags)", "2"),
        ("tags[?@ == 'x']", "[]"),
        ("{name: city}", '{"name":"Paris"}'),
    ],
)
def test_takes_the_value_at_the_path(path: str, found: str) -> None:
    assert extract("json", ANSWER, {"path": path}) == found


def test_takes_the_whole_json_by_default_compact_and_in_its_order() -> None:
    assert extract("json", '{\n  "b": [1, 2.0],\n  "a": "x y"\n}') == '{"b":[1,2.0],"a":"x y"}'


@pytest.mark.parametrize(
    "text",
    ['Sure:\n```json\n{"a": 1}\n```\nBye.', 'It is {"a": 1}, I think.', ' {"a": 1}\n'],
    ids=["fenced", "in the prose", "whole"],
)
def test_finds_json_anywhere_in_the_text(text: str) -> None:
    assert extract("json", text, {"path": "a"}) == "1"


@pytest.mark.parametrize("text", ["no JSON here", "", "{broken", '{"a": NaN}'])
def test_without_json_nothing_is_found(text: str) -> None:
    assert extract("json", text) == ""


def test_reads_only_the_last_assistant_message() -> None:
    turn = (Message("assistant", '{"a": 1}'), Message("assistant", "Done."), Message("tool", '{"a": 2}'))
    assert create("json", {"path": "a"}).extract(Response(trajectory=Trajectory((turn,)))) == ""


def test_a_string_is_taken_unchanged() -> None:
    assert extract("json", '{"a": " \\"quoted\\"\\n"}', {"path": "a"}) == ' "quoted"\n'


def test_a_faulty_path_is_a_fault_of_the_config() -> None:
    with pytest.raises(ConfigError) as caught:
        create("json", {"path": "a["})
    assert caught.value.problems == (Problem("config.path", "'a[' is not a valid JMESPath: Incomplete expression"),)
    assert str(caught.value) == "json: config.path: 'a[' is not a valid JMESPath: Incomplete expression"


def test_data_that_the_path_cannot_take_is_ungradable() -> None:
    with pytest.raises(UngradableError, match=r"sum\(\) takes array-number, got 'Paris'"):
        extract("json", ANSWER, {"path": "sum(city)"})


@pytest.mark.parametrize(("path", "text"), [("to_number(@)", '"nan"'), ("sum(@)", "[1e308, 1e308]"), ("&a", "{}")])
def test_a_value_that_json_cannot_represent_is_ungradable(path: str, text: str) -> None:
    with pytest.raises(UngradableError, match="cannot be written as JSON"):
        extract("json", text, {"path": path})


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, "{" * 10_000_000],
    ids=["open", "arrays", "objects", "10 MB of braces"],
)
def test_json_nested_without_end_is_not_found(text: str) -> None:
    assert extract("json", text) == ""


@pytest.mark.parametrize("depth", range(850, 1_001, 10))
def test_json_nested_to_the_edge_of_the_stack_gives_a_text_or_is_ungradable(depth: int) -> None:
    text = "[" * depth + "]" * depth
    with suppress(UngradableError):
        assert extract("json", text) in (text, "")


def test_huge_json_is_read() -> None:
    text = json.dumps([{"id": n, "text": "x" * 80} for n in range(100_000)])
    assert extract("json", text, {"path": "[-1].id"}) == "99999"


def test_lone_surrogates_are_not_valid_json() -> None:
    assert extract("json", '{"a": "\ud800"}') == ""


_scalars = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_values = st.recursive(
    _scalars | st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@pytest.mark.slow
@given(_scalars | st.lists(_values) | st.dictionaries(st.text(), _values))
def test_compact_json_equals_the_original(value: Any) -> None:
    assert json.loads(extract("json", json.dumps({"a": value}), {"path": "a"})) == value


@given(st.text('{}[]",:1a`~ \n\\\ud800é'))
def test_any_text_gives_a_text_or_a_grader_error(text: str) -> None:
    with suppress(GraderError):
        assert isinstance(extract("json", text), str)
