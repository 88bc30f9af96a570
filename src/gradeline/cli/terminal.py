"""What commands print for people: console, messages, and tables with untrusted text made safe.

A table keeps every name whole: where the terminal is too narrow for the columns, each row becomes a block.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from gradeline.report.formatting import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gradeline.cli.options import CliSettings

OUTCOME_STYLES = {"pass": "green", "fail": "red", "error": "yellow", "skipped": "dim", "not_applicable": "dim"}

_MIB = 1024 * 1024
_QUIET_S = 1.0
_INTERVAL_S = 2.0
_MIN_WIDTH = 12
"""Narrowest readable width of a column that wraps, in characters."""
_INDENT = 2


def console(settings: CliSettings, *, stderr: bool = False) -> Console:
    """The console for stdout or stderr; plain text of 120 columns where that is not a terminal."""
    from rich.console import Console  # 60 ms, only for commands that draw

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 120
    return Console(stderr=stderr, no_color=settings.no_color or None, highlight=False, width=width, soft_wrap=False)


def print_message(text: str) -> None:
    """Print a line to stderr, above the live progress line: rich redirects ``sys.stderr``, which click bypasses."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class ProgressMessages:
    """Messages of a command that may take long: none in its first second, then one every two seconds at most."""

    def __init__(self, settings: CliSettings) -> None:
        self._quiet = settings.quiet
        self._due = monotonic() + _QUIET_S

    def print(self, text: str) -> None:
        """Print a message to stderr if one is due."""
        now = monotonic()
        if not self._quiet and now >= self._due:
            self._due = now + _INTERVAL_S
            print_message(text)


def in_cache() -> bool:
    """Whether this program runs from an environment in a cache, as with uvx: commands of it are not on the PATH."""
    return any((folder / "CACHEDIR.TAG").is_file() for folder in Path(sys.prefix).parents)


def program_name(packages: Iterable[str] = ()) -> str:
    """The command that starts this program again, for commands that messages propose.

    ``gradeline``; or ``uvx gradeline``, with these packages, where it runs from an environment in a cache.
    """
    if not in_cache():
        return "gradeline"
    return shlex.join(["uvx", *(word for package in packages for word in ("--with", package)), "gradeline"])


def mebibytes(size: int) -> str:
    """A number of bytes as MiB or KiB."""
    return f"{size / _MIB:.1f} MiB" if size >= _MIB else f"{size / 1024:.1f} KiB"


def single_line(text: str) -> str:
    """Untrusted text with whitespace collapsed, so that it cannot imitate further lines of output."""
    return " ".join(text.split())


def safe_text(text: str, style: str = "", most: int = 400) -> Text:
    """Untrusted text for a table: escaped, never read as markup, truncated when long."""
    from rich.text import Text

    if len(text) > most:
        text = f"{text[:most]}… (+{len(text) - most:,} characters)"
    return Text(visible(text), style=style)


class TableColumn(NamedTuple):
    """A column of a table."""

    title: str
    right: bool = False
    wraps: bool = False
    """Wrap long texts; other columns are as wide as their widest cell."""
    key: bool = False
    """The column names the row and starts its block."""
    most: int | None = None
    """Maximum width in characters."""


def print_table(
    out: Console, columns: Sequence[TableColumn], rows: Iterable[Sequence[Text | str]], *, title: str = "", gap: int = 2
) -> None:
    """Print rows below column titles, or one block per row where the columns do not fit."""
    from rich.text import Text  # 20 ms, only for people

    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    if title:
        out.print(Text(title, "italic"))
    if _fits(out.width, columns, cells, gap):
        _print_rows(out, columns, cells, gap)
    else:
        for row in cells:
            _print_block(out, columns, row)


def _fits(width: int, columns: Sequence[TableColumn], rows: list[list[Text]], gap: int) -> bool:
    needed = 0
    for index, column in enumerate(columns):
        widest = max([len(column.title), *(row[index].cell_len for row in rows)])
        needed += gap + (min(widest, _MIN_WIDTH) if column.wraps else widest)
    return needed <= width


def _print_rows(out: Console, columns: Sequence[TableColumn], rows: list[list[Text]], gap: int) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, gap, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold",
            max_width=column.most,
        )
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _print_block(out: Console, columns: Sequence[TableColumn], row: list[Text]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    named = list(zip(columns, row, strict=True))
    out.print(Text("  ").join(cell for column, cell in named if column.key and cell.plain), overflow="fold")
    figures = [
        Text.assemble(f"{column.title} " if column.title else "", cell)
        for column, cell in named
        if not column.key and not column.wraps and cell.plain
    ]
    texts = [cell for column, cell in named if not column.key and column.wraps and cell.plain]
    for line in (*_lines(figures, out.width - _INDENT), *texts):
        out.print(Padding(line, (0, 0, 0, _INDENT), expand=False), overflow="fold")


def _lines(figures: Iterable[Text], width: int) -> Iterator[Text]:
    """The figures joined into lines of at most ``width``, none of them broken."""
    from rich.text import Text

    line: list[Text] = []
    for figure in figures:
        if line and sum(one.cell_len + 2 for one in line) + figure.cell_len >= width:
            yield Text(", ").join(line) + Text(",")
            line = []
        line.append(figure)
    if line:
        yield Text(", ").join(line)
