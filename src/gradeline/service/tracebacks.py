"""Tracebacks of the user's own graders, without the paths of the server."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

import msgspec

from gradeline.model import ErrorInfo, Grade, Record, Response

_PLACE = re.compile(r'(?<=File ")[^"\n]+(?=")')


class Tracebacks:
    """Shows the files of a folder as they are named in it; of others the name alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()

    def shown(self, traceback: str) -> str:
        return _PLACE.sub(lambda found: self._named(PurePath(found[0])), traceback)

    def in_grade(self, grade: Grade) -> Grade:
        """The grade with its traceback as it may be shown."""
        if grade.error is None or grade.error.traceback is None:
            return grade
        return msgspec.structs.replace(grade, error=self._in_error(grade.error))

    def in_response(self, response: Response) -> Response:
        """The response with its traceback as it may be shown."""
        if response.error is None or response.error.traceback is None:
            return response
        return msgspec.structs.replace(response, error=self._in_error(response.error))

    def in_record(self, record: Record) -> Record:
        """The record with every traceback as it may be shown; the same one where it has none."""
        grades = {key: self.in_grade(grade) for key, grade in record.grades.items()}
        response = self.in_response(record.response)
        if response is record.response and all(grades[key] is grade for key, grade in record.grades.items()):
            return record
        return msgspec.structs.replace(record, response=response, grades=grades)

    def _in_error(self, error: ErrorInfo) -> ErrorInfo:
        traceback = None if error.traceback is None else self.shown(error.traceback)
        return msgspec.structs.replace(error, traceback=traceback)

    def _named(self, path: PurePath) -> str:
        if not path.is_absolute():
            return str(path)
        if self._folder is not None and path.is_relative_to(self._folder):
            return str(path.relative_to(self._folder))
        return f"…/{path.name}"
