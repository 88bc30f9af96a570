"""What real judges say, what people say, and what labels make of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from gradeline.stats import Confusion, cohen_kappa, confusion, corrected_mean, kappa_lower_bound, rogan_gladen

Rows = Callable[[str], Iterator[dict[str, Any]]]

Verdicts = dict[str, list[tuple[bool, bool | None]]]
"""By judge: did the model that the pair is named after win, for a person and for the judge?"""


@pytest.fixture
def arena(shared_rows: Rows) -> Verdicts:
    verdicts: Verdicts = defaultdict(list)
    for row in shared_rows("arena_judge/rows.jsonl"):
        side = "A" if row["model_a"] == row["pair"].partition("_vs_")[0] else "B"
        picked = None if row["judge_pick"] is None else row["judge_pick"] == side
        verdicts[row["judge"]].append((row["human"] == side, picked))
        verdicts[f"{row['judge']}, {row['pair']}"].append((row["human"] == side, picked))
    return verdicts


def table(verdicts: list[tuple[bool, bool | None]]) -> Confusion:
    return confusion([label for label, _ in verdicts], [verdict for _, verdict in verdicts])


def test_a_row_without_a_verdict_is_missing_not_a_verdict(arena: Verdicts) -> None:
    for judge in ("gpt-4o-mini", "gpt-5.2"):
        found = table(arena[judge])
        assert (found.n, found.missing) == (466, 1)


def test_no_judge_of_the_arena_is_calibrated_by_all_labels(arena: Verdicts) -> None:
    for judge in ("gpt-4o-mini", "gpt-5.2"):
        bound, kappa = kappa_lower_bound(table(arena[judge])), cohen_kappa(table(arena[judge]))
        assert bound is not None
        assert kappa is not None
        assert bound < kappa.estimate < 0.3


def test_labels_correct_a_judge_that_names_the_wrong_winner(arena: Verdicts) -> None:
    verdicts = [
        (float(label), float(verdict))
        for label, verdict in arena["gpt-5.2, claude-opus-4-20250514_vs_qwen3-235b-a22b-no-thinking"]
        if verdict is not None
    ]
    people = sum(label for label, _ in verdicts) / len(verdicts)
    judge = sum(verdict for _, verdict in verdicts) / len(verdicts)
    assert people < 0.45
    assert judge > 0.65
    Random(1).shuffle(verdicts)
    found = corrected_mean(*zip(*verdicts[:100], strict=True), [verdict for _, verdict in verdicts[100:]])
    assert found.interval.low <= people <= found.interval.high < 0.55 < judge
    assert found.weight < 0.2


def test_that_judge_identifies_no_rate_from_its_errors(arena: Verdicts) -> None:
    found = table(arena["gpt-5.2, claude-opus-4-20250514_vs_qwen3-235b-a22b-no-thinking"])
    assert found.sensitivity is not None
    assert found.specificity is not None
    counts = (int(found.positives), int(found.negatives))
    with pytest.raises(ValueError, match=r"is below 0\.1"):
        rogan_gladen(700, 1_000, found.sensitivity, counts[0], found.specificity, counts[1])


def test_agreement_of_devai_equals_the_published_one(shared_rows: Any) -> None:
    agents: Verdicts = defaultdict(list)
    for row in shared_rows("devai_judgments/rows.jsonl"):
        agents[row["agent"]].append((row["human"], row["agent_judge"]))
    for agent, expected in json.loads("\n".join(shared_rows.lines("devai_judgments/expected.json"))).items():
        found = table(agents[agent])
        kappa = cohen_kappa(found)
        assert kappa is not None
        assert (found.n, found.tp + found.tn) == (expected["n"], expected["agree"])
        assert kappa.estimate == pytest.approx(expected["kappa"])
        bound = kappa_lower_bound(found)
        assert bound is not None
        assert bound > 0.6
