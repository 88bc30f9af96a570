"""Reading a response body: decompression, the size limit, server-sent events (WHATWG rules) and NDJSON."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import aiohttp

from gradeline.model.secrets import Mask
from gradeline.model.text import quote
from gradeline.transport.errors import WIRE_ERRORS, AttemptError

_LINE_END = re.compile(r"\r\n|\n|\r")
_MAX_EVENTS = 200_000
"""A body of tiny events takes many times its size in memory, so the body limit is not enough."""


class Event(NamedTuple):
    """One event; a line of NDJSON is an event with data only."""

    data: str
    event: str = "message"
    id: str = ""


class EventReader(Protocol):
    """Collects the events of a body that is fed in pieces."""

    events: list[Event]

    def feed(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Signal the end of the body."""


class MaskedReader:
    """Feeds another reader with masked data, including values that are split over pieces."""

    def __init__(self, reader: EventReader, mask: Mask) -> None:
        self.events = reader.events
        self._reader = reader
        self._stream = mask.stream()

    def feed(self, data: bytes) -> None:
        self._reader.feed(self._stream.feed(data))

    def close(self) -> None:
        self._reader.feed(self._stream.close())
        self._reader.close()


class _Lines:
    """Splits UTF-8 data into lines, in linear time however the data is cut into pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._open: list[str] = []
        self._after_cr = False

    def feed(self, data: bytes, *, final: bool = False) -> list[str]:
        """The lines that are now complete."""
        text = self._decoder.decode(data, final)
        if not text:
            return []
        if self._after_cr and text.startswith("\n"):
            text = text[1:]
        self._after_cr = text.endswith("\r") if text else False
        first, *rest = _LINE_END.split(text)
        self._open.append(first)
        if not rest:
            return []
        lines = ["".join(self._open), *rest[:-1]]
        self._open = [rest[-1]]
        return lines

    def rest(self) -> list[str]:
        """The remaining lines at the end of the body: complete ones, then the open one."""
        return [*self.feed(b"", final=True), "".join(self._open)]


class SseReader:
    """Reads server-sent events; an event without its closing blank line is dropped, as the specification requires."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lines = _Lines()
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._take(line)

    def close(self) -> None:
        # the open line cannot complete an event
        for line in self._lines.rest()[:-1]:
            self._take(line)

    def _take(self, line: str) -> None:
        if not line:
            self._dispatch()
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value

    def _dispatch(self) -> None:
        if self._data:
            _add(self.events, Event("\n".join(self._data), self._event or "message", self._id))
        self._data = []
        self._event = ""


class NdjsonReader:
    """Reads NDJSON; blank lines are skipped, and the last line needs no line break."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lines = _Lines()

    def feed(self, data: bytes) -> None:
        self._take(self._lines.feed(data))

    def close(self) -> None:
        self._take(self._lines.rest())

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            if line.strip():
                _add(self.events, Event(line))


def _add(events: list[Event], event: Event) -> None:
    if len(events) >= _MAX_EVENTS:
        raise AttemptError("too_large", f"the stream has more than {_MAX_EVENTS:,} events")
    events.append(event)


ACCEPT_ENCODING = "gzip, deflate"

_PIECE = 65_536
_GZIP = zlib.MAX_WBITS | 16
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class Decoder(Protocol):
    """Decodes one content coding, in pieces of bounded size."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...

    @property
    def finished(self) -> bool:
        """Whether the encoded stream is complete."""


class Identity:
    finished = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data


class Inflater:
    """gzip, including several members, or deflate, which servers send with and without a zlib header."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        # created with the first byte, because an empty body (204, HEAD) is not a broken stream
        self._engine: zlib._Decompress | None = None

    @property
    def finished(self) -> bool:
        return self._engine is None or self._engine.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        more = bool(data)
        while more:
            if self._engine is None or (self._engine.eof and self._gzip):
                self._engine = zlib.decompressobj(self._window(data[0]))
            elif self._engine.eof:
                return
            try:
                piece = self._engine.decompress(data, _PIECE)
            except zlib.error as error:
                raise AttemptError("bad_response", f"the body does not match its Content-Encoding: {error}") from None
            data = self._engine.unused_data if self._engine.eof else self._engine.unconsumed_tail
            # after a full piece zlib may hold more output although it consumed all input
            more = bool(data) or (len(piece) == _PIECE and not self._engine.eof)
            if piece:
                yield piece

    def _window(self, first_byte: int) -> int:
        if self._gzip:
            return _GZIP
        return _ZLIB if first_byte & 0x0F == 8 else _RAW


def decoder_for(encoding: str) -> Decoder:
    """The decoder for a ``Content-Encoding``."""
    match encoding.strip().lower():
        case "" | "identity":
            return Identity()
        case "gzip" | "x-gzip":
            return Inflater(gzip=True)
        case "deflate":
            return Inflater(gzip=False)
    raise AttemptError("bad_response", f"unsupported Content-Encoding {quote(encoding)}")


async def read_body(
    response: aiohttp.ClientResponse, limit: int, reader: EventReader | None = None, mask: Mask | None = None
) -> tuple[bytes, bool]:
    """The whole decompressed body, and whether something was masked in it; `AttemptError` if it is incomplete.

    Masked values are neither in the body nor in the reader's events.
    """
    encoding = response.headers.get("Content-Encoding", "")
    content = response.content
    if not encoding and reader is None and content.is_eof() and content.total_bytes <= limit:
        body = content.read_nowait()  # most bodies are short and arrive together with their head
        return _masked(body, mask)
    decoder = decoder_for(encoding)
    read = bytearray()
    if mask is not None and reader is not None:
        reader = MaskedReader(reader, mask)
    received = 0
    async for chunk in content.iter_chunked(_PIECE):
        # counted too, because empty gzip members could stream forever without any output
        received += len(chunk)
        for piece in decoder.feed(chunk):
            read += piece
            if len(read) > limit:
                break
            if reader is not None:
                reader.feed(piece)
        if max(received, len(read)) > limit:
            raise AttemptError("too_large", f"the body is larger than {limit:,} bytes")
    if not decoder.finished:
        raise AttemptError("truncated", "the compressed body ended early")
    if reader is not None:
        reader.close()
    return _masked(bytes(read), mask)


def _masked(body: bytes, mask: Mask | None) -> tuple[bytes, bool]:
    if mask is None:
        return body, False
    masked = mask.body(body)
    return masked, masked is not body


async def read_start(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The start of an error response's body, up to about ``limit`` bytes."""
    start = bytearray()
    try:
        decoder = decoder_for(response.headers.get("Content-Encoding", ""))
        async for chunk in response.content.iter_chunked(_PIECE):
            for piece in decoder.feed(chunk):
                start += piece
                if len(start) >= limit:
                    return bytes(start[:limit])
    except (AttemptError, *WIRE_ERRORS):
        pass  # the status already is the error
    return bytes(start)
