"""Plans a suite: the cases, calls, tokens, money and time that a decision takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import ceil, fsum, sqrt
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gradeline import graders
from gradeline.adapters.costs import Price, assumed_prices, flat_price
from gradeline.analysis.trend import runs_of_suite
from gradeline.engine.aggregate import measured_summary
from gradeline.engine.comparison import is_same_grader, overlap, paired_scores, read_scores
from gradeline.engine.definition import Rules, RunOptions, requested_concurrency
from gradeline.engine.lifecycle import wait_for
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage, quote
from gradeline.model.resources import Resources
from gradeline.stats import cases_to_decide, minimum_detectable_effect
from gradeline.stats.distributions import normal_quantile
from gradeline.stats.paired import score_change
from gradeline.stats.power import cases_for_half_width, labels_for_kappa, labels_for_rate
from gradeline.suite.dataset import open_dataset
from gradeline.suite.dataset_source import with_local_files
from gradeline.suite.environment import read_environment
from gradeline.suite.spec import SuiteDefinition
from gradeline.verdict import primary_graders
from gradeline.verdict.evidence import case_score
from gradeline.verdict.gates import Gate
from gradeline.verdict.paired_decision import MARGIN
from gradeline.verdict.score_gates import SimpleGate, bound_of, key_or_first

POWER = 0.8
_SIZES = (50, 100, 200, 500, 1_000, 2_000, 5_000)
_LABEL_WIDTHS = (0.1, 0.05)
_RECORDS = 500
"""Number of responses of the newest run whose tokens are read."""
_GUESSED_MEAN = 0.8
_GUESSED_CHANGES = 0.2
"""The assumed share of cases that pass in one of two runs and fail in the other, without any run."""
_PAIRED_SHARE = 0.65
"""The variance of paired differences by that of unpaired ones, as measured on public data; used with one run."""
_AGREEMENT = 0.85
"""The assumed agreement of a judge with people."""

Source = Literal["two_runs", "one_run", "guess"]


class Spread(Struct, frozen=True, kw_only=True):
    """How much scores vary, and the source of that."""

    source: Source
    explanation: str
    mean: float
    variance: float
    """Of the scores of cases."""
    mean_square: float
    """Of the differences between two runs, case by case."""
    runs: tuple[str, ...] = ()


class Need(Struct, frozen=True, kw_only=True):
    """What a run of a number of cases takes; None is unknown."""

    cases: int
    calls: int
    """Of the agent."""
    judge_grades: int
    """Calls of judges; each makes one or more model calls."""
    input_tokens: int | None
    output_tokens: int | None
    """Of the agent."""
    cost: float | None
    """Of the agent and the judges, in US dollars."""
    seconds: float | None
    """The agent's time with the suite's concurrency."""


class HalfWidth(Struct, frozen=True, kw_only=True):
    """The 95 % interval of the mean at this number of cases: the mean plus and minus this."""

    cases: int
    half_width: float


class GateNeed(Struct, frozen=True, kw_only=True):
    """The cases until the interval of the observed mean leaves out the gate's bound."""

    grader: str
    bound: float
    observed: float
    cases: int | None
    """None if the two are equal: no number of cases separates them."""


class LabelNeed(Struct, frozen=True, kw_only=True):
    """The labels until an interval of what is known of a judge has this half width."""

    half_width: float
    rate: int
    """For a rate of any size."""
    kappa: int
    """For a kappa, if the judge agrees with people on 85 % where chance gives 50 %."""


class Plan(Struct, frozen=True, kw_only=True):
    """What a suite can decide as it is, and what it needs to decide more."""

    suite: str
    grader: str
    cases: int
    repeats: int
    concurrency: int
    margin: float
    power: float
    spread: Spread
    settles: float
    """The margin that the present number of cases settles; as large a difference is found with the same power."""
    present: Need
    needed: Need | None
    """What the margin takes; None without a margin."""
    half_widths: tuple[HalfWidth, ...]
    gates: tuple[GateNeed, ...]
    labels: tuple[LabelNeed, ...]
    """None without a judge."""
    notes: tuple[str, ...]

    def to_data(self) -> dict[str, Any]:
        """The plan as ``--json`` prints it."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


class _Usage(Struct, frozen=True, kw_only=True):
    """Mean tokens, cost and time of a response in the newest run."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    cost: float | None = None
    judge_cost: float | None = None
    latency_ms: float | None = None


def plan(
    storage: Storage | None,
    suite: SuiteDefinition,
    *,
    baseline: str | None = None,
    margin: float = MARGIN,
    power: float = POWER,
    prices: Sequence[str] = (),
) -> Plan:
    """What a suite needs, from the variance of its stored runs; from a guess that it states where there are none.

    ``baseline`` names the run that the next one is compared with. ``prices`` are as in ``--assume-price``.
    """
    _check(margin, power)
    given = assumed_prices(prices)
    base = None if baseline is None else _baseline(storage, baseline, suite.name)
    runs = _stored_runs(storage, suite.name)
    key = next(iter(suite.primary or primary_graders(suite.gate, suite.columns)))
    graded = [run for run in runs if key in run.graders and run.status == "completed"]
    spread = _guess()
    usage = _Usage()
    if storage is not None and graded:
        noise = next((spec.noise for spec in suite.graders if spec.key == key), 0.0)
        spread = _spread(storage, graded, base, key, noise)
        usage = _usage(storage, graded[0], _price(suite, graded[0], given))
    source = suite.dataset
    if source.hub_datasets:
        resources, environment = Resources(suite.folder), read_environment(suite.folder).values
        source = wait_for(lambda _: with_local_files(source, resources, environment))
    cases = sum(1 for _ in open_dataset(source, tags=suite.tags, limit=suite.limit, folder=suite.folder))
    if not cases:
        raise ConfigError(Problem("dataset", "holds no case to plan with; add cases, or change sample_tags"))
    needs = _Needs(suite, usage)
    needed = cases_to_decide(spread.mean_square, margin, power=power) if margin > 0.0 else None
    return Plan(
        suite=suite.name,
        grader=key,
        cases=cases,
        repeats=suite.repeats,
        concurrency=needs.concurrency,
        margin=margin,
        power=power,
        spread=spread,
        settles=minimum_detectable_effect(cases, spread.mean_square, power=power),
        present=needs.of(cases),
        needed=None if needed is None else needs.of(needed),
        half_widths=tuple(_half_widths(cases, spread.variance)),
        gates=tuple(_gate_needs(suite, storage, graded[0] if graded else None)),
        labels=tuple(_label_needs()) if needs.judges else (),
        notes=tuple(_notes(suite, graded, usage, needs)),
    )


def _check(margin: float, power: float) -> None:
    problems = []
    if not 0.0 <= margin <= 1.0:
        problems.append(Problem("margin", f"expected a number from 0 to 1, got {quote(margin)}"))
    if not 0.0 < power < 1.0:
        problems.append(Problem("power", f"expected a number between 0 and 1, such as 0.8, got {quote(power)}"))
    if problems:
        raise ConfigError(problems)


def _baseline(storage: Storage | None, name: str, suite: str) -> Run:
    if storage is None:
        raise ConfigError(Problem("baseline", f"no run {quote(name)}: there is no store yet; leave the baseline out"))
    return storage.find_run(name, suite)


def _stored_runs(storage: Storage | None, suite: str) -> list[Run]:
    try:
        return [] if storage is None else runs_of_suite(storage, suite)
    except ConfigError:
        return []


def _guess() -> Spread:
    return Spread(
        source="guess",
        explanation=(
            "a guess, because the store has no completed run of the suite: scores of 0 and 1,"
            f" {100 * _GUESSED_MEAN:g} % pass, {100 * _GUESSED_CHANGES:g} % of the cases change between two runs"
        ),
        mean=_GUESSED_MEAN,
        variance=_GUESSED_MEAN * (1.0 - _GUESSED_MEAN),
        mean_square=_GUESSED_CHANGES,
    )


def _spread(storage: Storage, runs: Sequence[Run], baseline: Run | None, key: str, noise: float) -> Spread:
    """From two runs where the store has them, else from one and a guess.

    ``noise`` is that of the suite, not of the stored runs: the next run is compared by it.
    """
    newest = runs[0]
    others = [baseline] if baseline is not None else runs[1:]
    other = next((run for run in others if run.id != newest.id and is_same_grader(run, newest, key)), None)
    scores = read_scores(storage, newest, [key])
    errors = Rules.of(newest).agent_errors
    known = [score for tries in scores.graders[key] if (score := case_score(tries, errors)) is not None]
    if len(known) < 2:
        return _guess()
    mean = fsum(known) / len(known)
    # one more case of either kind: a few that agree are not certain to
    variance = max(fsum((score - mean) ** 2 for score in known) / (len(known) - 1), 1.0 / (len(known) + 2))
    if other is not None:
        before = read_scores(storage, other, [key])
        pairs = paired_scores(before, scores, overlap(before, scores), key)
        changes = [
            score_change(first, second, noise)
            for first, second in zip(
                (case_score(tries, errors) for tries in pairs.baseline),
                (case_score(tries, errors) for tries in pairs.candidate),
                strict=True,
            )
            if first is not None and second is not None
        ]
        if changes:
            return Spread(
                source="two_runs",
                explanation=(
                    f"from the runs {quote(other.name)} and {quote(newest.name)}: {len(changes):,} cases in both,"
                    f" {sum(map(bool, changes)):,} changed"
                ),
                mean=mean,
                variance=variance,
                mean_square=(fsum(change * change for change in changes) + 1.0) / (len(changes) + 2),
                runs=(other.id, newest.id),
            )
    return Spread(
        source="one_run",
        explanation=(
            f"from the run {quote(newest.name)}, {len(known):,} cases; how much two runs differ is a guess: pairing by"
            f" case leaves {_PAIRED_SHARE:g} of the variance of unpaired differences"
        ),
        mean=mean,
        variance=variance,
        mean_square=2.0 * _PAIRED_SHARE * variance,
        runs=(newest.id,),
    )


def _price(suite: SuiteDefinition, run: Run, given: tuple[dict[str, Price], Price | None]) -> Price | None:
    """The user's price of the agent's model."""
    model = str(run.target.get("model") or "")
    by_model, assumed = given
    own = suite.prices.get(model)
    if model in by_model:
        return by_model[model]
    return assumed if own is None else flat_price(own.input, own.output)


def _usage(storage: Storage, run: Run, price: Price | None) -> _Usage:
    summary = measured_summary(storage, run)[0]
    answers = summary.responses.get("success", 0)
    used = [one.response.usage for one in islice(storage.records(run.id), _RECORDS) if one.response.status == "success"]
    tokens_in = _mean([None if one is None else one.input_tokens for one in used])
    tokens_out = _mean([None if one is None else one.output_tokens for one in used])
    agent, judge = summary.cost["agent"], summary.cost["judge"]
    cost = None if agent is None or summary.cost_unknown or not answers else agent / answers
    if price is not None and tokens_in is not None and tokens_out is not None:
        cost = (tokens_in * price.input + tokens_out * price.output) / 1_000_000
    return _Usage(
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cost=cost,
        judge_cost=None if judge is None or not answers else judge / answers,
        latency_ms=None if summary.latency_ms is None else summary.latency_ms["mean"],
    )


def _mean(values: Sequence[int | None]) -> float | None:
    """None if any is unknown, or if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


class _Needs:
    """The calls, tokens, cost and time of a number of cases."""

    def __init__(self, suite: SuiteDefinition, usage: _Usage) -> None:
        self._suite, self._usage = suite, usage
        self.concurrency = requested_concurrency(suite, RunOptions()).calls
        self.judges = [spec.key for spec in suite.graders if spec.function is None and _asks(spec.kind)]

    def of(self, cases: int) -> Need:
        usage, calls = self._usage, cases * self._suite.repeats
        seconds = None if usage.latency_ms is None else calls * usage.latency_ms / 1000 / min(self.concurrency, calls)
        return Need(
            cases=cases,
            calls=calls,
            judge_grades=calls * len(self.judges),
            input_tokens=None if usage.input_tokens is None else ceil(calls * usage.input_tokens),
            output_tokens=None if usage.output_tokens is None else ceil(calls * usage.output_tokens),
            cost=self._cost(calls),
            seconds=seconds,
        )

    def _cost(self, calls: int) -> float | None:
        usage = self._usage
        if usage.cost is None or (self.judges and usage.judge_cost is None):
            return None
        return calls * (usage.cost + (usage.judge_cost or 0.0))


def _asks(kind: str) -> bool:
    """True if a grader calls a model."""
    return hasattr(graders.registry.get(kind), "agrade")


def _half_widths(cases: int, variance: float) -> Iterator[HalfWidth]:
    z = normal_quantile(0.975)
    for size in sorted({cases, *_SIZES}):
        yield HalfWidth(cases=size, half_width=z * sqrt(variance / size))


def _gate_needs(suite: SuiteDefinition, storage: Storage | None, run: Run | None) -> Iterator[GateNeed]:
    if storage is None or run is None:
        return
    summary = measured_summary(storage, run)[0]
    for gate in _simple_gates(suite.gate):
        (key,) = key_or_first(gate.metric_key, suite.columns)
        column = summary.graders.get(key)
        if column is None or gate.measured not in ("avg_score", "accuracy"):
            continue
        observed = column.mean if gate.measured == "avg_score" else column.pass_rate
        interval = column.mean_ci if gate.measured == "avg_score" else column.pass_rate_ci
        if observed is None or interval is None:
            continue
        bound = bound_of(gate.measured, gate.value)
        # the variance behind the interval that is shown
        half = (interval[1] - interval[0]) / 2.0
        variance = column.scored * (half / normal_quantile(0.975)) ** 2
        distance = abs(observed - bound)
        cases = cases_for_half_width(distance, variance) if distance > 1e-9 else None
        yield GateNeed(grader=key, bound=bound, observed=observed, cases=cases)


def _simple_gates(gate: Gate | None) -> Iterator[SimpleGate]:
    if isinstance(gate, SimpleGate):
        yield gate
    for condition in getattr(gate, "conditions", ()):
        yield from _simple_gates(condition)


def _label_needs() -> Iterator[LabelNeed]:
    for width in _LABEL_WIDTHS:
        yield LabelNeed(half_width=width, rate=labels_for_rate(width), kappa=labels_for_kappa(width, _AGREEMENT))


def _notes(suite: SuiteDefinition, runs: Sequence[Run], usage: _Usage, needs: _Needs) -> Iterator[str]:
    variants = len(suite.run_variants())
    if variants > 1:
        yield f"the suite makes {variants:,} runs, one for each variant: calls, tokens, cost and time are those of one"
    if not runs:
        yield "tokens, cost and time are unknown: run the suite once, with --limit 20 for instance"
        return
    if runs[0].repeats != suite.repeats:
        yield f"repeats: the suite has {suite.repeats}, the newest run {runs[0].repeats}, from which the variance is"
    if usage.cost is None:
        yield (
            "the cost is unknown: not every response of the newest run has one; give a price with --assume-price, or"
            " let the agent report its usage"
        )
    elif needs.judges and usage.judge_cost is None:
        yield f"the cost is unknown: that of the judges ({', '.join(needs.judges)}) is not in the newest run"
