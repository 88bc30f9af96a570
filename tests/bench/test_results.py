"""Benchmark results are stored as JSON, and the documentation page is generated from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

BENCH = Path(__file__).parents[2] / "bench"
DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def output_of(code: str, **variables: str) -> str:
    """What a piece of Python prints that runs as the benchmarks do."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCH, env={**os.environ, **variables}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def grown(tool: str, samples: int, seconds: float) -> dict[str, object]:
    return {"kind": "growth", "part": "growth", "tool": tool, "samples": samples, "seconds": seconds}


def test_every_table_is_appended_to_the_results_file(tmp_path: Path) -> None:
    code = "from measure import print_table; print_table('cost', ('tool', 'µs', ''), [('ours', '5', '')])"
    output_of(code, GRADELINE_BENCH_JSON=str(tmp_path / "results.json"))
    kept = {"kind": "table", "part": "-c", "title": "cost", "headers": ["tool", "µs", ""], "rows": [["ours", "5", ""]]}
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == kept


def test_the_page_has_the_new_tables_in_place_of_the_old_ones() -> None:
    code = """
from figure import BEGIN, END, page
table = {"kind": "table", "headers": ["tool", "µs", ""], "rows": [["a|b", "5", ""]]}
results = [
    {"kind": "machine", "text": "2 cores"},
    {**table, "part": "new", "title": "unheard of"},
    {**table, "part": "growth", "title": "cost"},
]
print(page(f"before {BEGIN} old {END} after", results))
"""
    table = "| tool | µs |\n| --- | ---: |\n| a\\|b | 5 |\n"
    command = '```sh data-run="no: it takes minutes"\npython bench/{}.py\n```\n'
    assert output_of(code) == (
        "before <!-- results: begin -->\n\n2 cores.\n"
        f"\n## Growth\n\nCost:\n\n{table}\n{command.format('growth')}"
        f"\n## new\n\nUnheard of:\n\n{table}\n{command.format('new')}"
        "\n<!-- results: end --> after\n"
    )


def test_the_figure_has_a_point_for_each_size_of_each_tool() -> None:
    sizes = [grown("gradeline", 1_000, 0.3), grown("gradeline", 10_000, 1), grown("the <floor>", 1_000, 0.1)]
    code = f"from figure import figure; print(figure({sizes!r}))"
    picture = ElementTree.fromstring(output_of(code))
    points = [
        (circle.get("class"), float(circle.get("cx", 0)), float(circle.get("cy", 0)))
        for circle in picture.iter(f"{SVG}circle")
    ]
    assert points == [("a", 64.0, 166.5), ("a", 610.0, 40.0), ("b", 64.0, 282.0)]
    assert [text.text for text in picture.iter(f"{SVG}text")][-2:] == ["gradeline", "the <floor>"]


def test_an_invalid_results_file_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"kind": "machine"}\nnonsense\n')
    done = subprocess.run(
        [sys.executable, "figure.py", str(tmp_path / "results.json")], cwd=BENCH, capture_output=True, check=False
    )
    reason = f"{tmp_path}/results.json:2: not a result: 'nonsense'; make the file with bench/all.py --json\n"
    assert (done.returncode, done.stderr.decode()) == (1, reason)


def test_the_page_can_be_regenerated() -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert [text.count(f"<!-- results: {end} -->") for end in ("begin", "end")] == [1, 1]


def test_an_unknown_part_is_refused() -> None:
    done = subprocess.run([sys.executable, "all.py", "speed"], cwd=BENCH, capture_output=True, check=False)
    assert done.returncode == 2
    assert "error: no part speed; there are peers, startup," in done.stderr.decode()


def test_the_cost_per_sample_excludes_start_up() -> None:
    code = """
from growth import Marginal, Size
few, many = Size(1.0, 0.5, 30, 0, None), Size(10.0, 5.0, 30, 0, None)
print(Marginal.between(few, many, 90_000))
"""
    assert output_of(code) == "Marginal(wall=100.0, cpu=50.0)\n"


def test_growth_measures_time_memory_and_disk_and_the_json_of_the_records() -> None:
    code = """
from growth import measured
from tools import bare, floor, gradeline
ours, least, less = (measured(tool, 20) for tool in (gradeline("none"), floor(), bare()))
print(ours.json_bytes > 20 * 100, least.json_bytes, less.json_bytes, ours.disk_bytes > least.disk_bytes > 0)
"""
    assert output_of(code) == "True None None True\n"


def test_the_floor_has_an_answer_on_disk_before_it_is_graded(tmp_path: Path) -> None:
    code = f"""
import asyncio, sqlite3, sys
sys.path.insert(0, "scripts")
import floor
path = {str(tmp_path / "store.db")!r}
store = floor.Store(path)
def kept():
    return [sqlite3.connect(path).execute(f"SELECT count(*) FROM {{table}}").fetchone()[0]
            for table in ("samples", "responses", "grades")]
async def main():
    done = store.put_response("case", 0, "line", "42", 1.0)
    print(done.done(), kept())
    await done
    print(kept())
    store.put_grade("case", True, "42")
    store.commit()
    print(kept(), store.passed())
asyncio.run(main())
"""
    assert output_of(code) == "False [0, 0, 0]\n[1, 1, 0]\n[1, 1, 1] (1, 1)\n"


def test_the_stages_of_a_sample_add_up_to_the_whole() -> None:
    code = """
from profile_sample import MEANINGS, figures
found = figures({"read": 4.0, "commit": 10.0, "whole": 20.0}, {"commit": 8.0, "whole": 9.0})
shown = {one.stage: (one.ours, one.floor) for one in found if (one.ours, one.floor) != (None, None)}
print(shown, [one.stage for one in found] == [*MEANINGS])
"""
    stages = {"read": (4.0, None), "commit": (10.0, 8.0), "turns and slots": (6.0, 1.0), "whole": (20.0, 9.0)}
    assert output_of(code) == f"{stages} True\n"
