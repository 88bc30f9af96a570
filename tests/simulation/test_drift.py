"""Replaced judges, worse agents, and long series without a change: at reduced size."""

from __future__ import annotations

import pytest

from simulation import drift, judged_sets
from simulation.drift import BLAMED, LOSS, NAMED, NOISES, QUIET, QUIET_SUITES


@pytest.mark.parametrize("suite", QUIET_SUITES.values(), ids=QUIET_SUITES.keys())
def test_without_a_change_nothing_is_named(suite) -> None:
    assert drift.unchanged(2, 1, *suite, looks=60) == {"none": 2}


@pytest.fixture(scope="module")
def judges():
    if not judged_sets.present():
        pytest.skip("labelled data is absent (GRADELINE_SHARED_DATA names its folder)")
    return drift.real_judges()


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())
def test_a_judge_that_is_replaced_by_a_real_one_is_named_and_the_system_is_not(judges, noise) -> None:
    found = drift.swaps(judges["arena"], 4, 1, noise)
    found += drift.swaps(judges["judgebench"], 1, 1, noise, every=2)
    found += drift.swaps(judges["llmbar"], 1, 1, noise, every=20)
    assert found.total() > 70
    assert found["judge"] / found.total() >= NAMED - 0.03
    assert found["system"] / found.total() <= BLAMED


def test_an_agent_that_gets_worse_is_named_system(judges) -> None:
    found = drift.regressions(judges["llmbar"], 20, 2, QUIET, LOSS)
    assert found["system"] / found.total() >= NAMED
