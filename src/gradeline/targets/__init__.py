"""Targets: the agents under test, each kind declared once."""

from gradeline.targets.base import DeclaredTarget, Rate, TargetConfig, TargetContext
from gradeline.targets.registry import create, registry

__all__ = ["DeclaredTarget", "Rate", "TargetConfig", "TargetContext", "create", "registry"]
