"""Early stopping, simulated: how many cases it takes, and how often its decision differs from that of all cases.

Uses the product's own stopping rule and comparison. ``figures`` gives every figure with its limit.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import NamedTuple

from gradeline.stats.paired import ALPHA, changes_test
from gradeline.stats.sequential import DifferenceSums, RepeatedInterval, look_sizes
from gradeline.verdict.early_stopping import StoppingRule, WatchedGate
from gradeline.verdict.evidence import PairedScores
from gradeline.verdict.paired_decision import (
    ComparisonRule,
    Decision,
    compare_cases,
    decide_difference,
    primary_decision,
)

MARGIN = 0.02
_HOME = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = Path(os.environ.get("GRADELINE_SHARED_DATA") or _HOME)
_EXIT_CODES: Mapping[Decision, int] = {"better": 0, "not_worse": 0, "worse": 1, "undecided": 3}


class Row(NamedTuple):
    """A figure, its limit, and whether it is within the limit."""

    name: str
    figure: float
    limit: float
    holds: bool


class StoppedRun(NamedTuple):
    """How a run ended, and after which share of its cases."""

    decision: Decision
    share: float


Pairs = Sequence[tuple[float, float]]
"""Baseline and candidate score of each case."""


def stopped(pairs: Pairs) -> StoppedRun:
    """One grader, looked at as a run is."""
    return stopped_graders([changes(pairs)])


def changes(pairs: Pairs) -> list[float]:
    """The difference of each case."""
    return [after - before for before, after in pairs]


def stopped_graders(columns: Sequence[Sequence[float]], primary: int = 1) -> StoppedRun:
    """Several graders' differences over the same cases; the first ones are primary.

    The same as `stopped_by_the_rule`, from the sums at each look.
    """
    keys = [str(number) for number in range(len(columns))]
    alpha = ALPHA / len(columns)
    sums = [(0.0, 0.0)] * len(columns)
    done, cases = 0, len(columns[0])
    decision: Decision = "undecided"
    for look, size in enumerate(look_sizes(cases), 1):
        found: dict[str, Decision] = {}
        for place, column in enumerate(columns):
            new = column[done:size]
            total, squares = sums[place]
            sums[place] = total + sum(new), squares + sum(change * change for change in new if change)
            interval = DifferenceSums(size, *sums[place]).at(look, alpha)
            found[keys[place]] = _decision(interval)
        done = size
        decision = "worse" if "worse" in found.values() else primary_decision(found, keys[:primary])
        if decision != "undecided":
            break
    return StoppedRun(decision, done / cases)


def _decision(found: RepeatedInterval) -> Decision:
    low, high = found.interval
    return decide_difference(found.mean, (low, high), 0.0 if low > 0.0 or high < 0.0 else 1.0, MARGIN)


def stopped_by_the_rule(columns: Sequence[Sequence[float]], primary: int = 1) -> StoppedRun:
    """Case by case, as a run is followed."""
    keys = tuple(str(number) for number in range(len(columns)))
    gate = WatchedGate(keys, keys[:primary], ComparisonRule(MARGIN), "baseline")
    rule = StoppingRule([gate], len(columns[0]))
    decision: Decision = "undecided"
    for place, changes in enumerate(zip(*columns, strict=True), 1):
        look = rule.add([(max(0.0, -change),) for change in changes], [(max(0.0, change),) for change in changes])
        if look is not None:
            decision = look.decision
            if look.stops:
                return StoppedRun(decision, place / len(columns[0]))
    return StoppedRun(decision, 1.0)


def fixed(pairs: Pairs) -> Decision:
    """The decision over all cases."""
    names = [str(number) for number in range(len(pairs))]
    paired = PairedScores(names, [(before,) for before, _ in pairs], [(after,) for _, after in pairs])
    return compare_cases(paired, ComparisonRule(MARGIN)).decision


def peeked(pairs: Pairs) -> Decision:
    """Naive peeking: the ordinary comparison at each of 20 looks, until one decides."""
    observed = changes(pairs)
    for size in look_sizes(len(pairs)):
        found = changes_test(observed[:size], pass_or_fail=True)
        decision = decide_difference(sum(observed[:size]) / size, found.interval, found.p, MARGIN)
        if decision != "undecided":
            return decision
    return "undecided"


def draw(random: Random, cases: int, up: float, down: float) -> list[tuple[float, float]]:
    """Pairs of pass and fail: these shares of the cases improve and worsen."""
    better, worse, same, luck = (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), random.random
    changed = up + down
    return [same if (drawn := luck()) >= changed else better if drawn < up else worse for _ in range(cases)]


class Null(NamedTuple):
    """Shares of decisions."""

    better: float
    worse: float
    not_worse: float


def null(
    draws: int, seed: int, *, discordance: float, loss: float = 0.0, cases: int = 1000, naive: bool = False
) -> Null:
    """How often each decision is taken where the candidate is truly worse by ``loss``."""
    random = Random(seed)
    decisions: Counter[Decision] = Counter()
    for _ in range(draws):
        pairs = draw(random, cases, (discordance - loss) / 2, (discordance + loss) / 2)
        decisions[peeked(pairs) if naive else stopped(pairs).decision] += 1
    return Null(*(decisions[one] / draws for one in ("better", "worse", "not_worse")))


def null_of_graders(draws: int, seed: int, *, graders: int, discordance: float = 0.2, cases: int = 1000) -> Null:
    """The overall decision of several graders that are all unchanged in truth; the first is primary."""
    random = Random(seed)
    decisions: Counter[Decision] = Counter()
    for _ in range(draws):
        columns = [changes(draw(random, cases, discordance / 2, discordance / 2)) for _ in range(graders)]
        decisions[stopped_graders(columns).decision] += 1
    return Null(*(decisions[one] / draws for one in ("better", "worse", "not_worse")))


def real_pairs(home: Path = DATA) -> Iterator[tuple[str, Pairs]]:
    """Every ordered pair of systems whose answers to the same cases have published verdicts."""
    for name, systems in _systems(home):
        for baseline, candidate in permutations(systems, 2):
            cases = [case for case in systems[baseline] if case in systems[candidate]]
            yield (
                f"{name}: {baseline} to {candidate}",
                [(systems[baseline][one], systems[candidate][one]) for one in cases],
            )


def _systems(home: Path) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    files = {
        "bfcl": ("bfcl/predictions.jsonl", "valid"),
        "gsm8k": ("gsm8k_solutions/rows.jsonl", "is_correct"),
        "routellm_gsm8k": ("routellm_gsm8k/rows.jsonl", "last_int_label"),
    }
    for name, (file, verdict) in files.items():
        systems: dict[str, dict[str, float]] = defaultdict(dict)
        for row in _rows(home / file):
            systems[row["model"]][str(row["item_id"])] = float(row[verdict])
        yield name, systems
    mmlu: dict[str, dict[str, float]] = {"mixtral": {}, "gpt4": {}}
    for row in _rows(home / "routellm_mmlu/rows.jsonl"):
        for model, scores in mmlu.items():
            scores[row["item_id"]] = float(row[model])
    yield "mmlu", mmlu


def _rows(file: Path) -> Iterator[dict[str, object]]:
    with file.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


class Replayed(NamedTuple):
    """Real pairs of systems in random orders."""

    pairs: int
    share: float
    """Of the cases, over all pairs and orders."""
    same: float
    """How often the exit code is that of all cases."""
    contradictions: float
    """How often a pass is a fail of all cases, or a fail a pass."""
    by_decision: Mapping[Decision, float]
    """The share of the cases by the decision over all of them."""


def replay(orders: int, seed: int, home: Path = DATA, every: int = 1, times: int = 1) -> Replayed:
    """Stop early on each ``every``-th pair of systems, in that many random orders; each case counts ``times``."""
    random = Random(seed)
    shares: dict[Decision, list[float]] = defaultdict(list)
    same = contradictions = pairs = 0
    for _, once in list(real_pairs(home))[::every]:
        pairs += 1
        scores = [*once] * times
        whole = fixed(scores)
        for _ in range(orders):
            ended = stopped(random.sample(scores, len(scores)))
            shares[whole].append(ended.share)
            codes = {_EXIT_CODES[whole], _EXIT_CODES[ended.decision]}
            same += len(codes) == 1
            contradictions += codes == {0, 1}
    runs = pairs * orders
    mean = sum(map(sum, shares.values())) / runs
    by_decision = {decision: sum(found) / len(found) for decision, found in shares.items()}
    return Replayed(pairs, mean, same / runs, contradictions / runs, by_decision)


def figures(full: bool = False) -> list[Row]:
    """Every figure with its limit; ``full`` takes minutes."""
    draws = 4000 if full else 300
    found: list[Row] = []

    def most(name: str, figure: float, limit: float) -> None:
        found.append(Row(name, figure, limit, figure <= limit))

    for discordance in (0.1, 0.2):
        case = f"equal, discordance {discordance:g}"
        equal = null(draws, 1, discordance=discordance)
        most(f"early stopping, {case}: worse", equal.worse, 0.035)
        most(f"early stopping, {case}: better", equal.better, 0.035)
        lost = null(draws, 2, discordance=discordance, loss=MARGIN)
        most(
            f"early stopping, loss of the margin, discordance {discordance:g}: passes",
            lost.better + lost.not_worse,
            0.035,
        )
        peeking = null(max(60, draws // 20), 3, discordance=discordance, loss=MARGIN, naive=True)
        figure = peeking.better + peeking.not_worse
        name = f"naive peeking, loss of the margin, discordance {discordance:g}: passes (must fail the limit)"
        found.append(Row(name, figure, 0.035, figure > 0.035))
    for graders in (4, 10):
        several = null_of_graders(max(100, draws // 10), 4, graders=graders)
        most(f"early stopping, {graders} equal graders: worse", several.worse, 0.035)
    if DATA.exists():
        orders, every = (60, 1) if full else (1, 6)
        replayed, doubled = replay(orders, 5, every=every), replay(orders, 5, every=every, times=2)
        name = f"early stopping, {replayed.pairs} pairs of systems"
        most(f"{name}: mean share of the cases", replayed.share, 0.32)
        most(f"{name}, each case twice: mean share of the cases", doubled.share, 0.32)
        found.append(Row(f"{name}: same exit code as all cases", replayed.same, 0.995, replayed.same >= 0.995))
        most(f"{name}: pass against fail", replayed.contradictions, 0.001)
    return found
