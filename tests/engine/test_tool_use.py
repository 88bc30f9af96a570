"""Checks on tool use, from the target to the record: what an agent does not report is never taken for nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gradeline import run_suite
from gradeline.model import Grade

CHECK = {
    "kind": "trajectory",
    "config": {"forbidden_tools": ["delete"], "max_tool_calls": 0},
}
EXPECTED = {"kind": "tool_calls"}
AGENT = """
from gradeline.model import Message, Response, ToolCall, Trajectory

def only_text(text):
    return "done"

def reports_none(text):
    return Response(text="done", trajectory=Trajectory())

def deletes(text):
    calls = (ToolCall("delete"),)
    return Response(text="done", trajectory=Trajectory(((Message("assistant", "done", calls),),)))

def reports_now_and_then(text):
    return reports_none(text) if text == "first" else "done"
"""


class _Agent(BaseHTTPRequestHandler):
    answer: dict[str, Any]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(type(self).answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Agent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def grades(folder: Path, target: dict[str, Any], question: str | list[str] = "Clean up.") -> dict[str, Grade]:
    suite = {
        "name": "tools",
        "dataset": [{"id": "a", "input": question, "ground_truth": "[]"}],
        "target": target,
        "graders": {"check": CHECK, "calls": EXPECTED},
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))
    (folder / "agent.py").write_text(AGENT)
    (record,) = run_suite(folder / "suite.yaml", store="memory://").records()
    return dict(record.grades)


STEPS = [
    {"role": "assistant", "content": "I look it up.", "tool_calls": [{"name": "look"}]},
    {"role": "tool", "content": "3"},
]


@pytest.mark.parametrize("question", ["How many?", ["How many?"], ["How many?", "And now?"]])
@pytest.mark.parametrize(
    "target",
    [
        {"kind": "python", "function": "agent.py:reports_none"},
        {"kind": "http", "response": {"trajectory": "steps"}},
        {"kind": "http", "response": {"trajectory": "steps", "tool_calls": "calls"}},
    ],
)
def test_the_answer_is_graded_if_the_messages_lack_it(
    tmp_path: Path, url: str, target: dict[str, Any], question: str | list[str]
) -> None:
    _Agent.answer = {"output": "done", "steps": STEPS, "calls": [{"name": "look"}]}
    (tmp_path / "agent.py").write_text(AGENT)
    suite = {
        "name": "tools",
        "dataset": [{"id": "a", "input": question, "ground_truth": "done" if isinstance(question, str) else ["done"] * len(question)}],
        "target": {**target, "url": url} if target["kind"] == "http" else target,
        "graders": {"exact": {"kind": "exact_match"}},
    }  # fmt: skip
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    (record,) = run_suite(tmp_path / "suite.yaml", store="memory://").records()
    assert (record.grades["exact"].outcome.value, record.grades["exact"].error) == ("pass", None)


def outcomes(found: dict[str, Grade]) -> dict[str, str]:
    return {key: grade.outcome.value if grade.error is None else grade.error.type for key, grade in found.items()}


UNKNOWN = {"check": "missing", "calls": "missing"}
PASSED = {"check": "pass", "calls": "pass"}
FAILED = {"check": "fail", "calls": "fail"}


@pytest.mark.parametrize(
    ("function", "question", "expected"),
    [
        ("only_text", "Clean up.", UNKNOWN),
        ("only_text", ["first", "second"], UNKNOWN),
        ("reports_none", "Clean up.", PASSED),
        ("reports_none", ["first", "second"], PASSED),
        ("deletes", "Clean up.", FAILED),
        ("reports_now_and_then", ["first", "second"], UNKNOWN),
    ],
)
def test_a_python_agent(tmp_path: Path, function: str, question: str | list[str], expected: dict[str, str]) -> None:
    target = {"kind": "python", "function": f"agent.py:{function}"}
    assert outcomes(grades(tmp_path, target, question)) == expected


@pytest.mark.parametrize(
    ("answer", "mapping", "expected"),
    [
        ({"output": "done"}, {}, UNKNOWN),
        ({"output": "done", "tool_calls": []}, {}, UNKNOWN),
        ({"output": "done"}, {"tool_calls": "tool_calls"}, UNKNOWN),
        ({"output": "done", "tool_calls": None}, {"tool_calls": "tool_calls"}, UNKNOWN),
        ({"output": "done"}, {"tool_calls": "tool_calls || `[]`"}, PASSED),
        ({"output": "done", "tool_calls": []}, {"tool_calls": "tool_calls"}, PASSED),
        ({"output": "done", "tool_calls": [{"name": "delete"}]}, {"tool_calls": "tool_calls"}, FAILED),
        ({"output": "done"}, {"trajectory": "messages"}, UNKNOWN),
        (
            {"output": "done", "messages": [{"role": "assistant", "content": "done"}]},
            {"trajectory": "messages"},
            PASSED,
        ),
    ],
)
def test_an_http_agent(
    tmp_path: Path, url: str, answer: dict[str, Any], mapping: dict[str, str], expected: dict[str, str]
) -> None:
    _Agent.answer = answer
    assert outcomes(grades(tmp_path, {"kind": "http", "url": url, "response": mapping})) == expected


@pytest.mark.parametrize(
    ("printed", "options", "expected"),
    [
        ("done", {}, UNKNOWN),
        ('{"output": "done"}', {"output": "json"}, UNKNOWN),
        ('{"output": "done", "t": []}', {"output": "json", "response": {"tool_calls": "t"}}, PASSED),
    ],
)
def test_a_program(tmp_path: Path, printed: str, options: dict[str, Any], expected: dict[str, str]) -> None:
    target = {"kind": "command", "command": ["printf", "%s", printed], **options}
    assert outcomes(grades(tmp_path, target)) == expected


@pytest.mark.parametrize("expected", [["[]", "[]"], "[]"])
def test_a_program_that_answers_two_turns_at_once(tmp_path: Path, expected: str | list[str]) -> None:
    """Its tool calls are known, but not to which turn the answer and the calls belong."""
    suite = {
        "name": "tools",
        "dataset": [{"id": "a", "input": ["first", "second"], "ground_truth": expected}],
        "target": {
            "kind": "command",
            "command": ["printf", "%s", '{"output": "[]", "t": []}'],
            "output": "json",
            "response": {"tool_calls": "t"},
        },
        "graders": {"check": CHECK, "calls": EXPECTED, "text": {"kind": "exact_match"}},
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    (record,) = run_suite(tmp_path / "suite.yaml", store="memory://").records()
    by_turn = "missing" if isinstance(expected, list) else "pass"
    assert outcomes(dict(record.grades)) == {"check": "pass", "calls": by_turn, "text": by_turn}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("done", UNKNOWN),
        ({"text": "done"}, UNKNOWN),
        ({"text": "done", "trajectory": {"turns": []}}, PASSED),
        ({"text": "done", "trajectory": {"turns": [[{"role": "assistant", "content": "done"}]], "tools_known": False}}, UNKNOWN),
    ],
)  # fmt: skip
def test_a_replay_file(tmp_path: Path, response: object, expected: dict[str, str]) -> None:
    (tmp_path / "said.jsonl").write_text(json.dumps({"case": "a", "response": response}))
    target = {"kind": "replay", "responses": str(tmp_path / "said.jsonl")}
    assert outcomes(grades(tmp_path, target)) == expected


def test_the_message_gives_the_remedy_for_each_target(tmp_path: Path) -> None:
    error = grades(tmp_path, {"kind": "python", "function": "agent.py:only_text"})["check"].error
    assert error is not None
    assert error.message.startswith("tool calls are unknown")
    for remedy in ("http: map tool_calls", "tool_calls || `[]`", "python: return a Response", "command: output: json"):
        assert remedy in error.message
