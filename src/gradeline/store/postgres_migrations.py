"""The tables of the PostgreSQL store, as steps from one version of the schema to the next.

They stand in a schema of their own, so that a database may hold other programs' tables too. A released
step is never edited: a change is a new function at the end of `MIGRATIONS`.

Texts by which rows are found or ordered have the collation "C": their order is that of their code
points, as in every other store, whatever the language of the database.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gradeline.store.postgres_link import Connection

    Migration: TypeAlias = Callable[[Connection], Awaitable[None]]


async def create_test_cases(connection: Connection) -> None:
    """Flags are 0 and 1, as in SQLite, so that one statement serves both."""
    await connection.execute(
        """CREATE TABLE test_cases (
            n bigserial PRIMARY KEY,
            id text COLLATE "C" NOT NULL UNIQUE,
            deleted integer NOT NULL DEFAULT 0,
            test_case text NOT NULL
        )"""
    )


async def create_runs(connection: Connection) -> None:
    """Runs are ordered by ``n``, which no jump of the clock can disturb. Hashed, a name may be of any length."""
    await connection.execute(
        """CREATE TABLE runs (
            n bigserial PRIMARY KEY,
            id text COLLATE "C" NOT NULL UNIQUE,
            name text COLLATE "C" NOT NULL,
            parent text COLLATE "C" REFERENCES runs (id),
            run text NOT NULL
        );
        CREATE INDEX runs_by_name ON runs USING hash (name);
        CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL"""
    )


async def create_records(connection: Connection) -> None:
    """Responses refer to their run, not to their case: that would write to the case's row for each of them.

    Grades do not refer to responses: those of a regraded run belong to its parent.
    """
    await connection.execute(
        """CREATE TABLE samples (
            run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            case_key text COLLATE "C" NOT NULL,
            position bigint NOT NULL,
            sample text NOT NULL,
            PRIMARY KEY (run, case_key),
            UNIQUE (run, position, case_key)
        );
        CREATE TABLE responses (
            run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
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
            run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
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
        )"""
    )


async def roll_up_responses(connection: Connection) -> None:
    """Triggers keep the counts, so that no way of writing a row can miss them.

    They run once a statement, not once a row, and write in the order of the keys, so that two writers
    wait for each other instead of blocking each other.
    """
    await connection.execute(
        """CREATE TABLE response_counts (
            run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            status text COLLATE "C" NOT NULL,
            count bigint NOT NULL,
            PRIMARY KEY (run, status)
        );
        CREATE FUNCTION count_new_responses() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO response_counts AS known (run, status, count)
            SELECT run, status, count(*) FROM new_rows GROUP BY run, status ORDER BY run, status
            ON CONFLICT (run, status) DO UPDATE SET count = known.count + excluded.count;
            RETURN NULL;
        END $$;
        CREATE FUNCTION count_changed_responses() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO response_counts AS known (run, status, count)
            SELECT run, status, sum(sign) FROM (
                SELECT run, status, 1 AS sign FROM new_rows UNION ALL SELECT run, status, -1 FROM old_rows
            ) AS changes GROUP BY run, status HAVING sum(sign) <> 0 ORDER BY run, status
            ON CONFLICT (run, status) DO UPDATE SET count = known.count + excluded.count;
            RETURN NULL;
        END $$;
        CREATE FUNCTION count_dropped_responses() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            UPDATE response_counts AS known SET count = known.count - dropped.number
            FROM (SELECT run, status, count(*) AS number FROM old_rows GROUP BY run, status) AS dropped
            WHERE known.run = dropped.run AND known.status = dropped.status;
            RETURN NULL;
        END $$;
        CREATE TRIGGER response_stored AFTER INSERT ON responses
            REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION count_new_responses();
        CREATE TRIGGER response_replaced AFTER UPDATE ON responses
            REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows EXECUTE FUNCTION count_changed_responses();
        CREATE TRIGGER response_dropped AFTER DELETE ON responses
            REFERENCING OLD TABLE AS old_rows EXECUTE FUNCTION count_dropped_responses()"""
    )


async def roll_up_grades(connection: Connection) -> None:
    """As `roll_up_responses`. The sums are of no fixed size: ten million scores of 1.0 would overflow a bigint."""
    await connection.execute(
        """CREATE TABLE grade_counts (
            run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            grader text COLLATE "C" NOT NULL,
            outcome text COLLATE "C" NOT NULL,
            count bigint NOT NULL,
            units numeric NOT NULL,
            squares numeric NOT NULL,
            PRIMARY KEY (run, grader, outcome)
        );
        CREATE FUNCTION count_new_grades() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO grade_counts AS known (run, grader, outcome, count, units, squares)
            SELECT run, grader, outcome, count(*), sum(units), sum(squares)
            FROM new_rows GROUP BY run, grader, outcome ORDER BY run, grader, outcome
            ON CONFLICT (run, grader, outcome) DO UPDATE SET count = known.count + excluded.count,
                units = known.units + excluded.units, squares = known.squares + excluded.squares;
            RETURN NULL;
        END $$;
        CREATE FUNCTION count_changed_grades() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO grade_counts AS known (run, grader, outcome, count, units, squares)
            SELECT run, grader, outcome, sum(sign), sum(sign * units), sum(sign * squares) FROM (
                SELECT run, grader, outcome, units, squares, 1 AS sign FROM new_rows
                UNION ALL SELECT run, grader, outcome, units, squares, -1 FROM old_rows
            ) AS changes GROUP BY run, grader, outcome ORDER BY run, grader, outcome
            ON CONFLICT (run, grader, outcome) DO UPDATE SET count = known.count + excluded.count,
                units = known.units + excluded.units, squares = known.squares + excluded.squares;
            RETURN NULL;
        END $$;
        CREATE FUNCTION count_dropped_grades() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            UPDATE grade_counts AS known SET count = known.count - dropped.number,
                units = known.units - dropped.units, squares = known.squares - dropped.squares
            FROM (
                SELECT run, grader, outcome, count(*) AS number, sum(units) AS units, sum(squares) AS squares
                FROM old_rows GROUP BY run, grader, outcome
            ) AS dropped
            WHERE known.run = dropped.run AND known.grader = dropped.grader AND known.outcome = dropped.outcome;
            RETURN NULL;
        END $$;
        CREATE TRIGGER grade_stored AFTER INSERT ON grades
            REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION count_new_grades();
        CREATE TRIGGER grade_replaced AFTER UPDATE ON grades
            REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows EXECUTE FUNCTION count_changed_grades();
        CREATE TRIGGER grade_dropped AFTER DELETE ON grades
            REFERENCING OLD TABLE AS old_rows EXECUTE FUNCTION count_dropped_grades()"""
    )


async def drop_grades_of_replaced_responses(connection: Connection) -> None:
    """An answer that takes another's place is not graded yet, whatever the other's grades were."""
    await connection.execute(
        """CREATE FUNCTION drop_outdated_grades() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            DELETE FROM grades USING old_rows AS was, new_rows AS now
            WHERE (was.run, was.case_key, was.repeat) = (now.run, now.case_key, now.repeat)
                AND (was.response, was.digest) <> (now.response, now.digest)
                AND (grades.run, grades.case_key, grades.repeat) = (now.run, now.case_key, now.repeat);
            RETURN NULL;
        END $$;
        CREATE TRIGGER answer_replaced AFTER UPDATE ON responses
            REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows EXECUTE FUNCTION drop_outdated_grades()"""
    )


async def create_ledger(connection: Connection) -> None:
    """Observations are only ever added, whoever writes the statement; a key's first one stays."""
    await connection.execute(
        """CREATE TABLE observations (
            id bigserial PRIMARY KEY,
            task_family text COLLATE "C" NOT NULL,
            baseline_adapter text COLLATE "C" NOT NULL,
            candidate_adapter text COLLATE "C" NOT NULL,
            grader_id text COLLATE "C" NOT NULL,
            grader_fingerprint text COLLATE "C" NOT NULL,
            score double precision CHECK (score BETWEEN 0 AND 1),
            units bigint NOT NULL,
            squares bigint NOT NULL,
            baseline_digest text NOT NULL,
            candidate_digest text NOT NULL,
            cost double precision,
            latency_ms double precision,
            calibration_state text COLLATE "C" NOT NULL,
            observed_at text COLLATE "C" NOT NULL,
            idempotency_key text COLLATE "C" NOT NULL UNIQUE
        );
        CREATE INDEX observations_by_family ON observations (task_family, id);
        CREATE INDEX observations_by_adapter ON observations (candidate_adapter, id);
        CREATE FUNCTION refuse_change_of_ledger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'the quality ledger is append-only: add an observation instead';
        END $$;
        CREATE TRIGGER no_change_of_observations BEFORE UPDATE OR DELETE OR TRUNCATE ON observations
            EXECUTE FUNCTION refuse_change_of_ledger()"""
    )


async def roll_up_observations(connection: Connection) -> None:
    """One row for all that are alike but for their scores, so that a query costs the same at any size."""
    await connection.execute(
        """CREATE TABLE observation_sums (
            task_family text COLLATE "C" NOT NULL,
            candidate_adapter text COLLATE "C" NOT NULL,
            baseline_adapter text COLLATE "C" NOT NULL,
            grader_id text COLLATE "C" NOT NULL,
            grader_fingerprint text COLLATE "C" NOT NULL,
            calibration_state text COLLATE "C" NOT NULL,
            total bigint NOT NULL,
            scored bigint NOT NULL,
            units numeric NOT NULL,
            squares numeric NOT NULL,
            latest text COLLATE "C" NOT NULL,
            PRIMARY KEY (task_family, candidate_adapter, baseline_adapter, grader_id, grader_fingerprint,
                calibration_state)
        );
        CREATE FUNCTION sum_up_observations() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO observation_sums AS known
            SELECT task_family, candidate_adapter, baseline_adapter, grader_id, grader_fingerprint, calibration_state,
                count(*), count(score), sum(units), sum(squares), max(observed_at)
            FROM new_rows GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
            ON CONFLICT (task_family, candidate_adapter, baseline_adapter, grader_id, grader_fingerprint,
                calibration_state)
            DO UPDATE SET total = known.total + excluded.total, scored = known.scored + excluded.scored,
                units = known.units + excluded.units, squares = known.squares + excluded.squares,
                latest = greatest(known.latest, excluded.latest);
            RETURN NULL;
        END $$;
        CREATE TRIGGER observation_stored AFTER INSERT ON observations
            REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION sum_up_observations()"""
    )


async def keep_replaced_responses(connection: Connection) -> None:
    """What another answer takes the place of stays, with its grades: it was paid for, and people were shown it.

    Attempts count from 1. Triggers run in the order of their names: this one before the one that drops the grades.
    """
    await connection.execute(
        """CREATE TABLE response_history (
            run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            case_key text COLLATE "C" NOT NULL,
            repeat bigint NOT NULL,
            attempt bigint NOT NULL,
            response text NOT NULL,
            PRIMARY KEY (run, case_key, repeat, attempt)
        );
        CREATE TABLE grade_history (
            run text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            case_key text COLLATE "C" NOT NULL,
            repeat bigint NOT NULL,
            attempt bigint NOT NULL,
            grader text COLLATE "C" NOT NULL,
            grade text NOT NULL,
            submission text,
            PRIMARY KEY (run, case_key, repeat, attempt, grader)
        );
        CREATE FUNCTION keep_outdated_answers() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
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
            REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows EXECUTE FUNCTION keep_outdated_answers()"""
    )


async def create_parts(connection: Connection) -> None:
    """The versions of the tables that stand beside these (`database.migrate`); older stores may know some.

    Created here, under the lock: two that create a table at the same moment clash, even where it may exist.
    """
    await connection.execute(
        'CREATE TABLE IF NOT EXISTS parts (name text COLLATE "C" PRIMARY KEY, version integer NOT NULL)'
    )


async def let_records_outlive_their_run(connection: Connection) -> None:
    """Records refer to their run no longer: deleting it would delete them all in one transaction. They go some at a
    time (`deletion`), and the run's id is not given to another before.

    That a run is there is seen to once a statement, which is quicker than once a row. Responses and grades need no
    trigger of their own: their counts still refer to the run.
    """
    for table in ("samples", "responses", "grades", "response_history", "grade_history"):
        await connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_run_fkey")
    await connection.execute(
        """CREATE TABLE deleted_runs (run text COLLATE "C" PRIMARY KEY);
        CREATE FUNCTION require_run() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
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
        CREATE TRIGGER run_of_replaced_responses AFTER INSERT ON response_history
            REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION require_run();
        CREATE FUNCTION require_unused_id() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            IF EXISTS (SELECT FROM deleted_runs WHERE run = new.id) THEN
                RAISE object_in_use USING MESSAGE = 'the rows of this run are still being removed';
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER rows_are_gone_before_an_id_is_used_again AFTER INSERT ON runs
            FOR EACH ROW EXECUTE FUNCTION require_unused_id()"""
    )


async def count_in_shares(connection: Connection) -> None:
    """A counter is several rows, and each session adds to the one that is its share: who writes to the same run at the
    same time hardly ever waits for another's commit. What is dropped is taken from there too, so a share may be less
    than nothing; the views add them up, under the names that the tables had.

    The counters of a run that is being deleted are gone before its rows, and are not made again.
    """
    await connection.execute(
        """ALTER TABLE response_counts RENAME TO response_shares;
        ALTER TABLE response_shares DROP CONSTRAINT response_counts_pkey,
            ADD COLUMN share integer NOT NULL DEFAULT 0, ADD PRIMARY KEY (run, status, share);
        ALTER TABLE grade_counts RENAME TO grade_shares;
        ALTER TABLE grade_shares DROP CONSTRAINT grade_counts_pkey,
            ADD COLUMN share integer NOT NULL DEFAULT 0, ADD PRIMARY KEY (run, grader, outcome, share);
        CREATE VIEW response_counts AS
            SELECT run, status, sum(count)::bigint AS count FROM response_shares GROUP BY run, status;
        CREATE VIEW grade_counts AS
            SELECT run, grader, outcome, sum(count)::bigint AS count, sum(units) AS units, sum(squares) AS squares
            FROM grade_shares GROUP BY run, grader, outcome;
        CREATE FUNCTION my_share() RETURNS integer LANGUAGE sql STABLE AS 'SELECT pg_backend_pid() % 16';
        CREATE OR REPLACE FUNCTION count_new_responses() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT
        AS $$ BEGIN
            INSERT INTO response_shares AS known (run, status, share, count)
            SELECT run, status, my_share(), count(*)
            FROM new_rows GROUP BY run, status ORDER BY run, status
            ON CONFLICT (run, status, share) DO UPDATE SET count = known.count + excluded.count;
            RETURN NULL;
        END $$;
        CREATE OR REPLACE FUNCTION count_changed_responses() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$ BEGIN
            INSERT INTO response_shares AS known (run, status, share, count)
            SELECT run, status, my_share(), sum(sign) FROM (
                SELECT run, status, 1 AS sign FROM new_rows UNION ALL SELECT run, status, -1 FROM old_rows
            ) AS changes GROUP BY run, status HAVING sum(sign) <> 0 ORDER BY run, status
            ON CONFLICT (run, status, share) DO UPDATE SET count = known.count + excluded.count;
            RETURN NULL;
        END $$;
        CREATE OR REPLACE FUNCTION count_dropped_responses() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$ BEGIN
            INSERT INTO response_shares AS known (run, status, share, count)
            SELECT run, status, my_share(), -count(*)
            FROM old_rows WHERE EXISTS (SELECT FROM runs WHERE id = old_rows.run)
            GROUP BY run, status ORDER BY run, status
            ON CONFLICT (run, status, share) DO UPDATE SET count = known.count + excluded.count;
            RETURN NULL;
        END $$;
        CREATE OR REPLACE FUNCTION count_new_grades() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT
        AS $$ BEGIN
            INSERT INTO grade_shares AS known (run, grader, outcome, share, count, units, squares)
            SELECT run, grader, outcome, my_share(), count(*), sum(units), sum(squares)
            FROM new_rows GROUP BY run, grader, outcome ORDER BY run, grader, outcome
            ON CONFLICT (run, grader, outcome, share) DO UPDATE SET count = known.count + excluded.count,
                units = known.units + excluded.units, squares = known.squares + excluded.squares;
            RETURN NULL;
        END $$;
        CREATE OR REPLACE FUNCTION count_changed_grades() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$ BEGIN
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
        CREATE OR REPLACE FUNCTION count_dropped_grades() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$ BEGIN
            INSERT INTO grade_shares AS known (run, grader, outcome, share, count, units, squares)
            SELECT run, grader, outcome, my_share(), -count(*), -sum(units), -sum(squares)
            FROM old_rows WHERE EXISTS (SELECT FROM runs WHERE id = old_rows.run)
            GROUP BY run, grader, outcome ORDER BY run, grader, outcome
            ON CONFLICT (run, grader, outcome, share) DO UPDATE SET count = known.count + excluded.count,
                units = known.units + excluded.units, squares = known.squares + excluded.squares;
            RETURN NULL;
        END $$"""
    )


async def create_heartbeats(connection: Connection) -> None:
    """When the owner of a run was last alive (`owner`), by the clock of the database."""
    await connection.execute(
        """CREATE TABLE run_heartbeats (
            run text COLLATE "C" PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
            at text NOT NULL
        )"""
    )


async def create_clusters(connection: Connection) -> None:
    """The clusters of a run's cases; a case without one has no row, so that runs without clusters have none at all.

    As other records they do not refer to their run, see `let_records_outlive_their_run`.
    """
    await connection.execute(
        """CREATE TABLE clusters (
            run text COLLATE "C" NOT NULL,
            case_key text COLLATE "C" NOT NULL,
            cluster text NOT NULL,
            PRIMARY KEY (run, case_key)
        );
        CREATE TRIGGER run_of_new_clusters AFTER INSERT ON clusters
            REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION require_run()"""
    )


async def count_cases_of_the_ledger(connection: Connection) -> None:
    """A case counts once, however often it was observed: observations name it, and the roll-up has a row for each.

    The case of what a run of this store judged is found again. Of other observations it cannot be known: each is a case
    of its own.
    """
    await connection.execute(
        """DROP TRIGGER observation_stored ON observations;
        DROP FUNCTION sum_up_observations();
        DROP TABLE observation_sums;
        ALTER TABLE observations ADD COLUMN case_key text COLLATE "C";
        ALTER TABLE observations DROP COLUMN squares"""
    )
    if await connection.fetchval("SELECT EXISTS (SELECT FROM observations)"):
        await _find_cases_of_observations(connection)
    cases = """
        SELECT task_family, candidate_adapter, baseline_adapter, grader_id, grader_fingerprint, calibration_state,
            coalesce(case_key, ''), CASE WHEN case_key IS NULL THEN idempotency_key ELSE '' END,
            count(*), count(score), sum(units), max(observed_at)
        FROM {rows} GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8"""
    await connection.execute(
        f"""CREATE TABLE observation_cases (
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
        INSERT INTO observation_cases {cases.format(rows="observations")};
        CREATE FUNCTION sum_up_observations() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO observation_cases AS known {cases.format(rows="new_rows")}
            ON CONFLICT (task_family, candidate_adapter, baseline_adapter, grader_id, case_key, observation,
                grader_fingerprint, calibration_state)
            DO UPDATE SET total = known.total + excluded.total, scored = known.scored + excluded.scored,
                units = known.units + excluded.units, latest = greatest(known.latest, excluded.latest);
            RETURN NULL;
        END $$;
        CREATE TRIGGER observation_stored AFTER INSERT ON observations
            REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION sum_up_observations()"""
    )


async def _find_cases_of_observations(connection: Connection) -> None:
    from gradeline.store.case_keys import comparing_graders, found_case_keys  # few stores have such observations

    await connection.execute("ALTER TABLE observations DISABLE TRIGGER no_change_of_observations")
    for run in [row[0] for row in await connection.fetch("SELECT id FROM runs")]:
        graders = comparing_graders(await connection.fetchval("SELECT run FROM runs WHERE id = $1", run))
        if not graders:
            continue
        grades = await connection.fetch(
            """WITH RECURSIVE sources (run, step) AS (
                SELECT id, 0 FROM runs WHERE id = $1 UNION ALL
                SELECT runs.parent, step + 1 FROM sources JOIN runs ON runs.id = sources.run
                WHERE runs.parent IS NOT NULL AND step < 100)
            SELECT grades.case_key, grades.repeat, grades.grader, samples.sample FROM grades JOIN samples
                ON samples.case_key = grades.case_key AND samples.run = (
                    SELECT run FROM sources WHERE EXISTS (SELECT FROM samples AS own WHERE own.run = sources.run)
                    ORDER BY step LIMIT 1)
            WHERE grades.run = $1 AND grades.grader = ANY ($2::text[])""",
            run,
            list(graders),
        )
        await connection.executemany(
            "UPDATE observations SET case_key = $1 WHERE idempotency_key = $2",
            list(found_case_keys(run, [tuple(row) for row in grades])),
        )
    await connection.execute("ALTER TABLE observations ENABLE TRIGGER no_change_of_observations")


MIGRATIONS: Sequence[Migration] = (
    create_test_cases,
    create_runs,
    create_records,
    roll_up_responses,
    roll_up_grades,
    drop_grades_of_replaced_responses,
    create_ledger,
    roll_up_observations,
    keep_replaced_responses,
    create_parts,
    let_records_outlive_their_run,
    count_in_shares,
    create_heartbeats,
    create_clusters,
    count_cases_of_the_ledger,
)
