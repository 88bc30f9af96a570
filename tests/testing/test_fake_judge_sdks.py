"""The providers' own clients read the replies of the fake judge."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from gradeline.testing.fake_judge import FakeJudge, with_mark


def installed(name: str) -> Any:
    """A client's module, or None. One of them has escapes that newer Python versions warn about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return import_module(name)
        except ImportError:
            return None


openai, anthropic, genai = installed("openai"), installed("anthropic"), installed("google.genai")
types, genai_errors = installed("google.genai.types"), installed("google.genai.errors")

ANSWER = with_mark("Paris it is.", "17-a", quality=0.73)
PROMPT = f'ReplyChoice with {{"quality_score": 0..1, "notes": "..."}}.\n<candidate>\n{ANSWER}\n</candidate>'
NOTES = "Measured against the rubric — each point in turn."
SAID = f'{{"quality_score": 0.73, "notes": "{NOTES}"}}'
ARGUMENTS = {"points": 3, "why": NOTES}
REFUSAL = "I'm sorry, but I can't help with that request."
SCHEMA = {
    "type": "object",
    "properties": {"points": {"type": "integer", "minimum": 0, "maximum": 4}, "why": {"type": "string"}},
    "required": ["points", "why"],
    "additionalProperties": False,
}
MESSAGES: list[Any] = [{"role": "system", "content": "You judge."}, {"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def judge() -> Iterator[FakeJudge]:
    with pytest.MonkeyPatch.context() as patch, FakeJudge(seed=7, key="key-of-the-test").in_thread() as served:
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield served


@pytest.fixture(scope="module")
def openai_client(judge: FakeJudge) -> Iterator[Any]:
    with openai.OpenAI(api_key="key-of-the-test", base_url=judge.base_url(), max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture(scope="module")
def chat(openai_client: Any) -> Any:
    def ask(name: str = "perfect", **options: Any) -> Any:
        options = {"messages": MESSAGES, "temperature": 0, **options}
        return openai_client.chat.completions.create(model=f"fake-judge/{name}", **options)

    return ask


@pytest.fixture(scope="module")
def respond(openai_client: Any) -> Any:
    def ask(name: str = "perfect", **options: Any) -> Any:
        options = {"input": PROMPT, "instructions": "You judge.", "temperature": 0, **options}
        return openai_client.responses.create(model=f"fake-judge/{name}", **options)

    return ask


@pytest.fixture(scope="module")
def message(judge: FakeJudge) -> Iterator[Any]:
    with anthropic.Anthropic(api_key="key-of-the-test", base_url=judge.url, max_retries=0, timeout=10) as client:

        def ask(name: str = "perfect", **options: Any) -> Any:
            options = {"messages": MESSAGES[1:], "system": "You judge.", "max_tokens": 500, **options}
            return client.messages.create(model=f"fake-judge/{name}", **options)

        ask.client = client  # type: ignore[attr-defined]
        yield ask


@pytest.fixture(scope="module")
def generate(judge: FakeJudge) -> Iterator[Any]:
    options = types.HttpOptions(base_url=judge.url, timeout=10_000)
    client = genai.Client(api_key="key-of-the-test", http_options=options)

    def ask(name: str = "perfect", *, stream: bool = False, **config: Any) -> Any:
        config = {"system_instruction": "You judge.", "temperature": 0, **config}
        method = client.models.generate_content_stream if stream else client.models.generate_content
        options = types.GenerateContentConfig(**config)
        answer = method(model=f"fake-judge/{name}", contents=PROMPT, config=options)
        return list(answer) if stream else answer

    yield ask
    client.close()


def function(name: str = "record") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


def expected_score(tokens: list[tuple[str, list[tuple[str, float]]]]) -> float:
    (doubtful,) = [top for _, top in tokens if len(top) > 1]
    return sum(float(token) * math.exp(logprob) for token, logprob in doubtful)


@pytest.mark.skipif(openai is None, reason="the OpenAI client is not installed")
class TestChatCompletions:
    def test_an_answer(self, chat: Any) -> None:
        answer = chat(n=2)
        assert answer.object == "chat.completion"
        assert answer.model == "fake-judge/perfect"
        assert answer.system_fingerprint == "fp_fake_1"
        assert [(one.index, one.message.content, one.finish_reason) for one in answer.choices] == [
            (0, SAID, "stop"),
            (1, SAID, "stop"),
        ]
        usage = answer.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (57, 60, 117)

    def test_a_stream(self, chat: Any) -> None:
        chunks = list(chat("split", stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == SAID
        assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
        assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 30)
        assert all(chunk.usage is None for chunk in chunks[:-1])

    def test_a_tool_call(self, chat: Any) -> None:
        options = {"tools": [function()], "tool_choice": {"type": "function", "function": {"name": "record"}}}
        (choice,) = chat(**options).choices
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert (call.function.name, json.loads(call.function.arguments)) == ("record", ARGUMENTS)

    def test_a_streamed_tool_call(self, chat: Any) -> None:
        chunks = list(chat(tools=[function()], tool_choice="required", stream=True))
        calls = [chunk.choices[0].delta.tool_calls[0] for chunk in chunks if chunk.choices[0].delta.tool_calls]
        assert (calls[0].id, calls[0].function.name, {call.index for call in calls}) == ("call_0", "record", {0})
        assert json.loads("".join(call.function.arguments for call in calls)) == ARGUMENTS
        assert chunks[-1].choices[0].finish_reason == "tool_calls"

    def test_structured_output(self, openai_client: Any) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}
        answer = openai_client.chat.completions.create(
            model="fake-judge/perfect", messages=MESSAGES, response_format=form
        )
        assert json.loads(answer.choices[0].message.content) == ARGUMENTS

    def test_log_probabilities(self, chat: Any, judge: FakeJudge) -> None:
        answer = chat("honest?digits=1", logprobs=True, top_logprobs=20)
        tokens = answer.choices[0].logprobs.content
        assert "".join(token.token for token in tokens) == answer.choices[0].message.content
        assert b"".join(bytes(token.bytes) for token in tokens).decode() == answer.choices[0].message.content
        shown = [(token.token, [(one.token, one.logprob) for one in token.top_logprobs]) for token in tokens]
        assert expected_score(shown) == pytest.approx(judge.decisions[-1].expected)
        chunks = list(chat("honest?digits=1", logprobs=True, top_logprobs=20, stream=True))
        streamed = [token for chunk in chunks if (logprobs := chunk.choices[0].logprobs) for token in logprobs.content]
        assert streamed == tokens

    def test_refusals_truncations_and_empty_replies(self, chat: Any) -> None:
        replies = {
            name: chat(name).choices for name in ("refusal", "content-filter", "truncated", "empty", "no-choices")
        }
        assert replies.pop("no-choices") == []
        assert {
            name: (one.message.refusal, one.message.content, one.finish_reason) for name, (one,) in replies.items()
        } == {
            "refusal": (REFUSAL, None, "stop"),
            "content-filter": (None, None, "content_filter"),
            "truncated": (None, '{"quality_score": 0.73, "notes": "Cut off befo', "length"),
            "empty": (None, "", "stop"),
        }
        chunks = list(chat("refusal", stream=True))
        assert "".join(chunk.choices[0].delta.refusal or "" for chunk in chunks) == REFUSAL

    def test_errors(self, chat: Any) -> None:
        kinds = {
            "400-context": openai.BadRequestError,
            "401": openai.AuthenticationError,
            "403": openai.PermissionDeniedError,
            "404": openai.NotFoundError,
            "429": openai.RateLimitError,
            "429-quota": openai.RateLimitError,
            "500": openai.InternalServerError,
            "502": openai.InternalServerError,
            "503": openai.InternalServerError,
            "529": openai.InternalServerError,
        }
        codes = {}
        for name, kind in kinds.items():
            with pytest.raises(kind) as caught:
                chat(name)
            codes[name] = (caught.value.status_code, caught.value.code)
        assert codes["400-context"] == (400, "context_length_exceeded")
        assert codes["429"] == (429, "rate_limit_exceeded")
        assert codes["429-quota"] == (429, "insufficient_quota")
        assert codes["529"] == (529, "overloaded")
        with pytest.raises(openai.BadRequestError) as refused:
            chat("unsupported?param=seed", seed=1)
        assert (refused.value.param, refused.value.code) == ("seed", "unsupported_parameter")

    def test_connection_errors(self, chat: Any) -> None:
        for name in ("reset", "close", "cut"):
            with pytest.raises(openai.APIConnectionError):
                chat(name)
        with pytest.raises(openai.APITimeoutError):
            chat("hang", timeout=0.2)
        with pytest.raises(openai.APIConnectionError):
            list(chat("cut", stream=True))
        with pytest.raises(openai.APIError, match="while streaming"):
            list(chat("error-in-stream", stream=True))

    def test_its_retries_are_counted(self, openai_client: Any, judge: FakeJudge) -> None:
        patient = openai_client.with_options(max_retries=3)
        judge.reset()
        answer = patient.chat.completions.create(
            model="fake-judge/429?tries=2&retry_after_s=0.01", messages=MESSAGES, temperature=0
        )
        assert answer.choices[0].message.content == SAID
        assert judge.counts().outcomes == {"429": 2, "200": 1}
        assert list(judge.counts().tries.values()) == [3]

    def test_a_wrong_key(self, judge: FakeJudge) -> None:
        with (
            openai.OpenAI(api_key="wrong", base_url=judge.base_url(), max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.chat.completions.create(model="judge", messages=MESSAGES)

    def test_the_models(self, openai_client: Any) -> None:
        assert "fake-judge/position" in [model.id for model in openai_client.models.list()]


@pytest.mark.skipif(openai is None, reason="the OpenAI client is not installed")
class TestResponses:
    TOOL: dict[str, Any] = {"type": "function", "name": "record", "parameters": SCHEMA, "strict": True}

    def test_an_answer(self, respond: Any) -> None:
        answer = respond()
        assert (answer.status, answer.output_text, answer.error) == ("completed", SAID, None)
        assert answer.usage.model_dump(exclude_none=True) == {
            "input_tokens": 57,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 30,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 87,
        }

    def test_a_stream(self, respond: Any) -> None:
        events = list(respond("split", stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == SAID
        kinds = [event.type for event in events if event.type != "response.output_text.delta"]
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert events[-1].response.output_text == SAID

    def test_a_tool_call(self, respond: Any) -> None:
        options = {"tools": [self.TOOL], "tool_choice": {"type": "function", "name": "record"}}
        (call,) = respond(**options).output
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "record", ARGUMENTS)
        events = list(respond(**options, stream=True))
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert json.loads("".join(deltas)) == ARGUMENTS
        assert events[-1].response.output[0].arguments == call.arguments

    def test_structured_output(self, respond: Any) -> None:
        form = {"format": {"type": "json_schema", "name": "verdict", "schema": SCHEMA, "strict": True}}
        assert json.loads(respond(text=form).output_text) == ARGUMENTS

    def test_log_probabilities(self, respond: Any, judge: FakeJudge) -> None:
        answer = respond("honest?digits=1", include=["message.output_text.logprobs"], top_logprobs=20)
        tokens = answer.output[0].content[0].logprobs
        shown = [(token.token, [(one.token, one.logprob) for one in token.top_logprobs]) for token in tokens]
        assert expected_score(shown) == pytest.approx(judge.decisions[-1].expected)

    def test_refusals_and_truncations(self, respond: Any) -> None:
        (refused,) = respond("refusal").output
        assert refused.content[0].refusal == REFUSAL
        cut = respond("truncated")
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        filtered = respond("content-filter")
        assert (filtered.output, filtered.incomplete_details.reason) == ([], "content_filter")
        assert list(respond("truncated", stream=True))[-1].type == "response.incomplete"
        deltas = [one.delta for one in respond("refusal", stream=True) if one.type == "response.refusal.delta"]
        assert deltas == [REFUSAL]

    def test_errors(self, respond: Any) -> None:
        with pytest.raises(openai.RateLimitError):
            respond("429")
        with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'seed'"):
            respond(extra_body={"seed": 1})
        with pytest.raises(openai.BadRequestError) as refused:
            respond("unsupported?param=temperature")
        assert refused.value.param == "temperature"
        assert list(respond("error-in-stream", stream=True))[-1].type == "error"


@pytest.mark.skipif(anthropic is None, reason="the Anthropic client is not installed")
class TestMessages:
    TOOL: dict[str, Any] = {"name": "record", "input_schema": SCHEMA}

    def test_an_answer(self, message: Any) -> None:
        answer = message("perfect?cached_share=0.5")
        assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "end_turn")
        assert [(block.type, block.text) for block in answer.content] == [("text", SAID)]
        usage = answer.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (29, 28, 30)

    def test_a_stream(self, message: Any) -> None:
        options = {"max_tokens": 500, "messages": MESSAGES[1:]}
        with message.client.messages.stream(model="fake-judge/split", **options) as stream:
            assert "".join(stream.text_stream) == SAID
            whole = stream.get_final_message()
        assert (whole.stop_reason, whole.usage.output_tokens) == ("end_turn", 30)

    def test_a_tool_call(self, message: Any) -> None:
        options = {"tools": [self.TOOL], "tool_choice": {"type": "tool", "name": "record"}}
        answer = message(**options)
        assert [(block.name, block.input) for block in answer.content] == [("record", ARGUMENTS)]
        assert answer.stop_reason == "tool_use"
        with message.client.messages.stream(
            model="fake-judge/perfect", max_tokens=500, messages=MESSAGES[1:], **options
        ) as stream:
            whole = stream.get_final_message()
        assert [(block.name, block.input) for block in whole.content] == [("record", ARGUMENTS)]

    def test_structured_output(self, message: Any) -> None:
        answer = message(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
        assert json.loads(answer.content[0].text) == ARGUMENTS

    def test_refusals_truncations_and_empty_replies(self, message: Any) -> None:
        replies = {
            name: message(name) for name in ("refusal", "content-filter", "truncated", "no-choices", "truncated-whole")
        }
        assert {name: (one.stop_reason, len(one.content)) for name, one in replies.items()} == {
            "refusal": ("refusal", 0),
            "content-filter": ("refusal", 0),
            "truncated": ("max_tokens", 1),
            "no-choices": ("end_turn", 0),
            "truncated-whole": ("max_tokens", 1),
        }
        assert message("long", max_tokens=20).usage.output_tokens == 20

    def test_errors(self, message: Any) -> None:
        kinds = {
            "400-context": (anthropic.BadRequestError, "invalid_request_error"),
            "401": (anthropic.AuthenticationError, "authentication_error"),
            "404": (anthropic.NotFoundError, "not_found_error"),
            "429": (anthropic.RateLimitError, "rate_limit_error"),
            "429-quota": (anthropic.RateLimitError, "rate_limit_error"),
            "500": (anthropic.InternalServerError, "api_error"),
            "529": (anthropic.InternalServerError, "overloaded_error"),
        }
        for name, (kind, expected) in kinds.items():
            with pytest.raises(kind) as caught:
                message(name)
            assert caught.value.body["error"]["type"] == expected
            details = caught.value.body["error"].get("details")
            assert (details == {"error_code": "enforced_spend_limit_reached"}) == (name == "429-quota")
        with pytest.raises(anthropic.BadRequestError, match="seed: Extra inputs are not permitted"):
            message(extra_body={"seed": 1})
        with pytest.raises(anthropic.BadRequestError, match="'temperature' is not supported"):
            message("unsupported?param=temperature", extra_body={"temperature": 0})
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
            list(message("error-in-stream", stream=True))


@pytest.mark.skipif(genai is None, reason="the Gemini client is not installed")
class TestGenerateContent:
    TOOLS: dict[str, Any] = {
        "tools": [{"function_declarations": [{"name": "record", "parameters_json_schema": SCHEMA}]}],
        "tool_config": {"function_calling_config": {"mode": "ANY"}},
        "automatic_function_calling": {"disable": True},
    }

    def test_an_answer(self, generate: Any) -> None:
        answer = generate("perfect,cached_share=0.5", candidate_count=2)
        assert answer.model_version == "fake-judge/perfect,cached_share=0.5"
        assert [one.content.parts[0].text for one in answer.candidates] == [SAID, SAID]
        assert {one.finish_reason for one in answer.candidates} == {types.FinishReason.STOP}
        usage = answer.usage_metadata
        assert (usage.prompt_token_count, usage.cached_content_token_count) == (57, 28)
        assert (usage.candidates_token_count, usage.total_token_count) == (60, 117)

    def test_a_stream(self, generate: Any) -> None:
        chunks = generate("split", stream=True)
        assert "".join(chunk.text or "" for chunk in chunks[:-1]) == SAID
        assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP
        assert chunks[-1].usage_metadata.candidates_token_count == 30

    def test_a_tool_call(self, generate: Any) -> None:
        (call,) = generate(**self.TOOLS).function_calls
        assert (call.name, call.args) == ("record", ARGUMENTS)
        chunks = generate(**self.TOOLS, stream=True)
        assert [call.args for chunk in chunks for call in chunk.function_calls or ()] == [ARGUMENTS]

    @pytest.mark.parametrize("name", ["response_json_schema", "response_schema"])
    def test_structured_output(self, generate: Any, name: str) -> None:
        schema = {key: value for key, value in SCHEMA.items() if key != "additionalProperties"}
        answer = generate(response_mime_type="application/json", **{name: schema})
        assert json.loads(answer.text) == ARGUMENTS

    def test_log_probabilities(self, generate: Any, judge: FakeJudge) -> None:
        answer = generate("honest,digits=1", response_logprobs=True, logprobs=20)
        logprobs = answer.candidates[0].logprobs_result
        assert "".join(one.token for one in logprobs.chosen_candidates) == answer.text
        shown = [("", [(one.token, one.log_probability) for one in top.candidates]) for top in logprobs.top_candidates]
        assert expected_score(shown) == pytest.approx(judge.decisions[-1].expected)

    def test_refusals_truncations_and_empty_replies(self, generate: Any) -> None:
        refused = generate("refusal")
        assert (refused.candidates, refused.prompt_feedback.block_reason.name) == (None, "PROHIBITED_CONTENT")
        (filtered,) = generate("content-filter").candidates
        assert (filtered.content, filtered.finish_reason) == (None, types.FinishReason.SAFETY)
        assert generate("truncated").candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
        assert generate("no-choices").candidates is None

    def test_errors(self, generate: Any) -> None:
        statuses = {
            "400-context": (400, "INVALID_ARGUMENT"),
            "401": (401, "UNAUTHENTICATED"),
            "404": (404, "NOT_FOUND"),
            "429": (429, "RESOURCE_EXHAUSTED"),
            "500": (500, "INTERNAL"),
            "503": (503, "UNAVAILABLE"),
        }
        for name, expected in statuses.items():
            with pytest.raises(genai_errors.APIError) as caught:
                generate(name)
            assert (caught.value.code, caught.value.status) == expected
        with pytest.raises(genai_errors.APIError) as limited:
            generate("429,retry_after_s=3")
        assert limited.value.details["error"]["details"][0]["retryDelay"] == "3s"
        with pytest.raises(genai_errors.ClientError, match="'responseLogprobs' is not supported"):
            generate("unsupported,param=logprobs", response_logprobs=True)
        with pytest.raises(genai_errors.APIError, match="overloaded"):
            generate("error-in-stream", stream=True)
