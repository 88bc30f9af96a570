"""How a verdict is put into words: as asked, or in one of the ways that models get wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gradeline.testing.fake_judge.exchange import Finish

REFUSAL = "I'm sorry, but I can't help with that request."
Field = tuple[str, object]


class Draft(NamedTuple):
    """A verdict about to be put into words."""

    fields: tuple[Field, ...]
    """The reply's keys and values, in order."""
    key: str
    """The field that holds the verdict."""
    notes: str
    """The field that holds the reasons; it may be missing among the fields."""
    other: object
    """A verdict that contradicts this one."""
    share: float
    """The score in 0..1."""
    low: float = 0.0
    high: float = 1.0
    pair: bool = False
    brackets: bool = False
    """Whether the verdict is ``[[in brackets]]`` after the reasons, not JSON."""

    @property
    def value(self) -> object:
        return dict(self.fields)[self.key]

    def told(self, value: object) -> Draft:
        """The same with another verdict."""
        return self._replace(fields=tuple((key, value if key == self.key else old) for key, old in self.fields))

    def noted(self, notes: str) -> Draft:
        """The same with other reasons."""
        rest = tuple(field for field in self.fields if field[0] != self.notes)
        return self._replace(fields=(*rest, (self.notes, notes)))

    def text(self) -> str:
        if not self.brackets:
            return _object(self.fields)
        said = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return f"{dict(self.fields).get(self.notes, '')}\n\n[[{said}]]"


class Said(NamedTuple):
    """A reply's words, and how they ended."""

    text: str | None
    finish: Finish = "stop"
    refusal: str | None = None
    calls: bool = False
    """Whether the words are a tool call's arguments."""
    missing: bool = False
    """Whether there is no choice at all."""


Shape = Callable[[Draft, int], Said]
"""Words a draft; the number is how many tokens a long reply has."""


def _object(fields: tuple[Field, ...]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields) + "}"


def plain(draft: Draft, _: int = 0) -> Said:
    return Said(draft.text())


def _around(before: str, after: str) -> Shape:
    return lambda draft, _: Said(f"{before}{draft.text()}{after}")


def _value(score: Callable[[Draft], object], label: object) -> Shape:
    """Another value: made from a score, or in place of the winner of a pair."""
    return lambda draft, _: Said(draft.told(label if draft.pair else score(draft)).text())


def _noted(notes: Callable[[Draft], str]) -> Shape:
    return lambda draft, _: Said(draft.noted(notes(draft)).text())


def _single_quotes(draft: Draft, _: int) -> Said:
    return Said(draft.text().replace('"', "'"))


def _trailing_comma(draft: Draft, _: int) -> Said:
    return Said(f"{draft.text()[:-1]},}}")


def _comments(draft: Draft, _: int) -> Said:
    return Said(draft.text().replace("{", "{ // on the whole\n", 1))


def _invalid(draft: Draft, _: int) -> Said:
    return Said(f"{{{draft.key or 'verdict'} = {draft.value}")


def _two_objects(draft: Draft, _: int) -> Said:
    return Said(f"{draft.text()}\n{draft.told(draft.other).text()}")


def _same_twice(draft: Draft, _: int) -> Said:
    return Said(f"{draft.text()}\n{draft.text()}")


def _echoed(draft: Draft, _: int) -> Said:
    return Said(f"The format is {draft.told(draft.other).noted('why').text()}.\n\n{draft.text()}")


def _missing_key(draft: Draft, _: int) -> Said:
    return Said(_object(tuple(field for field in draft.noted("No verdict.").fields if field[0] != draft.key)))


def _duplicate_key(draft: Draft, _: int) -> Said:
    return Said(_object(((draft.key or "verdict", draft.other), *draft.fields)))


def _nested(draft: Draft, _: int) -> Said:
    return Said(json.dumps({"result": dict(draft.fields)}, ensure_ascii=False))


def _raw_control(draft: Draft, _: int) -> Said:
    """A line break in a string, as it is: strict JSON has it escaped."""
    return Said(draft.noted("two@lines").text().replace("@", "\n"))


def _long(draft: Draft, tokens: int) -> Said:
    return Said(draft.noted("word " * tokens).text())


def _cut(draft: Draft, _: int) -> Said:
    text = draft.noted("Cut off before the end").text()
    return Said(text[: len(text) - 12], "length")


def _fraction(draft: Draft) -> str:
    return f"{draft.share * 10:.0f}/10"


SHAPES: Mapping[str, Shape] = {
    "fenced": _around("```json\n", "\n```"),
    "text-before": _around("Here is my verdict:\n\n", ""),
    "text-after": _around("", "\n\nLet me know if you need more."),
    "wrapped": _around("Here is my verdict:\n\n", "\n\nLet me know if you need more."),
    "bom": _around("\ufeff", ""),
    "single-quotes": _single_quotes,
    "trailing-comma": _trailing_comma,
    "comments": _comments,
    "invalid-json": _invalid,
    "prose": lambda _draft, _tokens: Said("On the whole the answer is rather good, I should think."),
    "two-objects": _two_objects,
    "same-twice": _same_twice,
    "echoed-example": _echoed,
    "score-text": _value(lambda draft: json.dumps(draft.value), ["A"]),
    "score-percent": _value(lambda draft: f"{draft.share:.0%}", "100%"),
    "score-fraction": _value(_fraction, "10/10"),
    "score-hundred": _value(lambda draft: max(2, round(draft.share * 100)), 2),
    "score-above": _value(lambda draft: round(draft.high + 0.2 * (draft.high - draft.low), 4), "neither of them"),
    "score-below": _value(lambda draft: round(draft.low - 0.1 * (draft.high - draft.low), 4), ""),
    "score-nan": _value(lambda _: float("nan"), float("nan")),
    "score-infinity": _value(lambda _: float("inf"), float("inf")),
    "score-null": _value(lambda _: None, None),
    "score-true": _value(lambda _: True, True),
    "missing-key": _missing_key,
    "duplicate-key": _duplicate_key,
    "nested": _nested,
    "notes-huge": _noted(lambda _: "On and on. " * 20_000),
    "notes-control": _noted(lambda _: "a bell \x07, a NUL \x00, an escape \x1b[31m, and \u202e backwards"),
    "notes-raw-control": _raw_control,
    "notes-json": _noted(lambda draft: f"In short: {draft.told(draft.other).text()}"),
    "long": _long,
    "refusal-text": lambda _draft, _tokens: Said(REFUSAL),
    "refusal": lambda _draft, _tokens: Said(None, "refusal", REFUSAL),
    "content-filter": lambda _draft, _tokens: Said(None, "filter"),
    "truncated": _cut,
    "truncated-whole": lambda draft, _: Said(draft.text(), "length"),
    "empty": lambda _draft, _tokens: Said(""),
    "blank": lambda _draft, _tokens: Said(" \n"),
    "no-choices": lambda _draft, _tokens: Said(None, missing=True),
    "tool-call": lambda draft, _: Said(draft.text(), calls=True),
}
"""The odd replies, by name."""
