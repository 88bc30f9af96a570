"""How much alike are two texts? By characters, or by words in their order."""

from __future__ import annotations

import re
from typing import Annotated

from gradeline.errors import UngradableError
from gradeline.graders.base import QUADRATIC_CHARS, DeclaredGrader
from gradeline.model import Config, GradeContext, GradeResult, described
from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.unicode import nfc

_WORD = re.compile(r"\w+")
_CHAR_NS = 0.05
_WORD_NS = 0.3
"""What rapidfuzz takes for each pair of characters, and of words."""
_SHORT = 1_000
"""Characters or words that can be compared with any text of the allowed size."""


def check_distance(left: int, right: int, pair_ns: float = _CHAR_NS) -> None:
    """`NeedsIsolationError` where texts of these lengths take too long to compare in this process."""
    if too_costly(left * right * pair_ns):
        raise needs_worker(f"the comparison of {left:,} with {right:,} characters or words")


class SimilarityConfig(Config, frozen=True):
    """Options of `SimilarityGrader`."""

    case_sensitive: Annotated[bool, described("Tell 'Paris' from 'paris'.")] = True
    threshold: Annotated[float, described("The similarity from which it passes.", ge=0, le=1)] = 0.8


class SimilarityGrader(DeclaredGrader[SimilarityConfig]):
    """Scores how alike response and expected text are, character by character.

    The score is rapidfuzz's ``fuzz.ratio`` / 100 of both texts after Unicode NFC: 1.0 when they are
    equal, 0.0 when they share no character.
    """

    kind = "similarity"
    name = "Similarity"
    scoring_guide = "The similarity itself, 0.0 to 1.0; passes from `threshold` on."
    max_chars = QUADRATIC_CHARS

    def result(self, ctx: GradeContext) -> GradeResult:
        from rapidfuzz.fuzz import ratio  # 40 ms, needed by this grader alone

        actual, expected = nfc(ctx.submission), nfc(_expected(ctx, self.kind))
        if not self.options.case_sensitive:
            actual, expected = actual.casefold(), expected.casefold()
        if len(actual) > _SHORT:
            check_distance(len(actual), len(expected))
        return _graded("Similarity", ratio(actual, expected) / 100, self.options.threshold)


class RougeConfig(Config, frozen=True):
    """Options of `RougeGrader`."""

    threshold: Annotated[float, described("The score from which it passes.", ge=0, le=1)] = 0.5


class RougeGrader(DeclaredGrader[RougeConfig]):
    """Scores the words that response and expected text share in the same order: ROUGE-L, its F1.

    A word is a run of letters, digits and underscores of any script, in lower case and without
    stemming. Texts without a word score 0.0.
    """

    kind = "rouge"
    name = "ROUGE-L"
    scoring_guide = "The F1 of the longest common subsequence of words, 0.0 to 1.0; passes from `threshold` on."
    max_chars = QUADRATIC_CHARS

    def result(self, ctx: GradeContext) -> GradeResult:
        from rapidfuzz.distance import LCSseq  # 40 ms, needed by this grader alone

        expected, actual = _words(_expected(ctx, self.kind)), _words(ctx.submission)
        # rapidfuzz compares hashes of texts, which may collide; numbers are their own
        numbers: dict[str, int] = {}
        left, right = ([numbers.setdefault(word, len(numbers)) for word in words] for words in (actual, expected))
        if len(left) > _SHORT:
            check_distance(len(left), len(right), _WORD_NS)
        common = LCSseq.similarity(left, right)
        score = 2 * common / (len(left) + len(right)) if common else 0.0
        return _graded("ROUGE-L F1", score, self.options.threshold)


def _words(text: str) -> list[str]:
    return _WORD.findall(nfc(text).lower())


def _expected(ctx: GradeContext, kind: str) -> str:
    if ctx.expected is None:
        raise UngradableError(f"there is no ground_truth: {kind} needs the expected text there")
    return ctx.expected


def _graded(what: str, score: float, threshold: float) -> GradeResult:
    return GradeResult(score, f"{what} {score:.3f}, threshold {threshold:g}", {}, score >= threshold)
