"""How adapters reach the network. Loading this module loads aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import finalize, ref

import aiohttp

from gradeline.adapters.failures import QUOTA, ModelError, read_told, used_up
from gradeline.transport import Answer, CallError, Request, Transport
from gradeline.transport.faults import AttemptError
from gradeline.transport.redirects import Redirect

OpenTransport = Callable[[], Transport]


class ModelTransport(Transport):
    """A transport that does not repeat a call that an account's used-up quota refused, although it is a 429."""

    async def _read(self, response: aiohttp.ClientResponse, request: Request) -> Answer | Redirect:
        try:
            return await super()._read(response, request)
        except AttemptError as failure:
            if failure.retry and used_up(read_told(failure.message), failure.status):
                failure.retry = False
            raise


class TransportPool:
    """An open transport for each event loop that asks for one.

    It is held by an asynchronous generator, because those are what an event loop closes when it ends: so connections
    are kept from call to call without a caller having to open and close anything. A pool that is forgotten has them
    closed too.
    """

    def __init__(self, make: OpenTransport = ModelTransport) -> None:
        self._make = make
        self._open: dict[asyncio.AbstractEventLoop, _Held] = {}

    async def get(self) -> Transport:
        loop = asyncio.get_running_loop()
        held = self._open.get(loop)
        if held is None:
            transport = self._make()
            holder = _hold(transport, ref(self), loop)
            await anext(holder)
            # Held from outside: were it garbage together with the pool, its connections would be found open.
            guard = finalize(self, _let_go, holder, loop)
            guard.atexit = False
            held = self._open[loop] = _Held(transport, holder, guard)
        return held.transport

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        held = self._open.get(asyncio.get_running_loop())
        if held is not None:
            await held.holder.aclose()

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        held = self._open.pop(loop, None)
        if held is not None:
            held.guard.detach()


class _Held(NamedTuple):
    transport: Transport
    holder: AsyncGenerator[None, None]
    guard: finalize[Any, Any]


async def _hold(
    transport: Transport, pool: ref[TransportPool], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[None, None]:
    try:
        async with transport:
            yield
    finally:
        owner = pool()
        if owner is not None:
            owner._forget(loop)


_ending: set[asyncio.Task[None]] = set()


def _let_go(holder: AsyncGenerator[None, None], loop: asyncio.AbstractEventLoop) -> None:
    async def end() -> None:
        await holder.aclose()

    def begin() -> None:
        task = loop.create_task(end())
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    with suppress(RuntimeError):  # the loop is closed, and has closed its generators
        loop.call_soon_threadsafe(begin)


def model_error(error: CallError) -> ModelError:
    """What a failed call was, with what the provider said of it."""
    message = str(error)
    told = read_told(message.partition(f"answered {error.http_status}: ")[2]) if error.http_status else None
    return ModelError(
        QUOTA if told is not None and used_up(told, error.http_status) else error.type,
        message,
        http_status=error.http_status,
        told=told,
        attempts=error.attempts,
    )
