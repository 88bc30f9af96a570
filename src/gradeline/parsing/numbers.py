"""Find the number that is the answer in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

# repetitions are bounded or possessive, to stay linear in untrusted text
_MARKER = re.compile(
    r"\\boxed\s{0,9}\{|####|(?m:^[ \t]{0,9})A:|(?i:\banswer[*_`]{0,3}\s{0,9}(?:is\b|[:=]))",
)
_DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,99}+(?!\d)|\d++)"
_NUMBER = re.compile(
    rf"""
    (?P<sign> (?<![\w.)\]]) [-+−] (?=[$€£¥₹]?\.?\d) )?
    [$€£¥₹]?
    (?P<inner> (?<=[$€£¥₹]) [-−] (?=\.?\d) )?
    (?:
        (?P<whole>\d++)[ ](?P<part>\d++)/(?P<parts>[1-9]\d*+)(?![./]\d)
      | (?<!\d/)(?P<over>{_DIGITS})/(?P<under>\d++)(?![./]\d)
      | (?P<plain> {_DIGITS}(?:\.\d++)? | (?<!\d)\.\d++ ) (?P<exponent>[eE][-+]?\d{{1,9}}(?!\w))?
    )
    """,
    re.VERBOSE,
)
_DIGIT = re.compile(r"\d")
_MAX_LEAD = 4
"""Maximum characters before the first digit of a number, as in -$-.5."""
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_LATEX_NOISE = re.compile(r"\\[,!;: ]|\\\$|\{,\}|\\text\s*\{")
_MAX_DIGITS = 3000
_MAX_EXPONENT = 400
"""Together below the 4,300 digits that Python converts to a string."""
_MAX_SHOWN = 60


class NumberTooLargeError(ValueError):
    """A number with too many digits or too large an exponent."""


def find_number(text: str) -> Fraction | None:
    """The first number after the last answer marker, else the last number; None if there is none.

    Supports thousands separators, currency signs, decimals, exponents, fractions and mixed numbers. A percent sign does
    not scale. A division by zero is not a number.
    """
    if "\\" in text or "{,}" in text:
        text = _LATEX_FRACTION.sub(_plain_fraction, text)
        text = _LATEX_NOISE.sub(lambda found: "$" if found[0] == r"\$" else "", text)
    marker_end = _last_marker_end(text)
    if marker_end is not None:
        for match in _numbers(text, marker_end):
            return _value(match)
    last = None
    for match in _numbers(text):
        last = match
    return _value(last) if last is not None else None


def _numbers(text: str, position: int = 0) -> Iterator[re.Match[str]]:
    """All numbers from a position. Searching for digits first is ten times faster in prose."""
    while digit := _DIGIT.search(text, position):
        match = _NUMBER.search(text, max(position, digit.start() - _MAX_LEAD))
        if match is None:
            return
        yield match
        position = match.end()


def show_number(number: Fraction) -> str:
    """A readable number, truncated if very long."""
    text = _exact(number)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text):,} characters)"


def _exact(number: Fraction) -> str:
    if number.denominator != 1:
        try:
            as_float = number.numerator / number.denominator
        except OverflowError:
            return str(number)
        if Fraction(str(as_float)) == number:
            return repr(as_float)
    return str(number)


def _plain_fraction(found: re.Match[str]) -> str:
    # the space makes 1\frac{1}{2} a mixed number; a sign must stay next to its number
    signed = found.string.endswith(("-", "−", "+"), 0, found.start())
    return f"{'' if signed else ' '}{found[1]}/{found[2]} "


def _last_marker_end(text: str) -> int | None:
    end = None
    for match in _MARKER.finditer(text):
        end = match.end()
    return end


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > _MAX_DIGITS:
        raise NumberTooLargeError(f"a number of {len(match[0]):,} characters is too long (at most {_MAX_DIGITS})")
    if match["whole"]:
        value = Fraction(int(match["whole"])) + Fraction(int(match["part"]), int(match["parts"]))
    elif match["over"]:
        if not int(match["under"]):
            return None
        value = Fraction(int(match["over"].replace(",", "")), int(match["under"]))
    else:
        exponent = match["exponent"] or ""
        if exponent and abs(int(exponent[1:])) > _MAX_EXPONENT:
            raise NumberTooLargeError(f"an exponent of {exponent[1:]} is too large (at most {_MAX_EXPONENT})")
        value = Fraction(match["plain"].replace(",", "") + exponent)
    negative = (match["sign"] or "+") in "-−" or bool(match["inner"])
    return -value if negative else value
