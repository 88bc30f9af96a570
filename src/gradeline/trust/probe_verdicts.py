"""The verdicts of a probe, put together as each test needs them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gradeline.model.probe import ProbeFinding, ProbeName
from gradeline.trust.probe_cases import (
    CONTROL,
    MAX_INJECTED,
    MAX_REPEATED,
    ORIGINAL,
    REPEATS,
    ProbeAnswer,
    change_of,
)
from gradeline.trust.probe_findings import (
    MISSING,
    Canary,
    ChangedPair,
    JudgedAnswer,
    change_finding,
    injection_finding,
    position_finding,
    repeat_finding,
    without_finding,
)
from gradeline.trust.probe_texts import INJECTIONS


class ProbeVerdicts(NamedTuple):
    """The answers of a probe and the verdicts on them. A verdict that was asked for and not given is missing."""

    answers: Sequence[ProbeAnswer]
    asked: frozenset[str]
    """The keys of all cases."""
    judged: Mapping[str, JudgedAnswer]
    """By the keys of the cases."""
    compares: bool
    """Whether the judge is shown two answers."""

    def finding(self, probe: ProbeName) -> ProbeFinding:
        """What these verdicts show about the judge."""
        if probe == "position":
            return self._position()
        if probe == "repeat":
            return repeat_finding(self.repeated, compares=self.compares)
        if probe == "injection":
            return injection_finding(self.canaries, compares=self.compares)
        return change_finding(probe, self.changed(probe))

    def _position(self) -> ProbeFinding:
        if not self.compares:
            return without_finding("position", "not_applicable", "the judge does not choose between two answers")
        originals = self.originals
        if not originals:
            reason = "no case has a second answer; name the run of another version with --baseline"
            return without_finding("position", "not_enough_data", reason)
        return position_finding(originals)

    def of(self, variant: str, answer: ProbeAnswer) -> JudgedAnswer | None:
        """The verdict on a variant of an answer; None if it was not asked for."""
        key = f"{variant}: {answer.sample.case_key}"
        return self.judged.get(key, MISSING) if key in self.asked else None

    @property
    def originals(self) -> list[JudgedAnswer]:
        found = (self.of(ORIGINAL, answer) for answer in self.answers)
        return [one for one in found if one is not None]

    @property
    def repeated(self) -> list[list[JudgedAnswer]]:
        """The verdicts on each answer that was judged several times."""
        variants = [ORIGINAL, *(f"{ORIGINAL} again {number}" for number in range(1, REPEATS + 1))]
        found = ([self.of(variant, answer) for variant in variants] for answer in self.answers[:MAX_REPEATED])
        return [[one for one in verdicts if one is not None] for verdicts in found if None not in verdicts]

    @property
    def canaries(self) -> list[Canary]:
        found = []
        for answer in self.answers[:MAX_INJECTED]:
            control = self.of(CONTROL, answer)
            for method in INJECTIONS:
                injected = self.of(f"{CONTROL} with {method}", answer)
                if control is not None and injected is not None:
                    found.append(Canary(method, control, injected))
        return found

    def changed(self, probe: ProbeName) -> list[ChangedPair]:
        """The pairs of an answer and its changed copy."""
        found = []
        for answer in self.answers:
            change = change_of(probe, answer.text)
            changed = self.of(change, answer)
            if changed is not None:
                original = None if self.compares else self.of(ORIGINAL, answer)
                found.append(ChangedPair(original, changed, -1 if change == "plain" else 1))
        return found
