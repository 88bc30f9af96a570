"""Graded cases from a JSONL file: a sample a line, with the submission to grade."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradeline.errors import ConfigError, DataError, Problem
from gradeline.model import Sample, clean_data, clean_text, quote
from gradeline.parsing.jsontext import NotJsonError, parse_json

_OWN = frozenset({"id", "sample_id", "input", "ground_truth", "submission", "metadata", "tags"})


def read_cases(path: Path) -> Iterator[tuple[Sample, str]]:
    """Samples and their submissions, read as they are asked for.

    A line is ``{"input", "ground_truth", "submission", "metadata"}``; only the submission is
    required, and further keys go into the metadata. `ConfigError` names file and line.
    """
    seen: set[str] = set()
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                text = clean_text(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).text.strip()
                if text:
                    yield _read_row(text, f"{path}:{number}", len(seen), seen)
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}")) from None


def _read_row(text: str, place: str, index: int, seen: set[str]) -> tuple[Sample, str]:
    try:
        row = clean_data(parse_json(text))
    except (NotJsonError, DataError) as error:
        raise ConfigError(Problem(place, f"not JSON: {error}, got {quote(text)}")) from None
    if not isinstance(row, dict):
        raise ConfigError(Problem(place, f'expected {{"input": …, "submission": …}}, got {quote(row)}'))
    faults = list(_faults(row, place))
    if faults:
        raise ConfigError(faults)
    metadata = {**row.get("metadata", {}), **{key: value for key, value in row.items() if key not in _OWN}}
    sample = Sample(
        id=_identity(row, index),
        input=_text(row.get("input", "")),
        ground_truth=None if row.get("ground_truth") is None else _text(row["ground_truth"]),
        metadata=metadata,
        tags=tuple(row.get("tags", ())),
    )
    if sample.case_key in seen:
        raise ConfigError(Problem(place, f"a case with the id {sample.id!r} stands above already"))
    seen.add(sample.case_key)
    return sample, row["submission"]


def _faults(row: dict[str, Any], place: str) -> Iterator[Problem]:
    if not isinstance(row.get("submission"), str):
        yield Problem(f"{place}: submission", f"must be the text to grade, got {quote(row.get('submission'))}")
    for key in ("input", "ground_truth"):
        if not _is_text(row.get(key)):
            yield Problem(f"{place}: {key}", f"must be a text or a list of texts, got {quote(row[key])}")
    if not isinstance(row.get("metadata", {}), dict):
        yield Problem(f"{place}: metadata", f"must be a mapping, got {quote(row['metadata'])}")
    tags = row.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        yield Problem(f"{place}: tags", f"must be a list of texts, got {quote(tags)}")
    for key in ("id", "sample_id"):
        if not isinstance(row.get(key, ""), str | int) or isinstance(row.get(key), bool):
            yield Problem(f"{place}: {key}", f"must be a text or a whole number, got {quote(row[key])}")


def _identity(row: dict[str, Any], index: int) -> int | str:
    given: int | str | None = row.get("sample_id", row.get("id"))
    return index if given is None else given


def _is_text(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str | int | float) for item in value)
    return value is None or isinstance(value, str | int | float)


def _text(value: Any) -> str | list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    return value if isinstance(value, str) else str(value)
