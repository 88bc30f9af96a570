"""Options and arguments that several commands share: the global ones, the store, runs, budgets and the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from gradeline.cli.terminal import print_message

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gradeline.engine.definition import RunBudget
    from gradeline.engine.lifecycle import Engine

F = TypeVar("F", bound=Callable[..., Any])


class CliSettings(NamedTuple):
    """The values of the global options."""

    json: bool = False
    quiet: bool = False
    no_color: bool = False
    store: str | None = None


def _remember(ctx: click.Context, param: click.Parameter, value: bool | str | None) -> None:
    if value:
        ctx.find_root().meta[f"gradeline.{param.name}"] = value


def global_options(command: F) -> F:
    """Add the global options to a command; they are accepted before and after its name."""
    flags = (
        ("--json", "Print one JSON object to stdout and nothing else."),
        ("--quiet", "Print only the result."),
        ("--no-color", "Disable colours (or set NO_COLOR)."),
    )
    for name, text in reversed(flags):
        command = click.option(name, is_flag=True, expose_value=False, callback=_remember, help=text)(command)
    store = (
        "Store to use: a path, sqlite:///path, postgresql://host/database or memory://"
        " (default: .gradeline/store.db of the project)."
    )
    return click.option("--store", metavar="URL", expose_value=False, callback=_remember, help=store)(command)


def current_settings() -> CliSettings:
    """The global options of the running command."""
    meta = click.get_current_context().find_root().meta
    json, quiet, no_color = (bool(meta.get(f"gradeline.{name}")) for name in ("json", "quiet", "no_color"))
    return CliSettings(json, quiet, no_color, meta.get("gradeline.store"))


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Shell completion: the newest runs whose id starts with the typed text."""
    from click.shell_completion import CompletionItem

    from gradeline.cli.stores import open_store
    from gradeline.errors import GradelineError

    try:
        with open_store(CliSettings(store=ctx.find_root().meta.get("gradeline.store")), "read") as storage:
            runs = storage.list_runs(50)
    except GradelineError:
        return []
    words = [CompletionItem("latest", help="the newest run")] if runs else []
    words += [CompletionItem(run.id[:8], help=f"{run.name}, {run.status}, {run.started_at}") for run in runs]
    return [word for word in words if str(word.value).startswith(incomplete)]


class BudgetType(click.ParamType["RunBudget"]):
    """``5usd``, ``5``, ``0.5 usd`` or ``1000calls``."""

    name = "budget"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> RunBudget:
        import re

        from gradeline.engine.definition import RunBudget

        if isinstance(value, RunBudget):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(usd|calls?)?", str(value).strip().lower())
        if found is None or float(found[1]) <= 0:
            self.fail(f"invalid budget {value!r}: use an amount such as 5usd, or 1000calls", param, ctx)
        if (found[2] or "usd") == "usd":
            return RunBudget(cost=float(found[1]))
        if "." in found[1]:
            self.fail(f"invalid budget {value!r}: calls are whole numbers", param, ctx)
        return RunBudget(calls=int(found[1]))


class PriceType(click.ParamType[str]):
    """``0.15/0.60``, or ``MODEL=0.15/0.60``."""

    name = "price"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from gradeline.adapters.costs import assumed_prices
        from gradeline.errors import ConfigError

        try:
            assumed_prices([str(value)])
        except ConfigError as error:
            self.fail(error.problems[0].message, param, ctx)
        return str(value)


run_argument = click.argument("run_name", metavar="RUN", shell_complete=complete_run)
run_or_latest = click.argument("run_name", metavar="[RUN]", default="latest", shell_complete=complete_run)
suite_argument = click.argument("suite", type=click.Path(path_type=Path))
suite_option = click.option(
    "--suite", metavar="NAME", help="Suite of the baseline, if several suites have one of this name."
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of the suite (repeatable)."
)
margin_option = click.option(
    "--margin",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    help="Largest mean loss that still counts as not worse.",
)
budget_option = click.option("--budget", type=BudgetType(), metavar="5usd", help="Stop once this much is spent.")
concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum calls in flight (default: the suite's, else 15).",
)
assume_price_option = click.option(
    "--assume-price",
    "prices",
    type=PriceType(),
    multiple=True,
    metavar="[MODEL=]IN/OUT",
    help="US dollars per million input and output tokens: of MODEL, or of models without a known price (repeatable).",
)
secret_key_option = click.option(
    "--secret-key-file",
    type=click.Path(path_type=Path),
    help="File with the secret key of the service (default: the variable GRADELINE_SECRET_KEY).",
)


def case_options(command: F) -> F:
    """Add the options that select the cases, graders and variants of a run, and limit it."""
    options = (
        click.option("--limit", type=click.IntRange(0), metavar="N", help="Run only the first N cases."),
        click.option("--sample", "samples", multiple=True, metavar="ID", help="Run only this case (repeatable)."),
        click.option("--tag", "tags", multiple=True, metavar="T", help="Run only cases with this tag (repeatable)."),
        click.option("--grader", "graders", multiple=True, metavar="G", help="Use only this grader (repeatable)."),
        click.option("--model", "models", multiple=True, metavar="M", help="Model to run (repeatable: one run each)."),
        click.option("--variant", "variants", multiple=True, metavar="V", help="Run only this variant (repeatable)."),
        click.option(
            "--repeats",
            type=click.IntRange(1),
            metavar="N",
            help="Responses per case (default: the suite's, else 1).",
        ),
        concurrency_option,
        set_option,
        budget_option,
        assume_price_option,
        click.option("--seed", type=int, metavar="N", help="Random seed to store with the run."),
    )
    for option in reversed(options):
        command = option(command)
    return command


class EngineChoice(NamedTuple):
    """The values of `engine_options`."""

    engine: str = "local"
    ray_address: str | None = None
    ray_workers: int | None = None


def engine_options(command: F) -> F:
    """Add the options of an `EngineChoice` to a command."""
    options = (
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            help="Run the cases in this process (default) or on a Ray cluster (needs a PostgreSQL store).",
        ),
        click.option(
            "--ray-address",
            metavar="HOST:PORT",
            help="Ray cluster that this machine is a node of (default: start a local one).",
        ),
        click.option(
            "--ray-workers", type=click.IntRange(1), metavar="N", help="Number of Ray workers (default: one per core)."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def open_engine(settings: CliSettings, choice: EngineChoice) -> Iterator[Engine]:
    """The engine that the options select."""
    if choice.engine == "local":
        _reject_ray_options(choice)
        from gradeline.engine.lifecycle import local_engine

        yield local_engine
        return
    from gradeline.cli.stores import store_url
    from gradeline.engine.ray.driver import RayEngine  # few runs need a cluster

    def report(text: str) -> None:
        if not settings.quiet:
            print_message(text)

    with RayEngine(store_url(settings), choice.ray_address, choice.ray_workers, report) as engine:
        yield engine


def _reject_ray_options(choice: EngineChoice) -> None:
    for name, value in (("--ray-address", choice.ray_address), ("--ray-workers", choice.ray_workers)):
        if value is not None:
            raise click.UsageError(f"{name} is for --engine ray")
