"""The names of the cases so far, in a few bytes each: a dataset may be larger than memory, and so may its ids."""

from __future__ import annotations

from array import array

_FIRST_SLOTS = 1 << 10
_ROTATE = 40


class CaseKeys:
    """A set of texts that keeps eight bytes of each: their hashes, in open addressing.

    Two texts with the same 64-bit hash would count as one; among ten million ids the odds are one in
    three hundred thousand. Ids that count up from zero, as most do, take no room at all.
    """

    def __init__(self) -> None:
        self._counted = 0
        self._slots = _free(_FIRST_SLOTS)
        self._used = 0

    def add(self, key: str) -> bool:
        """Take the key in; false where it was there before."""
        if key == str(self._counted):
            if self._used and self._find(_hash(key)) is None:
                return False
            self._counted += 1
            return True
        if key.isdecimal() and key.isascii() and int(key) < self._counted and key == str(int(key)):
            return False
        if 3 * self._used >= 2 * len(self._slots):
            self._grow()
        value = _hash(key)
        slot = self._find(value)
        if slot is None:
            return False
        self._slots[slot] = value
        self._used += 1
        return True

    def _find(self, value: int) -> int | None:
        """The free slot for a hash; None where it stands already."""
        slots, mask = self._slots, len(self._slots) - 1
        slot = (value ^ (value >> _ROTATE)) & mask
        while slots[slot]:
            if slots[slot] == value:
                return None
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        before = self._slots
        self._slots = _free(2 * len(before))
        for value in before:
            if value:
                slot = self._find(value)
                if slot is not None:
                    self._slots[slot] = value


def _free(slots: int) -> array[int]:
    return array("Q", (0,)) * slots


def _hash(key: str) -> int:
    """Zero marks a free slot, so no text has it."""
    return (hash(key) & 0xFFFF_FFFF_FFFF_FFFF) or 1
