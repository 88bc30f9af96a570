"""The files that a configuration of promptfoo names with ``file://``: only inside its folder, and of bounded size."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gradeline.errors import ConfigError
from gradeline.model import quote
from gradeline.suite.document import parse_document

SCHEME = "file://"
MAX_FILE_BYTES = 2_000_000
"""Maximum size of a file that an assertion names."""
MAX_FILES = 10_000
"""Maximum number of files that a pattern names."""
MAX_PATTERN = 500
_DATA = frozenset((".json", ".yaml", ".yml"))


class FileReferenceError(ValueError):
    """A file that cannot be read; the message says which, why, and what to do."""


class FileReference(NamedTuple):
    """``file://path:function``."""

    path: str
    function: str | None = None

    @classmethod
    def of(cls, text: str) -> FileReference:
        """The parts of a reference; the function is what follows the last colon, if that is a name."""
        path = text.removeprefix(SCHEME)
        head, colon, name = path.rpartition(":")
        plain = name.replace(".", "_")
        return cls(head, name) if colon and head and plain.isidentifier() and "." in head else cls(path)

    @property
    def suffix(self) -> str:
        return Path(self.path).suffix.lower()


class SourceFolder:
    """The folder of a configuration."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    @property
    def root(self) -> Path:
        """The folder itself."""
        return self._path

    def path(self, reference: FileReference) -> Path:
        """The place of a file; `FileReferenceError` unless it is a file inside the folder."""
        shown = quote(reference.path, 80)
        try:
            path = (self._path / reference.path).resolve()
            is_file = path.is_file()
        except (OSError, ValueError, RuntimeError):
            raise FileReferenceError(f"{shown} is not a path") from None
        if not path.is_relative_to(self._path):
            raise FileReferenceError(f"{shown} is outside the folder of the configuration; copy the file into it")
        if not is_file:
            raise FileReferenceError(f"there is no file {shown} in the folder of the configuration")
        return path

    def matches(self, reference: FileReference) -> list[FileReference]:
        """The files that a pattern such as ``cases/*.yaml`` names, in order; a plain path names itself."""
        pattern = reference.path.removeprefix("./")
        if not any(mark in pattern for mark in "*?["):
            return [reference]
        shown = quote(pattern, 80)
        if pattern.count("**") > 1 or ".." in Path(pattern).parts or len(pattern) > MAX_PATTERN:
            raise FileReferenceError(f"{shown} is not a pattern of files in the folder of the configuration")
        try:
            found = sorted(islice(self._path.glob(pattern), MAX_FILES + 1))
        except (OSError, ValueError, NotImplementedError):
            raise FileReferenceError(f"{shown} is not a pattern of files in the folder of the configuration") from None
        if len(found) > MAX_FILES:
            raise FileReferenceError(f"{shown} names more than {MAX_FILES:,} files; name fewer")
        if not found:
            raise FileReferenceError(f"{shown} matches no file in the folder of the configuration")
        return [FileReference(path.relative_to(self._path).as_posix(), reference.function) for path in found]

    def text(self, reference: FileReference) -> str:
        """The text of a file; `FileReferenceError` unless it is a readable file inside the folder."""
        shown = quote(reference.path, 80)
        path = self.path(reference)
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise FileReferenceError(f"{shown} cannot be read: {error.strerror}") from None
        if len(raw) > MAX_FILE_BYTES:
            raise FileReferenceError(f"{shown} is larger than {MAX_FILE_BYTES // 1_000_000} MB")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise FileReferenceError(f"{shown} is not UTF-8; save it as UTF-8") from None

    def value(self, reference: FileReference) -> object:
        """The data of a JSON or YAML file, the text of any other one."""
        text = self.text(reference)
        return parse_data(text, reference.path) if reference.suffix in _DATA else text.strip()


def parse_data(text: str, name: str) -> object:
    """YAML, or JSON if the name ends in ``.json``; `FileReferenceError` with the reason if it is neither."""
    try:
        return parse_document(text.encode(), name, top="any").data
    except ConfigError as error:
        raise FileReferenceError(f"{quote(name, 80)} cannot be read: {error.problems[0].message}") from None
