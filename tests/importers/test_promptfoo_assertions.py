"""Assertions of promptfoo as checks and graders: what each becomes, and what the suite decides."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gradeline.importers.promptfoo_assertions import CLAIMED_TYPES, parse_expected
from gradeline.importers.promptfoo_types import SPECIAL_TYPES, TYPES
from gradeline.importers.report import State
from gradeline.model import Message, Response, ToolCall, Trajectory
from promptfoo_tests import PromptfooTests

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")

CONTAINS = {"type": "contains", "value": "Paris"}
LONG = {"type": "latency", "threshold": 5}


@pytest.fixture
def tests(tmp_path: Path) -> PromptfooTests:
    return PromptfooTests(tmp_path)


def test_text_and_criteria_become_checks_of_the_case(tests: PromptfooTests) -> None:
    rubric = {"type": "llm-rubric", "value": "Is polite to {{name}}", "weight": 2}
    case = tests.map({**CONTAINS, "metric": "facts"}, rubric, variables={"name": "Ada"})
    assert case.checks == [
        {"condition": "contains", "value": "Paris", "case_sensitive": True, "metric": "facts"},
        {"judge": "Is polite to Ada", "weight": 2},
    ]
    assert case.metadata == {"promptfoo": {"graders": ["checks", "facts"]}}
    assert tests.mapper.graders == {
        "checks": {"kind": "checks", "model": "gpt-4.1", "provider": "openai"},
        "facts": {"kind": "checks_metric", "metric": "facts", "checks": "checks"},
    }
    assert tests.mapper.gate() == {
        "kind": "simple", "metric_key": "checks", "aggregation": "accuracy", "op": "gte", "value": 1, "coverage_floor": 1
    }  # fmt: skip


def test_a_grader_applies_to_the_cases_whose_tests_have_it(tests: PromptfooTests) -> None:
    tests.map(CONTAINS, LONG)
    tests.map(CONTAINS)
    assert tests.mapper.graders == {
        "checks": {"kind": "checks"},
        "latency": {"kind": "latency", "max_ms": 5.0, "when": {"metadata.promptfoo.graders": "latency"}},
    }
    assert tests.map() == ([], {})


def test_values_are_rendered_with_the_variables_of_the_test(tests: PromptfooTests) -> None:
    value = (
        "{% for name in names %}{{ name | upper }}{% if not loop.last %}, {% endif %}{% endfor %} {{ 'x' }}{{ none }}"
    )
    case = tests.map({"type": "contains", "value": value}, variables={"names": ["Ada", "Bob"]})
    assert case.checks == [{"condition": "contains", "value": "ADA, BOB x", "case_sensitive": True}]


def test_data_is_taken_as_it_is_and_files_are_read(tests: PromptfooTests) -> None:
    (tests.folder / "word.txt").write_text("Rome {{name}}\n")
    (tests.folder / "schema.yaml").write_text("type: object\nrequired: [a]\n")
    case = tests.map(
        {"type": "equals", "value": {"a": "{{name}}"}},
        {"type": "contains-any", "value": ["{{name}}", "file://word.txt", 5]},
        {"type": "is-json", "value": "file://schema.yaml"},
        variables={"name": "Ada"},
    )
    data, texts, schema = case.checks
    assert data["all"][1]["value"] == {"a": "{{name}}"}  # type: ignore[index]
    assert texts["value"] == ["Ada", "Rome {{name}}", "5"]
    assert schema["value"] == {"type": "object", "required": ["a"]}


@pytest.mark.parametrize(
    ("value", "calls", "passed"),
    [
        ({"name": "search", "max": 2}, 0, False),  # at least one call, also with a maximum
        ({"name": "search", "max": 2}, 2, True),
        ({"name": "search", "max": 2}, 3, False),
        ({"pattern": "sea*", "min": 2}, 1, False),
    ],
)
def test_the_number_of_calls_of_a_tool(tests: PromptfooTests, value: object, calls: int, passed: bool) -> None:
    made = Trajectory(((Message("assistant", "", (ToolCall("search"),) * calls),),))
    response = Response(text="-", trajectory=made)
    tests.add("test", response, {"type": "trajectory:tool-used", "value": value})
    tests.add("not", response, {"type": "not-trajectory:tool-used", "value": value})
    assert {name: verdict.passed for name, verdict in tests.verdicts().items()} == {"test": passed, "not": not passed}


def test_equal_assertions_share_a_grader_and_each_case_has_its_value(tests: PromptfooTests) -> None:
    for text in ("one", "two"):
        assert tests.map({"type": "similar", "value": text}).metadata == {
            "promptfoo": {"graders": ["similar"], "expected": {"similar": text}}
        }
    assert list(tests.mapper.graders) == ["similar"]
    assert tests.mapper.graders["similar"]["expected"] == "$metadata.promptfoo.expected.similar"


@pytest.mark.parametrize("metric", ["checks", "latency", "min", "class", "a b's", "1st", "Größe", "{{name}}", "x" * 80])
def test_any_name_of_a_metric_is_a_column(tests: PromptfooTests, metric: str) -> None:
    response = Response(text="Paris", latency_ms=9)
    named = [{**CONTAINS, "metric": metric}, {**LONG, "metric": metric}]
    tests.add("text", response, named[0], variables={"name": "when"})
    tests.add("slow", response, named[1], variables={"name": "when"})
    tests.add("not", response, {**named[1], "type": "not-latency"}, variables={"name": "when"})
    tests.add("both", response, *named, threshold=0.5, variables={"name": "when"})
    assert {name: verdict.passed for name, verdict in tests.verdicts().items()} == {
        "text": True, "slow": False, "not": True, "both": True
    }  # fmt: skip


def test_tests_with_other_tools_share_a_grader_of_trajectories(tests: PromptfooTests) -> None:
    for tools in (["search"], ["search", "book"]):
        case = tests.map({"type": "trajectory:tool-used", "value": tools})
        assert case.metadata == {
            "promptfoo": {"graders": ["trajectory_tool_used"], "expected": {"trajectory_tool_used": tools}}
        }
    assert tests.mapper.graders == {
        "trajectory_tool_used": {
            "kind": "trajectory",
            "required_tools": "$metadata.promptfoo.expected.trajectory_tool_used",
        }
    }


def test_a_test_passes_if_everything_with_a_weight_does(tests: PromptfooTests) -> None:
    fast, slow = Response(text="Paris", latency_ms=1), Response(text="Paris", latency_ms=9)
    tests.add("both", fast, CONTAINS, LONG)
    tests.add("slow", slow, CONTAINS, LONG)
    tests.add("slow is not counted", slow, CONTAINS, {**LONG, "weight": 0})
    tests.add("only a metric", slow, CONTAINS, {**LONG, "metric": "speed", "metricOnly": True})
    tests.add("wrong is not counted", slow, {"type": "equals", "value": "x", "weight": 0})
    assert {name: verdict.passed for name, verdict in tests.verdicts().items()} == {
        "both": True,
        "slow": False,
        "slow is not counted": True,
        "only a metric": True,
        "wrong is not counted": True,
    }


def test_the_gate_fails_with_a_test_and_is_undecided_without_its_verdict(tests: PromptfooTests) -> None:
    known, unknown = Response(text="Paris", latency_ms=1), Response(text="Paris")
    for number in range(30):
        tests.add(f"{number}", known, CONTAINS, LONG)
    tests.verdicts()
    assert tests.gate == "pass"
    tests.add("unknown", unknown, CONTAINS, LONG)
    tests.verdicts()
    assert tests.gate == "undecided"
    tests.add("wrong", Response(text="Rome", latency_ms=1), CONTAINS, LONG)
    tests.verdicts()
    assert tests.gate == "fail"


def test_a_threshold_replaces_the_verdicts_of_its_assertions(tests: PromptfooTests) -> None:
    slow = Response(text="Paris", latency_ms=9)
    tests.add("checks", slow, CONTAINS, {"type": "equals", "value": "x", "weight": 3}, threshold=0.25)
    tests.add("checks below", slow, CONTAINS, {"type": "equals", "value": "x", "weight": 3}, threshold=0.26)
    tests.add("graders", slow, {**CONTAINS, "weight": 3}, LONG, threshold=0.75)
    tests.add("graders below", slow, {**CONTAINS, "weight": 3}, LONG, threshold=0.76)
    tests.add("none", slow, LONG, threshold=0)
    assert {name: verdict[:2] for name, verdict in tests.verdicts().items()} == {
        "checks": (True, 0.25),
        "checks below": (False, 0.25),
        "graders": (True, 0.75),
        "graders below": (False, 0.75),
        "none": (True, 0.0),
    }


def test_tests_with_a_threshold_share_graders_whatever_they_assert_about_the_text(tests: PromptfooTests) -> None:
    for number in range(30):
        text = f"text {number}"
        response = Response(text=text, latency_ms=9)
        tests.add(text, response, {"type": "equals", "value": text}, {**CONTAINS, "weight": 2}, LONG, threshold=0.25)
    assert {verdict[:2] for verdict in tests.verdicts().values()} == {(True, 0.25)}
    assert list(tests.mapper.graders) == ["checks_measured", "latency", "test"]
    assert tests.mapper.graders["test"] == {
        "kind": "formula", "formula": "min(1, (3 * checks_measured + latency) / 4)", "pass_threshold": 0.25
    }  # fmt: skip


def test_a_set_has_a_weight_a_threshold_and_a_metric(tests: PromptfooTests) -> None:
    wrong = {"type": "equals", "value": "x"}
    slow = Response(text="Paris", latency_ms=9)
    tests.add("all", slow, {"type": "assert-set", "assert": [CONTAINS, wrong]})
    tests.add("half", slow, {"type": "assert-set", "threshold": 0.5, "assert": [CONTAINS, wrong]})
    tests.add("half of graders", slow, {"type": "assert-set", "threshold": 0.5, "assert": [CONTAINS, LONG]})
    tests.add("all graders", slow, {"type": "assert-set", "assert": [CONTAINS, LONG]})
    heavy = {"type": "assert-set", "weight": 3, "assert": [CONTAINS, LONG], "metric": "group"}
    tests.add("in a test with a threshold", slow, heavy, CONTAINS, threshold=0.6)
    assert {name: verdict.passed for name, verdict in tests.verdicts().items()} == {
        "all": False,
        "half": True,
        "half of graders": True,
        "all graders": False,
        "in a test with a threshold": True,  # (3 * 0.5 + 1) / 4 is 0.625
    }


@needs_node
def test_javascript_that_is_no_rule_runs_with_node(tests: PromptfooTests) -> None:
    code = "output.split('').reverse().join('') === context.vars.reversed"
    tests.add("rule", "hello", {"type": "javascript", "value": "output.length > 3"})
    tests.add("node", "abc", {"type": "javascript", "value": code}, variables={"reversed": "cba"})
    tests.add("not", "abc", {"type": "not-javascript", "value": code}, variables={"reversed": "cba"})
    tests.add("lookahead", "foo bar", {"type": "regex", "value": "foo(?= bar)"})
    tests.add("transform", '{"a": 1}', {"type": "equals", "value": 1, "transform": "JSON.parse(output).a"})
    tests.add("throws", "abc", {"type": "javascript", "value": "nothing.at.all"})
    verdicts = tests.verdicts()
    assert {name: verdict.passed for name, verdict in verdicts.items()} == {
        "rule": True, "node": True, "not": False, "lookahead": True, "transform": True, "throws": None
    }  # fmt: skip
    assert "nothing is not defined" in verdicts["throws"].why


@pytest.mark.parametrize(
    ("assertion", "note"),
    [
        ("text", "is 'text'; write a mapping such as {type: contains}"),
        ({"value": "x"}, "has the type None; write one of promptfoo's types"),
        ({"type": "contians", "value": "x"}, "is not a type of promptfoo; did you mean 'contains'?"),
        ({"type": "contains"}, "needs a string as its value, got None"),
        ({**CONTAINS, "weight": -1}, "has the weight -1; write a number from 0 to 1,000,000"),
        ({**CONTAINS, "threshold": "high"}, "needs a number as its threshold, got 'high'"),
        ({**CONTAINS, "config": [1]}, "has the config [1]; write a mapping"),
        ({"$ref": "#/assertionTemplates/nothing"}, "names no assertion; write #/assertionTemplates/NAME"),
        ({"$ref": "#/assertionTemplates/self"}, "refers to itself; write the assertion out"),
        ({"type": "assert-set", "assert": 3}, "needs a list as its assert, got 3"),
        ({"type": "latency"}, "needs a threshold in milliseconds"),
        ({"type": "latency", "threshold": -1}, "has no valid grader: config.max_ms: expected float > 0.0, got -1.0"),
        ({"type": "llm-rubric", "value": "x" * 20_001}, "has no valid check: "),
        (
            {"type": "contains", "value": "{% macro a() %}x{% endmacro %}"},
            "has a template that has the tag 'macro a()'",
        ),
        (
            {"type": "equals", "value": "file://../secret.json"},
            "has a value that is not read: '../secret.json' is outside",
        ),
        ({"type": "trajectory:tool-args-match", "value": {"name": "a"}}, "needs mappings as its args and defaults"),
        ({"type": "contains", "value": "package:words:one"}, "has the value 'package:words:one' of a package; write a"),
        ({"type": "promptfoo:redteam:pii"}, "is of red teaming, which gradeline does not do; keep it in promptfoo"),
    ],
)
def test_what_has_no_counterpart_is_reported_and_the_rest_is_mapped(
    tests: PromptfooTests, assertion: object, note: str
) -> None:
    templates: dict[str, Any] = {"self": {"$ref": "#/assertionTemplates/self"}}
    case = tests.map(assertion, CONTAINS, templates=templates)
    assert len(case.checks) == 1
    assert len(tests.notes(State.NOT_MAPPED)) == 1
    assert tests.notes(State.NOT_MAPPED)[0].startswith(note)


def test_every_type_is_in_the_documentation() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "from-promptfoo.md"
    section = page.read_text(encoding="utf-8").partition("\n## Assertions\n")[2].partition("\n### ")[0]
    assert [kind for kind in sorted(TYPES | SPECIAL_TYPES) if f"`{kind}`" not in section] == []
    dropped = [line for line in section.split("\n") if "| not mapped |" in line]
    assert {
        kind for kind in TYPES if any(f"`{kind}`" in line.split(" | ")[0] for line in dropped)
    } == TYPES - CLAIMED_TYPES


def test_every_type_is_mapped_or_has_a_note_that_says_what_to_do(tests: PromptfooTests) -> None:
    unclaimed = sorted((TYPES | SPECIAL_TYPES) - CLAIMED_TYPES - {"assert-set"})
    for kind in unclaimed:
        tests.map({"type": kind, "value": "x"})
    assert len(TYPES & CLAIMED_TYPES) >= 55
    assert len(TYPES) == 66
    assert len(tests.notes(State.NOT_MAPPED)) == len(unclaimed)
    assert not [note for note in tests.notes(State.NOT_MAPPED) if "no type" in note]


@pytest.mark.parametrize(
    ("text", "assertion"),
    [
        ("Paris", {"type": "equals", "value": "Paris"}),
        ("contains: Paris", {"type": "contains", "value": "Paris"}),
        ("not-contains:Paris", {"type": "not-contains", "value": "Paris"}),
        ("similar(0.8): a text", {"type": "similar", "threshold": 0.8, "value": "a text"}),
        ("is-json", {"type": "is-json"}),
        ("similar: a text", {"type": "similar", "threshold": 0.8, "value": "a text"}),
        ("not-levenshtein: a", {"type": "not-levenshtein", "threshold": 0.75, "value": "a"}),
        ("contains-any: a, b ,c", {"type": "contains-any", "value": ["a", "b", "c"]}),
        ("human", {"type": "equals", "value": "human"}),
        ("grade", {"type": "equals", "value": "grade"}),
        ("latency(200)", {"type": "latency", "threshold": 200.0}),
        ("fn: output.length > 3", {"type": "javascript", "value": "output.length > 3"}),
        ("eval:output == 1", {"type": "javascript", "value": "output == 1"}),
        ("grade: is polite", {"type": "llm-rubric", "value": "is polite"}),
        ("python: len(output) > 3", {"type": "python", "value": "len(output) > 3"}),
        ("file://check.py", {"type": "python", "value": "file://check.py"}),
        ("file://check.js:run", {"type": "javascript", "value": "file://check.js:run"}),
        ("note: see below", {"type": "equals", "value": "note: see below"}),
    ],
)
def test_a_cell_of_a_csv_file_is_an_assertion(text: str, assertion: dict[str, object]) -> None:
    assert parse_expected(text) == assertion
