"""Open event streams: how many one caller may have, and their end when the caller's key or session ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gradeline.errors import StoreError
from gradeline.service.auth import ApiKeys, Caller, Sessions
from gradeline.service.limits import RequestLimits, too_many

CHECK_S = 1.0
"""How often the keys and sessions of open streams are looked up, all of them in one query each."""
_LAST_CHUNK_S = 1.0
_RETRY_S = 5
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStreams:
    """The open streams of one event loop. A stream counts for its key and for its address."""

    def __init__(self, keys: ApiKeys, sessions: Sessions, limits: RequestLimits) -> None:
        self._keys = keys
        self._sessions = sessions
        self._limits = limits
        self._by_key: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._open: set[EventStream] = set()
        self._checking: asyncio.Task[None] | None = None

    def open(self, content: AsyncIterator[bytes], caller: Caller, address: str) -> EventStream:
        """The answer that streams the content; `ApiError` 429 where the caller has too many streams already."""
        key_id = caller.key_id
        for count, most, whose in (
            (self._by_key[key_id or ""], self._limits.streams_per_key, "of this key"),
            (self._by_address[address], self._limits.streams_per_address, "from your address"),
            (len(self._open), self._limits.streams, "of all callers"),
        ):
            if count >= most and (key_id is not None or whose != "of this key"):
                raise too_many(f"{most} event streams {whose} are open, which is the maximum", _RETRY_S)
        stream = EventStream(content, key_id, caller.session, address, self)
        self._open.add(stream)
        self._by_key[key_id or ""] += 1
        self._by_address[address] += 1
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())
        return stream

    def left(self, stream: EventStream) -> None:
        """The stream has ended; a second call changes nothing."""
        if stream not in self._open:
            return
        self._open.discard(stream)
        for counter, name in ((self._by_key, stream.key_id or ""), (self._by_address, stream.address)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]

    async def _check(self) -> None:
        """End the streams of keys and sessions that are over, as long as there are streams."""
        while self._open:
            await asyncio.sleep(CHECK_S)
            with suppress(StoreError):  # a store that cannot be read gives no events either
                keys = await self._ended({stream.key_id for stream in self._open}, self._keys.good_ids)
                sessions = await self._ended({stream.session for stream in self._open}, self._sessions.good_ids)
                for stream in list(self._open):
                    if stream.key_id in keys or stream.session in sessions:
                        stream.end()

    async def _ended(
        self, ids: set[str | None], good_ids: Callable[[Collection[str]], set[str]]
    ) -> Collection[str | None]:
        """Those that are not good; None is not one of them."""
        known = {id_ for id_ in ids if id_ is not None}
        return known - await run_in_threadpool(good_ids, known) if known else ()


class EventStream(StreamingResponse):
    """An answer that ends when its content does, or when it is closed."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        key_id: str | None,
        session: str | None,
        address: str,
        streams: EventStreams,
    ) -> None:
        super().__init__(content, headers=_HEADERS, media_type="text/event-stream")
        self.key_id = key_id
        self.session = session
        self.address = address
        self._streams = streams
        self._deadline = asyncio.timeout(None)
        self._ended = False

    def end(self) -> None:
        """Send nothing more, and close the stream."""
        self._ended = True
        with suppress(RuntimeError):  # it has not begun, or is over
            self._deadline.reschedule(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.left(self)

    async def stream_response(self, send: Send) -> None:
        try:
            async with self._deadline:
                if self._ended:
                    self.end()
                await super().stream_response(send)
        except TimeoutError:
            if not self._deadline.expired():
                raise
            # a reader that takes nothing more must not keep the stream open
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_CHUNK_S):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
