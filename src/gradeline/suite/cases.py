"""Graded cases from a file: a sample a row, with the submission to grade."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from gradeline.model import Sample, quote
from gradeline.suite.case_keys import CaseKeys
from gradeline.suite.dataset import RowReader
from gradeline.suite.samples import DatasetError, Row, read_sample


def read_cases(path: Path) -> Iterator[tuple[Sample, str]]:
    """Samples and their submissions, read as they are asked for.

    A row is a dataset's with a ``submission`` beside; only that is required. A file with an
    ending that no dataset has is read as JSONL. `ConfigError` names file and line.
    """
    seen = CaseKeys()
    for row in RowReader(path, otherwise=".jsonl"):
        yield _read_case(row, seen)


def _read_case(row: Row, seen: CaseKeys) -> tuple[Sample, str]:
    if not isinstance(row.data, dict):
        raise DatasetError(row.problem(f'expected {{"input": …, "submission": …}}, got {quote(row.data)}'))
    rest = dict(row.data)
    submission = rest.pop("submission", None)
    faults = []
    if not isinstance(submission, str):
        faults.append(row.problem(f"must be the text to grade, got {quote(submission)}", "submission"))
    try:
        sample = read_sample(replace(row, data=rest), seen, needs_input=False)
    except DatasetError as error:
        raise DatasetError([*faults, *error.placed]) from None
    if faults:
        raise DatasetError(faults)
    return sample, str(submission)
