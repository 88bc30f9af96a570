"""Candidate against baseline, case by case: two stored runs, whether they can be compared, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from gradeline.engine.conclude import run_data
from gradeline.engine.pairing import Overlap, is_same_grader, overlap, paired_cases, scores_of
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage, quote
from gradeline.verdict.comparison import MARGIN, Decision, GraderComparison, adjusted, compare_cases, worst_of

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

    @property
    def decision(self) -> Decision | None:
        """That of the grader with the worst one; None where nothing was compared."""
        return worst_of(grader.decision for grader in self.graders.values()) if self.graders else None

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
            "edited": list(self.edited),
            "graders": {key: grader.to_data() for key, grader in self.graders.items()},
            "exit_code": self.exit_code,
        }


def compare(
    storage: Storage, baseline: Run, candidate: Run, *, margin: float = MARGIN, force: bool = False
) -> Comparison:
    """Compare two runs, paired by case; a case counts with its mean over the repeats.

    ``margin`` is how much worse on average is still not worse. Runs whose graders differ, or that share no case, are
    not compared unless ``force`` says so.
    """
    if not 0.0 <= margin <= 1.0:
        raise ConfigError(Problem("margin", f"expected a number from 0 to 1, got {quote(margin)}"))
    keys = [key for key in baseline.graders if key in candidate.graders]
    before = scores_of(storage.measures(baseline.id, digests=True), keys)
    after = before if baseline.id == candidate.id else scores_of(storage.measures(candidate.id, digests=True), keys)
    cases = overlap(before, after)
    obstacles = (*_graders_that_differ(baseline, candidate, keys), *_no_common_case(cases))
    graders = {}
    if force or not obstacles:
        graders = {key: compare_cases(paired_cases(before, after, cases, key), margin) for key in keys}
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        margin=margin,
        comparable=not obstacles,
        reasons=(*obstacles, *_differences(baseline, candidate), *_other_cases(cases)),
        edited=tuple(cases.edited),
        graders=adjusted(graders),
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
    yield from _targets(baseline.target, candidate.target)
    if baseline.repeats != candidate.repeats:
        yield f"repeats: {baseline.repeats} against {candidate.repeats}"
    for name, run, other in (("baseline", baseline, candidate), ("candidate", candidate, baseline)):
        for key in run.graders:
            if key not in other.graders:
                yield f"grader {quote(key)} is in the {name} alone"


def _targets(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    names = [name for name in {**before, **after} if before.get(name, _ABSENT) != after.get(name, _ABSENT)]
    if names == ["fingerprint"]:
        yield "target: its code or settings differ"
    for name in (name for name in names if name != "fingerprint"):
        first, second = (quote(side[name], 80) if name in side else "nothing" for side in (before, after))
        yield f"target: {name} {first} against {second}"


def _other_cases(cases: Overlap) -> Iterator[str]:
    for name, alone in (("baseline", cases.baseline_alone), ("candidate", cases.candidate_alone)):
        if alone:
            yield f"cases: {_cases(len(alone))} in the {name} alone"
    if cases.edited:
        yield f"cases: {_cases(len(cases.edited))} edited between the runs, left out"


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count:,} cases"
