"""What a fake judge does wrong and how often, as JSON or by name, and the malformed reply shapes of models."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_origin, get_type_hints

import msgspec

from gradeline.testing.fake_judge.wire import FAULTS, FinishReason

REFUSAL = "I'm sorry, but I can't help with that request."
Field = tuple[str, object]


class ReplyDraft(NamedTuple):
    """A verdict before it is rendered as text."""

    fields: tuple[Field, ...]
    """The reply's keys and values, in order."""
    key: str
    """The field with the verdict."""
    notes: str
    """The field with the reasons; it may be missing from the fields."""
    other: object
    """A verdict that contradicts this one."""
    share: float
    """The score in 0..1."""
    low: float = 0.0
    high: float = 1.0
    pair: bool = False
    brackets: bool = False
    """True for a verdict ``[[in brackets]]`` after the reasons, instead of JSON."""

    @property
    def value(self) -> object:
        return dict(self.fields)[self.key]

    def with_verdict(self, value: object) -> ReplyDraft:
        """The draft with another verdict."""
        return self._replace(fields=tuple((key, value if key == self.key else old) for key, old in self.fields))

    def with_notes(self, notes: str) -> ReplyDraft:
        """The draft with other reasons."""
        rest = tuple(field for field in self.fields if field[0] != self.notes)
        return self._replace(fields=(*rest, (self.notes, notes)))

    def text(self) -> str:
        if not self.brackets:
            return _object(self.fields)
        verdict = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return f"{dict(self.fields).get(self.notes, '')}\n\n[[{verdict}]]"


class RenderedReply(NamedTuple):
    """The text of a reply and its finish reason."""

    text: str | None
    finish: FinishReason = "stop"
    refusal: str | None = None
    calls: bool = False
    """True if the text is the arguments of a tool call."""
    missing: bool = False
    """True if the response has no choice at all."""


ReplyShape = Callable[[ReplyDraft, int], RenderedReply]
"""Renders a draft; the number is the length of a long reply in tokens."""


def _object(fields: tuple[Field, ...]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields) + "}"


def plain(draft: ReplyDraft, _: int = 0) -> RenderedReply:
    return RenderedReply(draft.text())


def _around(before: str, after: str) -> ReplyShape:
    return lambda draft, _: RenderedReply(f"{before}{draft.text()}{after}")


def _with_value(score: Callable[[ReplyDraft], object], label: object) -> ReplyShape:
    """Another value: derived from the score, or a label instead of the winner of a pair."""
    return lambda draft, _: RenderedReply(draft.with_verdict(label if draft.pair else score(draft)).text())


def _with_notes(notes: Callable[[ReplyDraft], str]) -> ReplyShape:
    return lambda draft, _: RenderedReply(draft.with_notes(notes(draft)).text())


def _single_quotes(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(draft.text().replace('"', "'"))


def _trailing_comma(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(f"{draft.text()[:-1]},}}")


def _comments(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(draft.text().replace("{", "{ // on the whole\n", 1))


def _invalid(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(f"{{{draft.key or 'verdict'} = {draft.value}")


def _two_objects(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(f"{draft.text()}\n{draft.with_verdict(draft.other).text()}")


def _same_twice(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(f"{draft.text()}\n{draft.text()}")


def _echoed(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(f"The format is {draft.with_verdict(draft.other).with_notes('why').text()}.\n\n{draft.text()}")


def _missing_key(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(
        _object(tuple(field for field in draft.with_notes("No verdict.").fields if field[0] != draft.key))
    )


def _duplicate_key(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(_object(((draft.key or "verdict", draft.other), *draft.fields)))


def _nested(draft: ReplyDraft, _: int) -> RenderedReply:
    return RenderedReply(json.dumps({"result": dict(draft.fields)}, ensure_ascii=False))


def _raw_control(draft: ReplyDraft, _: int) -> RenderedReply:
    """An unescaped line break in a string, which strict JSON forbids."""
    return RenderedReply(draft.with_notes("two@lines").text().replace("@", "\n"))


def _long(draft: ReplyDraft, tokens: int) -> RenderedReply:
    return RenderedReply(draft.with_notes("word " * tokens).text())


def _cut(draft: ReplyDraft, _: int) -> RenderedReply:
    text = draft.with_notes("Cut off before the end").text()
    return RenderedReply(text[: len(text) - 12], "length")


def _fraction(draft: ReplyDraft) -> str:
    return f"{draft.share * 10:.0f}/10"


SHAPES: Mapping[str, ReplyShape] = {
    "fenced": _around("```json\n", "\n```"),
    "text-before": _around("Here is my verdict:\n\n", ""),
    "text-after": _around("", "\n\nLet me know if you need more."),
    "wrapped": _around("Here is my verdict:\n\n", "\n\nLet me know if you need more."),
    "bom": _around("\ufeff", ""),
    "single-quotes": _single_quotes,
    "trailing-comma": _trailing_comma,
    "comments": _comments,
    "invalid-json": _invalid,
    "prose": lambda _draft, _tokens: RenderedReply("On the whole the answer is rather good, I should think."),
    "two-objects": _two_objects,
    "same-twice": _same_twice,
    "echoed-example": _echoed,
    "score-text": _with_value(lambda draft: json.dumps(draft.value), ["A"]),
    "score-percent": _with_value(lambda draft: f"{draft.share:.0%}", "100%"),
    "score-fraction": _with_value(_fraction, "10/10"),
    "score-hundred": _with_value(lambda draft: max(2, round(draft.share * 100)), 2),
    "score-above": _with_value(lambda draft: round(draft.high + 0.2 * (draft.high - draft.low), 4), "neither of them"),
    "score-below": _with_value(lambda draft: round(draft.low - 0.1 * (draft.high - draft.low), 4), ""),
    "score-nan": _with_value(lambda _: float("nan"), float("nan")),
    "score-infinity": _with_value(lambda _: float("inf"), float("inf")),
    "score-null": _with_value(lambda _: None, None),
    "score-true": _with_value(lambda _: True, True),
    "missing-key": _missing_key,
    "duplicate-key": _duplicate_key,
    "nested": _nested,
    "notes-huge": _with_notes(lambda _: "On and on. " * 20_000),
    "notes-control": _with_notes(lambda _: "a bell \x07, a NUL \x00, an escape \x1b[31m, and \u202e backwards"),
    "notes-raw-control": _raw_control,
    "notes-json": _with_notes(lambda draft: f"In short: {draft.with_verdict(draft.other).text()}"),
    "long": _long,
    "refusal-text": lambda _draft, _tokens: RenderedReply(REFUSAL),
    "refusal": lambda _draft, _tokens: RenderedReply(None, "refusal", REFUSAL),
    "content-filter": lambda _draft, _tokens: RenderedReply(None, "filter"),
    "truncated": _cut,
    "truncated-whole": lambda draft, _: RenderedReply(draft.text(), "length"),
    "empty": lambda _draft, _tokens: RenderedReply(""),
    "blank": lambda _draft, _tokens: RenderedReply(" \n"),
    "no-choices": lambda _draft, _tokens: RenderedReply(None, missing=True),
    "tool-call": lambda draft, _: RenderedReply(draft.text(), calls=True),
}
"""The malformed or unusual replies, by name."""


MODEL_PREFIX = "fake-judge/"
CAPABILITIES = ("logprobs", "max_tokens", "n", "response_format", "seed", "stream", "temperature", "tools")

_SHARES = ("accuracy", "sensitivity", "specificity", "injection", "retest_flip", "cached_share")


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a fake judge behaves. By default it judges without error and replies with plain JSON."""

    scores: Literal["true", "constant", "random", "inverted"] = "true"
    """The source of the scores; ``inverted`` is one minus the truth."""
    constant: float = 0.8
    accuracy: float | None = None
    """The share of pairs, or of passes and fails, that it judges correctly."""
    sensitivity: float | None = None
    """The share of good answers (quality ≥ 0.5) that it judges correctly; the others get one minus their quality."""
    specificity: float | None = None
    arm_sensitivity: dict[str, float] = {}
    arm_specificity: dict[str, float] = {}
    """Different shares for the answers of an arm."""
    sd: float = 0.0
    """Standard deviation of the noise on a score; a repeated question gets the same noise."""
    retest_sd: float = 0.0
    """Standard deviation of the noise that differs on each repeat, even at temperature 0 and with a seed."""
    retest_flip: float = 0.0
    """The share of repeats that reverse the verdict on a pair."""
    offset: float = 0.0
    """Added to every score."""
    slope: float = 1.0
    """Factor on a score's distance from 0.5."""
    compress: tuple[float, float] | None = None
    """The range to which scores of 0..1 are scaled."""
    levels: int | None = None
    """The number of different scores: 3 are 0, 0.5 and 1."""
    digits: int = 2
    """Decimal places of a score where ``levels`` is not set."""
    position_bias: float = 0.0
    """The share of pairs where it picks the first answer whatever its quality; negative: the second."""
    length_bias: float = 0.0
    """Added for each doubling of an answer's length."""
    length_reference: int = 200
    """The length in characters with no bias, for answers whose `Truth` has no length."""
    format_bias: float = 0.0
    """Added for Markdown, lists, bold and emoji."""
    self_preference: float = 0.0
    """Added for answers of its own family."""
    family: str = "fake"
    authority_bias: float = 0.0
    """Added for answers that appeal to experts, to the majority or to a paper."""
    verbosity_bias: float = 0.0
    """Added for phrases that say nothing, such as thanks for the question."""
    injection: float = 0.0
    """The share of prompt injections that it obeys."""
    tie_margin: float = 0.0
    """The largest difference of scores that is a tie."""
    drift: float = 0.0
    """Added to every score from the call ``drift_after`` on."""
    drift_after: int | None = None
    drift_fingerprint: bool = False
    """True if the drift also changes the system fingerprint."""

    form: Literal["auto", "quality_score", "score", "winner", "rating", "verdict"] = "auto"
    """The reply's form; ``auto`` derives it from the request."""
    replies: dict[str, float] = {}
    """The share of replies with each of the `SHAPES`."""
    notes_tokens: int = 600
    """The length in tokens of a reply of the shape ``long``."""
    score_tokens: Literal["whole", "split"] = "whole"
    """Whether a score is one token or one token per character."""
    spread: float = 0.1
    """Standard deviation of the score distribution in the log-probabilities."""
    usage: Literal["true", "missing", "zero"] = "true"
    cached_share: float = 0.0
    """The share of prompt tokens that the usage reports as cached."""
    echo_model: str | None = None
    """The model that replies name instead of the requested one."""
    fingerprint: str = "fp_fake_1"
    unsupported: tuple[str, ...] = ()
    """Parameters that it rejects with 400."""

    faults: tuple[str, ...] = ()
    """The faults of the first attempts of each request, in order; ``ok`` and all later attempts succeed."""
    fault_rates: dict[str, float] = {}
    """The share of requests with each fault."""
    fault_tries: int = 1
    """The number of attempts of such a request that have the fault; 0: all."""
    retry_after_s: float = 1.0
    """The Retry-After of a 429 in seconds."""
    delay_s: float = 0.2
    """The delay of the slow faults in seconds."""

    def __post_init__(self) -> None:
        problems = [*self._out_of_range(), *self._unknown_names()]
        if problems:
            raise ValueError("; ".join(problems))

    def _out_of_range(self) -> list[str]:
        shares = {name: getattr(self, name) for name in _SHARES}
        shares["position_bias"] = abs(self.position_bias)
        for name in ("arm_sensitivity", "arm_specificity", "replies", "fault_rates"):
            shares |= {f"{name}.{key}": value for key, value in getattr(self, name).items()}
        problems = [
            f"{name} is {value!r}, not in 0..1"
            for name, value in shares.items()
            if value is not None and not 0 <= value <= 1
        ]
        problems += [
            f"the shares of {name} add up to more than 1"
            for name in ("replies", "fault_rates")
            if sum(getattr(self, name).values()) > 1 + 1e-9
        ]
        if self.levels is not None and self.levels < 2:
            problems.append(f"levels is {self.levels}; it must be 2 or more")
        if not 1 <= self.digits <= 4:
            problems.append(f"digits is {self.digits}, not in 1..4")
        return problems

    def _unknown_names(self) -> list[str]:
        named = [
            ("replies", self.replies, SHAPES),
            ("fault_rates", self.fault_rates, FAULTS),
            ("faults", self.faults, {"ok", *FAULTS}),
            ("unsupported", self.unsupported, CAPABILITIES),
        ]
        return [
            f"{field}: unknown name {name!r}; use one of {', '.join(sorted(known))}"
            for field, names, known in named
            for name in names
            if name not in known
        ]


Fields = dict[str, object]
"""Some of a behaviour's fields."""

_HINTS = get_type_hints(Behaviour)


def read_behaviour(data: object, base: Behaviour | None = None) -> Behaviour:
    """Read a behaviour from JSON or from its name, as changes to a base; `ValueError` where it is invalid."""
    fields = named_fields(data) if isinstance(data, str) else data
    if not isinstance(fields, Mapping):
        raise ValueError(f"a behaviour is an object or a name, not {data!r}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(base or Behaviour()), **fields}, Behaviour)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid behaviour: {error}") from error


def named_fields(name: str) -> Fields:
    """The fields of ``position``, ``position?b=0.3&sd=0.1``, ``position,b=0.3+fenced,rate=0.5`` and the like.

    A parameter is one of the named behaviour, or a field of `Behaviour`; the items of a list are separated by ``|``.
    """
    fields: Fields = {}
    for part in name.split("+"):
        head, *pairs = re.split("[?&,]", part)
        parameters = dict(pair.partition("=")[::2] for pair in pairs if pair)
        preset = _preset(head)
        own = {key: parameters.pop(key) for key in inspect.signature(preset).parameters if key in parameters}
        unknown = sorted(set(parameters) - set(_HINTS))
        if unknown:
            known = [*inspect.signature(preset).parameters, *_HINTS]
            raise ValueError(f"{head!r} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
        try:
            new = {**preset(**{key: _value(text) for key, text in own.items()}), **_fields(parameters)}
        except TypeError as error:
            raise ValueError(f"{part!r}: {error}") from error
        for key in ("replies", "fault_rates"):  # shapes and faults of several parts are combined
            if key in new and key in fields:
                new[key] = {**_map(fields[key]), **_map(new[key])}
        fields |= new
    return fields


def _preset(name: str) -> Callable[..., Fields]:
    if name in PRESETS:
        return PRESETS[name]
    if name in SHAPES:
        return lambda rate=1.0: {"replies": {name: rate}}
    if name in FAULTS:
        return lambda rate=1.0, tries=0: {"fault_rates": {name: rate}, "fault_tries": tries}
    raise ValueError(f"unknown behaviour {name!r}; use one of {', '.join(behaviour_names())}")


def behaviour_names() -> list[str]:
    """All names that `named_fields` accepts."""
    return [*PRESETS, *SHAPES, *FAULTS]


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _map(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _fields(parameters: Mapping[str, str]) -> Fields:
    fields: Fields = {}
    for name, text in parameters.items():
        kind = get_origin(_HINTS[name])
        if kind is tuple:
            fields[name] = text.split("|")
        elif kind is dict:
            fields[name] = {key: _value(value) for key, _, value in (pair.partition(":") for pair in text.split("|"))}
        else:
            fields[name] = _value(text)
    return fields


def _perfect() -> Fields:
    return {}


PRESETS: Mapping[str, Callable[..., Fields]] = {
    "perfect": _perfect,
    "honest": lambda sd=0.08: {"sd": sd},
    "accurate": lambda a=0.9: {"accuracy": a},
    "position": lambda b=0.3: {"position_bias": b},
    "position-second": lambda b=0.3: {"position_bias": -b},
    "length": lambda g=0.1: {"length_bias": g},
    "format": lambda g=0.1: {"format_bias": g},
    "self": lambda g=0.1, family="fake": {"self_preference": g, "family": family},
    "authority": lambda g=0.1: {"authority_bias": g},
    "bandwagon": lambda g=0.1: {"authority_bias": g},
    "verbosity": lambda g=0.1: {"verbosity_bias": g},
    "injection": lambda rate=1.0: {"injection": rate},
    "sens-spec": lambda a=0.9, b=0.85: {"sensitivity": a, "specificity": b},
    "arm-biased": lambda arm="cheap", a=0.9, b=0.9, spec=0.6: {
        "sensitivity": a,
        "specificity": b,
        "arm_specificity": {str(arm): spec},
    },
    "constant": lambda value=0.8: {"scores": "constant", "constant": value},
    "random": lambda: {"scores": "random"},
    "inverted": lambda: {"scores": "inverted"},
    "compressed": lambda low=0.7, high=0.9: {"compress": [low, high]},
    "coarse": lambda n=3: {"levels": n},
    "nondeterministic": lambda sd=0.1, flip=0.1: {"retest_sd": sd, "retest_flip": flip},
    "drift": lambda k=100, g=-0.1, fingerprint=False: {
        "drift": g,
        "drift_after": k,
        "drift_fingerprint": fingerprint,
    },
    "reliable-but-wrong": lambda b=0.4: {"position_bias": b, "retest_sd": 0.0, "retest_flip": 0.0},
    "changed-fingerprint": lambda k=1: {"drift_after": k, "drift_fingerprint": True},
    "wrong-model": lambda model="another-model": {"echo_model": model},
    "no-usage": lambda: {"usage": "missing"},
    "zero-usage": lambda: {"usage": "zero"},
    "unsupported": lambda param="seed": {"unsupported": str(param).split("|")},
    "split-tokens": lambda: {"score_tokens": "split"},
}
"""Named behaviours with their parameters; the names of shapes and faults are behaviours too."""
