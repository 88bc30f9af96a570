"""A run as a self-contained HTML file, without scripts or external resources."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO

from gradeline import __version__
from gradeline.engine.aggregate import GraderSummary, RunReport
from gradeline.report.formatting import (
    MISSING,
    case_count,
    costs,
    count_noun,
    coverage,
    decimal,
    duration,
    headline,
    interval,
    one_line,
    outcome_counts,
    outcome_word,
    percent,
    percent_interval,
    reasons,
    truncate,
)
from gradeline.report.html_elements import (
    Html,
    concatenate,
    element,
    interval_plot,
    latency_histogram,
    outcome_bar,
    scale_labels,
    scale_of,
    score_histogram,
)
from gradeline.report.overview import (
    CaseGroup,
    CaseGroupName,
    ErrorCount,
    Overview,
    ReportedCase,
    ReportedGrade,
    scan_records,
)
from gradeline.verdict import GateResult

_TEASER = 160
_GROUPS: dict[CaseGroupName, tuple[str, str]] = {
    "failed": ("Failed", "The lowest scores first."),
    "errors": ("Could not be graded", "No grader failed these, but one broke: they have no score from it."),
    "calls": ("No answer", "The agent's call failed: there was nothing to grade, and nothing counts as zero."),
    "low": ("Passed, with less than a full score", "The lowest scores first."),
}
MARKS = {"pass": "✓", "fail": "✕", "error": "!", "skipped": "–", "not_applicable": "n/a"}


def cases_section(seen: Overview, *, repeated: bool) -> Iterator[Html]:
    """The groups of cases with their totals; ``repeated``: show the number of the repeat."""
    groups = {name: group for name, group in seen.groups.items() if group.total}
    if not groups:
        return
    yield Html('<section aria-labelledby="cases">')
    yield element("h2", "Cases to read", id="cases")
    first = True
    for name, group in groups.items():
        yield _group_heading(name, group)
        for case in group.cases:
            # one open case shows what the others contain
            yield _case(case, opened=first, repeated=repeated)
            first = False
    yield Html("</section>")


def _group_heading(name: CaseGroupName, group: CaseGroup) -> Html:
    title, explained = _GROUPS[name]
    shown = f"{explained} {len(group.cases):,} of {group.total:,} shown." if group.left_out else explained
    heading = element("h3", title, " ", element("span", f"{group.total:,}", class_="count"))
    return element("div", heading, element("p", shown, class_="note"), class_="group")


def _case(case: ReportedCase, *, opened: bool, repeated: bool) -> Html:
    name = element("bdi", truncate(case.case, _KEY), class_="case")
    repeat = element("span", f"repeat {case.repeat}", class_="repeat") if repeated else Html("")
    chips = [_chip(grade) for grade in case.grades] or [element("span", "no grade", class_="chip chip-skipped")]
    teaser = element("bdi", one_line(next(iter(case.input), ""), _TEASER), class_="teaser")
    line = element("summary", name, repeat, element("span", *chips, class_="chips"), teaser)
    texts = element("div", *_texts(case), class_="texts")
    # grades that did not pass come first
    grades = sorted(case.grades, key=lambda grade: grade.outcome == "pass")
    return element("details", line, element("div", texts, *map(_grade, grades), class_="body"), open=opened)


def _chip(grade: ReportedGrade) -> Html:
    value = outcome_word(grade.outcome) if grade.score is None else decimal(grade.score)
    mark = element("span", MARKS[grade.outcome], aria_hidden="true")
    label = f"{grade.outcome}: " if grade.score is not None else ""
    spoken = element("span", label, class_="unseen")
    return element(
        "span", mark, " ", truncate(grade.grader, _KEY), " ", spoken, value, class_=f"chip chip-{grade.outcome}"
    )


def _texts(case: ReportedCase) -> Iterator[Html]:
    yield _turns("Input", case.input)
    if case.expected:
        yield _turns("Expected", case.expected)
    if case.error is not None:
        yield _block("The call failed", f"{case.error.type}, fault: {case.error.fault}\n{case.error.message}")
        if case.error.traceback:
            yield _block("Traceback", case.error.traceback)
    if case.answer is not None or case.error is None:
        taken = f" after {duration(case.latency_ms)}" if case.latency_ms is not None else ""
        yield _block(f"Answer{taken}", case.answer or "")
    if case.tool_calls:
        yield _block(count_noun(len(case.tool_calls), "tool call"), "\n".join(case.tool_calls))
    if case.documents is not None:
        yield _block("Retrieved documents", "\n\n".join(case.documents))
    if case.output:
        yield _block("Printed by the agent", case.output)


def _turns(title: str, texts: tuple[str, ...]) -> Html:
    if len(texts) == 1:
        return _block(title, texts[0])
    return concatenate(*(_block(f"{title}, turn {index}", text) for index, text in enumerate(texts, start=1)))


def _grade(grade: ReportedGrade) -> Html:
    """The details of a grade; empty if it only has a score."""
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
    # parsers drop a line break after <pre>; the additional one preserves that of the text
    return element("div", heading, element("pre", Html("\n"), text, dir="auto", tabindex="0"), class_="text")


LIMITS: dict[CaseGroupName, int] = {"failed": 300, "errors": 90, "calls": 90, "low": 20}
"""Maximum number of cases shown per group."""

_LONGEST = 8_000
_KEY = 120
_SIGNS = {"pass": "✓", "fail": "✕", "undecided": "?", "none": "–"}
_OPERATORS = {"gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "eq": "="}


def write_html(file: IO[str], report: RunReport) -> None:
    """Write the page. It is the same for the same run; the worst cases are shown, the others counted."""
    seen = scan_records(report.records(), report.run.graders, LIMITS, _LONGEST)
    for piece in _page(report, seen):
        file.write(piece)
        file.write("\n")


def _page(report: RunReport, seen: Overview) -> Iterator[str]:
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    title = f"{headline(report).word}: {truncate(report.run.name, _KEY)}"
    yield '<!doctype html>\n<html lang="en">\n<head>'
    yield element("meta", charset="utf-8")
    yield element("meta", http_equiv="Content-Security-Policy", content=_policy(style))
    yield element("meta", name="viewport", content="width=device-width, initial-scale=1")
    yield element("meta", name="color-scheme", content="light dark")
    yield element("meta", name="referrer", content="no-referrer")
    yield element("title", title)
    yield f"<style>{style}</style>\n</head>\n<body>"
    yield _masthead(report)
    yield "<main>"
    yield _verdict(report)
    yield from _graders(report)
    yield from _spread(report, seen)
    yield from _errors(seen.errors)
    yield from cases_section(seen, repeated=report.run.repeats > 1)
    yield _about(report)
    yield "</main>\n</body>\n</html>"


def _policy(style: str) -> str:
    """A content security policy that only allows the page's own styles."""
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _masthead(report: RunReport) -> Html:
    run = report.run
    name = element("h1", element("bdi", truncate(run.name, _KEY)))
    when = run.completed_at or run.started_at
    parts = [f"suite {truncate(run.suite, _KEY)}"] if run.suite != run.name else []
    parts += [run.status, *([_moment(when)] if when else [])]
    return element("header", element("div", name, element("p", " · ".join(parts), class_="note")))


def _moment(time: str) -> str:
    """A time as ``2026-03-02 09:16 UTC``; other text unchanged."""
    return f"{time[:10]} {time[11:16]} UTC" if len(time) >= 16 and time[10] == "T" else time


def _verdict(report: RunReport) -> Html:
    answer, statements = headline(report), reasons(report)
    sign = element("span", _SIGNS[answer.tone], class_="sign", aria_hidden="true")
    word = element("h2", sign, element("span", answer.word), class_="word")
    lead = element("p", statements[0] if statements else report.summary.sentence, class_="lead")
    gates = list(_gates(report.verdict.gates))
    in_gates = set(_gate_reasons(report.verdict.gates)) if gates else set()
    rest = [element("li", reason) for reason in statements[1:] if reason not in in_gates]
    listed = [element("ul", *rest, class_="reasons")] if rest else []
    bounds = [element("div", *gates, class_="gates", role="list", aria_label="Gates")] if gates else []
    facts = element("dl", *_facts(report), class_="facts")
    return element("section", word, lead, *listed, *bounds, facts, class_=f"verdict tone-{answer.tone}")


def _gates(gates: tuple[GateResult, ...]) -> Iterator[Html]:
    """Each gate that compares a number, with its bound."""
    for gate in gates:
        if gate.conditions:
            yield from _gates(gate.conditions)
        elif gate.value is not None:
            yield _gate(gate)


def _gate_reasons(gates: tuple[GateResult, ...]) -> Iterator[str]:
    for gate in gates:
        yield from gate.reasons
        yield from _gate_reasons(gate.conditions)


def _gate(gate: GateResult) -> Html:
    subject = " ".join(part for part in (gate.metric_key or gate.kind.replace("_", " "), gate.aggregation) if part)
    claim = f"{truncate(subject, _KEY)} {_OPERATORS.get(gate.op, gate.op)} {gate.value:g}"
    seen = decimal(gate.observed) if gate.observed is None or gate.observed >= 0 else f"{gate.observed:.3f}"
    within = f" ({interval(gate.observed_ci)})" if gate.observed_ci else ""
    numbers = [number for number in (gate.observed, gate.value, *(gate.observed_ci or ())) if number is not None]
    scale = scale_of(numbers)
    title = f"{claim}: observed {seen}{within}"
    plot = Html("")
    if scale is not None:
        drawn = interval_plot(title, gate.observed, gate.observed_ci, gate.value, scale, f"tone-{gate.result}")
        plot = element("div", drawn, scale_labels(scale))
    # the first reason of a simple gate repeats the row
    notes = gate.reasons[1:] if gate.kind == "simple" and gate.observed is not None else gate.reasons
    return element(
        "div",
        element("span", element("span", _SIGNS[gate.result], aria_hidden="true"), f" {gate.result}", class_="result"),
        element("span", claim, class_="claim"),
        plot,
        element("span", seen, element("small", within), class_="observed"),
        *(element("p", note, class_="note") for note in notes),
        class_=f"gate gate-{gate.result}",
        role="listitem",
    )


def _facts(report: RunReport) -> Iterator[Html]:
    summary, run = report.summary, report.run
    answered, asked = summary.responses.get("success", 0), sum(summary.responses.values())
    repeats = f"{run.repeats} repeats each" if run.repeats > 1 else "1 repeat each"
    clusters = "" if summary.clusters is None else f"in {count_noun(summary.clusters, 'cluster')}, "
    yield _fact("Cases", f"{case_count(report):,}", clusters + repeats)
    failed = [count_noun(count, status) for status, count in summary.responses.items() if count and status != "success"]
    yield _fact("Answered", f"{answered:,} of {asked:,}", ", ".join(failed) or "no call failed")
    if summary.graders:
        yield _fact("Scored", *coverage(report))
    if summary.latency_ms is not None:
        yield _fact("Answer time", duration(summary.latency_ms["p50"]), f"p95 {duration(summary.latency_ms['p95'])}")
    for who, cost, note in costs(summary):
        yield _fact(f"Cost, {who}", cost, note or "sum of known costs")


def _fact(name: str, value: str, note: str) -> Html:
    return element("div", element("dt", name), element("dd", value, element("small", note)))


def _graders(report: RunReport) -> Iterator[Html]:
    columns = report.summary.graders
    if not columns:
        return
    yield Html('<section aria-labelledby="graders">')
    yield element("h2", "Graders", id="graders")
    plot_head = concatenate(element("span", "95 % interval of the mean", class_="unseen"), scale_labels())
    titles = ("Grader", "Mean score", plot_head, "Pass rate", "Outcomes")
    head = element("tr", *(element("th", title, scope="col", role="columnheader") for title in titles), role="row")
    body = (_grader_row(key, column) for key, column in columns.items())
    yield element(
        "table",
        element("thead", head, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        class_="graders",
        role="table",
        aria_labelledby="graders",
    )
    note = (
        "Intervals are 95 %. Errors, skipped cases and cases to which a grader does not apply have no score: they are"
        " in no mean and no rate."
    )
    yield element("p", note, class_="note")
    yield Html("</section>")


def _grader_row(key: str, column: GraderSummary) -> Html:
    name = concatenate(
        element("bdi", truncate(key, _KEY), class_="key"),
        element("small", ", ".join((column.kind, *column.notes))),
    )
    mean, rate = decimal(column.mean), percent(column.pass_rate)
    mean_within, rate_within = interval(column.mean_ci), percent_interval(column.pass_rate_ci)
    title = f"mean score of {truncate(key, _KEY)}: {mean}, 95 % interval {mean_within}"
    counts = outcome_counts(column)
    return element(
        "tr",
        element("th", name, scope="row", role="rowheader"),
        _cell("Mean score", element("strong", mean), element("small", mean_within)),
        element("td", interval_plot(title, column.mean, column.mean_ci), scale_labels(), class_="plot", role="cell"),
        _cell("Pass rate", element("strong", rate), element("small", rate_within)),
        element(
            "td",
            outcome_bar(f"outcomes of {truncate(key, _KEY)}, {column.total:,} in all", counts),
            element("span", *_legend(column), class_="legend"),
            class_="outcomes",
            role="cell",
        ),
        role="row",
    )


def _cell(label: str, *children: Html) -> Html:
    named = element("span", label, class_="label", aria_hidden="true")
    return element("td", named, element("span", *children, class_="number"), role="cell")


def _legend(column: GraderSummary) -> Iterator[Html]:
    for outcome, count in outcome_counts(column):
        if count:
            swatch = element("span", MARKS.get(outcome, "·"), class_=f"mark mark-{outcome}", aria_hidden="true")
            yield element("span", swatch, f" {count:,} {outcome}")
    yield element("span", f"{column.scored:,} of {column.total:,} scored", class_="scored")


def _spread(report: RunReport, seen: Overview) -> Iterator[Html]:
    """Histograms of each grader's scores, and of the agent's latency."""
    figures = list(_figures(report, seen))
    if figures:
        heading = element("h2", "Distribution", id="spread")
        grid = element("div", *figures, class_="figures")
        yield element("section", heading, grid, aria_labelledby="spread")


def _figures(report: RunReport, seen: Overview) -> Iterator[Html]:
    for key, column in report.summary.graders.items():
        bins = seen.scores[key]
        if sum(bins):
            name = truncate(key, _KEY)
            note = f"{count_noun(sum(bins), 'score')} of {column.total:,}"
            yield _figure(name, note, score_histogram(f"scores of {name} from 0 to 1", bins))
    latency = report.summary.latency_ms
    if latency is not None:
        marks = {f"{name} {duration(latency[name])}": latency[name] for name in ("p50", "p95")}
        chart = latency_histogram("response time, on a logarithmic scale", seen.latencies, marks)
        if chart is not None:
            note = f"{count_noun(sum(seen.latencies), 'answered call')}, log scale"
            yield _figure("Answer time", note, chart)


def _figure(name: str, note: str, chart: Html) -> Html:
    caption = element("figcaption", element("bdi", name, class_="key"), element("small", note))
    return element("figure", caption, chart)


def _errors(errors: list[ErrorCount]) -> Iterator[Html]:
    if not errors:
        return
    titles = ("Count", "Error", "Where", "Fault", "First message")
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    body = (
        element(
            "tr",
            element("td", f"{one.times:,}", class_="count"),
            element("td", element("code", one.kind.type)),
            element("td", "agent's call" if one.kind.grader is None else f"grader {truncate(one.kind.grader, _KEY)}"),
            element("td", one.kind.fault),
            element("td", element("bdi", one.example), class_="message"),
        )
        for one in errors
    )
    yield Html('<section aria-labelledby="errors">')
    yield element("h2", "Errors", id="errors")
    listed = element("table", element("thead", head), element("tbody", *body), aria_labelledby="errors")
    yield element("div", listed, class_="wide", tabindex="0", role="region", aria_labelledby="errors")
    yield Html("</section>")


def _about(report: RunReport) -> Html:
    run = report.run
    facts = {
        "Run": run.id,
        "Suite": run.suite,
        "Target": ", ".join(f"{key}: {value}" for key, value in run.target.items()),
        "Variant": run.variant,
        "Group": run.group,
        "Regrades": run.parent,
        "Seed": None if run.seed is None else str(run.seed),
        "Started": run.started_at,
        "Completed": run.completed_at,
        "Exit code": str(report.exit_code),
        "Written by": f"gradeline {__version__}",
    }
    listed = [
        element("div", element("dt", name), element("dd", element("bdi", truncate(value, 500))))
        for name, value in facts.items()
        if value
    ]
    prints = [
        element(
            "div", element("dt", f"Fingerprint of {truncate(key, _KEY)}"), element("dd", column.fingerprint or MISSING)
        )
        for key, column in report.summary.graders.items()
    ]
    heading = element("h2", "About this run", id="about")
    return element("section", heading, element("dl", *listed, *prints, class_="about"), aria_labelledby="about")
