from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.parsing.json_text import NotJsonError, find_json, parse_fenced_json, parse_json

MEGABYTE = 1_000_000

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


class TestParse:
    @given(json_values)
    def test_output_of_json_dumps_is_read(self, value: object) -> None:
        assert parse_json(json.dumps(value)) == value

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "it ends too early"),
            ("[1", "it ends too early"),
            ("Paris", "invalid character"),
            ("[1] and more", "trailing characters"),
            ("NaN", "invalid character"),
            ("1e999", "Number out of range"),
            ("9" * 5_000, "Integer value out of range"),
            ("[" * 100_000, "nested too deeply"),
            ('{"a":' * 100_000, "nested too deeply"),
            ('"\ud800"', "lone surrogates are not text"),
        ],
    )
    def test_invalid_json_has_a_reason(self, text: str, reason: str) -> None:
        with pytest.raises(NotJsonError) as caught:
            parse_json(text)
        assert str(caught.value).startswith(reason)

    def test_a_reason_stays_short(self) -> None:
        with pytest.raises(NotJsonError) as caught:
            parse_json("[" * 400 + "9" * 5_000)
        assert len(str(caught.value)) <= 201

    def test_a_code_fence_is_not_json(self) -> None:
        with pytest.raises(NotJsonError):
            parse_json("```\n1\n```")


class TestParseFenced:
    @pytest.mark.parametrize(
        "text",
        [
            '{"a": 1}',
            ' {"a": 1}\n',
            '```json\n{"a": 1}\n```',
            '```\n{"a": 1}\n```',
            '```\n{"a": 1}```',
            '``` json \r\n{"a": 1}\r\n```\r\n',
            '\n  ```JSON5\n{"a":\n1}\n  ```  \n',
            '~~~\n{"a": 1}\n~~~',
            '````json\n{"a": 1}\n````',
        ],
    )
    def test_one_fence_around_the_value_is_allowed(self, text: str) -> None:
        assert parse_fenced_json(text) == {"a": 1}

    @pytest.mark.parametrize(
        "text",
        [
            'Here:\n```json\n{"a": 1}\n```',
            '```json\n{"a": 1}\n```\nDone.',
            '```json\n{"a": 1}',
            '```json\n{"a": 1}\n~~~',
            '````json\n{"a": 1}\n```',
            '``\n{"a": 1}\n``',
            '``` two words\n{"a": 1}\n```',
            "```json\n```",
            "```",
            "``````",
        ],
    )
    def test_anything_else_around_it_is_not(self, text: str) -> None:
        with pytest.raises(NotJsonError):
            parse_fenced_json(text)


class TestFind:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ('{"a": 1}', {"a": 1}),
            ('Here it is:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
            ("```\nnot json\n```\n\n```\n[2]\n```", [2]),
            ("~~~\n[1]\n~~~", [1]),
            ("  ```json\n  [1]\n  ```", [1]),
            ("[1]\n```\n[2]\n```", [2]),
            ('The result is {"a": [1]} as asked.', {"a": [1]}),
            ("See [the docs] for [1, 2].", [1, 2]),
            ("```json\n[1]", [1]),
            ("[NaN] or [1]", [1]),
            ("{broken} [3]", [3]),
        ],
    )
    def test_the_whole_text_then_a_fence_then_the_prose(self, text: str, value: object) -> None:
        assert find_json(text) == value

    @pytest.mark.parametrize("text", ["", "Paris", "[", "{]", "[NaN]", "```\n```", "[" * 100_000])
    def test_text_without_json_is_an_error(self, text: str) -> None:
        with pytest.raises(NotJsonError, match="no JSON object or array found"):
            find_json(text)

    @given(json_values.filter(lambda value: isinstance(value, dict | list)), st.text("ab \n."), st.text("ab \n."))
    def test_a_value_in_the_prose_is_found(self, value: object, before: str, after: str) -> None:
        assert find_json(f"{before}{json.dumps(value)}{after}") == value


@pytest.mark.parametrize(
    "text",
    [
        "```\n" + " " * MEGABYTE,
        "```" + " " * MEGABYTE + "x y",
        "`" * MEGABYTE,
        "`" * (MEGABYTE // 2) + "\n" + "`" * (MEGABYTE // 2 - 1),
        "\n".join("`" * length for length in range(1_400, 2, -1)),
        "```\n" + "\n" * MEGABYTE,
        "[" * 200 + "1," * (MEGABYTE * 2),
        "[" * 200 + "1," * MEGABYTE + "1" * 5_000,
        '["' * (MEGABYTE // 2),
        '{"a":' * (MEGABYTE // 5),
        "[NaN" * (MEGABYTE // 4),
        "\ud800" * MEGABYTE,
    ],
    ids=lambda text: f"{text[:8]!r}x{len(text)}",
)
@pytest.mark.slow
def test_a_megabyte_of_input_is_read_in_bounded_time(text: str) -> None:
    for read in (parse_json, parse_fenced_json, find_json):
        with pytest.raises(NotJsonError):
            read(text)


@given(st.text('[]{}":,01.eENaNtrue \n`~json\0\ud800'))
def test_any_text_gives_a_value_or_an_error(text: str) -> None:
    for read in (parse_json, parse_fenced_json, find_json):
        with suppress(NotJsonError):
            json.dumps(read(text))


def test_an_unpaired_surrogate_is_named() -> None:
    with pytest.raises(NotJsonError, match="it contains half of a surrogate pair"):
        parse_json('{"a": "\\ud800"}')
    assert parse_json('"\\ud83d\\udc4d"') == "👍"
