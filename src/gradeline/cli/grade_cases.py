"""``gradeline grade GRADER CASES.jsonl``: a file of cases, graded by custom graders or built-ins."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline import graders
from gradeline.cli.settings import Settings
from gradeline.cli.tables import Column, print_table
from gradeline.cli.terminal import OUTCOME_STYLES, console, plain
from gradeline.engine.grade import Case, UserGrader, grade_cases
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.model import Grader, Record, to_json
from gradeline.suite.cases import read_cases
from gradeline.usercode.loader import CodeSpec, Manifest, Wanted
from gradeline.usercode.pool import Limits, WorkerPool

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

_SHOWN = 10
_GRADERS = (
    Column("grader", wraps=True, key=True),
    *(Column(title, right=True) for title in ("mean", "scored", "pass", "fail", "error")),
)
_WORST = (
    Column("case", wraps=True, key=True, most=40),
    Column("grader", wraps=True, key=True, most=40),
    Column("outcome"),
    Column("why", wraps=True),
)


def is_python(grader: str) -> bool:
    """Whether the grader is named by a Python file: ``file.py`` or ``file.py:function``."""
    return grader.endswith(".py") or ".py:" in grader


def run(
    settings: Settings, grader: str, cases: Path, config: dict[str, Any] | None, timeout: float, memory: int
) -> int:
    """Grade the cases, show what came of it, and give the exit code."""
    return asyncio.run(_run(settings, grader, cases, config, timeout, memory))


async def _run(
    settings: Settings, grader: str, cases: Path, config: dict[str, Any] | None, timeout: float, memory: int
) -> int:
    if not cases.is_file():
        raise ConfigError(Problem(str(cases), "no such file: give a JSONL file of cases"))
    spec = _spec(grader) if is_python(grader) else None
    if spec is not None and config:
        raise ConfigError(Problem("--config", "is for built-in graders; a custom grader reads sample.metadata"))
    chosen: dict[str, UserGrader | Grader] = {}
    if spec is None:
        chosen[grader] = graders.create(grader, config)
    tally = Tally()
    async with WorkerPool(spec, limits=Limits(memory=memory)) as pool:
        manifest = await pool.start()
        if spec is not None:
            chosen = _user_graders(manifest, timeout, spec)
        rows = (Case(sample, submission) for sample, submission in read_cases(cases))
        with _progress(settings) as bar:
            advance = bar.add_task("grading", total=_count(cases)) if bar is not None else None
            async for record in grade_cases(pool, chosen, rows, "grade"):
                tally.add(record)
                if settings.json:
                    click.echo(to_json(record))
                if bar is not None and advance is not None:
                    bar.advance(advance)
    if not tally.records:
        raise ConfigError(Problem(str(cases), "holds no case"))
    if not settings.json:
        tally.show(settings)
    return tally.exit_code


def _spec(grader: str) -> CodeSpec:
    path, _, function = grader.partition(".py:")
    file = Path(path if path.endswith(".py") else f"{path}.py").resolve()
    if not file.is_file():
        raise ConfigError(Problem(str(file), "no such file: give a Python file with graders in it"))
    wanted = (Wanted("grader", f"{file.name}:{function}" if function else f"{file.name}:*"),)
    return CodeSpec(folder=str(file.parent), wanted=wanted)


def _user_graders(manifest: Manifest, timeout: float, spec: CodeSpec) -> dict[str, UserGrader | Grader]:
    found: dict[str, UserGrader | Grader] = {
        entry.name: UserGrader(entry.reference, entry.fingerprint, timeout)
        for entry in manifest.entries
        if entry.role == "grader"
    }
    if not found:
        raise ConfigError(Problem(spec.wanted[0].reference, "no grader there: mark a function with @grader"))
    return found


def _progress(settings: Settings) -> AbstractContextManager[Progress | None]:
    if settings.quiet or not sys.stderr.isatty():
        return nullcontext()
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(settings, stderr=True), transient=True)


def _count(cases: Path) -> int:
    with cases.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


class Tally:
    """What the records come to, without keeping them."""

    def __init__(self) -> None:
        self.records = 0
        self._counts: dict[str, dict[str, int]] = {}
        self._scores: dict[str, float] = {}
        self._worst: list[tuple[str, str, str, str]] = []

    def add(self, record: Record) -> None:
        self.records += 1
        for key, grade in record.grades.items():
            counts = self._counts.setdefault(key, dict.fromkeys(Outcome, 0))
            counts[grade.outcome] += 1
            self._scores[key] = self._scores.get(key, 0.0) + (grade.score or 0.0)
            if grade.outcome is not Outcome.PASS and len(self._worst) < _SHOWN:
                why = f"{grade.error.type}: {grade.error.message}" if grade.error else grade.rationale or ""
                self._worst.append((record.case, key, grade.outcome.value, why))

    @property
    def exit_code(self) -> int:
        """0 all pass, 1 some fail, 3 some have no score, 4 none has."""
        total = {outcome: sum(counts[outcome] for counts in self._counts.values()) for outcome in Outcome}
        if not total[Outcome.PASS] and not total[Outcome.FAIL]:
            return 4
        if total[Outcome.FAIL]:
            return 1
        return 3 if total[Outcome.ERROR] else 0

    def show(self, settings: Settings) -> None:
        out = console(settings)
        rows: list[tuple[Text | str, ...]] = []
        for key, counts in self._counts.items():
            scored = counts[Outcome.PASS] + counts[Outcome.FAIL]
            mean = f"{self._scores[key] / scored:.3f}" if scored else "–"
            numbers = (str(counts[outcome]) for outcome in (Outcome.PASS, Outcome.FAIL, Outcome.ERROR))
            rows.append((plain(key, "cyan"), mean, f"{scored} of {self.records}", *numbers))
        print_table(out, _GRADERS, rows)
        if self._worst and not settings.quiet:
            out.print()
            print_table(out, _WORST, map(_worst_row, self._worst))


def _worst_row(row: tuple[str, str, str, str]) -> tuple[Text, ...]:
    case, key, outcome, why = row
    return plain(case, most=60), plain(key, "cyan"), plain(outcome, OUTCOME_STYLES[outcome]), plain(why, most=200)
