"""Reply formats: prompts and parsing."""

from __future__ import annotations

import json

import pytest

from gradeline.judges.logprobs import Scale
from gradeline.judges.reply_formats import ChecklistFormat, Item, PatternFormat, ScoreFormat
from gradeline.judges.reply_parsing import InvalidReply, JudgeVerdict, PatternReply

CHECKS = ChecklistFormat([Item("Is it right?", 3), Item("Is it kind?")])


class TestScore:
    @pytest.mark.parametrize(("reasoning", "keys"), [(False, ["score", "rationale"]), (True, ["rationale", "score"])])
    def test_the_rationale_comes_first_only_if_requested(self, reasoning: bool, keys: list[str]) -> None:
        form = ScoreFormat(reasoning)
        assert list(form.schema["properties"]) == form.schema["required"] == keys
        assert form.instruction.index(f'"{keys[0]}"') < form.instruction.index(f'"{keys[1]}"')

    def test_a_reply_is_read_unchanged(self) -> None:
        data = {"score": 0.5, "rationale": "half"}
        assert ScoreFormat().read(json.dumps(data)) == JudgeVerdict(0.5, "half", data=data)

    @pytest.mark.parametrize("reply", ['{"score": 1.7}', '{"score": "0.5"}', '{"score": true}', "0.5", "{}"])
    def test_nothing_is_clipped_or_guessed(self, reply: str) -> None:
        with pytest.raises(InvalidReply):
            ScoreFormat().read(reply)


class TestChecklist:
    def test_each_question_has_a_key(self) -> None:
        assert CHECKS.instruction.endswith('- "item_1": Is it right?\n- "item_2": Is it kind?')
        assert CHECKS.schema["properties"] == {
            "item_1": {"type": "boolean"},
            "item_2": {"type": "boolean"},
            "rationale": {"type": "string"},
        }
        assert list(ChecklistFormat(CHECKS.items, reasoning=True).schema["properties"]) == [
            "rationale",
            "item_1",
            "item_2",
        ]

    @pytest.mark.parametrize(
        ("right", "kind", "score"), [(True, True, 1.0), (True, False, 0.75), (False, True, 0.25), (False, False, 0.0)]
    )
    def test_the_score_is_the_weighted_share_of_yes(self, right: bool, kind: bool, score: float) -> None:
        verdict = CHECKS.read(json.dumps({"item_1": right, "item_2": kind, "rationale": "so"}))
        assert (verdict.score, verdict.notes) == (score, "so")
        assert CHECKS.answers(verdict) == [
            {"question": "Is it right?", "answer": right, "weight": 3},
            {"question": "Is it kind?", "answer": kind, "weight": 1.0},
        ]

    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            ('{"item_1": true}', "must answer 'item_2' by true or false, but lacks it"),
            ('{"item_1": 1, "item_2": true}', "must answer 'item_1' by true or false, but has 1 for it"),
            ('{"item_1": "yes", "item_2": true}', "has 'yes' for it"),
            ('{"score": 0.8, "rationale": "x"}', "must answer 'item_1' by true or false, but lacks it"),
        ],
    )
    def test_a_question_without_true_or_false_makes_the_reply_invalid(self, reply: str, message: str) -> None:
        with pytest.raises(InvalidReply, match=message):
            CHECKS.read(reply)


class TestPattern:
    def test_the_rating_is_stored_and_scaled_to_0_to_1(self) -> None:
        form = PatternFormat(PatternReply(r"\[\[(\d+)\]\]", 1, 10))
        assert (form.instruction, form.schema) == ("", None)
        assert form.read("Good. [[7]]") == JudgeVerdict(6 / 9, "Good. [[7]]", 7.0)

    @pytest.mark.parametrize(("low", "high", "whole"), [(1, 10, True), (0, 1, False), (0.5, 5, False)])
    def test_the_scale_is_that_of_the_rating(self, low: float, high: float, whole: bool) -> None:
        assert PatternFormat(PatternReply(r"(\d)", low, high)).scale == Scale(low, high, whole)
