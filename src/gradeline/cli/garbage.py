"""When a command looks for garbage: not while it loads, seldom in a run, and as Python does in a service."""

from __future__ import annotations

import gc

_LOADING = (100_000, 10, 10)
_RUNNING = (50_000, 20, 20)
_SERVING = gc.get_threshold()


def look_later() -> None:
    """Loading a command makes some 60,000 objects and no garbage; to look for it there costs 20 ms."""
    gc.set_threshold(*_LOADING)


def look_seldom() -> None:
    """A run makes objects by the million and no cycles; what is loaded by now stays."""
    gc.freeze()
    gc.set_threshold(*_RUNNING)


def look_as_ever() -> None:
    """For what lives long."""
    gc.set_threshold(*_SERVING)
