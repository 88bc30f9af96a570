"""Assertions of a hostile source: bounded time and memory, and a message for each."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.importers.promptfoo_assertions import MAX_ASSERTIONS, parse_expected
from gradeline.importers.promptfoo_columns import MAX_COLUMNS
from gradeline.importers.promptfoo_types import SPECIAL_TYPES, TYPES
from gradeline.importers.report import State
from promptfoo_tests import PromptfooTests

MIB = 1024**2


@pytest.fixture
def tests(tmp_path: Path) -> PromptfooTests:
    return PromptfooTests(tmp_path)


def nested(levels: int) -> object:
    value: object = "x"
    for _ in range(levels):
        value = [value]
    return value


def repeated(levels: int) -> object:
    """Ten times ten times … the same list, as aliases of YAML make it."""
    value: object = "x"
    for _ in range(levels):
        value = [value] * 10
    return value


def cyclic() -> object:
    value: dict[str, object] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("assertion", "note"),
    [
        ({"type": "equals", "value": nested(5_000)}, "has a value that is nested more than 32 levels deep"),
        ({"type": "equals", "value": cyclic()}, "has a value that is nested more than 32 levels deep"),
        ({"type": "equals", "value": repeated(20)}, "is in a test whose values have more than 100,000 items"),
        ({"type": "javascript", "value": "true", "config": cyclic()}, "has a value that is nested more than 32"),
        (
            {"type": "contains-any", "value": ["{{big}}" * 7] * 4},
            "is in a test whose values have more than 10,000,000 characters",
        ),
        ({"type": "contains", "value": "{{big}}" * 200}, "has a template that has more than 5,000,000 characters"),
        ({"type": "contains", "value": "{{" * 1_000}, "has a template that "),
        ({"type": "contains", "value": "{{ a.b.c() }}"}, "has a template that has the expression"),
        ({"type": "contains", "value": "{{ env.SECRET }}"}, "has a template that reads SECRET of the environment"),
        ({"type": "contains", "value": "$metadata.secret"}, "has the value '$metadata.secret', which a rule reads"),
        ({"type": "regex", "value": "(" * 10_000}, ""),
        ({"type": "is-json", "value": {"$ref": "#"}}, ""),
        ({"type": "is-json", "value": {"$ref": "http://host.example/schema"}}, "has no valid check: "),
        ({"type": "is-xml", "value": ["a." * 10_000]}, "has no valid check: "),
        ({"type": "levenshtein", "value": "x", "threshold": float("inf")}, "needs a number as its threshold"),
        ({"type": "word-count", "value": 10**400}, ""),
        ({"type": "trajectory:tool-used", "value": {"name": "a", "min": 5, "max": 1}}, "has no valid grader: "),
        ({"type": "latency", "threshold": 10**400}, "needs a number as its threshold"),
        ({"type": "javascript", "value": "const a = " + r"\'" * 90_000}, ""),
        ({"type": "javascript", "value": "let a = (" + "(" * 190_000}, ""),
        ({"type": "x" * 1_000_000}, "is not a type of promptfoo"),
        ({"type": "contains", "value": "x", "metric": "\x1b[31m"}, "has the metric"),
        ({"type": "llm-rubric", "value": "x", "provider": "exec:rm -rf /"}, "is judged by 'exec:rm -rf /'"),
        ({"type": "llm-rubric", "value": "x", "rubricPrompt": "[" * 100_000}, ""),
    ],
)
def test_a_hostile_assertion_is_reported_and_others_are_mapped(
    tests: PromptfooTests, assertion: dict[str, Any], note: str
) -> None:
    tracemalloc.start()
    case = tests.map({"type": "contains", "value": "Paris"}, assertion, variables={"big": "x" * 600_000})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 200 * MIB
    assert case.checks[0] == {"condition": "contains", "value": "Paris", "case_sensitive": True}
    if note:
        assert [found[: len(note)] for found in tests.notes(State.NOT_MAPPED)] == [note]
    assert len(tests.report.markdown()) < 5_000


def test_assertions_beyond_the_maximum_are_left_out(tests: PromptfooTests) -> None:
    case = tests.map(*[{"type": "contains", "value": "x"}] * (MAX_ASSERTIONS + 500))
    assert len(case.checks) == MAX_ASSERTIONS
    assert tests.notes(State.NOT_MAPPED) == ["is after the first 1,000 of its test; split the test"]


def test_graders_beyond_the_maximum_are_left_out(tests: PromptfooTests) -> None:
    for number in range(MAX_COLUMNS + 10):
        case = tests.map({"type": "latency", "threshold": number + 1}, {"type": "contains", "value": "x"})
        assert len(case.checks) == 1
    assert len(tests.mapper.graders) == MAX_COLUMNS
    assert tests.notes(State.NOT_MAPPED) == ["needs a grader of its own, and the suite has 200; split the source"]


def test_a_set_within_a_set_and_templates_that_refer_to_each_other_end(tests: PromptfooTests) -> None:
    inner: dict[str, object] = {"type": "assert-set"}
    inner["assert"] = [inner, {"type": "contains", "value": "x"}]
    templates = {"a": {"$ref": "#/assertionTemplates/b"}, "b": {"$ref": "#/assertionTemplates/a"}}
    case = tests.map(inner, {"$ref": "#/assertionTemplates/a"}, templates=templates)
    assert case.checks == [{"weighted": [{"condition": "contains", "value": "x", "case_sensitive": True}]}]
    assert len(tests.notes(State.NOT_MAPPED)) == 2


def test_characters_that_cannot_be_stored_are_replaced(tests: PromptfooTests) -> None:
    tests.add("nul", "a\u2400b", {"type": "equals", "value": "a\0b"})
    tests.add("surrogate", "a\ufffdb", {"type": "icontains", "value": "\ud800"}, {"type": "bleu", "value": "\ud800"})
    tests.add("code", "x", {"type": "python", "value": "output == 'x' # \ud800"})
    assert {name: verdict.score is not None for name, verdict in tests.verdicts().items()} == {
        "nul": True, "surrogate": True, "code": True
    }  # fmt: skip


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from(
    "value threshold weight metric config provider rubricPrompt transform contextTransform assert $ref x".split()
)


@given(
    kind=st.sampled_from(sorted(TYPES | SPECIAL_TYPES)),
    negated=st.booleans(),
    options=st.dictionaries(KEYS, VALUES, max_size=5),
    threshold=st.none() | st.floats(0, 1),
)
def test_any_assertion_is_mapped_or_reported(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    negated: bool,
    options: dict[str, object],
    threshold: float | None,
) -> None:
    tests = PromptfooTests(tmp_path_factory.getbasetemp())
    name = f"not-{kind}" if negated else kind
    case = tests.map({"type": name, **options}, options.get("value"), threshold=threshold)
    json.dumps([case, tests.mapper.graders, tests.mapper.gate()])
    assert sum(item.count for item in tests.report.items) >= 1


@given(st.text(max_size=200))
def test_any_cell_is_an_assertion(text: str) -> None:
    assert isinstance(parse_expected(text)["type"], str)
