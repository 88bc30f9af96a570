"""promptfoo's assertions that a model decides, run with a stand-in for the model's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gradeline.importers.report import State
from gradeline.model import Response, Trajectory
from promptfoo_tests import PromptfooTests

ANSWER = "The cat sat on the mat."
VECTORS = {"near": [1.0, 0.1], "far": [0.0, 1.0]}


class Models(ThreadingHTTPServer):
    """A judge that gives what ``verdict`` says, and vectors in which texts are near to the answer or far from it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.verdict: dict[str, Any] = {"score": 0.8, "label": "A", "rationale": "because"}
        self.scores: dict[str, float] = {}
        """Scores by a text of the prompt, instead of that of the verdict."""
        self.prompts: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Models

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/embeddings"):
            vectors = [VECTORS.get(text.split()[0], [1.0, 0.0]) for text in asked["input"]]
            data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
            answer: dict[str, Any] = {"data": data, "model": "e", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        else:
            prompt = "\n".join(str(message["content"]) for message in asked["messages"])
            self.server.prompts.append(prompt)
            scores = [score for text, score in self.server.scores.items() if text in prompt]
            verdict = {**self.server.verdict, "score": scores[0]} if scores else self.server.verdict
            message = {"role": "assistant", "content": json.dumps(verdict)}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[Models]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    with Models() as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def tests(tmp_path: Path) -> PromptfooTests:
    return PromptfooTests(tmp_path)


def options(models: Models) -> dict[str, object]:
    """The options of tests with this judge."""
    config = {"apiBaseUrl": models.url}
    judge = {"id": "openai:chat:gpt-4.1", "config": config}
    return {
        "provider": {"text": judge, "embedding": {"id": "openai:embedding:text-embedding-3-small", "config": config}}
    }


VARIABLES = {"query": "Who sat?", "context": ["A cat sat.", "On a mat."]}
JUDGED: list[tuple[dict[str, Any], bool, list[str]]] = [
    ({"type": "llm-rubric", "value": "Is about a {{animal}}"}, True, ["Is about a cat"]),
    ({"type": "llm-rubric", "value": "Is short", "threshold": 0.9}, False, ["Is short"]),
    ({"type": "llm-rubric", "value": "x", "rubricPrompt": "Rate {{output}} by {{rubric}} {1}"}, True, ["by x {1}"]),
    ({"type": "model-graded-closedqa", "value": "Names an animal"}, True, ["Names an animal"]),
    ({"type": "g-eval", "value": "is short"}, True, ["meet this criterion", "is short"]),
    ({"type": "moderation", "value": ["hate"]}, True, ["of the categories hate"]),
    ({"type": "pi", "value": "Is short"}, True, ["Is short"]),
    ({"type": "search-rubric", "value": "Is right"}, True, ["Is right"]),
    ({"type": "context-faithfulness", "threshold": 0.9}, False, ["Who sat?", "A cat sat.\n\nOn a mat."]),
    (
        {"type": "context-recall", "value": "A cat", "threshold": 0.7},
        True,
        ["A cat sat.", "# Expected answer\n\nA cat"],
    ),
    ({"type": "context-relevance"}, True, ["# Question\n\nWho sat?", "A cat sat."]),
    ({"type": "trajectory:goal-success", "value": "find the cat"}, True, ["find the cat"]),
    ({"type": "conversation-relevance", "threshold": 0.81}, False, [ANSWER]),
]


@pytest.mark.parametrize(("assertion", "passed", "seen"), JUDGED, ids=lambda value: str(value)[:60])
def test_the_judge_sees_the_criterion_and_its_score_decides(
    tests: PromptfooTests, models: Models, assertion: dict[str, Any], passed: bool, seen: list[str]
) -> None:
    response = Response(text=ANSWER, trajectory=Trajectory.of_text(ANSWER))
    tests.add("test", response, assertion, variables={**VARIABLES, "animal": "cat"}, options=options(models))
    assert tests.verdicts()["test"][:2] == (passed, pytest.approx(0.8))
    assert len(models.prompts) == 1
    assert [text for text in [ANSWER, *seen] if text not in models.prompts[0]] == []
    assert not tests.notes(State.NOT_MAPPED)


@pytest.mark.parametrize(("label", "passed", "score"), [("A", True, 1.0), ("D", False, 0.0), ("E", True, 0.5)])
def test_the_label_of_factuality_has_the_score_of_the_test(
    tests: PromptfooTests, models: Models, label: str, passed: bool, score: float
) -> None:
    models.verdict = {"label": label, "rationale": "because"}
    own = {**options(models), "factuality": {"differButFactual": 0.5}}
    tests.add("test", ANSWER, {"type": "factuality", "value": "A cat sat there."}, options=own)
    assert tests.verdicts()["test"][:2] == (passed, score)
    assert "A cat sat there." in models.prompts[0]


def test_a_reply_without_a_score_is_an_error(tests: PromptfooTests, models: Models) -> None:
    models.verdict = {"reason": "no pass, no score"}
    tests.add("test", ANSWER, {"type": "llm-rubric", "value": "Is short"}, options=options(models))
    assert tests.verdicts()["test"].score is None
    assert tests.gate == "undecided"


def test_not_inverts_a_judges_score(tests: PromptfooTests, models: Models) -> None:
    own = options(models)
    tests.add("check", ANSWER, {"type": "not-llm-rubric", "value": "Is rude"}, options=own)
    tests.add("grader", ANSWER, {"type": "not-llm-rubric", "value": "Is rude", "threshold": 0.9}, options=own)
    assert {name: verdict[:2] for name, verdict in tests.verdicts().items()} == {
        "check": (False, pytest.approx(0.2)),
        "grader": (True, pytest.approx(0.2)),
    }


def test_the_mean_of_several_criteria_counts(tests: PromptfooTests, models: Models) -> None:
    models.scores = {"is short": 0.9, "is clear": 0.3}
    criteria = {"type": "g-eval", "value": ["is short", "is clear"]}
    tests.add("default", ANSWER, criteria, options=options(models))
    tests.add("lower", ANSWER, {**criteria, "threshold": 0.6}, options=options(models))
    tests.add("not", ANSWER, {**criteria, "type": "not-g-eval"}, options=options(models))
    assert {name: verdict[:2] for name, verdict in tests.verdicts().items()} == {
        "default": (False, pytest.approx(0.6)),
        "lower": (True, pytest.approx(0.6)),
        "not": (True, pytest.approx(0.4)),
    }


def test_the_nearest_of_several_texts_counts(tests: PromptfooTests, models: Models) -> None:
    own = options(models)
    tests.add("one", ANSWER, {"type": "similar", "value": "near text"}, options=own)
    tests.add("several", ANSWER, {"type": "similar", "value": ["far text", "near text"]}, options=own)
    tests.add("far", ANSWER, {"type": "similar:dot", "value": ["far text", "far too"], "threshold": 0.9}, options=own)
    tests.add("not", ANSWER, {"type": "not-similar", "value": ["far text", "near text"]}, options=own)
    tests.add("not far", ANSWER, {"type": "not-similar:euclidean", "value": "far text", "threshold": 0.5}, options=own)
    assert {name: verdict.passed for name, verdict in tests.verdicts().items()} == {
        "one": True, "several": True, "far": False, "not": False, "not far": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "judge"),
    [
        (None, {"provider": "openai", "model": "gpt-4.1"}),
        ("openai:gpt-4o", {"provider": "openai", "model": "gpt-4o"}),
        ("anthropic:messages:claude-sonnet-4-5", {"provider": "anthropic", "model": "claude-sonnet-4-5"}),
        ("vertex:gemini-2.5-pro", {"provider": "gemini", "model": "gemini-2.5-pro"}),
        ("openai:responses:gpt-5", {"provider": "openai_responses", "model": "gpt-5"}),
        (
            "groq:llama-3.3-70b",
            {
                "provider": "openai",
                "model": "llama-3.3-70b",
                "base_url": "https://api.groq.com/openai/v1",
                "api_key_env": "GROQ_API_KEY",
            },
        ),
        (
            {"id": "openai:gpt-4o", "config": {"temperature": 0, "apiKey": "sk-secret", "apiKeyEnvar": "TEAM_KEY"}},
            {"provider": "openai", "model": "gpt-4o", "temperature": 0, "api_key_env": "TEAM_KEY"},
        ),
    ],
)
def test_the_provider_of_a_test_is_its_judge(tests: PromptfooTests, provider: object, judge: dict[str, object]) -> None:
    tests.map({"type": "llm-rubric", "value": "Is short"}, options={"provider": provider})
    assert tests.mapper.graders == {"checks": {"kind": "checks", **judge}}


def test_a_prompt_with_variables_of_tests_is_one_grader(tests: PromptfooTests, models: Models) -> None:
    prompt = [
        {"role": "system", "content": "Names a {{animal}}? {score: 1}"},
        {"role": "user", "content": "{{output}}"},
    ]
    for animal in ("cat", "dog"):
        own = {**options(models), "rubricPrompt": prompt}
        tests.add(animal, ANSWER, {"type": "llm-rubric"}, variables={"animal": animal}, options=own)
    assert list(tests.mapper.graders) == ["llm_rubric"]
    assert {name: verdict.passed for name, verdict in tests.verdicts().items()} == {"cat": True, "dog": True}
    assert [
        name for name in ("cat", "dog") if not any(f"Names a {name}? {{score: 1}}" in seen for seen in models.prompts)
    ] == []
    assert all(ANSWER in seen for seen in models.prompts)


@pytest.mark.parametrize("provider", ["azure:gpt-4o", "openai:codex-sdk", "openai:", {"id": "file://judge.js"}, 5])
def test_a_judge_that_gradeline_does_not_have_is_reported(tests: PromptfooTests, provider: object) -> None:
    tests.map({"type": "llm-rubric", "value": "Is short"}, options={"provider": provider})
    (note,) = tests.notes(State.NOT_MAPPED)
    assert note.endswith("; write provider, model and base_url of a judge")


def test_two_judges_are_two_graders_of_checks(tests: PromptfooTests) -> None:
    rubric, text = {"type": "llm-rubric", "value": "Is short"}, {"type": "contains", "value": "cat"}
    tests.map(text)
    tests.map(rubric, options={"provider": "openai:gpt-4o"})
    tests.map(rubric, options={"provider": "openai:gpt-5"})
    assert {name: grader.get("model") for name, grader in tests.mapper.graders.items()} == {
        "checks": "gpt-4o", "checks_2": "gpt-5"
    }  # fmt: skip
