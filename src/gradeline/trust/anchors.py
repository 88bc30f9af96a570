"""Freezes answers of a run as anchors, and judges them again on request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import NamedTuple
from uuid import uuid4

import msgspec

from gradeline.engine.anchor_records import anchors_in_use, checks_of, read_anchor_set, save_check
from gradeline.engine.anchors import (
    AnchorJudge,
    can_be_anchored,
    case_scores,
    concluded,
    found_judge,
    is_frozen_grader,
    limited_reference,
    new_check,
    next_anchors,
)
from gradeline.engine.definition import RunDefinition, now
from gradeline.engine.grade import GraderUse
from gradeline.engine.judge_trust import judge_states
from gradeline.engine.lifecycle import NO_OBSERVER, RunObserver
from gradeline.engine.orchestrate import suite_of_run
from gradeline.engine.plan import ProgressCallback, ProgressCount
from gradeline.engine.prepare import PreparedRun, prepare
from gradeline.engine.variants import suite_of_variant
from gradeline.errors import ConfigError, GradelineError, Problem
from gradeline.model import AsyncGrader, Run, Storage, quote
from gradeline.model.anchors import (
    ANCHOR_SCORE,
    ANCHORS,
    ANCHORS_BEGUN,
    Anchor,
    AnchorCheck,
    AnchorScore,
    AnchorSet,
    FiledScore,
)
from gradeline.model.record import ResponseKey, digest_of, to_json
from gradeline.model.response import known_cost
from gradeline.store.trust_records import TrustRecord, put_record, records

ANCHORS_OF_A_SET = 60
REPEATS = 3
MIN_ANCHORS = 10
"""Minimum number of results with a score."""
MAX_REPEATS = 10
_BANDS = 5
_LEAST_SHARE = 10
"""Each band of scores has a tenth of the anchors, if it has as many results."""


class ScoredResult(NamedTuple):
    """A result of a run with the judge's score."""

    case: str
    repeat: int
    score: float


class ChosenResult(NamedTuple):
    """A result to freeze, with its design weight."""

    result: ScoredResult
    weight: float


def choose_results(results: Sequence[ScoredResult], number: int, seed: int) -> list[ChosenResult]:
    """Results to freeze, at most one of each case, from each fifth of the score range.

    A fifth has anchors in proportion to its cases, but at least a tenth of all, so that changes of rare scores show.
    """
    order = sorted(results)
    Random(seed).shuffle(order)  # noqa: S311 - a reproducible choice
    one_per_case = list({result.case: result for result in order}.values())
    bands: dict[int, list[ScoredResult]] = {}
    for result in one_per_case:
        bands.setdefault(min(_BANDS - 1, int(result.score * _BANDS)), []).append(result)
    sizes = _sizes({band: len(found) for band, found in bands.items()}, min(number, len(one_per_case)))
    chosen: list[ChosenResult] = []
    for band, size in sorted(sizes.items()):
        weight = (len(bands[band]) / len(one_per_case)) / (size / sum(sizes.values()))
        chosen += [ChosenResult(result, weight) for result in bands[band][:size]]
    return chosen


def _sizes(available: Mapping[int, int], number: int) -> dict[int, int]:
    """The number of anchors of each band."""
    total = sum(available.values())
    least = max(1, number // _LEAST_SHARE)
    sizes = {band: min(count, least) for band, count in available.items()}
    while sum(sizes.values()) < number:
        # the band that is furthest below its share
        band = max(
            (band for band, count in available.items() if sizes[band] < count),
            key=lambda band: available[band] / total * number - sizes[band],
        )
        sizes[band] += 1
    return sizes


@asynccontextmanager
async def _prepared(storage: Storage, run: Run) -> AsyncIterator[PreparedRun]:
    """The run's suite with its graders, as it is now; the agent is not called."""
    definition = RunDefinition.of(run)
    suite = suite_of_variant(suite_of_run(definition), definition.options, required=False)
    preparing = prepare(
        suite,
        definition.options,
        storage,
        calls_agent=False,
        baselines=definition.baselines,
        calibrations=definition.calibrations,
    )
    async with preparing as prepared:
        await prepared.start()
        yield prepared


def judged_grader(run: Run, grader: str | None, suite: str) -> str:
    """The key of the grader whose judge is meant; `ConfigError` if that is not clear."""
    judged = [key for key, one in run.graders.items() if one.judges]
    if grader is not None and grader in judged:
        return grader
    if not judged:
        raise ConfigError(Problem("grader", f"the suite {quote(suite)} has no grader with a judge"))
    named = ", ".join(map(quote, judged))
    if grader is not None:
        raise ConfigError(Problem("--grader", f"no grader {quote(grader)} with a judge; there is {named}"))
    if len(judged) > 1:
        raise ConfigError(Problem("--grader", f"the suite has several graders with a judge: name one of {named}"))
    return judged[0]


def _use_of(prepared: PreparedRun, key: str) -> GraderUse:
    use = next((one for one in prepared.graders if one.key == key), None)
    if use is None:
        raise ConfigError(Problem("--grader", f"the suite no longer has the grader {quote(key)}"))
    if not can_be_anchored(use):
        raise ConfigError(Problem(key, "is computed from other graders; freeze answers for those"))
    return use


async def freeze(
    storage: Storage,
    run: Run,
    grader: str | None = None,
    *,
    number: int = ANCHORS_OF_A_SET,
    repeats: int = REPEATS,
    seed: int = 0,
    observer: RunObserver = NO_OBSERVER,
) -> AnchorSet:
    """Freeze results of a completed run, each with several new scores by its judge.

    Every score is stored when it arrives: after an interruption the same call continues. Replaces the grader's anchors.
    """
    key = judged_grader(run, grader, run.suite)
    _check_freezable(storage, run, key, number, repeats)
    async with _prepared(storage, run) as prepared:
        use = _use_of(prepared, key)
        if use.judge_fingerprint != run.graders[key].calibrated_as:
            reason = f"{quote(key)} changed since the run: run the suite again and freeze answers of that run"
            raise ConfigError(Problem(run.id, reason))
        begun = _begun(storage, run, key, number, repeats, seed) or _begin(
            storage, run, use, number=number, repeats=repeats, seed=seed
        )
        judge = AnchorJudge(use, prepared.pool, prepared.call_limits().concurrency, stop=observer.stop)
        with _progress(observer, prepared, run, begun.anchors, repeats) as advance:
            await _score_all(storage, begun, judge, advance)
    return _finish(storage, run, begun)


@contextmanager
def _progress(
    observer: RunObserver, prepared: PreparedRun, run: Run, anchors: Sequence[Anchor], repeats: int = 1
) -> Iterator[ProgressCallback]:
    """The display of a run, for which the anchors are the cases; it also handles interrupts."""
    cases = prepared._replace(options=prepared.options._replace(samples=tuple(one.name for one in anchors)))
    with observer.progress(cases, msgspec.structs.replace(run, repeats=repeats)) as advance:
        yield advance


def _check_freezable(storage: Storage, run: Run, key: str, number: int, repeats: int) -> None:
    problems = []
    if run.status != "completed":
        problems.append(Problem(run.id, f"is {run.status}; freeze answers of a completed run"))
    if number < MIN_ANCHORS:
        problems.append(Problem("--n", f"expected {MIN_ANCHORS} or more, got {number}"))
    if not 2 <= repeats <= MAX_REPEATS:
        problems.append(Problem("--repeats", f"expected 2 to {MAX_REPEATS}, got {repeats}"))
    trust = judge_states(storage, run)[key]
    if trust.state == "drifted" and trust.calibration is not None:
        problems.append(Problem(key, f"its judge has drifted ({trust.reason}); freeze answers after that"))
    if problems:
        raise ConfigError(problems, "cannot freeze anchors")


def _begun(storage: Storage, run: Run, key: str, number: int, repeats: int, seed: int) -> AnchorSet | None:
    """The set that an interrupted call of the same kind has begun."""
    for row in reversed(_all(storage, ANCHORS_BEGUN, run.suite, key)):
        found = read_anchor_set(row)
        if found is None or (found.run, found.repeats, found.seed) != (run.id, repeats, seed):
            continue
        same = found.requested == number and found.judge_fingerprint == run.graders[key].calibrated_as
        if same and found.id not in {one.id for one in _frozen_sets(storage, run.suite, key)}:
            return found
    return None


def _frozen_sets(storage: Storage, suite: str, grader: str) -> list[AnchorSet]:
    sets = (read_anchor_set(row) for row in _all(storage, ANCHORS, suite, grader))
    return [one for one in sets if one is not None]


def _all(storage: Storage, kind: str, suite: str | None, grader: str | None) -> list[TrustRecord]:
    found: list[TrustRecord] = []
    after = 0
    while page := records(storage, kind, suite=suite, grader=grader, after=after):
        after = page[-1].n
        found += page
    return found


def _begin(storage: Storage, run: Run, use: GraderUse, *, number: int, repeats: int, seed: int) -> AnchorSet:
    """Choose the results and store copies of them."""
    key = use.key
    results = [
        ScoredResult(one.case, one.repeat, grade.score)
        for one in storage.measures(run.id)
        if (grade := one.grades.get(key)) is not None and grade.score is not None
    ]
    if len({one.case for one in results}) < MIN_ANCHORS:
        cases = len({one.case for one in results})
        reason = f"{cases} of its cases have a score by {quote(key)}; at least {MIN_ANCHORS} are needed"
        raise ConfigError(Problem(run.id, reason))
    anchors = []
    for position, (result, weight) in enumerate(choose_results(results, number, seed)):
        record = storage.get_record(ResponseKey(run.id, result.case, result.repeat))
        if record is None:
            raise ConfigError(Problem(run.id, f"the result of case {quote(result.case)} was removed meanwhile"))
        anchors.append(
            Anchor(
                name=f"{position + 1}",
                case=record.case,
                repeat=record.repeat,
                sample=record.sample,
                response=record.response,
                response_digest=digest_of(to_json(record.response)),
                baseline=None if use.baseline is None else use.baseline(record.sample, record.repeat),
                run_score=result.score,
                weight=weight,
            )
        )
    begun = AnchorSet(
        id=uuid4().hex[:12],
        suite=run.suite,
        grader=key,
        run=run.id,
        variant=run.variant,
        judge=run.graders[key].judges,
        judge_fingerprint=use.judge_fingerprint,
        fingerprint=use.fingerprint,
        at=now(),
        seed=seed,
        requested=number,
        repeats=repeats,
        anchors=tuple(anchors),
    )
    _put_set(storage, ANCHORS_BEGUN, begun)
    return begun


def _put_set(storage: Storage, kind: str, anchors: AnchorSet) -> None:
    body = msgspec.json.encode(anchors).decode()
    put_record(storage, TrustRecord(kind, anchors.suite, anchors.grader, anchors.judge_fingerprint, anchors.at, body))


def _filed_scores(storage: Storage, begun: AnchorSet) -> dict[tuple[str, int], AnchorScore]:
    """The scores of a set that are stored, by anchor and number."""
    found: dict[tuple[str, int], AnchorScore] = {}
    for row in _all(storage, ANCHOR_SCORE, begun.suite, begun.grader):
        filed = msgspec.json.decode(row.body, type=FiledScore)
        if filed.set == begun.id:
            found[filed.score.name, filed.number] = filed.score
    return found


async def _score_all(storage: Storage, begun: AnchorSet, judge: AnchorJudge, advance: ProgressCallback) -> None:
    """Judge the answers until each has all its scores; a failed call is repeated by the next freeze."""
    known = {place for place, score in _filed_scores(storage, begun).items() if score.score is not None}
    wanted = [
        (anchor, number)
        for number in range(begun.repeats)
        for anchor in begun.anchors
        if (anchor.name, number) not in known
    ]
    advance(ProgressCount(len(known), len(known)))

    def done(position: int, score: AnchorScore) -> None:
        filed = FiledScore(set=begun.id, number=wanted[position][1], score=score)
        body = msgspec.json.encode(filed).decode()
        record = TrustRecord(ANCHOR_SCORE, begun.suite, begun.grader, begun.judge_fingerprint, now(), body)
        put_record(storage, record)
        advance(_counted(score))

    judged = await judge.judge([anchor for anchor, _ in wanted], done)
    if judged.refusal is not None:
        raise judged.refusal


def _counted(score: AnchorScore) -> ProgressCount:
    return ProgressCount(1, errors=int(score.score is None), cost=score.cost)


def _finish(storage: Storage, run: Run, begun: AnchorSet) -> AnchorSet:
    """Store the set with its scores; answers without at least two are left out."""
    filed = _filed_scores(storage, begun)
    if len(filed) < len(begun.anchors) * begun.repeats:
        reason = (
            f"{len(filed):,} of {len(begun.anchors) * begun.repeats:,} scores are stored; the same command continues"
        )
        raise FreezeInterruptedError(reason)
    scores = {
        anchor.name: tuple(
            score for number in range(begun.repeats) if (score := filed[anchor.name, number].score) is not None
        )
        for anchor in begun.anchors
    }
    anchors = tuple(
        msgspec.structs.replace(anchor, scores=scores[anchor.name])
        for anchor in begun.anchors
        if len(scores[anchor.name]) >= 2
    )
    if len(anchors) < MIN_ANCHORS:
        error = next((one.error for one in filed.values() if one.error), None) or "no reason is known"
        reason = f"the judge gave {len(anchors)} of {len(begun.anchors)} answers a score; first error: {error}"
        raise ConfigError(Problem(begun.grader, f"{reason}. Freeze again when that is fixed"))
    reference, _ = case_scores(storage, run, begun.grader)
    costs = [one.cost for one in filed.values()]
    frozen = msgspec.structs.replace(
        begun,
        anchors=anchors,
        at=now(),
        reference=limited_reference(reference, begun.seed),
        calls=len(filed),
        cost=None if None in costs else known_cost(costs),
    )
    _put_set(storage, ANCHORS, frozen)
    return frozen


class FreezeInterruptedError(GradelineError):
    """Freezing was stopped before all scores were made; those that were are stored."""


class CheckOutcome(NamedTuple):
    """A check, and whether it was stored: not once the judge was found to have changed, which a check cannot undo."""

    anchors: AnchorSet
    check: AnchorCheck
    stored: bool
    changed_since: str | None = None
    """What of the grader changed since the anchors were frozen; such a check is not stored."""


async def check(
    storage: Storage,
    suite: str | None = None,
    grader: str | None = None,
    *,
    number: int | None = None,
    observer: RunObserver = NO_OBSERVER,
) -> list[CheckOutcome]:
    """Judge anchors again: of all sets in use, or of one suite or grader. ``number`` limits those of each set."""
    outcomes = []
    for anchors in sets_in_use(storage, suite, grader, required=True):
        outcomes.append(await _check(storage, anchors, number, observer))
        if observer.stop is not None and observer.stop.reason is not None:
            break
    return outcomes


async def _check(storage: Storage, anchors: AnchorSet, number: int | None, observer: RunObserver) -> CheckOutcome:
    checks = checks_of(storage, anchors)
    chosen = next_anchors(anchors, checks, len(anchors.anchors) if number is None else number)
    run = latest_run(storage, anchors)
    async with _prepared(storage, run) as prepared:
        use = _use_of(prepared, anchors.grader)
        changed = None if is_frozen_grader(anchors, use) else _change(anchors, use)
        judge = AnchorJudge(use, prepared.pool, prepared.call_limits().concurrency, stop=observer.stop)
        with _progress(observer, prepared, run, chosen) as advance:
            judged = await judge.judge(chosen, lambda _, score: advance(_counted(score)))
    if judged.refusal is not None:
        raise judged.refusal
    made_check = concluded(anchors, checks, new_check(anchors, judged.scores, use.judge_fingerprint))
    stored = changed is None and bool(judged.scores) and not found_judge(checks)
    if stored:
        save_check(storage, anchors, made_check)
    return CheckOutcome(anchors, made_check, stored, changed)


def _change(anchors: AnchorSet, use: GraderUse) -> str:
    judges = use.grader.judges if isinstance(use.grader, AsyncGrader) else ()
    if judges != anchors.judge:
        return f"the model changed from {', '.join(anchors.judge)} to {', '.join(judges)}"
    if use.judge_fingerprint == anchors.judge_fingerprint:
        return "the judge learned from other labels"
    return "the prompt or an option of the judge changed"


def latest_run(storage: Storage, anchors: AnchorSet) -> Run:
    """The newest run whose suite has the grader: it says how the judge is configured now."""
    before: str | None = None
    while page := storage.list_runs(before=before):
        for run in page:
            if run.suite == anchors.suite and anchors.grader in run.graders:
                return run
        before = page[-1].id
    raise ConfigError(
        Problem(anchors.suite, "all its runs were deleted, so its judge is not known; run the suite once")
    )


def sets_in_use(
    storage: Storage, suite: str | None = None, grader: str | None = None, *, required: bool = False
) -> list[AnchorSet]:
    """The anchors in use, of all suites and graders or of those named."""
    named = {(row.suite, row.grader): None for row in _all(storage, ANCHORS, suite, grader)}
    found = [one for names in named if (one := anchors_in_use(storage, *names)) is not None]
    if required and not found:
        which = "".join(f" {kind} {quote(name)}" for kind, name in (("suite", suite), ("grader", grader)) if name)
        remedy = "freeze answers of a run with: gradeline anchors freeze RUN"
        raise ConfigError(Problem("anchors", f"there are none{f' of{which}' if which else ''}; {remedy}"))
    return found


def remove(storage: Storage, anchors: AnchorSet) -> None:
    """End the use of a set; its records remain."""
    _put_set(storage, ANCHORS, msgspec.structs.replace(anchors, anchors=(), reference={}, at=now()))
