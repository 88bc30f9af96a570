"""Agents that are Python functions, in a worker process and in this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Message, Response, Sample, ToolCall, Trajectory, Usage
from gradeline.targets import create
from gradeline.usercode.loader import TARGET, CodeRequest, CodeSpec, load
from gradeline.usercode.pool import WorkerPool
from gradeline.usercode.pools import WorkerPools
from gradeline.usercode.process_control import target_memory_limit
from target_context import context

SOURCE = """
import time
from gradeline import Message, Response, ToolCall, Trajectory, Usage

CALLS = []


def shout(text): return text.upper()
def by_sample(sample): return f"{sample.id}: {sample.input}"
async def later(text): return text + "!"
def whole(text): return Response(text=text, latency_ms=3.0)
def number(text): return 3
def nothing(text): return None
def pieces(text): yield text
def raises(text): raise LookupError("no " + text)
def leaves(text): raise SystemExit(3)
def hangs(text):
    while text != "ok": pass
    return text
def any_order(model, session, *, sample, messages, input):
    return f"{model} {input} {sample.id} {len(messages)} {session}"


def heard(messages): return " | ".join(f"{one['role']}: {one['content']}" for one in messages)
def breaks_history(messages):
    messages[0]["content"] = "changed"
    messages.clear()
    return "ok"
def counts(input, session):
    session["count"] = session.get("count", 0) + 1
    return f"{input} {session['count']}"
async def counts_later(input, session):
    return counts(input, session)
def keeps_a_lambda(input, session):
    session.setdefault("say", lambda: "kept")
    return session["say"]()
def also_sample(sample, session):
    CALLS.append(sample.id)
    return f"{len(CALLS)} of {len(sample.input)}"


def all_at_once(sample):
    CALLS.append(sample.id)
    return [f"{text} {len(CALLS)}" for text in sample.input]
def all_in_a_trajectory(input):
    CALLS.append(input)
    turns = tuple((Message("assistant", f"{name} {len(CALLS)}"),) for name in "ab")
    return Response(text="b 1", trajectory=Trajectory(turns), usage=Usage(1, 2))
def so_far(input, session):
    turns = session.setdefault("turns", [])
    turns.append((Message("assistant", input, (ToolCall("look"),)),))
    return Response(text=input, trajectory=Trajectory(tuple(turns)))
def history_and_more(messages):
    return [{"role": "system", "content": "Be kind."}, *messages, {"role": "assistant", "content": f"{len(messages)}"}]
def tools(messages):
    messages.append({"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]})
    messages.append({"role": "tool", "tool_call_id": "1", "content": "seen"})
    messages.append({"role": "assistant", "content": f"after {len(messages)}"})
    return messages
def metered(input): return {"text": input, "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.5}}
def metered_once(input): return metered(input) if input == "a" else input
def fails_at_b(input):
    if input == "b":
        raise ValueError("not b")
    return input
def address_space(text):
    import resource
    return str(resource.getrlimit(resource.RLIMIT_AS)[0])
def greedy(text): return str(len(bytearray(1024**3)))
def prints(input):
    print("out", input)
    return input
def prints_and_raises(input):
    import sys
    print("warn", input, file=sys.stderr)
    raise ValueError("no")
"""

Ask = Callable[..., Response]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(SOURCE)
    return tmp_path


def in_worker(folder: Path, function: str, sample: Sample, **config: Any) -> Response:
    reference = f"agent.py:{function}"

    async def body() -> Response:
        memory = target_memory_limit(config.get("memory"))
        async with WorkerPools(CodeSpec(str(folder), (CodeRequest(TARGET, reference, memory),)), max_size=1) as pool:
            target = create("python", {"function": reference, "timeout": 5.0, **config}, context=context(pool=pool))
            await pool.start()
            async with target:
                return await target.respond(sample)

    return asyncio.run(body())


def in_this_process(folder: Path, function: str, sample: Sample, **config: Any) -> Response:
    reference = f"agent.py:{function}"
    loaded = load(CodeSpec(str(folder), (CodeRequest(TARGET, reference),)))
    assert not loaded.manifest.faults
    here = loaded.function(TARGET, reference)

    async def body() -> Response:
        given = {"function": reference, "isolation": "none", **config}
        async with create("python", given, context=context(folder, function=here)) as target:
            return await target.respond(sample)

    return asyncio.run(body())


@pytest.fixture(params=[in_worker, in_this_process], ids=["worker", "none"])
def ask(request: pytest.FixtureRequest, folder: Path) -> Ask:
    way: Ask = request.param
    return lambda function, asked, **config: way(
        folder, function, asked if isinstance(asked, Sample) else Sample(7, asked), **config
    )


def texts(response: Response) -> list[str]:
    return ["".join(message.content for message in turn) for turn in response.steps.turns]


def fault(response: Response) -> tuple[str, str]:
    assert response.error is not None
    assert response.error.fault == "agent"
    return response.error.type, response.error.message


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("shout", "HI"),
        ("by_sample", "7: hi"),
        ("later", "hi!"),
        ("whole", "hi"),
        ("nothing", ""),
        ("any_order", "m hi 7 1 {}"),
    ],
)
def test_a_function_returns_the_answer(ask: Ask, function: str, text: str) -> None:
    response = ask(function, "hi", model="m")
    assert (response.status, response.text, response.trajectory) == ("success", text, None)
    assert response.latency_ms is not None


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("number", "agent.py:number returned 3 (int); return the response's text (str), a dict, a Response or a list"),
        ("pieces", "agent.py:pieces returned <generator object pieces"),
    ],
)
def test_an_invalid_return_value_is_a_bad_response(ask: Ask, function: str, expected: str) -> None:
    kind, message = fault(ask(function, "hi"))
    assert kind == "bad_response"
    assert message.startswith(expected)


class TestExceptions:
    def test_exceptions_are_agent_errors_with_their_location(self, ask: Ask) -> None:
        line = SOURCE.splitlines().index('def raises(text): raise LookupError("no " + text)') + 1
        response = ask("raises", "hi")
        assert response.status == "error"
        assert fault(response) == ("agent_error", f"LookupError: no hi (agent.py:{line} in raises)")

    def test_exceptions_have_only_the_frames_of_the_user(self, ask: Ask) -> None:
        error = ask("raises", "hi").error
        assert error is not None
        assert error.traceback is not None
        lines = error.traceback.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[1].endswith(", in raises")
        assert lines[-1] == "LookupError: no hi"
        assert "gradeline/" not in error.traceback

    def test_an_exit_is_an_exception(self, ask: Ask) -> None:
        kind, message = fault(ask("leaves", "hi"))
        assert kind == "agent_error"
        assert message.startswith("SystemExit: 3 (agent.py:")

    def test_exceptions_name_the_turn(self, ask: Ask) -> None:
        kind, message = fault(ask("fails_at_b", ["a", "b", "c"]))
        assert kind == "agent_error"
        assert message.startswith("turn 2 of 3: ValueError: not b (agent.py:")


class TestOutput:
    def test_output_is_stored_with_the_answer(self, ask: Ask) -> None:
        assert ask("prints", "hi").output == "out hi\n"
        assert ask("shout", "hi").output is None

    def test_output_is_stored_with_a_failure(self, ask: Ask) -> None:
        response = ask("prints_and_raises", "hi")
        assert response.error is not None
        assert response.output == "warn hi\n"

    def test_output_of_all_turns_is_stored(self, ask: Ask) -> None:
        assert ask("prints", ["a", "b"]).output == "out a\nout b\n"

    def test_output_of_this_process_appears_on_standard_error(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert in_this_process(folder, "prints", Sample(1, "hi")).output == "out hi\n"
        assert capsys.readouterr() == ("", "out hi\n")


class TestConversations:
    def test_a_function_of_the_text_is_called_once_per_turn(self, ask: Ask) -> None:
        response = ask("shout", ["a", "b"])
        assert response.text == "B"
        assert response.trajectory == Trajectory.of_turn_texts(["A", "B"])

    def test_messages_are_the_conversation_so_far(self, ask: Ask) -> None:
        assert texts(ask("heard", ["a", "b"])) == ["user: a", "user: a | assistant: user: a | user: b"]
        assert ask("heard", "a").text == "user: a"

    def test_changes_of_the_messages_by_a_function_have_no_effect(self, ask: Ask) -> None:
        assert texts(ask("breaks_history", ["a", "b"])) == ["ok", "ok"]

    @pytest.mark.parametrize("function", ["counts", "counts_later"])
    def test_a_session_lasts_for_the_case(self, ask: Ask, function: str) -> None:
        assert texts(ask(function, ["a", "b", "c"])) == ["a 1", "b 2", "c 3"]

    def test_a_session_is_new_for_each_case_and_repeat(self, folder: Path) -> None:
        reference = "agent.py:counts"

        async def body() -> list[list[str]]:
            async with WorkerPool(CodeSpec(str(folder), (CodeRequest(TARGET, reference),)), size=1) as pool:
                target = create("python", {"function": reference}, context=context(pool=pool))
                return [texts(await target.respond(Sample(case, ["a", "b"]))) for case in (1, 1, 2)]

        assert asyncio.run(body()) == [["a 1", "b 2"]] * 3

    def test_a_session_can_contain_anything(self, ask: Ask) -> None:
        assert texts(ask("keeps_a_lambda", ["a", "b"])) == ["kept", "kept"]

    def test_a_function_of_sample_and_session_is_called_once_per_turn(self, ask: Ask) -> None:
        assert texts(ask("also_sample", ["a", "b"])) == ["1 of 2", "2 of 2"]

    def test_a_function_of_the_sample_returns_all_turns_in_one_call(self, ask: Ask) -> None:
        response = ask("all_at_once", ["a", "b"])
        assert response.trajectory == Trajectory.of_turn_texts(["a 1", "b 1"])
        assert response.text == "b 1"

    def test_a_function_of_the_sample_that_returns_one_text_gets_the_remedy(self, ask: Ask) -> None:
        assert fault(ask("by_sample", ["a", "b", "c"])) == (
            "bad_response",
            "agent.py:by_sample returned 1 answer for 3 user turns; it takes the whole sample, so it is"
            " called once and must return a list of 3 responses; to be called once per turn, add a parameter named"
            " messages or input",
        )

    def test_a_first_answer_that_has_all_turns_is_the_only_call(self, ask: Ask) -> None:
        response = ask("all_in_a_trajectory", ["x", "y"])
        assert texts(response) == ["a 1", "b 1"]
        assert response.usage == Usage(1, 2)
        assert response.steps.tools_known

    def test_a_trajectory_so_far_is_not_doubled(self, ask: Ask) -> None:
        response = ask("so_far", ["a", "b", "c"])
        look = (ToolCall("look"),)
        assert response.trajectory == Trajectory(tuple((Message("assistant", text, look),) for text in "abc"))

    def test_a_returned_history_is_not_doubled(self, ask: Ask) -> None:
        assert texts(ask("history_and_more", ["a", "b"])) == ["1", "3"]

    def test_tool_calls_of_earlier_turns_are_passed_back_unchanged(self, ask: Ask) -> None:
        response = ask("tools", ["a", "b"])
        call = ToolCall("look", '{"at": 1}', "1")

        def turn(text: str) -> tuple[Message, ...]:
            seen = Message("tool", "seen", tool_call_id="1")
            return (Message("assistant", "", (call,)), seen, Message("assistant", text))

        assert response.trajectory == Trajectory((turn("after 3"), turn("after 7")))
        assert response.text == "after 7"

    def test_usage_and_latency_are_summed_over_the_turns(self, ask: Ask) -> None:
        response = ask("metered", ["a", "b"])
        assert response.usage == Usage(2, 4, None, 1.0)
        assert response.latency_ms is not None
        assert ask("metered_once", ["a", "b"]).usage is None

    def test_a_turn_that_hangs_is_a_timeout_of_that_turn(self, folder: Path) -> None:
        response = in_worker(folder, "hangs", Sample(1, ["ok", "hang"]), timeout=0.5)
        assert response.status == "timeout"
        assert fault(response) == ("timeout", "turn 2 of 2: agent.py:hangs took longer than 0.5 s")


class TestMemory:
    def test_without_an_option_there_is_no_limit(self, folder: Path) -> None:
        assert in_worker(folder, "address_space", Sample(1, "hi")).text == "-1"

    def test_memory_is_limited_by_the_option(self, folder: Path) -> None:
        assert in_worker(folder, "address_space", Sample(1, "hi"), memory="512MiB").text == str(512 * 1024**2)
        kind, message = fault(in_worker(folder, "greedy", Sample(1, "hi"), memory="512MiB"))
        assert kind == "memory"
        assert message.startswith("MemoryError (agent.py:")
        assert message.endswith("; its limit is 512 MiB, raise it with memory:")

    def test_memory_limit_is_not_part_of_the_fingerprint(self) -> None:
        config = {"function": "agent.py:f"}
        assert create("python", {**config, "memory": "1GiB"}).fingerprint == create("python", config).fingerprint

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"memory": "lots"}, "invalid size 'lots': write a size such as 512MB or 2GiB, or none"),
            ({"memory": "1GiB", "isolation": "none"}, "has no effect with isolation: none"),
        ],
    )
    def test_a_limit_that_cannot_be_enforced_is_refused(self, config: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            create("python", {"function": "agent.py:f", **config})


def test_a_call_that_hangs_is_a_timeout(folder: Path) -> None:
    response = in_worker(folder, "hangs", Sample(1, "hi"), timeout=0.5)
    assert fault(response) == ("timeout", "agent.py:hangs took longer than 0.5 s")
    assert response.status == "timeout"


def test_a_function_that_was_not_loaded_is_refused() -> None:
    async def body() -> None:
        async with create("python", {"function": "agent.py:answer"}):
            pass

    with pytest.raises(ConfigError, match=r"agent\.py:answer was not loaded"):
        asyncio.run(body())


def test_a_passed_function_without_an_input_is_refused() -> None:
    async def body() -> None:
        async with create("python", {"function": "f", "isolation": "none"}, context=context(function=lambda: "")):
            pass

    with pytest.raises(ConfigError, match="takes no input"):
        asyncio.run(body())


def test_an_unknown_function_offers_the_closest(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no function 'shot'; did you mean 'shout'"):
        in_worker(folder, "shot", Sample(1, "hi"))
