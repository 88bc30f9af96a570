"""Which results of a run to label, and with which probability each of them is drawn.

The order of a sample is a function of its seed and of the results: a larger sample with the same seed contains the
smaller one, and two people who draw it get the same results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from gradeline.model.label import SamplingMethod

MAX_SEED = 2**53 - 1
RARE_VERDICT = 0.2
"""A verdict with a smaller share gets half of the sample, unless a method is chosen."""
NO_VERDICT = "none"
"""The stratum of results that the judge gave no verdict on."""


class SampledResult(NamedTuple):
    """A result that can be labelled."""

    case: str
    repeat: int
    stratum: str = ""
    """The judge's verdict: ``pass``, ``fail`` or ``none``; empty if the question has no grader."""
    disagreement: float = 0.0
    """How much the judges of this result disagree, from 0 to 1."""
    unsure: bool = False
    """Whether a selective judge left the result to people."""

    @property
    def key(self) -> tuple[str, int]:
        return self.case, self.repeat


class Drawn(NamedTuple):
    """A result of a sample, in the order in which the sample is labelled."""

    case: str
    repeat: int
    stratum: str
    stratum_size: int
    probability: float | None
    """The probability with which it was drawn; None if that is not known."""


def suggested_method(candidates: Sequence[SampledResult]) -> SamplingMethod:
    """Stratified if one of the judge's verdicts is rare, so that few labels would be about it; else random."""
    sizes = Counter(one.stratum for one in candidates)
    judged = sizes["pass"] + sizes["fail"]
    rarest = min(sizes["pass"], sizes["fail"])
    return "stratified" if 0 < rarest < RARE_VERDICT * judged else "random"


def draw(
    candidates: Sequence[SampledResult],
    size: int,
    seed: int,
    method: SamplingMethod,
    earlier: Collection[tuple[str, int]] = (),
) -> list[Drawn]:
    """Draw a sample of at most ``size`` results; those of an ``earlier``, smaller sample keep their places.

    random        each result with the same probability
    stratified    half of the sample from each of the judge's verdicts, results without one by their share
    disagreement  those that judges disagree on most, the rest at random; probabilities are unknown
    unsure        only those that a selective judge is not sure of; probabilities are unknown
    """
    if size < 1:
        raise ValueError(f"invalid sample size {size}: draw 1 result or more")
    sizes = Counter(one.stratum for one in candidates)
    chosen = _stratified(candidates, size, seed, sizes) if method == "stratified" else None
    if chosen is None:
        asked = [one for one in candidates if one.unsure] if method == "unsure" else candidates
        ordered = sorted(asked, key=lambda one: _place(seed, one))
        if method == "disagreement":
            ordered.sort(key=lambda one: -one.disagreement)
        chosen = ordered[:size]
    taken = Counter(one.stratum for one in chosen)
    kept = {key: place for place, key in enumerate(earlier)}
    chosen.sort(key=lambda one: kept.get(one.key, len(kept)))
    return [
        Drawn(*one.key, one.stratum, sizes[one.stratum], _probability(method, one.stratum, taken, sizes))
        for one in chosen
    ]


def _probability(
    method: SamplingMethod, stratum: str, taken: Mapping[str, int], sizes: Mapping[str, int]
) -> float | None:
    if method in ("disagreement", "unsure"):
        return None
    if method == "stratified":
        return taken[stratum] / sizes[stratum]
    return sum(taken.values()) / sum(sizes.values())


def _stratified(
    candidates: Sequence[SampledResult], size: int, seed: int, sizes: Mapping[str, int]
) -> list[SampledResult]:
    shares = allocate(size, sizes)
    chosen: list[SampledResult] = []
    for stratum, share in shares.items():
        members = sorted((one for one in candidates if one.stratum == stratum), key=lambda one: _place(seed, one))
        chosen += members[:share]
    # in another random order than that of drawing, so that a sample that is only begun has results of every stratum
    return sorted(chosen, key=lambda one: _place(seed, one, "order"))


def allocate(size: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """How many results to draw of each stratum: those without a verdict by their share, the rest in halves.

    A verdict with fewer results than its half is drawn completely, and the other one gets the rest.
    """
    population = sum(sizes.values())
    size = min(size, population)
    others = {stratum: round(size * n / population) for stratum, n in sorted(sizes.items()) if stratum not in _VERDICTS}
    rest = max(size - sum(others.values()), 0)
    failed = min(sizes.get("fail", 0), max(rest // 2, rest - sizes.get("pass", 0)))
    passed = min(sizes.get("pass", 0), rest - failed)
    return {"pass": passed, "fail": failed, **others}


_VERDICTS = ("pass", "fail")


def _place(seed: int, one: SampledResult, purpose: str = "draw") -> bytes:
    return blake2b(f"{purpose}\0{seed}\0{one.repeat}\0{one.case}".encode(), digest_size=16).digest()
