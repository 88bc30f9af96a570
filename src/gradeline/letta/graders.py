"""The four graders of letta suites with letta's exact rules: a missing ground truth scores 0.0."""

from __future__ import annotations

import re

from gradeline.graders.base import DeclaredGrader, binary_result
from gradeline.model import GradeContext, GradeResult
from gradeline.model.registry import NoOptions
from gradeline.parsing.patterns import compile_python_pattern

NO_ANSWER = "No ground_truth answer provided"
NO_PATTERN = "No ground_truth regex pattern provided"

_PRINTABLE = frozenset(map(chr, range(32, 127))) | {"\n", "\r"}
_LISTED = 5


class ExactMatchGrader(DeclaredGrader[NoOptions]):
    """Compares the submission with the ground truth, both stripped; case-sensitive."""

    kind = "exact_match"
    name = "Exact match"
    scoring_guide = "1.0 when both are equal, else 0.0; without a ground truth 0.0."

    def result(self, ctx: GradeContext) -> GradeResult:
        expected = ctx.expected
        if not expected:
            return binary_result(False, NO_ANSWER)
        matches = ctx.submission.strip() == expected.strip()
        return binary_result(matches, f"Exact match: {matches}")


class ContainsGrader(DeclaredGrader[NoOptions]):
    """Searches the submission for the ground truth; case-insensitive."""

    kind = "contains"
    name = "Contains"
    scoring_guide = "1.0 when the submission contains the ground truth, else 0.0; without a ground truth 0.0."

    def result(self, ctx: GradeContext) -> GradeResult:
        if not ctx.expected:
            return binary_result(False, NO_ANSWER)
        contains = ctx.expected.lower() in ctx.submission.lower()
        return binary_result(contains, f"Contains ground_truth: {contains}")


class RegexMatchGrader(DeclaredGrader[NoOptions]):
    """Searches the submission for the regular expression in the ground truth, in the syntax of Python's re.

    An invalid pattern scores 0.0. A pattern that the linear-time engine does not support raises
    `gradeline.errors.NeedsIsolationError`.
    """

    kind = "regex_match"
    name = "Regex match"
    scoring_guide = "1.0 when the pattern is found, else 0.0; without a pattern, or with an invalid one, 0.0."

    def result(self, ctx: GradeContext) -> GradeResult:
        if not ctx.expected:
            return binary_result(False, NO_PATTERN)
        try:
            pattern = compile_python_pattern(ctx.expected, ctx.submission, consuming=False)
        except re.error as error:
            return binary_result(False, f"Invalid regex pattern: {error}")
        matches = pattern.search(ctx.submission) is not None
        return binary_result(matches, f"Regex match: {matches}")


class AsciiPrintableOnlyGrader(DeclaredGrader[NoOptions]):
    """Checks that the submission contains only printable ASCII and line breaks; tabs are not allowed."""

    kind = "ascii_printable_only"
    name = "ASCII printable only"
    scoring_guide = "1.0 when every character is printable ASCII or a line break, else 0.0; needs no ground truth."

    def result(self, ctx: GradeContext) -> GradeResult:
        strange = [char for char in dict.fromkeys(ctx.submission) if char not in _PRINTABLE]
        if not strange:
            return binary_result(True, "All characters are printable ASCII")
        listed = ", ".join(f"{char!r} (U+{ord(char):04X})" for char in strange[:_LISTED])
        more = f" (+{len(strange) - _LISTED} more)" if len(strange) > _LISTED else ""
        return binary_result(False, f"Characters that are not printable ASCII: {listed}{more}")
