"""Real judges' verdicts with labels, from the shared data: one set for each judge and system.

An item is a pair (label, judge's score), both in 0..1. Where a judge saw a pair of answers in both orders, its score is
the mean of the two verdicts. Items without a verdict are left out.
"""

from __future__ import annotations

import json
import os
import re
import string
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

_HOME = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = Path(os.environ.get("GRADELINE_SHARED_DATA") or _HOME)

Item: TypeAlias = tuple[float, float]
"""The label and the judge's score."""

Sets: TypeAlias = Mapping[str, Sequence[Item]]

SIX_OF_LLMBAR = (
    "ChatGPT-0301/Metrics_Reference",
    "ChatGPT/Vanilla",
    "Falcon/Metrics_Reference",
    "GPT-4/Metrics_Reference",
    "LLaMA2/Vanilla",
    "PaLM2/Metrics_Reference",
)
"""One judge of each family: with metrics and a reference, or else with the plain prompt."""

COLLECTIONS = ("arena_judge", "devai_judgments", "evouna", "judgebench", "llmbar")


def present() -> bool:
    return all((DATA / name).is_dir() for name in COLLECTIONS)


def rows(path: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, (DATA / path).read_text(encoding="utf-8").splitlines())


def arena() -> Sets:
    """Did the model that the pair is named after win? By judge and pair."""
    sets: dict[str, list[Item]] = defaultdict(list)
    for row in rows("arena_judge/rows.jsonl"):
        if row["judge_pick"] is not None:
            model = row["pair"].partition("_vs_")[0]
            side = "A" if row["model_a"] == model else "B"
            sets[f"{row['judge']}, {row['pair']}"].append(
                (float(row["human"] == side), float(row["judge_pick"] == side))
            )
    return sets


def devai() -> Sets:
    """Is the requirement met? By agent."""
    sets: dict[str, list[Item]] = defaultdict(list)
    for row in rows("devai_judgments/rows.jsonl"):
        sets[row["agent"]].append((float(row["human"]), float(row["agent_judge"])))
    return sets


class Answers(NamedTuple):
    """Labels of the answers of several systems to one question, with two lexical judges' scores."""

    dataset: str
    included: Mapping[str, Item]
    recall: Mapping[str, Item]


@cache
def evouna_answers() -> list[Answers]:
    """`included`: the answer has an accepted answer in it; `recall`: the share of that one's words that it has."""
    found = []
    for row in rows("evouna/rows.jsonl"):
        golds = [_normal(gold) for gold in row["golds"]]
        included, recall = {}, {}
        for system, (answer, label) in row["answers"].items():
            text = _normal(answer)
            words = set(text.split())
            included[system] = (float(label), float(any(gold in text for gold in golds)))
            recall[system] = (float(label), max(_recall(gold.split(), words) for gold in golds))
        found.append(Answers(row["dataset"], included, recall))
    return found


@cache
def evouna(judge: str = "included") -> Sets:
    """Is the answer right? By dataset and system."""
    sets: dict[str, list[Item]] = defaultdict(list)
    for answers in evouna_answers():
        for system, item in getattr(answers, judge).items():
            sets[f"{answers.dataset} {system}"].append(item)
    return sets


def judgebench() -> Sets:
    """Is the first answer better? By judge."""
    values = {"A>B": 1.0, "A=B": 0.5, "B>A": 0.0}
    sets: dict[str, list[Item]] = defaultdict(list)
    for row in rows("judgebench/verdicts.jsonl"):
        first, second = values.get(row["decision_order1"]), values.get(row["decision_order2_raw"])
        if first is not None and second is not None:
            # the second order has the answers' names exchanged
            sets[row["judge"].partition("/")[2]].append((values[row["label"]], (first + 1.0 - second) / 2.0))
    return sets


def judgebench_by_item() -> Mapping[str, Mapping[str, Item]]:
    """The six judges that judged the same pairs, by judge and pair."""
    values = {"A>B": 1.0, "A=B": 0.5, "B>A": 0.0}
    judges: dict[str, dict[str, Item]] = defaultdict(dict)
    for row in rows("judgebench/verdicts.jsonl"):
        if row["response_model"].startswith("gpt-4o"):
            first, second = (values.get(row[key], 0.5) for key in ("decision_order1", "decision_order2_raw"))
            judges[row["judge"]][row["item_id"]] = (values[row["label"]], (first + 1.0 - second) / 2.0)
    return judges


def llmbar_by_item() -> Mapping[str, Mapping[str, Item]]:
    """Is the first output better? By judge and item; a missing verdict counts half."""
    labels: dict[str, dict[int, float]] = defaultdict(dict)
    for item in rows("llmbar/items.jsonl"):
        subset, _, place = item["item_id"].rpartition("/")
        if subset.startswith("LLMBar"):
            labels[subset][int(place)] = float(item["label"] == 1)
    judges: dict[str, dict[str, Item]] = defaultdict(dict)
    for row in rows("llmbar/verdicts.jsonl"):
        for place, label in labels.get(row["subset"], {}).items():
            score = sum(_PREFERENCES[row[key][place]] for key in ("winner_order1", "winner_order2")) / 2.0
            judges[row["judge"]][f"{row['subset']}/{place}"] = (label, score)
    return judges


def llmbar() -> Sets:
    """The same by judge only."""
    return {judge: list(items.values()) for judge, items in llmbar_by_item().items()}


def differences() -> Sets:
    """Differences of the labels and of the judge's scores of two systems on the same items: by pair of systems."""
    sets: dict[str, list[Item]] = defaultdict(list)
    for answers in evouna_answers():
        for one, other in combinations(sorted(answers.included), 2):
            sets[f"evouna {answers.dataset} {one} - {other}"].append(
                _difference(answers.included[one], answers.included[other])
            )
    agents: dict[str, dict[str, Item]] = defaultdict(dict)
    for row in rows("devai_judgments/rows.jsonl"):
        agents[row["item_id"]][row["agent"]] = (float(row["human"]), float(row["agent_judge"]))
    for of_item in agents.values():
        for one, other in combinations(sorted(of_item), 2):
            sets[f"devai {one} - {other}"].append(_difference(of_item[one], of_item[other]))
    return sets


_PREFERENCES = {"1": 1.0, "2": 0.0, "-": 0.5}


def _difference(one: Item, other: Item) -> Item:
    return one[0] - other[0], one[1] - other[1]


def _normal(text: str) -> str:
    plain = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _recall(wanted: Sequence[str], words: set[str]) -> float:
    return sum(word in words for word in wanted) / len(wanted) if wanted else 0.0
