"""Graders that apply to some cases, that have an expected value of their own, or that are computed from others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline import compare, run_suite
from gradeline.api import RunResult
from gradeline.errors import ConfigError
from gradeline.store import open_storage
from gradeline.store.sqlite import SqliteStorage

CASES: list[dict[str, Any]] = [
    {"id": "de", "input": "eins", "ground_truth": "eins", "metadata": {"lang": "de", "answer": "EINS"}, "tags": ["n"]},
    {"id": "en", "input": "one", "ground_truth": "no", "metadata": {"lang": "en", "answer": "one"}},
    {"id": "fr", "input": "un", "ground_truth": '{"total": 1}', "metadata": {"lang": "fr"}},
]


@pytest.fixture
def store() -> Iterator[SqliteStorage]:
    with open_storage("memory://") as storage:
        assert isinstance(storage, SqliteStorage)
        yield storage


def echo(text: str) -> str:
    if text == "broken":
        raise RuntimeError("no answer")
    return text


def run(store: SqliteStorage, columns: dict[str, Any], cases: Any = CASES, gate: Any = None, **options: Any) -> Any:
    suite = {"name": "words", "dataset": cases, "target": echo, "graders": columns}
    return run_suite(suite if gate is None else {**suite, "gate": gate}, store=store, **options)


def outcomes(result: RunResult, key: str) -> dict[str, str]:
    return {record.case: record.grades[key].outcome.value for record in result.records()}


class TestWhen:
    @pytest.mark.parametrize(
        ("when", "cases"),
        [
            ({"tag": "n"}, {"de"}),
            ({"tag": ["n", "m"]}, {"de"}),
            ({"metadata.lang": ["de", "en"]}, {"de", "en"}),
            ({"metadata.lang": "de", "tag": "x"}, set()),
            ({"id": "fr"}, {"fr"}),
            ("metadata.lang != 'de'", {"en", "fr"}),
            ("metadata.answer", {"de", "en"}),
            ("length(tags)", {"de", "en", "fr"}),
            ("tags", {"de"}),
        ],
    )
    def test_other_cases_are_not_applicable(self, store: SqliteStorage, when: Any, cases: set[str]) -> None:
        found = outcomes(run(store, {"exact": {"kind": "exact_match", "when": when}}), "exact")
        assert {case for case, outcome in found.items() if outcome != "not_applicable"} == cases
        assert set(found) == {"de", "en", "fr"}

    def test_they_are_outside_the_coverage(self, store: SqliteStorage) -> None:
        result = run(
            store,
            {"exact": {"kind": "exact_match", "when": {"metadata.lang": "de"}}},
            gate={"kind": "simple", "metric_key": "exact", "op": "gte", "value": 1},
        )
        column = result.summary.graders["exact"]
        assert (column.scored, column.total, column.not_applicable, column.mean) == (1, 1, 2, 1.0)
        assert (result.summary.coverage, result.verdict.result, result.exit_code) == (1.0, "pass", 0)
        assert column.notes == ("not applicable to 2 responses",)

    def test_a_grader_that_applies_to_no_case_does_not_pass(self, store: SqliteStorage) -> None:
        result = run(
            store,
            {"exact": {"kind": "exact_match", "when": {"tag": "absent"}}},
            gate={"kind": "simple", "metric_key": "exact", "op": "gte", "value": 0},
        )
        assert (result.verdict.result, result.exit_code) == ("undecided", 4)

    def test_a_failed_call_counts_only_where_the_grader_applies(self, store: SqliteStorage) -> None:
        cases = [*CASES, {"id": "bad", "input": "broken", "metadata": {"lang": "en"}}]
        gate = {"kind": "simple", "metric_key": "exact", "op": "gte", "value": 1, "agent_errors": "fail"}
        german = {"exact": {"kind": "exact_match", "when": {"metadata.lang": "de"}}}
        result = run(store, german, cases, gate)
        assert (result.verdict.result, outcomes(result, "exact")["bad"]) == ("pass", "not_applicable")
        english = {"exact": {"kind": "exact_match", "when": "metadata.lang != 'fr'"}}
        assert run(store, english, cases, {**gate, "value": 0.3}).verdict.result == "pass"
        assert run(store, english, cases, {**gate, "value": 0.34}).verdict.result == "fail"

    def test_comparisons_leave_them_out_and_say_so(self, store: SqliteStorage) -> None:
        graders = {"exact": {"kind": "exact_match", "when": {"metadata.lang": ["de", "en"]}}}
        cases = [*CASES, {"id": "bad", "input": "broken", "ground_truth": "x", "metadata": {"lang": "fr"}}]
        first, second = run(store, graders, cases), run(store, graders, cases)
        found = compare(first, second)
        column = found.graders["exact"]
        assert (column.pairs, column.missing, column.not_applicable, column.coverage) == (2, 0, 2, 1.0)
        assert found.to_data()["graders"]["exact"]["not_applicable"] == 2

    def test_it_is_part_of_the_fingerprint(self, store: SqliteStorage) -> None:
        plain = run(store, {"exact": {"kind": "exact_match"}})
        limited = run(store, {"exact": {"kind": "exact_match", "when": {"tag": "n"}}})
        assert plain.run.graders["exact"].fingerprint != limited.run.graders["exact"].fingerprint

    def test_a_condition_that_holds_for_no_case_is_a_warning(self, store: SqliteStorage) -> None:
        graders = {
            "typo": {"kind": "contains", "when": {"metadata.lnag": "de"}},
            "path": {"kind": "contains", "when": "metadata.level > `3`"},
            "fails": {"kind": "contains", "when": "length(metadata.level) > `3`"},
            "german": {"kind": "contains", "when": {"metadata.lang": "de"}},
        }
        assert run(store, graders).run.warnings == (
            "typo: when applies to no case, so it grades nothing: 'metadata.lnag is de'; correct it or the cases",
            "path: when applies to no case, so it grades nothing: 'metadata.level > `3`'; correct it or the cases",
        )
        assert run(store, graders, limit=1).run.warnings == ()

    @pytest.mark.parametrize(
        ("when", "message"),
        [
            (
                {"tags": "n"},
                "'tags' is not a field of a case to match, only tag, id and metadata.KEY are; did you mean",
            ),
            ({"lang": "de"}, "did you mean 'metadata.lang'?"),
            ({"metdata.lang": "de"}, "did you mean 'metadata.lang'?"),
            ({"metadata.": "de"}, "did you mean 'metadata.KEY'?"),
            ({"tag": []}, "tag needs a string, a number, true or false, or a list of these, got []"),
            ({"tag": {"any": 1}}, "tag needs a string"),
            ({}, "expected {tag: NAME}, {metadata.KEY: VALUE}, or a JMESPath"),
            (5, "expected {tag: NAME}, {metadata.KEY: VALUE}, or a JMESPath"),
            ("metadata.[", "'metadata.[' is not a valid JMESPath"),
        ],
    )
    def test_a_faulty_condition_is_refused(self, store: SqliteStorage, when: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=r"graders\.exact\.when") as caught:
            run(store, {"exact": {"kind": "exact_match", "when": when}})
        assert message in str(caught.value)

    def test_a_condition_that_fails_on_a_case_is_an_error_of_that_grade(self, store: SqliteStorage) -> None:
        result = run(store, {"exact": {"kind": "exact_match", "when": "length(metadata.answer) > `3`"}})
        assert outcomes(result, "exact") == {"de": "pass", "en": "not_applicable", "fr": "error"}


class TestExpected:
    def test_each_grader_has_its_own_expected_value(self, store: SqliteStorage) -> None:
        graders = {
            "answer": {"kind": "string-match", "expected": "$metadata.answer"},
            "exact": {"kind": "exact_match"},
            "total": {"kind": "numeric", "expected": "$ground_truth.total", "when": {"id": "fr"}},
        }
        result = run(store, graders, [*CASES[:2], {**CASES[2], "input": "1"}])
        assert outcomes(result, "answer") == {"de": "pass", "en": "pass", "fr": "error"}
        assert outcomes(result, "exact") == {"de": "pass", "en": "fail", "fr": "fail"}
        assert outcomes(result, "total") == {"de": "not_applicable", "en": "not_applicable", "fr": "pass"}
        (missing,) = [one.grades["answer"].error for one in result.records() if one.case == "fr"]
        assert missing is not None
        assert (missing.type, missing.message) == (
            "missing",
            "answer.expected: $metadata.answer is absent; the case's metadata keys are 'lang'",
        )

    def test_answer_and_expected_calls_in_one_case(self, store: SqliteStorage, tmp_path: Path) -> None:
        (tmp_path / "agent.py").write_text(
            "def agent(text):\n"
            "    call = {'name': 'add', 'arguments': {'a': 1, 'b': 2}}\n"
            "    return {'text': '3', 'tool_calls': [call]}\n"
        )
        calls = [{"name": "add", "arguments": {"a": [1], "b": [2]}}]
        suite = {
            "name": "calls",
            "dataset": [{"id": 1, "input": "1+2", "ground_truth": "3", "metadata": {"calls": calls}}],
            "target": {"kind": "python", "function": "agent.py:agent"},
            "graders": {
                "answer": {"kind": "numeric"},
                "calls": {"kind": "tool_calls", "expected": "$metadata.calls"},
            },
        }
        result = run_suite(suite, store=store, folder=tmp_path)
        assert outcomes(result, "answer") == outcomes(result, "calls") == {"1": "pass"}

    def test_a_conversation_is_graded_by_turn_where_the_value_has_one_item_for_each(self, store: SqliteStorage) -> None:
        case = {
            "id": 1,
            "input": ["a", "b"],
            "ground_truth": ["a", "x"],
            "metadata": {"turns": ["a", "b"], "last": "b"},
        }
        graders = {
            "truth": {"kind": "exact_match"},
            "turns": {"kind": "exact_match", "expected": "$metadata.turns"},
            "last": {"kind": "exact_match", "expected": "$metadata.last"},
        }
        result = run(store, graders, [case])
        grades = next(iter(result.records())).grades
        assert {key: grade.score for key, grade in grades.items()} == {"truth": 0.5, "turns": 1.0, "last": 1.0}
        assert grades["turns"].metadata["turns_total"] == 2
        assert "turns_total" not in grades["last"].metadata
        # what is stored is what a resume would look for
        stored = next(iter(store.keys_of(result.run.id)))
        assert stored.fingerprints["last"] == result.run.graders["last"].fingerprint

    def test_a_literal_is_refused_with_the_remedy(self, store: SqliteStorage) -> None:
        with pytest.raises(
            ConfigError, match=r"graders\.exact\.expected: expected a reference such as \$metadata\.ans"
        ):
            run(store, {"exact": {"kind": "exact_match", "expected": "Paris"}})


class TestFormula:
    def test_a_column_from_other_columns(self, store: SqliteStorage) -> None:
        graders = {
            "total": {"kind": "formula", "formula": "min(1, 0.5 * exact + 0.25 * ('by-rule' >= 0.5) + abs(-0.25))"},
            "twice": {"kind": "formula", "formula": "total / 2"},
            "exact": {"kind": "exact_match"},
            "by-rule": {"kind": "custom-rules", "rules": [{"condition": "contains", "value": "n"}]},
        }
        result = run(store, graders)
        scores = {record.case: record.grades["total"].score for record in result.records()}
        assert scores == {"de": 1.0, "en": 0.5, "fr": 0.5}
        assert [record.grades["twice"].score for record in result.records()] == [0.5, 0.25, 0.25]
        first = next(iter(result.records())).grades["total"]
        assert first.metadata == {"inputs": {"exact": 1.0, "by-rule": 1.0}}
        assert (first.rationale or "").endswith("= 1 with exact 1, by-rule 1")

    def test_roots_powers_and_rounding(self, store: SqliteStorage) -> None:
        formula = "sqrt(exact / 4) ** 2 + floor(0.75 * exact) + ceil(0.2 * exact) / 2 + log(exp(exact)) / 8"
        (record,) = run(
            store, {"f": {"kind": "formula", "formula": formula}, "exact": {"kind": "exact_match"}}, CASES[:1]
        ).records()
        assert record.grades["f"].score == 0.25 + 0.5 + 0.125

    def test_a_missing_input_makes_it_missing(self, store: SqliteStorage) -> None:
        graders = {
            "answer": {"kind": "string-match", "expected": "$metadata.answer"},
            "german": {"kind": "exact_match", "when": {"metadata.lang": "de"}},
            "of_error": {"kind": "formula", "formula": "answer"},
            "of_left_out": {"kind": "formula", "formula": "1 - german"},
        }
        result = run(store, graders, [*CASES, {"id": "bad", "input": "broken", "metadata": {"lang": "de"}}])
        assert outcomes(result, "of_error") == {"de": "pass", "en": "pass", "fr": "error", "bad": "skipped"}
        assert outcomes(result, "of_left_out") == {
            "de": "fail", "en": "not_applicable", "fr": "not_applicable", "bad": "skipped",
        }  # fmt: skip
        (error,) = [one.grades["of_error"].error for one in result.records() if one.case == "fr"]
        assert error is not None
        assert (error.type, error.message.partition(" (")[0]) == ("missing", "answer has no score")

    @pytest.mark.parametrize(
        ("formula", "message"),
        [
            ("exact / (1 - exact)", "exact / (1 - exact) divides by zero with exact 1"),
            ("exact * 1.7", "exact * 1.7 is 1.7 with exact 1; a score is a number from 0 to 1"),
            ("exact - 2", "exact - 2 is -1 with exact 1"),
            ("exact * 1e308 * 1e308", "exact * 1e308 * 1e308 is too large with exact 1"),
            ("exp(exact * 1000)", "exp(exact * 1000) is too large with exact 1"),
            ("9 ** 9 ** 9 * exact", "9 ** 9 ** 9 * exact is too large with exact 1"),
            ("log(exact - 1)", "log(exact - 1) has no value with exact 1"),
            ("(exact - 3) ** 0.5", "(exact - 3) ** 0.5 has no value with exact 1"),
        ],
    )
    def test_what_is_no_score_is_an_error(self, store: SqliteStorage, formula: str, message: str) -> None:
        graders = {"f": {"kind": "formula", "formula": formula}, "exact": {"kind": "exact_match"}}
        (record,) = run(store, graders, CASES[:1]).records()
        assert record.grades["f"].error is not None
        assert record.grades["f"].error.message.startswith(message)
        assert (record.grades["f"].error.type, record.grades["f"].score) == ("ungradable", None)

    @pytest.mark.parametrize(
        ("formula", "message"),
        [
            ("exct", "no grader 'exct'; did you mean 'exact'?"),
            ("f + exact", "is computed from itself: f → f"),
            ("g", "is computed from itself: "),
            ("1 + 1", "'1 + 1' names no grader"),
            ("exact % 9", "is not allowed in a formula; use numbers, names of graders"),
            ("__import__('os').system('true')", "is not allowed in a formula"),
            ("exact if exact else 0", "is not allowed in a formula"),
            ("min(exact)", "min takes at least two values"),
            ("log(exact, 2)", "log takes one value"),
            ("exact +", "is not a formula: "),
            ("(" * 500 + "exact" + ")" * 490, "is not a formula: "),
            ("-" * 90 + "exact", "is nested more than 30 levels deep"),
            ("exact+" * 500 + "1", "has 3,001 characters; at most 1,000 are allowed"),
            ("9" * 900 + "*exact", "a number in the formula is too large"),
        ],
    )
    def test_a_faulty_formula_is_refused(self, store: SqliteStorage, formula: str, message: str) -> None:
        graders = {
            "f": {"kind": "formula", "formula": formula},
            "g": {"kind": "formula", "formula": "f"},
            "exact": {"kind": "exact_match"},
        }
        with pytest.raises(ConfigError) as caught:
            run(store, graders)
        assert message in str(caught.value)

    def test_its_inputs_must_be_chosen_too(self, store: SqliteStorage) -> None:
        graders = {"f": {"kind": "formula", "formula": "exact"}, "exact": {"kind": "exact_match"}}
        with pytest.raises(ConfigError, match="'f' is computed from 'exact'; choose it too"):
            run(store, graders, graders=["f"])

    def test_its_fingerprint_covers_its_inputs(self, store: SqliteStorage) -> None:
        formula = {"kind": "formula", "formula": "exact"}
        first = run(store, {"f": formula, "exact": {"kind": "exact_match"}})
        second = run(store, {"f": formula, "exact": {"kind": "contains"}})
        assert first.run.graders["f"].fingerprint != second.run.graders["f"].fingerprint


def test_not_applicable_is_in_records_and_exports(store: SqliteStorage) -> None:
    result = run(store, {"exact": {"kind": "exact_match", "when": {"tag": "n"}}})
    data = json.loads(json.dumps([record.grades["exact"].outcome for record in result.records()]))
    assert data == ["pass", "not_applicable", "not_applicable"]
    assert next(iter(result.records())).grades["exact"].rationale is not None
    (other,) = [one.grades["exact"] for one in result.records() if one.case == "en"]
    assert (other.score, other.passed, other.rationale) == (None, None, "applies only when tag is n")
