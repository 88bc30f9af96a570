"""From a request to its replies: pure, so that a test can predict what the server sends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from math import exp, log
from typing import Any, NamedTuple

import msgspec

from gradeline.testing.fake_judge.behaviours import SHAPES, Behaviour, RenderedReply, ReplyDraft, plain, read_behaviour
from gradeline.testing.fake_judge.verdicts import (
    CallContext,
    Draws,
    FakeVerdict,
    ParsedPrompt,
    ShownAnswer,
    Truths,
    Winner,
    decide,
    parse_prompt,
    true_winner,
)
from gradeline.testing.fake_judge.wire import JudgeRequest, ReplyChoice, ReplyToolCall, Token

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


class ScoreGrid(NamedTuple):
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


class ReplyForm(NamedTuple):
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

    def grid(self, digits: int, levels: int | None) -> ScoreGrid:
        if self.checks:
            return ScoreGrid(len(self.checks) + 1)
        if self.whole and levels is None:
            return ScoreGrid(max(2, round(self.high - self.low) + 1), self.low, self.high, whole=True)
        return ScoreGrid(levels or 10**digits + 1, self.low, self.high, self.whole)


FORMS: Mapping[str, ReplyForm] = {
    "quality_score": ReplyForm(pair=False, key="quality_score"),
    "score": ReplyForm(pair=False, key="score", notes="rationale"),
    "winner": ReplyForm(pair=True, key="winner"),
    "rating": ReplyForm(pair=False, key="rating", low=1, high=10, whole=True, brackets=True),
    "verdict": ReplyForm(pair=True, key="verdict", labels=("A", "B", "C"), brackets=True),
}


def choose_form(name: str, schema: Schema | None, around: str, shown: Sequence[ShownAnswer]) -> ReplyForm:
    """The form of the reply; ``around`` is the prompt without its answers."""
    if name != "auto":
        return FORMS[name]
    if schema is not None:
        found = _of_schema(schema, shown)
        if found:
            return found
    return _of_words(around)


def draft_reply(
    form: ReplyForm, verdict: FakeVerdict, grid: ScoreGrid, shown: Sequence[ShownAnswer], draws: Draws
) -> ReplyDraft:
    """The reply, not yet in words; ``draws`` say which points of a checklist are met, else the first are."""
    number = grid.number(grid.nearest(verdict.score))
    value: object = _label(form.labels, verdict.winner) if form.pair else number
    if form.schema is not None:
        filled = {name: _fill(name, part, verdict, shown) for name, part in _properties(form.schema).items()}
        told = _checked(form, grid.nearest(verdict.score), draws) if form.checks else {form.key: value}
        fields = tuple({**filled, **told}.items())
    else:
        fields = ((form.key, value), (form.notes, NOTES)) if form.notes else ((form.key, value),)
    return ReplyDraft(
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


def _checked(form: ReplyForm, met: int, draws: Draws | None) -> dict[str, object]:
    """So many questions are answered by yes; which ones is drawn."""
    drawn = sorted(form.checks, key=lambda name: draws.uniform(f"check {name}") if draws else 0.0)
    return {name: name in drawn[:met] for name in form.checks}


def _contrary(form: ReplyForm, verdict: FakeVerdict, grid: ScoreGrid) -> object:
    if form.pair:
        return form.labels[0 if verdict.winner == "second" else 1]
    return grid.number(0 if verdict.score >= 0.5 else grid.steps - 1)


def _label(labels: tuple[str, str, str], winner: Winner) -> str:
    return labels[("first", "second", "tie").index(winner)]


def _of_words(around: str) -> ReplyForm:
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


def _of_schema(schema: Schema, shown: Sequence[ShownAnswer]) -> ReplyForm | None:
    properties = _properties(schema)
    notes = next((name for name, part in properties.items() if _kind(part) == "string" and "enum" not in part), None)
    for name, part in properties.items():
        labels = _pair_labels(part, shown)
        if labels:
            return ReplyForm(pair=True, key=name, notes=notes, labels=labels, schema=schema)
    for name, part in properties.items():
        if _kind(part) in ("number", "integer"):
            low, high, whole = _range(part)
            return ReplyForm(pair=False, key=name, notes=notes, low=low, high=high, whole=whole, schema=schema)
    checks = tuple(name for name, part in properties.items() if _kind(part) == "boolean")
    return ReplyForm(pair=False, key=checks[0], notes=notes, schema=schema, checks=checks) if checks else None


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


def _pair_labels(schema: Schema, shown: Sequence[ShownAnswer]) -> tuple[str, str, str] | None:
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


def _fill(name: str, schema: Schema, verdict: FakeVerdict, shown: Sequence[ShownAnswer]) -> object:
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


_TOKEN = re.compile(r" ?[^\W\d_]+|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
_NEGLIGIBLE = 1e-9
_CERTAIN = -1e-6

WeightedText = tuple[str, float]
"""A text and its probability."""


def count_tokens(text: str) -> int:
    return sum(1 for _ in _TOKEN.finditer(text))


def score_distribution(grid: ScoreGrid, score: float, spread: float) -> list[WeightedText]:
    """How likely each score that can be told is."""
    likely = _probabilities(grid, score, spread)
    return [(json.dumps(grid.number(step)), probability) for step, probability in enumerate(likely)]


def expected_score(grid: ScoreGrid, score: float, spread: float) -> float:
    """The mean of the distribution, in 0..1."""
    likely = _probabilities(grid, score, spread)
    return sum(step * probability for step, probability in enumerate(likely)) / (grid.steps - 1)


def _probabilities(grid: ScoreGrid, score: float, spread: float) -> list[float]:
    """A normal curve around the judge's opinion, on the steps of the grid."""
    middle = score * (grid.steps - 1)
    width = max(spread * (grid.steps - 1), 1e-3)
    weights = [exp(-(((step - middle) / width) ** 2) / 2) for step in range(grid.steps)]
    if not sum(weights):  # so narrow a curve that it falls between two steps
        weights[grid.nearest(score)] = 1.0
    total = sum(weights)
    return [weight / total for weight in weights]


def label_distribution(form: ReplyForm, verdict: FakeVerdict, spread: float) -> list[WeightedText]:
    """How likely each side of a pair is; the one chosen is the likeliest, if only just."""
    if verdict.winner == "tie":
        return list(zip(form.labels, (0.2, 0.2, 0.6), strict=True))
    chosen = max(0.55, 1 / (1 + exp(-min(abs(verdict.margin) / max(spread, 1e-3), 50.0))))
    first = chosen if verdict.winner == "first" else 1 - chosen
    return [(form.labels[0], first), (form.labels[1], 1 - first)]


def tokenise(text: str, at: int, value: str, likely: Sequence[WeightedText], *, split: bool) -> tuple[Token, ...]:
    """The tokens of a text; those of the value that starts ``at`` carry alternatives.

    Split, the value is one token for each character, and each character's alternatives are those after the
    characters before it.
    """
    if at < 0:
        return tuple(_certain(found) for found in _TOKEN.findall(text))
    before, after = text[:at], text[at + len(value) :]
    ends = range(1, len(value) + 1) if split else [len(value)]
    middle = [_token(value, start, end if split else None, likely) for start, end in pairwise([0, *ends])]
    return (
        *(_certain(found) for found in _TOKEN.findall(before)),
        *middle,
        *(_certain(found) for found in _TOKEN.findall(after)),
    )


def _certain(text: str) -> Token:
    return Token(text, _CERTAIN)


def _token(value: str, start: int, end: int | None, likely: Sequence[WeightedText]) -> Token:
    """A part of the value, beside the parts that other texts with the same beginning have in its place."""
    chosen = value[start:end]
    shares: dict[str, float] = {}
    for told, probability in likely:
        part = told[start:end]
        if part and told.startswith(value[:start]):
            shares[part] = shares.get(part, 0.0) + probability
    total = sum(shares.values())
    if not total:
        return _certain(chosen)
    logs = {part: log(share / total) for part, share in shares.items() if share / total > _NEGLIGIBLE}
    ranked = sorted(logs.items(), key=lambda one: (one[1], one[0] == chosen), reverse=True)
    return Token(chosen, logs.get(chosen, log(_NEGLIGIBLE)), tuple(ranked))


_TOOL = "record_verdict"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a question, and what would have been true."""

    question: str
    """A digest of the model and the prompt; the same for every repeat."""
    model: str
    items: tuple[str, ...]
    """The answers shown, in order."""
    qualities: tuple[float, ...]
    pair: bool
    """Whether the better of two answers was asked for, or a score."""
    true_winner: Winner | None
    """The better of the first two answers shown; None where there is one only."""
    winner: Winner | None
    """Who won; None where no winner was asked for."""
    score: float
    """In 0..1, rounded as the reply has it; of the first answer, where the better of two was asked for."""
    expected: float | None
    """The mean of the scores by their log-probabilities; None where these were not asked for."""
    causes: tuple[str, ...]
    shape: str
    """How it was said: ``plain``, or one of the odd shapes."""
    choice: int = 0
    sighting: int = 0
    call: int = 0


class Question(NamedTuple):
    """A request understood."""

    asked: JudgeRequest
    prompt: ParsedPrompt
    form: ReplyForm
    digest: str

    def draws(self, seed: int) -> Draws:
        return Draws(seed, self.digest)

    def sample(self, choice: int) -> str:
        """What tells a sample from others: nothing at temperature 0, else the seed asked for and the choice."""
        if self.asked.temperature == 0:
            return ""
        return f"#{'' if self.asked.seed is None else self.asked.seed}#{choice}"


def read_question(asked: JudgeRequest, prompt: ParsedPrompt, behaviour: Behaviour) -> Question:
    """Finds the reply that is wanted."""
    schema = asked.forced_tool.schema if asked.forced_tool else asked.schema
    form = choose_form(behaviour.form, schema, prompt.around, prompt.shown)
    digest = blake2b(f"{asked.model}\0{prompt.key}".encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return Question(asked, prompt, form, digest)


def fault_of(question: Question, behaviour: Behaviour, seed: int, attempt: int) -> str | None:
    """What the attempt (from 1) at a request meets instead of an answer; None: nothing."""
    planned = len(behaviour.faults)
    if attempt <= planned:
        fault = behaviour.faults[attempt - 1]
        return None if fault == "ok" else fault
    if behaviour.fault_tries and attempt > planned + behaviour.fault_tries:
        return None
    return question.draws(seed).pick("fault", behaviour.fault_rates)


def predict(
    prompt: str,
    behaviour: Behaviour | str,
    seed: int = 0,
    items: Truths | None = None,
    *,
    choice: int = 0,
    sighting: int = 0,
    call: int = 0,
    **asked: Any,
) -> Decision:
    """The decision on a prompt, as a server with this seed makes it.

    Further arguments are those of `JudgeRequest`; the model is ``fake-judge`` and the temperature 0 unless told.
    """
    told = behaviour if isinstance(behaviour, Behaviour) else read_behaviour(behaviour)
    question = _question(prompt, told, items or {}, asked)
    return judge(question, told, seed, choice=choice, sighting=sighting, call=call)[0]


def predict_fault(
    prompt: str,
    behaviour: Behaviour | str,
    seed: int = 0,
    items: Truths | None = None,
    *,
    attempt: int = 1,
    **asked: Any,
) -> str | None:
    """What an attempt at a prompt meets instead of an answer; the arguments are those of `predict`."""
    told = behaviour if isinstance(behaviour, Behaviour) else read_behaviour(behaviour)
    return fault_of(_question(prompt, told, items or {}, asked), told, seed, attempt)


def _question(prompt: str, behaviour: Behaviour, items: Truths, asked: dict[str, Any]) -> Question:
    told = {"model": "fake-judge", "temperature": 0, **asked}
    return read_question(JudgeRequest(text=prompt, **told), parse_prompt(prompt, items), behaviour)


def judge(
    question: Question, behaviour: Behaviour, seed: int, *, choice: int = 0, sighting: int = 0, call: int = 0
) -> tuple[Decision, ReplyChoice | None]:
    """The decision and the reply of one choice; None where the odd shape is to have no choice."""
    asked, prompt, form, digest = question
    draws = question.draws(seed)
    occasion = CallContext(question.sample(choice), sighting, call, choice)
    verdict = decide(behaviour, prompt.shown, draws, occasion, pair=form.pair)
    grid = form.grid(behaviour.digits, behaviour.levels)
    shape = draws.pick(f"shape{occasion.sample}", behaviour.replies)
    drafted = draft_reply(form, verdict, grid, prompt.shown, draws)
    said = SHAPES[shape](drafted, behaviour.notes_tokens) if shape else plain(drafted)
    decision = Decision(
        question=digest,
        model=asked.model,
        items=tuple(one.item for one in prompt.shown),
        qualities=tuple(one.truth.quality for one in prompt.shown),
        pair=form.pair,
        true_winner=true_winner(prompt.shown),
        winner=verdict.winner if form.pair else None,
        score=grid.share(grid.nearest(verdict.score)),
        expected=None if asked.top_logprobs is None else expected_score(grid, verdict.score, behaviour.spread),
        causes=verdict.causes,
        shape=shape or "plain",
        choice=choice,
        sighting=sighting,
        call=call,
    )
    return decision, None if said.missing else _reply(asked, behaviour, form, grid, verdict, drafted, said)


def _reply(
    asked: JudgeRequest,
    behaviour: Behaviour,
    form: ReplyForm,
    grid: ScoreGrid,
    verdict: FakeVerdict,
    drafted: ReplyDraft,
    said: RenderedReply,
) -> ReplyChoice:
    if said.text is None:
        return ReplyChoice(None, said.finish, said.refusal)
    tokens = _tokens(asked, behaviour, form, grid, verdict, drafted, said.text)
    finish = said.finish
    if asked.max_tokens is not None and len(tokens) > asked.max_tokens:
        tokens, finish = tokens[: asked.max_tokens], "length"
    text = "".join(token.text for token in tokens)
    if said.calls or asked.forced_tool:
        tool = asked.forced_tool or (asked.tools[0] if asked.tools else None)
        return ReplyChoice(None, finish, call=ReplyToolCall(tool.name if tool else _TOOL, text), tokens=tokens)
    return ReplyChoice(text, finish, tokens=tokens)


def _tokens(
    asked: JudgeRequest,
    behaviour: Behaviour,
    form: ReplyForm,
    grid: ScoreGrid,
    verdict: FakeVerdict,
    drafted: ReplyDraft,
    text: str,
) -> tuple[Token, ...]:
    value = str(drafted.value) if form.pair else json.dumps(drafted.value)
    before = "[[" if form.brackets else f'"{form.key}":'
    start = text.find(before)
    at = text.find(value, start + len(before)) if start >= 0 else -1
    likely: list[WeightedText] = []
    if asked.top_logprobs is not None and form.pair:
        likely = label_distribution(form, verdict, behaviour.spread)
    elif asked.top_logprobs is not None:
        likely = score_distribution(grid, verdict.score, behaviour.spread)
    return tokenise(text, at, value, likely, split=behaviour.score_tokens == "split" and not form.pair)
