"""A run as a page."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from gradeline.errors import Fault
from gradeline.model import Document, ErrorInfo, Message, Response, Sample, ToolCall, Trajectory
from gradeline.report.html import LIMITS, write_html

GATE = {"kind": "simple", "metric_key": "exact", "aggregation": "avg_score", "op": "gte", "value": 0.8}
VOID = {"meta", "br", "col"}


class Page(HTMLParser):
    """A page as a parser sees it: its elements in order, their texts, and whether they close as they open."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.comments: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.append((self._open[-1], data))

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    def of(self, tag: str) -> list[str]:
        """The texts directly within elements of a name."""
        return [text for inside, text in self.texts if inside == tag]

    @property
    def text(self) -> str:
        return " ".join(text for inside, text in self.texts if inside != "style")


@pytest.fixture
def page(written: Callable[..., str]) -> Callable[[Any], Page]:
    return lambda report: Page(written(write_html, report))


def test_the_verdict_comes_first(bench: Any, page: Callable[[Any], Page]) -> None:
    seen = page(bench.mixed(gate=GATE))
    assert seen.of("title")[0] == "Fail: capitals"
    words = seen.text
    assert words.index("Fail") < words.index("exact: avg_score 0.625 ≥ 0.8 is false") < words.index("Graders")
    assert ("section", {"class": "verdict tone-fail"}) in seen.elements


@pytest.mark.parametrize(
    ("changes", "title", "tone"),
    [
        ({"gate": {**GATE, "value": 0.6}}, "Pass: capitals", "pass"),
        ({"gate": {**GATE, "value": 0.6}, "coverage_floor": 0.95}, "Undecided: capitals", "undecided"),
        ({}, "No gate: capitals", "none"),
        ({"coverage_floor": 0.95}, "No gate: capitals", "undecided"),
    ],
)
def test_every_verdict_has_its_label_and_colour(
    bench: Any, page: Callable[[Any], Page], changes: dict[str, Any], title: str, tone: str
) -> None:
    seen = page(bench.mixed(**changes))
    assert seen.of("title")[0] == title
    assert ("section", {"class": f"verdict tone-{tone}"}) in seen.elements


def test_graders_show_intervals_and_denominators_and_missing_is_not_zero(
    bench: Any, page: Callable[[Any], Page]
) -> None:
    seen = page(bench.mixed(graders=("exact", "other")))
    titles = seen.of("title")
    assert any(title.startswith("mean score of exact: 0.625, 95 % interval 0.142 to 0.944") for title in titles)
    assert "mean score of other: –, 95 % interval –" in titles
    assert {"pass: 1 of 5", "fail: 1 of 5", "error: 1 of 5", "skipped: 1 of 5", "ungraded: 5 of 5"} <= set(titles)
    assert "2 of 5 scored" in seen.text
    assert "0 of 5 scored" in seen.text


def test_a_logical_gate_shows_each_condition_with_its_reasons(bench: Any, page: Callable[[Any], Page]) -> None:
    gate = {
        "kind": "logical",
        "operator": "and",
        "conditions": [GATE, {"kind": "simple", "aggregation": "accuracy", "op": "gte", "value": 40}],
    }
    seen = page(bench.mixed(gate=gate, coverage_floor=0.9))
    rows = [attributes["class"] for tag, attributes in seen.elements if attributes.get("role") == "listitem"]
    assert rows == ["gate gate-fail", "gate gate-undecided"]
    assert seen.text.count("exact: only 2 of 5 have a score, below the floor of 0.9") == 2


def test_errors_are_counted_by_kind_with_the_fault(bench: Any, page: Callable[[Any], Page]) -> None:
    seen = page(bench.mixed())
    assert [text for text in seen.of("td") if "call" in text or "grader" in text] == [
        "agent's call", "grader exact", "grader",
    ]  # fmt: skip
    assert {"timeout", "crashed"} <= set(seen.of("code"))


def test_cases_to_read_are_grouped_and_shown_with_all_their_texts(bench: Any, page: Callable[[Any], Page]) -> None:
    seen = page(bench.mixed())
    assert [text.strip() for text in seen.of("h3")] == ["Failed", "Could not be graded", "No answer"]
    assert [text.lstrip("\n") for text in seen.of("pre")] == [
        "Capital of Spain?", "Madrid", "Sevilla", "not equal",
        "Capital of Norway?", "Oslo", "Oslo", "the worker died",
        "Capital of Peru?", "Lima", "timeout, fault: agent\nno answer within 30 s",
    ]  # fmt: skip


def test_tool_calls_turns_and_what_was_graded_are_shown(bench: Any, page: Callable[[Any], Page]) -> None:
    call = ToolCall("lookup", '{"country": "Spain"}')
    steps = Trajectory(((Message("assistant", "", (call,)), Message("assistant", "Sevilla")),))
    answer = Response(text="Sevilla", trajectory=steps)
    report = bench.report([(Sample("one", ["Hello", "Capital?"], "Madrid"), answer, {"exact": bench.grade(0.0)})])
    seen = page(report)
    assert seen.of("h4") == ["Input, turn 1", "Input, turn 2", "Expected", "Answer", "1 tool call"]
    assert 'lookup {"country": "Spain"}' in seen.text


def test_retrieved_documents_are_shown_with_bounds_and_as_text(bench: Any, page: Callable[[Any], Page]) -> None:
    documents = tuple(Document(f"<script>{number}</script>", f"d{number}", 0.5) for number in range(1, 31))
    rows = [(Sample("one", "x"), Response(text="y", documents=documents), {"exact": bench.grade(0.0)})]
    seen = page(bench.report(rows))
    assert "Retrieved documents" in seen.of("h4")
    assert "1. d1, score 0.5\n<script>1</script>" in seen.text
    assert "… (20 more documents)" in seen.text
    assert "d11" not in seen.text
    assert "script" not in seen.tags()


def test_the_worst_are_shown_in_full_and_the_others_counted(bench: Any, page: Callable[[Any], Page]) -> None:
    rows = [
        (Sample(f"case-{n}", "q"), bench.answer(), {"exact": bench.grade(0.4 * n / 400)}) for n in range(400, 0, -1)
    ]
    seen = page(bench.report(rows))
    assert f"{LIMITS['failed']} of 400 shown." in seen.text
    assert sum(tag == "details" for tag, _ in seen.elements) == LIMITS["failed"]
    cases = [text for text in seen.of("bdi") if text.startswith("case-")]
    assert cases == [f"case-{n}" for n in range(1, LIMITS["failed"] + 1)]


def test_a_long_text_is_truncated_with_a_note(bench: Any, page: Callable[[Any], Page]) -> None:
    rows = [(Sample("one", "q"), bench.answer("x" * 1_000_000), {"exact": bench.grade(0.0)})]
    seen = page(bench.report(rows))
    assert "x… (992,000 more characters)" in seen.text
    assert len(seen.text) < 30_000


def test_the_page_loads_nothing_and_runs_nothing(bench: Any, written: Callable[..., str]) -> None:
    for source in (written(write_html, bench.hostile_report()), written(write_html, bench.mixed(gate=GATE))):
        seen = Page(source)
        assert seen.tags().isdisjoint(
            {"script", "img", "link", "iframe", "object", "embed", "form", "base", "a", "use"}
        )
        for _, attributes in seen.elements:
            assert attributes.keys().isdisjoint(
                {"href", "src", "srcset", "style", "action", "xlink:href", "background"}
            )
            assert not [name for name in attributes if name.startswith("on")]
        (style,) = seen.of("style")
        assert not re.search(r"url\(|@import|expression|//", style)
        digest = b64encode(sha256(style.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        assert ("meta", {"http-equiv": "Content-Security-Policy", "content": policy}) in seen.elements


def test_hostile_text_stays_text(bench: Any, written: Callable[..., str]) -> None:
    source = written(write_html, bench.hostile_report())
    seen = Page(source)
    assert seen.comments == []
    assert seen.tags() <= {
        "html", "head", "meta", "title", "style", "body", "header", "main", "section", "div", "span", "p", "small",
        "strong", "bdi", "code", "pre", "h1", "h2", "h3", "h4", "ul", "li", "dl", "dt", "dd", "table", "thead", "tbody",
        "tr", "th", "td", "figure", "figcaption", "details", "summary", "svg", "line", "circle", "rect", "text",
    }  # fmt: skip
    answer = seen.of("pre")[0]
    assert answer.startswith(
        "\n</pre></td></details>]]><script>alert(1)</script><img src=x onerror=alert(2)>&amp; \"'<1B>"
    )
    assert "<202E>gnp.exe" in answer
    assert not set(source) & {*map(chr, range(0x09)), "\x1b", "\r", "\x7f", "\u202e", "\ufffe"}


def test_the_page_is_accessible_to_screen_readers(bench: Any, page: Callable[[Any], Page]) -> None:
    seen = page(bench.mixed(gate=GATE))
    pictures = [attributes for tag, attributes in seen.elements if tag == "svg"]
    assert all(picture.get("role") == "img" or picture.get("aria-hidden") == "true" for picture in pictures)
    headings = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    heads = [attributes.get("scope") for tag, attributes in seen.elements if tag == "th"]
    assert set(heads) == {"col", "row"}
    ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    named = {attributes["aria-labelledby"] for _, attributes in seen.elements if "aria-labelledby" in attributes}
    assert len(ids) == len(set(ids))
    assert named <= set(ids)


def test_the_same_run_gives_the_same_bytes(bench: Any, written: Callable[..., str]) -> None:
    assert written(write_html, bench.mixed(gate=GATE)) == written(write_html, bench.mixed(gate=GATE))


@pytest.mark.parametrize("graders", [(), ("exact",)])
def test_a_run_without_answers_is_a_page_too(bench: Any, page: Callable[[Any], Page], graders: tuple[str, ...]) -> None:
    assert page(bench.report([], graders)).of("title")[0] == "Nothing graded: capitals"


def test_a_share_below_all_is_never_shown_as_100_percent(bench: Any, page: Callable[[Any], Page]) -> None:
    rows = [(Sample(str(n), "q"), bench.answer(), {"exact": bench.grade(float(n > 0))}) for n in range(2500)]
    seen = page(bench.report(rows))
    assert {"> 0.999", "> 99.9 %"} <= set(seen.of("strong"))


def test_the_traceback_and_the_prints_of_user_code_are_shown(bench: Any, page: Callable[[Any], Page]) -> None:
    trace = "Traceback (most recent call last):\n  File \"agent.py\", line 2, in answer\nKeyError: 'x'\n"
    error = ErrorInfo("agent_error", "KeyError: 'x' (agent.py:2 in answer)", Fault.AGENT, trace)
    failed = Response("error", error=error, output=f"before {bench.hostile}")
    grade = msgspec.structs.replace(bench.grade(0.0), output="graded")
    report = bench.report(
        [
            (Sample("a", "?"), failed, {"exact": bench.skipped()}),
            (Sample("b", "?"), Response(text="x", output="said"), {"exact": grade}),
        ]
    )
    seen = page(report)
    assert {"Traceback", "Printed by the agent", "Printed by the grader"} <= set(seen.of("h4"))
    shown = "".join(seen.of("pre"))
    assert trace.strip() in shown
    assert "before </pre>" in shown
    assert "said" in shown
    assert "graded" in shown
