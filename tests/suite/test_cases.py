"""Sets of case keys."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.suite.case_ids import CaseKeySet

_PARTS = st.tuples(
    st.sampled_from(["", "a", "a1-", "case-", "²", "٣"]),
    st.sampled_from(["", "0", "1", "2", "3", "9", "10", "11", "00", "01", "٣", "9" * 30]),
)


@given(st.lists(_PARTS.map("".join), max_size=60))
def test_it_is_a_set(keys: list[str]) -> None:
    names, seen = CaseKeySet(), set[str]()
    for key in keys:
        assert names.add(key) == (key not in seen)
        seen.add(key)


@pytest.mark.parametrize("form", ["{}", "case-{}", "q_2_{}"])
@pytest.mark.parametrize("first", [0, 1, 1000])
def test_keys_that_count_up_need_no_memory(form: str, first: int) -> None:
    names = CaseKeySet()
    empty = sys.getsizeof(names._slots)
    assert all(names.add(form.format(number)) for number in range(first, first + 5_000))
    assert not names.add(form.format(first + 17))
    assert names.add(form.format("other"))
    assert sys.getsizeof(names._slots) == empty
