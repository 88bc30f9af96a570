"""What users import, and what importing costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gradeline
import gradeline.api
import gradeline.extractors
import gradeline.graders
import gradeline.model


def loaded_by(statement: str) -> set[str]:
    """The modules a fresh interpreter has loaded after a statement, less those it has anyway."""
    script = f"import sys, json; before = set(sys.modules)\n{statement}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_the_public_names_of_the_package() -> None:
    assert gradeline.__all__ == [
        "Client",
        "GradeContext",
        "GradeResult",
        "Grader",
        "Message",
        "Outcome",
        "Response",
        "Sample",
        "StringMatchGrader",
        "Suite",
        "ToolCall",
        "Trajectory",
        "TrueFalseGrader",
        "Usage",
        "__version__",
        "agent_factory",
        "arun_suite",
        "compare",
        "extractor",
        "grader",
        "plan",
        "reward_composer",
        "run_suite",
        "suite_setup",
        "trend",
    ]
    for name in gradeline.__all__:
        assert getattr(gradeline, name) is not None
    assert set(gradeline.__all__) <= set(dir(gradeline))


def test_the_public_names_of_graders_and_extractors() -> None:
    assert gradeline.graders.__all__ == [
        "DeclaredGrader",
        "Grader",
        "StringMatchGrader",
        "TrueFalseGrader",
        "as_grader",
        "create",
        "default_extractor",
        "error_grade",
        "from_definition",
        "grade",
        "registry",
        "run_async_grader",
        "run_grader",
    ]
    assert gradeline.extractors.__all__ == ["DeclaredExtractor", "create", "extract", "registry"]


def test_the_public_names_for_running_suites() -> None:
    assert gradeline.api.__all__ == [
        "CaseProgress",
        "Comparison",
        "ManyComparison",
        "Plan",
        "RunGroup",
        "RunResult",
        "RunSuiteOptions",
        "Suite",
        "Trend",
        "arun_suite",
        "compare",
        "default_store",
        "plan",
        "run_suite",
        "trend",
    ]


@pytest.mark.parametrize("module", [gradeline.model, gradeline.graders, gradeline.extractors, gradeline.api])
def test_every_public_name_exists(module: object) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []  # type: ignore[attr-defined]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gradeline' has no attribute 'Grades'"):
        _ = gradeline.Grades


class TestImportBudget:
    """Counted in modules, not in milliseconds, so that a busy machine changes nothing."""

    HEAVY = ("re2", "rapidfuzz", "jsonschema_rs", "jmespath", "rich", "click", "numpy", "asyncio", "yaml", "pydantic")

    def test_importing_gradeline_loads_almost_nothing(self) -> None:
        loaded = loaded_by("import gradeline")
        assert {name for name in loaded if name.startswith("gradeline")} == {"gradeline", "gradeline.lazy_exports"}
        assert len(loaded) <= 25, sorted(loaded)

    def test_the_nouns_cost_msgspec_and_little_else(self) -> None:
        loaded = loaded_by("from gradeline import Sample, GradeResult")
        assert loaded.isdisjoint(self.HEAVY), sorted(loaded & set(self.HEAVY))
        ours = {name for name in loaded if name.startswith("gradeline.")} - {"gradeline.lazy_exports"}
        assert all(name.startswith(("gradeline.model", "gradeline.errors")) for name in ours)

    def test_grading_a_text_loads_nothing_heavy(self) -> None:
        loaded = loaded_by("import gradeline.graders as g; g.grade('true-false', 'yes', 'true')")
        assert loaded.isdisjoint(self.HEAVY), sorted(loaded & set(self.HEAVY))

    def test_running_functions_loads_no_terminal_and_no_network(self) -> None:
        loaded = loaded_by(
            "from gradeline import run_suite\n"
            "suite = {'name': 'x', 'dataset': [{'input': 'a'}], 'target': str.upper, 'graders': {'g': {'kind': 'contains'}}}\n"
            "run_suite(suite, store='memory://')"
        )
        assert loaded.isdisjoint({"rich", "click", "aiohttp", "numpy", "pydantic", "pytest"})

    @pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["grade", "--help"]])
    def test_help_loads_no_grader_and_no_table_rendering(self, arguments: list[str]) -> None:
        loaded = loaded_by(
            "import contextlib, io\nfrom gradeline.cli import run_cli\n"
            f"with contextlib.redirect_stdout(io.StringIO()):\n    assert run_cli({arguments!r}) == 0"
        )
        assert not any(name.startswith(("gradeline.graders", "gradeline.model", "rich")) for name in loaded)
        assert loaded.isdisjoint(set(self.HEAVY) - {"click"}), sorted(loaded & set(self.HEAVY))

    def test_a_run_loads_what_its_suite_uses(self, tmp_path: Path) -> None:
        (tmp_path / "agent.py").write_text("def answer(text): return text")
        suite = {
            "name": "one",
            "dataset": [{"input": "a", "ground_truth": "a"}],
            "target": {"kind": "python", "function": "agent.py:answer", "isolation": "none"},
            "graders": {"exact": {"kind": "exact_match"}},
        }
        (tmp_path / "suite.json").write_text(json.dumps(suite))
        arguments = ["run", str(tmp_path / "suite.json"), "--quiet", "--store", "memory://"]
        loaded = loaded_by(
            "import contextlib, io\nfrom gradeline.cli import run_cli\n"
            f"with contextlib.redirect_stdout(io.StringIO()):\n    assert run_cli({arguments!r}) == 0"
        )
        dear = {*self.HEAVY, "aiohttp"} - {"click", "asyncio", "yaml"}
        assert loaded.isdisjoint(dear), sorted(loaded & dear)


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "gradeline", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"gradeline {gradeline.__version__}\n"
