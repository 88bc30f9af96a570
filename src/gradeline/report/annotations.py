"""Messages that a forge shows at a line of a file, as workflow commands of GitHub or as plain text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from gradeline.model import quote
from gradeline.report.ci_result import CiCase, CiRun, Undecided
from gradeline.report.formatting import one_line

Level = Literal["error", "warning", "notice"]

_LONGEST = 1_000
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


class Annotation(NamedTuple):
    """A message about a line of a file, or about the job if the file is None."""

    level: Level
    message: str
    file: str | None = None
    line: int = 0
    """From 1; 0 is unknown."""

    def command(self) -> str:
        """The workflow command. Untrusted text is escaped: it ends no line, and begins no other command."""
        properties = []
        if self.file is not None:
            properties.append(f"file={self.file.translate(_PROPERTY)}")
            if self.line:
                properties.append(f"line={self.line}")
        names = f" {','.join(properties)}" if properties else ""
        return f"::{self.level}{names}::{_line(self.message).translate(_DATA)}"

    def text(self) -> str:
        """One line for a log without workflow commands."""
        place = "" if self.file is None else f"{_line(self.file)}{f':{self.line}' if self.line else ''}: "
        return f"{place}{self.level}: {_line(self.message)}"


def _line(text: str) -> str:
    return " ".join(one_line(text, _LONGEST).splitlines())  # at Unicode's line separators too


def run_annotations(run: CiRun, undecided: Undecided) -> Iterator[Annotation]:
    """The messages about one run: warnings and an undecided verdict, then its worst cases."""
    suite = quote(run.suite)
    if run.base_warning is not None:
        yield Annotation("warning", f"suite {suite}: {run.base_warning}; {run.base_reason}")
    if run.tone == "undecided" and (undecided != "pass" or run.code(undecided)):
        word = run.headline.lower()
        yield Annotation(
            _level(run, undecided), f"suite {suite}: {word}: {'; '.join(run.reasons) or 'no reason known'}"
        )
    for case in run.regressions:
        yield Annotation(_level(run, undecided), _sentence(case), case.file, case.line)


def _level(run: CiRun, undecided: Undecided) -> Level:
    """An error only if it fails the job."""
    if run.code(undecided):
        return "error"
    return "warning" if run.tone == "undecided" else "notice"


def _sentence(case: CiCase) -> str:
    worse = [
        f"{one.grader} {one.baseline:.3f} → {one.candidate:.3f}" for one in case.scores if one.candidate is not None
    ]
    if worse:
        return f"case {quote(case.case)} regressed: {', '.join(worse)}"
    lost = ", ".join(f"{one.grader} (was {one.baseline:.3f})" for one in case.scores)
    return f"case {quote(case.case)} no longer has a score: {lost}"
