from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradeline.cli.commands import run_command

GENERATED: dict[str, Any] = {
    "doc": {"question": "What is 2 + 2?", "answer": "4"},
    "target": "4",
    "arguments": {"gen_args_0": {"arg_0": "Q: What is 2 + 2?\nA:", "arg_1": {"until": ["\n"]}}},
    "resps": [["The answer is 4"]],
    "metrics": ["exact_match"],
}
CHOICE: dict[str, Any] = {
    "doc_id": 0,
    "doc": {"question": "Capital of Peru?"},
    "target": 1,
    "arguments": {"gen_args_0": {"arg_0": "Q:", "arg_1": " Quito"}, "gen_args_1": {"arg_0": "Q:", "arg_1": " Lima"}},
    "resps": [[[-4.0, False]], [[-1.0, True]]],
    "filtered_resps": [[-4.0, False], [-1.0, True]],
    "filter": "none",
    "metrics": ["acc", "acc_norm", "perplexity"],
    "doc_hash": "c0",
    "acc": 1.0,
    "acc_norm": 1.0,
    "perplexity": [3.5, 2],
}


def generated(number: int, answer: str, filter_name: str, score: float) -> dict[str, Any]:
    own = {"doc_id": number, "doc_hash": f"h{number}", "filtered_resps": [answer], "filter": filter_name}
    return {**GENERATED, **own, "exact_match": score}


def write(folder: Path, name: str, *rows: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run_command([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_run_per_filter_and_a_suite(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        project / "out" / "my-model",
        "samples_gsm8k_2026-11-16T09-30-00.123456.jsonl",
        generated(0, "4", "strict-match", 1.0),
        generated(0, "4", "flexible-extract", 1.0),
        generated(1, "5", "strict-match", 0.0),
        generated(1, "4", "flexible-extract", 1.0),
    )
    code, report = run(capsys, "import", "out/my-model", "--output", "imported")
    assert (code, report["kind"], len(report["runs"])) == (3, "lm-eval", 2)
    assert {path.name for path in (project / "imported").iterdir()} == {
        "suite.yaml",
        "cases.jsonl",
        "answers.jsonl",
        "import.md",
    }
    _, strict = run(capsys, "show", report["runs"][0])
    shown = strict["run"]
    assert (shown["name"], shown["suite"], shown["target"]["model"]) == ("gsm8k [strict-match]", "gsm8k", "my-model")
    assert strict["summary"]["graders"]["exact_match"]["mean"] == 0.5
    code, compared = run(capsys, "compare", *report["runs"])
    exact = compared["graders"]["exact_match"]
    assert (code, exact["baseline"], exact["candidate"], compared["reasons"]) == (3, 0.5, 1.0, [])


def test_a_run_per_model(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, answer in (("small", "5"), ("large", "4")):
        write(project / "out" / model, "samples_gsm8k.jsonl", generated(0, answer, "none", float(answer == "4")))
    _, report = run(capsys, "import", "out", "--output", "imported")
    assert report["kind"] == "lm-eval"
    code, compared = run(capsys, "compare", "gsm8k [small]", "gsm8k [large]")
    assert (code, compared["graders"]["exact_match"]["difference"]) == (3, 1.0)
    assert len((project / "imported" / "cases.jsonl").read_text().splitlines()) == 1
    assert run(capsys, "run", "imported/suite.yaml")[0] == 0


def test_two_logs_of_a_task_have_the_same_cases(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for hour in ("09", "10"):
        name = f"samples_gsm8k_2026-11-16T{hour}-30-00.123456.jsonl"
        write(project / "out", name, generated(0, "4", "none", 1.0), generated(1, "5", "none", 0.0))
    _, report = run(capsys, "import", "out", "--output", "imported")
    assert len(report["runs"]) == 2
    assert len((project / "imported" / "cases.jsonl").read_text().splitlines()) == 2
    assert run(capsys, "run", "imported/suite.yaml")[0] == 0


def test_the_written_suite_runs_and_regrades(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "samples_gsm8k.jsonl", generated(0, "4", "none", 1.0), generated(1, "5", "none", 0.0))
    _, report = run(capsys, "import", "samples_gsm8k.jsonl", "--output", "imported")
    code, again = run(capsys, "run", "imported/suite.yaml")
    assert (code, again["summary"]["graders"]["exact_match"]["mean"]) == (0, 0.5)
    code, regraded = run(capsys, "regrade", report["runs"][0])
    assert (code, regraded["summary"]["graders"]["exact_match"]["mean"]) == (0, 0.5)


def test_the_answer_to_a_choice_is_its_likeliest_option(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "samples_capitals.jsonl", CHOICE)
    code, report = run(capsys, "import", "samples_capitals.jsonl", "--output", "imported")
    assert code == 1
    left_out = [item["what"] for item in report["items"] if item["state"] == "not mapped"]
    assert left_out == ["metric 'perplexity'"]
    answer = json.loads((project / "imported" / "answers.jsonl").read_text())
    case = json.loads((project / "imported" / "cases.jsonl").read_text())
    assert (answer["response"]["text"], case["ground_truth"], case["id"]) == ("Lima", "Lima", "capitals/c0")


def test_a_score_that_is_missing_is_an_error(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = generated(0, "4", "none", 1.0)
    partial = {key: value for key, value in generated(1, "4", "none", 1.0).items() if key != "exact_match"}
    write(project, "samples_t.jsonl", whole, partial)
    _, report = run(capsys, "import", "samples_t.jsonl", "--output", "imported")
    _, shown = run(capsys, "show", report["runs"][0])
    exact = shown["summary"]["graders"]["exact_match"]
    assert (exact["scored"], exact["passed"], exact["failed"], exact["errors"]) == (1, 1, 0, 1)


def test_rows_that_cannot_be_read_are_reported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = generated(0, "4", "none", 1.0)
    write(project, "samples_t.jsonl", whole, '{"doc_id": 1, "doc', "[1]", {"doc_id": 2, "doc": {}})
    code, report = run(capsys, "import", "samples_t.jsonl", "--from", "lm-eval", "--output", "imported")
    assert code == 1
    places = {place for item in report["items"] if item["state"] == "not mapped" for place in item["places"]}
    assert {"samples_t.jsonl:2", "samples_t.jsonl:3", "samples_t.jsonl:4"} <= places


def test_a_document_that_is_nested_too_deeply_is_reported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = json.dumps({**generated(0, "4", "none", 1.0), "doc": "@"}).replace('"@"', '{"a":' * 500 + "1" + "}" * 500)
    write(project, "samples_t.jsonl", deep, generated(1, "4", "none", 1.0))
    code, report = run(capsys, "import", "samples_t.jsonl", "--output", "imported")
    (item,) = [item for item in report["items"] if item["state"] == "not mapped"]
    assert (code, item["places"], len(report["runs"])) == (1, ["samples_t.jsonl:1"], 1)
    assert "nested more than 200 levels deep" in item["note"]


def test_text_that_cannot_be_stored_is_replaced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {**generated(0, "4\0", "strict\0", 1.0), "doc_hash": "h\0\n"}
    write(project, "samples_t.jsonl", row)
    _, report = run(capsys, "import", "samples_t.jsonl", "--output", "imported")
    (case,) = [json.loads(line) for line in (project / "imported" / "cases.jsonl").read_text().splitlines()]
    assert "\0" not in case["id"]
    assert "\n" not in case["id"]
    assert run(capsys, "regrade", report["runs"][0])[0] == 0
