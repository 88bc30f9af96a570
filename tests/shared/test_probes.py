"""The probes on recorded verdicts of real judges: order flips, and the influence of the length given the label."""

from __future__ import annotations

import json
from collections import defaultdict
from math import log
from typing import Any

import pytest

from gradeline.judges.pairwise import BothOrders
from gradeline.model.probe import ProbeFinding
from gradeline.trust.length_coefficient import log_odds_of_length
from gradeline.trust.position_power import position_power
from gradeline.trust.probe_findings import JudgedAnswer, position_finding

DIFFERENCES = {"A>B": 1.0, "A=B": 0.0, "B>A": -1.0, None: None}
PREFERENCES = {"1": 1.0, "2": -1.0, "-": None}


def judged(first: float | None, second: float | None) -> JudgedAnswer:
    """The verdicts of both orders, as a run stores them: without one of the two there is none."""
    both = BothOrders(first, second)
    return JudgedAnswer(None if first is None or second is None else both.difference, both.passed, both.favoured)


@pytest.fixture
def llmbar(shared_rows: Any) -> dict[str, ProbeFinding]:
    judges: dict[str, list[JudgedAnswer]] = defaultdict(list)
    for row in shared_rows("llmbar/verdicts.jsonl"):
        if row["subset"].startswith("LLMBar/"):
            orders = zip(row["winner_order1"], row["winner_order2"], strict=True)
            judges[row["judge"]] += [judged(PREFERENCES[one], PREFERENCES[other]) for one, other in orders]
    return {judge: position_finding(verdicts) for judge, verdicts in judges.items()}


def test_most_judges_of_llmbar_prefer_a_position(llmbar: dict[str, ProbeFinding]) -> None:
    flagged = sum(finding.verdict == "flagged" for finding in llmbar.values())
    assert flagged >= 0.8 * len(llmbar)
    if len(llmbar) == 65:  # all judges, not only a part of them
        assert flagged == 57
    assert {finding.verdict for finding in llmbar.values()} == {"flagged", "not_flagged"}


def test_the_flips_of_known_judges_are_reproduced(llmbar: dict[str, ProbeFinding]) -> None:
    biased, fair = llmbar["Falcon/CoT"], llmbar["GPT-4/Swap_CoT"]
    assert (biased.details, biased.verdict) == ({"first": 362, "second": 1}, "flagged")
    assert biased.sentence.startswith("order decided 363 of 416 (shown first 362, second 1; p ")
    assert (fair.details, fair.verdict) == ({"first": 4, "second": 4}, "not_flagged")


def test_the_flips_of_judgebench_are_reproduced(shared_rows: Any) -> None:
    judges: dict[str, list[JudgedAnswer]] = defaultdict(list)
    inconsistent: dict[str, int] = defaultdict(int)
    for row in shared_rows("judgebench/verdicts.jsonl"):
        first, second = DIFFERENCES[row["decision_order1"]], DIFFERENCES[row["decision_order2_raw"]]
        key = f"{row['response_model']}|{row['judge']}"
        judges[key].append(judged(first, None if second is None else -second))
        inconsistent[key] += (first is None) is not (second is None)
    published = json.loads("\n".join(shared_rows.lines("judgebench/expected.json")))
    found = {key: position_finding(verdicts) for key, verdicts in judges.items()}
    assert {key: (one.planned, one.details["first"] + one.details["second"]) for key, one in found.items()} == {
        key: (row["n"], row["inconsistent"] - inconsistent[key]) for key, row in published.items()
    }
    flagged = {key for key, one in found.items() if one.verdict == "flagged"}
    assert flagged == {key for key in found if "claude-3-haiku" in key}


def test_the_length_moves_weak_judges_of_llmbar_given_the_label(shared_rows: Any) -> None:
    """LLaMA2 and ChatGPT with a bare prompt prefer the longer answer; GPT-4 and PaLM2 do not."""
    items = {row["item_id"]: row for row in shared_rows("llmbar/items.jsonl")}
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    chosen: dict[str, list[bool]] = defaultdict(list)
    for row in shared_rows("llmbar/verdicts.jsonl"):
        if not row["subset"].startswith("LLMBar/"):
            continue
        for place in range(row["n"]):
            item = items.get(f"{row['subset']}/{place}")
            for order in ("winner_order1", "winner_order2"):
                if item is not None and row[order][place] != "-":
                    length = log(len(item["output_1"]) / len(item["output_2"]))
                    rows[row["judge"]].append((length, 1.0 if item["label"] == 1 else -1.0))
                    chosen[row["judge"]].append(row[order][place] == "1")
    found = {judge: log_odds_of_length(rows[judge], chosen[judge]) for judge in rows}
    for judge, least in (("LLaMA2/Vanilla", 7.0), ("ChatGPT/Vanilla", 4.5)):
        assert found[judge] is not None
        assert found[judge].z > least
    for judge in ("GPT-4/Vanilla", "PaLM2/Vanilla"):
        if found.get(judge) is not None:
            assert abs(found[judge].z) < 2.0


def test_the_power_of_the_sign_test_equals_the_simulated_one(shared_rows: Any) -> None:
    (name, oracle) = next(iter(json.loads("\n".join(shared_rows.lines("stat_oracles/probe_power.json"))).items()))
    assert name.startswith("position probe: P(flag) sign test on flips alpha=.01, eps=.1")
    for setting, simulated in oracle.items():
        pairs, bias = (part.partition("=")[2] for part in setting.split(","))
        assert position_power(int(pairs), float(bias)) == pytest.approx(simulated, abs=0.035)
