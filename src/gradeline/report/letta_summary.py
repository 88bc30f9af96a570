"""What letta-evals' ``summary.json`` tells of a model; what is unknown is left out, a score that is none too."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import stdev
from typing import Any, NamedTuple

from gradeline.engine.aggregate import Summary
from gradeline.model import Record
from gradeline.stats import percentile

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_input_tokens")


class Metrics(NamedTuple):
    """Which columns a summary tells."""

    graders: tuple[str, ...]
    score: str | None
    """The column that is the score of the whole."""


class Tally:
    """Adds up results as they are written; eight bytes are kept of each."""

    def __init__(self) -> None:
        self.results = 0
        self.cost_missing = 0
        """Results that tell tokens and no cost."""
        self._categories: Counter[str] = Counter()
        self._exceptions: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._cost: float | None = None
        self._totals = array("d")
        self._target = 0.0
        self._scores: dict[str, float] = {}
        self._scored: Counter[str] = Counter()

    def add(self, record: Record, result: Mapping[str, Any]) -> None:
        """Count a record and the result that `letta_result` made of it."""
        self.results += 1
        self._totals.append(result["timing"]["total"])
        self._target += result["timing"]["target"]
        if "error" in result:
            self._categories[result["error"]["category"]] += 1
            self._exceptions[result["error"]["exception_type"]] += 1
        usage = result.get("usage", {})
        self._tokens.update({name: usage[name] for name in _TOKENS if name in usage})
        if "cost" in usage:
            self._cost = (self._cost or 0.0) + usage["cost"]
        elif usage:
            self.cost_missing += 1
        for key, grade in record.grades.items():
            if grade.score is not None:
                self._scores[key] = self._scores.get(key, 0.0) + grade.score
                self._scored[key] += 1

    @classmethod
    def of(cls, tallies: Iterable[Tally]) -> Tally:
        """Several as one, without the scores."""
        whole = cls()
        for one in tallies:
            whole.results += one.results
            whole.cost_missing += one.cost_missing
            whole._categories.update(one._categories)
            whole._exceptions.update(one._exceptions)
            whole._tokens.update(one._tokens)
            if one._cost is not None:
                whole._cost = (whole._cost or 0.0) + one._cost
            whole._totals += one._totals
            whole._target += one._target
        return whole

    @property
    def failed(self) -> int:
        return self._categories.total()

    def mean(self, key: str | None) -> float | None:
        """A column's mean score; None where it has none."""
        return self._scores[key] / self._scored[key] if key is not None and self._scored[key] else None

    def usage(self) -> dict[str, Any]:
        return dict(self._tokens) if self._cost is None else {**self._tokens, "cost": self._cost}

    def timing(self) -> dict[str, float]:
        """In seconds; letta insists on numbers."""
        ordered = sorted(self._totals) or [0.0]
        return {
            "mean_total": sum(ordered) / len(ordered),
            "mean_target": self._target / len(ordered),
            "p50_total": percentile(ordered, 0.5),
            "p95_total": percentile(ordered, 0.95),
        }

    def errors(self) -> dict[str, Any] | None:
        if not self.failed:
            return None
        kinds = {"by_category": dict(self._categories), "by_exception_type": dict(self._exceptions)}
        return {"total_errors": self.failed, **kinds}


def model_summary(model: str, summary: Summary, metrics: Metrics, repeats: Mapping[int, Tally]) -> dict[str, Any]:
    """A model's entry. The scores are those of the run's own summary."""
    whole = Tally.of(repeats.values())
    means = {key: column.mean for key, column in summary.graders.items()}
    spreads = {key: _spread(key, repeats.values()) for key in (*metrics.graders, *filter(None, [metrics.score]))}
    several = len(repeats) > 1
    entry: dict[str, Any] = {
        "model": model,
        "n_total": whole.results // max(1, len(repeats)),
        "n_attempted": whole.results - whole.failed,
        **_score(means.get(metrics.score or ""), ""),
        **_score(spreads.get(metrics.score or ""), "_std"),
        "per_metric": _known({key: means.get(key) for key in metrics.graders}),
        "per_metric_std": _known({key: spreads[key] for key in metrics.graders}) if several else None,
        "usage": whole.usage(),
        "timing": whole.timing(),
        "cost_missing": whole.cost_missing,
        "errors": whole.errors(),
    }
    return _known(entry)


def repeat_summary(number: int, metrics: Metrics, tally: Tally) -> dict[str, Any]:
    """The entry of one repeat of a model."""
    return {
        "run": number,
        **_score(tally.mean(metrics.score), ""),
        "per_metric": _known({key: tally.mean(key) for key in metrics.graders}),
        "usage": tally.usage(),
        "timing": tally.timing(),
        "n_errors": tally.failed,
        "cost_missing": tally.cost_missing,
    }


def _score(value: float | None, ending: str) -> dict[str, Any]:
    """Under both names: ``score`` became ``reward`` with 0.21."""
    return {} if value is None else {f"score{ending}": value, f"reward{ending}": value}


def _spread(key: str, tallies: Iterable[Tally]) -> float | None:
    means = [mean for one in tallies if (mean := one.mean(key)) is not None]
    return stdev(means) if len(means) > 1 else None


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
