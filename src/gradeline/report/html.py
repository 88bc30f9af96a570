"""A run as one HTML file: no script, nothing loaded, the verdict first."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO

from gradeline import __version__
from gradeline.engine.aggregate import GraderSummary
from gradeline.engine.conclude import RunReport
from gradeline.report.html_cases import MARKS, cases_section
from gradeline.report.html_charts import (
    interval_plot,
    latency_histogram,
    outcome_bar,
    scale_labels,
    scale_of,
    score_histogram,
)
from gradeline.report.html_elements import Html, element, together
from gradeline.report.overview import ErrorTally, GroupName, Overview, look_over
from gradeline.report.visible import cut
from gradeline.report.wording import (
    MISSING,
    cases_of,
    costs,
    counted,
    coverage,
    decimal,
    duration,
    headline,
    interval,
    reasons,
    share,
    share_interval,
    tallies,
)
from gradeline.verdict import GateResult

LIMITS: dict[GroupName, int] = {"failed": 300, "errors": 90, "calls": 90, "low": 20}
"""How many cases of each group are shown in full."""

_LONGEST = 8_000
_KEY = 120
_SIGNS = {"pass": "✓", "fail": "✕", "undecided": "?", "none": "–"}
_OPERATORS = {"gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "eq": "="}


def write_html(file: IO[str], report: RunReport) -> None:
    """Write the page as UTF-8. The same run gives the same bytes; the worst cases are shown, the others counted."""
    seen = look_over(report.records(), report.run.graders, LIMITS, _LONGEST)
    for piece in _page(report, seen):
        file.write(piece)
        file.write("\n")


def _page(report: RunReport, seen: Overview) -> Iterator[str]:
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    title = f"{headline(report).word}: {cut(report.run.name, _KEY)}"
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
    """Nothing may be loaded or run; of styles only the page's own."""
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _masthead(report: RunReport) -> Html:
    run = report.run
    name = element("h1", element("bdi", cut(run.name, _KEY)))
    when = run.completed_at or run.started_at
    parts = [f"suite {cut(run.suite, _KEY)}"] if run.suite != run.name else []
    parts += [run.status, *([_moment(when)] if when else [])]
    return element("header", element("div", name, element("p", " · ".join(parts), class_="note")))


def _moment(time: str) -> str:
    """``2026-03-02 09:16 UTC``, as far as the text is a time."""
    return f"{time[:10]} {time[11:16]} UTC" if len(time) >= 16 and time[10] == "T" else time


def _verdict(report: RunReport) -> Html:
    answer, told = headline(report), reasons(report)
    sign = element("span", _SIGNS[answer.tone], class_="sign", aria_hidden="true")
    word = element("h2", sign, element("span", answer.word), class_="word")
    lead = element("p", told[0] if told else report.summary.sentence, class_="lead")
    gates = list(_gates(report.verdict.gates))
    beside = set(_told_by(report.verdict.gates)) if gates else set()
    rest = [element("li", reason) for reason in told[1:] if reason not in beside]
    listed = [element("ul", *rest, class_="reasons")] if rest else []
    bounds = [element("div", *gates, class_="gates", role="list", aria_label="Gates")] if gates else []
    facts = element("dl", *_facts(report), class_="facts")
    return element("section", word, lead, *listed, *bounds, facts, class_=f"verdict tone-{answer.tone}")


def _gates(gates: tuple[GateResult, ...]) -> Iterator[Html]:
    """Each gate that compares a number, with that number beside its bound."""
    for gate in gates:
        if gate.conditions:
            yield from _gates(gate.conditions)
        elif gate.value is not None:
            yield _gate(gate)


def _told_by(gates: tuple[GateResult, ...]) -> Iterator[str]:
    for gate in gates:
        yield from gate.reasons
        yield from _told_by(gate.conditions)


def _gate(gate: GateResult) -> Html:
    subject = " ".join(part for part in (gate.metric_key or gate.kind.replace("_", " "), gate.aggregation) if part)
    said = f"{cut(subject, _KEY)} {_OPERATORS.get(gate.op, gate.op)} {gate.value:g}"
    seen = decimal(gate.observed) if gate.observed is None or gate.observed >= 0 else f"{gate.observed:.3f}"
    within = f" ({interval(gate.observed_ci)})" if gate.observed_ci else ""
    numbers = [number for number in (gate.observed, gate.value, *(gate.observed_ci or ())) if number is not None]
    scale = scale_of(numbers)
    title = f"{said}: observed {seen}{within}"
    plot = Html("")
    if scale is not None:
        drawn = interval_plot(title, gate.observed, gate.observed_ci, gate.value, scale, f"tone-{gate.result}")
        plot = element("div", drawn, scale_labels(scale))
    # the first reason of a simple gate says what the row shows
    notes = gate.reasons[1:] if gate.kind == "simple" and gate.observed is not None else gate.reasons
    return element(
        "div",
        element("span", element("span", _SIGNS[gate.result], aria_hidden="true"), f" {gate.result}", class_="result"),
        element("span", said, class_="claim"),
        plot,
        element("span", seen, element("small", within), class_="observed"),
        *(element("p", note, class_="note") for note in notes),
        class_=f"gate gate-{gate.result}",
        role="listitem",
    )


def _facts(report: RunReport) -> Iterator[Html]:
    summary, run = report.summary, report.run
    answered, asked = summary.responses.get("success", 0), sum(summary.responses.values())
    repeats = f"{run.repeats} repeats each" if run.repeats > 1 else "asked once each"
    clusters = "" if summary.clusters is None else f"in {counted(summary.clusters, 'cluster')}, "
    yield _fact("Cases", f"{cases_of(report):,}", clusters + repeats)
    failed = [counted(count, status) for status, count in summary.responses.items() if count and status != "success"]
    yield _fact("Answered", f"{answered:,} of {asked:,}", ", ".join(failed) or "no call failed")
    if summary.graders:
        yield _fact("Scored", *coverage(report))
    if summary.latency_ms is not None:
        yield _fact("Answer time", duration(summary.latency_ms["p50"]), f"p95 {duration(summary.latency_ms['p95'])}")
    for who, cost, note in costs(summary):
        yield _fact(f"Cost, {who}", cost, note or "the sum of what is known")


def _fact(name: str, value: str, beside: str) -> Html:
    return element("div", element("dt", name), element("dd", value, element("small", beside)))


def _graders(report: RunReport) -> Iterator[Html]:
    columns = report.summary.graders
    if not columns:
        return
    yield Html('<section aria-labelledby="graders">')
    yield element("h2", "Graders", id="graders")
    plot_head = together(element("span", "95 % interval of the mean", class_="unseen"), scale_labels())
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
    note = "Intervals are 95 %. Errors and skipped cases have no score: they are in no mean and no rate."
    yield element("p", note, class_="note")
    yield Html("</section>")


def _grader_row(key: str, column: GraderSummary) -> Html:
    name = together(
        element("bdi", cut(key, _KEY), class_="key"),
        element("small", ", ".join((column.kind, *column.notes))),
    )
    mean, rate = decimal(column.mean), share(column.pass_rate)
    mean_within, rate_within = interval(column.mean_ci), share_interval(column.pass_rate_ci)
    title = f"mean score of {cut(key, _KEY)}: {mean}, 95 % interval {mean_within}"
    counts = tallies(column)
    return element(
        "tr",
        element("th", name, scope="row", role="rowheader"),
        _cell("Mean score", element("strong", mean), element("small", mean_within)),
        element("td", interval_plot(title, column.mean, column.mean_ci), scale_labels(), class_="plot", role="cell"),
        _cell("Pass rate", element("strong", rate), element("small", rate_within)),
        element(
            "td",
            outcome_bar(f"outcomes of {cut(key, _KEY)}, {column.total:,} in all", counts),
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
    for outcome, count in tallies(column):
        if count:
            swatch = element("span", MARKS.get(outcome, "·"), class_=f"mark mark-{outcome}", aria_hidden="true")
            yield element("span", swatch, f" {count:,} {outcome}")
    yield element("span", f"{column.scored:,} of {column.total:,} scored", class_="scored")


def _spread(report: RunReport, seen: Overview) -> Iterator[Html]:
    """How the scores of each grader lie, and how long the agent took."""
    figures = list(_figures(report, seen))
    if figures:
        heading = element("h2", "Distribution", id="spread")
        grid = element("div", *figures, class_="figures")
        yield element("section", heading, grid, aria_labelledby="spread")


def _figures(report: RunReport, seen: Overview) -> Iterator[Html]:
    for key, column in report.summary.graders.items():
        bins = seen.scores[key]
        if sum(bins):
            name = cut(key, _KEY)
            beside = f"{counted(sum(bins), 'score')} of {column.total:,}"
            yield _figure(name, beside, score_histogram(f"scores of {name} from 0 to 1", bins))
    latency = report.summary.latency_ms
    if latency is not None:
        marks = {f"{name} {duration(latency[name])}": latency[name] for name in ("p50", "p95")}
        chart = latency_histogram("time to answer, on a logarithmic scale", seen.latencies, marks)
        if chart is not None:
            beside = f"{counted(sum(seen.latencies), 'answered call')}, log scale"
            yield _figure("Answer time", beside, chart)


def _figure(name: str, beside: str, chart: Html) -> Html:
    caption = element("figcaption", element("bdi", name, class_="key"), element("small", beside))
    return element("figure", caption, chart)


def _errors(errors: list[ErrorTally]) -> Iterator[Html]:
    if not errors:
        return
    titles = ("Count", "Error", "Where", "Fault", "First message")
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    body = (
        element(
            "tr",
            element("td", f"{one.times:,}", class_="count"),
            element("td", element("code", one.kind.type)),
            element("td", "agent's call" if one.kind.grader is None else f"grader {cut(one.kind.grader, _KEY)}"),
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
        "Group": run.group,
        "Regrades": run.parent,
        "Seed": None if run.seed is None else str(run.seed),
        "Started": run.started_at,
        "Completed": run.completed_at,
        "Exit code": str(report.exit_code),
        "Written by": f"gradeline {__version__}",
    }
    listed = [
        element("div", element("dt", name), element("dd", element("bdi", cut(value, 500))))
        for name, value in facts.items()
        if value
    ]
    prints = [
        element("div", element("dt", f"Fingerprint of {cut(key, _KEY)}"), element("dd", column.fingerprint or MISSING))
        for key, column in report.summary.graders.items()
    ]
    heading = element("h2", "About this run", id="about")
    return element("section", heading, element("dl", *listed, *prints, class_="about"), aria_labelledby="about")
