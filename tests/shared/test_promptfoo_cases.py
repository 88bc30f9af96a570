"""What promptfoo's assertions answered, against the checks and graders that they are imported as."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.importers.promptfoo_assertions import CLAIMED_TYPES
from gradeline.model import Message, Response, ToolCall, Trajectory, Usage
from promptfoo_tests import GradedTest, PromptfooTests

FILE = "promptfoo_cases/cases.jsonl"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-promptfoo.md"
ERROR = GradedTest(None, None)
NEEDS_MODEL = (
    "should pass for a similar assertion with a string value",
    "should pass for a similar assertion with an array of string values",
    "should fail for a similar assertion with an array of string values",
    "should fail when no array values meet threshold",
    "should throw an error when output is not a string",
)
"""The ends of the names of tests that a model decides here, of which the answers are not recorded."""

INTENDED: dict[str, tuple[str, ...]] = {
    "an empty text in a list": (
        "handleContainsAny > should handle empty quoted strings",
        "handleIContainsAny > should preserve quoted empty strings in comma-separated list",
    ),
    "an unknown finish reason": (
        "finishReason assertion > should fail when provider does not return stop reason",
        "handleGuardrail > should pass with score 1 when no guardrails are present (defaults to flagged: false)",
    ),
    "a blank output and `is-refusal`": (
        "is-refusal assertion > Edge cases and special values > should handle undefined output",
        "is-refusal assertion > Edge cases and special values > should handle whitespace-only output",
    ),
    "an empty output": ("handleWordCount > exact count > should handle empty string as 0 words",),
    "a score outside 0 to 1, or against the pass": (
        "runAssertion > should pass when javascript returns a number above threshold",
    ),
    "the score of `not-tool-call-f1`": (
        "handleToolCallF1 > inverse assertion (not-tool-call-f1) > should invert pass result when inverse is true",
    ),
    "upper and lower case of tools": (
        "tracing utilities > matchesPattern > should be case-insensitive ['llm.completion', 'LLM.COMPLETION']",
    ),
    "rare letters in names of XML": (
        "validateXml > should validate well-formed XML edge cases ['<\U00010000>astral name</\U00010000>']",
        "validateXml > should validate well-formed XML edge cases ['<!DOCTYPE \U00010000><\U00010000/>']",
    ),
}
"""By the title of a difference in the documentation: the tests that have it."""


class RecordedCase(NamedTuple):
    """Assertions, what they saw, and what promptfoo answered."""

    name: str
    kind: str
    test: dict[str, Any]
    response: Response
    answer: GradedTest


def cases_of(row: Mapping[str, Any]) -> Iterator[RecordedCase]:
    """The case of a row; none if its type is not claimed, or if no assertion can ask what the row has."""
    if row["kind"] == "assertion":
        assertion = assertion_of(row)
        kind = assertion["type"].removeprefix("not-")
        if kind in CLAIMED_TYPES:
            test = {"assert": [assertion], "vars": (row.get("test_case") or {}).get("vars") or row.get("vars") or {}}
            yield RecordedCase(row["test"], kind, test, response_of(row), answer_of(row["expect"]))
    elif row["kind"] == "set":
        test = row["test_case"]
        types = {assertion["type"] for assertion in test["assert"]}
        if not any(kind.startswith("promptfoo:") for kind in types):
            yield RecordedCase(row["test"], "assert-set", test, response_of(row), answer_of(row["expect"]))
    else:
        yield from function_case(row)


def function_case(row: Mapping[str, Any]) -> Iterator[RecordedCase]:
    """A row about a function that an assertion calls, as that assertion; none if no assertion calls it that way."""
    first, second, *others = [*row["args"], None]
    others = [argument for argument in others if argument is not None]
    kind = row["kind"].removeprefix("fn:")
    if others or not first or second == "":
        return
    expect, test_name = row["expect"], f"{row['test']} {row['args']}"
    if kind == "glob":
        test = {"assert": [{"type": "trajectory:tool-used", "value": {"pattern": second}}]}
        response = Response(text="-", trajectory=trajectory([ToolCall(first)]))
        yield RecordedCase(test_name, "glob", test, response, GradedTest(expect, float(expect)))
    elif kind in ("validateXml", "containsXml"):
        name = "is-xml" if kind == "validateXml" else "contains-xml"
        holds = expect["isValid"]
        test = {"assert": [{"type": name, **({"value": second} if second else {})}]}
        yield RecordedCase(test_name, name, test, Response(text=first), GradedTest(holds, float(holds)))
    else:
        name = {"calculateBleuScore": "bleu", "calculateGleuScore": "gleu"}[kind]
        answer = ERROR if isinstance(expect, dict) else GradedTest(expect >= 0.5, expect)
        test = {"assert": [{"type": name, "value": second}]}
        yield RecordedCase(test_name, name, test, Response(text=first), answer)


def answer_of(expect: Mapping[str, Any]) -> GradedTest:
    return ERROR if "throws" in expect else GradedTest(expect["pass"], expect["score"])


def assertion_of(row: Mapping[str, Any]) -> dict[str, Any]:
    assertion = dict(row["assertion"])
    if row.get("value") is not None:
        assertion["value"] = row["value"]
    if row.get("inverse"):
        assertion["type"] = f"not-{assertion['type'].removeprefix('not-')}"
    return assertion


def response_of(row: Mapping[str, Any]) -> Response:
    """What the assertion saw, as a target of gradeline reports it."""
    provider = row.get("providerResponse") or {}
    output = row.get("outputString", provider.get("output"))
    cost = row.get("cost", provider.get("cost"))
    flagged = provider.get("guardrails", {}).get("flagged")
    return Response(
        text=output if isinstance(output, str) else "" if output is None else json.dumps(output),
        latency_ms=row.get("latencyMs"),
        usage=None if cost is None else Usage(cost=cost),
        stop_reason="content_filter" if flagged else provider.get("finishReason"),
        trajectory=reported_calls(row, provider),
    )


def reported_calls(row: Mapping[str, Any], provider: Mapping[str, Any]) -> Trajectory | None:
    """The tool calls of a trace, of the metadata or of the output; None if nothing reports them."""
    if row.get("trace"):
        return trajectory(
            call for span in row["trace"]["spans"] for call in calls_of_span(span.get("attributes") or {})
        )
    skills = (provider.get("metadata") or {}).get("skillCalls")
    if skills is not None:
        return trajectory(ToolCall("Skill", json.dumps({"skill": skill["name"]})) for skill in skills)
    if (row["assertion"] or {}).get("type") == "tool-call-f1":
        return trajectory(calls_in(row["outputString"]))
    return None


def calls_of_span(attributes: Mapping[str, Any]) -> Iterator[ToolCall]:
    for name, arguments in (
        ("tool.name", "tool.arguments"),
        ("tool.name", "tool.args"),
        ("ai.toolCall.name", "ai.toolCall.args"),
        ("codex.mcp.tool", "codex.mcp.input"),
    ):
        if name in attributes and arguments in attributes:
            sent = attributes[arguments]
            yield ToolCall(attributes[name], sent if isinstance(sent, str) else json.dumps(sent))
            return
    if "tool.name" in attributes:
        yield ToolCall(attributes["tool.name"])


def calls_in(output: str) -> Iterator[ToolCall]:
    """The calls in an output of OpenAI, Anthropic or Google, or in lines of it."""
    for line in output.split("\n"):
        try:
            data = json.loads(line)
        except ValueError:
            continue
        for part in data if isinstance(data, list) else [data]:
            calls = (part or {}).get("tool_calls", [(part or {}).get("functionCall", part)])
            for call in calls:
                name = (call or {}).get("function", call or {}).get("name")
                if name:
                    yield ToolCall(name)


def trajectory(calls: Any) -> Trajectory:
    return Trajectory(((Message("assistant", "", tuple(calls)),),))


def graded(folder: Path, cases: list[RecordedCase]) -> dict[int, GradedTest]:
    """The verdict on each case, by its number; an assertion that is not mapped is an error."""
    tests = PromptfooTests(folder)
    for number, case in enumerate(cases):
        tests.add(
            str(number),
            case.response,
            *case.test["assert"],
            variables=case.test.get("vars") or {},
            threshold=case.test.get("threshold"),
        )
    verdicts = tests.verdicts()
    return {number: verdicts.get(str(number), ERROR) for number in range(len(cases))}


def same(found: GradedTest, recorded: GradedTest) -> bool:
    if found.score is None or recorded.score is None:
        return found.score is None and recorded.score is None
    return found.passed is recorded.passed and abs(found.score - recorded.score) < 1e-9


def test_imported_assertions_give_the_recorded_verdicts(
    shared_rows: Callable[[str], Iterator[dict[str, Any]]], tmp_path: Path
) -> None:
    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    by_kind: dict[str, list[RecordedCase]] = defaultdict(list)
    for row in shared_rows(FILE):
        for case in cases_of(row):
            if not case.name.endswith(NEEDS_MODEL):
                by_kind[case.kind].append(case)
    names: list[str] = []
    differences: dict[str, str] = {}
    for kind, cases in by_kind.items():
        folder = tmp_path / kind.replace(":", "_")
        folder.mkdir()
        for number, found in graded(folder, cases).items():
            case = cases[number]
            names.append(case.name)
            if not same(found, case.answer):
                saw = f"{json.dumps(case.test)[:300]} on {case.response.text!r:.100}"
                differences[case.name] = f"recorded {case.answer[:2]}, found {tuple(found)}: {saw}"
    listed = {name: title for title, names in INTENDED.items() for name in names}
    unexpected = [f"{name}: {text}" for name, text in differences.items() if name not in listed]
    assert not unexpected, f"{len(unexpected)} differences:\n" + "\n".join(unexpected)
    assert not [name for name in listed if name not in differences], "no longer a difference"
    assert not [name for name in listed if names.count(name) > 1], "a name of several cases"
    assert len(names) > 340


def test_every_intended_difference_is_documented() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Intended differences\n")[2].partition("\n## ")[0]
    titles = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)
    assert set(INTENDED) <= set(titles)
