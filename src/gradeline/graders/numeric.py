"""Grader of numeric answers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from sys import float_info
from typing import Annotated, Any

from gradeline.errors import UngradableError
from gradeline.graders.base import DeclaredGrader, binary_result
from gradeline.model import Config, GradeContext, GradeResult, described, quote
from gradeline.parsing.numbers import NumberTooLargeError, find_number, show_number


class NumericConfig(Config, frozen=True):
    """Options of `NumericGrader`."""

    tolerance: Annotated[
        float,
        described("Maximum difference, absolute or (with `relative`) as a share (default 0).", ge=0, le=float_info.max),
    ] = 0.0
    relative: Annotated[bool, described("Tolerance is relative to the expected number: 0.01 is one percent.")] = False


class NumericGrader(DeclaredGrader[NumericConfig]):
    """Compares the final number in the response with the expected number.

    The final number is the first one after the last answer marker (``####``, ``A:``, ``\\boxed{``, "the answer is"),
    or else the last number. Numbers are compared exactly, as fractions; a percent sign does not scale, and a division
    by zero such as 1/0 is not a number.
    """

    kind = "numeric"
    name = "Numeric"
    scoring_guide = (
        "1.0 when the numbers are equal or within the tolerance, else 0.0; a response without a number scores 0.0."
    )
    version = 2
    local_chars = 80_000  # up to 580 ns each, where every other character is a number

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(grader_id, config)
        # through its text: 0.1 means a tenth, not the nearest double
        self._tolerance = Fraction(str(self.options.tolerance))

    def result(self, ctx: GradeContext) -> GradeResult:
        expected = _expected(ctx.expected)
        number = _read(ctx.submission, "submission")
        shown = {"expected": show_number(expected)}
        if number is None:
            return binary_result(False, f"no number found, expected {shown['expected']}", shown)
        shown["number"] = show_number(number)
        allowed = self._tolerance * abs(expected) if self.options.relative else self._tolerance
        return binary_result(
            abs(number - expected) <= allowed,
            f"got {shown['number']}, expected {shown['expected']}{self._bounds()}",
            shown,
        )

    def _bounds(self) -> str:
        if not self._tolerance:
            return ""
        return f" (tolerance {self.options.tolerance:g}{' relative' if self.options.relative else ''})"


def _expected(truth: str | None) -> Fraction:
    if truth is None:
        raise UngradableError("there is no ground_truth: numeric needs the expected number there")
    number = _read(truth, "ground_truth")
    if number is None:
        raise UngradableError(f"the ground_truth {quote(truth)} contains no number")
    return number


def _read(text: str, what: str) -> Fraction | None:
    try:
        return find_number(text)
    except NumberTooLargeError as error:
        raise UngradableError(f"the {what} {quote(text, 80)}: {error}") from None
