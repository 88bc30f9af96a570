"""Calibrations in the store, and in files that carry them to other stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.judge_trust import read_calibration
from gradeline.errors import ConfigError, Problem
from gradeline.model import Storage
from gradeline.model.calibration import CALIBRATION, Calibration
from gradeline.model.text import quote
from gradeline.store.trust_records import TrustRecord, put_record, records
from gradeline.trust.calibration import with_state

FORMAT = "gradeline-calibrations"
VERSION = 1
MAX_BYTES = 64 * 1024 * 1024
_CLOCKS = timedelta(days=1)
"""How far the clocks of two machines may differ."""


class ImportedCalibrations(NamedTuple):
    """What an import changed."""

    added: list[Calibration]
    known: int
    """Records that the store already had."""


def store_calibration(storage: Storage, found: Calibration) -> int:
    """Add a calibration to the store durably and return its number."""
    body = msgspec.json.encode(found).decode()
    return put_record(
        storage, TrustRecord(CALIBRATION, found.suite, found.grader, found.judge_fingerprint, found.at, body)
    )


def stored_calibrations(storage: Storage, suite: str | None = None, grader: str | None = None) -> list[Calibration]:
    """All calibrations in the store, of a suite or of one of its graders, oldest first."""
    return list(_stored(storage, suite, grader))


def _stored(storage: Storage, suite: str | None, grader: str | None = None) -> Iterator[Calibration]:
    after = 0
    while page := records(storage, CALIBRATION, suite=suite, grader=grader, after=after):
        after = page[-1].n
        yield from (found for row in page if (found := read_calibration(row)) is not None)


def latest_calibrations(storage: Storage, suite: str | None = None) -> list[Calibration]:
    """The latest calibration of each judge of each grader, by labels of people and by each method; oldest first."""
    latest: dict[tuple[str, str, str, str | None], Calibration] = {}
    for found in _stored(storage, suite):
        key = (found.suite, found.grader, found.judge_fingerprint, found.against)
        latest.pop(key, None)  # so that it moves to the end
        latest[key] = found
    return list(latest.values())


def calibrations_text(found: Sequence[Calibration]) -> str:
    """The calibrations as the text of a file."""
    data = {"format": FORMAT, "version": VERSION, "calibrations": found}
    return msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"


def import_calibrations(storage: Storage, path: Path, now: datetime | None = None) -> ImportedCalibrations:
    """Add the calibrations of a file to a store; those that it has are skipped. `ConfigError` lists all faults.

    Nothing is added if any is invalid. The state of a record must follow from its numbers.
    """
    found = read_calibrations(path, datetime.now(UTC) if now is None else now)
    known = {_identity(one) for one in _stored(storage, None)}
    added = []
    for one in found:
        if _identity(one) not in known:
            known.add(_identity(one))
            store_calibration(storage, one)
            added.append(one)
    return ImportedCalibrations(added, len(found) - len(added))


def _identity(found: Calibration) -> tuple[str, ...]:
    return (found.suite, found.grader, found.judge_fingerprint, found.run, found.at, found.against or "")


class _CalibrationFile(msgspec.Struct, frozen=True):
    format: str = ""
    version: int = 0
    calibrations: list[Any] = []


def read_calibrations(path: Path, now: datetime) -> list[Calibration]:
    """The calibrations of a file; `ConfigError` lists all faults."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(Problem("", f"is larger than {MAX_BYTES // 2**20} MiB"), str(path))
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(Problem("", f"cannot be read: {error.strerror or error}"), str(path)) from None
    try:
        file = msgspec.json.decode(data, type=_CalibrationFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(Problem("", f"is not a file of gradeline calibrate --export: {error}"), str(path)) from None
    if file.format != FORMAT:
        raise ConfigError(Problem("format", f"expected {FORMAT}, got {quote(file.format)}"), str(path))
    if file.version != VERSION:
        raise ConfigError(Problem("version", f"expected {VERSION}, got {file.version}; update gradeline"), str(path))
    problems: list[Problem] = []
    found: list[Calibration] = []
    for number, given in enumerate(file.calibrations):
        place = f"calibrations[{number}]"
        try:
            one = msgspec.convert(given, Calibration)
        except msgspec.ValidationError as error:
            problems.append(Problem(place, str(error)))
            continue
        problems += [problem.within(place) for problem in _problems(one, now)]
        found.append(one)
    if problems:
        raise ConfigError(problems, str(path))
    return found


def _problems(found: Calibration, now: datetime) -> Iterator[Problem]:
    """What is wrong with a calibration whose fields have the right types."""
    if not found.judge:
        yield Problem("judge", "names no model")
    for name in ("suite", "grader", "judge_fingerprint"):
        if not getattr(found, name):
            yield Problem(name, "is empty")
    try:
        at = datetime.fromisoformat(found.at)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except ValueError:
        yield Problem("at", f"expected a time such as 2026-11-19T10:00:00Z, got {quote(found.at)}")
    else:
        if at > now + _CLOCKS:
            yield Problem("at", f"{quote(found.at)} is in the future")
    if min(found.labels, found.positives, found.negatives) < 0 or found.positives + found.negatives != found.labels:
        counts = f"{found.positives} that pass and {found.negatives} that fail"
        yield Problem("labels", f"{found.labels} labels are not {counts}")
    numbers = [found.missing_rate, *(value for value in (found.kappa_lower, found.agreement) if value is not None)]
    if not all(isfinite(number) and -1.0 <= number <= 1.0 for number in numbers):
        yield Problem("kappa_lower", "agreement, missing_rate and kappa_lower are shares of at most 1")
    for name, learned in (("panel", found.panel), ("selective", found.selective)):
        if learned is not None and not learned.consistent:
            yield Problem(name, "has lists of different lengths, so it is not what a calibration learned")
    state = with_state(found).state
    if found.state != state:
        yield Problem("state", f"{quote(found.state)} does not follow from the numbers, which give {quote(state)}")
