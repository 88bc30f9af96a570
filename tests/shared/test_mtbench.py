"""Ratings in a real judge's free text are read as they were published; a text without a rating is missing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import mean
from typing import Any

import pytest

from gradeline.judges.reply_parsing import InvalidReply, PatternReply

Row = dict[str, Any]
Rows = Callable[[str], Iterator[Row]]

RATING = PatternReply(r"\[\[(\d+\.?\d*)\]\]", 1, 10)
MISSING = -1


def rating(row: Row) -> float:
    try:
        verdict = RATING.read(row["judgment"])
    except InvalidReply:
        return MISSING
    assert verdict.raw_score is not None
    assert verdict.score == pytest.approx((verdict.raw_score - 1) / 9)
    return verdict.raw_score


def test_every_rating_equals_the_published_one(shared_rows: Rows) -> None:
    rows = list(shared_rows("mtbench_judgments/rows.jsonl"))
    assert rows
    assert [row["item_id"] for row in rows if rating(row) != row["score"]] == []


def test_the_means_equal_the_published_ones(shared_rows: Any) -> None:
    ratings: dict[str, list[float]] = defaultdict(list)
    for row in shared_rows("mtbench_judgments/rows.jsonl"):
        ratings[row["model"]].append(rating(row))
    found = {
        model: {
            "n": len(all_of_it),
            "unparsed": all_of_it.count(MISSING),
            "mean_parsed": pytest.approx(mean(one for one in all_of_it if one != MISSING)),
        }
        for model, all_of_it in ratings.items()
    }
    assert found == json.loads("\n".join(shared_rows.lines("mtbench_judgments/expected.json")))


def test_a_judgment_that_lost_its_rating_is_missing(shared_rows: Rows) -> None:
    for row in shared_rows("mtbench_judgments/rows.jsonl"):
        assert rating({**row, "judgment": row["judgment"].replace("[[", "[").replace("]]", "]")}) == MISSING
