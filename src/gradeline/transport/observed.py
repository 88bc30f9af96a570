"""A transport that remembers what went over the wire, for a person who wants to look at one call."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from gradeline.model.bound_secret import SecretSet
from gradeline.transport.call import Answer, Request
from gradeline.transport.client import Transport
from gradeline.transport.egress import EgressPolicy, allow_all
from gradeline.transport.redirects import Hop, Redirect

_LATEST = 9


@dataclass(slots=True)
class Exchange:
    """One request and what came back: markers stand for bound secrets, other credentials are as they were.

    ``status`` is None where no answer came, ``answer`` where its body could not be read to its end. Of a long body
    ``answer`` is the beginning, and ``cut`` is True.
    """

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    status: int | None = None
    answer_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    answer: bytes | None = field(default=None, repr=False)
    cut: bool = False


class ObservedTransport(Transport):
    """For one call at a time. Redirects and polling make several exchanges of it: the first and the latest are kept."""

    def __init__(self, policy: EgressPolicy = allow_all, *, keep: int, secrets: SecretSet | None = None) -> None:
        """``keep`` is how many bytes of a body are kept."""
        super().__init__(policy, secrets=secrets)
        self._keep = keep
        self._first: Exchange | None = None
        self._latest: deque[Exchange] = deque(maxlen=_LATEST)
        self._seen = 0

    @property
    def exchanges(self) -> list[Exchange]:
        """What was kept, in order."""
        return [*([] if self._first is None else [self._first]), *self._latest]

    @property
    def omitted(self) -> int:
        """How many were between the first and the latest."""
        return self._seen - len(self.exchanges)

    async def _exchange(self, hop: Hop, request: Request, *, fresh: bool) -> Answer | Redirect:
        ours = {name: value for name, value in self._session.headers.items() if name not in hop.headers}
        # a redirect may have put into the URL what the agent was sent
        url = str(hop.url) if self._secrets is None else self._secrets.mask.text(str(hop.url))
        self._note(Exchange(hop.method, url, {**ours, **hop.headers}, hop.body))
        return await super()._exchange(hop, request, fresh=fresh)

    async def _read(self, response: aiohttp.ClientResponse, request: Request) -> Answer | Redirect:
        exchange = self.exchanges[-1]
        exchange.status, exchange.answer_headers = response.status, dict(self._headers(response, request))
        reply = await super()._read(response, request)
        if isinstance(reply, Answer):
            self._note_body(reply.body)
        return reply

    async def _error_start(self, response: aiohttp.ClientResponse, request: Request) -> bytes:
        start = await self._start(response, request, self._keep + 1)
        self._note_body(start)
        return start

    def _note(self, exchange: Exchange) -> None:
        self._seen += 1
        if self._first is None:
            self._first = exchange
        else:
            self._latest.append(exchange)

    def _note_body(self, body: bytes) -> None:
        exchange = self.exchanges[-1]
        exchange.answer, exchange.cut = body[: self._keep], len(body) > self._keep
