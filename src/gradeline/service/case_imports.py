"""Imports of many test cases, in batches so that other writers can work, and visible completely or not at all.

The rows of an import are first staged in a table of their own, in batches. A short transaction then marks the import as
complete, and its rows are moved to the test cases, again in batches. If the process dies before the mark, the staged
rows are removed. If it dies afterwards, the next start, or the next import of that size, moves the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from time import monotonic, sleep
from typing import NamedTuple
from uuid import uuid4

from gradeline.errors import StoreError
from gradeline.model.sample import TestCase
from gradeline.service.errors import Code, ServiceError
from gradeline.store.database import Database, Dialect, Transaction, Value
from gradeline.store.leases import LEASE_S, is_alive, seconds_between, this_process
from gradeline.store.queries import copy_test_cases, insert_rows, select_test_cases

BATCH = 1_000
"""Rows of one transaction."""
_PAUSE_SHARE = 0.25
"""Pause after a batch, as a share of its duration, for writers of other processes."""
_MAX_PAUSE_S = 0.1
_RETRY_FOR_S = 30.0
"""Time for which a complete import is retried while the store cannot be written."""
_RETRY_S = 1.0
_NOW = "CAST(CURRENT_TIMESTAMP AS TEXT)"

StoredCase = tuple[str, str]
"""The id of a case, and its stored form."""


def create_imports(transaction: Transaction, dialect: Dialect) -> None:
    transaction.run(
        "CREATE TABLE case_imports (id TEXT PRIMARY KEY, owner TEXT NOT NULL, at TEXT NOT NULL,"
        " complete INTEGER NOT NULL, created_by TEXT)"
    )
    transaction.run(
        f"CREATE TABLE imported_cases (n {dialect.serial}, import TEXT NOT NULL, id TEXT NOT NULL,"
        " test_case TEXT NOT NULL)"
    )
    transaction.run("CREATE INDEX imported_cases_of_import ON imported_cases (import, n)")


class CaseImports:
    """The imports of a store that are in progress."""

    def __init__(self, database: Database, take_turn: Callable[[Transaction], None]) -> None:
        """``take_turn`` makes that new cases are numbered in the order in which they are committed."""
        self._database = database
        self._take_turn = take_turn
        self._owner = f"{this_process()}|{uuid4().hex[:8]}"
        self._in_progress: set[str] = set()

    def store(
        self, rows: Iterator[StoredCase], created_by: str | None, record: Callable[[Transaction, int], None]
    ) -> int:
        """Store all rows and return their number; ``record`` is called in the transaction that completes the import."""
        self.finish_abandoned()
        import_id = uuid4().hex
        self._in_progress.add(import_id)
        try:
            return self._import(import_id, rows, created_by, record)
        finally:
            self._in_progress.discard(import_id)

    def _import(
        self,
        import_id: str,
        rows: Iterator[StoredCase],
        created_by: str | None,
        record: Callable[[Transaction, int], None],
    ) -> int:
        self._database.transact(
            lambda transaction: transaction.run(
                f"INSERT INTO case_imports (id, owner, at, complete, created_by) VALUES (?, ?, {_NOW}, 0, ?)",  # noqa: S608
                import_id,
                self._owner,
                created_by,
            )
        )
        try:
            stored = self._stage(import_id, rows)
            self._database.transact(lambda transaction: _complete(transaction, import_id, stored, record))
        except BaseException:
            with suppress(StoreError):
                self._discard(import_id)
            raise
        self._publish_with_retries(import_id)
        return stored

    def finish_abandoned(self) -> None:
        """Finish complete imports whose process is gone, and remove the rows of incomplete ones."""
        for import_id, owner, at, now, complete in self._database.read(
            f"SELECT id, owner, at, {_NOW}, complete FROM case_imports"  # noqa: S608 - constants
        ):
            if self._is_active(import_id, owner, seconds_between(at, now)):
                continue
            if complete:
                self._publish(import_id)
            else:
                self._discard(import_id)

    def _is_active(self, import_id: str, owner: str, silent_s: float) -> bool:
        if owner == self._owner:
            return import_id in self._in_progress
        alive = is_alive(owner.partition("|")[0])
        return silent_s < LEASE_S if alive is None else alive

    def _stage(self, import_id: str, rows: Iterator[StoredCase]) -> int:
        stored = 0
        while chunk := list(islice(rows, BATCH)):
            began = monotonic()
            staged = [(import_id, case, text) for case, text in chunk]

            def work(transaction: Transaction, staged: list[tuple[str, str, str]] = staged) -> None:
                _require(transaction, import_id)
                insert_rows(transaction, "imported_cases", "import, id, test_case", staged)

            self._database.transact(work)
            stored += len(chunk)
            _let_others_write(began)
        return stored

    def _publish_with_retries(self, import_id: str) -> None:
        deadline = monotonic() + _RETRY_FOR_S
        while True:
            try:
                return self._publish(import_id)
            except StoreError:
                if monotonic() >= deadline:
                    raise
            sleep(_RETRY_S)

    def _publish(self, import_id: str) -> None:
        began = monotonic()
        while self._database.transact(lambda transaction: self._move_some(transaction, import_id)):
            _let_others_write(began)
            began = monotonic()

    def _move_some(self, transaction: Transaction, import_id: str) -> bool:
        """Move a batch; False if nothing is left."""
        found = transaction.run(
            f"UPDATE case_imports SET at = {_NOW} WHERE id = ? RETURNING created_by",  # noqa: S608 - constants
            import_id,
        )
        if not found:
            return False
        ((last,),) = transaction.run(
            "SELECT max(n) FROM (SELECT n FROM imported_cases WHERE import = ? ORDER BY n LIMIT ?) AS following",
            import_id,
            BATCH,
        )
        if last is None:
            transaction.run("DELETE FROM case_imports WHERE id = ?", import_id)
            return False
        self._take_turn(transaction)
        copy_test_cases(
            transaction,
            "SELECT imported_cases.id, test_case, created_by FROM imported_cases"
            " JOIN case_imports ON case_imports.id = import WHERE import = ? AND n <= ? ORDER BY n",
            import_id,
            last,
        )
        transaction.run("DELETE FROM imported_cases WHERE import = ? AND n <= ?", import_id, last)
        return True

    def _discard(self, import_id: str) -> None:
        """Remove an incomplete import, in batches."""

        def work(transaction: Transaction) -> bool:
            removed = transaction.run(
                "DELETE FROM imported_cases WHERE n IN"
                " (SELECT n FROM imported_cases WHERE import = ? ORDER BY n LIMIT ?) RETURNING n",
                import_id,
                BATCH,
            )
            if not removed:
                transaction.run("DELETE FROM case_imports WHERE id = ?", import_id)
            return bool(removed)

        while self._database.transact(work):
            pass


def _complete(
    transaction: Transaction, import_id: str, stored: int, record: Callable[[Transaction, int], None]
) -> None:
    _require(transaction, import_id)
    transaction.run("UPDATE case_imports SET complete = 1 WHERE id = ?", import_id)
    record(transaction, stored)


def _require(transaction: Transaction, import_id: str) -> None:
    """Lock the import until the transaction ends; another process may have removed it, believing this one dead."""
    statement = f"UPDATE case_imports SET at = {_NOW} WHERE id = ? RETURNING id"  # noqa: S608 - constants
    if not transaction.run(statement, import_id):
        raise ServiceError(Code.STORAGE_UNAVAILABLE, "The import took too long and was removed; nothing was stored")


def _let_others_write(began: float) -> None:
    sleep(min(_MAX_PAUSE_S, (monotonic() - began) * _PAUSE_SHARE))


MAX_COUNTED = 1_000
"""Cases that are counted one by one if several tags match; above that the total is marked as capped."""
_MAX_MERGED = 100
"""Tags whose cases are merged in index order; the cases of more tags are sorted."""


class TagMatch(NamedTuple):
    """The tags in use that contain a text, each with its number of cases."""

    part: str
    cases: dict[str, int]


class CaseTags:
    """Finds test cases by part of a tag, in the tables of `index_tags`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        find = "instr" if database.dialect.name == "sqlite" else "strpos"
        self._in_use = f"FROM tag_counts WHERE live > 0 AND {find}(tag, ?) > 0"

    def match(self, part: str) -> TagMatch:
        rows = self._database.read(f"SELECT tag, live {self._in_use} ORDER BY tag", part)
        return TagMatch(part, {tag: int(live) for tag, live in rows})

    def page(self, match: TagMatch, after: int, limit: int, skip: int = 0) -> list[tuple[int, TestCase]]:
        """The cases with any of the tags, after their numbers, from after one number on."""
        if not match.cases:
            return []
        numbers, values = self._numbers(match, after, limit + skip)
        return select_test_cases(self._database.read, numbers, values, limit, skip)

    def count(self, match: TagMatch) -> tuple[int, bool]:
        """The number of cases with any of the tags, and whether there are more, which is possible with several tags."""
        if len(match.cases) < 2:
            return sum(match.cases.values()), False
        if max(match.cases.values()) > MAX_COUNTED:
            return MAX_COUNTED, True
        # a case may have several of the tags
        numbers, values = self._numbers(match, 0, MAX_COUNTED + 1)
        ((number,),) = self._database.read(
            f"SELECT count(*) FROM (SELECT n FROM ({numbers}) AS merged LIMIT ?) AS counted",  # noqa: S608 - constants
            *values,
            MAX_COUNTED + 1,
        )
        return min(int(number), MAX_COUNTED), number > MAX_COUNTED

    def _numbers(self, match: TagMatch, after: int, most: int) -> tuple[str, list[Value]]:
        """A query for the numbers of the first cases with any of the tags."""
        if len(match.cases) > _MAX_MERGED:
            every = f"SELECT DISTINCT n FROM case_tags WHERE tag IN (SELECT tag {self._in_use}) AND n > ?"  # noqa: S608 - constants
            return every, [match.part, after]
        one = "SELECT n FROM (SELECT n FROM case_tags WHERE tag = ? AND n > ? ORDER BY n LIMIT ?) AS tagged"
        values: list[Value] = [value for tag in match.cases for value in (tag, after, most)]
        return " UNION ".join([one] * len(match.cases)), values


def index_tags(transaction: Transaction, dialect: Dialect) -> None:
    """Create the tables, their triggers, and the rows of existing cases."""
    for statement in _SQLITE if dialect.name == "sqlite" else _POSTGRESQL:
        transaction.run(statement)


_SQLITE = (
    "CREATE TABLE case_tags (tag TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (tag, n)) WITHOUT ROWID",
    "CREATE TABLE tag_counts (tag TEXT PRIMARY KEY, live INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TRIGGER tag_added AFTER INSERT ON case_tags BEGIN
        INSERT INTO tag_counts (tag, live) VALUES (new.tag, 1) ON CONFLICT (tag) DO UPDATE SET live = live + 1;
    END""",
    """CREATE TRIGGER tag_removed AFTER DELETE ON case_tags BEGIN
        UPDATE tag_counts SET live = live - 1 WHERE tag = old.tag;
    END""",
    """CREATE TRIGGER tags_of_new_case AFTER INSERT ON test_cases WHEN new.deleted = 0 BEGIN
        INSERT INTO case_tags (tag, n) SELECT DISTINCT value, new.n FROM json_each(new.test_case, '$.tags');
    END""",
    """CREATE TRIGGER tags_of_changed_case AFTER UPDATE OF deleted, test_case ON test_cases
    WHEN old.deleted <> new.deleted
        OR json_extract(old.test_case, '$.tags') IS NOT json_extract(new.test_case, '$.tags') BEGIN
        DELETE FROM case_tags
        WHERE n = old.n AND tag IN (SELECT value FROM json_each(old.test_case, '$.tags'));
        INSERT INTO case_tags (tag, n)
        SELECT DISTINCT value, new.n FROM json_each(new.test_case, '$.tags') WHERE new.deleted = 0;
    END""",
    """CREATE TRIGGER tags_of_removed_case AFTER DELETE ON test_cases BEGIN
        DELETE FROM case_tags
        WHERE n = old.n AND tag IN (SELECT value FROM json_each(old.test_case, '$.tags'));
    END""",
    """INSERT INTO case_tags (tag, n) SELECT DISTINCT value, n FROM test_cases, json_each(test_case, '$.tags')
    WHERE deleted = 0""",
)
_POSTGRESQL = (
    'CREATE TABLE case_tags (tag TEXT COLLATE "C" NOT NULL, n BIGINT NOT NULL, PRIMARY KEY (tag, n))',
    'CREATE TABLE tag_counts (tag TEXT COLLATE "C" PRIMARY KEY, live BIGINT NOT NULL)',
    """CREATE FUNCTION count_added_tags() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
        INSERT INTO tag_counts AS known (tag, live) SELECT tag, count(*) FROM added GROUP BY tag ORDER BY tag
        ON CONFLICT (tag) DO UPDATE SET live = known.live + excluded.live;
        RETURN NULL;
    END $$""",
    """CREATE FUNCTION count_removed_tags() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
        UPDATE tag_counts SET live = live - number
        FROM (SELECT tag, count(*) AS number FROM removed GROUP BY tag) AS fewer WHERE tag_counts.tag = fewer.tag;
        RETURN NULL;
    END $$""",
    """CREATE FUNCTION tag_new_cases() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
        INSERT INTO case_tags (tag, n)
        SELECT DISTINCT tag, n FROM added, json_array_elements_text(test_case::json -> 'tags') AS tag
        WHERE deleted = 0;
        RETURN NULL;
    END $$""",
    """CREATE FUNCTION tag_changed_cases() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
        DELETE FROM case_tags USING before_it, after_it
        WHERE case_tags.n = before_it.n AND after_it.n = before_it.n
            AND (before_it.deleted, before_it.test_case) <> (after_it.deleted, after_it.test_case)
            AND case_tags.tag IN (SELECT json_array_elements_text(before_it.test_case::json -> 'tags'));
        INSERT INTO case_tags (tag, n)
        SELECT DISTINCT tag, after_it.n
        FROM before_it JOIN after_it USING (n), json_array_elements_text(after_it.test_case::json -> 'tags') AS tag
        WHERE after_it.deleted = 0
            AND (before_it.deleted, before_it.test_case) <> (after_it.deleted, after_it.test_case);
        RETURN NULL;
    END $$""",
    """CREATE FUNCTION untag_removed_cases() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
        DELETE FROM case_tags USING removed
        WHERE case_tags.n = removed.n
            AND case_tags.tag IN (SELECT json_array_elements_text(removed.test_case::json -> 'tags'));
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER tag_added AFTER INSERT ON case_tags REFERENCING NEW TABLE AS added
        FOR EACH STATEMENT EXECUTE FUNCTION count_added_tags()""",
    """CREATE TRIGGER tag_removed AFTER DELETE ON case_tags REFERENCING OLD TABLE AS removed
        FOR EACH STATEMENT EXECUTE FUNCTION count_removed_tags()""",
    """CREATE TRIGGER tags_of_new_case AFTER INSERT ON test_cases REFERENCING NEW TABLE AS added
        FOR EACH STATEMENT EXECUTE FUNCTION tag_new_cases()""",
    """CREATE TRIGGER tags_of_changed_case AFTER UPDATE ON test_cases
        REFERENCING OLD TABLE AS before_it NEW TABLE AS after_it
        FOR EACH STATEMENT EXECUTE FUNCTION tag_changed_cases()""",
    """CREATE TRIGGER tags_of_removed_case AFTER DELETE ON test_cases REFERENCING OLD TABLE AS removed
        FOR EACH STATEMENT EXECUTE FUNCTION untag_removed_cases()""",
    """INSERT INTO case_tags (tag, n)
    SELECT DISTINCT tag, n FROM test_cases, json_array_elements_text(test_case::json -> 'tags') AS tag
    WHERE deleted = 0""",
)
