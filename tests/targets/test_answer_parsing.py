from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import AgentError
from gradeline.model import Response, clean_text, from_json, to_json
from gradeline.targets.answer import (
    AnswerReader,
    Decoded,
    ParsedAnswer,
    ResponseMap,
    decode,
    is_truthy,
    parse,
    response_of,
)

KEYS = st.sampled_from(
    "response text choices message content tool_calls function name arguments index id usage cost input_tokens role"
    " delta error \ud800".split(" ")
)
TREES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)
MAPS = st.builds(
    ResponseMap,
    output=st.sampled_from([None, "text", "@", "choices[0]"]),
    tool_calls=st.sampled_from([None, "tool_calls", "@"]),
    usage=st.sampled_from([None, "usage", "@"]),
    error=st.sampled_from([None, "error"]),
    trajectory=st.sampled_from([None, "message", "[@]"]),
)


def read(reading: Callable[[], ParsedAnswer]) -> ParsedAnswer | None:
    """None if it is refused, which only a bad response may be."""
    try:
        return reading()
    except AgentError as error:
        if error.type != "bad_response":
            raise
        return None


@given(st.lists(TREES, min_size=1, max_size=4), MAPS)
def test_any_json_is_read_or_refused_and_what_is_read_can_be_stored(trees: list[Any], paths: ResponseMap) -> None:
    reader = AnswerReader(paths)
    texts = [json.dumps(tree) for tree in trees]
    for found in (read(lambda: reader.read(parse(texts[0]))), read(lambda: reader.read_stream(texts))):
        if found is not None:
            response = response_of([found])
            response = msgspec.structs.replace(response, text=clean_text(response.text or "").text)
            assert from_json(Response, to_json(response)) == response


@given(st.binary(max_size=200), st.sampled_from(["", "application/json", "text/plain; charset=latin-1", "text/html"]))
def test_any_body_is_read_or_refused(body: bytes, content_type: str) -> None:
    read(lambda: AnswerReader(ResponseMap()).read_plain(decode(body, content_type), content_type))


@pytest.mark.parametrize(
    ("body", "content_type", "decoded"),
    [
        (b"\xef\xbb\xbfa", "", Decoded("a", False)),
        (b"a\xff", "", Decoded("a\ufffd", True)),
        (b"\xfc\x80", "text/plain; Charset='ISO-8859-1'", Decoded("ü€", False)),
        (b"\x81", "text/plain;charset=cp1252; x=y", Decoded("\ufffd", True)),
        (b"a", "text/plain; charset=zlib_codec", Decoded("a", False)),
    ],
)
def test_a_body_is_text_in_a_charset_that_is_known(body: bytes, content_type: str, decoded: Decoded) -> None:
    assert decode(body, content_type) == decoded


@pytest.mark.parametrize("value", [0, 0.0, True, "x", [None], {"a": None}])
def test_values_that_jmespath_treats_as_true(value: object) -> None:
    assert is_truthy(value)


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_values_that_jmespath_treats_as_false(value: object) -> None:
    assert not is_truthy(value)


def test_a_stream_of_very_many_calls_is_read_in_linear_time() -> None:
    events = [json.dumps({"c": [{"index": n, "name": "f", "arguments": "{}"}]}) for n in range(20_000)]
    found = AnswerReader(ResponseMap(tool_calls="c")).read_stream(events)
    assert len(found.calls) == 20_000
