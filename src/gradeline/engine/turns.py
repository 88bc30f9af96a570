"""Conversations that are graded turn by turn: a list of inputs with a list of expectations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from gradeline.errors import Outcome
from gradeline.model import Grade, Response, Sample, Trajectory
from gradeline.model.grade import PASS_SCORE
from gradeline.model.response import total_usage


class Turn(NamedTuple):
    """One question of a conversation with its expectation, and what the agent did about it."""

    sample: Sample
    response: Response


def is_by_turn(sample: Sample) -> bool:
    """Whether each turn has an expectation of its own."""
    return isinstance(sample.input, list) and isinstance(sample.ground_truth, list)


def turns_of(sample: Sample, response: Response) -> list[Turn]:
    """The conversation in its turns; one that the agent never came to has no messages."""
    steps = response.steps
    turns = []
    for number, (asked, expected) in enumerate(zip(sample.input, sample.ground_truth or (), strict=True)):
        part = Trajectory(steps.turns[number : number + 1], steps.memory)
        said = [message.content for message in part.messages() if message.role == "assistant" and message.content]
        turns.append(
            Turn(
                msgspec.structs.replace(sample, input=asked, ground_truth=expected),
                msgspec.structs.replace(response, text=said[-1] if said else "", trajectory=part),
            )
        )
    return turns


def joined_submission(submissions: Sequence[str | None]) -> str | None:
    """All turns' submissions as one text; None where one could not be extracted."""
    if any(text is None for text in submissions):
        return None
    return " | ".join(f"[Turn {number}] {text}" for number, text in enumerate(submissions))


def joined_grade(grades: Sequence[Grade], pass_threshold: float | None) -> Grade:
    """The mean of the turns; a turn without a score leaves the whole without one."""
    usage = total_usage([grade.usage for grade in grades])
    for number, grade in enumerate(grades):
        if grade.error is not None:
            error = msgspec.structs.replace(grade.error, message=f"turn {number}: {grade.error.message}")
            return msgspec.structs.replace(grade, error=error, usage=usage)
    scores = [grade.score for grade in grades if grade.score is not None]
    if not grades or len(scores) < len(grades):
        return grades[0]
    score = sum(scores) / len(scores)
    marks = ["✓" if one >= 1.0 else "✗" for one in scores]
    passed = score >= (PASS_SCORE if pass_threshold is None else pass_threshold)
    metadata: dict[str, Any] = {
        "turns_passed": marks.count("✓"),
        "turns_total": len(marks),
        "per_turn_grades": [
            {"turn": number, "score": grade.score, "rationale": grade.rationale, **_metadata(grade)}
            for number, grade in enumerate(grades)
        ],
    }
    return msgspec.structs.replace(
        grades[0],
        outcome=Outcome.PASS if passed else Outcome.FAIL,
        score=score,
        passed=passed,
        rationale=f"{marks.count('✓')}/{len(marks)} passed: {' '.join(marks)}",
        metadata=metadata,
        latency_ms=sum(grade.latency_ms or 0.0 for grade in grades),
        usage=usage,
    )


def _metadata(grade: Grade) -> dict[str, Any]:
    return {"metadata": grade.metadata} if grade.metadata else {}
