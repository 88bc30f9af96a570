"""The expected score of a judge's reply, from the log-probabilities of its tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import exp
from typing import NamedTuple, Protocol

from gradeline.adapters.chat import TokenLogprob
from gradeline.parsing.patterns import compile_pattern, matches

ALTERNATIVES = 20
"""Number of alternatives to request for each token: the maximum of OpenAI."""
_COMPLETE = 0.98
"""Minimum total probability of the returned alternatives."""
_SCORE = re.compile(r'"score"\s*:\s*(?P<value>-?\d+(?:\.\d+)?)')
_LABEL = re.compile(r'"label"\s*:\s*"(?P<value>[^"\\]*)"')
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Scores(Protocol):
    """What the tokens of a reply are worth."""

    def score_of(self, text: str) -> float | None:
        """The score in 0..1 of a complete verdict; None for text that is none, or that may begin a longer one."""


class Scale(NamedTuple):
    """The range of a judge's scores; ``whole``: only integers are valid."""

    low: float = 0.0
    high: float = 1.0
    whole: bool = False

    def score_of(self, text: str) -> float | None:
        # unless only integers are valid, ``0`` may begin ``0.5``
        if not _NUMBER.fullmatch(text) or not (self.whole or "." in text):
            return None
        value = float(text)
        return (value - self.low) / (self.high - self.low) if self.low <= value <= self.high else None


class LabelScores(NamedTuple):
    """The scores of labels by their case-folded text."""

    scores: Mapping[str, float]

    def score_of(self, text: str) -> float | None:
        label = text.casefold()
        longer = any(other != label and other.startswith(label) for other in self.scores)
        return None if longer else self.scores.get(label)


class ExpectedScore(NamedTuple):
    """A score in 0..1, or the reason why there is none."""

    score: float | None
    reason: str | None = None


def json_score_span(text: str) -> tuple[int, int] | None:
    """Start and end of the score in a JSON reply; None unless there is exactly one."""
    found = [match.span("value") for match in _SCORE.finditer(text)]
    return found[0] if len(found) == 1 else None


def json_label_span(text: str) -> tuple[int, int] | None:
    """Start and end of the label in a JSON reply; None unless there is exactly one."""
    found = [match.span("value") for match in _LABEL.finditer(text)]
    return found[0] if len(found) == 1 else None


def pattern_score_span(pattern: str, text: str) -> tuple[int, int] | None:
    """Start and end of the rating that a pattern finds; None unless there is exactly one."""
    found = list(matches(compile_pattern(pattern), text))
    if len(found) != 1:
        return None
    start, end = found[0].span()
    value = found[0].group(1) or ""
    at = text.find(value, start, end)
    return (at, at + len(value)) if value and text.count(value, start, end) == 1 else None


def expected_score(
    tokens: Sequence[TokenLogprob], text: str, span: tuple[int, int] | None, scores: Scores
) -> ExpectedScore:
    """The mean of the alternatives to the score's token, weighted by probability.

    There is none if the score spans several tokens, or if the alternatives cover too little of the probability.
    """
    if not tokens:
        return ExpectedScore(None, "the judge returned no log-probabilities")
    if span is None:
        return ExpectedScore(None, "the reply does not contain exactly one score")
    token = _token_at(tokens, text, span)
    if token is None:
        return ExpectedScore(None, "the score is not one token of the reply")
    alternatives = dict(token.top) or {token.token: token.logprob}
    found = [(scores.score_of(text.strip()), exp(logprob)) for text, logprob in alternatives.items()]
    likely = [(score, share) for score, share in found if score is not None]
    total = sum(share for _, share in likely)
    if total < _COMPLETE:
        return ExpectedScore(None, f"the returned alternatives cover only {total:.0%} of the probability")
    mean = sum(score * share for score, share in likely) / total
    return ExpectedScore(min(1.0, max(0.0, mean)))


def _token_at(tokens: Sequence[TokenLogprob], text: str, span: tuple[int, int]) -> TokenLogprob | None:
    """The token at the span, except for whitespace around it."""
    if "".join(token.token for token in tokens) != text:
        return None
    at = 0
    for token in tokens:
        end = at + len(token.token)
        if end == span[1] and token.token.strip() == text[slice(*span)]:
            return token
        at = end
    return None
