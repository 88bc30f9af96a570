"""Ledgers of earlier releases, whose observations name no case: those of stored runs are found, others stay apart."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gradeline.model import Run, Sample, Storage, to_json
from gradeline.model.observation import ObservationSums, judged_key, prompt_key
from gradeline.store import PostgresStorage, SqliteStorage, migrations, postgres_migrations
from gradeline.store.postgres_link import Link
from gradeline.store.postgres_schema import migrate as migrate_postgres
from gradeline.store.postgres_url import read_url
from postgres_server import execute

COLUMNS = "task_family, baseline_adapter, candidate_adapter, grader_id, grader_fingerprint, score, units, squares"
MORE = "baseline_digest, candidate_digest, calibration_state, observed_at, idempotency_key"
TIME = "2026-01-15T10:00:00.000000Z"


def statements() -> Iterator[str]:
    """Two nights on which the same two cases were judged, a grader that compares nothing, and foreign observations."""
    definition = json.dumps({"suite": "s.yaml", "baselines": {"better": "base"}})
    keys = []
    for night in ("one", "two"):
        answers, judged = Run(id=night, name="n", suite="s"), Run(id=f"{night}-judged", name="n", suite="s")
        for run, parent, kept in ((answers, "NULL", None), (judged, f"'{night}'", definition)):
            text = to_json(Run(id=run.id, name="n", suite="s", definition=kept))
            yield f"INSERT INTO runs (id, name, parent, run) VALUES ('{run.id}', 'n', {parent}, '{text}')"
        for place, case in enumerate("ab"):
            sample = to_json(Sample(case, f"question {case}"))
            yield (
                "INSERT INTO samples (run, case_key, position, sample)"
                f" VALUES ('{night}', '{case}', {place}, '{sample}')"
            )
            for grader in ("better", "exact"):
                yield (
                    "INSERT INTO grades (run, case_key, repeat, grader, fingerprint, outcome, units, squares, grade,"
                    f" reported_error) VALUES ('{judged.id}', '{case}', 0, '{grader}', 'f', 'pass', 0, 0, '{{}}', 0)"
                )
            keys.append((judged_key(judged.id, case, 0, "better"), 0.0 if case == "a" else 1.0))
    for key, score in (*keys, ("foreign 1", 0.5), ("foreign 2", 0.5)):
        yield (
            f"INSERT INTO observations ({COLUMNS}, {MORE}) VALUES ('f', 'large', 'small', 'judge', 'f1', {score},"
            f" {round(score * 10**12)}, {round(score * score * 10**12)}, '', '', 'uncalibrated', '{TIME}', '{key}')"
        )


def sqlite(request: pytest.FixtureRequest) -> Storage:
    path: Path = request.getfixturevalue("tmp_path") / "store.db"
    steps = migrations.MIGRATIONS
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrations.migrate(connection, steps[: steps.index(migrations.count_cases_of_the_ledger)])
        for statement in statements():
            connection.execute(statement)
    return SqliteStorage(path)


def postgresql(request: pytest.FixtureRequest) -> Storage:
    url: str = request.getfixturevalue("postgres_url")
    steps = postgres_migrations.MIGRATIONS
    before = steps[: steps.index(postgres_migrations.count_cases_of_the_ledger)]
    link = Link(read_url(url), patience=0)
    try:
        link.write(lambda connection: migrate_postgres(connection, before))
    finally:
        link.close()
    for statement in statements():
        execute(url, statement.replace("INTO ", "INTO gradeline."))
    return PostgresStorage(url)


@pytest.mark.parametrize("older", [sqlite, postgresql])
def test_the_cases_of_stored_runs_are_found_and_others_stay_their_own(
    older: Callable[[pytest.FixtureRequest], Storage], request: pytest.FixtureRequest
) -> None:
    with older(request) as storage:
        cases = [prompt_key(f"question {case}") for case in "ab"]
        assert [one.case_key for one in storage.observations()] == [*cases, *cases, None, None]
        assert storage.observation_sums() == [
            ObservationSums("f", "small", "large", "judge", 6, 6, 4, 2.0, 1.5, TIME),
        ]
        with pytest.raises(Exception, match="the quality ledger is append-only"):
            storage.database.transact(  # type: ignore[attr-defined]
                lambda transaction: transaction.run("UPDATE observations SET case_key = 'x'")
            )
