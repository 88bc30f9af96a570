"""``make simulate`` writes the figures between the marks of their module."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from measured import Row, at_least, at_most

_SPEC = spec_from_file_location("simulate", Path(__file__).with_name("__main__.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
simulate = module_from_spec(_SPEC)
_SPEC.loader.exec_module(simulate)


def test_the_figures_replace_the_previous_ones() -> None:
    page = "before\n<!-- figures: many -->\nold\n<!-- end of figures: many -->\nafter\n"
    rows = [at_most("false worse", 0.02, 0.03), at_least("coverage", 0.9, 0.92)]
    assert simulate.with_figures(page, "many", rows) == (
        "before\n<!-- figures: many -->\n\n"
        "| simulated | figure | limit | |\n|---|---:|---:|---|\n"
        "| false worse | 0.0200 | ≤ 0.03 |  |\n"
        "| coverage | 0.9000 | ≥ 0.92 | does not hold |\n"
        "\n<!-- end of figures: many -->\nafter\n"
    )


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="figures: many"):
        simulate.with_figures("before", "many", [Row("a", 1.0, 1.0, True)])


def test_every_simulation_has_a_section_on_the_page() -> None:
    page = simulate.PAGE.read_text(encoding="utf-8")
    for module in simulate.MODULES:
        assert simulate.with_figures(page, module, [])


def test_an_unknown_simulation_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["weather"]) == 2
    assert "no simulation weather: choose from intervals, decisions" in capsys.readouterr().err
