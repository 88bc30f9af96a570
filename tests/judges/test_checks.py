"""Checks that belong to a case: rules, criteria for a judge, and a column for each metric."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline import GradeContext, GradeResult, Sample, run_suite
from gradeline.api import RunResult
from gradeline.engine.orchestrate import regrade_run
from gradeline.errors import CaseLeftOut, ConfigError, GraderError, Outcome
from gradeline.graders import create
from gradeline.judges.checks import JudgedChecksGrader
from gradeline.model import AsyncGrader
from gradeline.store import open_storage
from gradeline.store.sqlite import SqliteStorage
from gradeline.suite.cases import DatasetError
from gradeline.suite.dataset import open_dataset
from gradeline.suite.read import read_suite
from gradeline.testing import ScriptedAdapter

CONTAINS = {"condition": "contains", "value": "Paris"}
SHORT = {"condition": "length_max", "value": 5}
YES, NO = '{"score": 1.0, "rationale": "yes"}', '{"score": 0.0, "rationale": "no"}'


@pytest.fixture
def store() -> Iterator[SqliteStorage]:
    with open_storage("memory://") as storage:
        assert isinstance(storage, SqliteStorage)
        yield storage


def echo(text: str) -> str:
    return text


def run(
    store: SqliteStorage, cases: list[dict[str, Any]], columns: dict[str, Any] | None = None, **keys: Any
) -> RunResult:
    columns = columns or {"checks": {"kind": "checks"}}
    suite = {"name": "checks", "dataset": cases, "target": echo, "graders": columns, **keys}
    return run_suite(suite, store=store)


def grade(checks: Any, text: str = "It is Paris.", config: dict[str, Any] | None = None, **case: Any) -> GradeResult:
    ctx = GradeContext(Sample(1, "q", checks=checks, **case), text)
    found = create("checks", config).grade(ctx)
    assert isinstance(found, GradeResult)
    return found


class TestRules:
    def test_the_score_is_the_weighted_share(self) -> None:
        found = grade([CONTAINS, {**SHORT, "weight": 3}])
        assert (found.score, found.passed) == (0.25, False)
        assert found.rationale == "1 of 2 checks hold; failed: length_max 5 (saw 12)"
        assert grade([CONTAINS, {**SHORT, "negate": True}]).score == 1.0

    def test_each_check_is_in_the_record_with_what_it_saw(self) -> None:
        found = grade([{**CONTAINS, "metric": "facts"}, {**SHORT, "weight": 0}])
        assert found.metadata == {
            "checks": [
                {
                    "check": "contains 'Paris'",
                    "outcome": "pass",
                    "score": 1.0,
                    "saw": "'It is Paris.'",
                    "metric": "facts",
                },
                {"check": "length_max 5", "outcome": "fail", "score": 0.0, "saw": "12", "weight": 0},
            ]
        }
        assert (found.score, found.passed) == (1.0, True)  # a check of weight 0 only measures

    @pytest.mark.parametrize(
        ("config", "passed"),
        [
            ({"mode": "all"}, False),
            ({"mode": "any"}, True),
            ({"mode": "weighted", "threshold": 0.5}, True),
            ({"mode": "weighted", "threshold": 0.51}, False),
        ],
    )
    def test_mode_decides_what_passes(self, config: dict[str, Any], passed: bool) -> None:
        found = grade([CONTAINS, SHORT], config=config)
        assert (found.score, found.passed) == (0.5, passed)

    def test_a_required_check_that_fails_makes_it_0(self) -> None:
        found = grade([CONTAINS, {**SHORT, "required": True}], config={"mode": "any"})
        assert (found.score, found.passed) == (0.0, False)

    def test_combinators_and_references(self) -> None:
        checks = [
            {"any": [SHORT, {"condition": "contains", "value": "$metadata.city"}]},
            {"all": [CONTAINS], "negate": True},
        ]
        assert grade(checks, metadata={"city": "paris"}).score == 0.5

    def test_a_case_without_checks_is_skipped(self) -> None:
        with pytest.raises(CaseLeftOut, match="the case has no checks") as caught:
            grade([])
        assert caught.value.outcome is Outcome.SKIPPED
        assert grade([], config={"default": [CONTAINS]}).score == 1.0
        assert grade([SHORT], config={"default": [CONTAINS]}).score == 0.0

    def test_a_check_without_its_data_is_an_error(self) -> None:
        with pytest.raises(GraderError) as caught:
            grade([CONTAINS, {"condition": "contains", "value": "$metadata.absent"}])
        assert caught.value.type == "missing"
        assert str(caught.value).startswith(
            "checks[1] (contains '$metadata.absent'): checks[1].value: $metadata.absent is"
        )
        assert [one["outcome"] for one in caught.value.metadata["checks"]] == ["pass", "error"]  # type: ignore[attr-defined]

    def test_a_criterion_needs_a_judge(self) -> None:
        with pytest.raises(
            GraderError, match="the check is for a judge, and the grader has none; set provider and model"
        ):
            grade([{"judge": "is polite"}])

    @pytest.mark.slow
    def test_checks_that_take_too_long_run_in_a_worker(self) -> None:
        slow = {"condition": "json", "path": "[@,@][]|" * 40 + "@", "value": 1}
        with pytest.raises(GraderError) as caught:
            grade([CONTAINS, slow], text="[1, 2, 3]" + " " * 100)
        assert caught.value.type in ("timeout", "memory")


class TestJudge:
    def judged(self, checks: Any, *replies: Any, **config: Any) -> tuple[Any, ScriptedAdapter]:
        adapter = ScriptedAdapter(list(replies))
        grader = JudgedChecksGrader(config={"model": "m", **config}, adapter=adapter)
        ctx = GradeContext(Sample(1, "Where?", "Paris", checks=checks), "It is Paris.")
        return asyncio.run(grader.agrade(ctx)).result, adapter

    def test_a_criterion_is_judged_next_to_the_rules(self) -> None:
        checks = [CONTAINS, {"judge": "is polite {really}", "metric": "tone"}, {"judge": "is rude", "negate": True}]
        found, adapter = self.judged(checks, NO, NO)
        assert isinstance(found, GradeResult)
        assert found.score == pytest.approx(2 / 3)
        assert [one["outcome"] for one in found.metadata["checks"]] == ["pass", "fail", "pass"]
        assert found.metadata["checks"][1] == {
            "check": "judge 'is polite {really}'",
            "outcome": "fail",
            "score": 0.0,
            "reason": "no",
            "metric": "tone",
        }
        prompt = adapter.calls[0].prompt
        text = prompt if isinstance(prompt, str) else prompt.messages[0].content
        assert "Does the submission meet this criterion?\n\nis polite {really}" in text
        assert "It is Paris." in text

    def test_a_judge_without_a_verdict_is_an_error_with_all_results(self) -> None:
        found, _ = self.judged([CONTAINS, {"judge": "is polite"}], '{"score": 2, "rationale": "odd"}')
        assert isinstance(found, GraderError)
        assert found.type == "invalid_reply"
        results: Any = found.metadata["checks"]
        assert [one["outcome"] for one in results] == ["pass", "error"]

    @pytest.mark.slow
    def test_rules_that_take_too_long_run_in_a_worker(self) -> None:
        slow = {"condition": "json", "path": "[@,@][]|" * 40 + "@", "value": 1}
        adapter = ScriptedAdapter([YES])
        grader = JudgedChecksGrader(config={"model": "m"}, adapter=adapter)
        ctx = GradeContext(Sample(1, "q", checks=[{"judge": "ok"}, slow, CONTAINS]), "[1, 2, 3]")
        found = asyncio.run(grader.agrade(ctx)).result
        assert isinstance(found, GraderError)
        assert found.type in ("timeout", "memory")
        assert len(adapter.calls) == 1

    def test_with_a_model_it_is_a_judge_and_without_one_it_is_not(self) -> None:
        assert not isinstance(create("checks"), AsyncGrader)
        judge = create("checks", {"model": "gpt-6-luna"})
        assert isinstance(judge, AsyncGrader)
        assert judge.judges == ("openai:gpt-6-luna",)
        other = create("checks", {"model": "gpt-6-luna", "metrics": ["tone"], "timeout": 5})
        assert judge.fingerprint == other.fingerprint
        assert judge.fingerprint != create("checks", {"model": "gpt-6-luna", "mode": "any"}).fingerprint


class TestColumns:
    CASES: list[dict[str, Any]] = [
        {"id": "a", "input": "It is Paris", "checks": [{**CONTAINS, "metric": "facts"}, {**SHORT, "metric": "tone"}]},
        {
            "id": "b",
            "input": "Rome",
            "checks": [{**CONTAINS, "metric": "facts", "weight": 3}, {**SHORT, "metric": "facts"}],
        },
        {"id": "c", "input": "none"},
    ]

    def test_each_metric_has_a_column(self, store: SqliteStorage) -> None:
        gate = {"kind": "simple", "metric_key": "facts", "op": "gte", "value": 0.6}
        result = run(store, self.CASES, gate=gate)
        assert list(result.summary.graders) == ["checks", "facts", "tone"]
        scores = {record.case: {key: one.score for key, one in record.grades.items()} for record in result.records()}
        assert scores == {
            "a": {"checks": 0.5, "facts": 1.0, "tone": 0.0},
            "b": {"checks": 0.25, "facts": 0.25, "tone": None},
            "c": {"checks": None, "facts": None, "tone": None},
        }
        outcomes = {record.case: record.grades["checks"].outcome.value for record in result.records()}
        assert outcomes == {"a": "fail", "b": "fail", "c": "skipped"}
        facts = result.summary.graders["facts"]
        assert (facts.scored, facts.total, facts.not_applicable, facts.mean) == (2, 2, 1, 0.625)

    def test_the_checks_belong_to_the_case_and_not_to_the_grader(self, store: SqliteStorage) -> None:
        first = run(store, self.CASES[:1])
        other = [{**self.CASES[0], "checks": [CONTAINS]}]
        second = run(store, other, {"checks": {"kind": "checks", "metrics": []}})
        assert first.run.graders["checks"].fingerprint != ""
        digests = [next(iter(store.keys_of(one.run.id))).digest for one in (first, second)]
        assert digests[0] != digests[1]
        third = run(store, other)
        assert first.run.graders["checks"].fingerprint == third.run.graders["checks"].fingerprint

    def test_they_are_stored_and_graded_again(self, store: SqliteStorage, tmp_path: Path) -> None:
        (tmp_path / "cases.jsonl").write_text("\n".join(json.dumps(case) for case in self.CASES))
        (tmp_path / "agent.py").write_text("def answer(text):\n    return text\n")
        suite = tmp_path / "suite.yaml"
        suite.write_text(
            "name: s\ndataset: cases.jsonl\ntarget: {kind: python, function: agent.py:answer}\n"
            "graders: {checks: {kind: checks}}\n"
        )
        result = run_suite(suite, store=store)
        again = asyncio.run(regrade_run(store, result.run.id)).report
        assert [record.grades["facts"].score for record in store.records(again.run.id)] == [1.0, 0.25, None]
        stored = store.get_sample(result.run.id, "a")
        assert stored is not None
        assert stored.checks == self.CASES[0]["checks"]

    def test_a_metric_with_the_name_of_a_grader_is_refused(self, store: SqliteStorage) -> None:
        with pytest.raises(ConfigError, match="'facts' is a metric of checks and also a grader; rename one of them"):
            run(store, self.CASES, {"checks": {"kind": "checks"}, "facts": {"kind": "exact_match"}})

    def test_declared_metrics_are_the_only_ones(self, store: SqliteStorage) -> None:
        with pytest.raises(ConfigError, match="has no 'tone', which a check names; did you mean 'tones'"):
            run(store, self.CASES, {"checks": {"kind": "checks", "metrics": ["facts", "tones"]}})

    def test_a_metric_may_be_written_out(self, store: SqliteStorage) -> None:
        columns = {
            "checks": {"kind": "checks"},
            "truth": {"kind": "checks_metric", "metric": "facts", "pass_threshold": 0.2},
        }
        result = run(store, self.CASES, columns)
        assert list(result.summary.graders) == ["checks", "truth", "tone"]
        assert result.summary.graders["truth"].passed == 2

    def test_a_judge_is_required_where_a_check_is_for_one(self, store: SqliteStorage) -> None:
        cases = [{"id": "x", "input": "q", "checks": [{"judge": "is polite"}]}]
        with pytest.raises(ConfigError, match=r"graders\.checks\.model: is required: case 'x' has a check for a judge"):
            run(store, cases)

    def test_only_the_cases_that_it_applies_to_decide_about_judge_and_metrics(self, store: SqliteStorage) -> None:
        cases = [
            {"id": "x", "input": "q", "tags": ["judged"], "checks": [{"judge": "is polite", "metric": "tone"}]},
            {"id": "y", "input": "q", "checks": [{"condition": "contains", "value": "q", "metric": "facts"}]},
        ]
        rest = {"kind": "checks", "when": "!contains(tags, 'judged')"}
        result = run(store, cases, {"rest": rest})
        assert list(result.summary.graders) == ["rest", "facts"]
        assert result.summary.graders["rest"].passed == 1
        with pytest.raises(ConfigError, match=r"graders\.judged\.model: is required: case 'x'"):
            run(store, cases, {"judged": {"kind": "checks", "when": {"tag": "judged"}}, "rest": rest})

    def test_a_conversation_is_checked_turn_by_turn(self, store: SqliteStorage) -> None:
        case = {
            "id": 1,
            "input": ["Paris", "Rome"],
            "ground_truth": ["x", "y"],
            "checks": [{**CONTAINS, "metric": "m"}],
        }
        result = run(store, [case])
        assert {key: one.mean for key, one in result.summary.graders.items()} == {"checks": 0.5, "m": 0.5}


class TestFaults:
    def faults(self, tmp_path: Path, checks: Any) -> list[str]:
        file = tmp_path / "cases.jsonl"
        file.write_text('{"input": "ok"}\n' + json.dumps({"input": "q", "checks": checks}) + "\n")
        with pytest.raises(DatasetError) as caught:
            list(open_dataset(file))
        return [str(problem).removeprefix(str(tmp_path) + "/") for problem in caught.value.suite_problems]

    def test_all_faults_of_a_row_are_listed_with_their_place(self, tmp_path: Path) -> None:
        checks = [
            {"condition": "contans", "value": "x"},
            {"condition": "regex", "value": "("},
            {"judge": " "},
            {"judge": "ok", "wieght": 1},
            {**CONTAINS, "metric": ""},
            "text",
            {"any": [{"condition": "length_min", "value": -1}]},
            {"judge": "ok", "metrik": "tone"},
            {**CONTAINS, "metrics": "tone"},
            {"all": [{**CONTAINS, "metric": "tone"}]},
        ]
        found = self.faults(tmp_path, checks)
        assert [fault.partition(": ")[2].partition(": ")[0] for fault in found] == [
            "checks[0].condition",
            "checks[1].value",
            "checks[2].judge",
            "checks[3].wieght",
            "checks[4].metric",
            "checks[5]",
            "checks[6].any[0].value",
            "checks[7].metrik",
            "checks[8].metrics",
            "checks[9].all[0].metric",
        ]
        assert all(fault.startswith("cases.jsonl:2") for fault in found)
        assert "did you mean 'contains'?" in found[0]
        assert "did you mean 'weight'?" in found[3]
        assert all("did you mean 'metric'?" in fault for fault in found[7:9])
        assert "only a whole check has a metric" in found[9]

    @pytest.mark.parametrize(
        ("checks", "message"),
        [
            ([], "is empty: write at least one check, or leave it out"),
            ("contains x", "expected a list of checks such as"),
            ([{**CONTAINS, "weight": 0}], "all weights are 0"),
            ([CONTAINS] * 1001, "has 1,001 checks; at most 1,000 are read"),
        ],
    )
    def test_a_list_that_is_no_list_of_checks(self, tmp_path: Path, checks: Any, message: str) -> None:
        assert message in self.faults(tmp_path, checks)[0]

    def test_they_are_reported_before_the_run(self, tmp_path: Path) -> None:
        (tmp_path / "cases.jsonl").write_text('{"input": "q", "checks": [{"condition": "contans", "value": "x"}]}\n')
        (tmp_path / "suite.yaml").write_text(
            "name: s\ndataset: cases.jsonl\ntarget: {kind: http, url: 'http://127.0.0.1:9'}\ngraders: {c: {kind: checks}}\n"
        )
        with pytest.raises(ConfigError, match=r"cases\.jsonl:1.*checks\[0\]\.condition: no condition named 'contans'"):
            read_suite(tmp_path / "suite.yaml")

    def test_checks_without_a_grader_for_them_are_a_warning(self, tmp_path: Path) -> None:
        (tmp_path / "cases.jsonl").write_text(json.dumps({"input": "q", "checks": [CONTAINS]}) + "\n")
        (tmp_path / "suite.yaml").write_text(
            "name: s\ndataset: cases.jsonl\ntarget: {kind: http, url: 'http://127.0.0.1:9'}\ngraders: {c: {kind: exact_match}}\n"
        )
        (warning,) = read_suite(tmp_path / "suite.yaml").warnings
        assert warning.endswith("graders: the cases have checks, and no grader is of kind checks: they have no effect")
