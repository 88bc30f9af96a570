"""Fakes for tests: a scripted adapter, a fake judge and a server with faults."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradeline.testing.scripted import ScriptedAdapter

__all__ = ["ScriptedAdapter"]

_HOMES = {"ScriptedAdapter": "gradeline.testing.scripted"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gradeline.testing' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
