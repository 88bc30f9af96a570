"""The agent of a new suite: the suite's ``target`` for each kind of agent, and the files next to it.

Each kind without options gives a suite that is valid; most have an example agent, so that it also runs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

DEMO_AGENT = "python -m gradeline.demo.agent --port 9000"
"""Starts the agent of a suite for ``http`` without a URL."""
DEMO_URL = "http://127.0.0.1:9000/evaluate"
A2A_URL = "http://127.0.0.1:9999/"
_A2A_SDK = "a2a-sdk>=1"
TOOL = "ask"
ARGUMENT = "question"

_YAML_PLAIN = re.compile(r"(?:\.\./)*[A-Za-z][\w./:@+-]*(?<!:)")
_YAML_KEYWORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class AgentChoice(NamedTuple):
    """The agent of a new suite; what is None is the default or the example of its kind."""

    kind: str = "python"
    url: str | None = None
    model: str | None = None
    function: str | None = None
    """``file.py:name``, relative to the suite, or ``module:name``."""
    command: tuple[str, ...] | None = None
    folder: str = "."
    """Where the command runs, relative to the suite."""
    tool: str | None = None
    argument: str | None = None
    request: object = None
    """The body of a request, as JSON data."""
    response: str | None = None
    """The JMESPath of the text in a response."""


def _yaml_scalar(text: str) -> str:
    """A string in YAML, quoted where it could be read as something else."""
    if _YAML_PLAIN.fullmatch(text) and text.isascii() and text.lower() not in _YAML_KEYWORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def _yaml_flow(value: object) -> str:
    """Data of a JSON document on one line of YAML."""
    if isinstance(value, str):
        return _yaml_scalar(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_yaml_scalar(key)}: {_yaml_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_yaml_flow, value)) + "]"
    return json.dumps(value)


def _python_string(text: str) -> str:
    """A string in Python, in double quotes where JSON and Python write it the same way."""
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if text.isprintable() else repr(text)


def _remedy(title: str, package: str) -> str:
    return f"{title} is not installed; run: pip install {shlex.quote(package)}"


def _import(names: str, title: str, package: str) -> str:
    """A statement whose message, where the package is not installed, is the remedy."""
    return f"""\
try:
    from {names}
except ImportError:
    raise ImportError("{_remedy(title, package)}") from None"""


class AgentKind(NamedTuple):
    """A kind of agent: how `gradeline init` shows it, which options it takes, and what it writes."""

    title: str
    options: tuple[str, ...]
    target: Callable[[AgentChoice], str]
    """The ``target`` of the suite, with its comments."""
    files: Callable[[AgentChoice], dict[str, str]] = lambda _: {}
    requires: Mapping[str, str] = {}
    """Modules that the written files import, with the argument of ``pip install``."""
    key: str | None = None
    """The environment variable with the API key."""


_MORE = "The kinds of targets: http, openai, anthropic, gemini, ollama, vllm, python, command, replay."

_AGENT = '''\
"""The agent under test in suite.yaml; call your own here."""

ANSWERS = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima", "19 + 23": "42"}


def answer(text: str) -> str:
    for words, known in ANSWERS.items():
        if words in text:
            return f"The answer is {known}."
    return "I do not know."
'''

_ANSWERS = """\
{"id": "france", "text": "The capital of France is Paris."}
{"id": "spain", "text": "The capital of Spain is Madrid."}
{"id": "peru", "text": "The capital of Peru is Lima."}
{"id": "kenya", "text": "I do not know."}
{"id": "sum", "text": "19 + 23 is 42."}
"""

_SED = ("sed", "s/.*France.*/Paris/; s/.*Spain.*/Madrid/; s/.*Peru.*/Lima/; s/.*19 + 23.*/42/")


def _python(choice: AgentChoice) -> str:
    function = _yaml_scalar(choice.function or "agent.py:answer")
    return f"""\
# The agent under test: a Python function.
# {_MORE}
target:
  kind: python
  function: {function}   # called with the input, returns the response
  #timeout: 60                # seconds per call
"""


def _http(choice: AgentChoice) -> str:
    hint = "" if choice.url else f"# A small agent for this suite: {DEMO_AGENT}\n"
    request = _yaml_flow({"input": "{{input}}"} if choice.request is None else choice.request)
    if choice.response:
        response = f"response: {{output: {_yaml_scalar(choice.response)}}}   # JMESPath of the text in the response"
    else:
        response = "#response: {output: answer.text}   # JMESPath of the text, if it is not detected"
    return f"""\
# The agent under test: an HTTP service.
# {_MORE}
{hint}target:
  kind: http
  url: {_yaml_scalar(choice.url or DEMO_URL)}
  request: {request}   # the request body; {{{{id}}}} and {{{{metadata.x}}}} work too
  {response}
  #headers: {{Authorization: "Bearer ${{AGENT_KEY}}"}}   # from the environment, or from .env in this folder
  #timeout: 60                    # seconds per case, retries included
"""


class _Provider(NamedTuple):
    name: str
    model: str
    key: str


_PROVIDERS = {
    "openai": _Provider("OpenAI", "gpt-6-luna", "OPENAI_API_KEY"),
    "anthropic": _Provider("Anthropic", "claude-haiku-5-5", "ANTHROPIC_API_KEY"),
}


def _chat(choice: AgentChoice) -> str:
    provider = _PROVIDERS[choice.kind]
    if choice.url:
        comment = f"a model behind the API of {provider.name}, on a server of your own"
        server = (
            f"\n  base_url: {_yaml_scalar(choice.url)}"
            '\n  #api_key: "${AGENT_KEY}"   # from the environment, or from .env; no other key is sent there'
        )
    else:
        comment = f"a model. Its key is the variable {provider.key}, or a line of .env in this folder"
        server = ""
    return f"""\
# The agent under test: {comment}.
# {_MORE}
target:
  kind: {choice.kind}
  model: {_yaml_scalar(choice.model or provider.model)}{server}
  #system: Answer in one sentence.
  #max_tokens: 1000
  #timeout: 60           # seconds per turn, retries included
"""


def _command(choice: AgentChoice) -> str:
    folder = "" if choice.folder == "." else f"  cwd: {_yaml_scalar(choice.folder)}   # relative to this file\n"
    hint = "" if choice.command else " Replace sed with yours."
    return f"""\
# The agent under test: a program.
# {_MORE}
target:
  kind: command
  # The program and its arguments: it reads the input and prints the response.{hint}
  command: {_yaml_flow(choice.command or _SED)}
{folder}  #timeout: 60   # seconds per case
"""


def _langgraph(choice: AgentChoice) -> str:  # noqa: ARG001
    return f"""\
# The agent under test: a LangGraph graph, called in target.py.
# {_MORE}
target:
  kind: python
  function: target.py:answer
  timeout: 120                # seconds per call
  #isolation: none            # in one process: for a graph that holds connections or a model in memory
"""


_GRAPH_FILE = "example_graph.py"  # graph.py in a folder "langgraph" would hide the library's module of that name
_GRAPH = '''\
"""An example graph without a model; use your own in target.py."""

from langgraph.graph import START, MessagesState, StateGraph

ANSWERS = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima", "19 + 23": "42"}


def respond(state: MessagesState) -> dict:
    text = state["messages"][-1].content
    known = [answer for words, answer in ANSWERS.items() if words in text]
    return {"messages": [{"role": "assistant", "content": known[0] if known else "I do not know."}]}


graph = StateGraph(MessagesState).add_node(respond).add_edge(START, "respond").compile()
'''

_CALLS_GRAPH = '''\
"""Calls a LangGraph graph whose state has ``messages``: the agent under test in suite.yaml."""

{imports}

async def answer(messages: list[dict]) -> dict:
    """The messages that the graph adds to the conversation so far, with their tool calls and token counts."""
    thread = {{"configurable": {{"thread_id": str(uuid4())}}}}  # a new one: the messages hold the whole conversation
    state = await graph.ainvoke({{"messages": messages}}, thread)
    new = state["messages"][len(messages) :]
    failed = {{message.tool_call_id for message in new if getattr(message, "status", None) == "error"}}
    steps = convert_to_openai_messages(new)
    for step in steps:
        if step.get("tool_call_id") in failed:
            step["is_error"] = True
    return {{"messages": steps, "usage": usage_of(new)}}


def usage_of(messages: list) -> dict | None:
    counts = [message.usage_metadata for message in messages if getattr(message, "usage_metadata", None)]
    if not counts:
        return None
    return {{name: sum(count[name] for count in counts) for name in ("input_tokens", "output_tokens")}}
'''


def _langgraph_files(choice: AgentChoice) -> dict[str, str]:
    source, _, name = (choice.function or f"{_GRAPH_FILE}:graph").rpartition(":")
    graph = name if name == "graph" else f"{name} as graph"
    helper = _import("langchain_core.messages import convert_to_openai_messages", "LangGraph", "langgraph")
    path = PurePosixPath(source)
    if path.suffix != ".py":
        imports = f"from uuid import uuid4\n\n{helper}\n\nfrom {source} import {graph}\n"
    elif path.parent == PurePosixPath("."):
        imports = f"from uuid import uuid4\n\n{helper}\n\nfrom {path.stem} import {graph}\n"
    else:
        imports = (
            f"import sys\nfrom pathlib import Path\nfrom uuid import uuid4\n\n{helper}\n\n"
            f"sys.path.insert(0, str(Path(__file__).resolve().parent / {_python_string(str(path.parent))}))\n\n"
            f"from {path.stem} import {graph}  # noqa: E402\n"
        )
    example = {} if choice.function else {_GRAPH_FILE: _GRAPH}
    return {"target.py": _CALLS_GRAPH.format(imports=imports), **example}


def _mcp(choice: AgentChoice) -> str:  # noqa: ARG001
    return f"""\
# The agent under test: a tool of an MCP server, called in target.py.
# {_MORE}
target:
  kind: python
  function: target.py:answer
  timeout: 60                 # seconds per call
"""


_SERVER = '''\
"""An example MCP server with one tool; use your own in target.py."""

from mcp.server import MCPServer

ANSWERS = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima", "19 + 23": "42"}
server = MCPServer("example")


@server.tool()
def ask(question: str) -> str:
    """Answers a question."""
    return next((answer for words, answer in ANSWERS.items() if words in question), "I do not know.")


if __name__ == "__main__":
    server.run()
'''

_CALLS_TOOL = '''\
"""Calls a tool of an MCP server: the agent under test in suite.yaml."""

{imports}

SERVER = {server}
TOOL = {tool}


async def answer(text: str) -> dict:
    async with Client(SERVER) as client:
        result = await client.call_tool(TOOL, {{{argument}: text}})
    texts = [part.text for part in result.content if part.type == "text"]
    if result.is_error or not texts:
        return {{"error": "".join(texts) or f"the tool {{TOOL}} returned no text"}}
    return {{"text": "".join(texts)}}
'''


def _mcp_files(choice: AgentChoice) -> dict[str, str]:
    if choice.url:
        imports = _import("mcp import Client", "version 2 of the MCP SDK", "mcp>=2")
        server = _python_string(choice.url)
    else:
        sdk = _import("mcp import Client, StdioServerParameters", "version 2 of the MCP SDK", "mcp>=2")
        imports = f"from pathlib import Path\n\n{sdk}"
        folder = "Path(__file__).resolve().parent"
        if choice.folder != ".":
            folder += f" / {_python_string(choice.folder)}"
        if choice.command:
            program, arguments = _python_string(choice.command[0]), ", ".join(map(_python_string, choice.command[1:]))
        else:
            imports = f"import sys\n{imports}"
            program, arguments = "sys.executable", '"server.py"'
        server = f"StdioServerParameters(command={program}, args=[{arguments}], cwd={folder})"
    texts = {"tool": _python_string(choice.tool or TOOL), "argument": _python_string(choice.argument or ARGUMENT)}
    example = {} if choice.url or choice.command else {"server.py": _SERVER}
    return {"target.py": _CALLS_TOOL.format(imports=imports, server=server, **texts), **example}


def _a2a(choice: AgentChoice) -> str:  # noqa: ARG001
    return f"""\
# The agent under test: an A2A agent, called in target.py.
# {_MORE}
target:
  kind: python
  function: target.py:answer
  timeout: 120                # seconds per turn
"""


_CALLS_A2A = '''\
"""Calls an A2A agent: the agent under test in suite.yaml."""

{imports}

AGENT = {url}  # its card is at /.well-known/agent-card.json below this URL
BINDINGS = ["JSONRPC", "HTTP+JSON"]
RUNNING = (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)


async def answer(text: str, session: dict) -> dict:
    """The answer in one turn; the session connects the turns of a case."""
    message = new_text_message(text, role=Role.ROLE_USER, **session)
    async with AsyncClient(timeout=None) as http:  # the target's timeout ends the call
        config = ClientConfig(streaming=False, httpx_client=http, supported_protocol_bindings=BINDINGS)
        client = await create_client(AGENT, config)
        (reply,) = [reply async for reply in client.send_message(SendMessageRequest(message=message))]
        if reply.HasField("message"):
            session["context_id"] = reply.message.context_id or None
            return result(reply.message.parts)
        task = reply.task
        while task.status.state in RUNNING:
            await asyncio.sleep(0.2)
            task = await client.get_task(GetTaskRequest(id=task.id))
    session.update(context_id=task.context_id, task_id=None)
    parts = [part for artifact in task.artifacts for part in artifact.parts] or task.status.message.parts
    if task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
        session["task_id"] = task.id
        return result(task.status.message.parts)
    if task.status.state != TaskState.TASK_STATE_COMPLETED:
        text = "".join(get_text_parts(task.status.message.parts))
        return {{"error": f"{{TaskState.Name(task.status.state)}}: {{text}}".rstrip(": ")}}
    return result(parts)


def result(parts: Sequence) -> dict:
    texts = get_text_parts(parts)
    return {{"text": "".join(texts)}} if texts else {{"error": "the agent returned no text"}}
'''


def _a2a_files(choice: AgentChoice) -> dict[str, str]:
    imports = f"""\
import asyncio
from collections.abc import Sequence

try:
    from a2a.client import ClientConfig, create_client
    from a2a.helpers.proto_helpers import get_text_parts, new_text_message
    from a2a.types import GetTaskRequest, Role, SendMessageRequest, TaskState
    from httpx import AsyncClient
except ImportError:
    raise ImportError("{_remedy("version 1 of the A2A SDK", _A2A_SDK)}") from None"""
    return {"target.py": _CALLS_A2A.format(imports=imports, url=_python_string(choice.url or A2A_URL))}


def _replay(choice: AgentChoice) -> str:  # noqa: ARG001
    return f"""\
# Stored responses are graded and no agent is called.
# {_MORE}
target:
  kind: replay
  responses: answers.jsonl   # one {{"id": …, "text": …}} per line: the id of a case and the response to it
"""


KINDS: dict[str, AgentKind] = {
    "python": AgentKind(
        "a Python function", ("function",), _python, lambda choice: {} if choice.function else {"agent.py": _AGENT}
    ),
    "http": AgentKind("an HTTP service", ("url", "request", "response"), _http),
    "openai": AgentKind(
        "a model of OpenAI, or of any compatible server", ("model", "url"), _chat, key=_PROVIDERS["openai"].key
    ),
    "anthropic": AgentKind("a model of Anthropic", ("model", "url"), _chat, key=_PROVIDERS["anthropic"].key),
    "command": AgentKind("a program", ("command",), _command),
    "langgraph": AgentKind(
        "a LangGraph graph", ("function",), _langgraph, _langgraph_files, {"langgraph": "langgraph"}
    ),
    "mcp": AgentKind(
        "a tool of an MCP server", ("url", "command", "tool", "argument"), _mcp, _mcp_files, {"mcp": "mcp>=2"}
    ),
    "a2a": AgentKind("an A2A agent", ("url",), _a2a, _a2a_files, {"a2a": _A2A_SDK}),
    "replay": AgentKind("stored responses, no agent", (), _replay, lambda _: {"answers.jsonl": _ANSWERS}),
}
"""The kinds of agents, in the order in which they are listed."""


def example_service(choice: AgentChoice) -> str | None:
    """The command that starts the example agent where it is a service."""
    return DEMO_AGENT if choice.kind == "http" and choice.url is None else None
