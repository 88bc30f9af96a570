"""Options that every command takes, before its name or behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


class Settings(NamedTuple):
    """What the global options say."""

    json: bool = False
    quiet: bool = False
    no_color: bool = False
    store: str | None = None


def _remember(ctx: click.Context, param: click.Parameter, value: bool | str | None) -> None:
    if value:
        ctx.find_root().meta[f"gradeline.{param.name}"] = value


def global_options(command: F) -> F:
    """Adds the global options to a command."""
    flags = (
        ("--json", "Print one JSON object on stdout and nothing else there."),
        ("--quiet", "Print the result alone."),
        ("--no-color", "No colours (the NO_COLOR variable works too)."),
    )
    for name, text in reversed(flags):
        command = click.option(name, is_flag=True, expose_value=False, callback=_remember, help=text)(command)
    store = (
        "Where runs are kept: a path, sqlite:///path, postgresql://host/database or memory://."
        " Default: .gradeline/ of the project folder."
    )
    return click.option("--store", metavar="URL", expose_value=False, callback=_remember, help=store)(command)


def current_settings() -> Settings:
    """The global options of the running command."""
    meta = click.get_current_context().find_root().meta
    json, quiet, no_color = (bool(meta.get(f"gradeline.{name}")) for name in ("json", "quiet", "no_color"))
    return Settings(json, quiet, no_color, meta.get("gradeline.store"))


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """The newest runs that begin with what is typed, for a shell's completion."""
    from click.shell_completion import CompletionItem

    from gradeline.cli.stores import open_store
    from gradeline.errors import GradelineError

    try:
        with open_store(Settings(store=ctx.find_root().meta.get("gradeline.store")), "read") as storage:
            runs = storage.list_runs(50)
    except GradelineError:
        return []
    words = [CompletionItem("latest", help="the newest run")] if runs else []
    words += [CompletionItem(run.id[:8], help=f"{run.name}, {run.status}, {run.started_at}") for run in runs]
    return [word for word in words if str(word.value).startswith(incomplete)]


run_argument = click.argument("run_name", metavar="RUN", shell_complete=complete_run)
run_or_latest = click.argument("run_name", metavar="[RUN]", default="latest", shell_complete=complete_run)
