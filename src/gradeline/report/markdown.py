"""A run as Markdown for a pull request or the summary of a CI job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gradeline.engine.aggregate import GraderSummary, RunReport
from gradeline.report.formatting import (
    MISSING,
    case_count,
    clustering_of,
    costs,
    count_noun,
    coverage,
    decimal,
    duration,
    headline,
    interval,
    one_line,
    outcome_counts,
    percent,
    percent_interval,
    reasons,
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

LONGEST_COMMENT = 65_536
"""Maximum length of a comment on GitHub."""

_RESERVED = 500
_CELL = 160
_KEY = 80
_NOTE = 600
_MOST_REASONS = 10
_MOST_ERRORS = 10
_HEADING = 2
"""The lines of a table before its rows."""
_COUNTS = ("pass", "fail", "error", "skipped")
SIGNS = {"pass": "✅", "fail": "❌", "undecided": "⚠️", "none": "➖"}
_GROUPS: dict[CaseGroupName, str] = {
    "failed": "failed",
    "errors": "could not be graded",
    "calls": "got no answer",
    "low": "passed with less than a full score",
}

_SPECIAL = re.compile(r"[&<>|`*_~\[\]\\#@:$]")
_BLOCK_START = re.compile(r"^[-+=\d]")
_LINKS = re.compile(r"@|:(?=/)|(?<=www)(?=\.)|#(?=\d)", re.IGNORECASE)
_ZERO_WIDTH_SPACE = "\u200b"


def markdown(report: RunReport, worst: int = 10, heading: Iterable[str] | None = None) -> str:
    """The verdict, then every grader with its intervals and denominators, the errors, and the worst cases.

    Never longer than the limit of a comment. Untrusted text is escaped: it creates no markup, link or mention.
    The lines of ``heading``, which must be escaped already, replace the verdict.
    """
    limits: dict[CaseGroupName, int] = dict.fromkeys(_GROUPS, worst)
    seen = scan_records(report.records(), report.run.graders, limits, longest=_CELL)
    parts = [
        *(_opening(report) if heading is None else heading),
        *_graders(report.summary.graders),
        *_errors(seen.errors),
    ]
    room = LONGEST_COMMENT - _RESERVED - sum(len(part) + 1 for part in parts)
    rows = [_case_row(case, repeated=report.run.repeats > 1) for case in _first_cases(seen, worst)]
    return "\n".join([*parts, *_worst(seen.groups, rows, room)]).rstrip() + "\n"


def append_step_summary(text: str) -> bool:
    """Append to the summary of the current GitHub job; False if there is none."""
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return False
    with Path(name).open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)
    return True


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[str] = frozenset()) -> Iterator[str]:
    """The lines of a table; columns in ``numbers`` are right-aligned. Cells must be escaped already."""
    yield f"| {' | '.join(titles)} |"
    yield "|" + "".join("---:|" if title in numbers else "---|" for title in titles)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def words(text: str, most: int = _CELL) -> str:
    """Untrusted text on one line, without markup, table borders, links or mentions."""
    return _BLOCK_START.sub(_entity, _inert(text, most))


def code(text: str | None, most: int = _CELL) -> str:
    """Untrusted text as code; a dash for None."""
    if text is None:
        return MISSING
    return f"<code>{_inert(text, most)}</code>" if text.strip() else "*empty*"


def _inert(text: str, most: int) -> str:
    # GitHub finds links and mentions after it decodes entities
    return _SPECIAL.sub(_entity, _LINKS.sub(lambda found: found[0] + _ZERO_WIDTH_SPACE, one_line(text, most)))


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"


def _opening(report: RunReport) -> Iterator[str]:
    answer = headline(report)
    yield f"### {SIGNS[answer.tone]} {answer.word}: {code(report.run.name, _KEY)}"
    yield ""
    statements = reasons(report)
    yield from (f"- {words(reason, 300)}" for reason in statements[:_MOST_REASONS])
    if len(statements) > _MOST_REASONS:
        yield f"- and {count_noun(len(statements) - _MOST_REASONS, 'more reason')}"
    if statements:
        yield ""
    yield " · ".join(_facts(report))
    yield ""


def _facts(report: RunReport) -> Iterator[str]:
    summary, run = report.summary, report.run
    if run.variant is not None:
        yield f"variant {code(run.variant, _KEY)}"
    repeats = f" × {run.repeats}" if run.repeats > 1 else ""
    yield str(clustering_of(report) or count_noun(case_count(report), "case")) + repeats
    scored, of_all = coverage(report)
    yield f"{scored} scored ({_inert(of_all, _CELL)})"
    if summary.latency_ms is not None:
        yield f"p50 {duration(summary.latency_ms['p50'])}, p95 {duration(summary.latency_ms['p95'])}"
    for who, cost, note in costs(summary):
        yield f"{who}'s cost {cost}{f' ({note})' if note else ''}"
    yield f"run {code(run.id, _KEY)}"


def _graders(columns: dict[str, GraderSummary]) -> Iterator[str]:
    if not columns:
        return
    titles = ("grader", "mean", "95 % interval", "pass rate", "95 % interval", "scored", *_COUNTS)
    rows = (
        (
            code(key, _KEY),
            decimal(column.mean),
            interval(column.mean_ci),
            percent(column.pass_rate),
            percent_interval(column.pass_rate_ci),
            f"{column.scored:,} of {column.total:,}",
            *(f"{tally.number:,}" for tally in outcome_counts(column) if tally.outcome in _COUNTS),
        )
        for key, column in columns.items()
    )
    yield from table(titles, rows, frozenset(titles[1:]))
    yield ""
    notes = [
        f"- {code(key, _KEY)} {words(note, _NOTE) if note in column.corrections else note}"
        for key, column in columns.items()
        for note in column.notes
    ]
    if notes:
        yield from (*notes, "")


def _errors(errors: list[ErrorCount]) -> Iterator[str]:
    if not errors:
        return
    total = sum(one.times for one in errors)
    yield f"**{count_noun(total, 'error')}**, not included in means and rates:"
    yield ""
    rows = (
        (
            f"{one.times:,}",
            code(one.kind.type, _KEY),
            "agent's call" if one.kind.grader is None else f"grader {code(one.kind.grader, _KEY)}",
            words(one.kind.fault),
            code(one.example),
        )
        for one in errors[:_MOST_ERRORS]
    )
    yield from table(("count", "error", "where", "fault", "first message"), rows, frozenset({"count"}))
    if len(errors) > _MOST_ERRORS:
        yield ""
        yield f"and {count_noun(len(errors) - _MOST_ERRORS, 'more kind')} of error"
    yield ""


def _first_cases(seen: Overview, most: int) -> list[ReportedCase]:
    return [case for group in seen.groups.values() for case in group.cases][:most]


def _worst(groups: dict[CaseGroupName, CaseGroup], rows: Iterable[Sequence[str]], room: int) -> Iterator[str]:
    """The worst cases, as many as fit into ``room`` characters."""
    lines = list(table(("case", "result", "input", "expected", "answer", "why"), rows))
    while len(lines) > _HEADING and sum(len(line) + 1 for line in lines) > room:
        lines.pop()
    if len(lines) > _HEADING:
        yield f"<details><summary>{_counts(groups)}; {len(lines) - _HEADING} shown</summary>"
        yield from ("", *lines, "", "</details>")


def _counts(groups: dict[CaseGroupName, CaseGroup]) -> str:
    counts = [f"{group.total:,} {_GROUPS[name]}" for name, group in groups.items() if group.total]
    return "Worst cases: " + ", ".join(counts)


def _case_row(case: ReportedCase, *, repeated: bool) -> tuple[str, ...]:
    name = f"{case.case}#{case.repeat}" if repeated else case.case
    results = [_result(grade) for grade in case.grades if _is_shown(grade)]
    return (
        code(name, _KEY),
        "<br>".join(results) or "no answer",
        _turns(case.input),
        _turns(case.expected),
        code(case.answer),
        code(_why(case)),
    )


def _is_shown(grade: ReportedGrade) -> bool:
    if grade.outcome == "pass":
        return (grade.score or 0.0) < 1.0
    return grade.outcome != "not_applicable"


def _result(grade: ReportedGrade) -> str:
    shown = grade.outcome if grade.score is None else f"{grade.outcome} {decimal(grade.score)}"
    return f"{code(grade.grader, _KEY)} {shown}"


def _turns(texts: tuple[str, ...]) -> str:
    return code("\n".join(texts)) if texts else MISSING


def _why(case: ReportedCase) -> str | None:
    """The first explanation: the call's error, the rationale of a failed grade, or a grader's error."""
    rationales = [grade.rationale for grade in case.grades if grade.outcome == "fail" and grade.rationale]
    errors = [case.error, *(grade.error for grade in case.grades)]
    messages = [f"{error.type}: {error.message}" for error in errors if error is not None]
    return next(iter(messages if case.error is not None else rationales + messages), None)
