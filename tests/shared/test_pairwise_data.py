"""Both orders are combined as the authors of two labelled sets did with verdicts of real judges."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradeline.judges.pairwise import BothOrders
from gradeline.verdict import OrderFinding, order_finding

Rows = Callable[[str], Iterator[dict[str, Any]]]

DIFFERENCES = {"A>B": 1.0, "A=B": 0.0, "B>A": -1.0, None: None}
PREFERENCES = {"1": 1.0, "2": -1.0, "-": None}


def both_orders(row: dict[str, Any]) -> BothOrders:
    """A as the candidate; in the second order it was shown second, and called B."""
    first, second = DIFFERENCES[row["decision_order1"]], DIFFERENCES[row["decision_order2_raw"]]
    return BothOrders(first, None if second is None else -second)


def test_the_counts_of_judgebench_equal_the_published_ones(shared_rows: Any) -> None:
    winners = {"A>B": "candidate", "B>A": "baseline"}
    counts: dict[str, Counter[str]] = {}
    for row in shared_rows("judgebench/verdicts.jsonl"):
        count = counts.setdefault(f"{row['response_model']}|{row['judge']}", Counter(n=0, correct=0, inconsistent=0))
        both = both_orders(row)
        count["n"] += 1
        count["correct"] += both.winner == winners[row["label"]]
        count["inconsistent"] += both.flipped
    assert counts == json.loads("\n".join(shared_rows.lines("judgebench/expected.json")))


def test_llmbar_agrees_as_often_as_published(shared_rows: Rows) -> None:
    wrong = []
    runs = 0
    for row in shared_rows("llmbar/verdicts.jsonl"):
        # both orders are told in the numbers of the outputs, whichever was shown first
        pairs = [
            BothOrders(PREFERENCES[one], PREFERENCES[other])
            for one, other in zip(row["winner_order1"], row["winner_order2"], strict=True)
        ]
        equal = sum(not both.flipped for both in pairs)
        runs += 1
        if (equal, len(pairs)) != (row["published"]["equal"], row["n"]):
            wrong.append((row["subset"], row["judge"], equal))
    assert runs
    assert wrong == []


def exchanged(both: BothOrders) -> BothOrders:
    """The same verdicts with the other answer as the candidate."""
    first, second = (None if difference is None else -difference for difference in both)
    return BothOrders(second, first)


def share_passed(pairs: list[BothOrders]) -> float:
    return sum(both.passed is True for both in pairs) / len(pairs)


def probed(pairs: list[BothOrders]) -> OrderFinding:
    favoured = Counter(both.favoured for both in pairs)
    return order_finding(favoured["first"], favoured["second"], sum(both.score is not None for both in pairs))


@pytest.mark.parametrize(("judge", "most"), [("claude-3-haiku", 0.38), ("o1-mini", 0.11)])
def test_a_wrong_answer_rarely_passes_judgebench(shared_rows: Any, judge: str, most: float) -> None:
    pairs = [
        both_orders(row) if row["label"] == "B>A" else exchanged(both_orders(row))
        for row in shared_rows("judgebench/verdicts.jsonl")
        if judge in row["judge"]
    ]
    assert len(pairs) > 100
    assert share_passed(pairs) <= most


def test_a_wrong_answer_rarely_passes_llmbar(shared_rows: Any) -> None:
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for item in shared_rows("llmbar/items.jsonl"):
        subset, _, place = item["item_id"].rpartition("/")
        places[subset].append((int(place), item["label"]))
    judges: dict[str, list[BothOrders]] = defaultdict(list)
    for row in shared_rows("llmbar/verdicts.jsonl"):
        for place, label in places[row["subset"]]:
            first = BothOrders(*(PREFERENCES[row[key][place]] for key in ("winner_order1", "winner_order2")))
            judges[row["judge"]].append(first if label == 2 else exchanged(first))
    assert len(judges) > 30
    assert statistics.median(map(share_passed, judges.values())) <= 0.23


def test_the_probe_flags_the_judges_of_llmbar_that_prefer_a_position(shared_rows: Any) -> None:
    judges: dict[str, list[BothOrders]] = defaultdict(list)
    for row in shared_rows("llmbar/verdicts.jsonl"):
        if row["subset"].startswith("LLMBar/"):
            orders = zip(row["winner_order1"], row["winner_order2"], strict=True)
            judges[row["judge"]] += [BothOrders(PREFERENCES[one], PREFERENCES[other]) for one, other in orders]
    assert probed(judges["Falcon/CoT"]).sentence.startswith("order decided 363 of 416 (shown first 362, second 1; p ")
    assert probed(judges["Falcon/CoT"]).verdict == "position_biased"
    assert probed(judges["GPT-4/Swap_CoT"]).verdict == "not_flagged"
