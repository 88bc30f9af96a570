"""The part of the page that shows cases: what was asked, what was expected, what came, and what was said of it."""

from __future__ import annotations

from collections.abc import Iterator

from gradeline.report.html_elements import Html, element, together
from gradeline.report.overview import CaseSeen, GradeSeen, Group, GroupName, Overview
from gradeline.report.visible import cut, one_line
from gradeline.report.wording import counted, decimal, duration

_KEY = 120
_TEASER = 160
_GROUPS: dict[GroupName, tuple[str, str]] = {
    "failed": ("Failed", "The lowest scores first."),
    "errors": ("Could not be graded", "No grader failed these, but one broke: they have no score from it."),
    "calls": ("No answer", "The agent's call failed: there was nothing to grade, and nothing counts as zero."),
    "low": ("Passed, with less than a full score", "The lowest scores first."),
}
MARKS = {"pass": "✓", "fail": "✕", "error": "!", "skipped": "–"}


def cases_section(seen: Overview, *, repeated: bool) -> Iterator[Html]:
    """The groups of cases, each with how many are left out; ``repeated`` says that a case has several answers."""
    groups = {name: group for name, group in seen.groups.items() if group.total}
    if not groups:
        return
    yield Html('<section aria-labelledby="cases">')
    yield element("h2", "Cases to read", id="cases")
    first = True
    for name, group in groups.items():
        yield _group_heading(name, group)
        for case in group.cases:
            # one open case shows what is in all of them
            yield _case(case, opened=first, repeated=repeated)
            first = False
    yield Html("</section>")


def _group_heading(name: GroupName, group: Group) -> Html:
    title, explained = _GROUPS[name]
    shown = f"{explained} {len(group.cases):,} of {group.total:,} shown." if group.left_out else explained
    heading = element("h3", title, " ", element("span", f"{group.total:,}", class_="count"))
    return element("div", heading, element("p", shown, class_="note"), class_="group")


def _case(case: CaseSeen, *, opened: bool, repeated: bool) -> Html:
    name = element("bdi", cut(case.case, _KEY), class_="case")
    repeat = element("span", f"repeat {case.repeat}", class_="repeat") if repeated else Html("")
    chips = [_chip(grade) for grade in case.grades] or [element("span", "no grade", class_="chip chip-skipped")]
    teaser = element("bdi", one_line(next(iter(case.input), ""), _TEASER), class_="teaser")
    line = element("summary", name, repeat, element("span", *chips, class_="chips"), teaser)
    texts = element("div", *_texts(case), class_="texts")
    # what needs a person's eye stands before what passed
    grades = sorted(case.grades, key=lambda grade: grade.outcome == "pass")
    return element("details", line, element("div", texts, *map(_grade, grades), class_="body"), open=opened)


def _chip(grade: GradeSeen) -> Html:
    said = grade.outcome if grade.score is None else decimal(grade.score)
    mark = element("span", MARKS[grade.outcome], aria_hidden="true")
    label = f"{grade.outcome}: " if grade.score is not None else ""
    spoken = element("span", label, class_="unseen")
    return element("span", mark, " ", cut(grade.grader, _KEY), " ", spoken, said, class_=f"chip chip-{grade.outcome}")


def _texts(case: CaseSeen) -> Iterator[Html]:
    yield _turns("Input", case.input)
    if case.expected:
        yield _turns("Expected", case.expected)
    if case.error is not None:
        told = f"{case.error.type}, fault: {case.error.fault}\n{case.error.message}"
        yield _block("The call failed", told)
        if case.error.traceback:
            yield _block("Traceback", case.error.traceback)
    if case.answer is not None or case.error is None:
        taken = f" after {duration(case.latency_ms)}" if case.latency_ms is not None else ""
        yield _block(f"Answer{taken}", case.answer or "")
    if case.tool_calls:
        yield _block(counted(len(case.tool_calls), "tool call"), "\n".join(case.tool_calls))
    if case.output:
        yield _block("Printed by the agent", case.output)


def _turns(title: str, texts: tuple[str, ...]) -> Html:
    if len(texts) == 1:
        return _block(title, texts[0])
    return together(*(_block(f"{title}, turn {index}", text) for index, text in enumerate(texts, start=1)))


def _grade(grade: GradeSeen) -> Html:
    """What one grader said, as far as it said more than its score."""
    parts: list[Html] = []
    if grade.submission is not None:
        parts.append(_block("Graded text", grade.submission))
    if grade.rationale:
        parts.append(_block("Rationale", grade.rationale))
    if grade.error is not None:
        parts.append(_block(f"{grade.error.type}, fault: {grade.error.fault}", grade.error.message))
        if grade.error.traceback:
            parts.append(_block("Traceback", grade.error.traceback))
    if grade.output:
        parts.append(_block("Printed by the grader", grade.output))
    if not parts:
        return Html("")
    return element("div", element("div", _chip(grade)), element("div", *parts, class_="texts"), class_="grade")


def _block(title: str, text: str) -> Html:
    heading = element("h4", title)
    if not text:
        return element("div", heading, element("p", "empty", class_="note"), class_="text")
    # a parser drops the line end behind <pre>, so the text's own first one stays
    return element("div", heading, element("pre", Html("\n"), text, dir="auto", tabindex="0"), class_="text")
