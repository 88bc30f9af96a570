"""Pairs, as many as can be, where each may be used once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def maximum_matching(fits: Sequence[int]) -> dict[int, int]:
    """The most pairs (left, right) that use every left and every right at most once.

    Bit r of ``fits[l]`` says that l and r may be a pair. Augmenting paths, searched breadth
    first; each search sees each right once, so all of them take at most left times right steps.
    """
    pairs: dict[int, int] = {}
    owners: dict[int, int] = {}
    for start in range(len(fits)):
        reached_from: dict[int, int] = {}
        unseen = -1
        queue = [start]
        for left in queue:
            fresh = fits[left] & unseen
            unseen &= ~fresh
            free = None
            while fresh and free is None:
                lowest = fresh & -fresh
                fresh ^= lowest
                right = lowest.bit_length() - 1
                reached_from[right] = left
                if right in owners:
                    queue.append(owners[right])
                else:
                    free = right
            if free is not None:
                _flip(free, reached_from, pairs, owners)
                break
    return pairs


def _flip(right: int | None, reached_from: Mapping[int, int], pairs: dict[int, int], owners: dict[int, int]) -> None:
    while right is not None:
        left = reached_from[right]
        before = pairs.get(left)
        pairs[left], owners[right] = right, left
        right = before
