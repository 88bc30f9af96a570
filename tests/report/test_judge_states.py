"""Every report says whether the judges of a run are calibrated."""

from __future__ import annotations

import io

import pytest

from gradeline.engine.aggregate import RunReport, conclude
from gradeline.report.ci_result import reasons
from gradeline.report.html import write_html
from gradeline.report.junit import write_junit
from gradeline.report.markdown import markdown
from gradeline.store import InMemoryStorage
from gradeline.trust import calibrate_run
from judged_run import JudgedCase, store_run

STATE = "judge failed: kappa is 0.00, and its lower bound (one-sided, 95 %) -0.164 is below 0.4"


@pytest.fixture
def report() -> RunReport:
    """Of a run whose judge guesses."""
    cases = [JudgedCase({"quality": case % 2 == 0}, case % 4 < 2) for case in range(100)]
    with InMemoryStorage() as storage:
        run = store_run(storage, cases)
        assert calibrate_run(storage, run).exit_code == 1
        found = conclude(storage, run)
        return found._replace(records=list(storage.records(run.id)).__iter__)


def test_the_grader_of_a_judge_has_a_note(report: RunReport) -> None:
    assert report.summary.graders["quality"].notes[0] == STATE
    assert STATE in markdown(report)
    for write in (write_html, write_junit):
        file = io.StringIO()
        write(file, report)
        assert STATE in file.getvalue()


def test_the_reasons_name_the_judge(report: RunReport) -> None:
    assert reasons(report) == [f"quality: its judge is not calibrated (failed: {STATE.removeprefix('judge failed: ')})"]
