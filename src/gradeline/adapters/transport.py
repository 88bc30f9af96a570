"""The transport of model adapters. Importing this module loads aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize, ref

from gradeline.adapters.errors import QUOTA, ModelError, is_quota_exhausted, parse_error_text
from gradeline.transport import CallError, HttpRequest, HttpResponse, Transport
from gradeline.transport.errors import AttemptError
from gradeline.transport.request import Redirect

if TYPE_CHECKING:
    import aiohttp  # gradeline.transport loads it, and defers what that reads

TransportFactory = Callable[[], Transport]


class ModelTransport(Transport):
    """A transport that does not retry a 429 which reports an exhausted account."""

    async def _read(self, response: aiohttp.ClientResponse, request: HttpRequest) -> HttpResponse | Redirect:
        try:
            return await super()._read(response, request)
        except AttemptError as failure:
            if failure.retry and is_quota_exhausted(parse_error_text(failure.message), failure.status):
                failure.retry = False
            raise


class TransportPool:
    """One open transport per event loop.

    An async generator keeps each transport open, because an event loop closes its async generators when it ends. So
    connections are reused between calls, and callers need not open or close anything. They are also closed when the
    pool is garbage-collected.
    """

    def __init__(self, factory: TransportFactory = ModelTransport) -> None:
        self._factory = factory
        self._open: dict[asyncio.AbstractEventLoop, _OpenTransport] = {}

    async def get(self) -> Transport:
        loop = asyncio.get_running_loop()
        entry = self._open.get(loop)
        if entry is None:
            transport = self._factory()
            holder = _keep_open(transport, ref(self), loop)
            await anext(holder)
            # the finalizer refers to the generator: collected together with the pool, it would leave connections open
            finalizer = finalize(self, _close_soon, holder, loop)
            finalizer.atexit = False
            entry = self._open[loop] = _OpenTransport(transport, holder, finalizer)
        return entry.transport

    async def close(self) -> None:
        """Close the connections of this event loop."""
        entry = self._open.get(asyncio.get_running_loop())
        if entry is not None:
            await entry.holder.aclose()

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        entry = self._open.pop(loop, None)
        if entry is not None:
            entry.finalizer.detach()


class _OpenTransport(NamedTuple):
    transport: Transport
    holder: AsyncGenerator[None, None]
    finalizer: finalize[Any, Any]


async def _keep_open(
    transport: Transport, pool: ref[TransportPool], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[None, None]:
    try:
        async with transport:
            yield
    finally:
        owner = pool()
        if owner is not None:
            owner._forget(loop)


_closing: set[asyncio.Task[None]] = set()


def _close_soon(holder: AsyncGenerator[None, None], loop: asyncio.AbstractEventLoop) -> None:
    async def close() -> None:
        await holder.aclose()

    def start() -> None:
        task = loop.create_task(close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    with suppress(RuntimeError):  # the loop is closed, and has closed its generators
        loop.call_soon_threadsafe(start)


def model_error(error: CallError) -> ModelError:
    """The `ModelError` of a failed call, with the provider's error report."""
    message = str(error)
    report = parse_error_text(message.partition(f"answered {error.http_status}: ")[2]) if error.http_status else None
    return ModelError(
        QUOTA if report is not None and is_quota_exhausted(report, error.http_status) else error.type,
        message,
        http_status=error.http_status,
        report=report,
        attempts=error.attempts,
    )
