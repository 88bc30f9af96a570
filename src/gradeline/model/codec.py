"""Records as JSON text and back, exactly."""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeVar

import msgspec

from gradeline.errors import DataError
from gradeline.model.sample import Sample

T = TypeVar("T", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()


def to_json(value: msgspec.Struct) -> str:
    """The stored form. What comes from outside must have passed `clean_text` or `clean_data`."""
    return _encoder.encode(value).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Read what `to_json` wrote, or `DataError` that says what is wrong with it."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        hint = ""
        if "$.schema" in str(error) or ".schema`" in str(error):
            hint = "; it was written by another version of gradeline: upgrade to read it"
        raise DataError(f"not a stored {kind.__name__}: {error}{hint}") from None


def digest_of(stored: str) -> str:
    """A digest of a stored form: it tells an edited case from the one it was."""
    return blake2b(stored.encode(), digest_size=16).hexdigest()


def sample_digest(sample: Sample) -> str:
    """The digest of a case as it is asked; its cluster is not part of that."""
    return digest_of(to_json(msgspec.structs.replace(sample, cluster=msgspec.UNSET) if sample.cluster else sample))
