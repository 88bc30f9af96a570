"""Formats of a judge's reply: how each is requested and parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gradeline.judges.logprobs import (
    LabelScores,
    Scale,
    Scores,
    json_label_span,
    json_score_span,
    pattern_score_span,
)
from gradeline.judges.reply_parsing import (
    InvalidReply,
    JudgeVerdict,
    PatternReply,
    bounded_notes,
    read_object,
    read_verdict,
)
from gradeline.model.text import quote

SCORE, RATIONALE, LABEL = "score", "rationale", "label"
_NUMBER: Mapping[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
_TEXT: Mapping[str, Any] = {"type": "string"}
_BOOLEAN: Mapping[str, Any] = {"type": "boolean"}


class ReplyFormat(Protocol):
    """A format of reply. ``schema`` is None for free text."""

    @property
    def instruction(self) -> str: ...

    @property
    def schema(self) -> Mapping[str, Any] | None: ...

    @property
    def scale(self) -> Scores: ...

    def read(self, text: str) -> JudgeVerdict:
        """Parse the reply; `ReplyError` if it holds no verdict."""

    def score_span(self, text: str) -> tuple[int, int] | None:
        """Start and end of the score's number; None unless there is exactly one."""


@dataclass(frozen=True)
class ScoreFormat:
    """JSON with a score and a rationale; ``reasoning`` requests the rationale first."""

    reasoning: bool = False

    @property
    def instruction(self) -> str:
        number = f'"{SCORE}", a number from 0.0 (worst) to 1.0 (best)'
        if self.reasoning:
            return f'{_ONE_OBJECT} first "{RATIONALE}", a text that weighs the rubric point by point, then {number}.'
        return f'{_ONE_OBJECT} first {number}, then "{RATIONALE}", a short text that says why.'

    @property
    def schema(self) -> Mapping[str, Any]:
        return object_schema(_ordered({SCORE: _NUMBER}, self.reasoning))

    @property
    def scale(self) -> Scale:
        return Scale()

    def read(self, text: str) -> JudgeVerdict:
        return read_verdict(text, SCORE, RATIONALE)

    def score_span(self, text: str) -> tuple[int, int] | None:
        return json_score_span(text)


class Item(NamedTuple):
    """A question that is answered by yes or no; yes earns its weight."""

    question: str
    weight: float = 1.0


@dataclass(frozen=True)
class ChecklistFormat:
    """JSON with true or false for each question; the score is the weighted share of true."""

    items: Sequence[Item]
    reasoning: bool = False

    @property
    def instruction(self) -> str:
        questions = "\n".join(f'- "{key}": {item.question}' for key, item in self._keyed())
        reasons = f'"{RATIONALE}", a text that says why'
        order = f"first {reasons}, then one" if self.reasoning else "one"
        after = "" if self.reasoning else f", then {reasons}"
        return (
            f"{_ONE_OBJECT} {order} key for each question below, true for yes and false for no{after}."
            f" Answer each question on its own; where you cannot tell, the answer is false.\n\n{questions}"
        )

    @property
    def schema(self) -> Mapping[str, Any]:
        return object_schema(_ordered({key: _BOOLEAN for key, _ in self._keyed()}, self.reasoning))

    @property
    def scale(self) -> Scale:
        return Scale()

    def read(self, text: str) -> JudgeVerdict:
        data = read_object(text)
        wrong = [key for key, _ in self._keyed() if not isinstance(data.get(key), bool)]
        if wrong:
            found = f"has {quote(data[wrong[0]], 80)} for it" if wrong[0] in data else "lacks it"
            reason = f"the judge's reply must answer {wrong[0]!r} by true or false, but {found}"
            raise InvalidReply(f"{reason}: {quote(text, 300)}", text)
        earned = sum(item.weight for key, item in self._keyed() if data[key])
        score = min(1.0, earned / sum(item.weight for item in self.items))
        return JudgeVerdict(score, bounded_notes(data.get(RATIONALE)), data=data)

    def score_span(self, text: str) -> tuple[int, int] | None:  # noqa: ARG002 - a checklist has no number
        return None

    def answers(self, verdict: JudgeVerdict) -> list[dict[str, Any]]:
        """The answer to each question."""
        return [
            {"question": item.question, "answer": verdict.data[key], "weight": item.weight}
            for key, item in self._keyed()
        ]

    def _keyed(self) -> list[tuple[str, Item]]:
        return [(f"item_{number}", item) for number, item in enumerate(self.items, 1)]


@dataclass(frozen=True)
class PatternFormat:
    """Free text with a rating; the rubric defines the format."""

    reply: PatternReply

    @property
    def instruction(self) -> str:
        return ""

    @property
    def schema(self) -> None:
        return None

    @property
    def scale(self) -> Scale:
        whole = float(self.reply.min).is_integer() and float(self.reply.max).is_integer()
        return Scale(self.reply.min, self.reply.max, whole and self.reply.max - self.reply.min > 1)

    def read(self, text: str) -> JudgeVerdict:
        return self.reply.read(text)

    def score_span(self, text: str) -> tuple[int, int] | None:
        return pattern_score_span(self.reply.pattern, text)


@dataclass(frozen=True)
class LabelFormat:
    """JSON with one of several labels, each of which has a score; a reply that is nothing but a label counts too.

    Labels are compared without case.
    """

    choices: Mapping[str, float]
    reasoning: bool = False

    @property
    def instruction(self) -> str:
        labels = ", ".join(f'"{label}"' for label in self.choices)
        label = f'"{LABEL}", exactly one of {labels}'
        if self.reasoning:
            return f'{_ONE_OBJECT} first "{RATIONALE}", a text that weighs the labels, then {label}.'
        return f'{_ONE_OBJECT} first {label}, then "{RATIONALE}", a short text that says why.'

    @property
    def schema(self) -> Mapping[str, Any]:
        return object_schema(_ordered({LABEL: {"type": "string", "enum": list(self.choices)}}, self.reasoning))

    @property
    def scale(self) -> LabelScores:
        return LabelScores({label.casefold(): score for label, score in self.choices.items()})

    def read(self, text: str) -> JudgeVerdict:
        bare = self._label(text)
        if bare is not None:
            return JudgeVerdict(self.choices[bare], "", label=bare)
        data = read_object(text)
        label = self._label(data.get(LABEL))
        if label is None:
            found = f"has the label {quote(data[LABEL], 80)}" if LABEL in data else f"lacks {LABEL!r}"
            labels = ", ".join(map(quote, self.choices))
            raise InvalidReply(f"the judge's reply {found}; it must be one of {labels}: {quote(text, 300)}", text)
        return JudgeVerdict(self.choices[label], bounded_notes(data.get(RATIONALE)), data=data, label=label)

    def _label(self, text: object) -> str | None:
        folded = text.strip().casefold() if isinstance(text, str) else None
        return next((label for label in self.choices if label.casefold() == folded), None)

    def score_span(self, text: str) -> tuple[int, int] | None:
        return json_label_span(text)


_ONE_OBJECT = "Reply with one JSON object and nothing else:"


def object_schema(properties: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """An object that has exactly these properties."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _ordered(properties: Mapping[str, Mapping[str, Any]], reasoning: bool) -> dict[str, Mapping[str, Any]]:
    return {RATIONALE: _TEXT, **properties} if reasoning else {**properties, RATIONALE: _TEXT}
