"""Writes the page of the benchmarks from their results: the tables, and the figure of how runs grow.

    python bench/all.py --json bench.json && python bench/figure.py bench.json

The tables are between two markers in docs/benchmarks.md; whatever the file of results holds is written there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from measure import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "images" / "growth.svg"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
TITLES = {
    "peers": "The other tools",
    "startup": "Start-up",
    "overhead": "What a harness costs",
    "concurrency": "An agent of the network",
    "reused_connections": "Reused connections",
    "memory": "Memory",
    "growth": "Growth",
    "profile_sample": "Where a sample's time goes",
    "graders": "Graders",
    "judges": "Judges",
    "route": "Routing",
    "pool": "Worker processes",
    "store": "The store",
    "compare": "Comparisons",
    "postgres": "PostgreSQL",
    "exports": "Exports",
    "inspect_import": "Imports from Inspect",
    "ray_workers": "Ray",
    "service": "The service",
    "pages": "Pages of large lists",
}
"""The headings, in their order; a part that has none here comes last, under its own name."""

WIDTH, HEIGHT = 770, 330
LEFT, RIGHT, TOP, BOTTOM = 64, 160, 40, 48
COLOURS = ("a", "b", "c", "d")
STYLE = """
  .card { fill: #ffffff } text { fill: #24292f; font: 12px system-ui, sans-serif } .grid { stroke: #d8dee4 }
  .title { font-weight: 600 } .small { fill: #57606a }
  .line { fill: none; stroke-width: 2 }
  .a { stroke: #00796b; fill: #00796b } .b { stroke: #8250df; fill: #8250df }
  .c { stroke: #9a6700; fill: #9a6700 } .d { stroke: #cf222e; fill: #cf222e }
  .line.a, .line.b, .line.c, .line.d { fill: none }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1c2128 } text { fill: #e6edf3 } .grid { stroke: #373e47 } .small { fill: #9da7b3 }
    .a { stroke: #4db6ac; fill: #4db6ac } .b { stroke: #b392f0; fill: #b392f0 }
    .c { stroke: #d4a72c; fill: #d4a72c } .d { stroke: #ff7b72; fill: #ff7b72 }
  }
"""

Result = Mapping[str, Any]


def read(path: Path) -> list[Result]:
    """The results; `SystemExit` names the line that is none."""
    found: list[Result] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append({"kind": "", **json.loads(line)})
        except (ValueError, TypeError):
            raise SystemExit(
                f"{path}:{number}: not a result: {line[:80]!r}; make the file with bench/all.py --json"
            ) from None
    return found


def page(text: str, results: Sequence[Result]) -> str:
    """The page with these results in place of those it had."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{PAGE}: {BEGIN} and {END} must each be there once")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{''.join(sections(results))}\n{END}{after}"


def sections(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result["kind"] == "machine":
            yield f"\n{result['text']}.\n"
    tables = [result for result in results if result["kind"] == "table"]
    parts = list(dict.fromkeys(str(table["part"]) for table in tables))
    for part in sorted(parts, key=lambda one: [*TITLES, *parts].index(one)):
        yield f"\n## {TITLES.get(part, part)}\n"
        for table in tables:
            if table["part"] == part:
                yield f"\n{_sentence(table['title'])}\n\n{markdown(table['headers'], table['rows'])}"
        yield f'\n```sh data-run="no: it takes minutes"\npython bench/{part}.py\n```\n'


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns that are empty throughout are left out, those between the first and the last are numbers."""
    last = len(headers) - 1
    kept = [place for place in range(len(headers)) if any(row[place] for row in [headers, *rows])]
    rule = ["---" if place in (0, last) else "---:" for place in kept]
    lines = [[_cell(headers[place]) for place in kept], rule, *([_cell(row[place]) for place in kept] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Tools' words may hold what tables are made of."""
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


def _sentence(title: str) -> str:
    return f"{title[:1].upper()}{title[1:]}:"


def figure(results: Sequence[Result]) -> str:
    """Seconds against samples, both in powers of ten."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        if result["kind"] == "growth":
            lines.setdefault(result["tool"], []).append((result["samples"], result["seconds"]))
    points = [point for line in lines.values() for point in line]
    if not points:
        raise SystemExit("no result of bench/growth.py to draw; run bench/all.py --json with it")
    across = _powers([samples for samples, _ in points])
    upwards = _powers([seconds for _, seconds in points])
    drawn = [*_grid(across, upwards), *_curves(lines, across, upwards)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="Seconds of a run against its samples">\n<style>{STYLE}</style>\n'
        f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="6"/>\n{chr(10).join(drawn)}\n</svg>\n'
    )


def _powers(values: Sequence[float]) -> range:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return range(low, max(high, low + 1) + 1)


def _x(value: float, powers: range) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (log10(value) - powers[0]) / (powers[-1] - powers[0])


def _y(value: float, powers: range) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (log10(value) - powers[0]) / (powers[-1] - powers[0])


def _grid(across: range, upwards: range) -> Iterator[str]:
    yield f'<text class="title" x="{LEFT}" y="24">Seconds of a whole process, by samples</text>'
    for power in across:
        x = _x(10.0**power, across)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield f'<text class="small" x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{10**power:,}</text>'
    for power in upwards:
        y = _y(10.0**power, upwards)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>'


def _curves(lines: Mapping[str, list[tuple[int, float]]], across: range, upwards: range) -> Iterator[str]:
    ends: list[float] = []
    for place, (tool, points) in enumerate(sorted(lines.items(), key=lambda line: -line[1][-1][1])):
        colour = COLOURS[place % len(COLOURS)]
        at = [(_x(samples, across), _y(seconds, upwards)) for samples, seconds in sorted(points)]
        yield f'<path class="line {colour}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in at)}"/>'
        for x, y in at:
            yield f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        x, y = at[-1]
        y = max(y, ends[-1] + 30) if ends else y  # two lines of text, that never overlap
        ends.append(y)
        for step, words in enumerate(_in_two(tool)):
            yield f'<text x="{x + 10:.1f}" y="{y + 4 + 14 * step:.1f}">{escape(words)}</text>'


def _in_two(name: str) -> list[str]:
    first, mark, rest = name.partition(", " if ", " in name else " (")
    return [first, f"{mark.strip(', ')}{rest}"] if mark else [name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what bench/all.py --json wrote")
    results = read(parser.parse_args().results)
    picture, text = figure(results), page(PAGE.read_text(encoding="utf-8"), results)
    PICTURE.write_text(picture, encoding="utf-8")
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE}\n{PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
