"""Variants, prompts and models from the command line: one run each, in one group."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline_command import COMMAND, run_command

SUITE = """\
name: capitals
dataset: cases.jsonl
target: {kind: python, function: "agent.py:answer", isolation: none}
variants:
  - {name: plain}
  - {name: polite, set: {target.function: "agent.py:polite"}}
  - {name: program, set: {target: {kind: command, command: [echo, It is Paris.]}}}
graders:
  right: {kind: string-match, mode: contains}
  own: {kind: tool, function: nonempty}
"""
AGENT = """
import os, signal
from pathlib import Path
KNOWN = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo"}
def answer(text):
    return f"It is {KNOWN.get(text.split()[-1], 'Paris')}."
def polite(text):
    deadly = Path(__file__).with_name("deadly")
    if "Spain" in text and deadly.exists():
        deadly.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"It is {KNOWN[text.split()[-1]]}, you are welcome."
"""
GRADERS = """
from gradeline import GradeResult, grader
@grader
def nonempty(sample, submission):
    return GradeResult(score=1.0 if submission else 0.0)
"""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def gradeline(folder: Path, *arguments: str, **variables: str) -> CommandResult:
    environment = {name: value for name, value in os.environ.items() if name != "GRADELINE_STORE"}
    done = run_command([COMMAND, *arguments], cwd=folder, env={**environment, "NO_COLOR": "1", **variables}, text=True)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "graders.py").write_text(GRADERS)
    countries = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo"}
    rows = [
        {"id": country, "input": f"Capital of {country}", "ground_truth": city} for country, city in countries.items()
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_targets_of_different_kinds_are_comparable_runs_of_one_group(folder: Path) -> None:
    ran = gradeline(folder, "run", "suite.yaml", "--json", "--output", "out")
    assert (ran.code, ran.err) == (0, "")
    runs = [one["run"] for one in ran.json["runs"]]
    assert [(one["name"], one["variant"], one["target"]["kind"]) for one in runs] == [
        ("capitals [plain]", "plain", "python"),
        ("capitals [polite]", "polite", "python"),
        ("capitals [program]", "program", "command"),
    ]
    assert len({one["group"] for one in runs}) == 1
    assert len({one["target"]["fingerprint"] for one in runs}) == 3
    compared = gradeline(folder, "compare", "--group", "latest", "--json")
    assert (compared.code, compared.json["comparable"], compared.json["cases"]) == (0, True, 3)
    assert {one["run"]["variant"] for one in compared.json["runs"]} == {"plain", "polite", "program"}
    means = {one["run"]["variant"]: one["summary"]["graders"]["right"]["mean"] for one in ran.json["runs"]}
    assert means == {"plain": 1.0, "polite": 1.0, "program": pytest.approx(1 / 3)}
    assert {path.name for path in (folder / "out").iterdir()} == {
        "suite.json", "summary.json", "plain.jsonl", "polite.jsonl", "program.jsonl"
    }  # fmt: skip


def test_one_variant_is_chosen_and_shown(folder: Path) -> None:
    ran = gradeline(folder, "run", "suite.yaml", "--variant", "polite", "--json")
    assert (ran.json["run"]["variant"], ran.json["run"]["name"], ran.json["run"]["group"]) == (
        "polite",
        "capitals",
        None,
    )
    assert "capitals, variant polite" in gradeline(folder, "show").out
    assert "polite" in gradeline(folder, "list").out
    header, first = gradeline(folder, "export", "latest", "--format", "csv").out.splitlines()[:2]
    assert header.endswith(",variant")
    assert first.endswith(",polite")
    for format_, excerpt in (("junit", 'name="variant" value="polite"'), ("markdown", "variant"), ("html", "polite")):
        assert excerpt in gradeline(folder, "export", "latest", "--format", format_).out
    unknown = gradeline(folder, "run", "suite.yaml", "--variant", "polit", "--variant", "x")
    assert unknown.code == 2
    assert "no variant 'polit'; did you mean 'polite'?" in unknown.err
    assert "no variant 'x'; the variants are plain, polite, program" in unknown.err


@pytest.mark.parametrize("prompt", ["a.md", "b.md", "small", "b@large"])
def test_a_prompt_or_a_model_chooses_all_its_runs(folder: Path, prompt: str) -> None:
    for name in ("a.md", "b.md"):
        (folder / name).write_text("{{input}}")
    (folder / "chat.yaml").write_text(
        "name: c\ndataset: cases.jsonl\n"
        "target: {kind: openai, base_url: 'http://127.0.0.1:9', retries: 0, api_key: x,"
        " stop_after_connection_failures: 0}\n"
        "prompts: [a.md, b.md]\nmodels: [small, large]\ngraders: {right: {kind: contains}}\n"
    )
    chosen = prompt.removesuffix(".md")
    ran = gradeline(folder, "run", "chat.yaml", "--variant", chosen, "--limit", "1", "--json")
    names = {
        "a": ["a@small", "a@large"],
        "b": ["b@small", "b@large"],
        "small": ["a@small", "b@small"],
        "b@large": ["b@large"],
    }
    assert [one["run"]["variant"] for one in ran.json.get("runs", [ran.json])] == names[chosen]


def test_a_model_of_the_command_line_replaces_those_of_the_suite(folder: Path) -> None:
    ran = gradeline(folder, "run", "suite.yaml", "--variant", "plain", "--model", "m", "--model", "n", "--json")
    assert [(one["run"]["variant"], one["run"]["target"]["model"]) for one in ran.json["runs"]] == [
        ("plain@m", "m"),
        ("plain@n", "n"),
    ]


def test_resume_runs_the_variants_that_were_not_reached(folder: Path) -> None:
    (folder / "deadly").touch()
    died = gradeline(folder, "run", "suite.yaml", "--seed", "7", "--output", "out")
    assert died.code == -signal.SIGKILL
    resumed = gradeline(folder, "resume", "latest", "--json")
    assert (resumed.code, resumed.err) == (0, "")
    assert [one["run"]["variant"] for one in resumed.json["runs"]] == ["polite", "program"]
    runs = gradeline(folder, "list", "--json").json["runs"]
    assert [(one["name"], one["status"], one["seed"]) for one in runs] == [
        (f"capitals [{name}]", "completed", 7) for name in ("program", "polite", "plain")
    ]
    assert len({one["group"] for one in runs}) == 1
    assert len(list((folder / "out").glob("*.jsonl"))) == 3


def test_a_run_whose_variant_is_gone_is_refused_and_can_be_regraded(folder: Path) -> None:
    gradeline(folder, "run", "suite.yaml", "--variant", "program")
    (folder / "suite.yaml").write_text(SUITE.replace("name: program", "name: renamed"))
    resumed = gradeline(folder, "resume", "latest", "--allow-changed")
    assert resumed.code == 2
    assert "no variant 'program'" in resumed.err
    regraded = gradeline(folder, "regrade", "latest", "--json").json["run"]
    assert (regraded["variant"], regraded["target"]["kind"]) == ("program", "command")


def test_every_variant_is_compared_with_the_baseline(folder: Path) -> None:
    gradeline(folder, "run", "suite.yaml", "--variant", "plain", "--name", "before")
    ran = gradeline(folder, "run", "suite.yaml", "--baseline", "before", "--json")
    assert [len(one["verdict"]["gates"]) > 0 for one in ran.json["runs"]] == [True] * 3


def test_validate_builds_every_variant(folder: Path) -> None:
    assert gradeline(folder, "validate", "suite.yaml").code == 0
    (folder / "suite.yaml").write_text(SUITE.replace("agent.py:polite", "agent.py:polit"))
    checked = gradeline(folder, "validate", "suite.yaml", "--json")
    assert checked.code == 2
    (error,) = checked.json["errors"]
    assert "polit" in error["message"]


def test_the_cache_serves_a_variant_its_own_responses(folder: Path) -> None:
    (folder / "suite.yaml").write_text(SUITE + "cache: true\n")
    first = gradeline(folder, "run", "suite.yaml", "--json").json["runs"]
    again = gradeline(folder, "run", "suite.yaml", "--json").json["runs"]
    assert [one["summary"]["graders"]["right"]["mean"] for one in again] == [
        one["summary"]["graders"]["right"]["mean"] for one in first
    ]


def test_a_secret_of_a_variant_is_stored_nowhere(folder: Path) -> None:
    key = "sk-variant-0123456789abcdef"
    target = "{kind: http, url: 'http://127.0.0.1:9', retries: 0, headers: {Authorization: '${VARIANT_KEY}'}}"
    (folder / "suite.yaml").write_text(SUITE.replace("kind: command, command: [echo, It is Paris.]", target[1:-1]))
    ran = gradeline(folder, "run", "suite.yaml", "--variant", "program", "--json", "--output", "o", VARIANT_KEY=key)
    assert ran.json["run"]["variant"] == "program"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert key not in ran.out + ran.err
    assert not [path for path in files if key.encode() in path.read_bytes()]


def test_set_changes_a_variant_and_refuses_a_secret_there(folder: Path) -> None:
    ran = gradeline(folder, "run", "suite.yaml", "--variant", "plain", "--set", "variants=[{name: plain}]", "--json")
    assert ran.json["run"]["variant"] == "plain"
    refused = gradeline(folder, "run", "suite.yaml", "--set", "variants[0].set.target.api_key=sk-0123456789abcdef")
    assert refused.code == 2
    assert "may be a secret" in refused.err


def test_a_plan_says_that_its_numbers_are_those_of_one_variant(folder: Path) -> None:
    planned = gradeline(folder, "plan", "suite.yaml", "--json").json
    assert planned["present"]["calls"] == 3
    assert planned["notes"][0].startswith("the suite makes 3 runs, one for each variant")


def test_a_pair_may_be_two_variants(folder: Path) -> None:
    judged = gradeline(
        folder,
        "pair",
        "suite.yaml",
        "--baseline",
        "plain",
        "--candidate",
        "program",
        "--judge",
        "exact-match",
        "--json",
    )
    assert judged.code == 0, judged.err
    assert judged.json["run"]["name"] == "capitals [program against plain]"
    assert judged.json["run"]["variant"] == "program"
    assert "command:program" in gradeline(folder, "ledger").out
    judge = ("--judge", "exact-match")
    several = gradeline(folder, "pair", "suite.yaml", "--baseline", "m", "--candidate", "program", *judge)
    assert several.code == 2
    assert "'m' is 3 runs: plain@m, polite@m, program@m; name one of them" in several.err


def test_letta_files_of_variants_are_read_back_as_their_responses(folder: Path) -> None:
    gradeline(folder, "run", "suite.yaml", "--output", "out")
    again = gradeline(folder, "run", "suite.yaml", "--cached", "out", "--json").json["runs"]
    assert {one["run"]["variant"]: one["run"]["target"]["kind"] for one in again} == dict.fromkeys(
        ("plain", "polite", "program"), "replay"
    )


def test_early_stopping_holds_for_each_variant(folder: Path) -> None:
    gradeline(folder, "run", "suite.yaml", "--variant", "plain", "--name", "before")
    ran = gradeline(folder, "run", "suite.yaml", "--baseline", "before", "--stop-early", "--json")
    assert [one["run"]["variant"] for one in ran.json["runs"]] == ["plain", "polite", "program"]
