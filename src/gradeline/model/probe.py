"""What the probes of a judge found: whether something other than the quality of an answer moves its verdicts."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

ProbeName = Literal["position", "length", "format", "verbosity", "authority", "self_preference", "injection", "repeat"]
PROBE_NAMES: tuple[ProbeName, ...] = get_args(ProbeName)
ProbeVerdict = Literal["flagged", "not_flagged", "not_enough_data", "not_applicable"]


class ProbeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe found, with the numbers that it is based on."""

    probe: ProbeName
    verdict: ProbeVerdict
    sentence: str
    """The finding in words, with its numbers."""
    reason: str | None = None
    """Why there is not enough data, or why the probe does not apply."""
    test: str | None = None
    """Name of the test that ``p`` is from."""
    p: float | None = None
    effect: float | None = None
    effect_name: str = ""
    """What the effect measures, with its unit."""
    interval: tuple[float, float] | None = None
    """95 % interval of the effect."""
    n: int = 0
    """Pairs, answers or canaries with all verdicts that the probe needs."""
    planned: int = 0
    missing: int = 0
    """Of those planned, the ones for which the judge gave no verdict."""
    named_effect: float | None = None
    """The effect that ``power`` is for."""
    power: float | None = None
    """Chance to flag the named effect with this number of answers."""
    detectable: float | None = None
    """Smallest effect that is flagged with a chance of 80 %."""
    details: dict[str, float | int | str | None] = {}
    """Further numbers of this probe."""


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of the probes of one judge at one time."""

    suite: str
    grader: str
    judges: tuple[str, ...]
    """Adapter IDs of the models that judge."""
    judge: str
    """Fingerprint of the judge, without what it learned from labels."""
    at: str
    source: str
    """Where the answers come from, in words."""
    run: str | None
    """The run whose answers were changed; None: the expected values of the cases."""
    probe_run: str
    """The run that holds the verdicts."""
    seed: int
    pairs: int
    """Maximum number of answers per probe."""
    answers: int
    """Number of answers that were changed."""
    left_out: dict[str, int] = {}
    """Answers that could not be used, by the reason."""
    verdicts: int = 0
    """Number of verdicts that were asked for."""
    errors: int = 0
    """Verdicts that the judge failed to give."""
    cost: float | None = None
    """Cost of the verdicts; None if unknown."""
    findings: tuple[ProbeFinding, ...] = ()

    @property
    def flagged(self) -> tuple[ProbeFinding, ...]:
        """The findings of a bias."""
        return tuple(one for one in self.findings if one.verdict == "flagged")
