"""What tests pass to the targets they create."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradeline.model.resources import Resources
from gradeline.targets.base import TargetContext


def context(folder: Path | None = None, environment: Mapping[str, str] | None = None, **more: Any) -> TargetContext:
    return TargetContext(Resources(folder, environment), **more)
