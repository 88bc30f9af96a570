"""The statements that read a run's records from SQLite, page by page, each from where the one before ended."""

from __future__ import annotations

from functools import cache

PAGE_ROWS = 200
MEASURES_AT_ONCE = 1000
PAGE_CHARS = 4_000_000
CASES_AT_ONCE = 500
"""In one statement; older builds of SQLite take no more than 999 values."""
BEGINNING = (-1, "", -1)

_JOINED = """
    SELECT samples.position, samples.case_key, responses.repeat, {columns}
    FROM samples JOIN responses ON responses.run = samples.run AND responses.case_key = samples.case_key
    WHERE samples.run = ?1"""
_PAGE = f"""{_JOINED} AND samples.position >= ?2
        AND (samples.position, samples.case_key, responses.repeat) > (?2, ?3, ?4)
    ORDER BY samples.position, samples.case_key, responses.repeat LIMIT ?5"""
_MEASURE_PAGE = """
    SELECT page.*, grades.grader, grades.outcome, grades.score, grades.reported_error, grades.cost
    FROM ({page}) AS page LEFT JOIN grades
        ON grades.run = ?6 AND grades.case_key = page.case_key AND grades.repeat = page.repeat
    ORDER BY page.position, page.case_key, page.repeat, grades.grader"""
_MEASURED = "responses.status, responses.latency_ms, responses.cost"
_ASKED = "coalesce(responses.digest, samples.sample)"
"""What an older version stored has no digest; its sample does as well."""
_KEYS = f"responses.status, {_ASKED}"

SAMPLE_PAGE = """
    SELECT position, case_key, sample FROM samples WHERE run = ? AND (position, case_key) > (?, ?)
    ORDER BY position, case_key LIMIT ?"""
RECORD_PAGE = _PAGE.format(columns="samples.sample, responses.response")
KEY_PAGE = _PAGE.format(columns=_KEYS)
MEASURES = _MEASURE_PAGE.format(page=_PAGE.format(columns=f"{_MEASURED}, ''"))
MEASURES_WITH_DIGESTS = _MEASURE_PAGE.format(page=_PAGE.format(columns=f"{_MEASURED}, {_ASKED}"))
COLUMNS_AT_ONCE = 2000
RESPONSE_COLUMNS = """
    SELECT case_key, status, latency_ms, cost, repeat FROM responses WHERE run = ?1 AND (case_key, repeat) > (?2, ?3)
    ORDER BY case_key, repeat LIMIT ?4"""
GRADE_COLUMNS = """
    SELECT case_key, grader, outcome, score, reported_error, cost FROM grades
    WHERE run = ?1 AND (case_key, repeat) > (?2, ?3) AND (case_key, repeat) <= (?4, ?5)
    ORDER BY case_key, repeat, grader"""
GRADES = "SELECT grader, grade, submission FROM grades WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY grader"
FINGERPRINTS = (
    "SELECT grader, fingerprint, outcome FROM grades WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY grader"
)


@cache
def keys_of_cases(number: int) -> str:
    """In no order; the run, then as many cases as said."""
    return f"{_JOINED.format(columns=_KEYS)} AND samples.case_key IN ({', '.join('?' * number)})"
