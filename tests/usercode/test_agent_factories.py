from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gradeline import compat
from gradeline.errors import BadReplyError, ConfigError
from gradeline.model import Sample
from gradeline.usercode.agent_factories import create_agent, is_client_installed
from gradeline.usercode.loader import CodeRequest, CodeSpec
from gradeline.usercode.pool import WorkerPool
from gradeline.usercode.protocol import Job, Task, TaskResult

CLIENT = """
class AsyncLetta:
    def __init__(self, *, base_url, {key}=None, timeout=None):
        self.arguments = f"{{base_url}} {{{key}}} {{timeout:g}}"
"""
ACCESS = {"base_url": "http://letta", "api_key": "k", "project_id": "p", "timeout": 5.0}


def install_client(home: Path, monkeypatch: pytest.MonkeyPatch, key: str = "api_key") -> None:
    package = home / "site" / "letta_client"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CLIENT.format(key=key))
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def in_worker(home: Path, code: str) -> TaskResult:
    """The result of the factory in a worker."""
    (home / "f.py").write_text(f"from letta_evals import agent_factory\n\n{code}")

    async def run() -> TaskResult:
        async with WorkerPool(CodeSpec(str(home), (CodeRequest("agent_factory", "f.py:made"),)), size=1) as pool:
            await pool.start()
            task = Task("agent_factory", "f.py:made", config=ACCESS)
            (result,) = await pool.run(Job(Sample(id=1, input="x", extra_vars={"a": 1}), (task,)))
            return result

    return asyncio.run(run())


@pytest.mark.parametrize("key", ["api_key", "token"])
def test_a_factory_gets_a_client_and_a_mutable_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    install_client(tmp_path, monkeypatch, key)
    code = """
@agent_factory
async def made(client, sample):
    print("hello")
    sample.input = [sample.input, client.arguments]
    sample.extra_vars["b"] = 2
    return "agent-7"
"""
    result = in_worker(tmp_path, code)
    assert result.text is not None
    assert json.loads(result.text) == {
        "agent_id": "agent-7",
        "input": ["x", "http://letta k 5"],
        "extra_vars": {"a": 1, "b": 2},
    }
    assert (result.error, result.output) == (None, "hello\n")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 7", "returned 7 (int); return the agent's id (str)"),
        ("return ' '", "return the agent's id (str)"),
        ("sample.input = 7; return 'a'", "left an invalid sample"),
        ("sample.extra_vars = {'x': object()}; return 'a'", "left an invalid sample"),
    ],
)
def test_an_invalid_agent_is_a_bad_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    install_client(tmp_path, monkeypatch)
    result = in_worker(tmp_path, f"@agent_factory\nasync def made(client, sample):\n    {body}\n")
    assert result.error is not None
    assert result.error.type == "bad_reply"
    assert reason in result.error.message


def test_a_class_can_create_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeline.usercode.agent_factories.letta_client", lambda **_: None)

    class Maker:
        async def create_agent(self, client: Any, sample: Sample) -> str:
            return f"agent-{sample.id}"

    class Callable:
        def __call__(self, client: Any, sample: Sample) -> str:
            return f"agent-{sample.id}"

    for factory in (Maker, Callable):
        created = asyncio.run(create_agent(factory, Sample(id=1, input="x"), ACCESS, "f.py:x"))
        assert json.loads(created) == {"agent_id": "agent-1", "input": "x", "extra_vars": {}}
    with pytest.raises(BadReplyError):
        asyncio.run(create_agent(lambda *_: None, Sample(id=1, input="x"), ACCESS, "f.py:x"))


def test_the_stand_in_is_not_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compat.install()
    try:
        assert not is_client_installed()
    finally:
        compat.uninstall()
    install_client(tmp_path, monkeypatch)
    assert is_client_installed()


def test_a_setup_function_gets_the_client_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_client(tmp_path, monkeypatch)
    (tmp_path / "s.py").write_text(
        "from letta_evals import suite_setup\n\n@suite_setup\nasync def prepare(client, model_handle):\n"
        "    print(client and client.arguments, model_handle)\n"
    )

    async def run(**suite: Any) -> str | None:
        async with WorkerPool(CodeSpec(str(tmp_path), (), "s.py:prepare"), size=1) as pool:
            await pool.start()
            return await pool.set_up({"name": "s", "model_handle": "m", **suite})

    assert asyncio.run(run(connection=ACCESS)) == "http://letta k 5 m\n"
    assert asyncio.run(run()) == "None m\n"


def test_a_setup_function_that_needs_a_client_gets_the_install_command(tmp_path: Path) -> None:
    if is_client_installed():
        pytest.skip("letta-client is installed")
    (tmp_path / "s.py").write_text("async def prepare(client):\n    pass\n")

    async def run() -> None:
        async with WorkerPool(CodeSpec(str(tmp_path), (), "s.py:prepare"), size=1) as pool:
            await pool.start()
            await pool.set_up({"name": "s", "connection": ACCESS})

    with pytest.raises(ConfigError, match="pip install 'letta-client>=1,<2'"):
        asyncio.run(run())


def test_a_client_that_passes_its_arguments_to_its_base_class_gets_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in releases before 1.0: their own signature has no named parameters."""
    install_client(tmp_path, monkeypatch)
    old = """
class Base:
    def __init__(self, *, base_url=None, project=None, token=None, timeout=None):
        self.arguments = f"{base_url} {project} {token} {timeout:g}"

class AsyncLetta(Base):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
"""
    (tmp_path / "site" / "letta_client" / "__init__.py").write_text(old)
    code = "@agent_factory\nasync def made(client, sample):\n    return client.arguments\n"
    result = in_worker(tmp_path, code)
    assert json.loads(result.text or "")["agent_id"] == "http://letta p k 5"
