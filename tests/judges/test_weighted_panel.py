"""A panel whose judges count by what labels showed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gradeline import GradeContext, GradeResult, Sample
from gradeline.adapters import Usage
from gradeline.errors import GraderError
from gradeline.judges.panel import PanelGrader
from gradeline.judges.selective import UnsureError
from gradeline.judges.weighting import panel_probability
from gradeline.model import MeteredResult
from gradeline.model.learned_judging import LabelledConfidences, MemberScores, PanelModel, PanelWeights
from gradeline.model.llm import LLMResponse
from gradeline.model.resources import Resources
from gradeline.testing import ScriptedAdapter

NAMES = ("openai:a", "openai:b", "openai:c")
CORRELATED = MemberScores(
    means=(0.5, 0.5, 0.5),
    deviations=(0.5, 0.5, 0.0),
    correlations=((1.0, -0.9, 0.0), (-0.9, 1.0, 0.0), (0.0, 0.0, 1.0)),
    results=100,
)


def weights(*, confidences: LabelledConfidences | None = None) -> PanelWeights:
    """The first judge is right, the second wrong, the third always gives the same score."""
    return PanelWeights(
        members=NAMES,
        models=(PanelModel((1.0, -1.0, 0.0), 0.0),) * 2,
        scores=CORRELATED,
        labels=100,
        positives=50,
        ridge=2.0,
        agreement=0.9,
        unweighted_agreement=0.5,
        confidences=confidences,
    )


class Learned:
    """What a calibration holds for the panel."""

    selective = None

    def __init__(self, panel: PanelWeights) -> None:
        self.panel = panel


def graded(scores: list[float | str], learned: PanelWeights | None = None, **options: Any) -> MeteredResult:
    replies = [
        LLMResponse(f'{{"score": {score}, "rationale": "r"}}', finish_reason="stop", usage=Usage(1, 1, 0, 0.1))
        for score in scores
    ]
    adapters = [ScriptedAdapter([reply] * 2, name) for reply, name in zip(replies, NAMES, strict=True)]
    config = {
        "prompt": "Is it right?",
        "judges": [{"model": name[-1]} for name in NAMES],
        "weights": "calibrated",
        **options,
    }
    grader = PanelGrader(config=config, adapters=adapters)
    calibrations = {grader.judge_fingerprint: Learned(learned or weights())}
    bound = grader.bind(Resources(calibrations=calibrations, environment={"OPENAI_API_KEY": "none"}))
    return asyncio.run(bound.agrade(GradeContext(Sample("s", "q", "a"), "text")))


def test_the_score_is_the_probability_of_a_pass() -> None:
    found = graded([1.0, 0.0, 0.8]).result
    assert isinstance(found, GradeResult)
    assert found.score == pytest.approx(0.8808, abs=1e-4)  # two deviations
    assert found.passed is True
    assert found.metadata["weights"] == {"labels": 100, "unweighted": pytest.approx(0.6)}
    assert [one["score"] for one in found.metadata["judges"]] == [1.0, 0.0, 0.8]
    opposite = graded([0.0, 1.0, 0.8]).result
    assert isinstance(opposite, GradeResult)
    assert (opposite.score, opposite.passed) == (pytest.approx(0.1192, abs=1e-4), False)


def test_a_rubric_that_passes_from_a_higher_score_does_not_move_the_probability_that_passes() -> None:
    options = {"rubric": "faithfulness@1", "rubric_vars": {"context": "c"}, "prompt": None}
    found = graded([1.0, 0.9, 0.8], **options).result
    assert isinstance(found, GradeResult)
    assert (found.score, found.passed) == (pytest.approx(0.5498, abs=1e-4), True)


def test_a_missing_judge_is_an_error_unless_the_quorum_allows_it() -> None:
    error = graded([1.0, "oops", 0.8]).result
    assert isinstance(error, GraderError)
    assert error.type == "invalid_reply"
    assert [one.get("score") for one in error.metadata["judges"]] == [1.0, None, 0.8]
    allowed = graded([1.0, "oops", 0.8], quorum=2).result
    assert isinstance(allowed, GradeResult)
    # the first suggests that the second would have scored low, but less certainly than its own score
    assert 0.73 < (allowed.score or 0) < 0.88
    assert allowed.score == pytest.approx(panel_probability(weights(), "s", [1.0, None, 0.8]))


def test_weights_of_another_number_of_judges_are_not_used() -> None:
    two = PanelWeights(
        members=NAMES[:2],
        models=(PanelModel((1.0, -1.0), 0.0),),
        scores=MemberScores(means=(0.5, 0.5), deviations=(0.5, 0.5), correlations=((1.0, 0.0), (0.0, 1.0)), results=9),
        labels=100,
        positives=50,
        ridge=2.0,
        agreement=0.9,
        unweighted_agreement=0.5,
    )
    found = graded([1.0, 0.0, 0.8], two).result
    assert isinstance(found, GradeResult)
    assert found.score == pytest.approx(0.6)
    assert "weights" not in found.metadata


def test_its_confidence_is_the_probability_that_the_verdict_is_right() -> None:
    known = LabelledConfidences(confidences=(0.8,) * 80 + (0.6,) * 40, agreed=(True,) * 90 + (False,) * 30)
    learned = weights(confidences=known)
    sure = graded([0.0, 1.0, 0.8], learned, agreement=0.9).result
    assert isinstance(sure, GradeResult)
    assert (sure.metadata["selective"]["confidence"], sure.passed) == (0.88, False)
    unsure = graded([0.6, 0.5, 0.8], learned, agreement=0.9).result
    assert isinstance(unsure, UnsureError)
    assert unsure.metadata["weights"]["unweighted"] == pytest.approx(1.9 / 3)


def test_its_second_judge_is_one_model_with_the_same_rubric() -> None:
    config = {"prompt": "Is it right?", "judges": [{"model": "a"}, {"model": "b"}], "agreement": 0.9}
    panel = PanelGrader(config={**config, "escalate": {"model": "big", "temperature": 0.3}})
    second = panel.second
    assert second is not None
    assert (second.kind, second.judges, second.prompt_hash) == ("model_judge", ("openai:big",), panel.prompt_hash)
    assert second.options.temperature == 0.3
    assert second.options.agreement == 0.9
