# ruff: noqa: T201 - a command
"""Run every simulation at full size, print each figure with its limit, and write them into docs/statistics.md.

python tests/simulation            all of them, as ``make simulate`` does
python tests/simulation intervals  only these; the figures of the others stay as they are
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

MODULES = (
    "intervals",
    "decisions",
    "clusters",
    "early",
    "ledger",
    "many",
    "corrected",
    "probes",
    "drift",
    "routing",
    "panels",
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "statistics.md"


class Figure(Protocol):
    """A row of a simulation."""

    @property
    def name(self) -> str: ...
    @property
    def figure(self) -> float: ...
    @property
    def limit(self) -> float: ...
    @property
    def holds(self) -> bool: ...


def main(modules: list[str]) -> int:
    present = [module for module in MODULES if find_spec(module)]
    unknown = [module for module in modules if module not in present]
    if unknown:
        print(f"no simulation {', '.join(unknown)}: choose from {', '.join(present)}", file=sys.stderr)
        return 2
    failed = 0
    for place, module in enumerate(modules or present, 1):
        print(f"[{place} of {len(modules or present)}] {module} …", file=sys.stderr, flush=True)
        figures: Callable[[bool], Sequence[Figure]] = import_module(module).figures
        rows = figures(True)
        for row in rows:
            print(f"{'ok  ' if row.holds else 'FAIL'} {row.figure:8.4f} {limit(row):>9}  {row.name}", flush=True)
        failed += sum(not row.holds for row in rows)
        PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8"), module, rows), encoding="utf-8")
    print(f"{failed} figures do not hold" if failed else "every figure holds")
    return 1 if failed else 0


def limit(row: Figure) -> str:
    """The limit with its direction: a passing figure is on the right side of it."""
    return f"{'≤' if (row.figure <= row.limit) == row.holds else '≥'} {row.limit:.4g}"


def with_figures(page: str, module: str, rows: Iterable[Figure]) -> str:
    """The page with these figures between the marks of the module; a page without the marks is refused."""
    begin, end = f"<!-- figures: {module} -->", f"<!-- end of figures: {module} -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"{PAGE.name} has no lines '{begin}' and '{end}': write them where the figures belong")
    lines = ["| simulated | figure | limit | |", "|---|---:|---:|---|"]
    lines += [
        f"| {row.name} | {row.figure:.4f} | {limit(row)} | {'' if row.holds else 'does not hold'} |" for row in rows
    ]
    return "\n".join([before + begin, "", *lines, "", end + after])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
