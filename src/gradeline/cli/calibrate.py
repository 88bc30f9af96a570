"""``gradeline calibrate``: measure the judges of a run against labels."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gradeline.cli.options import CliSettings, complete_run, current_settings, global_options
from gradeline.cli.terminal import ProgressMessages, TableColumn, console, print_table, safe_text, single_line
from gradeline.errors import ConfigError, Problem
from gradeline.report.formatting import MISSING, count_noun

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gradeline.model import Run, Storage
    from gradeline.model.calibration import Calibration
    from gradeline.model.learned_judging import PanelWeights
    from gradeline.model.probe import ProbeFinding
    from gradeline.trust.reference_methods import ReferenceMethodName
    from gradeline.trust.run_calibration import CalibratedRun

_METHODS = ("exact", "inclusion", "embedding")
_TWO = 2
"""A judge whose scores are in two bins passes or fails, which the table shows."""
_EVERY = 1000
"""Results between two looks at the clock."""
_STATE_STYLES = {"calibrated": "green", "failed": "red", "expired": "yellow", "drifted": "red", "uncalibrated": "dim"}
_TABLE = (TableColumn("", key=True), TableColumn("judge: pass", right=True), TableColumn("judge: fail", right=True))
_CURVE = tuple(TableColumn(title, right=True) for title in ("scores", "labels", "mean score", "pass", "isotonic"))
_TAGS = (
    TableColumn("tag", wraps=True, key=True),
    *(TableColumn(title, right=True) for title in ("labels", "pass", "fail", "no verdict")),
    *(TableColumn(title, right=True) for title in ("agreement", "kappa", "sens.", "spec.")),
)
_MEMBERS = (
    TableColumn("judge", wraps=True, key=True),
    *(TableColumn(title, right=True) for title in ("scored", "agreement", "adds")),
)
_RECORDS = (
    TableColumn("grader", wraps=True, key=True),
    TableColumn("suite", wraps=True),
    TableColumn("judge", wraps=True),
    TableColumn("state"),
    *(TableColumn(title, right=True) for title in ("agreement", "kappa", "labels")),
    TableColumn("date"),
    TableColumn("why", wraps=True),
)


class _Request(NamedTuple):
    graders: tuple[str, ...]
    question: str | None
    against: ReferenceMethodName | None
    positive: tuple[str, ...]


@click.command()
@click.argument("run_name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--grader", "graders", multiple=True, metavar="G", help="Grader to calibrate (repeatable; default: all).")
@click.option("--question", metavar="NAME", help="Question whose labels to use (default: each grader's own).")
@click.option("--against", type=click.Choice(_METHODS), help="Compare with a method instead of labels.")
@click.option("--positive", multiple=True, metavar="CATEGORY", help="Category that passes (repeatable).")
@click.option("--list", "list_records", is_flag=True, help="List the states of judges instead.")
@click.option(
    "--export",
    "export_to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the calibrations to a file.",
)
@click.option(
    "--import",
    "import_from",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Add the calibrations of a file to the store.",
)
@global_options
def calibrate(
    run_name: str | None,
    graders: tuple[str, ...],
    question: str | None,
    against: ReferenceMethodName | None,
    positive: tuple[str, ...],
    list_records: bool,
    export_to: Path | None,
    import_from: Path | None,
) -> int:
    """Measure the judges of a run against labels, and store whether they are calibrated.

    RUN is an id, the start of one, a name, latest or latest~1. The result holds for this judge with this prompt, for 90
    days: runs of the same suite show it, and gates with require_calibrated need it.

    \b
    gradeline label latest --sample 100 --seed 1
    gradeline calibrate latest
    gradeline calibrate --list
    gradeline calibrate --export judges.json         # and in CI:
    gradeline calibrate --import judges.json

    Exit codes: 0 every judge is calibrated, 1 one failed, 2 usage error, 3 too few labels to tell.
    """
    request = _Request(graders, question, against, positive)
    _check_options(run_name, request, list_records=list_records, export_to=export_to, import_from=import_from)
    settings = current_settings()
    if import_from is not None:
        return _import(settings, import_from)
    if list_records:
        return _list(settings, run_name)
    if run_name is None:
        assert export_to is not None  # noqa: S101 - `_check_options`
        return _export_stored(settings, export_to)
    return _calibrate(settings, run_name, request, export_to)


def _check_options(
    run: str | None, request: _Request, *, list_records: bool, export_to: Path | None, import_from: Path | None
) -> None:
    """`click.UsageError` for options that do not belong together."""
    choices = any((request.graders, request.question, request.against, request.positive))
    if import_from is not None and (run or choices or list_records or export_to):
        raise click.UsageError("--import takes no RUN and no other options.")
    if list_records and (choices or export_to):
        raise click.UsageError("--list takes only RUN.")
    if run is None and not (list_records or import_from or export_to):
        raise click.UsageError("Name the RUN to calibrate, such as latest; or use --list, --export or --import.")
    if run is None and choices:
        raise click.UsageError("--grader, --question, --against and --positive need a RUN.")
    if request.against and (request.question or request.positive):
        raise click.UsageError("--against replaces labels: leave out --question and --positive.")


def _calibrate(settings: CliSettings, run_name: str, request: _Request, export_to: Path | None) -> int:
    from gradeline.cli.stores import open_store
    from gradeline.engine.judge_probes import probe_findings
    from gradeline.trust.calibration_records import calibrations_text
    from gradeline.trust.run_calibration import calibrate_run

    with open_store(settings, "existing") as storage:
        run = storage.find_run(run_name)
        found = calibrate_run(storage, run, **request._asdict(), progress=_progress(settings))
        probes = probe_findings(storage, run)
    if export_to is not None:
        _write(export_to, calibrations_text(found.calibrations))
    if settings.json:
        _print_json(run, found, probes)
    elif settings.quiet:
        for one in found.calibrations:
            click.echo(single_line(f"{one.grader} {one.state}"))
    else:
        _print(settings, run, found, probes)
    return found.exit_code


def _progress(settings: CliSettings) -> Callable[[int], None]:
    messages = ProgressMessages(settings)

    def progress(number: int) -> None:
        if number and number % _EVERY == 0:
            messages.print(f"{number:,} results read")

    return progress


def _data(found: Calibration) -> dict[str, Any]:
    from msgspec import to_builtins

    data: dict[str, Any] = to_builtins(found)
    return data | {"labels_saved": found.labels_saved, "conclusive": found.conclusive}


def _print_json(run: Run, found: CalibratedRun, probes: Mapping[str, Sequence[ProbeFinding]]) -> None:
    from msgspec import to_builtins

    data = {
        "run": run.id,
        "calibrations": [_data(one) for one in found.calibrations],
        "without_labels": found.without_labels,
        "best": found.best,
        "probes": to_builtins(probes),
        "exit_code": found.exit_code,
    }
    click.echo(json.dumps(data, ensure_ascii=False))


def _print(settings: CliSettings, run: Run, found: CalibratedRun, probes: Mapping[str, Sequence[ProbeFinding]]) -> None:
    from gradeline.engine.judge_probes import probes_in_words

    out = console(settings)
    for number, one in enumerate(found.calibrations):
        if number:
            out.print()
        _print_calibration(out, one)
        for line in probes_in_words(probes.get(one.grader, ())):
            out.print(safe_text(single_line(line), most=1000))
    best = found.best
    if best is not None:
        states = {one.grader: one.state for one in found.calibrations}
        but = "" if states[best] == "calibrated" else "; yet it failed too"
        out.print(safe_text(single_line(f"Of these judges, {best} agrees most with the labels{but}."), "bold"))
    for key in found.without_labels:
        out.print(safe_text(f"{key}: no labels; gradeline label {run.id} --grader {shlex.quote(key)} --sample 100"))


def _print_calibration(out: Console, found: Calibration) -> None:
    judges = ", ".join(found.judge)
    reference = f"question {found.question}" if found.against is None else f"against {found.against}"
    out.print(safe_text(single_line(f"{found.grader}  {judges}  {reference}  run {found.run}"), "bold"))
    style = f"bold {_STATE_STYLES[found.state]}"
    out.print(safe_text(single_line(f"{found.state}: {found.headline}"), style, most=1000))
    for reason in found.reasons:
        out.print(safe_text(f"  {single_line(reason)}", most=1000))
    print_table(out, _TABLE, _table_rows(found))
    for line in _lines(found):
        out.print(safe_text(single_line(line), most=1000))
    if found.curve is not None and len(found.curve.bins) > _TWO:
        print_table(out, _CURVE, _curve_rows(found))
    if found.tags:
        print_table(out, _TAGS, _tag_rows(found))
    if found.panel is not None:
        out.print(safe_text(_weights_line(found.panel)))
        print_table(out, _MEMBERS, _member_rows(found.panel))
        best = max(found.panel.gains, key=lambda one: one.agreement or 0.0, default=None)
        if best is not None and (best.agreement or 0.0) >= found.panel.agreement:
            reason = f"{best.judge} agrees as often by itself; without the others it costs less"
            out.print(safe_text(single_line(reason), most=1000))
    for line in _selective_lines(found):
        out.print(safe_text(line, most=1000))
    for note in found.notes:
        out.print(safe_text(single_line(f"note: {note}"), "yellow", most=1000))


def _table_rows(found: Calibration) -> Iterator[tuple[str, ...]]:
    table = found.table
    name = "label" if found.against is None else found.against
    yield f"{name}: pass", _count(table.tp), _count(table.fn)
    yield f"{name}: fail", _count(table.fp), _count(table.tn)


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def _lines(found: Calibration) -> Iterator[str]:
    """The numbers below the table."""
    shares = [
        (name, share, bounds)
        for name, share, bounds in (
            ("agreement", found.agreement, found.agreement_ci),
            ("sensitivity", found.sensitivity, found.sensitivity_ci),
            ("specificity", found.specificity, found.specificity_ci),
        )
        if share is not None
    ]
    if shares:
        yield ", ".join(f"{name} {share:.3f}{_interval(bounds)}" for name, share, bounds in shares)
    if found.weighted:
        yield "counts are weighted: labels were drawn with different probabilities"
    missing = f"no verdict on {found.missing:,} of {found.results:,} results ({found.missing_rate:.1%})"
    yield f"{missing}, {_count(found.table.missing)} of them labelled" if found.missing else missing
    if found.unresolved:
        left_out = f"{count_noun(found.unresolved, 'result')} left out: raters disagree"
        option = "--grader" if found.question == found.grader else "--question"
        yield f"{left_out}; gradeline label {found.run} {option} {shlex.quote(found.question)} --adjudicate"
    if found.stale:
        yield f"{count_noun(found.stale, 'label')} left out: the response was replaced"
    rule = found.length_rule
    if rule is not None:
        yield f"{_rule(found)}: agreement {rule.agreement:.3f} on {rule.labels:,} labels"
    if found.curve is not None:
        yield f"Brier score {found.curve.brier:.3f}, expected calibration error {found.curve.ece:.3f}"
    if found.cost is None:
        yield "cost per agreement: unknown"
    else:
        per = MISSING if found.cost_per_agreement is None else f"{found.cost_per_agreement:.4g}"
        yield f"cost per agreement {per} (these verdicts cost {found.cost:.4g})"
    if found.value is not None:
        yield found.value.sentence


def _rule(found: Calibration) -> str:
    rule = found.length_rule
    assert rule is not None  # noqa: S101 - the caller checks
    if rule.kind == "longer_wins":
        return 'the rule "the longer answer wins"'
    if rule.threshold is None:
        return 'the rule "no answer passes", the best by length (cross-validated)'
    if rule.threshold == 0:
        return 'the rule "every answer passes", the best by length (cross-validated)'
    return f'the rule "from {rule.threshold:,} characters on it passes" (cross-validated)'


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f" ({bounds[0]:.3f}–{bounds[1]:.3f})"


def _curve_rows(found: Calibration) -> Iterator[tuple[str, ...]]:
    for one in () if found.curve is None else found.curve.bins:
        numbers = (f"{one.score:.3f}", f"{one.passed:.3f}", f"{one.isotonic:.3f}")
        yield f"{one.low:.1f}–{one.high:.1f}", f"{one.labels:,}", *numbers


def _tag_rows(found: Calibration) -> Iterator[tuple[Text | str, ...]]:
    for row in found.tags:
        counts = (f"{row.labels:,}", f"{row.positives:,}", f"{row.negatives:,}", f"{row.missing:,}")
        if row.agreement is None:
            yield safe_text(single_line(row.tag)), *counts, "too few", "", "", ""
        else:
            shares = (row.agreement, row.kappa, row.sensitivity, row.specificity)
            yield safe_text(single_line(row.tag)), *counts, *(_share(share) for share in shares)


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _weights_line(weights: PanelWeights) -> str:
    plain = f"{weights.unweighted_agreement:.3f} if all judges count equally"
    return f"weights from {weights.labels:,} labels: agreement {weights.agreement:.3f} (cross-validated), {plain}"


def _member_rows(weights: PanelWeights) -> Iterator[tuple[Text | str, ...]]:
    """What each judge of a panel agrees and adds."""
    for one in weights.gains:
        yield safe_text(single_line(one.judge)), f"{one.scored:,}", _share(one.agreement), f"{one.gain:+.3f}"


def _selective_lines(found: Calibration) -> Iterator[str]:
    """What share of cases the judge could decide by itself."""
    from gradeline.trust.selective import shown_thresholds

    labelled = found.selective if found.panel is None else found.panel.confidences
    if labelled is None or found.against is not None:
        return
    shares = []
    reason = ""
    for one in shown_thresholds(labelled):
        share = 0.0 if one.coverage is None or not one.promised else one.coverage
        shares.append(f"{share * 100:.0f} % at agreement {one.agreement:g}")
        reason = reason or one.reason
    yield f"could decide, {one.sure * 100:g} % sure: {', '.join(shares)}"
    if reason:
        yield f"  {reason}"


class _ListedJudge(NamedTuple):
    """A row of ``--list``."""

    grader: str
    suite: str
    judge: tuple[str, ...]
    state: str
    reason: str
    calibration: Calibration | None


def _list(settings: CliSettings, run_name: str | None) -> int:
    from gradeline.cli.stores import open_store

    with open_store(settings, "read") as storage:
        listed = list(_stored_judges(storage) if run_name is None else _judges_of(storage, run_name))
    if settings.json:
        data = [
            {**row._asdict(), "calibration": None if row.calibration is None else _data(row.calibration)}
            for row in listed
        ]
        click.echo(json.dumps({"judges": data}, ensure_ascii=False))
    elif not listed:
        where = "No calibrations yet" if run_name is None else "The run has no judges"
        click.echo(f"{where}. Make one with: gradeline calibrate RUN" if run_name is None else f"{where}.")
    else:
        print_table(console(settings), _RECORDS, map(_listed_row, listed))
    return 0


def _stored_judges(storage: Storage) -> Iterator[_ListedJudge]:
    """The latest record of each judge; whether a suite's judge has changed since is only known for a run."""
    from gradeline.engine.judge_trust import state_of_record
    from gradeline.trust.calibration_records import latest_calibrations

    for one in latest_calibrations(storage):
        trust = state_of_record(storage, one)
        yield _ListedJudge(one.grader, one.suite, one.judge, trust.state, trust.reason, one)


def _judges_of(storage: Storage, run_name: str) -> Iterator[_ListedJudge]:
    from gradeline.engine.judge_trust import judge_states

    run = storage.find_run(run_name)
    for key, trust in judge_states(storage, run).items():
        judges = run.graders[key].judges
        yield _ListedJudge(key, run.suite, judges, trust.state, trust.reason, trust.calibration)


def _listed_row(row: _ListedJudge) -> tuple[Text | str, ...]:
    found = row.calibration
    kappa = None if found is None or found.kappa is None else found.kappa.estimate
    judges = (
        ", ".join(row.judge) if found is None or found.against is None else f"{', '.join(row.judge)} ({found.against})"
    )
    return (
        safe_text(single_line(row.grader), "cyan"),
        safe_text(single_line(row.suite)),
        safe_text(single_line(judges)),
        safe_text(row.state, _STATE_STYLES[row.state]),
        MISSING if found is None else _share(found.agreement),
        _share(kappa),
        MISSING if found is None else f"{found.labels:,}",
        MISSING if found is None else found.at[:10],
        "" if row.state == "calibrated" else safe_text(single_line(row.reason)),
    )


def _export_stored(settings: CliSettings, path: Path) -> int:
    from gradeline.cli.stores import open_store
    from gradeline.trust.calibration_records import calibrations_text, latest_calibrations

    with open_store(settings, "read") as storage:
        found = latest_calibrations(storage)
    if not found:
        raise ConfigError(Problem("export", "the store has no calibrations; make one with: gradeline calibrate RUN"))
    _write(path, calibrations_text(found))
    if settings.json:
        click.echo(json.dumps({"written": [str(path)], "calibrations": len(found)}, ensure_ascii=False))
    elif not settings.quiet:
        click.echo(single_line(f"{count_noun(len(found), 'calibration')} written to {path}"))
    return 0


def _write(path: Path, text: str) -> None:
    from gradeline.model.files import output_path

    with output_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _import(settings: CliSettings, path: Path) -> int:
    from gradeline.cli.stores import open_store
    from gradeline.trust.calibration_records import import_calibrations

    with open_store(settings) as storage:
        found = import_calibrations(storage, path)
    if settings.json:
        data = {"added": [_data(one) for one in found.added], "known": found.known}
        click.echo(json.dumps(data, ensure_ascii=False))
    elif not settings.quiet:
        known = f", {found.known:,} stored before" if found.known else ""
        click.echo(f"{count_noun(len(found.added), 'calibration')} added{known}")
    return 0
