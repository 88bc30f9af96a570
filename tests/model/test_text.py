from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import DataError
from gradeline.model import clean_data, clean_text, quote

any_text = st.text(st.characters(exclude_categories=()))


class TestCleanText:
    @pytest.mark.parametrize(
        ("given_text", "text", "changed"),
        [
            ("plain", "plain", False),
            ("é 漢 👍", "é 漢 👍", False),
            ("a\ud800b", "a\ufffdb", True),
            ("a\0b", "a\u2400b", True),
            ("\ufffd", "\ufffd", False),
            (b"caf\xc3\xa9", "café", False),
            (b"caf\xe9 \xef\xbf\xbd", "caf\ufffd \ufffd", True),
            (b"\0", "\u2400", True),
            ("", "", False),
        ],
    )
    def test_examples(self, given_text: str | bytes, text: str, changed: bool) -> None:
        assert clean_text(given_text) == (text, changed)

    @given(any_text | st.binary())
    def test_a_cleaned_text_can_be_stored_and_stays_as_it_is(self, raw: str | bytes) -> None:
        text, _ = clean_text(raw)
        assert "\0" not in text
        assert text.encode().decode() == text
        assert clean_text(text) == (text, False)

    @given(any_text)
    def test_the_length_is_kept(self, raw: str) -> None:
        assert len(clean_text(raw).text) == len(raw)


class TestCleanData:
    def test_texts_and_keys_are_cleaned_and_tuples_are_lists(self) -> None:
        assert clean_data({"a\0": ("\ud800", 1, None, True), 3: {}}) == {"a\u2400": ["\ufffd", 1, None, True], "3": {}}

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"a": [1, float("nan")]}, r"\$\.a\[1\]: nan is not a finite number"),
            ({"a": {1, 2}}, r"\$\.a: \{1, 2\} is a set; use strings, numbers"),
            ({"a": 10**5000}, r"\$\.a: an integer of 16610 bits is too large"),
        ],
    )
    def test_values_no_record_can_store_are_refused_with_their_place(self, value: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            clean_data(value)

    def test_cycles_and_too_deep_trees_are_refused(self) -> None:
        cycle: list[Any] = []
        cycle.append(cycle)
        deep: Any = 0
        for _ in range(100_000):
            deep = [deep]
        for value in (cycle, deep):
            with pytest.raises(DataError, match="nested more than 200 levels deep"):
                clean_data(value)

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**64), 2**64)
            | st.floats(allow_nan=False, allow_infinity=False)
            | any_text,
            lambda inner: st.lists(inner) | st.dictionaries(any_text, inner),
            max_leaves=10,
        )
    )
    def test_cleaned_data_survives_json_unchanged(self, value: Any) -> None:
        clean = clean_data(value)
        assert msgspec.json.decode(msgspec.json.encode(clean)) == clean


@given(st.text() | st.binary() | st.lists(st.integers()) | st.integers())
def test_quote_stays_short(value: object) -> None:
    assert len(quote(value)) < 900


def test_quote_cuts_long_texts_and_counts_them() -> None:
    assert quote("x" * 10_000_000, limit=3) == "'xxx'… (10,000,000 in total)"
    assert quote(10**100_000) == "an integer of 332,193 bits"
