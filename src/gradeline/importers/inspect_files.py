"""Inspect's log files: `.eval` archives with whole and chunked samples, and `.json` documents, one sample at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw

from gradeline.errors import ConfigError, DataError, Problem
from gradeline.importers.inspect_format import (
    LogDocument,
    LoggedMessage,
    LoggedSample,
    LoggedScores,
    LoggedSpec,
    LogHeader,
    LogStart,
    decode,
)
from gradeline.importers.rows import MAX_DOCUMENT_BYTES
from gradeline.importers.zip_members import LOCAL_MARK, MAX_MEMBER_BYTES, MemberError, ZipMembers
from gradeline.report.inspect_log import HEADER, START
from gradeline.suite.text_files import BOM

T = TypeVar("T")

SUFFIX = ".eval"
_MAX_HEADER_BYTES = 64 * 1024**2
_WHOLE = re.compile(r"samples/(?P<id>.+)_epoch_(?P<epoch>\d{1,9})\.json", re.DOTALL)
_CHUNKED = re.compile(r"(?P<prefix>samples/(?P<id>.+)_epoch_(?P<epoch>\d{1,9}))/sample\.json", re.DOTALL)
_CHUNK = re.compile(
    r"(?P<sequence>samples/.+_epoch_\d{1,9}/(?:messages|attachments))/(?P<start>\d{1,12})\.json", re.DOTALL
)


class UnreadableSample(NamedTuple):
    """A sample that cannot be read, and why."""

    place: str
    reason: str


class PlacedSample(NamedTuple):
    """A sample, and its place in the log."""

    place: str
    sample: LoggedSample


class InspectLog(Protocol):
    """A log file. Samples are read again each time, so memory does not grow with their number."""

    path: Path
    header: LogHeader

    @property
    def cut_off(self) -> str | None:
        """What is missing at the end of the file; None if it is complete."""

    def samples(self) -> Iterator[PlacedSample | UnreadableSample]:
        """The samples, by epoch and in the order of the dataset."""

    def scores(self) -> Iterator[LoggedScores]:
        """The scores of all samples that can be read."""

    def close(self) -> None: ...


def open_log(path: Path) -> InspectLog:
    """The log in a file; `ConfigError` if it is not one."""
    with path.open("rb") as file:
        is_archive = file.read(len(LOCAL_MARK)) == LOCAL_MARK
    return EvalFile(path) if is_archive else JsonFile(path)


class _SampleEntry(NamedTuple):
    """A sample of an archive: the member of a whole sample, or the shell of a chunked one."""

    member: str
    id: str
    epoch: int
    prefix: str | None
    """The prefix of the names of a chunked sample."""


class EvalFile:
    """A log as a ZIP archive. The log of a killed run has no header, and may have no directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip = ZipMembers(path)
        try:
            self.header = self._header()
        except BaseException:
            self.close()
            raise
        self._entries = self._sorted_entries()
        self._chunks = self._chunk_starts()

    def close(self) -> None:
        self._zip.close()

    @property
    def cut_off(self) -> str | None:
        return self._zip.cut_off

    def _header(self) -> LogHeader:
        name = next((name for name in (HEADER, START) if name in self._zip.members), None)
        if name is None:
            raise ConfigError(Problem(str(self.path), _no_header(self._zip.cut_off)))
        try:
            raw = self._zip.read(name, _MAX_HEADER_BYTES)
            return decode(raw, LogHeader) if name == HEADER else LogHeader(decode(raw, LogStart).eval)
        except (MemberError, DataError) as error:
            raise ConfigError(Problem(f"{self.path}:{name}", _reason(error))) from None

    def _sorted_entries(self) -> Sequence[_SampleEntry]:
        found = []
        for name in self._zip.members:
            named = _WHOLE.fullmatch(name) or _CHUNKED.fullmatch(name)
            if named is not None:
                groups = named.groupdict()
                found.append(_SampleEntry(name, groups["id"], int(groups["epoch"]), groups.get("prefix")))
        places = {str(one): place for place, one in enumerate(self.header.eval.dataset.sample_ids or ())}
        return sorted(found, key=lambda entry: (entry.epoch, places.get(entry.id, len(places))))

    def _chunk_starts(self) -> Mapping[str, list[int]]:
        """The numbers of the chunks of each sequence, ascending."""
        found: dict[str, list[int]] = {}
        for name in self._zip.members:
            if named := _CHUNK.fullmatch(name):
                found.setdefault(named["sequence"], []).append(int(named["start"]))
        return {sequence: sorted(starts) for sequence, starts in found.items()}

    def samples(self) -> Iterator[PlacedSample | UnreadableSample]:
        for entry in self._entries:
            place = f"{self.path.name}:{entry.member}"
            try:
                sample = self._sample(entry)
            except (MemberError, DataError) as error:
                yield UnreadableSample(place, _reason(error))
            else:
                yield PlacedSample(place, sample)

    def scores(self) -> Iterator[LoggedScores]:
        for entry in self._entries:
            try:
                yield decode(self._zip.read(entry.member), LoggedScores)
            except (MemberError, DataError):
                continue  # `samples` reports it

    def _sample(self, entry: _SampleEntry) -> LoggedSample:
        if entry.prefix is None:
            return decode(self._zip.read(entry.member), LoggedSample)
        return _ChunkedSample(self._zip, entry.prefix, self._chunks).read(entry.member)


class _ChunkedSample:
    """Joins the members of a chunked sample, which together are no larger than a member may be."""

    def __init__(self, archive: ZipMembers, prefix: str, chunks: Mapping[str, list[int]]) -> None:
        self._zip = archive
        self._prefix = prefix
        self._chunks = chunks
        self._left = MAX_MEMBER_BYTES

    def read(self, shell: str) -> LoggedSample:
        sample = self._part(shell, LoggedSample)
        metadata = f"{self._prefix}/metadata.json"
        attachments = self._sequence("attachments", list[str])
        return msgspec.structs.replace(
            sample,
            metadata=self._part(metadata, dict[str, Any]) if metadata in self._zip.members else sample.metadata,
            messages=self._messages(sample),
            attachments={str(index): text for index, text in attachments.items()},
        )

    def _messages(self, sample: LoggedSample) -> list[LoggedMessage]:
        """The messages of the conversation: the sequence has those of all model calls."""
        found = self._sequence("messages", list[LoggedMessage])
        if sample.message_refs is UNSET:
            return list(found.values())
        count = sum(max(0, end - start) for start, end in sample.message_refs)
        if count > 10 * len(found) + 1:
            raise DataError(f"refers to {count:,} messages, and has {len(found):,}")
        try:
            return [found[index] for start, end in sample.message_refs for index in range(start, end)]
        except KeyError as missing:
            raise DataError(f"has no message {missing}; a chunk of its messages is missing") from None

    def _sequence(self, name: str, kind: type[list[T]]) -> dict[int, T]:
        """The items of a sequence by their index."""
        sequence = f"{self._prefix}/{name}"
        found: dict[int, T] = {}
        for start in self._chunks.get(sequence, ()):
            found.update(enumerate(self._part(f"{sequence}/{start}.json", kind), start))
        return found

    def _part(self, member: str, kind: type[T]) -> T:
        raw = self._zip.read(member, self._left)
        self._left -= len(raw)
        return decode(raw, kind)


class JsonFile:
    """A log as a JSON document. It is kept in memory as text, and its samples are parsed one at a time."""

    cut_off = None

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            document = decode(_content(path), LogDocument)
            if len(memoryview(document.eval)) > _MAX_HEADER_BYTES:
                raise DataError(f"states more than {_MAX_HEADER_BYTES // 1024**2} MiB about its task")
            spec = decode(document.eval, LoggedSpec)
        except DataError as error:
            raise ConfigError(Problem(str(path), _reason(error))) from None
        self.header = LogHeader(spec, document.status, document.stats, document.error)
        self._samples = document.samples

    def close(self) -> None:
        self._samples = Raw(b"null")

    def samples(self) -> Iterator[PlacedSample | UnreadableSample]:
        for number, raw in enumerate(self._raw_samples()):
            place = f"{self.path.name}:samples[{number}]"
            try:
                sample = decode(raw, LoggedSample)
            except DataError as error:
                yield UnreadableSample(place, _reason(error))
            else:
                yield PlacedSample(place, sample)

    def scores(self) -> Iterator[LoggedScores]:
        for raw in self._raw_samples():
            try:
                yield decode(raw, LoggedScores)
            except DataError:
                continue  # `samples` reports it

    def _raw_samples(self) -> Iterator[memoryview]:
        return array_items(memoryview(self._samples))


def _content(path: Path) -> memoryview:
    try:
        size = path.stat().st_size
        if size > MAX_DOCUMENT_BYTES:
            what = (
                f"has {size / 1024**2:,.0f} MiB, and at most {MAX_DOCUMENT_BYTES // 1024**2:,} MiB of JSON are read;"
                " convert it with `inspect log convert --to eval`"
            )
            raise ConfigError(Problem(str(path), what))
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    return memoryview(raw)[len(BOM) if raw.startswith(BOM) else 0 :]


_SPACE = re.compile(rb"[\s,]*+")
_SCALAR = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^,\]\s]++', re.DOTALL)
_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([\[\]{}])', re.DOTALL)


def array_items(array: memoryview) -> Iterator[memoryview]:
    """The items of a valid JSON array as written; ``null`` has none."""
    position = 1
    if bytes(array[:1]) != b"[":
        return
    while True:
        position = _end(_SPACE, array, position)
        first = bytes(array[position : position + 1])
        if first in (b"]", b""):
            return
        end = _end_of_brackets(array, position) if first in (b"{", b"[") else _end(_SCALAR, array, position)
        yield array[position:end]
        position = end


def _end(pattern: re.Pattern[bytes], array: memoryview, position: int) -> int:
    found = pattern.match(array, position)
    return len(array) if found is None else found.end()


def _end_of_brackets(array: memoryview, position: int) -> int:
    depth = 0
    while found := _TO_BRACKET.match(array, position):
        depth += 1 if found[1] in (b"{", b"[") else -1
        position = found.end()
        if not depth:
            return position
    return len(array)


def _no_header(cut_off: str | None) -> str:
    if cut_off is not None:
        return f"has no readable start: {cut_off}; copy the log again"
    return f"has neither {HEADER} nor {START}, so it is not a log of Inspect"


def _reason(error: Exception) -> str:
    return error.problem.message if isinstance(error, DataError) else str(error)
