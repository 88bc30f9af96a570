from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradeline.cli.commands import run_command

ROWS = [
    {"id": "a", "input": "Who wrote Hamlet?", "ground_truth": "Shakespeare", "metadata": {"year": 1601}},
    {"id": "a", "input": "What is the capital of Peru?", "ground_truth": "Lima", "metadata": {"year": "1535"}},
    {"id": "c", "input": "Who wrote Hamlet?", "ground_truth": "Shakespeare", "metadata": {"year": 1601}},
    {"id": "d", "input": "Is Canberra the capital of Australia?", "ground_truth": "canberra"},
    {"id": "e", "input": "What is seven?", "ground_truth": ""},
    {"id": "f", "input": "", "ground_truth": "x"},
    {"id": "g", "input": "Say yes", "ground_truth": "yes", "checks": [{"condition": "containz", "value": "yes"}]},
]


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_command(["dataset", "check", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_everything_suspicious_is_reported_with_its_line(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, "cases.jsonl", "--json")
    report = json.loads(out)
    assert (code, report["exit_code"], report["cases"], report["complete"]) == (1, 1, 5, True)
    found = {finding["kind"]: finding for finding in report["findings"]}
    assert {kind: finding["count"] for kind, finding in found.items()} == {
        "invalid": 2,
        "duplicate_id": 1,
        "duplicate": 1,
        "empty": 1,
        "leak": 1,
        "mixed_types": 1,
    }
    places = {kind: finding["examples"] for kind, finding in found.items()}
    assert places["invalid"] == [
        f"{cases}:6: input: must not be empty, got ''",
        f"{cases}:7: checks[0].condition: no condition named 'containz'; did you mean 'contains'?",
    ]
    assert places["duplicate_id"] == [f"{cases}:2: 'a'"]
    assert places["duplicate"] == [f"{cases}:3: 'c'"]
    assert places["leak"] == [f"{cases}:4: 'canberra'"]
    assert places["empty"] == [f"{cases}:5"]
    assert found["mixed_types"]["message"] == "'metadata.year' has mixed types: number 2, string 1"


def test_a_dataset_without_a_finding_exits_with_0(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cases.parent / "good.csv").write_text("question,answer\nWhat is 6 times 7?,42\nWhat is 2 plus 2?,4\n")
    columns = ("--columns", "input=question", "--columns", "ground_truth=answer")
    code, out, err = check(capsys, "good.csv", *columns)
    assert (code, err) == (0, "")
    assert out.endswith("good.csv: 2 cases, 2 without an id; nothing found\n")


def test_a_row_that_cannot_be_read_ends_the_check(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases.write_text('{"input": "a"}\n{\n{"input": "b"}\n')
    code, out, _ = check(capsys, "cases.jsonl")
    assert code == 1
    assert f"{cases}:2: not JSON" in out
    assert out.endswith("1 case, 1 without an id; 1 finding; reading stopped at the invalid row\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none/*.jsonl",), "FILE: no file matches 'none/*.jsonl'"),
        (("cases.jsonl", "--columns", "question"), "--columns: expected KEY=COLUMN such as input=question"),
        (("cases.jsonl", "--columns", "inputs=q"), "--columns: inputs: a case has no key 'inputs'"),
    ],
)
def test_a_wrong_call_exits_with_2(
    cases: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = check(capsys, *arguments)
    assert (code, message in err) == (2, True)


def test_text_of_the_dataset_is_shown_without_control_characters(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "x\x1b[31m", "input": "a"}
    cases.write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    assert "\x1b" not in check(capsys, "cases.jsonl")[1]


def test_grade_reads_any_file_of_a_dataset(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cases.parent / "a.csv").write_text("answer,said\n42,It is 42\n")
    columns = ["--columns", "ground_truth=answer", "--columns", "submission=said"]
    assert run_command(["grade", "contains", "a.csv", *columns, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["grades"]["contains"]["outcome"] == "pass"
