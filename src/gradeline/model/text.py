"""Strings and data from outside: make them storable, quote them in messages, format tracebacks of user code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from math import isfinite
from types import TracebackType
from typing import Any, NamedTuple

from gradeline.errors import DataError

_NUL_PICTURE = "\u2400"
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_MAX_DEPTH = 200
_MAX_PATH = 200


class CleanText(NamedTuple):
    """A storable string, and whether it differs from the original."""

    text: str
    changed: bool


def is_clean(text: str) -> bool:
    """A quick check that a string is storable as it is; if False, `clean_text` decides."""
    return type(text) is str and text.isascii() and "\0" not in text


def plain_str(text: str) -> str:
    """Convert a subclass to `str`: its methods may raise, and encoders refuse it."""
    return text if type(text) is str else str.__str__(text)


def scalar_text(value: object) -> str:
    """A JSON string, number or boolean as a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def clean_text(text: str | bytes) -> CleanText:
    """Make a string storable: lone surrogates become U+FFFD, NUL becomes U+2400.

    Bytes are decoded as UTF-8; invalid bytes become U+FFFD.
    """
    changed = False
    if isinstance(text, bytes):
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            decoded = text.decode(errors="replace")
            changed = True
        text = decoded
    else:
        text = plain_str(text)
    if not changed and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
            changed = True
    if "\0" in text:
        text = text.replace("\0", _NUL_PICTURE)
        changed = True
    return CleanText(text, changed)


def clean_data(value: object, path: str = "$") -> Any:
    """Make JSON data storable, or raise `DataError` with the path of the fault.

    Strings are cleaned, tuples become lists, keys become strings. Non-finite numbers, cycles, too deeply nested data
    and objects that JSON does not support are refused.
    """
    try:
        return _clean(value, 0)
    except DataError as error:
        where = path + error.problem.path
        raise DataError(error.problem.message, where if len(where) <= _MAX_PATH else f"{where[:_MAX_PATH]}…") from None


def _clean(value: object, depth: int) -> object:
    """Paths are built while a fault propagates, so that valid data costs nothing."""
    if isinstance(value, str):
        value = plain_str(value)
        return value if value.isascii() and "\0" not in value else clean_text(value).text
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise DataError(f"{value!r} is not a finite number; leave it out or use null")
        return float(value)
    if isinstance(value, int):
        # Python refuses str() of longer integers
        if value.bit_length() > 4096:
            raise DataError(f"an integer of {value.bit_length()} bits is too large to store")
        return int(value)
    if depth >= _MAX_DEPTH:
        raise DataError(f"nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        mapping: dict[str, object] = {}
        for key, item in value.items():
            kind = type(key)
            name = key if kind is str and key.isascii() and "\0" not in key else clean_text(str(key)).text
            kind = type(item)
            # what needs no cleaning, as most values do: no call for each of them
            if (kind is str and item.isascii() and "\0" not in item) or (kind is float and isfinite(item)):
                mapping[name] = item
                continue
            try:
                mapping[name] = _clean(item, depth + 1)
            except DataError as error:
                raise _within(f".{key}", error) from None
        return mapping
    if isinstance(value, list | tuple):
        items: list[object] = []
        for index, item in enumerate(value):
            if type(item) is str and item.isascii() and "\0" not in item:
                items.append(item)
                continue
            try:
                items.append(_clean(item, depth + 1))
            except DataError as error:
                raise _within(f"[{index}]", error) from None
        return items
    raise DataError(f"{quote(value)} is a {type(value).__name__}; use strings, numbers, true/false, lists and mappings")


def _within(step: str, error: DataError) -> DataError:
    return DataError(error.problem.message, step + error.problem.path)


def escape_formula(text: str) -> str:
    """A CSV cell that no spreadsheet takes for a formula: such a text gets an apostrophe in front."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def quote(value: object, limit: int = 200) -> str:
    """A short ``repr`` for error messages."""
    if type(value) is str or type(value) is bytes:
        if len(value) > limit:
            return f"{value[:limit]!r}… ({len(value):,} in total)"
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4096:
        return f"an integer of {value.bit_length():,} bits"
    try:
        shown = repr(value)
    except BaseException:  # a hostile __repr__ may raise anything, SystemExit included
        return f"<{type(value).__name__}>"
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def quote_typed(value: object) -> str:
    """A value and its type, for error messages."""
    return f"{quote(value)} ({type(value).__name__})"


_MAX_CHARS = 20_000


@cache
def _calling_folders() -> tuple[str, ...]:
    """Folders of code that calls user code: this package, and the event loop and threads of the standard library."""
    from pathlib import Path  # keeps start-up light

    library = Path(os.__file__).parent
    folders = (Path(__file__).parents[1], library / "asyncio", library / "concurrent")
    return tuple(f"{folder}{os.sep}" for folder in folders)


def is_calling_code(file: str) -> bool:
    """Whether a file calls user code and is not user code itself."""
    return file.startswith(_calling_folders())


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first user frame; unchanged if there is none."""
    frame = trace
    while frame is not None and is_calling_code(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame if frame is not None else trace


def exception_text(error: BaseException) -> str:
    """The message of an exception; a failing ``__str__`` is tolerated."""
    try:
        return str(error)
    except BaseException:
        return "<message cannot be shown>"


def user_traceback(error: BaseException) -> str | None:
    """The formatted traceback from the first user frame; None if formatting fails."""
    from traceback import format_exception  # takes 18 ms, and only failures need it

    try:
        text = "".join(format_exception(type(error), error, user_frames(error.__traceback__)))
    except BaseException:  # formatting calls the user's __str__
        return None
    return clean_text(text[-_MAX_CHARS:]).text
