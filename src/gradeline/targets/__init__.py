"""Targets: the agents under test, each kind declared once."""

from gradeline.targets.base import DeclaredTarget, RateLimit, TargetConfig, TargetContext
from gradeline.targets.registry import create, registry

__all__ = ["DeclaredTarget", "RateLimit", "TargetConfig", "TargetContext", "create", "registry"]
