"""Read the documents that an agent retrieved for its answer, as it reports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from gradeline.errors import AgentError
from gradeline.model.response import Document
from gradeline.model.text import clean_text, quote

MAX_DOCUMENTS = 1_000
MAX_DOCUMENT_CHARS = 10_000_000
"""Maximum characters of all documents of a response."""
TEXT_KEYS = ("text", "content", "page_content")
ID_KEYS = ("id", "doc_id", "document_id")

_NO_DOCUMENT = "a document is a string, or a mapping with text, id and score"
_NO_LIST = "documents are a list of strings or of {text, id, score}, or one string"


def read_documents(value: object) -> tuple[Document, ...] | None:
    """The documents in a value: a list of strings or of mappings, or one string; None if it is None.

    `AgentError` for anything else, and beyond the limits. Texts are made storable; a score that is not a finite number
    is unknown.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return bounded_documents([_read(value)] if value.strip() else [])
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        raise AgentError("bad_response", f"{_NO_LIST}, got {quote(value)}")
    _check_count(len(value))
    return bounded_documents([_read(item) for item in value])


def bounded_documents(documents: Sequence[Document]) -> tuple[Document, ...]:
    """The documents, if they are within the limits; else `AgentError`."""
    _check_count(len(documents))
    if sum(len(one.text) + len(one.id or "") for one in documents) > MAX_DOCUMENT_CHARS:
        raise AgentError("too_large", f"the documents have more than {MAX_DOCUMENT_CHARS:,} characters")
    return tuple(documents)


def joined_documents(turns: Sequence[tuple[Document, ...] | None]) -> tuple[Document, ...] | None:
    """The documents of all turns in order; None if those of one turn are unknown."""
    known = [documents for documents in turns if documents is not None]
    if not known or len(known) < len(turns):
        return None
    return bounded_documents([one for documents in known for one in documents])


def _check_count(count: int) -> None:
    if count > MAX_DOCUMENTS:
        raise AgentError("too_large", f"there are {count:,} documents, at most {MAX_DOCUMENTS:,} are possible")


def _read(item: object) -> Document:
    if isinstance(item, Document):
        item = msgspec.structs.asdict(item)
    if isinstance(item, str):
        return Document(clean_text(item).text)
    if not isinstance(item, Mapping):
        raise AgentError("bad_response", f"{_NO_DOCUMENT}, got {quote(item)}")
    text, ident = _first(item, TEXT_KEYS), _first(item, ID_KEYS)
    if text is None and ident is None:
        raise AgentError("bad_response", f"{_NO_DOCUMENT}, got {quote(dict(item))}")
    if not isinstance(text, str | None):
        raise AgentError("bad_response", f"the text of a document is not a string: {quote(text)}")
    if isinstance(ident, bool) or not isinstance(ident, str | int | None):
        raise AgentError("bad_response", f"the id of a document is not a string: {quote(ident)}")
    return Document(
        clean_text(text or "").text, None if ident is None else clean_text(str(ident)).text, _score(item.get("score"))
    )


def _first(item: Mapping[Any, Any], keys: Sequence[str]) -> object:
    return next((item[key] for key in keys if item.get(key) is not None), None)


def _score(value: object) -> float | None:
    """An invalid score becomes unknown, because an answer must not be lost for its bookkeeping."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        score = float(value)
    except OverflowError:
        return None
    return score if isfinite(score) else None
