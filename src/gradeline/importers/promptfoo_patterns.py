"""Patterns of JavaScript in the syntax of RE2, with the same meaning."""

from __future__ import annotations

import re

from gradeline.importers.promptfoo_expressions import NotTranslatedError
from gradeline.parsing.patterns import PatternError, compile_pattern

_SPACES = r"\s\v\p{Z}\x{feff}"
SPACE = f"[{_SPACES}]"
"""A character of whitespace, as JavaScript knows it, in RE2's syntax."""
_LINE_ENDS = r"\n\r\x{2028}\x{2029}"
_PATTERN_PART = re.compile(r"\\u\{?([0-9A-Fa-f]{4})\}?|\\(.)|(\[\^?)|(\])|(\.)|(\(\?<(?![=!]))", re.DOTALL)


def re2_pattern(pattern: str, flags: str = "") -> str:
    """A JavaScript pattern in RE2's syntax; `NotTranslatedError` if RE2 has no equal one."""
    if set(flags) - set("dgimsuvy"):
        raise NotTranslatedError(f"the flags {flags!r}")
    lines = "m" in flags and re.search(r"[\^$]", pattern)  # RE2 knows no other ends of lines than \n
    if lines or re.search(r"\\(?:c|0|k|p|P|B)|\[\^?\]", pattern):
        raise NotTranslatedError("a part of a pattern that RE2 does not have")
    written = _re2_parts(pattern, any_dot="s" in flags)
    inline = "".join(flag for flag in "is" if flag in flags)
    written = f"(?{inline}){written}" if inline else written
    try:
        compile_pattern(written)
    except PatternError:
        raise NotTranslatedError("a pattern that RE2 does not support") from None
    return written


def _re2_parts(pattern: str, *, any_dot: bool) -> str:
    """The pattern with the parts that have another meaning in RE2 written out."""
    inside = False

    def replaced(match: re.Match[str]) -> str:
        nonlocal inside
        code, escaped, opening, closing, dot, group = match.groups()
        if code is not None:
            return f"\\x{{{code}}}"
        if escaped == "s":
            return _SPACES if inside else SPACE
        if escaped == "S":
            if inside:
                raise NotTranslatedError(r"\S in brackets")
            return f"[^{_SPACES}]"
        if escaped == "/":
            return "/"
        if escaped is not None:
            return match[0]
        if opening is not None:
            found, inside = (r"\[" if inside else opening), True
            return found + (opening[1:] if found == r"\[" else "")
        if closing is not None:
            inside = False
            return closing
        if dot is not None:
            return dot if inside or any_dot else f"[^{_LINE_ENDS}]"
        return match[0] if inside or group is None else "(?P<"

    return _PATTERN_PART.sub(replaced, pattern)
