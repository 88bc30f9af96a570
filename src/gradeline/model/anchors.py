"""Anchors: answers of a run that were frozen with the judge's scores of them, and later scores of the same answers."""

from __future__ import annotations

import msgspec

from gradeline.model.response import Response
from gradeline.model.sample import Sample

ANCHORS = "anchors"
"""The kind of records with frozen anchors."""
ANCHORS_BEGUN = "anchors_begun"
"""The kind of records with chosen answers, whose scores are not complete."""
ANCHOR_SCORE = "anchor_score"
"""The kind of records with one score of a chosen answer, until all are frozen."""
ANCHOR_CHECK = "anchor_check"
"""The kind of records with later scores, and what they answer."""


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen answer: a copy of the case and of the response, which remain when their run is deleted."""

    name: str
    """Unique in its set."""
    case: str
    repeat: int
    sample: Sample
    response: Response
    response_digest: str
    baseline: Response | None = None
    """The baseline's response, for a judge that compares with one."""
    run_score: float | None = None
    """The score in the run; it chose the answer, so it is not compared with later ones."""
    weight: float = 1.0
    """Share of the run's answers that the anchor represents, times the number of anchors."""
    scores: tuple[float, ...] = ()
    """The judge's scores when it was frozen."""


class AnchorSet(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """The anchors of one grader of a suite. The latest set of a grader is in use; an empty one ends its use."""

    id: str
    suite: str
    grader: str
    run: str
    """The reference run, with which later runs are compared."""
    variant: str | None = None
    """The variant of the reference run: only its runs are compared."""
    judge: tuple[str, ...]
    """The adapter ids of the judge's models."""
    judge_fingerprint: str
    fingerprint: str
    """Of the grader with what it learned from labels."""
    at: str
    seed: int
    requested: int
    """The number of anchors that was asked for."""
    repeats: int
    """Scores of each anchor when it is frozen."""
    anchors: tuple[Anchor, ...] = ()
    reference: dict[str, float] = {}
    """The reference run's score by case (`reference_key`)."""
    calls: int = 0
    """Grades to freeze it."""
    cost: float | None = None
    """Of these grades; None: unknown."""


class AnchorScore(msgspec.Struct, frozen=True, kw_only=True):
    """The judge's score of an anchor: None with the reason where it gave none, which is never a change."""

    name: str
    score: float | None = None
    error: str | None = None
    cost: float | None = None


class FiledScore(msgspec.Struct, frozen=True, kw_only=True):
    """A score of a set that is being frozen."""

    set: str
    number: int
    """Of the anchor's scores, from 0."""
    score: AnchorScore


class ProcessEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence of one of the two processes, as in `gradeline.verdict.drift.ProcessState`."""

    evidence: float
    alarm: str | None = None
    onset: str | None = None


class AnchorCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """What the anchors showed at one time: at the end of a run, or in a check."""

    set: str
    run: str | None = None
    """The run that judged them again; None for a check."""
    at: str
    judge_fingerprint: str = ""
    """The judge at that time."""
    scores: tuple[AnchorScore, ...] = ()
    cases: tuple[tuple[float, int], ...] = ()
    """Differences of the run's cases from the reference run, with the number of cases."""
    reference_error: float | None = None
    answer: str = "none"
    """``none``, ``system`` or ``judge``: what changed since the anchors were frozen."""
    onset: str | None = None
    judge: ProcessEvidence = ProcessEvidence(evidence=0.0)
    system: ProcessEvidence = ProcessEvidence(evidence=0.0)
    changed: int = 0
    """Anchors whose last score differs from all their frozen ones."""
    judged: int = 0
    """Anchors that were judged again since they were frozen."""
    shift: float | None = None
    """Mean change of the anchors' scores."""
    moved: float | None = None
    """Mean difference of the last run with cases from the reference run."""
    calls: int = 0
    cost: float | None = None
    """Of the grades of this check; None: unknown."""


def reference_key(case: str, digest: str) -> str:
    """The key of a case in a reference run: an edited case is another one."""
    return f"{digest[:16]} {case}"
