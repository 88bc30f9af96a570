"""``gradeline list`` and ``gradeline show``, and the report of a run: table, verdict, worst cases, tracebacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

import click

from gradeline.cli.options import CliSettings, current_settings, global_options, run_or_latest
from gradeline.cli.streams import streaming_output
from gradeline.cli.terminal import OUTCOME_STYLES, TableColumn, console, mebibytes, print_table, safe_text
from gradeline.errors import Outcome
from gradeline.report.formatting import MISSING, clustering_of, costs, run_title

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gradeline.engine.aggregate import RunReport
    from gradeline.model import Grade, Measure, Record, ResponseKey, Run, Storage
    from gradeline.store.maintenance import RunUsage

_WORST_CASES = 5
_GRADERS = (
    TableColumn("grader", wraps=True, key=True),
    *(TableColumn(title, right=True) for title in ("mean", "95 %", "rate", "95 %", "scored")),
    *(TableColumn(title, right=True) for title in ("pass", "fail", "error", "skip")),
)
_WORST = (
    TableColumn("case", wraps=True, key=True, most=32),
    TableColumn("grader", wraps=True, key=True, most=32),
    TableColumn(""),
    TableColumn("why", wraps=True),
)
_MAX_TRACEBACKS = 2
_MAX_LINES = 15
_MAX_LINE = 300


@click.command("list")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of runs to list."
)
@click.option("--usage", is_flag=True, help="Show the rows and size of each run (reads all its rows).")
@global_options
def list_runs(limit: int, usage: bool) -> None:
    """List the stored runs, newest first.

    The size that --usage shows is an estimate: the stored values without indexes and database overhead.
    """
    import json

    from gradeline.cli.stores import open_store
    from gradeline.engine.definition import run_data

    settings = current_settings()
    with open_store(settings, "read") as storage:
        runs = storage.list_runs(limit)
        sizes = _usage_of(storage, runs) if usage else {}
        baselines = _baselines_of(storage)
        judges = {run.id: states for run in runs if (states := _judges_of(storage, run))}
    if settings.json:
        listed = [
            {
                **run_data(one),
                **_baseline_data(baselines, one),
                **({"judges": judges[one.id]} if one.id in judges else {}),
                **_usage_data(sizes.get(one.id)),
            }
            for one in runs
        ]
        click.echo(json.dumps({"runs": listed}, ensure_ascii=False))
    elif runs:
        _print_runs(settings, runs, baselines, judges, sizes if usage else None)
    else:
        from gradeline.cli.stores import store_file

        file = store_file(settings)
        click.echo(f"No runs yet{'' if file is None else f' in {file}'}. Start one with: gradeline run SUITE")


def _baselines_of(storage: Storage) -> dict[str, list[str]]:
    """The names of the baselines by run."""
    names: dict[str, list[str]] = {}
    for one in storage.list_baselines():
        names.setdefault(one.run, []).append(one.name)
    return names


def _judges_of(storage: Storage, run: Run) -> dict[str, str]:
    """The state of the judge of each grader that has one."""
    if not any(grader.judges for grader in run.graders.values()):
        return {}
    from gradeline.engine.judge_trust import judge_states  # only for runs with judges

    return {key: trust.state for key, trust in judge_states(storage, run).items()}


def _baseline_data(baselines: dict[str, list[str]], run: Run) -> dict[str, list[str]]:
    return {"baselines": baselines[run.id]} if run.id in baselines else {}


def _usage_of(storage: Storage, runs: list[Run]) -> dict[str, RunUsage]:
    """The size of each run; a run deleted in the meantime is left out."""
    if not runs:
        return {}
    from gradeline.cli.stores import in_database
    from gradeline.store.maintenance import usage_of_run

    database = in_database(storage).database
    found = (usage_of_run(database, run.id) for run in runs)
    return {one.id: one for one in found if one is not None}


def _usage_data(usage: RunUsage | None) -> dict[str, int]:
    return {} if usage is None else {"rows": usage.rows, "estimated_bytes": usage.bytes}


def _print_runs(
    settings: CliSettings,
    runs: list[Run],
    baselines: dict[str, list[str]],
    judges: dict[str, dict[str, str]],
    sizes: dict[str, RunUsage] | None,
) -> None:
    has_variants = any(one.variant is not None for one in runs)
    has_baselines = any(one.id in baselines for one in runs)
    columns = (
        TableColumn("id", key=True),
        TableColumn("name", wraps=True, key=True),
        *((TableColumn("variant", wraps=True),) if has_variants else ()),
        *((TableColumn("baseline", wraps=True),) if has_baselines else ()),
        *(TableColumn(title) for title in ("status", "started", "cases")),
        *((TableColumn("judge", wraps=True),) if judges else ()),
        *(() if sizes is None else (TableColumn("rows", right=True), TableColumn("size (est.)", right=True))),
    )
    rows = []
    for one in runs:
        variant = [one.variant or ""] if has_variants else []
        named = [", ".join(baselines.get(one.id, ()))] if has_baselines else []
        row = [one.id[:8], one.name, *variant, *named, one.status, one.started_at or "", str(one.total or "")]
        if judges:
            row.append(_judges_text(judges.get(one.id, {})))
        if sizes is not None:
            size = sizes.get(one.id)
            row += [MISSING, MISSING] if size is None else [f"{size.rows:,}", mebibytes(size.bytes)]
        rows.append([safe_text(cell) for cell in row])
    print_table(console(settings), columns, rows)


def _judges_text(states: dict[str, str]) -> str:
    """The state of the judge; of several, each with its grader."""
    if len(states) < 2:
        return "".join(states.values())
    return ", ".join(f"{key} {state}" for key, state in states.items())


@click.command()
@run_or_latest
@click.option("--records", is_flag=True, help="Print the records with their labels, one JSON object per line.")
@click.option(
    "--rogan-gladen",
    is_flag=True,
    help="Without labels of this run, estimate pass rates by the judges' calibrations.",
)
@global_options
def show(run_name: str, records: bool, rogan_gladen: bool) -> None:
    """Show a stored run: verdict, graders and worst cases.

    Where results have labels, the pass rate that they correct is below the table.

    RUN is an id, the start of one, a name, latest or latest~1 (default: latest).
    """
    from gradeline.cli.execute import show_run
    from gradeline.cli.stores import open_store

    settings = current_settings()
    with open_store(settings, "read") as storage:
        found = storage.find_run(run_name)
        if records:
            from gradeline.report.labelled_records import record_lines

            with streaming_output() as stream:
                stream.writelines(f"{line}\n" for line in record_lines(storage, found))
        else:
            show_run(settings, storage, found, rogan_gladen=rogan_gladen)


class WorstCase(NamedTuple):
    """A case that did not pass; failed calls sort first, then errors, then the lowest scores."""

    score: float
    position: int
    key: ResponseKey
    grader: str | None


def print_report(settings: CliSettings, report: RunReport, storage: Storage) -> None:
    """Print the table of graders with every denominator, the worst cases and the verdict."""
    out = console(settings)
    run, summary, verdict = report.run, report.summary, report.verdict
    out.print(safe_text(f"{run_title(run)}  {run.id}  {run.status}", "bold"))
    out.print(safe_text(_sentence(report)))
    rows: list[tuple[Text | str, ...]] = [
        (
            safe_text(key, "cyan"),
            _decimal(column.mean),
            _interval(column.mean_ci),
            _decimal(column.pass_rate),
            _interval(column.pass_rate_ci),
            f"{column.scored} of {column.total}",
            *(str(number) for number in (column.passed, column.failed, column.errors, column.skipped)),
        )
        for key, column in summary.graders.items()
    ]
    print_table(out, _GRADERS, rows, gap=1)  # fits a terminal of 80 columns
    for key, column in summary.graders.items():
        for note in column.notes:
            out.print(safe_text(f"{key}: {note}"))
    _print_worst(settings, worst_cases(run.id, storage.measures(run.id)), storage)
    if verdict.result != "none":
        out.print(safe_text(f"verdict: {verdict.result}", f"bold {OUTCOME_STYLES.get(verdict.result, 'yellow')}"))
    for reason in verdict.reasons:
        out.print(safe_text(f"  {reason}"))


def _sentence(report: RunReport) -> str:
    parts = [report.summary.sentence]
    clustering = clustering_of(report)
    if clustering is not None:
        parts.append(str(clustering))
    latency = report.summary.latency_ms
    if latency is not None:
        parts.append(f"{latency['p50']:,.0f} ms (p50), {latency['p95']:,.0f} ms (p95)")
    paid = [f"{who} {cost}{f' ({note})' if note else ''}" for who, cost, note in costs(report.summary)]
    if paid:
        parts.append(f"cost: {', '.join(paid)}")
    return ", ".join(parts)


def worst_cases(run: str, measures: Iterable[Measure], most: int = _WORST_CASES) -> list[WorstCase]:
    """The worst cases: failed calls and errors, then the lowest scores."""
    from gradeline.model import ResponseKey  # 50 ms

    def not_passed() -> Iterable[WorstCase]:
        for position, one in enumerate(measures):
            key = ResponseKey(run, one.case, one.repeat)
            if one.status != "success":
                yield WorstCase(-2.0, position, key, None)
                continue
            for grader, grade in one.grades.items():
                if grade.outcome is Outcome.ERROR:
                    yield WorstCase(-1.0, position, key, grader)
                elif grade.outcome is Outcome.FAIL and grade.score is not None:
                    yield WorstCase(grade.score, position, key, grader)

    return nsmallest(most, not_passed(), key=lambda case: (case.score, case.position))


def _print_worst(settings: CliSettings, cases: list[WorstCase], storage: Storage) -> None:
    if not cases:
        return
    found = [(record, case.grader) for case in cases if (record := storage.get_record(case.key)) is not None]
    rows = []
    for record, grader in found:
        name = record.case if record.repeat == 0 else f"{record.case} #{record.repeat}"
        word, why = _result_of(record, grader)
        style = OUTCOME_STYLES.get(word.split()[0], "yellow")
        reason = safe_text(" ".join(why.split()), most=160)
        rows.append((safe_text(name), safe_text(grader or MISSING, "cyan"), safe_text(word, style), reason))
    out = console(settings)
    print_table(out, _WORST, rows, title="worst cases")
    print_code_errors(out, found)


def _result_of(record: Record, grader: str | None) -> tuple[str, str]:
    """The outcome in a word, and the reason."""
    if grader is None:
        error = record.response.error
        return "call", "" if error is None else f"{error.type}: {error.message}"
    grade = record.grades[grader]
    if grade.error is not None:
        return "error", f"{grade.error.type}: {grade.error.message}"
    return f"fail {grade.score:.2f}", _reason(grade, record.submissions.get(grader))


def _reason(grade: Grade, submission: str | None) -> str:
    reason = grade.rationale or (f"submission: {submission}" if submission else "empty response")
    return f"{reason} (every turn must pass)" if grade.metadata.get("turns") == "all" else reason


def _decimal(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _interval(value: tuple[float, float] | None) -> str:
    return MISSING if value is None else f"{value[0]:.3f}–{value[1]:.3f}"


def print_code_errors(out: Console, cases: Iterable[tuple[Record, str | None]]) -> None:
    """Print the first distinct tracebacks of these cases and what the code printed; grader None is the agent."""
    seen: set[str] = set()
    for record, grader in cases:
        error = record.response.error if grader is None else record.grades[grader].error
        printed = record.response.output if grader is None else record.grades[grader].output
        if error is None or (error.traceback is None and printed is None):
            continue
        cause = (error.traceback or error.message).strip()
        if cause in seen:
            continue
        seen.add(cause)
        whose = f"{record.case}, {grader}" if grader is not None else record.case
        for title, text in (("traceback", error.traceback), ("output", printed)):
            if text is not None and text.strip():
                out.print(safe_text(f"{title} of {whose}", "bold"))
                for line in _last_lines(text, record.run):
                    out.print(safe_text(f"  {line}", most=_MAX_LINE), soft_wrap=True)
        if len(seen) == _MAX_TRACEBACKS:
            return


def _last_lines(text: str, run: str) -> Iterator[str]:
    lines = text.rstrip().splitlines()
    if len(lines) > _MAX_LINES:
        yield f"… ({len(lines) - _MAX_LINES:,} earlier lines; see all with: gradeline show {run} --records)"
    yield from lines[-_MAX_LINES:]
