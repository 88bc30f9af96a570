"""The scores of several runs side by side, as files: a row for each case and grader, a column for each run."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from gradeline.engine.ranking import ScoreMatrix
from gradeline.errors import ConfigError, Problem
from gradeline.model import quote
from gradeline.report.parquet import write_rows
from gradeline.report.table import cell_text

PARQUET = ".parquet"
_COLUMNS = {"case": "VARCHAR", "grader": "VARCHAR", "compared": "BOOLEAN"}


def matrix_writer(path: Path) -> Callable[[IO[str], ScoreMatrix], None]:
    """What writes the text format that the name of the file ends with; `write_matrix_parquet` writes the other one."""
    found = _WRITERS.get(path.suffix.lower())
    if found is None:
        reason = f"invalid file name {quote(path.name)}: end it with {', '.join(_WRITERS)} or {PARQUET}"
        raise ConfigError(Problem("--output", reason))
    return found


def write_matrix_parquet(path: Path, matrix: ScoreMatrix) -> None:
    """The same columns as in CSV, typed and with nothing defused; see `gradeline.report.parquet.write_rows`."""
    columns = {**_COLUMNS, **dict.fromkeys(_run_columns(matrix), "DOUBLE")}
    write_rows(path, columns, ((case, grader, compared, *scores) for case, grader, compared, scores in matrix.rows()))


def _run_columns(matrix: ScoreMatrix) -> list[str]:
    """Distinct for runs of the same name."""
    return [f"{run.name} ({run.id})" for run in matrix.runs]


def _write_csv(file: IO[str], matrix: ScoreMatrix) -> None:
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow([*_COLUMNS, *map(cell_text, _run_columns(matrix))])
    for case, grader, compared, scores in matrix.rows():
        numbers = ("" if score is None else str(score) for score in scores)
        table.writerow([cell_text(case), cell_text(grader), "true" if compared else "false", *numbers])


def _write_jsonl(file: IO[str], matrix: ScoreMatrix) -> None:
    file.writelines(f"{line}\n" for line in _lines(matrix))


def _write_json(file: IO[str], matrix: ScoreMatrix) -> None:
    runs = msgspec.json.encode({run.id: run.name for run in matrix.runs}).decode()
    file.write(f'{{"runs": {runs}, "rows": [\n')
    for number, line in enumerate(_lines(matrix)):
        file.write(line if number == 0 else f",\n{line}")
    file.write("\n]}\n")


def _lines(matrix: ScoreMatrix) -> Iterator[str]:
    encoder = msgspec.json.Encoder()
    ids = [run.id for run in matrix.runs]
    for case, grader, compared, scores in matrix.rows():
        row: dict[str, Any] = {"case": case, "grader": grader, "compared": compared}
        yield encoder.encode({**row, "scores": dict(zip(ids, scores, strict=True))}).decode()


_WRITERS: dict[str, Callable[[IO[str], ScoreMatrix], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".jsonl": _write_jsonl,
}
