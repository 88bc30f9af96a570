"""What happens between a prompt and a response when not all goes well."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gradeline.adapters import (
    BudgetTracker,
    ChatAdapter,
    ChatRequest,
    LLMAdapter,
    ModelError,
    Note,
    Price,
    Prices,
    RunConfig,
    Usage,
    create,
)
from gradeline.adapters.sync import run as run_sync
from gradeline.errors import BudgetExceeded, ConfigError, Fault, response_policy
from gradeline.model import Message
from gradeline.testing.fault_server import FaultServer

Serve = Callable[..., Any]
MakeAdapter = Callable[..., ChatAdapter]

CONFIG = RunConfig(model="m")
SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}}
PRICES = Prices.of({"m": Price(input=1.0, output=10.0)})


def chat(content: str | None = "ok", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return {"id": "c", "model": "m", "choices": [choice], **more}


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}}


def failure(adapter: ChatAdapter, prompt: str | ChatRequest = "hi", config: RunConfig = CONFIG) -> ModelError:
    with pytest.raises(ModelError) as caught:
        adapter.complete(prompt, config)
    return caught.value


class TestCalls:
    def test_an_adapter_is_an_llm_adapter(self, serve: Serve, adapter: MakeAdapter) -> None:
        llm = adapter(serve(), "openai", "gpt")
        assert isinstance(llm, LLMAdapter)
        assert (llm.adapter_id, repr(llm)) == ("openai:gpt", "OpenAIChatAdapter('openai:gpt')")

    def test_the_synchronous_form_works_inside_a_running_loop(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        llm = adapter(serve(reply(chat())), "openai")

        async def main() -> str:
            return llm.complete("hi", CONFIG).content

        assert asyncio.run(main()) == "ok"

    def test_the_synchronous_form_works_on_the_loop_that_serves_it(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:

        llm = adapter(serve(reply(chat())), "openai")

        async def judge() -> str:
            return llm.complete("hi", CONFIG).content

        assert run_sync(judge()) == "ok"

    def test_blocking_calls_from_many_threads_share_connections(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(chat()))
        llm = adapter(server, "openai")
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: llm.complete("hi", CONFIG).content, range(40)))
        assert answers == ["ok"] * 40
        assert len(server.connections) <= 4

    def test_calls_in_one_loop_share_a_connection_and_leave_none_open(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(chat()))
        llm = adapter(server, "openai")

        async def main() -> None:
            for _ in range(3):
                await llm.acomplete("hi", CONFIG)

        asyncio.run(main())
        asyncio.run(main())
        gc.collect()  # an open session would warn, and warnings are errors
        assert (len(server.seen), len(server.connections)) == (6, 2)

    def test_an_adapter_can_be_closed_and_used_again(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(chat()))

        async def main() -> None:
            async with adapter(server, "openai") as llm:
                await llm.acomplete("hi", CONFIG)
            await llm.acomplete("hi", CONFIG)

        asyncio.run(main())
        assert len(server.connections) == 2

    def test_a_forgotten_adapter_closes_its_connections(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(chat()))

        async def main() -> None:
            llm = adapter(server, "openai")
            await llm.acomplete("hi", CONFIG)
            del llm
            gc.collect()
            while not all(one.is_closing() for one in server.connections):
                await asyncio.sleep(0.001)

        asyncio.run(asyncio.wait_for(main(), 10))

    def test_the_run_config_model_overrides_the_adapter_model(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(chat()))
        llm = adapter(server, "openai", "own")
        llm.complete("hi", RunConfig(model="asked"))
        llm.complete("hi", RunConfig(model=""))
        assert [body["model"] for body in server.bodies] == ["asked", "own"]

    def test_a_missing_model_is_an_error(self, serve: Serve, adapter: MakeAdapter) -> None:
        with pytest.raises(ConfigError, match=r"^model: openai has no default model; name one$"):
            adapter(serve(), "openai", None).complete("hi", RunConfig(model=""))

    def test_an_unsendable_message_is_an_error_before_the_call(self, serve: Serve, adapter: MakeAdapter) -> None:
        server = serve()
        llm = adapter(server, "openai")
        wrong = [
            ("hi", {"temperature": float("nan")}, r"request\.temperature: nan is not a finite number"),
            ("hi", {"model_params": {"stop": {1, 2}}}, r"request\.stop: \{1, 2\} is a set"),
            ("hi", {"model_params": {"messages": []}}, "messages is already set by another option; remove one"),
            ("hi", {"temperature": 1.0, "model_params": {"temperature": 0.5}}, "model_params.temperature"),
            (ChatRequest(()), {}, "messages: must not be empty"),
            (ChatRequest((Message("event", "x"),)), {}, r"messages\[0\].role: 'event' cannot be sent"),
        ]
        for prompt, options, message in wrong:
            with pytest.raises(ConfigError, match=message):
                llm.complete(prompt, RunConfig(model="m", **options))  # type: ignore[arg-type]
        assert server.seen == []

    def test_unencodable_text_is_sent_with_replacements(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(chat()))
        adapter(server, "openai").complete("a\ud800b\0c", CONFIG)
        assert server.bodies[0]["messages"] == [{"role": "user", "content": "a\ufffdb\u2400c"}]

    def test_unencodable_response_text_is_cleaned_and_noted(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        response = adapter(serve(reply(chat("a\ud800b\0c"))), "openai").complete("hi", CONFIG)
        assert response.content == "a\ufffdb\u2400c"
        assert response.notes == (Note("text", "characters that cannot be stored were replaced"),)

    def test_the_query_of_the_base_url_is_kept(self, serve: Serve, reply: Any) -> None:
        server = serve(reply(chat()))
        create("openai", "m", base_url=f"{server.url}/deployments/d/?api-version=1").complete("hi", CONFIG)
        assert server.seen[0].path == "/deployments/d/chat/completions?api-version=1"
        assert "authorization" not in server.seen[0].headers

    def test_the_deadline_covers_all_attempts(self) -> None:
        async def main() -> ModelError:
            async with FaultServer() as server:
                llm = create("openai", "m", base_url=f"{server.url}/hang")
                with pytest.raises(ModelError) as caught:
                    await llm.acomplete("hi", RunConfig(model="m", timeout_s=0.1))
                return caught.value

        failed = asyncio.run(main())
        assert (failed.type, failed.unbilled) == ("timeout", False)
        assert "no complete response within 0.1 s" in str(failed)


class TestRetries:
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
    def test_transient_errors_are_tried_three_times(
        self, status: int, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(error("busy"), status))
        failed = failure(adapter(server, "openai"))
        assert (len(server.seen), failed.http_status, failed.attempts, failed.retryable) == (3, status, 3, True)
        assert failed.type == ("rate_limited" if status == 429 else "status")

    def test_transient_errors_are_retried_until_a_success(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(error("busy"), 529), reply(error("busy"), 429, {"Retry-After": "0"}), reply(chat()))
        assert adapter(server, "openai").complete("hi", CONFIG).content == "ok"
        assert len(server.seen) == 3

    @pytest.mark.parametrize("status", [400, 401, 403, 404])
    def test_permanent_errors_are_not_retried(
        self, status: int, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(error("no"), status))
        failed = failure(adapter(server, "openai"))
        assert (len(server.seen), failed.type, failed.http_status, failed.retryable) == (1, "status", status, False)

    def test_an_exhausted_quota_is_not_retried(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        reason = error("You exceeded your current quota.", type="insufficient_quota", code="insufficient_quota")
        server = serve(reply(reason, 429))
        failed = failure(adapter(server, "openai"))
        assert (len(server.seen), failed.type, failed.code, failed.retryable) == (
            1,
            "quota",
            "insufficient_quota",
            False,
        )
        assert response_policy("quota").fault is Fault.INFRASTRUCTURE

    def test_a_pause_beyond_the_deadline_is_not_waited_for(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(error("busy"), 429, {"Retry-After": "60"}))
        failed = failure(adapter(server, "openai"), config=RunConfig(model="m", timeout_s=5))
        assert len(server.seen) == 1
        assert "a pause of 60 s would exceed the deadline" in str(failed)

    def test_the_number_of_attempts_is_a_setting(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(error("busy"), 500))
        failure(adapter(server, "openai", retries=0))
        assert len(server.seen) == 1

    def test_an_unreachable_server_is_reported(self) -> None:
        from gradeline.adapters import AdapterSettings

        llm = create("openai", "m", base_url="http://127.0.0.1:9", settings=AdapterSettings(retries=0))
        failed = failure(llm)
        assert (failed.type, failed.http_status, failed.unbilled) == ("connect", None, True)


class TestUnsupportedParameters:
    def test_a_refused_seed_is_left_out_and_noted(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        reason = error("Unrecognized request argument supplied: seed", param="seed")
        server = serve(reply(reason, 400), reply(chat()))
        llm = adapter(server, "openai")
        config = RunConfig(model="m", model_params={"seed": 7, "top_p": 0.5})
        response = llm.complete("hi", config)
        note = Note("seed", "the server refused it: 'Unrecognized request argument supplied: seed'")
        assert response.notes == (note,)
        sent_body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert server.bodies == [{**sent_body, "seed": 7, "top_p": 0.5}, {**sent_body, "top_p": 0.5}]

        assert llm.complete("hi", config).notes == (note,)
        assert server.bodies[2:] == [{**sent_body, "top_p": 0.5}], "it is remembered"

    def test_each_refused_capability_is_left_out_in_turn(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(
            reply({"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}, 422),
            reply({"error": "json_schema is not supported by this model"}, 400),
            reply({"object": "error", "message": "logprobs are not enabled", "type": "BadRequestError"}, 400),
            reply(error("Unsupported value: 'temperature' does not support 0", param="temperature"), 400),
            reply(chat()),
        )
        request = ChatRequest((Message("user", "hi"),), response_schema=SCHEMA, logprobs=3)
        config = RunConfig(model="m", temperature=0.0, model_params={"seed": 7})
        response = adapter(server, "openai").complete(request, config)
        assert [note.what for note in response.notes] == ["seed", "response_schema", "logprobs", "temperature"]
        assert server.bodies[-1] == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

    @pytest.mark.parametrize(
        ("provider", "reason", "what"),
        [
            (
                "anthropic",
                {
                    "type": "error",
                    "error": {
                        "type": "invalid_request_error",
                        "message": "`temperature` is deprecated for this model.",
                    },
                },
                "temperature",
            ),
            (
                "anthropic",
                {
                    "type": "error",
                    "error": {
                        "type": "invalid_request_error",
                        "message": "output_config.format: Extra inputs are not permitted",
                    },
                },
                "response_schema",
            ),
            (
                "gemini",
                {
                    "error": {
                        "code": 400,
                        "message": "Logprobs is not enabled for models/m",
                        "status": "INVALID_ARGUMENT",
                    }
                },
                "logprobs",
            ),
            (
                "gemini",
                {
                    "error": {
                        "code": 400,
                        "message": "Invalid JSON payload received. Unknown name \"responseJsonSchema\" at 'generation_config': Cannot find field.",
                        "status": "INVALID_ARGUMENT",
                    }
                },
                "response_schema",
            ),
            ("openai_responses", error("Unsupported parameter", param="text.format"), "response_schema"),
            ("openai_responses", error("Unsupported parameter: 'include'", param="include[0]"), "logprobs"),
        ],
    )
    def test_refusals_of_other_providers_are_recognized(
        self, provider: str, reason: Any, what: str, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        answers = {
            "anthropic": {"content": [{"type": "text", "text": "ok"}], "stop_reason": "end_turn"},
            "gemini": {"candidates": [{"content": {"parts": [{"text": "ok"}]}, "finishReason": "STOP"}]},
            "openai_responses": {"status": "completed", "output": [{"type": "message", "content": [{"text": "ok"}]}]},
        }
        server = serve(reply(reason, 400), reply(answers[provider]))
        request = ChatRequest((Message("user", "hi"),), response_schema=SCHEMA, logprobs=3)
        response = adapter(server, provider).complete(request, RunConfig(model="m", temperature=0.0))
        assert response.content == "ok"
        noted = [note for note in response.notes if note.why.startswith("the server refused it")]
        assert [note.what for note in noted] == [what]
        assert len(server.seen) == 2

    def test_a_refusal_without_a_parameter_is_final(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(error("This model's maximum context length is 8192 tokens."), 400))
        failed = failure(adapter(server, "openai"), config=RunConfig(model="m", model_params={"seed": 7}))
        assert (len(server.seen), failed.provider_message) == (1, "This model's maximum context length is 8192 tokens.")

    def test_a_refusal_that_named_the_wrong_parameter_is_not_remembered(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(error("bad input: 'sow the seed'"), 400), reply(error("bad input"), 400), reply(chat()))
        llm = adapter(server, "openai")
        config = RunConfig(model="m", model_params={"seed": 7})
        failure(llm, config=config)
        assert llm.complete("hi", config).notes == ()

    def test_the_limits_new_name_is_used_where_the_old_is_refused(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        reason = error("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", param="max_tokens")
        server = serve(reply(reason, 400), reply(chat()))
        response = adapter(server, "openai").complete("hi", RunConfig(model="m", max_tokens=9))
        assert [body.get("max_completion_tokens") for body in server.bodies] == [None, 9]
        assert [note.what for note in response.notes] == ["max_tokens"]

    def test_missing_token_probabilities_are_noted(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        request = ChatRequest((Message("user", "hi"),), logprobs=0)
        response = adapter(serve(reply(chat())), "openai").complete(request, CONFIG)
        assert response.notes == (Note("logprobs", "the server returned none"),)

    @pytest.mark.parametrize(
        ("model", "kept"),
        [
            ("o1-mini", False),
            ("o3", False),
            ("my-gpt-5", False),
            ("gpt-6-luna", False),
            ("openai/gpt-6.1-sol", False),
            ("gpt-4o", True),
            ("o100-mine", True),
        ],
    )
    @pytest.mark.parametrize("provider", ["openai", "openai_responses"])
    def test_a_temperature_is_not_sent_to_models_known_to_refuse_it(
        self, model: str, kept: bool, provider: str, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply({**chat(), "status": "completed", "output": []}))
        response = adapter(server, provider).complete("hi", RunConfig(model=model, temperature=0.0))
        assert ("temperature" in server.bodies[0]) is kept
        assert [note.what for note in response.notes] == ([] if kept else ["temperature"])

    def test_a_temperature_is_sent_to_a_model_that_does_not_reason(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(chat()))
        config = RunConfig(model="gpt-6-luna", temperature=0.0, model_params={"reasoning_effort": "none"})
        assert adapter(server, "openai").complete("hi", config).notes == ()
        assert server.bodies[0]["temperature"] == 0.0

    @pytest.mark.parametrize(
        ("model", "kept"),
        [
            ("claude-haiku-4-5", True),
            ("claude-opus-4-6", True),
            ("claude-opus-4-7", False),
            ("claude-opus-5-5", False),
            ("claude-sonnet-5", False),
            ("claude-fable-5-1", False),
        ],
    )
    def test_anthropics_newer_models_are_sent_no_temperature(
        self, model: str, kept: bool, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply({"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}))
        response = adapter(server, "anthropic").complete("hi", RunConfig(model=model, temperature=0.0))
        assert ("temperature" in server.bodies[0]) is kept
        assert [note.what for note in response.notes] == ([] if kept else ["temperature"])


class TestInvalidResponses:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"<html>sign in</html>", "not JSON: "),
            (b"\xff{}", "the body is not valid UTF-8"),
            (b"[]", "not a JSON object: []"),
            (b'{"choices": []}', "the response has no choice"),
            (b'{"choices": [{"message": {"tool_calls": [{"function": {}}]}}]}', "a tool call without a name"),
            (b'{"choices": [NaN]}', "not JSON: "),
        ],
    )
    def test_an_invalid_response_is_an_error(
        self, body: bytes, message: str, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(body))
        failed = failure(adapter(server, "openai"))
        assert (failed.type, failed.retryable, len(server.seen)) == ("bad_response", False, 1)
        assert f"/v1/chat/completions answered 200: {message}" in str(failed)

    @pytest.mark.parametrize("provider", ["openai", "openai_responses", "anthropic", "gemini"])
    def test_an_empty_object_is_an_error(self, provider: str, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        assert failure(adapter(serve(reply({})), provider)).type == "bad_response"

    def test_a_transient_error_in_a_200_response_is_retried(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply({"error": {"message": "upstream", "code": 503}}), reply(chat()))
        assert adapter(server, "openai").complete("hi", CONFIG).content == "ok"
        server = serve(reply({"error": {"message": "upstream", "code": 503}}))
        failed = failure(adapter(server, "openai"))
        assert (len(server.seen), failed.type, failed.http_status) == (3, "status", 503)
        server = serve(reply({"error": {"message": "no such model", "code": 404}}))
        failed = failure(adapter(server, "openai"))
        assert (len(server.seen), failed.http_status) == (1, 404)

    def test_a_failed_response_is_an_error(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        reason = {"id": "r", "status": "failed", "error": {"code": "server_error", "message": "sorry"}, "output": []}
        server = serve(reply(reason))
        failed = failure(adapter(server, "openai_responses"))
        assert (len(server.seen), failed.http_status, failed.provider_message) == (3, 500, "sorry")

    def test_unknown_usage_is_not_zero(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        none = {"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
        for usage in ({}, None, none, {"prompt_tokens": True}, "many"):
            llm = adapter(serve(reply(chat(usage=usage))), "openai", prices=PRICES)
            assert llm.complete("hi", CONFIG).usage is None

    def test_the_cost_reported_by_the_server_overrides_the_table(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
        llm = adapter(
            serve(reply(chat(usage={**usage, "cost": 0.5})), reply(chat(usage=usage))), "openai", prices=PRICES
        )
        assert llm.complete("hi", CONFIG).usage == Usage(1_000_000, 0, None, 0.5)
        assert llm.complete("hi", CONFIG).usage == Usage(1_000_000, 0, None, 1.0)

    def test_another_service_tier_has_no_known_price(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 1}
        llm = adapter(serve(reply(chat(usage=usage, service_tier="flex"))), "openai", prices=PRICES)
        assert llm.complete("hi", CONFIG).usage == Usage(9, 1, None, None)


class TestSecrets:
    KEY = "sk-test-0123456789abcdef"

    @pytest.mark.parametrize("provider", ["openai", "openai_responses", "anthropic", "gemini"])
    def test_no_message_contains_the_key(self, provider: str, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        error_text = f"Incorrect API key provided: {self.KEY}."
        for answer in (reply(error(error_text), 401), reply(error(error_text)), reply(f"<p>{error_text}</p>".encode())):
            failed = failure(adapter(serve(answer), provider))
            assert self.KEY not in str(failed)
            assert self.KEY not in (failed.provider_message or "")
            assert "***" in str(failed)

    def test_a_key_echoed_by_a_gateway_is_not_stored(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(chat(f"your key is {self.KEY}")))
        response = adapter(server, "openai").complete("hi", CONFIG)
        assert response.content == "your key is ***"
        assert self.KEY not in repr(response)

    def test_the_repr_of_an_adapter_shows_no_key(self, serve: Serve, adapter: MakeAdapter) -> None:
        llm = adapter(serve(), "openai", headers={"X-Key": "hidden-header"})
        assert self.KEY not in repr(llm) + repr(llm.settings)
        assert "hidden-header" not in repr(llm.settings)


class TestBudget:
    def test_a_call_that_would_exceed_the_limit_is_not_sent(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(chat(usage={"prompt_tokens": 3, "completion_tokens": 2})))
        llm = adapter(server, "openai")
        budget = BudgetTracker(tokens=12)
        config = RunConfig(model="m", max_tokens=7, budget=budget)
        llm.complete("12345678", config)
        assert budget.spent[:2] == (1, 5), "the actual usage replaces the estimate"
        with pytest.raises(BudgetExceeded, match=r"^openai:m, model 'm': the budget of 12 tokens is used up"):
            llm.complete("12345678", config)
        assert len(server.seen) == 1

    def test_an_unknown_price_is_refused_under_a_cost_limit(self, serve: Serve, adapter: MakeAdapter) -> None:
        server = serve()
        with pytest.raises(BudgetExceeded, match="model 'm': the price of this call is unknown"):
            adapter(server, "openai").complete("hi", RunConfig(model="m", budget=BudgetTracker(cost=1)))
        assert server.seen == []

    def test_a_cost_is_settled_by_the_price(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        llm = adapter(serve(reply(chat(usage=usage))), "openai", prices=PRICES)
        budget = BudgetTracker(cost=1.0)
        llm.complete("hi", RunConfig(model="m", budget=budget))
        assert budget.spent == (1, 110, pytest.approx(0.0002), 0)

    def test_a_refused_call_costs_nothing_and_a_lost_call_its_estimate(
        self, serve: Serve, reply: Any, adapter: MakeAdapter
    ) -> None:
        server = serve(reply(error("no"), 401), reply(b"junk"))
        llm = adapter(server, "openai", prices=PRICES)
        budget = BudgetTracker(cost=1.0)
        config = RunConfig(model="m", max_tokens=100, budget=budget)
        failure(llm, "12345678", config)
        assert budget.spent == (1, 0, 0.0, 0)
        failure(llm, "12345678", config)
        assert budget.spent == (2, 102, pytest.approx(0.001002), 0)

    def test_anthropics_default_limit_counts(self, serve: Serve, adapter: MakeAdapter) -> None:
        with pytest.raises(BudgetExceeded, match="needs 8193"):
            adapter(serve(), "anthropic").complete("hi", RunConfig(model="m", budget=BudgetTracker(tokens=5000)))

    def test_concurrent_calls_cannot_exceed_a_limit(self, serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
        server = serve(reply(chat()))
        llm = adapter(server, "openai")
        config = RunConfig(model="m", budget=BudgetTracker(calls=3))

        async def main() -> list[object]:
            return await asyncio.gather(*(llm.acomplete("hi", config) for _ in range(10)), return_exceptions=True)

        outcomes = asyncio.run(main())
        assert sum(isinstance(one, BudgetExceeded) for one in outcomes) == 7
        assert len(server.seen) == 3
