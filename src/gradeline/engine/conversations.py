"""Conversations that are graded turn by turn: a list of inputs with a list of expectations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from gradeline.errors import MissingDataError, Outcome
from gradeline.model import Grade, Response, Sample, fingerprint
from gradeline.model.grade import PASS_SCORE
from gradeline.model.response import total_usage
from gradeline.model.run import TurnRule
from gradeline.model.trajectory import last_answer

_JOINING_RULES = 3
"""Counted up whenever the turns of a conversation may join to another outcome than before."""

_UNKNOWN_TURNS = (
    "the response has {found} for a conversation of {count} turns, so the answer to each turn is unknown; "
    "use a target that is called once per turn (http, python, a model), or one that reports all messages "
    "(command: output: json with trajectory mapped under response:, the user's messages included; "
    "replay file: a trajectory with one turn per input); or write one ground_truth for the whole conversation"
)


class Turn(NamedTuple):
    """One question of a conversation with its expectation, and what the agent did about it."""

    sample: Sample
    response: Response


def is_by_turn(sample: Sample) -> bool:
    """Whether each turn has an expectation of its own."""
    return isinstance(sample.input, list) and isinstance(sample.ground_truth, list)


def turns_of(sample: Sample, response: Response) -> list[Turn]:
    """The conversation in its turns.

    Raises `MissingDataError` where it is unknown which turn an answer belongs to.
    """
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
    """All turns' submissions as one text; None where one could not be extracted."""
    if any(text is None for text in submissions):
        return None
    return " | ".join(f"[Turn {number}] {text}" for number, text in enumerate(submissions))


@cache
def by_turn_fingerprint(column: str) -> str:
    """The fingerprint of a grade that several turns were joined into: the rule for that is part of what decides it."""
    return fingerprint("by turn", _JOINING_RULES, column)


def joined_grade(grades: Sequence[Grade], rule: TurnRule = "all", pass_threshold: float | None = None) -> Grade:
    """One grade for the turns of a conversation. This is the only place that decides whether a conversation passes.

    The score is the mean of the turns. With ``all`` it passes where every turn passed, each by its grader or by
    ``pass_threshold``; with ``mean`` where the mean reaches ``pass_threshold``. Without a score of each turn there
    is none of the whole: the first error is named with its turn.
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
