"""Texts that look alike compared alike."""

from __future__ import annotations

from unicodedata import normalize

from gradeline.model import clean_text
from gradeline.parsing.patterns import compile_trusted_pattern


def nfc(text: str) -> str:
    """Unicode NFC in linear time.

    Python orders the marks behind a letter in quadratic time, so a text with a longer run of
    them than any language has (Unicode's own bound is 30) stays as it is.
    """
    if text.isascii() or compile_trusted_pattern(r"\p{M}{31}").search(clean_text(text).text):
        return text
    return normalize("NFC", text)
