"""Targets: the agents under test, each kind declared once."""

from gradeline.targets.base import DeclaredTarget, Rate, TargetConfig
from gradeline.targets.registry import create, registry

__all__ = ["DeclaredTarget", "Rate", "TargetConfig", "create", "registry"]
