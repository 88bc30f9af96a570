"""Cursors and pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.service.errors import Code, ServiceError
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.integers(-(2**63) + 1, 2**63 - 1)))
def test_a_cursor_gives_back_its_parts(parts: list[str | int]) -> None:
    cursor = encode_cursor(*parts)
    assert decode_cursor(cursor, *(type(part) for part in parts)) == tuple(parts)
    assert not set(cursor) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "!",
        "abc",
        "é",
        "\ud800",
        "W10",  # []
        "WzFd=",  # padded
        encode_cursor(),
        encode_cursor("7"),
        encode_cursor(7, 8),
        encode_cursor(2**63),
        encode_cursor(True),
        "eyJhIjoxfQ",  # {"a":1}
        "WyAxXQ",  # [ 1]
        "a" * 2000,
        "W1" * 480,
    ],
)
def test_an_unknown_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ServiceError) as caught:
        decode_cursor(cursor, int)
    assert (caught.value.code, caught.value.status) == (Code.INVALID_INPUT, 400)
    assert "next_cursor" in caught.value.message


def test_a_page_keeps_to_its_bounds() -> None:
    assert PageRequest.of(1) == PageRequest(1, 0, None)
    assert PageRequest.of(1000, 5) == PageRequest(1000, 5, None)
    assert PageRequest.of(10, None, "x") == PageRequest(10, 0, "x")
    assert PageRequest.of(10, 10_000, max_skip=10_000) == PageRequest(10, 10_000, None)


@pytest.mark.parametrize(
    ("limit", "skip", "cursor", "expected"),
    [
        (0, None, None, "'limit' must be from 1 to 1,000, got 0"),
        (1001, None, None, "'limit' must be from 1 to 1,000, got 1001"),
        (10, -1, None, "'skip' must be from 0"),
        (10, 10_001, None, "'skip' must be from 0 to 10,000, got 10001"),
        (10, 0, "x", "'cursor' and 'skip' exclude each other"),
    ],
)
def test_an_invalid_page_is_refused(limit: int, skip: int | None, cursor: str | None, expected: str) -> None:
    with pytest.raises(ServiceError) as caught:
        PageRequest.of(limit, skip, cursor, max_skip=10_000)
    assert caught.value.code is Code.INVALID_INPUT
    assert expected in caught.value.message
