"""Small inputs that cost much: each ends in an outcome, and within limits that would end the process otherwise."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradeline import GradeContext, Sample, graders
from gradeline.errors import NeedsIsolationError
from gradeline.parsing.jmespath import JmesPath
from gradeline.parsing.json_schema import compile_schema

from .corpus import FileBomb, GraderBomb, doubled_references, file_bombs, grader_bombs, long_inputs, path_bombs

UNDER_LIMITS = Path(__file__).with_name("under_limits.py")
LIMITS = {"timeout", "memory", "too_large"}
"""The types of the errors for what passes a limit."""
ENDLESS = ("doubl", "escapes", "passed on", "literals", "definitions")
"""Parts of the names of bombs that exceed any deadline."""


def under_limits(what: str) -> dict[str, str]:
    """The results of the corpus in a process with limits and a deadline of 0.5 instead of 5 seconds."""
    command = [sys.executable, str(UNDER_LIMITS), what, "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    found: dict[str, str] = json.loads(done.stdout)
    return found


def context_of(bomb: GraderBomb) -> GradeContext:
    return GradeContext(Sample(id=0, input="", ground_truth=bomb.expected), bomb.submission)


def test_every_grader_bomb_has_an_outcome() -> None:
    found = under_limits("graders")
    assert list(found) == [bomb.name for bomb in grader_bombs()]
    assert {
        name: outcome for name, outcome in found.items() if outcome not in {"pass", "fail", "ungradable"} | LIMITS
    } == {}
    endless = {name: outcome for name, outcome in found.items() if any(part in name for part in ENDLESS)}
    del endless["JMESPath: doubling of objects"]  # only whether there is something is asked of it
    assert {name: outcome for name, outcome in endless.items() if outcome not in LIMITS} == {}


def test_every_extractor_bomb_has_an_error() -> None:
    found = under_limits("extractors")
    assert {name: outcome for name, outcome in found.items() if outcome not in LIMITS} == {}


def test_a_target_that_reads_such_an_answer_has_an_error() -> None:
    assert set(under_limits("answers").values()) == {"too_large"}


def _limited(seconds: int, size: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    return limit


@pytest.mark.parametrize("bomb", file_bombs(), ids=lambda bomb: bomb.name)
@pytest.mark.parametrize("command", ["validate", "run"])
def test_the_command_line_refuses_such_a_file(bomb: FileBomb, command: str, tmp_path: Path) -> None:
    name, suffix, content = bomb
    file = tmp_path / f"file{suffix}"
    file.write_bytes(content)
    suite = file
    if suffix in (".csv", ".jsonl"):
        suite = tmp_path / "suite.yaml"
        suite.write_text(
            f"name: s\ndataset: {file.name}\ntarget: {{kind: command, command: [cat]}}\ngraders: {{a: {{kind: numeric}}}}"
        )
    done = subprocess.run(
        [sys.executable, "-m", "gradeline", "--store", "memory://", command, str(suite)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_limited(30, 1024**3),
        cwd=tmp_path,
    )
    assert done.returncode == 2, (name, done.returncode, done.stderr[-2000:])
    assert "Traceback" not in done.stderr


def test_the_command_line_grades_answer_bombs(tmp_path: Path) -> None:
    bombs = [bomb for bomb in grader_bombs() if bomb.name.startswith(("schema: references doubled in anyOf", "JMES"))][
        :2
    ]
    cases = tmp_path / "cases.jsonl"
    cases.write_text(json.dumps({"id": "1", "input": "?", "ground_truth": "x"}) + "\n")
    graders = {f"g{index}": {"kind": bomb.kind, "config": bomb.config} for index, bomb in enumerate(bombs)}
    suite = {
        "name": "bombs",
        "dataset": "cases.jsonl",
        "target": {"kind": "command", "command": [sys.executable, "-c", "print('[1]')"], "input": "stdin"},
        "graders": {**graders, "plain": {"kind": "contains"}},
    }
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    command = [sys.executable, "-m", "gradeline", "--store", "sqlite:///s.db", "--json", "run", "suite.json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=_limited(30, 1536 * 1024**2), cwd=tmp_path
    )
    outcome = json.loads(done.stdout)["summary"]["graders"]
    outcomes = {key: (one["errors"], one["scored"]) for key, one in outcome.items()}
    assert outcomes == {"g0": (1, 0), "g1": (1, 0), "plain": (0, 1)}, done.stderr[-2000:]


class TestBounds:
    """Only work with a low upper bound runs in the engine's process."""

    @pytest.mark.parametrize("bomb", path_bombs(), ids=lambda bomb: bomb[0])
    def test_a_path_that_grows_is_not_searched_in_this_process(self, bomb: tuple[str, str, str]) -> None:
        with pytest.raises(NeedsIsolationError):
            JmesPath(bomb[1]).search(json.loads(bomb[2]))

    @pytest.mark.parametrize(
        "path",
        [
            "choices[0].message.content",
            "messages[?role=='assistant'].content | [-1]",
            "items[*].{name: name, price: price}",
            "sort_by(items, &price)[0].name",
            "join(', ', items[*].name)",
            "length(items) > `3` && contains(items[*].name, 'x')",
            "to_string(items[0])",
            "tool_calls || `[]`",
        ],
    )
    def test_usual_paths_are_searched_in_this_process(self, path: str) -> None:
        items = [{"name": str(index), "price": index} for index in range(50)]
        data = {"items": items, "messages": [{"role": "assistant", "content": "x" * 100_000}] * 20}
        JmesPath(path).search(data)

    @pytest.mark.parametrize("bomb", long_inputs(), ids=lambda bomb: bomb.name)
    def test_what_grows_with_the_length_is_not_graded_in_this_process(self, bomb: GraderBomb) -> None:
        grader = graders.create(bomb.kind, bomb.config)
        grade = graders.run_grader(grader, context_of(bomb), isolate=False)
        assert grade.error is not None
        assert grade.error.type == NeedsIsolationError.type

    @pytest.mark.parametrize(
        "bomb",
        [
            GraderBomb("numeric", "numeric", {}, "the year 1969, 2 men; " * 3_000, "2"),
            GraderBomb("string-match", "string-match", {}, "prose " * 40_000, "prose"),
            GraderBomb("json_match", "json_match", {"ignore_list_order": True}, json.dumps([1] * 9_000), "[1]"),
            GraderBomb(
                "tool_calls",
                "tool_calls",
                {},
                json.dumps([{"name": "f"}] * 200),
                json.dumps([]),
            ),
        ],
        ids=lambda bomb: bomb.name,
    )
    def test_usual_lengths_are_graded_in_this_process(self, bomb: GraderBomb) -> None:
        grader = graders.create(bomb.kind, bomb.config)
        grade = graders.run_grader(grader, context_of(bomb), isolate=False)
        assert grade.error is None

    def test_the_size_of_a_schema_includes_its_repeated_references(self) -> None:
        text = json.dumps(["x"])
        assert compile_schema(doubled_references(5)).is_valid("x", len(text)) is True
        with pytest.raises(NeedsIsolationError):
            compile_schema(doubled_references(30)).is_valid("x", len(text))

    def test_a_recursive_schema_of_usual_data_is_checked_in_this_process(self) -> None:
        node = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {}}}
        value: dict[str, object] = {"value": 1}
        for _ in range(50):
            value = {"left": value, "value": 1}
        assert compile_schema(node).is_valid(value, len(json.dumps(value))) is True

    def test_a_schema_with_many_fields_is_checked_in_this_process(self) -> None:
        uuid = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
        fields = {f"field{n}": {"type": "string", "pattern": uuid, "maxLength": 40} for n in range(40)}
        schema = compile_schema({"type": "object", "properties": fields, "additionalProperties": False})
        value = {f"field{n}": "x" * 36 for n in range(40)}
        assert schema.is_valid(value, len(json.dumps(value))) is False
        assert len(schema.errors(value)) == 6
