"""Data frames as rows, recognised by their methods: no library of data frames is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradeline.model import quote
from gradeline.suite.table_values import BinaryValueError, plain_value


class BinaryColumnError(ValueError):
    """A column of bytes."""


def table_rows(data: object) -> list[dict[str, Any]] | None:
    """The rows of a frame or table of Polars, pandas or Arrow as JSON data; None for anything else."""
    table: Any = data
    if callable(getattr(table, "collect", None)) and hasattr(table, "collect_schema"):
        table = table.collect()  # a lazy frame of Polars
    if callable(getattr(table, "iter_rows", None)):
        rows = table.iter_rows(named=True)
    elif callable(getattr(table, "to_pylist", None)) and hasattr(table, "column_names"):
        rows = table.to_pylist()
    elif callable(getattr(table, "to_dict", None)) and hasattr(table, "itertuples"):
        rows = table.to_dict("records")
    else:
        return None
    return [_row(number, row) for number, row in enumerate(rows)]


def _row(number: int, row: Mapping[Any, Any]) -> dict[str, Any]:
    found = {}
    for name, value in row.items():
        try:
            plain = plain_value(value)
        except BinaryValueError:
            reason = "is binary, and a case is text; drop the column, or decode it"
            raise BinaryColumnError(f"row {number}: column {quote(str(name))} {reason}") from None
        if plain is not None:
            found[str(name)] = plain
    return found


def is_file_list(data: object) -> bool:
    """True for a list of paths, which are read as the files of a suite are."""
    return isinstance(data, list | tuple) and any(isinstance(item, str) for item in data)
