from __future__ import annotations

from pathlib import Path

import pytest

from gradeline.engine.definition import command, how_to_continue
from gradeline.store import InMemoryStorage, SqliteStorage


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (None, "gradeline resume r1"),
        ("runs.db", "gradeline resume r1 --store runs.db"),
        ("my runs.db", "gradeline resume r1 --store 'my runs.db'"),
        ("postgresql://host/db", "gradeline resume r1 --store postgresql://host/db"),
        ("postgresql://me:s3cret@host/db", "gradeline resume r1 --store URL"),
    ],
)
def test_a_command_names_the_store_and_no_password(store: str | None, expected: str) -> None:
    assert command("resume", "r1", store) == expected


def test_a_run_in_memory_cannot_be_resumed(tmp_path: Path) -> None:
    advice = "start the run again: its store was in memory and is not kept, so it cannot be resumed"
    assert how_to_continue("r1", InMemoryStorage(), "memory://") == advice
    with SqliteStorage(tmp_path / "runs.db") as storage:
        assert how_to_continue("r1", storage, "runs.db") == "continue with: gradeline resume r1 --store runs.db"
