"""The checks of a suite's cases: which metrics they name, and whether a judge is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gradeline.errors import Problem, closest_match
from gradeline.graders.checks import has_judge, metrics_of
from gradeline.model import Sample, quote
from gradeline.suite.spec import GraderSpec

CHECKS = "checks"
"""The kind of the grader that runs the checks of each case."""
CHECKS_METRIC = "checks_metric"
MAX_METRICS = 100


class ChecksInDataset(NamedTuple):
    """What the checks of all cases have in common."""

    metrics: tuple[str, ...] = ()
    """Their metrics, in the order in which they first occur."""
    judged: str | None = None
    """The first case with a check for a judge."""
    with_checks: int = 0
    without: int = 0
    """The number of cases that have no checks."""


def read_checks_of(samples: Iterable[Sample]) -> ChecksInDataset:
    """Read the checks of all cases; memory does not grow with their number."""
    metrics: dict[str, None] = {}
    judged: str | None = None
    counts = [0, 0]
    for sample in samples:
        counts[not sample.checks] += 1
        if sample.checks and len(metrics) <= MAX_METRICS:
            metrics.update(dict.fromkeys(metrics_of(sample.checks)))
        if judged is None and has_judge(sample.checks):
            judged = sample.case_key
    return ChecksInDataset(tuple(metrics), judged, *counts)


def metric_columns(spec: GraderSpec, metrics: Iterable[str], specs: Iterable[GraderSpec]) -> Iterator[GraderSpec]:
    """The columns of the metrics of a grader of kind checks, except those that the suite writes out."""
    written = {one.config.get("metric") for one in specs if one.kind == CHECKS_METRIC}
    for metric in metrics:
        if metric not in written:
            yield GraderSpec(
                key=metric, kind=CHECKS_METRIC, config={"metric": metric, "checks": spec.key}, when=spec.when
            )


def checks_faults(spec: GraderSpec, found: ChecksInDataset) -> Iterator[Problem]:
    """What prevents a grader of kind checks from running the checks of the cases; paths are options of the grader."""
    default = spec.config.get("default") or []
    judged = "its default checks" if has_judge(default) else None
    if found.judged is not None:
        judged = f"case {quote(found.judged)}"
    if judged is not None and spec.config.get("model") is None:
        yield Problem("model", f"is required: {judged} has a check for a judge; name the model that judges")
    named = dict.fromkeys((*found.metrics, *metrics_of(default)))
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
    metrics = list(dict.fromkeys((*found.metrics, *metrics_of(options.get("default")))))
    if isinstance(entry.get("config"), Mapping):
        return {**entry, "config": {**entry["config"], "metrics": metrics}}
    return {**entry, "metrics": metrics}
