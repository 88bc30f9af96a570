"""A run's report as a person reads it: the table, the verdict, and the cases to look at first."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import NamedTuple

import click

from gradeline.cli.settings import Settings
from gradeline.cli.terminal import OUTCOME_STYLES, console, plain
from gradeline.engine.conclude import RunReport
from gradeline.errors import Outcome
from gradeline.model import Grade, Measure, Record, ResponseKey, Storage

WORST = 5


class WorstCase(NamedTuple):
    """A case that did not pass; the worst sort first: errors, then the lowest scores."""

    score: float
    position: int
    key: ResponseKey
    grader: str | None


def print_report(settings: Settings, report: RunReport, storage: Storage) -> None:
    """The table with every denominator, the verdict, then the worst cases."""
    from rich.table import Table  # 20 ms, only for people

    out = console(settings)
    run, summary, verdict = report.run, report.summary, report.verdict
    out.print(plain(f"{run.name}  {run.id}  {run.status}", "bold"))
    out.print(plain(_sentence(report)))
    # as wide as a terminal of 80 columns, with room for the grader's name
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for title in ("grader", "mean", "95 %", "rate", "95 %", "scored", "pass", "fail", "error", "skip"):
        table.add_column(title, justify="left" if title == "grader" else "right", no_wrap=title != "grader")
    for key, column in summary.graders.items():
        table.add_row(
            plain(key, "cyan"),
            _decimal(column.mean),
            _interval(column.mean_ci),
            _decimal(column.pass_rate),
            _interval(column.pass_rate_ci),
            f"{column.scored} of {column.total}",
            *(str(number) for number in (column.passed, column.failed, column.errors, column.skipped)),
        )
    out.print(table)
    _print_worst(settings, worst_cases(run.id, storage.measures(run.id)), storage)
    if verdict.result != "none":
        out.print(plain(f"verdict: {verdict.result}", f"bold {OUTCOME_STYLES.get(verdict.result, 'yellow')}"))
    for reason in verdict.reasons:
        out.print(plain(f"  {reason}"))


def _sentence(report: RunReport) -> str:
    parts = [report.summary.sentence]
    latency = report.summary.latency_ms
    if latency is not None:
        parts.append(f"{latency['p50']:,.0f} ms (p50), {latency['p95']:,.0f} ms (p95)")
    paid = [f"{who} {cost:.4g}" for who, cost in report.summary.cost.items() if cost is not None]
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
    from rich.table import Table

    if not cases:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title="worst cases", title_justify="left")
    table.add_column("case", max_width=24, no_wrap=True)
    table.add_column("grader", style="cyan", max_width=20, no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("why", overflow="fold")
    for case in cases:
        record = storage.get_record(case.key)
        if record is not None:
            name = case.key.case if record.repeat == 0 else f"{case.key.case} #{record.repeat}"
            word, why = _told(record, case.grader)
            style = OUTCOME_STYLES.get(word.split()[0], "yellow")
            table.add_row(
                plain(name), plain(case.grader or "–"), plain(word, style), plain(" ".join(why.split()), most=160)
            )
    console(settings).print(table)


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
    return grade.rationale or (f"submission: {submission}" if submission else "no answer")


def print_quietly(report: RunReport) -> None:
    click.echo(report.verdict.result)


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(value: tuple[float, float] | None) -> str:
    return "–" if value is None else f"{value[0]:.3f}–{value[1]:.3f}"
