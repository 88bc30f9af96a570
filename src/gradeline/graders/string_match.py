"""Is the answer the expected text?"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from gradeline.errors import NeedsIsolationError, TooLargeError
from gradeline.graders.base import QUADRATIC_CHARS, DeclaredGrader, without_originals
from gradeline.graders.similarity import check_distance
from gradeline.model import Config, GradeContext, GradeResult, described, quote
from gradeline.parsing.unicode import nfc

Mode = Literal["exact", "contains", "starts_with", "ends_with", "fuzzy"]


class StringMatchConfig(Config, frozen=True):
    """Options of `StringMatchGrader`."""

    case_sensitive: Annotated[bool, described("Tell 'Paris' from 'paris'.")] = False
    normalize_whitespace: Annotated[
        bool, described("Strip both texts and collapse runs of white space before comparing.")
    ] = False
    mode: Annotated[Mode, described("How the response must match the expectation.")] = "exact"
    threshold: Annotated[float, described("For mode fuzzy: the similarity from which it passes.", ge=0, le=1)] = 0.9


class StringMatchGrader(DeclaredGrader[StringMatchConfig]):
    """Compares the response with the expected text: equal, contained, prefix, suffix or nearly equal.

    Texts are compared after Unicode NFC; ignoring case means `str.casefold`.
    """

    kind = "string-match"
    name = "String match"
    scoring_guide = (
        "1.0 when the response matches, else 0.0. "
        "Mode fuzzy scores the similarity itself and passes from `threshold` on."
    )

    def result(self, ctx: GradeContext) -> GradeResult:
        graded = self._compared(ctx.submission, ctx.expected)
        details = graded["details"]
        if "error" in details:
            raise TooLargeError(details["reason"])
        return GradeResult(graded["score"], details["reason"], without_originals(details), graded["passed"])

    def compare(self, actual: object, expected: object) -> dict[str, Any]:
        try:
            return self._compared(actual, expected)
        except NeedsIsolationError:
            graded = super().compare(actual, expected)
            graded["details"] |= {"expected_original": expected, "actual_original": actual}
            return graded

    def _compared(self, actual: object, expected: object) -> dict[str, Any]:
        mode = self.options.mode
        score = 0.0
        details: dict[str, Any] = {"mode": mode}
        if not isinstance(actual, str):
            reason = "Empty or null response" if actual is None else _not_text("Response", actual)
        elif not isinstance(expected, str):
            reason = "No expected value" if expected is None else _not_text("Expected value", expected)
        else:
            left, right = self._normal(actual), self._normal(expected)
            if mode == "fuzzy":
                if max(len(left), len(right)) > QUADRATIC_CHARS:
                    reason = f"Mode fuzzy takes texts of at most {QUADRATIC_CHARS:,} characters"
                    details["error"] = TooLargeError.type
                else:
                    from rapidfuzz.fuzz import ratio  # 40 ms, needed in this mode alone

                    check_distance(len(left), len(right))
                    score = ratio(left, right) / 100
                    reason = f"Similarity {score:.3f}, threshold {self.options.threshold:g}"
            elif _matches(mode, left, right):
                score, reason = 1.0, "Response matches the expected value"
            else:
                reason = _MISMATCH[mode]
                if _matches(mode, " ".join(left.split()), " ".join(right.split())):
                    reason = f"{reason}; they differ only in whitespace (normalize_whitespace: true ignores it)"
        passed = score >= self.options.threshold if mode == "fuzzy" else score == 1.0
        details["reason"] = reason
        details["expected_original"] = expected
        details["actual_original"] = actual
        return {"passed": passed and "error" not in details, "score": score, "details": details}

    def _normal(self, text: str) -> str:
        text = nfc(text)
        if self.options.normalize_whitespace:
            text = " ".join(text.split())
        if not self.options.case_sensitive:
            text = text.casefold()
        return text


_MISMATCH = {
    "exact": "Response differs from the expected value",
    "contains": "Response does not contain the expected value",
    "starts_with": "Response does not start with the expected value",
    "ends_with": "Response does not end with the expected value",
}


def _matches(mode: Mode, actual: str, expected: str) -> bool:
    if mode == "exact":
        return actual == expected
    if not expected:
        return False
    if mode == "contains":
        return expected in actual
    return actual.startswith(expected) if mode == "starts_with" else actual.endswith(expected)


def _not_text(what: str, value: object) -> str:
    return f"{what} {quote(value)} is a {type(value).__name__}, not text"
