"""The schema of a SQLite store and its version.

`MIGRATIONS` is the list of numbered steps; the first one creates everything. Once a version is released its step is
never edited: a change is a new function at the end of the list.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

Migration = Callable[[sqlite3.Connection], None]

APPLICATION_ID = 0x67726C6E  # "grln"

_TEST_CASES = (
    """CREATE TABLE test_cases (
        n INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        deleted INTEGER NOT NULL DEFAULT 0,
        test_case TEXT NOT NULL,
        created_by TEXT
    )""",
    "CREATE TABLE case_totals (name TEXT PRIMARY KEY, live INTEGER NOT NULL)",
    "INSERT INTO case_totals (name, live) VALUES ('test_cases', 0)",
    """CREATE TRIGGER case_added AFTER INSERT ON test_cases BEGIN
        UPDATE case_totals SET live = live + 1 - new.deleted;
    END""",
    """CREATE TRIGGER case_hidden AFTER UPDATE OF deleted ON test_cases WHEN old.deleted <> new.deleted BEGIN
        UPDATE case_totals SET live = live + old.deleted - new.deleted;
    END""",
    """CREATE TRIGGER case_removed AFTER DELETE ON test_cases BEGIN
        UPDATE case_totals SET live = live - 1 + old.deleted;
    END""",
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
)
"""The number of cases and the index of their tags follow by triggers every way of saving or deleting a case.
``created_by`` is the key of the service that created it."""

# Runs are ordered by n: the clock may jump.
_RUNS = (
    """CREATE TABLE runs (
        n INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        parent TEXT REFERENCES runs (id),
        run TEXT NOT NULL
    )""",
    "CREATE INDEX runs_by_name ON runs (name)",
    "CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL",
    # Names of runs that others of their suite are compared with (`store.baselines`). Such a run cannot be deleted.
    """CREATE TABLE baselines (
        suite TEXT NOT NULL,
        name TEXT NOT NULL,
        run TEXT NOT NULL REFERENCES runs (id),
        set_by TEXT NOT NULL,
        set_at TEXT NOT NULL,
        PRIMARY KEY (suite, name)
    ) WITHOUT ROWID""",
    "CREATE INDEX baselines_of_run ON baselines (run)",
    # Heartbeats of owners (`store.leases`), by the clock of the database.
    """CREATE TABLE run_heartbeats (
        run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
        at TEXT NOT NULL
    ) WITHOUT ROWID""",
    # Runs whose rows are still being removed; their ids cannot be reused before that is done.
    "CREATE TABLE deleted_runs (run TEXT PRIMARY KEY) WITHOUT ROWID",
    """CREATE TRIGGER rows_are_gone_before_an_id_is_used_again BEFORE INSERT ON runs
    WHEN EXISTS (SELECT 1 FROM deleted_runs WHERE run = new.id) BEGIN
        SELECT RAISE(ABORT, 'the rows of this run are still being removed');
    END""",
)

# Grades do not reference responses: a regraded run has grades only, the responses belong to its parent.
_RECORDS = (
    """CREATE TABLE samples (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        case_key TEXT NOT NULL,
        position INTEGER NOT NULL,
        sample TEXT NOT NULL,
        PRIMARY KEY (run, case_key),
        UNIQUE (run, position, case_key)
    )""",
    """CREATE TABLE responses (
        run TEXT NOT NULL,
        case_key TEXT NOT NULL,
        repeat INTEGER NOT NULL,
        status TEXT NOT NULL,
        response TEXT NOT NULL,
        latency_ms REAL,
        cost REAL,
        cache_key TEXT,
        digest TEXT,
        PRIMARY KEY (run, case_key, repeat),
        FOREIGN KEY (run, case_key) REFERENCES samples (run, case_key) ON DELETE CASCADE
    )""",
    "CREATE INDEX responses_by_cache_key ON responses (cache_key) WHERE cache_key IS NOT NULL",
    """CREATE TABLE grades (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        case_key TEXT NOT NULL,
        repeat INTEGER NOT NULL,
        grader TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        outcome TEXT NOT NULL,
        units INTEGER NOT NULL,
        squares INTEGER NOT NULL,
        grade TEXT NOT NULL,
        submission TEXT,
        score REAL,
        reported_error INTEGER NOT NULL DEFAULT 0,
        cost REAL,
        PRIMARY KEY (run, case_key, repeat, grader)
    )""",
    # A case without a cluster has no row.
    """CREATE TABLE clusters (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        case_key TEXT NOT NULL,
        cluster TEXT NOT NULL,
        PRIMARY KEY (run, case_key)
    ) WITHOUT ROWID""",
)

_COUNT_RESPONSE = """
    INSERT INTO response_counts (run, status, count) VALUES (new.run, new.status, 1)
    ON CONFLICT (run, status) DO UPDATE SET count = count + 1;"""
_COUNT_GRADE = """
    INSERT INTO grade_counts (run, grader, outcome, count, units, squares)
    VALUES (new.run, new.grader, new.outcome, 1, new.units, new.squares)
    ON CONFLICT (run, grader, outcome) DO UPDATE SET
        count = count + 1, units = units + excluded.units, squares = squares + excluded.squares;"""
_UNCOUNT_GRADE = """
    UPDATE grade_counts SET count = count - 1, units = units - old.units, squares = squares - old.squares
    WHERE run = old.run AND grader = old.grader AND outcome = old.outcome;"""

# New rows are counted by the code that inserts them, a batch at a time (`sqlite_records.put_rows`): a trigger for each
# took a fifth of a commit. Triggers keep the counts of replaced and deleted rows.
_COUNTS = (
    """CREATE TABLE response_counts (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        status TEXT NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (run, status)
    ) WITHOUT ROWID""",
    """CREATE TABLE grade_counts (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        grader TEXT NOT NULL,
        outcome TEXT NOT NULL,
        count INTEGER NOT NULL,
        units INTEGER NOT NULL,
        squares INTEGER NOT NULL,
        PRIMARY KEY (run, grader, outcome)
    ) WITHOUT ROWID""",
    f"""CREATE TRIGGER response_replaced AFTER UPDATE ON responses BEGIN
        UPDATE response_counts SET count = count - 1 WHERE run = old.run AND status = old.status;
        {_COUNT_RESPONSE}
    END""",  # noqa: S608 - made of constants
    f"CREATE TRIGGER grade_replaced AFTER UPDATE ON grades BEGIN {_UNCOUNT_GRADE} {_COUNT_GRADE} END",
    f"CREATE TRIGGER grade_dropped AFTER DELETE ON grades BEGIN {_UNCOUNT_GRADE} END",
)

# A replaced response moves to the history with its grades: it was paid for, and people have seen it. The new one has
# no grades yet. Attempts count from 1.
_HISTORY = (
    """CREATE TABLE response_history (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        case_key TEXT NOT NULL,
        repeat INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        response TEXT NOT NULL,
        PRIMARY KEY (run, case_key, repeat, attempt)
    )""",
    """CREATE TABLE grade_history (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        case_key TEXT NOT NULL,
        repeat INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        grader TEXT NOT NULL,
        grade TEXT NOT NULL,
        submission TEXT,
        PRIMARY KEY (run, case_key, repeat, attempt, grader)
    )""",
    """CREATE TRIGGER answer_replaced AFTER UPDATE OF response, digest ON responses BEGIN
        DELETE FROM grades WHERE run = new.run AND case_key = new.case_key AND repeat = new.repeat;
    END""",
    """CREATE TRIGGER response_kept BEFORE UPDATE OF response, digest ON responses BEGIN
        INSERT INTO response_history (run, case_key, repeat, attempt, response)
        SELECT old.run, old.case_key, old.repeat, 1 + count(*), old.response FROM response_history
        WHERE run = old.run AND case_key = old.case_key AND repeat = old.repeat;
        INSERT INTO grade_history (run, case_key, repeat, attempt, grader, grade, submission)
        SELECT run, case_key, repeat, (SELECT max(attempt) FROM response_history
            WHERE run = old.run AND case_key = old.case_key AND repeat = old.repeat), grader, grade, submission
        FROM grades WHERE run = old.run AND case_key = old.case_key AND repeat = old.repeat;
    END""",
)

# Observations are append-only, and the first one of a key is kept. `first_observation_stays` is needed because REPLACE
# deletes without firing the triggers of DELETE. `observation_cases` has one row for each case, so that a case counts
# once however often it was observed; an observation without a case is a case of its own.
_LEDGER = (
    """CREATE TABLE observations (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        task_family TEXT NOT NULL,
        baseline_adapter TEXT NOT NULL,
        candidate_adapter TEXT NOT NULL,
        grader_id TEXT NOT NULL,
        grader_fingerprint TEXT NOT NULL,
        score REAL CHECK (score BETWEEN 0 AND 1),
        units INTEGER NOT NULL,
        baseline_digest TEXT NOT NULL,
        candidate_digest TEXT NOT NULL,
        cost REAL,
        latency_ms REAL,
        calibration_state TEXT NOT NULL,
        observed_at TEXT NOT NULL,
        idempotency_key TEXT NOT NULL UNIQUE,
        case_key TEXT
    )""",
    "CREATE INDEX observations_by_family ON observations (task_family, id)",
    "CREATE INDEX observations_by_adapter ON observations (candidate_adapter, id)",
    """CREATE TRIGGER no_update_of_observations BEFORE UPDATE ON observations BEGIN
        SELECT RAISE(ABORT, 'the quality ledger is append-only: add an observation instead');
    END""",
    """CREATE TRIGGER no_delete_of_observations BEFORE DELETE ON observations BEGIN
        SELECT RAISE(ABORT, 'the quality ledger is append-only: add an observation instead');
    END""",
    """CREATE TRIGGER first_observation_stays BEFORE INSERT ON observations
    WHEN EXISTS (SELECT 1 FROM observations WHERE idempotency_key = new.idempotency_key OR id = new.id) BEGIN
        SELECT RAISE(IGNORE);
    END""",
    """CREATE TABLE observation_cases (
        task_family TEXT NOT NULL,
        candidate_adapter TEXT NOT NULL,
        baseline_adapter TEXT NOT NULL,
        grader_id TEXT NOT NULL,
        grader_fingerprint TEXT NOT NULL,
        calibration_state TEXT NOT NULL,
        case_key TEXT NOT NULL,
        observation TEXT NOT NULL,
        total INTEGER NOT NULL,
        scored INTEGER NOT NULL,
        units INTEGER NOT NULL,
        latest TEXT NOT NULL,
        PRIMARY KEY (task_family, candidate_adapter, baseline_adapter, grader_id, case_key, observation,
            grader_fingerprint, calibration_state)
    ) WITHOUT ROWID""",
    """CREATE TRIGGER observation_stored AFTER INSERT ON observations BEGIN
        INSERT INTO observation_cases VALUES (
            new.task_family, new.candidate_adapter, new.baseline_adapter, new.grader_id, new.grader_fingerprint,
            new.calibration_state, coalesce(new.case_key, ''),
            CASE WHEN new.case_key IS NULL THEN new.idempotency_key ELSE '' END,
            1, new.score IS NOT NULL, new.units, new.observed_at)
        ON CONFLICT DO UPDATE SET
            total = total + 1, scored = scored + excluded.scored, units = units + excluded.units,
            latest = max(latest, excluded.latest);
    END""",
)

# The versions of tables that other parts of the program add (`database.migrate`).
_PARTS = "CREATE TABLE parts (name TEXT PRIMARY KEY, version INTEGER NOT NULL)"


def create_schema(connection: sqlite3.Connection) -> None:
    for statement in (*_TEST_CASES, *_RUNS, *_RECORDS, *_COUNTS, *_HISTORY, *_LEDGER, _PARTS):
        connection.execute(statement)


MIGRATIONS: Sequence[Migration] = (create_schema,)


def version_of(connection: sqlite3.Connection) -> int:
    """The number of migrations that were applied to the store."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] | None = None) -> None:
    """Bring the store to the newest version in one transaction: syncing a new file after each step would take longer.

    Processes may call this at the same time: the one that gets the lock second finds nothing left to do.
    """
    migrations = MIGRATIONS if migrations is None else migrations
    if version_of(connection) >= len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection)
        for step in migrations[version:]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(version, len(migrations))}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
