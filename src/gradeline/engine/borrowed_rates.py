"""Pass rates by Rogan and Gladen: from a judge's errors on the labels of its calibration, which is another run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gradeline.engine.aggregate import GraderSummary, RunReport
from gradeline.engine.corrected import label_command
from gradeline.engine.definition import Rules
from gradeline.engine.judge_trust import JudgeTrust, judge_states
from gradeline.model import Run, Storage
from gradeline.verdict.corrected import CorrectedRate, LabelCounts, LabelledScores, borrowed_rate, refused_rate


def with_borrowed_rates(storage: Storage, report: RunReport) -> RunReport:
    """The report with such a rate for each judge of whose results none has a label; the verdict does not use it."""
    trust = judge_states(storage, report.run)
    floor = Rules.of(report.run).coverage_floor
    graders = {
        key: column if column.corrected is not None else _with_rate(report.run, key, column, trust, floor)
        for key, column in report.summary.graders.items()
    }
    return report._replace(summary=msgspec.structs.replace(report.summary, graders=graders))


def _with_rate(
    run: Run, key: str, column: GraderSummary, trust: Mapping[str, JudgeTrust], floor: float
) -> GraderSummary:
    if key not in trust:
        return column
    passes = [1] * column.passed + [0] * column.failed
    scores = LabelledScores((), passes, passes, range(len(passes)), total=column.total, command=label_command(run, key))
    return msgspec.structs.replace(column, corrected=_rate(scores, trust[key], floor))


def _rate(scores: LabelledScores, judge: JudgeTrust, floor: float) -> CorrectedRate:
    record = judge.calibration
    if judge.state in ("expired", "drifted"):
        remedy = f"label this run instead: {scores.command} --sample 100"
        return refused_rate(scores, f"the calibration does not hold any more ({judge.state}: {judge.reason}); {remedy}")
    if record is None:
        return refused_rate(scores, f"the judge is not calibrated: {judge.reason}")
    if record.sensitivity is None or record.specificity is None:
        return refused_rate(scores, f"the calibration has no labels of one class ({record.headline})")
    table = LabelCounts(record.sensitivity, record.positives, record.specificity, record.negatives)
    return borrowed_rate(scores, table, floor)
