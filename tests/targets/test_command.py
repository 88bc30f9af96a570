from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Response, Sample, ToolCall, Usage
from gradeline.targets import create

HOSTILE = "x\"; rm -rf / $(whoami) `id` {{id}}\n'é😀"


def run(
    code: str, *arguments: str, text: str | list[str] = "Where?", secrets: tuple[str, ...] = (), **config: Any
) -> Response:
    """The response of a target whose command is this Python code."""

    async def ask() -> Response:
        command = [sys.executable, "-c", code, *arguments]
        async with create("command", {"command": command, **config}, secrets) as target:
            return await target.respond(Sample(id=1, input=text, metadata={"who": "me"}))

    return asyncio.run(ask())


def fault(code: str, *arguments: str, **config: Any) -> tuple[str, str]:
    response = run(code, *arguments, **config)
    assert response.error is not None, response
    assert (response.status == "timeout") is (response.error.type == "timeout")
    return response.error.type, response.error.message


def problems_of(**config: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        create("command", config)
    return {problem.path: problem.message for problem in caught.value.problems}


ECHO_IN = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
ECHO_ARGS = "import sys; sys.stdout.buffer.write('|'.join(sys.argv[1:]).encode())"


def test_the_input_goes_to_standard_input_and_the_output_is_the_text() -> None:
    response = run(ECHO_IN, text=HOSTILE)
    assert (response.status, response.text, response.cleaned) == ("success", HOSTILE, False)
    assert response.latency_ms is not None
    assert response.latency_ms > 0


def test_line_ends_at_the_end_are_dropped_and_no_output_is_an_answer() -> None:
    assert run("print(' Paris \\n')").text == " Paris "
    assert run("pass").text == ""


def test_as_an_argument_the_input_is_last_or_at_its_placeholder() -> None:
    assert run(ECHO_ARGS, "a", text=HOSTILE, input="argument").text == f"a|{HOSTILE}"
    filled = run(ECHO_ARGS, "--q={{input}}", "{{id}}", "{{metadata.who}}", text=HOSTILE, input="argument")
    assert filled.text == f"--q={HOSTILE}|1|me"


def test_the_turns_of_a_list_are_lines_of_one_input() -> None:
    assert run(ECHO_IN, text=["a", "b"]).text == "a\nb"


def test_environment_and_folder_are_those_of_the_config(tmp_path: Path) -> None:
    code = "import os; print(os.environ['WHO'], os.environ['PATH'] != '', os.getcwd())"
    assert run(code, env={"WHO": "me"}, cwd=str(tmp_path)).text == f"me True {tmp_path.resolve()}"


def test_json_output_is_read_like_an_answer_over_http() -> None:
    report = {"a": "Paris", "calls": [{"name": "f"}], "u": {"cost": 2}, "end": {"why": "length"}}
    paths = {"output": "a", "tool_calls": "calls", "usage": "u", "stop_reason": "end.why"}
    response = run(f"print({json.dumps(report)!r})", output="json", response=paths)
    assert response.text == "Paris"
    assert list(response.steps.tool_calls()) == [ToolCall("f")]
    assert response.usage == Usage(cost=2.0)
    assert response.stop_reason == "length"
    assert run("""print('{"response": "x"}')""", output="json").text == "x"


@pytest.mark.parametrize("printed", ["", "Paris", "{}", '{"response": NaN}', "[" * 100_000])
def test_invalid_json_output_is_a_bad_response(printed: str) -> None:
    kind, message = fault(f"print({printed!r})" if len(printed) < 100 else "print('[' * 100_000)", output="json")
    assert kind == "bad_response"
    assert len(message.encode()) < 2048 + 600


def test_output_that_is_not_utf8_is_cleaned_with_a_flag() -> None:
    response = run("import sys; sys.stdout.buffer.write(b'a\\xff\\0b')")
    assert (response.text, response.cleaned) == ("a\ufffd\u2400b", True)


def test_an_exit_code_is_an_error_with_the_end_of_the_output() -> None:
    kind, message = fault("import sys; sys.stderr.write('x' * 9999 + 'the end\\0'); sys.exit(3)")
    assert kind == "status"
    assert "exit code 3" in message
    assert message.endswith("the end\u2400")
    assert len(message.encode()) < 2048 + 200
    assert "SIGKILL" in fault("import os; os.kill(os.getpid(), 9)")[1]


def test_a_program_need_not_read_its_input() -> None:
    assert run("print('done')", text="x" * 5_000_000).text == "done"


@pytest.mark.parametrize("code", ["while True: print('x' * 9999)", "import sys; sys.stdout.write('x' * 3000)"])
def test_too_much_output_is_an_error(code: str) -> None:
    assert fault(code, max_output=2000)[0] == "too_large"


def test_an_argument_that_is_too_long_is_reported() -> None:
    kind, message = fault("pass", text="x" * 3_000_000, input="argument")
    assert kind == "connect"
    assert "too long" in message


FAMILY = """
import os, subprocess, sys, time
code = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()} '); time.sleep(600)"
for session in (False, True):
    subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], start_new_session=session)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_at_its_deadline_a_command_is_killed_with_its_children(tmp_path: Path) -> None:
    kind, message = fault(FAMILY, str(tmp_path / "pids"), timeout=2)
    assert kind == "timeout"
    assert "2 s" in message
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_call_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    code = f"import os, time; open({str(place)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(600)"

    async def cancel() -> None:
        async with create("command", {"command": [sys.executable, "-c", code], "timeout": 60}) as target:
            task = asyncio.create_task(target.respond(Sample(id=1, input="x")))
            while not (place.exists() and place.read_text().endswith(" ")):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    pid = int(place.read_text())
    deadline = monotonic() + 10
    while alive(pid) and monotonic() < deadline:
        sleep(0.01)
    assert not alive(pid)


def test_a_text_instead_of_a_list_is_refused_with_the_remedy() -> None:
    assert "a list such as [prog, arg]" in problems_of(command="ls -l")["config.command"]


def test_every_fault_of_a_config_is_named_at_once() -> None:
    assert set(
        problems_of(command=["{{id}}", "{{input}}", "{{x}}"], response={"output": "a["}, env={"A=B": "c"}, timeout=-1)
    ) == {
        "config.command",
        "config.command[0]",
        "config.command[2]",
        "config.response.output",
        "config.response",
        "config.env",
        "config.timeout",
    }
    assert set(problems_of(command=[])) == {"config.command"}
    assert set(problems_of()) == {"config.command"}


@pytest.mark.parametrize("config", [{"command": ["no-such-program-here"]}, {"command": ["ls"], "cwd": "/no/such"}])
def test_a_missing_program_or_folder_is_reported_at_opening(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no-such-program-here|/no/such"):
        asyncio.run(create("command", config).open())


def test_a_program_removed_since_is_an_error_of_the_call(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\necho hi\n")
    program.chmod(0o755)

    async def ask() -> tuple[Response, Response]:
        async with create("command", {"command": ["./agent"], "cwd": str(tmp_path)}) as target:
            first = await target.respond(Sample(id=1, input="x"))
            program.unlink()
            return first, await target.respond(Sample(id=1, input="x"))

    first, second = asyncio.run(ask())
    assert first.text == "hi"
    assert second.error is not None
    assert second.error.type == "connect"


def test_missing_metadata_is_a_fault_of_the_case() -> None:
    target = create("command", {"command": ["echo", "{{metadata.x}}"]})
    assert [problem.path for problem in target.problems_with(Sample(id=1, input="x"))] == ["metadata"]


def test_secrets_are_in_no_fingerprint_listing_or_error() -> None:
    def make(secret: str, key: str) -> Any:
        return create(
            "command", {"command": ["echo", f"--k={secret}"], "env": {"API_KEY": key, "LEVEL": "1"}}, [secret]
        )

    one = make("s3cr3t", "literal")
    assert one.fingerprint == make("other", "another").fingerprint
    assert one.shown == {"command": ["echo", "--k=***"], "env": {"API_KEY": "***", "LEVEL": "1"}}
    code = "import os, sys; sys.exit(sys.argv[1] + os.environ['API_KEY'])"
    _, message = fault(code, "s3cr3t", secrets=("s3cr3t",), env={"API_KEY": "literal"})
    assert message.endswith("******")
    _, message = fault("print(7, 's3cr3t')", output="json", secrets=("s3cr3t",))
    assert "s3cr3t" not in message


def test_many_commands_run_concurrently() -> None:
    async def ask() -> list[Response]:
        async with create("command", {"command": ["cat"]}) as target:
            return await asyncio.gather(*(target.respond(Sample(id=n, input=str(n))) for n in range(20)))

    assert [response.text for response in asyncio.run(ask())] == [str(n) for n in range(20)]
    assert "GRADELINE_WORKER" not in os.environ
