"""What went wrong on the wire, told by the types of `RESPONSE_POLICY`."""

from __future__ import annotations

import os
import ssl
from typing import NoReturn, Self

import aiohttp

from gradeline.errors import response_policy
from gradeline.model.text import quote


class AttemptError(Exception):
    """One failed attempt, before its message is redacted and becomes an `AgentError`."""

    def __init__(
        self,
        error_type: str,
        message: str,
        *,
        status: int | None = None,
        retry_after: str | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.type = error_type
        self.message = message
        self.status = status
        self.retry_after = retry_after
        self.retry = not final and response_policy(error_type, status).retry
        self.stale = False
        """Whether a reused connection ended before any answer: the server had most likely closed it already."""

    def without_frames(self) -> Self:
        """The error alone, to be kept. Its frames hold the body read so far, and a frame that holds the error
        makes a circle of them, which stays in memory until Python looks for circles."""
        self.__traceback__ = self.__context__ = None
        return self


class EgressRefusedError(OSError):
    """The egress policy refused an address. An OSError, so that aiohttp carries it out whole."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused by the egress policy: {reason}")
        self.reason = reason


WIRE_ERRORS = (aiohttp.ClientError, OSError, UnicodeError)


def raise_failure(error: Exception, *, stale: bool = False) -> NoReturn:
    """Raise the `AttemptError` that one of `WIRE_ERRORS` corresponds to; ``stale`` as in `AttemptError`."""
    failure = _failure(error)
    failure.stale = stale and failure.type == "reset"
    error.__traceback__ = None  # aiohttp's stream keeps the error, and its frames keep the stream
    raise failure from None


def _failure(error: Exception) -> AttemptError:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, EgressRefusedError):
        return AttemptError("connect", f"refused by the egress policy: {cause.reason}", final=True)
    match error:
        case aiohttp.ClientConnectorDNSError() | UnicodeError():
            return AttemptError("dns", f"the host name could not be resolved: {_reason(cause)}")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError() | ssl.SSLError():
            return AttemptError("tls", f"no secure connection: {_reason(cause)}")
        case aiohttp.ClientConnectorError():
            return AttemptError("connect", f"could not connect: {_reason(cause)}")
        case aiohttp.InvalidURL():
            return AttemptError("connect", "the host is neither a name nor an address in its usual form", final=True)
        case aiohttp.ClientPayloadError():
            return AttemptError("truncated", "the answer broke off before its end")
        case aiohttp.ServerDisconnectedError():
            return AttemptError("reset", "the connection was closed without an answer")
        case aiohttp.ClientResponseError():
            return AttemptError("bad_response", f"no valid HTTP: {quote(error.message)}")
        case aiohttp.ClientConnectionError() | OSError():
            return AttemptError("reset", f"the connection broke: {_reason(cause)}")
        case _:
            return AttemptError("bad_response", f"no valid HTTP: {type(error).__name__}")


def _reason(error: Exception) -> str:
    """What the system said; the text of aiohttp's own errors may quote a URL."""
    text = getattr(error, "strerror", None) or (str(error) if isinstance(error, OSError) else "")
    if text.startswith("Connect call failed") and isinstance(error, OSError) and error.errno:
        text = os.strerror(error.errno)  # asyncio puts the address in its place, which the URL shows already
    return quote(text).strip("'\"") if text else type(error).__name__
