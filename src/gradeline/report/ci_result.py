"""The result of a CI job as data: what its summary, annotations and comments show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec

from gradeline.analysis.base_run import BaseRun
from gradeline.analysis.regressions import RegressedCase, Regressions
from gradeline.engine.aggregate import GraderSummary, RunReport, worst_of
from gradeline.engine.comparison import Comparison
from gradeline.errors import ConfigError, Problem
from gradeline.report.formatting import Headline, case_count, headline, reasons
from gradeline.suite.problems import SourcePosition
from gradeline.verdict.paired_decision import GraderComparison

Undecided = Literal["fail", "warn", "pass"]
"""How an undecided run affects the job."""

_MAX_BYTES = 20_000_000
UNDECIDED_CODE = 3
_NOT_COMPARED = Headline("Not compared", "undecided")
_EXIT_CODES: dict[Undecided, int] = {"fail": UNDECIDED_CODE, "warn": 0, "pass": 0}


class CiGrader(msgspec.Struct, frozen=True, kw_only=True):
    """One grader of a run."""

    mean: float | None
    mean_ci: tuple[float, float] | None
    pass_rate: float | None
    scored: int
    total: int
    errors: int
    corrected: str | None = None
    """What labels say about the pass rate, as a sentence."""
    biases: tuple[str, ...] = ()
    """The biases of its judge that probes flagged."""


class CiChange(msgspec.Struct, frozen=True, kw_only=True):
    """One grader compared with the base."""

    baseline: float | None
    candidate: float | None
    difference: float | None
    interval: tuple[float, float] | None
    improved: int
    worse: int
    same: int
    missing: int
    decision: str
    reasons: tuple[str, ...] = ()
    corrected: str | None = None
    """What labels say about the difference, as a sentence."""


class CiScore(msgspec.Struct, frozen=True):
    """One grader's scores of a case; ``candidate`` is None for a score that is missing now."""

    grader: str
    baseline: float
    candidate: float | None


class CiCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case that regressed, and its place in the dataset."""

    case: str
    scores: tuple[CiScore, ...]
    file: str | None = None
    line: int = 0


class CiRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, and its comparison with the base if there is one."""

    suite: str
    name: str
    run: str
    variant: str | None = None
    commit: str | None = None
    verdict: str
    headline: str
    tone: str
    exit_code: int
    """Of the run, before an undecided one is accepted; 3 if it should have been compared, and there is no base."""
    reasons: tuple[str, ...] = ()
    cases: int
    repeats: int = 1
    graders: dict[str, CiGrader] = {}
    base: str | None = None
    """The run that it is compared with."""
    base_reason: str
    base_warning: str | None = None
    decision: str | None = None
    """None: not compared, or not comparable."""
    sentence: str | None = None
    notes: tuple[str, ...] = ()
    """Why the runs are not comparable, and what else differs between them."""
    changes: dict[str, CiChange] = {}
    regressions: tuple[CiCase, ...] = ()
    """The worst cases."""
    regressed: int = 0
    """The number of all cases that became worse."""

    def code(self, undecided: Undecided) -> int:
        """The exit code, if an undecided run is treated in this way."""
        return _EXIT_CODES[undecided] if self.exit_code == UNDECIDED_CODE else self.exit_code


class CiReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """All runs of a job."""

    undecided: Undecided
    exit_code: int
    verdict: str
    """That of the most urgent run."""
    run: str
    """The most urgent run."""
    runs: tuple[CiRun, ...]


def ci_report(runs: Sequence[CiRun], undecided: Undecided) -> CiReport:
    """The report of the runs of a job, of which there is at least one."""
    worst = worst_of([run.exit_code for run in runs])
    urgent = next(run for run in runs if run.exit_code == worst)
    code = worst_of([run.code(undecided) for run in runs])
    return CiReport(undecided=undecided, exit_code=code, verdict=urgent.verdict, run=urgent.run, runs=tuple(runs))


def ci_run(
    report: RunReport,
    base: BaseRun,
    comparison: Comparison | None,
    regressions: Regressions = Regressions(),  # noqa: B008 - immutable
    positions: Mapping[str, SourcePosition] | None = None,
    folder: Path | None = None,
    *,
    exit_code: int,
    base_required: bool,
) -> CiRun:
    """The result of one run; files are named relative to ``folder``, the root of the checkout.

    ``exit_code`` is that of the run. A run that passes, but has no base although it is required, is undecided.
    """
    run, shown, verdict, why = report.run, headline(report), report.verdict.result, reasons(report)
    if base_required and base.run is None and not exit_code:
        shown, verdict, exit_code, why = _NOT_COMPARED, "undecided", UNDECIDED_CODE, [base.reason, *why]
    compared: dict[str, Any] = {}
    if comparison is not None:
        compared = {
            "base": comparison.baseline.id,
            "decision": comparison.decision,
            "sentence": comparison.sentence,
            "notes": comparison.reasons,
            "changes": {key: _change(grader) for key, grader in comparison.graders.items()},
            "regressions": tuple(_case(one, (positions or {}).get(one.case), folder) for one in regressions.cases),
            "regressed": regressions.total,
        }
    return CiRun(
        suite=run.suite,
        name=run.name,
        run=run.id,
        variant=run.variant,
        commit=None if run.code_version is None else run.code_version.commit,
        verdict=verdict,
        headline=shown.word,
        tone=shown.tone,
        exit_code=exit_code,
        reasons=tuple(why),
        cases=case_count(report),
        repeats=run.repeats,
        graders={key: _grader(column) for key, column in report.summary.graders.items()},
        base_reason=base.reason,
        base_warning=base.warning,
        **compared,
    )


def _grader(column: GraderSummary) -> CiGrader:
    return CiGrader(
        mean=column.mean,
        mean_ci=column.mean_ci,
        pass_rate=column.pass_rate,
        scored=column.scored,
        total=column.total,
        errors=column.errors,
        corrected=None if column.corrected is None else column.corrected.sentence,
        biases=column.biases,
    )


def _change(grader: GraderComparison) -> CiChange:
    return CiChange(
        baseline=grader.baseline,
        candidate=grader.candidate,
        difference=grader.difference,
        interval=_finite(grader.difference_ci),
        improved=grader.improved,
        worse=grader.worse,
        same=grader.same,
        missing=grader.missing,
        decision=grader.decision,
        reasons=grader.reasons,
        corrected=None if grader.corrected is None else grader.corrected.sentence,
    )


def _finite(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    """JSON has no infinite numbers."""
    return bounds if bounds is not None and all(map(isfinite, bounds)) else None


def _case(regressed: RegressedCase, position: SourcePosition | None, folder: Path | None) -> CiCase:
    scores = tuple(CiScore(*change) for change in regressed.changes)
    file = None if position is None else _relative(position.file, folder)
    return CiCase(case=regressed.case, scores=scores, file=file, line=position.line if position and file else 0)


def _relative(file: str, folder: Path | None) -> str | None:
    """The file as the forge names it; None for one outside of the checkout."""
    root = (folder or Path.cwd()).resolve()
    path = Path(file).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None


def read_ci_report(path: Path) -> CiReport:
    """The report that ``gradeline ci`` wrote; `ConfigError` for a file that is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            Problem(str(path), "no such file; run gradeline ci SUITE first, in the same folder")
        ) from None
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    if len(raw) > _MAX_BYTES:
        raise ConfigError(Problem(str(path), f"is larger than {_MAX_BYTES // 1_000_000} MB; is it a report of ci?"))
    try:
        return msgspec.json.decode(raw, type=CiReport)
    except (ValueError, RecursionError) as error:
        reason = f"is not a report of gradeline ci: {error}; write it anew with gradeline ci SUITE"
        raise ConfigError(Problem(str(path), reason)) from None
