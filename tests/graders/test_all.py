"""Properties of every built-in grader with any input."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import GradeContext, Response, Sample
from gradeline.errors import GRADE_POLICY
from gradeline.graders import create, from_definition, registry, run_grader
from gradeline.graders.registry import BUILTINS
from gradeline.model import Grade, Message, ToolCall, Trajectory, from_json, to_json

CONFIGS: dict[str, dict[str, Any]] = {
    "custom-rules": {
        "rules": [
            {"condition": "contains", "value": "$expected"},
            {"condition": "regex", "value": r"(?i)\w+\d"},
            {"condition": "json", "path": "a.b", "operator": "exists"},
            {"condition": "numeric_range", "value": [0, 100]},
            {"condition": "split", "separator": ",", "min": 1},
            {"condition": "is_url"},
            {"condition": "word_count_min", "value": 1},
        ]
    },
    "json_schema": {"schema": {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}},
    "trajectory": {"max_steps": 3, "order": ["a"], "allow_repeats": False},
    "cost": {"max_cost": 0.5},
    "command": {"command": ["true"]},
    "http": {"url": "http://127.0.0.1:9/grade"},
    "model_judge": {"prompt": "Is it right?"},
    "letta_judge": {"prompt": "Is it right?", "agent_id": "agent-1"},
    "formula": {"formula": "(exact + 1) / 2"},
    "checks_metric": {"metric": "accuracy"},
    "panel": {"prompt": "Is it right?", "judges": [{"model": "a"}, {"provider": "anthropic", "model": "b"}]},
}
KINDS = sorted(name for name, home in BUILTINS.items() if ".graders." in home)
"""The graders that make no calls."""

any_text = st.text(st.characters(exclude_categories=()), max_size=200)
pieces = st.lists(
    st.sampled_from(
        ["true", "no", "42", "-1,234.5", "#### ", "\\boxed{", "1/2", "{", "}", "[", "]", '"', ":", ",", '{"a": 1}', "NaN",
         "1e999", "1" * 400, "(", ")+", "\\", "\0", "\ud800", "\u202e", "\n", " ", "é", "answer is ", "```json\n", "\n```",
         '[{"name": "f", "arguments": {"x": [1]}}]', "null", "\ufeff", "`" * 3, "$expected"]
    ),
    max_size=12,
).map("".join)  # fmt: skip
texts = any_text | pieces
things = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), texts, st.lists(texts, max_size=2)
)


class Raising(str):
    """A string whose methods raise."""

    def _raises(self, *_: object, **__: object) -> Any:
        raise RuntimeError("a string of a hostile class")

    isascii = encode = strip = casefold = lower = split = splitlines = find = count = _raises
    startswith = endswith = replace = isupper = islower = format = partition = _raises
    __len__ = __contains__ = __eq__ = __hash__ = __getitem__ = __iter__ = __str__ = __repr__ = __add__ = _raises


@pytest.mark.parametrize("kind", KINDS)
def test_a_string_of_a_class_that_raises_is_graded_as_the_string_it_is(kind: str) -> None:
    grader = registry.get(kind)(config=CONFIGS.get(kind, {}))
    for text in ("Paris 42", "true", '{"a": 1}', "", "é\0"):
        plain = grader.grade(text, "Paris 42")
        assert grader.grade(Raising(text), Raising("Paris 42")) == plain
        assert grader.grade(actual=Raising(text), expected="Paris 42") == plain


def hostile() -> list[str]:
    """Hostile texts."""
    return [
        "[" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "1" * 50_000,
        "-" + "9" * 5_000 + ".5",
        "1e" + "9" * 50,
        '{"a": NaN, "b": Infinity}',
        "\ud800" * 1_000,
        "\0" * 1_000,
        "a" * 90_000 + "!",
        "(a+)+$",
        "```" + " " * 50_000,
        "~" * 50_000 + "\n",
        "answer" + " " * 50_000,
        "111," * 20_000 + "1111",
        "1/" * 40_000,
        "\\frac{1}{" * 10_000,
        "[" * 150 + "1," * 40_000,
        "\n" * 90_000,
        '[{"name": "f", "arguments": {}},' * 3_000,
        "é" * 90_000,
    ]


def context(submission: str, expected: str | None) -> GradeContext:
    call = ToolCall("a", submission)
    steps = Trajectory(((Message("assistant", submission, (call, call)),),))
    response = Response(text=submission, trajectory=steps, latency_ms=12.5)
    return GradeContext(Sample(0, "q", expected), submission, response)


def report(grade: Grade) -> Grade:
    """A grade without its times."""
    return msgspec.structs.replace(grade, latency_ms=None)


@pytest.mark.parametrize("kind", KINDS)
class TestEveryGrader:
    @given(submission=texts, expected=st.none() | texts)
    def test_any_text_ends_in_an_outcome(self, kind: str, submission: str, expected: str | None) -> None:
        grader = create(kind, CONFIGS.get(kind))
        grade = run_grader(grader, context(submission, expected))
        if grade.score is None:
            assert grade.outcome == "error"
            assert grade.error is not None
            assert grade.error.type in GRADE_POLICY, (grade.error.type, grade.error.traceback)
            assert grade.error.message
        else:
            assert type(grade.score) is float
            assert math.isfinite(grade.score)
            assert 0.0 <= grade.score <= 1.0
            assert grade.outcome == ("pass" if grade.passed else "fail")
            assert grade.rationale
        assert report(run_grader(create(kind, CONFIGS.get(kind)), context(submission, expected))) == report(grade)
        assert from_json(Grade, to_json(grade)) == grade

    @given(actual=things, expected=things)
    def test_the_text_form_never_raises(self, kind: str, actual: object, expected: object) -> None:
        result: Any = create(kind, CONFIGS.get(kind))
        graded = result.grade(actual, expected)
        assert set(graded) == {"passed", "score", "details"}
        assert type(graded["passed"]) is bool
        assert type(graded["score"]) is float
        assert 0.0 <= graded["score"] <= 1.0
        assert graded["details"]["reason"]

    def test_objects_that_are_not_data_get_a_reason(self, kind: str) -> None:
        class Hostile:
            def __str__(self) -> str:
                raise RuntimeError("no")

            __repr__ = __str__

        grader: Any = create(kind, CONFIGS.get(kind))
        for thing in (Hostile(), 10**5000, float("nan"), {1, 2}, [[Hostile()]], b"\xff\0"):
            assert grader.grade(thing, thing)["details"]["reason"]

    def test_hostile_texts_end_in_an_outcome(self, kind: str) -> None:
        grader = create(kind, CONFIGS.get(kind))
        for submission in hostile():
            for expected in ("4", "(a+)+$", '{"a": 1}', '[{"name": "f", "arguments": {}}]', submission):
                grade = run_grader(grader, context(submission, expected))
                assert grade.outcome in ("pass", "fail", "error")
                assert grade.error is None or grade.error.type in GRADE_POLICY, grade.error

    def test_a_failed_call_is_skipped(self, kind: str) -> None:
        failed = msgspec.json.decode(
            b'{"status":"timeout","error":{"type":"timeout","message":"30 s","fault":"agent"}}', type=Response
        )
        grade = run_grader(create(kind, CONFIGS.get(kind)), GradeContext(Sample(0, "q", "a"), "", failed))
        assert (grade.outcome, grade.score, grade.error) == ("skipped", None, None)

    def test_a_text_over_the_limit_is_too_large(self, kind: str) -> None:
        grader = create(kind, CONFIGS.get(kind))
        grade = run_grader(grader, GradeContext(Sample(0, "q", "a"), "x" * (grader.max_chars + 1)))
        assert grade.error is not None
        assert grade.error.type == ("too_large" if grader.reads_submission else "missing")

    def test_eight_threads_get_the_answers_of_one(self, kind: str) -> None:
        grader = create(kind, CONFIGS.get(kind))
        words = ["true", "42", '{"a": {"b": 1}}', "", "x\ud800", '[{"name": "a", "arguments": {}}]', "no 7"]
        contexts = [context(a, b) for a in words for b in words] * 3
        sequential = [report(run_grader(grader, ctx)) for ctx in contexts]
        with ThreadPoolExecutor(8) as threads:
            together = [
                [report(grade) for grade in threads.map(lambda ctx: run_grader(grader, ctx), contexts)]
                for _ in range(4)
            ]
        assert all(answers == sequential for answers in together)

    def test_its_definition_rebuilds_it(self, kind: str) -> None:
        grader: Any = create(kind, CONFIGS.get(kind))
        assert from_definition(msgspec.json.decode(msgspec.json.encode(grader.definition()))).fingerprint == (
            grader.fingerprint
        )

    def test_explicit_defaults_do_not_change_the_fingerprint(self, kind: str) -> None:
        grader: Any = create(kind, CONFIGS.get(kind))
        schema = grader.describe()["config_schema"]
        defaults = {name: option["default"] for name, option in schema["properties"].items() if "default" in option}
        spelt_out = create(kind, {**defaults, **CONFIGS.get(kind, {})})
        assert spelt_out.fingerprint == grader.fingerprint


class TestListing:
    def test_every_entry_is_complete_and_its_schema_accepts_its_config(self) -> None:
        entries = registry.list()
        assert [entry["id"] for entry in entries] == list(BUILTINS)
        assert len({entry["fingerprint"] for entry in entries}) == len(entries)
        for entry in entries:
            validator = jsonschema_rs.validator_for(entry["config_schema"])
            assert validator.is_valid(CONFIGS.get(entry["id"], {}))
            assert not validator.is_valid({"no_such_option": 1})
            for option in entry["config_schema"]["properties"].values():
                assert option.get("description"), entry["id"]

    def test_only_what_needs_config_requires_it(self) -> None:
        required = {entry["id"] for entry in registry.list() if entry["config_schema"]["required"]}
        assert required == {
            "custom-rules",
            "json_schema",
            "cost",
            "panel",
            "command",
            "http",
            "formula",
            "checks_metric",
        }
