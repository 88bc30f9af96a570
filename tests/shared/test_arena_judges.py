"""Two judges of chat answers, measured against people's votes through the command line: both fail and save nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gradeline.model import RunGrader
from gradeline.store import SqliteStorage
from gradeline_command import COMMAND, run_command
from judged_run import JudgedCase, store_run

Rows = Callable[[str], Iterator[dict[str, Any]]]


def store_votes(folder: Path, rows: Rows) -> dict[str, RunGrader]:
    """A run with one case per vote, which the first answer wins or loses, and a grader per judge."""
    items: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows("arena_judge/rows.jsonl"):
        items.setdefault((row["pair"], row["item_id"]), {})[row["judge"]] = row
    picks: dict[str | None, bool] = {"A": True, "B": False}
    cases = [
        JudgedCase(
            {judge: picks.get(row["judge_pick"]) for judge, row in by_judge.items()},
            next(iter(by_judge.values()))["human"] == "A",
            tags=(pair,),
        )
        for (pair, _), by_judge in items.items()
    ]
    names = sorted({judge for by_judge in items.values() for judge in by_judge})
    graders = {name: RunGrader("model_judge", f"f-{name}", (f"openai:{name}",)) for name in names}
    (folder / ".gradeline").mkdir()
    with SqliteStorage(folder / ".gradeline" / "store.db") as storage:
        store_run(storage, cases, graders, question="vote")
    return graders


def test_judges_of_chat_answers_are_not_calibrated_and_save_no_labels(tmp_path: Path, shared_rows: Any) -> None:
    graders = store_votes(tmp_path, shared_rows)
    expected = json.loads("\n".join(shared_rows.lines("arena_judge/expected.json")))
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    arguments = [COMMAND, "calibrate", "latest", "--question", "vote"]
    done = run_command([*arguments, "--json"], cwd=tmp_path, text=True, env=environment)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [one["grader"] for one in found["calibrations"]] == list(graders)
    for one in found["calibrations"]:
        published = expected[one["grader"]]
        table = one["table"]
        assert one["state"] == "failed"
        assert one["missing"] == table["missing"] == published["missing"]
        assert one["results"] == published["rows"]
        assert table["tp"] + table["tn"] == published["agree"]
        assert abs(one["kappa"]["estimate"] - published["kappa"]) < 1e-9
        assert one["value"]["sentence"].startswith("This judge saves no labels: ")
        assert [reason for reason in one["reasons"] if "is below 0.4" in reason] == one["reasons"]
        assert len(one["tags"]) >= 3
    text = run_command(arguments, cwd=tmp_path, text=True, env=environment).stdout
    assert text.count("failed: ") == text.count("This judge saves no labels: ") == len(graders)
