"""A provider's server: where it is, what lets the caller in, and how a body is posted there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from gradeline.adapters.failures import ModelError, Told
from gradeline.adapters.pace import RateLimit
from gradeline.adapters.prices import Prices
from gradeline.adapters.wire import parse
from gradeline.errors import ConfigError, DataError
from gradeline.model.text import clean_data, quote

if TYPE_CHECKING:
    from gradeline.adapters.sending import OpenTransport, TransportPool
    from gradeline.model.resources import Resources
    from gradeline.transport import Answer, Backoff

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_RETRIES = 2


@dataclass(frozen=True)
class Settings:
    """What every adapter may be given besides its model.

    ``headers`` are sent as they are; ``retries`` is how often 429, 5xx and connection faults are tried again;
    ``timeout_s`` holds where a `RunConfig` names none, and is total. ``prices`` is by default `Prices.load()`.
    ``open_transport`` makes the transport of an event loop (`ModelTransport` is one that knows a used-up quota); a
    service gives one with its egress policy. ``backoff`` says how long to wait before a call is repeated.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    retries: int = DEFAULT_RETRIES
    rate: RateLimit | None = None
    prices: Prices | None = None
    backoff: Backoff | None = None
    open_transport: OpenTransport | None = None


def model_transport(resources: Resources) -> OpenTransport | None:
    """The ``open_transport`` of `Settings` for calls that must keep to a policy or send bound secrets."""
    if resources.policy is None and resources.secrets is None:
        return None
    from gradeline.adapters.sending import ModelTransport  # loads aiohttp

    policy = () if resources.policy is None else (resources.policy,)
    return lambda: ModelTransport(*policy, secrets=resources.secrets)


class Endpoint:
    """Posts to one server. Failures are `ModelError`; what lets the caller in is in no message and no answer."""

    def __init__(self, base_url: str, credentials: Mapping[str, str], api_key: str | None, settings: Settings) -> None:
        self.base_url = base_url
        self.settings = settings
        self._headers = {"Content-Type": "application/json", **credentials, **settings.headers}
        self._secrets = (api_key,) if api_key else ()

    @cached_property
    def host(self) -> str | None:
        """The host that is called."""
        try:
            return urlsplit(self.base_url).hostname
        except ValueError:
            return None

    @cached_property
    def backoff(self) -> Backoff:
        from gradeline.transport import Backoff  # loads aiohttp

        return self.settings.backoff or Backoff()

    @cached_property
    def _pool(self) -> TransportPool:
        from gradeline.adapters.sending import ModelTransport, TransportPool  # loads aiohttp

        return TransportPool(self.settings.open_transport or (lambda: ModelTransport(backoff=self.backoff)))

    async def post(self, path: str, body: bytes, *, deadline_s: float, retries: int, stream: bool = False) -> Answer:
        """The answer, if its status is 2xx."""
        from gradeline.adapters.sending import model_error  # loads aiohttp
        from gradeline.transport import CallError, Request

        request = Request(
            "POST",
            join_url(self.base_url, path),
            self._headers,
            body,
            deadline_s=deadline_s,
            retries=retries,
            stream="sse" if stream else "none",
            secrets=self._secrets,
        )
        try:
            return await (await self._pool.get()).request(request)
        except CallError as error:
            raise model_error(error) from None

    def parsed(self, answer: Answer) -> dict[str, Any]:
        """The JSON object that an answer is."""
        try:
            text = answer.body.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ModelError("bad_response", "the body is not valid UTF-8") from None
        body = parse(text)
        if not isinstance(body, dict):
            raise ModelError("bad_response", f"no JSON object: {quote(body)}")
        return body

    def placed(self, error: ModelError, path: str, answer: Answer) -> ModelError:
        """An error found in an answer, with where that came from and what it began with.

        A body that only the close of the connection ended has most likely been cut off.
        """
        from gradeline.transport import excerpt, redact, safe_url

        cut = error.type == "bad_response" and not answer.complete
        told = None if error.said is None else Told(error.said, error.code, error.param)
        start = excerpt(answer.body, self._secrets) if told is None else ""
        message = f"POST {safe_url(join_url(self.base_url, path))} answered {answer.status}: {error}"
        return ModelError(
            "truncated" if cut else error.type,
            redact(message + (f"; the body: {start}" if start else ""), self._secrets),
            http_status=error.http_status,
            told=told,
            attempts=answer.attempts,
            answered=True,
        )

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        if "_pool" in vars(self):
            await self._pool.close()


def to_body(tree: Mapping[str, Any], subject: str) -> bytes:
    """A request's body as JSON, or `ConfigError` for what JSON cannot say."""
    try:
        clean = clean_data(tree, "request")
    except DataError as error:
        raise ConfigError(error.problem, subject) from None
    return json.dumps(clean, ensure_ascii=False, separators=(",", ":")).encode()


def join_url(base: str, path: str) -> str:
    """A path put below a base URL, whose query stays at the end."""
    try:
        parts, below = urlsplit(base), urlsplit(path)
    except ValueError:
        return base  # the transport refuses it with the reason
    query = "&".join(filter(None, (parts.query, below.query)))
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + below.path, query, ""))
