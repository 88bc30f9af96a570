"""``gradeline label``: people label the results of a run, in the terminal or in files."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import click

from gradeline.cli.options import CliSettings, current_settings, global_options, run_or_latest
from gradeline.cli.terminal import (
    ProgressMessages,
    TableColumn,
    console,
    print_message,
    print_table,
    program_name,
    safe_text,
    single_line,
)
from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.report.formatting import visible

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.cli.label_terminal import LabelItem
    from gradeline.importers.tool_labels import LabelFormat
    from gradeline.model import Run, Storage
    from gradeline.model.label import SamplingMethod
    from gradeline.stats.intervals import Interval
    from gradeline.trust.label_samples import LabelSample
    from gradeline.trust.labelling import Labelling, LabelScale
    from gradeline.trust.labelling_status import LabelStatus, RaterPair

_MODES = ("--status", "--export", "--import", "--template", "--adjudicate")
_RATERS = (TableColumn("rater", key=True), *(TableColumn(title, right=True) for title in ("labels", "adjudications")))
_PAIRS = (
    TableColumn("raters", wraps=True, key=True),
    *(TableColumn(title, right=True) for title in ("both", "agreement", "kappa", "95 %")),
)
_DISAGREEMENTS = (TableColumn("case", wraps=True, key=True), TableColumn("labels", wraps=True), TableColumn(""))
_MOST_DISAGREEMENTS = 20
_MANY_LABELS = 1_000
"""More labels than this take over a second to compare."""
_FILE_KINDS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


@click.command()
@run_or_latest
@click.option("--grader", metavar="KEY", help="Grader whose question to answer (default: the only judge).")
@click.option("--question", metavar="NAME", help="Question of people only, which no grader answers.")
@click.option("--sample", "size", type=click.IntRange(1), metavar="N", help="Results to draw (default 100).")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of the sample (default 1).")
@click.option("--random", "method", flag_value="random", help="Draw every result with the same probability.")
@click.option("--stratify", "method", flag_value="stratified", help="Draw half from each verdict of the judge.")
@click.option("--disagreement", "method", flag_value="disagreement", help="Start where judges disagree most.")
@click.option("--unsure", "method", flag_value="unsure", help="Label what a selective judge is unsure of.")
@click.option("--rater", metavar="NAME", help="Name of the rater (default: your user name).")
@click.option("--scale", metavar="LOW-HIGH", help="Rate with number keys, such as 1-5, instead of pass or fail.")
@click.option("--categories", metavar="A,B,…", help="Choose a category with number keys.")
@click.option("--status", is_flag=True, help="Show raters, their agreement, and what is left.")
@click.option("--adjudicate", is_flag=True, help="Decide the results on which raters disagree.")
@click.option("--template", type=click.Path(path_type=Path), metavar="FILE", help="Write the sample to fill in.")
@click.option(
    "--import",
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Store the labels of a file: .csv, .jsonl, or of another tool.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["gradeline", "langfuse", "promptfoo", "argilla"]),
    help="Format of the imported file (default: detected).",
)
@click.option("--replace", is_flag=True, help="Replace labels that differ from those of the imported file.")
@click.option("--export", "output", type=click.Path(path_type=Path), metavar="FILE", help="Write all labels.")
@click.option("--history", is_flag=True, help="Export every change, not only the current labels.")
@global_options
def label(
    run_name: str,
    grader: str | None,
    question: str | None,
    size: int | None,
    seed: int | None,
    method: str | None,
    rater: str | None,
    scale: str | None,
    categories: str | None,
    status: bool,
    adjudicate: bool,
    template: Path | None,
    source: Path | None,
    file_format: str | None,
    replace: bool,
    output: Path | None,
    history: bool,
) -> None:
    """Label results of a run: what a person says is right.

    RUN is an id, the start of one, a name, latest or latest~1 (default: latest).

    Shows one result after the other, without what any grader decided, and stores each answer at once: stop at any time
    and start again to continue. The sample is stratified if the judge passes or fails fewer than 20 % of the results,
    else random, unless an option says which. Another rater labels the same sample with --rater.

    \b
    gradeline label latest --sample 100 --seed 1
    gradeline label latest --rater eve
    gradeline label latest --status
    gradeline label latest --template to-label.csv
    gradeline label latest --import labelled.csv --rater ada
    gradeline label latest --import scores.json --format langfuse
    gradeline label latest --export labels.jsonl
    """
    from gradeline.cli.stores import open_store

    settings = current_settings()
    given = (status, output is not None, source is not None, template is not None, adjudicate)
    chosen = [name for name, present in zip(_MODES, given, strict=True) if present]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} exclude each other; use one of them")
    if grader is not None and question is not None:
        raise click.UsageError("--grader and --question exclude each other; use one of them")
    reads = status or output is not None
    with open_store(settings, "read" if reads else "existing") as storage:
        run = storage.find_run(run_name)
        asked = _Question(run, grader, question)
        if status:
            _show_status(settings, storage, asked)
        elif output is not None:
            _export(settings, storage, run, output, history=history)
        elif source is not None:
            from gradeline.trust.labelling import read_scale

            file = _LabelFile(source, cast("LabelFormat | None", file_format), read_scale(scale, categories))
            _import(settings, storage, asked, file, rater, replace=replace)
        elif template is not None:
            sample = _draw(settings, storage, asked, size, seed, method)
            _write_template(settings, storage, run, sample, template)
        else:
            _label(settings, storage, asked, rater, scale, categories, (size, seed, method), adjudicate=adjudicate)


class _Question:
    """The question that is labelled: the key of a grader, or another name."""

    def __init__(self, run: Run, grader: str | None, question: str | None) -> None:
        self.run = run
        self._grader = grader
        self._question = question
        if grader is not None and grader not in run.graders:
            close = closest_match(grader, run.graders)
            hint = f"did you mean {close!r}?" if close else f"use one of {', '.join(run.graders)}"
            raise ConfigError(Problem("--grader", f"no grader {grader!r} in run {run.id}; {hint}"))

    @property
    def given(self) -> str | None:
        """The question that the options name."""
        return self._grader or self._question

    @property
    def new(self) -> str | None:
        """A question that need not be a grader's."""
        return self._question

    @property
    def default(self) -> str | None:
        """The named question, else that of the only judge, else of the only grader."""
        if self.given is not None:
            return self.given
        judges = [key for key, grader in self.run.graders.items() if grader.judges]
        candidates = judges or list(self.run.graders)
        return candidates[0] if len(candidates) == 1 else None

    @property
    def name(self) -> str:
        """The question; `ConfigError` if there are several to choose from."""
        if self.default is None:
            judges = [key for key, grader in self.run.graders.items() if grader.judges] or list(self.run.graders)
            choice = f"the run has {', '.join(judges)}" if judges else "the run has no graders"
            remedy = "choose one with --grader" if judges else "name a question with --question"
            raise ConfigError(Problem("", f"{choice}; {remedy}"))
        return self.default


def _option(run: Run, question: str) -> str:
    """The option that names a question in a command about this run; none for the question of its only grader."""
    if [question] == list(run.graders):
        return ""
    return f" {'--grader' if question in run.graders else '--question'} {shlex.quote(question)}"


def _draw(
    settings: CliSettings, storage: Storage, asked: _Question, size: int | None, seed: int | None, method: str | None
) -> LabelSample:
    from gradeline.trust.label_samples import draw_sample

    messages = ProgressMessages(settings)
    return draw_sample(
        storage, asked.run, asked.name, size, seed, cast("SamplingMethod | None", method), messages.print
    )


def _label(
    settings: CliSettings,
    storage: Storage,
    asked: _Question,
    rater: str | None,
    scale: str | None,
    categories: str | None,
    sampling: tuple[int | None, int | None, str | None],
    *,
    adjudicate: bool,
) -> None:
    """Label in the terminal."""
    from gradeline.cli.label_terminal import LabelItem, LabelTerminal, open_keyboard
    from gradeline.trust.label_view import rubric_text
    from gradeline.trust.labelling import Labelling, read_scale

    if settings.json:
        raise click.UsageError(
            "labelling has no JSON output; use --json with --status, --import, --export or --template"
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "labelling needs a terminal; without one, write the sample with --template FILE and read it with"
            " --import FILE"
        )
    answers = read_scale(scale, categories)
    run = asked.run
    labelling = Labelling(storage, run, asked.name, _rater(rater), "adjudicator" if adjudicate else "rater")
    if adjudicate:
        items = _disputed(storage, asked)
        if not items:
            click.echo(f"No result of {visible(single_line(asked.name))} has raters who disagree.")
            return
    else:
        sample = _draw(settings, storage, asked, *sampling)
        items = [LabelItem(one.case, one.repeat, one.probability, one.sample) for one in sample.draws]
    rubric = rubric_text(run, asked.name)
    with open_keyboard() as read_keys:
        found = LabelTerminal(settings, labelling, items, answers, rubric, read_keys).run()
    _print_summary(labelling, found.labelled, found.stored, found.left)


def _print_summary(labelling: Labelling, labelled: int, stored: int, left: int) -> None:
    total, program = labelled + left, program_name()
    click.echo(f"{labelled} of {total} labelled by {single_line(labelling.rater)} ({stored} now)")
    if left:
        click.echo(f"Label the other {left} later: start the same command again.")
    elif any(grader.judges for grader in labelling.run.graders.values()):
        grader = labelling.run.graders.get(labelling.question)
        option = "" if grader is not None and grader.judges else f" --question {shlex.quote(labelling.question)}"
        what = f"{program} calibrate {labelling.run.id}{option}"
        click.echo(f"Measure the judge against the labels: {visible(single_line(what))}")


def _rater(name: str | None) -> str:
    from gradeline.cli.baseline import user_name

    return user_name() if name is None else name


def _disputed(storage: Storage, asked: _Question) -> list[LabelItem]:
    """The results whose raters disagree, and that no one has adjudicated."""
    from gradeline.cli.label_terminal import LabelItem, adjudication_notes
    from gradeline.store.labels import fresh_labels
    from gradeline.trust.labelling_status import label_status

    rows = fresh_labels(storage, asked.run, asked.name).labels
    decided = {(row.case, row.repeat) for row in rows if row.role == "adjudicator"}
    comments = {(row.case, row.repeat, row.rater): row.comment for row in rows if row.role == "rater" and row.comment}
    items = []
    for one in label_status(storage, asked.run, asked.name).disagreements:
        if (one.case, one.repeat) in decided:
            continue
        said = {
            rater: f"{value} ({comment})" if (comment := comments.get((one.case, one.repeat, rater))) else value
            for rater, value in one.values.items()
        }
        items.append(LabelItem(one.case, one.repeat, notes=adjudication_notes(said)))
    return items


class _LabelFile(NamedTuple):
    """A file to import: its format, if it is given, and the scale of its ratings."""

    path: Path
    format: LabelFormat | None
    scale: LabelScale


def _import(
    settings: CliSettings, storage: Storage, asked: _Question, file: _LabelFile, rater: str | None, *, replace: bool
) -> None:
    from gradeline.importers.tool_labels import read_labels_of_tool
    from gradeline.trust.label_import import import_labels, questions_of
    from gradeline.trust.labelling import check_label_name

    messages = ProgressMessages(settings)
    read = read_labels_of_tool(file.path, file.format, file.scale)
    known = {*asked.run.graders, *questions_of(storage, asked.run)}
    read = read.for_question(known, asked.given or asked.default)
    done = import_labels(
        storage,
        asked.run,
        file.path,
        rows=read.rows,
        unit=read.unit,
        rater=check_label_name(_rater(rater), "rater"),
        question=asked.default,
        new_question=asked.new,
        replace=replace,
        progress=lambda number: messages.print(f"{number:,} labels read"),
    )
    if settings.json:
        _print_json({"run": asked.run.id, "format": read.format, **done._asdict(), "left_out": read.left_out})
    elif not settings.quiet:
        click.echo(
            f"{_counted(done.stored, 'label')} stored, {done.unchanged:,} stored before,"
            f" {_counted(done.unlabelled, 'row')} without a label"
        )
        for reason, number in read.left_out.items():
            click.echo(single_line(f"left out: {number:,} {reason}"))


def _file_kind(path: Path) -> Literal["csv", "jsonl"]:
    kind = _FILE_KINDS.get(path.suffix.casefold())
    if kind is None:
        raise ConfigError(Problem(str(path), f"unknown kind of file {path.suffix!r}: use .csv or .jsonl"))
    return cast("Literal['csv', 'jsonl']", kind)


def _export(settings: CliSettings, storage: Storage, run: Run, output: Path, *, history: bool) -> None:
    from gradeline.cli.export import output_text_file
    from gradeline.trust.label_files import export_labels

    kind = _file_kind(output)
    with output_text_file(output) as file:
        number = export_labels(storage, run, file, kind, history=history)
    _report_written(settings, output, number, "label" if not history else "change")


def _write_template(settings: CliSettings, storage: Storage, run: Run, sample: LabelSample, output: Path) -> None:
    from gradeline.cli.export import output_text_file
    from gradeline.trust.label_files import write_template

    kind = _file_kind(output)
    with output_text_file(output) as file:
        number = write_template(storage, run, sample, file, kind)
    _report_written(settings, output, number, "result")


def _report_written(settings: CliSettings, output: Path, number: int, noun: str) -> None:
    if settings.json:
        _print_json({"written": [str(output)], "rows": number})
    elif not settings.quiet:
        click.echo(f"{_counted(number, noun)} written to {single_line(str(output))}")


def _show_status(settings: CliSettings, storage: Storage, asked: _Question) -> None:
    from gradeline.trust.label_import import number_of_labels, questions_of
    from gradeline.trust.labelling_status import label_status

    known = questions_of(storage, asked.run)
    questions = [asked.given] if asked.given is not None else known or [name for name in [asked.default] if name]
    if not settings.quiet and number_of_labels(storage, asked.run) > _MANY_LABELS:
        print_message("computing the agreement of the raters")
    found = [label_status(storage, asked.run, question) for question in questions]
    if settings.json:
        _print_json({"run": asked.run.id, "questions": [_status_data(one) for one in found]})
        return
    if not any(one.results or one.samples for one in found):
        click.echo(f"No labels yet. Start with: {program_name()} label {asked.run.id} --sample 100 --seed 1")
        return
    for one in found:
        _print_status(settings, asked.run, one)


def _status_data(status: LabelStatus) -> dict[str, object]:
    return {
        **status._asdict(),
        "raters": [one._asdict() for one in status.raters],
        "samples": [one._asdict() for one in status.samples],
        "alpha": _interval_data(status.alpha),
        "pairs": [{**one._asdict(), "kappa": _interval_data(one.kappa)} for one in status.pairs],
        "disagreements": [one._asdict() for one in status.disagreements],
    }


def _interval_data(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"estimate": found.estimate, "low": found.low, "high": found.high}


def _print_status(settings: CliSettings, run: Run, status: LabelStatus) -> None:
    out = console(settings)
    out.print(safe_text(single_line(f"{status.question}: {_counted(status.results, 'result')} with labels"), "bold"))
    for sample in status.samples:
        by_rater = ", ".join(f"{rater or '(no name)'} {number}" for rater, number in sample.by_rater.items())
        left = sample.size - sample.labelled
        line = f"sample {sample.sample}: {sample.labelled} of {sample.size} labelled, {left} left"
        out.print(safe_text(f"{line}{f' ({by_rater})' if by_rater else ''}", most=1_000))
    if status.raters:
        rows = [(safe_text(one.rater or "(no name)"), str(one.labels), str(one.adjudications)) for one in status.raters]
        print_table(out, _RATERS, rows)
    if status.alpha is not None:
        low, high = status.alpha
        out.print(safe_text(f"Krippendorff's alpha: {status.alpha.estimate:.3f} ({low:.3f}–{high:.3f})"))
    if status.pairs:
        print_table(out, _PAIRS, [_pair_row(one) for one in status.pairs])
    if status.unresolved:
        words = f"{program_name()} label {run.id}{_option(run, status.question)} --adjudicate"
        out.print(safe_text(single_line(f"{status.unresolved} unresolved: decide with {words}"), most=1_000))
    if status.stale:
        stale = _counted(status.stale, "result")
        out.print(safe_text(f"{stale} with labels of a response that was replaced since: label the new one"))
    _print_disagreements(settings, status)


def _pair_row(pair: RaterPair) -> Sequence[Text | str]:
    kappa = ("–", "–")
    if pair.kappa is not None:
        kappa = (f"{pair.kappa.estimate:.3f}", f"{pair.kappa.low:.3f}–{pair.kappa.high:.3f}")
    names = safe_text(f"{pair.first or '(no name)'}, {pair.second or '(no name)'}")
    return (names, str(pair.results), f"{pair.same} of {pair.results}", *kappa)


def _print_disagreements(settings: CliSettings, status: LabelStatus) -> None:
    if not status.disagreements:
        return
    rows = [
        (
            safe_text(single_line(one.case if one.repeat == 0 else f"{one.case} #{one.repeat}")),
            safe_text(", ".join(f"{rater or '(no name)'}: {value}" for rater, value in one.values.items())),
            "" if one.resolved else "unresolved",
        )
        for one in status.disagreements[:_MOST_DISAGREEMENTS]
    ]
    out = console(settings)
    print_table(out, _DISAGREEMENTS, rows, title="disagreements")
    if len(status.disagreements) > _MOST_DISAGREEMENTS:
        out.print(safe_text(f"… and {len(status.disagreements) - _MOST_DISAGREEMENTS} more; see them with --json"))


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _print_json(data: dict[str, object]) -> None:
    click.echo(json.dumps(data, ensure_ascii=False))
