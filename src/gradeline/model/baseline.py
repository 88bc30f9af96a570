"""Baselines with a name: the run of a suite that others are compared with."""

from __future__ import annotations

import re

import msgspec

from gradeline.errors import ConfigError, Problem
from gradeline.model.text import quote

MAX_BASELINE_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A name for a run of a suite. Each suite has its own baselines: ``main`` of two suites are two runs."""

    suite: str
    name: str
    run: str
    set_by: str
    """The user of the command line, or the id of the key that the service was called with."""
    set_at: str


def check_baseline_name(name: str, path: str = "NAME") -> str:
    """The name if it is valid, else `ConfigError`."""
    if len(name) > MAX_BASELINE_NAME or not _NAME.fullmatch(name):
        reason = f"use 1 to {MAX_BASELINE_NAME} letters, digits, '.', '_' and '-', beginning with a letter or digit"
        raise ConfigError(Problem(path, f"invalid baseline name {quote(name)}: {reason}"))
    if name == "latest":
        raise ConfigError(Problem(path, "'latest' is always the newest run; use another name, such as 'main'"))
    return name
