"""The schema of a PostgreSQL store and its version.

The tables are in a schema of their own, so that the database may hold other programs' tables. `MIGRATIONS` is the list
of numbered steps; the first one creates everything. Once a version is released its step is never edited: a change is a
new function at the end of the list.

Columns by which rows are found or ordered have the collation "C": they are ordered by code points, as in SQLite,
whatever the language of the database. Flags are 0 and 1, so that one statement serves both databases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gradeline.errors import StoreError
from gradeline.store.database import newer_version
from gradeline.store.postgres_connections import LONG_SECONDS, SCHEMA, take_time

if TYPE_CHECKING:
    from gradeline.store.postgres_connections import Connection

    Migration: TypeAlias = Callable[[Connection], Awaitable[None]]

_LOCK = 0x67726C6E
"""The advisory lock under which the schema changes."""
_OLDEST_SERVER = 12

_TRIGGER_FUNCTION = "RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS"

# The number of cases and the index of their tags follow by triggers every way of saving or deleting a case.
# ``created_by`` is the key of the service that created it.
_TEST_CASES = f"""
CREATE TABLE test_cases (
    n bigserial PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    deleted integer NOT NULL DEFAULT 0,
    test_case text NOT NULL,
    created_by text
);
CREATE TABLE case_totals (name text COLLATE "C" PRIMARY KEY, live bigint NOT NULL);
INSERT INTO case_totals (name, live) VALUES ('test_cases', 0);
CREATE FUNCTION count_added_cases() {_TRIGGER_FUNCTION} $$ BEGIN
    UPDATE case_totals SET live = live + (SELECT count(*) FROM added WHERE deleted = 0);
    RETURN NULL;
END $$;
CREATE FUNCTION count_hidden_cases() {_TRIGGER_FUNCTION} $$
DECLARE change BIGINT := (SELECT count(*) FROM after_it WHERE deleted = 0)
    - (SELECT count(*) FROM before_it WHERE deleted = 0);
BEGIN
    IF change <> 0 THEN UPDATE case_totals SET live = live + change; END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION count_removed_cases() {_TRIGGER_FUNCTION} $$ BEGIN
    UPDATE case_totals SET live = live - (SELECT count(*) FROM removed WHERE deleted = 0);
    RETURN NULL;
END $$;
CREATE TRIGGER case_added AFTER INSERT ON test_cases REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION count_added_cases();
CREATE TRIGGER case_hidden AFTER UPDATE ON test_cases REFERENCING OLD TABLE AS before_it NEW TABLE AS after_it
    FOR EACH STATEMENT EXECUTE FUNCTION count_hidden_cases();
CREATE TRIGGER case_removed AFTER DELETE ON test_cases REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION count_removed_cases();
CREATE TABLE case_tags (tag text COLLATE "C" NOT NULL, n bigint NOT NULL, PRIMARY KEY (tag, n));
CREATE TABLE tag_counts (tag text COLLATE "C" PRIMARY KEY, live bigint NOT NULL);
CREATE FUNCTION count_added_tags() {_TRIGGER_FUNCTION} $$ BEGIN
    INSERT INTO tag_counts AS known (tag, live) SELECT tag, count(*) FROM added GROUP BY tag ORDER BY tag
    ON CONFLICT (tag) DO UPDATE SET live = known.live + excluded.live;
    RETURN NULL;
END $$;
CREATE FUNCTION count_removed_tags() {_TRIGGER_FUNCTION} $$ BEGIN
    UPDATE tag_counts SET live = live - number
    FROM (SELECT tag, count(*) AS number FROM removed GROUP BY tag) AS fewer WHERE tag_counts.tag = fewer.tag;
    RETURN NULL;
END $$;
CREATE FUNCTION tag_new_cases() {_TRIGGER_FUNCTION} $$ BEGIN
    INSERT INTO case_tags (tag, n)
    SELECT DISTINCT tag, n FROM added, json_array_elements_text(test_case::json -> 'tags') AS tag
    WHERE deleted = 0;
    RETURN NULL;
END $$;
CREATE FUNCTION tag_changed_cases() {_TRIGGER_FUNCTION} $$ BEGIN
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
END $$;
CREATE FUNCTION untag_removed_cases() {_TRIGGER_FUNCTION} $$ BEGIN
    DELETE FROM case_tags USING removed
    WHERE case_tags.n = removed.n
        AND case_tags.tag IN (SELECT json_array_elements_text(removed.test_case::json -> 'tags'));
    RETURN NULL;
END $$;
CREATE TRIGGER tag_added AFTER INSERT ON case_tags REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION count_added_tags();
CREATE TRIGGER tag_removed AFTER DELETE ON case_tags REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION count_removed_tags();
CREATE TRIGGER tags_of_new_case AFTER INSERT ON test_cases REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION tag_new_cases();
CREATE TRIGGER tags_of_changed_case AFTER UPDATE ON test_cases
    REFERENCING OLD TABLE AS before_it NEW TABLE AS after_it
    FOR EACH STATEMENT EXECUTE FUNCTION tag_changed_cases();
CREATE TRIGGER tags_of_removed_case AFTER DELETE ON test_cases REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION untag_removed_cases()"""  # noqa: S608 - made of constants

# Runs are ordered by n: the clock may jump. The index of names is a hash because a name may have any length.
# A baseline is the name of a run that others of its suite are compared with (`store.baselines`).
# Rows of a deleted run are removed in steps afterwards (`remove_rows`); its ID cannot be reused before that is done.
_RUNS = f"""
CREATE TABLE runs (
    n bigserial PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    name text COLLATE "C" NOT NULL,
    parent text COLLATE "C" REFERENCES runs (id),
    run text NOT NULL
);
CREATE INDEX runs_by_name ON runs USING hash (name);
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL;
CREATE TABLE baselines (
    suite text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL REFERENCES runs (id),
    set_by text NOT NULL,
    set_at text NOT NULL,
    PRIMARY KEY (suite, name)
);
CREATE INDEX baselines_of_run ON baselines (run);
CREATE TABLE run_heartbeats (
    run text COLLATE "C" PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    at text NOT NULL
);
CREATE TABLE deleted_runs (run text COLLATE "C" PRIMARY KEY);
CREATE FUNCTION require_unused_id() {_TRIGGER_FUNCTION} $$
BEGIN
    IF EXISTS (SELECT FROM deleted_runs WHERE run = new.id) THEN
        RAISE object_in_use USING MESSAGE = 'the rows of this run are still being removed';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER rows_are_gone_before_an_id_is_used_again AFTER INSERT ON runs
    FOR EACH ROW EXECUTE FUNCTION require_unused_id()"""

# Records do not reference their run, or deleting it would delete them all in one transaction. `require_run` checks
# once a statement that the run exists, which is faster than once a row; responses and grades are checked by their
# counts. Responses do not reference their case, which would lock its row for each of them. Grades do not reference
# responses: a regraded run has grades only. A case without a cluster has no row in `clusters`.
_RECORDS = f"""
CREATE TABLE samples (
    run text COLLATE "C" NOT NULL,
    case_key text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    sample text NOT NULL,
    PRIMARY KEY (run, case_key),
    UNIQUE (run, position, case_key)
);
CREATE TABLE responses (
    run text COLLATE "C" NOT NULL,
    case_key text COLLATE "C" NOT NULL,
    repeat bigint NOT NULL,
    status text NOT NULL,
    latency_ms double precision,
    cost double precision,
    cache_key text COLLATE "C",
    digest text NOT NULL,
    response text NOT NULL,
    PRIMARY KEY (run, case_key, repeat)
);
CREATE INDEX responses_by_cache_key ON responses (cache_key) WHERE cache_key IS NOT NULL;
CREATE TABLE grades (
    run text COLLATE "C" NOT NULL,
    case_key text COLLATE "C" NOT NULL,
    repeat bigint NOT NULL,
    grader text COLLATE "C" NOT NULL,
    fingerprint text NOT NULL,
    outcome text NOT NULL,
    units bigint NOT NULL,
    squares bigint NOT NULL,
    score double precision,
    reported_error integer NOT NULL,
    cost double precision,
    grade text NOT NULL,
    submission text,
    PRIMARY KEY (run, case_key, repeat, grader)
);
CREATE TABLE clusters (
    run text COLLATE "C" NOT NULL,
    case_key text COLLATE "C" NOT NULL,
    cluster text NOT NULL,
    PRIMARY KEY (run, case_key)
);
CREATE FUNCTION require_run() {_TRIGGER_FUNCTION} $$
DECLARE wanted text COLLATE "C";
BEGIN
    FOR wanted IN SELECT DISTINCT run FROM new_rows LOOP
        PERFORM FROM runs WHERE id = wanted FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE foreign_key_violation USING MESSAGE = 'there is no such run';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER run_of_new_samples AFTER INSERT ON samples
    REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION require_run();
CREATE TRIGGER run_of_changed_samples AFTER UPDATE ON samples
    REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION require_run();
CREATE TRIGGER run_of_new_clusters AFTER INSERT ON clusters
    REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION require_run()"""  # noqa: S608 - made of constants

# Triggers keep the counts, once a statement and in the order of the keys, so that two writers wait for each other
# instead of deadlocking. A counter is sharded by session: concurrent writers to one run rarely wait for each other. A
# shard may be negative, since rows are subtracted by the session that deletes them; the views add the shards up.
_SHARDS = """
CREATE TABLE response_shares (
    run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    status text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    share integer NOT NULL DEFAULT 0,
    PRIMARY KEY (run, status, share)
);
CREATE TABLE grade_shares (
    run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    grader text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    units numeric NOT NULL,  -- ten million scores of 1.0 would overflow a bigint
    squares numeric NOT NULL,
    share integer NOT NULL DEFAULT 0,
    PRIMARY KEY (run, grader, outcome, share)
);
CREATE VIEW response_counts AS
    SELECT run, status, sum(count)::bigint AS count FROM response_shares GROUP BY run, status;
CREATE VIEW grade_counts AS
    SELECT run, grader, outcome, sum(count)::bigint AS count, sum(units) AS units, sum(squares) AS squares
    FROM grade_shares GROUP BY run, grader, outcome;
CREATE FUNCTION my_share() RETURNS integer LANGUAGE sql STABLE AS 'SELECT pg_backend_pid() % 16'"""
_COUNT_RESPONSES = f"""
CREATE FUNCTION count_new_responses() {_TRIGGER_FUNCTION} $$
BEGIN
    INSERT INTO response_shares AS known (run, status, share, count)
    SELECT run, status, my_share(), count(*)
    FROM new_rows GROUP BY run, status ORDER BY run, status
    ON CONFLICT (run, status, share) DO UPDATE SET count = known.count + excluded.count;
    RETURN NULL;
END $$;
CREATE FUNCTION count_changed_responses() {_TRIGGER_FUNCTION} $$
BEGIN
    INSERT INTO response_shares AS known (run, status, share, count)
    SELECT run, status, my_share(), sum(sign) FROM (
        SELECT run, status, 1 AS sign FROM new_rows UNION ALL SELECT run, status, -1 FROM old_rows
    ) AS changes GROUP BY run, status HAVING sum(sign) <> 0 ORDER BY run, status
    ON CONFLICT (run, status, share) DO UPDATE SET count = known.count + excluded.count;
    RETURN NULL;
END $$;
CREATE FUNCTION count_dropped_responses() {_TRIGGER_FUNCTION} $$
BEGIN
    INSERT INTO response_shares AS known (run, status, share, count)
    SELECT run, status, my_share(), -count(*)
    FROM old_rows WHERE EXISTS (SELECT FROM runs WHERE id = old_rows.run)
    GROUP BY run, status ORDER BY run, status
    ON CONFLICT (run, status, share) DO UPDATE SET count = known.count + excluded.count;
    RETURN NULL;
END $$;
CREATE TRIGGER response_stored AFTER INSERT ON responses
    REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION count_new_responses();
CREATE TRIGGER response_replaced AFTER UPDATE ON responses
    REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows EXECUTE FUNCTION count_changed_responses();
CREATE TRIGGER response_dropped AFTER DELETE ON responses
    REFERENCING OLD TABLE AS old_rows EXECUTE FUNCTION count_dropped_responses()"""  # noqa: S608 - made of constants
_COUNT_GRADES = f"""
CREATE FUNCTION count_new_grades() {_TRIGGER_FUNCTION} $$
BEGIN
    INSERT INTO grade_shares AS known (run, grader, outcome, share, count, units, squares)
    SELECT run, grader, outcome, my_share(), count(*), sum(units), sum(squares)
    FROM new_rows GROUP BY run, grader, outcome ORDER BY run, grader, outcome
    ON CONFLICT (run, grader, outcome, share) DO UPDATE SET count = known.count + excluded.count,
        units = known.units + excluded.units, squares = known.squares + excluded.squares;
    RETURN NULL;
END $$;
CREATE FUNCTION count_changed_grades() {_TRIGGER_FUNCTION} $$
BEGIN
    INSERT INTO grade_shares AS known (run, grader, outcome, share, count, units, squares)
    SELECT run, grader, outcome, my_share(), sum(sign), sum(sign * units), sum(sign * squares)
    FROM (
        SELECT run, grader, outcome, units, squares, 1 AS sign FROM new_rows
        UNION ALL SELECT run, grader, outcome, units, squares, -1 FROM old_rows
    ) AS changes GROUP BY run, grader, outcome ORDER BY run, grader, outcome
    ON CONFLICT (run, grader, outcome, share) DO UPDATE SET count = known.count + excluded.count,
        units = known.units + excluded.units, squares = known.squares + excluded.squares;
    RETURN NULL;
END $$;
CREATE FUNCTION count_dropped_grades() {_TRIGGER_FUNCTION} $$
BEGIN
    INSERT INTO grade_shares AS known (run, grader, outcome, share, count, units, squares)
    SELECT run, grader, outcome, my_share(), -count(*), -sum(units), -sum(squares)
    FROM old_rows WHERE EXISTS (SELECT FROM runs WHERE id = old_rows.run)
    GROUP BY run, grader, outcome ORDER BY run, grader, outcome
    ON CONFLICT (run, grader, outcome, share) DO UPDATE SET count = known.count + excluded.count,
        units = known.units + excluded.units, squares = known.squares + excluded.squares;
    RETURN NULL;
END $$;
CREATE TRIGGER grade_stored AFTER INSERT ON grades
    REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION count_new_grades();
CREATE TRIGGER grade_replaced AFTER UPDATE ON grades
    REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows EXECUTE FUNCTION count_changed_grades();
CREATE TRIGGER grade_dropped AFTER DELETE ON grades
    REFERENCING OLD TABLE AS old_rows EXECUTE FUNCTION count_dropped_grades()"""  # noqa: S608 - made of constants

# A replaced response moves to the history with its grades: it was paid for, and people have seen it. The new one has
# no grades yet. Attempts count from 1. Triggers fire in the order of their names: answer_kept before answer_replaced.
_HISTORY = f"""
CREATE TABLE response_history (
    run text COLLATE "C" NOT NULL,
    case_key text COLLATE "C" NOT NULL,
    repeat bigint NOT NULL,
    attempt bigint NOT NULL,
    response text NOT NULL,
    PRIMARY KEY (run, case_key, repeat, attempt)
);
CREATE TABLE grade_history (
    run text COLLATE "C" NOT NULL,
    case_key text COLLATE "C" NOT NULL,
    repeat bigint NOT NULL,
    attempt bigint NOT NULL,
    grader text COLLATE "C" NOT NULL,
    grade text NOT NULL,
    submission text,
    PRIMARY KEY (run, case_key, repeat, attempt, grader)
);
CREATE TRIGGER run_of_replaced_responses AFTER INSERT ON response_history
    REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION require_run();
CREATE FUNCTION keep_outdated_answers() {_TRIGGER_FUNCTION} $$
BEGIN
    WITH kept AS (
        INSERT INTO response_history (run, case_key, repeat, attempt, response)
        SELECT was.run, was.case_key, was.repeat, 1 + (
            SELECT count(*) FROM response_history AS earlier
            WHERE (earlier.run, earlier.case_key, earlier.repeat) = (was.run, was.case_key, was.repeat)
        ), was.response
        FROM old_rows AS was JOIN new_rows AS now
            ON (was.run, was.case_key, was.repeat) = (now.run, now.case_key, now.repeat)
        WHERE (was.response, was.digest) <> (now.response, now.digest)
        RETURNING run, case_key, repeat, attempt
    )
    INSERT INTO grade_history (run, case_key, repeat, attempt, grader, grade, submission)
    SELECT kept.run, kept.case_key, kept.repeat, kept.attempt, grader, grade, submission
    FROM kept JOIN grades AS given
        ON (given.run, given.case_key, given.repeat) = (kept.run, kept.case_key, kept.repeat);
    RETURN NULL;
END $$;
CREATE TRIGGER answer_kept AFTER UPDATE ON responses
    REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows EXECUTE FUNCTION keep_outdated_answers();
CREATE FUNCTION drop_outdated_grades() {_TRIGGER_FUNCTION} $$
BEGIN
    DELETE FROM grades USING old_rows AS was, new_rows AS now
    WHERE (was.run, was.case_key, was.repeat) = (now.run, now.case_key, now.repeat)
        AND (was.response, was.digest) <> (now.response, now.digest)
        AND (grades.run, grades.case_key, grades.repeat) = (now.run, now.case_key, now.repeat);
    RETURN NULL;
END $$;
CREATE TRIGGER answer_replaced AFTER UPDATE ON responses
    REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows EXECUTE FUNCTION drop_outdated_grades()"""  # noqa: S608

# Observations are append-only, and the first one of a key is kept. `observation_cases` has one row for each case, so
# that a case counts once however often it was observed; an observation without a case is a case of its own.
_LEDGER = f"""
CREATE TABLE observations (
    id bigserial PRIMARY KEY,
    task_family text COLLATE "C" NOT NULL,
    baseline_adapter text COLLATE "C" NOT NULL,
    candidate_adapter text COLLATE "C" NOT NULL,
    grader_id text COLLATE "C" NOT NULL,
    grader_fingerprint text COLLATE "C" NOT NULL,
    score double precision CHECK (score BETWEEN 0 AND 1),
    units bigint NOT NULL,
    baseline_digest text NOT NULL,
    candidate_digest text NOT NULL,
    cost double precision,
    latency_ms double precision,
    calibration_state text COLLATE "C" NOT NULL,
    observed_at text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL UNIQUE,
    case_key text COLLATE "C"
);
CREATE INDEX observations_by_family ON observations (task_family, id);
CREATE INDEX observations_by_adapter ON observations (candidate_adapter, id);
CREATE FUNCTION refuse_change_of_ledger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'the quality ledger is append-only: add an observation instead';
END $$;
CREATE TRIGGER no_change_of_observations BEFORE UPDATE OR DELETE OR TRUNCATE ON observations
    EXECUTE FUNCTION refuse_change_of_ledger();
CREATE TABLE observation_cases (
    task_family text COLLATE "C" NOT NULL,
    candidate_adapter text COLLATE "C" NOT NULL,
    baseline_adapter text COLLATE "C" NOT NULL,
    grader_id text COLLATE "C" NOT NULL,
    grader_fingerprint text COLLATE "C" NOT NULL,
    calibration_state text COLLATE "C" NOT NULL,
    case_key text COLLATE "C" NOT NULL,
    observation text COLLATE "C" NOT NULL,
    total bigint NOT NULL,
    scored bigint NOT NULL,
    units numeric NOT NULL,
    latest text COLLATE "C" NOT NULL,
    PRIMARY KEY (task_family, candidate_adapter, baseline_adapter, grader_id, case_key, observation,
        grader_fingerprint, calibration_state)
);
CREATE FUNCTION sum_up_observations() {_TRIGGER_FUNCTION} $$
BEGIN
    INSERT INTO observation_cases AS known
    SELECT task_family, candidate_adapter, baseline_adapter, grader_id, grader_fingerprint, calibration_state,
        coalesce(case_key, ''), CASE WHEN case_key IS NULL THEN idempotency_key ELSE '' END,
        count(*), count(score), sum(units), max(observed_at)
    FROM new_rows GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
    ON CONFLICT (task_family, candidate_adapter, baseline_adapter, grader_id, case_key, observation,
        grader_fingerprint, calibration_state)
    DO UPDATE SET total = known.total + excluded.total, scored = known.scored + excluded.scored,
        units = known.units + excluded.units, latest = greatest(known.latest, excluded.latest);
    RETURN NULL;
END $$;
CREATE TRIGGER observation_stored AFTER INSERT ON observations
    REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION sum_up_observations()"""  # noqa: S608 - made of constants

# The versions of tables that other parts of the program add (`database.migrate`). Created here, under the lock: CREATE
# TABLE IF NOT EXISTS fails when two sessions run it at the same moment.
_PARTS = 'CREATE TABLE parts (name text COLLATE "C" PRIMARY KEY, version integer NOT NULL)'


async def create_schema(connection: Connection) -> None:
    tables = (_TEST_CASES, _RUNS, _RECORDS, _SHARDS, _COUNT_RESPONSES, _COUNT_GRADES, _HISTORY, _LEDGER, _PARTS)
    await connection.execute(";".join(tables))


MIGRATIONS: Sequence[Migration] = (create_schema,)


class NoStoreError(StoreError):
    """The database holds no store, and none may be created."""


async def version_of(connection: Connection) -> int:
    """The number of migrations that were applied to the store."""
    if "schema_version" not in await _tables(connection):
        return 0
    return int(await connection.fetchval(f"SELECT version FROM {SCHEMA}.schema_version"))  # noqa: S608 - a constant


async def require_compatible(connection: Connection, location: str) -> None:
    """Raise `StoreError` for a database that cannot hold a store or has one of another version; writes nothing."""
    server = connection.get_server_version()
    if server.major < _OLDEST_SERVER:
        raise StoreError(
            f"the store {location} is on PostgreSQL {server.major}; gradeline needs {_OLDEST_SERVER} or newer"
        )
    encoding = await connection.fetchval("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise StoreError(
            f"the database of the store {location} has the encoding {encoding}, which cannot hold all characters;"
            " create another with: createdb --encoding UTF8 --template template0 NAME"
        )
    version = await version_of(connection)
    if version > len(MIGRATIONS):
        raise newer_version(location, version, len(MIGRATIONS))
    tables = await _tables(connection)
    if tables and "schema_version" not in tables:
        raise StoreError(
            f"the database of the store {location} has a schema {SCHEMA!r} of another program; use another database"
        )


async def migrate(connection: Connection, migrations: Sequence[Migration] | None = None) -> None:
    """Bring the store to the newest version, within a transaction.

    Processes may call this at the same time: the one that gets the lock second finds nothing left to do.
    """
    steps = MIGRATIONS if migrations is None else migrations
    if await version_of(connection) >= len(steps):
        return
    await take_time(connection)
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=LONG_SECONDS)
    version = await version_of(connection)
    if version == 0:
        if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", SCHEMA):
            await connection.execute(f"CREATE SCHEMA {SCHEMA}")
        await connection.execute(f"CREATE TABLE {SCHEMA}.schema_version (version integer NOT NULL)")
        await connection.execute(f"INSERT INTO {SCHEMA}.schema_version VALUES (0)")  # noqa: S608 - a constant
    for step in steps[version:]:
        await step(connection)
    await connection.execute(f"UPDATE {SCHEMA}.schema_version SET version = $1", max(version, len(steps)))  # noqa: S608


async def _tables(connection: Connection) -> set[str]:
    """From the catalogue: functions such as to_regclass may not see another process's latest commit."""
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", SCHEMA)
    return {row[0] for row in rows}
