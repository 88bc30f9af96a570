"""Drift: whether a judge or the system that it judges changed since some answers were frozen.

Some answers of a reference run are frozen as anchors, each with several scores by the judge. Later looks have the
scores that the judge gives some of the anchors then, and the scores of a run's own cases. Two betting e-processes
answer: an e-process is the wealth of a gambler who bets against "nothing changed" at fair odds, so that it ever
reaches 1/a with a probability of at most a, whatever the number of looks. The error rate `ALPHA` is shared equally by
both.

**Judge.** If the judge did not change, the scores of one anchor are exchangeable: those at freezing and all later
ones. Let x be the last w scores of an anchor, y the earlier ones (those at freezing and the newest since), and

    T = (mean x - mean y) / max(sd of all, 0.05)        V = g(T) / mean of g(T) over all ways to choose x among them

with g(T) = exp(k |T|), exp(k T) or exp(-k T). V has expectation 1 for every judge, however noisy: the noise is in the
anchor's own scores. It is exactly 1 if all scores are equal, so a repeatable judge costs nothing. Pass r is the r-th
score of each anchor. In a pass each anchor bets once and anchors are independent, so the product over anchors is a
martingale, and so is the mixture over g, k and the window w (1, 2 and 4). Passes are not independent of each other:
pass r alarms at 1/(a w_r), with the weights w_r = 1/(r (r + 1)), which add up to 1. A late drift meets a fresh pass.

**System.** At a look the judge gives an old answer j a score that differs by a_j from its frozen score, and the case
c of the new run one that differs by d_c from that of the reference run; both are in -1..1. If the system did not
change, both have the same expectation, namely the judge's shift at that moment, whatever that is. For the n cases and
the anchors with design weights o_j (mean 1), and b = l sum(o_j) / n,

    factor of the look = product of (1 + l o_j a_j) * product of (1 - b (d_c + e))        (worse; signs swap for better)

has an expectation of at most exp((l sum(o_j) - b n) shift) = 1: a change of the judge alone earns nothing, even if it
is abrupt. e is what the errors of the reference run and of the frozen scores explain: 0.01 and 1.25 standard errors.
The wealth is a mixture over l and both directions. It restarts with each pass over the anchors and lasts two passes,
with the weights above, so that a remaining error of the reference does not add up for ever. Anchors that are judged
again between two runs belong to the look of the earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import exp, fsum, inf, log, sqrt
from statistics import fmean, pstdev, pvariance
from typing import Literal, NamedTuple

DriftAnswer = Literal["none", "system", "judge"]
"""What changed."""

ALPHA = 0.05
"""Probability of ever naming a change where there is none, shared by both processes."""
MAX_BAG = 10
"""Maximum scores of one anchor in a bet, if fewer were frozen."""
CALLS_PER_ANCHOR = 20
"""A run judges one anchor again for this number of the judge's calls: at most 5 %."""

_WINDOWS = (1, 2, 4)
_LEAST_SPREAD = 0.05
_DIGITS = 3
_SYSTEM_BETS = ((0.9, 0.4), (0.6, 0.3), (0.25, 0.3))
"""The largest share that is bet on an anchor, with its weight in the mixture."""
_MAX_BET = 0.9
_LEAST_TOLERANCE = 0.01
_TOLERATED_ERRORS = 1.25
_PASSES_OF_A_WINDOW = 2
_LARGEST = 700.0
"""Of a logarithm whose power is a number."""


class FrozenAnswer(NamedTuple):
    """The judge's scores of an anchor when it was frozen."""

    scores: tuple[float, ...]
    weight: float = 1.0
    """The design weight: 1 if anchors were drawn in proportion."""

    @property
    def mean(self) -> float:
        return fmean(self.scores)


class CaseDifferences(NamedTuple):
    """How the scores of a run's cases differ from those of the reference run."""

    counts: tuple[tuple[float, int], ...] = ()
    """Each difference, in -1..1 and rounded, with the number of cases that have it."""
    reference_error: float | None = None
    """Standard error of the reference run's mean; None: to be estimated, because the cases are the same."""

    @property
    def cases(self) -> int:
        return sum(count for _, count in self.counts)

    @property
    def mean(self) -> float | None:
        """None without cases."""
        cases = self.cases
        return fsum(difference * count for difference, count in self.counts) / cases if cases else None

    @property
    def variance(self) -> float:
        mean = self.mean
        if mean is None:
            return 0.0
        return fsum((difference - mean) ** 2 * count for difference, count in self.counts) / self.cases


class DriftLook(NamedTuple):
    """What one run, or one check, shows: anchors that were judged again, and the run's own cases."""

    at: str
    anchors: Sequence[tuple[str, float]] = ()
    """Anchor and score; one without a score is left out."""
    cases: CaseDifferences = CaseDifferences()


class ProcessState(NamedTuple):
    """The evidence of one e-process."""

    evidence: float
    """The largest wealth of a pass now, times the weight of the pass; it alarms at `threshold`."""
    alarm: str | None = None
    """Time of the look at which it alarmed; None: it never did."""
    onset: str | None = None
    """Time of the first look that contributed to the alarm."""


class Drift(NamedTuple):
    """The answer after some looks."""

    answer: DriftAnswer
    judge: ProcessState
    system: ProcessState
    looks: int
    judged: int
    """Scores of anchors since they were frozen."""
    anchors: int
    """Anchors with a score since they were frozen."""
    changed: int
    """Anchors whose last score differs from all their frozen scores."""
    shift: float | None
    """Mean change of the anchors' last scores; None without any."""
    moved: float | None
    """Mean difference of the last run with cases from the reference run; None without any."""

    @property
    def onset(self) -> str | None:
        """When the change began, as far as the looks show."""
        return {"judge": self.judge.onset, "system": self.system.onset, "none": None}[self.answer]


def threshold(alpha: float = ALPHA) -> float:
    """The evidence at which a process alarms."""
    return 2.0 / alpha


def anchors_of_run(calls: int, anchors: int) -> int:
    """The number of anchors that a run with this number of judge calls judges again."""
    return min(anchors, calls // CALLS_PER_ANCHOR)


def case_differences(
    reference: Mapping[str, float], now: Mapping[str, float], clusters: Mapping[str, str] = {}
) -> CaseDifferences:
    """The differences of a run from the reference run, by case; the cases of a cluster count as one.

    If most of its cases are others, each is compared with the mean of the reference run, whose error is then larger.
    """
    shared = [case for case in now if case in reference]
    if not now or not reference:
        return CaseDifferences()
    if len(shared) * 2 >= len(now):
        if not clusters:
            return CaseDifferences(_counted(now[case] - reference[case] for case in shared))
        grouped: dict[str, list[float]] = {}
        for case in shared:
            name = f"cluster {clusters[case]}" if case in clusters else f"case {case}"
            grouped.setdefault(name, []).append(now[case] - reference[case])
        return CaseDifferences(_counted(map(fmean, grouped.values())))
    mean = fmean(reference.values())
    error = pstdev(reference.values()) / sqrt(len(reference))
    return CaseDifferences(_counted(score - mean for score in now.values()), error)


def _counted(differences: Iterable[float]) -> tuple[tuple[float, int], ...]:
    return tuple(sorted(Counter(map(_rounded, differences)).items()))


def detect_drift(frozen: Mapping[str, FrozenAnswer], looks: Iterable[DriftLook], *, alpha: float = ALPHA) -> Drift:
    """What changed since the anchors were frozen. A change of the judge comes first: it makes runs incomparable."""
    watch = DriftWatch(frozen, alpha=alpha)
    for look in looks:
        watch.add(look)
    return watch.drift()


class DriftWatch:
    """Both processes, look by look. A process that alarmed stays so."""

    def __init__(self, frozen: Mapping[str, FrozenAnswer], *, alpha: float = ALPHA) -> None:
        self._frozen = frozen
        self._judge = _JudgeProcess(frozen, threshold(alpha))
        self._system = _SystemProcess(frozen, threshold(alpha))
        self._last: dict[str, float] = {}
        self._moved: float | None = None
        self._looks = 0
        self._judged = 0

    def add(self, look: DriftLook) -> None:
        """Add a look; scores of anchors that are not frozen are left out."""
        known = look._replace(anchors=[(name, score) for name, score in look.anchors if name in self._frozen])
        self._looks += 1
        self._judged += len(known.anchors)
        self._last.update(known.anchors)
        if look.cases.counts:
            self._moved = look.cases.mean
        self._judge.add(known)
        self._system.add(known)

    def drift(self) -> Drift:
        """The answer so far."""
        judge, system = self._judge.state, self._system.state
        answer: DriftAnswer = "judge" if judge.alarm else "system" if system.alarm else "none"
        changes = [(score, self._frozen[name]) for name, score in self._last.items()]
        return Drift(
            answer,
            judge,
            system,
            self._looks,
            self._judged,
            len(changes),
            sum(_is_changed(score, one.scores) for score, one in changes),
            fmean(score - one.mean for score, one in changes) if changes else None,
            self._moved,
        )


def _is_changed(score: float, frozen: Sequence[float]) -> bool:
    return not min(frozen) - _LEAST_SPREAD <= score <= max(frozen) + _LEAST_SPREAD


def _pass_weight(number: int) -> float:
    """Weights of the passes 1, 2, 3 ..., which add up to 1."""
    return 1.0 / (number * (number + 1))


class _Wealth:
    """The logarithms of the wealth of the strategies of one mixture, and when they began to rise."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._logs = [log(weight) for weight in weights]
        self._least = inf
        self.rising_since: str | None = None

    def bet(self, logs: Sequence[float]) -> None:
        self._logs = [wealth + one for wealth, one in zip(self._logs, logs, strict=True)]

    def begin_look(self, at: str) -> None:
        value = self.value
        if value <= self._least:
            self._least, self.rising_since = value, at

    @property
    def value(self) -> float:
        """The wealth of the mixture."""
        return sum(exp(min(one, _LARGEST)) for one in self._logs)

    def after(self, logs: Sequence[float]) -> float:
        """The wealth of the mixture after these bets."""
        return sum(exp(min(one + bet, _LARGEST)) for one, bet in zip(self._logs, logs, strict=True))


class _JudgeProcess:
    def __init__(self, frozen: Mapping[str, FrozenAnswer], alarm_at: float) -> None:
        self._history = {name: list(map(_rounded, one.scores)) for name, one in frozen.items()}
        self._first = {name: len(one.scores) for name, one in frozen.items()}
        self._passes: list[_JudgePass] = []
        self._alarm_at = alarm_at
        self._alarmed: ProcessState | None = None

    @property
    def state(self) -> ProcessState:
        """The evidence now, and the first alarm."""
        evidence = max((one.value for one in self._passes), default=0.0)
        return ProcessState(evidence) if self._alarmed is None else self._alarmed._replace(evidence=evidence)

    def add(self, look: DriftLook) -> None:
        touched: set[int] = set()
        for name, score in look.anchors:
            scores = self._history[name]
            scores.append(_rounded(score))
            number = len(scores) - self._first[name]
            if number > len(self._passes):
                self._passes.append(_JudgePass(number))
            current = self._passes[number - 1]
            if number not in touched:
                touched.add(number)
                current.begin_look(look.at)
            current.bet(scores, self._first[name])
            if self._alarmed is None and current.value >= self._alarm_at:
                self._alarmed = ProcessState(0.0, look.at, current.rising_since)


class _JudgePass:
    """The bets on one score of each anchor, for each window."""

    def __init__(self, number: int) -> None:
        self._weight = _pass_weight(number)
        weights = [weight for _, _, weight in _JUDGE_BETS]
        self._windows = {window: _Wealth(weights) for window in _WINDOWS if window <= number}
        self.value = self._weight
        """The wealth times the weight of the pass."""

    def begin_look(self, at: str) -> None:
        for wealth in self._windows.values():
            wealth.begin_look(at)

    def bet(self, scores: Sequence[float], frozen: int) -> None:
        """Bet on the last of an anchor's scores, the first of which are frozen."""
        for window, wealth in self._windows.items():
            wealth.bet(_bets(scores, frozen, window))
        self.value = self._weight * sum(wealth.value for wealth in self._windows.values()) / len(self._windows)

    @property
    def rising_since(self) -> str | None:
        return max(self._windows.values(), key=lambda wealth: wealth.value).rising_since


def _rounded(score: float) -> float:
    return round(score, _DIGITS)


_JUDGE_BETS = (
    (0, 1.0, 0.25),
    (0, 4.0, 0.25),
    (1, 0.5, 0.125),
    (1, 2.0, 0.125),
    (-1, 0.5, 0.125),
    (-1, 2.0, 0.125),
)
"""Direction of the change (0: either), k, and the weight in the mixture."""


def _bets(scores: Sequence[float], frozen: int, window: int) -> Sequence[float]:
    """The logarithm of V for each bet on the last ``window`` scores of an anchor."""
    newest = scores[-window:]
    later = scores[frozen:-window]
    room = max(0, MAX_BAG - frozen - window)
    earlier = (*scores[:frozen], *later[len(later) - min(room, len(later)) :])
    bag = (*earlier, *newest)
    if min(bag) == max(bag):
        return _NO_BET
    means = _mean_of_bets(tuple(sorted(bag)), window)
    change = _standardised(sum(newest), sum(bag), len(bag), window, _spread(bag))
    return [_exponent(change, way, k) - mean for (way, k, _), mean in zip(_JUDGE_BETS, means, strict=True)]


_NO_BET = (0.0,) * len(_JUDGE_BETS)


def _spread(bag: Sequence[float]) -> float:
    mean = sum(bag) / len(bag)
    return max(sqrt(sum((one - mean) ** 2 for one in bag) / len(bag)), _LEAST_SPREAD)


def _standardised(newest: float, total: float, scores: int, window: int, spread: float) -> float:
    """T of the module's docstring, by the sums of the newest scores and of all."""
    return (newest / window - (total - newest) / (scores - window)) / spread


def _exponent(change: float, way: int, k: float) -> float:
    return k * (abs(change) if way == 0 else way * change)


@lru_cache(maxsize=20_000)
def _mean_of_bets(bag: tuple[float, ...], window: int) -> tuple[float, ...]:
    """The logarithm of the mean of each g over all ways to choose the newest scores."""
    spread, total = _spread(bag), sum(bag)
    changes = [_standardised(sum(chosen), total, len(bag), window, spread) for chosen in combinations(bag, window)]
    return tuple(log(fmean(exp(_exponent(change, way, k)) for change in changes)) for way, k, _ in _JUDGE_BETS)


class _SystemProcess:
    def __init__(self, frozen: Mapping[str, FrozenAnswer], alarm_at: float) -> None:
        self._anchors = {name: _FrozenMean(one.mean, one.weight) for name, one in frozen.items()}
        self._highest = max((one.weight for one in frozen.values()), default=1.0)
        noise = [pvariance(one.scores) / len(one.scores) for one in frozen.values() if len(one.scores) > 1]
        self._anchor_error = fmean(noise) / len(noise) if noise else 0.0
        """Squared standard error of the mean of the frozen scores."""
        self._alarm_at = alarm_at
        self._windows: list[_SystemWindow] = []
        self._judged = 0
        self._evidence = 0.0
        self._alarmed: ProcessState | None = None

    @property
    def state(self) -> ProcessState:
        """The evidence now, and the first alarm."""
        return (
            ProcessState(self._evidence) if self._alarmed is None else self._alarmed._replace(evidence=self._evidence)
        )

    def add(self, look: DriftLook) -> None:
        if look.cases.counts:
            size = max(1, len(self._anchors))
            while len(self._windows) * size <= self._judged:
                self._windows.append(_SystemWindow(len(self._windows) + 1))
        recent = self._windows[-_PASSES_OF_A_WINDOW:]
        self._judged += len(look.anchors)
        self._evidence = 0.0
        for window in recent:
            if look.cases.counts:
                window.begin(look, self._anchor_error)
            else:  # the newest score of each anchor counts
                window.extend(look)
            window.bets = [
                self._factor(window.look, way, bet, window.tolerance) for way in (-1, 1) for bet, _ in _SYSTEM_BETS
            ]
            self._evidence = max(self._evidence, window.value)
            if self._alarmed is None and window.value >= self._alarm_at:
                self._alarmed = ProcessState(window.value, look.at, window.rising_since)

    def _factor(self, look: DriftLook, way: int, bet: float, tolerance: float) -> float:
        """The logarithm of the factor of a look; ``way`` is -1 for a worse system, 1 for a better one."""
        if not look.anchors:
            return 0.0
        changes = [(self._anchors[name].weight, score - self._anchors[name].mean) for name, score in look.anchors]
        on_anchor = bet / self._highest
        on_case = on_anchor * fsum(weight for weight, _ in changes) / look.cases.cases
        # 1 + tolerance is the largest that a case can lose
        if on_case > _MAX_BET / (1.0 + tolerance):
            on_anchor *= _MAX_BET / (1.0 + tolerance) / on_case
            on_case = _MAX_BET / (1.0 + tolerance)
        anchors = fsum(log(1.0 - way * on_anchor * weight * change) for weight, change in changes)
        return anchors + fsum(n * log(1.0 + on_case * (way * d - tolerance)) for d, n in look.cases.counts)


class _FrozenMean(NamedTuple):
    mean: float
    weight: float


class _SystemWindow:
    """Two passes over the anchors. The last look may still get anchors, so its bets are kept apart."""

    def __init__(self, number: int) -> None:
        self._weight = _pass_weight(number)
        self._before = _Wealth([0.5 * weight for _ in (-1, 1) for _, weight in _SYSTEM_BETS])
        self._looks = 0
        self._spread = 0.0
        self.look = DriftLook("")
        self.bets: list[float] = []
        """The logarithms of the factors of the last look."""
        self.tolerance = 0.0

    def begin(self, look: DriftLook, anchor_error: float) -> None:
        """Begin a look; ``anchor_error`` is the squared standard error of the frozen scores."""
        if self.bets:
            self._before.bet(self.bets)
        self._before.begin_look(look.at)
        self.look = look
        self._looks += 1
        self._spread += look.cases.variance
        if look.cases.reference_error is None:
            # a difference of two runs has twice the variance of one run
            squared = anchor_error + self._spread / self._looks / (2.0 * look.cases.cases)
        else:
            squared = anchor_error + look.cases.reference_error**2
        self.tolerance = _LEAST_TOLERANCE + _TOLERATED_ERRORS * sqrt(squared)

    def extend(self, look: DriftLook) -> None:
        """Add anchors to the last look."""
        self.look = self.look._replace(anchors=list({**dict(self.look.anchors), **dict(look.anchors)}.items()))

    @property
    def value(self) -> float:
        return self._weight * self._before.after(self.bets)

    @property
    def rising_since(self) -> str | None:
        return self._before.rising_since
