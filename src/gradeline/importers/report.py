"""The report of an import: each item is mapped, approximated or not mapped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from gradeline.model import quote
from gradeline.report.formatting import one_line
from gradeline.report.markdown import table

MAX_PLACES = 5
"""Maximum number of places that the report lists for items that are alike."""
_MAX_CELL = 600
_MARKUP = re.compile(r"[\\\\`*<>&|\[\]!#~]")
MAX_ITEMS = 2_000
"""Maximum number of kinds of items that the report lists; further ones are only counted."""

EXIT_MAPPED = 0
EXIT_DROPPED = 1
EXIT_APPROXIMATED = 3


class State(StrEnum):
    """What became of an item."""

    MAPPED = "mapped"
    APPROXIMATED = "approximated"
    NOT_MAPPED = "not mapped"


class ItemKind(Struct, frozen=True):
    """Items of a source that are alike and became the same in gradeline."""

    state: State
    what: str
    """The item in the words of the source, such as ``assertion icontains``."""
    became: str = ""
    """What it is in gradeline; empty if it was not mapped."""
    note: str = ""
    """What differs, or why it was not mapped and what to do."""


class ReportedItem(Struct, frozen=True):
    """Items that are alike, with their number and the places of the first ones."""

    state: State
    what: str
    became: str
    note: str
    count: int
    places: tuple[str, ...]
    more_places: bool


class ImportReport:
    """Collects what became of each item; items that are alike are counted, so memory does not grow with the source."""

    def __init__(self, source: str, kind: str) -> None:
        self.source = source
        self.kind = kind
        self._items: dict[ItemKind, tuple[int, list[str]]] = {}
        self._unlisted = dict.fromkeys(State, 0)

    def mapped(self, place: str, what: str, became: str) -> None:
        """An item with the same meaning in gradeline."""
        self._add(ItemKind(State.MAPPED, what, became), place)

    def approximated(self, place: str, what: str, became: str, differs: str) -> None:
        """An item with a similar meaning in gradeline; ``differs`` is the difference."""
        self._add(ItemKind(State.APPROXIMATED, what, became, differs), place)

    def not_mapped(self, place: str, what: str, why: str) -> None:
        """An item that is left out; ``why`` gives the reason and what to do."""
        self._add(ItemKind(State.NOT_MAPPED, what, "", why), place)

    def _add(self, kind: ItemKind, place: str) -> None:
        count, places = self._items.get(kind, (0, []))
        if not count and len(self._items) >= MAX_ITEMS:
            self._unlisted[kind.state] += 1
            return
        if len(places) <= MAX_PLACES and place not in places:
            places.append(place)
        self._items[kind] = (count + 1, places)

    @property
    def items(self) -> Iterator[ReportedItem]:
        """The items, those that were not mapped first."""
        for state in reversed(State):
            for kind, (count, places) in self._items.items():
                if kind.state is state:
                    named = tuple(places[:MAX_PLACES])
                    yield ReportedItem(
                        kind.state, kind.what, kind.became, kind.note, count, named, len(places) > MAX_PLACES
                    )

    def count(self, state: State) -> int:
        """The number of items with this state."""
        listed = sum(count for kind, (count, _) in self._items.items() if kind.state is state)
        return listed + self._unlisted[state]

    @property
    def exit_code(self) -> int:
        """0: all mapped, 3: some approximated, 1: some not mapped."""
        if self.count(State.NOT_MAPPED):
            return EXIT_DROPPED
        return EXIT_APPROXIMATED if self.count(State.APPROXIMATED) else EXIT_MAPPED

    def summary(self) -> str:
        """The counts in one line."""
        return ", ".join(f"{self.count(state):,} {state}" for state in State)

    def markdown(self, written: Sequence[str] = ()) -> str:
        """The report as ``import.md``; all text of the source is inert in it."""
        parts = [f"# Import of {_inert(self.source)}\n", f"Kind: {self.kind}. Items: {self.summary()}.\n"]
        for state, intro in _INTRO.items():
            items = [item for item in self.items if item.state is state]
            if items:
                parts.append(f"## {str(state).capitalize()}\n\n{intro}\n\n{_table(state, items)}")
            if self._unlisted[state]:
                parts.append(f"Not listed: {self._unlisted[state]:,} more.\n")
        if written:
            parts.append("## Written\n\n" + "".join(f"- {_inert(line)}\n" for line in written))
        return "\n".join(parts)


_INTRO = {
    State.NOT_MAPPED: "These items were left out. The last column gives the reason, and what to do.",
    State.APPROXIMATED: "These items have a similar meaning in gradeline. The last column shows what differs.",
    State.MAPPED: "These items have the same meaning in gradeline.",
}


def _table(state: State, items: Sequence[ReportedItem]) -> str:
    titles = ["item", "count", "first at"]
    titles += ["became"] if state is not State.NOT_MAPPED else []
    titles += ["note"] if state is not State.MAPPED else []
    rows = [(item.what, f"{item.count:,}", _places(item), *filter(None, (item.became, item.note))) for item in items]
    lines = table(titles, (tuple(_inert(cell) for cell in row) for row in rows), frozenset({"count"}))
    return "\n".join(lines) + "\n"


def _places(item: ReportedItem) -> str:
    return ", ".join(item.places) + (", …" if item.more_places else "")


def _inert(text: str) -> str:
    """Text of the source on one line, without markup; still readable where the file is not rendered."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text, _MAX_CELL))


def item_name(kind: str, name: object) -> str:
    """An item in the words of the source, for the report: the kind, and its quoted name, shortened if it is long."""
    return f"{kind} {quote(name, 60)}"
