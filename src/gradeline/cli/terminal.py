"""What a person sees: tables and texts, with hostile text made harmless."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradeline.cli.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
_VISIBLE: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **{code: f"<{code:02X}>" for code in range(0x80, 0xA0)},
    **{code: f"<{code:04X}>" for code in _BIDI},
    **dict.fromkeys(range(55296, 57344), "�"),
}
_MIB = 1024 * 1024

OUTCOME_STYLES = {"pass": "green", "fail": "red", "error": "yellow", "skipped": "dim"}


def console(settings: Settings, *, stderr: bool = False) -> Console:
    """Where output goes. Not a terminal: plain text, as wide as it needs."""
    from rich.console import Console  # 60 ms, only for commands that draw

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 120
    return Console(stderr=stderr, no_color=settings.no_color or None, highlight=False, width=width, soft_wrap=False)


def say(text: str) -> None:
    """Tell a person something, above the live line where one is shown: that takes what is written to ``sys.stderr``,
    which click would write past."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def mebibytes(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / _MIB:.1f} MiB" if size >= _MIB else f"{size / 1024:.1f} KiB"


def harmless(text: str) -> str:
    """Text from outside with control, escape and direction characters made visible."""
    return text.translate(_VISIBLE)


def plain(text: str, style: str = "", most: int = 400) -> Text:
    """Text from outside for a table: harmless, never read as markup, cut when long."""
    from rich.text import Text

    if len(text) > most:
        text = f"{text[:most]}… (+{len(text) - most:,} characters)"
    return Text(harmless(text), style=style)
