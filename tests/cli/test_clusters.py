"""Cases that belong together, from the suite to the verdict, as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.cli import run_cli as command

SUITE = """
name: support
dataset: cases.jsonl
cluster: metadata.document
target: {kind: replay, responses: answers.jsonl}
graders: {right: {kind: exact_match}}
gate: {metric_key: right, op: gte, value: 0.5}
"""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


class Shop:
    """A folder with a suite: eight documents, three questions to each."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self.write(SUITE)
        self.cases({"metadata": {"document": f"doc {number}"}} for number in range(8))
        self.answer(wrong=0)

    def __call__(self, *arguments: str) -> CommandResult:
        code = command(list(arguments))
        return CommandResult(code, *self._capsys.readouterr())

    def write(self, suite: str) -> None:
        (self._folder / "suite.yaml").write_text(suite)

    def cases(self, documents: Any) -> None:
        rows = [
            {"id": f"{number}-{place}", "input": f"{number} {place}", "ground_truth": f"{number}{place}", **fields}
            for number, fields in enumerate(documents)
            for place in range(3)
        ]
        (self._folder / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def run(self, name: str, wrong: int, *options: str) -> CommandResult:
        """A run that answers the questions to that many documents wrongly."""
        self.answer(wrong)
        return self("run", "suite.yaml", "--name", name, *options)

    def answer(self, wrong: int) -> None:
        answers = [
            {"id": f"{number}-{place}", "text": "no" if number < wrong else f"{number}{place}"}
            for number in range(8)
            for place in range(3)
        ]
        (self._folder / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("GRADELINE_STORE", str(tmp_path / "store.db"))
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path, capsys)


def test_a_run_and_a_comparison_show_the_number_of_clusters(shop: Shop) -> None:
    old = shop.run("old", wrong=3)
    assert "24 responses graded, 24 cases in 8 clusters" in old.out
    assert "right: avg_score 0.625 ≥ 0.5 is true; 24 cases in 8 clusters" in old.out
    new = shop.run("new", 0, "--json")
    assert new.data["summary"]["clusters"] == 8
    compared = shop("compare", "old", "new")
    assert (compared.code, "24 cases in 8 clusters" in compared.out) == (3, True)
    right = shop("compare", "old", "new", "--json").data["graders"]["right"]
    assert (right["decision"], right["clusters"], right["p_value"]) == ("undecided", 8, 0.25)
    assert "24 cases in 8 clusters" in shop("show", "new").out


def test_reports_show_the_number_of_clusters(shop: Shop, tmp_path: Path) -> None:
    shop.run("old", wrong=3)
    assert "24 cases in 8 clusters" in shop("export", "old", "--format", "markdown").out
    shop("export", "old", "--format", "html", "--output", "page.html")
    assert "in 8 clusters, 1 repeat each" in (tmp_path / "page.html").read_text()


def test_a_run_without_clusters_uses_the_clusters_of_the_other(shop: Shop) -> None:
    shop.write(SUITE.replace("cluster: metadata.document\n", ""))
    shop.run("old", wrong=3)
    shop.write(SUITE)
    shop.run("new", wrong=0)
    for names in (("old", "new"), ("new", "old")):
        right = shop("compare", *names, "--json").data["graders"]["right"]
        assert (right["clusters"], right["missing"]) == (8, 0)


def test_warnings_of_a_run_are_shown_in_its_comparisons(shop: Shop) -> None:
    shop.write(SUITE.replace("metadata.document", "ground_truth"))
    shop.run("old", wrong=3)
    shop.write(SUITE)
    shop.cases({"metadata": {"document": f"doc {number}"} if number else {}} for number in range(8))
    lacking = "cluster: 3 of 24 cases have no metadata.document; each is a cluster of its own"
    assert f"warning: {lacking}\n" in shop.run("new", wrong=0).err
    compared = shop("compare", "old", "new", "--force", "--json").data
    assert compared["warnings"] == [f"candidate: {lacking}"]
    assert f"  warning: candidate: {lacking}\n" in shop("compare", "old", "new", "--force").out
    shop("regrade", "new", "--name", "again")
    assert shop("compare", "new", "again", "--json").data["warnings"] == [f"baseline and candidate: {lacking}"]


def test_a_regression_gate_counts_clusters(shop: Shop) -> None:
    shop.run("old", wrong=3)
    ran = shop.run("new", 0, "--baseline", "old")
    assert ran.code == 3
    assert "over 24 cases in 8 clusters, 95 %" in ran.out


def test_adding_a_cluster_does_not_edit_the_cases(shop: Shop) -> None:
    shop.write(SUITE.replace("cluster: metadata.document\n", ""))
    shop.cases({} for _ in range(8))
    shop.run("old", wrong=3)
    shop.cases({"cluster": number} for number in range(8))
    shop.run("new", wrong=0)
    compared = shop("compare", "old", "new", "--json").data
    assert (compared["edited"], compared["graders"]["right"]["clusters"]) == ([], 8)


def test_regrading_uses_the_current_cluster_key(shop: Shop) -> None:
    shop.write(SUITE.replace("cluster: metadata.document\n", ""))
    shop.run("old", wrong=3)
    shop.write(SUITE)
    again = shop("regrade", "old", "--name", "again", "--json")
    assert again.data["summary"]["clusters"] == 8
    assert shop("show", "old", "--json").data["summary"]["clusters"] is None
    shop.write(SUITE.replace("metadata.document", "metadata.documents"))
    refused = shop("regrade", "old", "--name", "more")
    assert refused.code == 2
    assert "no case has 'metadata.documents'; did you mean 'metadata.document'?" in refused.err


def test_resuming_a_changed_suite_adds_clusters_to_finished_cases(shop: Shop) -> None:
    shop.write(SUITE.replace("cluster: metadata.document\n", ""))
    shop.run("old", 3, "--budget", "10calls")
    shop.write(SUITE)
    resumed = shop("resume", "old", "--allow-changed", "--budget", "100calls", "--json")
    assert resumed.data["summary"]["cases"] == 24
    assert resumed.data["summary"]["clusters"] == 8


@pytest.mark.parametrize("act", ["run", "validate"])
def test_a_key_that_no_case_has_is_refused_before_the_first_call(shop: Shop, act: str) -> None:
    shop.write(SUITE.replace("metadata.document", "metadata.documnet"))
    refused = shop(act, "suite.yaml")
    assert refused.code == 2
    assert "cluster: no case has 'metadata.documnet'; did you mean 'metadata.document'?" in refused.err
    assert shop("list", "--json").data["runs"] == []


def test_cases_without_the_key_are_counted_in_a_warning(shop: Shop) -> None:
    shop.cases({"metadata": {"document": number} if number else {}} for number in range(8))
    ran = shop.run("old", wrong=3)
    assert "cluster: 3 of 24 cases have no metadata.document; each is a cluster of its own" in ran.err
    assert "24 cases in 10 clusters" in ran.out
    assert "3 of 24 cases have no metadata.document" in shop("validate", "suite.yaml").err


def test_a_single_cluster_has_a_warning_and_no_interval(shop: Shop) -> None:
    shop.cases({"metadata": {"document": "the only one"}} for _ in range(8))
    ran = shop.run("old", wrong=3)
    assert "all 24 cases are in one cluster, 'the only one', so that there is no interval" in ran.err
    assert "24 cases in 1 cluster, which has no interval" in ran.out
    assert shop("show", "old", "--json").data["summary"]["graders"]["right"]["mean_ci"] is None
    shop.run("new", wrong=0)
    compared = shop("compare", "old", "new")
    assert compared.code == 3
    assert "24 cases in 1 cluster, and fewer than 6 clusters decide nothing" in " ".join(compared.out.split())


def test_near_duplicates_without_clusters_have_a_warning(shop: Shop, tmp_path: Path) -> None:
    shop.write(SUITE.replace("cluster: metadata.document\n", ""))
    rows = [
        {"id": f"{n}-{k}", "input": f"Where is the capital of land {n}{'?' * (k + 1)}", "ground_truth": f"{n}"}
        for n in range(8)
        for k in range(3)
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for message in (shop.run("old", wrong=3).err, shop("validate", "suite.yaml").err):
        assert "24 of 24 cases are nearly the same as another" in message
        assert "cluster: metadata.KEY" in message


def test_repeats_belong_to_the_cluster_of_their_case(shop: Shop) -> None:
    shop.write(SUITE + "repeats: 2\n")
    summary = shop.run("old", 3, "--json").data["summary"]
    assert (summary["cases"], summary["clusters"]) == (24, 8)
    low, high = summary["graders"]["right"]["mean_ci"]
    shop.write(SUITE)
    once = shop.run("new", 3, "--json").data["summary"]["graders"]["right"]["mean_ci"]
    assert [low, high] == pytest.approx(once)
