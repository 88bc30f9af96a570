"""A run as JUnit XML, for continuous integration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from gradeline.engine.aggregate import RunReport
from gradeline.errors import Outcome
from gradeline.report.formatting import reasons, truncate, visible
from gradeline.report.table import TableRow, result_rows

_MESSAGE = 500
_BODY = 4_000
_SPECIAL = re.compile(r"[&<>]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# parsers replace line breaks and tabs in attributes by spaces, unless they are entities
_IN_ATTRIBUTES = str.maketrans({'"': "&quot;", "\n": "&#10;", "\t": "&#9;"})


def write_junit(file: IO[str], *reports: RunReport) -> None:
    """One test suite for each run, one test for each (case, repeat, grader), in constant memory.

    The totals come from the summary; if a run is still in progress, more tests may follow than they count.
    Write the file as UTF-8.
    """
    file.write('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n')
    for report in reports:
        _write_suite(file, report)
    file.write("</testsuites>\n")


def _write_suite(file: IO[str], report: RunReport) -> None:
    run = report.run
    file.write(f"<testsuite{_attributes(name=run.name, **_totals(report), timestamp=run.started_at)}>\n<properties>\n")
    for name, value in _properties(report):
        file.write(f"<property{_attributes(name=name, value=value)}/>\n")
    file.write("</properties>\n")
    for row in result_rows(report.records(), run.graders):
        file.write(_test(row, run.suite, repeated=run.repeats > 1))
    file.write("</testsuite>\n")


def _totals(report: RunReport) -> dict[str, str]:
    columns = report.summary.graders.values()
    tests = sum(report.summary.responses.values()) * len(report.run.graders)
    failures = sum(column.failed for column in columns)
    errors = sum(column.errors for column in columns)
    # missing grades count as skipped too: JUnit has no other status for a test without a result
    skipped = tests - failures - errors - sum(column.passed for column in columns)
    numbers = {"tests": tests, "failures": failures, "errors": errors, "skipped": skipped}
    return {name: str(number) for name, number in numbers.items()}


def _properties(report: RunReport) -> Iterator[tuple[str, str]]:
    run = report.run
    yield from (("run", run.id), ("suite", run.suite), ("status", run.status))
    if run.variant is not None:
        yield "variant", run.variant
    yield from (("verdict", report.verdict.result), ("exit_code", str(report.exit_code)))
    for reason in reasons(report):
        yield "reason", reason
    for key, column in report.summary.graders.items():
        if column.orders is not None:
            yield "orders", f"{key}: {column.orders.sentence}"
        for sentence in column.corrections:
            yield "corrected", f"{key}: {sentence}"
        if column.calibration is not None:
            yield "calibration", f"{key}: {column.calibration.note}"
        for bias in column.biases:
            yield "probe", f"{key}: {bias}"


def _test(row: TableRow, suite: str, *, repeated: bool) -> str:
    record = row.record
    name = f"{record.case}#{record.repeat}" if repeated else record.case
    latency = record.response.latency_ms
    time = None if latency is None else f"{latency / 1000:.6f}"
    opening = f"<testcase{_attributes(classname=f'{suite}.{row.grader}', name=name, time=time)}"
    result = _result(row)
    return f"{opening}>{result}</testcase>\n" if result else f"{opening}/>\n"


def _result(row: TableRow) -> str:
    grade, error = row.grade, row.error
    if grade is not None and grade.outcome is Outcome.PASS:
        return ""
    if grade is not None and grade.outcome is Outcome.FAIL:
        summary = f"score {grade.score:g}" + (f": {grade.rationale}" if grade.rationale else "")
        head = _attributes(message=truncate(summary, _MESSAGE), type="fail")
        return f"<failure{head}>{_escaped(_evidence(row))}</failure>"
    if grade is not None and grade.error is not None:
        head = _attributes(message=truncate(grade.error.message, _MESSAGE), type=grade.error.type)
        return f"<error{head}>{_escaped(_evidence(row))}</error>"
    if error is not None:
        why = f"the agent's call failed ({error.type}, fault: {error.fault}): {error.message}"
        return f"<skipped{_attributes(message=truncate(why, _MESSAGE))}/>"
    why = "not graded yet" if grade is None else grade.rationale or "there was nothing to grade"
    return f"<skipped{_attributes(message=truncate(why, _MESSAGE))}/>"


def _evidence(row: TableRow) -> str:
    """The details of a result: the error's traceback, or the compared texts."""
    record, grade = row.record, row.grade
    error = None if grade is None else grade.error
    parts: dict[str, str | list[str] | None] = {
        "rationale": None if grade is None else grade.rationale,
        "fault": None if error is None else error.fault,
        "traceback": None if error is None else error.traceback,
        "input": record.sample.input,
        "expected": record.sample.ground_truth,
        "submission": record.submissions.get(row.grader),
    }
    return "\n".join(f"{name}: {truncate(_joined(value), _BODY)}" for name, value in parts.items() if value is not None)


def _joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "\n".join(value)


def _attributes(**values: str | None) -> str:
    return "".join(
        f' {name}="{_escaped(value).translate(_IN_ATTRIBUTES)}"' for name, value in values.items() if value is not None
    )


def _escaped(text: str) -> str:
    """Escaped for XML; characters that XML does not allow are made visible."""
    text = visible(text)
    return text.translate(_ENTITIES) if _SPECIAL.search(text) else text
