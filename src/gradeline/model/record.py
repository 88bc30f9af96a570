"""Keys of stored responses and grades, records, and their JSON form."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple, TypeVar

import msgspec

from gradeline.errors import DataError
from gradeline.model.grade import Grade
from gradeline.model.response import Response
from gradeline.model.sample import Sample


class ResponseKey(NamedTuple):
    """Key of one agent call: run, case and repeat."""

    run: str
    case: str
    repeat: int = 0

    @property
    def result_id(self) -> str:
        return f"{self.run}/{self.case}/{self.repeat}"


class GradeKey(NamedTuple):
    """Key of one grade: an agent call and the key of the grader."""

    run: str
    case: str
    repeat: int
    grader: str

    @property
    def response(self) -> ResponseKey:
        return ResponseKey(self.run, self.case, self.repeat)


class Record(msgspec.Struct, frozen=True, tag_field="schema", tag=1):
    """Everything stored for one (run, case, repeat): the input of reports, exports and comparisons."""

    run: str
    case: str
    repeat: int
    sample: Sample
    response: Response
    submissions: dict[str, str] = {}
    grades: dict[str, Grade] = {}


T = TypeVar("T", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()


def to_json(value: msgspec.Struct) -> str:
    """The stored JSON form. External data must have passed `clean_text` or `clean_data`."""
    return _encoder.encode(value).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Read the output of `to_json`; `DataError` says what is wrong with it."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        hint = ""
        if "$.schema" in str(error) or ".schema`" in str(error):
            hint = "; it was written by a newer version of gradeline: upgrade to read it"
        raise DataError(f"not a stored {kind.__name__}: {error}{hint}") from None


def digest_of(stored: str) -> str:
    """Digest of a stored form, to detect edited cases."""
    return blake2b(stored.encode(), digest_size=16).hexdigest()


def sample_digest(sample: Sample) -> str:
    """Digest of a case without its cluster."""
    return digest_of(to_json(msgspec.structs.replace(sample, cluster=msgspec.UNSET) if sample.cluster else sample))
