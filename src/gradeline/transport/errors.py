"""Network errors, mapped to the types of `gradeline.errors.RESPONSE_POLICY`."""

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
        """Whether a reused connection ended before any response: the server had most likely closed it already."""

    def without_frames(self) -> Self:
        """The error without its traceback, to be stored: the frames hold the body and would form a reference cycle."""
        self.__traceback__ = self.__context__ = None
        return self


class EgressRefusedError(OSError):
    """The egress policy refused an address. It is an OSError, so that aiohttp passes it on unchanged."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused by the egress policy: {reason}")
        self.reason = reason


WIRE_ERRORS = (aiohttp.ClientError, OSError, UnicodeError)


def raise_attempt_error(error: Exception, *, stale: bool = False) -> NoReturn:
    """Raise the `AttemptError` for one of `WIRE_ERRORS`; ``stale`` as in `AttemptError`."""
    failure = _attempt_error(error)
    failure.stale = stale and failure.type == "reset"
    error.__traceback__ = None  # aiohttp's stream keeps the error, and the error's frames keep the stream
    raise failure from None


def _attempt_error(error: Exception) -> AttemptError:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, EgressRefusedError):
        return AttemptError("connect", f"refused by the egress policy: {cause.reason}", final=True)
    match error:
        case aiohttp.ClientConnectorDNSError() | UnicodeError():
            return AttemptError("dns", f"the host name could not be resolved: {_reason(cause)}")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError() | ssl.SSLError():
            return AttemptError("tls", f"TLS connection failed: {_reason(cause)}")
        case aiohttp.ClientConnectorError():
            return AttemptError("connect", f"could not connect: {_reason(cause)}")
        case aiohttp.InvalidURL():
            return AttemptError("connect", "the host is not a valid name or address", final=True)
        case aiohttp.ClientPayloadError():
            return AttemptError("truncated", "the response ended early")
        case aiohttp.ServerDisconnectedError():
            return AttemptError("reset", "the connection was closed without a response")
        case aiohttp.ClientResponseError():
            return AttemptError("bad_response", f"invalid HTTP response: {quote(error.message)}")
        case aiohttp.ClientConnectionError() | OSError():
            return AttemptError("reset", f"the connection was lost: {_reason(cause)}")
        case _:
            return AttemptError("bad_response", f"invalid HTTP response: {type(error).__name__}")


def _reason(error: Exception) -> str:
    """The system's message; messages of aiohttp itself may quote a URL."""
    text = getattr(error, "strerror", None) or (str(error) if isinstance(error, OSError) else "")
    if text.startswith("Connect call failed") and isinstance(error, OSError) and error.errno:
        text = os.strerror(error.errno)  # asyncio replaces the message by the address, which the URL shows already
    return quote(text).strip("'\"") if text else type(error).__name__
