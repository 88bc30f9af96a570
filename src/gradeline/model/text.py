"""Text and data at the rim: what comes from agents, files and people is made safe to store here."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from gradeline.errors import DataError

_NUL_PICTURE = "\u2400"
_MAX_DEPTH = 200
_MAX_PATH = 200


class Cleaned(NamedTuple):
    """A storable text, and whether it differs from what came."""

    text: str
    changed: bool


def is_clean(text: str) -> bool:
    """Whether a string is storable as it is, decided quickly; False only means that `clean_text` must look at it."""
    return type(text) is str and text.isascii() and "\0" not in text


def plain_str(text: str) -> str:
    """The string itself: the methods of a subclass may raise or return anything, and no encoder takes one."""
    return text if type(text) is str else str.__str__(text)


def scalar_text(value: object) -> str:
    """A text, number or boolean of JSON as a text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def clean_text(text: str | bytes) -> Cleaned:
    """Make any text storable: lone surrogates become U+FFFD, NUL becomes U+2400.

    Bytes are read as UTF-8; each byte that is none becomes U+FFFD.
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
    return Cleaned(text, changed)


def clean_data(value: object, path: str = "$") -> Any:
    """A JSON tree that any store keeps byte for byte, or `DataError` with the path of the fault.

    Texts are cleaned, tuples become lists, keys become texts. Non-finite numbers, cycles,
    over-deep trees and objects that JSON does not know are refused.
    """
    try:
        return _clean(value, 0)
    except DataError as error:
        where = path + error.problem.path
        raise DataError(error.problem.message, where if len(where) <= _MAX_PATH else f"{where[:_MAX_PATH]}…") from None


def _clean(value: object, depth: int) -> object:
    """Paths are put together on the way out of a fault, so that sound data costs nothing."""
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
        # str() of longer integers is refused by Python itself
        if value.bit_length() > 4096:
            raise DataError(f"an integer of {value.bit_length()} bits is too large to store")
        return int(value)
    if depth >= _MAX_DEPTH:
        raise DataError(f"nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        mapping: dict[str, object] = {}
        for key, item in value.items():
            try:
                mapping[clean_text(str(key)).text] = _clean(item, depth + 1)
            except DataError as error:
                raise _within(f".{key}", error) from None
        return mapping
    if isinstance(value, list | tuple):
        items: list[object] = []
        for index, item in enumerate(value):
            try:
                items.append(_clean(item, depth + 1))
            except DataError as error:
                raise _within(f"[{index}]", error) from None
        return items
    raise DataError(f"{quote(value)} is a {type(value).__name__}; use text, numbers, true/false, lists and mappings")


def _within(step: str, error: DataError) -> DataError:
    return DataError(error.problem.message, step + error.problem.path)


def quote(value: object, limit: int = 200) -> str:
    """``repr`` that stays short: what an error message shows of a value."""
    if type(value) is str or type(value) is bytes:
        if len(value) > limit:
            return f"{value[:limit]!r}… ({len(value):,} in all)"
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4096:
        return f"an integer of {value.bit_length():,} bits"
    try:
        shown = repr(value)
    except BaseException:  # a hostile __repr__ must not break an error message, nor end the process with SystemExit
        return f"<{type(value).__name__}>"
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def quote_typed(value: object) -> str:
    """A value with its type, as an error message shows it."""
    return f"{quote(value)} ({type(value).__name__})"
