"""What is true of the answers in a prompt, and where they stand in it.

An answer is known by a mark in its text, ``[item:17-a quality=0.8 family=gpt arm=cheap]``, whose properties
may as well stand in a table, or, without a mark, by its text in that table. An answer reaches as far as the
fence around it: a tag, ``BEGIN … END`` lines, a code fence. One without a fence ends at a blank line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec


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


class Shown(NamedTuple):
    """An answer as it stands in a prompt."""

    item: str
    truth: Truth
    text: str
    start: int
    end: int
    label: str
    """What its fence is called; empty without one."""


class Prompt(NamedTuple):
    """A prompt taken apart."""

    shown: tuple[Shown, ...]
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


def marked(text: str, item: str, **told: str | float) -> str:
    """The text with the mark of an item; ``told`` are properties of a `Truth`, for an item in no table."""
    mark = f"[item:{item}{''.join(f' {name}={value}' for name, value in told.items())}]"
    if not _MARK.fullmatch(mark):
        raise ValueError(f"{mark!r} is no mark: an item's name and properties are words without spaces")
    return f"{mark} {text}"


def read_truths(data: object) -> dict[str, Truth]:
    """A table of truths from its JSON form, in which a number stands for the quality alone."""
    table = msgspec.convert(data, dict[str, float | Truth])
    return {item: Truth(quality=told) if isinstance(told, (int, float)) else told for item, told in table.items()}


def take_apart(text: str, truths: Truths) -> Prompt:
    """Finds the answers of a prompt."""
    fences = list(_fences(text))
    outer = [fence for fence in fences if _innermost(fences, fence.start, fence.end) is None]
    shown = sorted(_by_mark(text, fences, truths) or _by_text(text, outer, truths), key=lambda one: one.start)
    labels = [one.label for one in shown] + [fence.label for fence in outer]
    words = sorted({word for label in labels for word in _FENCE_WORD.findall(label)}, key=len, reverse=True)
    key = re.sub("|".join(words), "", text) if words else text
    return Prompt(tuple(shown), _without(text, [(one.start, one.end) for one in shown]), key)


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    kept, at = [], 0
    for start, end in spans:
        kept.append(text[at:start])
        at = max(at, end)
    return "".join([*kept, text[at:]])


def _by_mark(text: str, fences: list[_Fence], truths: Truths) -> list[Shown]:
    found: dict[str, Shown] = {}
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
        found[item] = Shown(item, _told(mark, truths), _MARK.sub("", text[start:end]).strip(), start, end, label)
    return list(found.values())


def _told(mark: re.Match[str], truths: Truths) -> Truth:
    table = msgspec.structs.asdict(truths.get(mark["item"], Truth()))
    own = dict(pair.split("=", 1) for pair in mark["told"].split())
    try:
        return msgspec.convert({**table, **own}, Truth, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"the mark {mark[0]!r} is wrong: {error}") from error


def _by_text(text: str, outer: list[_Fence], truths: Truths) -> list[Shown]:
    """By the longest known text in each fence, or anywhere where nothing is fenced."""
    known = [(item, truth.text, truth) for item, truth in truths.items() if truth.text]
    known.sort(key=lambda one: len(one[1]), reverse=True)
    if not outer:
        places = ((item, truth, part, text.find(part)) for item, part, truth in known)
        return [Shown(item, truth, part, at, at + len(part), "") for item, truth, part, at in places if at >= 0]
    found = []
    for fence in outer:
        inner = text[fence.inner_start : fence.inner_end].strip()
        item, truth = next(((item, truth) for item, part, truth in known if part in inner), ("", None))
        if truth:
            found.append(Shown(item, truth, inner, fence.inner_start, fence.inner_end, fence.label))
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
