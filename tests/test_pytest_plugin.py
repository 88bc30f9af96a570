"""An eval is a test: run by pytest as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml  # noqa: F401 - runs in this process unload their modules, and C extensions can be loaded only once

import gradeline.api
from gradeline import compat, pytest_plugin
from gradeline.model import Run
from gradeline.store import open_storage

pytest_plugins = ["pytester"]

SUITE = """\
name: capitals
dataset:
  - {id: france, input: France, ground_truth: Paris}
  - {id: peru, input: Peru, ground_truth: Lima}
target: {kind: command, command: [sed, "s/France/Paris/"]}
graders: {right: {kind: contains}}
gate: {kind: simple, metric_key: right, aggregation: avg_score, op: gte, value: 0.5}
"""


@pytest.fixture(autouse=True)
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project with a suite next to its tests, and the plugin loaded once, whether or not it is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("GRADELINE_STORE", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makefile(".yaml", suite=SUITE)
    yield
    compat.uninstall()


def run_pytest(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*arguments, plugins=[pytest_plugin])


def runs(pytester: pytest.Pytester, path: str = ".gradeline/store.db") -> list[Run]:
    with open_storage(pytester.path / path) as storage:
        return storage.list_runs()


class TestMarker:
    def test_a_suite_that_passes_is_a_test_that_passes(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            import pytest

            @pytest.mark.gradeline("suite.yaml", name="first")
            def test_capitals():
                pass

            @pytest.mark.gradeline(suite="suite.yaml", limit=1, overrides={"gate.value": 1.0})
            def test_france(gradeline_run):
                assert gradeline_run.summary.cases == 1
        """)
        result = run_pytest(pytester, "--strict-markers")
        result.assert_outcomes(passed=2)
        second, first = runs(pytester)
        assert (first.name, second.name) == ("first", "capitals")
        result.stdout.fnmatch_lines(
            [
                "*gradeline runs*",
                f"{first.id} pass      first  *test_capitals",
                f"{second.id} pass      capitals  *test_france",
            ]
        )

    def test_a_suite_that_does_not_pass_fails_with_its_reasons(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            import pytest

            @pytest.mark.gradeline("suite.yaml", overrides={"gate.value": 0.9})
            def test_capitals():
                raise NotImplementedError("is not come to")
        """)
        result = run_pytest(pytester)
        result.assert_outcomes(failed=1)
        (run,) = runs(pytester)
        result.stdout.fnmatch_lines(
            [
                "'capitals' did not pass: fail",
                "  right: avg_score 0.5 ≥ 0.9 is false",
                "  case 'peru': right 0: *",
                f"run {run.id}: gradeline show {run.id}",
                f"{run.id} fail      capitals  *test_capitals",
            ]
        )
        result.stdout.no_fnmatch_line("*NotImplementedError*")
        result.stdout.no_fnmatch_line("*Traceback*")

    def test_undecided_fails_unless_it_may_pass(self, pytester: pytest.Pytester) -> None:
        pytester.makefile(".yaml", suite=SUITE.replace('sed, "s/France/Paris/"', "sh, -c, read it; test $it = France"))
        pytester.makepyfile("""
            import pytest

            lenient = {"gate.value": 0.0}

            @pytest.mark.gradeline("suite.yaml", overrides=lenient)
            def test_strictly():
                pass

            @pytest.mark.gradeline("suite.yaml", overrides=lenient, undecided="pass")
            def test_leniently():
                pass

            @pytest.mark.gradeline("suite.yaml", samples=["peru"], undecided="pass")
            def test_nothing_graded():
                pass
        """)
        result = run_pytest(pytester)
        result.assert_outcomes(passed=1, failed=2)
        result.stdout.fnmatch_lines(
            [
                "'capitals' did not pass: undecided",
                "  *only 1 of 2 have a score*",
                "  case 'peru': the call failed: *",
                "'capitals' did not pass: nothing could be graded",
            ]
        )

    def test_each_model_must_pass(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            agent="def answer(text, model): return 'Paris' if model == 'large' else 'no idea'",
            test_models="""
            import pytest

            @pytest.mark.gradeline("suite.yaml", models=["large", "small"], limit=1,
                                   overrides={"target": {"kind": "python", "function": "agent.py:answer"}})
            def test_models(gradeline_run):
                pass
            """,
        )
        result = run_pytest(pytester)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["'capitals [[]small]' did not pass: fail"])
        result.stdout.no_fnmatch_line("'capitals [[]large]' did not pass*")
        result.stdout.fnmatch_lines(["* pass      capitals [[]large]  *", "* fail      capitals [[]small]  *"])

    def test_errors_are_reported_without_a_traceback(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            import pytest

            @pytest.mark.gradeline("absent.yaml")
            def test_absent(): pass

            @pytest.mark.gradeline("suite.yaml", limt=3)
            def test_option(): pass

            @pytest.mark.gradeline("suite.yaml", undecided="maybe")
            def test_undecided(): pass

            @pytest.mark.gradeline
            def test_nothing(): pass

            def test_no_marker(gradeline_run): pass
        """)
        result = run_pytest(pytester)
        result.assert_outcomes(failed=4, errors=1)
        result.stdout.fnmatch_lines(
            [
                "gradeline_run needs a suite: put @pytest.mark.gradeline('suite.yaml') above the test",
                f"gradeline: {pytester.path}/absent.yaml: no such file",
                "gradeline: run_suite() got an unexpected keyword argument 'limt'; did you mean 'limit'?",
                "gradeline: undecided must be 'fail' or 'pass', got 'maybe'",
                "gradeline: write @pytest.mark.gradeline('suite.yaml', limit=5): one suite, then options by name",
            ]
        )
        result.stdout.no_fnmatch_line("*gradeline runs*")

    def test_a_method_with_the_marker_is_a_test(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            import unittest
            import pytest

            class TestCapitals(unittest.TestCase):
                @pytest.mark.gradeline("suite.yaml", overrides={"gate.value": 0.9})
                def test_capitals(self):
                    pass
        """)
        run_pytest(pytester).assert_outcomes(failed=1)


class TestFixture:
    def test_a_test_asserts_on_the_result_itself(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            from gradeline import GradeResult, compare, grader

            @grader
            def short(sample, submission):
                return GradeResult(1.0 if len(submission) < 10 else 0.0)

            def test_file(evaluate):
                result = evaluate("suite.yaml", limit=1)
                assert result.passed
                assert [record.case for record in result.records()] == ["france"]

            def test_functions(evaluate):
                suite = {"name": "here", "dataset": "cases.csv", "target": str.upper, "graders": {"short": short}}
                before, after = evaluate(suite), evaluate(suite | {"target": str.lower})
                assert before.summary.graders["short"].passed == 1
                assert compare(before, after).decision == "undecided"
                assert before.store is after.store
        """)
        pytester.makefile(".csv", cases="input\nFrance\n")
        result = run_pytest(pytester, "--gradeline-store", "memory://")
        result.assert_outcomes(passed=2)
        result.stdout.fnmatch_lines(["*gradeline runs*", "* pass      capitals  *", "* none      here  *"])
        assert not (pytester.path / ".gradeline").exists()

    def test_paths_are_relative_to_the_test_file(self, pytester: pytest.Pytester) -> None:
        below = pytester.mkpydir("below")
        (pytester.path / "suite.yaml").rename(below / "other.yaml")
        (below / "test_below.py").write_text(
            "def test_it(evaluate):\n    assert evaluate('other.yaml').exit_code == 0\n"
        )
        run_pytest(pytester).assert_outcomes(passed=1)
        assert len(runs(pytester)) == 1


class TestCases:
    def test_a_test_for_each_case(self, pytester: pytest.Pytester) -> None:
        pytester.makefile(
            ".jsonl", cases='{"id": "a", "input": "x", "tags": ["t"]}\n{"input": "y", "tags": ["t"]}\n{"input": "z"}\n'
        )
        pytester.makepyfile("""
            import pytest

            @pytest.mark.gradeline_cases("cases.jsonl", tags=["t"])
            def test_case(sample):
                assert sample.input == "x"
        """)
        result = run_pytest(pytester, "-v")
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines(["*::test_case[[]a] PASSED*", "*::test_case[[]case-2bc983a59422] FAILED*"])

    def test_an_invalid_dataset_is_an_error_with_its_place(self, pytester: pytest.Pytester) -> None:
        pytester.makefile(".jsonl", cases='{"inptu": "x"}\n')
        pytester.makepyfile("""
            import pytest

            @pytest.mark.gradeline_cases("cases.jsonl")
            def test_case(sample): pass
        """)
        result = run_pytest(pytester)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"gradeline: {pytester.path}/cases.jsonl:1: input: is required*"])


class TestStore:
    def test_it_is_named_by_an_option_or_in_the_settings(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("def test_it(evaluate): evaluate('suite.yaml')")
        pytester.makeini("[pytest]\ngradeline_store = sqlite:///set.db")
        run_pytest(pytester).assert_outcomes(passed=1)
        run_pytest(pytester, "--gradeline-store=own.db").assert_outcomes(passed=1)
        assert [len(runs(pytester, name)) for name in ("set.db", "own.db")] == [1, 1]

    def test_runs_of_xdist_are_in_one_store_and_one_list(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            import pytest

            @pytest.mark.parametrize("number", range(4))
            @pytest.mark.gradeline("suite.yaml")
            def test_capitals(number):
                pass
        """)
        result = pytester.runpytest_subprocess(
            "-p", "xdist", "-p", "gradeline.pytest_plugin", "-n", "2", "--gradeline-store", "all.db", "--junitxml=j.xml"
        )
        result.assert_outcomes(passed=4)
        stored = {run.id for run in runs(pytester, "all.db")}
        options = {line.split()[0] for line in result.outlines if line.endswith("]") and " pass " in line}
        assert (len(stored), options) == (4, stored)
        assert (pytester.path / "j.xml").read_text().count('name="gradeline_run"') == 4


class TestImports:
    def test_it_imports_nothing_of_gradeline_before_it_is_used(self) -> None:
        script = (
            "import sys, json, pytest; before = set(sys.modules); import gradeline.pytest_plugin;"
            "print(json.dumps(sorted(set(sys.modules) - before)))"
        )
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        assert json.loads(done.stdout) == ["gradeline", "gradeline.lazy_exports", "gradeline.pytest_plugin"]

    @pytest.mark.parametrize("file", ["conftest.py", "test_names.py"])
    def test_letta_names_can_be_imported_without_any_option_or_fixture(
        self, pytester: pytest.Pytester, file: str
    ) -> None:
        pytester.makepyfile(test_other="def test_it(): pass")
        (pytester.path / file).write_text("from letta_evals.decorators import grader\ndef test_it(): pass\n")
        done = pytester.runpytest_subprocess("-q", "-p", "gradeline.pytest_plugin")
        done.assert_outcomes(passed=1 if file == "conftest.py" else 2)

    def test_letta_names_exist_where_a_conftest_loads_the_plugin(self, pytester: pytest.Pytester) -> None:
        pytester.makeconftest("pytest_plugins = ['gradeline.pytest_plugin']")
        pytester.makepyfile("from letta_client import AgentState\ndef test_it(): pass")
        pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)

    def test_its_options_and_markers_are_listed(self, pytester: pytest.Pytester) -> None:
        run_pytest(pytester, "--help").stdout.fnmatch_lines(["*--gradeline-store*"])
        listed = run_pytest(pytester, "--markers").stdout
        listed.fnmatch_lines(["@pytest.mark.gradeline(*", "@pytest.mark.gradeline_cases(*"])


assert gradeline.api  # loaded before the inner sessions, which forget what they import
