"""Routing on real correctness of two models: regret, a judge that flatters, and the promise on held-out cases.

The arms are Mixtral at 0.01 and GPT-4 at 1 dollar per request, the families the subjects of MMLU, the value of an
answer its correctness minus 0.125 times its cost; the regret of a choice is what its expected value is below that of
the better arm in the subject. Where the data is absent, subjects are drawn that look like them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from judged_sets import DATA
from measured import Row, at_least, at_most, monte_carlo_error

from gradeline.trust import JudgeRates, PolicyRules, RouteJudge, Router
from gradeline.trust.route_plan import ArmResult, ArmResults, plan_split

COST_WEIGHT = 0.125
COSTS: dict[str, float | None] = {"gpt4": 1.0, "mixtral": 0.01}
STEPS = 6000
ISSUE_REGRET, ISSUE_STRONG = 100.0, 206.0
"""The regret that must be reached where sending everything to the strong model has the second one."""
FREE = PolicyRules(cost_weight=COST_WEIGHT, exploration=1.0, margin=1.0, minimum_samples=0, baseline_share=0.0)
FAIR = JudgeRates(0.9, 1000, 0.85, 1000)
FLATTERED = JudgeRates(0.98, 1000, 0.35, 1000)


class Answer(NamedTuple):
    subject: str
    item: str
    right: dict[str, bool]


class Regret(NamedTuple):
    router: float
    strong: float
    moved: float
    """Share of requests that left the strong model."""


def answers() -> list[Answer]:
    path = DATA / "routellm_mmlu" / "rows.jsonl"
    if not path.exists():
        return drawn_answers()
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Answer(row["subject"], row["item_id"], {arm: bool(row[arm]) for arm in COSTS}) for row in rows]


def drawn_answers() -> list[Answer]:
    random, found = Random(1), []
    for subject in range(28):
        strong, weak = random.uniform(0.6, 0.97), random.uniform(0.35, 0.9)
        for item in range(214):
            ease = random.random()
            right = {"gpt4": ease < strong, "mixtral": (random.random() if item % 3 == 0 else ease) < weak}
            found.append(Answer(f"s{subject}", f"s{subject}/{item}", right))
    return found


def values_of(rows: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """The expected value of each arm in each subject."""
    by_subject: dict[str, list[Answer]] = defaultdict(list)
    for row in rows:
        by_subject[row.subject].append(row)
    return {
        subject: {arm: sum(row.right[arm] for row in of) / len(of) - COST_WEIGHT * (COSTS[arm] or 0.0) for arm in COSTS}
        for subject, of in by_subject.items()
    }


def routed(
    rows: Sequence[Answer], seed: int, judge: RouteJudge | None = None, rates: dict[str, JudgeRates] | None = None
) -> Regret:
    """Send requests one after the other; what comes of each is a label, or a verdict with these rates."""
    random = Random(seed)
    values = values_of(rows)
    router = Router(COSTS, "gpt4", rules=FREE, judge=judge, seed=seed)
    regret = strong = moved = 0.0
    for row in random.sample(list(rows), min(STEPS, len(rows))):
        choice = router.decide(row.subject)
        right = row.right[choice.arm]
        if rates is None:
            router.observe(row.subject, choice.arm, right)
        else:
            known = rates[choice.arm]
            router.observe_judged(
                row.subject, choice.arm, random.random() < (known.sensitivity if right else 1 - known.specificity)
            )
        best = max(values[row.subject].values())
        regret += best - values[row.subject][choice.arm]
        strong += best - values[row.subject]["gpt4"]
        moved += choice.arm != "gpt4"
    return Regret(regret, strong, moved / STEPS)


class Split(NamedTuple):
    """The promise of one half of the cases, and what happened in the other."""

    promised: float | None
    lost: float | None
    """Share of worse answers among the requests that the table routes."""


def split(rows: Sequence[Answer], seed: int, alpha: float, rules: PolicyRules, labelled: float | None = None) -> Split:
    """``labelled`` is the share of cases with labels, where a judge gives the verdicts that flatters the cheap model."""
    random = Random(seed)
    shuffled = random.sample(list(rows), len(rows))
    known, others = shuffled[: len(rows) // 2], shuffled[len(rows) // 2 :]
    chosen = {row.item for row in known if random.random() < (labelled or 0.0)}
    arms = {}
    for arm, cost in COSTS.items():
        results = [
            _result(row, arm, random, None if labelled is None else row.item in chosen, labelled) for row in known
        ]
        arms[arm] = ArmResults(results, cost, judged=labelled is not None)
    plan = plan_split(arms, "gpt4", rules, alpha, seed=seed)
    worse = share = 0.0
    for row in others:
        cell = plan.families.get(row.subject, {}).get("mixtral")
        if cell is not None and cell.state == "proven":
            worse += cell.share * (row.right["gpt4"] and not row.right["mixtral"])
            share += cell.share
    promised = plan.promise.bound if plan.promise.kept else None
    return Split(promised, worse / share if share and promised is not None else None)


def _result(row: Answer, arm: str, random: Random, labelled: bool | None, probability: float | None) -> ArmResult:
    right = row.right[arm]
    if labelled is None:
        return ArmResult(row.subject, row.item, 0, right)
    rates = FLATTERED if arm == "mixtral" else FAIR
    verdict = random.random() < (rates.sensitivity if right else 1 - rates.specificity)
    return ArmResult(row.subject, row.item, 0, verdict, right if labelled else None, probability if labelled else None)


def figures(full: bool = False) -> list[Row]:
    rows = answers()
    runs, splits = (20, 200) if full else (1, 5)
    return [*_regrets(rows, runs), *_promises(rows, splits)]


def _regrets(rows: Sequence[Answer], runs: int) -> list[Row]:
    labelled = [routed(rows, seed) for seed in range(runs)]
    strong = _mean([one.strong for one in labelled])
    limit = ISSUE_REGRET * strong / ISSUE_STRONG
    rates = {"gpt4": FAIR, "mixtral": FLATTERED}
    fair = [
        routed(rows, seed, RouteJudge("calibrated", dict.fromkeys(COSTS, FAIR)), dict.fromkeys(COSTS, FAIR))
        for seed in range(runs)
    ]
    corrected = [routed(rows, seed, RouteJudge("calibrated", rates), rates) for seed in range(runs)]
    uncalibrated = [routed(rows, seed, RouteJudge("uncalibrated", rates), rates) for seed in range(min(runs, 5))]
    name = f"regret in {STEPS:,} requests, where the strong model has {strong:.0f}"
    return [
        at_most(f"{name}: labels", _mean([one.router for one in labelled]), limit),
        at_most(f"{name}: a calibrated judge of 0.90 and 0.85", _mean([one.router for one in fair]), strong),
        at_most(
            f"{name}: a judge that flatters the cheap model, corrected",
            _mean([one.router for one in corrected]),
            strong,
        ),
        at_most(
            "requests moved by a judge that flatters and is not calibrated",
            max(one.moved for one in uncalibrated),
            0.001,
        ),
    ]


def _promises(rows: Sequence[Answer], splits: int) -> list[Row]:
    found = []
    for alpha, cost_weight, labelled in (
        (0.15, COST_WEIGHT, None),
        (0.2, COST_WEIGHT, None),
        (0.3, 0.5, None),
        (0.3, 0.5, 0.4),
    ):
        rules = PolicyRules(cost_weight=cost_weight, margin=1.0, draws=128)
        made = [split(rows, seed, alpha, rules, labelled) for seed in range(splits)]
        kept = sum(one.lost is None or one.promised is None or one.lost <= one.promised for one in made) / splits
        moved = sum(one.lost is not None for one in made)
        how = "" if labelled is None else f", a judge that flatters and {labelled:.0%} labels"
        name = f"promise kept on the other half, alpha {alpha:g}{how} (routed in {moved} of {splits} splits)"
        found.append(at_least(name, kept, 0.9, monte_carlo_error(0.9, splits) if splits < 100 else 0.0))
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
