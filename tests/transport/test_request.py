from __future__ import annotations

import pytest
from yarl import URL

from gradeline.transport.errors import AttemptError
from gradeline.transport.request import Hop, Redirect, next_hop


def hop(url: str, method: str = "POST") -> Hop:
    return Hop(method, URL(url), {"Authorization": "Bearer x", "Accept": "*/*"}, b"body")


def test_https_is_never_downgraded() -> None:
    with pytest.raises(AttemptError, match="not encrypted") as caught:
        next_hop(hop("https://x.test/"), Redirect(307, "http://x.test/?token=secret"), ())
    assert caught.value.type == "redirect"
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("location", "url", "keeps"),
    [
        ("/b?c=d#e", "https://x.test/b?c=d", True),
        ("c", "https://x.test/a/c", True),
        ("//y.test/z", "https://y.test/z", False),
        ("https://x.test:443/z", "https://x.test/z", True),
        ("https://x.test:444/z", "https://x.test:444/z", False),
        ("https://X.TEST/z", "https://x.test/z", True),
    ],
)
def test_a_location_is_resolved(location: str, url: str, keeps: bool) -> None:
    after = next_hop(hop("https://x.test/a/b"), Redirect(307, location), ())
    assert str(after.url.origin()) + after.url.raw_path_qs == str(URL(url).origin()) + URL(url).raw_path_qs
    assert ("Authorization" in after.headers) is keeps
    assert (after.method, after.body) == ("POST", b"body")


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (302, "PUT", "PUT"),
        (308, "POST", "POST"),
    ],
)
def test_the_method_after_a_redirect(status: int, method: str, becomes: str) -> None:
    assert next_hop(hop("http://x.test/", method), Redirect(status, "/y"), ()).method == becomes


def test_a_redirect_to_https_on_another_port_is_another_origin() -> None:
    after = next_hop(hop("http://x.test/"), Redirect(307, "https://x.test/"), ())
    assert "Authorization" not in after.headers
