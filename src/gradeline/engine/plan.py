"""What each case of a run needs: nothing, grading, or a call of the agent; and the turns of its conversation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gradeline.errors import MissingDataError, Outcome
from gradeline.model import Grade, Response, ResponseKey, Sample, StoredKey, fingerprint, sample_digest
from gradeline.model.grade import PASS_SCORE
from gradeline.model.response import known_cost, total_usage
from gradeline.model.run import TurnRule
from gradeline.model.trajectory import last_answer


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
    """The graders whose grade is missing."""


def plan(
    run: str,
    samples: Iterable[Sample],
    repeats: int,
    graders: Mapping[str, str],
    stored: Iterable[StoredKey] = (),
    *,
    retry_failed: bool = True,
    model_graders: Collection[str] = (),
    turn_graders: Mapping[str, str] | None = None,
) -> Iterator[Planned]:
    """Merge the cases and repeats with what the store has of them; both are in the order of the dataset.

    ``graders`` has the fingerprint of each grader, ``turn_graders`` that for conversations if it is not derived from
    the other; ``model_graders`` are called again if they gave no score, as an agent is whose call failed. Nothing is
    held in memory: a case that the store has at another place is run again.
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
                key,
                sample,
                position,
                graders,
                found,
                retry_failed=retry_failed,
                model_graders=model_graders,
                turn_graders=turn_graders,
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
    turn_graders: Mapping[str, str] | None = None,
) -> Planned:
    """What one (case, repeat) needs, given what is stored of it."""
    if found is None:
        return Planned(key, sample, position, Work.RERUN, NOT_ANSWERED, tuple(graders))
    if found.digest != sample_digest(sample):
        return Planned(key, sample, position, Work.RERUN, "its case was edited since it was answered", tuple(graders))
    if found.status != "success" and retry_failed:
        return Planned(key, sample, position, Work.RERUN, f"its call ended in {found.status}", tuple(graders))
    if is_by_turn(sample):
        graders = turn_graders or {name: by_turn_fingerprint(print_) for name, print_ in graders.items()}
    again = found.errors.intersection(model_graders)
    missing = tuple(name for name, print_ in graders.items() if found.fingerprints.get(name) != print_ or name in again)
    if not missing:
        return Planned(key, sample, position, Work.REUSE, "answered and graded", ())
    changed = [name for name in missing if name in found.fingerprints and name not in again]
    reason = f"changed: {', '.join(changed)}" if changed else f"not graded by {', '.join(missing)}"
    return Planned(key, sample, position, Work.REGRADE, reason, missing)


class Graded(NamedTuple):
    """A grade with the submission it is of."""

    submission: str | None
    """None if it could not be extracted."""
    grade: Grade


class CompletedCase(Struct, frozen=True):
    """A finished (case, repeat)."""

    planned: Planned
    response: Response | None
    """None if everything was stored already."""
    graded: Mapping[str, Graded]


class ProgressCount(NamedTuple):
    """Number of finished cases, by their results."""

    done: int = 0
    reused: int = 0
    """Of these, the ones that were stored already."""
    failed: int = 0
    errors: int = 0
    cost: float | None = None
    """None: no cost is known."""

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
        """The sum of both."""
        return ProgressCount(
            self.done + other.done,
            self.reused + other.reused,
            self.failed + other.failed,
            self.errors + other.errors,
            known_cost((self.cost, other.cost)),
        )


class LookReport(NamedTuple):
    """An interim look at a run that may stop early, as text."""

    text: str


ProgressCallback: TypeAlias = "Callable[[CompletedCase | ProgressCount | LookReport], None]"
"""Called with each finished case of this process, and with counts of cases that other processes finished."""


_JOINING_RULES = 3
"""Version of the rules that join the grades of turns."""

_UNKNOWN_TURNS = (
    "the response has {found} for a conversation of {count} turns, so the answer to each turn is unknown; "
    "use a target that is called once per turn (http, python, a model), or one that reports all messages "
    "(command: output: json with trajectory mapped under response:, the user's messages included; "
    "replay file: a trajectory with one turn per input); or write one ground_truth for the whole conversation"
)


class Turn(NamedTuple):
    """One input of a conversation with its expected value, and the response to it."""

    sample: Sample
    response: Response


def is_by_turn(sample: Sample) -> bool:
    """True if each turn has its own expected value."""
    return isinstance(sample.input, list) and isinstance(sample.ground_truth, list)


def turns_of(sample: Sample, response: Response) -> list[Turn]:
    """The turns of a conversation; `MissingDataError` if it is unknown which turn a response belongs to."""
    pairs = list(zip(sample.input, sample.ground_truth or (), strict=True))
    if len(pairs) == 1:
        return [Turn(_asked(sample, *pairs[0]), response)]
    steps = response.steps
    if len(steps.turns) != len(pairs) and (response.text or any(steps.turns)):
        found = "one text" if response.trajectory is None else _counted(len(steps.turns))
        raise MissingDataError(_UNKNOWN_TURNS.format(found=found, count=len(pairs)))
    turns = []
    for number, pair in enumerate(pairs):
        part = replace(steps, turns=steps.turns[number : number + 1])
        answer = replace(response, text=last_answer(part.messages()), trajectory=part)
        turns.append(Turn(_asked(sample, *pair), answer))
    return turns


def _asked(sample: Sample, text: str, expected: str) -> Sample:
    return replace(sample, input=text, ground_truth=expected)


def _counted(turns: int) -> str:
    return f"a trajectory of {turns} turn{'' if turns == 1 else 's'}"


def joined_submission(submissions: Sequence[str | None]) -> str | None:
    """The submissions of all turns as one string; None if one could not be extracted."""
    if any(text is None for text in submissions):
        return None
    return " | ".join(f"[Turn {number}] {text}" for number, text in enumerate(submissions))


@cache
def by_turn_fingerprint(column: str) -> str:
    """The fingerprint of a grade that joins several turns; it covers the rules of joining."""
    return fingerprint("by turn", _JOINING_RULES, column)


def joined_grade(grades: Sequence[Grade], rule: TurnRule = "all", pass_threshold: float | None = None) -> Grade:
    """One grade for the turns of a conversation. This is the only place that decides whether a conversation passes.

    The score is the mean of the turns. With ``all`` it passes if every turn passed, each by its grader or by
    ``pass_threshold``; with ``mean`` if the mean reaches ``pass_threshold``. If a turn has no score, the conversation
    has none, and the first error is reported with its turn.
    """
    usage = total_usage([grade.usage for grade in grades])
    times = [grade.latency_ms for grade in grades if grade.latency_ms is not None]
    latency_ms = sum(times) if len(times) == len(grades) else None
    for number, grade in enumerate(grades):
        if grade.error is not None:
            error = replace(grade.error, message=f"turn {number}: {grade.error.message}")
            metadata = {**grade.metadata, **_per_turn(grades)}
            return replace(grade, error=error, metadata=metadata, latency_ms=latency_ms, usage=usage)
    scores = [grade.score for grade in grades if grade.score is not None]
    if not grades or len(scores) < len(grades):
        return grades[0]
    score = sum(scores) / len(scores)
    marks = ["✓" if grade.passed else "✗" for grade in grades]
    rationale = f"{marks.count('✓')}/{len(marks)} passed: {' '.join(marks)}"
    if rule == "mean":
        least = PASS_SCORE if pass_threshold is None else pass_threshold
        passed = score >= least
        rationale += f" (mean {score:.4g}, passes from {least:g})"
    else:
        passed = "✗" not in marks
    return replace(
        grades[0],
        outcome=Outcome.PASS if passed else Outcome.FAIL,
        score=score,
        passed=passed,
        rationale=rationale,
        metadata={"turns": rule, "turns_passed": marks.count("✓"), "turns_total": len(marks), **_per_turn(grades)},
        latency_ms=latency_ms,
        usage=usage,
    )


def _per_turn(grades: Sequence[Grade]) -> dict[str, Any]:
    return {"per_turn_grades": [_turn(number, grade) for number, grade in enumerate(grades)]}


def _turn(number: int, grade: Grade) -> dict[str, Any]:
    turn: dict[str, Any] = {
        "turn": number,
        "outcome": grade.outcome.value,
        "score": grade.score,
        "rationale": grade.rationale,
        **_metadata(grade),
    }
    if grade.error is not None:
        turn["error"] = {"type": grade.error.type, "message": grade.error.message}
    return turn


def _metadata(grade: Grade) -> dict[str, Any]:
    return {"metadata": grade.metadata} if grade.metadata else {}
