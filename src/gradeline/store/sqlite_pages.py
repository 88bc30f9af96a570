"""The statements that read a run's records from SQLite, page by page, each from where the one before ended."""

from __future__ import annotations

from functools import cache

from gradeline.errors import ORDER_DECIDED

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
_AFTER = "FROM responses WHERE run = ?1 AND (case_key, repeat) > (?2, ?3)"
COLUMNS_END = f"""
    SELECT * FROM (SELECT case_key, repeat {_AFTER} ORDER BY case_key, repeat LIMIT 1 OFFSET ?4 - 1)
    UNION ALL SELECT * FROM (SELECT case_key, repeat {_AFTER} ORDER BY case_key DESC, repeat DESC LIMIT 1) LIMIT 1
    """  # noqa: S608 - made of constants
_OF_PAGE = "WHERE run = ?1 AND (case_key, repeat) > (?2, ?3) AND (case_key, repeat) <= (?4, ?5)"
_RESPONSE_COLUMNS = f"SELECT {{columns}} FROM responses {_OF_PAGE} ORDER BY case_key, repeat"  # noqa: S608 - made of constants
_GRADE_COLUMNS = f"SELECT {{columns}} FROM grades {_OF_PAGE} ORDER BY case_key, repeat, grader"  # noqa: S608 - as is this
RESPONSE_COLUMNS = _RESPONSE_COLUMNS.format(columns="case_key, status, latency_ms, cost")
PLACED_RESPONSE_COLUMNS = f"""
    SELECT responses.case_key, status, latency_ms, cost, {_ASKED}, position FROM responses
    JOIN samples ON samples.run = responses.run AND samples.case_key = responses.case_key
    WHERE responses.run = ?1
        AND (responses.case_key, repeat) > (?2, ?3) AND (responses.case_key, repeat) <= (?4, ?5)
    ORDER BY responses.case_key, repeat"""  # noqa: S608 - as is this
GRADE_COLUMNS = _GRADE_COLUMNS.format(columns="case_key, grader, outcome, score, reported_error, cost")
UNNAMED_RESPONSE_COLUMNS = _RESPONSE_COLUMNS.format(columns="status, latency_ms, cost")
UNNAMED_GRADE_COLUMNS = _GRADE_COLUMNS.format(columns="grader, score, reported_error, cost")
GRADES = "SELECT grader, grade, submission FROM grades WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY grader"
_ORDER_DECIDED = f"json_extract(grade, '$.error.type') IS '{ORDER_DECIDED}'"
FINGERPRINTS = f"""
    SELECT grader, fingerprint, outcome = 'error' AND NOT {_ORDER_DECIDED} FROM grades
    WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY grader"""  # noqa: S608 - made of constants
ORDER_COUNTS = f"""
    SELECT grader, coalesce(sum(favoured IS 'first'), 0), coalesce(sum(favoured IS 'second'), 0) FROM (
        SELECT grader, json_extract(grade, '$.metadata.favoured') AS favoured FROM grades
        WHERE run = ? AND outcome = 'error' AND {_ORDER_DECIDED})
    GROUP BY grader"""  # noqa: S608 - made of constants


@cache
def keys_of_cases(number: int) -> str:
    """In no order; the run, then as many cases as said."""
    return f"{_JOINED.format(columns=_KEYS)} AND samples.case_key IN ({', '.join('?' * number)})"
