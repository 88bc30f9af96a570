"""Candidate against baseline, case by case: two stored runs, whether they can be compared, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from gradeline.engine.advice import command
from gradeline.engine.conclude import Rules, run_data
from gradeline.engine.pairing import (
    Overlap,
    both_stopped,
    is_same_grader,
    overlap,
    paired_scores,
    read_scores,
    up_to_the_look,
)
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage, quote
from gradeline.verdict.comparison import (
    MARGIN,
    ComparisonRule,
    Decision,
    GraderComparison,
    adjusted,
    compare_cases,
    overall_decision,
    vetoes,
)

NOT_COMPARABLE = 2
_EXIT_CODES: dict[Decision, int] = {"better": 0, "not_worse": 0, "worse": 1, "undecided": 3}
_ABSENT = object()


class Comparison(Struct, frozen=True, kw_only=True):
    """Two runs compared.

    ``reasons`` says why they are not comparable, if they are not, and then what else differs between them. Runs that
    are not comparable have no ``graders`` here unless that was forced. ``edited`` cases are not the same in both
    runs: they are left out.
    """

    baseline: Run
    candidate: Run
    margin: float
    comparable: bool
    reasons: tuple[str, ...]
    edited: tuple[str, ...]
    graders: dict[str, GraderComparison]
    primary: tuple[str, ...] = ()
    """The graders that decide; any other can only veto, by a significant loss."""

    @property
    def decision(self) -> Decision | None:
        """The decision over all graders; None where nothing was compared."""
        return overall_decision(self.graders, self.primary) if self.graders else None

    @property
    def sentence(self) -> str | None:
        """The decision with the graders behind it, and what is known of the others."""
        if self.decision is None:
            return None
        vetoing = [key for key, grader in self.graders.items() if vetoes(grader)]
        deciding = vetoing or self.primary
        guards: dict[str, list[str]] = {}
        for key, grader in self.graders.items():
            if key not in deciding:
                guards.setdefault(grader.summary, []).append(key)
        others = [f"Guard{'s' * (len(keys) > 1)} {', '.join(keys)}: {summary}" for summary, keys in guards.items()]
        return ". ".join([f"{self.decision.replace('_', ' ')} ({', '.join(deciding)})", *others])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of the cases and graders of either run."""
        return run_warnings({"baseline": self.baseline, "candidate": self.candidate})

    @property
    def exit_code(self) -> int:
        """0 better or not worse, 1 worse, 3 undecided, 2 not comparable."""
        return NOT_COMPARABLE if self.decision is None else _EXIT_CODES[self.decision]

    def to_data(self) -> dict[str, Any]:
        """The comparison as ``--json`` prints it."""
        return {
            "baseline": run_data(self.baseline),
            "candidate": run_data(self.candidate),
            "comparable": self.comparable,
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "edited": list(self.edited),
            "graders": {key: grader.to_data() for key, grader in self.graders.items()},
            "primary": list(self.primary),
            "decision": self.decision,
            "sentence": self.sentence,
            "exit_code": self.exit_code,
        }


def run_warnings(runs: Mapping[str, Run]) -> tuple[str, ...]:
    """The warnings of runs that are compared, each once and with those it is about; by name the runs."""
    found: dict[str, list[str]] = {}
    for name, run in runs.items():
        for warning in run.warnings:
            found.setdefault(warning, []).append(name)
    return tuple(
        f"{'all runs' if len(names) == len(runs) > 2 else ' and '.join(names)}: {warning}"
        for warning, names in found.items()
    )


def compare(
    storage: Storage, baseline: Run, candidate: Run, *, margin: float = MARGIN, force: bool = False
) -> Comparison:
    """Compare two runs, paired by case; a case counts with its mean over the repeats.

    ``margin`` is the mean loss that still counts as not worse. The coverage floor, what a failed agent call counts as,
    the noise of each grader and the primary graders are those of the candidate's suite. Runs whose graders differ, or
    that share no case, are not compared without ``force``.
    """
    if not 0.0 <= margin <= 1.0:
        raise ConfigError(Problem("margin", f"expected a number from 0 to 1, got {quote(margin)}"))
    keys = [key for key in baseline.graders if key in candidate.graders]
    rules = Rules.of(candidate)
    before = read_scores(storage, baseline, keys)
    after = before if baseline.id == candidate.id else read_scores(storage, candidate, keys)
    shared = overlap(before, after)
    cases = up_to_the_look(shared, baseline, candidate)
    obstacles = (
        *_graders_that_differ(baseline, candidate, keys),
        *_no_common_case(shared),
        *_both_stopped(baseline, candidate),
    )
    graders = {}
    if force or not obstacles:
        rule = ComparisonRule(margin, rules.coverage_floor, rules.agent_errors)
        graders = {key: compare_cases(paired_scores(before, after, cases, key), rule) for key in keys}
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        margin=margin,
        comparable=not obstacles,
        reasons=(
            *obstacles,
            *_looks(baseline, candidate),
            *_differences(baseline, candidate),
            *_other_cases(cases),
        ),
        edited=tuple(cases.edited),
        graders=adjusted(graders),
        primary=rules.primary_of(candidate, keys),
    )


def _graders_that_differ(baseline: Run, candidate: Run, keys: list[str]) -> Iterator[str]:
    if not keys:
        have = " and ".join(", ".join(map(quote, run.graders)) or "none" for run in (baseline, candidate))
        yield f"the runs have no grader in common: {have}"
    for key in keys:
        if not is_same_grader(baseline, candidate, key):
            first, second = baseline.graders[key], candidate.graders[key]
            yield (
                f"grader {quote(key)} is not the same in both runs: {first.kind} {first.fingerprint} against "
                f"{second.kind} {second.fingerprint}; regrade one run with the graders of the other, or force it"
            )


def _no_common_case(cases: Overlap) -> Iterator[str]:
    if not cases.common:
        edited = f": {_cases(len(cases.edited))} of the same name, all edited" if cases.edited else ""
        yield f"the runs have no case in common{edited}"


def _both_stopped(baseline: Run, candidate: Run) -> Iterator[str]:
    if both_stopped(baseline, candidate):
        finish = command("resume", candidate.id, None, "--all")
        yield f"both runs ended early, each at a look of its own; ask all cases of one with: {finish}"


def _looks(baseline: Run, candidate: Run) -> Iterator[str]:
    for name, run in (("baseline", baseline), ("candidate", candidate)):
        if run.early is not None and run.early.stopped:
            yield (
                f"the {name} {quote(run.name)} ended early, after {run.early.n:,} of {run.early.of:,} cases: these are"
                " compared, by the interval of its last look"
            )


def _differences(baseline: Run, candidate: Run) -> Iterator[str]:
    """What else is not the same, which a comparison may well be about."""
    if baseline.id == candidate.id:
        yield f"both are the same run, {baseline.id}"
    for name, run in (("baseline", baseline), ("candidate", candidate)):
        if run.status != "completed":
            yield f"the {name} {quote(run.name)} is not complete ({run.status}): its other cases count as missing"
    if baseline.suite != candidate.suite:
        yield f"suite: {quote(baseline.suite)} against {quote(candidate.suite)}"
    elif baseline.suite_digest != candidate.suite_digest:
        yield f"suite: {quote(baseline.suite)} was edited between the runs"
    yield from target_differences(baseline.target, candidate.target)
    if baseline.repeats != candidate.repeats:
        yield f"repeats: {baseline.repeats} against {candidate.repeats}"
    for name, run, other in (("baseline", baseline, candidate), ("candidate", candidate, baseline)):
        for key in run.graders:
            if key not in other.graders:
                yield f"grader {quote(key)} is in the {name} alone"
    for key, first in baseline.graders.items():
        second = candidate.graders.get(key, first)
        if first.noise != second.noise:
            yield (
                f"grader {quote(key)}: noise {first.noise:g} against {second.noise:g}; that of the candidate is used"
            )


def target_differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What differs between the agents of two runs."""
    names = [name for name in {**before, **after} if before.get(name, _ABSENT) != after.get(name, _ABSENT)]
    if names == ["fingerprint"]:
        yield "target: its code or settings differ"
    for name in (name for name in names if name != "fingerprint"):
        first, second = (quote(side[name], 80) if name in side else "nothing" for side in (before, after))
        yield f"target: {name} {first} against {second}"


def _other_cases(cases: Overlap) -> Iterator[str]:
    for name, alone in (("baseline", cases.baseline_only), ("candidate", cases.candidate_only)):
        if alone:
            yield f"cases: {_cases(len(alone))} in the {name} alone"
    if cases.edited:
        yield f"cases: {_cases(len(cases.edited))} edited between the runs, left out"


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count:,} cases"
