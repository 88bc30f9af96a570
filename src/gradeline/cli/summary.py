"""A run's report as a person reads it: the table, the verdict, and the cases to look at first."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

import click

from gradeline.cli.code_errors import print_code_errors
from gradeline.cli.settings import Settings
from gradeline.cli.tables import Column, print_table
from gradeline.cli.terminal import OUTCOME_STYLES, console, plain
from gradeline.engine.conclude import RunReport
from gradeline.errors import Outcome
from gradeline.model import Grade, Measure, Record, ResponseKey, Storage
from gradeline.report.wording import clustering_of, costs

if TYPE_CHECKING:
    from rich.text import Text

WORST = 5
_GRADERS = (
    Column("grader", wraps=True, key=True),
    *(Column(title, right=True) for title in ("mean", "95 %", "rate", "95 %", "scored")),
    *(Column(title, right=True) for title in ("pass", "fail", "error", "skip")),
)
_WORST = (
    Column("case", wraps=True, key=True, most=32),
    Column("grader", wraps=True, key=True, most=32),
    Column(""),
    Column("why", wraps=True),
)


class WorstCase(NamedTuple):
    """A case that did not pass; the worst sort first: errors, then the lowest scores."""

    score: float
    position: int
    key: ResponseKey
    grader: str | None


def print_report(settings: Settings, report: RunReport, storage: Storage) -> None:
    """The table with every denominator, the verdict, then the worst cases."""
    out = console(settings)
    run, summary, verdict = report.run, report.summary, report.verdict
    out.print(plain(f"{run.name}  {run.id}  {run.status}", "bold"))
    out.print(plain(_sentence(report)))
    rows: list[tuple[Text | str, ...]] = [
        (
            plain(key, "cyan"),
            _decimal(column.mean),
            _interval(column.mean_ci),
            _decimal(column.pass_rate),
            _interval(column.pass_rate_ci),
            f"{column.scored} of {column.total}",
            *(str(number) for number in (column.passed, column.failed, column.errors, column.skipped)),
        )
        for key, column in summary.graders.items()
    ]
    print_table(out, _GRADERS, rows, gap=1)  # fits a terminal of 80 columns
    for key, column in summary.graders.items():
        for note in column.notes:
            out.print(plain(f"{key}: {note}"))
    _print_worst(settings, worst_cases(run.id, storage.measures(run.id)), storage)
    if verdict.result != "none":
        out.print(plain(f"verdict: {verdict.result}", f"bold {OUTCOME_STYLES.get(verdict.result, 'yellow')}"))
    for reason in verdict.reasons:
        out.print(plain(f"  {reason}"))


def _sentence(report: RunReport) -> str:
    parts = [report.summary.sentence]
    clustering = clustering_of(report)
    if clustering is not None:
        parts.append(str(clustering))
    latency = report.summary.latency_ms
    if latency is not None:
        parts.append(f"{latency['p50']:,.0f} ms (p50), {latency['p95']:,.0f} ms (p95)")
    paid = [f"{who} {cost}{f' ({note})' if note else ''}" for who, cost, note in costs(report.summary)]
    if paid:
        parts.append(f"cost: {', '.join(paid)}")
    return ", ".join(parts)


def worst_cases(run: str, measures: Iterable[Measure], most: int = WORST) -> list[WorstCase]:
    """The cases to look at first: failed calls and errors, then the lowest scores."""

    def not_passed() -> Iterable[WorstCase]:
        for position, one in enumerate(measures):
            key = ResponseKey(run, one.case, one.repeat)
            if one.status != "success":
                yield WorstCase(-2.0, position, key, None)
                continue
            for grader, grade in one.grades.items():
                if grade.outcome is Outcome.ERROR:
                    yield WorstCase(-1.0, position, key, grader)
                elif grade.outcome is Outcome.FAIL and grade.score is not None:
                    yield WorstCase(grade.score, position, key, grader)

    return nsmallest(most, not_passed(), key=lambda case: (case.score, case.position))


def _print_worst(settings: Settings, cases: list[WorstCase], storage: Storage) -> None:
    if not cases:
        return
    found = [(record, case.grader) for case in cases if (record := storage.get_record(case.key)) is not None]
    rows = []
    for record, grader in found:
        name = record.case if record.repeat == 0 else f"{record.case} #{record.repeat}"
        word, why = _told(record, grader)
        style = OUTCOME_STYLES.get(word.split()[0], "yellow")
        reason = plain(" ".join(why.split()), most=160)
        rows.append((plain(name), plain(grader or "–", "cyan"), plain(word, style), reason))
    out = console(settings)
    print_table(out, _WORST, rows, title="worst cases")
    print_code_errors(out, found)


def _told(record: Record, grader: str | None) -> tuple[str, str]:
    """What became of it in a word, and why."""
    if grader is None:
        error = record.response.error
        return "call", "" if error is None else f"{error.type}: {error.message}"
    grade = record.grades[grader]
    if grade.error is not None:
        return "error", f"{grade.error.type}: {grade.error.message}"
    return f"fail {grade.score:.2f}", _reason(grade, record.submissions.get(grader))


def _reason(grade: Grade, submission: str | None) -> str:
    reason = grade.rationale or (f"submission: {submission}" if submission else "no answer")
    return f"{reason} (every turn must pass)" if grade.metadata.get("turns") == "all" else reason


def print_quietly(report: RunReport) -> None:
    click.echo(report.verdict.result)


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(value: tuple[float, float] | None) -> str:
    return "–" if value is None else f"{value[0]:.3f}–{value[1]:.3f}"
