"""What the real client of LangSmith records of a real LangGraph agent, received by a server of the test."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from export_project import ExportProject
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_core.tracers.langchain import LangChainTracer
from langgraph.graph import END, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langsmith import Client
from langsmith.schemas import Example, Feedback, FeedbackSourceBase

QUESTION = "What is the capital of France?"


class Recorder:
    """Keeps the runs that a client sends, as LangSmith merges them."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                run = recorder.runs.setdefault(sent.get("id") or self.path.rpartition("/")[2], {})
                run.update({key: value for key, value in sent.items() if value is not None})
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_PATCH = do_POST  # noqa: N815 - a name of the base class

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    found = Recorder()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@tool
def lookup(country: str) -> str:
    """The capital of a country."""
    return {"France": "Paris"}[country]


def ask(url: str, *replies: AIMessage | Exception) -> None:
    """Run an agent with one tool, whose model gives these replies, and trace it."""

    def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    def given() -> Iterator[AIMessage]:
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
            yield reply

    model = GenericFakeChatModel(messages=given())
    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode([lookup]))
    graph.set_entry_point("agent")
    graph.add_conditional_edges("agent", route)
    graph.add_edge("tools", "agent")
    client = Client(api_url=url, api_key="a key of the tests", auto_batch_tracing=False)
    tracer = LangChainTracer(project_name="capitals", client=client)
    try:
        graph.compile().invoke({"messages": [HumanMessage(QUESTION)]}, config={"callbacks": [tracer]})
    finally:
        tracer.wait_for_futures()


def usage(read: int, written: int) -> Any:
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}


def call(country: str) -> AIMessage:
    calls = [{"name": "lookup", "args": {"country": country}, "id": "call_1"}]
    return AIMessage("", tool_calls=calls, usage_metadata=usage(10, 4))


def test_a_langgraph_agent(exports: ExportProject, recorder: Recorder) -> None:
    ask(recorder.url, call("France"), AIMessage("It is Paris.", usage_metadata=usage(20, 5)))
    exports.write("runs.jsonl", list(recorder.runs.values()))
    imported = exports.imports("runs.jsonl")
    assert (imported.report["kind"], imported.report["counts"]["not_mapped"]) == ("langsmith", 0)
    (record,) = exports.records(imported.report["runs"][0]).values()
    response = record["response"]
    assert (record["sample"]["input"], response["text"], response["status"]) == (QUESTION, "It is Paris.", "success")
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (30, 9)
    assert response["latency_ms"] > 0
    (turn,) = response["trajectory"]["turns"]
    assert [(message["role"], message.get("content", "")) for message in turn] == [
        ("assistant", ""),
        ("tool", "Paris"),
        ("assistant", "It is Paris."),
    ]
    (made,) = turn[0]["tool_calls"]
    assert (made["name"], json.loads(made["arguments"]), made["id"]) == ("lookup", {"country": "France"}, "call_1")


def test_a_tool_that_fails(exports: ExportProject, recorder: Recorder) -> None:
    with pytest.raises(KeyError):
        ask(recorder.url, call("Peru"))
    exports.write("runs.jsonl", list(recorder.runs.values()))
    imported = exports.imports("runs.jsonl")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert (record["response"]["status"], record["response"]["error"]["type"]) == ("error", "agent_error")
    assert "KeyError" in record["response"]["error"]["message"]
    (turn,) = record["response"]["trajectory"]["turns"]
    assert [(message["role"], message.get("is_error", False)) for message in turn] == [
        ("assistant", False),
        ("tool", True),
    ]


def test_objects_of_the_client(exports: ExportProject, recorder: Recorder) -> None:
    ask(recorder.url, AIMessage("It is Paris."))
    (root,) = [run for run in recorder.runs.values() if not run.get("parent_run_id")]
    now = datetime(2026, 11, 16, 10, tzinfo=UTC)
    example = Example(
        id=uuid.uuid4(), dataset_id=uuid.uuid4(), inputs={"question": QUESTION}, outputs={"answer": "Paris"}
    )
    feedback = Feedback(
        id=uuid.uuid4(),
        created_at=now,
        modified_at=now,
        run_id=uuid.UUID(root["id"]),
        key="correct",
        score=1,
        feedback_source=FeedbackSourceBase(type="app", user_name="ada"),
        trace_id=uuid.UUID(root["id"]),
        start_time=now,
    )
    root["reference_example_id"] = str(example.id)
    objects = [json.dumps(found.model_dump(), default=str) for found in (example, feedback)]
    exports.write("export.jsonl", [*objects, *recorder.runs.values()])
    imported = exports.imports("export.jsonl")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert (record["case"], record["sample"]["ground_truth"]) == (str(example.id), "Paris")
    assert [(label["verdict"], label["author"], label["at"]) for label in record["labels"]] == [
        ("pass", "ada", "2026-11-16T10:00:00.000Z")
    ]
