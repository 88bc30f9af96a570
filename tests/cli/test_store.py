"""``gradeline store`` as an operator calls it, on SQLite and on PostgreSQL, also while a service uses the store."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.store import SqliteStorage

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))
sys.path.insert(0, str(Path(__file__).parent.parent / "service"))

from full_store import SECRET, fill
from live import EchoAgent, Server, suite_of

from gradeline_command import COMMAND, run_command
from postgres_server import execute


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code in (0, 1), self
        return json.loads(self.out)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return str(request.getfixturevalue("postgres_url"))


def run(folder: Path, *arguments: str) -> CommandResult:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GRADELINE_")}
    done = run_command([COMMAND, "store", *arguments], cwd=folder, env=environment)
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def change(store: str, statement: str) -> None:
    """Past the store; ``{}`` is the place of the schema."""
    if store.startswith("postgresql"):
        execute(store, statement.format("gradeline."))
        return
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(statement.format(""))


def test_a_backup_is_restored_into_an_empty_store_and_over_a_full_one(store: str, tmp_path: Path) -> None:
    fill(store)
    backup = run(tmp_path, "backup", "b.db", "--store", store, "--json").json
    assert backup["faults"] == []
    assert backup["bytes"] == (tmp_path / "b.db").stat().st_size
    assert backup["tables"]["responses"]["rows"] == 12
    assert SECRET.encode() not in (tmp_path / "b.db").read_bytes()
    restored = run(tmp_path, "restore", "b.db", "--store", "new/r.db", "--json").json
    assert restored["tables"] == backup["tables"]
    refused = run(tmp_path, "restore", "b.db", "--store", store)
    assert refused.code == 4
    assert "is not empty" in refused.err
    assert "--replace" in refused.err
    replaced = run(tmp_path, "restore", "b.db", "--store", store, "--replace", "--json").json
    assert replaced["tables"] == backup["tables"]
    assert run(tmp_path, "check", "--store", store, "--json").json["faults"] == []


def test_a_store_moves_to_postgresql_and_back(postgres_url: str, tmp_path: Path) -> None:
    fill(str(tmp_path / "store.db"))
    there = run(tmp_path, "migrate", "store.db", postgres_url)
    assert there.code == 0, there
    assert there.out.startswith("copied store.db to postgresql://")
    assert there.out.endswith("; verified\n")
    back = run(tmp_path, "migrate", postgres_url, "sqlite:///back.db", "--json").json
    assert back["tables"] == run(tmp_path, "backup", "b.db", "--store", "store.db", "--json").json["tables"]


def test_a_backup_during_a_run_is_complete_and_does_not_disturb_it(store: str, tmp_path: Path) -> None:
    with EchoAgent(0.01) as agent, Server(store) as server:
        going = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 150, concurrency=5)})["id"]
        agent.wait_for(20)
        backup = run(tmp_path, "backup", "b.db", "--store", store, "--json").json
        assert run(tmp_path, "check", "--store", store, "--json").json["faults"] == []
        assert run(tmp_path, "vacuum", "--store", store).code == 0
        assert server.until_ended(going)["status"] == "completed"
        assert server.data("GET", f"/api/evaluations/{going}")["result_count"] == 150
    assert set(agent.calls.values()) == {1}
    assert backup["faults"] == []
    assert 0 < backup["tables"]["responses"]["rows"] <= 150
    assert run(tmp_path, "check", "--store", "b.db", "--json").json["faults"] == []


def test_problems_are_named_and_exit_with_1(store: str, tmp_path: Path) -> None:
    fill(store)
    change(store, "UPDATE {}case_totals SET live = 9")
    ran = run(tmp_path, "check", "--store", store)
    assert ran.code == 1
    assert ran.out.splitlines()[0] == "fault: case_totals has 9, but there are 2 rows"
    assert "1 faults in" in ran.out


def test_prune_previews_before_deleting(store: str, tmp_path: Path) -> None:
    fill(store)
    change(store, "UPDATE {}jobs SET state = 'done'")
    rules = ("--keep", "0", "--store", store)
    preview = run(tmp_path, "prune", *rules, "--dry-run", "--json").json
    assert {one["name"]: one["deleted"] for one in preview["runs"]} == {"again": True, "run 1": True, "run 0": False}
    assert (
        next(one["reason"] for one in preview["runs"] if one["name"] == "run 0") == "it is the baseline 'main' of 's'"
    )
    assert len(run(tmp_path, "usage", "--store", store, "--json").json["runs"]) == 3
    done = run(tmp_path, "prune", *rules)
    assert done.code == 0
    assert done.out.splitlines()[-1] == "deleted 2 runs, kept 1"
    assert [one["name"] for one in run(tmp_path, "usage", "--store", store, "--json").json["runs"]] == ["run 0"]
    assert run(tmp_path, "check", "--store", store, "--json").json["faults"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "--store", "none.db"), "no store at none.db"),
        (("check", "--store", "memory://"), "memory:// is always empty"),
        (("backup", "there.db", "--store", "there.db"), "there.db exists; name another file, or replace it with --overwrite"),
        (("backup", "no/where.db", "--store", "there.db"), "the folder no does not exist"),
        (("migrate", "there.db", "./there.db"), "source and destination are the same store"),
        (("migrate", "there.db", "memory://"), "memory:// is always empty"),
        (("prune", "--store", "there.db"), "set an age, a number to keep, or both"),
        (("prune", "--older-than", "soon", "--store", "there.db"), "invalid age 'soon': use a whole number and h, d or w"),
    ],
)  # fmt: skip
def test_invalid_usage_has_a_remedy(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    SqliteStorage(tmp_path / "there.db").close()
    ran = run(tmp_path, *arguments)
    assert ran.code == 2, ran
    assert message in ran.err
    assert not (tmp_path / "none.db").exists()


def test_a_password_is_never_printed(tmp_path: Path) -> None:
    SqliteStorage(tmp_path / "there.db").close()
    ran = run(tmp_path, "migrate", "there.db", "postgresql://me:hunter2hunter2@127.0.0.1:1/evals")
    assert ran.code == 4, ran
    assert "127.0.0.1:1/evals" in ran.err
    assert "hunter2" not in ran.out + ran.err
