from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.transport import Event
from gradeline.transport import body as body_module
from gradeline.transport.body import NdjsonReader, SseReader
from gradeline.transport.errors import AttemptError


def read(body: bytes, reader: SseReader | NdjsonReader, size: int = 1) -> list[Event]:
    for start in range(0, len(body), size):
        reader.feed(body[start : start + size])
    reader.close()
    return reader.events


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: a\n\n", [Event("a")]),
        (b"data: a\r\rdata: b\r\n\r\ndata: c\n\n", [Event("a"), Event("b"), Event("c")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event("a")]),
        (b": comment\ndata\ndata:  b\n\n", [Event("\n b")]),
        (b"data\n\n", [Event("")]),
        (b"event: x\n\ndata: a\n\n", [Event("a")]),
        (b"event: x\nid: 1\nretry: 5\nodd: 1\ndata: a\n\ndata: b\n\n", [Event("a", "x", "1"), Event("b", id="1")]),
        (b"id: a\0b\ndata: x\n\n", [Event("x")]),
        (b"data: a\n\ndata: dropped\n", [Event("a")]),
        (b"data: a\n\ndata: dropped", [Event("a")]),
        (b"data: a\r\n\r", [Event("a")]),
        ("data: é€😀\n\n".encode(), [Event("é€😀")]),
        (b"data: \xff\n\n", [Event("\ufffd")]),
        (b"", []),
    ],
)
def test_server_sent_events_follow_the_whatwg_rules(body: bytes, expected: list[Event], size: int) -> None:
    assert read(body, SseReader(), size) == expected


@given(st.text(alphabet="data:id event\r\n\ufeffé").map(str.encode), st.integers(1, 7))
def test_how_the_body_is_split_makes_no_difference(body: bytes, size: int) -> None:
    assert read(body, SseReader(), size) == read(body, SseReader(), len(body) + 1)
    assert read(body, NdjsonReader(), size) == read(body, NdjsonReader(), len(body) + 1)


def test_lines_of_json() -> None:
    assert read(b'{"a": 1}\r\n\n  \n[2]', NdjsonReader()) == [Event('{"a": 1}'), Event("[2]")]


def test_too_many_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "_MAX_EVENTS", 3)
    with pytest.raises(AttemptError, match="more than 3 events") as caught:
        read(b"1\n2\n3\n4\n", NdjsonReader())
    assert caught.value.type == "too_large"
