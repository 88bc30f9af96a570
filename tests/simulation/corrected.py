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

from gradeline.model.calibration import Calibration
from gradeline.stats import (
    Corrected,
    Interval,
    corrected_difference,
    corrected_mean,
    mean_interval,
    score_interval,
)
from gradeline.trust.calibration import CalibratedJudge, JudgeCandidate, JudgedResults, best_judge, calibrate
from gradeline.trust.label_and_verdict import LabelAndVerdict

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
        found += [
            *rates(draws, full),
            *by_verdict(draws, full),
            *pairs(draws, full),
            *of_real_judges(draws),
            *best_of(draws),
        ]
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


def by_verdict(draws: int, full: bool) -> list[Row]:
    """The rate where half of 100 labels are drawn within each verdict of the judge."""
    collections = {
        "arena": judged_sets.arena(),
        "devai": judged_sets.devai(),
        "evouna, inclusion": judged_sets.evouna(),
        "llmbar": {judge: items for judge, items in judged_sets.llmbar().items() if judge in SIX_OF_LLMBAR},
    }
    found = []
    for name, sets in collections.items():
        chosen = list(sets.values()) if full else list(sets.values())[-2:]
        covered = [_covered_by_verdict(items, draws) for items in chosen]
        title = f"rate, {name} ({len(chosen)} sets), 100 labels drawn by verdict: lowest coverage"
        found.append(at_least(title, min(covered), COVERAGE, _slack(COVERAGE, draws)))
    return found


def _covered_by_verdict(items: Sequence[Item], draws: int) -> float:
    random = Random(7)
    truth = fsum(label for label, _ in items) / len(items)
    covered = 0
    for _ in range(draws):
        run = random.choices(items, k=JUDGED)
        strata = [[item for item in run if (item[1] > 0.5) is passed] for passed in (False, True)]
        labelled = [(item, len(stratum) / min(50, len(stratum))) for stratum in strata for item in stratum[:50]]
        rest = [score for stratum in strata for _, score in stratum[50:]]
        known, judged = [item[0] for item, _ in labelled], [item[1] for item, _ in labelled]
        interval = corrected_mean(known, judged, rest, [weight for _, weight in labelled]).interval
        covered += interval.low <= truth <= interval.high
    return covered / draws


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


_JUDGE = CalibratedJudge(
    suite="suite", grader="quality", question="quality", run="run", judge=("judge",), judge_fingerprint="judge"
)


def calibration(
    items: Sequence[Item], others: Sequence[Item] = (), chances: Sequence[float] | None = None
) -> Calibration:
    """The calibration by the labels of these items, drawn with these probabilities; the others have no label."""
    labelled = [
        LabelAndVerdict(str(place), label > 0.5, score > 0.5, probability=None if chances is None else chances[place])
        for place, (label, score) in enumerate(items)
    ]
    unlabelled = [float(score > 0.5) for _, score in others]
    return calibrate(_JUDGE, labelled, JudgedResults(unlabelled, len(items) + len(others)), "2026-01-01T00:00:00Z")


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
            items = [
                (float(label), float(random.random() < chance)) for label, chance in zip(labels, chances, strict=True)
            ]
            passed += calibration(items).state == "calibrated"
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
        each = [calibration(Random(seed).sample(items, 100)) for seed in range(draws)]
        passed = sum(one.state == "calibrated" for one in each) / draws
        worthless = sum(one.value is not None and "saves no labels" in one.value.sentence for one in each) / draws
        found.append(at_most(f"arena, {judge}: calibrated by 100 labels", passed, 0.0, _slack(0.01, draws)))
        found.append(at_least(f"arena, {judge}: found to save no labels", worthless, 0.9, _slack(0.9, draws)))
    name = "evouna tq gpt4 (kappa 0.65), 100 labels"
    randomly, by_verdict = (
        sum(calibration(*_sample(Random(seed), stratified)).state == "calibrated" for seed in range(draws)) / draws
        for stratified in (False, True)
    )
    return [
        *found,
        at_most(f"{name} drawn at random: calibrated", randomly, 0.7, _slack(0.7, draws)),
        at_least(f"{name} drawn by verdict: calibrated", by_verdict, 0.8, _slack(0.8, draws)),
    ]


def _sample(random: Random, stratified: bool) -> tuple[list[Item], list[Item], list[float]]:
    """100 labelled items of a good system, the others, and the probabilities of the labelled ones."""
    items = list(judged_sets.evouna()["tq gpt4"])
    random.shuffle(items)
    if not stratified:
        return items[:100], items[100:], [100 / len(items)] * 100
    labelled, others, chances = [], [], []
    for verdict in (0.0, 1.0):
        stratum = [item for item in items if item[1] == verdict]
        labelled += stratum[:50]
        others += stratum[50:]
        chances += [50 / len(stratum)] * 50
    return labelled, others, chances


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
        best = best_judge(
            [JudgeCandidate(judge, _agreement([items[item] for item in labelled])) for judge, items in judges.items()]
        )
        assert best is not None
        total += _agreement([judges[best.name][name] for name in set(everything).difference(labelled)])
    return total / draws


def _agreement(items: Sequence[Item]) -> float:
    """A verdict that changes with the order counts half."""
    return fsum(1.0 - abs(label - score) for label, score in items) / len(items)


def _slack(limit: float, draws: int) -> float:
    return monte_carlo_error(limit, draws) if draws < 400 else 0.0
