"""Which file a worker was loading when it hung or died, and what to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from gradeline.usercode.loader import CodeSpec, FailedLoad
from gradeline.usercode.marks import Place

_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)
_GUARD = 'move it into a function, or below if __name__ == "__main__"'
_SHOWN = 500


class Loading(NamedTuple):
    """What a worker was loading: a file or a module, and the line where its code ended the process, if known."""

    source: str
    place: str = ""

    @classmethod
    def parse(cls, text: str) -> Loading:
        """From what the worker wrote into its progress."""
        source, _, place = text.partition("\n")
        return cls(source, place)

    def __str__(self) -> str:
        return f"{self.source}\n{self.place}" if self.place else self.source


def hung(spec: CodeSpec, loading: Loading, output: str, seconds: float) -> FailedLoad:
    """A worker that did not finish in time; ``output`` ends with the traceback that it was made to write."""
    message = f"took longer than {seconds:g} s to load; where it does work that takes time, {_GUARD}"
    return _failed(spec, loading, output, message + _remedy(spec, loading.source))


def died(spec: CodeSpec, loading: Loading, output: str, ended: str) -> FailedLoad:
    """A worker that ended by itself; ``ended`` is how, such as ``exit code 3``."""
    said = _last_words(output)
    message = f"ended the process that loads it ({ended}){said}; where it exits or crashes, {_GUARD}"
    return _failed(spec, loading, output, message)


def _failed(spec: CodeSpec, loading: Loading, output: str, message: str) -> FailedLoad:
    place = next(_places(spec, loading, output), None) or Place(loading.source or spec.folder, 0)
    return FailedLoad(loading.source, place.file, place.line or None, message)


def _places(spec: CodeSpec, loading: Loading, output: str) -> Iterator[Place]:
    """Where the code was, the best knowledge first: its own note, then lines of the suite's own files."""
    if loading.place:
        file, _, line = loading.place.rpartition(":")
        yield Place(file, int(line))
    frames = [Place(file, int(line)) for file, line in _FRAME.findall(output)]
    folder = f"{os.path.realpath(spec.folder)}{os.sep}"
    yield from (frame for frame in frames if frame.file.startswith(folder) or frame.file == loading.source)


def _last_words(output: str) -> str:
    """The end of what the code printed, or the first line of a crash's traceback."""
    words = output.partition("\n\n")[0] if _FRAME.search(output) else output
    return f", after it printed: {words[-_SHOWN:]}" if words else ""


def _remedy(spec: CodeSpec, source: str) -> str:
    """How to leave out a file that no reference of the suite names."""
    name = os.path.basename(source)  # noqa: PTH119 - a module's name has no path
    references = [one.reference for one in spec.wanted]
    bare = next((reference for reference in references if ":" not in reference), None)
    if bare is None or any(name in reference for reference in (*references, spec.setup or "")):
        return ""
    return f"; this file was searched for {bare!r}: write FILE.py:{bare} to load only the file that has it"
