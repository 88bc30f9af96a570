"""Forwarding a request and reading its response as it arrives, for a proxy."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from gradeline.transport.client import Transport
from gradeline.transport.connection_pool import Checkout
from gradeline.transport.errors import WIRE_ERRORS, raise_attempt_error
from gradeline.transport.request import Hop


class ForwardingTransport(Transport):
    """Opens responses whose bodies the caller reads. Neither retries nor follows redirects, and has no deadline."""

    async def open_response(self, url: str, headers: Mapping[str, str], body: bytes) -> aiohttp.ClientResponse:
        """The head of the response to a POST, with its body unread and not compressed; the caller closes it.

        Raises `AttemptError`.
        """
        hop = Hop("POST", URL(url), CIMultiDict({**headers, "Accept-Encoding": "identity"}), body)
        fresh = False
        while True:
            checkout = Checkout(hop.url.raw_host or "", fresh=fresh)
            try:
                return await self._send(hop, checkout)
            except WIRE_ERRORS as error:
                if not checkout.nothing_sent:
                    raise_attempt_error(error, stale=checkout.reused)
                error.__traceback__ = None
                fresh = True  # the server had closed the idle connection before it saw the request
