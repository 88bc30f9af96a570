"""Extractors: pure functions from a response to the submission that is graded."""

from gradeline.extractors.base import DeclaredExtractor, create, extract, registry

__all__ = ["DeclaredExtractor", "create", "extract", "registry"]
