"""Labelling in a terminal: one result at a time, one key per answer, each stored before the next result is shown."""

from __future__ import annotations

import codecs
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from gradeline.cli.options import CliSettings
from gradeline.cli.terminal import console, safe_text, single_line
from gradeline.model.label import MAX_COMMENT, HumanVerdict
from gradeline.report.formatting import visible

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.model import Record
    from gradeline.trust.labelling import Labelling, LabelScale

_FOOTER_LINES = 4
_MIN_LINES = 5
_RUBRIC_LINES = 8
_ENTER, _ERASE = ("\r", "\n"), ("\x7f", "\b")
_NEXT, _BACK = (" ", "\x1b[B", "\x1b[6~"), ("b", "\x1b[A", "\x1b[5~")
_INTERRUPT, _END = "\x03", ("\x04", "\x1a")


class LabelItem(NamedTuple):
    """A result to label."""

    case: str
    repeat: int
    probability: float | None = None
    sample: str | None = None
    notes: tuple[str, ...] = ()
    """What the raters said, for an adjudicator."""


class LabelSummary(NamedTuple):
    """What a rater did."""

    labelled: int
    """Items with a label of the rater, those of earlier sessions included."""
    stored: int
    """Labels stored in this session."""
    left: int
    """Items without a label, skipped ones included."""


class LabelTerminal:
    """Shows items to a rater and stores what the keys say."""

    def __init__(
        self,
        settings: CliSettings,
        labelling: Labelling,
        items: Sequence[LabelItem],
        scale: LabelScale,
        rubric: str | None,
        read_keys: Callable[[], str],
    ) -> None:
        """``read_keys`` waits for keys and returns those that were pressed, see `open_keyboard`."""
        self._out = console(settings)
        self._labelling = labelling
        self._items = items
        self._scale = scale
        self._rubric = rubric
        self._keys = _Keys(read_keys)
        self._labelled = {(item.case, item.repeat) for item in items} & labelling.labels().keys()
        self._skipped: set[int] = set()
        self._comment = ""
        self._message = ""
        self._stored = 0

    def run(self) -> LabelSummary:
        """Label until no item is left or the rater quits."""
        index = self._following(-1)
        while index is not None:
            index = self._label(index)
        if self._stored or self._skipped:
            self._out.clear()
        return LabelSummary(len(self._labelled), self._stored, len(self._items) - len(self._labelled))

    def _following(self, index: int) -> int | None:
        """The next item without a label that was not skipped."""
        for place in range(index + 1, len(self._items)):
            item = self._items[place]
            if (item.case, item.repeat) not in self._labelled and place not in self._skipped:
                return place
        return None

    def _label(self, index: int) -> int | None:
        """Show an item until a key answers it; the next item, or None to quit."""
        item = self._items[index]
        record = self._labelling.record(item.case, item.repeat)
        page, whole_rubric = 0, False
        while True:
            pages = self._draw(index, record, page, whole_rubric=whole_rubric)
            key = self._keys.next()
            self._message = ""
            if key in _END or key == "q":
                return None
            value = self._value(key)
            if value is not None:
                self._store(item, record, value)
                return self._following(index)
            if key == "s":
                self._skipped.add(index)
                return self._following(index)
            if key == "u":
                if index > 0:
                    return self._undo(index - 1)
                self._message = "this is the first one"
            elif key == "c":
                self._read_comment()
            elif key == "r" and self._rubric is not None:
                whole_rubric, page = not whole_rubric, 0
            elif key in _NEXT:
                page = min(page + 1, pages - 1)
            elif key in _BACK:
                page = max(page - 1, 0)
            else:
                self._message = f"no such key: {visible(key)}"

    def _value(self, key: str) -> HumanVerdict | None:
        if not self._scale.choices:
            return {"p": HumanVerdict("pass"), "f": HumanVerdict("fail")}.get(key)
        if key.isascii() and key.isdecimal() and int(key) in self._scale.choices:
            return self._scale.value(int(key))
        return None

    def _store(self, item: LabelItem, record: Record, value: HumanVerdict) -> None:
        value = value._replace(comment=self._comment, probability=item.probability, sample=item.sample)
        self._labelling.put(record, value)
        self._labelled.add((item.case, item.repeat))
        self._stored += 1
        self._comment = ""

    def _undo(self, index: int) -> int:
        """Go back to an item and withdraw its label."""
        item = self._items[index]
        if (item.case, item.repeat) in self._labelled:
            if self._labelling.withdraw(item.case, item.repeat):
                self._stored = max(self._stored - 1, 0)
            self._labelled.discard((item.case, item.repeat))
            self._message = "the label was withdrawn; answer again"
        self._skipped.discard(index)
        return index

    def _read_comment(self) -> None:
        """Read a comment for the next answer; Enter ends it."""
        text = ""
        while True:
            self._out.file.write(f"\r\x1b[Kcomment: {visible(text[-(self._out.width - 12) :])}")
            self._out.file.flush()
            key = self._keys.next()
            if key in _ENTER or key in _END:
                self._comment = text.strip()
                return
            if key in _ERASE:
                text = text[:-1]
            elif key.isprintable() and len(text) < MAX_COMMENT:
                text += key

    def _draw(self, index: int, record: Record, page: int, *, whole_rubric: bool) -> int:
        """Draw one page of an item and the keys; returns the number of pages."""
        lines = [line for text in self._texts(index, record, whole=whole_rubric) for line in self._wrapped(text)]
        room = max(self._out.height - _FOOTER_LINES, _MIN_LINES)
        pages = max(-(-len(lines) // room), 1)
        self._out.clear()
        for line in lines[page * room : (page + 1) * room]:
            self._out.print(line, no_wrap=True, crop=True)
        self._out.rule(style="dim")
        item = self._items[index]
        name = single_line(item.case) if item.repeat == 0 else f"{single_line(item.case)} #{item.repeat}"
        status = [f"{index + 1} of {len(self._items)}", f"{len(self._labelled)} labelled", f"case {name}"]
        if pages > 1:
            status.append(f"page {page + 1} of {pages}")
        if self._comment:
            status.append(f"comment: {self._comment}")
        self._print_line(", ".join(status), "bold")
        if self._message:
            self._print_line(self._message, "yellow")
        self._print_line(", ".join(self._key_help(pages)), "dim")
        return pages

    def _print_line(self, text: str, style: str) -> None:
        line = safe_text(single_line(text), style, most=1_000)
        line.truncate(self._out.width, overflow="ellipsis")
        self._out.print(line, no_wrap=True)

    def _key_help(self, pages: int) -> Iterator[str]:
        if self._scale.categories:
            yield from (f"{number} {name}" for number, name in enumerate(self._scale.categories, 1))
        elif self._scale.choices:
            yield f"{self._scale.low} (worst) to {self._scale.high} (best)"
        else:
            yield from ("p pass", "f fail")
        yield from ("s skip", "u undo", "c comment")
        if self._rubric is not None:
            yield "r rubric"
        if pages > 1:
            yield from ("space next", "b back")
        yield "q quit"

    def _texts(self, index: int, record: Record, *, whole: bool) -> Iterator[Text]:
        from gradeline.trust.label_view import shown_texts

        question = record.sample.rubric or self._rubric
        yield safe_text(f"question: {self._labelling.question}", "bold")
        if question is not None:
            lines = question.strip().splitlines()
            shown = lines if whole else lines[:_RUBRIC_LINES]
            yield safe_text("\n".join(shown), "dim", most=len(question))
            if len(shown) < len(lines):
                yield safe_text(f"… ({len(lines) - len(shown)} more lines: press r)", "dim")
        for title, text in shown_texts(record):
            yield safe_text("")
            yield safe_text(title, "bold cyan")
            yield safe_text(text or "(empty)", "" if text else "dim", most=len(text) + 10)
        for number, note in enumerate(self._items[index].notes):
            if number == 0:
                yield safe_text("")
                yield safe_text("the raters said", "bold cyan")
            yield safe_text(note, most=len(note))

    def _wrapped(self, text: Text) -> Iterator[Text]:
        text.expand_tabs(4)
        yield from text.wrap(self._out, self._out.width, overflow="fold")


@contextmanager
def open_keyboard() -> Iterator[Callable[[], str]]:
    """Reads keys as they are pressed, without echo, until the context ends. Ctrl-C raises `KeyboardInterrupt`.

    The terminal stays in this mode between two keys: one that is pressed while a result is drawn must not get lost.
    """
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield click.getchar
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read() -> str:
        while True:
            data = os.read(descriptor, 1024)
            if not data or (text := decoder.decode(data)):
                return text if data else ""

    tty.setcbreak(descriptor)
    try:
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Keys:
    """Single keys: what a terminal delivers at once may be several keys, or the code of one."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._waiting: deque[str] = deque()

    def next(self) -> str:
        """The next key; Ctrl-C raises `KeyboardInterrupt`, the end of the input is Ctrl-D."""
        while not self._waiting:
            try:
                found = self._read()
            except EOFError:
                return _END[0]
            if not found:
                return _END[0]
            self._waiting.extend([found] if found.startswith("\x1b") else found)
        key = self._waiting.popleft()
        if key == _INTERRUPT:
            raise KeyboardInterrupt
        return key


def adjudication_notes(values: Mapping[str, str]) -> tuple[str, ...]:
    """What each rater said, one line each."""
    return tuple(f"{rater or 'a rater without a name'}: {value}" for rater, value in values.items())
