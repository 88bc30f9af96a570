"""Anchors name the judge when it changes, the system when that changes, and neither when neither does.

Verdicts of real judges are replayed: 60 answers are frozen with three scores each, every run has 100 cases and judges 5
anchors again, and at the end all anchors are judged again once. A swap replaces the judge by another real one. The
agent's and the judge's own noise flip a score with a given probability.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice, permutations
from random import Random
from typing import NamedTuple, TypeAlias

import judged_sets
from measured import Row, at_least, at_most, monte_carlo_error

from gradeline.verdict.drift import ALPHA, DriftLook, DriftWatch, FrozenAnswer, case_differences

NAMED = 0.95
BLAMED = 0.02
ANCHORS, CASES, AGAIN, REPEATS = 60, 100, 5, 3
BEFORE, AFTER = 3, 16
"""Runs before and after the change; then all anchors are judged again."""
LOOKS = 1_000
LOSS, SMALL_LOSS = 0.25, 0.15
"""The smaller loss is found by judges that repeat their scores; noise hides it."""

Scores: TypeAlias = Mapping[str, float]
"""A judge's score of each item."""
Judges: TypeAlias = Mapping[str, Scores]


def real_judges() -> dict[str, Judges]:
    """Judges that judged the same items, by collection."""
    arena: dict[str, dict[str, float]] = defaultdict(dict)
    for row in judged_sets.rows("arena_judge/rows.jsonl"):
        if row["judge_pick"] is not None:
            arena[row["judge"]][row["item_id"]] = float(row["judge_pick"] == "A")
    found: dict[str, Judges] = {"arena": arena}
    for name, by_item in (
        ("judgebench", judged_sets.judgebench_by_item()),
        ("llmbar", judged_sets.llmbar_by_item()),
    ):
        found[name] = {judge: {item: score for item, (_, score) in items.items()} for judge, items in by_item.items()}
    return found


class Noise(NamedTuple):
    """The probability that a score of the same answer, or an answer to the same case, is another one."""

    judge: float = 0.0
    agent: float = 0.0


QUIET = Noise()


class Simulated:
    """A suite with anchors, whose runs are looks."""

    def __init__(self, random: Random, before: Scores, noise: Noise, cases: int, anchors: int, again: int) -> None:
        self._random, self._noise = random, noise
        self._cases = random.sample(sorted(before), min(cases, len(before)))
        self._anchors = random.sample(self._cases, min(anchors, len(self._cases)))
        self._turn = cycle(range(len(self._anchors)))
        self._again = again
        self._reference = self._run(before, 0.0)
        self.watch = DriftWatch(
            {str(n): FrozenAnswer(tuple(self._judged(before[item]) for _ in range(REPEATS)))
             for n, item in enumerate(self._anchors)}
        )  # fmt: skip
        self.looks = 0

    def run(self, judge: Scores, loss: float = 0.0) -> str:
        """One run by this judge, of an agent that loses a passing answer with this probability; returns the answer."""
        return self._look(judge, list(islice(self._turn, self._again)), self._run(judge, loss))

    def check(self, judge: Scores) -> str:
        """All anchors are judged again."""
        return self._look(judge, range(len(self._anchors)), {})

    def _look(self, judge: Scores, anchors: Sequence[int], now: Mapping[str, float]) -> str:
        scores = [(str(n), self._judged(judge[self._anchors[n]])) for n in anchors]
        self.looks += 1
        self.watch.add(DriftLook(str(self.looks), scores, case_differences(self._reference, now)))
        return self.watch.drift().answer

    def _run(self, judge: Scores, loss: float) -> dict[str, float]:
        return {item: self._judged(self._answered(judge[item], loss)) for item in self._cases}

    def _answered(self, score: float, loss: float) -> float:
        if loss and self._random.random() < loss:
            return 0.0
        return 1.0 - score if self._random.random() < self._noise.agent else score

    def _judged(self, score: float) -> float:
        return 1.0 - score if self._random.random() < self._noise.judge else score


def outcome(random: Random, before: Scores, after: Scores, noise: Noise, loss: float = 0.0) -> str:
    """The first change that is named, or none."""
    simulated = Simulated(random, before, noise, CASES, ANCHORS, AGAIN)
    answers: list[Callable[[], str]] = [lambda: simulated.run(before)] * BEFORE
    answers += [lambda: simulated.run(after, loss)] * AFTER
    answers.append(lambda: simulated.check(after))
    return next((answer for look in answers if (answer := look()) != "none"), "none")


def swaps(judges: Judges, draws: int, seed: int, noise: Noise, every: int = 1) -> Counter[str]:
    """What is named when a judge is replaced by another, over all ordered pairs of judges."""
    found: Counter[str] = Counter()
    random = Random(seed)
    for before, after in islice(permutations(sorted(judges), 2), 0, None, every):
        shared = judges[before].keys() & judges[after].keys()
        if len(shared) < CASES:
            continue
        one, other = ({item: judges[name][item] for item in shared} for name in (before, after))
        found.update(outcome(random, one, other, noise) for _ in range(draws))
    return found


def regressions(judges: Judges, draws: int, seed: int, noise: Noise, loss: float) -> Counter[str]:
    """What is named when the agent loses ``loss`` of its mean score and the judge stays."""
    random = Random(seed)
    found: Counter[str] = Counter()
    able = [scores for _, scores in sorted(judges.items()) if sum(scores.values()) / len(scores) > loss + 0.1]
    for scores in islice(cycle(able), draws):
        share = loss / (sum(scores.values()) / len(scores))
        found[outcome(random, scores, scores, noise, share)] += 1
    return found


def unchanged(draws: int, seed: int, noise: Noise, cases: int, anchors: int, again: int, looks: int) -> Counter[str]:
    """What is named in many looks in which nothing changes."""
    found: Counter[str] = Counter()
    for draw in range(draws):
        random = Random(f"{seed} {draw}")
        scores = {str(item): float(random.random() < 0.7) for item in range(cases)}
        simulated = Simulated(random, scores, noise, cases, anchors, again)
        answers = (simulated.run(scores) for _ in range(looks))
        found[next((answer for answer in answers if answer != "none"), "none")] += 1
    return found


NOISES = {
    "the same each time": QUIET,
    "2 % other scores": Noise(0.02, 0.0),
    "3 % and 5 % other answers": Noise(0.03, 0.05),
}
QUIET_SUITES = {
    "100 cases, a repeatable judge, 10 % other answers": (Noise(0.0, 0.1), CASES, ANCHORS, AGAIN),
    "100 cases, 3 % other scores, 10 % other answers": (Noise(0.03, 0.1), CASES, ANCHORS, AGAIN),
    "100 cases, 10 % other scores, 10 % other answers": (Noise(0.1, 0.1), CASES, ANCHORS, AGAIN),
    "40 cases, 2 % other scores, 20 % other answers": (Noise(0.02, 0.2), 40, 30, 2),
    "20 cases, a repeatable judge, 15 % other answers": (Noise(0.0, 0.15), 20, 20, 1),
}


def figures(full: bool) -> Sequence[Row]:
    """All figures at full or reduced size; those of real judges only where the data are."""
    return [*_false_alarms(full), *(_of_real_judges(full) if judged_sets.present() else ())]


def _false_alarms(full: bool) -> Iterator[Row]:
    draws, looks = (200, LOOKS) if full else (10, 200)
    for seed, (name, suite) in enumerate(QUIET_SUITES.items()):
        found = unchanged(draws, seed, *suite, looks)
        yield at_most(
            f"nothing changes, {looks:,} looks; {name}: false alarms",
            (draws - found["none"]) / draws,
            ALPHA,
            monte_carlo_error(ALPHA, draws),
        )


def _of_real_judges(full: bool) -> Iterator[Row]:
    judges = real_judges()
    for noise, rates in NOISES.items():
        for collection, draws in {"arena": 100, "judgebench": 10, "llmbar": 1}.items():
            found = swaps(judges[collection], draws, 1, rates, every=1 if full else 20)
            name = f"{collection}, a judge that is replaced, {noise}"
            yield at_least(f"{name}: named judge", found["judge"] / found.total(), NAMED)
            yield at_most(f"{name}: named system", found["system"] / found.total(), BLAMED)
    for noise, rates in NOISES.items():
        for loss in (SMALL_LOSS, LOSS) if rates == QUIET else (LOSS,):
            draws = 400 if full else 20
            found = regressions(judges["llmbar"], draws, 2, rates, loss)
            name = f"llmbar, an agent that loses {loss:g}, {noise}: named system"
            yield at_least(name, found["system"] / draws, NAMED)
