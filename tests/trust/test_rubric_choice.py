"""The choice among rubrics: honest about having chosen, and about what is missing."""

from __future__ import annotations

from random import Random

import pytest

from gradeline.errors import DataError
from gradeline.trust.rubric_choice import RubricVerdicts, choose_rubric, shortage, split_groups
from gradeline.trust.rubric_proposals import read_proposals

LABELS = [case % 2 == 0 for case in range(100)]
GROUPS = [f"c{case}" for case in range(100)]


def verdicts(name: str, accuracy: float, seed: int = 0, labels: list[bool] = LABELS) -> RubricVerdicts:
    chance = Random(f"{name} {seed}")
    return RubricVerdicts(name, [label if chance.random() < accuracy else not label for label in labels])


def test_a_better_rubric_is_found_and_measured_on_labels_that_did_not_choose_it() -> None:
    choice = choose_rubric(LABELS, GROUPS, [verdicts("suite", 0.7), verdicts("strict", 0.95), verdicts("loose", 0.6)])
    assert choice.decision == "better"
    assert choice.winner == "strict"
    assert choice.difference_ci[0] > 0.0
    assert choice.labels == 100
    assert [one.chosen for one in choice.rubrics] == [0, 5, 0]
    assert choice.agreement_ci is not None
    assert choice.agreement_ci[0] <= choice.agreement <= choice.agreement_ci[1]


def test_of_many_equal_rubrics_hardly_any_is_called_better() -> None:
    better = optimism = 0.0
    for seed in range(100):
        choice = choose_rubric(
            LABELS,
            GROUPS,
            [verdicts("suite", 0.7, seed), *(verdicts(f"r{n}", 0.7, seed) for n in range(10))],
            seed=seed,
        )
        better += choice.decision == "better"
        best = next(one for one in choice.rubrics if one.name == choice.winner)
        optimism += best.agreed / best.of - choice.agreement
    assert better <= 6
    assert optimism / 100 > 0.04  # what the winner's agreement with the labels that chose it would claim too much


def test_equal_rubrics_leave_the_one_in_use() -> None:
    own = verdicts("suite", 0.8)
    choice = choose_rubric(LABELS, GROUPS, [own, own._replace(name="copy")])
    assert (choice.winner, choice.decision, choice.difference) == ("suite", "not_better", 0.0)


def test_results_of_a_cluster_are_in_one_fold() -> None:
    groups = [f"document {case // 10}" for case in range(100)]
    flags = split_groups(groups, seed=1)
    assert sum(flags) == 50
    assert all(len({flags[case] for case in range(100) if groups[case] == group}) == 1 for group in set(groups))


def test_missing_verdicts_leave_results_out_and_a_rubric_with_many_takes_no_part() -> None:
    some = verdicts("some", 0.99)
    some = some._replace(verdicts=[None if case < 3 else one for case, one in enumerate(some.verdicts)])
    many = verdicts("many", 1.0)
    many = many._replace(verdicts=[None if case < 40 else one for case, one in enumerate(many.verdicts)])
    choice = choose_rubric(LABELS, GROUPS, [verdicts("suite", 0.7), some, many])
    assert (choice.winner, choice.labels, choice.left_out) == ("some", 97, 3)
    assert choice.rubrics[2].left_out == "no verdict on 40 of 100 labelled results"
    assert (choice.rubrics[2].of, choice.rubrics[2].chosen) == (0, 0)


def test_the_rubric_in_use_must_have_verdicts() -> None:
    own = RubricVerdicts("suite", [None] * 100)
    with pytest.raises(ValueError, match="suite: no verdict on 100 of 100 labelled results, so there is nothing"):
        choose_rubric(LABELS, GROUPS, [own, verdicts("other", 0.9)])


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([True] * 10 + [False] * 10, "20 labels are too few to choose by: label 10 more"),
        ([True] * 48 + [False] * 2, "only 2 of 50 labels are failures: at least 5 are needed"),
        ([True] * 2 + [False] * 48, "only 2 of 50 labels are passes: at least 5 are needed"),
        ([True] * 15 + [False] * 15, None),
    ],
)
def test_too_few_labels_are_refused(labels: list[bool], reason: str | None) -> None:
    assert shortage(labels) == reason


def test_proposals_are_read_from_a_reply() -> None:
    reply = 'Here:\n```json\n{"rubrics": ["Grade {submission} strictly.", "Grade {submission} strictly.", 3, "no place"]}\n```'
    assert read_proposals(reply, 5) == ("Grade {submission} strictly.",)


@pytest.mark.parametrize("reply", ["no", "[1]", '{"rubrics": []}', '{"rubrics": "x"}', '{"rubrics": ["no place"]}'])
def test_a_reply_without_a_rubric_is_an_error(reply: str) -> None:
    with pytest.raises(DataError, match="the model proposed no rubric"):
        read_proposals(reply, 3)
