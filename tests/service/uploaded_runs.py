"""Runs with everything that a store can hold of one, for the tests of uploads."""

from __future__ import annotations

from typing import Any

import msgspec

from gradeline.model import (
    ErrorInfo,
    Fault,
    Grade,
    GradeKey,
    Outcome,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    Trajectory,
)
from gradeline.model.label import HumanVerdict, LabelKey
from gradeline.model.run import CodeVersion
from gradeline.store.database import SharedStorage, Transaction
from gradeline.store.labels import (
    LabelDraw,
    create_label_tables,
    draws_of_run,
    has_label_tables,
    insert_label,
    label_row,
    labels_of_run,
    put_draws,
)
from gradeline.store.transfer import case_lines, content_of, header_of

GRADERS = {"exact": RunGrader("exact_match", "f1"), "judge": RunGrader("model_judge", "f2", judges=("openai/x",))}
_ENDED = "2026-01-02T00:00:00Z"
_LABELLED = "2026-01-03T00:00:00Z"


def new_run(storage: SharedStorage, cases: int = 5, **fields: Any) -> Run:
    """A completed run of two repeats: answers and failures, grades, errors, clusters, labels and an open case."""
    wanted = {"name": "second", "suite": "capitals", "repeats": 2, "total": 2 * cases, "started_at": _ENDED, **fields}
    version = CodeVersion(commit="c0ffee", branch="main", dirty=False)
    run = storage.save_run(Run(graders=GRADERS, code_version=version, status="running", **wanted))
    for number in range(cases):
        for repeat in range(2):
            _put_result(storage, run, number, repeat)
    storage.put_samples(run, [Sample("never called", "Atlantis?")], start=cases)
    storage.put_clusters(run, [(f"case {number} é", f"document {number % 2}") for number in range(cases)])
    create_label_tables(storage.database)
    record = storage.get_record(ResponseKey(run, "case 0 é", 1))
    assert record is not None
    value = HumanVerdict("fail", "it is ☃", 0.25, "wrong city", 0.5, "random-1")
    shown = (record.sample, record.response)
    labels = [
        label_row(LabelKey(run, record.case, 1, "exact"), *shown, record.grades["exact"], value, "me", _LABELLED),
        label_row(
            *(LabelKey(run, record.case, 1, "exact"), *shown, record.grades["exact"]),
            *(value._replace(verdict="pass", role="adjudicator"), "you", _LABELLED),
        ),
        label_row(LabelKey(run, record.case, 1, "tone"), *shown, None, HumanVerdict(category="rude"), "", _LABELLED),
    ]
    draw = LabelDraw(
        *("random-1", "exact", 0, record.case, 1, "random", 1, 0.5, "fail", 4, 2 * cases, _LABELLED),
    )

    def work(transaction: Transaction) -> None:
        for label in labels:
            insert_label(transaction, run, label)
        put_draws(transaction, run, [draw])

    storage.database.transact(work)
    return storage.update_run(run, status="completed", completed_at=_ENDED)


def _put_result(storage: SharedStorage, run: str, number: int, repeat: int) -> None:
    key = ResponseKey(run, f"case {number} é", repeat)
    sample = Sample(key.case, f"question {number}", "Paris", tags=("a",))
    if number == 1:
        error = ErrorInfo("timeout", "no response", Fault.AGENT)
        storage.put_response(key, Response(status="timeout", error=error), sample, number)
        return
    answer = Response(text="Paris\n☃", trajectory=Trajectory.of_turn_texts(("Paris\n☃",)), latency_ms=12.5)
    storage.put_response(key, answer, sample, number)
    passed = Grade("exact_match", "f1", Outcome.PASS, 1.0, True, "equal", {"n": number})
    storage.put_grade(GradeKey(*key, "exact"), passed, "Paris")
    broken = Grade("model_judge", "f2", Outcome.ERROR, error=ErrorInfo("timeout", "too long", Fault.GRADER))
    storage.put_grade(GradeKey(*key, "judge"), broken)


class Copy:
    """What is sent of a run."""

    def __init__(self, storage: SharedStorage, run: Run) -> None:
        self.id = run.id
        self.header: dict[str, Any] = header_of(run)
        self.lines = list(case_lines(storage.database, run.id))

    @property
    def beginning(self) -> dict[str, Any]:
        content = content_of(self.header, self.lines)
        return {"run": self.header, "digest": content.digest, "cases": content.cases, "size": content.size}

    def part(self, first: int, end: int | None = None) -> bytes:
        return b"".join(line + b"\n" for line in self.lines[first:end])

    def edit(self, line: int, **fields: Any) -> None:
        """Replace fields of a case."""
        self.lines[line] = msgspec.json.encode({**msgspec.json.decode(self.lines[line]), **fields})


def content_in(storage: SharedStorage, run: str) -> Any:
    """Everything stored of a run that is copied: the run, its records, counts, clusters and labels."""
    found = storage.get_run(run)
    read = storage.database.read
    return (
        found,
        list(storage.records(run)),
        list(storage.samples(run)) if found is not None and found.parent is None else None,
        storage.counts(run),
        storage.clusters(run),
        [row._replace(n=0) for row in labels_of_run(read, run)] if has_label_tables(read) else [],
        draws_of_run(read, run, "exact") if has_label_tables(read) else [],
        list(storage.measures(run, digests=True)),
    )
