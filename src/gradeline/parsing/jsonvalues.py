"""Equality of JSON values."""

from __future__ import annotations


def json_equal(left: object, right: object) -> bool:
    """Equal as JSON: key order is free, 1 is 1.0, and true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(json_equal(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and all(json_equal(*pair) for pair in zip(left, right, strict=True))
        )
    return left == right
