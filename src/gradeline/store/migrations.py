"""The tables of the SQLite store, as steps from one version of the schema to the next.

A released step is never edited: a change is a new function at the end of `MIGRATIONS`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

Migration = Callable[[sqlite3.Connection], None]

APPLICATION_ID = 0x67726C6E  # "grln"


def create_test_cases(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE test_cases (
            n INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            deleted INTEGER NOT NULL DEFAULT 0,
            test_case TEXT NOT NULL
        )"""
    )


def create_runs(connection: sqlite3.Connection) -> None:
    """Runs are ordered by ``n``, which no jump of the clock can disturb."""
    connection.execute(
        """CREATE TABLE runs (
            n INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            parent TEXT REFERENCES runs (id),
            run TEXT NOT NULL
        )"""
    )
    connection.execute("CREATE INDEX runs_by_name ON runs (name)")
    connection.execute("CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL")


def create_records(connection: sqlite3.Connection) -> None:
    """The texts stand last in their rows, so that reading what comes before them does not load them.

    Grades do not refer to responses: those of a regraded run belong to its parent.
    """
    connection.execute(
        """CREATE TABLE samples (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            case_key TEXT NOT NULL,
            position INTEGER NOT NULL,
            sample TEXT NOT NULL,
            PRIMARY KEY (run, case_key),
            UNIQUE (run, position, case_key)
        )"""
    )
    connection.execute(
        """CREATE TABLE responses (
            run TEXT NOT NULL,
            case_key TEXT NOT NULL,
            repeat INTEGER NOT NULL,
            status TEXT NOT NULL,
            response TEXT NOT NULL,
            PRIMARY KEY (run, case_key, repeat),
            FOREIGN KEY (run, case_key) REFERENCES samples (run, case_key) ON DELETE CASCADE
        )"""
    )
    connection.execute(
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
            PRIMARY KEY (run, case_key, repeat, grader)
        )"""
    )


def roll_up_counts(connection: sqlite3.Connection) -> None:
    """Triggers keep the counts."""
    connection.execute(
        """CREATE TABLE response_counts (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            status TEXT NOT NULL,
            count INTEGER NOT NULL,
            PRIMARY KEY (run, status)
        ) WITHOUT ROWID"""
    )
    connection.execute(
        """CREATE TABLE grade_counts (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            grader TEXT NOT NULL,
            outcome TEXT NOT NULL,
            count INTEGER NOT NULL,
            units INTEGER NOT NULL,
            squares INTEGER NOT NULL,
            PRIMARY KEY (run, grader, outcome)
        ) WITHOUT ROWID"""
    )
    count_response = """
        INSERT INTO response_counts (run, status, count) VALUES (new.run, new.status, 1)
        ON CONFLICT (run, status) DO UPDATE SET count = count + 1;"""
    count_grade = """
        INSERT INTO grade_counts (run, grader, outcome, count, units, squares)
        VALUES (new.run, new.grader, new.outcome, 1, new.units, new.squares)
        ON CONFLICT (run, grader, outcome) DO UPDATE SET
            count = count + 1, units = units + excluded.units, squares = squares + excluded.squares;"""
    connection.execute(f"CREATE TRIGGER response_stored AFTER INSERT ON responses BEGIN {count_response} END")
    connection.execute(f"CREATE TRIGGER grade_stored AFTER INSERT ON grades BEGIN {count_grade} END")
    connection.execute(
        f"""CREATE TRIGGER response_replaced AFTER UPDATE ON responses BEGIN
            UPDATE response_counts SET count = count - 1 WHERE run = old.run AND status = old.status;
            {count_response}
        END"""  # noqa: S608 - made of constants
    )
    connection.execute(
        f"""CREATE TRIGGER grade_replaced AFTER UPDATE ON grades BEGIN
            UPDATE grade_counts SET count = count - 1, units = units - old.units, squares = squares - old.squares
            WHERE run = old.run AND grader = old.grader AND outcome = old.outcome;
            {count_grade}
        END"""  # noqa: S608 - made of constants
    )


def add_measures(connection: sqlite3.Connection) -> None:
    """What summaries and comparisons read of every row, so that they need not decode the texts."""
    for column in ("latency_ms REAL", "cost REAL", "cache_key TEXT", "digest TEXT"):
        connection.execute(f"ALTER TABLE responses ADD COLUMN {column}")
    for column in ("score REAL", "reported_error INTEGER NOT NULL DEFAULT 0"):
        connection.execute(f"ALTER TABLE grades ADD COLUMN {column}")
    connection.execute(
        "UPDATE responses SET latency_ms = json_extract(response, '$.latency_ms'),"
        " cost = json_extract(response, '$.usage.cost')"
    )
    connection.execute(
        "UPDATE grades SET score = json_extract(grade, '$.score'), reported_error = json_extract(grade, '$.score')"
        " IS NOT NULL AND coalesce(json_extract(grade, '$.metadata.error') NOT IN ('', 0, '{}', '[]'), 0)"
    )
    connection.execute("CREATE INDEX responses_by_cache_key ON responses (cache_key) WHERE cache_key IS NOT NULL")


def drop_grades_of_replaced_responses(connection: sqlite3.Connection) -> None:
    """An answer that takes another's place is not graded yet, whatever the other's grades were."""
    connection.execute(
        """CREATE TRIGGER answer_replaced AFTER UPDATE OF response, digest ON responses BEGIN
            DELETE FROM grades WHERE run = new.run AND case_key = new.case_key AND repeat = new.repeat;
        END"""
    )
    connection.execute(
        """CREATE TRIGGER grade_dropped AFTER DELETE ON grades BEGIN
            UPDATE grade_counts SET count = count - 1, units = units - old.units, squares = squares - old.squares
            WHERE run = old.run AND grader = old.grader AND outcome = old.outcome;
        END"""
    )


def add_cost_of_grades(connection: sqlite3.Connection) -> None:
    """What judges were paid; nobody was before this."""
    connection.execute("ALTER TABLE grades ADD COLUMN cost REAL")


def create_ledger(connection: sqlite3.Connection) -> None:
    """Observations are only ever added, and a key's first one stays, whoever writes the statement.

    The last trigger is there because a REPLACE deletes without the triggers of a DELETE.
    """
    connection.execute(
        """CREATE TABLE observations (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            task_family TEXT NOT NULL,
            baseline_adapter TEXT NOT NULL,
            candidate_adapter TEXT NOT NULL,
            grader_id TEXT NOT NULL,
            grader_fingerprint TEXT NOT NULL,
            score REAL CHECK (score BETWEEN 0 AND 1),
            units INTEGER NOT NULL,
            squares INTEGER NOT NULL,
            baseline_digest TEXT NOT NULL,
            candidate_digest TEXT NOT NULL,
            cost REAL,
            latency_ms REAL,
            calibration_state TEXT NOT NULL,
            observed_at TEXT NOT NULL,
            idempotency_key TEXT NOT NULL UNIQUE
        )"""
    )
    connection.execute("CREATE INDEX observations_by_family ON observations (task_family, id)")
    connection.execute("CREATE INDEX observations_by_adapter ON observations (candidate_adapter, id)")
    for act in ("UPDATE", "DELETE"):
        connection.execute(
            f"""CREATE TRIGGER no_{act.lower()}_of_observations BEFORE {act} ON observations BEGIN
                SELECT RAISE(ABORT, 'the quality ledger is append-only: add an observation instead');
            END"""
        )
    connection.execute(
        """CREATE TRIGGER first_observation_stays BEFORE INSERT ON observations
        WHEN EXISTS (SELECT 1 FROM observations WHERE idempotency_key = new.idempotency_key OR id = new.id) BEGIN
            SELECT RAISE(IGNORE);
        END"""
    )


def roll_up_observations(connection: sqlite3.Connection) -> None:
    """One row for all that are alike but for their scores, so that a query costs the same at any size."""
    connection.execute(
        """CREATE TABLE observation_sums (
            task_family TEXT NOT NULL,
            candidate_adapter TEXT NOT NULL,
            baseline_adapter TEXT NOT NULL,
            grader_id TEXT NOT NULL,
            grader_fingerprint TEXT NOT NULL,
            calibration_state TEXT NOT NULL,
            total INTEGER NOT NULL,
            scored INTEGER NOT NULL,
            units INTEGER NOT NULL,
            squares INTEGER NOT NULL,
            latest TEXT NOT NULL,
            PRIMARY KEY (task_family, candidate_adapter, baseline_adapter, grader_id, grader_fingerprint,
                calibration_state)
        ) WITHOUT ROWID"""
    )
    connection.execute(
        """CREATE TRIGGER observation_stored AFTER INSERT ON observations BEGIN
            INSERT INTO observation_sums VALUES (
                new.task_family, new.candidate_adapter, new.baseline_adapter, new.grader_id, new.grader_fingerprint,
                new.calibration_state, 1, new.score IS NOT NULL, new.units, new.squares, new.observed_at)
            ON CONFLICT DO UPDATE SET
                total = total + 1, scored = scored + excluded.scored, units = units + excluded.units,
                squares = squares + excluded.squares, latest = max(latest, excluded.latest);
        END"""
    )


def keep_replaced_responses(connection: sqlite3.Connection) -> None:
    """What another answer takes the place of stays, with its grades: it was paid for, and people were shown it.

    Attempts count from 1. The trigger comes before the one that drops the grades.
    """
    connection.execute(
        """CREATE TABLE response_history (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            case_key TEXT NOT NULL,
            repeat INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            response TEXT NOT NULL,
            PRIMARY KEY (run, case_key, repeat, attempt)
        )"""
    )
    connection.execute(
        """CREATE TABLE grade_history (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            case_key TEXT NOT NULL,
            repeat INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            grader TEXT NOT NULL,
            grade TEXT NOT NULL,
            submission TEXT,
            PRIMARY KEY (run, case_key, repeat, attempt, grader)
        )"""
    )
    connection.execute(
        """CREATE TRIGGER response_kept BEFORE UPDATE OF response, digest ON responses BEGIN
            INSERT INTO response_history (run, case_key, repeat, attempt, response)
            SELECT old.run, old.case_key, old.repeat, 1 + count(*), old.response FROM response_history
            WHERE run = old.run AND case_key = old.case_key AND repeat = old.repeat;
            INSERT INTO grade_history (run, case_key, repeat, attempt, grader, grade, submission)
            SELECT run, case_key, repeat, (SELECT max(attempt) FROM response_history
                WHERE run = old.run AND case_key = old.case_key AND repeat = old.repeat), grader, grade, submission
            FROM grades WHERE run = old.run AND case_key = old.case_key AND repeat = old.repeat;
        END"""
    )


def create_parts(connection: sqlite3.Connection) -> None:
    """The versions of the tables that stand beside these (`database.migrate`); older stores may know some."""
    connection.execute("CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")


def remember_deleted_runs(connection: sqlite3.Connection) -> None:
    """Runs whose rows are still to be removed (`deletion`). Their ids are not given to others before."""
    connection.execute("CREATE TABLE deleted_runs (run TEXT PRIMARY KEY) WITHOUT ROWID")
    connection.execute(
        """CREATE TRIGGER rows_are_gone_before_an_id_is_used_again BEFORE INSERT ON runs
        WHEN EXISTS (SELECT 1 FROM deleted_runs WHERE run = new.id) BEGIN
            SELECT RAISE(ABORT, 'the rows of this run are still being removed');
        END"""
    )


def count_new_rows_at_once(connection: sqlite3.Connection) -> None:
    """Whoever stores rows counts the new ones (`bulk.put_rows`), a batch at a time."""
    for trigger in ("response_stored", "grade_stored"):
        connection.execute(f"DROP TRIGGER {trigger}")


def create_heartbeats(connection: sqlite3.Connection) -> None:
    """When the owner of a run was last alive (`owner`), by the clock of the database."""
    connection.execute(
        """CREATE TABLE run_heartbeats (
            run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
            at TEXT NOT NULL
        ) WITHOUT ROWID"""
    )


def create_clusters(connection: sqlite3.Connection) -> None:
    """The clusters of a run's cases; a case without one has no row, so that runs without clusters have none at all."""
    connection.execute(
        """CREATE TABLE clusters (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            case_key TEXT NOT NULL,
            cluster TEXT NOT NULL,
            PRIMARY KEY (run, case_key)
        ) WITHOUT ROWID"""
    )


def count_cases_of_the_ledger(connection: sqlite3.Connection) -> None:
    """A case counts once, however often it was observed: observations name it, and the roll-up has a row for each.

    The case of what a run of this store judged is found again. Of other observations it cannot be known: each is a case
    of its own.
    """
    connection.execute("DROP TRIGGER observation_stored")
    connection.execute("DROP TABLE observation_sums")
    connection.execute("ALTER TABLE observations ADD COLUMN case_key TEXT")
    connection.execute("ALTER TABLE observations DROP COLUMN squares")
    if connection.execute("SELECT 1 FROM observations LIMIT 1").fetchone():
        _find_cases_of_observations(connection)
    connection.execute(
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
        ) WITHOUT ROWID"""
    )
    columns = "task_family, candidate_adapter, baseline_adapter, grader_id, grader_fingerprint, calibration_state"
    case = "coalesce(case_key, ''), CASE WHEN case_key IS NULL THEN idempotency_key ELSE '' END"
    connection.execute(
        f"""INSERT INTO observation_cases
        SELECT {columns}, {case}, count(*), count(score), sum(units), max(observed_at)
        FROM observations GROUP BY 1, 2, 3, 4, 5, 6, 7, 8"""  # noqa: S608 - made of constants
    )
    connection.execute(
        """CREATE TRIGGER observation_stored AFTER INSERT ON observations BEGIN
            INSERT INTO observation_cases VALUES (
                new.task_family, new.candidate_adapter, new.baseline_adapter, new.grader_id, new.grader_fingerprint,
                new.calibration_state, coalesce(new.case_key, ''),
                CASE WHEN new.case_key IS NULL THEN new.idempotency_key ELSE '' END,
                1, new.score IS NOT NULL, new.units, new.observed_at)
            ON CONFLICT DO UPDATE SET
                total = total + 1, scored = scored + excluded.scored, units = units + excluded.units,
                latest = max(latest, excluded.latest);
        END"""
    )


def _find_cases_of_observations(connection: sqlite3.Connection) -> None:
    from gradeline.store.case_keys import comparing_graders, found_case_keys  # few stores have such observations

    (guard,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'no_update_of_observations'").fetchone()
    connection.execute("DROP TRIGGER no_update_of_observations")
    for run, text in connection.execute("SELECT id, run FROM runs"):
        graders = comparing_graders(text)
        if not graders:
            continue
        grades = connection.execute(
            """WITH RECURSIVE sources (run, step) AS (
                SELECT ?1, 0 UNION ALL SELECT runs.parent, step + 1 FROM sources JOIN runs ON runs.id = sources.run
                WHERE runs.parent IS NOT NULL AND step < 100)
            SELECT grades.case_key, grades.repeat, grades.grader, samples.sample FROM grades JOIN samples
                ON samples.case_key = grades.case_key AND samples.run = (
                    SELECT run FROM sources WHERE EXISTS (SELECT 1 FROM samples AS own WHERE own.run = sources.run)
                    ORDER BY step LIMIT 1)
            WHERE grades.run = ?1""",
            (run,),
        )
        compared = (row for row in grades if row[2] in graders)
        connection.executemany(
            "UPDATE observations SET case_key = ? WHERE idempotency_key = ?", found_case_keys(run, compared)
        )
    connection.execute(guard)


MIGRATIONS: Sequence[Migration] = (
    create_test_cases,
    create_runs,
    create_records,
    roll_up_counts,
    add_measures,
    drop_grades_of_replaced_responses,
    add_cost_of_grades,
    create_ledger,
    roll_up_observations,
    keep_replaced_responses,
    create_parts,
    remember_deleted_runs,
    count_new_rows_at_once,
    create_heartbeats,
    create_clusters,
    count_cases_of_the_ledger,
)


def version_of(connection: sqlite3.Connection) -> int:
    """How many migrations the store has seen."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the store to the newest schema, all steps or none: to sync a new file after each would take longer.

    Another process may be at the same work: who gets the lock second finds it done.
    """
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
