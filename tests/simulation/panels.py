"""Panels with weights from labels, and judges that decide only what they are sure of, on verdicts of real judges.

LLMBar has pairs of answers, of which one is better by construction, and the verdicts of many prompts of five families of
models besides those of GPT-4. A family's score of a pair is the mean over all its prompts and both orders: the share
of verdicts for the first answer. JudgeBench has six judges of the same answers; ties count half.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from measured import Row, at_least, at_most

from gradeline.judges.selective import Confidence, selective_threshold
from gradeline.judges.weighting import panel_probability
from gradeline.model.learned_judging import PanelWeights
from gradeline.trust.panel_weights import PanelVotes, learn
from gradeline.trust.selective import LabelledVerdict
from gradeline.trust.selective import learn as learn_confidences

DATA = Path(os.environ.get("GRADELINE_SHARED_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
STRONGEST = "GPT-4"
"""The family that is left out of the five: the panel is worth having where no member is good."""
TARGETS = {0.8: 0.75, 0.85: 0.55, 0.9: 0.3}
"""The wanted agreement, and the least share of pairs that five families decide with 200 labels."""
_SHARE = {"1": 1.0, "2": 0.0, "-": 0.5}
_DECISION = {"A>B": 1.0, "B>A": 0.0, "A=B": 0.5, None: 0.5}
_JUDGEBENCH = "gpt-4o-2024-05-13"
"""The answers that six judges judged."""


class Judged(NamedTuple):
    """Scores of several judges for the same items, and the labels."""

    judges: tuple[str, ...]
    scores: list[list[float]]
    """By item."""
    labels: list[bool]

    def only(self, judges: Iterable[str]) -> Judged:
        """The scores of these judges."""
        kept = [self.judges.index(judge) for judge in judges]
        return Judged(
            tuple(self.judges[at] for at in kept), [[row[at] for at in kept] for row in self.scores], self.labels
        )

    def votes(self, items: Iterable[int]) -> list[PanelVotes]:
        rows = ((item, self.scores[item]) for item in items)
        return [PanelVotes(f"case-{item}", self.labels[item], row, fmean(row) >= 0.5) for item, row in rows]


def llmbar() -> Judged:
    """The families of LLMBar."""
    places: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for item in _rows("llmbar/items.jsonl"):
        subset, _, place = item["item_id"].rpartition("/")
        if subset.startswith("LLMBar/"):
            places[subset].append((int(place), item["label"] == 1))
    verdicts: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in _rows("llmbar/verdicts.jsonl"):
        if row["subset"] in places:
            verdicts[row["subset"]][row["judge"].partition("/")[0]].append(row)
    families = tuple(sorted(next(iter(verdicts.values()))))
    scores: list[list[float]] = []
    labels: list[bool] = []
    for subset, items in places.items():
        for place, label in items:
            labels.append(label)
            scores.append([_mean_share(verdicts[subset][family], place) for family in families])
    return Judged(families, scores, labels)


def _mean_share(rows: Sequence[dict[str, Any]], place: int) -> float:
    return fmean(_SHARE[row[order][place]] for row in rows for order in ("winner_order1", "winner_order2"))


def judgebench() -> Judged:
    """The six judges of JudgeBench that judged the same pairs."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    labels: dict[str, bool] = {}
    for row in _rows("judgebench/verdicts.jsonl"):
        if row["response_model"] != _JUDGEBENCH:
            continue
        first, second = _DECISION[row["decision_order1"]], 1 - _DECISION[row["decision_order2_raw"]]
        found[row["item_id"]][row["judge"]] = (first + second) / 2
        labels[row["item_id"]] = row["label"] == "A>B"
    judges = tuple(sorted({judge for scores in found.values() for judge in scores}))
    items = [item for item, scores in found.items() if len(scores) == len(judges)]
    return Judged(judges, [[found[item][judge] for judge in judges] for item in items], [labels[i] for i in items])


def five_families() -> Judged:
    """The families of LLMBar without the strongest."""
    every = llmbar()
    return every.only(judge for judge in every.judges if judge != STRONGEST)


class PanelAccuracy(NamedTuple):
    """Agreement with the labels that were not used, mean over the draws."""

    weighted: float
    mean: float
    """Of the plain mean of the members."""
    best: float
    """Of the member that is best on those labels themselves."""


def panel_accuracy(judged: Judged, labels: int, draws: int, seed: int) -> PanelAccuracy:
    """How well a panel judges that learned its weights from some labels."""
    random = Random(seed)
    rows: list[PanelAccuracy] = []
    for _ in range(draws):
        known, rest = _split(random, judged, labels)
        weights = _learn(judged, known)
        weighted = [_probability(weights, judged, item) >= 0.5 for item in rest]
        rows.append(
            PanelAccuracy(
                _share(judged, rest, weighted),
                _agreement([fmean(judged.scores[item]) for item in rest], judged, rest),
                max(_member(judged, member, rest) for member in range(len(judged.judges))),
            )
        )
    return PanelAccuracy(*(fmean(column) for column in zip(*rows, strict=True)))


def best_judge(judged: Judged, labels: int, draws: int, seed: int) -> float:
    """The agreement of the judge that agrees most often with a few labels."""
    random = Random(seed)
    found = []
    for _ in range(draws):
        known, rest = _split(random, judged, labels)
        best = max(range(len(judged.judges)), key=lambda member: _member(judged, member, known))
        found.append(_member(judged, best, rest))
    return fmean(found)


class SelectiveResult(NamedTuple):
    """What judges decided that decide only what they are sure of, over many splits."""

    share: float
    """Mean share of the rest that was decided."""
    broken: float
    """Share of the splits in which verdicts agreed less often than was promised."""
    nothing: float
    """Share of the splits in which nothing was decided."""


def selective_panel(judged: Judged, labels: int, draws: int, seed: int) -> dict[float, SelectiveResult]:
    """A panel with weights and thresholds from the same labels, cross-fitted; by the wanted agreement."""
    random = Random(seed)
    rows: dict[float, list[tuple[float, bool]]] = {target: [] for target in TARGETS}
    for _ in range(draws):
        known, rest = _split(random, judged, labels)
        weights = _learn(judged, known)
        assert weights.confidences is not None
        own = [(Confidence.of_probability(_probability(weights, judged, item), 0.5), item) for item in rest]
        for target, results in rows.items():
            results.append(_decide(judged, own, selective_threshold(weights.confidences, target)))
    return {target: _summary(results) for target, results in rows.items()}


def selective_judge(judged: Judged, labels: int, draws: int, seed: int) -> dict[float, SelectiveResult]:
    """A single judge; the only member of the panel."""
    random = Random(seed)
    rows: dict[float, list[tuple[float, bool]]] = {target: [] for target in TARGETS}
    for _ in range(draws):
        known, rest = _split(random, judged, labels)
        verdicts = [LabelledVerdict(Confidence.of(judged.scores[item][0], 0.5), judged.labels[item]) for item in known]
        confidences = learn_confidences(verdicts)
        assert confidences is not None
        own = [(Confidence.of(judged.scores[item][0], 0.5), item) for item in rest]
        for target, results in rows.items():
            results.append(_decide(judged, own, selective_threshold(confidences, target)))
    return {target: _summary(results) for target, results in rows.items()}


def _decide(judged: Judged, own: Sequence[tuple[Confidence, int]], threshold: Any) -> tuple[float, bool]:
    decided = [(one.passed, item) for one, item in own if threshold.counts(one.confidence)]
    if not decided:
        return 0.0, False
    agreed = fmean(passed is judged.labels[item] for passed, item in decided)
    return len(decided) / len(own), agreed < threshold.agreement


def _summary(results: Sequence[tuple[float, bool]]) -> SelectiveResult:
    shares, broken = zip(*results, strict=True)
    return SelectiveResult(fmean(shares), fmean(broken), fmean(share == 0 for share in shares))


def _split(random: Random, judged: Judged, labels: int) -> tuple[list[int], list[int]]:
    items = list(range(len(judged.labels)))
    random.shuffle(items)
    return items[:labels], items[labels:]


def _learn(judged: Judged, items: Sequence[int]) -> PanelWeights:
    weights = learn(judged.judges, judged.votes(items), gains=False)
    assert isinstance(weights, PanelWeights), weights
    return weights


def _probability(weights: PanelWeights, judged: Judged, item: int) -> float:
    return panel_probability(weights, f"case-{item}", judged.scores[item])


def _share(judged: Judged, items: Sequence[int], verdicts: Sequence[bool]) -> float:
    return fmean(verdict is judged.labels[item] for item, verdict in zip(items, verdicts, strict=True))


def _member(judged: Judged, member: int, items: Sequence[int]) -> float:
    return _agreement([judged.scores[item][member] for item in items], judged, items)


def _agreement(scores: Sequence[float], judged: Judged, items: Sequence[int]) -> float:
    """A score of one half is no verdict, and right half the time."""
    return fmean(
        0.5 if score == 0.5 else (score > 0.5) is judged.labels[item] for item, score in zip(items, scores, strict=True)
    )


def _rows(name: str) -> Iterable[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def figures(full: bool) -> list[Row]:
    """All figures; the data is a sample of the published sets."""
    draws = 200 if full else 10
    five, six, bench = five_families(), llmbar(), judgebench()
    found = panel_accuracy(five, 100, draws, 1)
    rows = [
        at_least("LLMBar, five families with weights from 100 labels: agreement", found.weighted, 0.79),
        at_least("  less that of its best member", found.weighted - found.best, 0.0),
        at_least("  less that of their mean", found.weighted - found.mean, 0.15),
        at_least("LLMBar, the best of six by 30 labels: agreement", best_judge(six, 30, draws, 2), 0.83),
        at_least("JudgeBench, the best of six by 30 labels: agreement", best_judge(bench, 30, draws, 3), 0.74),
    ]
    half = ceil(len(five.labels) / 2)
    for target, result in selective_panel(five, half, draws, 4).items():
        name = f"LLMBar, five families, agreement {target:g} by {half} labels: broken promises"
        rows.append(at_most(name, result.broken, 0.13))
        rows.append(at_least("  share decided", result.share, TARGETS[target] if half >= 200 else 0.0))
    guessing = [six.only([judge]) for judge in ("ChatGPT", "Falcon", "LLaMA2")]
    decided = max(result.share for judge in guessing for result in selective_judge(judge, half, draws, 5).values())
    rows.append(at_most("LLMBar, three judges that guess: share decided", decided, 0.0))
    return rows
