"""The ledger as a file: JSON lines, or CSV for spreadsheets."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from gradeline.errors import ConfigError, Problem
from gradeline.model.observation import Observation
from gradeline.model.record import to_json
from gradeline.model.text import escape_formula


def write_file(path: Path, observations: Iterable[Observation]) -> int:
    """Write a file that is there as a whole or not at all, CSV where its name ends so; gives how many there are."""
    with _new_file(path) as file:
        return (_write_csv if path.suffix.lower() == ".csv" else write_lines)(file, observations)


def write_lines(file: IO[bytes], observations: Iterable[Observation]) -> int:
    """One JSON object a line."""
    count = 0
    for observation in observations:
        file.write(to_json(observation).encode() + b"\n")
        count += 1
    return count


def _write_csv(file: IO[bytes], observations: Iterable[Observation]) -> int:
    """By RFC 4180; what is not known is an empty cell, and no text is taken for a formula."""
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    table = csv.writer(text, lineterminator="\r\n")
    table.writerow(Observation.__struct_fields__)
    count = 0
    for observation in observations:
        table.writerow(_cell(getattr(observation, name)) for name in Observation.__struct_fields__)
        count += 1
    text.flush()
    text.detach()
    return count


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escape_formula(value) if isinstance(value, str) else str(value)


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Written under another name, then renamed. A pipe or a device is no file to put another in the place of."""
    path = path.resolve()
    if path.is_dir():
        raise ConfigError(Problem(str(path), "is a folder; name a file"))
    in_place = path.exists() and not path.is_file()
    written = path if in_place else path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with written.open("wb") as file:
            yield file
        if not in_place:
            written.replace(path)
    except OSError as error:
        reason = f"cannot be written: {error.strerror}; name a place where you may write"
        raise ConfigError(Problem(str(path), reason)) from None
    finally:
        if not in_place:
            written.unlink(missing_ok=True)
