"""The overview of one pass over the records."""

from __future__ import annotations

from typing import Any

from gradeline.model import Sample
from gradeline.report.overview import LATENCY_EDGES, SCORE_BINS, CaseGroupName, ErrorKind, Overview, scan_records

LIMITS: dict[CaseGroupName, int] = {"failed": 10, "errors": 10, "calls": 10, "low": 10}


def over(report: Any, limits: dict[CaseGroupName, int] = LIMITS) -> Overview:
    return scan_records(report.records(), report.run.graders, limits, longest=100)


def test_a_case_is_in_the_group_of_its_worst_outcome(bench: Any) -> None:
    full, low, fail, error = bench.grade(1.0), bench.grade(0.6), bench.grade(0.0), bench.broken()
    rows = [
        (Sample("full", "q"), bench.answer(), {"a": full, "b": full}),
        (Sample("low", "q"), bench.answer(), {"a": full, "b": low}),
        (Sample("failed", "q"), bench.answer(), {"a": fail, "b": error}),
        (Sample("broken", "q"), bench.answer(), {"a": low, "b": error}),
        (Sample("unanswered", "q"), bench.timeout(), {}),
        (Sample("waiting", "q"), bench.answer(), {}),
    ]
    groups = over(bench.report(rows, ("a", "b"))).groups
    assert {name: [case.case for case in group.cases] for name, group in groups.items()} == {
        "failed": ["failed"],
        "errors": ["broken"],
        "calls": ["unanswered"],
        "low": ["low"],
    }


def test_the_lowest_score_ranks_first_then_the_lowest_mean_then_the_place(bench: Any) -> None:
    scores = {"x": (0.2, 1.0), "y": (0.1, 1.0), "z": (0.1, 0.3), "first": (0.4, 0.4), "second": (0.4, 0.4)}
    rows = [
        (Sample(case, "q"), bench.answer(), {"a": bench.grade(one), "b": bench.grade(other)})
        for case, (one, other) in scores.items()
    ]
    group = over(bench.report(rows, ("a", "b")), {"failed": 4}).groups["failed"]
    assert [case.case for case in group.cases] == ["z", "y", "x", "first"]
    assert (group.total, group.left_out) == (5, 1)


def test_grades_are_in_the_order_of_the_graders_of_the_run(bench: Any) -> None:
    rows = [(Sample("one", "q"), bench.answer(), {key: bench.grade(0.0) for key in ("a", "b", "c")})]
    (case,) = over(bench.report(rows, ("c", "a", "b"))).groups["failed"].cases
    assert [grade.grader for grade in case.grades] == ["c", "a", "b"]


def test_errors_are_counted_by_place_type_and_fault_the_most_frequent_first(bench: Any) -> None:
    rows = [
        (Sample("1", "q"), bench.answer(), {"a": bench.broken("timeout", "first")}),
        (Sample("2", "q"), bench.answer(), {"a": bench.broken("timeout", "second")}),
        (Sample("3", "q"), bench.timeout(), {"a": bench.skipped()}),
    ]
    assert over(bench.report(rows, ("a",))).errors == [
        (ErrorKind("a", "timeout", "grader"), 2, "first"),
        (ErrorKind(None, "timeout", "agent"), 1, "no answer within 30 s"),
    ]


def test_the_number_of_error_kinds_is_bounded(bench: Any) -> None:
    rows = [(Sample(str(n), "q"), bench.answer(), {"a": bench.broken(f"E{n}")}) for n in range(300)]
    errors = over(bench.report(rows, ("a",))).errors
    assert errors[0][:2] == (ErrorKind("a", "other types", "grader"), 100)
    assert len(errors) == 201


def test_scores_and_times_are_counted_in_their_bins(bench: Any) -> None:
    times = (0.01, 250.0, 1e9)
    scores = (0.0, 0.15, 1.0)
    rows = [
        (Sample(str(n), "q"), bench.answer(latency_ms=time), {"a": bench.grade(score)})
        for n, (time, score) in enumerate(zip(times, scores, strict=True))
    ]
    seen = over(bench.report(rows, ("a",)))
    assert {index: count for index, count in enumerate(seen.scores["a"]) if count} == {0: 1, 3: 1, SCORE_BINS - 1: 1}
    places = [index for index, count in enumerate(seen.latencies) if count]
    assert places == [0, LATENCY_EDGES.index(200.0) + 1, len(LATENCY_EDGES)]


def test_texts_are_bounded(bench: Any) -> None:
    long = "x" * 1000
    rows = [(Sample("one", [long] * 50, long), bench.answer(long), {"a": bench.grade(0.0, long)})]
    (case,) = over(bench.report(rows, ("a",))).groups["failed"].cases
    assert len(case.input) == 21
    assert case.input[-1] == "… (30 more turns)"
    assert case.answer == "x" * 100 + "… (900 more characters)"
    assert case.grades[0].submission is None
