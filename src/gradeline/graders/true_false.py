"""Does the answer mean the same truth value as the expectation?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.graders.base import DeclaredGrader, without_originals
from gradeline.model import Config, GradeContext, GradeResult, described, quote

DEFAULT_ALIASES: dict[str, tuple[str, ...]] = {"true": ("true", "yes", "1"), "false": ("false", "no", "0")}


class TrueFalseConfig(Config, frozen=True):
    """Options of `TrueFalseGrader`."""

    aliases: Annotated[
        dict[str, list[str]] | UnsetType,
        described("Further words for each value, beside true/yes/1 and false/no/0: {true: [...], false: [...]}."),
    ] = UNSET
    case_sensitive: Annotated[bool, described("Tell 'Yes' from 'yes'.")] = False

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
            yield Problem("aliases", f"{word!r} stands for both true and false")

    def words(self, side: str) -> set[str]:
        """Every word for one truth value, as responses are compared with it."""
        words = (*DEFAULT_ALIASES[side], *({} if self.aliases is UNSET else self.aliases).get(side, ()))
        return {word.strip() if self.case_sensitive else word.strip().lower() for word in words}


class TrueFalseGrader(DeclaredGrader[TrueFalseConfig]):
    """Reads response and expectation as booleans and compares them.

    "Yes" and "true" match; what is neither true nor false fails, and the reason says so.
    """

    kind = "true-false"
    name = "True / false"
    scoring_guide = "1.0 when both mean the same truth value, else 0.0; an answer that is no truth value scores 0.0."

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
        return GradeResult(graded["score"], details["reason"], without_originals(details), graded["passed"])

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
        """The truth value as "true" or "false", or what is wrong with it."""
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
