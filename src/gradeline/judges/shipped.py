"""The rubrics that come with the package, by name and version.

A version never changes: another wording is another version, and so another fingerprint.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated

import msgspec

from gradeline.errors import ConfigError, Problem, UnknownNameError

_HOME = "rubrics"


class ShippedItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of a rubric's checklist."""

    question: str
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class ShippedRubric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rubric: what its front matter says, and its text."""

    name: str
    version: int
    title: str
    needs: tuple[str, ...]
    """The placeholders that every case must have a text for."""
    pass_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)]
    checklist: tuple[ShippedItem, ...] = ()
    """Where there is one, its weighted share of yes is the score; else the judge gives a score by the text's scale."""
    text: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"


def shipped_rubrics() -> list[ShippedRubric]:
    """All of them, by name, the newest version first."""
    return [by_version[version] for by_version in _all().values() for version in sorted(by_version, reverse=True)]


def shipped_rubric(wanted: str) -> ShippedRubric:
    """The rubric of that name (``factuality``, its newest version) or id (``factuality@1``)."""
    name, _, version = wanted.partition("@")
    known = _all()
    if name not in known:
        raise UnknownNameError("shipped rubric", name, known, "rubric")
    versions = known[name]
    if not version:
        return versions[max(versions)]
    if not version.isdecimal() or int(version) not in versions:
        there = ", ".join(f"{name}@{number}" for number in sorted(versions))
        raise ConfigError(Problem("rubric", f"no rubric {wanted!r}; there is {there}"))
    return versions[int(version)]


@cache
def _all() -> dict[str, dict[int, ShippedRubric]]:
    found: dict[str, dict[int, ShippedRubric]] = {}
    for entry in sorted(files(__package__).joinpath(_HOME).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".md"):
            rubric = _read(entry.read_text(encoding="utf-8"))
            found.setdefault(rubric.name, {})[rubric.version] = rubric
    return found


def _read(source: str) -> ShippedRubric:
    import yaml  # 20 ms that only a shipped rubric needs

    _, front, text = source.split("---\n", 2)
    return msgspec.convert({**yaml.safe_load(front), "text": text.strip()}, ShippedRubric)
