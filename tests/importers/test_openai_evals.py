"""Exports of OpenAI's hosted evals: every grader gives the recorded grades again when the written suite runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from gradeline.cli.commands import run_command
from gradeline.suite.read import read_suite
from gradeline.testing.fake_judge import FakeJudge, Truth
from json_mutations import mutated

OUTPUT = "{{ sample.output_text }}"
SOURCE = """import json
from pathlib import Path

Path("executed").write_text("by the run")


def grade(sample, item):
    data = sample.get("output_json") or {}
    return 1.0 if item["label"] in sample["output_text"] else float(data.get("half", 0))
"""
RATE = [
    {"role": "developer", "content": "You rate replies to tickets {strictly}."},
    {"role": "user", "content": "Ticket: {{ item.ticket }}\n\nReply: {{ sample.output_text }}"},
]
"""One answer of each kind that matters: equal, contained in other case, and a tool call without text."""
ITEMS = [
    {"ticket": "My monitor is broken.", "label": "Hardware", "reference": "the hardware team"},
    {"ticket": "Outlook does not start.", "label": "Software", "reference": "the software team"},
]
ANSWERS = ["Hardware", '{"team": "software", "half": 0.5}']
CALLS = [
    [],
    [{"id": "c1", "type": "function", "function": {"name": "open_ticket", "arguments": '{"team": "software"}'}}],
]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run_command([*arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    return code, json.loads(printed.out)


def check(name: str, operation: str, left: str, right: str) -> dict[str, Any]:
    return {"type": "string_check", "name": name, "operation": operation, "input": left, "reference": right}


def similarity(metric: str, **options: object) -> dict[str, Any]:
    texts = {"input": OUTPUT, "reference": "{{ item.label }}"}
    return (
        {"type": "text_similarity", "name": metric, "evaluation_metric": metric, "pass_threshold": 0.5}
        | texts
        | options
    )


def eval_of(*criteria: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    config = {"type": "custom", "schema": {"type": "object", "properties": {"item": {"$ref": "#"}}}}
    base = {"object": "eval", "id": "eval_1", "name": "Tickets", "created_at": 1_760_000_000, "metadata": {}}
    return {**base, "data_source_config": config, "testing_criteria": list(criteria)} | more


def run_of(number: int = 1, **more: Any) -> dict[str, Any]:
    template = [{"role": "system", "content": "Sort tickets."}, {"role": "user", "content": "{{ item.ticket }}"}]
    return {
        "object": "eval.run",
        "id": f"evalrun_{number}",
        "eval_id": "eval_1",
        "name": f"run {number}",
        "model": "gpt-6-luna",
        "status": "completed",
        "created_at": 1_760_000_000 + number,
        "result_counts": {"total": 2, "passed": 1, "failed": 1, "errored": 0},
        "data_source": {
            "type": "completions",
            "model": "gpt-6-luna",
            "source": {"type": "file_id", "id": "file-1"},
            "input_messages": {"type": "template", "template": template},
            "sampling_params": {"temperature": 0.5, "max_completion_tokens": 100, "seed": 7, "top_p": 1},
        },
    } | more


def sample_of(number: int, answer: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ANSWERS[number] if answer is None else answer}
    if CALLS[number]:
        message["tool_calls"] = CALLS[number]
    asked = [{"role": "system", "content": "Sort tickets."}, {"role": "user", "content": ITEMS[number]["ticket"]}]
    usage = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23, "cached_tokens": 4}
    return {
        "input": asked,
        "output": [message],
        "finish_reason": "stop",
        "model": "gpt-6-luna",
        "usage": usage,
        "error": None,
        "temperature": 0.5,
    }


def output_item(number: int, grades: Mapping[str, tuple[float, bool]], run_number: int = 1) -> dict[str, Any]:
    """An output item of the API; the names of results have the ids that the API adds."""
    results = [
        {"name": f"{name}-6a1d0b8e-2f5c-4d1b-9c3e-0123456789ab", "type": "x", "score": score, "passed": passed}
        for name, (score, passed) in grades.items()
    ]
    return {
        "object": "eval.run.output_item",
        "id": f"item_{run_number}_{number}",
        "run_id": f"evalrun_{run_number}",
        "eval_id": "eval_1",
        "datasource_item_id": number,
        "datasource_item": ITEMS[number],
        "status": "completed",
        "results": results,
        "sample": sample_of(number),
    }


def write(path: Path, *objects: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in objects))
    return path


def write_export(folder: Path, *criteria: Mapping[str, Any], grades: list[dict[str, tuple[float, bool]]]) -> None:
    """An export as three files with the responses of the API: the eval, the run, and a page of its output items."""
    items = [output_item(number, recorded) for number, recorded in enumerate(grades)]
    write(folder / "eval.json", eval_of(*criteria))
    write(folder / "run.json", run_of())
    write(folder / "items.json", {"object": "list", "data": items, "has_more": False})


def graded(capsys: pytest.CaptureFixture[str], run_id: str) -> dict[tuple[str, str], tuple[float | None, bool | None]]:
    """Score and pass of each case and grader of a run."""
    assert run_command(["export", run_id, "--format", "jsonl", "--output", f"{run_id}.jsonl"]) == 0
    capsys.readouterr()
    rows = [json.loads(line) for line in Path(f"{run_id}.jsonl").read_text().splitlines()]
    return {
        (str(row["sample"]["id"]), name): (grade.get("score"), grade.get("passed"))
        for row in rows
        if "sample" in row
        for name, grade in row["grades"].items()
    }


def not_mapped(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(item["what"], item["note"]) for item in report["items"] if item["state"] == "not mapped"]


def require_same_grades(capsys: pytest.CaptureFixture[str], report: Mapping[str, Any], *settings: str) -> None:
    """Run the written suite and compare score and pass with the imported ones."""
    _, again = run(capsys, "run", "imported/suite.yaml", *settings)
    recorded, new = graded(capsys, report["runs"][0]), graded(capsys, again["run"]["id"])
    assert recorded
    for key, (score, passed) in recorded.items():
        assert (pytest.approx(score, abs=1e-9), passed) == new[key], key


@contextmanager
def embeddings(vectors: Mapping[str, list[float]]) -> Iterator[str]:
    """A server of embeddings."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            data = [{"index": place, "embedding": vectors[text]} for place, text in enumerate(texts)]
            body = json.dumps({"data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as url:
        yield f"{url}/v1"


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server in a thread."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


YES, NO = (1.0, True), (0.0, False)

LOCAL = [
    (check("eq", "eq", OUTPUT, "{{ item.label }}"), YES, NO),
    (check("eq turned round", "eq", "{{item.label}}", OUTPUT), YES, NO),
    (check("ne", "ne", OUTPUT, "{{ item.label }}"), NO, YES),
    (check("like", "like", OUTPUT, "ard"), YES, NO),
    (check("like is case-sensitive", "like", OUTPUT, "SOFT"), NO, NO),
    (check("ilike", "ilike", OUTPUT, "{{ item.label }}"), YES, YES),
    (check("is contained", "like", "{{ item.ticket }} {{ item.label }}", OUTPUT), YES, NO),
    (check("braces", "ne", OUTPUT, "{}{"), YES, YES),
    (check("joined", "eq", "<{{ sample.output_text }}>", "<{{ item.label }}>"), YES, NO),
    (check("json", "eq", "{{ sample.output_json.team }}", "software"), NO, YES),
    (check("json ilike", "ilike", "{{ sample.output_json['team'] }}", "{{item.label}}"), NO, YES),
    (check("tool", "eq", "{{ sample.output_tools[0].function.name }}", "open_ticket"), NO, YES),
    (check("choice", "eq", "{{ sample.choices[0].message.content }}", "Hardware"), YES, NO),
    (similarity("fuzzy_match", pass_threshold=0.9), YES, (14 / 41, False)),
    (similarity("bleu"), YES, NO),
    (similarity("gleu"), YES, NO),
    (similarity("rouge_1"), YES, (1 / 3, False)),
    (similarity("rouge_2"), NO, NO),
    (similarity("rouge_l"), YES, (1 / 3, False)),
    ({"type": "python", "name": "python", "source": SOURCE, "pass_threshold": 0.6}, YES, (0.5, False)),
    (
        {
            "type": "multi",
            "name": "multi",
            "graders": {"a": check("a", "ilike", OUTPUT, "{{ item.label }}"), "b": similarity("rouge_1")},
            "calculate_output": "0.5 * a + 0.5 * min(b, 1)",
        },
        YES,
        (2 / 3, True),
    ),
]


@pytest.mark.parametrize(("criterion", "first", "second"), LOCAL, ids=[str(one["name"]) for one, *_ in LOCAL])
def test_a_grader_gives_the_recorded_grades_again(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    criterion: dict[str, Any],
    first: tuple[float, bool],
    second: tuple[float, bool],
) -> None:
    name = criterion["name"]
    write_export(project / "export", criterion, grades=[{name: first}, {name: second}])
    code, report = run(capsys, "import", "export", "--output", "imported")
    assert (code in (0, 3), report["kind"], report["counts"]["not_mapped"]) == (True, "openai-evals", 0)
    require_same_grades(capsys, report)


JUDGES = [
    (
        {
            "type": "score_model",
            "name": "rating",
            "model": "judge",
            "input": RATE,
            "range": [1, 7],
            "pass_threshold": 5,
        },
        (7.0, True),
        (4.0, False),
        (1.0, True),
        (0.5, False),
    ),
    (
        {"type": "score_model", "name": "score", "model": "judge", "input": RATE, "pass_threshold": 0.6},
        YES,
        (0.5, False),
        YES,
        (0.5, False),
    ),
    (
        {
            "type": "label_model",
            "name": "label",
            "model": "judge",
            "input": [
                {"role": "user", "content": {"type": "input_text", "text": "Is {{ sample.output_text }} right?"}}
            ],
            "labels": ["right", "vague", "wrong"],
            "passing_labels": ["right"],
        },
        YES,
        NO,
        YES,
        NO,
    ),
]


@pytest.mark.parametrize(
    ("criterion", "first", "second", "stored", "stored_second"), JUDGES, ids=[str(one[0]["name"]) for one in JUDGES]
)
def test_a_judge_gives_the_recorded_grades_again(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    criterion: dict[str, Any],
    first: tuple[float, bool],
    second: tuple[float, bool],
    stored: tuple[float, bool],
    stored_second: tuple[float, bool],
) -> None:
    name = criterion["name"]
    write_export(project / "export", criterion, grades=[{name: first}, {name: second}])
    code, report = run(capsys, "import", "export", "--output", "imported")
    assert (code, report["counts"]["not_mapped"]) == (3, 0)
    recorded = graded(capsys, report["runs"][0])
    assert recorded == {("item-0", name): stored, ("item-1", name): stored_second}
    truths = {"a": Truth(quality=1.0, text=ANSWERS[0]), "b": Truth(quality=0.5, text=ANSWERS[1])}
    with FakeJudge(items=truths).in_thread() as judge:
        require_same_grades(capsys, report, "--set", f"graders.{name}.base_url={judge.base_url()}")
        assert {request.model for request in judge.requests} == {"judge"}


def test_a_multi_grader_of_a_rating_and_a_label(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rating, label = JUDGES[0][0], JUDGES[2][0]
    multi = {
        "type": "multi",
        "name": "both",
        "graders": {"rating": rating, "label": label},
        "calculate_output": "(rating - 1) / 6 * 0.5 + 0.5 * label",
    }
    write_export(project / "export", multi, grades=[{"both": YES}, {"both": (0.25, False)}])
    _, report = run(capsys, "import", "export", "--output", "imported")
    truths = {"a": Truth(quality=1.0, text=ANSWERS[0]), "b": Truth(quality=0.5, text=ANSWERS[1])}
    with FakeJudge(items=truths).in_thread() as judge:
        names = ["both: rating", "both: label"]
        overrides = [word for one in names for word in ("--set", f"graders.{one}.base_url={judge.base_url()}")]
        require_same_grades(capsys, report, *overrides)


def test_cosine_similarity_of_embeddings(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_export(project / "export", similarity("cosine"), grades=[{"cosine": YES}, {"cosine": (0.6, True)}])
    _, report = run(capsys, "import", "export", "--output", "imported")
    vectors = {"Hardware": [1.0, 0.0], "Software": [4.0, 3.0], ANSWERS[1]: [0.0, 1.0]}
    with embeddings(vectors) as url:
        require_same_grades(capsys, report, "--set", f"graders.cosine.base_url={url}")


DASHBOARD: dict[str, Any] = {
    "run_id": "evalrun_pass_fixture",
    "data_source_idx": 0,
    "item": {"ticket_text": "My monitor will not turn on", "correct_label": "Hardware"},
    "sample": {
        "trajectory": [{"role": "user", "content": "Classify this ticket"}],
        "outputs": [{"role": "assistant", "content": "Hardware"}],
        "finish_reason": "stop",
        "sampled_model_name": "gpt-4.1",
        "token_usage": {"total_tokens": 10, "completion_tokens": 2, "prompt_tokens": 8, "cached_tokens": 1},
    },
    "grades": {"Match output to human label": 1},
    "grader_samples": {},
    "passes": {"Match output to human label": True},
}
"""A row as the dashboard exports it."""


def dashboard(number: int, answer: str, label: str, score: float, **more: object) -> dict[str, Any]:
    sample = {**DASHBOARD["sample"], "outputs": [{"role": "assistant", "content": answer}]}
    changed = {"data_source_idx": number, "item": {"ticket_text": "?", "correct_label": label}, "sample": sample}
    name = "Match output to human label"
    return {**DASHBOARD, **changed, "grades": {name: score}, "passes": {name: score >= 0.5}, **more}


class TestDashboard:
    """Rows of the dashboard, which have grades and no definitions of graders."""

    def test_a_comparison_is_found_again_in_its_verdicts(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(project / "rows.jsonl", DASHBOARD, dashboard(1, "software!", "Software", 0))
        code, report = run(capsys, "import", "rows.jsonl", "--output", "imported")
        assert (code, not_mapped(report)) == (3, [])
        suite = yaml.safe_load((project / "imported" / "suite.yaml").read_text())
        (grader,) = suite["graders"].values()
        assert grader["rules"] == [{"condition": "equals", "value": "$metadata.correct_label", "case_sensitive": True}]
        require_same_grades(capsys, report)

    def test_a_grader_that_no_comparison_explains_is_reported(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(project / "rows.jsonl", DASHBOARD, dashboard(1, "Software", "Software", 0))
        code, report = run(capsys, "import", "rows.jsonl", "--output", "imported")
        assert code == 1
        assert [what for what, _ in not_mapped(report)] == ["grader 'Match output to human label'", "graders"]
        assert not (project / "imported" / "suite.yaml").exists()
        recorded = graded(capsys, report["runs"][0])
        assert sorted(recorded.values()) == [NO, YES]

    def test_the_definition_may_be_in_another_file(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rating = JUDGES[0][0] | {"name": "Match output to human label"}
        write(project / "export" / "eval.json", eval_of(rating))
        write(project / "export" / "rows.jsonl", DASHBOARD, dashboard(1, "x", "y", 6))
        _, report = run(capsys, "import", "export", "--output", "imported")
        recorded = graded(capsys, report["runs"][0])
        assert [score for score, _ in recorded.values()] == [0.0, pytest.approx(5 / 6)]

    def test_a_score_of_an_unknown_scale_is_an_error(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write(project / "rows.jsonl", DASHBOARD, dashboard(1, "Software", "Software", 6))
        _, report = run(capsys, "import", "rows.jsonl", "--output", "imported")
        _, shown = run(capsys, "show", report["runs"][0])
        (summary,) = shown["summary"]["graders"].values()
        assert (summary["passed"], summary["errors"], summary["mean"]) == (1, 1, 1.0)

    def test_a_failed_call_is_an_error_of_the_agent(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        failed = dashboard(1, "", "Software", 0, grades={}, passes={})
        failed["sample"] = {"error": {"code": "rate_limit_exceeded", "message": "too many requests"}}
        write(project / "rows.jsonl", DASHBOARD, failed)
        _, report = run(capsys, "import", "rows.jsonl", "--output", "imported")
        assert sorted(graded(capsys, report["runs"][0]).values(), key=str) == [YES, (None, None)]
        answers = [json.loads(line) for line in (project / "imported" / "answers.jsonl").read_text().splitlines()]
        error = answers[1]["response"]["error"]
        assert (error["type"], error["message"]) == ("rate_limited", "rate_limit_exceeded: too many requests")
        _, again = run(capsys, "run", "imported/suite.yaml")
        (summary,) = again["summary"]["graders"].values()
        assert (summary["passed"], summary["failed"], summary["scored"]) == (1, 0, 1)

    def test_the_grade_of_a_failed_call_is_left_out(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        failed = dashboard(1, "", "Software", 0)
        failed["sample"] = {"error": {"message": "too many requests"}}
        write(project / "rows.jsonl", DASHBOARD, failed)
        code, report = run(capsys, "import", "rows.jsonl", "--output", "imported")
        name = "Match output to human label"
        assert (code, not_mapped(report)) == (1, [(f"grade {name!r}", "is of a failed call, which has no grade")])
        assert graded(capsys, report["runs"][0])[("item-1", name)] == (None, None)

    def test_the_input_and_the_expected_value_are_chosen(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(project / "rows.jsonl", DASHBOARD)
        chosen = ["--input", "ticket_text", "--expected", "missing"]
        code, report = run(capsys, "import", "rows.jsonl", "--output", "imported", *chosen)
        assert (code, not_mapped(report)) == (1, [("value", "has no value at --expected 'missing'; correct the path")])
        case = json.loads((project / "imported" / "cases.jsonl").read_text())
        assert (case["input"], case["ground_truth"]) == ("My monitor will not turn on", "Hardware")

    def test_items_without_samples_are_graded_on_their_answers(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        criterion = check("same", "eq", "{{ item.model_output }}", "{{ item.label }}")
        rows = [
            {
                "run_id": "r",
                "data_source_idx": place,
                "item": item,
                "grades": {"same": score},
                "passes": {"same": passed},
            }
            for place, (item, score, passed) in enumerate(
                [({"model_output": "a", "label": "a"}, 1, True), ({"model_output": "b", "label": "a"}, 0, False)]
            )
        ]
        write(project / "export" / "eval.json", eval_of(criterion))
        write(project / "export" / "rows.jsonl", *rows)
        code, report = run(capsys, "import", "export", "--output", "imported")
        assert code == 3
        require_same_grades(capsys, report)


class TestRuns:
    def test_two_runs_are_compared_and_regraded(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        criterion = check("label", "ilike", OUTPUT, "{{ item.label }}")
        write(project / "export" / "eval.json", eval_of(criterion, metadata={"team": "support"}))
        for number, second in ((1, NO), (2, YES)):
            items = [output_item(0, {"label": YES}, number), output_item(1, {"label": second}, number)]
            write(project / "export" / f"run{number}.jsonl", run_of(number), *items)
        code, report = run(capsys, "import", "export", "--output", "imported")
        assert (code, len(report["runs"])) == (0, 2)
        code, compared = run(capsys, "compare", *report["runs"])
        label = compared["graders"]["label"]
        assert (code, label["baseline"], label["candidate"]) == (3, 0.5, 1.0)
        _, regraded = run(capsys, "regrade", report["runs"][0])
        assert regraded["summary"]["graders"]["label"]["mean"] == 1.0
        _, shown = run(capsys, "show", report["runs"][0])
        assert (shown["run"]["name"], shown["run"]["variant"], shown["run"]["suite"]) == ("run 1", "run 1", "Tickets")

    def test_a_run_without_its_pages_is_reported(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        item = output_item(0, {"label": YES})
        write(project / "export" / "eval.json", eval_of(check("label", "ilike", OUTPUT, "{{ item.label }}")))
        write(project / "export" / "run.json", run_of())
        write(project / "export" / "items.json", {"object": "list", "data": [item], "has_more": True})
        code, report = run(capsys, "import", "export", "--output", "imported")
        assert code == 1
        assert not_mapped(report) == [
            ("output items", "the run has 2 and the export 1; export all pages of its output items"),
            ("further pages", "has_more is true; export the pages after last_id too"),
        ]

    def test_the_model_is_called_again(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_export(project / "export", check("any", "ne", OUTPUT, "x"), grades=[{"any": YES}, {"any": YES}])
        run(capsys, "import", "export", "--output", "imported")
        with FakeJudge().in_thread() as model:
            url = f"target.base_url={model.base_url()}"
            code, called = run(capsys, "run", "imported/model.yaml", "--set", url)
            assert [request.model for request in model.requests] == ["gpt-6-luna"] * 2
        assert (code, called["summary"]["graders"]["any"]["passed"]) == (0, 2)

    def test_items_in_the_data_source_of_a_run(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        content = [
            {"item": item, "sample": {"outputs": [{"role": "assistant", "content": "Hardware"}]}} for item in ITEMS
        ]
        source = {"type": "jsonl", "source": {"type": "file_content", "content": content}}
        label = check("label", "eq", OUTPUT, "{{ item.label }}")
        write(project / "all.json", {"eval": eval_of(label), "runs": [run_of(data_source=source)]})
        code, report = run(capsys, "import", "all.json", "--output", "imported")
        assert (code, report["runs"]) == (0, [])
        _, again = run(capsys, "run", "imported/suite.yaml")
        assert list(graded(capsys, again["run"]["id"]).values()) == [YES, NO]

    @pytest.mark.parametrize(
        "sample",
        [
            {"output_text": "Hardware"},
            {"output": "Hardware"},
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hardware"}}]},
            {
                "output": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hardware"}]}
                ]
            },
        ],
        ids=["output_text", "text", "choices", "response items"],
    )
    def test_the_forms_of_a_sample(
        self, project: Path, capsys: pytest.CaptureFixture[str], sample: dict[str, Any]
    ) -> None:
        content = [{"item": ITEMS[0], "sample": sample}]
        source = {"type": "jsonl", "source": {"type": "file_content", "content": content}}
        run_data = run_of(data_source=source, result_counts={"total": 1})
        write(project / "all.json", {"eval": eval_of(LOCAL[0][0]), "runs": [run_data]})
        code, _ = run(capsys, "import", "all.json", "--output", "imported")
        _, again = run(capsys, "run", "imported/suite.yaml")
        assert (code, list(graded(capsys, again["run"]["id"]).values())) == (0, [YES])

    def test_a_run_of_stored_completions_calls_no_model(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = {"type": "completions", "source": {"type": "stored_completions", "model": "gpt-6-luna"}}
        write_export(project / "export", LOCAL[0][0], grades=[{"eq": YES}, {"eq": NO}])
        write(project / "export" / "run.json", run_of(data_source=source))
        code, report = run(capsys, "import", "export", "--output", "imported")
        assert (code, not_mapped(report)) == (0, [])
        assert not (project / "imported" / "model.yaml").exists()
        require_same_grades(capsys, report)

    def test_items_of_two_runs_with_different_data_are_different_cases(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = output_item(0, {"label": NO}, 2) | {"datasource_item": {"ticket": "?", "label": "x"}}
        write(project / "rows.jsonl", output_item(0, {"label": YES}), other)
        run(capsys, "import", "rows.jsonl", "--output", "imported")
        cases = [json.loads(line) for line in (project / "imported" / "cases.jsonl").read_text().splitlines()]
        assert [case["metadata"]["label"] for case in cases] == ["Hardware", "x"]
        assert len({case["id"] for case in cases}) == 2

    def test_one_eval_is_imported_at_a_time(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        other = eval_of(id="eval_2", name="Other")
        write_export(project / "export", check("any", "ne", OUTPUT, "x"), grades=[{"any": YES}, {"any": YES}])
        write(project / "export" / "other.json", other)
        _, report = run(capsys, "import", "export", "--output", "imported")
        why = "a suite has one eval; import it from a file or folder of its own"
        assert not_mapped(report) == [("eval 'Other'", why)]


def one_item(folder: Path, item: Mapping[str, Any], *criteria: Mapping[str, Any], answer: str = "Hardware") -> None:
    grades = {str(one["name"]): YES for one in criteria}
    row = output_item(0, grades) | {"datasource_item": item, "sample": sample_of(0, answer)}
    write(folder / "eval.json", eval_of(*criteria))
    write(folder / "rows.jsonl", row)


class TestHostileSources:
    def test_code_is_executed_by_a_run_and_never_by_the_import(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_export(
            project / "export",
            {"type": "python", "name": "python", "source": SOURCE},
            grades=[{"python": YES}, {"python": YES}],
        )
        run(capsys, "import", "export", "--output", "imported")
        assert list(project.rglob("executed")) == []
        run(capsys, "run", "imported/suite.yaml")
        assert [path.read_text() for path in project.rglob("executed")] == ["by the run"]

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            ("def grade(:", "its source is not Python 3: invalid syntax; correct it in the export"),
            ("x = 1", "its source does not define grade(sample, item); write a custom grader"),
            ("# \0\ndef grade(sample, item): return 1", "its source is not Python 3: "),
            ("def grade(s, i):\n return " + "(" * 100_000, "its source is not Python 3: "),
            ("x = " + "-" * 200_000 + "1", "its source is not Python 3: "),
            ("x" * 300_000, "has no source of at most 262,144 characters"),
            (None, "has no source of at most 262,144 characters"),
        ],
    )
    def test_invalid_code_is_left_out(
        self, project: Path, capsys: pytest.CaptureFixture[str], source: str | None, why: str
    ) -> None:
        one_item(project / "export", ITEMS[0], {"type": "python", "name": "p", "source": source})
        code, report = run(capsys, "import", "export", "--output", "imported")
        assert code == 1
        assert not_mapped(report)[0][1].startswith(why)

    def test_a_declared_encoding_does_not_change_the_code(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = "# -*- coding: utf-7 -*-\ndef grade(sample, item):\n    return 1.0 # +AAo-raise SystemExit\n"
        one_item(project / "export", ITEMS[0], {"type": "python", "name": "p", "source": source})
        _, report = run(capsys, "import", "export", "--output", "imported")
        require_same_grades(capsys, report)

    @pytest.mark.parametrize(
        "name", ["../../outside", "/tmp/outside", "a/b", "C:\\x", "json", "con", "\0\x1b[31m", "é" * 500]
    )
    def test_names_stay_in_the_folder(self, project: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
        code = "import json\n\n\ndef grade(sample, item):\n    return float(json.dumps([]) == '[]')\n"
        one_item(project / "export", ITEMS[0], {"type": "python", "name": name, "source": code})
        code_of_import, report = run(capsys, "import", "export", "--output", "imported")
        assert code_of_import == 3
        files = {str(path.relative_to(project)) for path in project.rglob("*.py")}
        assert len(files) == 1
        assert all(file.startswith("imported/graders/") for file in files)
        require_same_grades(capsys, report)

    def test_text_of_the_source_is_neither_template_nor_reference(
        self, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET_OF_TEST", "leaked")
        text = "{{ item.label }} {submission} {item_ticket} ${SECRET_OF_TEST} $metadata.label"
        criteria = [
            check("equal", "eq", OUTPUT, "{{ item.label }}"),
            check("reference", "ne", OUTPUT, "$metadata.label"),
            check("variable", "ne", OUTPUT, "${SECRET_OF_TEST}"),
        ]
        one_item(project / "export", {"ticket": text, "label": text}, *criteria, answer=text)
        write(project / "export" / "run.json", run_of())
        _, report = run(capsys, "import", "export", "--output", "imported")
        require_same_grades(capsys, report)
        with FakeJudge().in_thread() as model:
            run(capsys, "run", "imported/model.yaml", "--set", f"target.base_url={model.base_url()}")
        assert "leaked" not in "".join(path.read_text() for path in (project / "imported").rglob("*.*"))

    def test_rows_that_cannot_be_read_are_reported(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        whole = json.dumps(DASHBOARD).encode()
        rows = [
            whole,
            b"[" * 100_000,
            b'{"a":' * 100_000,
            json.dumps(dashboard(2, "caf\xe9", "x", 0), ensure_ascii=False).encode("latin-1"),
            b'{"run_id": "x", "item": ',
            b"[1, 2]",
            b"null",
            json.dumps(dashboard(3, "nul \0", "a", 0)).encode(),
            json.dumps(dashboard(4, "half a pair: \ud800", "a", 0)).encode(),
        ]
        (project / "rows.jsonl").write_bytes(b"\n".join(rows))
        code, report = run(capsys, "import", "rows.jsonl", "--output", "imported")
        assert code == 1
        places = {place for item in report["items"] if item["state"] == "not mapped" for place in item["places"]}
        assert places == {f"rows.jsonl:{number}" for number in (2, 3, 4, 5, 6, 7, 9)}
        require_same_grades(capsys, report)

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
    def test_another_encoding_is_refused(
        self, project: Path, capsys: pytest.CaptureFixture[str], encoding: str
    ) -> None:
        (project / "rows.jsonl").write_text(json.dumps(DASHBOARD), encoding=encoding)
        assert run_command(["import", "rows.jsonl", "--from", "openai-evals", "--output", "imported"]) == 2
        assert "rows.jsonl" in capsys.readouterr().err
        assert not (project / "imported").exists()

    def test_a_link_out_of_the_folder_is_not_followed(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write(project / "outside.jsonl", dashboard(7, "secret", "secret", 1))
        write(project / "export" / "rows.jsonl", DASHBOARD)
        (project / "export" / "link.jsonl").symlink_to(project / "outside.jsonl")
        run(capsys, "import", "export", "--output", "imported")
        assert "secret" not in (project / "imported" / "cases.jsonl").read_text()

    @pytest.mark.parametrize(
        "criterion",
        [
            {"type": "string_check", "name": "x"},
            check("x", "eq", "{{ sample.output_text | upper }}", "a"),
            check("x", "eq", "{% for x in y %}", "a"),
            check("x", "matches", OUTPUT, "a"),
            check("x", "eq", "{{ item" + ".a" * 100_000 + " }}", "a"),
            similarity("word_overlap"),
            similarity("bleu", pass_threshold=7),
            similarity("bleu", pass_threshold="high"),
            {"type": "score_model", "name": "x", "model": "m", "input": []},
            {"type": "score_model", "name": "x", "input": RATE},
            {"type": "score_model", "name": "x", "model": "m", "input": RATE, "range": [5, 1]},
            {"type": "score_model", "name": "x", "model": "m", "input": RATE, "range": [0, "1"]},
            {
                "type": "score_model",
                "name": "x",
                "model": "m",
                "input": [{"role": "user", "content": {"type": "input_image"}}],
            },
            {"type": "label_model", "name": "x", "model": "m", "input": RATE, "labels": ["a"], "passing_labels": ["a"]},
            {"type": "label_model", "name": "x", "model": "m", "input": RATE, "labels": [1, None]},
            {
                "type": "multi",
                "name": "x",
                "graders": {"a": check("a", "eq", OUTPUT, "b")},
                "calculate_output": "__import__('os')",
            },
            {"type": "multi", "name": "x", "graders": {}, "calculate_output": "a"},
            {
                "type": "multi",
                "name": "x",
                "graders": {"a": check("a", "eq", OUTPUT, "b")},
                "calculate_output": "(" * 50_000,
            },
            {"type": "unheard_of", "name": "x"},
            "text",
            None,
        ],
        ids=lambda one: str(one)[:60],
    )
    def test_a_grader_that_has_no_counterpart_is_reported(
        self, project: Path, capsys: pytest.CaptureFixture[str], criterion: Any
    ) -> None:
        fine = check("fine", "eq", OUTPUT, "{{ item.label }}")
        write(project / "export" / "eval.json", eval_of(fine, criterion))
        write(project / "export" / "rows.jsonl", output_item(0, {"fine": YES}))
        code, report = run(capsys, "import", "export", "--output", "imported")
        assert code == 1
        assert len(not_mapped(report)) == 1
        require_same_grades(capsys, report)

    def test_a_first_row_that_is_longer_than_what_detection_reads(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        long = dashboard(1, "x" * 400_000, "y", 0)
        write(project / "rows.jsonl", long, DASHBOARD)
        code, report = run(capsys, "import", "rows.jsonl", "--output", "imported")
        assert (code, report["kind"], report["counts"]["mapped"]) == (1, "openai-evals", 3)

    def test_the_number_of_graders_is_limited(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        criteria = [check("same", "eq", OUTPUT, "{{ item.label }}") for _ in range(20_000)]
        names = [f"grade {number}" for number in range(1_000)]
        rows = [
            output_item(0, dict.fromkeys(names[:500], YES)),
            output_item(1, dict.fromkeys(names[500:], YES)),
        ]
        write(project / "export" / "eval.json", eval_of(*criteria))
        write(project / "export" / "rows.jsonl", *rows)
        code, report = run(capsys, "import", "export", "--output", "imported")
        assert code == 1
        suite = yaml.safe_load((project / "imported" / "suite.yaml").read_text())
        assert len(suite["graders"]) == 200
        _, shown = run(capsys, "show", report["runs"][0])
        assert len(shown["summary"]["graders"]) == 200

    def test_the_number_of_variables_is_limited(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        many = "".join(f"{{{{item.a{number}}}}}" for number in range(50_000))
        judge = {"type": "score_model", "name": "many", "model": "m", "input": [{"role": "user", "content": many}]}
        write_export(project / "export", LOCAL[0][0], judge, grades=[{"eq": YES}, {"eq": NO}])
        _, report = run(capsys, "import", "export", "--output", "imported")
        assert not_mapped(report) == [("grader score_model 'many'", "has more than 500 variables")]

    def test_the_keys_of_a_tool_are_not_copied(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source = run_of()["data_source"]
        source["sampling_params"] = {"tools": [{"type": "mcp", "authorization": "sk-of-a-tool-0123456789"}]}
        write_export(project / "export", LOCAL[0][0], grades=[{"eq": YES}, {"eq": NO}])
        write(project / "export" / "run.json", run_of(data_source=source))
        _, report = run(capsys, "import", "export", "--output", "imported")
        why = "offers a tool of type 'mcp', which the model's provider runs; leave it out"
        assert not_mapped(report) == [("data source chat", why)]
        assert "sk-of-a" not in "".join(path.read_text() for path in (project / "imported").iterdir())
        require_same_grades(capsys, report)

    def test_a_schema_that_refers_to_itself(self, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
        schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
        source = run_of()["data_source"]
        format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        source["sampling_params"]["response_format"] = format_
        write_export(project / "export", check("any", "ne", OUTPUT, "x"), grades=[{"any": YES}, {"any": YES}])
        write(
            project / "export" / "eval.json",
            eval_of(check("any", "ne", OUTPUT, "x"), data_source_config={"type": "custom", "schema": schema}),
        )
        write(project / "export" / "run.json", run_of(data_source=source))
        _, report = run(capsys, "import", "export", "--output", "imported")
        require_same_grades(capsys, report)

    @pytest.mark.parametrize("first", range(0, 60, 10))
    def test_damaged_exports_are_imported_as_far_as_possible(
        self, project: Path, monkeypatch: pytest.MonkeyPatch, first: int
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test-0123456789")
        criteria = [*(one[0] for one in LOCAL), *(one[0] for one in JUDGES)]
        grades = {str(one["name"]): YES for one in criteria}
        items = [output_item(0, grades), output_item(1, grades, 2)]
        export = {"eval": eval_of(*criteria), "runs": [run_of(), run_of(2)], "items": items, "rows": [DASHBOARD]}
        for seed in range(first, first + 10):
            write(project / f"{seed}.json", mutated(export, seed))
            folder = project / f"imported {seed}"
            assert run_command(["import", f"{seed}.json", "--from", "openai-evals", "--output", str(folder)]) in (
                0,
                1,
                3,
            )
            for suite in folder.glob("*.yaml"):
                read_suite(suite)


ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def evals_api(criteria: list[dict[str, Any]], items: list[dict[str, Any]]) -> Iterator[str]:
    """The routes of the Evals API that list things, with one output item per page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path.endswith("/output_items"):
                ids = [item["id"] for item in items]
                start = ids.index(query.split("after=")[1].split("&")[0]) + 1 if "after=" in query else 0
                found = {"object": "list", "data": items[start : start + 1], "has_more": start + 1 < len(items)}
            elif path.endswith("/runs"):
                found = {"object": "list", "data": [run_of()] if "after=" not in query else [], "has_more": False}
            elif path.endswith("/evals"):
                found = {"object": "list", "data": [eval_of()], "has_more": False}
            else:
                found = eval_of(*criteria)
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as url:
        yield url


def test_the_documented_script_exports_what_can_be_imported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "from-openai-evals.md").read_text()
    script = re.search(r'```python title="export_evals.py"[^\n]*\n(.*?)```', page, re.DOTALL)
    assert script is not None
    criteria = [JUDGES[0][0], JUDGES[2][0], *(one[0] for one in LOCAL)]
    grades = [{str(one["name"]): YES for one in criteria}, {str(one["name"]): NO for one in criteria}]
    with evals_api(criteria, [output_item(number, one) for number, one in enumerate(grades)]) as url:
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-of-a-test-0123456789"}
        command = [sys.executable, "-c", script[1]]
        subprocess.run(command, check=True, cwd=project, env=environment, capture_output=True)
    code, report = run(capsys, "import", "export/eval_1", "--output", "imported")
    assert (code, not_mapped(report), len(report["runs"])) == (3, [], 1)
    recorded = graded(capsys, report["runs"][0])
    assert {name for _, name in recorded} == {str(one["name"]) for one in criteria}
    assert recorded[("item-0", "eq")] == YES
