"""What has to be done for each case: nothing, grading, or asking the agent, each with a reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from gradeline.engine.turns import by_turn_fingerprint, is_by_turn
from gradeline.model import ResponseKey, Sample, StoredKey, sample_digest


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
    asking: Collection[str] = (),
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
            yield planned_for(key, sample, position, graders, found, retry_failed=retry_failed, asking=asking)


def planned_for(
    key: ResponseKey,
    sample: Sample,
    position: int,
    graders: Mapping[str, str],
    found: StoredKey | None,
    *,
    retry_failed: bool = True,
    asking: Collection[str] = (),
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
    again = found.errors.intersection(asking)
    missing = tuple(name for name, print_ in graders.items() if found.fingerprints.get(name) != print_ or name in again)
    if not missing:
        return Planned(key, sample, position, Work.REUSE, "answered and graded", ())
    changed = [name for name in missing if name in found.fingerprints and name not in again]
    reason = f"changed: {', '.join(changed)}" if changed else f"not graded by {', '.join(missing)}"
    return Planned(key, sample, position, Work.REGRADE, reason, missing)
