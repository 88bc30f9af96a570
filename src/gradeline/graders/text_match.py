"""Graders that compare the answer with an expected text: string match, true/false, similarity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from gradeline.errors import NeedsIsolationError, Problem, TooLargeError, UngradableError
from gradeline.graders.base import QUADRATIC_CHARS, DeclaredGrader, drop_originals
from gradeline.graders.text_overlap import ReferencesConfig, squad_normal
from gradeline.model import Config, GradeContext, GradeResult, described, quote
from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.patterns import nfc

_CHAR_NS = 0.05
"""Time of rapidfuzz for each pair of characters."""
_SHORT = 1_000
"""Characters that can be compared with any text of the allowed size."""


def check_distance(left: int, right: int) -> None:
    """Raise `NeedsIsolationError` if comparing texts of these lengths takes too long for this process."""
    if too_costly(left * right * _CHAR_NS):
        raise needs_worker(f"the comparison of {left:,} with {right:,} characters")


class SimilarityConfig(Config, frozen=True):
    """Options of `SimilarityGrader`."""

    case_sensitive: Annotated[bool, described("Distinguish upper and lower case.")] = True
    threshold: Annotated[float, described("Minimum similarity to pass (default 0.8).", ge=0, le=1)] = 0.8


class SimilarityGrader(DeclaredGrader[SimilarityConfig]):
    """Scores the similarity of response and expected text, character by character.

    The score is rapidfuzz's ``fuzz.ratio`` / 100 of both texts after Unicode NFC: 1.0 when they are
    equal, 0.0 when they share no character.
    """

    kind = "similarity"
    name = "Similarity"
    scoring_guide = "The similarity itself, 0.0 to 1.0; passes from `threshold` on."
    max_chars = QUADRATIC_CHARS

    def result(self, ctx: GradeContext) -> GradeResult:
        from rapidfuzz.fuzz import ratio  # 40 ms, only for this grader

        actual, expected = nfc(ctx.submission), nfc(_expected(ctx, self.kind))
        if not self.options.case_sensitive:
            actual, expected = actual.casefold(), expected.casefold()
        if len(actual) > _SHORT:
            check_distance(len(actual), len(expected))
        return _graded("Similarity", ratio(actual, expected) / 100, self.options.threshold)


def _expected(ctx: GradeContext, kind: str) -> str:
    if ctx.expected is None:
        raise UngradableError(f"there is no ground_truth: {kind} needs the expected text there")
    return ctx.expected


def _graded(what: str, score: float, threshold: float) -> GradeResult:
    return GradeResult(score, f"{what} {score:.3f}, threshold {threshold:g}", {}, score >= threshold)


Mode = Literal["exact", "contains", "starts_with", "ends_with", "fuzzy", "normalized"]


class StringMatchConfig(ReferencesConfig, frozen=True):
    """Options of `StringMatchGrader`."""

    case_sensitive: Annotated[
        bool, described("Distinguish upper and lower case (default false; mode normalized never does).")
    ] = False
    normalize_whitespace: Annotated[bool, described("Strip both texts and collapse runs of whitespace.")] = False
    mode: Annotated[
        Mode,
        described(
            "Kind of match (default exact). normalized: equal without case, punctuation, articles and extra "
            "whitespace, as in SQuAD's script."
        ),
    ] = "exact"
    threshold: Annotated[float, described("For mode fuzzy: minimum similarity to pass (default 0.9).", ge=0, le=1)] = (
        0.9
    )


class StringMatchGrader(DeclaredGrader[StringMatchConfig]):
    """Compares the response with the expected text: equal, contained, prefix, suffix, nearly equal or normalized equal.

    Texts are compared after Unicode NFC; ignoring case means `str.casefold`.
    """

    kind = "string-match"
    name = "String match"
    scoring_guide = (
        "1.0 when the response matches, else 0.0. "
        "Mode fuzzy scores the similarity itself and passes from `threshold` on."
    )

    def result(self, ctx: GradeContext) -> GradeResult:
        if self.options.references is UNSET:
            graded = self._compared(ctx.submission, ctx.expected)
        else:
            texts = self.options.texts(ctx, self.kind)
            graded = max((self._compared(ctx.submission, text) for text in texts), key=lambda found: found["score"])
        details = graded["details"]
        if "error" in details:
            raise TooLargeError(details["reason"])
        return GradeResult(graded["score"], details["reason"], drop_originals(details), graded["passed"])

    def compare(self, actual: object, expected: object) -> dict[str, Any]:
        if self.options.references is not UNSET:
            return super().compare(actual, expected)
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
                    from rapidfuzz.fuzz import ratio  # 40 ms, only for this mode

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
        if self.options.mode == "normalized":
            return squad_normal(text)
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
    "normalized": "Response differs from the expected value",
}


def _matches(mode: Mode, actual: str, expected: str) -> bool:
    if mode in ("exact", "normalized"):
        return actual == expected
    if not expected:
        return False
    if mode == "contains":
        return expected in actual
    return actual.startswith(expected) if mode == "starts_with" else actual.endswith(expected)


def _not_text(what: str, value: object) -> str:
    return f"{what} {quote(value)} is a {type(value).__name__}, not text"


DEFAULT_ALIASES: dict[str, tuple[str, ...]] = {"true": ("true", "yes", "1"), "false": ("false", "no", "0")}


class TrueFalseConfig(Config, frozen=True):
    """Options of `TrueFalseGrader`."""

    aliases: Annotated[
        dict[str, list[str]] | UnsetType,
        described("Additional words besides true/yes/1 and false/no/0: {true: [...], false: [...]}."),
    ] = UNSET
    case_sensitive: Annotated[bool, described("Distinguish upper and lower case.")] = False

    def faults(self) -> Iterator[Problem]:
        if self.aliases is UNSET:
            return
        missing = [side for side in ("true", "false") if side not in self.aliases]
        strange = [side for side in self.aliases if side not in DEFAULT_ALIASES]
        if missing or strange:
            yield Problem("aliases", f"needs a list under 'true' and one under 'false', got {quote(self.aliases)}")
            return
        true, false = (self.words(side) for side in ("true", "false"))
        for word in sorted(true & false):
            yield Problem("aliases", f"{word!r} is listed for both true and false")

    def words(self, side: str) -> set[str]:
        """All words for one truth value, normalized."""
        words = (*DEFAULT_ALIASES[side], *({} if self.aliases is UNSET else self.aliases).get(side, ()))
        return {word.strip() if self.case_sensitive else word.strip().lower() for word in words}


class TrueFalseGrader(DeclaredGrader[TrueFalseConfig]):
    """Reads response and expectation as booleans and compares them.

    "Yes" and "true" match; any other answer fails, and the reason says so.
    """

    kind = "true-false"
    name = "True / false"
    scoring_guide = "1.0 when both have the same truth value, else 0.0; an answer without a truth value scores 0.0."

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(grader_id, config)
        options = self.options
        if any(options.faults()):
            options = TrueFalseConfig(case_sensitive=options.case_sensitive)
        self._fold = not options.case_sensitive
        self._values = {word: side for side in ("true", "false") for word in options.words(side)}

    def result(self, ctx: GradeContext) -> GradeResult:
        graded = self.compare(ctx.submission, ctx.expected)
        details = graded["details"]
        return GradeResult(graded["score"], details["reason"], drop_originals(details), graded["passed"])

    def compare(self, actual: object, expected: object) -> dict[str, Any]:
        expected_bool, expected_fault = self._read(expected, "Expected value")
        actual_bool, actual_fault = self._read(actual, "Response")
        fault = actual_fault or expected_fault
        passed = False
        if fault:
            status, reason = "invalid_response", fault
        elif actual_bool == expected_bool:
            passed = True
            status, reason = "match", "Expected and actual values match"
        else:
            status, reason = "mismatch", f"Expected {expected_bool} but got {actual_bool}"
        return {
            "passed": passed,
            "score": 1.0 if passed else 0.0,
            "details": {
                "expected_bool": expected_bool,
                "actual_bool": actual_bool,
                "match_status": status,
                "reason": reason,
                "expected_original": expected,
                "actual_original": actual,
            },
        }

    def _read(self, value: object, what: str) -> tuple[str | None, str | None]:
        """The truth value as "true" or "false", or the reason why there is none."""
        if value is True or value is False:
            value = "true" if value else "false"
        if value is None:
            return None, f"Empty or null {what.lower()}"
        if not isinstance(value, str):
            return None, f"{what} {quote(value)} is a {type(value).__name__}, not text"
        word = value.strip()
        if not word:
            return None, f"Empty or null {what.lower()}"
        found = self._values.get(word.lower() if self._fold else word)
        if found is None:
            return None, f"{what} {quote(value)} does not represent a boolean value"
        return found, None
