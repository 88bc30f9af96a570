"""Stored test cases: validation, changes, lists and search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from time import time
from typing import Any, NamedTuple, cast
from uuid import uuid4

import msgspec

from gradeline.errors import Problem
from gradeline.graders.checks import read_checks
from gradeline.model.record import to_json
from gradeline.model.sample import TestCase
from gradeline.model.text import clean_text, quote
from gradeline.rest_types import utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.case_imports import (
    BATCH,
    CaseImports,
    StoredCase,
    create_imports,
)
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor, require_clean
from gradeline.store.database import Database, Step, Transaction, migrate
from gradeline.store.queries import (
    CaseTags,
    count_test_cases,
    find_test_cases,
    hide_test_case,
    insert_test_cases,
    list_test_cases,
    lock_test_case,
    order_new_test_cases,
    read_test_case,
    update_test_case,
)

MAX_TEXT = 10_000
MAX_DESCRIPTION = 500
MAX_TAGS = 10
MAX_TAG = 50
MAX_CHECKS_TEXT = 50_000
"""Characters of the checks of a case as JSON."""
MAX_COUNTED = 10_000
"""Matches of a text that are counted; beyond that the total is marked as capped."""
FIELDS = ("input", "expected_output", "description", "tags", "checks")
REQUIRED = ("input", "expected_output")
TAG_PATTERN = "^[A-Za-z0-9_-]{1,50}$"

_TAG_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_PER_QUERY = 500
_MAX_CHECK_FAULTS = 100
_ITEM = "test case"
_TICK_S = 0.0011
"""Slightly more than a millisecond, because timestamps are truncated to milliseconds."""


class CaseFault(NamedTuple):
    """A fault of one field of a case."""

    code: Code
    field: str
    message: str


class TestCasePage(NamedTuple):
    """A page of the list, oldest first."""

    cases: list[TestCase]
    total: int
    capped: bool
    """There are more than ``total``; counting stopped there."""
    next_cursor: str | None


class CaseFilter(NamedTuple):
    """Conditions on test cases: part of a tag, part of any of their texts."""

    tag: str | None = None
    q: str | None = None

    def matches(self, case: TestCase) -> bool:
        """Tags are matched case-sensitively, texts in any case."""
        if self.tag and not any(self.tag in tag for tag in case.tags):
            return False
        if not self.q:
            return True
        q = self.q.casefold()
        texts = (case.input, case.expected_output, case.description or "", *case.tags)
        return any(q in text.casefold() for text in texts)

    def check(self) -> None:
        """Raise `ServiceError` for characters that no stored text contains."""
        for name, value in (("tag", self.tag), ("q", self.q)):
            if value and clean_text(value).changed:
                raise ServiceError(
                    Code.INVALID_INPUT, f"Parameter '{name}' contains NUL or half a surrogate pair; remove it"
                )


EVERYTHING = CaseFilter()


TEST_CASE_STEPS: tuple[Step, ...] = (create_imports,)


class TestCases:
    """The test cases of a store, including those saved by other means than the service."""

    __test__ = False  # keeps pytest from collecting it

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tags = CaseTags(database)
        migrate(database, "test_cases", TEST_CASE_STEPS)
        self._imports = CaseImports(database)
        self._imports.finish_abandoned()

    def create(
        self, fields: Mapping[str, object], created_by: str | None = None, record: Recorder = unrecorded
    ) -> TestCase:
        """Store a new case; `ServiceError` with all faults of its fields."""
        _require(faults_of(fields))
        case = new_case(fields)

        def work(transaction: Transaction) -> None:
            _insert(transaction, [(case.id, to_json(case))], created_by)
            record(transaction, f"test_case/{case.id}")

        self._database.transact(work)
        return case

    def add(self, cases: Iterable[TestCase]) -> None:
        """Store new cases, all or none."""
        self.add_rows((case.id, to_json(case)) for case in cases)

    def add_rows(
        self,
        rows: Iterator[StoredCase],
        created_by: str | None = None,
        record: Callable[[Transaction, int], None] = lambda _, __: None,
    ) -> int:
        """Store new cases, all or none, in constant memory, and return their number; see `CaseImports` for many.

        ``record`` is called with that number in the transaction that completes it.
        """
        first = list(islice(rows, BATCH + 1))
        if len(first) > BATCH:
            return self._imports.store(chain(first, rows), created_by, record)

        def work(transaction: Transaction) -> None:
            _insert(transaction, first, created_by)
            record(transaction, len(first))

        self._database.transact(work)
        return len(first)

    def get(self, case: str) -> TestCase:
        """The case with that id; a malformed id is unknown."""
        if clean_text(case).changed:
            raise not_found(_ITEM, case)
        found = read_test_case(self._database.read, case)
        if found is None:
            raise not_found(_ITEM, case)
        return found

    def change(self, case: str, fields: Mapping[str, object], record: Recorder = unrecorded) -> TestCase:
        """Replace some fields; concurrent changes of other fields are kept."""
        _require(faults_of(fields, partial=True))
        if clean_text(case).changed:
            raise not_found(_ITEM, case)

        def work(transaction: Transaction) -> TestCase | None:
            found = lock_test_case(transaction, case)
            if found is None or not fields:
                return found
            edited = _edited(found, fields)
            update_test_case(transaction, edited)
            record(transaction, f"test_case/{case}", {"fields": sorted(fields)})
            return edited

        changed = self._database.transact(work)
        if changed is None:
            raise not_found(_ITEM, case)
        return changed

    def delete(self, case: str, key_id: str | None = None, record: Recorder = unrecorded) -> None:
        """Delete a case; the runs that used it keep its texts.

        With ``key_id`` only cases that this key has created; None: any case.
        """
        if clean_text(case).changed:
            raise not_found(_ITEM, case)

        def work(transaction: Transaction) -> None:
            rows = hide_test_case(transaction, case)
            if not rows:
                raise not_found(_ITEM, case)
            if key_id is not None and rows[0][0] != key_id:
                reason = "was not created with this key; deleting it requires a key of scope 'admin'"
                raise ServiceError(Code.FORBIDDEN, f"The test case {quote(case, 60)} {reason}")
            record(transaction, f"test_case/{case}")

        self._database.transact(work)

    def total(self) -> int:
        """The number of cases, from a counter."""
        return count_test_cases(self._database.read)

    def page(self, page: PageRequest, where: CaseFilter = EVERYTHING) -> TestCasePage:
        """A page of the list. A cursor continues after the last case of its page, whatever was added since."""
        where.check()
        after = 0 if page.cursor is None else int(decode_cursor(page.cursor, int)[0])
        if where.q:
            return self._filtered(page, where, after)
        if where.tag:
            return self._tagged(page, where.tag, after)
        found = list_test_cases(self._database.read, after, page.limit + 1, page.skip)
        return _cut(found, page.limit, self.total(), capped=False)

    def matching(self, where: CaseFilter = EVERYTHING) -> Iterator[TestCase]:
        """All matching cases, oldest first, in constant memory."""
        where.check()
        return (case for _, case in self._scan(where))

    def find(self, ids: Sequence[str]) -> dict[str, TestCase]:
        """The existing ones of these cases, by id."""
        return find_test_cases(self._database.read, (case for case in ids if not clean_text(case).changed))

    def _filtered(self, page: PageRequest, where: CaseFilter, after: int) -> TestCasePage:
        """One scan finds the page and the total; it ends when both are known."""
        total = passed = 0
        found: list[tuple[int, TestCase]] = []
        for n, case in self._scan(where):
            total += 1
            if n > after:
                passed += 1
                if passed > page.skip and len(found) <= page.limit:
                    found.append((n, case))
            if total > MAX_COUNTED and len(found) > page.limit:
                break
        return _cut(found, page.limit, min(total, MAX_COUNTED), capped=total > MAX_COUNTED)

    def _tagged(self, page: PageRequest, tag: str, after: int) -> TestCasePage:
        """Reads the tag index, and only the cases of the page."""
        match = self._tags.match(tag)
        found = self._tags.page(match, after, page.limit + 1, page.skip)
        total, capped = self._tags.count(match)
        return _cut(found, page.limit, total, capped=capped)

    def _scan(self, where: CaseFilter) -> Iterator[tuple[int, TestCase]]:
        match = self._tags.match(where.tag) if where.tag else None
        after = 0
        while True:
            if match is None:
                found = list_test_cases(self._database.read, after, _PER_QUERY)
            else:
                found = self._tags.page(match, after, _PER_QUERY)
            if not found:
                return
            yield from ((n, case) for n, case in found if where.matches(case))
            after = found[-1][0]


def new_case(fields: Mapping[str, object]) -> TestCase:
    """A case from valid fields (see `faults_of`), with a new id."""
    now = utc_timestamp(time())
    values = {name: fields[name] for name in FIELDS if name in fields}
    blank = TestCase(id=str(uuid4()), input="", expected_output="", created_at=now, modified_at=now)
    return _replace(blank, values)


def case_to_json(case: TestCase) -> dict[str, object]:
    """A case as the API and exports return it."""
    return {
        "id": case.id,
        "input": case.input,
        "expected_output": case.expected_output,
        "description": case.description,
        "tags": list(case.tags),
        "checks": case.checks,
        "created_at": case.created_at,
        "modified_at": case.modified_at,
    }


def faults_of(fields: Mapping[str, object], *, partial: bool = False) -> list[CaseFault]:
    """All faults of the fields of a case; with ``partial``, fields may be missing."""
    faults = [
        CaseFault(Code.INVALID_INPUT, str(name), f"Field {quote(name, 60)} is unknown; use one of {', '.join(FIELDS)}")
        for name in fields
        if name not in FIELDS
    ]
    for name in REQUIRED:
        if name in fields:
            faults += _faults_of_text(name, fields[name], 1, MAX_TEXT)
        elif not partial:
            faults.append(CaseFault(Code.MISSING_FIELD, name, f"Field '{name}' is required"))
    if fields.get("description") is not None:
        faults += _faults_of_text("description", fields["description"], 0, MAX_DESCRIPTION)
    if fields.get("tags") is not None:
        faults += _faults_of_tags(fields["tags"])
    if fields.get("checks") is not None:
        faults += _faults_of_checks(fields["checks"])
    return faults


def _faults_of_text(name: str, text: object, least: int, most: int) -> Iterator[CaseFault]:
    if not isinstance(text, str):
        yield CaseFault(Code.INVALID_INPUT, name, f"Field '{name}' must be a string, got {quote(text, 60)}")
    elif not least <= len(text) <= most:
        bounds = f"{least:,} to {most:,}" if least else f"at most {most:,}"
        yield CaseFault(
            Code.INVALID_LENGTH, name, f"Field '{name}' must have {bounds} characters, it has {len(text):,}"
        )
    elif text and not text.strip():
        yield CaseFault(Code.INVALID_INPUT, name, f"Field '{name}' must not be blank")
    elif clean_text(text).changed:
        what = "NUL" if "\0" in text else "half a surrogate pair"
        yield CaseFault(Code.INVALID_INPUT, name, f"Field '{name}' contains {what}; remove it")


def _faults_of_tags(tags: object) -> Iterator[CaseFault]:
    if not isinstance(tags, list | tuple):
        yield CaseFault(Code.INVALID_INPUT, "tags", f"Field 'tags' must be a list of strings, got {quote(tags, 60)}")
        return
    if len(tags) > MAX_TAGS:
        yield CaseFault(
            Code.INVALID_LENGTH, "tags", f"Field 'tags' must have at most {MAX_TAGS} tags, it has {len(tags)}"
        )
    for place, tag in enumerate(tags[: MAX_TAGS + 1]):
        name = f"tags[{place}]"
        if not isinstance(tag, str):
            yield CaseFault(Code.INVALID_INPUT, name, f"Field '{name}' must be a string, got {quote(tag, 60)}")
        elif not 1 <= len(tag) <= MAX_TAG:
            reason = f"Field '{name}' must have 1 to {MAX_TAG} characters, it has {len(tag):,}"
            yield CaseFault(Code.INVALID_LENGTH, name, reason)
        elif not _TAG_CHARACTERS.issuperset(tag):
            reason = f"Field '{name}' must consist of letters a to z, digits, '-' and '_', got {quote(tag, 60)}"
            yield CaseFault(Code.INVALID_INPUT, name, reason)


def _faults_of_checks(checks: object) -> Iterator[CaseFault]:
    try:
        require_clean(checks, "checks")
    except ServiceError as error:
        yield CaseFault(error.code, "checks", error.message)
        return
    size = len(msgspec.json.encode(checks).decode())
    if size > MAX_CHECKS_TEXT:
        reason = f"Field 'checks' must have at most {MAX_CHECKS_TEXT:,} characters as JSON, it has {size:,}"
        yield CaseFault(Code.INVALID_LENGTH, "checks", reason)
        return
    problems: list[Problem] = []
    read_checks(checks, "checks", problems)
    if checks == []:
        problems.append(Problem("checks", "is empty: write at least one check, or null for none"))
    for path, message in problems[:_MAX_CHECK_FAULTS]:
        yield CaseFault(Code.INVALID_INPUT, path, f"Field {quote(path, 200)}: {message}")
    if len(problems) > _MAX_CHECK_FAULTS:
        more = f"has {len(problems) - _MAX_CHECK_FAULTS:,} more faults"
        yield CaseFault(Code.INVALID_INPUT, "checks", f"Field 'checks' {more}")


def _require(faults: Sequence[CaseFault]) -> None:
    if not faults:
        return
    details = {"errors": [{"field": one.field, "code": one.code.value, "message": one.message} for one in faults]}
    raise ServiceError(faults[0].code, faults[0].message, details=details)


def _edited(case: TestCase, fields: Mapping[str, object]) -> TestCase:
    """The case with some fields replaced, and a later timestamp even if the clock did not advance."""
    now = utc_timestamp(time())
    if case.modified_at is not None and now <= case.modified_at:
        now = utc_timestamp(datetime.fromisoformat(case.modified_at).timestamp() + _TICK_S)
    return _replace(case, {**fields, "modified_at": now})


def _replace(case: TestCase, values: Mapping[str, object]) -> TestCase:
    changes: dict[str, Any] = dict(values)
    if "tags" in changes:
        changes["tags"] = tuple(cast("Sequence[str]", changes["tags"] or ()))
    return msgspec.structs.replace(case, **changes)


def _cut(found: list[tuple[int, TestCase]], limit: int, total: int, *, capped: bool) -> TestCasePage:
    """The page, without the extra case that shows that there is a next page."""
    more = len(found) > limit
    kept = found[:limit]
    return TestCasePage([case for _, case in kept], total, capped, encode_cursor(kept[-1][0]) if more else None)


def _insert(transaction: Transaction, rows: Iterable[StoredCase], created_by: str | None) -> None:
    order_new_test_cases(transaction)
    insert_test_cases(transaction, ((*row, created_by) for row in rows))
