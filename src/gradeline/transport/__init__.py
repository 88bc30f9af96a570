"""The HTTP client: every call to an agent or a model goes through `Transport`.

Loading this package loads aiohttp (about 0.2 s), so nothing imports it at start-up.
"""

from gradeline.transport import certificates  # noqa: F401 - must be first: it defers what importing aiohttp loads
from gradeline.transport.body import Event
from gradeline.transport.client import Backoff, Transport
from gradeline.transport.egress import AllowAll, EgressPolicy, PublicOnly, allow_all
from gradeline.transport.redaction import excerpt, redact, safe_url
from gradeline.transport.request import CallError, HttpRequest, HttpResponse

__all__ = [
    "AllowAll",
    "Backoff",
    "CallError",
    "EgressPolicy",
    "Event",
    "HttpRequest",
    "HttpResponse",
    "PublicOnly",
    "Transport",
    "allow_all",
    "excerpt",
    "redact",
    "safe_url",
]
