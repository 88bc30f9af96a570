"""The ids of a dataset's cases: unique, and computed from the content of a case that has none."""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import Literal

from msgspec.structs import replace

from gradeline.model import Sample, canonical_json

CaseIdScheme = Literal["content", "number"]
"""How a row without an id is named: by its content, or by its number from 0 as in letta-evals."""
_DIGITS_OF_CONTENT = 12


class CaseIds:
    """The ids of a dataset so far."""

    def __init__(self, scheme: CaseIdScheme = "content") -> None:
        self._scheme = scheme
        self._seen = CaseKeySet()
        self._copies: dict[str, int] = {}
        """Number of cases so far, by content."""

    def add(self, key: str) -> bool:
        """Add a case with an id of its own; false if another one has it."""
        return self._seen.add(key)

    def name(self, sample: Sample) -> Sample | None:
        """The case with an id instead of its number; None if another case has that number as its id."""
        if self._scheme == "number":
            return sample if self._seen.add(sample.case_key) else None
        return replace(sample, id=self._content_id(sample))

    def _content_id(self, sample: Sample) -> str:
        """A digest of the input: it stays when rows are moved, or when the expected value is corrected.

        Cases with the same input are distinguished by their expected value, and equal ones by their order.
        """
        name = _digest(sample.input)
        if self._seen.add(name):
            return name
        name = _digest([sample.input, sample.ground_truth])
        if name not in self._copies and self._seen.add(name):
            return name
        copies = self._copies.get(name, 1)
        while True:
            copies += 1
            if self._seen.add(copy := f"{name}-{copies}"):
                self._copies[name] = copies
                return copy


def _digest(content: object) -> str:
    return f"case-{sha256(canonical_json(content)).hexdigest()[:_DIGITS_OF_CONTENT]}"


_FIRST_SLOTS = 1 << 10
_ROTATE = 40
_DIGITS = "0123456789"
_LONGEST = 18


class CaseKeySet:
    """A set of case keys in eight bytes each: their hashes, in a hash table with open addressing.

    A dataset may be larger than memory, and so may its ids. Two keys with the same 64-bit hash would count as one;
    among ten million ids the probability is one in three hundred thousand. Ids that count up from the first one, as
    most do (``7``, ``case-7``), need no memory.
    """

    def __init__(self) -> None:
        self._prefix: str | None = None
        self._first = self._next = 0
        self._slots = _free(_FIRST_SLOTS)
        self._used = 0

    def add(self, key: str) -> bool:
        """Add the key; false if it was in the set before."""
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
        """The free slot for a hash; None if it is in the table."""
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
    """Prefix and number of a key that ends in a number; None for other keys and numbers with leading zeros."""
    prefix = key.rstrip(_DIGITS)
    number = key[len(prefix) :]
    # a limited number of digits, because int() of many is slow
    if not number or len(number) > _LONGEST or (number[0] == "0" and number != "0"):
        return None
    return prefix, int(number)


def _free(slots: int) -> array[int]:
    return array("Q", (0,)) * slots


def _hash(key: str) -> int:
    """Never zero, which marks a free slot."""
    return (hash(key) & 0xFFFF_FFFF_FFFF_FFFF) or 1
