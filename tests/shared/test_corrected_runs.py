"""Rates of runs that real judges graded, corrected by 100 labels of real people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from gradeline.verdict.corrected import JudgedLabel, LabelledScores, corrected_rate

Rows = Callable[[str], Iterator[dict[str, Any]]]
DRAWS, RESULTS, LABELS = 60, 1_000, 100
"""`tests/simulation` measures the formula with more."""


@pytest.fixture
def arena(shared_rows: Rows) -> dict[str, list[tuple[bool, bool]]]:
    """By judge and pair of models: did the first model win, for a person and for the judge?"""
    verdicts: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for row in shared_rows("arena_judge/rows.jsonl"):
        side = "A" if row["model_a"] == row["pair"].partition("_vs_")[0] else "B"
        if row["judge_pick"] is not None:
            verdicts[f"{row['judge']}, {row['pair']}"].append((row["human"] == side, row["judge_pick"] == side))
    return verdicts


def run_of(items: list[tuple[bool, bool]]) -> LabelledScores:
    """A run of which the first results have a label."""
    labelled = [
        JudgedLabel(place, float(judged), judged, person, None, LABELS / RESULTS)
        for place, (person, judged) in enumerate(items[:LABELS])
    ]
    passes = [int(judged) for _, judged in items[LABELS:]]
    return LabelledScores(labelled, [float(one) for one in passes], passes, range(LABELS, RESULTS), total=RESULTS)


def test_the_corrected_rate_covers_what_people_say_and_the_judges_does_not(
    arena: dict[str, list[tuple[bool, bool]]],
) -> None:
    random, covered, wrong = Random(5), 0, 0
    for population in arena.values():
        truth = sum(person for person, _ in population) / len(population)
        hits = 0
        for _ in range(DRAWS):
            found = corrected_rate(run_of(random.choices(population, k=RESULTS)))
            assert found.judge is not None
            assert found.low is not None
            assert found.high is not None
            hits += found.low <= truth <= found.high
            wrong += abs(found.judge - truth) > 0.05
        assert hits / DRAWS >= 0.87, truth
        covered += hits
    assert len(arena) == 6
    assert covered / (6 * DRAWS) >= 0.93
    assert wrong / (6 * DRAWS) >= 0.9


def test_a_judge_of_the_arena_adds_nothing_to_most_samples(arena: dict[str, list[tuple[bool, bool]]]) -> None:
    population = arena["gpt-5.2, claude-opus-4-20250514_vs_qwen3-235b-a22b-no-thinking"]
    random = Random(6)
    found = [corrected_rate(run_of(random.choices(population, k=RESULTS))) for _ in range(100)]
    own = [one for one in found if one.method == "labels"]
    assert len(own) > 50
    assert all(one.notes[0].startswith("the judge adds nothing") for one in own)
