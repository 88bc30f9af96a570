"""A suite as it was read: one form for every dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gradeline.verdict.gates import Gate


class GraderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A grader of a suite and what it is given.

    ``function`` names a custom grader; without it ``kind`` is a built-in's. An extractor that is no
    built-in's is a custom one.
    """

    key: str
    kind: str
    config: dict[str, Any] = {}
    function: str | None = None
    extractor: str = "last_assistant"
    extractor_config: dict[str, Any] = {}
    pass_threshold: float | None = None
    timeout: float = 5.0


class TargetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of a suite. ``config`` holds what ``${NAME}`` stood for; ``secrets`` are those values."""

    kind: str
    config: dict[str, Any] = {}
    secrets: frozenset[str] = frozenset()


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask, whom, and how to grade it."""

    name: str
    file: Path
    digest: str
    dataset: Path | list[Any]
    target: TargetSpec
    graders: tuple[GraderSpec, ...]
    gate: Gate | None = None
    description: str | None = None
    setup: str | None = None
    repeats: int = 1
    concurrency: int = 15
    limit: int = 0
    tags: tuple[str, ...] = ()
    coverage_floor: float = 0.95
    warnings: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where relative paths and custom code are looked for."""
        return self.file.parent
