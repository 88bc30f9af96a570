"""The score that a judge's log-probabilities expect, where they tell all of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from gradeline.adapters.chat import TokenLogprob
from gradeline.parsing.patterns import compile_pattern, matches

ALTERNATIVES = 20
"""How many alternatives to each token are asked for: the most that OpenAI gives."""
_COMPLETE = 0.98
"""The probability that the known scores must hold together."""
_SCORE = re.compile(r'"score"\s*:\s*(?P<value>-?\d+(?:\.\d+)?)')
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Scale(NamedTuple):
    """The numbers that a judge may say; ``whole`` where a number without a point is all of it."""

    low: float = 0.0
    high: float = 1.0
    whole: bool = False


class Expected(NamedTuple):
    """A score in 0..1, or why there is none."""

    score: float | None
    reason: str | None = None


def json_place(text: str) -> tuple[int, int] | None:
    """Where the one score of a JSON reply stands."""
    found = [match.span("value") for match in _SCORE.finditer(text)]
    return found[0] if len(found) == 1 else None


def pattern_place(pattern: str, text: str) -> tuple[int, int] | None:
    """Where the one rating that a pattern finds stands."""
    found = list(matches(compile_pattern(pattern), text))
    if len(found) != 1:
        return None
    start, end = found[0].span()
    value = found[0].group(1) or ""
    at = text.find(value, start, end)
    return (at, at + len(value)) if value and text.count(value, start, end) == 1 else None


def expected_score(tokens: Sequence[TokenLogprob], text: str, place: tuple[int, int] | None, scale: Scale) -> Expected:
    """The mean of the scores that the score's token might have been, each by its probability.

    A score that is split into several tokens, or alternatives that leave much of the probability out, tell only
    what was said.
    """
    if not tokens:
        return Expected(None, "the judge gave no log-probabilities")
    if place is None:
        return Expected(None, "the place of the score in the reply is not clear")
    token = _token_at(tokens, text, place)
    if token is None:
        return Expected(None, "the score is not one token of the reply")
    likely = [(float(said), exp(logprob)) for said, logprob in _numbers(token, scale)]
    likely = [(value, share) for value, share in likely if scale.low <= value <= scale.high]
    total = sum(share for _, share in likely)
    if total < _COMPLETE:
        return Expected(None, f"the alternatives told hold only {total:.0%} of the probability")
    mean = sum(value * share for value, share in likely) / total
    return Expected(min(1.0, max(0.0, (mean - scale.low) / (scale.high - scale.low))))


def _token_at(tokens: Sequence[TokenLogprob], text: str, place: tuple[int, int]) -> TokenLogprob | None:
    """The token that is the number at the place, but for blanks before it."""
    if "".join(token.token for token in tokens) != text:
        return None
    at = 0
    for token in tokens:
        end = at + len(token.token)
        if end == place[1] and token.token.strip() == text[slice(*place)]:
            return token
        at = end
    return None


def _numbers(token: TokenLogprob, scale: Scale) -> list[tuple[str, float]]:
    """The alternatives that are whole numbers of the scale: a bare ``0`` may be the start of ``0.5``."""
    told = dict(token.top) or {token.token: token.logprob}
    return [
        (said.strip(), logprob)
        for said, logprob in told.items()
        if _NUMBER.fullmatch(said.strip()) and (scale.whole or "." in said)
    ]
