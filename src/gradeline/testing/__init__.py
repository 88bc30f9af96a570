"""Fakes for tests: a scripted adapter, a fake judge and a server with faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradeline.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from gradeline.testing.scripted import ScriptedAdapter

__all__ = ["ScriptedAdapter"]

_HOMES = {"ScriptedAdapter": "gradeline.testing.scripted"}

__getattr__, __dir__ = lazy_exports(globals(), _HOMES)
