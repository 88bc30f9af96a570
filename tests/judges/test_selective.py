"""Judges that decide only what they are sure of: the threshold of confidence, and what happens below it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from gradeline import GradeContext, GradeResult, Sample
from gradeline.adapters import Usage
from gradeline.errors import ConfigError, GraderError
from gradeline.graders import create
from gradeline.judges.model_judge import ModelJudge
from gradeline.judges.panel import PanelGrader
from gradeline.judges.selective import Confidence, UnsureError, least_labels, selective_threshold, stored_confidence
from gradeline.model import MeteredResult
from gradeline.model.learned_judging import LabelledConfidences, LearnedJudging, PanelWeights
from gradeline.model.llm import LLMResponse
from gradeline.model.resources import Resources
from gradeline.testing import ScriptedAdapter

CONTEXT = GradeContext(Sample("s", "q", "a"), "text")
JUDGE = {"prompt": "Is it right?", "model": "m"}


class Learned:
    """What a calibration holds for a judge."""

    def __init__(self, selective: LabelledConfidences | None = None, panel: PanelWeights | None = None) -> None:
        self.selective, self.panel = selective, panel


def labelled(*groups: tuple[float, int, int], **more: Any) -> LabelledConfidences:
    """Groups of labels by confidence: how many verdicts agree, and of how many."""
    rows = [(confidence, number < agreed) for confidence, agreed, of in groups for number in range(of)]
    confidences, agreed = zip(*rows, strict=True)
    return LabelledConfidences(confidences=confidences, agreed=agreed, **more)


class TestThreshold:
    def test_it_is_the_lowest_confidence_with_enough_agreement(self) -> None:
        found = selective_threshold(labelled((0.9, 60, 60), (0.6, 38, 40), (0.1, 20, 100)), 0.9)
        assert (found.threshold, found.decided, found.agreed, found.labels) == (0.6, 100, 98, 200)
        assert found.coverage == 0.5
        assert [found.counts(confidence) for confidence in (0.61, 0.6, 0.59)] == [True, True, False]

    def test_a_look_that_fails_ends_the_sequence_even_if_a_later_one_would_not(self) -> None:
        found = selective_threshold(labelled((0.9, 90, 150), (0.5, 400, 400)), 0.9)
        assert found.threshold is None
        assert found.counts(1.0) is False

    def test_the_bound_is_that_of_clopper_and_pearson(self) -> None:
        # 22 of 22 is the first at which 0.9 is shown with an error rate of 10 %
        assert least_labels(0.9) == 22
        assert selective_threshold(labelled((0.5, 22, 22)), 0.9).threshold == 0.5
        assert selective_threshold(labelled((0.5, 21, 21)), 0.9).threshold is None
        # P(at least 37 of 38 | 0.9) = 0.0955, P(at least 36 of 37 | 0.9) = 0.1036
        assert selective_threshold(labelled((0.5, 37, 38)), 0.9).threshold == 0.5
        assert selective_threshold(labelled((0.5, 36, 37)), 0.9).threshold is None

    def test_a_good_judge_decides_everything_although_few_of_its_surest_verdicts_would_not_show_it(self) -> None:
        groups = [(0.95 - number / 1000, 30 - (number % 3 == 0), 30) for number in range(4)]
        found = selective_threshold(labelled(*groups, probabilities=True), 0.9)
        assert (found.decided, found.agreed) == (120, 118)

    def test_labels_that_stand_for_many_results_count_less_in_number(self) -> None:
        equal = labelled((0.5, 40, 40))
        unequal = labelled((0.5, 40, 40), weights=(10.0,) * 5 + (0.1,) * 35)
        assert selective_threshold(equal, 0.9).threshold == 0.5
        assert selective_threshold(unequal, 0.9).reason.startswith("40 labels cannot show an agreement of 0.9")

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            (labelled((0.5, 5, 5)), "5 labels cannot show an agreement of 0.9, which needs at least 22; label 17 more"),
            (
                labelled((0.9, 20, 40), (0.1, 20, 40)),
                "its confidence does not tell right from wrong verdicts well enough for an agreement of 0.9: only",
            ),
            (
                labelled((0.9, 28, 30)),
                "too few labels to be 90 % sure of an agreement of 0.9: 28 of the 30 surest verdicts agree with the"
                " labels; label more",
            ),
        ],
    )
    def test_without_one_it_says_why(self, given: LabelledConfidences, reason: str) -> None:
        found = selective_threshold(given, 0.9)
        assert found.threshold is None
        assert found.reason.startswith(reason)

    @pytest.mark.parametrize("probabilities", [True, False])
    def test_the_promise_seldom_breaks(self, probabilities: bool) -> None:
        random = Random(8)
        broken = decided = 0
        draws = 150
        for _ in range(draws):
            confidences = [random.random() for _ in range(150)]
            # the true agreement from a confidence c on is (1.5 + c / 2) / 2 for these
            agreed = [random.random() < 0.5 + confidence / 2 for confidence in confidences]
            given = [0.5 + one / 2 for one in confidences] if probabilities else confidences
            found = selective_threshold(
                LabelledConfidences(confidences=tuple(given), agreed=tuple(agreed), probabilities=probabilities), 0.8
            )
            if found.threshold is not None:
                least = 2 * found.threshold - 1 if probabilities else found.threshold
                decided += 1
                broken += 0.5 + (least + 1) / 4 < 0.8
        assert decided > draws / 3
        assert broken / draws <= 0.1 + 3 * (0.1 * 0.9 / draws) ** 0.5


@pytest.mark.parametrize(
    ("score", "pass_score", "passed", "confidence"),
    [
        (1.0, 0.5, True, 1.0),
        (0.5, 0.5, True, 0.0),
        (0.0, 0.5, False, 1.0),
        (0.35, 0.7, False, 0.5),
        (1.0, 1.0, True, 1),
    ],
)
def test_confidence_is_the_distance_from_the_score_that_passes(
    score: float, pass_score: float, passed: bool, confidence: float
) -> None:
    assert Confidence.of(score, pass_score) == (score, passed, pytest.approx(confidence))


def reply(score: float) -> LLMResponse:
    text = f'{{"score": {score}, "rationale": "said {score}"}}'
    return LLMResponse(text, finish_reason="stop", usage=Usage(10, 5, 0, 0.5))


def bound(grader: ModelJudge | PanelGrader, learned: LearnedJudging | None) -> Any:
    calibrations = {} if learned is None else {grader.judge_fingerprint: learned}
    return grader.bind(Resources(calibrations=calibrations, environment={"OPENAI_API_KEY": "none"}))


def judge(score: float, learned: LearnedJudging | None, second: Any = None, **options: Any) -> MeteredResult:
    """The result of a judge that gives this score, and of a second one."""
    grader = ModelJudge(config={**JUDGE, **options}, adapter=ScriptedAdapter([reply(score)], "openai:m"))
    ready = bound(grader, learned)
    if second is not None:
        vars(ready.second)["_adapter"] = ScriptedAdapter([second] * 2, "openai:big")
    return asyncio.run(ready.agrade(CONTEXT))


SURE_FROM_06 = Learned(labelled((0.6, 80, 80), (0.1, 10, 40)))
ESCALATE = {"escalate": {"model": "big"}}


def test_a_verdict_that_is_sure_enough_counts_and_stores_its_confidence() -> None:
    found = judge(0.9, SURE_FROM_06, agreement=0.9).result
    assert isinstance(found, GradeResult)
    assert (found.score, found.passed) == (0.9, True)
    assert found.metadata["selective"] == {
        "agreement": 0.9,
        "threshold": 0.6,
        "measured": True,
        "score": 0.9,
        "passed": True,
        "confidence": pytest.approx(0.8),
        "decided": "first",
    }


def test_a_verdict_that_is_not_is_an_error_with_the_verdict_in_its_metadata() -> None:
    found = judge(0.6, SURE_FROM_06, agreement=0.9)
    assert isinstance(found.result, UnsureError)
    assert (found.result.type, found.result.rationale) == ("unsure", "said 0.6")
    assert str(found.result) == (
        "the judge is not sure of its verdict (pass, score 0.600): its confidence 0.200 is below 0.600"
    )
    assert found.usage == Usage(10, 5, 0, 0.5)
    assert stored_confidence(found.result.metadata) == (0.6, True, pytest.approx(0.2))
    assert found.result.metadata["judge"] == "openai:m"


def test_a_second_judge_decides_instead_with_its_own_usage() -> None:
    found = judge(0.6, SURE_FROM_06, reply(0.1), agreement=0.9, **ESCALATE)
    assert isinstance(found.result, GradeResult)
    assert (found.result.score, found.result.passed, found.result.rationale) == (0.1, False, "said 0.1")
    assert found.usage == Usage(20, 10, 0, 1.0)
    assert found.result.metadata["judge"] == "openai:big"
    stored = found.result.metadata["selective"]
    assert (stored["decided"], stored["first"]["judge"], stored["passed"]) == ("second", "openai:m", True)


def test_a_second_judge_without_a_verdict_leaves_it_unsure() -> None:
    found = judge(0.6, SURE_FROM_06, "no idea", agreement=0.9, **ESCALATE)
    assert isinstance(found.result, UnsureError)
    assert "; the second judge gave none: the judge's reply " in str(found.result)


def test_the_second_judge_is_not_called_for_verdicts_that_count() -> None:
    found = judge(0.9, SURE_FROM_06, AssertionError("called"), agreement=0.9, **ESCALATE)
    assert isinstance(found.result, GradeResult)
    assert found.usage == Usage(10, 5, 0, 0.5)


def test_a_failed_call_stays_its_own_error() -> None:
    grader = ModelJudge(config={**JUDGE, "agreement": 0.9}, adapter=ScriptedAdapter(["no", "no"], "openai:m"))
    found = asyncio.run(bound(grader, SURE_FROM_06).agrade(CONTEXT)).result
    assert isinstance(found, GraderError)
    assert found.type == "invalid_reply"


def test_before_a_calibration_every_verdict_counts() -> None:
    found = judge(0.55, None, agreement=0.9).result
    assert isinstance(found, GradeResult)
    assert found.metadata["selective"]["measured"] is False


def test_the_suites_threshold_decides_what_passes() -> None:
    grader = ModelJudge(config={**JUDGE, "agreement": 0.9}, adapter=ScriptedAdapter([reply(0.8)], "openai:m"))
    grader.pass_threshold = 0.9
    found = asyncio.run(bound(grader, SURE_FROM_06).agrade(CONTEXT)).result
    assert isinstance(found, UnsureError)
    assert stored_confidence(found.metadata) == (0.8, False, pytest.approx(1 / 9))


def test_the_options_do_not_change_what_a_calibration_is_filed_under() -> None:
    plain = ModelJudge(config=JUDGE)
    selective = ModelJudge(config={**JUDGE, "agreement": 0.9, **ESCALATE})
    assert selective.judge_fingerprint == plain.judge_fingerprint == plain.fingerprint
    fingerprints = {bound(selective, learned).fingerprint for learned in (None, SURE_FROM_06, Learned(None))}
    assert len(fingerprints) == 2  # measured, and not
    other = bound(ModelJudge(config={**JUDGE, "agreement": 0.8, **ESCALATE}), SURE_FROM_06)
    assert plain.fingerprint not in {*fingerprints, other.fingerprint}


def test_samples_give_the_share_of_replies() -> None:
    grader = ModelJudge(
        config={**JUDGE, "agreement": 0.9, "scoring": "samples", "samples": 5},
        adapter=ScriptedAdapter([reply(float(number < 4)) for number in range(5)], "openai:m"),
    )
    found = asyncio.run(bound(grader, SURE_FROM_06).agrade(CONTEXT)).result
    assert isinstance(found, GradeResult)
    assert stored_confidence(found.metadata) == (0.8, True, pytest.approx(0.6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agreement": 0.5}, "agreement"),
        ({"agreement": 1}, "agreement"),
        ({"escalate": {"model": "big"}}, "escalate: has no effect without agreement; write agreement: 0.9 too"),
        ({"agreement": 0.9, "escalate": {}}, "escalate.model: name the judging model"),
    ],
)
def test_invalid_options_are_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create("model_judge", {**JUDGE, **options})


def test_a_missing_key_of_the_second_judge_is_found_before_the_run() -> None:
    config = {**JUDGE, "agreement": 0.9, "escalate": {"model": "big", "api_key_env": "SECOND_KEY"}}
    grader = ModelJudge(config=config, adapter=ScriptedAdapter([], "openai:m"))
    with pytest.raises(ConfigError, match=r"escalate\.api_key_env: the environment has no SECOND_KEY"):
        grader.bind(Resources(environment={"OPENAI_API_KEY": "none"}))


def test_labels_from_a_damaged_file_count_as_none() -> None:
    damaged = LabelledConfidences(confidences=(0.5,) * 60, agreed=(True,) * 50)
    found = judge(0.9, Learned(damaged), agreement=0.9).result
    assert isinstance(found, GradeResult)
    assert found.metadata["selective"]["measured"] is False
