"""Scores of observability tools: those by people become labels, those by programs become grades."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gradeline.graders.grading import skipped_grade
from gradeline.importers.grades import imported_grade, imported_grader, not_graded
from gradeline.importers.output import ImportedLabel
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.trace_response import root_ids
from gradeline.importers.trace_spool import ScoreName, Trace, TraceScore, TraceSpool
from gradeline.model import Grade, RunGrader, clean_text
from gradeline.model.grade import PASS_SCORE
from gradeline.report.formatting import one_line

MAX_NAMES = 200
"""Maximum number of score names in one run."""
_MAX_NAME = 100
_WORDS = {
    **dict.fromkeys(
        ("pass", "passed", "correct", "true", "yes", "good", "right", "accept", "accepted", "approved"), 1.0
    ),
    **dict.fromkeys(("fail", "failed", "incorrect", "false", "no", "bad", "wrong", "reject", "rejected"), 0.0),
}


def value_of_word(word: str | None) -> float | None:
    """1 or 0 for a category that clearly means pass or fail; None for any other."""
    return None if word is None else _WORDS.get(word.strip().lower())


class ScoreGraders(NamedTuple):
    """The graders of an imported run, and the names of the scores that they are made of."""

    graders: dict[str, RunGrader]
    label_only: frozenset[str]
    used: frozenset[tuple[str, bool]]
    """The names of scores that are mapped, and whether they are those of people."""

    @classmethod
    def of(cls, spool: TraceSpool, run: str, tool: str, report: ImportReport) -> ScoreGraders:
        """The graders of the scores in a run; a score that is not a grade is reported once."""
        names = spool.score_names(run, MAX_NAMES + 1)
        if len(names) > MAX_NAMES:
            report.not_mapped(
                run or tool, "scores", f"there are more than {MAX_NAMES} names; only the first are imported"
            )
        usable = [name for name in names[:MAX_NAMES] if _is_usable(spool, name, report)]
        programs = {grader_name(name.name) for name in usable if not name.human}
        people = {grader_name(name.name) for name in usable if name.human}
        graders = {name: imported_grader(tool, name) for name in sorted(programs | people)}
        used = frozenset((name.name, name.human) for name in usable)
        return cls(graders, frozenset(people - programs), used)

    def grades(self, trace: Trace, report: ImportReport) -> dict[str, Grade]:
        """The grades of a trace by programs. A response without a score has no grade."""
        found: dict[str, Grade] = {}
        for name, score in self._scores(trace, report, human=False):
            if name in found:
                report.approximated(score.place, item_name("score", score.name), f"grade of {name}", _REPLACED)
            found[name] = _grade(self.graders[name], score)
            _report(report, score, item_name("score", score.name), f"grades of {name}")
        return found

    def skipped(self, trace: Trace, report: ImportReport) -> dict[str, Grade]:
        """The grades of a failed call, which has nothing to grade."""
        for _, score in self._scores(trace, report, human=False):
            report.not_mapped(
                score.place, item_name("score", score.name), "belongs to a failed call, which is not graded"
            )
        graded = ((name, grader) for name, grader in self.graders.items() if name not in self.label_only)
        return {name: skipped_grade(grader.kind, grader.fingerprint) for name, grader in graded}

    def labels(self, trace: Trace, report: ImportReport) -> Mapping[str, ImportedLabel]:
        """The labels of a trace by people."""
        found: dict[str, ImportedLabel] = {}
        for name, score in self._scores(trace, report, human=True):
            what = item_name("score of a person", score.name)
            if score.value is None:
                report.not_mapped(score.place, what, _NO_VERDICT)
                continue
            if name in found:
                report.approximated(score.place, what, f"label of {name}", _REPLACED)
            found[name] = _label(score, score.value)
            _report(report, score, what, f"labels of {name}")
        return found

    def _scores(self, trace: Trace, report: ImportReport, *, human: bool) -> Iterator[tuple[str, TraceScore]]:
        roots = root_ids(trace.spans) | {trace.id}
        for score in trace.scores:
            if score.human is not human or (score.name, human) not in self.used:
                continue
            if score.span is not None and score.span not in roots:
                report.not_mapped(score.place, item_name("score", score.name), _OF_A_STEP)
            else:
                yield grader_name(score.name), score


_REPLACED = "the trace has several; the last one is kept"
_NO_VERDICT = "has no value from 0 to 1, and does not mean pass or fail; give it a value, and import again"
_OF_A_STEP = "belongs to one step of the trace, and a grade to the whole response; score the trace or its first span"


def grader_name(name: str) -> str:
    """The name of the grader for a score: that of the score, on one line."""
    return one_line(clean_text(name).text, _MAX_NAME) or "score"


def _is_usable(spool: TraceSpool, name: ScoreName, report: ImportReport) -> bool:
    """Whether a score is a grade: its values are from 0 to 1 in the whole source.

    A 1 on a scale from 1 to 5 would otherwise be the best grade.
    """
    low, high = spool.score_range(name.name, human=name.human)
    what = item_name("score of a person" if name.human else "score", name.name)
    if low is None or high is None:
        report.not_mapped("scores", what, _NO_VERDICT)
    elif low < 0 or high > 1:
        why = f"has values from {low:g} to {high:g}, and a grade is from 0 to 1; scale them in the file"
        report.not_mapped("scores", what, why)
    else:
        return True
    return False


def _report(report: ImportReport, score: TraceScore, what: str, became: str) -> None:
    if score.is_verdict or score.declined:
        report.mapped(score.place, what, became)
    else:
        report.approximated(score.place, what, became, f"a score of at least {PASS_SCORE} is a pass")


def _grade(grader: RunGrader, score: TraceScore) -> Grade:
    if score.declined:
        return not_graded(grader)
    metadata = {} if score.text is None else {"category": clean_text(score.text).text}
    return imported_grade(grader, score.value, rationale=score.comment, metadata=metadata)


def _label(score: TraceScore, value: float) -> ImportedLabel:
    return ImportedLabel(
        verdict="pass" if value >= PASS_SCORE else "fail",
        score=None if score.is_verdict else value,
        reason=score.comment or "",
        author=score.author,
        at=score.at,
    )
