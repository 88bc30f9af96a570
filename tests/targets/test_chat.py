from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest
from aiohttp import web

from gradeline.adapters import AdapterSettings, Price, Prices
from gradeline.errors import ConfigError, MissingDataError
from gradeline.extractors import extract
from gradeline.model import Message, Response, Sample, ToolCall, Trajectory, Usage
from gradeline.targets import create
from gradeline.testing.fake_judge import FakeJudge
from gradeline.transport import Backoff
from target_context import context

KEY = "sk-test-0123456789abcdef"
PARIS = Sample(id="fr", input="What is the capital of France?")
QUICK = AdapterSettings(backoff=Backoff(base_s=0.001, cap_s=0.002, random=Random(7)))
KINDS = ["openai", "anthropic", "gemini", "ollama", "vllm"]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}


class RecordedRequest(NamedTuple):
    path: str
    headers: dict[str, str]
    body: Any


class ScriptedResponse(NamedTuple):
    body: Any
    status: int = 200

    @property
    def is_stream(self) -> bool:
        return isinstance(self.body, str)


class Server:
    """A provider that returns these answers in order, repeats the last one, and records its requests."""

    def __init__(self, *answers: ScriptedResponse) -> None:
        self._answers = answers
        self.asked: list[RecordedRequest] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(RecordedRequest(request.path_qs, headers, await request.json()))
        report = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if report.is_stream:
            return web.Response(text=report.body, content_type="text/event-stream")
        return web.json_response(report.body, status=report.status)


def chat(
    content: str | None = "Paris", finish: str = "stop", calls: list[dict[str, Any]] | None = None
) -> ScriptedResponse:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    return ScriptedResponse({"id": "c", "model": "m", "choices": [choice], "usage": usage})


def function_call(ident: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


RESPONSES = ScriptedResponse(
    {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "Paris"}]}],
        "usage": {"input_tokens": 10, "output_tokens": 2},
    }
)
MESSAGES = ScriptedResponse(
    {
        "content": [{"type": "text", "text": "Paris"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 2},
    }
)
GENERATED = ScriptedResponse(
    {
        "candidates": [{"content": {"parts": [{"text": "Paris"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 2},
    }
)


async def asking(
    kind: str,
    answers: tuple[ScriptedResponse, ...],
    sample: Sample,
    settings: AdapterSettings,
    environment: Mapping[str, str],
    config: Any,
) -> tuple[Response, list[RecordedRequest]]:
    async with Server(*answers) as server:
        given = {"model": "m", "base_url": server.url, **config}
        async with create(kind, given, context=context(environment=environment, settings=settings)) as target:
            assert target.problems_with(sample) == []
            return await target.respond(sample), server.asked


def ask(
    *answers: ScriptedResponse,
    sample: Sample = PARIS,
    kind: str = "openai",
    settings: AdapterSettings = QUICK,
    environment: Mapping[str, str] | None = None,
    **config: Any,
) -> tuple[Response, list[RecordedRequest]]:
    """The response of a target with this config, and the requests to its provider."""
    return asyncio.run(asking(kind, answers or (chat(),), sample, settings, environment or {}, config))


def messages_asked(**config: Any) -> Any:
    _, [asked] = ask(**config)
    return asked.body["messages"]


def problems_of(kind: str = "openai", **config: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        create(kind, {"model": "m", **config})
    return {problem.path: problem.message for problem in caught.value.problems}


def refusal(report: ScriptedResponse, kind: str = "openai", **config: Any) -> str:
    """The config error of a provider that refuses every call, after one request."""

    async def run() -> str:
        async with Server(report) as server:
            async with create(
                kind, {"model": "m", "base_url": server.url, **config}, context=context(settings=QUICK)
            ) as target:
                with pytest.raises(ConfigError) as caught:
                    await target.respond(PARIS)
            assert len(server.asked) == 1
            return str(caught.value).replace(server.url, "URL")

    return asyncio.run(run())


class TestRequest:
    def test_openais_chat_completions(self) -> None:
        response, [asked] = ask(
            api_key=KEY,
            system="Be brief.",
            temperature=0.5,
            max_tokens=50,
            seed=7,
            params={"top_p": 0.9},
            headers={"X-Team": "eval"},
        )
        assert (asked.path, asked.headers["authorization"], asked.headers["x-team"]) == (
            "/chat/completions",
            f"Bearer {KEY}",
            "eval",
        )
        assert asked.body == {
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PARIS.input}],
            "temperature": 0.5,
            "max_tokens": 50,
            "top_p": 0.9,
            "seed": 7,
        }
        assert (response.text, response.usage) == ("Paris", Usage(10, 2, 4))
        assert response.latency_ms is not None
        assert response.latency_ms > 0

    def test_openais_responses(self) -> None:
        response, [asked] = ask(RESPONSES, api="responses", system="Be brief.", api_key=KEY)
        assert (asked.path, asked.headers["authorization"]) == ("/responses", f"Bearer {KEY}")
        assert asked.body == {
            "model": "m",
            "input": [{"role": "user", "content": PARIS.input}],
            "instructions": "Be brief.",
        }
        assert (response.text, response.usage) == ("Paris", Usage(10, 2))

    def test_anthropics_messages(self) -> None:
        response, [asked] = ask(MESSAGES, kind="anthropic", system="Be brief.", api_key=KEY, max_tokens=9)
        assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages", KEY)
        assert asked.body == {
            "model": "m",
            "messages": [{"role": "user", "content": PARIS.input}],
            "max_tokens": 9,
            "system": "Be brief.",
        }
        assert (response.text, response.usage) == ("Paris", Usage(10, 2))

    def test_geminis_generate_content(self) -> None:
        response, [asked] = ask(GENERATED, kind="gemini", system="Be brief.", api_key=KEY, seed=3)
        assert (asked.path, asked.headers["x-goog-api-key"]) == ("/v1beta/models/m:generateContent", KEY)
        assert asked.body == {
            "contents": [{"role": "user", "parts": [{"text": PARIS.input}]}],
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "generationConfig": {"seed": 3},
        }
        assert (response.text, response.usage) == ("Paris", Usage(10, 2))

    @pytest.mark.parametrize("kind", ["ollama", "vllm"])
    def test_local_servers_need_no_key(self, kind: str) -> None:
        response, [asked] = ask(kind=kind)
        assert (response.text, asked.path, "authorization" in asked.headers) == ("Paris", "/chat/completions", False)

    def test_a_schema_for_the_answer(self) -> None:
        _, [asked] = ask(response_schema=WEATHER)
        assert asked.body["response_format"]["json_schema"]["schema"] == WEATHER

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("stream", [False, True])
    def test_every_kind_works_with_a_server_of_its_format(self, kind: str, stream: bool) -> None:
        async def run() -> tuple[Response, dict[str, int]]:
            async with FakeJudge(key=KEY) as server:
                base = server.url if kind in ("anthropic", "gemini") else server.base_url()
                config = {"model": "m", "base_url": base, "api_key": KEY, "stream": stream}
                async with create(kind, config) as target:
                    return await target.respond(PARIS), server.counts().outcomes

        response, outcomes = asyncio.run(run())
        assert outcomes == {"200": 1}
        assert "quality_score" in json.loads(response.text or "")
        assert response.usage == Usage(7, 30, 0)


class TestTemplates:
    def test_placeholders_are_filled_in_once(self) -> None:
        sample = Sample(
            id=7, input='{{metadata.tone}} "} ${HOME}', metadata={"tone": "kind", "facts": {"a": [1, None]}}
        )
        asked = messages_asked(
            sample=sample,
            system="Be {{metadata.tone}}, {{model}}.",
            prompt="Case {{id}}: {{ input }} given {{metadata.facts}}",
        )
        assert asked == [
            {"role": "system", "content": "Be kind, m."},
            {"role": "user", "content": 'Case 7: {{metadata.tone}} "} ${HOME} given {"a":[1,null]}'},
        ]

    def test_messages_come_before_the_question(self) -> None:
        shots = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
        assert messages_asked(messages=shots, prompt="{{input}} Briefly.") == [
            *shots,
            {"role": "user", "content": f"{PARIS.input} Briefly."},
        ]

    def test_a_message_with_the_input_is_the_question(self) -> None:
        talk = [
            {"role": "system", "content": "Answer {{id}}."},
            {"role": "user", "content": "Q: {{input}}"},
            {"role": "assistant", "content": "A:"},
        ]
        assert messages_asked(messages=talk) == [
            {"role": "system", "content": "Answer fr."},
            {"role": "user", "content": f"Q: {PARIS.input}"},
            {"role": "assistant", "content": "A:"},
        ]

    def test_missing_fields_of_a_sample_are_reported_before_any_call(self) -> None:
        target = create("openai", {"model": "m", "system": "Be {{metadata.tone}}."})
        [problem] = target.problems_with(PARIS)
        assert problem.message == ("case 'fr' has no metadata 'tone', which {{metadata.tone}} requires; it has none")
        assert target.problems_with(Sample(id=1, input="x", metadata={"tone": "kind"})) == []
        [problem] = create("openai", {"model": "m"}).problems_with(Sample(id=1, input=[]))
        assert problem.message == "case '1' has an empty list; write at least one turn"

    def test_all_faults_are_reported_at_once(self) -> None:
        found = problems_of(
            prompt="{{inptu}}",
            messages=[{"role": "user", "content": "{{input}} {{x}}"}],
            headers={"X-Id": "{{id}}"},
            params={"temperature": 1, "user": "{{id}}"},
            base_url="localhost:8000",
            tools=[{"name": "a"}, {"name": "a"}, {"parameters": 3, "colour": "red"}],
            timeout=0,
        )
        asked = "{{input}}, {{id}}, {{model}}, {{metadata.x}}"
        assert found == {
            "config.timeout": "expected float > 0.0, got 0",
            "config.prompt": "conflicts with the user message that contains {{input}} and so is the question; keep one of them",
            "config.messages[0].content": f"unknown placeholder {{{{x}}}}; use one of {asked}",
            "config.headers.X-Id": "{{id}} is not filled in here, only in prompt, system and messages",
            "config.params.user": "{{id}} is not filled in here, only in prompt, system and messages",
            "config.params.temperature": "temperature is an option of the target itself; write it there",
            "config.base_url": "'localhost:8000' must begin with http:// or https://; write http://localhost:8000",
            "config.tools[1].name": "there are two tools named 'a'",
            "config.tools[2].name": "a tool needs a name, got None",
            "config.tools[2].parameters": "expected a JSON Schema, got 3",
            "config.tools[2].colour": "unknown key; a tool has name, description and parameters",
        }

    def test_a_prompt_without_the_input_is_refused(self) -> None:
        assert problems_of(prompt="Translate {input}") == {
            "config.prompt": "every case would get the same question; write {{input}} where its input goes"
        }


class TestConversations:
    def test_each_turn_is_sent_with_the_whole_conversation(self) -> None:
        sample = Sample(id=1, input=["I am Ada.", "Who am I?"])
        response, asked = ask(chat("Hello."), chat("Ada."), sample=sample, system="Be brief.", prompt="> {{input}}")
        first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "> I am Ada."}]
        second = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "> Who am I?"}]
        assert [one.body["messages"] for one in asked] == [first, first + second]
        assert response == Response(
            text="Ada.",
            trajectory=Trajectory(
                (
                    (Message("user", "> I am Ada."), Message("assistant", "Hello.")),
                    (Message("user", "> Who am I?"), Message("assistant", "Ada.")),
                )
            ),
            usage=Usage(20, 4, 8),
            latency_ms=response.latency_ms,
            stop_reason="stop",
        )

    def test_few_shot_messages_are_not_in_the_trajectory(self) -> None:
        shots = [{"role": "assistant", "content": "Ask me."}, {"role": "user", "content": "Q: {{input}}"}]
        response, asked = ask(chat("1"), chat("2"), sample=Sample(id=1, input=["a", "b"]), messages=shots)
        assert [message["content"] for message in asked[1].body["messages"]] == ["Ask me.", "Q: a", "1", "Q: b"]
        assert response.trajectory is not None
        assert [message.content for message in response.trajectory.messages("assistant")] == ["1", "2"]

    def test_an_empty_answer_is_not_sent_back(self) -> None:
        response, asked = ask(chat(""), chat("2"), sample=Sample(id=1, input=["a", "b"]))
        assert asked[1].body["messages"] == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
        assert response.text == "2"

    def test_an_answer_without_tool_calls_has_known_tool_use(self) -> None:
        response, _ = ask(chat("Paris"))
        assert response.tool_use().turns == (
            (Message("user", "What is the capital of France?"), Message("assistant", "Paris")),
        )

    def test_a_turn_without_usage_leaves_the_sum_unknown(self) -> None:
        silent = ScriptedResponse({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
        response, _ = ask(chat("1"), silent, sample=Sample(id=1, input=["a", "b"]))
        assert response.usage is None

    def test_the_cost_before_a_failure_is_stored(self) -> None:
        response, asked = ask(
            chat("1"), ScriptedResponse({"error": {"message": "too long"}}, 400), sample=Sample(id=1, input=["a", "b"])
        )
        assert (len(asked), response.status, response.text, response.usage) == (2, "error", None, Usage(10, 2, 4))
        assert response.error is not None
        assert response.error.type == "status"
        assert response.trajectory == Trajectory(((Message("user", "a"), Message("assistant", "1")),))


class TestTools:
    TOOLS = ({"name": "weather", "description": "Tells it.", "parameters": WEATHER},)
    CALLS = (function_call("c1", "weather", '{"city": "Paris"}'), function_call("c2", "weather", "{broken"))

    def test_tool_calls_are_in_the_trajectory_and_not_executed(self) -> None:
        response, [asked] = ask(chat(None, "tool_calls", list(self.CALLS)), tools=self.TOOLS)
        report = {"name": "weather", "description": "Tells it.", "parameters": WEATHER}
        assert asked.body["tools"] == [{"type": "function", "function": report}]
        calls = (ToolCall("weather", '{"city": "Paris"}', "c1"), ToolCall("weather", "{broken", "c2"))
        assert (response.text, response.trajectory) == (
            "",
            Trajectory(((Message("user", str(PARIS.input)), Message("assistant", "", calls)),)),
        )

    @pytest.mark.parametrize(
        "tool",
        [
            {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": WEATHER}},
            {"name": "weather", "description": "Tells it.", "input_schema": WEATHER},
        ],
    )
    def test_a_tool_can_have_the_format_of_a_provider(self, tool: dict[str, Any]) -> None:
        _, [asked] = ask(MESSAGES, kind="anthropic", tools=[tool])
        assert asked.body["tools"] == [{"name": "weather", "description": "Tells it.", "input_schema": WEATHER}]

    def test_a_conversation_continues_after_a_tool_call(self) -> None:
        sample = Sample(id=1, input=["a", "b"])
        call = function_call("c1", "weather", "{}")
        response, asked = ask(chat(None, "tool_calls", [call]), chat("ok"), sample=sample, tools=self.TOOLS)
        assert asked[1].body["messages"][1:] == [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "This tool is not run here.", "tool_call_id": "c1"},
            {"role": "user", "content": "b"},
        ]
        assert response.trajectory is not None
        assert [message.role for message in response.trajectory.turns[0]] == ["user", "assistant", "event"]
        with pytest.raises(MissingDataError, match="tool calls without their results"):
            extract("tool_output", response, {"tool_name": "weather"})

    def test_a_tool_that_the_provider_runs_itself_is_in_the_trajectory(self) -> None:
        """`forbidden_tools` and `max_tool_calls` must see a web search that was turned on by params."""
        found = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paris"}]}
        search = {"type": "web_search_call", "id": "w1", "status": "completed"}
        output = ScriptedResponse({"status": "completed", "output": [search, found]})
        used = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "capital"}}
        back = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
        blocks = ScriptedResponse(
            {"content": [used, back, {"type": "text", "text": "Paris"}], "stop_reason": "end_turn"}
        )
        sample = Sample(id=1, input=["a", "b"])
        for answer, options in (
            (output, {"api": "responses", "params": {"tools": [{"type": "web_search"}]}}),
            (
                blocks,
                {"kind": "anthropic", "params": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}},
            ),
        ):
            response, asked = ask(answer, answer, sample=sample, **options)
            assert response.text == "Paris"
            assert [call.name for call in response.tool_use().tool_calls()] == ["web_search", "web_search"]
            assert "web_search_call" not in json.dumps(asked[1].body), "nothing is answered in its place"
            assert "not run here" not in json.dumps(asked[1].body)

    def test_a_tool_call_can_arrive_in_pieces(self) -> None:
        pieces = [
            {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"ci'}},
            {"index": 0, "function": {"arguments": 'ty": "Paris"}'}},
        ]
        chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, end]) + "data: [DONE]\n\n"
        response, [asked] = ask(ScriptedResponse(stream), tools=self.TOOLS, stream=True)
        assert (asked.body["stream"], asked.body["stream_options"]) == (True, {"include_usage": True})
        assert response.trajectory is not None
        assert list(response.trajectory.tool_calls()) == [ToolCall("weather", '{"city": "Paris"}', "c1")]


class TestFinishReasons:
    @pytest.mark.parametrize(
        ("report", "kind", "text", "remark"),
        [
            (chat("Par", "length"), "openai", "Par", "length"),
            (chat("", "content_filter"), "openai", "", "content_filter"),
            (
                ScriptedResponse({**MESSAGES.body, "stop_reason": "max_tokens"}),
                "anthropic",
                "Paris",
                "length (max_tokens)",
            ),
            (ScriptedResponse({**MESSAGES.body, "stop_reason": "refusal"}), "anthropic", "Paris", "refusal"),
            (
                ScriptedResponse({"promptFeedback": {"blockReason": "SAFETY"}}),
                "gemini",
                "",
                "content_filter (SAFETY)",
            ),
        ],
    )
    def test_the_trajectory_has_the_finish_reason(
        self, report: ScriptedResponse, kind: str, text: str, remark: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "gradeline"):
            response, _ = ask(report, kind=kind)
        assert (response.status, response.text) == ("success", text)
        assert response.trajectory == Trajectory(
            (
                (
                    Message("user", str(PARIS.input)),
                    Message("assistant", text),
                    Message("event", remark, name="finish_reason"),
                ),
            )
        )
        assert caplog.messages == [
            f"target {kind}, model 'm': the response to case 'fr' ended with {remark}; it is graded anyway"
        ]

    @pytest.mark.parametrize(
        ("kind", "options", "report", "reason"),
        [
            ("openai", {}, chat(), "stop"),
            ("openai", {}, chat("Par", "length"), "length"),
            ("openai", {}, chat("", "tool_calls", [function_call("1", "look", "{}")]), "tool_calls"),
            ("openai", {"api": "responses"}, RESPONSES, "completed"),
            ("anthropic", {}, MESSAGES, "end_turn"),
            ("gemini", {}, GENERATED, "STOP"),
            ("gemini", {}, ScriptedResponse({"promptFeedback": {"blockReason": "SAFETY"}}), "SAFETY"),
            ("ollama", {}, chat(), "stop"),
            ("vllm", {}, chat("", "abort"), "abort"),
        ],
    )
    def test_the_response_has_the_stop_reason_in_the_providers_word(
        self, kind: str, options: dict[str, Any], report: ScriptedResponse, reason: str
    ) -> None:
        assert ask(report, kind=kind, **options)[0].stop_reason == reason

    def test_a_refusal_is_the_stop_reason_even_where_the_provider_says_stop(self) -> None:
        report = chat(None)
        report.body["choices"][0]["message"]["refusal"] = "I cannot help."
        assert ask(report)[0].stop_reason == "refusal"

    def test_an_unreported_stop_reason_is_unknown(self) -> None:
        report = chat()
        del report.body["choices"][0]["finish_reason"]
        assert ask(report)[0].stop_reason is None

    def test_unsupported_parameters_are_reported_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "gradeline"):
            ask(MESSAGES, kind="anthropic", seed=7, sample=Sample(id=1, input=["a", "b"]))
        assert caplog.messages == [
            "target anthropic, model 'm': seed had no effect: Anthropic's models do not support a seed"
        ]


class TestCosts:
    def test_a_known_price_gives_the_cost(self) -> None:
        prices = Prices.of({"m": Price(input=1.0, output=10.0, cached=0.5)})
        response, _ = ask(settings=AdapterSettings(prices=prices), sample=Sample(id=1, input=["a", "b"]))
        assert response.usage == Usage(20, 4, 8, cost=pytest.approx(2 * (6 * 1.0 + 4 * 0.5 + 2 * 10) / 1e6))

    def test_an_unknown_price_is_not_zero(self) -> None:
        response, _ = ask()
        assert response.usage == Usage(10, 2, 4, cost=None)


class TestFailures:
    @pytest.mark.parametrize(
        ("status", "error_type", "requests"), [(400, "status", 1), (500, "status", 3), (429, "rate_limited", 3)]
    )
    def test_a_failed_call_is_a_response(self, status: int, error_type: str, requests: int) -> None:
        response, asked = ask(ScriptedResponse({"error": {"message": "no"}}, status))
        assert response.error is not None
        assert (response.status, response.error.type, len(asked)) == ("error", error_type, requests)

    def test_a_broken_stream_is_not_an_answer(self) -> None:
        response, _ = ask(ScriptedResponse('data: {"choices": []}\n\n'), stream=True, retries=0)
        assert response.error is not None
        assert response.error.type == "truncated"

    def test_a_refused_key(self) -> None:
        report = ScriptedResponse({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401)
        assert refusal(report, api_key=KEY) == (
            "openai: api_key: URL refused it: 'Incorrect API key provided: ***' (HTTP 401);"
            " check the key and its permissions"
        )
        assert "no key was sent: with a base_url only the target's own key is; write api_key: ${NAME}" in refusal(
            report
        )

    def test_geminis_invalid_key_is_a_bad_request(self) -> None:
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
        error = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT", "details": details}
        assert refusal(ScriptedResponse({"error": error}, 400), "gemini").startswith(
            "gemini: api_key: URL refused it: 'API key not"
        )

    @pytest.mark.parametrize("status", [403, 401])
    def test_no_permission(self, status: int) -> None:
        assert "api_key: URL refused it" in refusal(ScriptedResponse({"error": {"message": "Not yours."}}, status))

    def test_one_flagged_input_does_not_end_the_run(self) -> None:
        response, asked = ask(ScriptedResponse({"error": {"code": 403, "message": "your input was flagged"}}, 403))
        assert response.error is not None
        assert (response.error.type, len(asked)) == ("status", 1)

    def test_an_unknown_model(self) -> None:
        report = ScriptedResponse(
            {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}, 404
        )
        assert refusal(report) == (
            "openai: model: URL refused 'm': 'The model `m` does not exist' (HTTP 404); check model and base_url"
        )
        assert "model: URL refused 'm'" in refusal(
            ScriptedResponse({"error": {"message": "m is not a valid model ID"}}, 400)
        )

    @pytest.mark.parametrize(
        ("kind", "status", "error"),
        [
            ("openai", 429, {"message": "You exceeded your current quota.", "code": "insufficient_quota"}),
            (
                "anthropic",
                400,
                {"type": "invalid_request_error", "message": "Your credit balance is too low to go on."},
            ),
            ("anthropic", 402, {"type": "billing_error", "message": "Pay."}),
            ("gemini", 429, {"code": 429, "message": "Your prepayment credits are depleted.", "status": "X"}),
        ],
    )
    def test_a_used_up_account(self, kind: str, status: int, error: dict[str, Any]) -> None:
        assert refusal(ScriptedResponse({"type": "error", "error": error}, status), kind) == (
            f"{kind}: the account is used up; URL answered '{error['message']}' (HTTP {status}); top it up, or wait"
        )


class TestOpening:
    @staticmethod
    def fault(kind: str, environment: Mapping[str, str], **config: Any) -> str:
        async def run() -> None:
            async with create(kind, config, context=context(environment=environment)):
                pass

        with pytest.raises(ConfigError) as caught:
            asyncio.run(run())
        return str(caught.value)

    def test_a_missing_key_and_a_missing_model_are_reported_together(self) -> None:
        assert self.fault("gemini", {}) == (
            "gemini: "
            "\n  model: is required: name the model, or several in models"
            "\n  api_key: gemini requires a key; set GEMINI_API_KEY or GOOGLE_API_KEY, or pass api_key"
        )

    def test_a_parameter_that_is_set_twice(self) -> None:
        assert self.fault("openai", {}, model="m", api_key=KEY, tools=[{"name": "a"}], params={"tools": []}) == (
            "openai: params.tools: tools is already set by another option; remove one"
        )

    def test_key_and_address_come_from_the_environment_of_the_suite(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "of-this-process")

        async def run() -> list[RecordedRequest]:
            async with Server(chat()) as server:
                environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}
                async with create("openai", {"model": "m"}, context=context(environment=environment)) as target:
                    assert (await target.respond(PARIS)).text == "Paris"
                return server.asked

        [asked] = asyncio.run(run())
        assert asked.headers["authorization"] == f"Bearer {KEY}"

    def test_an_address_in_the_suite_gets_no_key_from_the_environment(self) -> None:
        _, [asked] = ask(environment={"OPENAI_API_KEY": KEY})
        assert "authorization" not in asked.headers

    def test_calls_require_an_open_target(self) -> None:
        with pytest.raises(RuntimeError, match="async with"):
            asyncio.run(create("openai", {"model": "m"}).respond(PARIS))


class TestSecrets:
    def test_keys_are_not_shown_or_compared(self) -> None:
        config = {"model": "m", "headers": {"api-key": "azure-0123456789", "X-Team": "eval"}}
        plain, keyed = create("openai", config), create("openai", {**config, "api_key": "k"})
        assert keyed.shown == {
            "model": "m",
            "api_key": "***",
            "headers": {"api-key": "***", "X-Team": "eval"},
        }
        assert keyed.fingerprint == plain.fingerprint
        other = {**config, "headers": {"api-key": "azure-9876543210", "X-Team": "eval"}}
        assert create("openai", other).fingerprint == plain.fingerprint
        assert create("openai", {**config, "temperature": 0}).fingerprint != plain.fingerprint

    def test_a_fault_does_not_quote_a_secret(self) -> None:
        with pytest.raises(ConfigError) as caught:
            create("openai", {"model": "m", "base_url": f"ftp://{KEY}"}, [KEY])
        assert KEY not in str(caught.value)

    def test_a_key_echoed_by_a_gateway_is_not_stored(self) -> None:
        response, _ = ask(
            chat(f"You sent azure-0123456789 and {KEY}"), api_key=KEY, headers={"api-key": "azure-0123456789"}
        )
        assert response.text == "You sent *** and ***"
        assert response.cleaned

    def test_the_same_question_has_the_same_cache_key(self) -> None:
        one, same = create("openai", {"model": "m", "api_key": KEY}), create("openai", {"model": "m"})
        assert one.cache_key(PARIS, 0) == same.cache_key(PARIS, 0)
        assert one.cache_key(PARIS, 0) != one.cache_key(PARIS, 1)
        assert one.cache_key(PARIS, 0) != create("openai", {"model": "n"}).cache_key(PARIS, 0)
