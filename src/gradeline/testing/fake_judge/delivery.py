"""An answer on its way: whole, or with a fault of the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from aiohttp import web

from gradeline.testing.fake_judge.exchange import Answer, Asked, Wire

_KEEP_ALIVE = b": keep-alive\n\n"
_ODD_SIZES = (1, 2, 3, 5, 7, 11)


async def deliver(
    request: web.Request, wire: Wire, asked: Asked, answer: Answer, fault: str | None, delay_s: float
) -> web.StreamResponse:
    """Sends the answer; the fault, if any, is one of the connection or of the delivery."""
    if fault == "hang":
        await _until_gone()
    if fault == "slow-start":
        await asyncio.sleep(delay_s)
    portions, length = _portions(wire, asked, answer, fault)
    response = web.StreamResponse()
    response.content_type = "text/event-stream" if asked.stream else "application/json"
    response.content_length = length
    await response.prepare(request)
    async for portion in _paced(portions, delay_s if fault == "slow-stream" else 0.0):
        await response.write(portion)
    if fault == "stall":
        await _until_gone()
    if fault == "cut" and request.transport is not None:
        request.transport.close()
        return response
    await response.write_eof()
    return response


def _portions(wire: Wire, asked: Asked, answer: Answer, fault: str | None) -> tuple[Sequence[bytes], int | None]:
    """What is sent, piece by piece, and the length that is announced."""
    if asked.stream:
        streamed = wire.stream(asked, answer)
        events = [*streamed.events, *streamed.end]
        length = None
        if fault == "no-done":
            events = list(streamed.events)
        elif fault == "error-in-stream":
            events = [*events[: len(events) // 2], wire.stream_failure()]
        elif fault == "keep-alive":
            events = [part for event in events for part in (_KEEP_ALIVE, event)]
    else:
        body = wire.whole(asked, answer)
        if fault == "keep-alive":  # gateways keep a plain answer's line open with blanks
            body = b"\n\n" + body
        length = len(body)
        events = [body[at : at + 64] for at in range(0, length, 64)] if fault == "slow-stream" else [body]
    if fault in ("stall", "cut"):
        everything = b"".join(events)
        return [everything[: len(everything) // 2]], length
    if fault == "split":
        return list(_split(b"".join(events))), length
    return events, length


def _split(data: bytes) -> Iterable[bytes]:
    at = number = 0
    while at < len(data):
        size = _ODD_SIZES[number % len(_ODD_SIZES)]
        yield data[at : at + size]
        at, number = at + size, number + 1


async def _paced(portions: Iterable[bytes], pause_s: float) -> AsyncIterator[bytes]:
    for portion in portions:
        if pause_s:
            await asyncio.sleep(pause_s)
        yield portion


async def _until_gone() -> None:
    """For ever; the server ends the handlers of clients that have left."""
    await asyncio.Event().wait()
