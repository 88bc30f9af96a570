"""``gradeline anchors``: frozen answers that show whether a judge or the system that it judges changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.options import CliSettings, current_settings, global_options, run_argument
from gradeline.cli.terminal import TableColumn, console, print_message, print_table, safe_text, single_line

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.engine.lifecycle import RunObserver
    from gradeline.model import Storage
    from gradeline.model.anchors import AnchorCheck, AnchorSet
    from gradeline.trust.anchors import CheckOutcome

_STYLES = {"judge": "red", "system": "yellow", "none": "green"}
_SETS = (
    TableColumn("suite", wraps=True, key=True),
    TableColumn("grader", wraps=True, key=True),
    TableColumn("judge", wraps=True),
    TableColumn("anchors", right=True),
    TableColumn("frozen"),
    TableColumn("run"),
    TableColumn("looks", right=True),
    TableColumn("changed"),
)
_ANCHORS = (
    TableColumn("anchor", right=True),
    TableColumn("case", wraps=True, key=True, most=40),
    TableColumn("frozen scores"),
    TableColumn("last", right=True),
    TableColumn("answer", wraps=True, most=60),
)
_MISSING = "–"

suite_name_argument = click.argument("suite", required=False, metavar="[SUITE]")
grader_option = click.option("--grader", metavar="KEY", help="Grader with the judge (default: the only one).")


@click.group()
@global_options
def anchors() -> None:
    """Freeze answers, and find out whether the judge or the system changed since.

    Each run of the suite judges a few anchors again (one for 20 calls of its judge) and keeps what they show. A judge
    that changed is `drifted`: gates that require a calibrated judge and routing do not rely on it, and the lines of the
    ledger and of trends break.

    \b
    gradeline anchors freeze latest --n 60
    gradeline anchors check --all
    gradeline anchors list
    """


@anchors.command()
@run_argument
@grader_option
@click.option(
    "--n",
    "number",
    type=click.IntRange(1, 1000),
    default=60,
    show_default=True,
    metavar="N",
    help="Number of answers to freeze.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Scores of each, for the judge's own noise.",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed of the choice.")
@global_options
def freeze(run_name: str, grader: str | None, number: int, repeats: int, seed: int) -> int:
    """Freeze answers of RUN with new scores by its judge.

    RUN must be completed. The answers are chosen over the whole range of scores and copied, so that they remain when
    the run is deleted. They replace the grader's anchors. Repeat the command to continue after an interruption: scores
    that are stored are not paid again.

    \b
    gradeline anchors freeze latest
    gradeline anchors freeze latest --n 100 --grader quality
    """
    from gradeline.cli.stores import open_store
    from gradeline.engine.lifecycle import run_event_loop
    from gradeline.trust.anchors import FreezeInterruptedError
    from gradeline.trust.anchors import freeze as freeze_answers

    settings = current_settings()

    async def work(storage: Storage) -> AnchorSet:
        return await freeze_answers(
            storage,
            storage.find_run(run_name),
            grader,
            number=number,
            repeats=repeats,
            seed=seed,
            observer=_observer(settings, storage, "continue with the same command: scores that are stored are kept"),
        )

    with open_store(settings, "existing") as storage:
        try:
            frozen = run_event_loop(work(storage))
        except FreezeInterruptedError as error:
            print_message(str(error))
            return 130
    if settings.json:
        _print_json(_set_data(frozen))
    elif settings.quiet:
        click.echo(len(frozen.anchors))
    else:
        noisy = sum(len(set(one.scores)) > 1 for one in frozen.anchors)
        cost = "cost unknown" if frozen.cost is None else f"cost {frozen.cost:.4g}"
        click.echo(
            single_line(
                f"{len(frozen.anchors)} answers of {frozen.run} frozen for {frozen.grader} of {frozen.suite}:"
                f" {frozen.calls:,} grades by {', '.join(frozen.judge)}, {cost};"
                f" {noisy} of them got different scores"
            )
        )
    return 0


@anchors.command()
@suite_name_argument
@grader_option
@click.option(
    "--n",
    "number",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of anchors to judge again.",
)
@click.option("--all", "everything", is_flag=True, help="Judge all anchors again.")
@global_options
def check(suite: str | None, grader: str | None, number: int, everything: bool) -> int:
    """Judge anchors again now, and say whether the judge or the system changed.

    Those that were judged least often come first. SUITE is the name of a suite or its file (default: all suites with
    anchors). The judge is configured as in the suite's latest run.

    \b
    none    no change is shown
    system  the system's answers changed, and the judge did not
    judge   the judge changed: scores before and after are not comparable

    Exit codes: 0 none, 1 judge or system changed, 2 usage error, 4 no anchor got a score, 130 interrupted.
    """
    from gradeline.cli.stores import open_store
    from gradeline.engine.lifecycle import run_event_loop
    from gradeline.trust.anchors import check as check_anchors

    settings = current_settings()

    async def work(storage: Storage) -> tuple[list[CheckOutcome], str | None]:
        observing = _observer(settings, storage, "what was judged is stored")
        found = await check_anchors(
            storage, _suite_name(suite), grader, number=None if everything else number, observer=observing
        )
        return found, None if observing.stop is None else observing.stop.reason

    with open_store(settings, "existing") as storage:
        outcomes, stopped = run_event_loop(work(storage))
    code = 130 if stopped is not None else exit_code(outcomes)
    if settings.json:
        _print_json({"checks": [_outcome_data(one) for one in outcomes], "exit_code": code})
    elif settings.quiet:
        for one in outcomes:
            click.echo(one.check.answer)
    else:
        for one in outcomes:
            _print_outcome(settings, one)
    return code


def exit_code(outcomes: list[CheckOutcome]) -> int:
    """1 with a change, 4 if no anchor got a score, else 0."""
    if any(one.check.answer != "none" for one in outcomes):
        return 1
    scored = any(score.score is not None for one in outcomes for score in one.check.scores)
    return 0 if scored else 4


@anchors.command(name="list")
@global_options
def list_sets() -> None:
    """List the anchors in use, with what they last showed."""
    from gradeline.cli.stores import open_store
    from gradeline.engine.anchor_records import checks_of
    from gradeline.trust.anchors import sets_in_use

    settings = current_settings()
    with open_store(settings, "read") as storage:
        found = [(one, checks_of(storage, one)) for one in sets_in_use(storage)]
    if settings.json:
        _print_json({"anchors": [_set_data(one, checks) for one, checks in found]})
    elif found:
        print_table(console(settings), _SETS, [_set_row(one, checks) for one, checks in found])
    else:
        click.echo("No anchors. Freeze answers of a run with: gradeline anchors freeze RUN")


@anchors.command()
@suite_name_argument
@grader_option
@global_options
def show(suite: str | None, grader: str | None) -> None:
    """Show anchors, their scores, and what they last showed."""
    from gradeline.cli.stores import open_store
    from gradeline.engine.anchor_records import checks_of
    from gradeline.trust.anchors import sets_in_use

    settings = current_settings()
    with open_store(settings, "read") as storage:
        sets = sets_in_use(storage, _suite_name(suite), grader, required=True)
        found = [(one, checks_of(storage, one)) for one in sets]
    if settings.json:
        _print_json({"anchors": [_set_data(one, checks, whole=True) for one, checks in found]})
        return
    for one, checks in found:
        _print_heading(settings, one)
        if checks:
            _print_check(settings, one, checks[-1])
        last = {score.name: score.score for made in checks for score in made.scores if score.score is not None}
        print_table(console(settings), _ANCHORS, [_anchor_row(one, name, last) for name in range(len(one.anchors))])


@anchors.command()
@suite_name_argument
@grader_option
@global_options
def remove(suite: str | None, grader: str | None) -> None:
    """Stop using anchors: runs judge them no more.

    What they showed remains, and so does the state of a judge that drifted.
    """
    from gradeline.cli.stores import open_store
    from gradeline.errors import ConfigError, Problem
    from gradeline.trust.anchors import remove as remove_set
    from gradeline.trust.anchors import sets_in_use

    settings = current_settings()
    with open_store(settings, "existing") as storage:
        found = sets_in_use(storage, _suite_name(suite), grader, required=True)
        if len(found) > 1:
            named = "; ".join(f"{one.suite}, {one.grader}" for one in found)
            raise ConfigError(Problem("anchors", f"there are several: {named}. Name the suite and --grader"))
        remove_set(storage, found[0])
    if settings.json:
        _print_json({"removed": _set_data(found[0])})
    elif not settings.quiet:
        click.echo(single_line(f"anchors of {found[0].grader} of {found[0].suite} removed"))


def _suite_name(suite: str | None) -> str | None:
    if suite is None:
        return None
    from gradeline.cli.trend import suite_name

    return suite_name(suite)


def _observer(settings: CliSettings, storage: Storage, advice: str) -> RunObserver:
    from gradeline.cli.execute import observer

    return observer(settings, storage, advice=lambda _: advice)


def _print_json(data: dict[str, Any]) -> None:
    import json

    click.echo(json.dumps(data, ensure_ascii=False))


def _set_data(found: AnchorSet, checks: list[AnchorCheck] | None = None, *, whole: bool = False) -> dict[str, Any]:
    import msgspec

    fields = ("id", "suite", "grader", "run", "judge", "judge_fingerprint", "at", "seed", "repeats", "calls", "cost")
    data: dict[str, Any] = {name: msgspec.to_builtins(getattr(found, name)) for name in fields}
    if whole:
        data["anchors"] = msgspec.to_builtins(found.anchors)
    else:
        data["anchors"] = len(found.anchors)
    if checks is not None:
        data["looks"] = len(checks)
        data["last"] = _check_data(checks[-1]) if checks else None
    return data


def _check_data(check: AnchorCheck) -> dict[str, Any]:
    import msgspec

    from gradeline.engine.anchor_text import headline

    return {**msgspec.to_builtins(check), "sentence": headline(check)}


def _outcome_data(outcome: CheckOutcome) -> dict[str, Any]:
    names = {"suite": outcome.anchors.suite, "grader": outcome.anchors.grader, "anchors": len(outcome.anchors.anchors)}
    return {**names, **_check_data(outcome.check), "stored": outcome.stored, "changed_since": outcome.changed_since}


def _set_row(found: AnchorSet, checks: list[AnchorCheck]) -> tuple[Text | str, ...]:
    answer = checks[-1].answer if checks else _MISSING
    return (
        safe_text(found.suite, "cyan"),
        safe_text(found.grader),
        safe_text(", ".join(found.judge)),
        str(len(found.anchors)),
        found.at[:10],
        found.run[:8],
        str(len(checks)),
        safe_text(answer, _STYLES.get(answer, "")),
    )


def _anchor_row(found: AnchorSet, position: int, last: dict[str, float]) -> tuple[Text | str, ...]:
    anchor = found.anchors[position]
    score = last.get(anchor.name)
    return (
        anchor.name,
        safe_text(single_line(anchor.case), "cyan"),
        " ".join(f"{one:.3g}" for one in anchor.scores),
        _MISSING if score is None else f"{score:.3g}",
        safe_text(single_line(anchor.response.text or "")),
    )


def _print_heading(settings: CliSettings, found: AnchorSet) -> None:
    title = f"{found.grader} of {found.suite}: {', '.join(found.judge)}"
    frozen = f"{len(found.anchors)} answers of {found.run} frozen on {found.at[:10]}, {found.repeats} scores each"
    out = console(settings)
    out.print(safe_text(single_line(title), "bold"))
    out.print(safe_text(single_line(frozen)))


def _print_outcome(settings: CliSettings, outcome: CheckOutcome) -> None:
    _print_heading(settings, outcome.anchors)
    check = outcome.check
    missing = [score for score in check.scores if score.score is None]
    if missing:
        error = missing[0].error or "no score"
        note = f"{len(missing)} of {len(check.scores)} calls gave no score, which is no change: {error}"
        console(settings).print(safe_text(single_line(note), "yellow"))
    if outcome.changed_since is not None:
        note = f"{outcome.changed_since} since the anchors were frozen; this check is not stored"
        console(settings).print(safe_text(single_line(note), "yellow"))
    _print_check(settings, outcome.anchors, check)


def _print_check(settings: CliSettings, found: AnchorSet, check: AnchorCheck) -> None:
    from gradeline.engine.anchor_text import advice, headline, judge_sentence, system_sentence

    out = console(settings)
    style = _STYLES.get(check.answer, "")
    out.print(safe_text(single_line(f"{check.answer}: {headline(check)}"), f"bold {style}"))
    out.print(safe_text(f"  judge   {judge_sentence(check, found)}"))
    out.print(safe_text(f"  system  {system_sentence(check)}"))
    todo = advice(check)
    if todo is not None:
        out.print(safe_text(f"  next    {todo}"))
