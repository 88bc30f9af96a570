"""Labels that people gave in Langfuse, promptfoo and Argilla, imported into a run by the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.cli import run_cli
from gradeline.importers.tool_labels import read_labels_of_tool
from gradeline.model import Run
from gradeline.store import SqliteStorage
from gradeline.store.labels import LabelRow, has_label_tables, labels_of_run
from gradeline.trust.label_files import LabelFileRow
from gradeline.trust.labelling import LabelScale

sys.path.insert(0, str(Path(__file__).parent.parent))

from judged_run import JudgedCase, store_run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "store.db") as storage:
        yield storage


@pytest.fixture
def run(store: SqliteStorage) -> Run:
    """Cases c0, c1, c2 with the judge ``quality``."""
    return store_run(store, [JudgedCase({"quality": True}) for _ in range(3)])


def write(folder: Path, name: str, data: object) -> Path:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


class Done(NamedTuple):
    """How a command ended, and what it wrote to either stream."""

    exit_code: int
    output: str


def import_file(folder: Path, run: Run, path: Path, *options: str) -> Done:
    given = ["label", run.id, "--import", str(path), "--store", str(folder / "store.db"), "--rater", "me", *options]
    written = StringIO()
    with redirect_stdout(written), redirect_stderr(written):
        code = run_cli(given)
    return Done(code, written.getvalue())


def labels(store: SqliteStorage, run: Run) -> list[LabelRow]:
    if not has_label_tables(store.database.read):
        return []
    return sorted(labels_of_run(store.database.read, run.id), key=lambda row: (row.case, row.rater, row.question))


def score(case: str, value: object, **fields: Any) -> dict[str, Any]:
    """A score of Langfuse's API."""
    kind = "BOOLEAN" if isinstance(value, bool) else "CATEGORICAL" if isinstance(value, str) else "NUMERIC"
    text = {"stringValue": str(value)} if kind != "NUMERIC" else {}
    number = float(value) if not isinstance(value, str) else 0  # type: ignore[arg-type]
    return {
        "id": f"s-{case}",
        "traceId": case,
        "name": "quality",
        "source": "ANNOTATION",
        "dataType": kind,
        "value": number,
        **text,
        "comment": None,
        "authorUserId": "ada",
        "timestamp": "2026-11-01T10:00:00.000Z",
        **fields,
    }


def test_annotations_of_langfuse_become_labels(tmp_path: Path, store: SqliteStorage, run: Run) -> None:
    data = [
        score("c0", True, comment="polite"),
        score("c1", "vague", authorUserId=None),
        score("c2", 0.25),
        score("c2", 0.9, source="EVAL"),
        score("c2", 1, source="API"),
        score("c2", 1, observationId="o1"),
    ]
    page = write(tmp_path, "scores.json", {"data": data, "meta": {"page": 1}})
    done = import_file(tmp_path, run, page)
    assert done.exit_code == 0, done.output
    assert "3 labels stored" in done.output
    assert "left out: 1 scores of source EVAL, which are not annotations of people" in done.output
    assert "left out: 1 scores of one step of a trace" in done.output
    assert [(row.case, row.rater, *row.value, row.comment, row.question) for row in labels(store, run)] == [
        ("c0", "ada", "pass", None, None, "polite", "quality"),
        ("c1", "me", None, None, "vague", "", "quality"),
        ("c2", "ada", None, 0.25, None, "", "quality"),
    ]
    assert labels(store, run)[0].at == "2026-11-01T10:00:00.000Z"
    again = import_file(tmp_path, run, page, "--json")
    assert json.loads(again.output)["stored"] == 0
    assert (json.loads(again.output)["format"], json.loads(again.output)["unchanged"]) == ("langfuse", 3)


def test_langfuse_exports_as_lines_as_csv_and_within_traces(tmp_path: Path) -> None:
    one = score("c0", "correct")
    lines = write(tmp_path, "scores.jsonl", "\n".join(json.dumps(row) for row in [one, score("c1", "wrong")]) + "\n")
    table = write(
        tmp_path,
        "scores.csv",
        "trace_id,name,source,data_type,string_value,author_user_id\nc0,quality,ANNOTATION,CATEGORICAL,correct,ada\n",
    )
    inner = {name: value for name, value in one.items() if name != "traceId"}
    traces = write(tmp_path, "traces.json", [{"id": "c0", "scores": [inner]}])
    for path, count in ((lines, 2), (table, 1), (traces, 1)):
        found = read_labels_of_tool(path)
        assert (found.format, len(found.rows)) == ("langfuse", count), path
        first = found.rows[0]
        assert isinstance(first, LabelFileRow)
        assert (first.cells["case"], first.cells["verdict"], first.cells["rater"]) == ("c0", "pass", "ada")


def test_a_question_that_the_run_does_not_know_is_that_of_its_judge_if_it_is_the_only_one(
    tmp_path: Path, store: SqliteStorage, run: Run
) -> None:
    path = write(tmp_path, "scores.json", [score("c0", True, name="is it polite?")])
    assert import_file(tmp_path, run, path).exit_code == 0
    assert [row.question for row in labels(store, run)] == ["quality"]
    two = write(tmp_path, "two.json", [score("c1", True, name="polite"), score("c1", True, name="short")])
    failed = import_file(tmp_path, run, two)
    assert failed.exit_code == 2
    assert "no grader 'polite'" in failed.output
    assert "no grader 'short'" in failed.output
    assert import_file(tmp_path, run, path, "--question", "polite").exit_code == 0
    assert [row.question for row in labels(store, run)] == ["polite", "quality"]


def test_ratings_need_their_scale(tmp_path: Path, store: SqliteStorage, run: Run) -> None:
    path = write(tmp_path, "scores.json", [score("c0", 4), score("c1", 1)])
    failed = import_file(tmp_path, run, path)
    assert failed.exit_code == 2
    assert "entry 1: 4 of 'quality' is not from 0 to 1; name its scale, as in --scale 1-5" in failed.output
    assert labels(store, run) == []
    assert import_file(tmp_path, run, path, "--scale", "1-5").exit_code == 0
    assert [row.score for row in labels(store, run)] == [0.75, 0.0]
    (problem,) = read_labels_of_tool(write(tmp_path, "six.json", [score("c0", 6)]), None, LabelScale(1, 5)).rows
    assert problem == (1, "6 of 'quality' is not from 1 to 5")


def test_answers_of_users_in_argilla_become_labels_of_several_raters(
    tmp_path: Path, store: SqliteStorage, run: Run
) -> None:
    by_user = {
        "id": "7f1c",
        "fields": {"text": "question 0"},
        "metadata": {"case": "c0"},
        "responses": [
            {"user_id": "u1", "status": "submitted", "values": {"quality": {"value": "yes"}}},
            {"user_id": "u2", "status": "submitted", "values": {"quality": {"value": "no"}}},
            {"user_id": "u3", "status": "discarded", "values": {"quality": {"value": "no"}}},
        ],
    }
    by_question = {
        "id": "c1",
        "fields": {},
        "metadata": {},
        "suggestions": {"quality": {"value": "no"}},
        "responses": {"quality": [{"value": "vague", "user_id": "u1"}, {"value": ["a", "b"], "user_id": "u2"}]},
    }
    path = write(tmp_path, "records.json", [by_user, by_question])
    done = import_file(tmp_path, run, path, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["format"], found["stored"]) == ("argilla", 3)
    assert found["left_out"] == {
        "responses with the status discarded": 1,
        "lists and rankings, which are not pass or fail, a score or a category": 1,
    }
    assert [(row.case, row.rater, *row.value) for row in labels(store, run)] == [
        ("c0", "u1", "pass", None, None),
        ("c0", "u2", "fail", None, None),
        ("c1", "u1", None, None, "vague"),
    ]


def result(description: str, passed: object = None, comment: str | None = None, prompt: int = 0) -> dict[str, Any]:
    """A result of promptfoo, rated by a person if ``passed`` is given."""
    rating = {"pass": passed, "score": 1, "reason": "Manual result", "assertion": {"type": "human"}}
    return {
        "promptIdx": prompt,
        "testIdx": 0,
        "testCase": {"description": description, "vars": {"q": description}},
        "provider": {"id": "echo"},
        "response": {"output": "x"},
        "success": True,
        "gradingResult": {
            "pass": True,
            "comment": comment,
            "componentResults": [
                {"pass": True, "assertion": {"type": "equals"}},
                *([rating] if passed is not None else []),
            ],
        },
    }


def test_ratings_of_promptfoo_become_labels(tmp_path: Path, store: SqliteStorage, run: Run) -> None:
    rows = [result("c0", True, "well said"), result("c1", False), result("c2")]
    path = write(tmp_path, "results.json", {"evalId": "e1", "results": {"version": 3, "results": rows}, "config": {}})
    done = import_file(tmp_path, run, path)
    assert done.exit_code == 0, done.output
    assert "2 labels stored" in done.output
    assert "left out: 1 results without a rating of a person" in done.output
    assert [(row.case, row.verdict, row.comment, row.rater) for row in labels(store, run)] == [
        ("c0", "pass", "well said", "me"),
        ("c1", "fail", "", "me"),
    ]


def test_ratings_of_several_prompts_are_refused_with_the_command_that_keeps_them_apart(
    tmp_path: Path, store: SqliteStorage, run: Run
) -> None:
    rows = [result("c0", True), result("c0", False, prompt=1)]
    path = write(tmp_path, "results.json", {"evalId": "e1", "results": {"results": rows}})
    failed = import_file(tmp_path, run, path)
    assert failed.exit_code == 2
    assert "several prompts or providers" in failed.output
    assert "gradeline import results.json" in failed.output


def test_every_problem_is_reported_and_nothing_is_stored(tmp_path: Path, store: SqliteStorage, run: Run) -> None:
    data = [
        *(score("c0", True), score("c0", False), score("c9", True), score("c1", True, authorUserId="a\nb")),
        *(score("c2", 7), "not an object", score("c1", True, name="quality", traceId=None)),
    ]
    failed = import_file(tmp_path, run, write(tmp_path, "scores.json", data))
    assert failed.exit_code == 2
    for part in (
        *("entry 2: 'ada' labels case 'c0'", "differently in entry 1", "entry 3: no case 'c9'"),
        *("entry 4: invalid rater", "entry 5: 7 of 'quality'", "entry 6: expected a JSON object"),
        "entry 7: the case is missing",
    ):
        assert part in " ".join(failed.output.split()), (part, failed.output)
    assert labels(store, run) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.json", "7", "expected a JSON object or list"),
        ("a.json", "[]", "name its kind with --format"),
        ("a.json", '[{"text": "x"}]', "name its kind with --format"),
        ("a.xlsx", "x", "use .csv, .json or .jsonl"),
        ("a.csv", "name,verdict\na,pass\n", "the column case is missing"),
        ("a.jsonl", '{"name": "a", "verdict": "pass"}', "the column case is missing"),
    ],
)
def test_files_of_no_known_kind_are_refused(
    tmp_path: Path, store: SqliteStorage, run: Run, name: str, text: str, message: str
) -> None:
    failed = import_file(tmp_path, run, write(tmp_path, name, text))
    assert failed.exit_code == 2
    assert message in " ".join(failed.output.split())


def test_a_file_of_labels_is_still_one(tmp_path: Path, store: SqliteStorage, run: Run) -> None:
    path = write(tmp_path, "labels.csv", "case;verdict\nc0;pass\n")
    assert import_file(tmp_path, run, path).exit_code == 0
    lines = write(tmp_path, "labels.jsonl", '{"case": "c1", "verdict": "fail"}\n')
    assert json.loads(import_file(tmp_path, run, lines, "--json").output)["format"] == "gradeline"
    assert [(row.case, row.verdict) for row in labels(store, run)] == [("c0", "pass"), ("c1", "fail")]
