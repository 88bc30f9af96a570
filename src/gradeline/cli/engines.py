"""Where runs are worked on: the options that say it, and what they open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from gradeline.cli.settings import F, Settings
from gradeline.cli.terminal import say

if TYPE_CHECKING:
    from gradeline.engine.suites import Engine


class EngineChoice(NamedTuple):
    """What the options of `engine_options` say."""

    engine: str = "local"
    ray_address: str | None = None
    ray_workers: int | None = None


def engine_options(command: F) -> F:
    """Adds what an `EngineChoice` is made of to a command."""
    options = (
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            help="Where the cases are worked on: in this process, or on a Ray cluster (needs a PostgreSQL store).",
        ),
        click.option(
            "--ray-address",
            metavar="HOST:PORT",
            help="The Ray cluster, which this machine is a node of. Default: one of this machine alone.",
        ),
        click.option(
            "--ray-workers", type=click.IntRange(1), metavar="N", help="So many workers. Default: one for each core."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def open_engine(settings: Settings, choice: EngineChoice) -> Iterator[Engine]:
    """The engine that the options name."""
    if choice.engine == "local":
        _require_no_ray_options(choice)
        from gradeline.engine.suites import in_this_process

        yield in_this_process
        return
    from gradeline.cli.stores import store_url
    from gradeline.engine.ray.driver import RayEngine  # few runs need a cluster

    def tell(text: str) -> None:
        if not settings.quiet:
            say(text)

    with RayEngine(store_url(settings), choice.ray_address, choice.ray_workers, tell) as engine:
        yield engine


def _require_no_ray_options(choice: EngineChoice) -> None:
    for name, value in (("--ray-address", choice.ray_address), ("--ray-workers", choice.ray_workers)):
        if value is not None:
            raise click.UsageError(f"{name} is for --engine ray")
