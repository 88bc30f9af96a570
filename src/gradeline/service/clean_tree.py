"""Trees of data in requests: nothing in them that a store could not keep."""

from __future__ import annotations

from math import isfinite

from gradeline.model import clean_text
from gradeline.service.failures import ApiError, Code

MOST_DEPTH = 64
_LARGEST = 2**63 - 1


def require_clean(tree: object, field: str) -> None:
    """`ApiError` for NUL, half a character, a number that is none, and what is nested too deeply."""
    level: list[object] = [tree]
    for _ in range(MOST_DEPTH):
        below: list[object] = []
        for node in level:
            if isinstance(node, dict):
                below += (*node, *node.values())
            elif isinstance(node, list | tuple):
                below += node
            elif isinstance(node, str) and clean_text(node).changed:
                raise ApiError(Code.INVALID_INPUT, f"Field {field!r} holds NUL or half a character; leave it out")
            elif isinstance(node, float) and not isfinite(node):
                raise ApiError(Code.INVALID_INPUT, f"Field {field!r} holds {node}, which is no number")
            elif isinstance(node, int) and abs(node) > _LARGEST:
                raise ApiError(Code.INVALID_INPUT, f"Field {field!r} holds a whole number of more than 64 bits")
        if not below:
            return
        level = below
    raise ApiError(Code.INVALID_INPUT, f"Field {field!r} is nested more than {MOST_DEPTH} deep")
