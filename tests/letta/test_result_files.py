"""Runs in the result format of letta-evals, written and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gradeline.engine.aggregate import summarise
from gradeline.errors import Fault, Outcome
from gradeline.letta.cache import LettaCache, models_in
from gradeline.letta.result_files import LettaRun, write_letta_layout
from gradeline.model import (
    ErrorInfo,
    Grade,
    GradeKey,
    Message,
    Record,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    ToolCall,
    Trajectory,
    Usage,
)
from gradeline.store import InMemoryStorage

SUITE = {
    "name": "capitals",
    "dataset": "cases.jsonl",
    "target": {"kind": "http", "url": "http://127.0.0.1:1"},
    "graders": {"exact": {"kind": "tool", "function": "exact_match"}, "rules": {"kind": "custom-rules", "rules": []}},
    "gate": {"kind": "simple", "metric_key": "exact", "op": "gte", "value": 0.5},
}
FRANCE = Sample(id="fr", input="Capital of France?", ground_truth="Paris", metadata={"level": 1}, tags=("eu",))
ITALY = Sample(id=7, input=["Hello", "Capital of Italy?"], ground_truth="Rome", rubric="strict", rubric_path="r.txt")
SPAIN = Sample(id="es", input="Capital of Spain?")

SAID = Response(text="Paris", usage=Usage(30, 4, 0, 0.25), latency_ms=1250.0)
SEARCHED = Response(
    text="Rome",
    trajectory=Trajectory(
        (
            (Message("user", "Hello"), Message("assistant", "Hi")),
            (
                Message("user", "Capital of Italy?"),
                Message("reasoning", "I must search."),
                Message("assistant", "One moment", (ToolCall("search", '{"q": 1}', "c"),)),
                Message("tool", "Rome!", tool_call_id="c", name="search", is_error=True),
                Message("event", "compacted"),
                Message("assistant", "Rome"),
            ),
        ),
        {"human": "asks a lot"},
    ),
    usage=Usage(3, None, None, None),
    latency_ms=500.0,
)
FAILED = Response(status="timeout", error=ErrorInfo("timeout", "too slow", Fault.AGENT), latency_ms=3000.0)


def scored(score: float, kind: str = "exact_match", **fields: Any) -> Grade:
    return Grade(kind, "f", Outcome.PASS if score >= 0.5 else Outcome.FAIL, score, score >= 0.5, **fields)


SKIPPED = Grade("exact_match", "f", Outcome.SKIPPED)
BROKEN = Grade("custom-rules", "f", Outcome.ERROR, error=ErrorInfo("crashed", "it died", Fault.GRADER))

Cell = tuple[Sample, Response, dict[str, Grade]]
CASES: list[Cell] = [
    (FRANCE, SAID, {"exact": scored(1.0, rationale="yes", latency_ms=250.0), "rules": scored(0.5, metadata={"n": 1})}),
    (ITALY, SEARCHED, {"exact": scored(0.0), "rules": BROKEN}),
    (SPAIN, FAILED, {"exact": SKIPPED, "rules": SKIPPED}),
]


def run_of(
    *repeats: list[Cell], passed: bool | None = None, graders: dict[str, str] | None = None, **run: Any
) -> LettaRun:
    storage = InMemoryStorage()
    kinds = graders or {"exact": "exact_match", "rules": "custom-rules"}
    columns = {key: RunGrader(kind, "f") for key, kind in kinds.items()}
    id_ = storage.save_run(Run(name="n", suite="capitals", graders=columns, repeats=len(repeats), **run))
    for repeat, cases in enumerate(repeats):
        for position, (sample, response, grades) in enumerate(cases):
            storage.put_response(ResponseKey(id_, sample.case_key, repeat), response, sample, position)
            for key, grade in grades.items():
                storage.put_grade(GradeKey(id_, sample.case_key, repeat, key), grade, response.text)
    stored = storage.get_run(id_)
    assert stored is not None
    means = {key: column.mean for key, column in summarise(stored, storage.counts(id_)).graders.items()}
    return LettaRun(stored, means, lambda: storage.records(id_), SUITE, passed)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def document(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def spoken(kind: str, number: int, **fields: Any) -> dict[str, Any]:
    common = {"id": f"message-{number}", "date": "1970-01-01T00:00:00+00:00", "message_type": f"{kind}_message"}
    return {**common, **fields}


def test_a_record_is_one_result(tmp_path: Path) -> None:
    write_letta_layout(tmp_path, [run_of(CASES, target={"kind": "http", "model": "openai/gpt-4:x"})])
    assert files(tmp_path) == ["openai-gpt-4-x.jsonl", "suite.json", "summary.json"]
    france, italy, spain = lines(tmp_path / "openai-gpt-4-x.jsonl")
    assert france == {
        "sample_id": "fr",
        "model_handle": "openai/gpt-4:x",
        "agent_usage": [
            {
                "message_type": "usage_statistics",
                "prompt_tokens": 30,
                "completion_tokens": 4,
                "cached_input_tokens": 0,
            }
        ],
        "trajectory": [[spoken("assistant", 0, content="Paris")]],
        "tools_known": False,
        "submissions": {"exact": "Paris", "rules": "Paris"},
        "grades": {
            "exact": {"score": 1.0, "rationale": "yes", "metadata": {}},
            "rules": {"score": 0.5, "metadata": {"n": 1}},
        },
        "reward": {"score": 1.0},
        "usage": {"prompt_tokens": 30, "completion_tokens": 4, "cached_input_tokens": 0, "cost": 0.25},
        "timing": {"total": 1.5, "target": 1.25, "per_grader": {"exact": 0.25}},
    }
    assert italy["grades"] == {"exact": {"score": 0.0, "metadata": {}}}
    assert italy["error"] == {"category": "grading", "exception_type": "crashed", "message": "rules: it died"}
    assert "reward" not in italy
    assert spain == {
        "sample_id": "es",
        "model_handle": "openai/gpt-4:x",
        "trajectory": [],
        "tools_known": False,
        "submissions": {},
        "grades": {},
        "timing": {"total": 3.0, "target": 3.0},
        "error": {"category": "target", "exception_type": "timeout", "message": "too slow"},
    }


def test_the_suite_contains_every_case_once_and_the_original_document(tmp_path: Path) -> None:
    run = run_of(CASES, CASES, target={"model": "a/b"})
    write_letta_layout(tmp_path, [run])
    assert document(tmp_path / "suite.json") == {
        "suite": "capitals",
        "config": {
            "name": "capitals",
            "dataset": "cases.jsonl",
            "target": {"kind": "letta_code", "model_handles": ["a/b"]},
            "graders": {
                "exact": {"kind": "tool", "function": "exact_match", "extractor": "last_assistant"},
                "rules": {"kind": "tool", "function": "custom-rules", "extractor": "last_assistant"},
            },
            "reward": {"kind": "metric", "metric_key": "exact"},
            "num_runs": 2,
        },
        "gradeline": {"suite": SUITE, "runs": [run.run.id]},
        "samples": [
            {
                "id": "fr",
                "input": "Capital of France?",
                "ground_truth": "Paris",
                "metadata": {"level": 1},
                "tags": ["eu"],
            },
            {"id": 7, "input": ["Hello", "Capital of Italy?"], "ground_truth": "Rome", "rubric": "strict"},
            {"id": "es", "input": "Capital of Spain?"},
        ],
    }


def test_the_summary_lists_each_model_with_its_errors(tmp_path: Path) -> None:
    write_letta_layout(tmp_path, [run_of(CASES, passed=True)])
    assert document(tmp_path / "summary.json") == {
        "suite": "capitals",
        "models": [
            {
                "model": "default",
                "n_total": 3,
                "n_attempted": 1,
                "score": 0.5,
                "reward": 0.5,
                "per_metric": {"exact": 0.5, "rules": 0.5},
                "usage": {"prompt_tokens": 33, "completion_tokens": 4, "cached_input_tokens": 0, "cost": 0.25},
                "timing": {
                    "mean_total": pytest.approx(5 / 3),
                    "mean_target": pytest.approx(4.75 / 3),
                    "p50_total": 1.5,
                    "p95_total": pytest.approx(2.85),
                },
                "cost_missing": 1,
                "errors": {
                    "total_errors": 2,
                    "by_category": {"grading": 1, "target": 1},
                    "by_exception_type": {"crashed": 1, "timeout": 1},
                },
            }
        ],
        "gates_passed": True,
    }


def test_several_repeats_have_a_file_each(tmp_path: Path) -> None:
    better = [(FRANCE, SAID, {"exact": scored(1.0)}), (ITALY, SEARCHED, {"exact": scored(1.0)})]
    worse = [(FRANCE, SAID, {"exact": scored(0.0)}), (ITALY, SEARCHED, {"exact": scored(1.0)})]
    write_letta_layout(tmp_path, [run_of(better, worse, graders={"exact": "exact_match"}, target={"model": "m/1"})])
    assert files(tmp_path) == ["m-1/run_1.jsonl", "m-1/run_2.jsonl", "m-1/summary.json", "suite.json", "summary.json"]
    assert [line["grades"]["exact"]["score"] for line in lines(tmp_path / "m-1" / "run_2.jsonl")] == [0.0, 1.0]
    own, [whole] = document(tmp_path / "m-1" / "summary.json"), document(tmp_path / "summary.json")["models"]
    runs = own.pop("runs")
    assert own == whole
    assert (whole["n_total"], whole["n_attempted"]) == (2, 4)
    assert (whole["score"], whole["per_metric"]) == (0.75, {"exact": 0.75})
    spread = pytest.approx(0.5**0.5 / 2)
    assert (whole["score_std"], whole["reward_std"], whole["per_metric_std"]) == (spread, spread, {"exact": spread})
    assert [(run["run"], run["score"], run["per_metric"], run["n_errors"]) for run in runs] == [
        (1, 1.0, {"exact": 1.0}, 0),
        (2, 0.5, {"exact": 0.5}, 0),
    ]


def test_several_models_share_the_suite(tmp_path: Path) -> None:
    runs = [
        run_of(CASES[:2], passed=True, target={"model": "a"}),
        run_of(CASES[1:], passed=False, target={"model": "b"}),
    ]
    write_letta_layout(tmp_path, runs)
    assert files(tmp_path) == ["a.jsonl", "b.jsonl", "suite.json", "summary.json"]
    assert [sample["id"] for sample in document(tmp_path / "suite.json")["samples"]] == ["fr", 7, "es"]
    summary = document(tmp_path / "summary.json")
    assert [model["model"] for model in summary["models"]] == ["a", "b"]
    assert summary["gates_passed"] is False


@pytest.mark.parametrize(
    ("verdicts", "expected"), [((True, True), True), ((True, None), None), ((None, False), False), ((None,), None)]
)
def test_an_undecided_verdict_is_neither_passed_nor_failed(
    tmp_path: Path, verdicts: tuple[bool | None, ...], expected: bool | None
) -> None:
    runs = [run_of(CASES, passed=verdict, target={"model": f"m{n}"}) for n, verdict in enumerate(verdicts)]
    write_letta_layout(tmp_path, runs)
    assert document(tmp_path / "summary.json").get("gates_passed") is expected


def test_a_missing_score_is_not_zero(tmp_path: Path) -> None:
    write_letta_layout(tmp_path, [run_of(CASES[2:])])
    [model] = document(tmp_path / "summary.json")["models"]
    assert (model["n_total"], model["n_attempted"], model["per_metric"]) == (1, 0, {})
    assert not {"score", "reward"} & set(model)


def test_a_run_without_records_is_written_too(tmp_path: Path) -> None:
    write_letta_layout(tmp_path, [run_of([])])
    assert (lines(tmp_path / "default.jsonl"), document(tmp_path / "suite.json")["samples"]) == ([], [])
    [model] = document(tmp_path / "summary.json")["models"]
    assert (model["n_total"], model["timing"]["mean_total"]) == (0, 0.0)


def test_a_custom_reward_is_not_a_metric(tmp_path: Path) -> None:
    grades = {"exact": scored(1.0), "reward": scored(0.25, kind="reward", metadata={"why": "slow"})}
    graders = {"exact": "exact_match", "reward": "reward"}
    write_letta_layout(tmp_path, [run_of([(FRANCE, SAID, grades)], graders=graders)])
    [line] = lines(tmp_path / "default.jsonl")
    assert line["reward"] == {"score": 0.25, "metadata": {"why": "slow"}}
    assert list(line["grades"]) == ["exact"]
    [model] = document(tmp_path / "summary.json")["models"]
    assert (model["reward"], model["per_metric"]) == (0.25, {"exact": 1.0})


@pytest.mark.parametrize("repeats", [1, 3])
def test_written_files_read_back_equal(tmp_path: Path, repeats: int) -> None:
    run = run_of(*[CASES] * repeats, target={"model": "openai/gpt-4:x"})
    write_letta_layout(tmp_path, [run])
    assert models_in(tmp_path) == ["openai/gpt-4:x"]
    cache = LettaCache(tmp_path)
    for sample, response, _ in CASES:
        assert cache.problems_with(sample) == []
        read = [cache.response(sample, number) for number in range(cache.count(sample))]
        assert read == [replace(response, trajectory=response.steps)] * repeats


def test_names_of_the_same_file_are_numbered(tmp_path: Path) -> None:
    models = ["a/b", "a:b", None, None, ".."]
    write_letta_layout(tmp_path, [run_of(CASES, target={"model": model} if model else {}) for model in models])
    assert models_in(tmp_path) == ["--", "a:b-2", "a/b", "default-2", "default"]
    assert [model["model"] for model in document(tmp_path / "summary.json")["models"]] == [
        "a/b",
        "a:b-2",
        "default",
        "default-2",
        "..",
    ]


def test_the_name_of_a_model_cannot_lead_to_another_folder(tmp_path: Path) -> None:
    home = tmp_path / "out"
    write_letta_layout(home, [run_of(CASES, CASES, target={"model": ".."})])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert files(home) == ["--/run_1.jsonl", "--/run_2.jsonl", "--/summary.json", "suite.json", "summary.json"]


def test_earlier_results_of_the_model_are_replaced(tmp_path: Path) -> None:
    three, two, one = (run_of(*[CASES] * count) for count in (3, 2, 1))
    other = tmp_path / "other.jsonl"
    for run, expected in [
        (three, ["default/run_1.jsonl", "default/run_2.jsonl", "default/run_3.jsonl", "default/summary.json"]),
        (two, ["default/run_1.jsonl", "default/run_2.jsonl", "default/summary.json"]),
        (one, ["default.jsonl"]),
        (two, ["default/run_1.jsonl", "default/run_2.jsonl", "default/summary.json"]),
    ]:
        other.touch()
        write_letta_layout(tmp_path, [run])
        assert files(tmp_path) == [*expected, "other.jsonl", "suite.json", "summary.json"]


def test_a_failure_leaves_the_folder_unchanged(tmp_path: Path) -> None:
    whole = run_of(CASES)
    write_letta_layout(tmp_path, [whole])
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}

    def torn() -> Iterator[Record]:
        yield next(whole.records())
        raise OSError("the store is gone")

    with pytest.raises(OSError, match="the store is gone"):
        write_letta_layout(tmp_path, [whole._replace(records=torn)])
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before
