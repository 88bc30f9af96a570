"""Values of typed tables (Parquet, data frames) as JSON data.

| in the table | in the case |
|---|---|
| string, boolean, integer, float | the same; NaN is null |
| decimal, UUID | text, exactly as written |
| date, time, timestamp | text in ISO 8601: ``2026-11-16``, ``09:30:00``, ``2026-11-16T09:30:00`` |
| interval | its seconds as a number |
| list, array, struct, map | a list or a mapping of these |
| binary | refused |
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

_MISSING = ("NAType", "NaTType")
"""The types of pandas' missing values."""


class BinaryValueError(ValueError):
    """A value that is bytes."""


def plain_value(value: Any) -> Any:
    """The value as JSON data; `BinaryValueError` for bytes. A type that is not in the table stays as it is."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if value != value else float(value)
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray | memoryview):
        raise BinaryValueError("is binary")
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    # NumPy's scalars and arrays, the lists of Polars and Arrow
    for convert in ("tolist", "to_list", "to_pylist"):
        if callable(method := getattr(value, convert, None)):
            return plain_value(method())
    return value
