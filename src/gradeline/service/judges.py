"""Whether judges are calibrated: those of a run, and all that the store has calibrations of."""

from __future__ import annotations

from gradeline.engine.judge_trust import JudgeTrust, judge_states, state_of_record
from gradeline.model import Run, Storage
from gradeline.rest_types import JudgePage, JudgeReport, RunCalibration
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor
from gradeline.trust.calibration_records import latest_calibrations


def run_calibration(storage: Storage, run: Run) -> RunCalibration:
    """The state of each judge of a run."""
    found = judge_states(storage, run)
    return RunCalibration(evaluation_id=run.id, graders={key: _report(one) for key, one in found.items()})


def judge_page(storage: Storage, suite: str | None, page: PageRequest) -> JudgePage:
    """A page of the judges of a suite, or of all suites, each with its latest calibration, the newest first."""
    start = int(decode_cursor(page.cursor, int)[0]) if page.cursor is not None else page.skip
    found = latest_calibrations(storage, suite)[::-1]
    shown = [_report(state_of_record(storage, one)) for one in found[max(start, 0) :][: page.limit]]
    end = max(start, 0) + len(shown)
    following = encode_cursor(end) if end < len(found) else None
    return JudgePage(judges=shown, count=len(shown), total=len(found), next_cursor=following)


def _report(trust: JudgeTrust) -> JudgeReport:
    return JudgeReport(state=trust.state, reason=trust.reason, calibration=trust.calibration)
