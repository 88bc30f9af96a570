"""Rubrics that cases name by a file: their text becomes part of the case, so that an edited one is an edited case."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from gradeline.errors import ConfigError, Problem
from gradeline.model import Sample, clean_text, quote
from gradeline.suite.samples import DatasetError, Row

_KEPT = 16
"""Texts that are kept: cases mostly share a few, and each may be large."""


class CaseRubrics:
    """Reads the rubric files of cases, which must lie in the suite's folder: their text is sent to the judge."""

    def __init__(self, folder: Path) -> None:
        self._home = folder.resolve()
        self._text = lru_cache(_KEPT)(self._read)

    def filled(self, row: Row, sample: Sample) -> Sample:
        """The sample with its rubric's text; `DatasetError` at its row where that cannot be read."""
        if not sample.rubric_path:
            return sample
        try:
            return replace(sample, rubric=self._text(sample.rubric_path))
        except ConfigError as error:
            raise DatasetError([row.problem(problem.message, "rubric_path") for problem in error.problems]) from None

    def _read(self, path: str) -> str:
        from gradeline.judges.options import file_text  # few datasets name rubrics, and judges load much

        if not (self._home / path).resolve().is_relative_to(self._home):
            reason = f"{quote(path)} is outside the suite's folder; move the file into it"
            raise ConfigError(Problem("rubric_path", reason))
        return clean_text(file_text(self._home, path, "rubric_path")).text
