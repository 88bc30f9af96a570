"""``gradeline ci``: the base of a change, and what the job reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ci_checkout import Checkout

WORSE = range(3, 18)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def main_run(checkout: Checkout) -> str:
    """Run the suite on the default branch; returns the commit."""
    commit = checkout.commit()
    assert checkout.run("suite.yaml", checkout.push_job()).code == 0
    return commit


def test_a_pull_request_that_makes_cases_worse_fails_with_the_lines_of_the_ten_worst(checkout: Checkout) -> None:
    base = main_run(checkout)
    before = checkout.report()
    checkout.answer(*WORSE)
    checkout.commit(detached=True)
    done = checkout.run("suite.yaml", checkout.pull_request_job(base))
    assert done.code == 1
    assert done.commands == [
        f"::error file=cases.jsonl,line={number + 1}::case 'c{number}' regressed: right 1.000 → 0.000"
        for number in range(3, 13)
    ]
    report = checkout.report()
    run = report["runs"][0]
    assert done.outputs == {"verdict": "fail", "run": run["run"], "exit_code": "1"}
    assert (report["verdict"], report["run"], report["exit_code"]) == ("fail", run["run"], 1)
    assert (run["base"], run["decision"], run["regressed"]) == (before["run"], "worse", 15)
    assert run["base_reason"] == f"the run of the base commit {base[:10]}"
    assert run["regressions"][0] == {
        "case": "c3",
        "scores": [{"grader": "right", "baseline": 1.0, "candidate": 0.0}],
        "file": "cases.jsonl",
        "line": 4,
    }
    assert done.summary.startswith("### ❌ Fail: <code>evals</code>\n")
    assert "**15 cases became worse**; the worst 10 are shown:" in done.summary
    assert "| <code>c3</code> | <code>right</code> | 1.000 | 0.000 | <code>cases.jsonl&#58;4</code> |" in done.summary
    suites = ElementTree.parse(checkout.folder / "junit.xml").getroot()
    assert [(one.get("tests"), one.get("failures")) for one in suites] == [("60", "15")]


def test_a_change_that_is_not_worse_passes_without_annotations(checkout: Checkout) -> None:
    checkout.cases = [{"id": f"c{number}", "input": f"q{number}", "ground_truth": "yes"} for number in range(400)]
    checkout.write("cases.jsonl", "".join(f"{json.dumps(case)}\n" for case in checkout.cases))
    checkout.answer()
    base = main_run(checkout)
    checkout.commit(detached=True)
    done = checkout.run("suite.yaml --undecided fail", checkout.pull_request_job(base))
    assert (done.code, done.commands, done.outputs["verdict"]) == (0, [], "pass")


def test_the_first_run_of_the_default_branch_needs_no_base(checkout: Checkout) -> None:
    checkout.commit()
    done = checkout.run("suite.yaml --undecided fail", checkout.push_job())
    assert (done.code, done.commands, done.outputs["verdict"]) == (0, [], "none")
    assert "not compared: no base&#58;" in done.summary


@pytest.mark.parametrize(
    ("undecided", "code", "level"), [("fail", 3, "error"), ("warn", 0, "warning"), ("pass", 0, "")]
)
def test_a_change_without_a_base_is_undecided(checkout: Checkout, undecided: str, code: int, level: str) -> None:
    base = checkout.commit(detached=True)
    done = checkout.run(f"suite.yaml --undecided {undecided}", checkout.pull_request_job(base))
    assert (done.code, done.outputs["verdict"], done.outputs["exit_code"]) == (code, "undecided", str(code))
    assert [line.split("::")[1] for line in done.commands] == ([level] if level else [])
    reason = f"the store has no complete run of the suite 'evals' of the base commit {base[:10]} or on the branch main"
    assert all(f"no base: {reason}" in line for line in done.commands)
    assert done.summary.startswith("### ⚠️ Not compared: <code>evals</code>\n")
    assert done.summary.count(f"no base&#58; {reason}") == 1
    assert "regress" not in done.summary + done.printed


def test_outside_of_a_forge_a_run_without_a_base_is_undecided(checkout: Checkout) -> None:
    done = checkout.run("suite.yaml --undecided fail")
    assert (done.code, checkout.report()["verdict"]) == (3, "undecided")
    assert "no base: name a run with --baseline, or a branch with --base-branch" in done.errors
    assert done.commands == []


def test_a_gate_that_fails_is_not_hidden_by_a_missing_base(checkout: Checkout) -> None:
    checkout.suite(gate={"kind": "simple", "metric_key": "right", "aggregation": "accuracy", "op": "gte", "value": 0.9})
    checkout.answer(*range(30))
    base = checkout.commit(detached=True)
    done = checkout.run("suite.yaml --undecided pass", checkout.pull_request_job(base))
    assert (done.code, done.outputs["verdict"]) == (1, "fail")


@pytest.mark.parametrize("undecided", ["fail", "warn", "pass"])
def test_a_job_in_which_nothing_could_be_graded_always_fails(checkout: Checkout, undecided: str) -> None:
    base = main_run(checkout)
    checkout.answer(down=True)
    checkout.commit(detached=True)
    done = checkout.run(f"suite.yaml --undecided {undecided}", checkout.pull_request_job(base))
    assert done.code == 4
    assert done.commands[0].startswith("::error::suite 'evals': nothing graded")
    lost = [line for line in done.commands if "no longer has a score: right (was 1.000)" in line]
    assert lost[0].startswith("::error file=cases.jsonl,line=1::case 'c0'")


def test_few_cases_decide_nothing(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, cases=3)
    base = main_run(checkout)
    checkout.answer(1)
    checkout.commit(detached=True)
    warned = checkout.run("suite.yaml", checkout.pull_request_job(base))
    assert warned.code == 0
    assert warned.commands[0].startswith("::warning::suite 'evals': undecided: right: ")
    assert warned.commands[1:] == ["::warning file=cases.jsonl,line=2::case 'c1' regressed: right 1.000 → 0.000"]
    assert checkout.run("suite.yaml --undecided fail", checkout.pull_request_job(base)).code == 3


def test_a_base_without_a_run_is_replaced_by_the_newest_of_its_branch(checkout: Checkout) -> None:
    measured = main_run(checkout)
    unmeasured = checkout.commit()
    checkout.commit(detached=True)
    done = checkout.run("suite.yaml", checkout.pull_request_job(unmeasured))
    run = checkout.report()["runs"][0]
    assert run["base_reason"] == f"the newest run on main, of commit {measured[:10]}"
    assert "the newest run on main" in done.summary


def test_runs_of_other_cases_and_of_pull_requests_are_no_base(checkout: Checkout) -> None:
    base = checkout.commit()
    checkout.run("suite.yaml --limit 20", checkout.push_job())
    checkout.commit(detached=True)
    checkout.run("suite.yaml", checkout.pull_request_job("0" * 40))
    checkout.commit()
    checkout.run("suite.yaml", checkout.pull_request_job(base))
    assert checkout.report()["runs"][0]["base"] is None
    checkout.run("suite.yaml --limit 20", checkout.pull_request_job(base))
    assert checkout.report()["runs"][0]["base"] is not None


def test_a_named_baseline_comes_before_the_base_commit(checkout: Checkout) -> None:
    base = main_run(checkout)
    first = checkout.report()["run"]
    checkout.run("suite.yaml", checkout.push_job())
    checkout.git("checkout", "-q", "--detach")
    checkout.run(["suite.yaml", "--baseline", first], checkout.pull_request_job(base))
    assert checkout.report()["runs"][0]["base"] == first


def test_a_baseline_that_does_not_exist_is_reported_and_the_base_commit_used(checkout: Checkout) -> None:
    base = main_run(checkout)
    done = checkout.run("suite.yaml --baseline release", checkout.pull_request_job(base))
    assert done.commands[0].startswith("::warning::suite 'evals': ")
    assert "'release'" in done.commands[0]
    assert f"the run of the base commit {base[:10]}" in done.commands[0]


def test_a_base_with_other_graders_is_not_comparable(checkout: Checkout) -> None:
    base = main_run(checkout)
    checkout.suite(graders={"right": {"kind": "exact_match"}})
    checkout.answer(*WORSE)
    checkout.commit(detached=True)
    done = checkout.run("suite.yaml", checkout.pull_request_job(base))
    run = checkout.report()["runs"][0]
    assert (done.code, done.outputs["verdict"], run["decision"], run["regressions"]) == (0, "undecided", None, [])
    assert "grader 'right' is not the same in both runs" in run["notes"][0]
    assert "right&#58; run" in done.summary
    assert "has no scores of the same grader to compare with" in done.commands[0]
    assert "became worse" not in done.summary


def test_a_run_ends_early_once_its_comparison_is_decided(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, cases=400)
    base = main_run(checkout)
    checkout.answer(*range(0, 400, 2))
    checkout.commit(detached=True)
    done = checkout.run("suite.yaml --stop-early --concurrency 4 --seed 1", checkout.pull_request_job(base))
    run = checkout.report()["runs"][0]
    assert (done.code, run["decision"]) == (1, "worse")
    assert run["cases"] < 400
    assert all(one["scores"][0]["candidate"] == 0.0 for one in run["regressions"])


def test_a_job_that_is_cancelled_reports_what_it_has(checkout: Checkout) -> None:
    os.mkfifo(checkout.folder / "answer.fifo")
    checkout.write("agent.py", "def answer(text):\n    return open('answer.fifo').read()\n")
    checkout.suite(target={"kind": "python", "function": "agent.py:answer"}, concurrency=1)
    base = checkout.commit(detached=True)
    with checkout.start("suite.yaml", checkout.pull_request_job(base)) as job:
        assert job.stderr is not None
        with (checkout.folder / "answer.fifo").open("w") as answer:  # waits until the first case reads it
            job.terminate()
            assert any("finishing calls in flight" in line for line in job.stderr)
            answer.write("yes")
        printed, _ = job.communicate(timeout=60)
    run = checkout.report()["runs"][0]
    assert (job.returncode, run["exit_code"], run["cases"]) == (130, 130, 1)
    assert printed.splitlines()[-1].startswith("::")
    outputs = (checkout.folder / "outputs.out").read_text(encoding="utf-8")
    assert outputs.endswith("exit_code=130\n")


def test_each_variant_has_its_own_base(checkout: Checkout) -> None:
    variants = [{"name": name, "set": {"target.responses": f"{name}.jsonl"}} for name in ("small", "large")]
    checkout.suite(variants=variants)
    for name in ("small", "large"):
        checkout.answer()
        (checkout.folder / "answers.jsonl").rename(checkout.folder / f"{name}.jsonl")
    base = main_run(checkout)
    before = {run["variant"]: run["run"] for run in checkout.report()["runs"]}
    checkout.answer(*WORSE)
    (checkout.folder / "answers.jsonl").rename(checkout.folder / "large.jsonl")
    checkout.commit(detached=True)
    done = checkout.run("suite.yaml", checkout.pull_request_job(base))
    runs = checkout.report()["runs"]
    assert [(run["name"], run["base"]) for run in runs] == [
        ("evals [small]", before["small"]),
        ("evals [large]", before["large"]),
    ]
    large = runs[1]["run"]
    assert (done.code, done.outputs["run"], done.outputs["verdict"]) == (1, large, "fail")
    suites = ElementTree.parse(checkout.folder / "junit.xml").getroot()
    assert [one.get("name") for one in suites] == ["evals [small]", "evals [large]"]


def test_an_invalid_suite_leaves_no_result_of_an_earlier_job(checkout: Checkout) -> None:
    main_run(checkout)
    checkout.write("suite.yaml", "name: evals\n")
    assert checkout.run("suite.yaml", checkout.push_job()).code == 2
    assert not (checkout.folder / "gradeline-ci.json").exists()


def test_a_file_that_is_no_report_is_kept_until_there_is_a_result(checkout: Checkout) -> None:
    checkout.write("suite.yaml", "name: evals\n")
    notes = checkout.write("notes.json", "{}")
    for name in ("notes.json", "suite.yaml"):
        assert checkout.run(f"suite.yaml --output {name}").code == 2
    assert notes.read_text() == "{}"
    assert (checkout.folder / "suite.yaml").exists()


def test_text_of_an_agent_is_no_command_and_no_markup(checkout: Checkout) -> None:
    hostile = "\n::add-mask::all\n%0A::error::x | </code><img src=//e.org> @team"
    checkout.cases[4]["id"] = "c4\n::error::hostile, case%"
    checkout.write("cases.jsonl", "".join(f"{json.dumps(case)}\n" for case in checkout.cases))
    checkout.answer()
    base = main_run(checkout)
    checkout.answer(*WORSE, text=hostile)
    checkout.commit(detached=True)
    done = checkout.run("suite.yaml", checkout.pull_request_job(base))
    lines = done.printed.splitlines()
    stopped = lines[0].removeprefix("::stop-commands::")
    end = lines.index(f"::{stopped}::")
    assert len(stopped) == 32
    assert all(line.startswith("::error file=cases.jsonl,line=") for line in lines[end + 1 :])
    assert len(lines[end + 1 :]) == 10
    assert "case 'c4\\n::error::hostile, case%25' regressed" in lines[end + 2]
    assert "<img" not in done.summary
    assert "@team" not in done.summary


def test_json_is_one_object_and_annotations_go_to_stderr(checkout: Checkout) -> None:
    base = main_run(checkout)
    checkout.answer(*WORSE)
    checkout.commit(detached=True)
    done = checkout.run("--json suite.yaml", checkout.pull_request_job(base))
    assert json.loads(done.printed) == checkout.report()
    assert done.errors.count("::error file=cases.jsonl") == 10


def test_a_merge_request_on_gitlab_is_compared_with_its_base(checkout: Checkout) -> None:
    base = checkout.commit(detached=True)
    assert checkout.run("suite.yaml", checkout.gitlab_job()).code == 0
    checkout.answer(*WORSE)
    checkout.commit()
    done = checkout.run("suite.yaml", checkout.gitlab_job(base))
    assert done.code == 1
    assert done.errors.splitlines()[-1] == "cases.jsonl:13: error: case 'c12' regressed: right 1.000 → 0.000"
    assert done.commands == []
    # a checkout on GitLab is on no branch, so the branch of the run is that of the job
    checkout.run("suite.yaml", checkout.gitlab_job("0" * 40))
    assert checkout.report()["runs"][0]["base_reason"] == f"the newest run on main, of commit {base[:10]}"


def test_a_base_is_named_by_options_outside_of_a_forge(checkout: Checkout) -> None:
    checkout.commit()
    checkout.run("suite.yaml")
    first = checkout.report()["run"]
    checkout.git("checkout", "-qb", "feature")
    head = checkout.commit()
    checkout.run("suite.yaml --base-branch main")
    assert checkout.report()["runs"][0]["base"] == first
    second = checkout.report()["run"]
    checkout.commit()
    checkout.run(["run", "suite.yaml", "--base-commit", head, "--quiet"])
    assert checkout.report()["runs"][0]["base"] == second
