"""A transport that records the exchanges of one call, for inspecting it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from gradeline.model.secrets import SecretSet
from gradeline.transport.client import Transport
from gradeline.transport.egress import EgressPolicy, allow_all
from gradeline.transport.request import Hop, HttpRequest, HttpResponse, Redirect

_MAX_LATEST = 9


@dataclass(slots=True)
class RecordedExchange:
    """One request and its response. Bound secrets appear as markers, other credentials as they were sent.

    ``status`` is None without a response; ``answer``, its body, is None if it could not be read to the end. ``cut``:
    ``answer`` is only the start of a long body.
    """

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    status: int | None = None
    answer_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    answer: bytes | None = field(default=None, repr=False)
    cut: bool = False


class RecordingTransport(Transport):
    """Records one call at a time. With redirects and polling, the first and the latest exchanges are kept."""

    def __init__(self, policy: EgressPolicy = allow_all, *, keep: int, secrets: SecretSet | None = None) -> None:
        """``keep`` is the number of bytes kept of a body."""
        super().__init__(policy, secrets=secrets)
        self._keep = keep
        self._first: RecordedExchange | None = None
        self._latest: deque[RecordedExchange] = deque(maxlen=_MAX_LATEST)
        self._seen = 0

    @property
    def exchanges(self) -> list[RecordedExchange]:
        """The recorded exchanges, in order."""
        return [*([] if self._first is None else [self._first]), *self._latest]

    @property
    def omitted(self) -> int:
        """The number of exchanges dropped between the first and the latest."""
        return self._seen - len(self.exchanges)

    async def _exchange(self, hop: Hop, request: HttpRequest, *, fresh: bool) -> HttpResponse | Redirect:
        defaults = {name: value for name, value in self._session.headers.items() if name not in hop.headers}
        # a redirect may have put a secret of the request into the URL
        url = str(hop.url) if self._secrets is None else self._secrets.mask.text(str(hop.url))
        self._record(RecordedExchange(hop.method, url, {**defaults, **hop.headers}, hop.body))
        return await super()._exchange(hop, request, fresh=fresh)

    async def _read(self, response: aiohttp.ClientResponse, request: HttpRequest) -> HttpResponse | Redirect:
        exchange = self.exchanges[-1]
        exchange.status, exchange.answer_headers = response.status, dict(self._headers(response, request))
        reply = await super()._read(response, request)
        if isinstance(reply, HttpResponse):
            self._record_body(reply.body)
        return reply

    async def _error_start(self, response: aiohttp.ClientResponse, request: HttpRequest) -> bytes:
        start = await self._start(response, request, self._keep + 1)
        self._record_body(start)
        return start

    def _record(self, exchange: RecordedExchange) -> None:
        self._seen += 1
        if self._first is None:
            self._first = exchange
        else:
            self._latest.append(exchange)

    def _record_body(self, body: bytes) -> None:
        exchange = self.exchanges[-1]
        exchange.answer, exchange.cut = body[: self._keep], len(body) > self._keep
