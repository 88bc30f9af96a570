"""``not-`` before every type of promptfoo's assertions inverts the verdict, once and for all types."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gradeline.importers.promptfoo_assertions import CLAIMED_TYPES
from gradeline.importers.report import State
from gradeline.model import Message, Response, ToolCall, Trajectory, Usage
from promptfoo_tests import PromptfooTests

TEXT = "The cat sat on the mat."
CALLS = (ToolCall("search", '{"query": "x"}'), ToolCall("Skill", '{"skill": "pdf"}'))
RESPONSE = Response(
    text=TEXT,
    latency_ms=100,
    usage=Usage(cost=0.5),
    stop_reason="stop",
    trajectory=Trajectory(((Message("assistant", "", CALLS), Message("assistant", TEXT)),)),
)
XML, HTML, JSON = (Response(text=text) for text in ("<a><b/></a>", "<p>Hi</p>", '{"a": 1}'))
TOOLS = [
    {"name": "search", "parameters": {"type": "object", "required": ["query"]}},
    {"name": "Skill", "parameters": {"type": "object"}},
]
SEARCH = {"name": "search", "args": {"query": "x"}}

HOLDS: dict[str, tuple[dict[str, Any], Response]] = {
    "bleu": ({"value": TEXT}, RESPONSE),
    "contains": ({"value": "cat"}, RESPONSE),
    "contains-all": ({"value": ["cat", "mat"]}, RESPONSE),
    "contains-any": ({"value": "dog,cat"}, RESPONSE),
    "contains-html": ({}, HTML),
    "contains-json": ({}, JSON),
    "contains-xml": ({"value": "a.b"}, XML),
    "cost": ({"threshold": 1}, RESPONSE),
    "equals": ({"value": {"a": 1}}, JSON),
    "finish-reason": ({"value": "stop"}, RESPONSE),
    "gleu": ({"value": [TEXT, "x"]}, RESPONSE),
    "guardrails": ({}, RESPONSE),
    "icontains": ({"value": "CAT"}, RESPONSE),
    "icontains-all": ({"value": ["CAT", "MAT"]}, RESPONSE),
    "icontains-any": ({"value": ["DOG", "CAT"]}, RESPONSE),
    "is-html": ({}, HTML),
    "is-json": ({"value": {"type": "object", "required": ["a"]}}, JSON),
    "is-refusal": ({}, Response(text="I'm sorry, but I cannot help with that.")),
    "is-valid-function-call": ({"config": {"tools": TOOLS}}, RESPONSE),
    "is-valid-openai-function-call": ({"config": {"functions": TOOLS}}, RESPONSE),
    "is-valid-openai-tools-call": ({"config": {"tools": TOOLS}}, RESPONSE),
    "is-xml": ({"value": {"requiredElements": ["a.b"]}}, XML),
    "javascript": ({"value": "output.split('').includes('c')"}, RESPONSE),
    "latency": ({"threshold": 100}, RESPONSE),
    "levenshtein": ({"value": "The bat sat on the mat."}, RESPONSE),
    "python": ({"value": "'cat' in output"}, RESPONSE),
    "regex": ({"value": r"^The\s\w+"}, RESPONSE),
    "rouge-n": ({"value": TEXT}, RESPONSE),
    "skill-used": ({"value": "pdf"}, RESPONSE),
    "starts-with": ({"value": "The"}, RESPONSE),
    "tool-call-f1": ({"value": ["search", "Skill"]}, RESPONSE),
    "trajectory:step-count": ({"value": {"type": "tool", "min": 2, "max": 2}}, RESPONSE),
    "trajectory:tool-args-match": ({"value": SEARCH}, RESPONSE),
    "trajectory:tool-sequence": ({"value": {"mode": "exact", "steps": ["search", "Skill"]}}, RESPONSE),
    "trajectory:tool-used": ({"value": ["search"]}, RESPONSE),
    "word-count": ({"value": {"min": 6, "max": 6}}, RESPONSE),
}
"""Assertions that hold, and that need no model and no other program than Node."""
VARIABLES = {"query": "Who sat?", "context": "A cat sat."}
DECIDED_ELSEWHERE: dict[str, dict[str, Any]] = {
    "answer-relevance": {"threshold": 0.5},
    "context-faithfulness": {"threshold": 0.5},
    "context-recall": {"threshold": 0.5, "value": "A cat."},
    "context-relevance": {"threshold": 0.5},
    "conversation-relevance": {},
    "factuality": {"value": "A cat."},
    "g-eval": {"value": ["is short", "is clear"]},
    "llm-rubric": {"value": "is short"},
    "model-graded-closedqa": {"value": "is short"},
    "model-graded-factuality": {"value": "A cat."},
    "moderation": {"value": ["hate"]},
    "pi": {"value": "is short"},
    "ruby": {"value": "true"},
    "search-rubric": {"value": "is short"},
    "similar": {"value": ["a", "b"]},
    "similar:cosine": {"value": "a"},
    "similar:dot": {"value": "a"},
    "similar:euclidean": {"value": "a", "threshold": 0.5},
    "trajectory:goal-success": {"value": {"goal": "find it"}},
    "webhook": {"value": "https://grader.example/check"},
}
"""The other types, of which only the mapping is looked at."""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_not_inverts_the_pass_and_the_score(tmp_path: Path) -> None:
    tests = PromptfooTests(tmp_path)
    for kind, (options, response) in HOLDS.items():
        tests.add(kind, response, {"type": kind, **options})
        tests.add(f"not-{kind}", response, {"type": f"not-{kind}", **options})
    verdicts = tests.verdicts()
    wrong = {name: verdict for name, verdict in verdicts.items() if verdict.passed is name.startswith("not-")}
    assert not wrong
    unknown = {name: verdict.why for name, verdict in verdicts.items() if verdict.score is None}
    assert not unknown
    assert [kind for kind in HOLDS if verdicts[kind][1] != 1.0 or verdicts[f"not-{kind}"][1] != 0.0] == []
    assert not tests.notes(State.NOT_MAPPED)


@pytest.mark.parametrize("kind", sorted(DECIDED_ELSEWHERE))
def test_not_is_part_of_what_a_model_or_another_program_decides(tmp_path: Path, kind: str) -> None:
    mapped = []
    for prefix in ("", "not-"):
        tests = PromptfooTests(tmp_path)
        case = tests.map({"type": f"{prefix}{kind}", **DECIDED_ELSEWHERE[kind]}, variables=VARIABLES)
        mapped.append((case.checks, list(tests.mapper.graders.values())))
    (checks, graders), (not_checks, not_graders) = mapped
    if checks:
        assert not_checks == [{**checks[0], "negate": True}]
    elif kind == "ruby":
        assert not_graders[0]["parameters"] == {"config": {}, "negate": True, "pass_threshold": pytest.approx(1.0)}
    else:
        formula = str(not_graders[-1]["formula"])
        assert formula.startswith("1 - ")
        assert graders[-1] != not_graders[-1]


def test_every_claimed_type_is_here() -> None:
    assert set(HOLDS) | set(DECIDED_ELSEWHERE) == CLAIMED_TYPES
