"""Datasets: samples read row by row, in constant memory even where they are larger than memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gradeline.errors import Problem
from gradeline.model import Sample, quote
from gradeline.suite.case_ids import CaseIds
from gradeline.suite.cases import CaseRubrics, DatasetError, Row, read_sample
from gradeline.suite.clusters import ClusterPath
from gradeline.suite.columns import ColumnMap
from gradeline.suite.dataset_source import DatasetSource
from gradeline.suite.problems import KeyPath, PositionOf, SourcePosition
from gradeline.suite.row_reader import RowReader


class Dataset(Iterator[Sample]):
    """An iterator over the samples of a dataset.

    ``warnings`` grows during the iteration. ``digest`` is set after the last sample: SHA-256 of what was read, which
    with a limit is not the whole dataset.
    """

    def __init__(
        self,
        rows: RowReader,
        ids: CaseIds,
        tags: Collection[str],
        limit: int,
        folder: Path | None = None,
        cluster: ClusterPath | None = None,
    ) -> None:
        self._rows = rows
        self._ids = ids
        self._cluster = cluster
        self._rubrics = None if folder is None else CaseRubrics(folder)
        self._samples = self._read(frozenset(tags), limit)
        self._row: Row | None = None
        self.digest: str | None = None

    @property
    def warnings(self) -> list[Problem]:
        return self._rows.warnings

    @property
    def position(self) -> SourcePosition:
        """The position of the sample that was read last."""
        return SourcePosition("") if self._row is None else self._row.position_of(self._row.path)

    def __iter__(self) -> Iterator[Sample]:
        return self._samples

    def __next__(self) -> Sample:
        return next(self._samples)

    def _read(self, tags: frozenset[str], limit: int) -> Iterator[Sample]:
        count = 0
        for row in self._rows:
            self._row = row
            plain = row.sample
            sample = plain if plain is not None and self._ids.add(plain.case_key) else read_sample(row, self._ids)
            if not tags or tags.issubset(sample.tags):
                if sample.rubric_path and self._rubrics is not None:
                    sample = self._rubrics.with_rubric(row, sample)
                yield sample if self._cluster is None else self._with_cluster(row, sample, self._cluster)
                count += 1
                if count == limit:
                    break
        self._rows.close()
        self.digest = self._rows.digest

    def _with_cluster(self, row: Row, sample: Sample, path: ClusterPath) -> Sample:
        try:
            return path.with_cluster(sample)
        except ValueError as error:
            raise DatasetError(row.problem(f"case {quote(sample.case_key)}: {error}")) from None


def open_dataset(
    source: DatasetSource | Path | Sequence[object],
    *,
    columns: Mapping[str, Any] | None = None,
    tags: Collection[str] = (),
    limit: int = 0,
    position_of: PositionOf | None = None,
    path: KeyPath = ("dataset",),
    folder: Path | None = None,
    cluster: ClusterPath | None = None,
) -> Dataset:
    """Open a file, whose format is that of its ending, a list of cases, or a source with several files.

    ``columns`` maps the keys of a case to columns, as in a suite. Yields only samples with all ``tags``, and at most
    ``limit`` (0: no limit). ``path`` and ``position_of`` give the positions of a list. With ``folder``, the folder of
    the suite, files named by ``rubric_path`` are read into the cases' rubrics. ``cluster`` is the field of a case that
    names its cluster. Raises `DatasetError` here for a source that cannot be opened, and during the iteration for a
    faulty row.
    """
    if isinstance(source, Path):
        source = DatasetSource((source,), columns=columns or {})
    elif not isinstance(source, DatasetSource):
        source = DatasetSource(rows=source, columns=columns or {})
    if source.hub_datasets:
        raise RuntimeError("a dataset of the Hub is downloaded before it is opened")
    rows = RowReader(source.files or source.rows, columns=ColumnMap(source.columns), position_of=position_of, path=path)
    return Dataset(rows, CaseIds(source.scheme), tags, limit, folder, cluster)


SUBMISSION = "submission"
"""The key of a graded case that has the text to grade."""


def read_cases(path: Path, columns: Mapping[str, Any] | None = None) -> Iterator[tuple[Sample, str]]:
    """Graded cases: samples and their submissions, read lazily.

    A row is that of a dataset with a ``submission``, the only required key. A file with an unknown ending is read as
    JSONL. Nothing is stored, so rows without an id are named by their number. `ConfigError` has file and line.
    """
    ids = CaseIds("number")
    for row in RowReader((path,), columns=ColumnMap(columns, (SUBMISSION,)), otherwise=".jsonl"):
        yield _read_case(row, ids)


def _read_case(row: Row, ids: CaseIds) -> tuple[Sample, str]:
    if not isinstance(row.data, dict):
        raise DatasetError(row.problem(f'expected {{"input": …, "submission": …}}, got {quote(row.data)}'))
    rest = dict(row.data)
    submission = rest.pop(SUBMISSION, None)
    faults = []
    if not isinstance(submission, str):
        faults.append(row.problem(f"must be the text to grade, got {quote(submission)}", "submission"))
    try:
        sample = read_sample(replace(row, data=rest), ids, needs_input=False)
    except DatasetError as error:
        raise DatasetError([*faults, *error.suite_problems]) from None
    if faults:
        raise DatasetError(faults)
    return sample, str(submission)
