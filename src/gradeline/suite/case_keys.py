"""The names of the cases so far, in a few bytes each: a dataset may be larger than memory, and so may its ids."""

from __future__ import annotations

from array import array

_FIRST_SLOTS = 1 << 10
_ROTATE = 40
_DIGITS = "0123456789"
_LONGEST = 18


class CaseKeys:
    """A set of texts that keeps eight bytes of each: their hashes, in open addressing.

    Two texts with the same 64-bit hash would count as one; among ten million ids the odds are one in
    three hundred thousand. Ids that count up from the first one, as most do (``7``, ``case-7``), take no room at all.
    """

    def __init__(self) -> None:
        self._prefix: str | None = None
        self._first = self._next = 0
        self._slots = _free(_FIRST_SLOTS)
        self._used = 0

    def add(self, key: str) -> bool:
        """Take the key in; false where it was there before."""
        if self._prefix is None:
            self._prefix, self._first = _counter(key) or ("", 0)
            self._next = self._first
        if key == f"{self._prefix}{self._next}":
            if self._used and self._find(_hash(key)) is None:
                return False
            self._next += 1
            return True
        if self._was_counted(key):
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

    def _was_counted(self, key: str) -> bool:
        counter = _counter(key)
        return counter is not None and counter[0] == self._prefix and self._first <= counter[1] < self._next

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


def _counter(key: str) -> tuple[str, int] | None:
    """What stands before the number at the end of a key, and that; None where there is none, or one written oddly."""
    prefix = key.rstrip(_DIGITS)
    number = key[len(prefix) :]
    # no zeros before it, and no more digits than are quickly read
    if not number or len(number) > _LONGEST or (number[0] == "0" and number != "0"):
        return None
    return prefix, int(number)


def _free(slots: int) -> array[int]:
    return array("Q", (0,)) * slots


def _hash(key: str) -> int:
    """Zero marks a free slot, so no text has it."""
    return (hash(key) & 0xFFFF_FFFF_FFFF_FFFF) or 1
