"""Numbers, counts and verdicts as people read them. What is missing is a dash, never a zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradeline.engine.aggregate import GraderSummary, Summary
from gradeline.engine.conclude import RunReport
from gradeline.report.visible import cut
from gradeline.verdict.columns import Clustering

MISSING = "–"
_KEY = 120


def decimal(value: float | None) -> str:
    """A score to three digits; what falls short of 1 never reads as 1."""
    if value is None:
        return MISSING
    return _short_of(value, f"{value:.3f}", "1.000", "> 0.999", "0.000", "< 0.001")


def share(value: float | None) -> str:
    """A share as a percentage; what falls short of all never reads as all."""
    if value is None:
        return MISSING
    return _short_of(value, f"{value * 100:.1f} %", "100.0 %", "> 99.9 %", "0.0 %", "< 0.1 %")


def _short_of(value: float, shown: str, whole: str, almost: str, none: str, hardly: str) -> str:
    if shown == whole and value < 1.0:
        return almost
    return hardly if shown == none and value > 0.0 else shown


def interval(bounds: tuple[float, float] | None) -> str:
    return MISSING if bounds is None else f"{bounds[0]:.3f} to {bounds[1]:.3f}"


def share_interval(bounds: tuple[float, float] | None) -> str:
    return MISSING if bounds is None else f"{bounds[0] * 100:.1f} to {bounds[1] * 100:.1f} %"


def duration(milliseconds: float) -> str:
    """``812 ms``, ``2.14 s`` or ``3.5 min``."""
    if milliseconds < 1.0:
        return f"{milliseconds:.2g} ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.3g} s" if seconds < 60 else f"{seconds / 60:,.1f} min"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 case``, ``1,200 cases``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def costs(summary: Summary) -> Iterator[tuple[str, str, str]]:
    """Who cost how much, and what the sum leaves out; nothing for what is unknown altogether."""
    for who, cost in summary.cost.items():
        if cost is not None:
            left_out = summary.cost_unknown if who == "agent" else 0
            note = f"without {counted(left_out, 'answer')} of unknown cost" if left_out else ""
            yield who, f"{cost:.4g}", note


class Tally(NamedTuple):
    """One outcome of a grader's column, with how often it came."""

    outcome: str
    number: int


def tallies(column: GraderSummary) -> list[Tally]:
    """The outcomes of a column: together they are its total. ``ungraded`` is what no grader has seen yet."""
    ungraded = column.total - column.scored - column.errors - column.skipped
    named = {
        "pass": column.passed,
        "fail": column.failed,
        "error": column.errors,
        "skipped": column.skipped,
        "ungraded": max(0, ungraded),
    }
    return [Tally(outcome, number) for outcome, number in named.items()]


class Headline(NamedTuple):
    """The answer in a word, and the colour it has: ``pass``, ``fail``, ``undecided`` or ``none``."""

    word: str
    tone: str


_NOTHING_GRADED = 4
_WORDS = {"pass": "Pass", "fail": "Fail", "undecided": "Undecided", "none": "No gate"}


def headline(report: RunReport) -> Headline:
    """What a report opens with."""
    result = report.verdict.result
    if report.exit_code == _NOTHING_GRADED:
        return Headline("Nothing graded", "undecided")
    # without a gate there is still something to worry about: too few scores, or an end that came too early
    return Headline(_WORDS[result], "undecided" if result == "none" and report.verdict.reasons else result)


def reasons(report: RunReport) -> list[str]:
    """Why, the first reason first."""
    told = list(report.verdict.reasons)
    if report.verdict.uncalibrated:
        told.append("a judge that is not calibrated had a say")
    return told


def coverage(report: RunReport) -> tuple[str, str]:
    """The share of grades that have a score, and what it is a share of: the least of the graders where they differ."""
    columns = report.summary.graders
    if not any(column.total for column in columns.values()):
        return MISSING, "there is nothing to score"
    key, least = min(columns.items(), key=lambda entry: entry[1].scored / (entry[1].total or 1))
    by = f" by {cut(key, _KEY)}" if len({column.scored for column in columns.values()}) > 1 else ""
    return share(report.summary.coverage), f"{least.scored:,} of {least.total:,}{by}"


def cases_of(report: RunReport) -> int:
    """How many cases were asked so far."""
    return sum(report.summary.responses.values()) // max(1, report.run.repeats)


def clustering_of(report: RunReport) -> Clustering | None:
    """The cases that were asked so far with their clusters; None where no case has one."""
    clusters = report.summary.clusters
    return None if clusters is None else Clustering(cases_of(report), clusters)
