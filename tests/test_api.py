"""Suites from Python: runs, results and refusals."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from gradeline import GradeResult, Sample, Suite, arun_suite, compare, grader, plan, run_suite, trend
from gradeline.api import CaseProgress, ManyComparison, RunGroup, RunResult
from gradeline.api.results import COLUMNS
from gradeline.engine.orchestrate import resume_run
from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.store import InMemoryStorage, SqliteStorage, open_storage

SUITE = """\
name: capitals
dataset: cases.jsonl
target: {kind: python, function: "agent.py:answer"}
graders:
  exact: {kind: string-match, mode: contains}
  polite: {kind: tool, function: polite}
gate: {kind: simple, metric_key: exact, aggregation: avg_score, op: gte, value: 0.7}
"""
AGENT = """
KNOWN = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo"}
def answer(text):
    return f"It is {KNOWN.get(text, 'unknown')}, you are welcome."
"""
GRADERS = """
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a suite, as the current folder."""
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "graders.py").write_text(GRADERS)
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, CASES)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADELINE_STORE", raising=False)
    return tmp_path


class TestSuiteFile:
    def test_a_result_has_the_names_of_the_json(self, folder: Path) -> None:
        with run_suite("suite.yaml") as result:
            assert (result.run.name, result.run.status, result.exit_code, result.passed) == (
                "capitals", "completed", 0, True,
            )  # fmt: skip
            assert result.verdict.result == "pass"
            assert result.verdict.reasons == ("exact: avg_score 0.75 ≥ 0.7 is true",)
            assert result.summary.graders["exact"].mean == 0.75
            assert [record.case for record in result.records()] == ["France", "Spain", "Norway", "Peru"]
            assert result.runs == [result]
            assert list(result.to_dict()) == ["run", "summary", "verdict", "exit_code"]
            assert json.loads(json.dumps(result.to_dict()))["verdict"]["result"] == "pass"
            assert repr(result) == (
                f"<RunResult 'capitals' {result.run.id}: pass; exact 3 of 4 passed; polite 4 of 4 passed>"
            )

    def test_a_run_is_in_the_default_store(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = run_suite("suite.yaml", limit=1).run
        below = folder / "deep" / "er"
        below.mkdir(parents=True)
        monkeypatch.chdir(below)
        second = run_suite(folder / "suite.yaml", limit=1).run
        with open_storage(folder / ".gradeline" / "store.db") as storage:
            assert [one.id for one in storage.list_runs()] == [second.id, run.id]
        monkeypatch.setenv("GRADELINE_STORE", "sqlite:///own.db")
        third = run_suite(folder / "suite.yaml", limit=1).run
        with open_storage(below / "own.db") as storage:
            assert [one.id for one in storage.list_runs()] == [third.id]

    def test_the_options_of_the_command_line(self, folder: Path) -> None:
        result = run_suite(
            "suite.yaml",
            store="memory://",
            tags=["south"],
            graders="exact",
            repeats=2,
            concurrency=1,
            overrides={"gate.value": 0.5, "description": "…"},
            seed=7,
            name="mine",
        )
        assert (result.run.name, result.run.seed, result.run.repeats) == ("mine", 7, 2)
        assert list(result.run.graders) == ["exact"]
        assert result.verdict.reasons == ("exact: avg_score 0.6667 ≥ 0.5 is true",)
        assert [(record.case, record.repeat) for record in result.records()] == [
            ("France", 0), ("France", 1), ("Spain", 0), ("Spain", 1), ("Peru", 0), ("Peru", 1),
        ]  # fmt: skip

    def test_cases_by_id_and_overrides_as_strings(self, folder: Path) -> None:
        result = run_suite("suite.yaml", store="memory://", samples=["Peru"], overrides=["gate.value=0"])
        assert (outcomes(result, "exact"), result.exit_code) == ({"Peru": "fail"}, 0)

    def test_an_override_may_fix_an_invalid_file(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace("cases.jsonl", "later.jsonl"))
        result = run_suite("suite.yaml", store="memory://", overrides={"dataset": "cases.jsonl"})
        assert result.exit_code == 0

    def test_a_budget_and_a_first_failure_end_a_run(self, folder: Path) -> None:
        spent = run_suite("suite.yaml", store="memory://", budget={"calls": 2}, concurrency=1)
        assert (spent.stopped, spent.run.status, spent.exit_code) == ("the budget of 2 calls is spent", "cancelled", 3)
        failed = run_suite("suite.yaml", store="memory://", fail_fast=True, samples=["Peru"], concurrency=1)
        assert (failed.stopped, failed.exit_code) == ("fail-fast: case 'Peru': exact is fail", 1)

    def test_a_baseline_that_is_a_result_is_found_in_its_store(self, folder: Path) -> None:
        first = run_suite("suite.yaml", store="memory://")
        second = run_suite("suite.yaml", baseline=first, overrides={"gate.value": 0.0})
        assert second.store is first.store
        assert second.verdict.gates[0].conditions[1].kind == "regression"

    def test_variants_are_a_group_and_may_be_functions(self) -> None:
        def loud(text: str) -> str:
            return text.upper()

        suite = {
            "name": "echo",
            "dataset": [{"id": "a", "input": "Yes", "ground_truth": "Yes"}],
            "target": lambda text: text,
            "variants": [
                {"name": "echo"},
                {"name": "loud", "set": {"target": loud}},
                {"name": "no", "set": {"target.function": lambda text: "No"}},
            ],
            "graders": {"right": {"kind": "exact_match"}},
        }
        group = run_suite(suite, store="memory://")
        assert {one.run.variant: one.summary.graders["right"].mean for one in group.runs} == {
            "echo": 1.0,
            "loud": 0.0,
            "no": 0.0,
        }
        assert len({one.run.target["fingerprint"] for one in group.runs}) == 3
        assert {row["variant"] for row in group.rows()} == {"echo", "loud", "no"}
        chosen = run_suite(suite, store="memory://", variants=["loud"])
        assert (chosen.run.variant, chosen.run.group) == ("loud", None)
        with pytest.raises(ConfigError, match=r"variants: no variant 'lod'; did you mean 'loud'\?"):
            run_suite(suite, store="memory://", variants=["lod"])
        assert Suite.from_dict(suite).validate() == []

    def test_several_models_are_a_group(self, folder: Path) -> None:
        (folder / "agent.py").write_text("def answer(text, model): return 'Paris' if model == 'large' else 'No idea'")
        group = run_suite("suite.yaml", store="memory://", models=["small", "large"], limit=1)
        assert isinstance(group, RunGroup)
        assert [(one.run.name, one.exit_code) for one in group.runs] == [
            ("capitals [small]", 1),
            ("capitals [large]", 0),
        ]
        assert (group.exit_code, group.passed, group.stopped) == (1, False, None)
        assert [len(data["runs"]) for data in [group.to_dict()]] == [2]
        assert [record.run for record in group.records()] == [one.run.id for one in group.runs]
        assert [row["model"] for row in group.rows()] == ["small", "small", "large", "large"]
        assert repr(group).startswith("<RunGroup <RunResult 'capitals [small]'")
        with pytest.raises(AttributeError, match=r"these are 2 runs, each with its own summary; look into \.runs"):
            _ = group.summary

    def test_progress_is_reported_case_by_case(self, folder: Path) -> None:
        events: list[CaseProgress] = []
        run_suite("suite.yaml", store="memory://", concurrency=1, on_progress=events.append)
        assert [(one.done, one.total) for one in events] == [(1, 4), (2, 4), (3, 4), (4, 4)]
        assert {one.case: one.grades["exact"].outcome.value for one in events} == {
            "France": "pass", "Spain": "pass", "Norway": "pass", "Peru": "fail",
        }  # fmt: skip
        assert all(one.response is not None and one.run.name == "capitals" for one in events)

    def test_an_exception_of_a_callback_ends_the_run_which_can_be_resumed(self, folder: Path) -> None:
        def raising(progress: CaseProgress) -> None:
            raise LookupError("no bar")

        with pytest.raises(LookupError, match="no bar") as caught:
            run_suite("suite.yaml", on_progress=raising)
        with open_storage(folder / ".gradeline" / "store.db") as storage:
            (run,) = storage.list_runs()
            assert run.status == "failed"
            assert caught.value.__notes__ == [f"continue with: gradeline resume {run.id}"]
            ran = asyncio.run(resume_run(storage, run.id))
            assert (ran.report.run.status, ran.exit_code) == ("completed", 0)

    def test_letta_files_are_written_if_the_suite_names_a_folder(self, folder: Path) -> None:
        run_suite("suite.yaml", store="memory://", overrides={"output": "results"})
        assert sorted(file.name for file in (folder / "results").iterdir()) == [
            "default.jsonl", "suite.json", "summary.json",
        ]  # fmt: skip

    def test_letta_results_can_answer(self) -> None:
        example = Path(__file__).parent.parent / "examples" / "letta"
        result = run_suite(
            {
                "name": "cached",
                "dataset": str(example / "dataset.jsonl"),
                "target": answer,
                "graders": {"short": short},
            },
            store="memory://",
            cached=example / "results",
        )
        assert result.run.target["kind"] == "replay"


class TestSuiteObject:
    def test_its_repr_shows_the_results(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE + "description: About towns\nsandbox: {}\n")
        suite = Suite.load("suite.yaml")
        assert (suite.name, suite.description, suite.file) == ("capitals", "About towns", folder / "suite.yaml")
        assert suite.graders == {"exact": "string-match", "polite": "tool"}
        assert suite.warnings == ("suite.yaml:9:10: sandbox: has no effect here",)
        assert repr(suite) == "<Suite 'capitals': exact, polite>"

    def test_it_runs_with_its_overrides_and_those_of_the_run(self, folder: Path) -> None:
        suite = Suite.load("suite.yaml", {"gate.value": 0.9, "repeats": 2})
        result = suite.run(store="memory://", overrides={"gate.value": 0.8})
        assert (result.verdict.gates[0].value, result.run.repeats) == (0.8, 2)
        assert asyncio.run(suite.arun(store="memory://")).exit_code == 1

    def test_an_invalid_file_is_refused_with_all_its_problems(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace("op: gte", "op: more").replace("string-match", "string-mach"))
        with pytest.raises(ConfigError) as caught:
            Suite.load("suite.yaml")
        assert [problem.path for problem in caught.value.problems] == [
            "suite.yaml:5:17: graders.exact.kind",
            "suite.yaml:7:69: gate.op",
        ]

    def test_validate_finds_problems_that_only_a_run_would(self, folder: Path) -> None:
        suite = Suite.load("suite.yaml")
        assert suite.validate() == []
        (folder / "graders.py").write_text("")
        (problem,) = suite.validate()
        assert (str(problem).split(";")[0]) == (
            f"suite.yaml:6:34: graders.polite.function: no grader named 'polite' in a .py file of {folder}"
        )
        (folder / "graders.py").write_text(GRADERS)
        (folder / "cases.jsonl").write_text('{"input": "France"}\n{"inptu": "Spain"}\n')
        (problem,) = suite.validate()
        assert (problem.line, problem.path, problem.message) == (2, "input", "is required: the message to the agent")

    def test_validate_of_a_suite_in_python(self) -> None:
        assert Suite.from_dict(suite_options()).validate() == []
        (problem,) = Suite.from_dict(suite_options(dataset=[{"id": 1}])).validate()
        assert str(problem) == "dataset[0].input: is required: the message to the agent"


class TestOptions:
    def test_an_unknown_option_is_a_type_error(self) -> None:
        with pytest.raises(
            TypeError, match=r"run_suite\(\) got an unexpected keyword argument 'limt'; did you mean 'limit'"
        ):
            run_suite(suite_options(), limt=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"arun_suite\(\) got .* 'zzz'; it takes dataset, store, limit, samples"):
            asyncio.run(arun_suite(suite_options(), zzz=3))  # type: ignore[call-arg]

    def test_invalid_values_are_listed_at_once(self) -> None:
        assert problems(
            suite_options(),
            limit=-1,
            concurrency=0,
            repeats=True,
            seed="x",
            samples=[1, 2.5],
            tags=3.0,
            budget=-5,
            overrides={"gate": {1, 2}},
        ) == [
            Problem("limit", "expected an integer of at least 0, got -1"),
            Problem("repeats", "expected an integer of at least 1, got True"),
            Problem("concurrency", "expected an integer of at least 1, got 0"),
            Problem("seed", "expected an integer, got 'x'"),
            Problem("samples", "expected strings, got 2.5"),
            Problem("tags", "expected strings, got 3.0"),
            Problem("overrides", "$: {1, 2} is a set; use strings, numbers, true/false, lists and mappings"),
            Problem("budget.cost", "expected a number above 0, got -5"),
        ]

    def test_errors_name_the_options_and_not_command_line_flags(self) -> None:
        assert problems(suite_options(), samples=["Chile"]) == [Problem("samples", "the dataset has no case 'Chile'")]
        assert problems(suite_options(), graders=["wrong"]) == [
            Problem("graders", "no grader 'wrong' in the suite; it has right, short")
        ]
        assert [problem.path for problem in problems(suite_options(), overrides=["gate"])] == ["overrides"]
        with pytest.raises(ConfigError, match=r"^overrides: 'gate': write key=value"):
            Suite.from_dict(suite_options(), overrides=["gate"])

    def test_an_invalid_suite_and_an_invalid_store(self, folder: Path) -> None:
        with pytest.raises(TypeError, match="a suite is a path, a Suite or a mapping, not int"):
            run_suite(3, store="memory://")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="folder= is for a suite that is a mapping"):
            run_suite("suite.yaml", folder=".")
        assert problems(suite_options(), store=3) == [
            Problem("store", "expected a path, a URL such as sqlite:///runs.db or memory://, or a store, got 3")
        ]
        assert problems("none.yaml") == [Problem("none.yaml", "no such file")]


class TestStores:
    def test_records_can_be_read_until_the_result_is_closed(self, tmp_path: Path) -> None:
        result = run_suite(suite_options(), store=tmp_path / "runs.db")
        assert len(list(result.records())) == 4
        result.close()
        result.close()
        with pytest.raises(StoreError, match="is closed"):
            list(result.records())
        assert result.summary.cases == 4

    def test_an_unreferenced_store_is_closed(self, tmp_path: Path) -> None:
        result = run_suite(suite_options(), store=f"sqlite:///{tmp_path}/runs.db")
        storage = result.store
        del result
        gc.collect()
        with pytest.raises(StoreError, match="is closed"):
            storage.list_runs()

    def test_records_of_an_unreferenced_result(self, tmp_path: Path) -> None:
        assert [record.case for record in run_suite(suite_options(), store=tmp_path / "runs.db").records()] == [
            *CAPITALS,
            "Peru",
        ]

    def test_a_store_passed_by_the_caller_stays_open(self, tmp_path: Path) -> None:
        with SqliteStorage(tmp_path / "runs.db") as storage:
            with run_suite(suite_options(), store=storage) as result:
                assert result.store is storage
            assert [run.id for run in storage.list_runs()] == [result.run.id]

    def test_a_run_that_fails_leaves_no_store_open(self, tmp_path: Path) -> None:
        assert problems(suite_options(), store=tmp_path / "runs.db", samples=["Chile"])
        assert not list(tmp_path.glob("*-wal"))


class TestFrames:
    def test_a_row_for_each_case_repeat_and_grader(self) -> None:
        def failing(question: str) -> str:
            if question == "Spain":
                raise OSError("down")
            return answer(question)

        @grader
        def broken(sample: Sample, submission: str) -> GradeResult:
            raise ValueError("no")

        result = in_memory(target=failing, dataset=CASES[:2], graders={"short": short, "broken": broken})
        rows = list(result.rows())
        assert [list(row) for row in rows] == [list(COLUMNS)] * 4
        shown = ("case", "repeat", "grader", "outcome", "score", "passed", "rationale", "error_type", "fault")
        assert [tuple(row[name] for name in shown) for row in rows] == [
            ("France", 0, "short", "pass", 1.0, True, "5 characters", None, None),
            ("France", 0, "broken", "error", None, None, None, "ValueError", "grader"),
            ("Spain", 0, "short", "skipped", None, None, None, "agent_error", "agent"),
            ("Spain", 0, "broken", "skipped", None, None, None, "agent_error", "agent"),
        ]
        assert (rows[0]["input"], rows[0]["expected"], rows[0]["text"]) == ("France", "Paris", "Paris")

    def test_turns_are_one_text(self) -> None:
        result = in_memory(dataset=[{"input": ["France", "Spain"], "ground_truth": ["Paris", "Madrid"]}])
        assert {row["input"] for row in result.rows()} == {'["France", "Spain"]'}

    def test_a_frame_needs_one_of_two_packages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        monkeypatch.setitem(sys.modules, "polars", None)
        with pytest.raises(ImportError, match="a frame needs pandas or polars: pip install pandas"):
            in_memory().to_frame()

    def test_polars_is_used_without_pandas(self, monkeypatch: pytest.MonkeyPatch) -> None:
        types = {name: name for name in ("String", "Float64", "Int64", "Boolean")}
        fake_module = SimpleNamespace(DataFrame=lambda rows, schema: (len(rows), schema), **types)
        monkeypatch.setitem(sys.modules, "pandas", None)
        monkeypatch.setitem(sys.modules, "polars", fake_module)
        rows, schema = in_memory().to_frame()
        assert (rows, list(schema), schema["passed"]) == (8, list(COLUMNS), "Boolean")

    def test_missing_values_are_not_false(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With whichever of the two is installed."""
        result = in_memory(target=lambda question: 1 / 0)
        for name, other in (("pandas", "polars"), ("polars", "pandas")):
            if find_spec(name) is None:
                continue
            with monkeypatch.context() as context:
                context.setitem(sys.modules, other, None)
                frame = result.to_frame()
            assert type(frame).__module__.startswith(name)
            assert list(frame.columns) == list(COLUMNS)
            missing = frame["passed"].isna().sum() if name == "pandas" else frame["passed"].null_count()
            assert (len(frame), missing) == (8, 8)


class TestCompare:
    def test_results_of_stores_in_memory(self) -> None:
        before, after = in_memory(), in_memory(target=lambda question: "far too long an answer")
        comparison = compare(before, after)
        assert (comparison.baseline.id, comparison.candidate.id) == (before.run.id, after.run.id)
        assert (comparison.comparable, comparison.decision) == (True, "undecided")
        assert comparison.graders["short"].changed == ("France", "Spain", "Norway")
        assert compare(before, before).graders["short"].difference == 0.0

    def test_three_results_of_stores_in_memory(self) -> None:
        runs = [in_memory(), in_memory(), in_memory(target=lambda question: "far too long an answer")]
        comparison = compare(*runs)
        assert isinstance(comparison, ManyComparison)
        assert [one.run.id for one in comparison.runs] == [one.run.id for one in runs]
        assert {score.rank for score in comparison.graders["short"].runs.values()} == {(1, 3)}

    def test_the_noise_of_a_function_that_grades(self) -> None:
        @grader
        def length(sample: Sample, submission: str) -> GradeResult:
            return GradeResult(len(submission) / 100)

        def ran(target: Any) -> Any:
            return in_memory(target=target, graders={"length": {"function": length, "noise": 0.02}})

        before, after = ran(lambda question: "x" * 50), ran(lambda question: "x" * (60 if question == "Spain" else 51))
        found = compare(before, after).graders["length"]
        assert (found.noise, found.within_noise, found.changed) == (0.02, 3, ("Spain",))

    def test_the_trend_and_the_plan_of_a_suite(self) -> None:
        result = in_memory()
        series = trend(result.run.suite, store=result.store, grader="short")
        assert [(point.run.id, point.segment) for point in series.points] == [(result.run.id, 0)]
        with pytest.raises(ConfigError, match="last: expected a number of 1 or more, got 0"):
            trend(result.run.suite, store=result.store, last=0)
        suite = {
            "name": "planned",
            "dataset": [{"input": "a"}, {"input": "b"}],
            "target": str.upper,
            "graders": {"short": {"kind": "contains"}},
        }
        found = plan(suite, store=result.store, margin=0.1)
        assert (found.cases, found.spread.source) == (2, "guess")
        assert found.needed is not None
        assert found.needed.cases == 157
        with pytest.raises(ConfigError, match="power: expected a number between 0 and 1") as error:
            plan(suite, store=result.store, margin=2, power=1)
        assert [problem.path for problem in error.value.problems] == ["margin", "power"]

    def test_runs_by_name(self, folder: Path) -> None:
        for name in ("one", "two"):
            run_suite("suite.yaml", name=name)
        by_name = compare("one", "latest", margin=1.0)
        assert (by_name.decision, by_name.margin) == ("not_worse", 1.0)
        with open_storage(folder / ".gradeline" / "store.db") as storage:
            assert compare("one", "two", store=storage).candidate.name == "two"

    def test_a_result_and_a_name(self, tmp_path: Path) -> None:
        store = tmp_path / "runs.db"
        run_suite(suite_options(), store=store, name="old").close()
        new = run_suite(suite_options(), store=store)
        assert compare("old", new).baseline.name == "old"
        elsewhere = run_suite(suite_options(), store="memory://")
        assert compare("old", elsewhere, store=store).graders["right"].same == 4

    def test_other_graders_are_not_compared_unless_forced(self) -> None:
        before, after = in_memory(), in_memory(graders={"right": {"kind": "exact_match"}})
        assert (compare(before, after).comparable, compare(before, after).exit_code) == (False, 2)
        assert list(compare(before, after, force=True).graders) == ["right"]

    def test_a_group_is_not_a_run(self) -> None:
        group = run_suite(suite_options(target={"function": answer, "models": ["a", "b"]}), store="memory://")
        with pytest.raises(AttributeError, match="2 runs"):
            compare(group, group)
        assert compare(*group.runs).reasons == ("target: model 'a' against 'b'",)


class TestEventLoops:
    def test_run_suite_works_inside_a_loop(self) -> None:
        async def notebook() -> RunResult:
            return in_memory()

        assert asyncio.run(notebook()).summary.cases == 4

    def test_arun_suite_runs_in_the_loop_with_other_tasks(self) -> None:
        async def both() -> list[RunResult]:
            loop = asyncio.get_running_loop()

            async def here(question: str) -> str:
                return "here" if asyncio.get_running_loop() is loop else "elsewhere"

            store = InMemoryStorage()
            return await asyncio.gather(*(arun_suite(suite_options(target=here), store=store) for _ in range(2)))

        first, second = asyncio.run(both())
        assert {record.response.text for one in (first, second) for record in one.records()} == {"here"}

    def test_a_cancelled_run_can_be_resumed(self, folder: Path) -> None:
        async def cancelled() -> None:
            begun = asyncio.Event()
            running = asyncio.create_task(arun_suite("suite.yaml", on_progress=lambda _: begun.set()))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await running
            assert caught.value.__notes__[0].startswith("continue with: gradeline resume ")

        (folder / "agent.py").write_text(
            AGENT + "import time\ndef slow(text):\n    time.sleep(0 if text == 'France' else 60)\n    return ''"
        )
        (folder / "suite.yaml").write_text(SUITE.replace("agent.py:answer", "agent.py:slow"))
        asyncio.run(cancelled())
        with open_storage(folder / ".gradeline" / "store.db") as storage:
            (run,) = storage.list_runs()
            assert (run.status, sum(1 for _ in storage.records(run.id))) == ("cancelled", 1)

    def test_context_variables_are_visible(self) -> None:
        from contextvars import ContextVar

        word: ContextVar[str] = ContextVar("word")
        word.set("hello")
        result = in_memory(target=lambda question: word.get(), dataset=CASES[:1])
        assert next(result.records()).response.text == "hello"


class TestInterrupts:
    @pytest.fixture(autouse=True)
    def interruptible(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    @pytest.fixture
    def interrupt_received(self) -> Iterator[Event]:
        """Set when the interrupt has been taken up."""
        event = Event()

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.getMessage().startswith("interrupted:"):
                    event.set()

        logger, listener = logging.getLogger("gradeline"), Listener()
        logger.addHandler(listener)
        yield event
        logger.removeHandler(listener)

    def test_the_first_interrupt_finishes_calls_in_flight(self, interrupt_received: Event) -> None:
        def interrupting(question: str) -> str:
            os.kill(os.getpid(), signal.SIGINT)
            interrupt_received.wait()
            return answer(question)

        store = InMemoryStorage()
        with pytest.raises(KeyboardInterrupt):
            run_suite(suite_options(target=interrupting), store=store, concurrency=1)
        (run,) = store.list_runs()
        assert (run.status, run.error_message) == ("cancelled", "interrupted")
        assert [record.grades["right"].outcome.value for record in store.records(run.id)] == ["pass"]

    def test_the_second_interrupt_ends_at_once(self, interrupt_received: Event) -> None:
        release = Event()

        def stubborn(question: str) -> str:
            os.kill(os.getpid(), signal.SIGINT)
            interrupt_received.wait()
            os.kill(os.getpid(), signal.SIGINT)
            release.wait()
            return answer(question)

        store = InMemoryStorage()
        with pytest.raises(KeyboardInterrupt):
            run_suite(suite_options(target={"function": stubborn, "timeout": 600}), store=store, concurrency=1)
        release.set()
        (run,) = store.list_runs()
        assert (run.status, list(store.records(run.id))) == ("cancelled", [])

    def test_an_interrupted_run_of_a_file_can_be_resumed(
        self, folder: Path, interrupt_received: Event, caplog: pytest.LogCaptureFixture
    ) -> None:
        def interrupt(progress: CaseProgress) -> None:
            if progress.done == 1:
                os.kill(os.getpid(), signal.SIGINT)
                interrupt_received.wait()

        with pytest.raises(KeyboardInterrupt):
            run_suite("suite.yaml", concurrency=1, on_progress=interrupt)
        with open_storage(folder / ".gradeline" / "store.db") as storage:
            (run,) = storage.list_runs()
            assert f"interrupted; continue with: gradeline resume {run.id}" in caplog.messages
            assert run.status == "cancelled"
            assert asyncio.run(resume_run(storage, run.id)).report.summary.cases == 4
