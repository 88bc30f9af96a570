"""The tags of stored test cases, one row each, so that a list by tag reads only the cases that have it.

Triggers keep the rows and the number of cases of each tag, whichever way a case is saved, changed or deleted.
"""

from __future__ import annotations

from typing import NamedTuple

from gradeline.store.database import Database, Dialect, Row, Transaction, Value

MAX_COUNTED = 1_000
"""Cases that are counted one by one, where several tags match; beyond that the total is marked as capped."""
_MOST_MERGED = 100
"""Tags whose first cases are merged, each read from the index in order; those of more tags are sorted."""


class TagMatch(NamedTuple):
    """The tags in use that contain a text, with the number of cases of each."""

    part: str
    cases: dict[str, int]


class CaseTags:
    """Finds test cases by a part of a tag. The tables are those of `index_tags`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        find = "instr" if database.dialect.name == "sqlite" else "strpos"
        self._in_use = f"FROM tag_counts WHERE live > 0 AND {find}(tag, ?) > 0"

    def match(self, part: str) -> TagMatch:
        rows = self._database.read(f"SELECT tag, live {self._in_use} ORDER BY tag", part)
        return TagMatch(part, {tag: int(live) for tag, live in rows})

    def rows(self, match: TagMatch, after: int, limit: int, skip: int = 0) -> list[Row]:
        """Number and stored form of the cases that have any of the tags, by number, from behind one on."""
        if not match.cases:
            return []
        numbers, values = self._numbers(match, after, limit + skip)
        return self._database.read(
            f"""SELECT test_cases.n, test_cases.test_case FROM (
                SELECT n FROM ({numbers}) AS merged ORDER BY n LIMIT ? OFFSET ?
            ) AS page CROSS JOIN test_cases WHERE test_cases.n = page.n AND test_cases.deleted = 0
            ORDER BY test_cases.n""",  # noqa: S608 - made of constants
            *values,
            limit,
            skip,
        )

    def count(self, match: TagMatch) -> tuple[int, bool]:
        """The number of cases with any of the tags, and whether there are more, which only several tags can have."""
        if len(match.cases) < 2:
            return sum(match.cases.values()), False
        if max(match.cases.values()) > MAX_COUNTED:
            return MAX_COUNTED, True
        # a case may have several of the tags
        numbers, values = self._numbers(match, 0, MAX_COUNTED + 1)
        ((number,),) = self._database.read(
            f"SELECT count(*) FROM (SELECT n FROM ({numbers}) AS merged LIMIT ?) AS counted",  # noqa: S608 - made of constants
            *values,
            MAX_COUNTED + 1,
        )
        return min(int(number), MAX_COUNTED), number > MAX_COUNTED

    def _numbers(self, match: TagMatch, after: int, most: int) -> tuple[str, list[Value]]:
        """A query for the first numbers of cases with any of the tags."""
        if len(match.cases) > _MOST_MERGED:
            every = f"SELECT DISTINCT n FROM case_tags WHERE tag IN (SELECT tag {self._in_use}) AND n > ?"  # noqa: S608 - made of constants
            return every, [match.part, after]
        one = "SELECT n FROM (SELECT n FROM case_tags WHERE tag = ? AND n > ? ORDER BY n LIMIT ?) AS tagged"
        values: list[Value] = [value for tag in match.cases for value in (tag, after, most)]
        return " UNION ".join([one] * len(match.cases)), values


def index_tags(transaction: Transaction, dialect: Dialect) -> None:
    """Create the tables and the triggers that keep them, and fill them with the cases that exist."""
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
