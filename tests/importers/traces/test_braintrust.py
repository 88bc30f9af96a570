from __future__ import annotations

import json
from typing import Any

import pytest
from export_project import ExportProject

DATASET: list[dict[str, Any]] = [
    {
        "id": "d1",
        "dataset_id": "ds",
        "_xact_id": "1",
        "root_span_id": "x1",
        "span_id": "x1",
        "input": {"question": "What is the capital of France?"},
        "expected": "Paris",
        "metadata": {"level": 1},
        "tags": ["geo"],
        "created": "2026-11-16T10:00:00Z",
    },
    {"id": "d2", "dataset_id": "ds", "_xact_id": "1", "input": "Capital of Peru?", "expected": "Lima"},
]


def span(ident: str, kind: str, parents: list[str] | None, start: float, **fields: object) -> dict[str, Any]:
    return {
        "id": f"row-{ident}",
        "span_id": ident,
        "root_span_id": "s1",
        "span_parents": parents,
        "span_attributes": {"name": ident, "type": kind},
        "experiment_id": "exp",
        "created": "2026-11-16T10:00:00Z",
        "metrics": {"start": 1_800_000_000.0 + start, "end": 1_800_000_001.0 + start},
        **fields,
    }


ROOT = span(
    "s1", "eval", None, 0, input={"question": "What is the capital of France?"}, output="It is Paris.",
    expected="Paris", scores={"exact": 0.5, "review": 1}, dataset_record_id="d1",
)  # fmt: skip
SPANS = [
    ROOT,
    span("s2", "task", ["s1"], 0),
    span("s3", "llm", ["s2"], 0.2, output=[{"finish_reason": "stop", "message": {
        "role": "assistant", "content": "It is Paris."}}], metrics={
            "start": 1_800_000_000.5, "end": 1_800_000_001.0, "prompt_tokens": 10, "completion_tokens": 4,
            "prompt_cached_tokens": 2, "estimated_cost": 0.001}),
    span("lookup", "tool", ["s2"], 0.1, input={"country": "France"}, output="Paris"),
    span("exact", "score", ["s1"], 0.9, output=0.5, scores={"exact": 0.5}),
]  # fmt: skip
CONFIG = {"id": "c1", "project_id": "p", "name": "review", "score_type": "slider"}


def test_dataset_rows_become_cases(exports: ExportProject) -> None:
    exports.write("dataset.json", {"events": DATASET, "cursor": None})
    imported = exports.imports("dataset.json")
    assert (imported.code, imported.report["kind"]) == (3, "braintrust")
    first, second = imported.lines("cases.jsonl")
    assert (first["id"], first["input"], first["ground_truth"]) == ("d1", "What is the capital of France?", "Paris")
    assert (first["tags"], first["metadata"]["level"]) == (["geo"], 1)
    assert (second["id"], second["input"], second["ground_truth"]) == ("d2", "Capital of Peru?", "Lima")


def test_an_experiment_becomes_a_run(exports: ExportProject) -> None:
    exports.write("experiment.jsonl", SPANS)
    imported = exports.imports("experiment.jsonl")
    assert imported.report["kind"] == "braintrust"
    (record,) = exports.records(imported.report["runs"][0]).values()
    response = record["response"]
    assert (record["case"], response["text"], response["latency_ms"]) == ("d1", "It is Paris.", 1000.0)
    assert response["usage"] == {"input_tokens": 10, "output_tokens": 4, "cached_tokens": 2, "cost": 0.001}
    (turn,) = response["trajectory"]["turns"]
    assert [message["role"] for message in turn] == ["assistant", "tool", "assistant"]
    assert turn[0]["tool_calls"][0]["arguments"] == '{"country":"France"}'
    assert (record["grades"]["exact"]["outcome"], record["grades"]["exact"]["score"]) == ("pass", 0.5)


def test_scores_of_people_are_known_by_the_project(exports: ExportProject) -> None:
    exports.write("export/1-experiment.jsonl", SPANS)
    exports.write("export/2-scores.json", {"objects": [CONFIG]})
    imported = exports.imports("export")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert [(label["grader"], label["verdict"]) for label in record["labels"]] == [("review", "pass")]
    assert record["grades"]["review"]["outcome"] == "not_applicable"


def test_each_review_is_a_label(exports: ExportProject) -> None:
    review = span("r", "review", ["s1"], 1, scores={"review": 0.2}, metadata={"user_email": "ada", "comment": "no"})
    exports.write("experiment.jsonl", [*SPANS, review])
    imported = exports.imports("experiment.jsonl")
    (record,) = exports.records(imported.report["runs"][0]).values()
    (label,) = record["labels"]
    assert (label["verdict"], label["score"], label["author"], label["reason"]) == ("fail", 0.2, "ada", "no")
    assert imported.counts("mapped")["average of reviews 'review'"] == 1


def test_values_that_are_json_in_text_are_read(exports: ExportProject) -> None:
    row = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in ROOT.items()}
    exports.write("experiment.jsonl", [row])
    imported = exports.imports("experiment.jsonl")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert (record["response"]["latency_ms"], record["grades"]["exact"]["score"]) == (1000.0, 0.5)
    assert imported.lines("cases.jsonl")[0]["input"] == "What is the capital of France?"


def test_a_score_that_is_null_is_not_applicable(exports: ExportProject) -> None:
    other = {**ROOT, "span_id": "t1", "root_span_id": "t1", "dataset_record_id": "d2", "scores": {"exact": None}}
    exports.write("experiment.jsonl", [ROOT, other])
    imported = exports.imports("experiment.jsonl")
    records = exports.records(imported.report["runs"][0])
    assert {key: record["grades"]["exact"]["outcome"] for key, record in records.items()} == {
        "d1#0": "pass",
        "d2#0": "not_applicable",
    }


def test_experiments_without_a_dataset_are_compared_by_their_input(exports: ExportProject) -> None:
    rows = []
    for name, answer in (("small", "Quito"), ("large", "Lima")):
        own = {"span_id": name, "root_span_id": name, "experiment_id": name, "dataset_record_id": None}
        rows.append({**ROOT, **own, "output": answer, "scores": {"exact": float(answer == "Lima")}})
    exports.write("experiments.jsonl", rows)
    imported = exports.imports("experiments.jsonl")
    _, compared = exports.run("compare", *imported.report["runs"])
    assert (compared["graders"]["exact"]["baseline"], compared["graders"]["exact"]["candidate"]) == (0.0, 1.0)


def test_an_error_is_not_a_score(exports: ExportProject) -> None:
    exports.write("experiment.jsonl", [{**ROOT, "output": None, "error": "quota exceeded", "scores": {"exact": 0}}])
    imported = exports.imports("experiment.jsonl")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert (record["response"]["status"], record["grades"]["exact"]["outcome"]) == ("error", "skipped")
    assert record["grades"]["exact"]["score"] is None


@pytest.mark.parametrize(
    ("rows", "item", "reason"),
    [
        ([{**ROOT, "scores": {"stars": 4}}], "score 'stars'", "has values from 4 to 4"),
        ([ROOT, {"hello": 1}], "row", "is not a dataset row or a span"),
        ([DATASET[0], {**DATASET[0], "input": "other"}], "dataset row", "has the id of the one at rows.jsonl:1"),
        ([DATASET[0], {**DATASET[1], "input": None}], "case", "has no input"),
    ],
)
def test_what_is_left_out_is_reported(
    exports: ExportProject, rows: list[dict[str, Any]], item: str, reason: str
) -> None:
    exports.write("rows.jsonl", rows)
    imported = exports.imports("rows.jsonl")
    assert imported.code == 1
    assert reason in imported.notes("not mapped")[item]
