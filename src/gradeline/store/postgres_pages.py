"""The statements that read a run's records page by page, each from where the one before ended.

A record's grades come in the same statement as its response, so that both are of one moment.
"""

from __future__ import annotations

from gradeline.errors import ORDER_DECIDED

PAGE_ROWS = 500
MEASURES_AT_ONCE = 2000
PAGE_BYTES = 4_000_000
BEGINNING = (-1, "", -1)

_JOINED = """
    SELECT samples.position, samples.case_key, responses.repeat, {columns}
    FROM samples CROSS JOIN LATERAL (
        SELECT * FROM responses WHERE responses.run = samples.run AND responses.case_key = samples.case_key OFFSET 0
    ) AS responses
    WHERE samples.run = $1"""
"""The offset keeps the database to one case after the other. Where it thinks that few are left, which is long before
the end of a run, it would else read all responses for each page, and sort them."""
_PAGE = f"""{_JOINED}
        AND (samples.position, samples.case_key) >= ($2, $3)
        AND (samples.position, samples.case_key, responses.repeat) > ($2, $3, $4)
    ORDER BY samples.position, samples.case_key, responses.repeat LIMIT $5"""
_WITH_GRADES = """
    SELECT page.*, found.* FROM ({page}) AS page LEFT JOIN LATERAL (
        SELECT {grades} FROM grades
        WHERE grades.run = {owner} AND grades.case_key = page.case_key AND grades.repeat = page.repeat
    ) AS found ON true
    ORDER BY page.position, page.case_key, page.repeat"""
_GRADES = """
    array_agg(grader ORDER BY grader) AS graders, array_agg(grade ORDER BY grader) AS grades,
    array_agg(submission ORDER BY grader) AS submissions"""
_BOUNDED = f"""
    SELECT position, case_key, repeat, sample, response FROM (
        SELECT *, sum(size) OVER (ORDER BY position, case_key, repeat ROWS UNBOUNDED PRECEDING) - size AS before FROM (
            {_PAGE.format(columns="sample, response, octet_length(sample)::bigint + octet_length(response) AS size")}
        ) AS sized
    ) AS bounded WHERE before < {PAGE_BYTES}"""  # noqa: S608 - made of constants

SAMPLE_PAGE = """
    SELECT position, case_key, sample FROM samples WHERE run = $1 AND (position, case_key) > ($2, $3)
    ORDER BY position, case_key LIMIT $4"""
RECORD_PAGE = _WITH_GRADES.format(page=_BOUNDED, grades=_GRADES, owner="$6")
"""Cut where its texts pass `PAGE_BYTES`, so that large answers do not gather in memory."""
_KEYS = "responses.status, responses.digest"
_ORDER_DECIDED = f"CASE WHEN outcome = 'error' THEN grade::json #>> '{{error,type}}' = '{ORDER_DECIDED}' END"
_FINGERPRINTS = f"""
    array_agg(grader ORDER BY grader) AS graders, array_agg(fingerprint ORDER BY grader) AS fingerprints,
    array_agg(grader) FILTER (WHERE outcome = 'error' AND {_ORDER_DECIDED} IS NOT TRUE) AS errors"""
KEY_PAGE = _WITH_GRADES.format(page=_PAGE.format(columns=_KEYS), grades=_FINGERPRINTS, owner="$6")
KEYS_OF_CASES = _WITH_GRADES.format(
    page=f"{_JOINED.format(columns=_KEYS)} AND samples.case_key = ANY ($2::text[])", grades=_FINGERPRINTS, owner="$3"
)
MEASURE_PAGE = _WITH_GRADES.format(
    page=_PAGE.format(columns="responses.status, responses.latency_ms, responses.cost, responses.digest"),
    grades="""
        array_agg(grader ORDER BY grader) AS graders, array_agg(outcome ORDER BY grader) AS outcomes,
        array_agg(score ORDER BY grader) AS scores, array_agg(reported_error ORDER BY grader) AS reported,
        array_agg(cost ORDER BY grader) AS costs""",
    owner="$6",
)
COLUMNS_AT_ONCE = 10_000
RESPONSE_COLUMNS = """
    SELECT array_agg(case_key), array_agg(status), array_agg(latency_ms), array_agg(cost), array_agg(repeat) FROM (
        SELECT case_key, status, latency_ms, cost, repeat FROM responses
        WHERE run = $1 AND (case_key, repeat) > ($2, $3) ORDER BY case_key, repeat LIMIT $4) AS page"""
PLACED_RESPONSE_COLUMNS = """
    SELECT array_agg(case_key), array_agg(status), array_agg(latency_ms), array_agg(cost), array_agg(repeat),
        array_agg(digest), array_agg(position) FROM (
        SELECT responses.case_key, status, latency_ms, cost, repeat, responses.digest, samples.position FROM responses
        JOIN samples ON samples.run = responses.run AND samples.case_key = responses.case_key
        WHERE responses.run = $1 AND (responses.case_key, repeat) > ($2, $3)
        ORDER BY responses.case_key, repeat LIMIT $4) AS page"""
GRADE_COLUMNS = """
    SELECT array_agg(case_key), array_agg(grader), array_agg(outcome), array_agg(score), array_agg(reported_error),
        array_agg(cost) FROM (
        SELECT case_key, grader, outcome, score, reported_error, cost FROM grades
        WHERE run = $1 AND case_key BETWEEN $2 AND $4
            AND (case_key, repeat) > ($2, $3) AND (case_key, repeat) <= ($4, $5)
        ORDER BY case_key, repeat, grader) AS page"""
"""How few lie between two cases the database sees only where it is asked for cases alone."""
RECORD = f"""
    SELECT samples.sample, responses.response, found.* FROM responses JOIN samples USING (run, case_key)
    JOIN runs ON runs.id = responses.run LEFT JOIN LATERAL (
        SELECT {_GRADES} FROM grades WHERE grades.run = $4 AND grades.case_key = $2 AND grades.repeat = $3
    ) AS found ON true
    WHERE responses.run = $1 AND responses.case_key = $2 AND responses.repeat = $3"""  # noqa: S608 - made of constants
ORDER_COUNTS = f"""
    SELECT grader, count(*) FILTER (WHERE favoured = 'first'), count(*) FILTER (WHERE favoured = 'second') FROM (
        SELECT grader, grade::json #>> '{{metadata,favoured}}' AS favoured FROM grades
        WHERE run = $1 AND outcome = 'error' AND {_ORDER_DECIDED}) AS decided
    GROUP BY grader"""  # noqa: S608 - made of constants
