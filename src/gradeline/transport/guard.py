"""Holding aiohttp's connector to an egress policy."""

from __future__ import annotations

import socket
from contextlib import suppress

from aiohappyeyeballs import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from gradeline.transport.egress import EgressPolicy
from gradeline.transport.faults import EgressRefusedError
from gradeline.transport.pool import SocketTable, current_checkout


class Guard:
    """Makes sockets only for addresses that the policy lets through.

    This is the one place every address passes, literals too; `GuardedResolver` comes before it
    because a host name may point to several addresses and one bad one condemns the name.
    """

    def __init__(self, policy: EgressPolicy) -> None:
        self._policy = policy
        self.sockets = SocketTable()

    def check(self, host: str, address: str, port: int) -> None:
        reason = self._policy.check(host, address, port)
        if reason is not None:
            raise EgressRefusedError(reason)

    def open_socket(self, info: AddrInfoType) -> socket.socket:
        """aiohttp's ``socket_factory``."""
        family, kind, protocol, _, place = info
        address, port = str(place[0]), int(place[1])
        self.check(current_checkout.get().host, address, port)
        return self.sockets.open(family, kind, protocol)

    def hang_up(self) -> None:
        """Ends what is still open: asyncio keeps a closed connection while its peer does not read what was sent."""
        for made in self.sockets:
            if made.fileno() != -1:
                with suppress(OSError):
                    made.shutdown(socket.SHUT_RDWR)


class GuardedResolver(AbstractResolver):
    """A resolver whose every answer must be allowed."""

    def __init__(self, inner: AbstractResolver, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for entry in found:
            self._guard.check(host, entry["host"], port)
        return found

    async def close(self) -> None:
        await self._inner.close()
