"""The keys of what is stored, and the record that joins it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gradeline.model.grade import Grade
from gradeline.model.response import Response
from gradeline.model.sample import Sample


class ResponseKey(NamedTuple):
    """Names one agent call: a run, a case of it, and which repeat."""

    run: str
    case: str
    repeat: int = 0

    @property
    def result_id(self) -> str:
        return f"{self.run}/{self.case}/{self.repeat}"


class GradeKey(NamedTuple):
    """Names one grade: an agent call and the grader's key in its suite."""

    run: str
    case: str
    repeat: int
    grader: str

    @property
    def response(self) -> ResponseKey:
        return ResponseKey(self.run, self.case, self.repeat)


class Record(msgspec.Struct, frozen=True, tag_field="schema", tag=1):
    """All there is to know of one (run, case, repeat): what reports, exports and comparisons read."""

    run: str
    case: str
    repeat: int
    sample: Sample
    response: Response
    submissions: dict[str, str] = {}
    grades: dict[str, Grade] = {}
