from __future__ import annotations

import json
from typing import Any

import pytest
from export_project import ExportProject

EXAMPLES: list[dict[str, Any]] = [
    {
        "id": "e1",
        "dataset_id": "d",
        "inputs": {"question": "What is the capital of France?"},
        "outputs": {"answer": "Paris"},
        "metadata": {"level": 1, "dataset_split": ["base", "test"]},
        "created_at": "2026-11-16T10:00:00+00:00",
    },
    {"id": "e2", "dataset_id": "d", "inputs": {"question": "Capital of Peru?"}, "outputs": {"answer": "Lima"}},
]


def run(ident: str, kind: str, start: int, **fields: object) -> dict[str, Any]:
    return {
        "id": ident,
        "trace_id": "r1",
        "parent_run_id": "r1",
        "name": ident,
        "run_type": kind,
        "start_time": f"2026-11-16T10:00:0{start}",
        "end_time": f"2026-11-16T10:00:0{start + 1}",
        "session_name": "small",
        **fields,
    }


def ai_message(content: str, **fields: object) -> dict[str, Any]:
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "AIMessage"],
        "kwargs": {"content": content, "type": "ai", **fields},
    }


CALLS = [{"name": "lookup", "args": {"country": "France"}, "id": "call_1", "type": "tool_call"}]
RUNS = [
    run("r1", "chain", 0, parent_run_id=None, end_time="2026-11-16T10:00:05", reference_example_id="e1",
        inputs={"question": "What is the capital of France?"}, outputs={"output": "It is Paris."},
        extra={"metadata": {"thread_id": "th"}}, tags=["prod"]),
    run("r4", "llm", 3, inputs={"messages": []}, prompt_tokens=20, completion_tokens=5, total_cost="0.003",
        outputs={"generations": [[{"text": "It is Paris.", "message": ai_message("It is Paris.")}]]}),
    run("r2", "llm", 1, prompt_tokens=10, completion_tokens=4, total_cost=0.001,
        outputs={"generations": [[{"text": "", "message": ai_message("", tool_calls=CALLS)}]]}),
    run("lookup", "tool", 2, inputs={"input": "{'country': 'France'}"},
        outputs={"output": {"content": "Paris", "type": "tool", "tool_call_id": "call_1"}}),
]  # fmt: skip


def feedback(key: str, score: object, source: str = "api", **fields: object) -> dict[str, Any]:
    own = {"id": f"{key}-{source}", "run_id": "r1", "key": key, "score": score}
    return {**own, "feedback_source": {"type": source}, **fields}


def test_examples_become_cases(exports: ExportProject) -> None:
    exports.write("examples.jsonl", EXAMPLES)
    imported = exports.imports("examples.jsonl")
    assert (imported.code, imported.report["kind"]) == (3, "langsmith")
    first, second = imported.lines("cases.jsonl")
    assert (first["id"], first["input"], first["ground_truth"]) == ("e1", "What is the capital of France?", "Paris")
    assert first["tags"] == ["base", "test"]
    assert (second["id"], second["ground_truth"]) == ("e2", "Lima")


def test_examples_of_the_command_line_have_ids_from_their_inputs(exports: ExportProject) -> None:
    rows = [{"inputs": one["inputs"], "outputs": one["outputs"]} for one in EXAMPLES]
    exports.write("dataset.json", rows)
    imported = exports.imports("dataset.json")
    assert imported.report["kind"] == "langsmith"
    first, second = (case["id"] for case in imported.lines("cases.jsonl"))
    assert first.startswith("example-")
    assert first != second


def test_a_trace_becomes_a_response_with_its_trajectory(exports: ExportProject) -> None:
    exports.write("runs.jsonl", [*EXAMPLES, *RUNS])
    imported = exports.imports("runs.jsonl")
    (record,) = exports.records(imported.report["runs"][0]).values()
    response = record["response"]
    assert (record["case"], response["text"], response["latency_ms"]) == ("e1", "It is Paris.", 5000.0)
    assert response["usage"] == {"input_tokens": 30, "output_tokens": 9, "cached_tokens": None, "cost": 0.004}
    (turn,) = response["trajectory"]["turns"]
    assert [message["role"] for message in turn] == ["assistant", "tool", "assistant"]
    (call,) = turn[0]["tool_calls"]
    assert (call["name"], call["id"], turn[1]["tool_call_id"], turn[1]["content"]) == (
        "lookup",
        "call_1",
        "call_1",
        "Paris",
    )


def test_nested_runs_are_the_same_trace(exports: ExportProject) -> None:
    def nested(one: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in one.items() if key not in ("trace_id", "parent_run_id")}

    exports.write("runs.json", [{**nested(RUNS[0]), "child_runs": [nested(one) for one in RUNS[1:]]}])
    imported = exports.imports("runs.json")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert record["response"]["usage"]["input_tokens"] == 30
    (turn,) = record["response"]["trajectory"]["turns"]
    assert [message["role"] for message in turn] == ["assistant", "tool", "assistant"]


def test_feedback_in_the_app_is_a_label_and_other_feedback_a_grade(exports: ExportProject) -> None:
    person = feedback("correct", 1, "app", comment="Right.", modified_at="2026-11-16T12:00:00+00:00")
    person["feedback_source"]["user_name"] = "ada"
    exports.write("export/feedback.jsonl", [person, feedback("helpful", 0.25, "model", comment="vague")])
    exports.write("export/runs.jsonl", RUNS)
    imported = exports.imports("export")
    assert imported.report["kind"] == "langsmith"
    (record,) = exports.records(imported.report["runs"][0]).values()
    (label,) = record["labels"]
    assert (label["grader"], label["verdict"], label["score"], label["author"]) == ("correct", "pass", 1.0, "ada")
    assert (label["reason"], label["at"]) == ("Right.", "2026-11-16T12:00:00.000Z")
    assert imported.notes("approximated")["score of a person 'correct'"] == "a score of at least 0.5 is a pass"
    assert record["grades"]["correct"]["outcome"] == "not_applicable"
    assert (record["grades"]["helpful"]["outcome"], record["grades"]["helpful"]["score"]) == ("fail", 0.25)


def test_projects_are_runs_that_are_compared_by_example(exports: ExportProject) -> None:
    rows: list[dict[str, Any]] = [*EXAMPLES]
    for project, scores in (("small", (1, 0)), ("large", (1, 1))):
        for example, score in zip(EXAMPLES, scores, strict=True):
            ident = f"{project}-{example['id']}"
            own = {"id": ident, "trace_id": ident, "session_name": project, "reference_example_id": example["id"]}
            rows.append({**RUNS[0], **own})
            rows.append({**feedback("right", score), "id": f"f-{ident}", "run_id": ident})
    exports.write("runs.jsonl", rows)
    imported = exports.imports("runs.jsonl")
    _, compared = exports.run("compare", *imported.report["runs"])
    right = compared["graders"]["right"]
    assert (right["baseline"], right["candidate"]) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("rows", "item", "reason"),
    [
        ([*RUNS, feedback("stars", 5)], "score 'stars'", "has values from 5 to 5"),
        ([*RUNS, feedback("ok", 1, correction={"output": "x"})], "correction", "is not a grade"),
        ([{**RUNS[0], "feedback_stats": {"ok": {"n": 1, "avg": 1}}}], "feedback_stats", "has only averages"),
        ([*EXAMPLES, {**EXAMPLES[0], "inputs": {"question": "other"}}], "example", "has the id of the one at rows.jsonl:1"),
        ([{**EXAMPLES[0], "attachments": {"a.png": {}}}], "attachments", "are not part of a case"),
        ([*RUNS, {"hello": 1}], "row", "is not an example, a run or feedback"),
        ([*RUNS, {**RUNS[1], "id": None}], "run", "has no id"),
        ([*RUNS, feedback("ok", 1, run_id=None)], "feedback 'ok'", "belongs to no run"),
        ([*RUNS, feedback("ok", 1, run_id="r2")], "score 'ok'", "belongs to one step of the trace"),
    ],
)  # fmt: skip
def test_what_is_left_out_is_reported(
    exports: ExportProject, rows: list[dict[str, Any]], item: str, reason: str
) -> None:
    exports.write("rows.jsonl", rows)
    imported = exports.imports("rows.jsonl")
    assert imported.code == 1
    assert reason in imported.notes("not mapped")[item]


def test_what_the_source_has_twice_is_read_once(exports: ExportProject) -> None:
    exports.write("export/1.jsonl", [*EXAMPLES, *RUNS, feedback("ok", 1)])
    exports.write("export/2.jsonl", [*EXAMPLES, *RUNS, feedback("ok", 1)])
    imported = exports.imports("export")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert (imported.code, record["response"]["usage"]["input_tokens"]) == (3, 30)
    assert imported.counts("mapped")["feedback 'ok'"] == 1


def test_the_bulk_export_as_parquet(exports: ExportProject) -> None:
    duckdb = pytest.importorskip("duckdb")
    texts = ("inputs", "outputs", "extra")
    rows = [{key: json.dumps(value) if key in texts else value for key, value in one.items()} for one in RUNS]
    exports.write("runs.jsonl", rows)
    columns = "id, trace_id, parent_run_id, name, run_type, start_time::TIMESTAMPTZ AS start_time, inputs, outputs"
    columns += ", end_time::TIMESTAMP AS end_time, prompt_tokens, completion_tokens, session_name, reference_example_id"
    table = "read_json('runs.jsonl', union_by_name = true, sample_size = -1, map_inference_threshold = -1)"
    (exports.folder / "export").mkdir()
    duckdb.sql(f"COPY (SELECT {columns} FROM {table}) TO 'export/runs.parquet' (FORMAT parquet)")
    imported = exports.imports("export")
    assert imported.report["kind"] == "langsmith"
    (record,) = exports.records(imported.report["runs"][0]).values()
    response = record["response"]
    assert (record["case"], response["text"], response["latency_ms"]) == ("e1", "It is Paris.", 5000.0)
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (30, 9)
    (turn,) = response["trajectory"]["turns"]
    assert [message["role"] for message in turn] == ["assistant", "tool", "assistant"]
