"""``gradeline grade``: one grader on a text, or graders on every case of a file."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.dataset import columns_option, parse_columns
from gradeline.cli.options import CliSettings, current_settings, global_options
from gradeline.cli.terminal import OUTCOME_STYLES, TableColumn, console, print_table, safe_text
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.report.formatting import MISSING

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

    from gradeline.engine.grade import UserGrader
    from gradeline.model import Grade, GraderProtocol, Record, Response
    from gradeline.usercode.loader import CodeSpec, Manifest

_MAX_BYTES = 64 * 1024 * 1024
_MAX_WORST = 10
_EXIT_CODES = {"pass": 0, "fail": 1, "error": 4, "skipped": 4, "not_applicable": 4}
_GRADER_COLUMNS = (
    TableColumn("grader", wraps=True, key=True),
    *(TableColumn(title, right=True) for title in ("mean", "scored", "pass", "fail", "error")),
)
_WORST_COLUMNS = (
    TableColumn("case", wraps=True, key=True, most=40),
    TableColumn("grader", wraps=True, key=True, most=40),
    TableColumn("outcome"),
    TableColumn("why", wraps=True),
)


@click.command()
@click.argument("grader", metavar="GRADER")
@click.argument("cases", required=False, type=click.Path(path_type=Path), metavar="[CASES.jsonl]")
@click.option("--config", metavar="JSON", help="Options of the grader, as JSON or @FILE.")
@click.option("--expected", metavar="TEXT", help="Expected value to grade against.")
@click.option("--input", "input_text", metavar="TEXT", default="", help="Input of the case ($input in rules).")
@click.option("--metadata", metavar="JSON", help="Metadata of the case ($metadata.key in rules), as JSON or @FILE.")
@click.option("--response", "is_response", is_flag=True, help="Read a complete response as JSON instead of text.")
@click.option("--extractor", metavar="NAME", help="Extractor that picks the submission from the response.")
@click.option("--extractor-config", metavar="JSON", help="Options of the extractor, as JSON or @FILE.")
@click.option("--pass-threshold", type=click.FloatRange(0, 1), help="Lowest score that passes.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds per call of a custom grader.",
)
@click.option(
    "--memory",
    type=click.IntRange(64),
    default=2048,
    show_default=True,
    help="MiB of address space per custom grader.",
)
@columns_option
@global_options
def grade(
    grader: str,
    cases: Path | None,
    columns: tuple[str, ...],
    config: str | None,
    expected: str | None,
    input_text: str,
    metadata: str | None,
    is_response: bool,
    extractor: str | None,
    extractor_config: str | None,
    pass_threshold: float | None,
    timeout: float,
    memory: int,
) -> int:
    """Grade the text on standard input, or every case of a file.

    GRADER is the name of a built-in grader, or FILE.py[:function] with custom graders marked with @grader. A line of
    CASES.jsonl is {"input", "ground_truth", "submission", "metadata"}; any file of a dataset is read too.

    \b
    echo "The answer is 42." | gradeline grade numeric --expected 42
    echo '{"a": 1}' | gradeline grade json_match --config '{"mode": "subset"}' --expected '{"a": 1}'
    gradeline grade my_graders.py:polite cases.jsonl

    Exit codes: 0 all pass, 1 a case fails, 2 usage error, 3 no failure but some without a score, 4 none has a score.
    """
    import asyncio  # --help must not load it

    options = _mapping(config, "--config")
    if cases is not None:
        named = parse_columns(columns, ("submission",))
        return asyncio.run(_grade_cases(current_settings(), grader, cases, named, options, timeout, memory * 2**20))
    if _is_python(grader):
        raise click.UsageError("A custom grader needs a file of cases: gradeline grade FILE.py CASES.jsonl")
    from gradeline import extractors, graders
    from gradeline.engine.grade import grade_once
    from gradeline.graders.base import DEFAULT_EXTRACTOR
    from gradeline.model import Record, Sample, clean_text

    settings = current_settings()
    built_in = graders.create(grader, options)
    extractor_options = _mapping(extractor_config, "--extractor-config")
    # standard input is the submission itself
    default = graders.default_extractor(grader) if is_response else DEFAULT_EXTRACTOR
    chosen = extractors.create(extractor or default, extractor_options)
    response = _read_response(is_response)
    sample = Sample(
        id="stdin",
        input=clean_text(input_text).text,
        ground_truth=None if expected is None else clean_text(expected).text,
        metadata=_mapping(metadata, "--metadata") or {},
    )
    submission, result = asyncio.run(grade_once(built_in, chosen, sample, response, pass_threshold))
    submissions = {} if submission is None else {built_in.kind: submission}
    record = Record("grade", sample.case_key, 0, sample, response, submissions, {built_in.kind: result})
    _show(settings, record)
    return _EXIT_CODES[result.outcome]


def _show(settings: CliSettings, record: Record) -> None:
    (result,) = record.grades.values()
    if settings.json:
        from gradeline.model import to_json

        click.echo(to_json(record))
    elif settings.quiet:
        click.echo(result.outcome if result.score is None else f"{result.outcome} {result.score:g}")
    else:
        _print(settings, result)


def _print(settings: CliSettings, result: Grade) -> None:

    out = console(settings)
    score = "no score" if result.score is None else f"score {result.score:.3g}"
    out.print(safe_text(f"{result.outcome}  {score}", f"bold {OUTCOME_STYLES[result.outcome]}"))
    if result.error is not None:
        out.print(safe_text(f"{result.error.type}: {result.error.message} ({result.error.fault}'s fault)", most=2000))
    if result.rationale:
        out.print(safe_text(result.rationale, most=2000))
    for key, value in result.metadata.items():
        if value != result.rationale:
            out.print(safe_text(f"  {key}: {value}", "dim"))


def _mapping(text: str | None, option: str) -> dict[str, Any] | None:
    """A JSON object from a text or an @FILE."""
    if text is None:
        return None
    from gradeline.model import clean_text, quote
    from gradeline.parsing.json_text import NotJsonError, parse_json

    if text.startswith("@"):
        try:
            text = clean_text(Path(text[1:]).read_bytes()).text
        except OSError as error:
            raise click.UsageError(f"{option}: cannot read {text[1:]!r}: {error.strerror}") from None
    try:
        value = parse_json(text)
    except NotJsonError as error:
        raise click.UsageError(f"{option}: not JSON: {error}, got {quote(text)}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f'{option}: expected a JSON object such as {{"key": "value"}}, got {quote(text)}')
    return value


def _read_response(is_response: bool) -> Response:
    from gradeline.errors import DataError
    from gradeline.model import Response, clean_text, from_json

    if sys.stdin.isatty():
        click.echo("Reading from the terminal; end with Ctrl-D.", err=True)
    raw = sys.stdin.buffer.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise click.UsageError(f"standard input: larger than the limit of {_MAX_BYTES // 2**20} MiB")
    text, changed = clean_text(raw)
    if changed:
        click.echo("standard input contains invalid UTF-8 or NUL bytes; they were replaced", err=True)
    if not is_response:
        return Response(text=text.removesuffix("\n").removesuffix("\r"), cleaned=changed)
    try:
        return from_json(Response, text)
    except DataError as error:
        raise click.UsageError(f"standard input: {error}") from None


async def _grade_cases(
    settings: CliSettings,
    grader: str,
    cases: Path,
    columns: dict[str, Any],
    config: dict[str, Any] | None,
    timeout: float,
    memory: int,
) -> int:
    """Grade every case of a file, show the results and return the exit code."""
    from gradeline import graders
    from gradeline.engine.grade import SubmittedCase, grade_cases
    from gradeline.model import to_json
    from gradeline.suite.dataset import read_cases
    from gradeline.usercode.pool import WorkerLimits, WorkerPool

    if not cases.is_file():
        raise ConfigError(Problem(str(cases), "no such file: name a JSONL file of cases"))
    spec = _code_spec(grader) if _is_python(grader) else None
    if spec is not None and config:
        raise ConfigError(Problem("--config", "is for built-in graders; a custom grader reads sample.metadata"))
    chosen: dict[str, UserGrader | GraderProtocol] = (
        {} if spec is not None else {grader: graders.create(grader, config)}
    )
    results = _CaseResults()
    async with WorkerPool(spec, limits=WorkerLimits(memory=memory)) as pool:
        manifest = await pool.start()
        if spec is not None:
            chosen = _user_graders(manifest, timeout, spec)
        rows = (SubmittedCase(sample, submission) for sample, submission in read_cases(cases, columns))
        with _progress(settings) as bar:
            task = bar.add_task("grading", total=_line_count(cases)) if bar is not None else None
            async for record in grade_cases(pool, chosen, rows, "grade"):
                results.add(record)
                if settings.json:
                    click.echo(to_json(record))
                if bar is not None and task is not None:
                    bar.advance(task)
    if not results.records:
        raise ConfigError(Problem(str(cases), "contains no cases"))
    if not settings.json:
        results.show(settings)
    return results.exit_code


def _is_python(grader: str) -> bool:
    """Whether the grader is ``file.py`` or ``file.py:function``."""
    return grader.endswith(".py") or ".py:" in grader


def _code_spec(grader: str) -> CodeSpec:
    from gradeline.usercode.loader import CodeRequest, CodeSpec

    path, _, function = grader.partition(".py:")
    file = Path(path if path.endswith(".py") else f"{path}.py").resolve()
    if not file.is_file():
        raise ConfigError(Problem(str(file), "no such file: name a Python file with graders"))
    return CodeSpec(folder=str(file.parent), requests=(CodeRequest("grader", f"{file.name}:{function or '*'}"),))


def _user_graders(manifest: Manifest, timeout: float, spec: CodeSpec) -> dict[str, UserGrader | GraderProtocol]:
    from gradeline.engine.grade import UserGrader

    found: dict[str, UserGrader | GraderProtocol] = {
        entry.name: UserGrader(entry.reference, entry.fingerprint, timeout)
        for entry in manifest.entries
        if entry.role == "grader"
    }
    if not found:
        raise ConfigError(Problem(spec.requests[0].reference, "no grader found: mark a function with @grader"))
    return found


def _progress(settings: CliSettings) -> AbstractContextManager[Progress | None]:
    if settings.quiet or not sys.stderr.isatty():
        return nullcontext()
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(settings, stderr=True), transient=True)


def _line_count(cases: Path) -> int | None:
    """The number of cases of a JSONL file; None for other formats."""
    if cases.suffix.lower() != ".jsonl":
        return None
    with cases.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


class _CaseResults:
    """Counts, scores and worst cases, without keeping the records."""

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
            if grade.outcome is not Outcome.PASS and len(self._worst) < _MAX_WORST:
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

    def show(self, settings: CliSettings) -> None:
        out = console(settings)
        rows: list[tuple[Text | str, ...]] = []
        for key, counts in self._counts.items():
            scored = counts[Outcome.PASS] + counts[Outcome.FAIL]
            mean = f"{self._scores[key] / scored:.3f}" if scored else MISSING
            numbers = (str(counts[outcome]) for outcome in (Outcome.PASS, Outcome.FAIL, Outcome.ERROR))
            rows.append((safe_text(key, "cyan"), mean, f"{scored} of {self.records}", *numbers))
        print_table(out, _GRADER_COLUMNS, rows)
        if self._worst and not settings.quiet:
            out.print()
            print_table(out, _WORST_COLUMNS, map(_worst_row, self._worst))


def _worst_row(row: tuple[str, str, str, str]) -> tuple[Text, ...]:
    case, key, outcome, why = row
    style = OUTCOME_STYLES[outcome]
    return safe_text(case, most=60), safe_text(key, "cyan"), safe_text(outcome, style), safe_text(why, most=200)
