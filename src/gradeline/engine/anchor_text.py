"""What anchors showed, in sentences."""

from __future__ import annotations

from math import sqrt

from gradeline.model.anchors import AnchorCheck, AnchorSet, ProcessEvidence
from gradeline.verdict.drift import CaseDifferences, threshold

_MUCH = 1_000
_WORTH_ASKING = 0.05
"""A mean difference of the scores from which it is worth asking why, if it also is that many standard errors."""
_ERRORS = 3.0


def headline(check: AnchorCheck) -> str:
    """The answer in a sentence."""
    since = "" if check.onset is None else f" since {check.onset[:10]}"
    if check.answer == "judge":
        return f"the judge changed{since}: scores before and after are not comparable"
    if check.answer == "system":
        better = check.moved is not None and check.moved > 0
        return f"the system changed{since}: it is {'better' if better else 'worse'}, and the judge is the same"
    return "no change of judge or system is shown"


def judge_sentence(check: AnchorCheck, anchors: AnchorSet) -> str:
    """``21 of 60 anchors have another score (mean change -0.310); evidence 812, alarm at 40``."""
    if not check.judged:
        return f"none of {len(anchors.anchors)} anchors has been judged again"
    counted = f"{check.judged} of {len(anchors.anchors)} anchors judged again"
    shift = "" if check.shift is None else f" (mean change {check.shift:+.3f})"
    return f"{counted}, {check.changed} have another score{shift}; {_evidence(check.judge)}"


def system_sentence(check: AnchorCheck) -> str:
    """``scores of the runs moved by -0.210; evidence 120, alarm at 40``."""
    if check.moved is None:
        return "no run since then has cases of the reference run"
    moved = f"scores of the latest run moved by {check.moved:+.3f} from the reference run"
    return f"{moved}; {_evidence(check.system)}"


def advice(check: AnchorCheck) -> str | None:
    """What to do next; None where there is nothing to do."""
    if check.answer == "judge":
        return "calibrate the judge again on new labels, then freeze answers of a new run"
    if check.answer == "system":
        return "compare the runs; then freeze answers of a run of the changed system"
    if _moved(check):
        return "the scores moved, and too few anchors were judged since to say why: gradeline anchors check --all"
    return None


def _moved(check: AnchorCheck) -> bool:
    """Whether the run's scores differ from the reference run by more than chance explains."""
    cases = CaseDifferences(check.cases, check.reference_error)
    if cases.mean is None:
        return check.moved is not None and abs(check.moved) >= _WORTH_ASKING
    error = sqrt(cases.variance / cases.cases + (check.reference_error or 0.0) ** 2)
    return abs(cases.mean) >= max(_WORTH_ASKING, _ERRORS * error)


def _evidence(process: ProcessEvidence) -> str:
    alarmed = "" if process.alarm is None else f", alarmed {process.alarm[:16].replace('T', ' ')}"
    evidence = f"{process.evidence:.1f}" if process.evidence < _MUCH else f"above {_MUCH:,}"
    return f"evidence {evidence} (alarm at {threshold():g}){alarmed}"
