"""Graders that count the words and phrases that answer and reference share: BLEU, GLEU, ROUGE, token F1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import exp, log
from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, UnsetType

from gradeline.errors import Problem, UngradableError
from gradeline.graders.base import QUADRATIC_CHARS, DeclaredGrader
from gradeline.graders.case_values import REFERENCES, Reference, case_texts, reference_faults
from gradeline.model import Config, GradeContext, GradeResult, described
from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.patterns import nfc

_WORD = re.compile(r"\w+")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_GRAM_NS = 400
"""Time to count one phrase."""
_PAIR_NS = 0.3
"""Time of rapidfuzz for each pair of words."""
_SHORT = 1_000
"""Words that can be compared with any text of the allowed size."""
_FLOOR = 1e-7
_ORDERS = 4
"""BLEU and GLEU count phrases of up to this number of words."""

Tokens = Sequence[str]


def squad_normal(text: str) -> str:
    """Lower case, without punctuation, without the articles a, an and the, with single spaces: as SQuAD's script."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def f1(candidate: Tokens, reference: Tokens, size: int = 1) -> float:
    """F1 of the phrases of ``size`` words that both have; the same phrase counts as often as both have it."""
    ours, theirs = _grams(candidate, size), _grams(reference, size)
    if not ours and not theirs:
        return 1.0 if size == 1 else 0.0
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def longest_common_f1(candidate: Tokens, reference: Tokens) -> float:
    """F1 of the longest common subsequence."""
    from rapidfuzz.distance import LCSseq  # 40 ms, only for this score

    # rapidfuzz compares hashes, which may collide for strings; integers are their own hashes
    numbers: dict[str, int] = {}
    left, right = ([numbers.setdefault(word, len(numbers)) for word in words] for words in (candidate, reference))
    if len(left) > _SHORT and too_costly(len(left) * len(right) * _PAIR_NS):
        raise needs_worker(f"the comparison of {len(left):,} with {len(right):,} words")
    common = LCSseq.similarity(left, right)
    return 2 * common / (len(left) + len(right)) if common else 0.0


Smoothing = Literal["floor", "exp", "none"]


def bleu(candidate: Tokens, references: Sequence[Tokens], smoothing: Smoothing = "floor") -> float:
    """Sentence BLEU of up to four words, with the orders for which the candidate is long enough."""
    precisions: list[float] = []
    halvings = 0
    for size in range(1, min(_ORDERS, len(candidate)) + 1):
        ours = _grams(candidate, size)
        allowed: Counter[Tokens] = Counter()
        for reference in references:
            allowed |= _grams(reference, size)
        matches = (ours & allowed).total()
        if size == 1 and not matches:
            return 0.0
        if matches:
            precisions.append(matches / ours.total())
        elif smoothing == "none":
            return 0.0
        elif smoothing == "floor":
            precisions.append(_FLOOR)
        else:
            halvings += 1
            precisions.append(1 / (2**halvings * ours.total()))
    if not precisions:
        return 0.0
    closest = min((abs(len(reference) - len(candidate)), len(reference)) for reference in references)[1]
    brevity = 1.0 if len(candidate) >= closest else exp(1 - closest / len(candidate))
    return brevity * exp(sum(map(log, precisions)) / len(precisions))


def gleu(candidate: Tokens, reference: Tokens) -> float:
    """Google BLEU: the lesser of precision and recall of all phrases of up to four words."""
    ours, theirs = (sum((_grams(words, size) for size in range(1, _ORDERS + 1)), Counter()) for words in
                    (candidate, reference))  # fmt: skip
    longer = max(ours.total(), theirs.total())
    return (ours & theirs).total() / longer if longer else 0.0


def _grams(words: Tokens, size: int) -> Counter[Tokens]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


def _spaced(text: str) -> list[str]:
    return nfc(text).lower().split()


def _without_full_stops(text: str) -> list[str]:
    return [word.rstrip(".") for word in _spaced(text)]


def _words(text: str) -> list[str]:
    return _WORD.findall(nfc(text).lower())


def _squad_tokens(text: str) -> list[str]:
    return squad_normal(nfc(text)).split()


class ReferencesConfig(Config, frozen=True):
    """The reference texts of a grader."""

    references: Annotated[
        Annotated[list[str], Meta(min_length=1)] | Reference | UnsetType,
        described(
            f"Reference texts, or {REFERENCES}; the best one counts (default: the expected text).",
            expected=f"a list of strings, {REFERENCES}",
        ),
    ] = UNSET

    def faults(self) -> Iterator[Problem]:
        yield from reference_faults("references", self.references, "a list of strings")

    def texts(self, ctx: GradeContext, kind: str) -> list[str]:
        """The references of this case; `UngradableError` if there is none."""
        if self.references is UNSET:
            if ctx.expected is None:
                raise UngradableError(f"there is no ground_truth: {kind} needs the expected text there")
            return [ctx.expected]
        found = case_texts(self.references, ctx, "references")
        if not found:
            raise UngradableError(f"references: {self.references} is an empty list")
        return found


class OverlapConfig(ReferencesConfig, frozen=True):
    """Options of graders of overlap."""

    threshold: Annotated[float, described("Minimum score to pass (default 0.5).", ge=0, le=1)] = 0.5


C = TypeVar("C", bound=OverlapConfig)


class _OverlapGrader(DeclaredGrader[C], Generic[C]):
    max_chars = QUADRATIC_CHARS

    def result(self, ctx: GradeContext) -> GradeResult:
        references = [self.tokens(text) for text in self.options.texts(ctx, self.kind)]
        candidate = self.tokens(ctx.submission)
        counted = (len(candidate) + sum(map(len, references))) * _ORDERS
        if too_costly(counted * _GRAM_NS):
            raise needs_worker(f"counting the phrases of {counted:,} words")
        score = min(1.0, self.score(candidate, references))
        threshold = self.options.threshold
        return GradeResult(score, f"{self.title} {score:.3f}, threshold {threshold:g}", {}, score >= threshold)

    @property
    def title(self) -> str:
        return self.name

    def tokens(self, text: str) -> Tokens:
        raise NotImplementedError

    def score(self, candidate: Tokens, references: Sequence[Tokens]) -> float:
        raise NotImplementedError


def _best(score: Callable[[Tokens, Tokens], float], candidate: Tokens, references: Sequence[Tokens]) -> float:
    return max(score(candidate, reference) for reference in references)


class BleuConfig(OverlapConfig, frozen=True):
    """Options of `BleuGrader`."""

    smoothing: Annotated[
        Smoothing,
        described(
            "What a phrase length without a match counts as. floor (default): 1e-7. exp: 1/2, 1/4, … of one match, as "
            "sacrebleu does. none: 0, and so the score."
        ),
    ] = "floor"


class BleuGrader(_OverlapGrader[BleuConfig]):
    """Scores the phrases of one to four words of the response that the references have: sentence BLEU.

    Words are separated by whitespace and compared in lower case. Phrase lengths for which the response is too short
    are left out. A response shorter than the reference closest in length is penalized.
    """

    kind = "bleu"
    name = "BLEU"
    scoring_guide = "Sentence BLEU, 0.0 to 1.0; passes from `threshold` on."

    def tokens(self, text: str) -> Tokens:
        return _spaced(text)

    def score(self, candidate: Tokens, references: Sequence[Tokens]) -> float:
        return bleu(candidate, references, self.options.smoothing)


class GleuGrader(_OverlapGrader[OverlapConfig]):
    """Scores the phrases of one to four words that response and reference share: Google BLEU, for single sentences.

    Words are separated by whitespace and compared in lower case, without full stops at their end.
    """

    kind = "gleu"
    name = "GLEU"
    scoring_guide = "The lesser of precision and recall, 0.0 to 1.0, of the best reference; passes from `threshold` on."

    def tokens(self, text: str) -> Tokens:
        return _without_full_stops(text)

    def score(self, candidate: Tokens, references: Sequence[Tokens]) -> float:
        return _best(gleu, candidate, references)


class RougeConfig(OverlapConfig, frozen=True):
    """Options of `RougeGrader`."""

    variant: Annotated[
        Literal["l"] | Annotated[int, Meta(ge=1, le=9)],
        described(
            "l (default): words in the same order. 1, 2, …: phrases of this number of words.",
            expected="l or a number from 1 to 9",
        ),
    ] = "l"


class RougeGrader(_OverlapGrader[RougeConfig]):
    """Scores the words or phrases that response and expected text share: ROUGE-L or ROUGE-N, its F1.

    ROUGE-L counts the longest sequence of words that both have in the same order. A word is a run of letters, digits
    and underscores of any script, in lower case and without stemming. Texts without a word score 0.0.
    """

    kind = "rouge"
    name = "ROUGE"
    scoring_guide = "The F1 of the words or phrases that both have, 0.0 to 1.0; passes from `threshold` on."

    @property
    def title(self) -> str:
        return f"ROUGE-{str(self.options.variant).upper()} F1"

    def tokens(self, text: str) -> Tokens:
        return _words(text)

    def score(self, candidate: Tokens, references: Sequence[Tokens]) -> float:
        variant = self.options.variant
        if variant == "l":
            return _best(longest_common_f1, candidate, references)
        return max(f1(candidate, words, variant) if candidate and words else 0.0 for words in references)


class TokenF1Grader(_OverlapGrader[OverlapConfig]):
    """Scores the words that response and reference share, as SQuAD's script does: token F1.

    Both are in lower case, without punctuation and without the articles a, an and the. Two texts without other words
    are equal.
    """

    kind = "token_f1"
    name = "Token F1"
    scoring_guide = "The F1 of the words that both have, 0.0 to 1.0, of the best reference; passes from `threshold` on."

    def tokens(self, text: str) -> Tokens:
        return _squad_tokens(text)

    def score(self, candidate: Tokens, references: Sequence[Tokens]) -> float:
        return _best(f1, candidate, references)
