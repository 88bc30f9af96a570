"""A reply's tokens, and how likely the judge held other scores to be."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from math import exp, log

from gradeline.testing.fake_judge.exchange import Token
from gradeline.testing.fake_judge.forms import Form, Grid
from gradeline.testing.fake_judge.verdicts import Verdict

_TOKEN = re.compile(r" ?[^\W\d_]+|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
_NEGLIGIBLE = 1e-9
_CERTAIN = -1e-6

Likely = tuple[str, float]
"""A text and its probability."""


def count_tokens(text: str) -> int:
    return sum(1 for _ in _TOKEN.finditer(text))


def score_distribution(grid: Grid, score: float, spread: float) -> list[Likely]:
    """How likely each score that can be told is."""
    likely = _probabilities(grid, score, spread)
    return [(json.dumps(grid.number(step)), probability) for step, probability in enumerate(likely)]


def expected_score(grid: Grid, score: float, spread: float) -> float:
    """The mean of the distribution, in 0..1."""
    likely = _probabilities(grid, score, spread)
    return sum(step * probability for step, probability in enumerate(likely)) / (grid.steps - 1)


def _probabilities(grid: Grid, score: float, spread: float) -> list[float]:
    """A normal curve around the judge's opinion, on the steps of the grid."""
    middle = score * (grid.steps - 1)
    width = max(spread * (grid.steps - 1), 1e-3)
    weights = [exp(-(((step - middle) / width) ** 2) / 2) for step in range(grid.steps)]
    if not sum(weights):  # so narrow a curve that it falls between two steps
        weights[grid.nearest(score)] = 1.0
    total = sum(weights)
    return [weight / total for weight in weights]


def label_distribution(form: Form, verdict: Verdict, spread: float) -> list[Likely]:
    """How likely each side of a pair is; the one chosen is the likeliest, if only just."""
    if verdict.winner == "tie":
        return list(zip(form.labels, (0.2, 0.2, 0.6), strict=True))
    chosen = max(0.55, 1 / (1 + exp(-min(abs(verdict.margin) / max(spread, 1e-3), 50.0))))
    first = chosen if verdict.winner == "first" else 1 - chosen
    return [(form.labels[0], first), (form.labels[1], 1 - first)]


def tokenise(text: str, at: int, value: str, likely: Sequence[Likely], *, split: bool) -> tuple[Token, ...]:
    """The tokens of a text; those of the value that starts ``at`` carry alternatives.

    Split, the value is one token for each character, and each character's alternatives are those after the
    characters before it.
    """
    if at < 0:
        return tuple(_certain(found) for found in _TOKEN.findall(text))
    before, after = text[:at], text[at + len(value) :]
    ends = range(1, len(value) + 1) if split else [len(value)]
    middle = [_token(value, start, end if split else None, likely) for start, end in pairwise([0, *ends])]
    return (
        *(_certain(found) for found in _TOKEN.findall(before)),
        *middle,
        *(_certain(found) for found in _TOKEN.findall(after)),
    )


def _certain(text: str) -> Token:
    return Token(text, _CERTAIN)


def _token(value: str, start: int, end: int | None, likely: Sequence[Likely]) -> Token:
    """A part of the value, beside the parts that other texts with the same beginning have in its place."""
    chosen = value[start:end]
    shares: dict[str, float] = {}
    for told, probability in likely:
        part = told[start:end]
        if part and told.startswith(value[:start]):
            shares[part] = shares.get(part, 0.0) + probability
    total = sum(shares.values())
    if not total:
        return _certain(chosen)
    logs = {part: log(share / total) for part, share in shares.items() if share / total > _NEGLIGIBLE}
    ranked = sorted(logs.items(), key=lambda one: (one[1], one[0] == chosen), reverse=True)
    return Token(chosen, logs.get(chosen, log(_NEGLIGIBLE)), tuple(ranked))
