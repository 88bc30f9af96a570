"""The checks of a suite's cases: which metrics they name, and whether a judge is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gradeline.errors import GraderError, Problem, closest_match
from gradeline.model import Sample, quote
from gradeline.suite.case_condition import CaseCondition, condition_faults
from gradeline.suite.spec import GraderSpec

CHECKS = "checks"
"""The kind of the grader that runs the checks of each case."""
CHECKS_METRIC = "checks_metric"
MAX_METRICS = 100


class ChecksInDataset(NamedTuple):
    """What the checks of the cases that a grader applies to have in common."""

    metrics: tuple[str, ...] = ()
    """Their metrics, in the order in which they first occur."""
    judged: str | None = None
    """The first case with a check for a judge."""
    with_checks: int = 0
    without: int = 0
    """The number of cases that have no checks."""


class _CheckReader:
    """Collects the checks for one grader."""

    def __init__(self, when: Mapping[str, Any] | str | None) -> None:
        valid = when is not None and not any(condition_faults(when))  # an invalid condition is reported with the grader
        self._condition = CaseCondition(when) if valid and when is not None else None
        self._metrics: dict[str, None] = {}
        self._judged: str | None = None
        self._counts = [0, 0]

    def add(self, sample: Sample) -> None:
        if self._condition is not None:
            try:
                if not self._condition.holds(sample):
                    return
            except GraderError:
                return  # the grade of this case is that error
        self._counts[not sample.checks] += 1
        if not sample.checks:
            return
        from gradeline.graders.checks import has_judge, metrics_of  # loads all rules, and few datasets have checks

        if len(self._metrics) <= MAX_METRICS:
            self._metrics.update(dict.fromkeys(metrics_of(sample.checks)))
        if self._judged is None and has_judge(sample.checks):
            self._judged = sample.case_key

    @property
    def found(self) -> ChecksInDataset:
        return ChecksInDataset(tuple(self._metrics), self._judged, *self._counts)


def read_checks_of(
    samples: Iterable[Sample], conditions: Sequence[Mapping[str, Any] | str | None]
) -> list[ChecksInDataset]:
    """Read the checks of all cases, for graders with these conditions; memory does not grow with their number."""
    readers = [_CheckReader(when) for when in conditions]
    for sample in samples:
        for reader in readers:
            reader.add(sample)
    return [reader.found for reader in readers]


def metric_columns(spec: GraderSpec, metrics: Iterable[str], specs: Iterable[GraderSpec]) -> Iterator[GraderSpec]:
    """The columns of the metrics of a grader of kind checks, except those that the suite writes out."""
    written = {one.config.get("metric") for one in specs if one.kind == CHECKS_METRIC}
    for metric in metrics:
        if metric not in written:
            yield GraderSpec(
                key=metric, kind=CHECKS_METRIC, config={"metric": metric, "checks": spec.key}, when=spec.when
            )


def metric_names(found: ChecksInDataset, default: object) -> list[str]:
    """The metrics of the cases' checks and of the default checks."""
    from gradeline.graders.checks import metrics_of

    return list(dict.fromkeys((*found.metrics, *metrics_of(default))))


def checks_faults(spec: GraderSpec, found: ChecksInDataset) -> Iterator[Problem]:
    """What prevents a grader of kind checks from running the checks of the cases; paths are options of the grader."""
    from gradeline.graders.checks import has_judge

    default = spec.config.get("default") or []
    judged = "its default checks" if has_judge(default) else None
    if found.judged is not None:
        judged = f"case {quote(found.judged)}"
    if judged is not None and spec.config.get("model") is None:
        yield Problem("model", f"is required: {judged} has a check for a judge; name the model that judges")
    named = metric_names(found, default)
    declared = spec.config.get("metrics")
    for metric in named:
        if isinstance(declared, list) and metric not in declared:
            near = closest_match(metric, declared)
            hint = f"did you mean {near!r}?" if near else "add it to the metrics of the grader"
            yield Problem("metrics", f"has no {quote(metric)}, which a check names; {hint}")
    if len(named) > MAX_METRICS:
        yield Problem("metrics", f"the checks name more than {MAX_METRICS} metrics; use fewer names")


def options_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a grader as written, inside ``config`` or next to it."""
    config = entry.get("config")
    return {**(config if isinstance(config, Mapping) else {}), **{key: entry[key] for key in entry if key != "config"}}


def with_metrics(entry: Mapping[str, Any], found: ChecksInDataset) -> dict[str, Any]:
    """The entry of a grader of kind checks that names its metrics, so that a suite without its cases has them too."""
    options = options_of(entry)
    if options.get("metrics") is not None:
        return dict(entry)
    metrics = metric_names(found, options.get("default"))
    if isinstance(entry.get("config"), Mapping):
        return {**entry, "config": {**entry["config"], "metrics": metrics}}
    return {**entry, "metrics": metrics}
