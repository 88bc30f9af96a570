"""Outcomes of routed requests: read from a file, stored with their requests and in the quality ledger."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.errors import ConfigError, Problem
from gradeline.model import Storage
from gradeline.model.observation import Observation, new_observation, utc_text
from gradeline.model.route import LoggedRequest, RequestOutcome
from gradeline.model.text import quote
from gradeline.store.route_log import create_route_tables, put_outcomes, requests_by_id
from gradeline.suite.document import decode_utf8
from gradeline.trust.route_file import RouteFile

LABEL = "label"
JUDGE = "judge:"
"""Beginning of the source of a judge's verdicts; its fingerprint follows."""
_COLUMNS = ("id", "passed", "score", "source")
_MAX_BYTES = 100_000_000
_MAX_PROBLEMS = 20
_WORDS = {"pass": 1.0, "true": 1.0, "1": 1.0, "fail": 0.0, "false": 0.0, "0": 0.0}


class _OutcomeRow(NamedTuple):
    place: str
    values: Mapping[str, Any]


def read_outcomes(path: Path, at: datetime | None = None) -> list[RequestOutcome]:
    """The outcomes in a CSV or JSONL file: ``id`` of the request, ``passed`` or ``score``, and maybe ``source``.

    `ConfigError` lists unknown columns, invalid values and requests with two different outcomes, each with its line.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    if len(raw) > _MAX_BYTES:
        raise ConfigError(Problem(str(path), f"is larger than {_MAX_BYTES // 1_000_000} MB; split it"))
    text = decode_utf8(raw, str(path))
    rows = list(_csv_rows(text, path) if path.suffix.lower() == ".csv" else _json_rows(text, path))
    when = utc_text(at or datetime.now(UTC))
    problems: list[Problem] = []
    found: dict[tuple[str, str], RequestOutcome] = {}
    for row in rows:
        outcome = _outcome(row, when, problems)
        if outcome is None:
            continue
        before = found.setdefault((outcome.id, outcome.source), outcome)
        if before.score != outcome.score:
            problems.append(Problem(row.place, f"request {quote(outcome.id)} has another outcome in an earlier row"))
    if problems:
        more = len(problems) - _MAX_PROBLEMS
        shown = problems[:_MAX_PROBLEMS]
        raise ConfigError(
            [*shown, Problem(str(path), f"{more} more faults")] if more > 0 else shown, "invalid outcomes"
        )
    return list(found.values())


def record_outcomes(storage: Storage, route: RouteFile, outcomes: Sequence[RequestOutcome]) -> int:
    """Store the outcomes, and add those of candidates to the quality ledger; returns the number of outcomes.

    `ConfigError` names requests that this route has not logged; then nothing is stored.
    """
    database = create_route_tables(storage)
    known = requests_by_id(database, route.route, [one.id for one in outcomes])
    unknown = [one.id for one in outcomes if one.id not in known]
    if unknown:
        named = ", ".join(quote(one) for one in unknown[:5])
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise ConfigError(Problem("id", f"the route {quote(route.route)} has logged no request {named}{more}"))
    put_outcomes(database, outcomes)
    storage.put_observations(list(_observations(route, known, outcomes)))
    return len(outcomes)


def _observations(
    route: RouteFile, known: Mapping[str, LoggedRequest], outcomes: Sequence[RequestOutcome]
) -> Iterator[Observation]:
    for outcome in outcomes:
        request = known[outcome.id]
        if request.served_by not in (None, route.baseline.name):
            yield _observation(route, request, outcome)


def _observation(route: RouteFile, request: LoggedRequest, outcome: RequestOutcome) -> Observation:
    is_label = outcome.source == LABEL
    return new_observation(
        task_family=request.family or route.route,
        baseline_adapter=route.baseline.name,
        candidate_adapter=request.served_by or request.arm,
        grader_id=LABEL if is_label else route.grader,
        grader_fingerprint=outcome.source.removeprefix(JUDGE),
        score=outcome.score,
        baseline_digest="",
        candidate_digest="",
        cost=request.cost,
        latency_ms=request.latency_ms,
        calibration_state="calibrated" if is_label else "uncalibrated",
        observed_at=request.at,
        idempotency_key=f"route:{request.id}:{outcome.source}:{outcome.score}",
        case_key=request.id,
    )


def _csv_rows(text: str, path: Path) -> Iterator[_OutcomeRow]:
    table = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        header = next(table, [])
        _check_columns(header, f"{path}:1")
        for values in table:
            if len(values) > len(header):
                raise ConfigError(
                    Problem(f"{path}:{table.line_num}", f"has {len(values)} cells, the header {len(header)}")
                )
            filled = {name: value for name, value in zip(header, values, strict=False) if value != ""}
            if filled:
                yield _OutcomeRow(f"{path}:{table.line_num}", filled)
    except csv.Error as error:
        raise ConfigError(Problem(f"{path}:{table.line_num}", f"not CSV: {error}")) from None


def _json_rows(text: str, path: Path) -> Iterator[_OutcomeRow]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigError(Problem(place, f"not a JSON object: {quote(line, 80)}")) from None
        if not isinstance(values, dict):
            raise ConfigError(
                Problem(place, f'expected an object such as {{"id": …, "passed": true}}, got {quote(values, 80)}')
            )
        _check_columns(list(values), place)
        yield _OutcomeRow(place, {name: value for name, value in values.items() if value is not None})


def _check_columns(names: Sequence[str], place: str) -> None:
    unknown = [name for name in names if name not in _COLUMNS]
    missing = [] if "id" in names else ["id"]
    if not {"passed", "score"} & set(names):
        missing.append("passed or score")
    if unknown or missing:
        faults = [f"unknown column {quote(name)}" for name in unknown] + [f"no column {name}" for name in missing]
        raise ConfigError(Problem(place, f"{'; '.join(faults)}; the columns are {', '.join(_COLUMNS)}"))


def _outcome(row: _OutcomeRow, at: str, problems: list[Problem]) -> RequestOutcome | None:
    before = len(problems)
    request = row.values.get("id")
    if not isinstance(request, str) or not request.strip():
        problems.append(Problem(row.place, f"expected the id of a request, got {quote(request)}"))
    given = [name for name in ("passed", "score") if name in row.values]
    if len(given) != 1:
        problems.append(Problem(row.place, "write either passed or score"))
    score = _score(row.values.get(given[0]), given[0]) if len(given) == 1 else None
    if len(given) == 1 and score is None:
        expected = "pass, fail, true or false" if given[0] == "passed" else "a number from 0 to 1"
        problems.append(Problem(row.place, f"{given[0]}: expected {expected}, got {quote(row.values[given[0]])}"))
    source = row.values.get("source", LABEL)
    if source != LABEL and not (isinstance(source, str) and source.startswith(JUDGE) and source != JUDGE):
        problems.append(Problem(row.place, f"source: expected {LABEL} or {JUDGE}FINGERPRINT, got {quote(source)}"))
    if len(problems) > before or score is None:
        return None
    return RequestOutcome(str(request).strip(), score, str(source), at)


def _score(value: object, name: str) -> float | None:
    if isinstance(value, bool):
        return float(value) if name == "passed" else None
    if name == "passed":
        return _WORDS.get(str(value).strip().lower())
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
    except (ValueError, OverflowError):
        return None
    return number if 0.0 <= number <= 1.0 else None
