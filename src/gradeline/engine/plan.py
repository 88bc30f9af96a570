"""What has to be done for each case: nothing, grading, or asking the agent, each with a reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from gradeline.engine.conversations import by_turn_fingerprint, is_by_turn
from gradeline.engine.grade import Graded
from gradeline.errors import Outcome
from gradeline.model import Response, ResponseKey, Sample, StoredKey, sample_digest
from gradeline.model.response import known_cost


class Work(StrEnum):
    """What a case needs."""

    REUSE = "reuse"
    REGRADE = "regrade"
    RERUN = "rerun"


NOT_ANSWERED = "not answered yet"


class Planned(Struct, frozen=True):
    """One (case, repeat) of a run, what it needs, and why."""

    key: ResponseKey
    sample: Sample
    position: int
    work: Work
    reason: str
    graders: tuple[str, ...]
    """The graders whose word is missing."""


def plan(
    run: str,
    samples: Iterable[Sample],
    repeats: int,
    graders: Mapping[str, str],
    stored: Iterable[StoredKey] = (),
    *,
    retry_failed: bool = True,
    model_graders: Collection[str] = (),
) -> Iterator[Planned]:
    """Goes through cases and repeats in order, beside what the store has of them in the same order.

    ``graders`` gives each grader's fingerprint; those ``asking`` a model are asked again where they gave
    no score, as an agent is whose call failed. Nothing is held in memory: a case that the store has at
    another place counts as not there, and is asked again.
    """
    there = iter(stored)
    known = next(there, None)
    everyone = tuple(graders)
    for position, sample in enumerate(samples):
        for repeat in range(repeats):
            key = ResponseKey(run, sample.case_key, repeat)
            found = known if known is not None and known.key[1:] == key[1:] else None
            if found is None:
                yield Planned(key, sample, position, Work.RERUN, NOT_ANSWERED, everyone)
                continue
            known = next(there, None)
            yield planned_for(
                key, sample, position, graders, found, retry_failed=retry_failed, model_graders=model_graders
            )


def planned_for(
    key: ResponseKey,
    sample: Sample,
    position: int,
    graders: Mapping[str, str],
    found: StoredKey | None,
    *,
    retry_failed: bool = True,
    model_graders: Collection[str] = (),
) -> Planned:
    """What one (case, repeat) needs beside what the store has of it."""
    if found is None:
        return Planned(key, sample, position, Work.RERUN, NOT_ANSWERED, tuple(graders))
    if found.digest != sample_digest(sample):
        return Planned(key, sample, position, Work.RERUN, "its case was edited since it was answered", tuple(graders))
    if found.status != "success" and retry_failed:
        return Planned(key, sample, position, Work.RERUN, f"its call ended in {found.status}", tuple(graders))
    if is_by_turn(sample):
        graders = {name: by_turn_fingerprint(print_) for name, print_ in graders.items()}
    again = found.errors.intersection(model_graders)
    missing = tuple(name for name, print_ in graders.items() if found.fingerprints.get(name) != print_ or name in again)
    if not missing:
        return Planned(key, sample, position, Work.REUSE, "answered and graded", ())
    changed = [name for name in missing if name in found.fingerprints and name not in again]
    reason = f"changed: {', '.join(changed)}" if changed else f"not graded by {', '.join(missing)}"
    return Planned(key, sample, position, Work.REGRADE, reason, missing)


class CompletedCase(Struct, frozen=True):
    """A (case, repeat) that is done with."""

    planned: Planned
    response: Response | None
    """None where all was there already."""
    graded: Mapping[str, Graded]


class ProgressCount(NamedTuple):
    """What came of some cases."""

    done: int = 0
    reused: int = 0
    """Of those, the ones that were there already."""
    failed: int = 0
    errors: int = 0
    cost: float | None = None
    """None: nobody said what anything cost."""

    @classmethod
    def of(cls, case: CompletedCase) -> ProgressCount:
        if case.response is None:
            return cls(done=1, reused=1)
        usages = (case.response.usage, *(one.grade.usage for one in case.graded.values()))
        cost = known_cost(None if usage is None else usage.cost for usage in usages)
        outcomes = {one.grade.outcome for one in case.graded.values()}
        error = case.response.error is not None or Outcome.ERROR in outcomes
        failed = not error and Outcome.FAIL in outcomes
        return cls(1, 0, int(failed), int(error), cost)

    def plus(self, other: ProgressCount) -> ProgressCount:
        """Of both."""
        return ProgressCount(
            self.done + other.done,
            self.reused + other.reused,
            self.failed + other.failed,
            self.errors + other.errors,
            known_cost((self.cost, other.cost)),
        )


class LookReport(NamedTuple):
    """A look at a run that may end early, in words."""

    text: str


ProgressCallback: TypeAlias = "Callable[[CompletedCase | ProgressCount | LookReport], None]"
"""Who is told how far a run is: of each case here, of several at once where they are done elsewhere."""
