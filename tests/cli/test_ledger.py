"""``gradeline ledger`` as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.ledger import QualityLedger
from gradeline_command import COMMAND, run_command


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        """The words of each line, however wide the columns are."""
        return [line.split() for line in self.out.splitlines()]


def observation_fields(**fields: Any) -> dict[str, Any]:
    return {
        "task_family": "support",
        "baseline_adapter": "large",
        "candidate_adapter": "small",
        "grader_id": "judge",
        "grader_fingerprint": "f1",
        "score": 1.0,
        "baseline_digest": "d1",
        "candidate_digest": "d2",
        "observed_at": "2026-01-15T10:00:00Z",
        **fields,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project whose ledger has two families."""
    with QualityLedger(tmp_path / ".gradeline" / "store.db") as ledger:
        ledger.append_many(observation_fields(score=score, idempotency_key=str(score)) for score in (0.0, 1.0, None))
        ledger.append(**observation_fields(task_family="code", score=None, idempotency_key="code"))
    return tmp_path


def ledger(folder: Path, *arguments: str, **environment: str) -> CommandResult:
    variables = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command([COMMAND, "ledger", *arguments], cwd=folder, env={**variables, **environment})
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_a_table_of_families_and_adapters(folder: Path) -> None:
    ran = ledger(folder)
    assert (ran.code, ran.err) == (0, "")
    head, code, support = ran.lines
    assert head == ["family", "adapter", "baseline", "judge", "n", "mean", "95", "%", "coverage", "age"]
    assert code[:8] == ["code", "small", "large", "judge", "0", "–", "–", "0%"]
    assert support[:8] == ["support", "small", "large", "judge", "2", "0.500", "0.095–0.905", "67%"]
    assert [line[-1] for line in (code, support)] == ["d", "d"]


def test_filters_by_family_or_adapter(folder: Path) -> None:
    assert [line[0] for line in ledger(folder, "--family", "code").lines] == ["family", "code"]
    assert [line[0] for line in ledger(folder, "--adapter", "small").lines] == ["family", "code", "support"]


def test_json_has_the_rows_of_a_query(folder: Path) -> None:
    ran = ledger(folder, "--json", "--family", "support")
    (row,) = json.loads(ran.out)["rows"]
    assert row.pop("age") > 0
    assert row.pop("interval") == [pytest.approx(0.0945, abs=1e-4), pytest.approx(0.9055, abs=1e-4)]
    assert row == {
        "task_family": "support",
        "adapter": "small",
        "n": 2,
        "mean": 0.5,
        "coverage": 2 / 3,
        "baseline_adapter": "large",
        "grader_id": "judge",
        "observations": 3,
    }


def test_a_case_counts_once_and_each_judge_has_a_row(tmp_path: Path) -> None:
    with QualityLedger(tmp_path / ".gradeline" / "store.db") as made:
        for night in range(3):
            for judge in ("exact-match", "llm"):
                made.append_many(
                    observation_fields(grader_id=judge, case_key=str(case), idempotency_key=f"{judge}{night}{case}")
                    for case in range(4)
                )
    rows = ledger(tmp_path).lines[1:]
    assert [row[2:6] for row in rows] == [["large", "exact-match", "4", "1.000"], ["large", "llm", "4", "1.000"]]


def test_an_empty_ledger_shows_how_to_fill_it(tmp_path: Path) -> None:
    ran = ledger(tmp_path)
    assert ran.code == 0
    assert ran.out.startswith("No observations yet. Record the verdict of a judge on a pair from Python:\n")
    assert "ledger.record(result, task_family=…" in ran.out
    assert json.loads(ledger(tmp_path, "--json").out) == {"rows": []}


def test_an_unknown_family_is_refused_with_the_known_ones(folder: Path) -> None:
    assert ledger(folder, "--family", "supprt", "--adapter", "small").out == (
        "No observations of family 'supprt' and adapter 'small'. Known: code / small, support / small\n"
    )


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    with QualityLedger(tmp_path / "store.db") as made:
        made.append(**observation_fields(task_family="[red]a\x1b[2J", candidate_adapter="\u202eevil"))
    for arguments in ((), ("--family", "nothing")):
        out = ledger(tmp_path, "--store", "store.db", *arguments).out
        assert "[red]a<1B>[2J" in out
        assert "<202E>evil" in out
        assert "\x1b" not in out


class TestExport:
    def test_standard_output_is_always_json_lines(self, folder: Path) -> None:
        ran = ledger(folder, "--export", "-", "--family", "support", PYTHONIOENCODING="ascii", LC_ALL="C")
        assert (ran.code, ran.err) == (0, "")
        assert [json.loads(line)["score"] for line in ran.out.splitlines()] == [0.0, 1.0, None]

    def test_a_file_has_the_same_lines(self, folder: Path) -> None:
        ran = ledger(folder, "--export", "out.jsonl")
        assert (ran.code, ran.out) == (0, "4 observations written to out.jsonl\n")
        assert (folder / "out.jsonl").read_text() == ledger(folder, "--export", "-").out

    def test_a_csv_file_is_chosen_by_its_extension(self, folder: Path) -> None:
        assert ledger(folder, "--export", "out.csv", "--adapter", "small", "--quiet") == (0, "", "")
        assert (folder / "out.csv").read_text().splitlines()[0].startswith("id,task_family,baseline_adapter,")

    def test_json_names_the_file(self, folder: Path) -> None:
        assert json.loads(ledger(folder, "--export", "out.jsonl", "--json").out) == {"written": ["out.jsonl"]}

    def test_json_and_lines_conflict_on_standard_output(self, folder: Path) -> None:
        ran = ledger(folder, "--export", "-", "--json")
        assert (ran.code, ran.out) == (2, "")
        assert "use only one" in ran.err

    def test_an_unwritable_path_is_named(self, folder: Path) -> None:
        ran = ledger(folder, "--export", "nowhere/out.csv")
        assert (ran.code, ran.out) == (2, "")
        assert "nowhere/out.csv: cannot write: No such file or directory; choose" in ran.err

    def test_a_closed_pipe_is_not_an_error(self, folder: Path) -> None:
        with QualityLedger(folder / ".gradeline" / "store.db") as made:
            made.append_many(observation_fields(idempotency_key=f"more {number}") for number in range(2000))
        done = subprocess.run(
            ["bash", "-c", f"'{COMMAND}' ledger --export - | head -1; exit ${{PIPESTATUS[0]}}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
