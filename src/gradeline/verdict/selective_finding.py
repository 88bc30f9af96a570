"""What a run's judge decided, if it decides only the cases that it is sure of, and what labels promise of that."""

from __future__ import annotations

import msgspec

from gradeline.model.learned_judging import SelectiveThreshold


class SelectiveFinding(msgspec.Struct, frozen=True):
    """How many cases a judge decided, and how often its verdicts agree with labels."""

    agreement: float
    """The agreement that the suite requires."""
    promised: bool
    """Whether labels show it for the decided cases."""
    sure: float
    """The probability that the promise holds."""
    labels: int
    """Number of labels that it is from; 0: the judge is not calibrated, and every verdict counts."""
    threshold: float | None
    """The lowest confidence of a verdict that counts."""
    decided: int
    of: int
    """Cases with a verdict, whether it counts or not."""
    second: int
    """Cases that a second judge decided."""
    unsure: int
    """Cases without a verdict that counts."""
    sentence: str

    @property
    def share(self) -> float | None:
        """The share of cases that the judge decided itself; None if there are no cases."""
        return self.decided / self.of if self.of else None


def selective_finding(threshold: SelectiveThreshold, scored: int, second: int, unsure: int) -> SelectiveFinding:
    """The finding on a judge; of the ``scored`` cases, ``second`` were decided by a second judge."""
    decided, of = scored - second, scored + unsure
    return SelectiveFinding(
        agreement=threshold.agreement,
        promised=threshold.promised,
        sure=threshold.sure,
        labels=threshold.labels,
        threshold=threshold.threshold,
        decided=decided,
        of=of,
        second=second,
        unsure=unsure,
        sentence=_sentence(threshold, decided, of, second, unsure),
    )


def _sentence(threshold: SelectiveThreshold, decided: int, of: int, second: int, unsure: int) -> str:
    if not threshold.measured:
        return f"an agreement of {threshold.agreement:g} is not promised: {threshold.reason}, so every verdict counts"
    parts = [f"decided {decided / of * 100:.0f} % ({decided:,} of {of:,})" if of else "decided no case"]
    if second:
        parts.append(f"{second:,} by a second judge")
    if unsure:
        parts.append(f"{unsure:,} unsure (label them with --unsure)")
    if not threshold.promised:
        return f"{', '.join(parts)}: {threshold.reason}"
    share, sure = f"{threshold.agreement * 100:g} %", f"{threshold.sure * 100:g} %"
    promise = f"agrees with labels in at least {share} of decided cases, {sure} sure ({threshold.labels:,} labels)"
    return f"{promise}; {', '.join(parts)}"
