"""How lists are cut into pages: by an opaque cursor, or by a number of rows to skip."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from gradeline.model import quote
from gradeline.service.failures import ApiError, Code

CursorPart = str | int

_MAX_CURSOR = 1000
MAX_NUMBER = 2**63 - 1


def encode_cursor(*parts: CursorPart) -> str:
    """The place behind which the next page begins, as a text that callers only hand back."""
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(text: str, *types: type[CursorPart]) -> tuple[CursorPart, ...]:
    """The parts of a cursor that `encode_cursor` made; what it did not make is refused."""
    if len(text) > _MAX_CURSOR:
        raise _unknown(text)
    try:
        decoded = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        parts = json.loads(decoded)
    except (ValueError, RecursionError):
        raise _unknown(text) from None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(types):
        raise _unknown(text)
    if any(isinstance(part, int) and abs(part) > MAX_NUMBER for part in parts) or encode_cursor(*parts) != text:
        raise _unknown(text)
    return tuple(parts)


class Page(NamedTuple):
    """Which part of a list is wanted."""

    limit: int
    skip: int = 0
    cursor: str | None = None

    @classmethod
    def of(
        cls,
        limit: int,
        skip: int | None = None,
        cursor: str | None = None,
        *,
        max_limit: int = 1000,
        max_skip: int | None = None,
    ) -> Page:
        """The page, if there can be one; ``skip`` is None where the caller did not name it."""
        _within("limit", limit, 1, max_limit)
        _within("skip", skip or 0, 0, MAX_NUMBER if max_skip is None else max_skip)
        if cursor is not None and skip is not None:
            raise ApiError(Code.INVALID_INPUT, "Parameters 'cursor' and 'skip' exclude each other; keep one")
        return cls(limit, skip or 0, cursor)


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        shown = quote(value)
        raise ApiError(Code.INVALID_INPUT, f"Parameter '{name}' must be from {low:,} to {high:,}, got {shown}")


def _unknown(text: str) -> ApiError:
    return ApiError(
        Code.INVALID_INPUT,
        f"Parameter 'cursor' has the unknown value {quote(text, 60)}; use the 'next_cursor' of the page before",
    )
