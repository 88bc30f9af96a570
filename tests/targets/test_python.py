from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Message, Response, Sample
from gradeline.targets import create
from gradeline.usercode.loader import TARGET, CodeSpec, Wanted
from gradeline.usercode.pool import WorkerPool

SOURCE = """
import time
from gradeline import Response
def shout(text): return text.upper()
def by_sample(sample): return f"{sample.id}: {sample.input}"
async def later(text): return text + "!"
def whole(text): return Response(text=text, latency_ms=3.0)
def number(text): return 3
def nothing(text): return None
def raises(text): raise LookupError("no " + text)
def hangs(text):
    while True: pass
"""


def ask(folder: Path, function: str, sample: Sample, timeout: float = 5.0) -> Response:
    reference = f"agent.py:{function}"

    async def body() -> Response:
        async with WorkerPool(CodeSpec(str(folder), (Wanted(TARGET, reference),)), size=1) as pool:
            await pool.start()
            async with create("python", {"function": reference, "timeout": timeout}, pool=pool) as target:
                return await target.respond(sample)

    return asyncio.run(body())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("function", "text"),
    [("shout", "HI"), ("by_sample", "7: hi"), ("later", "hi!"), ("whole", "hi"), ("nothing", "")],
)
def test_a_function_answers(folder: Path, function: str, text: str) -> None:
    response = ask(folder, function, Sample(7, "hi"))
    assert (response.status, response.text) == ("success", text)
    assert response.latency_ms is not None


def test_a_list_of_inputs_is_a_call_a_turn(folder: Path) -> None:
    response = ask(folder, "shout", Sample(1, ["a", "b"]))
    assert response.text == "B"
    assert response.steps.turns == ((Message("assistant", "A"),), (Message("assistant", "B"),))


@pytest.mark.parametrize(
    ("function", "error_type", "status", "message"),
    [
        ("raises", "bad_response", "error", "LookupError: no hi"),
        (
            "number",
            "bad_response",
            "error",
            "bad_reply: agent.py:number returned 3 (int); return the answer's text (str)",
        ),
        ("hangs", "timeout", "timeout", "timeout: agent.py:hangs took longer than 0.3 s"),
    ],
)
def test_a_failure_is_a_response_with_an_error(
    folder: Path, function: str, error_type: str, status: str, message: str
) -> None:
    response = ask(folder, function, Sample(1, "hi"), timeout=0.3)
    assert response.error is not None
    assert (response.status, response.error.type, response.error.message) == (status, error_type, message)
    assert response.error.fault == "agent"


def test_without_isolation_it_runs_here() -> None:
    def answer(text: str) -> str:
        return text[::-1]

    async def body(function: object) -> Response:
        config = {"function": "agent.py:answer", "isolation": "none"}
        async with create("python", config, function=function) as target:
            return await target.respond(Sample(1, "abc"))

    assert asyncio.run(body(answer)).text == "cba"
    failed = asyncio.run(body(lambda text: 1 / 0))
    assert failed.error is not None
    assert failed.error.message == "ZeroDivisionError: division by zero"


def test_a_function_that_was_not_loaded_is_refused() -> None:
    async def body() -> None:
        async with create("python", {"function": "agent.py:answer"}):
            pass

    with pytest.raises(ConfigError, match=r"agent\.py:answer was not loaded"):
        asyncio.run(body())


def test_an_unknown_function_offers_the_closest(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no function 'shot'; did you mean 'shout'"):
        ask(folder, "shot", Sample(1, "hi"))
