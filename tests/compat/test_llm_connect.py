"""Code written for llm_connect.grading runs on gradeline's judges."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline import adapters, compat, judges, ledger
from gradeline.compat.stand_ins import TABLES
from gradeline_command import COMMAND, run_command

JUDGES = ["GradingResult", "Judge", "BaselineGrader", "ExactMatchJudge", "EmbeddingSimilarityJudge", "LLMJudge", "PairedGrader"]  # fmt: skip
ADAPTERS = ["LLMAdapter", "LLMResponse", "RunConfig", "EmbeddingAdapter", "BudgetTracker"]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """Restore the import system after the test."""
    compat.install()
    yield
    compat.uninstall()


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.parametrize("module", ["llm_connect", "llm_connect.grading"])
def test_each_name_is_from_gradeline(module: str) -> None:
    names = run(f"from {module} import {', '.join([*JUDGES, *ADAPTERS, 'QualityLedger'])}")
    homes = {**dict.fromkeys(JUDGES, judges), **dict.fromkeys(ADAPTERS, adapters), "QualityLedger": ledger}
    assert {name: names[name] for name in homes} == {name: getattr(home, name) for name, home in homes.items()}
    assert set(TABLES[module]) == set(homes)


def test_code_for_llm_connect_runs() -> None:
    names = run(
        "from dataclasses import dataclass\n"
        "from llm_connect.grading import ExactMatchJudge, LLMResponse, PairedGrader, RunConfig\n"
        "class Says:\n"
        "    adapter_id = 'says'\n"
        "    def complete(self, prompt, run_config):\n"
        "        return LLMResponse(prompt.upper())\n"
        "result = PairedGrader(ExactMatchJudge()).grade(Says(), Says(), 'hello', RunConfig(model='any'))\n"
    )
    assert names["result"] == judges.GradingResult(
        1.0, "match (stripped)", "exact-match", adapters.LLMResponse("HELLO"), adapters.LLMResponse("HELLO")
    )


def test_the_error_for_an_unknown_name_has_a_remedy_without_a_package() -> None:
    with pytest.raises(ImportError) as caught:
        run("from llm_connect.grading import LLMJugde")
    assert str(caught.value) == (
        "gradeline's stand-in for llm_connect has no llm_connect.grading.LLMJugde; did you mean 'LLMJudge'? "
        "The real package may have it."
    )


def test_a_real_package_has_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm_connect").mkdir()
    (tmp_path / "llm_connect" / "__init__.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        assert run("import llm_connect")["llm_connect"].REAL
    finally:
        sys.modules.pop("llm_connect", None)


def test_it_works_in_suite_code(tmp_path: Path) -> None:
    (tmp_path / "graders.py").write_text(
        "from letta_evals.decorators import grader\n"
        "from letta_evals.models import GradeResult\n"
        "from llm_connect.grading import ExactMatchJudge, LLMResponse, RunConfig\n"
        "@grader\n"
        "def same(sample, submission):\n"
        "    result = ExactMatchJudge(case_sensitive=False).judge(\n"
        "        LLMResponse(sample.ground_truth), LLMResponse(submission), prompt=sample.input,\n"
        "        run_config=RunConfig(model=''))\n"
        "    return GradeResult(score=result.quality_score, rationale=result.notes)\n"
    )
    (tmp_path / "agent.py").write_text("def answer(text): return text.upper()\n")
    (tmp_path / "suite.yaml").write_text(
        "name: judged\n"
        "dataset: [{input: a, ground_truth: A}, {input: b, ground_truth: b}]\n"
        "target: {kind: python, function: 'agent.py:answer'}\n"
        "graders: {same: {kind: tool, function: same}}\n"
    )
    done = run_command([COMMAND, "run", "suite.yaml", "--store", "memory://", "--json"], cwd=tmp_path, text=True)
    assert done.returncode == 0, done.stderr
    graded = json.loads(done.stdout)["summary"]["graders"]["same"]
    assert (graded["passed"], graded["failed"], graded["errors"]) == (2, 0, 0)
