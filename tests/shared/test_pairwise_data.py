"""Both orders are put together as the makers of two labelled sets did it with the verdicts of real judges."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from gradeline.judges.orders import BothOrders

Rows = Callable[[str], Iterator[dict[str, Any]]]

DIFFERENCES = {"A>B": 1.0, "A=B": 0.0, "B>A": -1.0, None: None}
PREFERENCES = {"1": 1.0, "2": -1.0, "-": None}


def both_orders(row: dict[str, Any]) -> BothOrders:
    """A as the candidate; in the second order it was shown second, and called B."""
    first, second = DIFFERENCES[row["decision_order1"]], DIFFERENCES[row["decision_order2_raw"]]
    return BothOrders(first, None if second is None else -second)


def test_judgebench_is_counted_as_published(shared_rows: Any) -> None:
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
