"""The suite that ``gradeline init`` writes calls an agent of each kind, as it is used in the field."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution.agent_executor import AgentExecutor
from a2a.server.agent_execution.context import RequestContext
from a2a.server.events.event_queue_v2 import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks.inmemory_task_store import InMemoryTaskStore
from a2a.server.tasks.task_updater import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Message
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.applications import Starlette
from starlette.types import ASGIApp

from gradeline.model import Record
from gradeline.store import SqliteStorage
from gradeline_command import COMMAND, run_command

KNOWN = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima", "Kenya": "Nairobi", "19 + 23": "42"}


def known(question: str) -> str:
    return next(answer for words, answer in KNOWN.items() if words in question)


def run_in(folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    hidden = ("GRADELINE_STORE", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = run_command([COMMAND, *arguments, "--json"], cwd=folder, env={**environment, **variables})
    assert done.stdout, done.stderr.decode()
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def run_new_suite(folder: Path, *options: str, **variables: str) -> dict[str, Any]:
    """Create a suite in the folder ``evals`` with these options, validate it and run it."""
    run_in(folder, "init", "evals", *options)
    validated = run_in(folder, "validate", "evals/suite.yaml", **variables)
    assert (validated["errors"], validated["warnings"]) == ([], [])
    return run_in(folder, "run", "evals/suite.yaml", **variables)


def accuracy(run: dict[str, Any]) -> float:
    assert run["summary"]["responses"]["error"] == 0, run
    rate: float = run["summary"]["graders"]["right"]["pass_rate"]
    return rate


def records(folder: Path) -> list[Record]:
    with SqliteStorage(folder / ".gradeline" / "store.db") as storage:
        return list(storage.records(storage.find_run("latest").id))


@contextmanager
def json_server(answer: Any) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A server that answers each request with ``answer(path, body)``; its URL, and the requests it got."""
    requests: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, asked))
            body = json.dumps(answer(self.path, asked)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join()


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """The URL of this application while it is served."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


class TestPython:
    def test_a_function_in_a_file_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "bot.py").write_text(
            f"KNOWN = {KNOWN}\n\ndef reply(text):\n    return KNOWN[text.split()[-1][:-1]]\n"
        )
        run = run_new_suite(tmp_path, "--function", "bot.py:reply")
        assert run["summary"]["responses"] == {"success": 4, "error": 1, "timeout": 0}
        assert run["summary"]["graders"]["right"]["pass_rate"] == 1.0
        assert "function: ../bot.py:reply " in (tmp_path / "evals" / "suite.yaml").read_text()

    def test_a_function_of_a_module(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").touch()
        (tmp_path / "bot.py").write_text("def reply(text):\n    return 'Paris'\n")
        assert accuracy(run_new_suite(tmp_path, "--function", "bot:reply")) == pytest.approx(0.2)


class TestHttp:
    def test_a_url_is_enough_for_a_usual_agent(self, tmp_path: Path) -> None:
        with json_server(lambda _, body: {"answer": known(body["input"])}) as (url, _):
            assert accuracy(run_new_suite(tmp_path, "--url", f"{url}/chat")) == 1.0

    def test_the_request_and_the_place_of_the_text_are_options(self, tmp_path: Path) -> None:
        options = ("--request", '{"q": "{{input}}", "n": [1, true, "yes"]}', "--response", "data[0].said")
        with json_server(lambda _, body: {"data": [{"said": known(body["q"])}]}) as (url, requests):
            assert accuracy(run_new_suite(tmp_path, "--url", url, *options)) == 1.0
        assert {"q": "What is 19 + 23?", "n": [1, True, "yes"]} in [body for _, body in requests]


class TestModels:
    def test_openai_and_a_model_of_choice(self, tmp_path: Path) -> None:
        def answer(_: str, body: Any) -> Any:
            message = {"role": "assistant", "content": known(body["messages"][-1]["content"])}
            return {"model": body["model"], "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

        with json_server(answer) as (url, requests):
            variables = {"OPENAI_API_KEY": "sk-not-a-real-key", "OPENAI_BASE_URL": f"{url}/v1"}
            run = run_new_suite(tmp_path, "--target", "openai", "--model", "gpt-6-sol", **variables)
            assert accuracy(run) == 1.0
        assert {(path, body["model"]) for path, body in requests} == {("/v1/chat/completions", "gpt-6-sol")}

    def test_a_compatible_server_needs_no_key(self, tmp_path: Path) -> None:
        def answer(_: str, body: Any) -> Any:
            return {"choices": [{"message": {"content": known(body["messages"][-1]["content"])}}]}

        with json_server(answer) as (url, requests):
            run = run_new_suite(tmp_path, "--model", "local:7b", "--url", f"{url}/v1")
            assert accuracy(run) == 1.0
        assert {body["model"] for _, body in requests} == {"local:7b"}

    def test_anthropic(self, tmp_path: Path) -> None:
        def answer(_: str, body: Any) -> Any:
            content = body["messages"][-1]["content"]
            text = content if isinstance(content, str) else content[0]["text"]
            usage = {"input_tokens": 3, "output_tokens": 1}
            block = {"type": "text", "text": known(text)}
            return {"model": body["model"], "content": [block], "stop_reason": "end_turn", "usage": usage}

        with json_server(answer) as (url, requests):
            variables = {"ANTHROPIC_API_KEY": "sk-not-a-real-key", "ANTHROPIC_BASE_URL": url}
            assert accuracy(run_new_suite(tmp_path, "--target", "anthropic", **variables)) == 1.0
        assert {(path, body["model"]) for path, body in requests} == {("/v1/messages", "claude-haiku-5-5")}


def test_a_command_runs_where_init_was_called(tmp_path: Path) -> None:
    (tmp_path / "my agent.py").write_text(
        f"KNOWN = {KNOWN}\nq = input()\nprint(*(v for k, v in KNOWN.items() if k in q))\n"
    )
    run = run_new_suite(tmp_path, "--command", f"{sys.executable} 'my agent.py'")
    assert accuracy(run) == 1.0


class TestLangGraph:
    def test_the_example_graph(self, tmp_path: Path) -> None:
        assert accuracy(run_new_suite(tmp_path, "--target", "langgraph")) == 0.8

    @pytest.mark.parametrize("kind", ["langgraph", "mcp"])
    def test_the_folder_may_have_the_name_of_the_library(self, tmp_path: Path, kind: str) -> None:
        (tmp_path / ".git").mkdir()
        run_in(tmp_path, "init", kind, "--target", kind)
        assert accuracy(run_in(tmp_path, "run", f"{kind}/suite.yaml")) == 0.8

    @pytest.fixture
    def with_tool(self, tmp_path: Path) -> Path:
        """A graph with a model that calls a tool, which fails for one country."""
        (tmp_path / "app").mkdir()
        (tmp_path / "app" / "flow.py").write_text(
            f"""
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

KNOWN = {KNOWN}

def model(state):
    call = {{"name": "look_up", "args": {{"words": state["messages"][-1].content}}, "id": "1"}}
    usage = {{"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}}
    return {{"messages": [AIMessage("", tool_calls=[call], usage_metadata=usage)]}}

def tool(state):
    words = state["messages"][-1].tool_calls[0]["args"]["words"]
    found = [answer for known, answer in KNOWN.items() if known in words and known != "Peru"]
    return {{"messages": [ToolMessage(*found or ["no such country"], tool_call_id="1", status="success" if found else "error")]}}

def last(state):
    turn = sum(message.type == "human" for message in state["messages"])
    answer = AIMessage(f"{{turn}}: {{state['messages'][-1].content}}", usage_metadata={{"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}})
    return {{"messages": [answer]}}

builder = StateGraph(MessagesState).add_sequence([model, tool, last]).add_edge(START, "model")
agent = builder.compile()
"""
        )
        return tmp_path

    def test_tool_calls_and_tokens_of_a_graph_are_recorded(self, with_tool: Path) -> None:
        run = run_new_suite(with_tool, "--target", "langgraph", "--function", "app/flow.py:agent")
        assert accuracy(run) == 0.8
        found = {record.case: record.response for record in records(with_tool)}
        usage = found["france"].usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (12, 3)
        ((call, result, answer),) = found["peru"].steps.turns
        assert [(one.name, json.loads(one.arguments)) for one in call.tool_calls] == [
            ("look_up", {"words": "What is the capital of Peru?"})
        ]
        assert (result.role, result.content, result.is_error) == ("tool", "no such country", True)
        assert (answer.content, found["peru"].text) == ("1: no such country", "1: no such country")

    def test_a_conversation_is_passed_on(self, with_tool: Path) -> None:
        run_in(with_tool, "init", "evals", "--target", "langgraph", "--function", "app/flow.py:agent")
        case = {"id": "talk", "input": ["And Spain?", "And Kenya?"], "ground_truth": ["1: Madrid", "2: Nairobi"]}
        (with_tool / "evals" / "cases.jsonl").write_text(json.dumps(case))
        assert accuracy(run_in(with_tool, "run", "evals/suite.yaml")) == 1.0

    def test_an_asynchronous_graph_with_a_checkpointer(self, tmp_path: Path) -> None:
        (tmp_path / "flow.py").write_text(
            f"""
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

KNOWN = {KNOWN}

async def respond(state):
    text = state["messages"][-1].content
    return {{"messages": [("ai", answer) for words, answer in KNOWN.items() if words in text]}}

app = StateGraph(MessagesState).add_node(respond).add_edge(START, "respond").compile(InMemorySaver())
"""
        )
        assert accuracy(run_new_suite(tmp_path, "--target", "langgraph", "--function", "flow.py:app")) == 1.0

    def test_a_missing_package_is_named_with_its_remedy(self, tmp_path: Path) -> None:
        run_in(tmp_path, "init", "evals", "--target", "langgraph")
        (tmp_path / "evals" / "langchain_core.py").write_text("raise ImportError('as if not installed')\n")
        refused = run_in(tmp_path, "validate", "evals/suite.yaml")
        assert "LangGraph is not installed; run: pip install langgraph" in json.dumps(refused["errors"])


class TestMcp:
    def test_the_example_server(self, tmp_path: Path) -> None:
        assert accuracy(run_new_suite(tmp_path, "--target", "mcp")) == 0.8

    @staticmethod
    def server() -> MCPServer:
        server = MCPServer("countries")

        @server.tool()
        def look_up(words: str) -> str:
            if "Peru" in words:
                raise ToolError("no such country")
            return known(words)

        return server

    def test_a_server_behind_a_url(self, tmp_path: Path) -> None:
        with served(self.server().streamable_http_app()) as url:
            options = ("--target", "mcp", "--url", f"{url}/mcp", "--tool", "look_up", "--argument", "words")
            run = run_new_suite(tmp_path, *options)
        assert run["summary"]["responses"] == {"success": 4, "error": 1, "timeout": 0}
        (failed,) = (record for record in records(tmp_path) if record.response.error)
        assert failed.case == "peru"
        assert failed.response.error is not None
        assert "no such country" in failed.response.error.message

    def test_a_server_that_a_command_starts(self, tmp_path: Path) -> None:
        (tmp_path / "countries.py").write_text(
            "from mcp.server import MCPServer\nserver = MCPServer('countries')\n"
            f"@server.tool()\ndef look_up(words: str) -> str:\n    return str({KNOWN})\nserver.run()\n"
        )
        options = ("--command", f"{sys.executable} countries.py", "--tool", "look_up", "--argument", "words")
        assert accuracy(run_new_suite(tmp_path, *options)) == 1.0


class _CountriesAgent(AgentExecutor):
    """Answers with an artifact, asks back about Spain, fails for Peru, has no text for Kenya."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        self.messages.append(context.message)
        question = context.get_user_input()
        if "19 + 23" in question:
            await event_queue.enqueue_event(new_text_message("It is 42.", context_id=context.context_id))
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if "Spain" in question:
            await updater.requires_input(new_text_message("Which one? Madrid?"))
        elif "Peru" in question:
            await updater.failed(new_text_message("no such country"))
        else:
            if "Kenya" not in question:
                await updater.add_artifact([new_text_part(f"It is {known(question)}"), new_text_part(".")])
            await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def a_card() -> AgentCard:
    return AgentCard(
        name="countries",
        description="Answers questions about countries.",
        version="1",
        capabilities=AgentCapabilities(),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="capitals", name="capitals", description="Capitals.", tags=["countries"])],
    )


class TestA2a:
    @pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
    def agent(self, request: pytest.FixtureRequest) -> Iterator[tuple[_CountriesAgent, str]]:
        """An agent of the SDK behind each binding, and its URL."""
        executor = _CountriesAgent()
        card = a_card()
        handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
        if request.param == "JSONRPC":
            routes = create_jsonrpc_routes(handler, "/rpc")
        else:
            routes = create_rest_routes(handler, path_prefix="/rpc")
        with served(Starlette(routes=[*create_agent_card_routes(card), *routes])) as url:
            card.supported_interfaces.add(url=f"{url}/rpc", protocol_binding=request.param, protocol_version="1.0")
            yield executor, url

    def test_an_agent_of_the_sdk(self, tmp_path: Path, agent: tuple[_CountriesAgent, str]) -> None:
        executor, url = agent
        run = run_new_suite(tmp_path, "--target", "a2a", "--url", f"{url}/.well-known/agent-card.json")
        assert run["summary"]["responses"] == {"success": 3, "error": 2, "timeout": 0}
        found = {record.case: record.response for record in records(tmp_path)}
        assert {case: response.text for case, response in found.items() if response.text} == {
            "france": "It is Paris.",
            "spain": "Which one? Madrid?",
            "sum": "It is 42.",
        }
        errors = {case: response.error.message for case, response in found.items() if response.error}
        assert "TASK_STATE_FAILED: no such country" in errors["peru"]
        assert "the agent returned no text" in errors["kenya"]
        assert len({message.message_id for message in executor.messages}) == 5

    def test_a_conversation_keeps_its_context_and_an_open_task(
        self, tmp_path: Path, agent: tuple[_CountriesAgent, str]
    ) -> None:
        executor, url = agent
        run_in(tmp_path, "init", "evals", "--target", "a2a", "--url", url)
        turns = ["And Spain?", "And Spain, then?", "And France?"]
        case = {"id": "talk", "input": turns, "ground_truth": ["Madrid", "Madrid", "Paris"]}
        (tmp_path / "evals" / "cases.jsonl").write_text(json.dumps(case))
        assert accuracy(run_in(tmp_path, "run", "evals/suite.yaml")) == 1.0
        first, second, third = executor.messages
        assert (first.task_id, bool(second.task_id), third.task_id) == (second.task_id, True, second.task_id)
        assert first.context_id == second.context_id == third.context_id

    def test_a_task_that_is_not_finished_is_polled(self, tmp_path: Path) -> None:
        states = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]

        def answer(_: str, body: Any) -> Any:
            task: dict[str, Any] = {"id": "t1", "contextId": "c1", "status": {"state": states.pop(0)}}
            if not states:
                task["artifacts"] = [{"artifactId": "a", "parts": [{"text": "Paris"}]}]
            result = {"task": task} if body["method"] == "SendMessage" else task
            return {"jsonrpc": "2.0", "id": body["id"], "result": result}

        with json_server(answer) as (url, requests):
            card = a_card()
            card.supported_interfaces.add(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
            with served(Starlette(routes=create_agent_card_routes(card))) as card_url:
                run_in(tmp_path, "init", "evals", "--target", "a2a", "--url", card_url)
                run_in(tmp_path, "run", "evals/suite.yaml", "--sample", "france")
        assert [body["method"] for _, body in requests] == ["SendMessage", "GetTask", "GetTask"]
        (record,) = records(tmp_path)
        assert record.response.text == "Paris"
