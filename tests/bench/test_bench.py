"""The benchmarks still do the job they time, and name what they cannot time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def output_of(code: str, **variables: str) -> str:
    """What a piece of Python prints that runs as the benchmarks do."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCH, env={**os.environ, **variables}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("tool", ["gradeline('none')", "gradeline('worker')", "gradeline('custom')", "floor()"])
def test_gradeline_and_the_baseline_loop_grade_every_answer_right(tool: str) -> None:
    output_of(f"from contest import do; from tools import floor, gradeline; do({tool}, samples=12, concurrency=4)")


def test_a_tool_that_finds_less_is_not_timed() -> None:
    code = """
from contest import Entry, contest
from tools import floor
[result] = contest([Entry(floor()._replace(passed=lambda job, output: 11), 12, rounds=1)], concurrency=4)
print(result.timing, result.failure)
"""
    assert output_of(code) == "None it found 11 of 12 answers right\n"


def test_the_agent_of_the_network_is_called_once_for_each_case() -> None:
    code = """
from concurrency import agent
from contest import Entry, contest
from tools import gradeline_http
with agent() as running:
    [result] = contest([Entry(gradeline_http(), 12, rounds=1)], 4, running.url, running.forget, running.note)
    print(repr(result.failure), [seen.most_at_once <= 4 for seen in running.seen["gradeline"]])
"""
    assert output_of(code) == "'' [True]\n"


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason(tmp_path: Path) -> None:
    code = "from pathlib import Path; import peers; peers.PLACE = Path('{}'); print(peers.installed('deepeval').reason)"
    assert output_of(code.format(tmp_path), UV="false") == "false venv --quiet: it printed nothing\n"


def test_performance_targets_decide_the_table_and_the_exit_code() -> None:
    code = """
from measure import exit_code, judged, print_table
rows = [("a", "5", judged(5, 4, at_least=True), ""), ("b", "1,234", judged(3, 4, at_least=True), "slow")]
print_table("title", ("tool", "rate", "target", ""), rows)
print(exit_code(rows), exit_code(rows[:1]))
"""
    table = "title\ntool   rate      target\na         5         ≥ 4\nb     1,234  ≥ 4 MISSED  slow\n3 0\n"
    assert output_of(code) == table


def test_calls_over_reused_connections_are_counted_by_the_agent() -> None:
    code = """
import reused_connections as bench
bench.CALLS, bench.CONCURRENCY = 12, 4
closing = bench.Closing("after each answer", answers=1)
with bench.agent(closing) as url:
    for entry in bench.entries(alone=True):
        print(*bench.row(closing, entry, url)[:6], sep="|")
"""
    ours, without_retries, aiohttp = output_of(code).splitlines()
    assert ours.startswith("after each answer, gradeline|0|0.00 %|≤ 0|12|12")
    assert without_retries.startswith("after each answer, gradeline, retries: 0|")
    assert aiohttp.startswith("after each answer, aiohttp|")
