from __future__ import annotations

from typing import Any

import pytest
from export_project import ExportProject

ITEMS: list[dict[str, Any]] = [
    {
        "id": "france",
        "datasetName": "capitals",
        "datasetId": "d1",
        "input": {"question": "What is the capital of France?"},
        "expectedOutput": "Paris",
        "metadata": {"level": "easy"},
        "status": "ACTIVE",
        "sourceTraceId": None,
    },
    {
        "id": "peru",
        "datasetName": "capitals",
        "datasetId": "d1",
        "input": "What is the capital of Peru?",
        "expectedOutput": {"answer": "Lima"},
        "metadata": None,
        "status": "ACTIVE",
    },
]


def observation(ident: str, kind: str, start: int, **fields: object) -> dict[str, Any]:
    return {
        "id": ident,
        "traceId": "t1",
        "type": kind,
        "startTime": f"2026-11-16T10:00:0{start}.000Z",
        "endTime": f"2026-11-16T10:00:0{start + 1}.000Z",
        "level": "DEFAULT",
        **fields,
    }


def score(name: str, value: object, kind: str = "NUMERIC", source: str = "API", **fields: object) -> dict[str, Any]:
    own = {"id": f"{name}-{source}-{value}", "traceId": "t1", "name": name, "value": value}
    return {**own, "dataType": kind, "source": source, **fields}


TRACE: dict[str, Any] = {
    "id": "t1",
    "timestamp": "2026-11-16T10:00:00.000Z",
    "name": "agent",
    "input": {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
    "output": "The capital is Paris.",
    "sessionId": None,
    "userId": "u",
    "metadata": {"release": "7"},
    "tags": ["prod"],
    "latency": 4.5,
    "totalCost": 0.002,
    "observations": [
        observation("o3", "GENERATION", 3, output={"role": "assistant", "content": "The capital is Paris."},
                    model="m", usageDetails={"input": 20, "input_cached_tokens": 5, "output": 6}),
        observation("o1", "GENERATION", 1, usageDetails={"input": 10, "input_cached_tokens": 0, "output": 4}, output={
            "role": "assistant", "content": "", "tool_calls": [
                {"id": "call_1", "type": "function",
                 "function": {"name": "lookup", "arguments": '{"country": "France"}'}}]}),
        observation("o2", "TOOL", 2, name="lookup", input={"country": "France"}, output={"capital": "Paris"}),
    ],
    "scores": [
        score("correct", 1, "BOOLEAN", "ANNOTATION", comment="Right.", authorUserId="ada",
              updatedAt="2026-11-16T11:00:00Z"),
        score("conciseness", 0.75, source="EVAL", comment="short"),
    ],
}  # fmt: skip


def test_dataset_items_become_cases(exports: ExportProject) -> None:
    exports.write("items.json", {"data": ITEMS, "meta": {"page": 1, "totalPages": 1}})
    imported = exports.imports("items.json")
    assert (imported.code, imported.report["kind"], imported.report["runs"]) == (3, "langfuse", [])
    assert imported.lines("cases.jsonl") == [
        {
            "id": "france",
            "input": "What is the capital of France?",
            "ground_truth": "Paris",
            "metadata": {"level": "easy", "input": {"question": "What is the capital of France?"}},
        },
        {"id": "peru", "input": "What is the capital of Peru?", "ground_truth": "Lima"},
    ]
    assert imported.notes("approximated").keys() == {"target", "evaluators"}


def test_a_trace_becomes_a_response_with_its_trajectory(exports: ExportProject) -> None:
    exports.write("trace-t1.json", TRACE)
    imported = exports.imports("trace-t1.json")
    assert imported.report["kind"] == "langfuse"
    (record,) = exports.records(imported.report["runs"][0]).values()
    response = record["response"]
    assert (response["text"], response["latency_ms"]) == ("The capital is Paris.", 4500.0)
    assert response["usage"] == {"input_tokens": 35, "output_tokens": 10, "cached_tokens": 5, "cost": 0.002}
    call = {"name": "lookup", "arguments": '{"country":"France"}', "id": "o2"}
    (turn,) = response["trajectory"]["turns"]
    assert [
        {key: value for key, value in message.items() if value not in (None, "", [], False)} for message in turn
    ] == [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": '{"capital":"Paris"}', "name": "lookup", "tool_call_id": "o2"},
        {"role": "assistant", "content": "The capital is Paris."},
    ]
    (case,) = imported.lines("cases.jsonl")
    assert (case["id"], case["input"], case["tags"]) == ("t1", "What is the capital of France?", ["prod"])
    assert case["metadata"]["release"] == "7"


def test_messages_in_the_output_are_a_trajectory_if_no_step_is(exports: ExportProject) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Capital of Peru?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Lima", "tool_call_id": "1"},
        {"role": "assistant", "content": "Lima."},
    ]
    exports.write("t.json", {**TRACE, "output": {"messages": messages}, "observations": [], "scores": []})
    imported = exports.imports("t.json")
    (record,) = exports.records(imported.report["runs"][0]).values()
    (turn,) = record["response"]["trajectory"]["turns"]
    assert [message["role"] for message in turn] == ["assistant", "tool", "assistant"]
    assert record["response"]["text"] == "Lima."
    assert "output" in imported.counts("mapped")


def test_a_trace_without_steps_has_no_trajectory(exports: ExportProject) -> None:
    exports.write("t.json", {**TRACE, "observations": [], "scores": []})
    imported = exports.imports("t.json")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert record["response"]["trajectory"] is None


def test_a_text_that_is_a_part_of_its_value_is_reported(exports: ExportProject) -> None:
    item = {**ITEMS[0], "input": {"question": "q", "lang": "en"}, "expectedOutput": {"answer": "a", "source": "s"}}
    trace = {**TRACE, "output": {"answer": "Paris", "confidence": 0.5}, "observations": [], "scores": []}
    exports.write("export.jsonl", [item, trace])
    imported = exports.imports("export.jsonl")
    notes = imported.notes("approximated")
    assert notes["input"] == "is its 'question'; the whole value is in the metadata"
    assert notes["expected output"] == "is its 'answer'; the whole value is in the metadata"
    assert notes["output"] == "is its 'answer'; the rest is left out"
    metadata = imported.lines("cases.jsonl")[0]["metadata"]
    assert (metadata["input"]["lang"], metadata["expected"]["source"]) == ("en", "s")


def test_scores_of_people_are_labels_and_others_grades(exports: ExportProject) -> None:
    exports.write("trace-t1.json", TRACE)
    imported = exports.imports("trace-t1.json")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert record["labels"] == [
        {
            "grader": "correct",
            "verdict": "pass",
            "score": None,
            "category": None,
            "reason": "Right.",
            "author": "ada",
            "role": "rater",
            "probability": None,
            "sample": None,
            "at": "2026-11-16T11:00:00.000Z",
        }
    ]
    assert record["grades"]["correct"]["outcome"] == "not_applicable"
    graded = record["grades"]["conciseness"]
    assert (graded["outcome"], graded["score"], graded["rationale"]) == ("pass", 0.75, "short")


def test_experiments_are_runs_that_can_be_compared(exports: ExportProject) -> None:
    exports.write("export/items.json", {"data": ITEMS})
    links, traces = [], []
    for run, answers in (("small", ("Paris", "Quito")), ("large", ("Paris", "Lima"))):
        for item, answer in zip(ITEMS, answers, strict=True):
            trace = f"{run}-{item['id']}"
            links.append({"id": f"l-{trace}", "datasetRunName": run, "datasetItemId": item["id"], "traceId": trace})
            correct = float(answer in ("Paris", "Lima"))
            own = {"id": f"s-{trace}", "traceId": trace}
            scores = [{**score("right", correct, source="EVAL"), **own}]
            traces.append({**TRACE, "id": trace, "output": answer, "observations": [], "scores": scores})
    exports.write(
        "export/runs.json",
        {"id": "r", "name": "all", "datasetId": "d1", "datasetName": "capitals", "datasetRunItems": links},
    )
    exports.write("export/traces.jsonl", traces)
    imported = exports.imports("export", "--name", "capitals")
    assert imported.report["kind"] == "langfuse"
    assert [case["id"] for case in imported.lines("cases.jsonl")] == ["france", "peru"]
    code, compared = exports.run("compare", *imported.report["runs"])
    assert (compared["graders"]["right"]["baseline"], compared["graders"]["right"]["candidate"]) == (0.5, 1.0)
    assert code == 3
    assert "target: run 'small' against 'large'" in compared["reasons"]
    answers = [(line["case"], line["response"]["text"]) for line in imported.lines("answers.jsonl")]
    assert answers == [("france", "Paris"), ("peru", "Quito")]


def experiment_item(run: str, item: str, output: str, **fields: object) -> dict[str, Any]:
    return {
        "id": f"o-{run}-{item}",
        "traceId": f"t-{run}-{item}",
        "startTime": "2026-11-16T10:00:00.000Z",
        "endTime": "2026-11-16T10:00:01.500Z",
        "level": "DEFAULT",
        "experimentId": f"id of {run}",
        "experimentName": run,
        "experimentItemId": item,
        "input": {"question": f"What is the capital of {item}?"},
        "output": output,
        "expectedOutput": "Lima",
        "experimentItemMetadata": {"level": "easy"},
        **fields,
    }


def test_experiments_of_version_4(exports: ExportProject) -> None:
    subject = {"kind": "observation", "id": "o-large-peru", "traceId": "t-large-peru"}
    right = {"id": "s", "name": "right", "value": True, "dataType": "BOOLEAN", "source": "EVAL", "subject": subject}
    items = [experiment_item("small", "peru", "Quito"), experiment_item("large", "peru", "Lima", scores=[right])]
    tool = observation("o2", "TOOL", 0, name="search", input={"q": "x"}, output="Lima") | {
        "traceId": "t-large-peru",
        "parentObservationId": "o-large-peru",
    }
    first = observation("o-large-peru", "SPAN", 0, input="peru", output="Lima") | {"traceId": "t-large-peru"}
    trace = {"kind": "trace", "id": "t-small-peru"}
    label = {
        "id": "a",
        "name": "right",
        "value": False,
        "dataType": "BOOLEAN",
        "source": "ANNOTATION",
        "subject": trace,
    }
    whole = {**right, "id": "w", "name": "f1", "subject": {"kind": "experiment", "id": "id of large"}}
    exports.write("export/experiment-items.json", {"data": items, "meta": {"cursor": None}})
    exports.write("export/observations.json", {"data": [first, tool]})
    exports.write("export/scores.json", {"data": [label, right, whole]})
    imported = exports.imports("export")
    assert imported.counts("not mapped") == {"score 'f1'": 1}
    small, large = (exports.records(run)["peru#0"] for run in imported.report["runs"])
    assert (small["response"]["text"], small["response"]["latency_ms"]) == ("Quito", 1500.0)
    assert [(one["grader"], one["verdict"]) for one in small["labels"]] == [("right", "fail")]
    assert (large["grades"]["right"]["outcome"], large["response"]["text"]) == ("pass", "Lima")
    (turn,) = large["response"]["trajectory"]["turns"]
    assert [message["role"] for message in turn] == ["assistant", "tool"]
    (case,) = imported.lines("cases.jsonl")
    assert (case["id"], case["ground_truth"], case["metadata"]["level"]) == ("peru", "Lima", "easy")


def test_two_traces_of_an_item_in_one_run_are_repeats(exports: ExportProject) -> None:
    rows = [*ITEMS[:1]]
    for number in (1, 2):
        rows.append({"datasetRunName": "r", "datasetItemId": "france", "traceId": f"t{number}"})
        rows.append({**TRACE, "id": f"t{number}", "output": f"answer {number}", "observations": [], "scores": []})
    exports.write("export.jsonl", rows)
    imported = exports.imports("export.jsonl", "--from", "langfuse")
    records = exports.records(imported.report["runs"][0])
    texts = {key: record["response"]["text"] for key, record in records.items()}
    assert texts == {"france#0": "answer 1", "france#1": "answer 2"}


def test_the_export_to_blob_storage(exports: ExportProject) -> None:
    rows = [
        {
            "id": "o1",
            "trace_id": "t1",
            "type": "AGENT",
            "name": "agent",
            "start_time": "2026-11-16 10:00:00.000000",
            "end_time": "2026-11-16 10:00:02.000000",
            "input": '{"question": "Capital of Peru?"}',
            "output": '"Lima"',
            "level": "DEFAULT",
            "session_id": "s1",
        },
        {
            "id": "o2",
            "trace_id": "t1",
            "type": "GENERATION",
            "parent_observation_id": "o1",
            "start_time": "2026-11-16 10:00:00.500000",
            "output": "Lima",
            "usage_details": {"input": 7, "output": 1},
        },
    ]
    exports.write("blob/observations_v2/2026.jsonl.gz", rows)
    given = {"id": "s", "trace_id": "t1", "name": "ok", "value": 1, "data_type": "BOOLEAN", "source": "ANNOTATION"}
    exports.write("blob/scores/2026.jsonl", [given])
    imported = exports.imports("blob")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert (record["response"]["latency_ms"], record["response"]["usage"]["input_tokens"]) == (2000.0, 7)
    assert [label["verdict"] for label in record["labels"]] == ["pass"]
    (case,) = imported.lines("cases.jsonl")
    assert case["metadata"]["session"] == "s1"
    assert imported.notes("approximated")["session"].startswith("the traces of a session are cases of one cluster")


def test_a_trace_that_failed_is_an_error(exports: ExportProject) -> None:
    failed = observation("o1", "AGENT", 1, input="hi", level="ERROR", statusMessage="quota exceeded")
    exports.write("t.jsonl", [{**TRACE, "input": None, "output": None, "observations": [failed]}])
    imported = exports.imports("t.jsonl")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert record["response"]["status"] == "error"
    assert (record["response"]["error"]["type"], record["response"]["error"]["message"]) == (
        "agent_error",
        "quota exceeded",
    )
    assert record["grades"]["conciseness"]["outcome"] == "skipped"
    assert "score 'conciseness'" in imported.notes("not mapped")


def test_the_written_suite_grades_the_recorded_responses(exports: ExportProject) -> None:
    link = {"datasetRunName": "r", "datasetItemId": "france", "traceId": "t1"}
    exports.write("export.jsonl", [ITEMS[0], link, {**TRACE, "output": {"answer": "Paris"}}])
    imported = exports.imports("export.jsonl")
    code, again = exports.run("run", "imported/suite.yaml")
    assert (code, again["summary"]["graders"]["exact_match"]["mean"]) == (0, 1.0)
    code, regraded = exports.run("regrade", imported.report["runs"][0])
    assert (code, regraded["summary"]["graders"]["exact_match"]["mean"]) == (0, 1.0)


def test_cases_without_an_expected_value_are_not_graded_by_it(exports: ExportProject) -> None:
    link = {"datasetRunName": "r", "datasetItemId": "france", "traceId": "t1"}
    other = {**TRACE, "id": "t2", "observations": [], "scores": []}
    exports.write("export.jsonl", [ITEMS[0], link, {**TRACE, "output": "Paris"}, other])
    exports.imports("export.jsonl")
    _, again = exports.run("run", "imported/suite.yaml")
    match = again["summary"]["graders"]["exact_match"]
    assert (match["scored"], match["mean"], match["not_applicable"]) == (1, 1.0, 1)


@pytest.mark.parametrize(
    ("value", "kind", "text", "outcome", "numeric"),
    [
        (1, "CATEGORICAL", "correct", "pass", 1.0),
        (2, "CATEGORICAL", "incorrect", "fail", 0.0),
        (0, "BOOLEAN", "False", "fail", 0.0),
        (0.4, "NUMERIC", None, "fail", 0.4),
    ],
)
def test_values_of_scores(
    exports: ExportProject, value: float, kind: str, text: str | None, outcome: str, numeric: float
) -> None:
    found = score("right", value, kind, "EVAL", stringValue=text)
    exports.write("t.json", {**TRACE, "scores": [found]})
    imported = exports.imports("t.json")
    (record,) = exports.records(imported.report["runs"][0]).values()
    assert (record["grades"]["right"]["outcome"], record["grades"]["right"]["score"]) == (outcome, numeric)


@pytest.mark.parametrize(
    ("found", "item", "reason"),
    [
        (score("stars", 4), "score 'stars'", "has values from 4 to 4, and a grade is from 0 to 1"),
        (score("tone", 1, "CATEGORICAL", stringValue="formal"), "score 'tone'", "does not mean pass or fail"),
        (score("fix", None, "CORRECTION"), "score 'fix'", "has the type correction, which is not a grade"),
        (score("step", 1, observationId="o1"), "score 'step'", "belongs to one step of the trace"),
        (score("other", 1, traceId="t9"), "scores", "1 scores belong to traces that are not in the source"),
        ({**score("thread", 1), "traceId": None, "sessionId": "s"}, "score 'thread'", "belongs to a session"),
    ],
)  # fmt: skip
def test_scores_that_are_no_grades(exports: ExportProject, found: dict[str, Any], item: str, reason: str) -> None:
    exports.write("t.json", {**TRACE, "scores": [found]})
    imported = exports.imports("t.json")
    assert imported.code == 1
    assert reason in imported.notes("not mapped")[item]


def test_archived_items_and_media_are_reported(exports: ExportProject) -> None:
    archived = {**ITEMS[0], "status": "ARCHIVED"}
    exports.write("items.json", {"data": [archived, {**ITEMS[1], "mediaReferences": [{"mediaId": "m"}]}]})
    imported = exports.imports("items.json")
    assert imported.code == 1
    assert imported.notes("not mapped").keys() == {"dataset item", "media"}
    assert [case["id"] for case in imported.lines("cases.jsonl")] == ["peru"]


def test_paths_choose_the_input_and_the_expected_value(exports: ExportProject) -> None:
    item = {**ITEMS[0], "input": {"a": {"b": "in"}, "question": "no"}, "expectedOutput": {"x": ["out", "also"]}}
    exports.write("items.json", {"data": [item]})
    imported = exports.imports("items.json", "--input", "a.b", "--expected", "x")
    (case,) = imported.lines("cases.jsonl")
    assert (case["input"], case["ground_truth"]) == ("in", ["out", "also"])


def test_a_path_that_finds_nothing_is_reported(exports: ExportProject) -> None:
    exports.write("items.json", {"data": ITEMS})
    imported = exports.imports("items.json", "--input", "question")
    assert imported.notes("not mapped") == {"case": "has no value at --input 'question'; correct the path"}
