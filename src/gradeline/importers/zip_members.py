"""Reading members of a hostile ZIP archive: nothing is extracted, and every size is checked before and while unpacking.

The directory is at the end of an archive. One that was cut off has none: then the local header of each member is read,
up to the first member that is not whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path, PurePosixPath
from struct import Struct, error
from types import ModuleType
from typing import BinaryIO, NamedTuple, Protocol

from gradeline.errors import ConfigError, Problem
from gradeline.model import clean_text, quote

MAX_MEMBERS = 500_000
MAX_MEMBER_BYTES = 256 * 1024**2
"""Maximum unpacked size of a member that is read."""
MAX_RATIO = 250
"""Maximum size of all members, as a multiple of the archive's size, from `_RATIO_FROM` on."""
_RATIO_FROM = 256 * 1024**2
_CHUNK = 1 << 16
_STORED, _DEFLATE, _ZSTD = 0, 8, 93
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x1, 0x8, 0x800
_UNKNOWN_32 = 0xFFFFFFFF
_MAX_WINDOW_LOG = 27

_END = Struct("<4s4H2IH")
_END_MARK = b"PK\x05\x06"
_END_64 = Struct("<4sQ2H2I4Q")
_END_64_MARK = b"PK\x06\x06"
_LOCATOR = Struct("<4sIQI")
_LOCATOR_MARK = b"PK\x06\x07"
_ENTRY = Struct("<4s6H3I5H2I")
_ENTRY_MARK = b"PK\x01\x02"
_LOCAL = Struct("<4s5H3I2H")
LOCAL_MARK = b"PK\x03\x04"
"""The first bytes of an archive."""
_DESCRIPTOR_MARK = b"PK\x07\x08"
_MAX_COMMENT = 0xFFFF


class MemberError(Exception):
    """A member cannot be read. The message has the reason and the remedy."""


class ZipMember(NamedTuple):
    """A member as the archive describes it."""

    name: str
    start: int
    """Position of its local header."""
    packed: int
    size: int
    checksum: int
    method: int
    flags: int


class ZipMembers:
    """The members of an archive by name; of several with the same name the last one counts, as for other readers."""

    def __init__(self, path: Path) -> None:
        """`ConfigError` if it cannot be opened or exceeds a limit."""
        self.path = path
        try:
            self._file = path.open("rb")
            self._size = path.stat().st_size
        except OSError as problem:
            raise ConfigError(Problem(str(path), f"cannot be read: {problem.strerror}")) from None
        self.cut_off: str | None = None
        """What is missing at the end; None if the archive is complete."""
        try:
            self.members = self._indexed()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ZipMembers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def _indexed(self) -> Mapping[str, ZipMember]:
        found = self._directory()
        if found is None:
            found = self._local_headers()
        self._check(found)
        return {member.name: member for member in found}

    def read(self, name: str, limit: int = MAX_MEMBER_BYTES) -> bytes:
        """A member's content; `MemberError` if it is damaged, larger than ``limit``, or packed in an unknown way."""
        member = self.members[name]
        if member.size > limit:
            raise MemberError(f"has {member.size / 1024**2:,.0f} MiB, and at most {limit / 1024**2:,.0f} MiB are read")
        content = bytearray()
        for piece in self._unpacked(member):
            content += piece
            if len(content) > member.size:
                raise MemberError(f"is larger than the {member.size:,} bytes that the archive states")
        if len(content) < member.size or zlib.crc32(content) != member.checksum:
            raise MemberError("is damaged: size or checksum differ; copy the log again")
        return bytes(content)

    def _unpacked(self, member: ZipMember) -> Iterator[bytes]:
        unpacker = _unpacker(member)
        for chunk in self._packed(member):
            yield from unpacker.unpack(chunk)
        if not unpacker.finished:
            raise MemberError("ends too early; copy the log again")

    def _packed(self, member: ZipMember) -> Iterator[bytes]:
        position = self._content_start(member)
        left = member.packed
        while left:
            self._file.seek(position)
            chunk = self._file.read(min(_CHUNK, left))
            if not chunk:
                raise MemberError("ends too early; copy the log again")
            position += len(chunk)
            left -= len(chunk)
            yield chunk

    def _content_start(self, member: ZipMember) -> int:
        self._file.seek(member.start)
        raw = self._file.read(_LOCAL.size)
        if len(raw) < _LOCAL.size or not raw.startswith(LOCAL_MARK):
            raise MemberError("is not where the archive's directory says; copy the log again")
        *_, name_length, extra_length = _LOCAL.unpack(raw)
        return int(member.start + _LOCAL.size + name_length + extra_length)

    def _directory(self) -> list[ZipMember] | None:
        """The members in the directory; None if there is none."""
        place = self._directory_place()
        if place is None:
            return None
        start, count = place
        self._require_count(count)
        self._file.seek(start)
        try:
            return [_read_entry(self._file) for _ in range(count)]
        except (error, _NoDirectoryError):
            return None

    def _directory_place(self) -> tuple[int, int] | None:
        """Position and number of entries of the directory."""
        tail_start = max(0, self._size - _END.size - _MAX_COMMENT)
        self._file.seek(tail_start)
        tail = self._file.read()
        at = tail.rfind(_END_MARK)
        if at < 0 or len(tail) - at < _END.size:
            return None
        _, _, _, _, count, size, start, _ = _END.unpack_from(tail, at)
        if count == 0xFFFF or _UNKNOWN_32 in (size, start):
            return self._large_directory_place(tail_start + at)
        return start, count

    def _large_directory_place(self, end: int) -> tuple[int, int] | None:
        with suppress(error, ValueError):
            self._file.seek(end - _LOCATOR.size)
            mark, _, place, _ = _LOCATOR.unpack(self._file.read(_LOCATOR.size))
            if mark == _LOCATOR_MARK and place < end:
                self._file.seek(place)
                found, _, _, _, _, _, _, count, _, start = _END_64.unpack(self._file.read(_END_64.size))
                if found == _END_64_MARK and start < end:
                    return start, count
        return None

    def _local_headers(self) -> list[ZipMember]:
        """The whole members of an archive without a directory, in order."""
        found: list[ZipMember] = []
        position = 0
        self.cut_off = "it was cut off: its directory is missing"
        while True:
            self._file.seek(position)
            raw = self._file.read(_LOCAL.size)
            if not raw.startswith(LOCAL_MARK) or len(raw) < _LOCAL.size:
                return found
            self._require_count(len(found) + 1)
            try:
                member, position = self._scanned(position, raw)
            except (MemberError, error, zlib.error):
                self.cut_off = f"it was cut off in its member {len(found) + 1:,}"
                return found
            found.append(member)

    def _scanned(self, start: int, raw: bytes) -> tuple[ZipMember, int]:
        """The member with this local header, and the position after it."""
        _, _, flags, method, _, _, checksum, packed, size, name_length, extra_length = _LOCAL.unpack(raw)
        name = _decoded(self._file.read(name_length), flags)
        extra = self._file.read(extra_length)
        content = start + _LOCAL.size + name_length + extra_length
        if content > self._size:
            raise MemberError("is cut off")
        if flags & _SIZES_FOLLOW and not packed:
            return self._measured(ZipMember(name, start, self._size - content, 0, 0, method, flags), content)
        size, packed, _ = _large_values(extra, size, packed, 0)
        if content + packed > self._size:
            raise MemberError("is cut off")
        return ZipMember(name, start, packed, size, checksum, method, flags), content + packed

    def _measured(self, member: ZipMember, content: int) -> tuple[ZipMember, int]:
        """A member that was written as a stream: its sizes are known only when it is unpacked."""
        if member.method == _STORED:
            raise MemberError("has no size")
        unpacker = _unpacker(member)
        size = checksum = 0
        end = content
        for chunk in self._packed(member):
            for piece in unpacker.unpack(chunk):
                size, checksum = size + len(piece), zlib.crc32(piece, checksum)
                self._check_ratio(size)
            end += len(chunk) - len(unpacker.unused)
            if unpacker.finished:
                break
        else:
            raise MemberError("is cut off")
        self._file.seek(end)
        marked = self._file.read(4) == _DESCRIPTOR_MARK
        # whether its sizes have 4 or 8 bytes shows in what follows
        for length in (16, 24) if marked else (12, 20):
            self._file.seek(end + length)
            if self._file.read(2) in (b"PK", b""):
                break
        return member._replace(packed=end - content, size=size, checksum=checksum), end + length

    def _check(self, members: list[ZipMember]) -> None:
        for member in members:
            if ".." in PurePosixPath(member.name.replace("\\", "/")).parts or member.name.startswith(("/", "\\")):
                what = f"its member {quote(member.name, 80)} leads out of the archive; no log has such names"
                raise ConfigError(Problem(str(self.path), what))
        self._check_ratio(sum(member.size for member in members))
        ordered = sorted(members, key=lambda member: member.start)
        for one, following in pairwise(ordered):
            if one.start + _LOCAL.size + one.packed > following.start:
                what = f"its members {quote(one.name, 80)} and {quote(following.name, 80)} overlap; no log has this"
                raise ConfigError(Problem(str(self.path), what))

    def _check_ratio(self, unpacked: int) -> None:
        if unpacked > _RATIO_FROM and unpacked > MAX_RATIO * self._size:
            what = (
                f"unpacks to {unpacked / 1024**2:,.0f} MiB, more than {MAX_RATIO} times its size, as no log does; if it"
                " is one, unpack it with `inspect log convert --to json` and import that"
            )
            raise ConfigError(Problem(str(self.path), what))

    def _require_count(self, count: int) -> None:
        if count > MAX_MEMBERS:
            what = f"has {count:,} members, and at most {MAX_MEMBERS:,} are read; import a log with fewer samples"
            raise ConfigError(Problem(str(self.path), what))


class _NoDirectoryError(Exception):
    """The directory is not where the end of the archive says."""


def _read_entry(file: BinaryIO) -> ZipMember:
    """The next entry of the directory."""
    raw = file.read(_ENTRY.size)
    if not raw.startswith(_ENTRY_MARK):
        raise _NoDirectoryError
    (_, _, _, flags, method, _, _, checksum, packed, size, names, extras, comments, _, _, _, start) = _ENTRY.unpack(raw)
    name = _decoded(file.read(names), flags)
    size, packed, start = _large_values(file.read(extras), size, packed, start)
    file.seek(comments, 1)
    return ZipMember(name, start, packed, size, checksum, method, flags)


def _decoded(name: bytes, flags: int) -> str:
    return clean_text(name.decode("utf-8" if flags & _UTF8 else "cp437", errors="replace")).text


def _large_values(extra: bytes, *values: int) -> list[int]:
    """Size, packed size and position, read from the ZIP64 field where they do not fit into 32 bits."""
    found = list(values)
    at = 0
    while at + 4 <= len(extra):
        kind, length = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            for index, value in enumerate(found):
                if value == _UNKNOWN_32 and len(field) >= 8:
                    found[index], field = int.from_bytes(field[:8], "little"), field[8:]
        at += 4 + length
    return found


class _Unpacker(Protocol):
    """Unpacks the content of one member, in pieces of bounded size."""

    @property
    def finished(self) -> bool: ...

    @property
    def unused(self) -> bytes:
        """What followed the content in the last chunk."""

    def unpack(self, chunk: bytes) -> Iterator[bytes]: ...


def _unpacker(member: ZipMember) -> _Unpacker:
    if member.flags & _ENCRYPTED:
        raise MemberError("is encrypted; decrypt the log first")
    if member.method == _STORED:
        return _StoredContent()
    if member.method == _DEFLATE:
        return _Inflater()
    if member.method == _ZSTD:
        return _ZstdUnpacker()
    raise MemberError(f"is packed by method {member.method}; Inspect's logs are packed by deflate or zstandard")


class _StoredContent:
    finished = True
    unused = b""

    def unpack(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk


class _Inflater:
    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    @property
    def finished(self) -> bool:
        return self._inflater.eof

    @property
    def unused(self) -> bytes:
        return self._inflater.unused_data

    def unpack(self, chunk: bytes) -> Iterator[bytes]:
        while True:
            try:
                piece = self._inflater.decompress(chunk, _CHUNK)
            except zlib.error as problem:
                raise MemberError(f"is damaged ({problem}); copy the log again") from None
            chunk = self._inflater.unconsumed_tail
            yield piece
            if not chunk and len(piece) < _CHUNK:
                return


class _ZstdUnpacker:
    """A member may have several frames, one after the other."""

    def __init__(self) -> None:
        self._zstd = _require_zstd()
        self._begin()

    def _begin(self) -> None:
        limits = {self._zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
        self._frame = self._zstd.ZstdDecompressor(options=limits)

    @property
    def finished(self) -> bool:
        return bool(self._frame.eof)

    @property
    def unused(self) -> bytes:
        return bytes(self._frame.unused_data)

    def unpack(self, chunk: bytes) -> Iterator[bytes]:
        while True:
            if self._frame.eof:
                if not chunk:
                    return
                self._begin()
            try:
                yield self._frame.decompress(chunk, _CHUNK)
            except self._zstd.ZstdError as problem:
                raise MemberError(f"is damaged ({problem}); copy the log again") from None
            chunk = self._frame.unused_data if self._frame.eof else b""
            if self._frame.needs_input and not self._frame.eof:
                return


def _require_zstd() -> ModuleType:
    """The module of the standard library, or its backport before Python 3.14."""
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            return import_module(name)
    what = "the log is packed by zstandard, which needs: pip install 'gradeline[inspect]'"
    raise ConfigError(Problem("SOURCE", f"{what}; or convert it with `inspect log convert --to json`"))
