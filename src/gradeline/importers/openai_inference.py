"""Graders that an export names and does not define, found again in the verdicts that it recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gradeline.importers.openai_export import ExportedItem, response_of

_MAX_KEYS = 50
_MAX_GRADERS = 50
_MAX_TEXT = 100_000
"""Maximum characters of a response that is compared with all fields of its item."""


class Candidate(NamedTuple):
    """A comparison of the response with a field of the item."""

    key: str
    operation: str


class Inference(NamedTuple):
    """A comparison that agrees with all recorded verdicts of a grader."""

    candidate: Candidate
    verdicts: int

    def criterion(self, name: str) -> dict[str, str]:
        """The comparison as a grader of the source."""
        reference = f"{{{{ item.{self.candidate.key} }}}}"
        return {
            "type": "string_check",
            "name": name,
            "input": "{{ sample.output_text }}",
            "reference": reference,
            "operation": self.candidate.operation,
        }


_OPERATIONS: Mapping[str, Callable[[str, str], bool]] = {
    "eq": lambda text, value: text == value,
    "like": lambda text, value: bool(value) and value in text,
    "ilike": lambda text, value: bool(value) and value.casefold() in text.casefold(),
}


def infer_comparisons(items: Iterable[ExportedItem]) -> dict[str, Inference]:
    """The strictest comparison of each grader that agrees with all its verdicts, of which at least one is a pass."""
    remaining: dict[str, list[Candidate]] = {}
    verdicts: dict[str, int] = {}
    passes: set[str] = set()
    for item in items:
        text = None if item.sample is None else response_of(item.sample).text
        for name, grade in item.grades.items():
            if text is None or grade.passed is None or len(remaining.keys() | {name}) > _MAX_GRADERS:
                continue
            candidates = remaining.get(name, _candidates(item)) if len(text) <= _MAX_TEXT else []
            remaining[name] = [one for one in candidates if _holds(one, text, item) is grade.passed]
            verdicts[name] = verdicts.get(name, 0) + 1
            if grade.passed:
                passes.add(name)
    return {name: Inference(found[0], verdicts[name]) for name, found in remaining.items() if found and name in passes}


def _candidates(item: ExportedItem) -> list[Candidate]:
    keys = [key for key, value in item.item.items() if isinstance(value, str) and key.isidentifier()][:_MAX_KEYS]
    return [Candidate(key, operation) for operation in _OPERATIONS for key in keys]


def _holds(candidate: Candidate, text: str, item: ExportedItem) -> bool | None:
    value = item.item.get(candidate.key)
    return _OPERATIONS[candidate.operation](text, value) if isinstance(value, str) else None
