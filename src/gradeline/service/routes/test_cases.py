"""Test cases over REST."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, BinaryIO, cast

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response, StreamingResponse

from gradeline.graders.checks import MAX_CHECKS
from gradeline.model import quote
from gradeline.rest_types import ImportedCases
from gradeline.service.auth import KeyScope, requires
from gradeline.service.case_files import FileKind, export_cases, import_cases
from gradeline.service.errors import Code, ServiceError
from gradeline.service.openapi import document_responses
from gradeline.service.requests import MAX_NUMBER, PageRequest
from gradeline.service.responses import nothing, success
from gradeline.service.service import caller_of, recorder_of, service_of
from gradeline.service.test_cases import (
    MAX_CHECKS_TEXT,
    MAX_DESCRIPTION,
    MAX_TAGS,
    MAX_TEXT,
    TAG_PATTERN,
    CaseFilter,
    TestCases,
    case_to_json,
)

router = APIRouter(prefix="/api/test-cases", tags=["test cases"])

_SPOOLED = 1_000_000
_KINDS = {
    "application/x-ndjson": FileKind.JSONL,
    "application/ndjson": FileKind.JSONL,
    "application/jsonl": FileKind.JSONL,
    "application/x-jsonlines": FileKind.JSONL,
    "text/csv": FileKind.CSV,
}
_CONTENT_TYPES = {FileKind.JSONL: "application/x-ndjson", FileKind.CSV: "text/csv; charset=utf-8"}
_ENDINGS = {".jsonl": FileKind.JSONL, ".ndjson": FileKind.JSONL, ".csv": FileKind.CSV}
_MULTIPART = "multipart/form-data"

_TEXT_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": MAX_TEXT, "pattern": "[^\\s\\x00]"}
_EXAMPLE: dict[str, Any] = {
    "input": "What is the capital of France?",
    "expected_output": "Paris",
    "description": "A capital in Europe",
    "tags": ["geography", "smoke"],
    "checks": [{"condition": "contains", "value": "Paris"}],
}
_STORED: dict[str, Any] = {
    "id": "1c7c9c0e-2f5a-4f0e-9a70-6c1f6f0b9d55",
    **_EXAMPLE,
    "created_at": "2026-01-15T09:30:00.000Z",
    "modified_at": "2026-01-15T09:30:00.000Z",
}
_TIME = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}
_CASE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": list(_STORED),
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "input": {"type": "string"},
        "expected_output": {"type": "string"},
        "description": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "checks": {"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
        "created_at": _TIME,
        "modified_at": _TIME,
    },
}
_PAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["test_cases", "count", "total", "next_cursor"],
    "additionalProperties": False,
    "properties": {
        "test_cases": {"type": "array", "items": _CASE_SCHEMA},
        "count": {"type": "integer", "description": "Number of cases on this page."},
        "total": {"type": "integer", "description": "Number of matching cases."},
        "total_is_capped": {"const": True, "description": "There are more than `total`."},
        "next_cursor": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}
_CSV_EXAMPLE = 'input,expected_output,description,tags,checks\r\n2 + 2?,4,"Sums, small",math;smoke,\r\n'
_JSONL_EXAMPLE = '{"input": "2 + 2?", "expected_output": "4", "tags": ["math"]}\n'
_IMPORT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": {"schema": {"type": "string"}, "example": _JSONL_EXAMPLE},
            "text/csv": {"schema": {"type": "string"}, "example": _CSV_EXAMPLE},
            _MULTIPART: {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                },
                "example": {"file": _CSV_EXAMPLE},
            },
        },
    }
}

_Check = Annotated[Any, Field(json_schema_extra={"type": "object"})]
"""Validated with the other fields, so that the faults of all are reported with their paths."""


class NewTestCase(BaseModel):
    """A test case to store."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_EXAMPLE]})

    input: Annotated[str, Field(description="The input for the agent.", json_schema_extra=_TEXT_SCHEMA)]
    expected_output: Annotated[str, Field(description="The expected output.", json_schema_extra=_TEXT_SCHEMA)]
    description: Annotated[
        str | None, Field(description="A description of the case.", json_schema_extra={"maxLength": MAX_DESCRIPTION})
    ] = None
    tags: Annotated[
        list[Annotated[str, Field(json_schema_extra={"pattern": TAG_PATTERN})]] | None,
        Field(description="Tags for finding the case.", json_schema_extra={"maxItems": MAX_TAGS}),
    ] = None
    checks: Annotated[
        list[_Check] | None,
        Field(
            description="Checks of this case only, for a grader of kind checks; at most"
            f" {MAX_CHECKS_TEXT:,} characters as JSON.",
            json_schema_extra={"minItems": 1, "maxItems": MAX_CHECKS},
        ),
    ] = None


class TestCaseChanges(BaseModel):
    """The fields of a test case to replace; null clears the description, the tags and the checks."""

    __test__ = False
    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"expected_output": "Paris, France"}]}
    )

    input: Annotated[str, Field(default_factory=str, json_schema_extra=_TEXT_SCHEMA)]
    expected_output: Annotated[str, Field(default_factory=str, json_schema_extra=_TEXT_SCHEMA)]
    description: Annotated[str | None, Field(json_schema_extra={"maxLength": MAX_DESCRIPTION})] = None
    tags: Annotated[
        list[Annotated[str, Field(json_schema_extra={"pattern": TAG_PATTERN})]] | None,
        Field(json_schema_extra={"maxItems": MAX_TAGS}),
    ] = None
    checks: Annotated[list[_Check] | None, Field(json_schema_extra={"minItems": 1, "maxItems": MAX_CHECKS})] = None


_Tag = Annotated[str | None, Query(max_length=50, description="Part of a tag.")]
_Text = Annotated[str | None, Query(max_length=500, description="Part of any text of the case, in any case.")]


@router.post("", status_code=201, responses=document_responses(_CASE_SCHEMA, 201, (400,), example=_STORED))
@requires(KeyScope.RUN)
def create_test_case(request: Request, body: NewTestCase) -> Response:
    """Store a test case."""
    case = _cases(request).create(body.model_dump(), caller_of(request).key_id, recorder_of(request, "create"))
    return success(case_to_json(case), 201)


@router.get(
    "",
    responses=document_responses(
        _PAGE_SCHEMA, errors=(400,), example={"test_cases": [_STORED], "count": 1, "total": 1, "next_cursor": None}
    ),
)
@requires(KeyScope.READ)
def list_test_cases(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    skip: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="Not together with cursor.")] = None,
    tag: _Tag = None,
    q: _Text = None,
    cursor: Annotated[str | None, Query(description="The next_cursor of the previous page.")] = None,
) -> Response:
    """List the test cases, oldest first."""
    page = _cases(request).page(PageRequest.of(limit, skip, cursor), CaseFilter(tag, q))
    fields: dict[str, object] = {
        "test_cases": [case_to_json(case) for case in page.cases],
        "count": len(page.cases),
        "total": page.total,
        "next_cursor": page.next_cursor,
    }
    return success({**fields, "total_is_capped": True} if page.capped else fields)


@router.post(
    "/import",
    status_code=201,
    responses=document_responses(ImportedCases, 201, (400, 413, 415), example={"imported": 2}),
    openapi_extra=_IMPORT_BODY,
)
@requires(KeyScope.RUN)
async def import_test_cases(
    request: Request,
    format: Annotated[  # noqa: A002 - the contract's name
        FileKind | None, Query(description="The format of the body, if its Content-Type does not name it.")
    ] = None,
) -> Response:
    """Store all test cases of a file, or none of them.

    JSON Lines or CSV (columns input, expected_output, description, tags, separated by ";", and checks, as JSON), as the
    body itself or as the part "file" of a form. If any row is invalid, nothing is stored, and ``details.errors`` has
    the rows by line.
    """
    service = service_of(request)
    async with _received(request, format, service.settings.max_import) as (file, kind):
        created_by, record = caller_of(request).key_id, recorder_of(request, "import")
        store = partial(import_cases, _cases(request), file, kind, created_by, record)
        imported = await to_thread.run_sync(store, limiter=request.app.state.import_threads)
    return success(ImportedCases(imported), 201)


_EXPORTED = document_responses(
    {"type": "string"}, errors=(400,), example=_JSONL_EXAMPLE, content_type="application/x-ndjson"
)
_EXPORTED[200]["content"]["text/csv"] = {"schema": {"type": "string"}, "example": _CSV_EXAMPLE}


@router.get("/export", responses=_EXPORTED)
@requires(KeyScope.READ)
def export_test_cases(
    request: Request,
    format: Annotated[FileKind, Query()] = FileKind.JSONL,  # noqa: A002 - the contract's name
    tag: _Tag = None,
    q: _Text = None,
) -> Response:
    """Export test cases as JSON Lines or CSV, which can be imported again.

    In CSV, texts that a spreadsheet would execute are prefixed with an apostrophe, which the import removes.
    """
    pieces = export_cases(_cases(request).matching(CaseFilter(tag, q)), format)
    first = list(next(([piece] for piece in pieces), []))  # an early error is raised before the response starts
    name = f"test-cases.{format.value}"
    return StreamingResponse(
        chain(first, pieces),
        media_type=_CONTENT_TYPES[format],
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@router.get("/{test_case_id}", responses=document_responses(_CASE_SCHEMA, errors=(404,), example=_STORED))
@requires(KeyScope.READ)
def get_test_case(request: Request, test_case_id: str) -> Response:
    """Get a test case."""
    return success(case_to_json(_cases(request).get(test_case_id)))


@router.put("/{test_case_id}", responses=document_responses(_CASE_SCHEMA, example=_STORED))
@requires(KeyScope.RUN)
def update_test_case(request: Request, test_case_id: str, body: TestCaseChanges) -> Response:
    """Replace some fields of a test case. Runs keep the texts that they used."""
    changes = body.model_dump(include=body.model_fields_set)
    return success(case_to_json(_cases(request).change(test_case_id, changes, recorder_of(request, "update"))))


@router.delete("/{test_case_id}", status_code=204, responses=document_responses(status=204, errors=(403, 404)))
@requires(KeyScope.RUN)
def delete_test_case(request: Request, test_case_id: str) -> Response:
    """Delete a test case. The runs that used it keep its texts.

    A key of scope `run` may delete the cases that it has created, a key of scope `admin` all.
    """
    caller = caller_of(request)
    key_id = None if caller.scope is KeyScope.ADMIN else caller.key_id
    _cases(request).delete(test_case_id, key_id, recorder_of(request, "delete"))
    return nothing()


def _cases(request: Request) -> TestCases:
    cases: TestCases = service_of(request).cases
    return cases


@asynccontextmanager
async def _received(
    request: Request, kind_parameter: FileKind | None, max_bytes: int
) -> AsyncIterator[tuple[BinaryIO, FileKind]]:
    """The file of a request, on disk if it is large, and its format."""
    _refuse_compressed(request.headers.get("content-encoding", ""))
    declared = request.headers.get("content-type", "")
    if _essence(declared) == _MULTIPART:
        upload = await _uploaded(request, max_bytes)
        try:
            kind = kind_parameter or _kind(upload.content_type or "") or _kind_of_name(upload.filename or "")
            if kind is None:
                raise _unknown_kind(upload.content_type or "", "the part 'file'")
            yield upload.file, kind
        finally:
            upload.file.close()
        return
    kind = kind_parameter or _kind(declared)
    if kind is None:
        raise _unknown_kind(declared, "the body")
    with SpooledTemporaryFile(_SPOOLED) as file:
        async for chunk in _limited(request, max_bytes):
            file.write(chunk)
        file.seek(0)
        yield cast("BinaryIO", file), kind


async def _uploaded(request: Request, max_bytes: int) -> UploadFile:
    parser = MultiPartParser(request.headers, _limited(request, max_bytes), max_files=1, max_fields=10)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise ServiceError(Code.INVALID_INPUT, f"The form cannot be read: {error.message}") from None
    found = form.get("file")
    if isinstance(found, UploadFile):
        return found
    await form.close()
    raise ServiceError(Code.MISSING_FIELD, "Field 'file' is required: the part of the form that holds the file")


async def _limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise ServiceError(Code.PAYLOAD_TOO_LARGE, f"The file has over {max_bytes:,} bytes; import it in parts")
        yield chunk


def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _kind(content_type: str) -> FileKind | None:
    return _KINDS.get(_essence(content_type))


def _kind_of_name(name: str) -> FileKind | None:
    return next((kind for ending, kind in _ENDINGS.items() if name.lower().endswith(ending)), None)


def _refuse_compressed(encoding: str) -> None:
    if encoding.strip().lower() not in ("", "identity"):
        raise ServiceError(
            Code.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding {quote(encoding, 60)} is not supported; send the file uncompressed",
        )


def _unknown_kind(content_type: str, what: str) -> ServiceError:
    return ServiceError(
        Code.UNSUPPORTED_MEDIA_TYPE,
        f"Content-Type {quote(content_type, 60)} of {what} is not a format of test cases;"
        " send application/x-ndjson or text/csv, or add ?format=jsonl or ?format=csv",
    )
