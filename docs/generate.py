"""Writes what docs/ takes from the program itself: the reference and the picture of the demo.

python docs/generate.py          write
python docs/generate.py --check  say what is stale, exit with 1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from gradeline import extractors, graders
from gradeline.cli.listing import conditions, default_of, type_of

DOCS = Path(__file__).resolve().parent
REFERENCE = DOCS / "reference.md"
PICTURE = DOCS / "images" / "demo.svg"


def reference() -> str:
    """Every grader and extractor from its declaration."""
    lines = [
        "# Graders and extractors",
        "",
        "Made from the declarations by `make docs`; `gradeline graders NAME` shows the same. Keys that begin with `x-`",
        "are free for your own use.",
        "",
        "## Graders",
        "",
    ]
    for entry in graders.registry.list():
        lines += section(entry)
    lines += ["## Extractors", ""]
    for entry in extractors.registry.list():
        lines += section(entry)
    return "\n".join(lines).rstrip() + "\n"


def section(entry: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {entry['id']}", "", entry["description"], "")
    if entry.get("scoring_guide"):
        yield from (f"Scoring: {entry['scoring_guide']}", "")
    schema = entry["config_schema"]
    rows = [
        (
            f"`{name}`",
            cell(type_of(option)),
            default_of(option, name in schema["required"]),
            option.get("description", ""),
        )
        for name, option in schema["properties"].items()
    ]
    if rows:
        yield from table(("option", "type", "default", "what it does"), rows)
    else:
        yield from ("No options.", "")
    checks = [(f"`{name}`", f"`{fields}`" if fields else "", text) for name, fields, text in conditions(schema)]
    if checks:
        yield from table(("condition", "options", "what it checks"), checks)


def table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def picture() -> str:
    """What ``gradeline demo`` prints, as an SVG."""
    from rich.console import Console

    from gradeline.cli.demo import draw
    from gradeline.demo import grade_demo

    console = Console(record=True, width=132, file=StringIO(), force_terminal=True, highlight=False)
    draw(console, list(grade_demo()))
    drawn = console.export_svg(title="make demo", unique_id="demo")
    # the stock picture asks a content network for its font; the reader's own monospace does as well
    return re.sub(r"\s*@font-face \{.*?\n    \}", "", drawn, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )


def main() -> int:
    made = {REFERENCE: reference(), PICTURE: picture()}
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(DOCS.parent)} is stale: run make docs")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
