"""The agent of the benchmarks: answers at once, so that what is measured is the harness."""

from __future__ import annotations


def doubled(text: str) -> str:
    """``What is 21 plus 21?`` is 42."""
    return str(2 * int(text.split()[2]))


async def answer(text: str) -> str:
    return doubled(text)
