"""Provider wire format: posting JSON to a provider's server, and reading fields of JSON of unknown shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from gradeline.adapters.costs import Prices
from gradeline.adapters.errors import ErrorReport, ModelError
from gradeline.errors import ConfigError, DataError
from gradeline.model.rate_limit import RateLimiter
from gradeline.model.text import clean_data, clean_text, quote
from gradeline.model.trajectory import ToolCall
from gradeline.parsing.json_text import NotJsonError, parse_json

if TYPE_CHECKING:
    from gradeline.adapters.transport import TransportFactory, TransportPool
    from gradeline.model.resources import Resources
    from gradeline.transport import Backoff, HttpResponse

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_RETRIES = 2
_MAX_COUNT = 2**53
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


def parse(text: str) -> Any:
    """Parse JSON, or raise `ModelError`. Lone surrogates are allowed, because streams may split a pair."""
    try:
        return parse_json(text)
    except NotJsonError as error:
        if not _SURROGATE.search(text):
            raise ModelError("bad_response", f"not JSON: {error}") from None
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ModelError("bad_response", f"not JSON: {str(error)[:200]}") from None


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def mapping(data: object, *path: str | int) -> Mapping[str, Any]:
    """The mapping at a path; empty if there is none."""
    found = at(data, *path)
    return found if isinstance(found, Mapping) else {}


def items(data: object, *path: str | int) -> list[Any]:
    """The list at a path; empty if there is none."""
    found = at(data, *path)
    return found if isinstance(found, list) else []


def text_at(data: object, *path: str | int) -> str | None:
    """The string at a path, if any."""
    found = at(data, *path)
    return found if isinstance(found, str) else None


def at(data: object, *path: str | int) -> Any:
    """The value at a path, if any."""
    for step in path:
        if isinstance(step, str) and isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(step, int) and isinstance(data, list) and -len(data) <= step < len(data):
            data = data[step]
        else:
            return None
    return data


def count(data: object, *path: str | int) -> int | None:
    """The number of tokens at a path; None if it is not a valid count."""
    found = at(data, *path)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _MAX_COUNT else None


def number(data: object, *path: str | int) -> float | None:
    """The finite number at a path, if any."""
    found = at(data, *path)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        return None
    return float(found)


def charged(data: object, *path: str | int) -> float | None:
    """The cost that a server reported, if any."""
    cost = number(data, *path)
    return cost if cost is not None and cost >= 0 else None


def another_tier(tier: object) -> bool:
    """Whether a service tier is not charged at the usual prices."""
    return tier not in (None, "default", "standard", "auto")


def total(*counts: int | None) -> int | None:
    """The sum of the known counts; None if none is known."""
    known = [one for one in counts if one is not None]
    return sum(known) if known else None


def joined(pieces: Iterable[str]) -> str:
    """The joined pieces; a surrogate pair split between two of them is restored."""
    text = "".join(pieces)
    if _HALF.search(text):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def tool_call(name: object, arguments: object, ident: object) -> ToolCall:
    """A tool call; arguments that are not a string are encoded as JSON."""
    if not isinstance(name, str) or not name:
        raise ModelError("bad_response", "a tool call without a name")
    if arguments is None or arguments == "":
        arguments = "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return ToolCall(
        clean_text(name).text,
        clean_text(joined([arguments])).text,
        None if ident is None else clean_text(str(ident)).text,
    )


def texts_in(parts: Iterable[Any], key: str = "text") -> Iterator[str]:
    """The texts of content parts."""
    for part in parts:
        text = part if isinstance(part, str) else text_at(part, key)
        if text is not None:
            yield text


@dataclass(frozen=True)
class AdapterSettings:
    """Settings of any adapter.

    ``retries`` is the number of retries after 429, 5xx and connection errors. ``timeout_s`` is the total timeout unless
    a `RunConfig` has one. ``prices`` defaults to `Prices.load()`. ``transport_factory`` creates the transport of an
    event loop (default `ModelTransport`); a service passes one with its egress policy.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    retries: int = DEFAULT_RETRIES
    rate: RateLimiter | None = None
    prices: Prices | None = None
    backoff: Backoff | None = None
    transport_factory: TransportFactory | None = None


def model_transport(resources: Resources) -> TransportFactory | None:
    """The ``transport_factory`` of `AdapterSettings` for calls under an egress policy or with bound secrets."""
    if resources.policy is None and resources.secrets is None:
        return None
    from gradeline.adapters.transport import ModelTransport  # loads aiohttp

    policy = () if resources.policy is None else (resources.policy,)
    return lambda: ModelTransport(*policy, secrets=resources.secrets)


class Endpoint:
    """Posts to one server. Failures are `ModelError`; credentials appear in no message and no response."""

    def __init__(
        self, base_url: str, credentials: Mapping[str, str], api_key: str | None, settings: AdapterSettings
    ) -> None:
        self.base_url = base_url
        self.settings = settings
        self._headers = {"Content-Type": "application/json", **credentials, **settings.headers}
        self._secrets = (api_key,) if api_key else ()

    @cached_property
    def host(self) -> str | None:
        """The host of the base URL."""
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
        from gradeline.adapters.transport import ModelTransport, TransportPool  # loads aiohttp

        return TransportPool(self.settings.transport_factory or (lambda: ModelTransport(backoff=self.backoff)))

    async def post(
        self, path: str, body: bytes, *, deadline_s: float, retries: int, stream: bool = False
    ) -> HttpResponse:
        """The response, if its status is 2xx; else `ModelError`."""
        from gradeline.adapters.transport import model_error  # loads aiohttp
        from gradeline.transport import CallError, HttpRequest

        request = HttpRequest(
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

    def parse_body(self, answer: HttpResponse) -> dict[str, Any]:
        """The JSON object in a response."""
        try:
            text = answer.body.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ModelError("bad_response", "the body is not valid UTF-8") from None
        body = parse(text)
        if not isinstance(body, dict):
            raise ModelError("bad_response", f"not a JSON object: {quote(body)}")
        return body

    def with_context(self, error: ModelError, path: str, answer: HttpResponse) -> ModelError:
        """An error found in a response, with its URL and the start of its body.

        A body that only the close of the connection ended was most likely cut off.
        """
        from gradeline.transport import excerpt, redact, safe_url

        cut = error.type == "bad_response" and not answer.complete
        known = error.provider_message is not None
        report = ErrorReport(error.provider_message or "", error.code, error.param) if known else None
        start = excerpt(answer.body, self._secrets) if report is None else ""
        message = f"POST {safe_url(join_url(self.base_url, path))} answered {answer.status}: {error}"
        return ModelError(
            "truncated" if cut else error.type,
            redact(message + (f"; the body: {start}" if start else ""), self._secrets),
            http_status=error.http_status,
            report=report,
            attempts=answer.attempts,
            in_response=True,
        )

    async def close(self) -> None:
        """Close the connections of this event loop."""
        if "_pool" in vars(self):
            await self._pool.close()


def to_body(tree: Mapping[str, Any], subject: str) -> bytes:
    """A request's body as JSON; `ConfigError` for values that JSON does not have."""
    try:
        clean = clean_data(tree, "request")
    except DataError as error:
        raise ConfigError(error.problem, subject) from None
    return json.dumps(clean, ensure_ascii=False, separators=(",", ":")).encode()


def join_url(base: str, path: str) -> str:
    """A path below a base URL; the base URL's query stays at the end."""
    try:
        parts, below = urlsplit(base), urlsplit(path)
    except ValueError:
        return base  # the transport reports what is wrong with it
    query = "&".join(filter(None, (parts.query, below.query)))
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + below.path, query, ""))
