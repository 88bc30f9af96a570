"""Client of a letta server: connection, agents, messages, memory, and agent files."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote as percent_encode
from urllib.parse import urlencode

import msgspec

from gradeline.errors import AgentError, DataError, Problem
from gradeline.letta.messages import from_letta, memory_of
from gradeline.model import Trajectory, Turn, clean_data, quote
from gradeline.targets.answer import NoJsonError, decode, json_text, parse
from gradeline.targets.answer_values import bad_response

if TYPE_CHECKING:
    from gradeline.transport import HttpResponse, Transport

CLOUD = "https://api.letta.com"
LOCAL = "http://localhost:8283"

MAX_STEPS = 100
"""Maximum steps of an agent per message, as in letta-evals."""
_PAGE = 200
_MAX_HISTORY = 100_000_000
"""Maximum bytes of an agent's messages, all pages together."""
_LONGEST_ID = 200
_REPEATS = 2
"""Retries of idempotent requests; a message is sent only once."""
_FAILED = frozenset(
    {
        "error",
        "llm_api_error",
        "invalid_llm_response",
        "cancelled",
        "insufficient_credits",
        "context_window_overflow_in_system_prompt",
    }
)
"""Stop reasons that mean failure; after others, such as ``max_steps``, there is an answer to grade."""


class LettaConnection(NamedTuple):
    """URL and credentials of a server."""

    base_url: str
    api_key: str | None = None
    project_id: str | None = None

    @classmethod
    def of(
        cls, base_url: str | None, api_key: str | None, project_id: str | None, environment: Mapping[str, str]
    ) -> LettaConnection:
        """Options override the environment; a key without a URL means letta's cloud."""
        key = _stripped(api_key) or _stripped(environment.get("LETTA_API_KEY"))
        url = _stripped(base_url) or _stripped(environment.get("LETTA_BASE_URL")) or (CLOUD if key else LOCAL)
        project = _stripped(project_id) or _stripped(environment.get("LETTA_PROJECT_ID"))
        return cls(url.rstrip("/"), key, project)

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        if self.project_id is not None:
            headers["X-Project-Id"] = self.project_id
        return headers


def _stripped(text: str | None) -> str | None:
    return (text or "").strip() or None


class Deadline:
    """The deadline of all requests of one attempt."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = asyncio.get_running_loop().time() + seconds

    def left(self) -> float:
        """Seconds left; `AgentError` once it has passed."""
        left = self._at - asyncio.get_running_loop().time()
        if left <= 0:
            raise AgentError("timeout", f"no complete response within {self.seconds:g} s")
        return left


class AgentReply(NamedTuple):
    """An agent's reply to one message."""

    turn: Turn
    usage: Mapping[str, Any] | None
    stop_reason: str | None
    latency_ms: float
    cleaned: bool

    def check(self) -> None:
        """Raise `AgentError` if the agent stopped because of a failure."""
        if self.stop_reason in _FAILED:
            raise bad_response(f"the agent stopped for the reason {quote(self.stop_reason)}")


class History(NamedTuple):
    """All messages of an agent."""

    turn: Turn
    cleaned: bool


class LettaServer:
    """Client of letta's REST API. Every failure is an `AgentError`, whose message never contains ``secrets``."""

    def __init__(self, connection: LettaConnection, transport: Transport, secrets: Collection[str] = ()) -> None:
        self._connection = connection
        self._transport = transport
        self._secrets = secrets

    async def import_agent(self, content: bytes, deadline: Deadline) -> str:
        """Create an agent from an agent file and return its ID."""
        fields = {"append_copy_suffix": "false", "override_existing_tools": "false"}
        if self._connection.project_id is not None:
            fields["project_id"] = self._connection.project_id
        boundary = token_hex(16)
        body = _multipart(boundary, fields, content)
        kind = f"multipart/form-data; boundary={boundary}"
        data, _, _ = await self._ask("POST", "/v1/agents/import", deadline, body, kind)
        agents = data.get("agent_ids") if isinstance(data, Mapping) else None
        if not isinstance(agents, list) or len(agents) != 1 or not isinstance(agents[0], str):
            raise bad_response(f"importing the agent file should have made one agent, got {quote(agents)}")
        return agents[0]

    async def set_model(self, agent: str, model: str, deadline: Deadline) -> None:
        await self._ask("PATCH", _agent_path(agent), deadline, _json({"model": model}), repeats=_REPEATS)

    async def send(self, agent: str, text: str, deadline: Deadline) -> AgentReply:
        """Send a user message and wait for the agent's complete reply.

        It is never sent twice, because that would change the agent under test.
        """
        body = _json({"messages": [{"role": "user", "content": text}], "max_steps": MAX_STEPS})
        data, answer, cleaned = await self._ask("POST", f"{_agent_path(agent)}/messages", deadline, body)
        messages = data.get("messages") if isinstance(data, Mapping) else None
        if not isinstance(messages, list):
            raise bad_response(f"the server's response has no list of messages: {quote(data)}")
        usage, stop = data.get("usage"), data.get("stop_reason")
        reason = stop.get("stop_reason") if isinstance(stop, Mapping) else stop
        return AgentReply(
            turn_of(messages),
            usage if isinstance(usage, Mapping) else None,
            reason if isinstance(reason, str) else None,
            answer.latency_ms,
            cleaned,
        )

    async def history(self, agent: str, deadline: Deadline) -> History:
        """All messages of the agent, the oldest first, read page by page."""
        found: list[Any] = []
        cursors: set[str] = set()
        query: dict[str, Any] = {"limit": _PAGE, "order": "asc"}
        size, changed = 0, False
        while True:
            path = f"{_agent_path(agent)}/messages?{urlencode(query)}"
            page, answer, cleaned = await self._ask("GET", path, deadline, repeats=_REPEATS)
            page = page.get("items") if isinstance(page, Mapping) else page
            if not isinstance(page, list):
                raise bad_response(f"a page of the agent's messages is not a list: {quote(page)}")
            size += len(answer.body)
            if size > _MAX_HISTORY:
                raise AgentError("too_large", f"the agent's messages are larger than {_MAX_HISTORY:,} bytes")
            last = page[-1].get("id") if page and isinstance(page[-1], Mapping) else None
            # a server without cursors returns the same page again
            if not page or last in cursors:
                break
            found += page
            changed |= cleaned
            if not isinstance(last, str) or not last:
                break
            cursors.add(last)
            query["after"] = last
        return History(turn_of(found), changed)

    async def memory(self, agent: str, deadline: Deadline) -> dict[str, str]:
        """The agent's memory blocks by their labels."""
        path = f"{_agent_path(agent)}?include=agent.blocks"
        data, _, _ = await self._ask("GET", path, deadline, repeats=_REPEATS)
        memory = None
        if isinstance(data, Mapping):
            try:
                memory = memory_of(data)
            except TypeError:
                memory = None
        if memory is None:
            raise bad_response(f"the agent's state holds no memory blocks: {quote(data)}")
        return memory

    async def delete(self, agent: str, deadline: Deadline) -> None:
        await self._ask("DELETE", _agent_path(agent), deadline, repeats=_REPEATS, empty=True)

    async def _ask(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        body: bytes | None = None,
        kind: str = "application/json",
        *,
        repeats: int = 0,
        empty: bool = False,
    ) -> tuple[Any, HttpResponse, bool]:
        """The decoded data, the HTTP response, and whether unstorable characters were replaced in the data."""
        from gradeline.transport import CallError, HttpRequest  # loads aiohttp

        url = f"{self._connection.base_url}{path}"
        headers = self._connection.headers if body is None else {**self._connection.headers, "Content-Type": kind}
        request = HttpRequest(
            method, url, headers, body, deadline_s=deadline.left(), retries=repeats, secrets=self._secrets
        )
        try:
            answer = await self._transport.request(request)
        except CallError as error:
            hint = _hint(error.http_status, self._connection)
            if hint is None:
                raise
            raise CallError(
                error.type, f"{error}; {hint}", http_status=error.http_status, attempts=error.attempts
            ) from None
        if empty:
            return None, answer, False
        data, cleaned = self._data(url, answer)
        return data, answer, cleaned

    def _data(self, url: str, answer: HttpResponse) -> tuple[Any, bool]:
        from gradeline.transport import excerpt, safe_url

        try:
            raw = parse(json_text(decode(answer.body, answer.headers.get("Content-Type", ""))))
            data = clean_data(raw)
        except (AgentError, DataError) as error:
            # invalid JSON in a body that only the connection's close ended was probably cut off
            cut = isinstance(error, NoJsonError) and not answer.complete
            start = excerpt(answer.body, self._secrets)
            message = f"{safe_url(url)} answered {answer.status}: {error}" + (f"; the body: {start}" if start else "")
            raise AgentError("truncated" if cut else "bad_response", message) from None
        return data, data != raw


def turn_of(messages: Sequence[object]) -> Turn:
    """Letta's messages as a turn of a trajectory; `AgentError` if they are invalid."""
    try:
        made = from_letta([messages])
        # from_letta does not check every field of a message
        return msgspec.convert(msgspec.to_builtins(made), Trajectory).turns[0]
    except (TypeError, ValueError) as error:
        raise bad_response(f"the server's messages are invalid: {error}") from None


def _agent_path(agent: str) -> str:
    """The URL path of an agent; its ID is untrusted."""
    if not agent.strip() or len(agent) > _LONGEST_ID or agent in (".", ".."):
        raise bad_response(f"{quote(agent)} is not a valid agent ID")
    return f"/v1/agents/{percent_encode(agent, safe='', errors='replace')}"


def _json(data: object) -> bytes:
    return json.dumps(data).encode()


def _multipart(boundary: str, fields: Mapping[str, str], content: bytes) -> bytes:
    parts = [_part(boundary, f'name="{name}"', value.encode()) for name, value in fields.items()]
    file = 'name="file"; filename="agent.af"\r\nContent-Type: application/octet-stream'
    return b"".join([*parts, _part(boundary, file, content), f"--{boundary}--\r\n".encode()])


def _part(boundary: str, head: str, value: bytes) -> bytes:
    return f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + value + b"\r\n"


def _hint(status: int | None, connection: LettaConnection) -> str | None:
    from gradeline.transport import safe_url

    if status in (401, 403):
        known = "the api_key is not valid there" if connection.api_key else "set api_key, or export LETTA_API_KEY"
        return f"{known} (base_url is {safe_url(connection.base_url)})"
    return None


ENDING = ".af"
_MOST_NAMED = 10


class AgentFile:
    """An agent file of a suite. It is read once, so that all agents created from it are the same."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def content(self) -> bytes:
        """The content of the file; `OSError` if it cannot be read."""
        return self._path.read_bytes()

    @property
    def digest(self) -> str:
        """Digest of the content; empty if the file cannot be read."""
        try:
            return sha256(self.content).hexdigest()
        except OSError:
            return ""

    def problems(self) -> Iterator[Problem]:
        """Why the file does not define exactly one agent."""
        try:
            data = json.loads(self.content)
        except OSError as error:
            yield Problem("agent_file", f"{self._path} cannot be read: {error.strerror}")
            return
        except (ValueError, RecursionError):
            yield Problem("agent_file", f"{self._path} is not an agent file: it is not JSON; export the agent again")
            return
        agents = data.get("agents") if isinstance(data, dict) else []
        # in the older format the file is the agent itself
        if agents is not None and (not isinstance(agents, list) or len(agents) != 1):
            found = f"{len(agents)} agents" if isinstance(agents, list) and agents else "none"
            yield Problem("agent_file", f"{self._path} must contain one agent, it contains {found}")

    def judge_problems(self, tool: str) -> Iterator[Problem]:
        """Why its agent cannot judge: it needs a tool of that name, with the parameters score and rationale."""
        problems = list(self.problems())
        if problems:
            yield from problems
            return
        listed = json.loads(self.content).get("tools")
        tools = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
        found = next((one for one in tools if one.get("name") == tool), None)
        if found is None:
            names = ", ".join(quote(one.get("name"), 60) for one in tools[:_MOST_NAMED]) or "none"
            reason = f"the agent of {self._path} has no tool {quote(tool)} to grade with; its tools: {names}"
            yield Problem("judge_tool_name", f"{reason}; name one of them, or add such a tool to the agent")
            return
        missing = [name for name in ("score", "rationale") if not _takes(found, name)]
        if missing:
            reason = f"the tool {quote(tool)} of {self._path} has no parameter {' and no '.join(missing)}"
            yield Problem("judge_tool_name", f"{reason}; it must be (score: float, rationale: str)")


def _takes(tool: Mapping[str, Any], parameter: str) -> bool:
    """Whether a tool has a parameter, by its source code or else by its schema."""
    source = tool.get("source_code")
    if isinstance(source, str) and source.strip():
        return re.search(rf"\b{parameter}\b", source) is not None
    return parameter in json.dumps(tool.get("json_schema"))
