"""A letta server that stores its agents in memory and answers in the formats of the real one, or fails on request.

    async with LettaStub() as letta:
        letta.fail("send", 500)
        await ask(letta.url)

`install_letta` puts a program ``letta`` into a folder that works with such a server.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from aiohttp import BodyPartReader, web

Message = dict[str, Any]
Failure = int | bytes | Literal["hang", "cut", "drop"]
"""A status; the body of a 200; ``hang``: no response; ``cut``: half a response; ``drop``: a closed connection."""
Operation = Literal["import", "create", "update", "state", "delete", "send", "list"]

_DATE = "2026-01-05T09:00:00+00:00"


class LettaRequest(NamedTuple):
    """A request as received; ``data`` is its JSON, or the fields of its form."""

    operation: Operation
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    data: Any


@dataclass
class StubAgent:
    """An agent of the stub."""

    id: str
    name: str = "agent"
    model: str = "letta/letta-free"
    blocks: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    def state(self, *, with_blocks: bool) -> dict[str, Any]:
        blocks = [
            {"id": f"block-{label}", "label": label, "value": value, "limit": 20_000, "read_only": False}
            for label, value in self.blocks.items()
            if with_blocks
        ]
        return {
            "id": self.id,
            "name": self.name,
            "agent_type": "letta_v1_agent",
            "model": self.model,
            "llm_config": {"model": self.model, "model_endpoint_type": "openai", "context_window": 32_000},
            "system": "You are helpful.",
            "blocks": blocks,
            "memory": {"blocks": blocks},
            "tools": [],
            "sources": [],
            "tags": [],
        }


Behaviour = Callable[[StubAgent, str], list[Message]]
"""The messages with which an agent answers a text, without ``id`` and ``date``."""


def looks_it_up(agent: StubAgent, text: str) -> list[Message]:
    """Reason, search the memory, answer, and store the text in the block ``human``."""
    call = {"name": "conversation_search", "arguments": json.dumps({"query": text}), "tool_call_id": "call-1"}
    agent.blocks["human"] = text
    return [
        {"message_type": "reasoning_message", "reasoning": "I had better look.", "source": "reasoner_model"},
        {"message_type": "tool_call_message", "tool_call": call, "tool_calls": [call]},
        {
            "message_type": "tool_return_message",
            "name": "conversation_search",
            "tool_return": "1 hit",
            "status": "success",
            "tool_call_id": "call-1",
            "stdout": None,
            "stderr": None,
        },
        {"message_type": "assistant_message", "content": f"You said: {text}"},
    ]


def submits(arguments: Mapping[str, Any] | str, tool: str = "submit_grade") -> Behaviour:
    """The behaviour of a judge that calls its tool with these arguments for every text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)

    def behave(_: StubAgent, __: str) -> list[Message]:
        call = {"name": tool, "arguments": text, "tool_call_id": "call-1"}
        returned = {"name": tool, "tool_return": "submitted", "status": "success", "tool_call_id": "call-1"}
        return [
            {"message_type": "reasoning_message", "reasoning": "Let me see.", "source": "reasoner_model"},
            {"message_type": "tool_call_message", "tool_call": call, "tool_calls": [call]},
            {"message_type": "tool_return_message", **returned, "stdout": None, "stderr": None},
            {"message_type": "assistant_message", "content": "I have graded it."},
        ]

    return behave


USAGE: Mapping[str, Any] = {
    "message_type": "usage_statistics",
    "prompt_tokens": 900,
    "completion_tokens": 40,
    "total_tokens": 940,
    "cached_input_tokens": 300,
    "cache_write_tokens": 100,
    "reasoning_tokens": 10,
    "step_count": 2,
    "run_ids": None,
}
"""The usage that the stub reports for one message."""


class LettaStub:
    """Serves on 127.0.0.1. ``requests`` has all requests, ``agents`` the agents that exist."""

    def __init__(self, behaviour: Behaviour = looks_it_up, *, key: str | None = None, port: int = 0) -> None:
        self.behaviour = behaviour
        self._key = key
        self._port = port
        self._failures: dict[Operation, deque[Failure]] = {}
        self._numbers = count(1)
        self.url = ""
        self.agents: dict[str, StubAgent] = {}
        self.requests: list[LettaRequest] = []
        self.stop_reason = "end_turn"
        self.usage: Mapping[str, Any] | None = USAGE
        self.page = 200
        """The maximum number of messages of a page, whatever limit is requested."""

    def fail(self, operation: Operation, *failures: Failure) -> None:
        """Fail the next requests for an operation, one after the other."""
        self._failures.setdefault(operation, deque()).extend(failures)

    def add_agent(self, **fields: Any) -> StubAgent:
        """Add an agent without a request."""
        agent = StubAgent(f"agent-{next(self._numbers)}", **fields)
        self.agents[agent.id] = agent
        return agent

    def operations(self) -> list[Operation]:
        """The operations of all requests, in order."""
        return [one.operation for one in self.requests]

    async def __aenter__(self) -> Self:
        app = web.Application()
        for method, path, operation, handler in (
            ("POST", "/v1/agents/import", "import", self._import),
            ("POST", "/v1/agents", "create", self._create),
            ("POST", "/v1/agents/", "create", self._create),
            ("PATCH", "/v1/agents/{agent}", "update", self._update),
            ("GET", "/v1/agents/{agent}", "state", self._state),
            ("DELETE", "/v1/agents/{agent}", "delete", self._delete),
            ("POST", "/v1/agents/{agent}/messages", "send", self._send),
            ("GET", "/v1/agents/{agent}/messages", "list", self._list),
        ):
            app.router.add_route(method, path, self._guarded(operation, handler))  # type: ignore[arg-type]
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def _guarded(
        self, operation: Operation, handler: Callable[[web.Request, Any], web.Response]
    ) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            data = await _data(request)
            self.requests.append(
                LettaRequest(operation, request.method, request.path, dict(request.query), dict(request.headers), data)
            )
            if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
                return web.json_response({"detail": "Unauthorized"}, status=401)
            failures = self._failures.get(operation)
            if failures:
                return await _fail(request, failures.popleft())
            agent = request.match_info.get("agent")
            if agent is not None and agent not in self.agents:
                return web.json_response({"detail": f"Agent {agent} not found"}, status=404)
            return handler(request, data)

        return handle

    def _import(self, _: web.Request, data: Any) -> web.Response:
        file = json.loads(data["file"])
        blocks = {block["label"]: block["value"] for block in file.get("blocks") or file.get("core_memory") or []}
        agents = file.get("agents") or [file]
        made = [self.add_agent(name=agent.get("name", "agent"), blocks=dict(blocks)).id for agent in agents]
        return web.json_response({"agent_ids": made})

    def _create(self, _: web.Request, data: Any) -> web.Response:
        blocks = {block["label"]: block["value"] for block in data.get("memory_blocks") or []}
        agent = self.add_agent(name=data.get("name") or "agent", blocks=blocks)
        agent.model = data.get("model") or agent.model
        return web.json_response(agent.state(with_blocks=True))

    def _update(self, request: web.Request, data: Any) -> web.Response:
        agent = self.agents[request.match_info["agent"]]
        agent.model = data.get("model") or agent.model
        return web.json_response(agent.state(with_blocks=True))

    def _state(self, request: web.Request, _: Any) -> web.Response:
        with_blocks = "agent.blocks" in request.query.getall("include", [])
        return web.json_response(self.agents[request.match_info["agent"]].state(with_blocks=with_blocks))

    def _delete(self, request: web.Request, _: Any) -> web.Response:
        del self.agents[request.match_info["agent"]]
        return web.json_response(None)

    def _send(self, request: web.Request, data: Any) -> web.Response:
        agent = self.agents[request.match_info["agent"]]
        text = "\n".join(str(message["content"]) for message in data["messages"])
        # the server stores what the model returns in one step as parts of one message
        answer = [self._dated(message) for message in self.behaviour(agent, text)]
        agent.messages += [self._dated({"message_type": "user_message", "content": text}), *answer]
        stop = {"message_type": "stop_reason", "stop_reason": self.stop_reason}
        return web.json_response({"messages": answer, "stop_reason": stop, "usage": self.usage})

    def _dated(self, message: Message) -> Message:
        number = next(self._numbers)
        common = {"otid": f"otid-{number}", "run_id": "run-1", "step_id": "step-1", "sender_id": None}
        return {"id": f"message-{number}", "date": _DATE, "name": None, **common, **message}

    def _list(self, request: web.Request, _: Any) -> web.Response:
        messages = self.agents[request.match_info["agent"]].messages
        after = request.query.get("after")
        begin = 1 + max((place for place, message in enumerate(messages) if message["id"] == after), default=-1)
        end = begin + min(int(request.query.get("limit", "100")), self.page)
        return web.json_response(messages[begin:end])


async def _data(request: web.Request) -> Any:
    if request.content_type == "multipart/form-data":
        fields: dict[str | None, str] = {}
        async for part in await request.multipart():
            if isinstance(part, BodyPartReader):
                fields[part.name] = await part.text()
        return fields
    body = await request.read()
    return json.loads(body) if body else None


async def _fail(request: web.Request, failure: Failure) -> web.StreamResponse:
    if isinstance(failure, int):
        return web.json_response({"detail": f"failed on purpose with {failure}"}, status=failure)
    if isinstance(failure, bytes):
        return web.Response(body=failure, content_type="application/json")
    if failure == "hang":
        await asyncio.Event().wait()
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    if failure == "cut":
        await response.prepare(request)
        await response.write(b'{"messages": [')
    if request.transport is not None:
        request.transport.close()
    return response


def install_letta(folder: Path) -> Path:
    """Write a program ``letta`` into the folder, which the caller puts on the PATH; see `fake_letta_cli`."""
    program = folder / "letta"
    source = Path(__file__).with_name("fake_letta_cli.py")
    program.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -I {quote(str(source))} "$@"\n')
    program.chmod(0o755)
    return program
