"""Where the service's runs are worked on: in its own process, or on a cluster that it joins when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gradeline.engine.orchestrate import Engine, local_engine
from gradeline.errors import ConfigError, Problem
from gradeline.service.settings import ServeSettings


class Executor(NamedTuple):
    """An engine, and what the service must know of it."""

    engine: Engine
    at_once: int
    """Runs that can be worked on side by side."""
    elsewhere: bool = False
    """Calls are made by other processes, which are sent all that they need to know."""
    leaving_s: float = 0.0
    """How long it takes to let go of those processes."""


_LEAVING_RAY_S = 3.0


@contextmanager
def open_workplace(settings: ServeSettings) -> Iterator[Executor]:
    """The engine that the settings name, ready; `ConfigError` where it cannot be had. In the main thread alone."""
    if settings.engine == "local":
        _require_no_ray_options(settings)
        yield Executor(local_engine, settings.runs_at_once)
        return
    from gradeline.engine.ray.driver import RayEngine  # few services need a cluster

    with RayEngine(settings.store, settings.ray_address, settings.ray_workers, at_once=settings.runs_at_once) as engine:
        engine.join(settings.graders_dir)
        yield Executor(engine, engine.at_once, elsewhere=True, leaving_s=_LEAVING_RAY_S)


def _require_no_ray_options(settings: ServeSettings) -> None:
    for name, value in (("--ray-address", settings.ray_address), ("--ray-workers", settings.ray_workers)):
        if value is not None:
            raise ConfigError(Problem(name, "is for --engine ray"))
