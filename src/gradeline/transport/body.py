"""Reading a body: decompressed within a cap that is counted while it streams."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

import aiohttp

from gradeline.model.masking import Mask
from gradeline.model.text import quote
from gradeline.transport.events import EventReader, MaskedReader
from gradeline.transport.faults import WIRE_ERRORS, AttemptError

ACCEPT_ENCODING = "gzip, deflate"

_PIECE = 65_536
_GZIP = zlib.MAX_WBITS | 16
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class Decoder(Protocol):
    """Undoes one content coding, in pieces of bounded size."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...

    @property
    def finished(self) -> bool:
        """Whether the coded stream came to its own end."""


class Identity:
    finished = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data


class Inflater:
    """gzip (several members too) or deflate, which servers send with and without a zlib header."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        # Made with the first byte: a body of none at all (204, HEAD) is no broken stream.
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
                raise AttemptError("bad_response", f"the body is not what its Content-Encoding says: {error}") from None
            data = self._engine.unused_data if self._engine.eof else self._engine.unconsumed_tail
            # With a full piece zlib may hold back more although it has taken all the input.
            more = bool(data) or (len(piece) == _PIECE and not self._engine.eof)
            if piece:
                yield piece

    def _window(self, first_byte: int) -> int:
        if self._gzip:
            return _GZIP
        return _ZLIB if first_byte & 0x0F == 8 else _RAW


def decoder_for(encoding: str) -> Decoder:
    """The decoder of a ``Content-Encoding``."""
    match encoding.strip().lower():
        case "" | "identity":
            return Identity()
        case "gzip" | "x-gzip":
            return Inflater(gzip=True)
        case "deflate":
            return Inflater(gzip=False)
    raise AttemptError("bad_response", f"the Content-Encoding {quote(encoding)} was not asked for")


async def read_body(
    response: aiohttp.ClientResponse, limit: int, reader: EventReader | None = None, mask: Mask | None = None
) -> tuple[bytes, bool]:
    """The whole decompressed body, or a `AttemptError`: never a part of it; and whether something was masked in it.

    What the mask hides is neither in the body nor in the reader's events.
    """
    encoding = response.headers.get("Content-Encoding", "")
    content = response.content
    if not encoding and reader is None and content.is_eof() and content.total_bytes <= limit:
        body = content.read_nowait()  # most bodies are short, and come together with their head
        return _masked(body, mask)
    decoder = decoder_for(encoding)
    read = bytearray()
    if mask is not None and reader is not None:
        reader = MaskedReader(reader, mask)
    received = 0
    async for chunk in content.iter_chunked(_PIECE):
        # Empty gzip members would otherwise stream for ever without a byte of output.
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
        raise AttemptError("truncated", "the compressed body broke off before its end")
    if reader is not None:
        reader.close()
    return _masked(bytes(read), mask)


def _masked(body: bytes, mask: Mask | None) -> tuple[bytes, bool]:
    if mask is None:
        return body, False
    masked = mask.body(body)
    return masked, masked is not body


async def read_start(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """As much of an error's body as can be had, up to about ``limit`` bytes."""
    start = bytearray()
    try:
        decoder = decoder_for(response.headers.get("Content-Encoding", ""))
        async for chunk in response.content.iter_chunked(_PIECE):
            for piece in decoder.feed(chunk):
                start += piece
                if len(start) >= limit:
                    return bytes(start[:limit])
    except (AttemptError, *WIRE_ERRORS):
        pass  # the status is the error; a broken body does not change it
    return bytes(start)
