from __future__ import annotations

from gradeline.engine.plan import Planned, Work, plan
from gradeline.model import ResponseKey, Sample, StoredKey, digest_of, to_json

SAMPLES = [Sample("a", "1"), Sample("b", "2"), Sample("c", "3")]
GRADERS = {"exact": "f1", "rules": "f2"}


def planned(*stored: StoredKey, repeats: int = 1, **options: bool) -> list[Planned]:
    return list(plan("r", SAMPLES, repeats, GRADERS, stored, **options))


def stored_key(case: str, repeat: int = 0, status: str = "success", **prints: str) -> StoredKey:
    stored_sample = next(sample for sample in SAMPLES if sample.id == case)
    return StoredKey(ResponseKey("r", case, repeat), status, prints, digest_of(to_json(stored_sample)))


def test_a_new_run_calls_every_case_and_repeat_in_order() -> None:
    assert [(one.key, one.position, one.work, one.reason, one.graders) for one in planned(repeats=2)] == [
        (ResponseKey("r", case, repeat), position, Work.RERUN, "not answered yet", ("exact", "rules"))
        for position, case in enumerate("abc")
        for repeat in (0, 1)
    ]


def test_stored_responses_and_grades_are_reused() -> None:
    stored = [stored_key(case, exact="f1", rules="f2") for case in "abc"]
    assert [(one.work, one.graders) for one in planned(*stored)] == [(Work.REUSE, ())] * 3


def test_a_missing_or_changed_grade_is_repeated_without_a_call() -> None:
    works = planned(
        stored_key("a", exact="f1"), stored_key("b", exact="old", rules="f2"), stored_key("c", exact="f1", rules="f2")
    )
    assert [(one.work, one.reason, one.graders) for one in works] == [
        (Work.REGRADE, "not graded by rules", ("rules",)),
        (Work.REGRADE, "changed: exact", ("exact",)),
        (Work.REUSE, "answered and graded", ()),
    ]


def test_a_failed_call_is_repeated_by_default() -> None:
    stored = [stored_key("a", status="timeout", exact="f1", rules="f2"), stored_key("b", exact="f1", rules="f2")]
    assert [(one.work, one.reason) for one in planned(*stored)] == [
        (Work.RERUN, "its call ended in timeout"),
        (Work.REUSE, "answered and graded"),
        (Work.RERUN, "not answered yet"),
    ]
    assert planned(*stored, retry_failed=False)[0].work is Work.REUSE


def test_gaps_are_found() -> None:
    stored = [stored_key("a", 1, exact="f1", rules="f2"), stored_key("c", 0, exact="f1", rules="f2")]
    assert [one.work for one in planned(*stored, repeats=2)] == [
        Work.RERUN,
        Work.REUSE,
        Work.RERUN,
        Work.RERUN,
        Work.REUSE,
        Work.RERUN,
    ]


def test_an_edited_case_is_called_again() -> None:
    edited = stored_key("a", exact="f1", rules="f2")._replace(digest=digest_of(to_json(Sample("a", "other words"))))
    first, *_ = planned(edited)
    assert (first.work, first.reason) == (Work.RERUN, "its case was edited since it was answered")
