"""A run as JUnit XML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from gradeline.model import Sample
from gradeline.report.junit import write_junit

GATE = {"kind": "simple", "metric_key": "exact", "aggregation": "avg_score", "op": "gte", "value": 0.8}


def suite_of(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text.encode())
    assert (root.tag, len(root)) == ("testsuites", 1)
    return root[0]


def outcome(test: ElementTree.Element) -> str:
    return next((child.tag for child in test), "passed")


def test_outcomes_are_distinct_and_totals_equal_the_tests(bench: Any, written: Callable[..., str]) -> None:
    suite = suite_of(written(write_junit, bench.mixed()))
    tests = suite.findall("testcase")
    assert {test.get("name"): outcome(test) for test in tests} == {
        "france": "passed",
        "spain": "failure",
        "norway": "error",
        "peru": "skipped",
        "chad": "skipped",
    }
    assert {test.get("classname") for test in tests} == {"capitals.exact"}
    assert suite.attrib == {
        "name": "capitals",
        "tests": "5",
        "failures": "1",
        "errors": "1",
        "skipped": "2",
        "timestamp": "2026-03-02T09:14:05Z",
    }


def test_a_failure_has_its_reason_and_what_was_compared(bench: Any, written: Callable[..., str]) -> None:
    failure = suite_of(written(write_junit, bench.mixed())).find(".//failure")
    assert failure is not None
    assert failure.attrib == {"message": "score 0.25: not equal", "type": "fail"}
    assert failure.text == ("rationale: not equal\ninput: Capital of Spain?\nexpected: Madrid\nsubmission: Sevilla")


def test_an_error_has_its_type_and_a_skipped_test_its_reason(bench: Any, written: Callable[..., str]) -> None:
    suite = suite_of(written(write_junit, bench.mixed()))
    error = suite.find(".//error")
    assert error is not None
    assert error.attrib == {"message": "the worker died", "type": "crashed"}
    assert [skipped.get("message") for skipped in suite.iter("skipped")] == [
        "the agent's call failed (timeout, fault: agent): no answer within 30 s",
        "not graded yet",
    ]


def test_time_is_the_latency_of_the_agent_in_seconds_if_known(bench: Any, written: Callable[..., str]) -> None:
    tests = suite_of(written(write_junit, bench.mixed())).findall("testcase")
    assert [test.get("time") for test in tests] == ["0.250000", "0.250000", "0.250000", None, "0.250000"]


def test_repeats_are_numbered(bench: Any, written: Callable[..., str]) -> None:
    rows = [(Sample("one", "q"), [bench.answer(), bench.answer()], {"exact": bench.grade(1.0)})]
    tests = suite_of(written(write_junit, bench.report(rows))).findall("testcase")
    assert [test.get("name") for test in tests] == ["one#0", "one#1"]


def test_the_run_and_its_verdict_are_properties(bench: Any, written: Callable[..., str]) -> None:
    suite = suite_of(written(write_junit, bench.mixed(gate=GATE)))
    assert [(one.get("name"), one.get("value")) for one in suite.iter("property")] == [
        ("run", "run-1"),
        ("suite", "capitals"),
        ("status", "completed"),
        ("verdict", "fail"),
        ("exit_code", "1"),
        ("reason", "exact: avg_score 0.625 ≥ 0.8 is false"),
    ]


def test_hostile_text_is_only_text(bench: Any, written: Callable[..., str]) -> None:
    suite = suite_of(written(write_junit, bench.hostile_report()))
    assert {element.tag for element in suite.iter()} == {
        "testsuite", "properties", "property", "testcase", "failure", "error", "skipped",
    }  # fmt: skip
    assert [outcome(test) for test in suite.findall("testcase")] == ["failure", "error", "skipped", "passed"]
    name = suite.get("name") or ""
    assert name.startswith("</pre></td></details>]]><script>alert(1)</script>")
    assert "<1B>[31mred<1B>[0m<00><08><202E>gnp.exe" in name
    assert "\n# heading\n@octocat" in name


def test_a_long_text_is_truncated_with_a_note(bench: Any, written: Callable[..., str]) -> None:
    rows = [(Sample("one", "q"), bench.answer("x" * 10_000), {"exact": bench.grade(0.0)})]
    failure = suite_of(written(write_junit, bench.report(rows))).find(".//failure")
    assert failure is not None
    assert (failure.text or "").endswith("x… (6,000 more characters)")


@given(text=st.text(st.characters(), max_size=40))
def test_any_text_makes_well_formed_xml(text: str) -> None:
    from gradeline.report.junit import _attributes, _escaped

    parsed = ElementTree.fromstring(f"<a{_attributes(b=text)}>{_escaped(text)}</a>".encode())
    assert parsed.get("b") == (parsed.text or "")


def test_the_same_run_gives_the_same_bytes(bench: Any, written: Callable[..., str]) -> None:
    assert written(write_junit, bench.mixed()) == written(write_junit, bench.mixed())


def test_a_run_without_answers_is_an_empty_suite(bench: Any, written: Callable[..., str]) -> None:
    suite = suite_of(written(write_junit, bench.report([])))
    assert (suite.get("tests"), suite.findall("testcase")) == ("0", [])
