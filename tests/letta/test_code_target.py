from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fake_letta_server import Failure, LettaStub, Operation, StubAgent, install_letta
from gradeline.errors import ConfigError, Fault
from gradeline.letta.targets import LettaCodeConfig, LettaCodeTarget
from gradeline.model import Message, Response, Sample, ToolCall, Trajectory, Usage
from gradeline.targets import create
from gradeline.usercode.loader import CodeRequest, CodeSpec
from gradeline.usercode.pool import WorkerPool
from target_context import context

KEY = "sk-let-0123456789"
MODEL = "openai/gpt-4.1"
MEMORY = {"MEMORY_DIR", "LETTA_MEMORY_DIR"}

pytestmark = pytest.mark.skipif(not Path("/bin/sh").exists(), reason="needs a Unix shell")


class SuiteFolder:
    """A suite's folder, with the program on its own PATH."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "suite"
        self.folder.mkdir()
        (home / "bin").mkdir()
        install_letta(home / "bin")
        self.log = home / "calls.jsonl"
        path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = {"PATH": path, "HOME": str(home), "LETTA_FAKE_LOG": str(self.log)}

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def suite_folder(tmp_path: Path) -> SuiteFolder:
    return SuiteFolder(tmp_path)


class Talk(NamedTuple):
    response: Response
    letta: LettaStub

    @property
    def fault(self) -> tuple[str, str]:
        assert self.response.error is not None, self.response
        assert (self.response.status == "timeout") is (self.response.error.type == "timeout")
        return self.response.error.type, self.response.error.message


def talk(
    suite_folder: SuiteFolder,
    asked: str | list[str] = "Where?",
    *,
    prepare: Callable[[LettaStub], None] = lambda _: None,
    fake: str = "",
    key: str | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
    **config: Any,
) -> Talk:
    """The response of a target that runs the program, and the server."""

    async def run() -> Talk:
        async with LettaStub(key=key) as letta:
            prepare(letta)
            environment = {**suite_folder.environment, "LETTA_FAKE": fake}
            more = {"folder": suite_folder.folder, "environment": environment, **(given or {})}
            async with create("letta_code", {"base_url": letta.url, **config}, context=context(**more)) as target:
                sample = Sample(id=1, input=asked, extra_vars=dict(extra_vars or {}))
                return Talk(await target.respond(sample), letta)

    return asyncio.run(run())


def failing(operation: Operation, *failures: Failure) -> Callable[[LettaStub], None]:
    return lambda letta: letta.fail(operation, *failures)


def problems_of(**config: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        create("letta_code", config)
    return {problem.path.removeprefix("config."): problem.message for problem in caught.value.problems}


def turn(text: str) -> tuple[Message, ...]:
    """The messages of the stub's agent for a text."""
    call = ToolCall("conversation_search", json.dumps({"query": text}), "call-1")
    return (
        Message("user", text),
        Message("reasoning", "I had better look."),
        Message("assistant", tool_calls=(call,)),
        Message("tool", "1 hit", tool_call_id="call-1", name="conversation_search"),
        Message("assistant", f"You said: {text}"),
    )


# The exchange


def test_the_program_gets_the_prompt_and_the_server_returns_the_trajectory(suite_folder: SuiteFolder) -> None:
    response, letta = talk(suite_folder, model=MODEL, api_key=KEY, key=KEY)
    assert response == Response(
        text="You said: Where?",
        trajectory=Trajectory((turn("Where?"),), {"human": "Where?"}),
        usage=Usage(900, 40, 300),
        latency_ms=response.latency_ms,
    )
    assert suite_folder.calls() == [
        {
            "argv": ["--output-format", "stream-json", "--model", MODEL, "--yolo", "--new-agent", "-p"],
            "prompt": "Where?",
            "cwd": str(suite_folder.folder),
            "env": {"LETTA_BASE_URL": letta.url, "LETTA_API_KEY": KEY},
        }
    ]
    read = [(asked.method, asked.path, dict(asked.query)) for asked in letta.requests if asked.method == "GET"]
    assert read == [
        ("GET", "/v1/agents/agent-1/messages", {"limit": "200", "order": "asc"}),
        ("GET", "/v1/agents/agent-1/messages", {"limit": "200", "order": "asc", "after": "message-5"}),
        ("GET", "/v1/agents/agent-1", {"include": "agent.blocks"}),
    ]


def test_the_texts_of_a_list_are_lines_of_one_prompt_and_one_turn(suite_folder: SuiteFolder) -> None:
    response, _ = talk(suite_folder, ["One", "in {pwd}", "Two {pwd}"])
    prompt = f"One\nin {suite_folder.folder}\nTwo {suite_folder.folder}"
    assert suite_folder.calls()[0]["prompt"] == prompt
    assert response.trajectory == Trajectory((turn(prompt),), {"human": prompt})


def test_a_prompt_can_be_any_text_of_any_length(suite_folder: SuiteFolder) -> None:
    prompt = "--new-agent \"; rm -rf / $(id) `id`\n'é😀" + "x" * 300_000
    assert talk(suite_folder, prompt).response.text == f"You said: {prompt}"


def test_options_become_arguments(suite_folder: SuiteFolder) -> None:
    (suite_folder.folder / "skills").mkdir()
    talk(
        suite_folder,
        model=MODEL,
        permission_mode="acceptEdits",
        flags="--memfs --name 'a b' --import ./agent.af --skills skills --import @letta/helper",
        allowed_tools=["Bash", "Read"],
        disallowed_tools=["Edit"],
        skills_dir="skills",
    )
    skills = str(suite_folder.folder / "skills")
    assert suite_folder.calls()[0]["argv"] == [
        *("--output-format", "stream-json", "--model", MODEL, "--new-agent"),
        *("--skills", skills, "--allowedTools", "Bash,Read", "--disallowedTools", "Edit"),
        *("--memfs", "--name", "a b", "--import", str(suite_folder.folder / "agent.af"), "--skills", skills),
        *("--import", "@letta/helper"),
        *("--permission-mode", "acceptEdits", "-p"),
    ]


def test_without_a_model_the_program_uses_its_default(suite_folder: SuiteFolder) -> None:
    talk(suite_folder)
    assert "--model" not in suite_folder.calls()[0]["argv"]


def test_a_sample_can_set_variables(suite_folder: SuiteFolder) -> None:
    talk(suite_folder, extra_vars={"env": {"WHO": 7, "LETTA_API_KEY": None}}, api_key=KEY)
    assert suite_folder.calls()[0]["env"].items() >= {"WHO": "7", "LETTA_API_KEY": ""}.items()


@pytest.mark.parametrize("variables", ["x", ["A"], {"": "x"}, {"A=B": "x"}, {5: "x"}])
def test_invalid_variables_are_a_fault_of_the_case(variables: Any) -> None:
    sample = Sample(id=1, input="x", extra_vars={"env": variables})
    assert [problem.path for problem in create("letta_code", {}).problems_with(sample)] == ["extra_vars.env"]


def test_a_sample_without_a_message_is_refused() -> None:
    assert [problem.path for problem in create("letta_code", {}).problems_with(Sample(id=1, input=[]))] == ["input"]


def test_it_can_run_in_its_own_folder(suite_folder: SuiteFolder) -> None:
    talk(suite_folder, "{pwd}", working_dir="work", sandbox=True, model=MODEL)
    folder = str(suite_folder.folder / "work" / "gpt-4.1")
    assert (suite_folder.calls()[0]["cwd"], suite_folder.calls()[0]["prompt"]) == (folder, folder)


@pytest.mark.parametrize(
    ("config", "extra_vars", "folder"),
    [
        ({"memory_dir": "memory"}, {}, "suite/memory"),
        ({"memory_dir": "memory"}, {"memory_dir": "own"}, "suite/own"),
        ({}, {"memory_dir": "own", "env": {"MEMORY_DIR": "{home}/other"}}, "other"),
    ],
)
def test_with_a_memory_workspace_it_runs_in_the_memory(
    suite_folder: SuiteFolder, config: dict[str, Any], extra_vars: dict[str, Any], folder: str
) -> None:
    home = suite_folder.folder.parent
    variables = {name: value.format(home=home) for name, value in extra_vars.get("env", {}).items()}
    given = {**extra_vars, "env": variables}
    talk(suite_folder, memory_workspace=True, extra_vars=given, **config)
    (call,) = suite_folder.calls()
    assert call["cwd"] == str(home / folder)
    assert {call["env"][name] for name in MEMORY} == {str(home / folder)}


def test_without_a_memory_workspace_there_is_no_memory_folder(suite_folder: SuiteFolder) -> None:
    talk(suite_folder, memory_dir="memory", extra_vars={"memory_dir": "own"})
    (call,) = suite_folder.calls()
    assert call["cwd"] == str(suite_folder.folder)
    assert not MEMORY & set(call["env"])


# Reading what it did


def filled(count: int) -> Callable[[LettaStub], None]:
    def fill(letta: LettaStub) -> None:
        letta.page = 3

        def say(agent: StubAgent, text: str) -> list[dict[str, Any]]:
            return [{"message_type": "assistant_message", "content": str(number)} for number in range(count)]

        letta.behaviour = say

    return fill


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_messages_are_read_page_by_page(suite_folder: SuiteFolder, count: int) -> None:
    response, _ = talk(suite_folder, prepare=filled(count))
    texts = [message.content for message in response.steps.messages("assistant")]
    assert texts == [str(number) for number in range(count)]


def test_a_server_without_cursors_is_read_once(suite_folder: SuiteFolder) -> None:
    page = json.dumps([{"id": "message-1", "message_type": "assistant_message", "content": "Hi"}]).encode()
    response, letta = talk(suite_folder, prepare=failing("list", page, page, page))
    assert response.steps.turns == ((Message("assistant", "Hi"),),)
    assert letta.operations().count("list") == 2


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(404, "status"), (b"{}", "bad_response"), (b"[5]", "bad_response"), (b"<html>", "bad_response")],
)
def test_an_answer_that_cannot_be_read_is_an_error(suite_folder: SuiteFolder, failure: Failure, kind: str) -> None:
    assert talk(suite_folder, prepare=failing("list", failure, failure)).fault[0] == kind


def test_a_page_is_requested_again(suite_folder: SuiteFolder) -> None:
    assert talk(suite_folder, prepare=failing("list", 503, "drop")).response.text == "You said: Where?"


# Faults


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("fake", ["hang", "late-hang"])
def test_at_its_deadline_it_is_killed_with_its_children(suite_folder: SuiteFolder, fake: str) -> None:
    response, letta = talk(suite_folder, fake=fake, timeout=3)
    assert response.error is not None
    assert (response.status, response.error.type) == ("timeout", "timeout")
    pids = [int(pid) for pid in (suite_folder.folder.parent / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    # what it did until then is on record
    assert response.trajectory == (Trajectory((turn("Where?"),)) if fake == "late-hang" else None)
    assert len(letta.agents) == (1 if fake == "late-hang" else 0)


def test_a_crash_is_an_error_with_its_output(suite_folder: SuiteFolder) -> None:
    kind, message = talk(suite_folder, fake="crash").fault
    assert kind == "status"
    assert message.startswith("letta ended with exit code 1; ")
    assert "no credits left" in message
    assert "the engine room is on fire" in message
    response, _ = talk(suite_folder, fake="late-crash")
    assert response.trajectory == Trajectory((turn("Where?"),))


@pytest.mark.parametrize("fake", ["garbage", "error-result"])
def test_invalid_output_is_a_bad_response(suite_folder: SuiteFolder, fake: str) -> None:
    kind, message = talk(suite_folder, fake=fake).fault
    assert kind == "bad_response"
    assert ("letta reported an error" if fake == "error-result" else "letta named no agent") in message


def test_a_line_without_an_end_is_too_large(suite_folder: SuiteFolder) -> None:
    assert talk(suite_folder, fake="long-line").fault[0] == "too_large"


def test_a_second_attempt_may_succeed(suite_folder: SuiteFolder) -> None:
    once = {"env": {"LETTA_FAKE_ONCE": str(suite_folder.folder / "once")}}
    response, _ = talk(suite_folder, fake="crash-once", max_retries=1, extra_vars=once)
    assert response.text == "You said: Where?"
    assert len(suite_folder.calls()) == 2
    _, letta = talk(suite_folder, fake="late-crash", max_retries=2)
    assert letta.operations().count("create") == 3
    assert list(letta.agents) == [max(letta.agents)]


def test_a_program_removed_since_is_an_error_of_the_call(suite_folder: SuiteFolder) -> None:
    async def run() -> Response:
        async with create(
            "letta_code",
            {"base_url": "http://127.0.0.1:9"},
            context=context(folder=suite_folder.folder, environment=suite_folder.environment),
        ) as target:
            (suite_folder.folder.parent / "bin" / "letta").unlink()
            return await target.respond(Sample(id=1, input="x"))

    response = asyncio.run(run())
    assert response.error is not None
    assert (response.error.type, response.error.fault) == ("connect", Fault.INFRASTRUCTURE)


@pytest.mark.parametrize("fake", ["", "late-crash"])
def test_with_cleanup_its_agent_is_deleted(suite_folder: SuiteFolder, fake: str) -> None:
    _, letta = talk(suite_folder, fake=fake, given={"cleanup": True})
    assert letta.agents == {}
    assert letta.operations()[-1] == "delete"


# Its config


def test_without_the_program_the_error_names_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(
            create("letta_code", {}, context=context(folder=tmp_path, environment={"PATH": str(tmp_path)})).open()
        )
    assert "npm install -g @letta-ai/letta-code" in str(caught.value)
    assert "--cached DIR" in str(caught.value)


def test_missing_folders_are_reported_at_opening(suite_folder: SuiteFolder) -> None:
    target = create(
        "letta_code",
        {"skills_dir": "no"},
        context=context(folder=suite_folder.folder, environment=suite_folder.environment),
    )
    with pytest.raises(ConfigError, match="skills_dir"):
        asyncio.run(target.open())


def test_every_fault_of_a_config_is_named_at_once() -> None:
    report = problems_of(permission_mode="memory", flags="'a", allowed_tools="Bash", base_url="x", model_handle="m")
    assert set(report) == {"permission_mode", "flags", "allowed_tools", "base_url", "model_handle"}
    assert "memory_workspace: true" in report["permission_mode"]


def test_options_of_letta_without_effect_are_reported() -> None:
    report = LettaCodeTarget.without_effect
    assert set(report) <= set(LettaCodeConfig.__struct_fields__)
    every = create("letta_code", dict.fromkeys(report, "x"))
    assert every.fingerprint == create("letta_code", {}).fingerprint
    assert all("has no effect here" in reason for reason in report.values())


def test_an_option_that_letta_leaves_empty_is_not_passed() -> None:
    optional = set(LettaCodeConfig.__struct_fields__) - {"timeout", "max_retries", "stop_after_connection_failures"}
    assert create("letta_code", dict.fromkeys(optional)).shown == {}


# Secrets


def test_the_key_is_in_no_listing_and_no_error(suite_folder: SuiteFolder) -> None:
    target = create("letta_code", {"api_key": KEY, "flags": f"--token {KEY}"})
    assert target.shown == {"api_key": "***", "flags": "--token ***"}
    kind, message = talk(suite_folder, fake="leak", api_key=KEY).fault
    assert (kind, message) == ("status", "letta ended with exit code 1; the key is ***")


def test_a_key_echoed_by_the_agent_is_not_stored(suite_folder: SuiteFolder) -> None:
    response, _ = talk(suite_folder, f"It is {KEY}", api_key=KEY)
    assert response.text == "You said: It is ***"
    assert KEY not in repr(response)


# Agents that the suite's own code makes

CLIENT = """
class AsyncLetta:
    def __init__(self, *, base_url, token=None, timeout=None):
        self.base_url, self.token = base_url, token
"""

FACTORY = """
from letta_client import AsyncLetta
from letta_evals import Sample, agent_factory


@agent_factory
async def given(client: AsyncLetta, sample: Sample) -> str:
    sample.extra_vars = {"env": {"WHO": client.token}}
    return "agent-1"
"""


def test_a_factory_creates_the_agent_and_sets_variables(
    suite_folder: SuiteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "letta_client"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CLIENT)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    (suite_folder.folder / "factory.py").write_text(FACTORY)
    script = "factory.py:given"

    async def run() -> Response:
        spec = CodeSpec(str(suite_folder.folder), (CodeRequest("agent_factory", script),))
        async with LettaStub() as letta, WorkerPool(spec, size=1) as pool:
            await pool.start()
            letta.add_agent()
            options = {"base_url": letta.url, "agent_script": script, "api_key": "k", "memory_workspace": True}
            more = {"folder": suite_folder.folder, "environment": suite_folder.environment, "pool": pool}
            async with create("letta_code", options, context=context(**more)) as target:
                return await target.respond(Sample(id=1, input="Where?"))

    monkeypatch.setenv("HOME", str(tmp_path))
    assert asyncio.run(run()).text == "You said: Where?"
    (call,) = suite_folder.calls()
    memory = tmp_path / ".letta" / "agents" / "agent-1" / "memory"
    assert call["argv"][3:] == ["--agent", "agent-1", "-p"]
    assert call["cwd"] == str(memory)
    assert call["env"]["WHO"] == "k"
