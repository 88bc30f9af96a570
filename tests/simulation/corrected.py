"""Rates and differences corrected by labels, and what a calibrated judge is, on real judges' verdicts.

The verdicts and labels of a set are taken as the whole population, so that the truth is exact: a run is 1,000 items
drawn from it with replacement and judged, and as many further items as there are labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum, sqrt
from random import Random
from typing import NamedTuple

import judged_sets
from judged_sets import SIX_OF_LLMBAR, Item, Sets
from measured import Row, at_least, at_most, monte_carlo_error

from gradeline.stats import (
    Confusion,
    Corrected,
    Interval,
    confusion,
    corrected_difference,
    corrected_mean,
    kappa_lower_bound,
    mean_interval,
    score_interval,
)

COVERAGE = 0.92
WIDTH = 0.75
JUDGED = 1_000

Correct = Callable[[Sequence[float], Sequence[float], Sequence[float]], Corrected]
FromLabels = Callable[[Sequence[float]], Interval | None]


class Coverage(NamedTuple):
    """How the interval of one set did."""

    corrected: float
    judge: float
    """That of the judge's mean without labels."""
    width: float
    """The mean width, as a share of that of the labels by themselves."""


def figures(full: bool = False) -> list[Row]:
    draws = 400 if full else 40
    found = gate(2_000 if full else 200)
    if judged_sets.present():
        found += [*rates(draws, full), *pairs(draws, full), *of_real_judges(draws), *best_of(draws)]
    return [*found, *rare_errors(draws)]


def measured_coverage(items: Sequence[Item], labels: int, draws: int, correct: Correct, plain: FromLabels) -> Coverage:
    random = Random(labels)
    truth = fsum(label for label, _ in items) / len(items)
    covered, trusted, widths, of_labels = 0, 0, 0.0, 0.0
    for _ in range(draws):
        labelled, others = random.choices(items, k=labels), random.choices(items, k=JUDGED)
        known, judged = [label for label, _ in labelled], [score for _, score in labelled]
        rest = [score for _, score in others]
        interval = correct(known, judged, rest).interval
        own, raw = plain(known), plain(rest)
        assert own is not None
        assert raw is not None
        covered += interval.low <= truth <= interval.high
        trusted += raw.low <= truth <= raw.high
        widths += interval.high - interval.low
        of_labels += own.high - own.low
    return Coverage(covered / draws, trusted / draws, widths / of_labels)


def rates(draws: int, full: bool) -> list[Row]:
    """Every judge and system: the rate."""
    collections: dict[str, tuple[Sets, float | None]] = {
        "arena": (judged_sets.arena(), None),
        "devai": (judged_sets.devai(), WIDTH),
        "evouna, word recall": (judged_sets.evouna("recall"), WIDTH),
        "evouna, inclusion": (judged_sets.evouna(), 0.77),
        "judgebench": (judged_sets.judgebench(), None),
        "llmbar": (judged_sets.llmbar(), None),
    }
    found = []
    for labels in (100, 200) if full else (100,):
        means = []
        for name, (sets, widest) in collections.items():
            chosen = list(sets.values()) if full else list(sets.values())[:2]
            each = [measured_coverage(items, labels, draws, corrected_mean, score_interval) for items in chosen]
            means += [coverage.corrected for coverage in each]
            found += _rows(f"rate, {name} ({len(each)} sets), {labels} labels", each, draws, widest)
            if name == "arena":
                raw = fsum(coverage.judge for coverage in each) / len(each)
                found.append(at_most(f"rate, arena, judge without labels: mean coverage, {labels} labels", raw, 0.5))
        slack = _slack(0.94, draws * len(means))
        found.append(at_least(f"rate, all sets, {labels} labels: mean coverage", fsum(means) / len(means), 0.94, slack))
    return found


def pairs(draws: int, full: bool) -> list[Row]:
    """Two systems on the same items: the difference."""
    sets = judged_sets.differences()
    chosen = list(sets.values()) if full else list(sets.values())[:2] + list(sets.values())[-2:]
    found = []
    for labels in (100, 200) if full else (100,):
        each = [measured_coverage(items, labels, draws, corrected_difference, mean_interval) for items in chosen]
        found += _rows(f"difference, evouna and devai ({len(each)} pairs), {labels} labels", each, draws, WIDTH)
    return found


def _rows(name: str, each: Sequence[Coverage], draws: int, widest: float | None) -> list[Row]:
    covered = [coverage.corrected for coverage in each]
    width = fsum(coverage.width for coverage in each) / len(each)
    return [
        at_least(f"{name}: lowest coverage", min(covered), COVERAGE, _slack(COVERAGE, draws)),
        at_most(
            f"{name}: width, of labels only", width, 1.02 if widest is None else widest, 0.0 if draws > 99 else 0.04
        ),
    ]


def rare_errors(draws: int) -> list[Row]:
    """A judge that is nearly always right, so that the labels show hardly any of its errors; 10,000 items."""
    found = []
    for labels in (50, 100, 200):
        for passes in (0.8, 0.9, 0.95):
            random = Random(labels)
            covered = 0
            share = passes * 0.98 + (1.0 - passes) * 0.02
            for _ in range(draws):
                truth = [float(random.random() < passes) for _ in range(labels)]
                judged = [value if random.random() < 0.98 else 1.0 - value for value in truth]
                positives = round(random.gauss(10_000 * share, sqrt(10_000 * share * (1.0 - share))))
                rest = [1.0] * positives + [0.0] * (10_000 - positives)
                interval = corrected_mean(truth, judged, rest).interval
                covered += interval.low <= passes <= interval.high
            name = f"rate {passes:g}, judge right 98 % of the time, {labels} labels: coverage"
            found.append(at_least(name, covered / draws, COVERAGE, _slack(COVERAGE, draws)))
    return found


def calibrated(table: Confusion) -> bool:
    """The conditions on the labels, with 100 of them."""
    bound = kappa_lower_bound(table)
    return bound is not None and bound >= 0.4 and table.positives >= 10 and table.negatives >= 10


def gate(draws: int) -> list[Row]:
    """How often a simulated judge is calibrated by 100 labels, half of which are passes."""
    cases = {
        "sensitivity 0.95, specificity 0.95": (0.95, 0.95, 0.99, None),
        "sensitivity 0.9, specificity 0.85": (0.9, 0.85, 0.95, None),
        "kappa of exactly 0.4": (0.7, 0.7, None, 0.08),
        "random": (0.5, 0.5, None, 0.0),
        "always pass": (1.0, 0.0, None, 0.0),
        "inverted": (0.1, 0.1, None, 0.0),
    }
    found = []
    for name, (sensitivity, specificity, least, most) in cases.items():
        random = Random(1)
        passed = 0
        for _ in range(draws):
            labels = [random.random() < 0.5 for _ in range(100)]
            chances = [sensitivity if label else 1.0 - specificity for label in labels]
            passed += calibrated(confusion(labels, [random.random() < chance for chance in chances]))
        title = f"judge with {name}: calibrated by 100 labels"
        if least is not None:
            found.append(at_least(title, passed / draws, least, _slack(least, draws)))
        if most is not None:
            found.append(at_most(title, passed / draws, most, _slack(most, draws)))
    return found


def of_real_judges(draws: int) -> list[Row]:
    """How often real judges are calibrated: those of the arena never, a good judge of a good system mostly."""
    found = []
    for judge in ("gpt-4o-mini", "gpt-5.2"):
        items = [item for name, of_pair in judged_sets.arena().items() if name.startswith(judge) for item in of_pair]
        passed = sum(calibrated(_table(Random(seed).sample(items, 100))) for seed in range(draws)) / draws
        found.append(at_most(f"arena, {judge}: calibrated by 100 labels", passed, 0.0, _slack(0.01, draws)))
    items = judged_sets.evouna()["tq gpt4"]
    by_verdict = [[item for item in items if item[1] == verdict] for verdict in (0.0, 1.0)]
    randomly, stratified = 0, 0
    for seed in range(draws):
        random = Random(seed)
        randomly += calibrated(_table(random.sample(items, 100)))
        drawn = [(item, len(stratum) / 50) for stratum in by_verdict for item in random.sample(stratum, 50)]
        table = _table([item for item, _ in drawn], [weight for _, weight in drawn])
        counts = _table([item for item, _ in drawn])
        bound = kappa_lower_bound(table)
        stratified += bound is not None and bound >= 0.4 and min(counts.positives, counts.negatives) >= 10
    name = "evouna tq gpt4 (kappa 0.65), 100 labels"
    return [
        *found,
        at_most(f"{name} drawn at random: calibrated", randomly / draws, 0.7, _slack(0.7, draws)),
        at_least(f"{name} drawn by verdict: calibrated", stratified / draws, 0.8, _slack(0.8, draws)),
    ]


def _table(items: Sequence[Item], weights: Sequence[float] | None = None) -> Confusion:
    return confusion([label > 0.5 for label, _ in items], [score > 0.5 for _, score in items], weights)


def best_of(draws: int) -> list[Row]:
    """The judge of six with the greatest agreement on 30 labels: its agreement on the other items."""
    judges = judged_sets.llmbar_by_item()
    return [
        at_least(
            f"best of six judges by 30 labels, {name}: agreement", _best_of(six, draws), least, _slack(least, draws)
        )
        for name, six, least in (
            ("llmbar", {judge: judges[judge] for judge in SIX_OF_LLMBAR}, 0.83),
            ("judgebench", judged_sets.judgebench_by_item(), 0.74),
        )
    ]


def _best_of(judges: Mapping[str, Mapping[str, Item]], draws: int) -> float:
    everything = sorted(set.intersection(*(set(items) for items in judges.values())))
    total = 0.0
    for seed in range(draws):
        labelled = Random(seed).sample(everything, 30)
        best = max(judges.values(), key=lambda items: _agreement([items[name] for name in labelled]))
        total += _agreement([best[name] for name in set(everything).difference(labelled)])
    return total / draws


def _agreement(items: Sequence[Item]) -> float:
    """A verdict that changes with the order counts half."""
    return fsum(1.0 - abs(label - score) for label, score in items) / len(items)


def _slack(limit: float, draws: int) -> float:
    return monte_carlo_error(limit, draws) if draws < 400 else 0.0
