"""The name that a judge puts under its scores."""

from __future__ import annotations


def require_name(grader_id: object) -> str:
    """The id, or `ValueError`: said before a judge is paid, since no result can bear an empty one."""
    if not isinstance(grader_id, str) or not grader_id.strip():
        raise ValueError(f"grader_id must name the judge, got {grader_id!r}")
    return grader_id
