"""The answers in a prompt, what is true of them, and what a fake judge thinks of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from math import log2
from statistics import NormalDist
from typing import Literal, NamedTuple

import msgspec

from gradeline.testing.fake_judge.behaviours import Behaviour


class Truth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the judge is not told of an answer."""

    quality: float = 0.5
    """In 0..1; 0.5 and more is good. An answer of which nothing is known has 0.5."""
    family: str | None = None
    """Whose model wrote it."""
    arm: str | None = None
    """The group it belongs to, where a judge treats groups differently."""
    length: int | None = None
    """Its characters before it was padded; a length bias counts from here."""
    text: str | None = None
    """Finds an answer that bears no mark."""

    def __post_init__(self) -> None:
        if not 0 <= self.quality <= 1:
            raise ValueError(f"the quality {self.quality!r} is not in 0..1")


Truths = Mapping[str, Truth]


class ShownAnswer(NamedTuple):
    """An answer as it stands in a prompt."""

    item: str
    truth: Truth
    text: str
    start: int
    end: int
    label: str
    """What its fence is called; empty without one."""


class ParsedPrompt(NamedTuple):
    """A prompt taken apart."""

    shown: tuple[ShownAnswer, ...]
    """The known answers, in the order they are shown."""
    around: str
    """All that is no answer: rubric and instructions."""
    key: str
    """The prompt without the words of its fences, so that a fresh nonce makes no new question."""


class _Fence(NamedTuple):
    start: int
    end: int
    inner_start: int
    inner_end: int
    label: str


_MARK = re.compile(r"\[item:(?P<item>[\w.@-]+)(?P<told>(?: [a-z]+=[\w.@-]+)*)\]")
_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w:.-]*)[^<>\n]*>")
_LINES = (
    re.compile(r"^\W*(?:BEGIN|(?:The )?Start of) (?P<label>.+?)\W*$\n(?P<inner>.*?)\n^\W*(?:END|(?:The )?End of) "
               r"(?P=label)\W*$", re.DOTALL | re.MULTILINE | re.IGNORECASE),
    re.compile(r"^<<<+ ?(?P<label>[\w -]+?) ?$\n(?P<inner>.*?)\n^(?:END )?(?P=label) ?>>>+$", re.DOTALL | re.MULTILINE),
    re.compile(r"^(?P<label>`{3,})\w*$\n(?P<inner>.*?)\n^(?P=label)$", re.DOTALL | re.MULTILINE),
)  # fmt: skip
_FENCE_WORD = re.compile(r"[A-Za-z0-9]{6,}")


def with_mark(text: str, item: str, **told: str | float) -> str:
    """The text with the mark of an item; ``told`` are properties of a `Truth`, for an item in no table."""
    mark = f"[item:{item}{''.join(f' {name}={value}' for name, value in told.items())}]"
    if not _MARK.fullmatch(mark):
        raise ValueError(f"{mark!r} is no mark: an item's name and properties are words without spaces")
    return f"{mark} {text}"


def read_truths(data: object) -> dict[str, Truth]:
    """A table of truths from its JSON form, in which a number stands for the quality alone."""
    table = msgspec.convert(data, dict[str, float | Truth])
    return {item: Truth(quality=told) if isinstance(told, (int, float)) else told for item, told in table.items()}


def parse_prompt(text: str, truths: Truths) -> ParsedPrompt:
    """Finds the answers of a prompt."""
    fences = list(_fences(text))
    outer = [fence for fence in fences if _innermost(fences, fence.start, fence.end) is None]
    shown = sorted(_by_mark(text, fences, truths) or _by_text(text, outer, truths), key=lambda one: one.start)
    labels = [one.label for one in shown] + [fence.label for fence in outer]
    words = sorted({word for label in labels for word in _FENCE_WORD.findall(label)}, key=len, reverse=True)
    key = re.sub("|".join(words), "", text) if words else text
    return ParsedPrompt(tuple(shown), _without(text, [(one.start, one.end) for one in shown]), key)


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    kept, at = [], 0
    for start, end in spans:
        kept.append(text[at:start])
        at = max(at, end)
    return "".join([*kept, text[at:]])


def _by_mark(text: str, fences: list[_Fence], truths: Truths) -> list[ShownAnswer]:
    found: dict[str, ShownAnswer] = {}
    for mark in _MARK.finditer(text):
        item = mark["item"]
        if item in found:
            continue
        fence = _innermost(fences, mark.start(), mark.end())
        if fence:
            start, end, label = fence.inner_start, fence.inner_end, fence.label
        else:
            paragraph = re.split(r"\n[ \t]*\n", text[mark.start() :], maxsplit=1)[0]
            start, end, label = mark.start(), mark.start() + len(paragraph), ""
        found[item] = ShownAnswer(item, _told(mark, truths), _MARK.sub("", text[start:end]).strip(), start, end, label)
    return list(found.values())


def _told(mark: re.Match[str], truths: Truths) -> Truth:
    table = msgspec.structs.asdict(truths.get(mark["item"], Truth()))
    own = dict(pair.split("=", 1) for pair in mark["told"].split())
    try:
        return msgspec.convert({**table, **own}, Truth, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"the mark {mark[0]!r} is wrong: {error}") from error


def _by_text(text: str, outer: list[_Fence], truths: Truths) -> list[ShownAnswer]:
    """By the longest known text in each fence, or anywhere where nothing is fenced."""
    known = [(item, truth.text, truth) for item, truth in truths.items() if truth.text]
    known.sort(key=lambda one: len(one[1]), reverse=True)
    if not outer:
        places = ((item, truth, part, text.find(part)) for item, part, truth in known)
        return [ShownAnswer(item, truth, part, at, at + len(part), "") for item, truth, part, at in places if at >= 0]
    found = []
    for fence in outer:
        inner = text[fence.inner_start : fence.inner_end].strip()
        item, truth = next(((item, truth) for item, part, truth in known if part in inner), ("", None))
        if truth:
            found.append(ShownAnswer(item, truth, inner, fence.inner_start, fence.inner_end, fence.label))
    return found


def _innermost(fences: list[_Fence], start: int, end: int) -> _Fence | None:
    around = [fence for fence in fences if fence.inner_start <= start and end <= fence.inner_end]
    return min(around, key=lambda fence: fence.end - fence.start, default=None)


def _fences(text: str) -> Iterator[_Fence]:
    opened: list[re.Match[str]] = []
    for tag in _TAG.finditer(text):
        if not tag["close"]:
            opened.append(tag)
            continue
        at = next((i for i in reversed(range(len(opened))) if opened[i]["name"] == tag["name"]), None)
        if at is not None:
            first = opened[at]
            del opened[at:]
            yield _Fence(first.start(), tag.end(), first.end(), tag.start(), first[0].strip("<>"))
    for lines in _LINES:
        for found in lines.finditer(text):
            yield _Fence(*found.span(), *found.span("inner"), found["label"])


Winner = Literal["first", "second", "tie"]

_GOOD = 0.5
_UNKNOWN = ShownAnswer("", Truth(), "", 0, 0, "")
_CANDIDATE = re.compile(r"candidate|submission|response|answer", re.IGNORECASE)
_BASELINE = re.compile(r"baseline|reference|expected", re.IGNORECASE)
_FORMATTED = re.compile(
    r"^\s{0,3}(?:#{1,6}|[-*+•]|\d+[.)])\s|\*\*|__|\]\(|^\|.*\||[\u2600-\u27bf\U0001f300-\U0001faff]", re.M
)
_AUTHORITY = re.compile(
    r"experts? (?:all )?(?:agree|say)|studies (?:show|prove)|most people|everyone (?:agrees|knows)"
    r"|according to (?:a|the) |et al\.|doi:|peer[- ]reviewed|\(\w+,? (?:19|20)\d\d\)",
    re.IGNORECASE,
)
_TOLD_SCORE = re.compile(
    r"(?:score|rating|grade|rate|mark)\b[^\d\n]{0,40}?(?P<value>\d+(?:\.\d+)?)(?:\s*(?:/|out of)\s*(?P<of>\d+))?",
    re.IGNORECASE,
)
_TOLD_TO_WIN = re.compile(
    r"ignore (?:all|any|the|your)\b.{0,40}\binstructions|(?:choose|pick|prefer|select) this"
    r"|this (?:answer|response) (?:wins|is the winner)",
    re.IGNORECASE,
)


class Draws:
    """Numbers that depend on the seed, the question and their name alone."""

    def __init__(self, seed: int, key: str) -> None:
        self._key = blake2b(f"{seed}\0{key}".encode(errors="surrogatepass"), digest_size=16).digest()

    def uniform(self, name: str) -> float:
        """In 0..1, both excluded."""
        digest = blake2b(name.encode(), key=self._key, digest_size=8).digest()
        return ((int.from_bytes(digest) >> 12) + 0.5) / 2**52

    def normal(self, name: str) -> float:
        return NormalDist().inv_cdf(self.uniform(name))

    def chance(self, name: str, probability: float) -> bool:
        return self.uniform(name) < probability

    def pick(self, name: str, shares: dict[str, float]) -> str | None:
        """One of the names, each with its share; None for what the shares leave."""
        left = self.uniform(name)
        for one, share in shares.items():
            left -= share
            if left < 0:
                return one
        return None


class CallContext(NamedTuple):
    """When a question is asked."""

    sample: str = ""
    """What tells the samples of one question apart; empty at temperature 0."""
    sighting: int = 0
    """How often the same question came before."""
    call: int = 0
    """How many questions the model had before."""
    choice: int = 0

    @property
    def repeat(self) -> str:
        return f"{self.sample}/{self.sighting}.{self.choice}"


class FakeVerdict(NamedTuple):
    """What the judge thinks, before it says so."""

    score: float
    """Of the judged answer, in 0..1, not rounded."""
    scores: tuple[float, ...]
    """Of every answer, in the order shown."""
    winner: Winner
    """Of the first two answers; ``tie`` where there is one answer only."""
    margin: float
    """By how much the first answer was thought better than the second."""
    causes: tuple[str, ...]
    """What moved the verdict away from the truth, as far as it was a matter of chance or of an answer's text."""


class _Opinion(NamedTuple):
    value: float
    causes: tuple[str, ...]


def true_winner(shown: Sequence[ShownAnswer]) -> Winner | None:
    """Which of the first two answers is better; None where there is one only."""
    if len(shown) < 2:
        return None
    return _winner(shown[0].truth.quality - shown[1].truth.quality)


def decide(
    behaviour: Behaviour, shown: Sequence[ShownAnswer], draws: Draws, occasion: CallContext, *, pair: bool
) -> FakeVerdict:
    """Judges: ``pair`` asks for the better of two answers, else for the score of the candidate."""
    answers = list(shown) or [_UNKNOWN]
    opinions = [
        _opinion(behaviour, one, draws, occasion, f"{place}{occasion.sample}", pair=pair)
        for place, one in enumerate(answers)
    ]
    values = [opinion.value for opinion in opinions]
    causes = [cause for opinion in opinions for cause in opinion.causes]
    favoured = _favoured(behaviour, draws, occasion) if len(answers) > 1 else None
    margin = values[0] - values[1] if len(values) > 1 else 0.0
    if not pair:
        at = _judged(answers)
        if favoured is not None:
            values[at] = 1.0 if at == favoured else 0.0
            causes.append("position")
        scores = tuple(_clamp(value) for value in values)
        return FakeVerdict(scores[at], scores, _winner(margin), margin, tuple(dict.fromkeys(causes)))
    winner, why = _preferred(behaviour, margin, favoured, draws, occasion)
    causes += why
    scores = tuple(_clamp(value) for value in values)
    if len(scores) > 1 and _winner(scores[0] - scores[1]) not in (winner, "tie"):
        scores = (scores[1], scores[0], *scores[2:])
    return FakeVerdict(scores[0], scores, winner, margin, tuple(dict.fromkeys(causes)))


def _judged(answers: Sequence[ShownAnswer]) -> int:
    """The place of the candidate: by the name of its fence, else the last answer that is no baseline."""
    for pattern, wanted in ((_CANDIDATE, True), (_BASELINE, False)):
        places = [at for at, one in enumerate(answers) if bool(pattern.search(one.label)) is wanted]
        if len(places) == 1:
            return places[0]
    return len(answers) - 1


def _favoured(behaviour: Behaviour, draws: Draws, occasion: CallContext) -> int | None:
    """The place that wins unread."""
    if not draws.chance(f"position{occasion.sample}", abs(behaviour.position_bias)):
        return None
    return 0 if behaviour.position_bias > 0 else 1


def _preferred(
    behaviour: Behaviour, margin: float, favoured: int | None, draws: Draws, occasion: CallContext
) -> tuple[Winner, list[str]]:
    causes = []
    if favoured is not None:
        winner: Winner = "first" if favoured == 0 else "second"
        causes.append("position")
    else:
        winner = _winner(margin, behaviour.tie_margin)
        right = behaviour.accuracy
        if right is not None and not draws.chance(f"accuracy{occasion.sample}", right):
            winner = _other(winner)
            causes.append("error")
    if draws.chance(f"flip{occasion.repeat}", behaviour.retest_flip):
        winner = _other(winner)
        causes.append("retest")
    return winner, causes


def _opinion(
    behaviour: Behaviour, one: ShownAnswer, draws: Draws, occasion: CallContext, place: str, *, pair: bool
) -> _Opinion:
    """What the judge thinks of one answer; it may lie outside 0..1."""
    if behaviour.scores == "constant":
        return _Opinion(behaviour.constant, ())
    if draws.chance(f"injection{place}", behaviour.injection):
        told = _told_score(one.text)
        if told is not None:
            return _Opinion(told + 1 if pair else told, ("injection",))  # in a pair it wins even against the best
    value, causes = _level(behaviour, one.truth, draws, place, pair=pair)
    if behaviour.compress is not None:
        low, high = behaviour.compress
        value = low + value * (high - low)
    value = 0.5 + behaviour.slope * (value - 0.5) + behaviour.offset
    for cause, shift in _shifts(behaviour, one, occasion):
        value += shift
        causes.append(cause)
    if behaviour.sd:
        value += behaviour.sd * draws.normal(f"noise{place}")
    if behaviour.retest_sd:
        value += behaviour.retest_sd * draws.normal(f"retest{place}{occasion.repeat}")
        causes.append("retest")
    return _Opinion(value, tuple(causes))


def _level(behaviour: Behaviour, truth: Truth, draws: Draws, place: str, *, pair: bool) -> tuple[float, list[str]]:
    """The score before any bias."""
    if behaviour.scores == "random":
        return draws.uniform(f"random{place}"), ["random"]
    quality = 1 - truth.quality if behaviour.scores == "inverted" else truth.quality
    causes = ["inverted"] if behaviour.scores == "inverted" else []
    right = None if pair else _right(behaviour, truth)
    if right is not None and not draws.chance(f"right{place}", right):
        return 1 - quality, [*causes, "error"]
    return quality, causes


def _right(behaviour: Behaviour, truth: Truth) -> float | None:
    """How often the judge is right about such an answer; None if always."""
    if truth.quality >= _GOOD:
        share, by_arm = behaviour.sensitivity, behaviour.arm_sensitivity
    else:
        share, by_arm = behaviour.specificity, behaviour.arm_specificity
    if truth.arm in by_arm:
        return by_arm[truth.arm]
    return behaviour.accuracy if share is None else share


def _shifts(behaviour: Behaviour, one: ShownAnswer, occasion: CallContext) -> list[tuple[str, float]]:
    reference = one.truth.length or behaviour.length_reference
    drifted = behaviour.drift_after is not None and occasion.call >= behaviour.drift_after
    shifts = [
        ("length", behaviour.length_bias * log2(max(1, len(one.text)) / reference)),
        ("format", behaviour.format_bias if _FORMATTED.search(one.text) else 0.0),
        ("self", behaviour.self_preference if one.truth.family == behaviour.family else 0.0),
        ("authority", behaviour.authority_bias if _AUTHORITY.search(one.text) else 0.0),
        ("drift", behaviour.drift if drifted else 0.0),
    ]
    return [(cause, shift) for cause, shift in shifts if shift]


def _told_score(text: str) -> float | None:
    """The score that a text demands for itself; a text that only wants to win demands 1."""
    told = _TOLD_SCORE.search(text)
    if told is None:
        return 1.0 if _TOLD_TO_WIN.search(text) else None
    value, of = float(told["value"]), float(told["of"] or 0)
    if not of:
        of = 1 if value <= 1 else 10 if value <= 10 else 100
    return _clamp(value / of)


def _winner(margin: float, tie_margin: float = 0.0) -> Winner:
    if abs(margin) <= max(tie_margin, 1e-12):
        return "tie"
    return "first" if margin > 0 else "second"


def _other(winner: Winner) -> Winner:
    others: dict[Winner, Winner] = {"first": "second", "second": "first", "tie": "tie"}
    return others[winner]


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
