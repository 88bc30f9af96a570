"""The one way out: every HTTP call to an agent or a model goes through `Transport`.

Loading this package loads aiohttp (about 0.2 s), so nothing imports it at start-up.
"""

from gradeline.transport import certificates  # noqa: F401 - the first of all, since it imports aiohttp in its own way
from gradeline.transport.call import Answer, CallError, Request
from gradeline.transport.client import Transport
from gradeline.transport.egress import AllowAll, EgressPolicy, PublicOnly, allow_all
from gradeline.transport.events import Event
from gradeline.transport.redact import excerpt, redact, safe_url
from gradeline.transport.retry import Backoff

__all__ = [
    "AllowAll",
    "Answer",
    "Backoff",
    "CallError",
    "EgressPolicy",
    "Event",
    "PublicOnly",
    "Request",
    "Transport",
    "allow_all",
    "excerpt",
    "redact",
    "safe_url",
]
