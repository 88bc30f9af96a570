"""The suite's ``columns``: which columns of a dataset are the keys of a case."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gradeline.errors import NeedsIsolationError, Problem, UngradableError, closest_match
from gradeline.model import quote
from gradeline.parsing.jmespath import BadPathError, JmesPath
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.suite.case_ids import CaseIdScheme
from gradeline.suite.declaration import CaseEntry, keys_of
from gradeline.suite.letta_dialects import CASE_VARIABLES, aliases_of, key_names

ID_SCHEMES: Mapping[str, CaseIdScheme] = {"$digest": "content", "$number": "number"}
"""Ids that are computed: by the content of a case, or by the number of its row."""
_MAPPINGS = ("metadata", *CASE_VARIABLES)
"""Keys of a case that are mappings: each of their keys can have a column."""
_ALIASES = frozenset(alias.spelling for alias in aliases_of("case"))
CASE_KEYS = tuple(key for key in keys_of(CaseEntry) if key not in _ALIASES)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN = 20


class Column:
    """A column by its name, or a JMESPath into a row."""

    def __init__(self, written: str) -> None:
        self.written = written
        self._path: JmesPath | None = None
        self.fault = ""
        if not _NAME.fullmatch(written):
            try:
                self._path = JmesPath(written)
            except BadPathError as error:
                self.fault = str(error)  # then it can only be the name of a column

    def start(self, names: Collection[str]) -> str | None:
        """The column that the value comes from; None if the path does not begin with one."""
        return self.written if self._path is None or self.written in names else self._path.first_field

    def value(self, data: Mapping[str, Any]) -> Any:
        """The value in a row, None if there is none; `ValueError` if the path does not support the data."""
        if self._path is None or self.written in data:
            return data.get(self.written)
        try:
            return self._path.search(data)
        except (UngradableError, NeedsIsolationError) as error:
            raise ValueError(str(error)) from None


class ColumnMap:
    """Renames the columns of a row. Without any, rows stay as they are."""

    def __init__(self, written: Mapping[str, Any] | None = None, also: Collection[str] = ()) -> None:
        """``written`` as in a suite, without the faults that `column_faults` finds; ``also`` are further keys."""
        self._keys = {*keys_of(CaseEntry), *also}
        given = dict(written or {})
        self.scheme = ID_SCHEMES.get(str(given.get("id")))
        if self.scheme is not None:
            given["id"] = None
        self._single = {key: Column(value) for key, value in given.items() if isinstance(value, str)}
        self._grouped = {
            key: {name: Column(column) for name, column in value.items()}
            for key, value in given.items()
            if isinstance(value, Mapping)
        }
        self._taken = {name for key in given for name in key_names("case", key)}
        self._exact = "metadata" in self._grouped
        """The metadata is listed, so that other columns do not become part of it."""
        self._whole = {column.written for _, column in self._columns()}

    def __bool__(self) -> bool:
        return bool(self._taken)

    def problems(self, names: Collection[str]) -> Iterator[Problem]:
        """The columns that a table with these columns does not have."""
        for path, column in self._columns():
            start = column.start(names)
            if start is None or start in names:
                continue
            near = closest_match(start, names)
            listed = ", ".join(map(quote, list(names)[:_SHOWN])) + (" …" if len(names) > _SHOWN else "")
            hint = f"did you mean {quote(near)}? " if near else ""
            fault = f" ({column.fault})" if column.fault else ""
            yield Problem(path, f"no column {quote(start)}{fault}; {hint}the columns are {listed or 'none'}")

    def key_of(self, name: str) -> str | None:
        """The key of a case that is read from the whole column; None if there is none."""
        for key, column in self._single.items():
            if column.written == name:
                return key
        return None if name in self._taken else name

    def is_searched(self, name: str) -> bool:
        """True if a path begins in the column, so that JSON in its text is data."""
        return any(column.written != name and column.start(()) == name for _, column in self._columns())

    def needed(self, names: Collection[str]) -> list[str]:
        """The columns of a table that are read at all."""
        starts = [column.start(names) for _, column in self._columns()]
        if not self._exact or None in starts:
            return list(names)
        return [name for name in names if name in starts or (name in self._keys and name not in self._taken)]

    def apply(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The row with the keys of a case; `ValueError` if a path fails."""
        found = {key: column.value(data) for key, column in self._single.items()}
        for key, parts in self._grouped.items():
            values = {name: column.value(data) for name, column in parts.items()}
            found[key] = {name: value for name, value in values.items() if value is not None}
        for key in _MAPPINGS:
            if isinstance(found.get(key), str):
                found[key] = _mapping(found[key])
        found = {key: value for key, value in found.items() if value is not None}
        metadata: dict[str, Any] = {}
        for name, value in data.items():
            if name in self._whole:
                continue
            if name in self._taken:
                metadata[name] = value
            elif name in self._keys or not self._exact:
                found[name] = value
        if metadata and not self._exact:
            own = found.get("metadata", {})
            # a value that is not a mapping is reported later
            found["metadata"] = {**metadata, **own} if isinstance(own, dict) else own
        return found

    def _columns(self) -> Iterator[tuple[str, Column]]:
        for key, column in self._single.items():
            yield f"columns.{key}", column
        for key, parts in self._grouped.items():
            for name, column in parts.items():
                yield f"columns.{key}.{name}", column


def column_faults(written: Mapping[str, Any], also: Collection[str] = ()) -> Iterator[Problem]:
    """The faults of ``columns`` as written in a suite, by the path in it; ``also`` are further keys."""
    keys = (*CASE_KEYS, *also)
    for key, value in written.items():
        if key not in keys:
            near = closest_match(key, keys)
            hint = f"did you mean {near!r}?" if near else f"use one of {', '.join(keys)}"
            yield Problem(key, f"a case has no key {quote(key)}; {hint}")
        elif isinstance(value, Mapping) and key in _MAPPINGS:
            for name, column in value.items():
                if not isinstance(column, str) or not column.strip():
                    yield Problem(f"{key}.{name}", f"expected a column or a JMESPath, got {quote(column)}")
        elif value is not None and (not isinstance(value, str) or not value.strip()):
            form = "a column, a JMESPath or a mapping of columns" if key in _MAPPINGS else "a column or a JMESPath"
            yield Problem(key, f"expected {form}, got {quote(value)}")
        elif key == "id" and str(value).startswith("$") and value not in ID_SCHEMES:
            yield Problem(key, f"expected a column, {' or '.join(ID_SCHEMES)}, got {quote(value)}")


def _mapping(text: str) -> Any:
    try:
        return parse_json(text)
    except NotJsonError:
        return text
