"""How reports show text, numbers, counts and verdicts. A missing value is a dash, never a zero."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # every command imports this module: it must not load the engine
    from gradeline.engine.aggregate import GraderSummary, RunReport, Summary
    from gradeline.model import Run
    from gradeline.verdict.evidence import Clustering

MISSING = "–"

_CONTROL = ((0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F))
_BIDI = ((0x061C, 0x061C), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069))
_NO_CHARACTERS = ((0xD800, 0xDFFF), (0xFFFE, 0xFFFF))
_HIDDEN = re.compile(  # of ranges, which compile thirty times as fast as their two thousand characters
    f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in (*_CONTROL, *_BIDI, *_NO_CHARACTERS))}]"
)
_ESCAPES: dict[int, str] = {
    **{code: f"<{code:02X}>" for first, last in _CONTROL for code in range(first, last + 1)},
    **{code: f"<{code:04X}>" for first, last in _BIDI for code in range(first, last + 1)},
    **{code: "\ufffd" for first, last in _NO_CHARACTERS for code in range(first, last + 1)},
}
_MIN_CUT = 40
"""Truncating fewer characters would save less than its note takes."""
_KEY = 120
_NOTHING_GRADED = 4
_WORDS = {"pass": "Pass", "fail": "Fail", "undecided": "Undecided", "none": "No gate"}


def visible(text: str) -> str:
    """Untrusted text for a terminal, page or file: control, escape and bidi characters as ``<1B>``.

    Tabs and line ends stay; ``\\r\\n`` becomes ``\\n``.
    """
    text = text.replace("\r\n", "\n")
    return text.translate(_ESCAPES) if _HIDDEN.search(text) else text


def truncate(text: str, most: int) -> str:
    """The first ``most`` characters of a long text, with the number of characters left out."""
    if len(text) <= most + _MIN_CUT:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


def one_line(text: str, most: int) -> str:
    """Untrusted text on a single line, truncated, with line ends shown."""
    return visible(truncate(text.strip(), most)).replace("\n", " ↵ ").replace("\t", " ")


def decimal(value: float | None) -> str:
    """A score with three decimals; a value below 1 never reads as 1, one above 0 never as 0."""
    if value is None:
        return MISSING
    return _keep_apart(value, f"{value:.3f}", "1.000", "> 0.999", "0.000", "< 0.001")


def percent(value: float | None) -> str:
    """A share as a percentage; one below 1 never reads as 100 %, one above 0 never as 0 %."""
    if value is None:
        return MISSING
    return _keep_apart(value, f"{value * 100:.1f} %", "100.0 %", "> 99.9 %", "0.0 %", "< 0.1 %")


def _keep_apart(value: float, text: str, one: str, below_one: str, zero: str, above_zero: str) -> str:
    if text == one and value < 1.0:
        return below_one
    return above_zero if text == zero and value > 0.0 else text


def interval(bounds: tuple[float, float] | None) -> str:
    return MISSING if bounds is None else f"{bounds[0]:.3f} to {bounds[1]:.3f}"


def percent_interval(bounds: tuple[float, float] | None) -> str:
    return MISSING if bounds is None else f"{bounds[0] * 100:.1f} to {bounds[1] * 100:.1f} %"


def duration(milliseconds: float) -> str:
    """``812 ms``, ``2.14 s`` or ``3.5 min``."""
    if milliseconds < 1.0:
        return f"{milliseconds:.2g} ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.3g} s" if seconds < 60 else f"{seconds / 60:,.1f} min"


def count_noun(number: int, noun: str) -> str:
    """``1 case``, ``1,200 cases``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def costs(summary: Summary) -> Iterator[tuple[str, str, str]]:
    """Each known cost: its source (such as the agent), the amount, and what the amount leaves out."""
    for who, cost in summary.cost.items():
        if cost is not None:
            unknown = summary.cost_unknown if who == "agent" else 0
            note = f"without {count_noun(unknown, 'response')} of unknown cost" if unknown else ""
            yield who, f"{cost:.4g}", note


def outcome_word(outcome: str) -> str:
    """An outcome as people write it: ``not applicable``."""
    return outcome.replace("_", " ")


class OutcomeCount(NamedTuple):
    """The number of times a grader had an outcome."""

    outcome: str
    number: int


def outcome_counts(column: GraderSummary) -> list[OutcomeCount]:
    """The outcomes of a grader, which add up to its total; ``ungraded`` counts missing grades."""
    ungraded = column.total - column.scored - column.errors - column.skipped
    counts = {
        "pass": column.passed,
        "fail": column.failed,
        "error": column.errors,
        "skipped": column.skipped,
        "ungraded": max(0, ungraded),
    }
    return [OutcomeCount(outcome, number) for outcome, number in counts.items()]


class Headline(NamedTuple):
    """The label of the verdict, and its colour: ``pass``, ``fail``, ``undecided`` or ``none``."""

    word: str
    tone: str


def headline(report: RunReport) -> Headline:
    """The headline of a report."""
    result = report.verdict.result
    if report.exit_code == _NOTHING_GRADED:
        return Headline("Nothing graded", "undecided")
    # even without a gate a run can have a problem: too few scores, or an early end
    return Headline(_WORDS[result], "undecided" if result == "none" and report.verdict.reasons else result)


def reasons(report: RunReport) -> list[str]:
    """The reasons of the verdict, the most important first."""
    return [*report.verdict.reasons, *(_judge_doubts(report) if report.verdict.uncalibrated else ())]


def _judge_doubts(report: RunReport) -> Iterator[str]:
    """The judges that are not calibrated, where the verdict's own reasons do not name them."""
    from gradeline.verdict import JudgeDoubt  # loads all of verdict

    for key, column in report.summary.graders.items():
        if column.calibration is not None and column.calibration.state != "calibrated":
            reason = f"{key}: {JudgeDoubt(column.calibration.state, column.calibration.reason).sentence}"
            if not any(said.startswith(reason) for said in report.verdict.reasons):
                yield reason


def coverage(report: RunReport) -> tuple[str, str]:
    """The share of grades that have a score, with its numbers; that of the lowest grader if they differ."""
    columns = report.summary.graders
    if not any(column.total for column in columns.values()):
        return MISSING, "nothing to score"
    key, least = min(columns.items(), key=lambda entry: entry[1].scored / (entry[1].total or 1))
    by = f" by {truncate(key, _KEY)}" if len({column.scored for column in columns.values()}) > 1 else ""
    return percent(report.summary.coverage), f"{least.scored:,} of {least.total:,}{by}"


def case_count(report: RunReport) -> int:
    """The number of cases run so far."""
    return sum(report.summary.responses.values()) // max(1, report.run.repeats)


def clustering_of(report: RunReport) -> Clustering | None:
    """The cases run so far and their clusters; None if no case has one."""
    from gradeline.verdict.evidence import Clustering  # loads all of verdict

    clusters = report.summary.clusters
    return None if clusters is None else Clustering(case_count(report), clusters)


def run_title(run: Run) -> str:
    """The name of a run, with its variant unless the name says it."""
    if run.variant is None or run.name == run.variant or run.name.endswith(f"[{run.variant}]"):
        return run.name
    return f"{run.name}, variant {run.variant}"
