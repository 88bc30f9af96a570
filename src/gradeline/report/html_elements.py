"""HTML and SVG elements with automatic escaping, and the charts of the report page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from gradeline.report.formatting import OutcomeCount, count_noun, duration, visible
from gradeline.report.overview import LATENCY_EDGES, LATENCY_STEPS, SCORE_BINS

_VOID = frozenset({"br", "circle", "col", "line", "meta", "path", "rect"})


class Html(str):
    """A string that is already HTML; everything else is escaped."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """An element. Attributes, and children that are not `Html`, are escaped. Attributes of None and False are omitted.

    ``class_`` becomes ``class``, ``stroke_width`` becomes ``stroke-width``.
    """
    head = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if name in _VOID and not children:
        # SVG elements must be closed
        return Html(head if name in ("br", "col", "meta") else f"{head[:-1]}/>")
    return Html(f"{head}{concatenate(*children)}</{name}>")


def concatenate(*children: str) -> Html:
    """The children in sequence."""
    return Html("".join(child if isinstance(child, Html) else safe(child) for child in children))


def safe(text: str) -> Html:
    """Untrusted text: markup is escaped, control and bidi characters are made visible."""
    return Html(escape(visible(text), quote=True))


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{safe(value)}"'


Range = tuple[float, float]

_WIDTH, _HEIGHT = 320.0, 132.0
_LEFT, _RIGHT, _TOP = 4.0, 4.0, 18.0
_ACROSS, _FLOOR = _WIDTH - _LEFT - _RIGHT, _HEIGHT - 22.0
_ROUND = tuple(index for index, step in enumerate(LATENCY_STEPS) if step in (1.0, 2.0, 5.0))
"""Indexes of the edges within a decade that get a label; with many bins only the first."""
_FEW_BINS = 16
_FEW_BARS = 4
"""Maximum number of bars that all get a number; with more bars only the highest gets one."""


class PlotScale(NamedTuple):
    """The range of an interval plot."""

    low: float = 0.0
    high: float = 1.0

    def at(self, value: float) -> str:
        """The position of a value in percent of the width, with a margin at both ends."""
        part = (value - self.low) / (self.high - self.low)
        return f"{2 + 96 * min(1.0, max(0.0, part)):.2f}%"


UNIT = PlotScale()


def scale_of(numbers: Sequence[float]) -> PlotScale | None:
    """The scale 0 to 1, or -1 to 1 for differences; None if the numbers fit neither."""
    for scale in (UNIT, PlotScale(-1.0)):
        if all(scale.low <= number <= scale.high for number in numbers):
            return scale
    return None


def interval_plot(
    title: str,
    value: float | None,
    bounds: Range | None,
    bound: float | None = None,
    scale: PlotScale = UNIT,
    tone: str = "",
) -> Html:
    """A point with whiskers; ``bound`` is drawn as a line."""
    ticks = [scale.low + (scale.high - scale.low) * step / 4 for step in range(5)]
    marks = [element("line", class_="grid", x1=scale.at(tick), x2=scale.at(tick), y1="0", y2="100%") for tick in ticks]
    marks.append(element("line", class_="axis", x1=scale.at(scale.low), x2=scale.at(scale.high), y1="50%", y2="50%"))
    if bound is not None:
        marks.append(element("line", class_="bound", x1=scale.at(bound), x2=scale.at(bound), y1="0", y2="100%"))
    if bounds is not None:
        low, high = (scale.at(each) for each in bounds)
        marks.append(element("line", class_="whisker", x1=low, x2=high, y1="50%", y2="50%"))
        marks += [element("line", class_="whisker", x1=end, x2=end, y1="30%", y2="70%") for end in (low, high)]
    if value is not None:
        marks.append(element("circle", class_="point", cx=scale.at(value), cy="50%", r="5.5"))
    return element("svg", element("title", title), *marks, class_=f"interval {tone}".strip(), role="img")


def scale_labels(scale: PlotScale = UNIT) -> Html:
    """The axis labels of interval plots."""
    middle = (scale.low + scale.high) / 2
    ticks = ((scale.low, "start"), (middle, "middle"), (scale.high, "end"))
    labels = (
        element("text", f"{number:g}", x=scale.at(number), y="11", text_anchor=anchor) for number, anchor in ticks
    )
    return element("svg", *labels, class_="labels", aria_hidden="true")


def outcome_bar(title: str, tallies: Sequence[OutcomeCount]) -> Html:
    """A stacked bar of a column's outcomes."""
    total = sum(tally.number for tally in tallies)
    parts: list[Html] = []
    begin = 0
    for outcome, count in tallies:
        if count:
            label = element("title", f"{outcome}: {count:,} of {total:,}")
            x, width = f"{100 * begin / total:.3f}%", f"{100 * count / total:.3f}%"
            parts.append(element("rect", label, class_=f"fill-{outcome}", x=x, width=width, y="0", height="100%"))
            begin += count
    return element("svg", element("title", title), *parts, class_="split", role="img")


def score_histogram(title: str, bins: Sequence[int]) -> Html:
    """A histogram of scores; the last bin includes 1."""
    labels = [
        f"{index / SCORE_BINS:.2f} to {(index + 1) / SCORE_BINS:.2f}: {count_noun(count, 'score')}"
        for index, count in enumerate(bins)
    ]
    ticks = [(0.0, "0", "start"), (0.25, "0.25", "middle"), (0.5, "0.5", "middle"), (0.75, "0.75", "middle")]
    return _bars(title, bins, labels, [*ticks, (1.0, "1", "end")])


def latency_histogram(title: str, counts: Sequence[int], marks: dict[str, float]) -> Html | None:
    """A histogram of latencies on a logarithmic scale; ``marks`` are percentiles in milliseconds."""
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return None
    # an empty bin on each side shows that there are no further values
    first, last = max(0, filled[0] - 1), min(len(counts) - 1, filled[-1] + 1)
    shown = counts[first : last + 1]
    labels = [f"{_reach(index)}: {count_noun(counts[index], 'call')}" for index in range(first, last + 1)]
    ticks = [
        ((index - first) / len(shown), duration(LATENCY_EDGES[index - 1]), "middle")
        for index in range(first + 1, last + 1)
        if (index - 1) % len(LATENCY_STEPS) in (_ROUND if len(shown) <= _FEW_BINS else _ROUND[:1])
    ]
    lines = [(_log_position(value, first) / len(shown), name) for name, value in marks.items()]
    return _bars(title, shown, labels, ticks, lines)


def _reach(index: int) -> str:
    if index == 0:
        return f"below {duration(LATENCY_EDGES[0])}"
    if index == len(LATENCY_EDGES):
        return f"{duration(LATENCY_EDGES[-1])} and more"
    return f"{duration(LATENCY_EDGES[index - 1])} to {duration(LATENCY_EDGES[index])}"


def _log_position(value: float, first: int) -> float:
    """The distance of a value from the first bin shown, in bins."""
    index = bisect_right(LATENCY_EDGES, value)
    if index in (0, len(LATENCY_EDGES)):
        return index - first + 0.5
    low, high = LATENCY_EDGES[index - 1], LATENCY_EDGES[index]
    return index - first + (value - low) / (high - low)


def _anchor(x: float) -> str:
    """The text anchor that keeps a label inside the picture."""
    if x < _WIDTH / 8:
        return "start"
    return "end" if x > _WIDTH * 7 / 8 else "middle"


def _bars(
    title: str,
    counts: Sequence[int],
    labels: Sequence[str],
    ticks: Sequence[tuple[float, str, str]],
    lines: Sequence[tuple[float, str]] = (),
) -> Html:
    """A bar chart; positions of ticks and lines are shares of the width. With lines the bars get no numbers."""
    axis = element("line", class_="axis", x1=f"{_LEFT}", x2=f"{_WIDTH - _RIGHT}", y1=f"{_FLOOR}", y2=f"{_FLOOR}")
    parts = (*_columns(counts, labels, numbered=not lines), axis, *_ticks(ticks), *_lines(lines))
    whole = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    return element("svg", element("title", title), *parts, class_="histogram", viewBox=whole, role="img")


def _columns(counts: Sequence[int], labels: Sequence[str], *, numbered: bool) -> Iterator[Html]:
    most, step = max(counts), _ACROSS / len(counts)
    few = sum(map(bool, counts)) <= _FEW_BARS
    highest = list(counts).index(most)
    for index, (count, label) in enumerate(zip(counts, labels, strict=True)):
        if not count:
            continue
        # a single case among thousands must stay visible
        height = max(1.5, (_FLOOR - _TOP) * count / most)
        left, top = _LEFT + index * step, _FLOOR - height
        box = {"x": f"{left + 0.75:.2f}", "y": f"{top:.2f}", "width": f"{step - 1.5:.2f}", "height": f"{height:.2f}"}
        yield element("rect", element("title", label), class_="bar", rx="1.5", **box)
        if numbered and (few or index == highest):
            middle = left + step / 2
            label_box = {"x": f"{middle:.2f}", "y": f"{top - 4:.2f}", "text_anchor": _anchor(middle)}
            yield element("text", f"{count:,}", class_="value", **label_box)


def _ticks(ticks: Sequence[tuple[float, str, str]]) -> Iterator[Html]:
    for part, text, anchor in ticks:
        x = f"{_LEFT + part * _ACROSS:.2f}"
        yield element("line", class_="tick", x1=x, x2=x, y1=f"{_FLOOR}", y2=f"{_FLOOR + 4}")
        yield element("text", text, x=x, y=f"{_HEIGHT - 5}", text_anchor=anchor)


def _lines(lines: Sequence[tuple[float, str]]) -> Iterator[Html]:
    """Vertical lines with labels: the first label on the left, the others on the right, so that they do not overlap."""
    for index, (part, text) in enumerate(lines):
        position = _LEFT + part * _ACROSS
        x, label_x = f"{position:.2f}", f"{position + (4 if index else -4):.2f}"
        yield element("line", class_="bound", x1=x, x2=x, y1="2", y2=f"{_FLOOR}")
        yield element("text", text, x=label_x, y="11", text_anchor="start" if index else "end")
