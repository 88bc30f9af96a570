"""The model judge with a rubric: prompts, replies and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradeline import GradeContext, GradeResult, Sample
from gradeline.adapters import AdapterSettings, ChatRequest, LLMResponse, RunConfig, Usage
from gradeline.adapters import create as create_adapter
from gradeline.adapters.costs import BudgetTracker
from gradeline.errors import ConfigError, Fault, GraderError, ProviderRefusedError
from gradeline.graders import create, registry
from gradeline.judges.base import JudgeFailedError, OverBudgetError
from gradeline.judges.model_judge import ModelJudge
from gradeline.judges.panel import PanelGrader
from gradeline.model import AsyncGrader, MeteredResult
from gradeline.model.resources import Resources
from gradeline.testing import ScriptedAdapter
from gradeline.testing.fake_judge import FakeJudge, Truth, with_mark
from gradeline.transport import Backoff

GOOD = '{"score": 0.8, "rationale": "mostly right"}'
SAMPLE = Sample("s", "What is the capital of France?", "Paris")


def context(submission: str = "It is Paris.", sample: Sample = SAMPLE) -> GradeContext:
    return GradeContext(sample, submission)


def scripted(config: dict[str, Any], *replies: Any) -> tuple[ModelJudge, ScriptedAdapter]:
    adapter = ScriptedAdapter(replies or [GOOD])
    return ModelJudge(config=config, adapter=adapter), adapter


def ask(judge: ModelJudge, ctx: GradeContext | None = None) -> MeteredResult:
    return asyncio.run(judge.agrade(ctx or context()))


def result(judge: ModelJudge, ctx: GradeContext | None = None) -> GradeResult:
    found = ask(judge, ctx).result
    assert isinstance(found, GradeResult), found
    return found


def failure(judge: ModelJudge, ctx: GradeContext | None = None) -> tuple[str, str]:
    found = ask(judge, ctx).result
    assert isinstance(found, GraderError), found
    return found.type, str(found)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeJudge]:
    with FakeJudge(items={"right": Truth(quality=0.8), "wrong": Truth(quality=0.1)}).in_thread() as judge:
        yield judge


def served(server: FakeJudge, behaviour: str = "", **config: Any) -> ModelJudge:
    """A judge on the server that retries without a delay."""
    quick = AdapterSettings(backoff=Backoff(base_s=0.001, cap_s=0.002, random=Random(7)))
    adapter = create_adapter("openai", "gpt-4o-mini", base_url=server.base_url(behaviour), settings=quick)
    return ModelJudge(config={"prompt": "Is it right?", **config}, adapter=adapter)


class TestCalls:
    def test_a_reply_becomes_a_grade_with_its_provenance(self, server: FakeJudge) -> None:
        judge = served(server)
        judged = ask(judge, context(with_mark("It is Paris.", "right")))
        assert isinstance(judged.result, GradeResult)
        metadata = dict(judged.result.metadata)
        prompt = metadata.pop("prompt")
        assert isinstance(judged.usage, Usage)
        assert judged.result.score == 0.8
        assert metadata == {
            "judge": "openai:gpt-4o-mini",
            "model": "gpt-4o-mini",
            "scoring": "greedy",
            "usage": {
                "input_tokens": judged.usage.input_tokens,
                "output_tokens": judged.usage.output_tokens,
                "cached_tokens": 0,
                "cost": None,
            },
        }
        assert len(prompt) == 32

    def test_the_schema_has_the_keys_of_letta(self) -> None:
        judge, adapter = scripted({"prompt": "Is it right?", "system_prompt": "Be strict."})
        ask(judge)
        (asked,) = adapter.calls
        assert isinstance(asked.prompt, ChatRequest)
        assert asked.prompt.schema_name == "JudgeResponse"
        assert asked.prompt.response_schema is not None
        assert list(asked.prompt.response_schema["properties"]) == ["score", "rationale"]
        assert asked.run_config == RunConfig("", 0.0, 2048, "Be strict.", 120.0, {})

    def test_its_parameters_go_into_the_call(self) -> None:
        options = {"temperature": 0.3, "max_tokens": 9, "seed": 4, "timeout": 7, "model_params": {"top_p": 0.5}}
        judge, adapter = scripted({"prompt": "x", "model": "m", **options})
        ask(judge)
        params = {"top_p": 0.5, "seed": 4}
        assert adapter.calls[0].run_config == RunConfig("m", 0.3, 9, None, 7.0, params)

    def test_each_call_has_a_new_fence(self) -> None:
        judge, adapter = scripted({"prompt": "Is {submission} right?"}, GOOD, GOOD)
        ask(judge)
        ask(judge)
        prompts = [call.text for call in adapter.calls]
        assert all("\nIt is Paris.\n</fenced-submission-" in prompt for prompt in prompts)
        assert prompts[0] != prompts[1]

    def test_variables_of_grader_and_case_fill_the_rubric_and_the_cases_win(self) -> None:
        config = {"prompt": "{submission} {tone} {place} {n}", "rubric_vars": {"tone": "kind", "place": "here"}}
        judge, adapter = scripted(config)
        ask(judge, context(sample=Sample(0, "q", rubric_vars={"place": "there", "n": 3})))
        assert "\nkind there 3\n" in adapter.calls[0].text.replace("> ", ">\n").replace("\n kind", "\nkind")

    def test_a_conversation_is_shown_line_by_line(self) -> None:
        judge, adapter = scripted({"prompt": "Q: {input}\n{submission}"})
        ask(judge, context(sample=Sample(0, ["Hello", "Capital?"])))
        assert adapter.calls[0].text.startswith("Q: Hello\nCapital?\n<fenced-submission-")

    def test_a_cases_own_rubric_wins(self, tmp_path: Path) -> None:
        (tmp_path / "own.md").write_text("Is it kind?")
        judge, adapter = scripted({"prompt": "Is it right?"}, GOOD, GOOD, GOOD)
        placed = judge.bind(Resources(tmp_path))
        for sample in (Sample(0, "q"), Sample(1, "q", rubric="Is it short?"), Sample(2, "q", rubric_path="own.md")):
            ask(placed, context(sample=sample))
        rubrics = [call.text.split("# Rubric\n\n")[1].split("\n")[0] for call in adapter.calls]
        assert rubrics == ["Is it right?", "Is it short?", "Is it kind?"]

    def test_it_works_without_a_running_loop_and_inside_one(self) -> None:
        judge, _ = scripted({"prompt": "x"}, GOOD, GOOD)
        assert judge.grade(context()).score == 0.8

        async def inside() -> float:
            return judge.grade(context()).score

        assert asyncio.run(inside()) == 0.8

    def test_a_string_only_adapter_gets_a_string(self) -> None:
        class Plain:
            adapter_id = "plain"

            def complete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
                assert isinstance(prompt, str)
                return LLMResponse(GOOD, finish_reason="stop")

        adapter: Any = Plain()
        graded = result(ModelJudge(config={"prompt": "x"}, adapter=adapter))
        assert graded.metadata["notes"] == [{"what": "response_schema", "why": "the adapter only takes strings"}]

    def test_it_is_a_grader_that_calls_a_model(self) -> None:
        judge, _ = scripted({"prompt": "x"})
        assert isinstance(judge, AsyncGrader)
        assert judge.judges == ("scripted",)
        assert ModelJudge(config={"prompt": "x", "provider": "google", "model": "g"}).judges == ("gemini:g",)


class TestReplies:
    def test_a_rating_in_free_text(self) -> None:
        reply = {"pattern": r"\[\[(\d+)\]\]", "min": 1, "max": 10}
        judge, adapter = scripted({"prompt": "Rate it.", "reply": reply}, "Good. [[7]]")
        graded = result(judge)
        assert (graded.score, graded.rationale, graded.metadata["raw_score"]) == (6 / 9, "Good. [[7]]", 7.0)
        assert isinstance(adapter.calls[0].prompt, ChatRequest)
        assert adapter.calls[0].prompt.response_schema is None

    def test_a_checklist(self) -> None:
        checklist = ["Is it right?", {"question": "Is it kind?", "weight": 3}]
        judge, _ = scripted({"checklist": checklist}, '{"item_1": true, "item_2": false, "rationale": "cold"}')
        graded = result(judge)
        assert (graded.score, graded.passed, graded.rationale) == (0.25, False, "cold")
        assert graded.metadata["checklist"] == [
            {"question": "Is it right?", "answer": True, "weight": 1.0},
            {"question": "Is it kind?", "answer": False, "weight": 3.0},
        ]

    def test_a_checklist_of_a_served_judge(self, server: FakeJudge) -> None:
        checklist = [f"Question {number}?" for number in range(1, 6)]
        graded = ask(served(server, checklist=checklist), context(with_mark("It is Paris.", "right"))).result
        assert isinstance(graded, GradeResult)
        # the answer's quality is 0.8: four of five
        assert (graded.score, graded.rationale) == (0.8, "Measured against the rubric — each point in turn.")
        assert [check["question"] for check in graded.metadata["checklist"]] == checklist
        assert sum(check["answer"] for check in graded.metadata["checklist"]) == 4

    def test_a_placeholder_without_a_value_is_noted(self) -> None:
        judge, _ = scripted({"prompt": "{submission} {tone} {mood}"}, GOOD, GOOD)
        report = result(judge, context(sample=Sample(0, "q", rubric_vars={"tone": "kind"}))).metadata["notes"]
        assert report == [
            {"what": "{mood}", "why": "the case has no such rubric_vars, so the placeholder was sent as literal text"}
        ]
        whole = result(judge, context(sample=Sample(0, "q", rubric_vars={"tone": "kind", "mood": "calm"})))
        assert "notes" not in whole.metadata

    @pytest.mark.parametrize(
        ("behaviour", "error"),
        [
            ("score-above", "invalid_reply"),
            ("score-text", "invalid_reply"),
            ("score-true", "invalid_reply"),
            ("two-objects", "invalid_reply"),
            ("prose", "invalid_reply"),
            ("refusal", "refused"),
            ("content-filter", "refused"),
            ("truncated", "truncated"),
            ("empty", "empty_reply"),
            ("tool-call", "empty_reply"),
        ],
    )
    def test_a_reply_without_a_verdict_is_an_error_with_a_cost(
        self, server: FakeJudge, behaviour: str, error: str
    ) -> None:
        judged = ask(served(server, behaviour), context(with_mark("It is Paris.", "right")))
        assert isinstance(judged.result, GraderError)
        assert judged.result.type == error
        assert judged.usage is not None
        assert judged.usage.input_tokens

    def test_unsupported_features_of_a_server_are_noted(self, server: FakeJudge) -> None:
        judge = served(server, "unsupported,param=seed|response_format", seed=3)
        graded = result(judge, context(with_mark("It is Paris.", "right")))
        assert graded.score == 0.8
        assert [note["what"] for note in graded.metadata["notes"]] == ["seed", "response_schema"]

    def test_an_unknown_usage_is_not_zero(self, server: FakeJudge) -> None:
        judged = ask(served(server, "no-usage"), context(with_mark("It is Paris.", "right")))
        assert isinstance(judged.result, GradeResult)
        assert judged.usage in (None, Usage())


class TestScoring:
    def test_samples_are_averaged_and_stored(self) -> None:
        replies = [f'{{"score": {score}, "rationale": "{score}"}}' for score in (0.2, 0.6, 1.0)]
        judge, adapter = scripted({"prompt": "x", "scoring": "samples", "samples": 3, "seed": 5}, *replies)
        graded = result(judge)
        assert (graded.score, graded.rationale) == (pytest.approx(0.6), "0.6")
        assert (graded.metadata["scoring"], graded.metadata["scores"]) == ("samples", [0.2, 0.6, 1.0])
        configs = [call.run_config for call in adapter.calls]
        assert [(config.temperature, config.model_params["seed"]) for config in configs] == [
            (1.0, 5),
            (1.0, 6),
            (1.0, 7),
        ]

    def test_a_sample_without_a_verdict_is_not_left_out(self) -> None:
        judge, adapter = scripted({"prompt": "x", "scoring": "samples", "samples": 3}, GOOD, "none", GOOD)
        assert failure(judge)[0] == "invalid_reply"
        assert len(adapter.calls) == 3

    def test_log_probabilities_give_the_expected_score(self, server: FakeJudge) -> None:
        judge = served(server, "coarse,n=11", scoring="logprobs")
        graded = result(judge, context(with_mark("It is Paris.", "right")))
        assert graded.metadata["scoring"] == "logprobs"
        assert graded.metadata["mode"] == 0.8
        assert graded.score == pytest.approx(server.decisions[-1].expected, abs=1e-6)

    @pytest.mark.parametrize(
        ("behaviour", "reason"),
        [
            ("split-tokens", "the score is not one token of the reply"),
            ("perfect", "the returned alternatives cover only 70% of the probability"),
            ("unsupported,param=logprobs", "the judge returned no log-probabilities"),
        ],
    )
    def test_incomplete_probabilities_give_the_mode_with_the_reason(
        self, server: FakeJudge, behaviour: str, reason: str
    ) -> None:
        graded = result(served(server, behaviour, scoring="logprobs"), context(with_mark("It is Paris.", "right")))
        assert graded.score == 0.8
        assert (graded.metadata["scoring"], graded.metadata["scoring_reason"]) == ("mode", reason)


FACTUALITY = {"A": 0.4, "B": 0.6, "C": 1, "D": 0, "E": 1}
"""The labels of OpenAI's factuality template, with weights."""
GRADES = {"good": 1, "fair": 0.5, "poor": 0}


class TestLabels:
    def test_the_label_decides_the_score_and_is_stored(self) -> None:
        judge, adapter = scripted(
            {"prompt": "Is it right?", "reply": {"choices": FACTUALITY}}, '{"label": "b", "rationale": "a superset"}'
        )
        graded = result(judge)
        assert (graded.score, graded.rationale, graded.metadata["label"]) == (0.6, "a superset", "B")
        request = adapter.calls[0].prompt
        assert isinstance(request, ChatRequest)
        assert request.response_schema is not None
        assert request.response_schema["properties"]["label"] == {"type": "string", "enum": ["A", "B", "C", "D", "E"]}
        assert 'exactly one of "A", "B", "C", "D", "E"' in adapter.calls[0].text

    @pytest.mark.parametrize(
        "reply",
        [
            '{"label": "F"}',
            '{"label": "A or B"}',
            '{"label": ["A"]}',
            '{"label": null}',
            '{"rationale": "A"}',
            '{"label": "A"} {"label": "B"}',
            '{"label": "A", "label": "B"}',
            "I choose A",
            "A B",
            '{"score": 1.0}',
        ],
    )
    def test_an_unknown_ambiguous_or_missing_label_is_no_score(self, reply: str) -> None:
        judge, _ = scripted({"prompt": "x", "reply": {"choices": FACTUALITY}}, reply)
        assert failure(judge)[0] == "invalid_reply"

    def test_a_reply_that_is_only_a_label_counts(self) -> None:
        judge, _ = scripted({"prompt": "x", "reply": {"choices": GRADES}}, " Fair\n")
        graded = result(judge)
        assert (graded.score, graded.metadata["label"]) == (0.5, "fair")

    def test_samples_store_each_label(self) -> None:
        config = {"prompt": "x", "reply": {"choices": GRADES}, "scoring": "samples", "samples": 3}
        graded = result(scripted(config, "good", "poor", "fair")[0])
        assert (graded.score, graded.metadata["label"], graded.metadata["labels"]) == (
            0.5,
            "fair",
            ["good", "poor", "fair"],
        )

    def test_the_fingerprint_covers_labels_and_scores(self) -> None:
        def of(choices: dict[str, float]) -> str:
            return scripted({"prompt": "x", "reply": {"choices": choices}})[0].fingerprint

        assert len({of(GRADES), of({**GRADES, "fair": 0.4}), of({"good": 1, "poor": 0})}) == 3

    def test_a_served_judge_chooses_a_label(self, server: FakeJudge) -> None:
        judge = served(server, reply={"choices": GRADES})
        assert result(judge, context(with_mark("It is Paris.", "right"))).metadata["label"] == "good"
        assert result(judge, context(with_mark("It is Rome.", "wrong"))).metadata["label"] == "poor"

    def test_log_probabilities_of_labels_give_the_expected_score(self, server: FakeJudge) -> None:
        judge = served(server, "coarse,n=11", scoring="logprobs", reply={"choices": GRADES})
        graded = result(judge, context(with_mark("It is Paris.", "right")))
        assert graded.metadata["scoring"] == "logprobs"
        assert graded.score == pytest.approx(server.decisions[-1].expected, abs=1e-6)

    @pytest.mark.parametrize("shape", ["two-objects", "missing-key", "single-quotes", "duplicate-key", "nested"])
    def test_a_malformed_reply_of_a_server_is_no_score(self, server: FakeJudge, shape: str) -> None:
        judge = served(server, shape, reply={"choices": GRADES})
        assert failure(judge, context(with_mark("It is Paris.", "right")))[0] == "invalid_reply"

    def test_members_of_a_panel_choose_labels(self) -> None:
        config = {"prompt": "x", "reply": {"choices": GRADES}, "judges": [{"model": "m"}, {"model": "claude"}]}
        panel = PanelGrader(config=config, adapters=[ScriptedAdapter("good"), ScriptedAdapter("poor")])
        graded = panel.grade(context())
        assert graded.score == 0.5
        assert [one["label"] for one in graded.metadata["judges"]] == ["good", "poor"]


class TestShippedRubrics:
    def test_the_threshold_of_the_rubric_decides_what_passes(self) -> None:
        judge, _ = scripted({"rubric": "faithfulness@1", "rubric_vars": {"context": "c"}}, '{"score": 0.7}')
        graded = result(judge)
        assert (graded.passed, graded.metadata["rubric"]) == (False, "faithfulness@1")

    def test_its_checklist_is_used(self) -> None:
        answers = {f"item_{number}": number != 3 for number in range(1, 7)}
        judge, _ = scripted({"rubric": "helpfulness@1"}, json.dumps(answers))
        assert result(judge).score == pytest.approx(0.75)

    @pytest.mark.parametrize(
        ("rubric", "sample", "message"),
        [
            ("factuality", Sample(0, "q"), "the rubric factuality@1 needs {ground_truth}, and the case has none"),
            (
                "closed_qa",
                Sample(0, "q", "a"),
                "the rubric closed_qa@1 needs {criteria}, and the case has none; set it in rubric_vars, of the grader"
                " or of the case",
            ),
            ("helpfulness", Sample(0, ""), "the rubric helpfulness@1 needs {input}, and the case has none"),
        ],
    )
    def test_a_case_without_required_fields_makes_no_call(self, rubric: str, sample: Sample, message: str) -> None:
        judge, adapter = scripted({"rubric": rubric})
        assert failure(judge, context(sample=sample)) == ("missing", message)
        assert adapter.calls == []


class TestFailures:
    @pytest.mark.parametrize(
        ("behaviour", "message"),
        [
            (
                "401",
                "judge openai:gpt-4o-mini: the provider does not accept this key (HTTP 401: 'Incorrect API key provided.');"
                " put a valid key into OPENAI_API_KEY",
            ),
            ("403", "judge openai:gpt-4o-mini: the provider does not allow this key to make the call (HTTP 403: "),
            ("404", "judge openai:gpt-4o-mini: the provider does not know this model or address (HTTP 404: "),
            ("429-quota", "judge openai:gpt-4o-mini: the provider reports that the account is used up (HTTP 429: "),
        ],
    )
    def test_a_fault_of_every_case_ends_the_run_without_a_retry(
        self, server: FakeJudge, behaviour: str, message: str
    ) -> None:
        server.reset()
        with pytest.raises(ConfigError) as caught:
            ask(served(server, behaviour))
        assert str(caught.value).startswith(message)
        assert server.counts().requests == 1

    @pytest.mark.parametrize(("behaviour", "requests"), [("500", 3), ("529", 3), ("reset", 3)])
    def test_a_failed_call_is_an_error_of_the_case(self, server: FakeJudge, behaviour: str, requests: int) -> None:
        server.reset()
        error, message = failure(served(server, behaviour))
        assert error == "judge_failed"
        assert message.startswith("openai:gpt-4o-mini could not be called (")
        assert server.counts().requests == requests

    @pytest.mark.parametrize("behaviour", ["400-context", "400-moderation", "403-moderation"])
    def test_a_refused_request_is_an_error_of_the_case_without_a_retry(self, server: FakeJudge, behaviour: str) -> None:
        server.reset()
        error, message = failure(served(server, behaviour))
        assert error == "refused"
        assert message.startswith(f"openai:gpt-4o-mini refused this request (HTTP {behaviour[:3]}: ")
        assert server.counts().requests == 1

    @pytest.mark.parametrize("behaviour", ["403", "404"])
    def test_a_refusal_after_a_success_is_an_error_of_the_case(self, server: FakeJudge, behaviour: str) -> None:
        judge = served(server, behaviour)
        judge.resume_access(succeeded=True)
        assert failure(judge)[0] == "refused"

    def test_a_wrong_key_ends_the_run_even_after_a_success(self, server: FakeJudge) -> None:
        judge = served(server, "401")
        judge.resume_access(succeeded=True)
        with pytest.raises(ProviderRefusedError, match="HTTP 401"):
            ask(judge)

    def test_errors_have_a_fault_owner(self) -> None:
        assert (JudgeFailedError("x").fault, OverBudgetError("x").fault) == (Fault.INFRASTRUCTURE, Fault.INFRASTRUCTURE)

    def test_retries_stop_at_the_maximum(self, server: FakeJudge) -> None:
        server.reset()
        judge = ModelJudge(config={"prompt": "x", "model": "m", "base_url": server.base_url("500"), "max_retries": 0})
        assert failure(judge.bind(Resources(environment={})))[0] == "judge_failed"
        assert server.counts().requests == 1

    def test_an_exhausted_budget_has_its_own_error(self) -> None:
        adapter = ScriptedAdapter([GOOD])
        judge = ModelJudge(config={"prompt": "x"}, adapter=adapter, budget=BudgetTracker(calls=0))
        assert failure(judge)[0] == "budget"
        assert adapter.calls == []

    @pytest.mark.parametrize(
        ("config", "sample", "error"),
        [
            (
                {"rubric_vars": ["tone"]},
                Sample(0, "q"),
                ("missing", "the case has no rubric_vars tone, which the grader requires"),
            ),
            (
                {},
                Sample(0, "q", rubric_vars={"input": "x"}),
                ("ungradable", "rubric_vars: 'input' is reserved for the case; use another name"),
            ),
            (
                {},
                Sample(0, "q", rubric_path="none.md"),
                ("missing", "rubric_path: 'none.md' cannot be read: no such file"),
            ),
            (
                {},
                Sample(0, "q", rubric_path="../../etc/passwd"),
                ("ungradable", "rubric_path: '../../etc/passwd' is outside the suite's folder; move the file into it"),
            ),
        ],
    )
    def test_a_case_that_cannot_be_sent_is_an_error(
        self, config: dict[str, Any], sample: Sample, error: tuple[str, str], tmp_path: Path
    ) -> None:
        judge, adapter = scripted({"prompt": "x", **config})
        assert failure(judge.bind(Resources(tmp_path)), context(sample=sample)) == error
        assert adapter.calls == []


class TestResources:
    def test_a_prompt_file_is_relative_to_the_suite(self, tmp_path: Path) -> None:
        (tmp_path / "rubric.txt").write_text("\ufeffIs it right?", encoding="utf-8")
        judge, adapter = scripted({"prompt_path": "rubric.txt"})
        ask(judge.bind(Resources(tmp_path)))
        assert "# Rubric\n\nIs it right?\n" in adapter.calls[0].text

    def test_everything_missing_is_reported_at_once(self, tmp_path: Path) -> None:
        judge = ModelJudge(config={"prompt_path": "none.txt", "provider": "anthropic", "model": "claude"})
        with pytest.raises(ConfigError) as caught:
            judge.bind(Resources(tmp_path, {}))
        assert [tuple(problem) for problem in caught.value.problems] == [
            ("prompt_path", "'none.txt' cannot be read: no such file"),
            (
                "api_key_env",
                "anthropic:claude needs a key; put a valid key into ANTHROPIC_API_KEY, in the environment or in .env"
                " next to the suite",
            ),
        ]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is empty"),
            (b" \n", "is empty"),
            (b"\xff\xfe", "is not valid UTF-8"),
            (b"x" * 1_000_001, "is larger than"),
        ],
    )
    def test_an_invalid_rubric_file_is_refused(self, content: bytes, message: str, tmp_path: Path) -> None:
        (tmp_path / "rubric.txt").write_bytes(content)
        judge, _ = scripted({"prompt_path": "rubric.txt"})
        with pytest.raises(ConfigError, match=message):
            judge.bind(Resources(tmp_path))

    def test_a_key_comes_from_the_environment_passed_to_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JUDGE_KEY", "not this one")
        items = {"right": Truth(quality=0.8)}
        with FakeJudge(items=items, key="sk-right-0123456789").in_thread() as server:
            config = {"prompt": "x", "model": "m", "base_url": server.base_url(), "api_key_env": "JUDGE_KEY"}
            placed = ModelJudge(config=config).bind(Resources(None, {"JUDGE_KEY": "sk-right-0123456789"}))
            assert result(placed, context(with_mark("It is Paris.", "right"))).score == 0.8
            with pytest.raises(ConfigError, match="put a valid key into JUDGE_KEY") as caught:
                ask(ModelJudge(config=config))
        assert "not this one" not in str(caught.value)

    def test_a_missing_variable_is_named(self) -> None:
        with pytest.raises(ConfigError, match="api_key_env: the environment has no JUDGE_KEY; set it to the key"):
            ModelJudge(config={"prompt": "x", "model": "m", "api_key_env": "JUDGE_KEY"}).bind(Resources(None, {}))


class TestFingerprint:
    BASE = {"prompt": "Is it right?", "model": "m"}

    @pytest.mark.parametrize(
        "change",
        [
            {"prompt": "Is it wrong?"},
            {"model": "n"},
            {"provider": "vllm"},
            {"base_url": "http://127.0.0.1:1/v1"},
            {"temperature": 0.5},
            {"max_tokens": 5},
            {"seed": 1},
            {"system_prompt": "Be strict."},
            {"rubric_vars": {"a": 1}},
            {"reasoning": True},
            {"scoring": "samples"},
            {"checklist": ["Is it kind?"]},
            {"reply": {"pattern": "(1)", "min": 0, "max": 1}},
            {"model_params": {"top_p": 1}},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_the_fingerprint_contains_what_affects_a_score(self, change: dict[str, Any]) -> None:
        assert (
            create("model_judge", {**self.BASE, **change}).fingerprint != create("model_judge", self.BASE).fingerprint
        )

    @pytest.mark.parametrize(
        "same",
        [
            {"timeout": 5},
            {"max_retries": 0},
            {"api_key_env": "MY_KEY"},
            {"provider": "openai"},
            {"scoring": "greedy"},
            {"x-note": 1},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_the_fingerprint_leaves_out_the_rest(self, same: dict[str, Any]) -> None:
        assert create("model_judge", {**self.BASE, **same}).fingerprint == create("model_judge", self.BASE).fingerprint

    def test_the_fingerprint_uses_the_text_of_the_prompt_from_any_source(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("Is it right?")
        judge = ModelJudge(config={"prompt_path": "a.txt", "model": "m", "base_url": "http://127.0.0.1:1"})
        before = judge.bind(Resources(tmp_path)).fingerprint
        inline = {"prompt": "Is it right?", "model": "m", "base_url": "http://127.0.0.1:1"}
        assert before == create("model_judge", inline).fingerprint
        (tmp_path / "a.txt").write_text("Is it wrong?")
        assert judge.bind(Resources(tmp_path)).fingerprint != before

    def test_alternative_names_of_kinds_and_providers_have_one_fingerprint(self) -> None:
        config = {"prompt": "x", "model": "g"}
        google = create("rubric", {**config, "provider": "google"})
        assert google.fingerprint == create("model_judge", {**config, "provider": "gemini"}).fingerprint


class TestOptions:
    @pytest.mark.parametrize(
        ("config", "problem"),
        [
            ({}, "prompt: is required: define the grading with prompt, prompt_path, rubric or checklist"),
            ({"prompt": " "}, "prompt: is empty; write something, or leave it out"),
            ({"prompt": "x", "prompt_path": "y"}, "prompt_path: conflicts with 'prompt'; keep one of them"),
            ({"rubric": "factualty"}, "rubric: no shipped rubric named 'factualty'; did you mean 'factuality'?"),
            (
                {"rubric": "refusal", "checklist": ["x"]},
                "checklist: conflicts with the rubric refusal@1; keep one of them",
            ),
            (
                {"prompt": "x", "provider": "anthropic", "model": None},
                "model: name the judging model, such as model: claude-haiku-5-5, here or with --set",
            ),
            (
                {"prompt": "x", "model": None},
                "model: name the judging model, such as model: gpt-6-luna, here or with --set; earlier releases used"
                " gpt-4o-mini, which OpenAI retires on 14 January 2027",
            ),
            (
                {"prompt": "x", "provider": "opnai"},
                "provider: expected one of openai, openai_responses, anthropic, google, gemini, ollama, vllm"
                " (did you mean 'openai'?), got 'opnai'",
            ),
            ({"prompt": "x", "base_url": "localhost"}, "base_url: must be an address such as http://127.0.0.1:8000/v1"),
            (
                {"prompt": "x", "base_url": "https://me:secret@host/v1"},
                "base_url: must not contain a password; name the key's variable with api_key_env",
            ),
            (
                {"prompt": "x", "api_key_env": "sk-proj-secret"},
                "api_key_env: must be the name of an environment variable such as OPENAI_API_KEY, not a key",
            ),
            (
                {"prompt": "x", "rubric_vars": {"input": 1}},
                "rubric_vars: 'input' is reserved for the case; use another name",
            ),
            (
                {"prompt": "x", "reply": {"pattern": "x", "min": 1, "max": 10}},
                "reply.pattern: 'x' has 0 groups; it needs exactly one, around the number",
            ),
            (
                {"prompt": "x", "reply": {"pattern": "(x)", "min": 1, "max": 1}},
                "reply.min: 1.0 must be a number below max (1.0)",
            ),
            (
                {"prompt": "x", "checklist": ["y"], "reply": {"pattern": "(x)", "min": 1, "max": 2}},
                "checklist: conflicts with reply; keep one of them",
            ),
            (
                {"checklist": ["y"], "scoring": "logprobs"},
                "scoring: logprobs needs one number in the reply, but a checklist has none; use samples",
            ),
            (
                {"rubric": "helpfulness", "scoring": "logprobs"},
                "scoring: logprobs needs one number, and helpfulness@1 is a checklist; use samples",
            ),
            (
                {"prompt": "x", "reasoning": True, "reply": {"pattern": "(x)", "min": 1, "max": 2}},
                "reasoning: conflicts with reply.pattern, where the prompt defines the format",
            ),
            (
                {"prompt": "x", "reply": {}},
                "reply.choices: is required: write choices: {label: score}, or pattern with min and max",
            ),
            ({"prompt": "x", "reply": {"pattern": "(x)", "min": 1}}, "reply.max: is required"),
            ({"prompt": "x", "reply": {"choices": {"A": 1}}}, "reply.choices: has 1 label; write 2 to 50"),
            (
                {"prompt": "x", "reply": {"choices": {"A": 1, "a": 0}}},
                "reply.choices: 'a' and 'A' differ only in case; rename one of them",
            ),
            (
                {"prompt": "x", "reply": {"choices": {"A": 1.5, "B": 0}}},
                "reply.choices.A: must be a score from 0 to 1, got 1.5",
            ),
            (
                {"prompt": "x", "reply": {"choices": {"": 1, "B": 0}}},
                "reply.choices: invalid label '': use 1 to 50 characters on one line, trimmed",
            ),
            (
                {"prompt": "x", "reply": {"choices": {"A": 1, "B": 0}, "min": 1}},
                "reply.min: conflicts with choices, whose labels have scores; keep one of them",
            ),
            ({"prompt": "x", "samples": 3}, "samples: has no effect without scoring: samples"),
            ({"prompt": "x", "temprature": 1}, "temprature: unknown option; did you mean 'temperature'?"),
            ({"prompt": "x", "api_key": "sk-secret"}, "api_key: unknown option; did you mean 'api_key_env'?"),
        ],
    )
    def test_every_fault_is_reported(self, config: dict[str, Any], problem: str) -> None:
        with pytest.raises(ConfigError) as caught:
            create("model_judge", {"model": "m", **config})
        assert [str(one).removeprefix("config.") for one in caught.value.problems] == [problem]
        assert "secret" not in str(caught.value)

    def test_the_listing_names_the_four_biases(self) -> None:
        listed = {entry["id"]: entry for entry in registry.list()}
        for kind in ("model_judge", "panel", "pairwise"):
            assert [caveat.split(":")[0] for caveat in listed[kind]["caveats"]] == [
                "Length",
                "Format",
                "Position",
                "Self-preference",
            ]
            assert "length, format, position, self-preference" in listed[kind]["scoring_guide"]
