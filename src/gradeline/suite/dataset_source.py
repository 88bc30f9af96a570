"""Where the cases of a suite come from: files, patterns, datasets of the Hugging Face Hub, or a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gradeline.errors import closest_match
from gradeline.model import canonical_json
from gradeline.model.resources import Resources
from gradeline.suite.case_ids import CaseIdScheme
from gradeline.suite.columns import ColumnMap
from gradeline.suite.hub import HubDataset, download, is_hub
from gradeline.suite.parquet import PARQUET
from gradeline.suite.problems import KeyPath
from gradeline.suite.text_files import GZIP

_PATTERN = frozenset("*?[")
_PACKED = 10
"""What one byte of a packed file counts as: JSON packs to about a tenth."""


class DatasetSource(msgspec.Struct, frozen=True):
    """The cases of a suite: the files, or a list of cases."""

    parts: tuple[Path | HubDataset, ...] = ()
    rows: Sequence[Any] = ()
    """The cases in the suite; empty also where they are in the store."""
    columns: Mapping[str, Any] = {}
    ids: CaseIdScheme = "content"
    """How rows without an id are named."""
    revisions: Mapping[str, str] = {}
    """The commit of each dataset of the Hub that the suite names without one."""

    def pinned(self, revisions: Mapping[str, str]) -> DatasetSource:
        """The source with these commits, as an earlier run had them."""
        parts = (
            part._replace(revision=revisions.get(str(part), part.revision)) if isinstance(part, HubDataset) else part
            for part in self.parts
        )
        return replace(self, parts=tuple(parts), revisions=revisions)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to read: the cases are in the store."""
        return not self.parts and not self.rows

    @property
    def files(self) -> tuple[Path, ...]:
        """The files in order; those of the Hub are not among them before they were downloaded."""
        return tuple(part for part in self.parts if isinstance(part, Path))

    @property
    def hub_datasets(self) -> tuple[HubDataset, ...]:
        """What has to be downloaded first."""
        return tuple(part for part in self.parts if isinstance(part, HubDataset))

    @property
    def scheme(self) -> CaseIdScheme:
        """How rows without an id are named, where ``columns`` may say so."""
        return ColumnMap(self.columns).scheme or self.ids

    @property
    def state(self) -> tuple[tuple[int, int, int], ...]:
        """Inode, size and time of the files, which show that one was overwritten."""
        return tuple(map(_state, self.files))

    def is_within(self, size: int) -> bool:
        """True if all of it can be read quickly: files of at most this many bytes."""
        if self.hub_datasets:
            return False
        sizes = zip(self.files, self.state, strict=True)
        return sum(found * (_PACKED if file.suffix in (GZIP, PARQUET) else 1) for file, (_, found, _) in sizes) <= size

    def __str__(self) -> str:
        if not self.parts:
            return "dataset"
        more = f" and {len(self.parts) - 1} more" if len(self.parts) > 1 else ""
        return f"{self.parts[0]}{more}"


class DatasetNameError(ValueError):
    """An entry of ``dataset`` that names nothing."""

    def __init__(self, message: str, path: KeyPath = ()) -> None:
        super().__init__(message)
        self.path = path


def read_source(written: object, folder: Path) -> DatasetSource:
    """The cases that ``dataset`` names or lists; `DatasetNameError` if a name is of nothing.

    A list with strings is one of files: no case is a string.
    """
    if isinstance(written, list) and not any(isinstance(item, str) for item in written):
        return DatasetSource(rows=written)
    if not isinstance(written, str | list) or (isinstance(written, str) and not written.strip()):
        return DatasetSource()
    return DatasetSource(_named(written, folder))


async def with_local_files(
    source: DatasetSource,
    resources: Resources,
    environment: Mapping[str, str],
    note: Callable[[str], None] = lambda _: None,
) -> DatasetSource:
    """The source with the files of the Hub in the cache, and the commits that they are from; `HubError`."""
    parts: list[Path | HubDataset] = []
    revisions = dict(source.revisions)
    for part in source.parts:
        if isinstance(part, Path):
            parts.append(part)
            continue
        found = await download(part, resources, environment, note)
        parts += found.files
        if part.revision != found.commit:
            revisions[str(part)] = found.commit
    return replace(source, parts=tuple(parts), revisions=revisions)


def pinned_digest(digest: str, revisions: Mapping[str, str]) -> str:
    """The digest of a suite and of the commits that its dataset has; the same as before without any."""
    return sha256(digest.encode() + canonical_json(dict(revisions))).hexdigest() if revisions else digest


def _named(written: str | Sequence[Any], folder: Path) -> tuple[Path | HubDataset, ...]:
    """The files in the order of the list, those of a pattern sorted."""
    if isinstance(written, str):
        return tuple(_parts(written, folder))
    found: dict[Path | HubDataset, None] = {}
    for index, item in enumerate(written):
        if not isinstance(item, str):
            reason = "is a case in a list of files; write either files or cases"
            raise DatasetNameError(reason, (index,))
        try:
            parts = list(_parts(item, folder))
        except DatasetNameError as fault:
            raise DatasetNameError(str(fault), (index,)) from None
        twice = next((part for part in parts if part in found), None)
        if twice is not None:
            raise DatasetNameError(f"names {str(twice)!r} a second time; leave it out", (index,))
        found.update(dict.fromkeys(parts))
    return tuple(found)


def _parts(written: str, folder: Path) -> Iterable[Path | HubDataset]:
    if is_hub(written):
        try:
            return [HubDataset.parse(written)]
        except ValueError as error:
            raise DatasetNameError(str(error)) from None
    path = folder / written
    if path.is_file() or (path.exists() and not path.is_dir()):
        return [path]
    if _PATTERN.isdisjoint(written):
        raise DatasetNameError(_no_file(written, path))
    files = sorted(_matching(folder, written))
    if not files:
        raise DatasetNameError(f"no file matches {written!r} in {folder}; check the pattern, or name the file")
    return files


def _matching(folder: Path, pattern: str) -> Iterator[Path]:
    anchor = Path(pattern).anchor
    try:
        found = (Path(anchor) if anchor else folder).glob(pattern[len(anchor) :])
        yield from (path for path in found if path.is_file())
    except (ValueError, NotImplementedError) as error:
        raise DatasetNameError(f"{pattern!r} is not a valid pattern: {error}") from None


def _no_file(written: str, path: Path) -> str:
    if path.is_dir():
        return f"{written!r} is a folder; name its files, such as {Path(written).as_posix()}/*.jsonl"
    known = [entry.name for entry in path.parent.iterdir() if entry.is_file()] if path.parent.is_dir() else []
    near = closest_match(path.name, known)
    return f"no file {written!r}" + (f"; did you mean {str(Path(written).with_name(near))!r}?" if near else "")


def _state(file: Path) -> tuple[int, int, int]:
    try:
        stat = file.stat()
    except OSError:
        return (0, 0, 0)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
