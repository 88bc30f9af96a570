"""Writes the generated parts of docs/: the reference pages, the picture of the demo, the diagrams of the design notes.

python docs/generate.py          write
python docs/generate.py --check  list stale files and exit with 1
"""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

from generators.commands import command_line
from generators.diagrams import DIAGRAMS, svg
from generators.failures import failures
from generators.graders import graders_and_extractors
from generators.python_names import python_names
from generators.rest_api import rest_api
from generators.suite_file import suite_file

DOCS = Path(__file__).resolve().parent
PAGES = {
    "cli-reference.md": command_line,
    "suite-reference.md": suite_file,
    "reference.md": graders_and_extractors,
    "python-reference.md": python_names,
    "errors.md": failures,
    "rest-api.md": rest_api,
}


def demo_picture() -> str:
    """The output of ``gradeline demo`` as an SVG."""
    from rich.console import Console

    from gradeline.cli.demo import print_grades
    from gradeline.demo import grade_demo

    console = Console(record=True, width=132, file=StringIO(), force_terminal=True, highlight=False)
    print_grades(console, list(grade_demo()))
    drawn = console.export_svg(title="make demo", unique_id="demo")
    # rich's SVG loads a font from a CDN; the reader's own monospace is enough
    return re.sub(r"\s*@font-face \{.*?\n    \}", "", drawn, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )


def main() -> int:
    images = {"demo.svg": demo_picture(), **{f"design-{name}.svg": svg(diagram) for name, diagram in DIAGRAMS.items()}}
    texts = {DOCS / name: page() for name, page in PAGES.items()}
    texts |= {DOCS / "images" / name: text for name, text in images.items()}
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(DOCS.parent)} is stale: run make docs")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
        print(f"wrote {path.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
