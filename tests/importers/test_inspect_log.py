"""Logs that the real Inspect made are imported with the values that Inspect reads in them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gradeline.cli.commands import run_command
from gradeline.errors import Fault, Outcome
from gradeline.model import (
    ErrorInfo,
    Grade,
    GradeKey,
    Message,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    ToolCall,
    Trajectory,
    Usage,
    from_json,
)
from gradeline.store import open_storage

PROGRAM = Path(__file__).parent.parent / "inspect_program.py"
Commands = Callable[..., tuple[int, Any]]

pytestmark = pytest.mark.slow


def inspect_program(*arguments: str | Path, code: int = 0) -> str:
    """What Inspect prints; it keeps its own files next to the first argument."""
    home = Path(arguments[1]).parent
    environment = {**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    environment.pop("PYTHONWARNINGS", None)
    result = subprocess.run([sys.executable, PROGRAM, *arguments], env=environment, capture_output=True, text=True)
    assert result.returncode == code, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect") / "logs"
    inspect_program("write", folder)
    return folder


@pytest.fixture(scope="module")
def as_inspect_reads(logs: Path) -> Mapping[str, Any]:
    """Each log as Inspect reads it. Chunked samples it can only write: the log with whole samples counts."""
    files = [*logs.glob("*.eval"), logs / "document.json"]
    data = json.loads(inspect_program("read", *files))
    return {Path(name).name: log for name, log in data.items()}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "logs"
    folder.mkdir()
    inspect_program("kill", folder, code=9)
    (log,) = folder.glob("*.eval")
    return log


@pytest.fixture
def gradeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Runs a command in an empty folder; returns its exit code and what it printed, parsed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, Any]:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        text = printed.out.strip() or "null"
        assert code != 2 or printed.err, text
        parsed = [json.loads(line) for line in text.splitlines()]
        return code, (parsed[0] if "--json" in arguments else parsed) if code != 2 else printed.err

    return run


def imported(gradeline: Commands, source: Path, folder: str = "imported") -> tuple[Any, list[Any]]:
    """The report, and the records of the run."""
    code, report = gradeline("import", source, "--output", folder, "--json")
    assert code in (0, 1, 3), report
    _, records = gradeline("export", report["runs"][0], "--format", "jsonl")
    return report, records


def stored_run(ident: str) -> Run:
    with open_storage(".gradeline/store.db") as storage:
        return storage.find_run(ident)


ALL = (
    "weak.eval",
    "strong.eval",
    "epochs.eval",
    "errors.eval",
    "stopped.eval",
    "limits.eval",
    "tools.eval",
    "rubric.eval",
    "judged.eval",
    "chats.eval",
    "options.eval",
    "edited.eval",
    "document.json",
    "chunked/tools.eval",
    "chunked/chats.eval",
)


@pytest.mark.parametrize("name", ALL)
def test_a_log_has_the_values_that_inspect_reads(
    name: str, logs: Path, as_inspect_reads: Mapping[str, Any], gradeline: Commands
) -> None:
    """Ids, epochs, texts, scores, messages, tool calls, usage, errors."""
    _, records = imported(gradeline, logs / name)
    expected = as_inspect_reads[Path(name).name]
    assert sorted(map(values, records)) == sorted(map(inspect_values, expected["samples"]))


def values(record: Mapping[str, Any]) -> list[Any]:
    response = record["response"]
    turns = (response["trajectory"] or {"turns": []})["turns"]
    messages = [one for turn in turns for one in turn if one["role"] not in ("reasoning", "event")]
    usage = response["usage"] or {"input_tokens": 0, "output_tokens": 0}
    return [
        str(record["sample"]["id"]),
        record["repeat"] + 1,
        response["text"] or "",
        {name: grade["score"] for name, grade in record["grades"].items() if grade["score"] is not None},
        [[one["role"], one["content"], calls(one)] for one in messages],
        [usage["input_tokens"], usage["output_tokens"]],
        response["status"],
    ]


def calls(message: Mapping[str, Any]) -> list[Any]:
    return [[one["name"], json.loads(one["arguments"])] for one in message.get("tool_calls") or []]


def inspect_values(sample: Mapping[str, Any]) -> list[Any]:
    scores: dict[str, float] = {}
    for name, value in sample["scores"].items():
        parts = {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
        scores.update({key: number for key, number in parts.items() if not math.isnan(number)})
    failed = sample["error"] is not None
    messages = sample["messages"] if any(role == "assistant" for role, *_ in sample["messages"]) else []
    return [
        str(sample["id"]),
        sample["epoch"],
        sample["completion"],
        scores,
        messages,
        sample["tokens"],
        "error" if failed else "success",
    ]


def test_values_that_are_no_scores_are_errors(logs: Path, gradeline: Commands) -> None:
    report, records = imported(gradeline, logs / "values.eval")
    grades = {record["case"]: record["grades"]["listed"] for record in records}
    scores = {case: grade["score"] for case, grade in grades.items() if grade["score"] is not None}
    assert scores == {
        "correct": 1.0,
        "partial": 0.5,
        "incorrect": 0.0,
        "noanswer": 0.0,
        "true": 1.0,
        "half": 0.5,
        "yes": 1.0,
    }
    errors = {case: grade["error"]["message"] for case, grade in grades.items() if grade["outcome"] == "error"}
    assert errors == {
        "five": "the score 5 is not from 0 to 1",
        "negative": "the score -0.5 is not from 0 to 1",
        "word": "the score 'splendid' is not a number",
        "list": "the score [1, 0, 1] is not a number",
        "refused": "Inspect has no score: refusal",
    }
    assert (grades["five"]["metadata"]["value"], grades["refused"]["rationale"]) == (5, "the judge refused")
    (item,) = [item for item in report["items"] if item["what"] == "score 'listed'" and item["state"] == "approximated"]
    assert (item["count"], item["places"][0]) == (4, "values.eval:samples/five_epoch_1.json")


def test_the_run_knows_its_source(logs: Path, gradeline: Commands) -> None:
    report, _ = imported(gradeline, logs / "judged.eval")
    run = stored_run(report["runs"][0])
    target = run.target
    assert (target["imported"], target["kind"], target["model"], target["task"]) == (
        "inspect",
        "inspect",
        "mockllm/weak",
        "judged",
    )
    assert run.graders["model_graded_qa"].judges == ("mockllm/judge",)
    assert target["packages"].keys() == {"inspect_ai"}


def test_usage_is_without_that_of_the_judge(logs: Path, gradeline: Commands) -> None:
    _, records = imported(gradeline, logs / "judged.eval")
    assert {record["response"]["usage"]["input_tokens"] for record in records} == {15}


def test_epochs_are_repeats(logs: Path, gradeline: Commands) -> None:
    _, records = imported(gradeline, logs / "epochs.eval")
    assert sorted((record["case"], record["repeat"]) for record in records) == [
        (case, repeat) for case in ("3", "france", "peru") for repeat in range(3)
    ]
    suite = Path("imported/suite.yaml").read_text()
    assert "repeats: 3" in suite
    assert len(Path("imported/answers.jsonl").read_text().splitlines()) == 9
    assert len(Path("imported/cases.jsonl").read_text().splitlines()) == 3


def test_errors_and_limits(logs: Path, gradeline: Commands) -> None:
    _, records = imported(gradeline, logs / "errors.eval", "errors")
    (failed,) = [record for record in records if record["case"] == "peru"]
    error = failed["response"]["error"]
    assert (error["type"], error["message"], error["fault"]) == (
        "agent_error",
        "RuntimeError('the sandbox of peru is gone')",
        "agent",
    )
    assert failed["grades"]["includes"]["outcome"] == "skipped"
    _, records = imported(gradeline, logs / "limits.eval", "limits")
    first = next(record for record in records if record["case"] == "france")
    last = first["response"]["trajectory"]["turns"][-1][-1]
    assert (last["role"], last["name"]) == ("event", "limit")
    assert last["content"].startswith("stopped by the message limit of 4")
    assert (first["response"]["text"], first["grades"]["includes"]["score"]) == ("Paris.", 1.0)


def test_a_tool_that_failed_is_an_error_of_the_tool(logs: Path, gradeline: Commands) -> None:
    _, records = imported(gradeline, logs / "tools.eval")
    results = {
        record["case"]: next(
            one for turn in record["response"]["trajectory"]["turns"] for one in turn if one["role"] == "tool"
        )
        for record in records
    }
    assert {case: (one["content"], one.get("is_error", False)) for case, one in results.items()} == {
        "France": ("Paris", False),
        "Peru": ("Lima", False),
        "Atlantis": ("no such country", True),
    }


def test_chunked_samples_are_the_whole_ones(logs: Path, gradeline: Commands) -> None:
    def same(name: str, folder: str) -> list[Any]:
        _, records = imported(gradeline, logs / name, folder)
        return [{key: record[key] for key in ("case", "sample", "response", "grades")} for record in records]

    for name in ("tools.eval", "chats.eval"):
        assert same(f"chunked/{name}", f"chunked {name}") == same(name, f"whole {name}")


def test_an_edited_score_keeps_its_history(logs: Path, gradeline: Commands) -> None:
    _, records = imported(gradeline, logs / "edited.eval")
    grade = next(record for record in records if record["case"] == "peru")["grades"]["includes"]
    assert (grade["score"], grade["rationale"]) == (1.0, "once the capital")
    original, edit = grade["metadata"]["history"]
    assert (original["value"], edit["value"], edit["provenance"]["author"]) == ("I", "C", "ada")


def test_a_run_that_stopped_is_failed(logs: Path, gradeline: Commands) -> None:
    report, records = imported(gradeline, logs / "stopped.eval")
    run = stored_run(report["runs"][0])
    assert (run.status, "Inspect's status is error: " in (run.error_message or "")) == ("failed", True)
    assert "peru" in {record["case"] for record in records}


def test_two_logs_are_compared_by_case(logs: Path, gradeline: Commands) -> None:
    weak, _ = imported(gradeline, logs / "weak.eval", "weak")
    strong, _ = imported(gradeline, logs / "strong.eval", "strong")
    _, compared = gradeline("compare", weak["runs"][0], strong["runs"][0], "--json")
    graders = compared["graders"]
    assert (graders["includes"]["baseline"], graders["includes"]["candidate"]) == (pytest.approx(2 / 3), 1.0)
    assert (compared["comparable"], graders["includes"]["changed"], graders["includes"]["same"]) == (True, ["peru"], 2)


def test_a_folder_of_logs_is_a_run_each(logs: Path, gradeline: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("weak.eval", "strong.eval"):
        shutil.copy(logs / name, folder)
    (folder / "notes.json").write_text("{}")
    (folder / "broken.eval").write_bytes(b"PK\x03\x04 no log")
    code, report = gradeline("import", folder, "--output", "imported", "--json")
    assert (code, len(report["runs"])) == (1, 2)
    left_out = {place for item in report["items"] if item["state"] == "not mapped" for place in item["places"]}
    assert "broken.eval" in left_out
    _, runs = gradeline("list", "--json")
    assert {run["variant"] for run in runs["runs"]} == {"mockllm/weak", "mockllm/strong"}
    assert len(Path("imported/cases.jsonl").read_text().splitlines()) == 3


def test_the_suite_runs_and_the_run_is_graded_again(logs: Path, gradeline: Commands) -> None:
    report, _ = imported(gradeline, logs / "weak.eval")
    code, again = gradeline("run", "imported/suite.yaml", "--json")
    assert (code, again["summary"]["graders"]["includes"]["mean"]) == (0, pytest.approx(2 / 3))
    code, regraded = gradeline("regrade", report["runs"][0], "--json")
    assert (code, regraded["summary"]["graders"]["includes"]["mean"]) == (0, pytest.approx(2 / 3))


class TestKilledRun:
    def test_its_samples_are_read(self, killed: Path, gradeline: Commands) -> None:
        report, records = imported(gradeline, killed)
        assert [record["case"] for record in records] == ["france", "peru"]
        run = stored_run(report["runs"][0])
        assert (run.status, run.error_message) == (
            "failed",
            "Inspect's status is started: the log ends before the run did",
        )

    @pytest.mark.parametrize("share", [0.5, 0.65, 0.8, 0.95])
    def test_a_file_that_was_cut_off_is_read_as_far_as_it_is_whole(
        self, share: float, killed: Path, gradeline: Commands, tmp_path: Path
    ) -> None:
        raw = killed.read_bytes()
        cut = tmp_path / "cut.eval"
        cut.write_bytes(raw[: int(len(raw) * share)])
        with zipfile.ZipFile(killed) as archive:
            places = [info.header_offset for info in archive.infolist()] + [archive.start_dir]
            whole = [
                info.filename
                for info, end in zip(archive.infolist(), places[1:], strict=True)
                if end <= cut.stat().st_size and info.filename.startswith("samples/")
            ]
        assert whole, "the log changed its layout: choose other shares"
        report, records = imported(gradeline, cut)
        assert [record["case"] for record in records] == ["france", "peru"][: len(whole)]
        (item,) = [item for item in report["items"] if item["what"] == "rest of the log"]
        assert "it was cut off" in item["note"]
        assert (stored_run(report["runs"][0]).error_message or "").startswith("the log is not whole: it was cut off")

    def test_without_its_start_nothing_is_known(self, killed: Path, gradeline: Commands, tmp_path: Path) -> None:
        (tmp_path / "cut.eval").write_bytes(killed.read_bytes()[:200])
        code, error = gradeline("import", "cut.eval", "--output", "imported", "--json")
        assert code == 2
        assert "has no readable start: it was cut off" in error
        assert not Path("imported").exists()


class TestExport:
    """``gradeline export --format inspect``, read by Inspect and imported again."""

    def test_logs_that_were_imported(
        self, logs: Path, gradeline: Commands, as_inspect_reads: Mapping[str, Any], tmp_path: Path
    ) -> None:
        records = {}
        for name in ("weak", "epochs", "errors", "stopped", "limits", "tools", "rubric", "values", "judged", "chats"):
            report, records[name] = imported(gradeline, logs / f"{name}.eval", name)
            assert gradeline("export", report["runs"][0], "--format", "inspect", "--output", f"{name}.eval")[0] == 0
        exported = json.loads(inspect_program("read", *(tmp_path / f"{name}.eval" for name in records)))
        for name, stored in records.items():
            log = exported[str(tmp_path / f"{name}.eval")]
            original = as_inspect_reads[f"{name}.eval"]
            assert sorted(map(inspect_values, log["samples"])) == sorted(map(values, stored))
            assert (log["listed"], len(log["summaries"])) == (True, len(stored))
            header = {key: log[key] for key in ("status", "task", "model")}
            assert header == {key: original[key] for key in header}
            assert [sample["limit"] for sample in by_id(log)] == [sample["limit"] for sample in by_id(original)]
            _, again = imported(gradeline, tmp_path / f"{name}.eval", f"{name} again")
            assert sorted(map(values, again)) == sorted(map(values, stored))

    def test_a_run_of_gradeline(self, gradeline: Commands, tmp_path: Path) -> None:
        """What Inspect has no field for is in metadata, and found again by an import."""
        with open_storage(".gradeline/store.db") as storage:
            run = storage.save_run(RUN)
            for repeat, (sample, response, grade) in enumerate(ROWS):
                key = ResponseKey(run, sample.case_key, repeat)
                storage.put_response(key, response, sample)
                storage.put_grade(GradeKey(*key, "exact"), grade, response.text)
        assert gradeline("export", run, "--format", "inspect", "--output", "run.eval")[0] == 0
        log = json.loads(inspect_program("read", tmp_path / "run.eval"))[str(tmp_path / "run.eval")]
        assert (log["status"], log["task"], log["model"], log["listed"]) == ("success", "capitals", "http/small", True)
        scores = {sample["epoch"]: sample["raw_scores"].get("exact") for sample in log["samples"]}
        assert {epoch: score and score["value"] for epoch, score in scores.items() if epoch != 4} == {
            1: "C",
            2: "I",
            3: 0.75,
            5: None,
        }
        assert math.isnan(scores[4]["value"])
        assert (scores[4]["reason"], scores[4]["explanation"]) == ("crashed", "the worker died")
        _, again = imported(gradeline, tmp_path / "run.eval")
        read = {record["repeat"]: record for record in again}
        for repeat, (sample, response, grade) in enumerate(ROWS):
            record = read[repeat]
            assert from_json(Sample, json.dumps(record["sample"])) == sample
            assert from_json(Response, json.dumps(record["response"])) == response
            copy = from_json(Grade, json.dumps(record["grades"]["exact"]))
            assert (copy.outcome, copy.score, copy.passed) == (grade.outcome, grade.score, grade.passed)

    def test_the_view_of_inspect_serves_it(self, logs: Path, gradeline: Commands, tmp_path: Path) -> None:
        report, _ = imported(gradeline, logs / "weak.eval")
        (tmp_path / "view").mkdir()
        gradeline("export", report["runs"][0], "--format", "inspect", "--output", "view/run.eval")
        served = json.loads(inspect_program("serve", tmp_path / "view"))
        (summary,) = served["logs"]["log_files"] if "log_files" in served["logs"] else served["logs"]["files"]
        assert summary["name"].endswith("view/run.eval")
        (header,) = served["headers"]
        assert (header["status"], header["eval"]["task"]) == ("success", "capitals")


def by_id(log: Mapping[str, Any]) -> list[Any]:
    return sorted(log["samples"], key=lambda sample: (str(sample["id"]), sample["epoch"]))


RUN = Run(
    name="capitals",
    suite="capitals",
    status="completed",
    target={"kind": "http", "model": "small"},
    graders={"exact": RunGrader("string-match", "f1")},
    repeats=5,
    total=5,
    started_at="2026-11-16T10:00:00+00:00",
    completed_at="2026-11-16T10:01:00+00:00",
)
SPOKEN = Message("assistant", "Paris.")
ASKED = Message("user", "The capital of France?")
CALLED = Message("assistant", tool_calls=(ToolCall("look", '{"q":"x"}', "1"), ToolCall("look", "{broken", "2")))
ROWS = [
    (
        Sample(
            "a", "The capital of France?", "Paris", {"area": "europe"}, tags=("x",), cluster="c", rubric="Be strict."
        ),
        Response(
            text="Paris.",
            trajectory=Trajectory(
                (
                    (
                        ASKED,
                        Message("reasoning", "Which city?"),
                        CALLED,
                        Message("tool", "Paris", tool_call_id="1", name="look"),
                        Message("tool", "not JSON", tool_call_id="2", name="look", is_error=True),
                        SPOKEN,
                    ),
                )
            ),
            usage=Usage(10, 3, 4, 0.25),
            latency_ms=250.0,
            stop_reason="end_turn",
        ),
        Grade("string-match", "f1", Outcome.PASS, 1.0, True, "equal"),
    ),
    (
        Sample("b", ["Hello", "The capital of France?"], ["Hi", "Paris"]),
        Response(
            text="Lyon.",
            trajectory=Trajectory(
                ((Message("user", "Hello"), Message("assistant", "Hi")), (ASKED, Message("assistant", "Lyon.")))
            ),
            usage=Usage(None, 3),
        ),
        Grade("string-match", "f1", Outcome.FAIL, 0.0, False),
    ),
    (
        Sample("../../etc/passwd", "q", agent_args={"x": 1}, rubric_vars={"y": "z"}),
        Response(
            text="", trajectory=Trajectory(((Message("user", "q"), Message("assistant", "")),), tools_known=False)
        ),
        Grade("string-match", "f1", Outcome.FAIL, 0.75, False),
    ),
    (
        Sample(7, "q", ""),
        Response(text="a", trajectory=Trajectory(((Message("user", "q"), Message("assistant", "a")),))),
        Grade("string-match", "f1", Outcome.ERROR, error=ErrorInfo("crashed", "the worker died", Fault.GRADER)),
    ),
    (
        Sample("slow", "q", "x"),
        Response("timeout", error=ErrorInfo("timeout", "no answer within 30 s", Fault.INFRASTRUCTURE)),
        Grade("string-match", "f1", Outcome.SKIPPED),
    ),
]
