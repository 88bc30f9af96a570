"""The model judge: prompt, settings and replies."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from gradeline.adapters import BudgetTracker, ChatRequest, create
from gradeline.errors import BudgetExceeded
from gradeline.judges import GradingResult, InvalidReply, Judge, LLMJudge, TruncatedReply
from gradeline.judges import llm as llm_judge
from gradeline.judges.llm import RUBRIC, RUBRIC_HASH, SCHEMA
from gradeline.model.llm import LLMResponse, RunConfig
from gradeline.model.trajectory import Message
from gradeline.testing import ScriptedAdapter

BASELINE, CANDIDATE = LLMResponse("Paris.", model="big"), LLMResponse("It is Paris.", model="small")
REPLY = '{"quality_score": 0.75, "notes": "Right."}'
CALLER = RunConfig(
    model="caller-model",
    temperature=0.9,
    max_tokens=50,
    system="You are a pirate.",
    timeout_s=7.0,
    model_params={"top_p": 0.5, "temperature": 0.3, "stop": ["\n"], "response_format": {"type": "text"}},
    budget=BudgetTracker(calls=0),
)


def judged(judge: LLMJudge, config: RunConfig = CALLER) -> GradingResult:
    return judge.judge(BASELINE, CANDIDATE, prompt="Capital of France?", run_config=config)


def test_the_result_is_complete_in_both_forms() -> None:
    expected = GradingResult(0.75, "Right.", f"llm-judge@{RUBRIC_HASH}", BASELINE, CANDIDATE)
    judge = LLMJudge(ScriptedAdapter(REPLY))
    assert judged(judge) == expected
    message = {"prompt": "Capital of France?", "run_config": CALLER}
    assert asyncio.run(judge.ajudge(BASELINE, CANDIDATE, **message)) == expected  # type: ignore[arg-type]
    assert isinstance(judge, Judge)


def test_a_complete_only_adapter_gets_a_string() -> None:
    class Plain:
        adapter_id = "plain"

        def complete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
            assert isinstance(prompt, str)
            assert 'Its key "quality_score"' in prompt
            return LLMResponse(REPLY)

    assert judged(LLMJudge(Plain())).quality_score == 0.75  # type: ignore[arg-type]


class TestConfig:
    def config(self, judge: LLMJudge, caller: RunConfig = CALLER) -> RunConfig:
        judged(judge, caller)
        adapter = judge.adapter
        assert isinstance(adapter, ScriptedAdapter)
        return adapter.calls[-1].run_config

    def test_config_is_that_of_the_judge_except_time_and_extra_parameters(self) -> None:
        assert self.config(LLMJudge(ScriptedAdapter(REPLY))) == RunConfig(
            model="", temperature=0.0, max_tokens=1024, timeout_s=7.0, model_params={"top_p": 0.5}
        )

    def test_config_has_the_given_seed_model_and_budget(self) -> None:
        budget = BudgetTracker(calls=1)
        judge = LLMJudge(ScriptedAdapter(REPLY), seed=0, model="judge-model", budget=budget)
        config = self.config(judge)
        assert (config.model, config.budget) == ("judge-model", budget)
        assert config.model_params == {"top_p": 0.5, "seed": 0}
        with pytest.raises(BudgetExceeded):
            judged(judge)

    def test_the_seed_of_the_judge_overrides_that_of_the_caller(self) -> None:
        caller = CALLER.replace(model_params={"seed": 1})
        assert self.config(LLMJudge(ScriptedAdapter(REPLY), seed=2), caller).model_params == {"seed": 2}
        assert self.config(LLMJudge(ScriptedAdapter(REPLY)), caller).model_params == {"seed": 1}

    def test_the_larger_token_limit_applies(self) -> None:
        caller = CALLER.replace(max_tokens=5000)
        assert self.config(LLMJudge(ScriptedAdapter(REPLY)), caller).max_tokens == 5000

    def test_the_config_of_the_caller_is_unchanged(self) -> None:
        before = replace(CALLER, model_params=dict(CALLER.model_params))
        judged(LLMJudge(ScriptedAdapter(REPLY), seed=3))
        assert before == CALLER


class TestPrompt:
    def asked(self, baseline: str = "Paris.", candidate: str = "It is Paris.") -> ChatRequest:
        adapter = ScriptedAdapter(REPLY)
        LLMJudge(adapter).judge(
            LLMResponse(baseline), LLMResponse(candidate), prompt="Capital of France?", run_config=CALLER
        )
        return ChatRequest.of(adapter.calls[0].prompt)

    def test_prompt_is_the_rubric_with_task_and_answers_fenced_by_one_new_nonce(self) -> None:
        text = self.asked().messages[0].content
        [nonce] = set(re.findall(r"fenced-\w+-([0-9a-f]{16})", text))
        for name, inner in (("task", "Capital of France?"), ("baseline", "Paris."), ("candidate", "It is Paris.")):
            assert f"\n<fenced-{name}-{nonce}>\n{inner}\n</fenced-{name}-{nonce}>\n" in text
        other = self.asked().messages[0].content
        assert nonce not in other
        assert re.sub(r"[0-9a-f]{16}", "", other) == re.sub(r"[0-9a-f]{16}", "", text)

    def test_prompt_is_one_message_with_a_schema_of_the_documented_keys(self) -> None:
        request = self.asked()
        assert request == ChatRequest(
            (Message("user", request.messages[0].content),), response_schema=SCHEMA, schema_name="judgement"
        )
        assert list(SCHEMA["properties"]) == ["quality_score", "notes"]

    def test_braces_and_placeholders_in_an_answer_stay_text(self) -> None:
        text = self.asked("{candidate} {0} {{", "{notice}}").messages[0].content
        assert "{candidate} {0} {{" in text
        assert "\n{notice}}\n" in text

    @pytest.mark.parametrize("rule", ["Length is no merit", "Formatting is no merit", "order in which", "correct"])
    def test_prompt_has_explicit_rules(self, rule: str) -> None:
        assert rule in RUBRIC


class TestName:
    def test_name_ends_in_the_hash_of_the_rubric(self) -> None:
        assert LLMJudge(ScriptedAdapter("")).grader_id == f"llm-judge@{RUBRIC_HASH}"
        assert LLMJudge(ScriptedAdapter(""), grader_id="mine").grader_id == f"mine@{RUBRIC_HASH}"

    def test_name_does_not_change_in_a_copy(self) -> None:
        judge = LLMJudge(ScriptedAdapter(""), grader_id="mine")
        assert replace(judge, seed=7).grader_id == judge.grader_id

    @pytest.mark.parametrize("grader_id", ["", " "])
    def test_name_must_not_be_empty(self, grader_id: str) -> None:
        with pytest.raises(ValueError, match="grader_id must name the judge"):
            LLMJudge(ScriptedAdapter(""), grader_id=grader_id)


def test_the_fingerprint_changes_only_with_model_prompt_and_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(adapter_id: str = "a", **message: Any) -> str:
        return LLMJudge(ScriptedAdapter("", adapter_id), **message).fingerprint

    assert made() == made(grader_id="mine", budget=BudgetTracker())
    chat = [create("openai", model, base_url="http://127.0.0.1:1", adapter_id="a") for model in ("x", "y")]
    different = [made(), made("b"), made(model="m"), made(seed=1), *(LLMJudge(one).fingerprint for one in chat)]
    monkeypatch.setattr(llm_judge, "RUBRIC_HASH", "changed")
    assert len({*different, made()}) == len(different) + 1


class TestReply:
    def test_reply_without_json_is_a_value_error_with_the_text(self) -> None:
        with pytest.raises(InvalidReply) as caught:
            judged(LLMJudge(ScriptedAdapter("It is rather good.")))
        assert caught.value.raw == "It is rather good."

    def test_reply_of_the_other_format_is_invalid(self) -> None:
        with pytest.raises(InvalidReply, match="lacks 'quality_score'"):
            judged(LLMJudge(ScriptedAdapter('{"score": 1.0, "rationale": "r"}')))

    def test_truncated_reply_is_requested_again(self) -> None:
        cut = LLMResponse(REPLY, finish_reason="length")
        adapter = ScriptedAdapter([cut, REPLY])
        assert judged(LLMJudge(adapter)).quality_score == 0.75
        assert [call.run_config.max_tokens for call in adapter.calls] == [1024, 4096]
        assert adapter.calls[0].prompt == adapter.calls[1].prompt
        with pytest.raises(TruncatedReply):
            judged(LLMJudge(ScriptedAdapter([cut, cut])))
