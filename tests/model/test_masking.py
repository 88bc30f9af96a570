"""Secret values are masked in every encoding in which a server echoes them, also in pieces."""

from __future__ import annotations

import base64
import json
import pickle
import re
from urllib.parse import quote, quote_plus

import pytest

from gradeline.model.secrets import Mask, credential_parts

VALUE = 'sk/Zq+8 "x"\\é~0123456789'


def every_letter_escaped(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in text if letter not in '"\\')


ECHOES = {
    "plain": VALUE,
    "json": json.dumps(VALUE),
    "json in json": json.dumps(json.dumps(VALUE)),
    "json unescaped": json.dumps(VALUE, ensure_ascii=False),
    "json upper": json.dumps(VALUE).replace("\\u00e9", "\\u00E9"),
    "json slashes": json.dumps(VALUE).replace("/", "\\/"),
    "percent": quote(VALUE, safe=""),
    "percent lower": re.sub("%..", lambda match: match[0].lower(), quote(VALUE, safe="")),
    "plus": quote_plus(VALUE),
    "percent all": "".join(f"%{byte:02X}" for byte in VALUE.encode()),
    "html": VALUE.replace('"', "&quot;"),
    "urlsafe": base64.urlsafe_b64encode(VALUE.encode()).decode(),
    "without padding": base64.b64encode(VALUE.encode()).decode().rstrip("="),
    **{f"base64 after {n}": base64.b64encode(b"x" * n + VALUE.encode() + b"y" * n).decode() for n in range(4)},
    "base64 in a query": quote(base64.b64encode(VALUE.encode()).decode(), safe=""),
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
@pytest.mark.parametrize("around", ["", "before {} after", '{{"a": "{}"}}'])
def test_a_value_is_masked_in_every_encoding(echo: str, around: str) -> None:
    whole = around.format(echo) if around else echo
    masked = Mask([VALUE]).text(whole)
    assert "***" in masked
    assert longest_common(masked, echo) < 8


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_a_value_split_over_chunks_is_masked(echo: str) -> None:
    data = f"before {echo} after {echo} end".encode()
    whole = Mask([VALUE]).body(data)
    for size in (*range(1, 12), len(data) // 2):
        stream = Mask([VALUE]).stream()
        chunks = [stream.feed(data[start : start + size]) for start in range(0, len(data), size)]
        assert b"".join((*chunks, stream.close())) == whole


def test_the_longest_of_values_with_a_common_prefix_is_masked() -> None:
    mask = Mask(["secret-one", "secret-one-and-more"])
    stream = mask.stream()
    pieces = [stream.feed(bytes([byte])) for byte in b"<secret-one-and-more><secret-one>"]
    assert b"".join((*pieces, stream.close())) == b"<***><***>"


def test_unnecessary_json_escapes_are_masked() -> None:
    value = "planted-value-1"
    body = b'{"text": "' + every_letter_escaped(value).encode() + b'", "other": "\\u003cb\\u003e"}'
    assert json.loads(Mask([value]).body(body)) == {"text": "***", "other": "<b>"}
    untouched = b'{"other": "\\u003cb\\u003e"}'
    assert Mask([value]).body(untouched) is untouched


@pytest.mark.parametrize("left", [4, 10, len(VALUE) - 1])
def test_a_truncated_value_at_the_end_is_masked(left: int) -> None:
    cut = ("x" * 50 + VALUE)[: 50 + left].encode()
    assert Mask([VALUE]).body(cut, cut=True) == b"x" * 50 + b"***"
    assert Mask([VALUE]).body(cut) == cut


@pytest.mark.parametrize(
    ("credential", "echoed"),
    [
        ("Bearer planted-token-1", "planted-token-1"),
        ("session=planted-cookie-1; theme=dark-mode", "planted-cookie-1"),
        ("Basic " + base64.b64encode(b"me:planted-password").decode(), "planted-password"),
    ],
)
def test_the_decoded_form_of_a_credential_is_masked(credential: str, echoed: str) -> None:
    assert echoed in credential_parts(credential)
    assert Mask([credential]).text(f"you are {echoed}") == "you are ***"


def test_short_values_are_not_masked() -> None:
    assert not Mask(["EMPTY", "test", "Bearer abc"[:7]])
    assert Mask(["1234567"]).text("1234567") == "1234567"


def test_trees_are_masked_with_their_keys() -> None:
    tree = {"planted-value-1": ["planted-value-1", 7, None], "b": {"c": "d"}}
    assert Mask(["planted-value-1"]).tree(tree) == {"***": ["***", 7, None], "b": {"c": "d"}}


def test_other_encodings_of_text_are_masked() -> None:
    for coding in ("utf-16-le", "utf-16-be"):
        assert "planted".encode(coding) not in Mask(["planted-value-1"]).body("a planted-value-1".encode(coding))


def test_values_too_many_for_one_automaton_are_masked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeline.model.secrets._PATTERN_MEMORY", 1)
    mask = Mask(["planted-value-of-this-test", "planted-value-of-this-test-and-more"])
    assert mask.text("<planted-value-of-this-test-and-more> planted-value-of-this-test.") == "<***> ***."


def test_a_mask_travels_to_another_process() -> None:
    mask = Mask(["planted-value-1"])
    mask.text("use it")
    assert pickle.loads(pickle.dumps(mask)).text("planted-value-1") == "***"


def longest_common(one: str, other: str) -> int:
    """The length of the longest part that both have."""
    return max(
        (end - start for start in range(len(other)) for end in range(start, len(other) + 1) if other[start:end] in one),
        default=0,
    )
