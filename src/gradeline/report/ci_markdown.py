"""The result of a CI job as Markdown: for the job summary, and for the comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from urllib.parse import quote

from gradeline.engine.aggregate import RunReport
from gradeline.report.ci_result import UNDECIDED_CODE, CiCase, CiChange, CiGrader, CiRun, CiScore, Undecided
from gradeline.report.formatting import MISSING, count_noun, decimal, percent
from gradeline.report.markdown import LONGEST_COMMENT, SIGNS, code, markdown, table, words

_KEY = 80
_LONGEST_MARKER = 200
_MOST_NOTES = 10
_MOST_GRADERS = 30
_SHORT = 10
_RESERVED = 200
_CUT = "*The rest is left out; the job summary has more.*"
_CHANGES = ("grader", "base", "now", "difference", "95 % interval", "up", "down", "same", "missing", "decision")
_GRADERS = ("grader", "mean", "pass rate", "scored", "errors")


def comment_marker(suite: str) -> str:
    """An invisible line that identifies the comment of a suite. The name of the suite cannot end the line."""
    name = quote(suite, safe="")
    if len(name) > _LONGEST_MARKER:
        name = f"{name[:_LONGEST_MARKER]}-{sha256(suite.encode()).hexdigest()[:16]}"
    return f"<!-- gradeline:{name} -->"


def comment(suite: str, runs: Sequence[CiRun], undecided: Undecided) -> str:
    """The comment about the runs of one suite; never longer than a comment may be.

    Untrusted text is escaped: it creates no markup, link or mention.
    """
    lines = [comment_marker(suite)]
    for run in runs:
        lines += _section(run, undecided)
        if not run.changes:
            lines += _table_of_graders(run.graders)
        lines += _list([f"{key}: pass rate {one.corrected}" for key, one in run.graders.items() if one.corrected])
        lines += _list([f"{key}: {bias}" for key, one in run.graders.items() for bias in one.biases])
    return _fit(lines)


def step_summary(report: RunReport, run: CiRun, undecided: Undecided) -> str:
    """The comparison of a run with the base, then its graders, errors and worst cases; escaped as `comment` is."""
    return markdown(report, heading=_section(run, undecided))


def _section(run: CiRun, undecided: Undecided) -> Iterator[str]:
    """The verdict of one run, its comparison with the base, and the cases that became worse."""
    sign = SIGNS.get(run.tone, SIGNS["none"])
    yield f"### {sign} {words(run.headline, _KEY)}: {code(run.name, _KEY)}"
    yield ""
    if run.tone == "undecided":
        yield from (_meaning(undecided, run), "")
    if run.sentence is not None:
        yield from (f"Against the base: **{words(run.sentence, 500)}**", "")
    statements = [*run.reasons, *(run.notes if run.base is not None else ())]
    yield from _list(statements)
    yield from _table_of_changes(run.changes)
    yield from _list([f"{key}: difference {one.corrected}" for key, one in run.changes.items() if one.corrected])
    yield from _regressions(run.regressions, run.regressed)
    yield from (" · ".join(_facts(run)), "")


def _meaning(undecided: Undecided, run: CiRun) -> str:
    if run.exit_code != UNDECIDED_CODE:
        return "The job fails, because it has no result."
    job = "The job fails, because it requires a decision."
    if not run.code(undecided):
        job = "This does not fail the job."
    return f"Whether the change is good or bad is not known. {job}"


def _list(statements: Sequence[str]) -> Iterator[str]:
    yield from (f"- {words(one, 300)}" for one in statements[:_MOST_NOTES])
    if len(statements) > _MOST_NOTES:
        yield f"- and {count_noun(len(statements) - _MOST_NOTES, 'more reason')}"
    if statements:
        yield ""


def _table_of_changes(changes: dict[str, CiChange]) -> Iterator[str]:
    yield from _shortened(_CHANGES, [_change_row(key, one) for key, one in changes.items()])


def _change_row(key: str, change: CiChange) -> tuple[str, ...]:
    low_high = MISSING if change.interval is None else "{:+.3f} to {:+.3f}".format(*change.interval)
    difference = MISSING if change.difference is None else f"{change.difference:+.3f}"
    counts = (change.improved, change.worse, change.same, change.missing)
    return (
        code(key, _KEY),
        decimal(change.baseline),
        decimal(change.candidate),
        difference,
        low_high,
        *(f"{count:,}" for count in counts),
        words(change.decision.replace("_", " "), _KEY),
    )


def _table_of_graders(graders: dict[str, CiGrader]) -> Iterator[str]:
    yield from _shortened(_GRADERS, [_grader_row(key, one) for key, one in graders.items()])


def _grader_row(key: str, grader: CiGrader) -> tuple[str, ...]:
    scored = f"{grader.scored:,} of {grader.total:,}"
    return code(key, _KEY), decimal(grader.mean), percent(grader.pass_rate), scored, f"{grader.errors:,}"


def _shortened(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield from table(titles, rows[:_MOST_GRADERS], frozenset(titles[1:-1]))
    yield ""
    if len(rows) > _MOST_GRADERS:
        yield from (f"and {count_noun(len(rows) - _MOST_GRADERS, 'more grader')}", "")


def _regressions(cases: Sequence[CiCase], total: int) -> Iterator[str]:
    if not cases:
        return
    if total:
        more = f"; the worst {len(cases)} are shown" if total > len(cases) else ""
        yield f"**{count_noun(total, 'case')} became worse**{more}:"
    else:
        yield "**Cases that no longer have a score**:"
    yield ""
    yield from table(("case", "grader", "base", "now", "where"), (row for case in cases for row in _case_rows(case)))
    yield ""


def _case_rows(case: CiCase) -> Iterable[tuple[str, ...]]:
    place = None if case.file is None else f"{case.file}:{case.line}" if case.line else case.file
    for score in case.scores:
        yield code(case.case, _KEY), code(score.grader, _KEY), decimal(score.baseline), _now(score), code(place)


def _now(score: CiScore) -> str:
    return "no score" if score.candidate is None else decimal(score.candidate)


def _facts(run: CiRun) -> Iterator[str]:
    repeats = f" × {run.repeats}" if run.repeats > 1 else ""
    yield f"{count_noun(run.cases, 'case')}{repeats}"
    if run.commit is not None:
        yield f"commit {code(run.commit[:_SHORT])}"
    yield f"run {code(run.run, _KEY)}"
    if run.base is not None:
        yield f"base {code(run.base, _KEY)}, {words(run.base_reason, 300)}"
    elif run.base_reason not in run.reasons:
        yield f"not compared: {words(run.base_reason, 500)}"
    if run.base_warning is not None:
        yield f"⚠️ {words(run.base_warning, 500)}"


def _fit(lines: Sequence[str]) -> str:
    """The lines as text; whole lines are left out at the end where they are too many."""
    shown: list[str] = []
    room = LONGEST_COMMENT - _RESERVED
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            return "\n".join([*shown, "", _CUT, ""])
        shown.append(line)
    return "\n".join(shown).rstrip() + "\n"
