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
from gradeline.testing.fake_judge.wire import JudgeRequest, ReplyChoice, ReplyToken, ReplyToolCall

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
    """The scores that a reply can state."""

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
    """The form of a reply: its fields and the range or labels of its verdict."""

    pair: bool
    key: str
    notes: str | None = "notes"
    low: float = 0.0
    high: float = 1.0
    whole: bool = False
    labels: tuple[str, str, str] = ("A", "B", "tie")
    """The labels for the first answer, the second, and a tie."""
    brackets: bool = False
    schema: Schema | None = None
    checks: tuple[str, ...] = ()
    """The yes/no questions of a checklist, which replace the score."""
    choices: tuple[str, ...] = ()
    """Labels from best to worst, evenly spaced, which replace the score."""
    statements: tuple[str, ...] = ()
    """The verdicts on a statement, the good one first: the reply is a list, and the score its share of good ones."""

    def grid(self, digits: int, levels: int | None) -> ScoreGrid:
        if self.checks:
            return ScoreGrid(len(self.checks) + 1)
        if self.choices:
            return ScoreGrid(len(self.choices))
        if self.statements:
            return ScoreGrid(_STATEMENTS + 1)
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
    """The form of the reply, from the schema or else from the prompt without its answers (``around``)."""
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
    """The draft of the reply; ``draws`` choose which questions of a checklist are met, by default the first ones."""
    number = grid.number(grid.nearest(verdict.score))
    value: object = _label(form.labels, verdict.winner) if form.pair else number
    if form.choices:
        value = form.choices[::-1][grid.nearest(verdict.score)]
    if form.statements:
        value = _statements(form, grid.nearest(verdict.score))
    if form.schema is not None:
        filled = {name: _fill(name, part, verdict, shown) for name, part in _properties(form.schema).items()}
        verdict_fields = _checked(form, grid.nearest(verdict.score), draws) if form.checks else {form.key: value}
        fields = tuple({**filled, **verdict_fields}.items())
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
        form.pair or bool(form.choices),
        form.brackets,
    )


def _checked(form: ReplyForm, met: int, draws: Draws | None) -> dict[str, object]:
    """The answers to a checklist with this number of yes, chosen by ``draws``."""
    drawn = sorted(form.checks, key=lambda name: draws.uniform(f"check {name}") if draws else 0.0)
    return {name: name in drawn[:met] for name in form.checks}


_STATEMENTS = 4


def _statements(form: ReplyForm, good: int) -> list[dict[str, object]]:
    """Statements of which the first ones are good, with the first document as evidence."""
    parts = _properties(_properties(form.schema or {})[form.key]["items"])
    filled: dict[str, object] = {"document": 1, "quote": ""}
    return [
        {
            **{name: filled.get(name, f"Statement {number}.") for name in parts},
            "verdict": form.statements[0 if number <= good else -1],
        }
        for number in range(1, _STATEMENTS + 1)
    ]


def _contrary(form: ReplyForm, verdict: FakeVerdict, grid: ScoreGrid) -> object:
    if form.pair:
        return form.labels[0 if verdict.winner == "second" else 1]
    if form.choices:
        return form.choices[-1 if verdict.score >= 0.5 else 0]
    if form.statements:
        return _statements(form, 0 if verdict.score >= 0.5 else _STATEMENTS)
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
        listed = _properties(part.get("items") or {}).get("verdict", {}).get("enum") if name == "statements" else None
        if listed:
            return ReplyForm(pair=False, key=name, notes=None, statements=tuple(listed), schema=schema)
    for name, part in properties.items():
        if name == "label" and "enum" in part:
            return ReplyForm(pair=False, key=name, notes=notes, choices=tuple(part["enum"]), schema=schema)
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
    """The labels of an enum that names two answers: ordered by their fences, else in the order of the enum."""
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
    """A value that matches a part of a schema."""
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
"""A string and its probability."""


def count_tokens(text: str) -> int:
    return sum(1 for _ in _TOKEN.finditer(text))


def score_distribution(grid: ScoreGrid, score: float, spread: float) -> list[WeightedText]:
    """The probability of each score that a reply can state."""
    likely = _probabilities(grid, score, spread)
    return [(json.dumps(grid.number(step)), probability) for step, probability in enumerate(likely)]


def expected_score(grid: ScoreGrid, score: float, spread: float) -> float:
    """The mean of the distribution, in 0..1."""
    likely = _probabilities(grid, score, spread)
    return sum(step * probability for step, probability in enumerate(likely)) / (grid.steps - 1)


def _probabilities(grid: ScoreGrid, score: float, spread: float) -> list[float]:
    """A normal curve around the score, on the steps of the grid."""
    middle = score * (grid.steps - 1)
    width = max(spread * (grid.steps - 1), 1e-3)
    weights = [exp(-(((step - middle) / width) ** 2) / 2) for step in range(grid.steps)]
    if not sum(weights):  # the curve is narrower than the steps
        weights[grid.nearest(score)] = 1.0
    total = sum(weights)
    return [weight / total for weight in weights]


def label_distribution(form: ReplyForm, verdict: FakeVerdict, spread: float) -> list[WeightedText]:
    """The probability of each label of a pair; the chosen one has the highest, at least 0.55."""
    if verdict.winner == "tie":
        return list(zip(form.labels, (0.2, 0.2, 0.6), strict=True))
    chosen = max(0.55, 1 / (1 + exp(-min(abs(verdict.margin) / max(spread, 1e-3), 50.0))))
    first = chosen if verdict.winner == "first" else 1 - chosen
    return [(form.labels[0], first), (form.labels[1], 1 - first)]


def tokenise(text: str, at: int, value: str, likely: Sequence[WeightedText], *, split: bool) -> tuple[ReplyToken, ...]:
    """The tokens of a text; those of the value that starts ``at`` have alternatives.

    With ``split`` the value is one token per character, and the alternatives of each continue the characters before it.
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


def _certain(text: str) -> ReplyToken:
    return ReplyToken(text, _CERTAIN)


def _token(value: str, start: int, end: int | None, likely: Sequence[WeightedText]) -> ReplyToken:
    """A part of the value, with the corresponding parts of other values with the same beginning as alternatives."""
    chosen = value[start:end]
    shares: dict[str, float] = {}
    for text, probability in likely:
        part = text[start:end]
        if part and text.startswith(value[:start]):
            shares[part] = shares.get(part, 0.0) + probability
    total = sum(shares.values())
    if not total:
        return _certain(chosen)
    logs = {part: log(share / total) for part, share in shares.items() if share / total > _NEGLIGIBLE}
    ranked = sorted(logs.items(), key=lambda one: (one[1], one[0] == chosen), reverse=True)
    return ReplyToken(chosen, logs.get(chosen, log(_NEGLIGIBLE)), tuple(ranked))


_TOOL = "record_verdict"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a question, and the true one."""

    question: str
    """A digest of the model and the prompt; the same for every repeat."""
    model: str
    items: tuple[str, ...]
    """The items of the answers, in their order in the prompt."""
    qualities: tuple[float, ...]
    pair: bool
    """True for the better of two answers, False for a score."""
    true_winner: Winner | None
    """The better of the first two answers; None for a single answer."""
    winner: Winner | None
    """The winner; None for a score."""
    score: float
    """In 0..1, rounded as in the reply; for a pair, the score of the first answer."""
    expected: float | None
    """The mean score by the log-probabilities; None where these were not requested."""
    causes: tuple[str, ...]
    shape: str
    """The shape of the reply: ``plain``, or one of the `SHAPES`."""
    choice: int = 0
    sighting: int = 0
    call: int = 0


class Question(NamedTuple):
    """A request, the answers in its prompt and the form of its reply."""

    request: JudgeRequest
    prompt: ParsedPrompt
    form: ReplyForm
    digest: str

    def draws(self, seed: int) -> Draws:
        return Draws(seed, self.digest)

    def sample(self, choice: int) -> str:
        """Distinguishes samples: empty at temperature 0, else the requested seed and the choice."""
        if self.request.temperature == 0:
            return ""
        return f"#{'' if self.request.seed is None else self.request.seed}#{choice}"


def read_question(request: JudgeRequest, prompt: ParsedPrompt, behaviour: Behaviour) -> Question:
    """Find the answers and the form of the reply."""
    schema = request.forced_tool.schema if request.forced_tool else request.schema
    form = choose_form(behaviour.form, schema, prompt.around, prompt.shown)
    digest = blake2b(f"{request.model}\0{prompt.key}".encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return Question(request, prompt, form, digest)


def fault_of(question: Question, behaviour: Behaviour, seed: int, attempt: int) -> str | None:
    """The fault of this attempt (from 1) at a request; None: no fault."""
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
    **request: Any,
) -> Decision:
    """The decision on a prompt, as a server with this seed makes it.

    Further arguments are those of `JudgeRequest`; by default the model is ``fake-judge`` and the temperature 0.
    """
    question, resolved = _question(prompt, behaviour, items or {}, request)
    return judge(question, resolved, seed, choice=choice, sighting=sighting, call=call)[0]


def predict_fault(
    prompt: str,
    behaviour: Behaviour | str,
    seed: int = 0,
    items: Truths | None = None,
    *,
    attempt: int = 1,
    **request: Any,
) -> str | None:
    """The fault of an attempt at a prompt; None: no fault. The arguments are those of `predict`."""
    question, resolved = _question(prompt, behaviour, items or {}, request)
    return fault_of(question, resolved, seed, attempt)


def _question(
    prompt: str, behaviour: Behaviour | str, items: Truths, request: dict[str, Any]
) -> tuple[Question, Behaviour]:
    resolved = behaviour if isinstance(behaviour, Behaviour) else read_behaviour(behaviour)
    fields = {"model": "fake-judge", "temperature": 0, **request}
    return read_question(JudgeRequest(text=prompt, **fields), parse_prompt(prompt, items), resolved), resolved


def judge(
    question: Question, behaviour: Behaviour, seed: int, *, choice: int = 0, sighting: int = 0, call: int = 0
) -> tuple[Decision, ReplyChoice | None]:
    """The decision and the reply of one choice; None for the shape without choices."""
    request, prompt, form, digest = question
    draws = question.draws(seed)
    context = CallContext(question.sample(choice), sighting, call, choice)
    verdict = decide(behaviour, prompt.shown, draws, context, pair=form.pair)
    grid = form.grid(behaviour.digits, behaviour.levels)
    shape = draws.pick(f"shape{context.sample}", behaviour.replies)
    draft = draft_reply(form, verdict, grid, prompt.shown, draws)
    rendered = SHAPES[shape](draft, behaviour.notes_tokens) if shape else plain(draft)
    decision = Decision(
        question=digest,
        model=request.model,
        items=tuple(one.item for one in prompt.shown),
        qualities=tuple(one.truth.quality for one in prompt.shown),
        pair=form.pair,
        true_winner=true_winner(prompt.shown),
        winner=verdict.winner if form.pair else None,
        score=grid.share(grid.nearest(verdict.score)),
        expected=None if request.top_logprobs is None else expected_score(grid, verdict.score, behaviour.spread),
        causes=verdict.causes,
        shape=shape or "plain",
        choice=choice,
        sighting=sighting,
        call=call,
    )
    return decision, None if rendered.missing else _reply(request, behaviour, form, grid, verdict, draft, rendered)


def _reply(
    request: JudgeRequest,
    behaviour: Behaviour,
    form: ReplyForm,
    grid: ScoreGrid,
    verdict: FakeVerdict,
    draft: ReplyDraft,
    rendered: RenderedReply,
) -> ReplyChoice:
    if rendered.text is None:
        return ReplyChoice(None, rendered.finish, rendered.refusal)
    tokens = _tokens(request, behaviour, form, grid, verdict, draft, rendered.text)
    finish = rendered.finish
    if request.max_tokens is not None and len(tokens) > request.max_tokens:
        tokens, finish = tokens[: request.max_tokens], "length"
    text = "".join(token.text for token in tokens)
    if rendered.calls or request.forced_tool:
        tool = request.forced_tool or (request.tools[0] if request.tools else None)
        return ReplyChoice(None, finish, call=ReplyToolCall(tool.name if tool else _TOOL, text), tokens=tokens)
    return ReplyChoice(text, finish, tokens=tokens)


def _tokens(
    request: JudgeRequest,
    behaviour: Behaviour,
    form: ReplyForm,
    grid: ScoreGrid,
    verdict: FakeVerdict,
    draft: ReplyDraft,
    text: str,
) -> tuple[ReplyToken, ...]:
    value = str(draft.value) if draft.pair else json.dumps(draft.value)
    before = "[[" if form.brackets else f'"{form.key}":'
    start = text.find(before)
    at = text.find(value, start + len(before)) if start >= 0 else -1
    likely: list[WeightedText] = []
    if request.top_logprobs is not None and form.pair:
        likely = label_distribution(form, verdict, behaviour.spread)
    elif request.top_logprobs is not None and form.choices:
        shares = score_distribution(grid, verdict.score, behaviour.spread)
        likely = [(label, share) for label, (_, share) in zip(form.choices[::-1], shares, strict=True)]
    elif request.top_logprobs is not None:
        likely = score_distribution(grid, verdict.score, behaviour.spread)
    return tokenise(text, at, value, likely, split=behaviour.score_tokens == "split" and not draft.pair)
