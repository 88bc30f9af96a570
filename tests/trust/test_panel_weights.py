"""Weights of a panel's judges, learned from labels."""

from __future__ import annotations

from random import Random

import pytest

from gradeline.judges.weighting import member_scores, panel_probability, standardized
from gradeline.model.learned_judging import PanelWeights, fold_of
from gradeline.trust.panel_weights import NotLearned, PanelVotes, learn, votes_of

MEMBERS = ("good", "random", "inverted", "constant")


def votes(number: int, seed: int = 1, missing: float = 0.0) -> list[PanelVotes]:
    """One judge is right in 85 % of the cases, one guesses, one is wrong in 75 %, one always gives the same score."""
    random = Random(seed)
    found = []
    for case in range(number):
        label = random.random() < 0.5
        verdicts = (label if random.random() < share else not label for share in (0.85, 0.5, 0.25))
        scores = [*(float(verdict) for verdict in verdicts), 0.8]
        known = [None if random.random() < missing else score for score in scores]
        found.append(PanelVotes(f"case-{seed}-{case}", label, known, sum(scores) / 4 >= 0.5))
    return found


def learned(given: list[PanelVotes], *, gains: bool = False) -> PanelWeights:
    found = learn(MEMBERS, given, gains=gains)
    assert isinstance(found, PanelWeights), found
    return found


def agreement(weights: PanelWeights, given: list[PanelVotes]) -> float:
    right = [(panel_probability(weights, one.case, one.scores) >= 0.5) is one.passed for one in given]
    return sum(right) / len(right)


def test_members_count_by_what_they_add() -> None:
    weights = learned(votes(120), gains=True)
    assert agreement(weights, votes(1000, seed=2)) > 0.83
    gains = {one.judge: one for one in weights.gains}
    assert gains["good"].gain > 0.1
    assert gains["good"].agreement == pytest.approx(0.85, abs=0.08)
    assert gains["constant"].gain == 0.0
    for model in weights.models:
        good, random, inverted, constant = model.coefficients
        assert good > abs(random)
        assert inverted < 0
        assert constant == pytest.approx(0.0)


def test_its_agreement_is_that_on_other_labels() -> None:
    found = [learned(votes(60, seed=seed)) for seed in range(12)]
    claimed = sum(one.agreement for one in found) / 12
    actual = sum(agreement(one, votes(200, seed=90 + seed)) for seed, one in enumerate(found)) / 12
    error = (0.85 * 0.15 / 60 / 12) ** 0.5
    assert claimed == pytest.approx(actual, abs=3 * error)


def test_the_label_of_a_case_does_not_affect_its_own_score() -> None:
    given = votes(80)
    flipped = [one._replace(passed=not one.passed) if number == 7 else one for number, one in enumerate(given)]
    before, after = learned(given), learned(flipped)
    case = given[7]
    assert panel_probability(before, case.case, case.scores) == panel_probability(after, case.case, case.scores)
    other = next(one for one in given if fold_of(one.case, len(before.models)) != fold_of(case.case, len(after.models)))
    assert panel_probability(before, other.case, other.scores) != panel_probability(after, other.case, other.scores)


def test_the_order_of_labels_does_not_matter() -> None:
    given = votes(60)
    assert learned(given[::-1]).models[0].coefficients == pytest.approx(learned(given).models[0].coefficients)
    assert learned(given).digest == learned(list(given)).digest != learned(votes(61)).digest


def test_a_member_without_a_score_is_estimated_from_the_others() -> None:
    random = Random(3)
    rows: list[list[float | None]] = []
    for _ in range(200):
        one = random.random()
        rows.append([one, one + random.gauss(0, 0.02), random.random()])
    scores = member_scores(rows)
    high, low = standardized(scores, [0.9, None, 0.5]), standardized(scores, [0.1, None, 0.5])
    assert high[1] == pytest.approx(high[0], abs=0.1)
    assert low[1] == pytest.approx(low[0], abs=0.1)
    assert abs(standardized(scores, [None, None, 0.9])[0]) < 0.3
    assert standardized(scores, [None, None, None]) == [0.0, 0.0, 0.0]


def test_missing_scores_cost_little() -> None:
    weights = learned(votes(150, missing=0.15), gains=True)
    assert agreement(weights, votes(1000, seed=4)) > 0.82
    assert all(one.scored < 150 for one in weights.gains)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (votes(49), "49 labels of results that a member scored, at least 50 are needed; label 1 more"),
        ([one._replace(passed=True) for one in votes(60)], "0 labels that fail, at least 10 are needed; label 10 more"),
        ([], "0 labels of results that a member scored, at least 50 are needed; label 50 more"),
        (
            [one._replace(case=f"{one.passed}") for one in votes(60)],
            "all labels of one kind are of a few cases; label more cases",
        ),
    ],
)
def test_too_few_labels_give_no_weights_and_a_reason(given: list[PanelVotes], reason: str) -> None:
    found = learn(MEMBERS, given)
    assert isinstance(found, NotLearned)
    assert found.reason.startswith(reason)


def test_labels_count_by_how_many_results_they_stand_for() -> None:
    given = [one._replace(weight=3.0 if one.passed else 1.0) for one in votes(100)]
    repeated = [one._replace(weight=1.0) for one in given for _ in range(3 if one.passed else 1)]
    weighted, plain = learned(given), learned(repeated)
    total = sum(one.weight for one in given)
    assert total == len(repeated)
    assert weighted.agreement == pytest.approx(plain.agreement, abs=0.02)
    assert weighted.confidences is not None
    assert weighted.confidences.weights == tuple(one.weight for one in given)


def test_votes_come_from_the_metadata_of_a_panels_grade() -> None:
    members = [{"judge": "a", "score": 0.5}, {"judge": "b", "error": {"type": "refused"}}, {"judge": "a", "score": 1}]
    assert votes_of({"judges": members}) == {"a": 0.5, "b": None, "a'": 1.0}
    assert votes_of({"selective": {"first": {"judges": members[:1]}}}) == {"a": 0.5}
    assert votes_of({"judge": "a"}) is None
    assert votes_of({"judges": "hostile"}) is None
