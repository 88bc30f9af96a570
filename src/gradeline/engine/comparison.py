"""Compares two stored runs, candidate against baseline, paired by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Struct

from gradeline.engine.corrected import with_labels
from gradeline.engine.definition import Rules, case_ids_of, command, run_data
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.model import Columns, GradeColumns, ResponseColumns, Run, Storage, quote
from gradeline.stats.paired import ALPHA
from gradeline.stats.sequential import LOOKS, look_sizes
from gradeline.verdict.evidence import NO_NOISE, Look, PairedScores, RepeatScores
from gradeline.verdict.paired_decision import (
    MARGIN,
    ComparisonRule,
    Decision,
    GraderComparison,
    adjust_p_values,
    compare_cases,
    overall_decision,
    vetoes,
)


class RunScores(NamedTuple):
    """The cases of a run in order, each with the digest of its sample and the scores of each grader."""

    cases: list[str]
    digests: list[str]
    graders: dict[str, list[RepeatScores]]
    clusters: Sequence[str | None] = ()
    """The cluster of each case or None; empty if no case has one."""
    noise: Mapping[str, float] = NO_NOISE
    """By grader, the change of a case below which it counts as same; only graders with such a limit."""
    not_applicable: Mapping[str, Collection[str]] = MappingProxyType({})
    """By grader, the cases to which it does not apply; only graders with such cases."""

    @property
    def places(self) -> dict[str, int]:
        """The index of each case."""
        return {case: place for place, case in enumerate(self.cases)}


class Overlap(NamedTuple):
    """The cases that two runs share, as pairs of indexes. ``edited`` cases have the same key but another sample."""

    common: list[tuple[int, int]]
    edited: list[str]
    baseline_only: list[str]
    candidate_only: list[str]
    look: Look | None = None
    """For a run that may have stopped early: only the cases up to its last look."""


def read_scores(storage: Storage, run: Run, keys: Iterable[str]) -> RunScores:
    """Read the rows of a run once."""
    scores, clusters = scores_of(storage.columns(run.id, digests=True), keys), storage.clusters(run.id)
    scores = scores._replace(noise=noise_of(run))
    return scores._replace(clusters=[clusters.get(case) for case in scores.cases]) if clusters else scores


def noise_of(run: Run) -> Mapping[str, float]:
    """The `noise` of each grader that has one."""
    return {key: grader.noise for key, grader in run.graders.items() if grader.noise}


def scores_of(pages: Iterable[Columns], keys: Iterable[str]) -> RunScores:
    """The scores in pages of columns, which come with their digests."""
    read = _Reading(keys)
    for responses, grades in pages:
        read.add(responses, grades)
    return read.in_order()


class _Reading:
    """Collects scores by case key while they are read."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._cases: list[str] = []
        self._digests: list[str] = []
        self._positions: list[int] = []
        self._graders: dict[str, list[RepeatScores]] = {key: [] for key in keys}
        self._not_applicable: dict[str, set[str]] = {}

    def add(self, responses: ResponseColumns, grades: GradeColumns) -> None:
        if responses.cases and not self._add_whole(responses, grades):
            self._add_each(responses, grades)

    def _add_whole(self, responses: ResponseColumns, grades: GradeColumns) -> bool:
        """The usual page: every case once, with a grade of every grader. It is read column by column."""
        cases, statuses = responses.cases, responses.statuses
        graders = tuple(grades.graders[: len(grades.graders) // len(cases)])
        if (
            statuses.count("success") != len(statuses)
            or tuple(grades.graders) != graders * len(cases)
            or any(grades.cases[place :: len(graders)] != cases for place in range(len(graders)))
            or len(set(cases)) != len(cases)
            or (self._cases and self._cases[-1] == cases[0])
            or not set(self._graders).issubset(graders)
        ):
            return False
        columns = {key: grades.scores[graders.index(key) :: len(graders)] for key in self._graders}
        if any(None in scores for scores in columns.values()):
            return False
        self._cases += cases
        self._digests += responses.digests
        self._positions += responses.positions
        for key, scores in columns.items():
            self._graders[key] += zip(scores, strict=True)
        return True

    def _add_each(self, responses: ResponseColumns, grades: GradeColumns) -> None:
        failed = Counter(
            case for case, status in zip(responses.cases, responses.statuses, strict=True) if status != "success"
        )
        scored: dict[str, dict[str, list[float]]] = {key: {} for key in self._graders}
        for case, key, outcome, score in zip(grades.cases, grades.graders, grades.outcomes, grades.scores, strict=True):
            if score is not None and key in scored:
                scored[key].setdefault(case, []).append(score)
            elif outcome == Outcome.NOT_APPLICABLE and key in scored:
                self._not_applicable.setdefault(key, set()).add(case)
        for case, digest, position in zip(responses.cases, responses.digests, responses.positions, strict=True):
            if self._cases and self._cases[-1] == case:
                continue
            self._cases.append(case)
            self._digests.append(digest)
            self._positions.append(position)
            for tries in self._graders.values():
                tries.append(())
        # a page may continue the last case of the one before
        first = len(self._cases) - len(set(responses.cases))
        for place in range(first, len(self._cases)):
            case = self._cases[place]
            for key, tries in self._graders.items():
                if case not in self._not_applicable.get(key, ()):
                    tries[place] += (*repeat(None, failed[case]), *scored[key].get(case, ()))

    def in_order(self) -> RunScores:
        """By the position of the case."""
        positions = self._positions
        if positions == sorted(positions):
            return RunScores(self._cases, self._digests, self._graders, not_applicable=self._not_applicable)
        order = sorted(range(len(positions)), key=positions.__getitem__)
        return RunScores(
            [self._cases[place] for place in order],
            [self._digests[place] for place in order],
            {key: [tries[place] for place in order] for key, tries in self._graders.items()},
            not_applicable=self._not_applicable,
        )


def overlap(baseline: RunScores, candidate: RunScores) -> Overlap:
    """The cases as pairs of indexes, in the order of the candidate."""
    if baseline[:2] == candidate[:2]:  # the usual case, and the fast one
        return Overlap([(place, place) for place in range(len(candidate.cases))], [], [], [])
    places = baseline.places
    common: list[tuple[int, int]] = []
    edited, alone = [], []
    for after, case in enumerate(candidate.cases):
        before = places.pop(case, None)
        if before is None:
            alone.append(case)
        elif baseline.digests[before] == candidate.digests[after]:
            common.append((before, after))
        else:
            edited.append(case)
    return Overlap(common, edited, list(places), alone)


def up_to_the_look(cases: Overlap, baseline: Run, candidate: Run) -> Overlap:
    """The cases that may be compared if one of the runs is decided by its looks: those up to the last look.

    The intervals of all looks hold together, whatever decides which is the last. So they are valid against any other
    run, and for a run as the baseline of others. Of two runs that were both stopped no case may be compared: each
    stopped at its own look, in its own order.
    """
    sides = ((candidate.early, 1), (baseline.early, 0)) if baseline.id != candidate.id else ()
    looks = [(early, side) for early, side in sides if early is not None and early.decides]
    stopped = [(early, side) for early, side in looks if early.stopped]
    if not looks:
        return cases
    if both_stopped(baseline, candidate):
        return Overlap([], cases.edited, [], [])
    early, side = (stopped or looks)[0]
    number, common = early.look, [pair for pair in cases.common if pair[side] < early.place]
    if not number:  # it was interrupted: the look that was due by then
        number = max(1, min(LOOKS, LOOKS * len(cases.common) // early.of))
        common = sorted(cases.common, key=lambda pair: pair[side])[: look_sizes(early.of)[number - 1]]
    cases = cases._replace(common=common, look=Look(number, ALPHA / early.graders))
    if early.stopped:  # later cases of the other run were not called here, and are not missing
        cases = cases._replace(baseline_only=[]) if side else cases._replace(candidate_only=[])
    return cases


def both_stopped(baseline: Run, candidate: Run) -> bool:
    """True if both runs stopped early."""
    return all(run.early is not None and run.early.stopped for run in (baseline, candidate))


def paired_scores(baseline: RunScores, candidate: RunScores, cases: Overlap, key: str) -> PairedScores:
    """One grader's scores in both runs, of each case of the baseline that was not edited.

    A case belongs to the cluster that it has in the candidate, else to that in the baseline. The candidate's suite
    says which changes count as same.
    """
    left_out = {*baseline.not_applicable.get(key, ()), *candidate.not_applicable.get(key, ())}
    applicable = _applicable(candidate, cases, left_out) if left_out else cases
    firsts, seconds = baseline.graders[key], candidate.graders[key]
    places = baseline.places if applicable.baseline_only else {}
    only = [places[case] for case in applicable.baseline_only]
    return PairedScores(
        [candidate.cases[other] for _, other in applicable.common] + applicable.baseline_only,
        [firsts[place] for place, _ in applicable.common] + [firsts[place] for place in only],
        [seconds[other] for _, other in applicable.common] + [()] * len(only),
        applicable.candidate_only,
        applicable.edited,
        _clusters(baseline, candidate, applicable, only),
        applicable.look,
        candidate.noise.get(key, 0.0),
        len(cases.common) - len(applicable.common) + len(cases.baseline_only) - len(only),
    )


def _applicable(candidate: RunScores, cases: Overlap, left_out: Collection[str]) -> Overlap:
    """Without the cases to which the grader does not apply in one of the runs."""
    return cases._replace(
        common=[pair for pair in cases.common if candidate.cases[pair[1]] not in left_out],
        baseline_only=[case for case in cases.baseline_only if case not in left_out],
        candidate_only=[case for case in cases.candidate_only if case not in left_out],
    )


def _clusters(baseline: RunScores, candidate: RunScores, cases: Overlap, only: list[int]) -> Sequence[str | None]:
    if not baseline.clusters and not candidate.clusters:
        return ()
    firsts = baseline.clusters or [None] * len(baseline.cases)
    seconds = candidate.clusters or [None] * len(candidate.cases)
    return [seconds[other] or firsts[place] for place, other in cases.common] + [firsts[place] for place in only]


def paired(storage: Storage, baseline: Run, candidate: Run, keys: Iterable[str]) -> Mapping[str, PairedScores]:
    """For a gate: the scores of each grader in both runs. A grader that is not the same in both runs is left out."""
    alike = [key for key in keys if is_same_grader(baseline, candidate, key)]
    before, after = (read_scores(storage, run, alike) for run in (baseline, candidate))
    cases = up_to_the_look(overlap(before, after), baseline, candidate)
    errors = Rules.of(candidate).agent_errors
    return {
        key: with_labels(storage, baseline, candidate, key, paired_scores(before, after, cases, key), errors)
        for key in alike
    }


def is_same_grader(baseline: Run, candidate: Run, key: str) -> bool:
    """True if both runs have the same grader under this key."""
    first, second = baseline.graders.get(key), candidate.graders.get(key)
    return first is not None and second is not None and first.fingerprint == second.fingerprint


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
        """The decision over all graders; None if nothing was compared."""
        return overall_decision(self.graders, self.primary) if self.graders else None

    @property
    def sentence(self) -> str | None:
        """The decision with its graders, and the results of the others."""
        if self.decision is None:
            return None
        vetoing = [key for key, grader in self.graders.items() if vetoes(grader)]
        deciding = vetoing or self.primary
        labels = _labels_of([self.graders[key] for key in deciding if key in self.graders])
        guards: dict[str, list[str]] = {}
        for key, grader in self.graders.items():
            if key not in deciding:
                guards.setdefault(grader.summary, []).append(key)
        others = [f"Guard{'s' * (len(keys) > 1)} {', '.join(keys)}: {summary}" for summary, keys in guards.items()]
        how = f"; decided on corrected scores, {labels}" if labels else ""
        return ". ".join([f"{self.decision.replace('_', ' ')} ({', '.join(deciding)}{how})", *others])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the cases and graders of either run."""
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


def _labels_of(graders: Sequence[GraderComparison]) -> str:
    """The number of labelled cases that graders are decided by, as text; empty if none is."""
    counts = [grader.by_labels.labels for grader in graders if grader.by_labels is not None]
    if not counts:
        return ""
    return f"{counts[0]:,} labels" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,} labels"


def run_warnings(runs: Mapping[str, Run]) -> tuple[str, ...]:
    """The warnings of compared runs, each once with the runs it is about."""
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
        rule = ComparisonRule(margin, rules.coverage_floor, rules.agent_errors, rules.corrected)
        for key in keys:
            scores = paired_scores(before, after, cases, key)
            labelled = with_labels(storage, baseline, candidate, key, scores, rules.agent_errors)
            graders[key] = compare_cases(labelled, _rule_of(candidate, key, rule))
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        margin=margin,
        comparable=not obstacles,
        reasons=(
            *obstacles,
            *_other_names(baseline, candidate, cases),
            *_looks(baseline, candidate),
            *_differences(baseline, candidate),
            *_other_cases(cases),
        ),
        edited=tuple(cases.edited),
        graders=adjust_p_values(graders),
        primary=rules.primary_of(candidate, keys),
    )


def _rule_of(run: Run, key: str, rule: ComparisonRule) -> ComparisonRule:
    """The rule for one grader: a suite that asks for corrected values means those of judges."""
    return rule if not rule.corrected or run.graders[key].judges else rule._replace(corrected=None)


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


def _other_names(baseline: Run, candidate: Run, cases: Overlap) -> Iterator[str]:
    """Runs of one dataset may share no case because they name its rows in different ways."""
    first, second = case_ids_of(baseline), case_ids_of(candidate)
    if first is None or second is None or first == second or not (cases.baseline_only and cases.candidate_only):
        return
    numbered, other = ("baseline", "candidate") if first == "number" else ("candidate", "baseline")
    yield (
        f"cases: those without an id are named by the number of their row in the {numbered}, and by a digest of their"
        f" content in the {other}; to compare them, run the suite with columns: {{id: $number}}, or give them ids"
    )


def _both_stopped(baseline: Run, candidate: Run) -> Iterator[str]:
    if both_stopped(baseline, candidate):
        finish = command("resume", candidate.id, None, "--all")
        yield f"both runs ended early, each at its own look; run all cases of one with: {finish}"


def _looks(baseline: Run, candidate: Run) -> Iterator[str]:
    for name, run in (("baseline", baseline), ("candidate", candidate)):
        if run.early is not None and run.early.stopped:
            yield (
                f"the {name} {quote(run.name)} ended early, after {run.early.n:,} of {run.early.of:,} cases: these are"
                " compared, by the interval of its last look"
            )


def _differences(baseline: Run, candidate: Run) -> Iterator[str]:
    """Other differences, which may be what the comparison is about."""
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
    """The differences between the targets of two runs."""
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
