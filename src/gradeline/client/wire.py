"""What is sent and what comes back, whoever carries it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import IO, Any, Generic, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from gradeline.client.errors import ApiError
from gradeline.client.shapes import Page
from gradeline.errors import ConfigError, Problem

T = TypeVar("T")

ATTEMPTS = 6
LONGEST_WAIT_S = 60.0
_FIRST_WAIT_S = 0.25
_REFUSED = 429
_UNAVAILABLE = 503
_SHOWN = 200

Body = bytes | IO[bytes]


class Request(NamedTuple):
    """One request, below the address of the service."""

    method: str
    path: str
    params: Mapping[str, object] = {}
    headers: Mapping[str, str] = {}
    body: Body | None = None
    repeatable: bool = False
    """Whether sending it twice does no more than sending it once."""

    @property
    def target(self) -> str:
        known = {name: _parameter(value) for name, value in self.params.items() if value is not None}
        return f"{self.path}?{urlencode(known)}" if known else self.path


class Answer(NamedTuple):
    """What came back, its body read."""

    status: int
    headers: Mapping[str, str]
    """Their names are in lower case."""
    body: bytes


class Call(NamedTuple, Generic[T]):
    """A request, and what its answer means."""

    request: Request
    read: Callable[[Answer], T]


class Listing(NamedTuple, Generic[T]):
    """A list that is read page by page, from a cursor on."""

    page: Callable[[str | None], Call[Page[T]]]


class Place(NamedTuple):
    """Where a service is."""

    scheme: str
    host: str
    port: int | None
    prefix: str

    @classmethod
    def of(cls, url: str) -> Place:
        """The place of a URL; a fault in it is a `ConfigError`, which shows no password."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(Problem("base_url", f"is no URL: {error}")) from None
        fault = _fault(parts)
        if fault:
            raise ConfigError(Problem("base_url", f"{fault}; say it like http://127.0.0.1:8000"))
        return cls(parts.scheme, parts.hostname or "", port, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port is None else f':{self.port}'}{self.prefix}"


def _fault(parts: SplitResult) -> str | None:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "needs a scheme (http or https) and a host"
    if parts.username is not None or parts.password is not None:
        return "must not hold credentials: give the key by itself"
    return "has a query or a fragment" if parts.query or parts.fragment else None


def path(*parts: str) -> str:
    """A path below ``/api``, each part made safe."""
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


def json_request(method: str, target: str, fields: object, *, headers: Mapping[str, str] | None = None) -> Request:
    """A request with a JSON body; with an idempotency key it may be repeated."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    return Request(method, target, headers=sent, body=msgspec.json.encode(fields), repeatable="Idempotency-Key" in sent)


def data(kind: type[T]) -> Callable[[Answer], T]:
    """Reads what is under ``data`` of a success."""

    def read(answer: Answer) -> T:
        try:
            return msgspec.json.decode(answer.body, type=_Envelope[kind]).data  # type: ignore[valid-type]
        except msgspec.DecodeError as error:
            raise unexpected(answer, f"it is not what was asked for: {error}") from None

    return read


def nothing(_: Answer) -> None:
    """There is nothing to read."""


def entries(kind: type[T], name: str) -> Callable[[Answer], Page[T]]:
    """Reads a page of a list whose entries are under ``name``."""

    def read(answer: Answer) -> Page[T]:
        told = data(dict[str, msgspec.Raw])(answer)
        try:
            found = msgspec.json.decode(told.get(name, b"null"), type=list[kind])  # type: ignore[valid-type]
            cursor = msgspec.json.decode(told.get("next_cursor", b"null"), type=str | None)
        except msgspec.DecodeError as error:
            raise unexpected(answer, f"it is not what was asked for: {error}") from None
        return Page(found, cursor)

    return read


def without(fields: Mapping[str, object], *absent: object) -> dict[str, object]:
    """The fields that were given."""
    return {name: value for name, value in fields.items() if not any(value is one for one in absent)}


def checked(answer: Answer) -> Answer:
    """The answer, if it is a success; else its `ApiError`."""
    if 200 <= answer.status < 300:
        return answer
    try:
        error = msgspec.json.decode(answer.body, type=_Envelope[None]).error
    except msgspec.DecodeError:
        error = None
    if error is None:
        raise unexpected(answer, "is something else in between?")
    raise ApiError(answer.status, error.code, error.message, error.details, answer.headers.get("x-request-id", ""))


def unexpected(answer: Answer, why: str) -> ApiError:
    """An answer that no service of ours gives."""
    shown = answer.body[:_SHOWN].decode(errors="replace")
    return ApiError(answer.status, "UNEXPECTED_ANSWER", f"not an answer of the service ({why}): {shown!r}")


def wait_before_next(request: Request, answer: Answer, attempt: int) -> float | None:
    """Seconds until the request may be sent again; None: the answer counts.

    What was refused for being too much was not done, so it may always be sent again.
    """
    again = answer.status == _REFUSED or (answer.status == _UNAVAILABLE and request.repeatable)
    if not again or attempt >= ATTEMPTS or not rewound(request):
        return None
    told = _retry_after(answer.headers.get("retry-after", ""))
    return backoff(attempt) if told is None else min(told, LONGEST_WAIT_S)


def backoff(attempt: int) -> float:
    """A growing time with some chance in it, so that callers do not come back all at once."""
    return min(_FIRST_WAIT_S * 2.0**attempt, LONGEST_WAIT_S) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def rewound(request: Request) -> bool:
    """Whether the body can be sent once more."""
    body = request.body
    if body is None or isinstance(body, bytes):
        return True
    if not body.seekable():
        return False
    body.seek(0)
    return True


class _Error(msgspec.Struct):
    code: str
    message: str
    details: dict[str, Any] | None = None


class _Envelope(msgspec.Struct, Generic[T]):
    success: bool
    data: T
    error: _Error | None = None


def _parameter(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _retry_after(text: str) -> float | None:
    """Seconds, or a date; anything else says nothing."""
    if text.strip().isascii() and text.strip().isdigit():
        return float(text) if len(text) < 10 else LONGEST_WAIT_S
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except (ValueError, TypeError, OverflowError):
        return None
