"""Results of promptfoo become runs with their grades, labels of people, and a suite that grades the outputs again."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradeline.cli.commands import run_command
from gradeline.errors import ConfigError, Fault
from gradeline.importers.kinds import ImportOptions, run_import
from gradeline.model import ErrorInfo
from gradeline.store import open_storage
from gradeline.store.database import SharedStorage
from gradeline.store.labels import labels_of_run

CONFIG = {"description": "capitals", "prompts": ["Capital of {{country}}?"], "providers": ["openai:a", "openai:b"]}
FRANCE = {"type": "icontains", "value": "Paris"}
POLITE = {"type": "llm-rubric", "value": "is polite", "metric": "tone", "weight": 3}


def verdict(assertion: Mapping[str, Any], score: float, **parts: Any) -> dict[str, Any]:
    return {"pass": score >= 0.5, "score": score, "reason": f"scored {score}", "assertion": assertion, **parts}


def grading(*components: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    score = sum(one["score"] for one in components) / max(1, len(components))
    passed = all(one["pass"] for one in components)
    return {"pass": passed, "score": score, "reason": "all", "componentResults": list(components), **parts}


def row(test: int, prompt: int, output: object, grades: Mapping[str, Any] | None, **parts: Any) -> dict[str, Any]:
    country = "France" if test == 0 else "Peru"
    passed = bool(grades and grades["pass"])
    return {
        "testIdx": test,
        "promptIdx": prompt,
        "provider": {"id": f"openai:{'ab'[prompt]}", "label": ""},
        "prompt": {"raw": f"Capital of {country}?", "label": "Capital of {{country}}?"},
        "vars": {"country": country, "sessionId": f"{test}-{prompt}"},
        "testCase": {"vars": {"country": country}, "assert": [FRANCE, POLITE], "description": country.lower()},
        "response": {
            "output": output,
            "tokenUsage": {"total": 12, "prompt": 9, "completion": 3},
            "finishReason": "stop",
        },
        "success": passed,
        "score": grades["score"] if grades else 0,
        "failureReason": 0 if passed else 1,
        "latencyMs": 412,
        "cost": 0.5,
        "gradingResult": grades,
        **parts,
    }


ROWS = (
    row(0, 0, "It is Paris", grading(verdict(FRANCE, 1), verdict(POLITE, 0.8))),
    row(0, 1, "Rome", grading(verdict(FRANCE, 0), verdict(POLITE, 0.6))),
    row(1, 0, "Lima", grading(verdict(FRANCE, 0), verdict(POLITE, 1))),
    row(1, 1, None, None, failureReason=2, response={"error": "429 slow down"}, error="429 slow down"),
)


def document(rows: Sequence[object] = ROWS, **parts: Any) -> dict[str, Any]:
    prompts = [{"raw": CONFIG["prompts"][0], "label": "x", "provider": name} for name in CONFIG["providers"]]
    results = {"version": 3, "timestamp": "2026-01-02T03:04:05.678Z", "prompts": prompts, "results": list(rows)}
    return {"evalId": "eval-x", "results": {**results, "stats": {}}, "config": CONFIG, "shareableUrl": None, **parts}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADELINE_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("OPENAI_API_KEY", "a-value-of-the-environment")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run_command([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def imported(
    capsys: pytest.CaptureFixture[str], rows: Sequence[object] = ROWS, *, lines: bool = False
) -> tuple[int, dict[str, Any]]:
    name = "results.jsonl" if lines else "results.json"
    Path(name).write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(document(rows)))
    return run(capsys, "import", name, "--output", "out")


@pytest.mark.parametrize("lines", [False, True])
def test_each_prompt_with_each_provider_is_a_run(capsys: pytest.CaptureFixture[str], lines: bool) -> None:
    code, report = imported(capsys, lines=lines)
    assert (code, report["kind"], len(report["runs"])) == (3, "promptfoo", 2)
    _, first = run(capsys, "show", report["runs"][0])
    name = "results" if lines else "capitals"
    assert (first["run"]["name"], first["run"]["target"]["model"]) == (f"{name} [openai-a]", "openai:a")
    graders = first["summary"]["graders"]
    assert {key: (one["mean"], one["passed"], one["failed"]) for key, one in graders.items()} == {
        "promptfoo": (0.7, 1, 1),
        "icontains": (0.5, 1, 1),
        "tone": (0.9, 2, 0),
    }
    cases = [json.loads(line) for line in Path("out/cases.jsonl").read_text().splitlines()]
    assert [(case["id"], case["input"], case["metadata"]["vars"]) for case in cases] == [
        ("france", "France", {"country": "France"}),
        ("peru", "Peru", {"country": "Peru"}),
    ]


def test_a_failed_call_has_no_grades(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = imported(capsys)
    _, second = run(capsys, "show", report["runs"][1])
    icontains = second["summary"]["graders"]["icontains"]
    assert (icontains["scored"], icontains["skipped"], icontains["failed"], icontains["errors"]) == (1, 1, 1, 0)
    with open_storage("runs.db") as storage:
        record = next(one for one in storage.records(report["runs"][1]) if one.sample.id == "peru")
    assert record.response.error == ErrorInfo("agent_error", "429 slow down", Fault.AGENT)


def test_the_outputs_are_graded_again_and_runs_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**one, "testCase": {**one["testCase"], "assert": [FRANCE]}} for one in ROWS]
    code, report = imported(capsys, rows)
    assert code == 0
    assert run_command(["validate", "out/suite.yaml"]) == 0
    code, group = run(capsys, "run", "out/suite.yaml")
    assert code == 1
    means = [one["summary"]["graders"]["checks"]["mean"] for one in group["runs"]]
    assert means == [0.5, 0.0]
    code, compared = run(capsys, "compare", *report["runs"])
    tone = compared["graders"]["tone"]
    assert (code, tone["baseline"], tone["candidate"]) == (3, 0.8, 0.6)


def test_repeats_are_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    again = [{**one, "testIdx": one["testIdx"] + 2} for one in ROWS]
    _, report = imported(capsys, [*ROWS, *again])
    _, shown = run(capsys, "show", report["runs"][0])
    assert shown["summary"]["graders"]["tone"]["scored"] == 4
    assert "repeats: 2" in Path("out/suite.yaml").read_text()
    assert len(Path("out/cases.jsonl").read_text().splitlines()) == 2


def test_a_persons_verdict_is_a_label_and_not_a_grade(capsys: pytest.CaptureFixture[str]) -> None:
    components = [verdict(FRANCE, 1), verdict(POLITE, 0.8), verdict({"type": "human"}, 0, reason="Manual result")]
    judged = {"pass": False, "score": 0, "reason": "Manual", "comment": "too curt", "componentResults": components}
    _, report = imported(capsys, [row(0, 0, "Paris", judged), ROWS[2]])
    with open_storage("runs.db") as storage:
        assert isinstance(storage, SharedStorage)
        france = next(one for one in storage.records(report["runs"][0]) if one.sample.id == "france")
        (label,) = labels_of_run(storage.database.read, report["runs"][0])
    assert {name: grade.score for name, grade in france.grades.items()} == {
        "promptfoo": pytest.approx((1 + 3 * 0.8) / 4),
        "icontains": 1.0,
        "tone": 0.8,
    }
    assert france.grades["promptfoo"].outcome == "pass"
    assert (label.question, label.verdict, label.comment) == ("promptfoo", "fail", "too curt")


def test_a_grader_that_failed_has_no_score(capsys: pytest.CaptureFixture[str]) -> None:
    failed = verdict(POLITE, 0, metadata={"graderError": True}, reason="no JSON")
    _, report = imported(capsys, [row(0, 0, "Paris", grading(verdict(FRANCE, 1), failed)), ROWS[2]])
    _, shown = run(capsys, "show", report["runs"][0])
    tone = shown["summary"]["graders"]["tone"]
    assert (tone["scored"], tone["errors"], tone["mean"]) == (1, 1, 1.0)


def test_outputs_that_are_data_and_tool_calls(capsys: pytest.CaptureFixture[str]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    rows = [row(0, 0, [call], grading(verdict(FRANCE, 0))), row(1, 0, {"a": [1, True]}, grading(verdict(FRANCE, 0)))]
    imported(capsys, rows)
    first, second = (json.loads(line)["response"] for line in Path("out/answers.jsonl").read_text().splitlines())
    assert [
        one["name"] for turn in first["trajectory"]["turns"] for message in turn for one in message["tool_calls"]
    ] == ["find"]
    assert (second["text"], second["trajectory"], second["usage"]["cost"], second["latency_ms"]) == (
        '{"a":[1,true]}',
        None,
        0.5,
        412,
    )


def test_outputs_are_those_after_the_transform(capsys: pytest.CaptureFixture[str]) -> None:
    test = {**ROWS[0]["testCase"], "options": {"transform": "output.toLowerCase()"}, "assert": [FRANCE]}
    code, _ = imported(capsys, [{**ROWS[0], "testCase": test}])
    assert code == 0
    assert run_command(["run", "out/suite.yaml"]) == 0


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_assertions_of_outputs_that_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    code = {"type": "javascript", "value": "output.city === 'Paris'"}
    rows = [row(0, 0, {"city": "Paris"}, grading(verdict(code, 1)))]
    imported(capsys, [{**one, "testCase": {"assert": [code]}} for one in rows])
    assert run_command(["run", "out/suite.yaml"]) == 0


def test_the_same_type_twice_has_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    other = {"type": "icontains", "value": "is"}
    inner = verdict({"type": "assert-set"}, 0.5, componentResults=[verdict({"type": "equals"}, 1)])
    _, report = imported(capsys, [row(0, 0, "Paris", grading(verdict(FRANCE, 1), verdict(other, 0), inner))])
    _, shown = run(capsys, "show", report["runs"][0])
    assert set(shown["summary"]["graders"]) == {"promptfoo", "icontains", "icontains-2", "assert-set", "equals"}


def test_results_of_old_versions(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    rows = [
        {
            "prompt": {"raw": f"{display} tea", "display": f"{display} {{{{body}}}}"},
            "vars": {"body": "tea", "__expected": "contains: tea"},
            "response": {"output": f"{display} a tea", "tokenUsage": {"total": 3, "prompt": 2, "completion": 1}},
            "success": True,
        }
        for display in ("Say", "Sing")
    ]
    (project / "output.json").write_text(json.dumps({"results": rows, "stats": {"successes": 2}, "table": []}))
    code, report = run(capsys, "import", "output.json", "--output", "out")
    assert (code, len(report["runs"])) == (0, 2)
    (case,) = (json.loads(line) for line in Path("out/cases.jsonl").read_text().splitlines())
    assert (case["input"], case["checks"][0]["value"], case["metadata"]["vars"]) == ("tea", "tea", {"body": "tea"})
    assert run_command(["run", "out/suite.yaml"]) == 0


def test_lines_that_were_cut_off_are_reported(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    text = "\n".join(map(json.dumps, ROWS))
    (project / "results.jsonl").write_text(text[:-40])
    code, report = run(capsys, "import", "results.jsonl", "--output", "out")
    assert code == 1
    (item,) = [one for one in report["items"] if one["state"] == "not mapped"]
    assert (item["what"], item["places"]) == ("row", ["results.jsonl:4"])
    assert "is not JSON" in item["note"]


def test_scores_that_are_computed_from_others_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = imported(capsys, [{**ROWS[0], "namedScores": {"tone": 0.8, "total": 1.8}}])
    assert code == 1
    assert [one["what"] for one in report["items"] if one["state"] == "not mapped"] == ["derived metric 'total'"]


@pytest.mark.parametrize("large", ["response", "prompt", "config"])
def test_documents_that_are_larger_than_what_detection_reads(
    capsys: pytest.CaptureFixture[str], project: Path, large: str
) -> None:
    data = document()
    text = "x" * 600_000
    if large == "response":
        data["results"]["results"][0]["response"]["output"] = text
    elif large == "prompt":
        data["results"]["prompts"][0]["raw"] = text
    else:
        data = {"config": {"description": text}, **data}
    (project / "results.json").write_text(json.dumps(data))
    code, report = run(capsys, "import", "results.json", "--output", "out")
    assert (code, report["kind"], len(report["runs"])) == (3, "promptfoo", 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (document([]), "has no results of promptfoo that can be read"),
        (document([{"testIdx": 1}, 5]), "has no results of promptfoo that can be read"),
        (document() | {"results": {"results": 5}}, "has no list of results: 5"),
    ],
)
def test_files_without_results_are_refused(
    capsys: pytest.CaptureFixture[str], project: Path, data: object, message: str
) -> None:
    (project / "results.json").write_text(json.dumps(data))
    assert run_command(["import", "results.json", "--output", "out"]) == 2
    assert message in capsys.readouterr().err
    assert not (project / "out").exists()


ODD: tuple[Any, ...] = (
    None,
    True,
    7,
    -1,
    10**40,
    "",
    "x",
    "{{",
    [],
    {},
    [[]],
    [{}],
    {"id": {}},
    {"$ref": "#"},
    "a\0",
    "\ud83d",
)


def keys_of(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, item in items for one in [(*path, key), *keys_of(item, (*path, key))]]


@pytest.mark.parametrize("seed", range(40))
def test_odd_values_anywhere_are_reported(project: Path, seed: int) -> None:
    chosen = random.Random(seed)
    human = grading(verdict({"type": "human"}, 1), verdict(FRANCE, 1), comment="good")
    data: Any = json.loads(json.dumps(document([*ROWS, row(0, 0, "Paris", human)])))
    for path in chosen.sample(keys_of(data), 4):
        inside = data
        try:
            for step in path[:-1]:
                inside = inside[step]
            inside[path[-1]] = chosen.choice(ODD)
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change replaced its parent
    (project / "results.json").write_text(json.dumps(data))
    with open_storage(str(project / "runs.db")) as storage:
        try:
            result = run_import(
                project / "results.json", project / "out", ImportOptions(kind="promptfoo"), lambda: storage
            )
        except ConfigError:
            assert storage.list_runs() == []
            return
        assert len(storage.list_runs()) == len(result.runs) >= 1
        assert (project / "out" / "suite.yaml").exists()
