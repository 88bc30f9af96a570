"""What a fake judge does wrong, and how often: one frozen value, given as JSON or by name."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Literal, get_origin, get_type_hints

import msgspec

from gradeline.testing.fake_judge.faults import FAULTS
from gradeline.testing.fake_judge.shapes import SHAPES

MODEL_PREFIX = "fake-judge/"
CAPABILITIES = ("logprobs", "max_tokens", "n", "response_format", "seed", "stream", "temperature", "tools")

_SHARES = ("accuracy", "sensitivity", "specificity", "injection", "retest_flip", "cached_share")


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The default judges without error and answers with bare JSON."""

    scores: Literal["true", "constant", "random", "inverted"] = "true"
    """Where scores come from; ``inverted`` is one minus the truth."""
    constant: float = 0.8
    accuracy: float | None = None
    """The share of pairs, or of passes and fails, that it gets right."""
    sensitivity: float | None = None
    """The share of good answers (quality ≥ 0.5) that it calls good; the others get one minus their quality."""
    specificity: float | None = None
    arm_sensitivity: dict[str, float] = {}
    arm_specificity: dict[str, float] = {}
    """Other shares for the answers of an arm."""
    sd: float = 0.0
    """Of the normal noise on a score; a repeated question gets the same noise."""
    retest_sd: float = 0.0
    """Of the noise that differs on each repeat, at temperature 0 and with a seed too."""
    retest_flip: float = 0.0
    """How often a repeat turns the verdict on a pair round."""
    offset: float = 0.0
    """Added to every score."""
    slope: float = 1.0
    """Stretches scores away from 0.5, or towards it."""
    compress: tuple[float, float] | None = None
    """The range that 0..1 is squeezed into."""
    levels: int | None = None
    """How many different scores it gives: 3 are 0, 0.5 and 1."""
    digits: int = 2
    """Of a score, where ``levels`` does not say."""
    position_bias: float = 0.0
    """How often it picks the first answer shown unread; below 0, the second."""
    length_bias: float = 0.0
    """Added for each doubling of an answer's length."""
    length_reference: int = 200
    """The characters that no length bias adds to, for answers whose own length the truth does not tell."""
    format_bias: float = 0.0
    """Added for Markdown, lists, bold, emoji."""
    self_preference: float = 0.0
    """Added for answers of its own family."""
    family: str = "fake"
    authority_bias: float = 0.0
    """Added where an answer appeals to experts, to most people, or to a paper."""
    injection: float = 0.0
    """How often it obeys an answer that tells it what to say."""
    tie_margin: float = 0.0
    """Pairs whose scores differ by no more are ties."""
    drift: float = 0.0
    """Added to every score from the call ``drift_after`` on."""
    drift_after: int | None = None
    drift_fingerprint: bool = False
    """Whether the drift changes the system fingerprint."""

    form: Literal["auto", "quality_score", "score", "winner", "rating", "verdict"] = "auto"
    """The reply's form; ``auto`` reads it off the request."""
    replies: dict[str, float] = {}
    """The share of replies with each odd shape."""
    notes_tokens: int = 600
    """How long the reply of the shape ``long`` is."""
    score_tokens: Literal["whole", "split"] = "whole"
    """Whether a score is one token, or one for each character."""
    spread: float = 0.1
    """The standard deviation of the score distribution that log-probabilities show."""
    usage: Literal["true", "missing", "zero"] = "true"
    cached_share: float = 0.0
    """The share of prompt tokens that the usage calls cached."""
    echo_model: str | None = None
    """The model that replies name instead of the one asked for."""
    fingerprint: str = "fp_fake_1"
    unsupported: tuple[str, ...] = ()
    """Parameters that it refuses with 400."""

    faults: tuple[str, ...] = ()
    """What the tries of one request meet, in turn; ``ok`` answers, and so do all further tries."""
    fault_rates: dict[str, float] = {}
    """The share of requests that meet a fault."""
    fault_tries: int = 1
    """How many tries of such a request meet it; 0: all."""
    retry_after_s: float = 1.0
    """What a 429 asks for."""
    delay_s: float = 0.2
    """How long the slow faults wait."""

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
            problems.append(f"levels is {self.levels}; there must be 2 or more")
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
            f"{field}: no {name!r}; there are {', '.join(sorted(known))}"
            for field, names, known in named
            for name in names
            if name not in known
        ]


Fields = dict[str, object]
"""Some of a behaviour's fields."""

_HINTS = get_type_hints(Behaviour)


def read_behaviour(data: object, base: Behaviour | None = None) -> Behaviour:
    """A behaviour from its JSON form or its name, laid over another; `ValueError` says what is wrong with it."""
    fields = named_fields(data) if isinstance(data, str) else data
    if not isinstance(fields, Mapping):
        raise ValueError(f"a behaviour is an object or a name, not {data!r}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(base or Behaviour()), **fields}, Behaviour)
    except msgspec.ValidationError as error:
        raise ValueError(f"no behaviour: {error}") from error


def named_fields(name: str) -> Fields:
    """The fields of ``position``, ``position?b=0.3&sd=0.1``, ``position,b=0.3+fenced,rate=0.5`` and the like.

    A parameter is one of the named behaviour, or a field of `Behaviour`; texts of a list are joined by ``|``.
    """
    fields: Fields = {}
    for part in name.split("+"):
        head, *pairs = re.split("[?&,]", part)
        told = dict(pair.partition("=")[::2] for pair in pairs if pair)
        preset = _preset(head)
        own = {key: told.pop(key) for key in inspect.signature(preset).parameters if key in told}
        unknown = sorted(set(told) - set(_HINTS))
        if unknown:
            known = [*inspect.signature(preset).parameters, *_HINTS]
            raise ValueError(f"{head!r} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
        try:
            new = {**preset(**{key: _value(text) for key, text in own.items()}), **_fields(told)}
        except TypeError as error:
            raise ValueError(f"{part!r}: {error}") from error
        for key in ("replies", "fault_rates"):  # several shapes and faults add up
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
    raise ValueError(f"no behaviour {name!r}; there are {', '.join(behaviour_names())}")


def behaviour_names() -> list[str]:
    """All that `named_fields` knows."""
    return [*PRESETS, *SHAPES, *FAULTS]


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _map(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _fields(told: Mapping[str, str]) -> Fields:
    fields: Fields = {}
    for name, text in told.items():
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
"""The behaviours that have a name and parameters of their own; each shape and each fault has one too."""
