"""Which reply a request wants: read off its schema, else off the words around the answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gradeline.testing.fake_judge.shapes import Draft
from gradeline.testing.fake_judge.truth import Shown
from gradeline.testing.fake_judge.verdicts import Draws, Verdict, Winner

NOTES = "Measured against the rubric — each point in turn."

Schema = Mapping[str, Any]

_FIRST = re.compile(r"(?:^|[\W_])(?:a|1|first)$", re.IGNORECASE)
_SECOND = re.compile(r"(?:^|[\W_])(?:b|2|second)$", re.IGNORECASE)
_TIE = re.compile(r"^(?:tie|equal|equally good|neither|both|draw|same|c)$", re.IGNORECASE)
_YES = re.compile(r"^(?:yes|pass|passed|good|correct|true|met)$", re.IGNORECASE)
_PAIR_KEY = re.compile(r"[\"'`](winner|preference|preferred|better|choice)[\"'`]")
_SCORE_KEY = re.compile(r"[\"'`](quality_score|score|rating|grade)[\"'`]")
_NOTES_KEY = re.compile(r"[\"'`](notes|rationale|reasoning|reason|explanation|feedback)[\"'`]")
_SCALE = re.compile(r"(?:scale of|between|from)\s+(\d+)\s*(?:to|and|-|–)\s*(\d+)", re.IGNORECASE)


class Grid(NamedTuple):
    """The scores that can be told."""

    steps: int
    low: float = 0.0
    high: float = 1.0
    whole: bool = False

    def nearest(self, share: float) -> int:
        return round(share * (self.steps - 1))

    def share(self, step: int) -> float:
        return step / (self.steps - 1)

    def number(self, step: int) -> int | float:
        value = self.low + self.share(step) * (self.high - self.low)
        return round(value) if self.whole else round(value, 6)


class Form(NamedTuple):
    """A reply's form."""

    pair: bool
    key: str
    notes: str | None = "notes"
    low: float = 0.0
    high: float = 1.0
    whole: bool = False
    labels: tuple[str, str, str] = ("A", "B", "tie")
    """For the first answer shown, the second, and neither."""
    brackets: bool = False
    schema: Schema | None = None
    checks: tuple[str, ...] = ()
    """The yes/no questions of a checklist; then there is no score of its own."""

    def grid(self, digits: int, levels: int | None) -> Grid:
        if self.checks:
            return Grid(len(self.checks) + 1)
        if self.whole and levels is None:
            return Grid(max(2, round(self.high - self.low) + 1), self.low, self.high, whole=True)
        return Grid(levels or 10**digits + 1, self.low, self.high, self.whole)


FORMS: Mapping[str, Form] = {
    "quality_score": Form(pair=False, key="quality_score"),
    "score": Form(pair=False, key="score", notes="rationale"),
    "winner": Form(pair=True, key="winner"),
    "rating": Form(pair=False, key="rating", low=1, high=10, whole=True, brackets=True),
    "verdict": Form(pair=True, key="verdict", labels=("A", "B", "C"), brackets=True),
}


def wanted(name: str, schema: Schema | None, around: str, shown: Sequence[Shown]) -> Form:
    """The form of the reply; ``around`` is the prompt without its answers."""
    if name != "auto":
        return FORMS[name]
    if schema is not None:
        found = _of_schema(schema, shown)
        if found:
            return found
    return _of_words(around)


def draft(form: Form, verdict: Verdict, grid: Grid, shown: Sequence[Shown], draws: Draws) -> Draft:
    """The reply, not yet in words; ``draws`` say which points of a checklist are met, else the first are."""
    number = grid.number(grid.nearest(verdict.score))
    value: object = _label(form.labels, verdict.winner) if form.pair else number
    if form.schema is not None:
        filled = {name: _fill(name, part, verdict, shown) for name, part in _properties(form.schema).items()}
        told = _checked(form, grid.nearest(verdict.score), draws) if form.checks else {form.key: value}
        fields = tuple({**filled, **told}.items())
    else:
        fields = ((form.key, value), (form.notes, NOTES)) if form.notes else ((form.key, value),)
    return Draft(
        fields,
        form.key,
        form.notes or "notes",
        not dict(fields)[form.key] if form.checks else _contrary(form, verdict, grid),
        verdict.score,
        form.low,
        form.high,
        form.pair,
        form.brackets,
    )


def _checked(form: Form, met: int, draws: Draws | None) -> dict[str, object]:
    """So many questions are answered by yes; which ones is drawn."""
    drawn = sorted(form.checks, key=lambda name: draws.uniform(f"check {name}") if draws else 0.0)
    return {name: name in drawn[:met] for name in form.checks}


def _contrary(form: Form, verdict: Verdict, grid: Grid) -> object:
    if form.pair:
        return form.labels[0 if verdict.winner == "second" else 1]
    return grid.number(0 if verdict.score >= 0.5 else grid.steps - 1)


def _label(labels: tuple[str, str, str], winner: Winner) -> str:
    return labels[("first", "second", "tie").index(winner)]


def _of_words(around: str) -> Form:
    notes = _NOTES_KEY.search(around)
    pair, score = _PAIR_KEY.search(around), _SCORE_KEY.search(around)
    if "[[A]]" in around:
        return FORMS["verdict"]
    if pair:
        return FORMS["winner"]._replace(key=pair[1], notes=notes[1] if notes else "notes")
    if score:
        form = FORMS["score"] if score[1] == "score" else FORMS["quality_score"]._replace(key=score[1])
        return form._replace(notes=notes[1]) if notes else form
    if "[[" in around:
        scale = _SCALE.search(around)
        form = FORMS["rating"]
        return form._replace(low=float(scale[1]), high=float(scale[2])) if scale else form
    return FORMS["quality_score"]


def _of_schema(schema: Schema, shown: Sequence[Shown]) -> Form | None:
    properties = _properties(schema)
    notes = next((name for name, part in properties.items() if _kind(part) == "string" and "enum" not in part), None)
    for name, part in properties.items():
        labels = _pair_labels(part, shown)
        if labels:
            return Form(pair=True, key=name, notes=notes, labels=labels, schema=schema)
    for name, part in properties.items():
        if _kind(part) in ("number", "integer"):
            low, high, whole = _range(part)
            return Form(pair=False, key=name, notes=notes, low=low, high=high, whole=whole, schema=schema)
    checks = tuple(name for name, part in properties.items() if _kind(part) == "boolean")
    return Form(pair=False, key=checks[0], notes=notes, schema=schema, checks=checks) if checks else None


def _properties(schema: Schema) -> Mapping[str, Schema]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _kind(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind is None and isinstance(schema.get("anyOf"), list):
        return next((_kind(one) for one in schema["anyOf"] if _kind(one) != "null"), "null")
    return str(kind or ("string" if "enum" in schema else "object")).lower()


def _range(schema: Schema) -> tuple[float, float, bool]:
    whole = _kind(schema) == "integer"
    low, high = schema.get("minimum"), schema.get("maximum")
    default = (1.0, 10.0) if whole else (0.0, 1.0)
    return (
        float(low) if isinstance(low, (int, float)) else default[0],
        float(high) if isinstance(high, (int, float)) else default[1],
        whole,
    )


def _pair_labels(schema: Schema, shown: Sequence[Shown]) -> tuple[str, str, str] | None:
    """The labels of an enumeration that names two answers: as their fences do, else in its own order."""
    names = [name for name in schema.get("enum") or () if isinstance(name, str)]
    ties = [name for name in names if _TIE.match(name)]
    sides = [name for name in names if name not in ties]
    if len(sides) != 2 or any(_YES.match(name) for name in sides):
        return None
    first, second = sides
    if len(shown) > 1 and second.lower() in shown[0].label.lower() and second.lower() not in shown[1].label.lower():
        first, second = second, first
    return first, second, ties[0] if ties else first


def _fill(name: str, schema: Schema, verdict: Verdict, shown: Sequence[Shown]) -> object:
    """A value that fits a part of a schema."""
    scores = [*verdict.scores, verdict.score, verdict.score]
    share = scores[0] if _FIRST.search(name) else scores[1] if _SECOND.search(name) else verdict.score
    if "enum" in schema:
        labels = _pair_labels(schema, shown)
        names = list(schema["enum"])
        yes = [one for one in names if isinstance(one, str) and _YES.match(one)]
        if labels:
            return _label(labels, verdict.winner)
        return yes[0] if yes and share >= 0.5 else next((one for one in names if one not in yes), names[0])
    match _kind(schema):
        case "number" | "integer":
            low, high, whole = _range(schema)
            return round(low + share * (high - low)) if whole else round(low + share * (high - low), 2)
        case "boolean":
            return share >= 0.5
        case "array":
            part = schema.get("items")
            return [_fill(name, part, verdict, shown)] if isinstance(part, Mapping) else []
        case "object":
            return {key: _fill(key, part, verdict, shown) for key, part in _properties(schema).items()}
        case "null":
            return None
        case _:
            return NOTES
