"""The layers: CONTRIBUTING.md draws what pyproject.toml enforces, and both name every package; names of classes."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "gradeline"
SECTION = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## Layers\n")[1].split("\n## ")[0]

_BAND = re.compile(r"^ +(\d) {2}(.+?) {2,}(\S.*)$", re.MULTILINE)


def enforced_bands() -> list[set[str]]:
    """The layers of the first contract, from top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers: list[str] = settings["contracts"][0]["layers"]
    return [{name.strip().removeprefix("gradeline.") for name in re.split("[|:]", layer)} for layer in layers]


def test_the_diagram_shows_the_enforced_layers() -> None:
    bands = _BAND.findall(SECTION)
    assert [int(number) for number, _, _ in bands] == list(range(1, 9))
    assert [set(packages.split(" · ")) for _, _, packages in bands] == enforced_bands()


def test_every_package_has_a_layer() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set().union(*enforced_bands()) == modules | packages


def test_the_table_describes_every_package() -> None:
    described = [
        name for row in re.findall(r"^\| (`.*?) \|", SECTION, re.MULTILINE) for name in re.findall("`(.+?)`", row)
    ]
    assert sorted(described) == sorted(set().union(*enforced_bands()))


def test_no_two_modules_have_a_class_of_the_same_name() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}
