"""The built-in demo agent: a small HTTP service with a memory and a tool, which gives some wrong answers.

    python -m gradeline.demo.agent --port 9000

``POST /evaluate`` takes ``{"input": …}`` and optionally ``"model"`` (``small`` knows less than
``large``) and ``"session"``; it returns ``{"response": …, "session": …, "tool_calls": …, "usage": …}``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
from collections import OrderedDict
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import uuid4

from aiohttp import web

CAPITALS = {
    "France": "Paris",
    "Spain": "Madrid",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Canada": "Ottawa",
    "Australia": "Canberra",
}
_LARGE_ONLY = frozenset({"Kenya", "Canada", "Australia"})
_WRONG = {"Australia": "Sydney", "Canada": "Toronto"}
_PRICES = {"small": 0.0001, "large": 0.001}
_SESSIONS = 1000

_COUNTRY = re.compile(r"capital of (\w+)", re.IGNORECASE)
_SUM = re.compile(r"(-?\d{1,9})\s*([+*-])\s*(-?\d{1,9})")
_NAME = re.compile(r"my name is (\w+)", re.IGNORECASE)


class AgentAnswer(NamedTuple):
    """The agent's text, and the tools that it called."""

    text: str
    tool_calls: tuple[dict[str, Any], ...] = ()


def answer(question: str, model: str = "large", memory: dict[str, str] | None = None) -> AgentAnswer:
    """The agent itself; ``memory`` holds what it knows from the conversation."""
    known = {} if memory is None else memory
    if name := _NAME.search(question):
        known["name"] = name[1]
        return AgentAnswer(f"Nice to meet you, {name[1]}.")
    if "my name" in question.lower():
        return AgentAnswer(f"Your name is {known['name']}." if "name" in known else "You have not told me your name.")
    if terms := _SUM.search(question):
        return _calculated(*terms.groups())
    if country := _COUNTRY.search(question):
        return AgentAnswer(_capital(country[1], model))
    return AgentAnswer("I do not know.")


def _calculated(left: str, sign: str, right: str) -> AgentAnswer:
    a, b = int(left), int(right)
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    call = {"name": "calculator", "arguments": {"expression": f"{a} {sign} {b}"}}
    return AgentAnswer(f"The answer is {value}.", (call,))


def _capital(country: str, model: str) -> str:
    city = CAPITALS.get(country.title())
    if model == "small" and country.title() in _LARGE_ONLY:
        city = _WRONG.get(country.title())
    if city is None:
        return f"I do not know the capital of {country}."
    return f"The capital of {country.title()} is {city}."


class DemoAgent:
    """The agent as a server on this machine; ``async with`` starts and ends it."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._memories: OrderedDict[str, dict[str, str]] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self.calls = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/evaluate", self._evaluate)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _evaluate(self, request: web.Request) -> web.Response:
        self.calls += 1
        try:
            body = await request.json()
        except ValueError:
            return web.json_response({"error": "the body is not JSON"}, status=400)
        question = body.get("input") if isinstance(body, dict) else None
        if not isinstance(question, str):
            return web.json_response({"error": 'send {"input": "…"}'}, status=400)
        model = body.get("model") or "large"
        if model not in _PRICES:
            return web.json_response({"error": f"unknown model {model!r}; use one of {', '.join(_PRICES)}"}, status=400)
        session = str(body.get("session") or uuid4().hex)
        reply = answer(question, model, self._memory(session))
        tokens = {"input_tokens": len(question.split()), "output_tokens": len(reply.text.split())}
        usage = {**tokens, "cost": round(sum(tokens.values()) * _PRICES[model], 6)}
        return web.json_response(
            {"response": reply.text, "session": session, "tool_calls": reply.tool_calls, "usage": usage}
        )

    def _memory(self, session: str) -> dict[str, str]:
        """The memory of a session; the oldest sessions are deleted."""
        memory = self._memories.setdefault(session, {})
        self._memories.move_to_end(session)
        while len(self._memories) > _SESSIONS:
            self._memories.popitem(last=False)
        return memory


async def _serve(port: int) -> None:
    async with DemoAgent(port) as agent:
        sys.stdout.write(f"the demo agent listens on {agent.url}/evaluate (stop it with Ctrl-C)\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gradeline.demo.agent", description="Serve the demo agent.")
    parser.add_argument("--port", type=int, default=9000, help="port (default 9000; 0: any free port)")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(_serve(parser.parse_args().port))
        except OSError as error:
            sys.exit(f"cannot listen: {error.strerror}; choose another --port")


if __name__ == "__main__":
    main()
