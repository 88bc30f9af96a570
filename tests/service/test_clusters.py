"""Clusters over REST: from the suite that is sent to the summary, the list and the comparison."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from live import PATIENCE_S, EchoAgent

Call = Callable[..., Any]


def suite(agent: str, right: int, **keys: Any) -> dict[str, Any]:
    """Eight documents with three cases each; this number of cases is echoed as expected."""
    cases = [
        {
            "id": f"{number}-{place}",
            "input": f"{number} {place}",
            "ground_truth": f"{number} {place}" if number < right else "no",
            "metadata": {"document": number},
        }
        for number in range(8)
        for place in range(3)
    ]
    graders = {"right": {"kind": "exact_match"}}
    target = {"kind": "http", "url": agent}
    return {"name": "s", "dataset": cases, "target": target, "graders": graders, "cluster": "metadata.document", **keys}


def summary_of(call: Call, run: str) -> Any:
    return call("GET", f"/api/evaluations/{run}/results", params={"limit": 1}).data["summary"]


def ran(call: Call, sent: dict[str, Any], **chosen: Any) -> str:
    run: str = call("POST", "/api/evaluations", json={"suite": sent, **chosen}).data["id"]
    until_ended(call, run)
    return run


def until_ended(call: Call, run: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := call("GET", f"/api/evaluations/{run}").data)["status"] in ("pending", "running"):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def test_a_suite_with_clusters_is_summarized_and_listed_by_them(call: Call) -> None:
    with EchoAgent() as agent:
        run = ran(call, suite(agent.url, 4))
        plain = ran(call, suite(agent.url, 4, cluster=None))
    summary = summary_of(call, run)
    without = summary_of(call, plain)
    assert (summary["clusters"], without["clusters"]) == (8, None)
    rate, narrow = summary["pass_rates"]["right"], without["pass_rates"]["right"]
    assert rate["value"] == narrow["value"] == 0.5
    assert rate["high"] - rate["low"] > 1.4 * (narrow["high"] - narrow["low"])
    assert summary["average_scores"]["right"]["low"] == rate["low"]
    listed = {one["id"]: one["pass_rates"]["right"] for one in call("GET", "/api/evaluations").data["evaluations"]}
    assert (listed[run]["low"], listed[plain]["low"]) == (None, narrow["low"])
    assert 'cluster: "metadata.document"' in call("GET", f"/api/evaluations/{run}/suite").body


def test_two_runs_are_compared_by_clusters(call: Call) -> None:
    with EchoAgent() as agent:
        first, second = ran(call, suite(agent.url, 5)), ran(call, suite(agent.url, 5))
    found = call("GET", "/api/evaluations/compare", params={"baseline": first, "candidate": second}).data
    assert (found["graders"]["right"]["n"], found["graders"]["right"]["clusters"]) == (24, 8)


def test_a_key_that_no_case_has_is_refused(call: Call) -> None:
    answer = call("POST", "/api/evaluations", json={"suite": suite("http://127.0.0.1:9", 4, cluster="metadata.page")})
    assert answer.status == 400
    assert (
        "Field 'suite.cluster': no case has 'metadata.page'; their metadata has 'document'" in answer.error["message"]
    )


def test_a_run_has_the_warnings_of_the_command_line(call: Call) -> None:
    """The same sentences as those that `gradeline run` prints."""
    with EchoAgent() as agent:
        sent = suite(agent.url, 4)
        del sent["dataset"][0]["metadata"], sent["dataset"][5]["metadata"]
        started = call("POST", "/api/evaluations", json={"suite": sent}).data
        one_cluster = suite(agent.url, 4)
        for case in one_cluster["dataset"]:
            case["metadata"]["document"] = "x"
        single = ran(call, one_cluster)
        fine = ran(call, suite(agent.url, 4))
    lacking = "cluster: 2 of 24 cases have no metadata.document; each is a cluster of its own"
    assert started["warnings"] == [lacking]
    assert call("GET", f"/api/evaluations/{started['id']}").data["warnings"] == [lacking]
    (warning,) = call("GET", f"/api/evaluations/{single}").data["warnings"]
    assert warning.startswith("cluster: all 24 cases are in one cluster, 'x', so that there is no interval")
    assert call("GET", f"/api/evaluations/{fine}").data["warnings"] == []
    listed = {one["id"]: one["warnings"] for one in call("GET", "/api/evaluations").data["evaluations"]}
    assert listed == {started["id"]: [lacking], single: [warning], fine: []}


def near_duplicates(call: Call) -> list[str]:
    return [
        call("POST", "/api/test-cases", json={"input": f"What is the capital of France? ({n})", "expected_output": "P"})
        .data["id"]
        for n in range(12)
    ]  # fmt: skip


def test_near_duplicates_without_a_cluster_are_warned_of_in_runs_and_comparisons(call: Call) -> None:
    ids = near_duplicates(call)
    with EchoAgent() as agent:
        asked = {"agent_endpoint_url": agent.url, "grader_ids": ["contains"], "test_case_ids": ids}
        runs = [call("POST", "/api/evaluations", json=asked).data for _ in range(3)]
        fine = ran(call, suite(agent.url, 4))
        for run in runs:
            until_ended(call, run["id"])
    first, second, third = (run["id"] for run in runs)
    (warning,) = runs[0]["warnings"]
    assert warning.startswith("dataset: 12 of 12 cases are nearly the same as another with the same ground truth, such")
    compared = call("GET", "/api/evaluations/compare", params={"baseline": first, "candidate": second}).data
    assert compared["warnings"] == [f"baseline and candidate: {warning}"]
    one_sided = call("GET", "/api/evaluations/compare", params={"baseline": fine, "candidate": second}).data
    assert one_sided["warnings"] == [f"candidate: {warning}"]
    ranked = call("GET", "/api/evaluations/ranking", params={"ids": f"{first},{second},{third}"}).data
    assert ranked["warnings"] == [f"all runs: {warning}"]


def test_a_regraded_run_has_the_warnings_of_its_cases(call: Call) -> None:
    with EchoAgent() as agent:
        sent = suite(agent.url, 4)
        del sent["dataset"][0]["metadata"]
        run = ran(call, sent)
    again = call("POST", f"/api/evaluations/{run}/regrade", json={"grader_ids": ["contains"]}).data
    assert again["warnings"] == ["cluster: 1 of 24 cases has no metadata.document; it is a cluster of its own"]


def test_an_invalid_path_is_refused(call: Call) -> None:
    answer = call("POST", "/api/evaluations", json={"suite": suite("http://127.0.0.1:9", 4, cluster="document")})
    assert answer.status == 400
    assert "did you mean 'metadata.document'?" in answer.error["message"]


def test_stored_test_cases_take_their_fields_for_clusters(call: Call) -> None:
    ids = [
        call("POST", "/api/test-cases", json={"input": f"{n}", "expected_output": f"{n % 2}"}).data["id"]
        for n in range(4)
    ]
    with EchoAgent() as agent:
        sent = suite(agent.url, 4, cluster="ground_truth")
        del sent["dataset"]
        run = ran(call, sent, test_case_ids=ids)
    assert summary_of(call, run)["clusters"] == 2
