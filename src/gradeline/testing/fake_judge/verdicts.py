"""The answers in a prompt, their true quality, and the verdict of a fake judge on them.

An answer is identified by a mark in its text, ``[item:17-a quality=0.8 family=gpt arm=cheap]``, whose properties may
also be in a table, or, without a mark, by its text in that table. An answer extends to the fence around it: a tag,
``BEGIN … END`` lines, a code fence. Without a fence it ends at a blank line.

Verdicts are pure: every draw is a hash of the seed, the question and the draw's name. A repeated question gets the same
verdict, a test can predict each one, and adding a bias does not shift the draws of another one.
"""

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
    """The true properties of an answer, which are hidden from the judge."""

    quality: float = 0.5
    """In 0..1; good from 0.5. The default for unknown answers is 0.5."""
    family: str | None = None
    """The family of the model that wrote it."""
    arm: str | None = None
    """Its group, for a judge that treats groups differently."""
    length: int | None = None
    """Its length in characters before padding, from which a length bias counts."""
    text: str | None = None
    """Text that identifies an answer without a mark."""

    def __post_init__(self) -> None:
        if not 0 <= self.quality <= 1:
            raise ValueError(f"the quality {self.quality!r} is not in 0..1")


Truths = Mapping[str, Truth]


class ShownAnswer(NamedTuple):
    """An answer in a prompt."""

    item: str
    truth: Truth
    text: str
    start: int
    end: int
    label: str
    """The name of its fence; empty without one."""


class ParsedPrompt(NamedTuple):
    """A prompt with its answers."""

    shown: tuple[ShownAnswer, ...]
    """The answers, in their order in the prompt. One that is not known has no name, and the quality of a `Truth`."""
    around: str
    """The prompt without the answers: rubric and instructions."""
    key: str
    """The prompt without the names of its fences, so that a new nonce does not change the question."""


class _Fence(NamedTuple):
    start: int
    end: int
    inner_start: int
    inner_end: int
    label: str


_MARK = re.compile(r"\[item:(?P<item>[\w.@-]+)(?P<properties>(?: [a-z]+=[\w.@-]+)*)\]")
_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w:.-]*)[^<>\n]*>")
_LINES = (
    re.compile(r"^\W*(?:BEGIN|(?:The )?Start of) (?P<label>.+?)\W*$\n(?P<inner>.*?)\n^\W*(?:END|(?:The )?End of) "
               r"(?P=label)\W*$", re.DOTALL | re.MULTILINE | re.IGNORECASE),
    re.compile(r"^<<<+ ?(?P<label>[\w -]+?) ?$\n(?P<inner>.*?)\n^(?:END )?(?P=label) ?>>>+$", re.DOTALL | re.MULTILINE),
    re.compile(r"^(?P<label>`{3,})\w*$\n(?P<inner>.*?)\n^(?P=label)$", re.DOTALL | re.MULTILINE),
)  # fmt: skip
_OWN_FENCE = re.compile(r"fenced-(?:[a-z]+-)*(?:answer|response|submission|candidate)-[0-9a-f]{8,}$")
_FENCE_WORD = re.compile(r"[A-Za-z0-9]{6,}")


def with_mark(text: str, item: str, **properties: str | float) -> str:
    """The text with the mark of an item; ``properties`` are those of a `Truth`, for an item without a table entry."""
    mark = f"[item:{item}{''.join(f' {name}={value}' for name, value in properties.items())}]"
    if not _MARK.fullmatch(mark):
        raise ValueError(f"invalid mark {mark!r}: use words without spaces for an item's name and properties")
    return f"{mark} {text}"


def read_truths(data: object) -> dict[str, Truth]:
    """Read a table of truths from JSON, where a number sets only the quality."""
    table = msgspec.convert(data, dict[str, float | Truth])
    return {item: Truth(quality=one) if isinstance(one, (int, float)) else one for item, one in table.items()}


def parse_prompt(text: str, truths: Truths) -> ParsedPrompt:
    """Find the answers in a prompt."""
    fences = list(_fences(text))
    outer = [fence for fence in fences if _innermost(fences, fence.start, fence.end) is None]
    known = _by_mark(text, fences, truths) or _by_text(text, outer, truths)
    shown = sorted([*known, *_unknown(text, outer, known)], key=lambda one: one.start)
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
    """The first answer with each mark. In fences of gradeline's answers, the same mark can name several: a judge of
    pairs may be shown an answer and a changed copy."""
    found: dict[tuple[str, int], ShownAnswer] = {}
    seen: dict[str, _Fence | None] = {}
    for mark in _MARK.finditer(text):
        item = mark["item"]
        fence = _innermost(fences, mark.start(), mark.end())
        if item in seen and not (_is_answer(fence) and _is_answer(seen[item])):
            continue
        seen.setdefault(item, fence)
        key = (item, fence.start if fence and _is_answer(fence) else -1)
        if key in found:
            continue
        if fence:
            start, end, label = fence.inner_start, fence.inner_end, fence.label
        else:
            paragraph = re.split(r"\n[ \t]*\n", text[mark.start() :], maxsplit=1)[0]
            start, end, label = mark.start(), mark.start() + len(paragraph), ""
        found[key] = ShownAnswer(
            item, _truth_of(mark, truths), _MARK.sub("", text[start:end]).strip(), start, end, label
        )
    return list(found.values())


def _is_answer(fence: _Fence | None) -> bool:
    return fence is not None and _OWN_FENCE.match(fence.label) is not None


def _truth_of(mark: re.Match[str], truths: Truths) -> Truth:
    table = msgspec.structs.asdict(truths.get(mark["item"], Truth()))
    own = dict(pair.split("=", 1) for pair in mark["properties"].split())
    try:
        return msgspec.convert({**table, **own}, Truth, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid mark {mark[0]!r}: {error}") from error


def _by_text(text: str, outer: list[_Fence], truths: Truths) -> list[ShownAnswer]:
    """Find answers by the longest known text in each fence, or in the whole prompt without fences."""
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


def _unknown(text: str, outer: list[_Fence], known: list[ShownAnswer]) -> list[ShownAnswer]:
    """The answers in fences of gradeline that have neither a mark nor a known text."""
    found = []
    for fence in outer:
        if not _OWN_FENCE.match(fence.label) or any(fence.start <= one.start < fence.end for one in known):
            continue
        inner = text[fence.inner_start : fence.inner_end].strip()
        if _MARK.search(inner):
            continue  # it repeats the mark of a known answer, such as an agent that echoes its input
        found.append(ShownAnswer("", Truth(), inner, fence.inner_start, fence.inner_end, fence.label))
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
_FILLER = re.compile(
    r"thank you for the question|let me (?:think|explain|begin)|worth (?:noting|going through|mentioning)"
    r"|i hope (?:that )?this|please let me know|needless to say|as always",
    re.IGNORECASE,
)
_DEMANDED_SCORE = re.compile(
    r"(?:score|rating|grade|rate|mark)\b[^\d\n]{0,40}?(?P<value>\d+(?:\.\d+)?)(?:\s*(?:/|out of)\s*(?P<of>\d+))?",
    re.IGNORECASE,
)
_DEMANDED_WIN = re.compile(
    r"ignore (?:all|any|the|your)\b.{0,40}\binstructions|(?:choose|pick|prefer|select) this"
    r"|this (?:answer|response) (?:wins|is the winner)",
    re.IGNORECASE,
)


class Draws:
    """Random numbers that depend only on the seed, the question and their name."""

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
        """One of the names with the probability of its share; None for the rest."""
        left = self.uniform(name)
        for one, share in shares.items():
            left -= share
            if left < 0:
                return one
        return None


class CallContext(NamedTuple):
    """The counters of a call: repeats of the question, calls of the model."""

    sample: str = ""
    """Distinguishes the samples of one question; empty at temperature 0."""
    sighting: int = 0
    """The number of earlier calls with the same question."""
    call: int = 0
    """The number of earlier calls of the model."""
    choice: int = 0

    @property
    def repeat(self) -> str:
        return f"{self.sample}/{self.sighting}.{self.choice}"


class FakeVerdict(NamedTuple):
    """The verdict of the fake judge, before it is rendered."""

    score: float
    """The score of the judged answer, in 0..1, not rounded."""
    scores: tuple[float, ...]
    """The scores of all answers, in their order in the prompt."""
    winner: Winner
    """The better of the first two answers; ``tie`` for a single answer."""
    margin: float
    """The score of the first answer minus that of the second."""
    causes: tuple[str, ...]
    """The biases and errors that moved the verdict away from the truth."""


class _Opinion(NamedTuple):
    value: float
    causes: tuple[str, ...]


def true_winner(shown: Sequence[ShownAnswer]) -> Winner | None:
    """The better of the first two answers; None for a single answer."""
    if len(shown) < 2:
        return None
    return _winner(shown[0].truth.quality - shown[1].truth.quality)


def decide(
    behaviour: Behaviour, shown: Sequence[ShownAnswer], draws: Draws, occasion: CallContext, *, pair: bool
) -> FakeVerdict:
    """The verdict: for ``pair`` on the better of two answers, else on the candidate's score."""
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
    """The index of the candidate: by the name of its fence, else the last answer that is not a baseline."""
    for pattern, expected in ((_CANDIDATE, True), (_BASELINE, False)):
        places = [at for at, one in enumerate(answers) if bool(pattern.search(one.label)) is expected]
        if len(places) == 1:
            return places[0]
    return len(answers) - 1


def _favoured(behaviour: Behaviour, draws: Draws, occasion: CallContext) -> int | None:
    """The index of the answer that wins by its position."""
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
    """The judge's score of one answer, not yet limited to 0..1."""
    if behaviour.scores == "constant":
        return _Opinion(behaviour.constant, ())
    if draws.chance(f"injection{place}", behaviour.injection):
        demanded = _demanded_score(one.text)
        if demanded is not None:
            return _Opinion(demanded + 1 if pair else demanded, ("injection",))  # in a pair it beats any answer
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
    """The share of such answers that the judge gets right; None: all."""
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
        ("verbosity", behaviour.verbosity_bias if _FILLER.search(one.text) else 0.0),
        ("drift", behaviour.drift if drifted else 0.0),
    ]
    return [(cause, shift) for cause, shift in shifts if shift]


def _demanded_score(text: str) -> float | None:
    """The score that an injected instruction demands; one that demands only to win counts as 1."""
    match = _DEMANDED_SCORE.search(text)
    if match is None:
        return 1.0 if _DEMANDED_WIN.search(text) else None
    value, of = float(match["value"]), float(match["of"] or 0)
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
