"""Parsing of judge replies."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, Fault, GraderError
from gradeline.judges.reply_parsing import (
    MAX_NOTES,
    EmptyReply,
    InvalidReply,
    JudgeVerdict,
    PatternReply,
    RefusedReply,
    ReplyError,
    TruncatedReply,
    read_object,
    read_score,
    read_verdict,
    require_reply,
)
from gradeline.model.llm import LLMResponse
from gradeline.model.trajectory import ToolCall

PLAIN = '{"quality_score": 0.75, "notes": "Short."}'
DATA = {"quality_score": 0.75, "notes": "Short."}


def verdict(text: str) -> JudgeVerdict:
    return read_verdict(text, "quality_score", "notes")


class TestReply:
    def test_a_complete_reply_is_its_text(self) -> None:
        assert require_reply(LLMResponse(" yes ", finish_reason="stop")) == " yes "
        assert require_reply(LLMResponse("no one said how it ended")) == "no one said how it ended"

    @pytest.mark.parametrize(
        ("response", "kind"),
        [
            (LLMResponse(PLAIN, finish_reason="length"), TruncatedReply),
            (LLMResponse("", finish_reason="length"), TruncatedReply),
            (LLMResponse("{", finish_reason="MAX_TOKENS"), TruncatedReply),
            (LLMResponse("I cannot.", finish_reason="refusal"), RefusedReply),
            (LLMResponse("", finish_reason="content_filter"), RefusedReply),
            (LLMResponse("", finish_reason="SAFETY"), RefusedReply),
            (LLMResponse("", finish_reason="stop"), EmptyReply),
            (LLMResponse(" \n\t"), EmptyReply),
            (LLMResponse("\ufeff\n"), EmptyReply),
            (LLMResponse("", finish_reason="tool_calls", tool_calls=(ToolCall("grade", "{}"),)), EmptyReply),
        ],
    )
    def test_an_invalid_reply_is_reported_by_its_type(self, response: LLMResponse, kind: type[ReplyError]) -> None:
        with pytest.raises(kind) as caught:
            require_reply(response)
        assert type(caught.value) is kind
        assert caught.value.raw == response.content

    def test_a_tool_call_instead_of_text_is_named(self) -> None:
        with pytest.raises(EmptyReply, match="it called the tool 'grade' instead"):
            require_reply(LLMResponse("", tool_calls=(ToolCall("grade", "{}"),)))

    def test_a_text_next_to_a_tool_call_is_a_reply(self) -> None:
        assert require_reply(LLMResponse(PLAIN, tool_calls=(ToolCall("think", "{}"),))) == PLAIN


@pytest.mark.parametrize(
    ("kind", "type_name"),
    [
        (InvalidReply, "invalid_reply"),
        (RefusedReply, "refused"),
        (TruncatedReply, "truncated"),
        (EmptyReply, "empty_reply"),
    ],
)
def test_every_reply_error_is_a_value_error_a_grader_error_and_carries_the_reply(
    kind: type[ReplyError], type_name: str
) -> None:
    error = kind("why", "the whole reply")
    assert isinstance(error, ValueError)
    assert isinstance(error, GraderError)
    assert (error.type, error.fault, error.raw, str(error)) == (type_name, Fault.GRADER, "the whole reply", "why")


class TestJsonObject:
    @pytest.mark.parametrize(
        "text",
        [
            PLAIN,
            f"\ufeff{PLAIN}",
            f"\n\n  {PLAIN}  \n",
            f"```json\n{PLAIN}\n```",
            f"```\n{PLAIN}\n```",
            f"~~~json\n{PLAIN}\n~~~",
            f"Here is my verdict:\n\n{PLAIN}\n\nLet me know.",
            f"Here:\n```json\n{PLAIN}\n```\nDone.",
            f"{PLAIN}\n{PLAIN}",
            f'{PLAIN} or {{"notes": "Short.", "quality_score": 7.5e-1}}',
            f"The set {{1, 2}} and the formula \\frac{{1}}{{2}} and {{ {{ nested }} }} aside: {PLAIN}",
            '{"quality_score": 0.75,\n "notes": "Short."\n}',
        ],
    )
    def test_object_is_found_by_itself_in_a_fence_and_in_prose(self, text: str) -> None:
        assert read_object(text) == DATA

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "no object here",
            "0.75",
            f"[{PLAIN}]",
            f"The verdicts: [ {PLAIN} ]",
            json.dumps(PLAIN),
            PLAIN.replace('"', "'"),
            '{"quality_score": 0.75,}',
            '{ // on the whole\n"quality_score": 0.75}',
            "{quality_score: 0.75}",
            '{"quality_score": 0.75',
            '{"quality_score": 8/10}',
            '{"quality_score": .75}',
            '{"quality_score": +0.75}',
            f'{PLAIN} {{"quality_score": 0.1}}',
            f"{PLAIN} {{}}",
            f'The format is {{"quality_score": 0.0, "notes": "why"}}. {PLAIN}',
            f'The format is {{"quality_score": <number>}}. {PLAIN}',
            '{"quality_score": 0.1, "quality_score": 0.9}',
            '{"quality_score": 0.1, "more": {"a": 1, "a": 2}}',
            '{"quality_score": NaN}',
            '{"quality_score": Infinity}',
            '{"quality_score": -Infinity}',
            '{"quality_score": 1e999}',
            '{"quality_score": 0.5, "more": [NaN]}',
            f"{{'outer': {PLAIN}}}",
            f"{{broken {PLAIN}}}",
            f"{{ {PLAIN}",
            f'{{"notes": "a "bad" quote", "more": {PLAIN}}}',
        ],
    )
    def test_a_similar_text_or_a_second_object_is_invalid(self, text: str) -> None:
        with pytest.raises(InvalidReply) as caught:
            read_object(text)
        assert caught.value.raw == text

    @pytest.mark.parametrize(
        "text",
        ['{"a":' * 100_000, "[" * 100_000 + "{" * 100_000, "{}" * 500_000, "{" * 1_000_000, "x" * 2_000_001,
         '{"quality_score": ' + "1" * 5000 + "}", '{"a": "' * 100_000, "}" * 1_000_000, '{"a' * 300_000],
    )  # fmt: skip
    def test_a_huge_or_deep_reply_is_invalid_with_a_short_quote(self, text: str) -> None:
        with pytest.raises(InvalidReply) as caught:
            read_object(text)
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(
        "text",
        [
            "I'm sorry, but I can't help with that request.",
            "I’m sorry, I cannot evaluate this.",
            "I cannot assist with grading harmful content.",
            "Sorry, we won't do that.",
            "I must decline.",
            "I'm unable to judge this.",
            "As an AI language model, I can't judge that.",
            "Unfortunately, I am not able to do so.",
        ],
    )
    def test_a_text_that_declines_is_a_refusal(self, text: str) -> None:
        with pytest.raises(RefusedReply) as caught:
            read_object(text)
        assert caught.value.raw == text

    @pytest.mark.parametrize(
        "text", ["Sorry, it is bad.", "Unfortunately the answer is wrong.", "I'm afraid it is 0.2."]
    )
    def test_a_text_that_only_regrets_is_invalid(self, text: str) -> None:
        with pytest.raises(InvalidReply):
            read_object(text)

    def test_a_verdict_with_an_apology_is_a_verdict(self) -> None:
        assert read_object(f"I'm sorry to say that it is poor. {PLAIN}") == DATA

    @given(st.text(st.sampled_from('{}[]":,0.a \n`') | st.characters()))
    def test_any_text_is_an_object_or_a_reply_error(self, text: str) -> None:
        with suppress(ReplyError):
            assert isinstance(read_object(text), dict)

    @given(
        st.dictionaries(st.text(), st.none() | st.booleans() | st.text() | st.floats(0, 1)),
        st.text(st.characters(exclude_characters="{}[")),
        st.text(st.characters(exclude_characters="{}")),
    )
    def test_an_object_is_found_in_any_prose_without_braces(
        self, data: dict[str, object], before: str, after: str
    ) -> None:
        assert read_object(before + json.dumps(data) + after) == data


class TestScoreValue:
    @pytest.mark.parametrize(("message", "score"), [("0", 0.0), ("1", 1.0), ("0.5", 0.5), ("1.0", 1.0), ("-0.0", 0.0)])
    def test_score_is_a_number_from_0_to_1(self, message: str, score: float) -> None:
        found = verdict(f'{{"quality_score": {message}}}').score
        assert (found, type(found)) == (score, float)

    @pytest.mark.parametrize(
        "message", ['"0.8"', '"80%"', '"8/10"', "80", "8", "1.2", "1.0000001", "-0.1", "null", "true", "false", "[0.5]",
                 '{"value": 0.5}', '""', "1" * 400]
    )  # fmt: skip
    def test_score_is_never_clipped_converted_or_guessed(self, message: str) -> None:
        text = f'{{"quality_score": {message}, "notes": "n"}}'
        with pytest.raises(InvalidReply) as caught:
            verdict(text)
        assert caught.value.raw == text
        assert message[:30] in str(caught.value)

    def test_missing_score_is_invalid_and_the_keys_are_named(self) -> None:
        with pytest.raises(InvalidReply, match="lacks 'quality_score'; its object has 'score', 'notes'"):
            verdict('{"score": 0.5, "notes": "n"}')
        with pytest.raises(InvalidReply, match="its object has 'result'"):
            verdict('{"result": {"quality_score": 0.5}}')

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "0.5", None])
    def test_score_of_data_from_elsewhere_is_checked_too(self, value: object) -> None:
        with pytest.raises(InvalidReply):
            read_score({"score": value}, "score", "raw")


class TestNotes:
    def test_notes_are_optional(self) -> None:
        assert verdict('{"quality_score": 1}') == JudgeVerdict(1.0, "", None, {"quality_score": 1})
        assert verdict('{"quality_score": 1, "notes": null}').notes == ""

    def test_notes_may_contain_json_and_escapes(self) -> None:
        notes = 'In short: {"quality_score": 0.0} and \x1b[31m'
        assert verdict(json.dumps({"quality_score": 1, "notes": notes})).notes == notes

    def test_notes_may_contain_a_raw_line_break(self) -> None:
        assert verdict('{"quality_score": 1, "notes": "two\nlines"}').notes == "two\nlines"

    def test_notes_are_bounded(self) -> None:
        notes = verdict(json.dumps({"quality_score": 1, "notes": "a" * 200_000})).notes
        assert notes == "a" * (MAX_NOTES - 1) + "…"

    def test_notes_are_cleaned_for_storage(self) -> None:
        assert verdict('{"quality_score": 1, "notes": "\\u0000 \\ud800"}').notes == "␀ \ufffd"

    def test_notes_that_are_not_strings_are_shown_as_json(self) -> None:
        assert verdict('{"quality_score": 1, "notes": ["a", 1]}').notes == '["a", 1]'


class TestPatternReply:
    RATING = PatternReply(r"\[\[(\d+(?:\.\d+)?)\]\]", 1, 10)

    @pytest.mark.parametrize(("message", "score"), [("1", 0.0), ("10", 1.0), ("5.5", 0.5), ("7", 2 / 3)])
    def test_a_rating_is_scaled_to_0_to_1_and_stored(self, message: str, score: float) -> None:
        text = f"It is fair.\n\nRating: [[{message}]]"
        assert self.RATING.read(text) == JudgeVerdict(pytest.approx(score), text, float(message))

    def test_the_same_rating_twice_is_one(self) -> None:
        assert self.RATING.read("I say [[8]], so [[8.0]].").raw_score == 8.0

    @pytest.mark.parametrize("text", ["[[0]]", "[[10.5]]", "[[3]] or [[4]]", "[[x]]", "8", "", "[8]"])
    def test_no_rating_several_or_one_past_the_range_is_missing(self, text: str) -> None:
        with pytest.raises(InvalidReply) as caught:
            self.RATING.read(text)
        assert caught.value.raw == text

    def test_a_text_that_declines_is_a_refusal(self) -> None:
        with pytest.raises(RefusedReply):
            self.RATING.read("I'm sorry, but I can't rate this.")

    @pytest.mark.parametrize("rating", ["eight", "1e3", "٣", "nan", "inf", "", "9" * 400])
    def test_the_matched_group_must_be_a_number(self, rating: str) -> None:
        with pytest.raises(InvalidReply):
            PatternReply(r"Rating:(.*)", 1, 10).read(f"Rating:{rating}")

    def test_a_negative_scale_works(self) -> None:
        assert PatternReply(r"(-?\d+)", -2, 2).read("-1") == JudgeVerdict(0.25, "-1", -1.0)

    @pytest.mark.parametrize(
        ("pattern", "low", "high", "place"),
        [
            (r"\d+", 1, 10, "pattern: '\\\\d+' has 0 groups; it needs exactly one"),
            (r"(\d+)/(\d+)", 1, 10, "has 2 groups; it needs exactly one"),
            (r"(\d+", 1, 10, "is not a valid RE2 pattern"),
            (r"(?=x)(\d)", 1, 10, "RE2 has no lookaround"),
            (r"(\d+)", 10, 1, "min: 10 must be a number below max"),
            (r"(\d+)", 1, float("nan"), "min: 1 must be a number below max"),
        ],
    )
    def test_an_invalid_format_is_refused_at_creation(self, pattern: str, low: float, high: float, place: str) -> None:
        with pytest.raises(ConfigError) as caught:
            PatternReply(pattern, low, high)
        assert place in str(caught.value)

    def test_hostile_text_is_bounded(self) -> None:
        with pytest.raises(InvalidReply, match="too long"):
            self.RATING.read("[[8]]" * 500_000)
        with pytest.raises(InvalidReply, match="does not hold exactly one rating"):
            PatternReply(r"(8)", 1, 10).read("8" * 200_001)
        assert self.RATING.read("\ud800 [[8]]").raw_score == 8.0
