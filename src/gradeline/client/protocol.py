"""Requests, responses, retries and event streams, independent of the HTTP library."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import IO, Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from gradeline.client.errors import ApiError
from gradeline.errors import ConfigError, Problem
from gradeline.rest_types import Envelope

T = TypeVar("T")

MAX_RETRIES = 6
MAX_WAIT_S = 60.0
_FIRST_WAIT_S = 0.25
_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = 503
_SHOWN_BYTES = 200

Body = bytes | IO[bytes]


class ApiRequest(NamedTuple):
    """One request, relative to the URL of the service."""

    method: str
    path: str
    params: Mapping[str, object] = {}
    headers: Mapping[str, str] = {}
    body: Body | None = None
    repeatable: bool = False
    """Whether the request is idempotent."""

    @property
    def target(self) -> str:
        params = {name: _parameter(value) for name, value in self.params.items() if value is not None}
        return f"{self.path}?{urlencode(params)}" if params else self.path


class ApiResponse(NamedTuple):
    """A response with its whole body."""

    status: int
    headers: Mapping[str, str]
    """Names are in lower case."""
    body: bytes


class ApiCall(NamedTuple, Generic[T]):
    """A request, and how to read its response."""

    request: ApiRequest
    read: Callable[[ApiResponse], T]


class Page(NamedTuple, Generic[T]):
    """Part of a list; ``next_cursor`` is None on the last page."""

    entries: list[T]
    next_cursor: str | None


class Listing(NamedTuple, Generic[T]):
    """A list that is read page by page; ``page`` takes the cursor of a page."""

    page: Callable[[str | None], ApiCall[Page[T]]]


class ServiceUrl(NamedTuple):
    """The URL of a service."""

    scheme: str
    host: str
    port: int | None
    prefix: str

    @classmethod
    def parse(cls, url: str) -> ServiceUrl:
        """Parse a URL; `ConfigError` if it is invalid, with a message that shows no password."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(Problem("base_url", f"invalid URL: {error}")) from None
        problem = _url_problem(parts)
        if problem:
            raise ConfigError(Problem("base_url", f"{problem}; use a URL such as http://127.0.0.1:8000"))
        return cls(parts.scheme, parts.hostname or "", port, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port is None else f':{self.port}'}{self.prefix}"


def _url_problem(parts: SplitResult) -> str | None:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "needs a scheme (http or https) and a host"
    if parts.username is not None or parts.password is not None:
        return "must not contain credentials: pass the key separately"
    return "must not have a query or a fragment" if parts.query or parts.fragment else None


def api_path(*parts: str) -> str:
    """A path below ``/api``; each part is percent-encoded."""
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


def json_request(method: str, target: str, fields: object, *, headers: Mapping[str, str] | None = None) -> ApiRequest:
    """A request with a JSON body; an idempotency key makes it repeatable."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    return ApiRequest(
        method, target, headers=sent, body=msgspec.json.encode(fields), repeatable="Idempotency-Key" in sent
    )


def read_data(kind: type[T]) -> Callable[[ApiResponse], T]:
    """Reads the ``data`` of a successful response."""

    def read(response: ApiResponse) -> T:
        try:
            return msgspec.json.decode(response.body, type=Envelope[kind]).data  # type: ignore[valid-type]
        except msgspec.DecodeError as error:
            raise unexpected_response(response, str(error)) from None

    return read


def read_nothing(_: ApiResponse) -> None:
    """For responses without a body."""


class _ListPage(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=_ListPage)


def read_page(kind: type[P], entries: Callable[[P], list[T]]) -> Callable[[ApiResponse], Page[T]]:
    """Reads a page of a list."""

    def read(response: ApiResponse) -> Page[T]:
        page = read_data(kind)(response)
        return Page(entries(page), page.next_cursor)

    return read


def drop_values(fields: Mapping[str, object], *dropped: object) -> dict[str, object]:
    """The fields without those that have one of these values."""
    return {name: value for name, value in fields.items() if not any(value is one for one in dropped)}


def mask_key(response: ApiResponse, key: str | None) -> ApiResponse:
    """The response without the client's own key, which what answers may quote in its errors."""
    if key is None or (response.status < 300 and key.encode() not in response.body):
        return response
    from gradeline.model.secrets import Mask  # not needed for a response that is as it should be

    mask = Mask([key])
    headers = {name: mask.text(value) for name, value in response.headers.items()}
    return ApiResponse(response.status, headers, mask.body(response.body))


def require_success(response: ApiResponse) -> ApiResponse:
    """The response if it is a success; else raises its `ApiError`."""
    if 200 <= response.status < 300:
        return response
    try:
        error = msgspec.json.decode(response.body, type=Envelope[None]).error
    except msgspec.DecodeError:
        error = None
    if error is None:
        raise unexpected_response(response, "is there a proxy in between?")
    request_id = response.headers.get("x-request-id", "")
    raise ApiError(response.status, error.code, error.message, error.details, request_id)


def unexpected_response(response: ApiResponse, reason: str) -> ApiError:
    """The error for a response that is not in the format of the API."""
    shown = response.body[:_SHOWN_BYTES].decode(errors="replace")
    return ApiError(response.status, "UNEXPECTED_ANSWER", f"not a response of the service ({reason}): {shown!r}")


def retry_delay(request: ApiRequest, response: ApiResponse, attempt: int) -> float | None:
    """Seconds until the request may be sent again; None if the response is final.

    A rate-limited request was not processed, so it can be retried even if it is not idempotent.
    """
    retryable = response.status == _TOO_MANY_REQUESTS or (response.status == _UNAVAILABLE and request.repeatable)
    if not retryable or attempt >= MAX_RETRIES or not rewind_body(request):
        return None
    requested = _retry_after(response.headers.get("retry-after", ""))
    return backoff(attempt) if requested is None else min(requested, MAX_WAIT_S)


def backoff(attempt: int) -> float:
    """Exponential backoff with jitter, in seconds."""
    return min(_FIRST_WAIT_S * 2.0**attempt, MAX_WAIT_S) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def rewind_body(request: ApiRequest) -> bool:
    """Rewind the body for another attempt; False if that is impossible."""
    body = request.body
    if body is None or isinstance(body, bytes):
        return True
    if not body.seekable():
        return False
    body.seek(0)
    return True


class EvaluationEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an evaluation. Its type is ``snapshot``, ``progress``, ``result``, ``status`` or ``done``."""

    id: str | None
    type: str
    data: Any


class EventStreamReader:
    """Parses Server-Sent Events line by line, over several connections."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        """The id of the last complete event: a new connection continues after it."""
        self._id = last_id
        self._type = ""
        self._data: list[str] = []

    def reset(self) -> None:
        """Discard an incomplete event, for a new connection."""
        self._id, self._type, self._data = self.last_id, "", []

    def feed(self, raw: bytes) -> EvaluationEvent | None:
        """Parse a line; returns the event that it completes, if any."""
        text = raw.decode(errors="replace").rstrip("\r\n")
        if not text:
            return self._complete()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value or None
        return None

    def _complete(self) -> EvaluationEvent | None:
        # only now: an event that breaks off before its end has to be sent again
        self.last_id = self._id
        kind, lines = self._type or "message", self._data
        self._type, self._data = "", []
        return EvaluationEvent(id=self.last_id, type=kind, data=_json_value("\n".join(lines))) if lines else None


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parameter(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _retry_after(text: str) -> float | None:
    """Seconds from a ``Retry-After`` header, which has a number or a date; None if it is neither."""
    if text.strip().isascii() and text.strip().isdigit():
        return float(text) if len(text) < 10 else MAX_WAIT_S
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except (ValueError, TypeError, OverflowError):
        return None
