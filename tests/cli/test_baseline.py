"""A candidate against a baseline from the command line: ``compare`` and ``run --baseline`` decide alike."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline_command import COMMAND, run_command

FAILED = {"status": "error", "error": {"type": "connect", "message": "down", "fault": "infrastructure"}}


class Decision(NamedTuple):
    run: int
    """The exit code of ``run --baseline``."""
    compare: int
    verdict: dict[str, Any]
    comparison: dict[str, Any]


def gradeline(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command([COMMAND, *arguments, "--json"], cwd=folder, text=True, env=environment)
    assert done.stdout, done.stderr
    output: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, output


def suite(folder: Path, name: str, answers: Sequence[Sequence[str | None]], **keys: Any) -> str:
    """A suite whose agent has given these answers, by case and repeat; None is a failed call."""
    rows = [
        {"id": case, "text": text} if text is not None else {"id": case, "response": FAILED}
        for case, repeats in enumerate(answers)
        for text in repeats
    ]
    cases = [{"id": case, "input": f"q{case}", "ground_truth": "yes"} for case in range(len(answers))]
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    document = {
        "name": name,
        "dataset": "cases.jsonl",
        "target": {"kind": "replay", "responses": f"{name}.jsonl"},
        "graders": {"right": {"kind": "contains"}},
        "repeats": len(answers[0]),
        **keys,
    }
    (folder / f"{name}.json").write_text(json.dumps(document))
    return f"{name}.json"


def decided(
    folder: Path, old: Sequence[Sequence[str | None]], new: Sequence[Sequence[str | None]], **keys: Any
) -> Decision:
    folder = folder / f"{len(list(folder.iterdir()))}"
    (folder / ".gradeline").mkdir(parents=True)
    gradeline(folder, "run", suite(folder, "old", old, **keys))
    run, ran = gradeline(folder, "run", suite(folder, "new", new, **keys), "--baseline", "old")
    compare, comparison = gradeline(folder, "compare", "old", "new")
    return Decision(run, compare, ran["verdict"], comparison)


def test_a_candidate_missing_a_fifth_of_the_cases_is_not_better(tmp_path: Path) -> None:
    old = [["no" if case < 8 else "yes"] for case in range(400)]
    new = [[None if case >= 320 else "yes"] for case in range(400)]
    found = decided(tmp_path, old, new)
    assert (found.run, found.compare, found.comparison["decision"]) == (3, 3, "undecided")
    right = found.comparison["graders"]["right"]
    assert (right["coverage"], right["missing"], right["p_value"]) == (0.8, 80, 0.00390625)
    assert right["difference_bounds"] == [-0.18, 0.02]


def test_failed_calls_that_count_as_0_make_it_worse(tmp_path: Path) -> None:
    old = [["yes"] for _ in range(100)]
    new = [[None if case >= 60 else "yes"] for case in range(100)]
    found = decided(tmp_path, old, new, agent_errors="fail")
    assert (found.run, found.compare) == (1, 1)
    assert found.comparison["graders"]["right"]["difference"] == -0.4


def test_unequal_repeats_are_compared_by_their_means(tmp_path: Path) -> None:
    found = decided(tmp_path, [["yes", "yes", "no"]] * 60, [["yes", "no"]] * 60)
    assert (found.run, found.compare) == (1, 1)
    (gate,) = found.verdict["gates"]
    assert gate["observed"] == found.comparison["graders"]["right"]["difference"]
    assert gate["observed_ci"] == found.comparison["graders"]["right"]["difference_ci"]


def test_every_grader_is_compared(tmp_path: Path) -> None:
    graders = {"right": {"kind": "contains"}, "exact": {"kind": "exact_match"}}
    found = decided(tmp_path, [["yes"]] * 300, [["oh yes"]] * 300, graders=graders)
    assert (found.run, found.compare) == (1, 1)
    assert (
        found.comparison["sentence"]
        == "worse (exact). Guard right: none of 300 changed; a loss above 0.0126 is ruled out"
    )
    assert any("exact: -1 against run" in reason for reason in found.verdict["reasons"])


def test_the_primary_graders_are_those_of_the_suite_then_those_of_the_gate(tmp_path: Path) -> None:
    graders = {"right": {"kind": "contains"}, "exact": {"kind": "exact_match"}}
    old, new = [["yes"]] * 300, [["yes"]] * 290 + [["oh yes"]] * 10
    gate = {"kind": "simple", "metric_key": "exact", "aggregation": "accuracy", "op": "gte", "value": 0.5}
    assert decided(tmp_path, old, new, graders=graders).comparison["primary"] == ["right"]
    found = decided(tmp_path, old, new, graders=graders, gate=gate)
    assert (found.comparison["primary"], found.run, found.compare) == (["exact"], 3, 3)
    found = decided(tmp_path, old, new, graders=graders, gate=gate, primary=["right"])
    assert (found.comparison["primary"], found.run, found.compare) == (["right"], 0, 0)


def test_a_loss_that_may_be_within_the_margin_is_undecided(tmp_path: Path) -> None:
    new = [["no" if case < 6 else "yes"] for case in range(400)]
    found = decided(tmp_path, [["yes"]] * 400, new)
    assert (found.run, found.compare) == (3, 3)
    assert found.comparison["graders"]["right"]["reasons"][0].startswith("lower for certain (p 0.016)")


def test_ties_between_thirds_do_not_make_it_significant(tmp_path: Path) -> None:
    """Means of three repeats: 52 of the 1,024 sign patterns lead as far, so p is 0.0508."""
    thirds = (-2, -2, 1, 2, 2, 3, 3, 3, 3, 3)
    old = [["yes"] * max(0, -change) + ["no"] * (3 - max(0, -change)) for change in thirds]
    new = [["yes"] * max(0, change) + ["no"] * (3 - max(0, change)) for change in thirds]
    found = decided(tmp_path, old, new)
    right = found.comparison["graders"]["right"]
    assert (right["test"], right["p_value"], right["decision"]) == ("sign_flip_exact", 52 / 1024, "not_worse")
    assert (found.run, found.compare) == (0, 0)


def test_equal_scores_have_an_interval_with_a_width(tmp_path: Path) -> None:
    """Ten scores of 0.7: the summary and the gate agree on the interval."""
    (tmp_path / "seven.py").write_text(
        "from gradeline import GradeResult, grader\n\n\n"
        "@grader\ndef seven(sample, submission):\n    return GradeResult(score=0.7)\n"
    )
    graders = {"seven": {"kind": "tool", "function": "seven.py:seven"}}
    gate = {"kind": "simple", "metric_key": "seven", "aggregation": "avg_score", "op": "gte", "value": 0.5}
    _, output = gradeline(tmp_path, "run", suite(tmp_path, "equal", [["yes"]] * 10, graders=graders, gate=gate))
    low, high = output["summary"]["graders"]["seven"]["mean_ci"]
    assert (round(low, 3), round(high, 3)) == (0.397, 0.892)
    assert output["verdict"]["gates"][0]["observed_ci"] == [low, high]


def test_an_unknown_primary_grader_is_named(tmp_path: Path) -> None:
    file = suite(tmp_path, "odd", [["yes"]], primary=["rihgt"])
    code, output = gradeline(tmp_path, "validate", file)
    assert code == 2
    (error,) = output["errors"]
    assert error["path"] == "primary[0]"
    assert error["message"] == "no grader 'rihgt'; did you mean 'right'?"


def test_a_primary_grader_missing_from_the_baseline_is_undecided(tmp_path: Path) -> None:
    both = {"right": {"kind": "contains"}, "exact": {"kind": "exact_match"}}
    gradeline(tmp_path, "run", suite(tmp_path, "old", [["yes"]] * 300))
    gradeline(tmp_path, "run", suite(tmp_path, "new", [["yes"]] * 300, graders=both, primary=["exact"]))
    code, output = gradeline(tmp_path, "compare", "old", "new")
    assert (code, output["decision"], output["primary"]) == (3, "undecided", ["exact"])
    assert "grader 'exact' is in the candidate alone" in output["reasons"]


def test_changes_that_are_noise_to_the_grader_count_as_same_in_both_commands(tmp_path: Path) -> None:
    rules = [
        {"condition": "contains", "value": "yes", "weight": 70},
        {"condition": "contains", "value": "please", "weight": 30},
    ]
    grader = {"kind": "custom-rules", "rules": rules}
    old, new = [["yes, please"], ["yes"]] * 200, [["yes"], ["yes, please"]] * 200
    every = decided(tmp_path, old, new, graders={"right": grader})
    assert (every.run, every.compare) == (3, 3)
    noisy = decided(tmp_path, old, new, graders={"right": {**grader, "noise": 0.31}})
    assert (noisy.run, noisy.compare) == (0, 0)
    right = noisy.comparison["graders"]["right"]
    assert (right["noise"], right["within_noise"], right["same"], right["difference"]) == (0.31, 400, 400, 0.0)
    assert (right["baseline"], right["candidate"]) == pytest.approx((0.85, 0.85))
    assert "changes below 0.310 count as same (400 of 400 cases)" in noisy.verdict["reasons"][0]


def refused(folder: Path, *arguments: str) -> str:
    """The message of a command that is a usage error."""
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command([COMMAND, *arguments], cwd=folder, text=True, env=environment)
    assert done.returncode == 2, (done.stdout, done.stderr)
    return done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a store, in which the suite ``capitals`` has run once."""
    (tmp_path / ".gradeline").mkdir()
    gradeline(tmp_path, "run", suite(tmp_path, "capitals", [["yes"]] * 300))
    return tmp_path


def test_a_baseline_is_set_listed_and_cleared(project: Path) -> None:
    code, placed = gradeline(project, "baseline", "set", "main", "latest")
    assert (code, placed["name"], placed["suite"], placed["replaced"]) == (0, "main", "capitals", None)
    (listed,) = gradeline(project, "baseline", "list")[1]["baselines"]
    assert (listed["name"], listed["suite"], listed["run"]) == ("main", "capitals", placed["run"])
    assert listed["set_by"]
    assert listed["set_at"].endswith("Z")
    assert gradeline(project, "baseline", "clear", "main")[1]["cleared"] == listed
    assert gradeline(project, "baseline", "list")[1] == {"baselines": []}


def test_a_run_is_compared_with_the_baseline_that_its_suite_has(project: Path) -> None:
    first = gradeline(project, "baseline", "set", "main", "latest")[1]["run"]
    gradeline(project, "run", suite(project, "rivers", [["no"]] * 300))
    gradeline(project, "baseline", "set", "main", "latest")
    code, ran = gradeline(project, "run", suite(project, "capitals", [["yes"]] * 300), "--baseline", "main")
    assert (code, f"run '{first}'" in str(ran["verdict"]["reasons"])) == (0, True)
    assert gradeline(project, "compare", "main", "latest")[1]["baseline"]["id"] == first
    assert "several suites: 'capitals', 'rivers'; name one with --suite" in refused(project, "show", "main")


def test_a_gate_a_plan_and_an_early_stop_name_a_baseline(project: Path) -> None:
    first = gradeline(project, "baseline", "set", "main", "latest")[1]["run"]
    gate = {"kind": "regression", "baseline": "main"}
    code, ran = gradeline(project, "run", suite(project, "capitals", [["yes"]] * 300, gate=gate))
    assert (code, first in str(ran["verdict"])) == (0, True)
    assert gradeline(project, "plan", "capitals.json", "--baseline", "main")[1]["suite"] == "capitals"
    code, ran = gradeline(project, "run", "capitals.json", "--baseline", "main", "--stop-early")
    assert code == 0


def test_compare_uses_the_baseline_of_the_named_suite(project: Path) -> None:
    first = gradeline(project, "baseline", "set", "main", "latest")[1]["run"]
    gradeline(project, "run", suite(project, "rivers", [["no"]] * 300))
    assert "set for 'capitals', not for the suite 'rivers'" in refused(project, "compare", "main", "latest")
    compared = gradeline(project, "compare", "main", "latest", "--suite", "capitals", "--force")[1]
    assert compared["baseline"]["id"] == first


def test_pruning_keeps_the_run_of_a_baseline_and_gives_the_reason(project: Path) -> None:
    first = gradeline(project, "baseline", "set", "main", "latest")[1]["run"]
    gradeline(project, "run", suite(project, "capitals", [["no"]] * 300))
    for arguments in (("--dry-run",), ()):
        _, pruned = gradeline(project, "store", "prune", "--keep", "0", *arguments)
        assert {one["id"]: one["reason"] for one in pruned["runs"] if not one["deleted"]} == {
            first: "it is the baseline 'main' of 'capitals'"
        }


def test_the_list_of_runs_shows_baselines(project: Path) -> None:
    gradeline(project, "run", suite(project, "capitals", [["no"]] * 300))
    assert all("baselines" not in one for one in gradeline(project, "list")[1]["runs"])
    first = gradeline(project, "baseline", "set", "main", "latest~1")[1]["run"]
    gradeline(project, "baseline", "set", "release", first)
    listed = gradeline(project, "list")[1]["runs"]
    assert [(one["id"], one.get("baselines")) for one in listed][1] == (first, ["main", "release"])
    assert "baselines" not in listed[0]
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    shown = run_command([COMMAND, "list"], cwd=project, text=True, env=environment).stdout
    assert "main, release" in shown


@pytest.mark.parametrize("name", ["a b", "latest", "../x", "\x1b[31m"])
def test_an_invalid_name_is_refused(project: Path, name: str) -> None:
    message = refused(project, "baseline", "set", name, "latest")
    assert "\x1b" not in message
    assert gradeline(project, "baseline", "list")[1] == {"baselines": []}
