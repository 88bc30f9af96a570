"""Uploads: runs of other stores, sent in parts by ``gradeline push`` and stored with all their records.

An upload begins with the run and a digest of all that follows. Each part is one transaction with the number of cases
stored so far, so that an upload whose sender or server was killed continues after the last part. Until the last part is
stored and the digest is right, the run is listed as ``running`` without its definition, so that nothing can resume it.

The content is untrusted: everything is decoded into the types of a store before a row is written, the secrets
of this service are masked, and the suite that the run names is dropped, because this service has not checked it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.definition import RunDefinition
from gradeline.errors import ConfigError, DataError
from gradeline.model import Run, clean_text, from_json, quote, to_json
from gradeline.rest_types import RunCopy, RunUpload, utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.events import ENDED, EventBroker
from gradeline.service.requests import decode_cursor, encode_cursor, require_clean
from gradeline.service.run_list import parse_time
from gradeline.service.secrets import Secrets
from gradeline.service.settings import ServeSettings
from gradeline.store.database import Database, Dialect, SharedStorage, Transaction, migrate
from gradeline.store.leases import Query, write_heartbeat
from gradeline.store.queries import insert_run, run_exists, select_in
from gradeline.store.rows import RecordRow
from gradeline.store.sql_storage import response_source
from gradeline.store.transfer import (
    START,
    CaseRows,
    ContentDigest,
    case_lines,
    case_page,
    content_of,
    header_of,
    put_case_extras,
    read_line,
)

MAX_PART = 50_000_000
"""Maximum size of a part in bytes."""
MAX_PART_CASES = 10_000
MAX_CASES = 10_000_000
_MAX_HEADER = 5_000_000
_MAX_STORED = 200_000
_MAX_NAME = 1000
_MAX_REPEATS = 1_000_000
_RUN_ID = re.compile(r"[0-9a-z]{12}")
_UPLOADER = "upload::"
"""The owner of a run that is being uploaded: no process, so that only its heartbeat counts."""
_INCOMPLETE = "the upload of this run is incomplete; push the run again to continue it"


def _tables(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE uploads (run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE, digest TEXT NOT NULL,"
        " cases BIGINT NOT NULL, received BIGINT NOT NULL, so_far TEXT NOT NULL, size BIGINT NOT NULL, header TEXT,"
        " key_id TEXT, started_at TEXT NOT NULL, completed_at TEXT)"
    )


UPLOAD_STEPS = (_tables,)


class UploadRequest(NamedTuple):
    """The request that begins an upload."""

    run: Mapping[str, Any]
    """The run as JSON data, as the sender's store has it."""
    digest: str
    cases: int
    size: int
    """Bytes of all parts."""


class _State(NamedTuple):
    """The row of an upload."""

    digest: str
    cases: int
    received: int
    so_far: str
    """The digest of what is stored."""
    size: int
    header: str | None
    """The run as it will be stored; None once it is."""

    def shown(self, run_id: str) -> RunUpload:
        return RunUpload(
            run_id=run_id,
            digest=self.digest,
            cases=self.cases,
            received=self.received,
            completed=self.header is None,
        )


class _WrongContentError(ServiceError):
    """The content of a complete upload does not match its digest."""

    def __init__(self) -> None:
        message = (
            "The content does not match the digest of the run: the run was changed while it was sent, or the content"
            " was changed on the way. The upload is removed; push the run again"
        )
        super().__init__(Code.INVALID_INPUT, message)


class Uploads:
    """Receives runs; `ServiceError` for an invalid run, or one that differs from that in the store."""

    def __init__(
        self,
        storage: SharedStorage,
        secrets: Secrets,
        events: EventBroker,
        settings: ServeSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._database: Database = storage.database
        self._secrets = secrets
        self._events = events
        self._most = settings.max_upload
        self._clock = clock
        migrate(self._database, "uploads", UPLOAD_STEPS)

    def begin(
        self, run_id: str, request: UploadRequest, key_id: str | None, record: Recorder = unrecorded
    ) -> RunUpload:
        """Begin an upload, or continue it; one that is complete changes nothing."""
        if not _RUN_ID.fullmatch(run_id):
            raise not_found("run", run_id)
        self._check_size(request.size)
        # in this order, because another request may begin between the two
        exists = run_exists(self._database.read, run_id)
        state = _find(self._database.read, run_id)
        if state is None and exists:
            return self._own(run_id, request)
        if state is not None and state.digest != request.digest:
            if state.header is None or not self._remove(run_id, state):
                raise _other_content(run_id)
            state = None
        if state is not None:
            return state.shown(run_id)
        run = self._checked(run_id, request.run)
        digest = ContentDigest.of_header(request.run).value
        new = _State(request.digest, request.cases, 0, digest, 0, to_json(run))
        now = utc_timestamp(self._clock())

        def work(transaction: Transaction) -> _State:
            known = _find(transaction.run, run_id)
            if known is not None and known.digest == request.digest:
                return known
            if known is not None or run_exists(transaction.run, run_id):
                raise ServiceError(Code.CONFLICT, f"The run {run_id} is being uploaded by another request; try again")
            insert_run(transaction, _staged(run))
            transaction.run(
                "INSERT INTO uploads (run, digest, cases, received, so_far, size, header, key_id, started_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                *(run_id, *new, key_id, now),
            )
            write_heartbeat(transaction.run, run_id)
            record(transaction, run_id, {"name": run.name, "suite": run.suite, "cases": request.cases})
            return new if request.cases else self._complete(transaction, run_id, new)

        return self._database.transact(work).shown(run_id)

    def add(self, run_id: str, digest: str, start: int, part: bytes) -> RunUpload:
        """Store a part that starts with that case; one that is stored already changes nothing."""
        state = _find(self._database.read, run_id)
        if state is None:
            reason = "begin one with PUT /api/uploads/RUN"
            raise ServiceError(Code.NOT_FOUND, f"No upload of the run {quote(run_id, 60)}; {reason}")
        if state.digest != digest:
            raise _other_content(run_id)
        if start < state.received or state.header is None:
            return state.shown(run_id)
        if start > state.received:
            message = f"Parameter 'start': {start:,} is out of order; the next case is number {state.received:,}"
            raise ServiceError(Code.INVALID_INPUT, message, details={"received": state.received})
        self._check_size(state.size + len(part))
        stored = _Stored()
        try:
            self._store(run_id, state, part, stored)
        except _WrongContentError:
            self._remove(run_id, state)
            raise
        except ServiceError:
            now = _find(self._database.read, run_id)
            if now is None or now.digest != digest or now.received <= state.received:
                raise
            return now.shown(run_id)  # another request has stored this part
        self._events.changed(run_id)
        return (stored.state or self._state(run_id)).shown(run_id)

    def _store(self, run_id: str, state: _State, part: bytes, stored: _Stored) -> None:
        cases = self._read(run_id, state, part)
        digests = ContentDigest(state.so_far)
        for line in _lines(part):
            digests.add(line)
        new = state._replace(received=state.received + len(cases), so_far=digests.value, size=state.size + len(part))
        rows = [row for one in cases for row in one.records]
        self._storage.put_rows(rows, partial(self._put_part, run_id, state, new, cases, len(rows), stored))

    def page(self, run_id: str, cursor: str | None) -> RunCopy:
        """A page of a run that has ended, for a copy of it in another store."""
        run = None if clean_text(run_id).changed else self._storage.get_run(run_id)
        if run is None:
            raise not_found("evaluation", run_id)
        if run.status not in ENDED:
            message = f"The evaluation {quote(run_id)} is {run.status}; only one that has ended can be copied"
            raise ServiceError(Code.CONFLICT, message)
        after = START
        if cursor is not None:
            position, case = decode_cursor(cursor, int, str)
            after = (int(position), str(case))
        page = case_page(self._database, run_id, after)
        following = None if page.last is None else encode_cursor(*page.last)
        return RunCopy(run=header_of(run), cases=[line.decode() for line in page.lines], next_cursor=following)

    def _put_part(
        self,
        run_id: str,
        before: _State,
        after: _State,
        cases: Sequence[CaseRows],
        expected: int,
        result: _Stored,
        transaction: Transaction,
        rows: Sequence[RecordRow],
    ) -> None:
        """The commit hook of a part."""
        result.state = None
        if len(rows) != expected:
            raise ServiceError(Code.INVALID_INPUT, "The part has a row that the store cannot hold; nothing is stored")
        moved = transaction.run(
            "UPDATE uploads SET received = ?, so_far = ?, size = ? WHERE run = ? AND digest = ? AND received = ?"
            " AND so_far = ? RETURNING run",
            *(after.received, after.so_far, after.size, run_id, before.digest, before.received, before.so_far),
        )
        if not moved:
            raise ServiceError(Code.CONFLICT, f"Another request uploads the run {run_id}; try again")
        put_case_extras(transaction, run_id, cases)
        write_heartbeat(transaction.run, run_id)
        result.state = self._complete(transaction, run_id, after) if after.received == after.cases else after

    def _complete(self, transaction: Transaction, run_id: str, state: _State) -> _State:
        """Replace the placeholder of the upload with the run that was sent."""
        if state.so_far != state.digest:
            raise _WrongContentError
        transaction.run("UPDATE runs SET run = ? WHERE id = ?", state.header, run_id)
        transaction.run("DELETE FROM run_heartbeats WHERE run = ?", run_id)
        now = utc_timestamp(self._clock())
        transaction.run("UPDATE uploads SET header = NULL, completed_at = ? WHERE run = ?", now, run_id)
        return state._replace(header=None)

    def _own(self, run_id: str, request: UploadRequest) -> RunUpload:
        """A run that this store already has, but not from an upload."""
        run = self._storage.get_run(run_id)
        if run is not None and run.status in ENDED:
            content = content_of(header_of(run), case_lines(self._database, run_id))
            if content.digest == request.digest:
                return _State(content.digest, content.cases, content.cases, "", 0, None).shown(run_id)
        raise _other_content(run_id)

    def _remove(self, run_id: str, state: _State) -> bool:
        """Remove an incomplete upload and its run; False if it was completed or begun again in the meantime."""

        def disown(transaction: Transaction) -> bool:
            # from here on no part of it is accepted, so that it cannot be completed
            rows = transaction.run(
                "UPDATE uploads SET digest = '' WHERE run = ? AND digest = ? AND header IS NOT NULL RETURNING run",
                run_id,
                state.digest,
            )
            return bool(rows)

        if not self._database.transact(disown):
            return False
        try:
            self._storage.delete_run(run_id)
        except ConfigError as error:
            raise ServiceError(Code.CONFLICT, str(error)) from None
        self._events.changed(run_id)
        return True

    def _state(self, run_id: str) -> _State:
        state = _find(self._database.read, run_id)
        if state is None:
            raise ServiceError(Code.NOT_FOUND, f"No upload of the run {run_id}: it was deleted")
        return state

    def _check_size(self, size: int) -> None:
        if size > self._most:
            message = (
                f"The run has {size:,} bytes, and this service accepts {self._most:,}; its operator can raise the limit"
                " with gradeline serve --max-upload-mb"
            )
            raise ServiceError(Code.PAYLOAD_TOO_LARGE, message)

    def _checked(self, run_id: str, header: Mapping[str, Any]) -> Run:
        """The run as it will be stored."""
        require_clean(header, "run")
        text = self._secrets.mask_json(msgspec.json.encode(header)).decode()
        if len(text) > _MAX_HEADER:
            message = f"Field 'run' has {len(text):,} characters, and at most {_MAX_HEADER:,} are accepted"
            raise ServiceError(Code.PAYLOAD_TOO_LARGE, message)
        try:
            run = from_json(Run, text)
            definition = None if run.definition is None else RunDefinition.of(run)
        except (DataError, ConfigError) as error:
            raise _invalid("run", str(error)) from None
        if run.id != run_id:
            raise _invalid("run.id", f"{quote(run.id, 60)} is not the id in the path")
        if run.status not in ENDED:
            raise _invalid("run.status", f"the run is {run.status}; finish it first with: gradeline resume {run_id}")
        for name in ("name", "suite"):
            if not 0 < len(getattr(run, name)) <= _MAX_NAME:
                raise _invalid(f"run.{name}", f"use 1 to {_MAX_NAME:,} characters")
        if not 1 <= run.repeats <= _MAX_REPEATS or not 0 <= (run.total or 0) <= MAX_CASES * _MAX_REPEATS:
            raise _invalid("run", f"{run.repeats:,} repeats and {run.total or 0:,} results are not those of a run")
        for name in ("started_at", "completed_at"):
            if getattr(run, name) is not None:
                parse_time(getattr(run, name), f"run.{name}")
        if run.parent is not None and not self._has(run.parent):
            raise _invalid("run.parent", f"this service has no run {quote(run.parent, 60)}; push that run first")
        stored = None if definition is None else msgspec.json.encode(definition.without_suite()).decode()
        run = msgspec.structs.replace(run, owner=None, definition=stored)
        if (size := len(to_json(run))) > _MAX_STORED:
            # lists of runs have most of it
            message = f"Field 'run' has {size:,} characters without its suite, and at most {_MAX_STORED:,} are accepted"
            raise ServiceError(Code.PAYLOAD_TOO_LARGE, message)
        return run

    def _has(self, parent: str) -> bool:
        """Whether the store has that run with all its records."""
        run = self._storage.get_run(parent)
        state = _find(self._database.read, parent)
        return run is not None and run.status in ENDED and (state is None or state.header is None)

    def _read(self, run_id: str, state: _State, part: bytes) -> list[CaseRows]:
        """The cases of a part, none of which is stored yet."""
        cases: list[CaseRows] = []
        left = min(state.cases - state.received, MAX_PART_CASES)
        for line in _lines(part):
            if len(cases) >= left:
                raise _invalid("body", f"the part has more than the {left:,} cases that may follow")
            try:
                cases.append(read_line(self._masked(line), run_id))
            except DataError as error:
                raise _invalid(f"line {len(cases) + 1}", str(error)) from None
        if not cases:
            raise _invalid("body", "the part has no cases")
        self._check_cases(run_id, cases)
        return cases

    def _masked(self, line: bytes) -> bytes:
        """The line without the secrets of this service; `ServiceError` for what no store accepts."""
        try:
            tree = msgspec.json.decode(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not JSON: {error}") from None
        require_clean(tree, "body")
        return self._secrets.mask_json(line)

    def _check_cases(self, run_id: str, cases: Sequence[CaseRows]) -> None:
        """Refuse a duplicate case, and a grade without a response."""
        names = [one.case for one in cases]
        if len(set(names)) != len(names):
            raise _invalid("body", "a case is there twice")
        read = self._database.read
        for table in ("samples", "grades"):
            for (case,) in select_in(_of_run(read, run_id), _KNOWN[table], names):
                raise _invalid("body", f"the case {quote(case, 60)} was in an earlier part")
        wanted = {key for one in cases for key in one.results}
        if not wanted:
            return
        source = response_source(read, run_id)
        found: set[tuple[str, int]] = set()
        if source != run_id:
            found.update(select_in(_of_run(read, source), _KNOWN["responses"], (case for case, _ in wanted)))
        for case, repeat in sorted(wanted - found):
            raise _invalid("body", f"the case {quote(case, 60)}, repeat {repeat}, has no response to grade")


_KNOWN = {
    "samples": "SELECT case_key FROM samples WHERE run = ? AND case_key IN ({places}) LIMIT 1",
    "grades": "SELECT case_key FROM grades WHERE run = ? AND case_key IN ({places}) LIMIT 1",
    "responses": "SELECT case_key, repeat FROM responses WHERE run = ? AND case_key IN ({places})",
}


class _Stored:
    """The state that the transaction of a part stored; a retried transaction replaces it."""

    def __init__(self) -> None:
        self.state: _State | None = None


def _find(read: Query, run_id: str) -> _State | None:
    columns = ", ".join(_State._fields)
    rows = read(f"SELECT {columns} FROM uploads WHERE run = ?", run_id)  # noqa: S608 - constants
    return _State(*rows[0]) if rows else None


def _of_run(read: Query, run_id: str) -> Query:
    return lambda statement, *values: read(statement, run_id, *values)


def _staged(run: Run) -> Run:
    """The run while it is uploaded: without a definition, no process can resume it."""
    return msgspec.structs.replace(
        run, status="running", owner=_UPLOADER, definition=None, early=None, error_message=_INCOMPLETE
    )


def _lines(part: bytes) -> Iterator[bytes]:
    """The lines of a part, of which the last may have no end."""
    start = 0
    while start < len(part):
        end = part.find(b"\n", start)
        end = len(part) if end < 0 else end
        yield part[start:end]
        start = end + 1


def _other_content(run_id: str) -> ServiceError:
    message = (
        f"The service has a run {run_id} with other content; it was labelled, resumed or regraded since one of the two"
        " was copied. Delete the run in the service to push this one"
    )
    return ServiceError(Code.CONFLICT, message)


def _invalid(field: str, reason: str) -> ServiceError:
    return ServiceError(
        Code.INVALID_INPUT, f"Field {field!r}: {reason}", details={"errors": [{"field": field, "message": reason}]}
    )
