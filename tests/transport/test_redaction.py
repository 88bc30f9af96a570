from __future__ import annotations

import pytest

from gradeline.model.secrets import is_secret_name
from gradeline.transport import excerpt, redact, safe_url
from gradeline.transport.redaction import known_secrets


@pytest.mark.parametrize(
    "name",
    ["key", "api_key", "X-API-Key", "apiKey", "access_token", "ACCESSTOKEN", "Authorization", "sig", "clientSecret"],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["monkey", "author", "q", "X-Trace", "keyboard", "Content-Type", "max_tokens"])
def test_names_that_are_not_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_values_are_replaced_in_every_encoding() -> None:
    text = "a b/c, a%20b%2Fc and a+b%2Fc; a b/c-longer"
    assert redact(text, ["a b/c", "", "a b/c-longer"]) == "***, *** and ***; ***"


def test_the_secrets_of_a_call() -> None:
    found = known_secrets(
        "https://x.test/?key=1&token=query-secret&q=plain",
        {"Authorization": "Bearer token-1", "X-Odd": "odd", "Accept": "text/html"},
        ["X-Odd"],
        ["pw", ""],
    )
    assert set(found) == {"query-secret", "Bearer token-1", "token-1", "odd", "pw"}


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("https://u:p@x.test:8443/a?b=c#d", "https://x.test:8443/a?…"),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("http://[bad", "the URL"),
        ("http://x:99999999/", "the URL"),
        ("localhost:9000/evaluate", "localhost:9000/evaluate"),
        ("127.0.0.1:9000/x", "127.0.0.1:9000/x"),
        ("example.com/ask?key=1", "example.com/ask?…"),
        ("/evaluate", "/evaluate"),
        ("http:/x/y", "http:/x/y"),
        ("http//x/y", "http//x/y"),
        ("HTTP://Example.COM/Path", "HTTP://Example.COM/Path"),
        ("'http://x.test/y'", "'http://x.test/y'"),
        (" http://x.test/y ", "http://x.test/y"),
        ("user:pass-word@host/x", "host/x"),
        ("http://x.test/@me", "http://x.test/@me"),
        ("http://user:pa/ss@host/x", "the URL"),
        ("", ""),
    ],
)
def test_a_url_in_a_message(url: str, redacted: str) -> None:
    assert safe_url(url) == redacted


def test_an_excerpt_is_clean_and_short() -> None:
    assert excerpt(b" a\0b\xff ") == "a\u2400b\ufffd"
    assert len(excerpt(b"\xff" * 100_000).encode()) <= 2048
    assert excerpt(b"x" * 2047 + b"sk-secret", ["sk-secret"]).endswith("…")
    assert "sk-" not in excerpt(b"x" * 2047 + b"sk-secret", ["sk-secret"])
