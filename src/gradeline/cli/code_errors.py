"""The tracebacks and prints of user code that failed, under the list of the worst cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gradeline.cli.terminal import plain
from gradeline.model import Record

if TYPE_CHECKING:
    from rich.console import Console

_MOST_SHOWN = 2
_LINES = 15
_LONGEST_LINE = 300


def print_code_errors(out: Console, cases: Iterable[tuple[Record, str | None]]) -> None:
    """Print the first different tracebacks of these cases, each of a grader or (None) of the agent, with the prints."""
    seen: set[str] = set()
    for record, grader in cases:
        error = record.response.error if grader is None else record.grades[grader].error
        printed = record.response.output if grader is None else record.grades[grader].output
        if error is None or (error.traceback is None and printed is None):
            continue
        cause = (error.traceback or error.message).strip()
        if cause in seen:
            continue
        seen.add(cause)
        whose = f"{record.case}, {grader}" if grader is not None else record.case
        for title, text in (("traceback", error.traceback), ("output", printed)):
            if text is not None and text.strip():
                out.print(plain(f"{title} of {whose}", "bold"))
                for line in _last_lines(text, record.run):
                    out.print(plain(f"  {line}", most=_LONGEST_LINE), soft_wrap=True)
        if len(seen) == _MOST_SHOWN:
            return


def _last_lines(text: str, run: str) -> Iterator[str]:
    lines = text.rstrip().splitlines()
    if len(lines) > _LINES:
        yield f"… ({len(lines) - _LINES:,} lines before; all of them: gradeline show {run} --records)"
    yield from lines[-_LINES:]
