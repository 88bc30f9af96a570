"""The ledger in a SQLite file: nothing in it changes, whoever writes, and what was acknowledged survives kill -9."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from ledger_sums import expected_sums

from gradeline.model.observation import Observation, ObservationFilter, new_observation
from gradeline.store import SqliteStorage, StoreError
from gradeline.store.sql_storage import observation_page, sums_statement


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def observed(key: str, score: float | None = 0.5) -> Observation:
    return new_observation(
        task_family="support",
        baseline_adapter="large",
        candidate_adapter="small",
        grader_id="judge",
        grader_fingerprint="f1",
        score=score,
        baseline_digest="d1",
        candidate_digest="d2",
        idempotency_key=key,
    )


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection to a store with two observations."""
    with SqliteStorage(path) as store:
        store.put_observations([observed("a", 0.25), observed("b", None)])
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        yield opened


@pytest.mark.parametrize(
    "statement",
    ["UPDATE observations SET score = 1.0", "DELETE FROM observations", "UPDATE observations SET id = 9 WHERE id = 1"],
)
def test_no_statement_changes_or_deletes_an_observation(connection: sqlite3.Connection, statement: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="the quality ledger is append-only"):
        connection.execute(statement)
    assert connection.execute("SELECT id, score FROM observations").fetchall() == [(1, 0.25), (2, None)]


@pytest.mark.parametrize(("number", "key"), [(None, "a"), (1, "new"), (7, "b")])
def test_a_replace_keeps_the_first(connection: sqlite3.Connection, number: int | None, key: str) -> None:
    values = f"SELECT ?, task_family, 1.0, {', '.join(OTHERS)}, ? FROM observations WHERE id = 1"
    connection.execute(
        f"INSERT OR REPLACE INTO observations (id, task_family, score, {', '.join(OTHERS)}, idempotency_key) {values}",
        (number, key),
    )
    stored = connection.execute("SELECT id, score, idempotency_key FROM observations").fetchall()
    assert stored == [(1, 0.25, "a"), (2, None, "b")]
    assert connection.execute("SELECT total, scored, units FROM observation_cases").fetchall() == [
        (1, 1, 25 * 10**10),
        (1, 0, 0),
    ]


OTHERS = (
    "baseline_adapter",
    "candidate_adapter",
    "grader_id",
    "grader_fingerprint",
    "units",
    "baseline_digest",
    "candidate_digest",
    "calibration_state",
    "observed_at",
)


def test_a_batch_with_an_invalid_row_is_rolled_back(path: Path) -> None:
    with SqliteStorage(path) as store:
        with pytest.raises(StoreError, match="CHECK constraint failed"):
            # past new_observation, which would not make it
            store.put_observations([observed("a"), msgspec.structs.replace(observed("b"), score=2.0)])
        assert (store.observations(), store.observation_sums()) == ([], [])


@pytest.mark.parametrize(
    "where",
    [
        ObservationFilter(),
        ObservationFilter("support"),
        ObservationFilter(candidate_adapter="small"),
        ObservationFilter("support", "small"),
    ],
)
def test_pages_are_read_by_an_index_without_sorting(path: Path, where: ObservationFilter) -> None:
    statement, values = observation_page(where, 5, 10)
    with SqliteStorage(path) as store:
        steps = [row[3] for row in store._read(f"EXPLAIN QUERY PLAN {statement}", *values)]
    assert all(step.startswith("SEARCH observations USING") for step in steps), steps


def test_sums_are_read_only_from_the_rollup(path: Path) -> None:
    statement, values = sums_statement(ObservationFilter("support", "small"))
    with SqliteStorage(path) as store:
        steps = [row[3] for row in store._read(f"EXPLAIN QUERY PLAN {statement}", *values)]
    read = [step.split(" (")[0] for step in steps if step.startswith(("SEARCH", "SCAN observ"))]
    assert read == ["SEARCH observation_cases USING PRIMARY KEY"]


APPENDING = """
import sys
from itertools import count
from gradeline.ledger import QualityLedger

with QualityLedger(sys.argv[1]) as ledger:
    sys.stdin.readline()
    for number in range(int(sys.argv[3])) if len(sys.argv) > 3 else count(int(sys.argv[2])):
        key = ledger.append(
            task_family="support", baseline_adapter="large", candidate_adapter="small", grader_id="judge",
            grader_fingerprint="f1", score=number % 7 / 7, baseline_digest="d1", candidate_digest=str(number),
            idempotency_key=str(number),
        )
        print(number, key, flush=True)
"""


def started(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPENDING, str(path), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def check_intact(path: Path) -> dict[str, str]:
    """The file is intact and its sums are those of its rows; returns the ids by key."""
    with SqliteStorage(path) as store:
        assert store._read("PRAGMA integrity_check") == [("ok",)]
        observations = store.observations(limit=1_000_000)
        assert store.observation_sums() == expected_sums(observations)
    ids = {one.idempotency_key: str(one.id) for one in observations}
    assert len(ids) == len(observations)
    return ids


def test_acknowledged_observations_survive_kill_9_exactly_once(path: Path) -> None:
    chance = random.Random(20260115)
    acknowledged: dict[str, str] = {}
    for _ in range(5):
        # each process starts among the keys of the previous one, like one that does not know its progress
        with started(path, str(max(0, len(acknowledged) - 10))) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            lines = [child.stdout.readline() for _ in range(chance.randrange(15, 80))]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.readlines()
        assert child.returncode == -signal.SIGKILL
        message = dict(line.split() for line in lines if line.endswith("\n"))
        assert all(acknowledged.get(key, number) == number for key, number in message.items())
        acknowledged |= message
        stored = check_intact(path)
        assert {key: stored.get(key) for key in acknowledged} == acknowledged
        # of each process at most the observation in flight is stored without an acknowledgement
        assert len(stored) <= len(acknowledged) + 5
    assert len(acknowledged) > 30


def test_concurrent_appends_of_one_key_share_one_row_and_id(path: Path) -> None:
    children = [started(path, "0", "60") for _ in range(2)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    message = [dict(line.split() for line in child.communicate()[0].splitlines()) for child in children]
    assert [child.returncode for child in children] == [0, 0]
    stored = check_intact(path)
    assert message == [stored, stored]
    assert sorted(map(int, stored)) == list(range(60))
