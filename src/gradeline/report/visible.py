"""Text from outside made harmless for a page or a file that a person opens."""

from __future__ import annotations

import re

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_NAMED: dict[int, str] = {
    **{code: f"<{code:02X}>" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"},
    **{code: f"<{code:04X}>" for code in _DIRECTIONS},
    **dict.fromkeys((*range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd"),
}
_HIDDEN = re.compile(f"[{''.join(re.escape(chr(code)) for code in _NAMED)}]")
_ROOM = 40


def visible(text: str) -> str:
    """Control, escape and direction characters by their numbers (``<1B>``); tabs stay, and line ends as ``\\n``."""
    text = text.replace("\r\n", "\n")
    return text.translate(_NAMED) if _HIDDEN.search(text) else text


def cut(text: str, most: int) -> str:
    """The beginning of a long text, with how much is left out."""
    # a cut that saves less than it takes to say so is not worth it
    if len(text) <= most + _ROOM:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


def one_line(text: str, most: int) -> str:
    """A text for a single line: harmless, cut, its line ends shown."""
    return visible(cut(text.strip(), most)).replace("\n", " ↵ ").replace("\t", " ")
