"""Suites whose agents and graders are functions of this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

from gradeline import Grader, GradeResult, Sample, extractor, grader, graders, run_suite
from gradeline.api import RunResult
from gradeline.api.callables import code_fingerprint
from gradeline.errors import ConfigError, Problem
from gradeline.letta.graders import ContainsGrader
from gradeline.model import GradeContext, Response
from gradeline.store import InMemoryStorage

FILE_AGENT = """
def answer(text):
    return f"The file says {text}."
"""
FILE_GRADERS = """
from gradeline import GradeResult, extractor, grader
@grader
def polite(sample, submission):
    return GradeResult(score=1.0 if "welcome" in submission else 0.0)
@extractor
def shouted(trajectory, config):
    return trajectory[-1][-1].content.upper()
"""
CASES = [
    {"id": country, "input": country, "ground_truth": city, "tags": [tag]}
    for country, city, tag in [
        ("France", "Paris", "south"),
        ("Spain", "Madrid", "south"),
        ("Norway", "Oslo", "north"),
        ("Peru", "Lima", "south"),
    ]
]
CAPITALS = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo"}


def answer(question: str) -> str:
    return CAPITALS.get(question, "I do not know")


@grader
def short(sample: Sample, submission: str) -> GradeResult:
    return GradeResult(1.0 if len(submission) < 10 else 0.0, f"{len(submission)} characters")


class _Base(BaseException):
    pass


class _UnshownError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no")

    __repr__ = __str__


def _raise(error: BaseException) -> None:
    raise error


def suite_options(**changes: Any) -> dict[str, Any]:
    """A suite that is all in Python."""
    return {
        "name": "capitals",
        "dataset": CASES,
        "target": answer,
        "graders": {"right": {"kind": "contains"}, "short": short},
        **changes,
    }


def in_memory(**changes: Any) -> RunResult:
    return run_suite(suite_options(**changes), store="memory://")


def outcomes(result: RunResult, key: str) -> dict[str, str]:
    return {record.case: record.grades[key].outcome.value for record in result.records()}


def problems(suite: Any, **options: Any) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        run_suite(suite, **{"store": "memory://", **options})
    return list(caught.value.problems)


@grader
def shouting(sample: Sample, submission: str) -> GradeResult:
    return GradeResult(1.0 if submission.isupper() else 0.0)


ASKED: list[str] = []


def counted(question: str) -> str:
    ASKED.append(question)
    return answer(question)


def _qualified(name: str) -> str:
    """A function of the test that calls this."""
    code = sys._getframe(1).f_code
    return f"{code.co_qualname}.<locals>.{name}"


class TestFunctionsInASuite:
    def test_a_function_answers_and_functions_grade(self) -> None:
        result = in_memory()
        assert outcomes(result, "right") == {"France": "pass", "Spain": "pass", "Norway": "pass", "Peru": "fail"}
        assert outcomes(result, "short") == {"France": "pass", "Spain": "pass", "Norway": "pass", "Peru": "fail"}
        assert result.run.target == {
            "kind": "python", "function": "answer", "isolation": "none", "fingerprint": result.run.target["fingerprint"],
        }  # fmt: skip
        assert next(result.records()).grades["short"].rationale == "5 characters"

    def test_coroutines_objects_and_partials_answer_too(self) -> None:
        async def later(question: str) -> str:
            await asyncio.sleep(0)
            return answer(question)

        class Agent:
            async def __call__(self, sample: Sample) -> str:
                return answer(str(sample.input))

        for target in (later, Agent(), partial(lambda question, extra: answer(question) + extra, extra="!")):
            assert in_memory(target=target).summary.graders["right"].passed == 3

    def test_coroutines_grade_too(self) -> None:
        @grader
        async def later(sample: Sample, submission: str) -> GradeResult:
            await asyncio.sleep(0)
            return GradeResult(0.5)

        assert in_memory(graders={"later": later}).summary.graders["later"].mean == 0.5

    def test_functions_that_block_do_not_wait_for_each_other(self) -> None:
        together = Barrier(len(CASES), timeout=30)

        def meeting(question: str) -> str:
            together.wait()
            return "met"

        assert in_memory(target=meeting).summary.responses == {"success": 4, "error": 0, "timeout": 0}

    def test_models_reach_the_function(self) -> None:
        def of_a_model(question: str, model: str) -> str:
            return f"{model} says {question}"

        suite = suite_options(target={"function": of_a_model, "models": ["a", "b"]}, dataset=CASES[:1])
        group = run_suite(suite, store="memory://")
        assert [record.response.text for record in group.records()] == ["a says France", "b says France"]
        assert [one.run.name for one in group.runs] == ["capitals [a]", "capitals [b]"]

    def test_graders_that_are_objects(self) -> None:
        class Twice(Grader):
            def grade(self, actual: str, expected: str) -> bool:
                return actual * 2 == expected

        suite = suite_options(
            dataset=[{"input": "x", "ground_truth": "aa"}],
            target=lambda _: "a",
            graders={
                "twice": Twice(),
                "numeric": {"function": graders.create("numeric", {"tolerance": 1}), "pass_threshold": 0.1},
            },
        )
        result = run_suite(suite, store="memory://")
        (record,) = result.records()
        assert {key: (grade.kind, grade.outcome.value) for key, grade in record.grades.items()} == {
            "twice": ("tool", "pass"), "numeric": ("numeric", "error"),
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("give", "error_type", "message"),
        [
            (lambda: None, "bad_reply", "graders.odd returned None (NoneType); return a GradeResult, a bool, a number"),
            (lambda: "0.5", "bad_reply", "graders.odd returned '0.5' (str); return a GradeResult, a bool, a number"),
            (lambda: {"score": "1"}, "bad_reply", "graders.odd returned {'score': '1'} (dict): score must be a number"),
            (dict, "bad_reply", "graders.odd returned {} (dict): has neither score nor passed; give a score"),
            (lambda: 7, "bad_reply", "graders.odd returned 7 (int): score must be a finite number from 0.0 to 1.0"),
            (lambda: float("nan"), "bad_reply", "graders.odd returned nan (float): score must be a finite number"),
            (lambda: 10**400, "bad_reply", "graders.odd returned 1000000000"),
            (lambda: (yield), "bad_reply", "graders.odd returned <generator object "),
            (lambda: GradeResult, "bad_reply", "graders.odd returned <class "),
            (lambda: _UnshownError(), "bad_reply", "graders.odd returned <_UnshownError> (_UnshownError); return a Gr"),
            (lambda: _raise(_Base("left")), "_Base", "left"),
            (lambda: _raise(asyncio.CancelledError("left")), "CancelledError", "left"),
            (lambda: _raise(_UnshownError()), "_UnshownError", "<message cannot be shown>"),
            (lambda: GradeResult("why", 0.5), "ValueError", "grader 'graders.odd' (test_api_functions.py:"),  # type: ignore[arg-type]
            (lambda: GradeResult(0.5, passed=1), "ValueError", "grader 'graders.odd' (test_api_functions.py:"),  # type: ignore[arg-type]
            (lambda: GradeResult(0.5, None, {"a": {1}}), "bad_reply", "graders.odd returned a GradeResult whose metada"),
            (lambda: GradeResult(0.5, None, {"a": b"x"}), "bad_reply", "graders.odd returned a GradeResult whose metada"),
            (lambda: GradeResult(None, "no reference"), "no_score", "no reference"),
            (lambda: GradeResult(None), "no_score", "the grader returned a GradeResult without a score"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_an_invalid_return_value_of_a_grader_affects_only_its_grade(
        self, give: Callable[[], Any], error_type: str, message: str, kind: str
    ) -> None:
        @grader
        def odd(sample: Sample, submission: str) -> GradeResult:
            return give()  # type: ignore[no-any-return]

        @grader
        async def odd_later(sample: Sample, submission: str) -> GradeResult:
            return give()  # type: ignore[no-any-return]

        chosen = odd if kind == "sync" else odd_later
        result = in_memory(dataset=CASES[:2], graders={"odd": chosen, "short": short, "right": {"kind": "contains"}})
        assert result.run.status == "completed"
        for record in result.records():
            assert [record.grades[key].score for key in ("short", "right")] == [1.0, 1.0]
            assert record.grades["odd"].score is None
            error = record.grades["odd"].error
            assert error is not None
            assert (error.type, error.fault) == (error_type, "grader")
            assert error.message.startswith(message)

    def test_functions_of_any_form_grade(self) -> None:
        def by_name(response: Response, submission: str) -> dict[str, object]:
            return {"score": 1, "rationale": f"{submission} / {response.text}"}

        async def whole(ctx: GradeContext) -> bool:
            return ctx.expected in ctx.submission

        result = in_memory(
            dataset=CASES[:1],
            graders={
                "named": by_name,
                "text": lambda text: "Paris" in text,
                "two": lambda case, text: len(text) / 100,
                "three": lambda case, text, answer: answer.text == text,
                "ctx": whole,
                "partial": partial(lambda least, ctx: len(ctx.submission) >= least, 3),
            },
        )
        (record,) = result.records()
        text = record.response.text
        assert {key: grade.score for key, grade in record.grades.items()} == {
            "named": 1.0, "text": 1.0, "two": len(text) / 100, "three": 1.0, "ctx": 1.0, "partial": 1.0,
        }  # fmt: skip
        assert record.grades["named"].rationale == f"{text} / {text}"

    def test_odd_metadata_is_stored_where_it_can_be(self) -> None:
        class Word(str):
            __slots__ = ()

            def __str__(self) -> str:
                raise RuntimeError("not this one")

        @grader
        def odd(sample: Sample, submission: str) -> GradeResult:
            return GradeResult(0.5, "half \ud800", {1: Word("one"), "half": "\ud800", "n": 2**100, "t": (1, 2)})  # type: ignore[dict-item]

        (record,) = in_memory(dataset=CASES[:1], graders={"odd": odd}).records()
        grade = record.grades["odd"]
        assert (grade.score, grade.rationale) == (0.5, "half \ufffd")
        assert grade.metadata == {"1": "one", "half": "\ufffd", "n": 2**100, "t": [1, 2]}

    def test_a_failing_grader_is_an_error_of_only_its_grade(self) -> None:
        release = Event()

        @grader
        def raises(sample: Sample, submission: str) -> GradeResult:
            raise ValueError("no such town")

        @grader
        def leaves(sample: Sample, submission: str) -> GradeResult:
            sys.exit(3)

        @grader
        async def leaves_later(sample: Sample, submission: str) -> GradeResult:
            sys.exit(4)

        @grader
        def number(sample: Sample, submission: str) -> GradeResult:
            return 2.0  # type: ignore[return-value]

        @grader
        def stops(sample: Sample, submission: str) -> GradeResult:
            raise StopIteration("end")

        @grader
        def closes(sample: Sample, submission: str) -> GradeResult:
            raise GeneratorExit("end")

        @grader
        def hangs(sample: Sample, submission: str) -> GradeResult:
            release.wait()
            return GradeResult(1.0)

        result = in_memory(
            dataset=CASES[:1],
            graders={
                "raises": raises,
                "leaves": leaves,
                "leaves_later": leaves_later,
                "number": number,
                "stops": stops,
                "closes": closes,
                "hangs": {"function": hangs, "timeout": 0.05},
                "short": short,
            },
        )
        release.set()
        (record,) = result.records()
        errors = {key: grade.error for key, grade in record.grades.items() if grade.error is not None}
        assert {key: (error.type, error.message) for key, error in errors.items()} == {
            "raises": ("ValueError", "no such town"),
            "leaves": ("SystemExit", "3"),
            "leaves_later": ("SystemExit", "4"),
            "number": (
                "bad_reply",
                "graders.number returned 2.0 (float): score must be a finite number from 0.0 to 1.0, got 2.0",
            ),
            "stops": ("RuntimeError", "StopIteration: end"),
            "closes": ("RuntimeError", "GeneratorExit: end"),
            "hangs": ("timeout", "graders.hangs took longer than 0.05 s"),
        }
        assert {error.fault.value for error in errors.values()} == {"grader"}
        assert "no such town" in (errors["raises"].traceback or "")
        assert record.grades["short"].outcome.value == "pass"

    def test_an_invalid_agent_result_is_a_failed_call(self) -> None:
        release = Event()

        def bad(question: str) -> Any:
            if question == "France":
                raise OSError("down")
            if question == "Spain":
                return 42
            release.wait()
            return None

        result = in_memory(target={"function": bad, "timeout": 0.5}, dataset=CASES[:3])
        release.set()
        errors = {record.case: record.response.error for record in result.records()}
        line = bad.__code__.co_firstlineno + 2
        assert {case: (error.type, error.message) for case, error in errors.items() if error} == {
            "France": ("agent_error", f"OSError: down (tests/test_api_functions.py:{line} in bad)"),
            "Spain": (
                "bad_response",
                f"{_qualified('bad')} returned 42 (int); return the response's text (str), a dict, a Response or a list"
                " of messages",
            ),
            "Norway": ("timeout", f"{_qualified('bad')} took longer than 0.5 s"),
        }
        assert set(outcomes(result, "short").values()) == {"skipped"}

    def test_files_and_functions_mix(self, tmp_path: Path) -> None:
        (tmp_path / "graders.py").write_text(FILE_GRADERS)
        (tmp_path / "cases.csv").write_text("input,ground_truth\nFrance,Paris\nSpain,Madrid\n")
        suite = suite_options(
            dataset="cases.csv",
            graders={
                "polite": {"kind": "tool", "function": "polite"},
                "short": {"function": short, "extractor": "shouted"},
                "loud": {"function": shouting, "extractor": "shouted", "pass_threshold": 1.0},
            },
        )
        result = run_suite(suite, store="memory://", folder=tmp_path, limit=1)
        (record,) = result.records()
        assert record.submissions == {"polite": "Paris", "short": "PARIS", "loud": "PARIS"}
        assert {key: grade.outcome.value for key, grade in record.grades.items()} == {
            "polite": "fail", "short": "pass", "loud": "pass",
        }  # fmt: skip

    def test_samples_are_cases(self) -> None:
        sample = Sample(id="a", input="France", ground_truth="Paris", metadata={"k": 1}, tags=("t",))
        result = in_memory(dataset=(one for one in [sample]))
        assert [record.sample for record in result.records()] == [sample]

    def test_a_conversation_is_graded_turn_by_turn(self) -> None:
        case = {"input": ["France", "Spain"], "ground_truth": ["Paris", "Madrid"]}
        result = in_memory(dataset=[case])
        assert {key: one.mean for key, one in result.summary.graders.items()} == {"right": 1.0, "short": 1.0}

    def test_a_gate_and_a_baseline(self) -> None:
        gate = {"metric_key": "short", "aggregation": "avg_score", "op": "gte", "value": 0.7}
        first = in_memory(gate=gate)
        assert (first.verdict.result, first.exit_code) == ("pass", 0)
        worse = run_suite(suite_options(gate=gate, target=lambda question: "x" * 20), baseline=first)
        assert (worse.verdict.result, worse.exit_code) == ("fail", 1)
        assert [one.id for one in worse.store.list_runs()] == [worse.run.id, first.run.id]

    def test_an_override_can_replace_the_function(self, tmp_path: Path) -> None:
        (tmp_path / "agent.py").write_text(FILE_AGENT)
        other = {"target": {"kind": "python", "function": "agent.py:answer"}}
        result = run_suite(suite_options(), store="memory://", overrides=other, folder=tmp_path, limit=1)
        assert next(result.records()).response.text == "The file says France."

    def test_a_cache_replaces_resuming(self) -> None:
        store = InMemoryStorage()
        ASKED.clear()
        for limit in (2, None):
            run_suite(suite_options(target=counted, cache=True), store=store, limit=limit, concurrency=1)
        assert ASKED == ["France", "Spain", "Norway", "Peru"]

    def test_a_function_with_the_name_of_a_built_in_is_refused(self) -> None:
        @grader
        def contains(sample: Sample, submission: str) -> GradeResult:
            return GradeResult(0.0)

        (found,) = problems(
            suite_options(graders={"mine": contains, "theirs": {"kind": "tool", "function": "contains"}})
        )
        assert found.path == "graders.theirs.function"
        assert found.message.startswith(
            "'contains' is the name of a built-in grader, and a function of the suite is marked @grader with the same name"
        )
        assert f"at {__file__}:" in found.message
        result = in_memory(graders={"mine": contains, "theirs": {"kind": "contains"}})
        assert outcomes(result, "mine")["France"] == "fail"
        assert outcomes(result, "theirs")["France"] == "pass"

    def test_an_object_of_a_subclass_with_the_kind_of_a_built_in_is_used_itself(self) -> None:
        class Strict(ContainsGrader):
            def result(self, ctx: GradeContext) -> GradeResult:
                return GradeResult(0.0, "never")

        assert set(outcomes(in_memory(graders={"strict": Strict()}), "strict").values()) == {"fail"}

    def test_all_problems_are_reported_with_their_key_paths(self) -> None:
        @extractor
        def taken(trajectory: Any, config: Any) -> str:
            return ""

        def keyword(sample: Sample, *, submission: str) -> GradeResult:
            return GradeResult(1.0)

        forms = "write it as (sample, submission), (sample, submission, response) or (ctx)"
        assert problems(
            suite_options(
                dataset=[{"input": {1}}],
                graders={"a": keyword, "b": taken, "c": lambda: 1.0, "d": lambda a, b, c, d: 1.0},
                target={"function": answer, "isolation": "worker"},
                x=float("nan"),
            )
        ) == [
            Problem("dataset[0].input", "{1} is a set; use strings, numbers, true/false, lists and mappings"),
            Problem("target.isolation", "a function object runs in this process; leave it out"),
            Problem("graders.a", f"{_qualified('keyword')!r} requires an argument by keyword; {forms}"),
            Problem("graders.b", f"{_qualified('taken')!r} is marked @extractor; a grader is marked @grader"),
            Problem("graders.c", f"{_qualified('<lambda>')!r} takes 0 arguments; {forms}"),
            Problem("graders.d", f"{_qualified('<lambda>')!r} takes 4 arguments; {forms}"),
            Problem("x", "nan is not a finite number; leave it out or use null"),
        ]
        assert problems(suite_options(graders={"right": {"kind": "contain"}}, gaet={})) == [
            Problem("graders.right.kind", "no grader named 'contain'; did you mean 'contains'?"),
            Problem("gaet", "unknown key; did you mean 'gate'?"),
        ]

    def test_an_invalid_row_is_named(self) -> None:
        assert problems(suite_options(dataset=[{"input": "a"}, {"inptu": "b"}])) == [
            Problem("dataset[1].input", "is required: the message to the agent")
        ]


class TestFingerprints:
    def test_values_captured_by_a_function_are_part_of_the_fingerprint(self) -> None:
        def made(prompt: str, api_key: str = "") -> Callable[[str], str]:
            return lambda question: f"{prompt} {question} {len(api_key)}"

        class Agent:
            def __init__(self, prompt: str, api_key: str) -> None:
                self.prompt, self.api_key = prompt, api_key

            def __call__(self, question: str) -> str:
                return self.prompt

        def of(function: Callable[..., Any]) -> str:
            return code_fingerprint("target", "a", function)

        assert of(made("x")) == of(made("x", "another key"))
        assert of(made("x")) != of(made("y"))
        assert of(partial(answer, "x")) != of(partial(answer, "y"))
        assert of(Agent("x", "1")) == of(Agent("x", "2"))
        assert of(Agent("x", "1")) != of(Agent("y", "1"))
        assert of(cache(made("x"))) != of(cache(made("y")))
        assert of(Agent("x", "1").__call__) != of(Agent("y", "1").__call__)

    def test_code_without_a_file_has_different_fingerprints(self) -> None:
        def made(source: str) -> str:
            names: dict[str, Any] = {}
            exec(source, names)
            return code_fingerprint("target", "f", names["f"])

        assert made("def f(x): return x in {'a', 'b'}") == made("def f(x): return x in {'a', 'b'}")
        assert made("def f(x): return x in {'a', 'b'}") != made("def f(x): return x in {'a', 'c'}")
        assert made("def f(x): return [y for y in x]") != made("def f(x): return [y + 1 for y in x]")

    def test_runs_of_the_same_functions_are_comparable(self) -> None:
        assert in_memory().run.graders == in_memory().run.graders


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (lambda: "hi", "takes no input"),
        (lambda text, history: "hi", "takes the parameter 'history', which gets no value"),
        (type("Agent", (), {}), "takes no input"),
    ],
)
def test_a_function_that_cannot_be_called_as_a_target_is_refused_by_name(agent: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_suite({"name": "s", "dataset": CASES, "target": agent, "graders": {"short": short}}, store="memory://")
    (problem,) = caught.value.problems
    assert (problem.path, agent.__name__ in problem.message, reason in problem.message) == ("target", True, True)


def test_a_run_ends_as_soon_as_its_comparison_is_decided() -> None:
    cases = [{"id": number, "input": f"q{number}", "ground_truth": "yes"} for number in range(120)]
    suite = {"name": "early", "dataset": cases, "graders": {"right": {"kind": "contains"}}, "concurrency": 2}
    store = InMemoryStorage()
    before = run_suite({**suite, "target": lambda _: "yes"}, store=store, name="before")
    after = run_suite({**suite, "target": lambda _: "no"}, store=store, baseline=before, stop_early=True, seed=1)
    assert after.run.early is not None
    assert after.run.early.to_data() == {"look": 1, "n": 6, "of": 120}
    assert after.exit_code == 1
    with pytest.raises(ConfigError) as refused:
        run_suite({**suite, "target": lambda _: "no"}, store=store, stop_early=True)
    assert refused.value.problems[0].path == "stop_early"
