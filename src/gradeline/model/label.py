"""Labels: what people say about responses, and what all raters of a result say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from gradeline.model.grade import PASS_SCORE

T = TypeVar("T")

Verdict: TypeAlias = Literal["pass", "fail"]
RaterRole: TypeAlias = Literal["rater", "adjudicator"]
"""An adjudicator decides where raters disagree; the adjudicator's label then counts instead of theirs."""
SamplingMethod: TypeAlias = Literal["random", "stratified", "disagreement", "unsure"]

MAX_COMMENT, MAX_NAME = 2_000, 200
"""Characters of a comment, and of the name of a rater, a question or a category."""


class HumanVerdict(NamedTuple):
    """A person's verdict on a response; at least one of verdict, score and category is given."""

    verdict: Verdict | None = None
    comment: str = ""
    score: float | None = None
    category: str | None = None
    probability: float | None = None
    """The probability with which the result was drawn; None if it was not drawn by a known design."""
    sample: str | None = None
    """The id of the drawn sample."""
    role: RaterRole = "rater"


class LabelKey(NamedTuple):
    """What a label is about: a response of a run, and a question about it.

    The question is the key of the grader that answers it too, or any other name.
    """

    run: str
    case: str
    repeat: int
    question: str


class LabelRow(NamedTuple):
    """A label, with the grade, the case and the response as they were when it was made."""

    case: str
    repeat: int
    question: str
    verdict: Verdict | None
    score: float | None
    category: str | None
    comment: str
    rater: str
    """Empty if the rater has no name."""
    role: RaterRole
    probability: float | None
    sample: str | None
    at: str
    grade_outcome: str | None
    """None if no grader of the run answers the question."""
    grade_score: float | None
    grader_fingerprint: str
    """Empty if no grader of the run answers the question."""
    case_digest: str
    response_digest: str
    n: int = 0
    """Its number in the store, in the order of changes; 0 before it is stored."""

    @property
    def value(self) -> tuple[Verdict | None, float | None, str | None]:
        """The verdict, score and category."""
        return self.verdict, self.score, self.category

    def passed(self, pass_threshold: float = PASS_SCORE) -> bool | None:
        """The verdict, or else whether the score reaches the threshold; None for a category only."""
        if self.verdict is not None:
            return self.verdict == "pass"
        return None if self.score is None else self.score >= pass_threshold


class ChangeRow(NamedTuple):
    """One change of a label: a new value, or its withdrawal, which has none."""

    question: str
    verdict: Verdict | None
    score: float | None
    category: str | None
    comment: str | None
    rater: str
    role: RaterRole
    withdrawn: bool
    at: str


class ReferenceLabel(NamedTuple):
    """What people say about one result: the adjudication if there is one, else the majority of the raters."""

    case: str
    repeat: int
    passed: bool | None
    """None if the raters gave only categories."""
    score: float | None
    """The mean of the raters' scores; None if no one gave one."""
    category: str | None
    probability: float | None
    """The probability with which this result has a label: the labelled share of the results it was drawn from.

    None if it was not drawn by a known design, such as one with disagreements first; such a label must not be used
    for corrected rates."""
    raters: int
    tags: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        """The score, or else 1.0 for pass and 0.0 for fail."""
        if self.score is not None or self.passed is None:
            return self.score
        return float(self.passed)


class ReferenceLabels(NamedTuple):
    """The reference labels of a question, and the number of results whose labels cannot be used."""

    labels: list[ReferenceLabel]
    unresolved: int = 0
    """Results whose raters disagree, without a majority or an adjudication."""
    stale: int = 0
    """Results whose labels are about a response that was replaced since."""


def reference_label(labels: Sequence[LabelRow], pass_threshold: float = PASS_SCORE) -> ReferenceLabel | None:
    """What the labels of one result say together; None if its raters disagree without a majority or an adjudication.

    The labels are of one question, at least one, in the order in which they were stored.
    """
    adjudications = [label for label in labels if label.role == "adjudicator"]
    counted = adjudications[-1:] or labels
    votes = [passed for label in counted if (passed := label.passed(pass_threshold)) is not None]
    categories = [label.category for label in counted if label.category is not None]
    category = _most_common(categories)
    passed = _most_common(votes)
    if (votes and passed is None) or (not votes and category is None):
        return None
    scores = [label.score for label in counted if label.score is not None]
    return ReferenceLabel(
        case=labels[0].case,
        repeat=labels[0].repeat,
        passed=passed,
        score=sum(scores) / len(scores) if scores else None,
        category=category,
        probability=next((label.probability for label in reversed(labels) if label.probability is not None), None),
        raters=len({label.rater for label in labels}),
    )


def _most_common(values: Sequence[T]) -> T | None:
    """The value that occurs more often than any other; None on a tie."""
    counts = Counter(values).most_common(2)
    if not counts or (len(counts) == 2 and counts[0][1] == counts[1][1]):
        return None
    return counts[0][0]
