"""The JSON Schema accepts and refuses the same suites as the reader."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradeline import extractors, graders, targets
from gradeline.cli.starter.agents import KINDS, AgentChoice
from gradeline.cli.starter.suite import starter_files
from gradeline.graders import Grader
from gradeline.model import Config, Response, Sample, described
from gradeline.suite.cases import DatasetError
from gradeline.suite.dataset import open_dataset
from gradeline.suite.declaration import GraderEntry, SuiteFile, TargetEntry, keys_of
from gradeline.suite.document import read_document
from gradeline.suite.problems import DocumentError
from gradeline.suite.read import read_suite
from gradeline.suite.schema import DIALECT, schema_text, suite_schema
from gradeline.targets import DeclaredTarget, TargetConfig
from gradeline.verdict import read_gate

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMA = suite_schema()
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)
ABSENT = object()

HTTP: dict[str, Any] = {
    "name": "capitals",
    "description": "All that an HTTP agent may be schema_faults.",
    "dataset": "cases.jsonl",
    "target": {
        "kind": "http",
        "url": "http://127.0.0.1:9000/evaluate/{{id}}",
        "method": "PUT",
        "headers": {"Authorization": "Bearer ${AGENT_KEY}"},
        "request": {"input": "{{input}}", "deep": [{"x": "{{metadata.x}}"}]},
        "response": {"output": "a.b", "tool_calls": "calls", "usage": "usage", "error": "error", "trajectory": None},
        "timeout": 5,
        "retries": 0,
        "concurrency": 3,
        "rate": {"calls": 60, "per": "minute"},
        "poll": {"url": "/jobs/{{response.id}}", "until": "done", "interval": 1},
        "session": {"read": "session", "send": "session"},
        "x-note": "mine",
    },
    "graders": {
        "exact": {"kind": "string-match", "mode": "fuzzy", "config": {"threshold": 0.5}, "display_name": "Right"},
        "truth": {"type": "true-false", "aliases": {"true": ["si"], "false": ["nada"]}},
        "rules": {
            "kind": "custom-rules",
            "config": {
                "rules": [
                    {"condition": "contains", "value": "Paris", "weight": 2, "negate": True},
                    {"all": [{"condition": "is_json"}], "required": True},
                    {"at_least": {"n": 1, "rules": [{"any": [{"condition": "word_count_max", "value": 9}]}]}},
                    {"condition": "split", "separator": ",", "item": 0, "rules": [{"condition": "is_upper"}]},
                ]
            },
        },
        "letta": {
            "kind": "tool",
            "function": "exact_match",
            "extractor": "pattern",
            "extractor_config": {"pattern": "A: (.*)", "group": 1},
            "pass_threshold": 1,
        },
        "number": {"kind": "tool", "function": "numeric", "tolerance": 0.1, "config": {"relative": True}},
        "shape": {"kind": "json_schema", "schema": {"type": "object", "required": ["a"]}},
        "fields": {"kind": "tool", "function": "own.py:fields", "extractor": "own.py:mine", "timeout": 2},
        "calls": {"kind": "tool_calls", "preset": "bfcl"},
        "steps": {"kind": "trajectory", "order": ["search", "answer"], "max_steps": 4},
    },
    "gate": {"kind": "simple", "metric_key": "exact", "aggregation": "avg_score", "op": "gte", "value": 0.8},
    "max_samples": 10,
    "sample_tags": ["geo"],
    "num_runs": 2,
    "max_concurrent": 4,
    "setup_script": "setup.py:prepare",
    "coverage_floor": 0.9,
    "x-owner": {"team": "me"},
}
COMMAND: dict[str, Any] = {
    "name": "program",
    "dataset": [{"id": 1, "input": ["a", "b"], "ground_truth": ["c", 4], "tags": ["t"], "own": {"x": 1}}],
    "target": {
        "kind": "command",
        "command": ["prog", "{{input}}"],
        "input": "argument",
        "output": "json",
        "response": {"output": "text"},
        "env": {"KEY": "${AGENT_KEY}"},
        "timeout": 1.5,
        "max_output": 100,
    },
    "graders": {"near": {"kind": "similarity", "threshold": 0.5}, "fast": {"kind": "latency", "max_ms": 100}},
    "repeats": 3,
    "concurrency": 1,
}
REPLAY: dict[str, Any] = {
    "name": "again",
    "dataset": "cases.jsonl",
    "target": {"kind": "replay", "responses": "answers.jsonl"},
    "graders": {"same": {"kind": "exact_match"}},
    "gate": {"metric": "accuracy", "op": "gte", "value": 90, "pass_op": "gte", "pass_value": 0.5},
}
PYTHON: dict[str, Any] = {
    "name": "function",
    "dataset": "cases.jsonl",
    "target": {"kind": "python", "function": "agent.py:answer", "isolation": "none"},
    "graders": {"words": {"kind": "rouge", "extractor": "json", "extractor_config": {"path": "a"}}},
}
JUDGED: dict[str, Any] = {
    "name": "judged",
    "dataset": "cases.jsonl",
    "target": {"kind": "python", "function": "agent.py:answer"},
    "graders": {
        "quality": {
            "kind": "model_judge",
            "prompt": "{submission}",
            "model": "m",
            "provider": "vllm",
            "base_url": "http://127.0.0.1:8000/v1",
            "api_key_env": "MY_KEY",
            "temperature": 0.0,
            "system_prompt": "Be strict.",
            "rubric_vars": ["tone"],
            "max_retries": 5,
            "timeout": 120.0,
            "max_tokens": 100,
            "seed": 1,
            "reply": {"pattern": r"\[\[(\d+)\]\]", "min": 1, "max": 10},
            "scoring": "samples",
            "samples": 3,
            "model_params": {"top_p": 1},
        },
        "old": {
            "kind": "rubric",
            "config": {"rubric": "factuality@1", "model": "m", "timeout": 3},
            "rubric_vars": {"a": 1},
        },
        "checks": {
            "kind": "tool",
            "function": "model_judge",
            "model": "m",
            "checklist": ["x", {"question": "y", "weight": 2}],
        },
        "several": {
            "kind": "panel",
            "prompt": "x",
            "judges": [{"model": "a"}, {"provider": "google", "model": "b", "temperature": 1}],
            "aggregation": "median",
            "quorum": 1,
        },
        "better": {"kind": "pairwise", "model": "m", "baseline": "latest", "reasoning": True},
        "near": {"kind": "embedding", "pass_threshold": 0.7},
        "agent": {"kind": "letta_judge", "agent_id": "agent-1", "prompt": "x", "rubric_vars": ["tone"], "timeout": 9},
        "documented": {"kind": "rubric", "agent_id": "agent-1", "judge_tool_name": "mark", "config": {"prompt": "x"}},
        "inside": {"type": "rubric", "config": {"agent_id": "agent-1", "prompt": "x", "provider": "openai"}},
        "cheap": {"kind": "cost", "max_cost": 0.01},
    },
    "require_calibrated": True,
}
SUITES = {"http": HTTP, "command": COMMAND, "replay": REPLAY, "python": PYTHON, "judged": JUDGED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("suites")
    (folder / "cases.jsonl").write_text('{"input": "q"}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_KEY", "s3cret")
        patch.setenv("STREAM", "none")
        yield folder


def reader_faults(folder: Path, suite: object) -> list[str]:
    path = folder / "suite.json"
    path.write_text(json.dumps(suite))
    try:
        read_suite(path)
    except DocumentError as error:
        return [str(problem) for problem in error.problems]
    return []


def verdicts(folder: Path, suite: object) -> tuple[bool, bool]:
    """Whether the reader accepts the suite, and whether the schema does."""
    return not reader_faults(folder, suite), VALIDATOR.is_valid(suite)


def edited(suite: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The suite with another value at a path such as ``target.url``."""
    suite = copy.deepcopy(suite)
    *above, last = path.split(".")
    holder = suite
    for step in above:
        holder = holder[step]
    if value is ABSENT:
        del holder[last]
    else:
        holder[last] = value
    return suite


def schema_faults(suite: object) -> list[str]:
    return [f"{list(error.instance_path)}: {error.message[:300]}" for error in VALIDATOR.iter_errors(suite)]


def suites_of_tests() -> Iterator[Any]:
    """The text of every ``SUITE`` in the tests of suites and of the command line."""
    for file in sorted([*ROOT.glob("tests/suite/test_*.py"), *ROOT.glob("tests/cli/test_*.py")]):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="SUITE")], value=ast.Constant(value=str(text))):
                    yield pytest.param(text, id=file.stem)


class TestSchema:
    def test_it_is_a_schema_of_its_draft(self) -> None:
        assert SCHEMA["$schema"] == DIALECT == "https://json-schema.org/draft/2020-12/schema"
        jsonschema_rs.meta.validate(SCHEMA)

    def test_its_text_is_ascii_and_small(self) -> None:
        text = schema_text()
        assert json.loads(text) == SCHEMA
        assert text.isascii()
        assert len(text) < 250_000

    def test_all_references_are_internal(self) -> None:
        for reference in set(references(SCHEMA)):
            assert reference.startswith("#/$defs/")
            found: Any = SCHEMA["$defs"]
            for step in reference.removeprefix("#/$defs/").split("/"):
                found = found[step]

    def test_every_key_has_a_description(self) -> None:
        undescribed = [
            f"{where}.{name}"
            for where, definition in {"": SCHEMA, **SCHEMA["$defs"]}.items()
            for name, option in definition.get("properties", {}).items()
            if isinstance(option, dict) and not (option.get("description") or "$ref" in option or "enum" in option)
        ]
        assert undescribed == []

    def test_every_kind_is_in_it_with_its_description(self) -> None:
        def kinds(place: dict[str, Any]) -> dict[str, str]:
            return {choice["const"]: choice["description"] for choice in place["anyOf"] if "const" in choice}

        definitions = SCHEMA["$defs"]
        aliases = {"agent": "Another name of letta_agent."}
        assert kinds(definitions["target"]["properties"]["kind"]) == listed(targets.registry.list()) | aliases
        assert kinds(definitions["extractor"]) == listed(extractors.registry.list())
        assert kinds(definitions["function-of-grader"]) == listed(graders.registry.list())
        assert listed(graders.registry.list()).items() <= kinds(definitions["kind-of-grader"]).items()


def listed(entries: list[dict[str, Any]]) -> dict[str, str]:
    return {entry["id"]: entry["description"] for entry in entries}


def references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from references(item)


class TestValidSuites:
    @pytest.mark.parametrize("kind", SUITES)
    def test_suites_written_here(self, folder: Path, kind: str) -> None:
        assert (reader_faults(folder, SUITES[kind]), schema_faults(SUITES[kind])) == ([], [])

    @pytest.mark.parametrize("path", sorted(ROOT.glob("examples/**/*.y*ml")), ids=lambda path: path.stem)
    def test_suites_of_the_examples(self, path: Path) -> None:
        assert schema_faults(read_document(path).data) == []

    @pytest.mark.parametrize("text", list(suites_of_tests()))
    def test_suites_of_the_tests(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "suite.yaml"
        path.write_text(text)
        assert schema_faults(read_document(path).data) == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_suites_written_by_init(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "suite.yaml"
        path.write_text(starter_files(AgentChoice(kind))["suite.yaml"])
        assert schema_faults(read_document(path).data) == []

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("description", None),
            ("gate", None),
            ("num_runs", None),
            ("max_samples", 0),
            ("sample_tags", None),
            ("setup_script", None),
            ("cleanup", True),
            ("sandbox", {"kind": "modal", "image": "x"}),
            ("target.stream", "${STREAM}"),
            ("target.request", {"a": ["{{input}}", 1, None]}),
            ("target.rate.per", 2.5),
            ("graders.exact.config", None),
            ("graders.exact.pass_threshold", None),
            ("graders.exact.noise", None),
            ("graders.exact.noise", 0),
            ("graders.exact.noise", 0.01),
            ("graders.fields.noise", 0.999),
            ("graders.exact.extractor_config", None),
            ("graders.exact.x-note", 1),
            ("graders.exact.config.x-note", 1),
            ("graders.exact", {"kind": "string_match"}),
            ("graders.exact", {"kind": "string-match", "type": "numeric", "mode": "contains"}),
            ("graders.rules", {"kind": "custom-json", "rules": [{"none": [{"condition": "is_url"}]}]}),
            ("graders.fields.config", {}),
            ("graders.fields.function", "module:name"),
            ("graders.fields.extractor_config", None),
            ("graders.letta", {"type": "tool", "function": "json_schema", "config": {"schema": True}}),
        ],
    )
    def test_less_common_ways_to_write_one(self, folder: Path, path: str, value: object) -> None:
        suite = edited(HTTP, path, value)
        assert (reader_faults(folder, suite), schema_faults(suite)) == ([], [])

    @pytest.mark.parametrize(
        ("noun", "registry"),
        [("grader", graders.registry), ("extractor", extractors.registry), ("target", targets.registry)],
    )
    def test_every_default_may_be_written_out(self, noun: str, registry: Any) -> None:
        for entry in registry.list():
            options = {
                name: option["default"]
                for name, option in entry["config_schema"].get("properties", {}).items()
                if "default" in option
            }
            definition = next(
                SCHEMA["$defs"][f"{noun}-{kind}"]
                for kind in [entry["id"], *same_options(registry, entry)]
                if f"{noun}-{kind}" in SCHEMA["$defs"]
            )
            assert options.keys() <= definition["properties"].keys()
            closed = {**definition, "required": [], "$defs": SCHEMA["$defs"]}
            assert jsonschema_rs.is_valid(closed, options), entry["id"]

    def test_keys_for_cost_output_and_rewards(self) -> None:
        suite = {
            **PYTHON,
            "$schema": "suite.schema.json",
            "reward": {"kind": "custom", "function": "reward.py:compose"},
            "output": "results",
            "agent_errors": "fail",
            "require_calibrated": True,
            "budget": {"cost": 5, "calls": 1000},
            "cache": True,
            "seed": 7,
        }
        assert schema_faults(edited(suite, "target.models", ["a", "b"])) == []
        assert schema_faults(edited(suite, "target.model_handles", ["a"])) == []


def same_options(registry: Any, entry: dict[str, Any]) -> list[str]:
    return [other["id"] for other in registry.list() if other["config_schema"] == entry["config_schema"]]


BROKEN = [
    ("name", ABSENT),
    ("name", 3),
    ("name", ""),
    ("description", 3),
    ("dataset", ABSENT),
    ("dataset", 3),
    ("nam", "x"),
    ("grader", {}),
    ("target", ABSENT),
    ("target", "http"),
    ("target.kind", ABSENT),
    ("target.kind", "htp"),
    ("target.kind", ["http"]),
    ("target.url", ABSENT),
    ("target.url", 3),
    ("target.timeout", 0),
    ("target.timeout", "5"),
    ("target.retries", -1),
    ("target.headers", {"X": 1}),
    ("target.stream", "xml"),
    ("target.rate.calls", 0),
    ("target.rate.cals", 1),
    ("target.rate.per", "day"),
    ("target.response.outputs", "a"),
    ("target.poll.until", ABSENT),
    ("target.function", "agent.py:answer"),
    ("graders", ABSENT),
    ("graders", {}),
    ("graders", ["exact"]),
    ("graders.exact", "string-match"),
    ("graders.exact.kind", ABSENT),
    ("graders.exact.kind", "string-mach"),
    ("graders.exact.kind", "custom-jsn"),
    ("graders.exact.kind", None),
    ("graders.exact.kind", ["string-match"]),
    ("graders.exact.extractor", ""),
    ("graders.exact.mode", "fuzy"),
    ("graders.exact.case_sensitive", "yes"),
    ("graders.exact.colour", "red"),
    ("graders.exact.threshold", 0.5),
    ("graders.exact.config", "fuzzy"),
    ("graders.exact.config", {"colour": "red"}),
    ("graders.exact.config", {"threshold": 2}),
    ("graders.exact.pass_threshold", 2),
    ("graders.exact.pass_threshold", "1"),
    ("graders.exact.noise", 1),
    ("graders.exact.noise", -0.01),
    ("graders.exact.noise", "0.01"),
    ("graders.exact.noise", True),
    ("graders.exact.config.noise", 0.01),
    ("graders.exact.timeout", 0),
    ("graders.exact.timeout", None),
    ("graders.exact.extractor", 3),
    ("graders.exact.extractor", "pattern"),
    ("graders.exact.extractor_config", {"separator": ","}),
    ("graders.exact.extractor_config", "separator"),
    ("graders.letta.extractor_config", ABSENT),
    ("graders.letta.extractor_config", None),
    ("graders.letta.extractor_config.grop", 1),
    ("graders.letta.extractor_config.group", -1),
    ("graders.letta.function", ABSENT),
    ("graders.letta.function", 3),
    ("graders.letta.mode", "contains"),
    ("graders.number.tolerance", "a"),
    ("graders.fields.colour", "red"),
    ("graders.fields.config", {"colour": "red"}),
    ("graders.shape.schema", ABSENT),
    ("graders.shape.schema", "object"),
    ("graders.rules.config", ABSENT),
    ("graders.rules.config", {}),
    ("graders.rules.rules", [{"condition": "contains", "value": "x"}]),
    ("graders.rules.config.rules", []),
    ("graders.rules.config.rules", [{"condition": "contain", "value": "x"}]),
    ("graders.rules.config.rules", [{"condition": "contains"}]),
    ("graders.rules.config.rules", [{"condition": "contains", "value": 3}]),
    ("graders.rules.config.rules", [{"condition": "contains", "value": "x", "weigth": 1}]),
    ("graders.rules.config.rules", [{"value": "x"}]),
    ("graders.rules.config.rules", [{"all": []}]),
    ("graders.rules.config.rules", [{"all": [{"condition": "is_jsn"}]}]),
    ("graders.rules.config.rules", [{"all": [{"condition": "is_json"}], "any": [{"condition": "is_json"}]}]),
    ("graders.rules.config.rules", ["contains"]),
    ("gate", "simple"),
    ("gate.kind", "simpel"),
    ("gate.op", ABSENT),
    ("gate.op", "ge"),
    ("gate.value", "0.8"),
    ("gate.aggregation", "mean"),
    ("gate.metric_kye", "exact"),
    ("max_samples", -1),
    ("max_samples", "10"),
    ("sample_tags", "geo"),
    ("sample_tags", [1]),
    ("num_runs", 0),
    ("num_runs", True),
    ("repeats", 2),
    ("concurrency", 2),
    ("max_concurrent", 1.5),
    ("setup_script", 3),
    ("coverage_floor", 95),
    ("coverage_floor", None),
]


BROKEN_JUDGES = [
    ("graders.quality.kind", "letta_judge"),
    ("graders.quality.provider", "opnai"),
    ("graders.quality.temperature", "cold"),
    ("graders.quality.timeout", 0),
    ("graders.quality.agent_file", "judge.af"),
    ("graders.quality.api_key", "sk-x"),
    ("graders.quality.reply.max", ABSENT),
    ("graders.quality.reply", {}),
    ("graders.quality.reply.choices", {"A": 1, "B": 0}),
    ("graders.quality.reply", {"choices": {"A": "1"}}),
    ("graders.quality.reply.maximum", 3),
    ("graders.quality.scoring", "best"),
    ("graders.quality.samples", 1),
    ("graders.quality.rubric_vars", "tone"),
    ("graders.old.agent_id", "agent-1"),
    ("graders.agent.api_key", "sk-x"),
    ("graders.agent.judge_tool_name", ""),
    ("graders.documented.checklist", ["x"]),
    ("graders.inside.config.scoring", "samples"),
    ("graders.checks.checklist", [{"weight": 2}]),
    ("graders.checks.checklist", [{"question": "y", "weight": 0}]),
    ("graders.several.judges", ABSENT),
    ("graders.several.judges", [{"model": "a"}]),
    ("graders.several.judges", [{"model": "a"}, {"modle": "b"}]),
    ("graders.several.aggregation", "max"),
    ("graders.better.order", "both"),
    ("graders.near.provider", "gemini"),
    ("graders.cheap.max_cost", ABSENT),
    ("graders.cheap.max_cost", -1),
]


class TestFaultySuites:
    @pytest.mark.parametrize(("path", "value"), BROKEN_JUDGES)
    def test_both_refuse_faulty_judges(self, folder: Path, path: str, value: object) -> None:
        assert verdicts(folder, edited(JUDGED, path, value)) == (False, False)

    @pytest.mark.parametrize(("path", "value"), BROKEN)
    def test_both_refuse_faulty_suites(self, folder: Path, path: str, value: object) -> None:
        assert verdicts(folder, edited(HTTP, path, value)) == (False, False)

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("command", "prog"),
            ("command", []),
            ("input", "stdn"),
            ("env", {"A": 1}),
            ("max_output", 0),
            ("responses", "answers.jsonl"),
        ],
    )
    def test_the_options_of_another_target(self, folder: Path, path: str, value: object) -> None:
        assert verdicts(folder, edited(COMMAND, f"target.{path}", value)) == (False, False)

    def test_read_as_draft_7_the_schema_means_the_same(self) -> None:
        older = jsonschema_rs.Draft7Validator({key: value for key, value in SCHEMA.items() if key != "$schema"})
        assert [kind for kind, suite in SUITES.items() if not older.is_valid(suite)] == []
        assert [edit for edit in BROKEN if older.is_valid(edited(HTTP, *edit))] == []

    @pytest.mark.slow
    @given(data=st.data())
    @settings(deadline=None, max_examples=200)
    def test_both_refuse_a_misspelt_key(self, folder: Path, data: st.DataObject) -> None:
        suite = copy.deepcopy(data.draw(st.sampled_from(list(SUITES.values()))))
        holder, key = data.draw(st.sampled_from(list(named_keys(suite))))
        wrong = data.draw(misspellings(key))
        assume(wrong not in KNOWN and not wrong.startswith("x-"))
        items = [(wrong if name == key else name, value) for name, value in holder.items()]
        holder.clear()
        holder.update(items)
        assert verdicts(folder, suite) == (False, False)


def named_keys(tree: object) -> Iterator[tuple[dict[str, Any], str]]:
    """Every key whose name the format defines, with its mapping."""
    if isinstance(tree, list):
        for item in tree:
            yield from named_keys(item)
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key.startswith("x-"):
                continue
            yield tree, key
            if key == "graders":
                for grader in value.values():
                    yield from named_keys(grader)
            elif key not in (
                "dataset",
                "headers",
                "env",
                "request",
                "schema",
                "aliases",
                "rubric_vars",
                "model_params",
            ):
                yield from named_keys(value)


@st.composite
def misspellings(draw: st.DrawFn, word: str) -> str:
    at = draw(st.integers(0, len(word) - 1))
    letter = draw(st.sampled_from("abekorstx_-2"))
    return draw(st.sampled_from([word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word[:at] + letter + word[at + 1 :]]))  # fmt: skip


def names(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield from schema["properties"]
        for value in schema.values():
            yield from names(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from names(item)


KNOWN = set(names(SCHEMA))


GATES: list[Any] = [
    {"op": "gte", "value": 0.5},
    {"kind": None, "op": "gte", "value": 0.5, "pass_threshold": None},
    {"kind": "simple", "op": "gte", "value": 0.5, "coverage_floor": 0.5, "agent_errors": "fail"},
    {"kind": "weighted_average", "weights": {"a": 2, "b": 1}, "aggregation": "avg_score", "op": "gt", "value": 0.5},
    {
        "kind": "logical",
        "operator": "and",
        "conditions": [
            {"metric_key": "a", "op": "gte", "value": 0.5},
            {"kind": "logical", "operator": "or", "conditions": [{"op": "lt", "value": 1}]},
        ],
    },
    {"kind": "regression", "baseline": "latest~1", "margin": 0.02},
    {"kind": "consistency", "k": 2, "n": 3, "op": "gte", "value": 0.9},
    {"kind": "consistency", "pass_hat": 3, "op": "gte", "value": 0.9, "x-why": "flaky"},
    [],
    {},
    {"kind": "wheighted", "op": "gte", "value": 0.5},
    {"op": "gte"},
    {"op": "gte", "value": "much"},
    {"op": "gte", "value": 0.5, "weights": {"a": 1}},
    {"kind": "weighted_average", "weights": {}, "aggregation": "avg_score", "op": "gt", "value": 0.5},
    {"kind": "weighted_average", "weights": {"a": "x"}, "aggregation": "avg_score", "op": "gt", "value": 0.5},
    {"kind": "logical", "operator": "and", "conditions": []},
    {"kind": "logical", "operator": "xor", "conditions": [{"op": "lt", "value": 1}]},
    {"kind": "logical", "operator": "and", "conditions": [{"op": "lt", "valeu": 1}]},
    {"kind": "regression"},
    {"kind": "regression", "baseline": "a", "margin": 2},
    {"kind": "consistency", "k": 0, "n": 3, "op": "gte", "value": 0.9},
]


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_the_schema_accepts_a_gate_that_can_be_read(gate: Any) -> None:
    assert VALIDATOR.is_valid({**PYTHON, "gate": gate}) == (not read_gate(gate, []).problems)


ROWS: list[Any] = [
    {"input": "a"},
    {"input": 4, "ground_truth": 4.5},
    {"prompt": "a", "input": None},
    {"input": ["a", 1], "ground_truth": ["b", True]},
    {"input": "a", "id": 7, "tags": ["x"], "metadata": {}, "own": [1], "rubric": "r", "extra_vars": None},
    {},
    "a",
    {"input": ""},
    {"input": []},
    {"input": ["a", ""]},
    {"input": {"a": 1}},
    {"inputs": "a"},
    {"input": "a", "ground_truth": {"x": 1}},
    {"input": "a", "tags": "x"},
    {"input": "a", "metadata": [1]},
    {"input": "a", "id": ""},
    {"input": "a", "id": 1.5},
    {"input": "a", "rubric": 3},
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_schema_accepts_a_case_that_can_be_read(row: Any) -> None:
    try:
        read = bool(list(open_dataset([row])))
    except DatasetError:
        read = False
    assert VALIDATOR.is_valid({**PYTHON, "dataset": [row]}) == read


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("agent_errors", "ignore"),
        ("require_calibrated", "yes"),
        ("cache", "yes"),
        ("seed", 1.5),
        ("budget", 5),
        ("budget", {"costs": 5}),
        ("budget", {"cost": 0}),
        ("budget", {"calls": 0}),
        ("reward", "exact"),
        ("reward", {"kind": "metric"}),
        ("reward", {"kind": "metric", "function": "a.py:b"}),
        ("reward", {"kind": "mine", "function": "a.py:b"}),
        ("target.models", "gpt"),
        ("target.models", ["gpt", "gpt"]),
        ("target.models", [""]),
        ("variants", []),
        ("variants", ["a"]),
        ("variants", [{"set": {}}]),
        ("variants", [{"name": "a", "sets": {}}]),
        ("variants", [{"name": "a", "set": {"graders.exact.kind": "contains"}}]),
        ("prompts", "a.md"),
        ("prompts", [5]),
        ("models", "gpt"),
    ],
)
def test_the_values_of_further_keys_are_checked(folder: Path, path: str, value: object) -> None:
    assert verdicts(folder, edited(PYTHON, path, value)) == (False, False)


@pytest.mark.parametrize("value", [None, [{"name": "a"}], [{"name": "a", "set": {"target.timeout": 3}}]])
def test_variants_are_accepted(folder: Path, value: object) -> None:
    assert verdicts(folder, edited(PYTHON, "variants", value)) == (True, True)


def test_models_may_be_next_to_the_target_but_not_in_it_too(folder: Path) -> None:
    models = edited(PYTHON, "models", ["a", "b"])
    assert verdicts(folder, models) == (True, True)
    assert verdicts(folder, edited(models, "target.models", ["c"])) == (False, False)
    assert verdicts(folder, edited(models, "target.model", "c")) == (False, False)


def test_two_names_of_one_key_are_refused(folder: Path) -> None:
    models = edited(PYTHON, "target.models", ["a"])
    assert verdicts(folder, edited(models, "target.model_handles", ["b"])) == (False, False)
    assert verdicts(folder, edited(models, "target.model", "b")) == (False, False)
    assert VALIDATOR.is_valid(edited(models, "target.model_handles", None))
    assert VALIDATOR.is_valid({**COMMAND, "num_runs": None})


def test_it_has_the_declared_keys_and_the_aliases_of_letta_evals() -> None:
    aliases = {"num_runs", "max_concurrent", "sandbox"}
    assert [name for name in SCHEMA["properties"] if name not in aliases] == list(keys_of(SuiteFile))
    assert aliases <= SCHEMA["properties"].keys()
    assert SCHEMA["required"] == ["name", "dataset", "target", "graders"]
    assert list(SCHEMA["$defs"]["grader"]["properties"]) == list(keys_of(GraderEntry))
    assert list(SCHEMA["$defs"]["target"]["properties"]) == [*keys_of(TargetEntry), "model_handles"]


class Rate(Config, frozen=True):
    """A custom rate."""

    beats: Annotated[int, described("How many a minute.")] = 60


class MusicConfig(TargetConfig, frozen=True, kw_only=True):
    song: Annotated[str, described("What it sings.")]
    tempo: Annotated[Rate, described("How fast.")] = Rate()


class MusicTarget(DeclaredTarget[MusicConfig]):
    """Sings."""

    kind = "music/box"
    name = "Music"

    async def call(self, sample: Sample) -> Response:
        return Response(text=self.options.song)


class PlainGrader(Grader):
    """A grader without declared options."""

    def grade(self, actual: str, expected: str) -> float:
        return 1.0


class TestPlugins:
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = globals()
        monkeypatch.setattr(targets.registry, "_load", lambda point: here[point.value])
        monkeypatch.setattr(graders.registry, "_load", lambda point: here[point.value])
        points = {"gradeline.targets": ("music/box", "MusicTarget"), "gradeline.graders": ("plain", "PlainGrader")}

        def entry_points(group: str) -> list[Any]:
            from importlib.metadata import EntryPoint

            return [EntryPoint(*points[group], group)] if group in points else []

        monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
        monkeypatch.setattr("gradeline.model.registry._installed_groups", lambda path: frozenset(points))

    def test_a_target_brings_its_options(self) -> None:
        schema = suite_schema()
        jsonschema_rs.meta.validate(schema)
        suite = {**PYTHON, "target": {"kind": "music/box", "song": "la", "tempo": {"beats": 90}, "rate": {"calls": 1}}}
        assert jsonschema_rs.is_valid(schema, suite)
        assert not jsonschema_rs.is_valid(schema, edited(suite, "target.song", ABSENT))
        assert not jsonschema_rs.is_valid(schema, edited(suite, "target.tempo", {"calls": 1}))
        assert not jsonschema_rs.is_valid(schema, edited(suite, "target.rate", {"beats": 1}))
        assert not VALIDATOR.is_valid(suite)

    def test_a_grader_without_declared_options_takes_any(self) -> None:
        suite = {**PYTHON, "graders": {"own": {"kind": "plain", "colour": "red", "config": {"size": 3}}}}
        assert jsonschema_rs.is_valid(suite_schema(), suite)
        assert not jsonschema_rs.is_valid(suite_schema(), edited(suite, "graders.own.timeout", 0))
