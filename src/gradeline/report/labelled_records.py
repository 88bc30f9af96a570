"""The records of a run with the labels of people, for exports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gradeline.model import Record, Run, Storage, to_json
from gradeline.model.label import LabelRow, ReferenceLabel
from gradeline.store.labels import fresh_labels, labels_of_run_and_parents, reference_labels

_FIELDS = {
    "grader": "question",
    "verdict": "verdict",
    "score": "score",
    "category": "category",
    "reason": "comment",
    "author": "rater",
    "role": "role",
    "probability": "probability",
    "sample": "sample",
    "at": "at",
}
"""Fields of a label in a record, with their names in the store."""


def record_lines(storage: Storage, run: Run, records: Iterable[Record] | None = None) -> Iterator[str]:
    """The records as JSON, each with its labels under ``labels`` if it has any."""
    labels: dict[tuple[str, int], list[LabelRow]] = {}
    for row in labels_of_run_and_parents(storage, run):
        labels.setdefault((row.case, row.repeat), []).append(row)
    for record in storage.records(run.id) if records is None else records:
        text = to_json(record)
        own = labels.get((record.case, record.repeat))
        yield f'{text[:-1]},"labels":{_json(own)}}}' if own else text


def grader_labels(storage: Storage, run: Run) -> Mapping[tuple[str, int, str], ReferenceLabel]:
    """What people say about each grade, by case, repeat and grader."""
    asked = {row.question for row in fresh_labels(storage, run).labels}
    return {
        (label.case, label.repeat, grader): label
        for grader in run.graders
        if grader in asked
        for label in reference_labels(storage, run, grader).labels
    }


def _json(labels: Sequence[LabelRow]) -> str:
    shown = [{name: getattr(label, field) for name, field in _FIELDS.items()} for label in labels]
    for label in shown:
        label["author"] = label["author"] or None
    return msgspec.json.encode(shown).decode()
