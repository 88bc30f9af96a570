"""Panels with weights from labels, and selective judging, on verdicts of real judges.

The judges are those of LLMBar: six families of models, each with the mean of all its prompts and both orders as its score;
five without GPT-4. Where the data is a part of the published set, labels are fewer and less can be decided. The full
size is in `tests/simulation/panels.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import ceil
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simulation"))

import panels
from measured import monte_carlo_error

DRAWS = 8


@pytest.fixture(scope="module", autouse=True)
def data() -> None:
    if not panels.DATA.exists():
        pytest.skip("labelled data is absent (GRADELINE_SHARED_DATA names its folder)")


def test_five_families_with_weights_are_better_than_any_of_them_and_than_their_mean() -> None:
    found = panels.panel_accuracy(panels.five_families(), 100, DRAWS, 1)
    noise = 3 * 0.04 / DRAWS**0.5
    assert found.weighted >= 0.79 - noise
    assert found.weighted > found.best
    assert found.weighted >= found.mean + 0.15


@pytest.mark.parametrize(("load", "least"), [(panels.llmbar, 0.83), (panels.judgebench, 0.74)])
def test_thirty_labels_find_the_best_of_six_judges(load: Callable[[], panels.Judged], least: float) -> None:
    judged = load()
    assert len(judged.judges) == 6
    assert panels.best_judge(judged, 30, 100, 2) >= least


def test_five_families_keep_what_is_promised() -> None:
    judged = panels.five_families()
    labels = ceil(len(judged.labels) / 2)
    found = panels.selective_panel(judged, labels, DRAWS, 3)
    for result in found.values():
        assert result.broken <= 0.13 + monte_carlo_error(0.13, DRAWS)
    assert found[0.8].share > 0.3
    if labels >= 200:
        noise = 3 * 0.3 / DRAWS**0.5
        assert all(result.share >= panels.TARGETS[target] - noise for target, result in found.items())


def test_judges_that_guess_decide_nothing() -> None:
    every = panels.llmbar()
    for judge in ("ChatGPT", "Falcon", "LLaMA2"):
        for result in panels.selective_judge(every.only([judge]), 100, 40, 4).values():
            assert result.share == 0.0


def test_a_good_judge_decides_most() -> None:
    found = panels.selective_judge(panels.llmbar().only([panels.STRONGEST]), 105, 60, 5)
    assert found[0.8].share > 0.9
    assert found[0.85].share > 0.7
    for result in found.values():
        assert result.broken <= 0.13 + monte_carlo_error(0.13, 60)
