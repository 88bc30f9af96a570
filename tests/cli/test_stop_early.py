"""``--stop-early`` at the command line; `tests/docs` runs the commands of its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradeline.cli.progress import ProgressLine
from gradeline.engine.plan import LookReport, ProgressCount
from gradeline_command import COMMAND, run_command


def test_the_progress_line_shows_the_last_look() -> None:
    progress = ProgressLine(492, clock=lambda: 0.0)
    progress(ProgressCount(done=97))
    progress(LookReport("after 74 of 492: +0.020 (-0.040 to +0.080), continuing"))
    progress(LookReport("after 99 of 492: +0.031 (-0.020 to +0.080), continuing"))
    assert progress.line().endswith("; after 99 of 492: +0.031 (-0.020 to +0.080), continuing")
    assert progress.done == 97


def test_without_a_baseline_stop_early_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("suite.yaml").write_text(
        'name: one\ndataset: [{input: "1", ground_truth: "1"}]\ntarget: {kind: replay, responses: a.jsonl}\n'
        "graders: {right: {kind: contains}}\n"
    )
    Path("a.jsonl").write_text('{"id": "1", "text": "1"}')
    done = run_command([COMMAND, "run", "suite.yaml", "--stop-early"], text=True)
    assert done.returncode == 2
    assert "--stop-early: needs a run to compare with: name one with --baseline RUN" in done.stderr
