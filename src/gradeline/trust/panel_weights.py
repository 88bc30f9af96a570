"""Weights of a panel's members, learned from labels: ridge logistic regression on their scores, cross-fitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gradeline.judges.selective import Confidence, first_metadata
from gradeline.judges.weighting import Scores, member_scores, standardized
from gradeline.model.grade import PASS_SCORE
from gradeline.model.learned_judging import (
    LabelledConfidences,
    MemberGain,
    MemberScores,
    PanelModel,
    PanelWeights,
    fold_of,
)
from gradeline.stats.logistic import LogisticModel, fit_logistic

LEAST_LABELS = 50
LEAST_OF_EACH = 10
"""Fewer labels, or fewer of either kind, say too little about several members."""
_FOLDS, _FOLDS_OF_GAINS = 40, 10
_RIDGE = 0.75
"""Penalty per member, for standardized scores."""
_PRIOR = 4.0
"""Labels of either kind that are assumed in addition, of results with average scores, because few labels say little
about the shares of both kinds."""


class PanelVotes(NamedTuple):
    """The scores of a panel's members for one labelled result."""

    case: str
    passed: bool
    """The label."""
    scores: Scores
    unweighted: bool | None = None
    """The verdict of the plain mean or median; None if there is none."""
    weight: float = 1.0
    """How many results the label stands for."""


class NotLearned(NamedTuple):
    """Why there are no weights."""

    reason: str


def votes_of(metadata: Mapping[str, Any]) -> dict[str, float | None] | None:
    """The scores of a panel's members by judge, from the metadata of its grade; None for another grade."""
    members = first_metadata(metadata).get("judges")
    if not isinstance(members, list) or not all(isinstance(member, Mapping) for member in members):
        return None
    found: dict[str, float | None] = {}
    for member in members:
        name, score = str(member.get("judge")), member.get("score")
        while name in found:  # a panel may have the same model twice
            name += "'"
        found[name] = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
    return found


def learn(
    members: Sequence[str], votes: Sequence[PanelVotes], pass_score: float = PASS_SCORE, *, gains: bool = True
) -> PanelWeights | NotLearned:
    """Weights for the members, from labelled results; or why they cannot be learned.

    ``gains`` also finds what each member adds, which takes most of the time.

    Cases are split into folds by their names, and each fold gets a model of the labels of all others. So the score of a
    labelled case does not depend on its label, and agreement, corrected rates and thresholds of confidence on the
    same labels are honest.
    """
    votes = [vote for vote in votes if any(score is not None for score in vote.scores)]
    obstacle = _obstacle(votes)
    if obstacle is not None:
        return NotLearned(obstacle)
    fitted = _fit(votes, range(len(members)), _FOLDS)
    if fitted is None:
        return NotLearned("all labels of one kind are of a few cases; label more cases")
    own = [Confidence.of_probability(fitted.probability(vote), pass_score) for vote in votes]
    agreed = tuple(one.passed is vote.passed for one, vote in zip(own, votes, strict=True))
    agreement = _share(agreed, votes)
    counted = [vote for vote in votes if vote.unweighted is not None]
    return PanelWeights(
        members=tuple(members),
        models=tuple(PanelModel(model.coefficients, model.intercept) for model in fitted.models),
        scores=fitted.scores,
        labels=len(votes),
        positives=sum(vote.passed for vote in votes),
        ridge=_RIDGE * len(members),
        agreement=agreement,
        unweighted_agreement=_share([vote.unweighted is vote.passed for vote in counted], counted),
        gains=tuple(_gains(members, votes, pass_score)) if gains else (),
        confidences=LabelledConfidences(
            confidences=tuple(one.confidence for one in own),
            agreed=agreed,
            weights=_unequal_weights(votes),
            probabilities=True,
        ),
    )


class _Fitted(NamedTuple):
    """The models of the folds over some of the members."""

    members: Sequence[int]
    scores: MemberScores
    models: list[LogisticModel]

    def probability(self, vote: PanelVotes) -> float:
        """By the model that was learned without the label of the vote's case."""
        row = standardized(self.scores, [vote.scores[member] for member in self.members])
        return self.models[fold_of(vote.case, len(self.models))].probability(row)


def _fit(votes: Sequence[PanelVotes], members: Sequence[int], folds: int) -> _Fitted | None:
    """None if the labels outside a fold are all of one kind."""
    scores = member_scores([[vote.scores[member] for member in members] for vote in votes])
    rows = [standardized(scores, [vote.scores[member] for member in members]) for vote in votes]
    mean_weight = sum(vote.weight for vote in votes) / len(votes)
    models = []
    average = (0.0,) * len(members)
    for fold in range(folds):
        counts: dict[tuple[tuple[float, ...], bool], float] = defaultdict(float)  # many have the same scores
        for vote, row in zip(votes, rows, strict=True):
            if fold_of(vote.case, folds) != fold:
                counts[tuple(row), vote.passed] += vote.weight / mean_weight
        if len({label for _, label in counts}) < 2:
            return None
        for label in (True, False):
            counts[average, label] += _PRIOR
        models.append(
            fit_logistic(
                [row for row, _ in counts],
                [label for _, label in counts],
                _RIDGE * len(members),
                list(counts.values()),
            )
        )
    return _Fitted(members, scores, models)


def _gains(members: Sequence[str], votes: Sequence[PanelVotes], pass_score: float) -> Iterator[MemberGain]:
    """What the panel's agreement loses without each of its members."""
    every = range(len(members))
    whole = _agreement(_fit(votes, every, _FOLDS_OF_GAINS), votes, pass_score)
    for member, judge in enumerate(members):
        scored = [vote for vote in votes if vote.scores[member] is not None]
        verdicts = [((vote.scores[member] or 0.0) >= pass_score) is vote.passed for vote in scored]
        rest = _agreement(
            _fit(votes, [other for other in every if other != member], _FOLDS_OF_GAINS), votes, pass_score
        )
        yield MemberGain(
            judge=judge,
            scored=len(scored),
            agreement=_share(verdicts, scored) if scored else None,
            gain=0.0 if whole is None or rest is None else whole - rest,
        )


def _agreement(fitted: _Fitted | None, votes: Sequence[PanelVotes], pass_score: float) -> float | None:
    if fitted is None:
        return None
    return _share([(fitted.probability(vote) >= pass_score) is vote.passed for vote in votes], votes)


def _obstacle(votes: Sequence[PanelVotes]) -> str | None:
    """Why there are too few labels."""
    passed = sum(vote.passed for vote in votes)
    missing = [
        f"{number} {what}, at least {least} are needed; label {least - number} more"
        for number, what, least in (
            (len(votes), "labels of results that a member scored", LEAST_LABELS),
            (passed, "labels that pass", LEAST_OF_EACH),
            (len(votes) - passed, "labels that fail", LEAST_OF_EACH),
        )
        if number < least
    ]
    return "; ".join(missing) or None


def _share(agreed: Sequence[bool], votes: Sequence[PanelVotes]) -> float:
    """The weighted share of votes that agree."""
    total = sum(vote.weight for vote in votes)
    return sum(vote.weight for vote, right in zip(votes, agreed, strict=True) if right) / total if total else 0.0


def _unequal_weights(votes: Sequence[PanelVotes]) -> tuple[float, ...]:
    """The weights of the labels; empty if all are equal."""
    weights = tuple(vote.weight for vote in votes)
    return weights if len(set(weights)) > 1 else ()
