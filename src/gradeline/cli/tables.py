"""Tables that keep every name whole: where the terminal is too narrow for the columns, each row becomes a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_LEAST = 12
"""Characters of a column that wraps, below which it is not readable any more."""
_INDENT = 2


class Column(NamedTuple):
    """A column of a table."""

    title: str
    right: bool = False
    wraps: bool = False
    """Long texts are wrapped; other columns are as wide as their widest cell."""
    key: bool = False
    """It names the row, and heads its block."""
    most: int | None = None
    """Characters in a line of it."""


def print_table(
    out: Console, columns: Sequence[Column], rows: Iterable[Sequence[Text | str]], *, title: str = "", gap: int = 2
) -> None:
    """Print rows below their titles, or one block for each row where that does not fit."""
    from rich.text import Text  # 20 ms, only for people

    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    if title:
        out.print(Text(title, "italic"))
    if _fits(out.width, columns, cells, gap):
        _print_rows(out, columns, cells, gap)
    else:
        for row in cells:
            _print_block(out, columns, row)


def _fits(width: int, columns: Sequence[Column], rows: list[list[Text]], gap: int) -> bool:
    needed = 0
    for index, column in enumerate(columns):
        widest = max([len(column.title), *(row[index].cell_len for row in rows)])
        needed += gap + (min(widest, _LEAST) if column.wraps else widest)
    return needed <= width


def _print_rows(out: Console, columns: Sequence[Column], rows: list[list[Text]], gap: int) -> None:
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


def _print_block(out: Console, columns: Sequence[Column], row: list[Text]) -> None:
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
    """As many figures in each line as it holds, none of them broken."""
    from rich.text import Text

    line: list[Text] = []
    for figure in figures:
        if line and sum(one.cell_len + 2 for one in line) + figure.cell_len >= width:
            yield Text(", ").join(line) + Text(",")
            line = []
        line.append(figure)
    if line:
        yield Text(", ").join(line)
