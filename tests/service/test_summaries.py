"""The summary of a run: exact counts, intervals, and statistics that are computed once."""

from __future__ import annotations

from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import msgspec
import pytest

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
)
from gradeline.service import run_cache
from gradeline.service import summaries as module
from gradeline.service.service import Service
from gradeline.service.summaries import Summaries
from gradeline.stats import wilson

GRADERS = {"exact": RunGrader("exact", "f1"), "judge": RunGrader("model_judge", "f2")}
FAILED = Response("error", error=ErrorInfo("connect", "nobody", Fault.INFRASTRUCTURE), latency_ms=99_999.0)
LATE = Response("timeout", error=ErrorInfo("timeout", "late", Fault.AGENT), latency_ms=30_000.0)


def grade(outcome: str, score: float | None = None) -> Grade:
    passed = {"pass": True, "fail": False}.get(outcome)
    error = ErrorInfo("timeout", "late", Fault.GRADER) if outcome == "error" else None
    score = score if score is not None or passed is None else float(passed)
    return Grade("exact", "f1", Outcome(outcome), score, passed, error=error)


def put(service: Service, run: str, case: str, response: Response, grades: dict[str, Grade], repeat: int = 0) -> None:
    key = ResponseKey(run, case, repeat)
    service.storage.put_response(key, response, Sample(case, "?"))
    for name, one in grades.items():
        service.storage.put_grade(GradeKey(*key, name), one)


@pytest.fixture
def run(service: Service) -> str:
    """Five results; the third has no grade without an error."""
    name = service.storage.save_run(Run(name="n", suite="s", status="completed", graders=GRADERS, total=5))
    put(service, name, "a", Response(text="x", latency_ms=10.0), {"exact": grade("pass"), "judge": grade("fail", 0.25)})
    put(service, name, "b", Response(text="x", latency_ms=20.0), {"exact": grade("fail"), "judge": grade("error")})
    put(service, name, "c", Response(text="x", latency_ms=30.0), {"exact": grade("error"), "judge": grade("error")})
    put(service, name, "d", FAILED, {"exact": grade("skipped"), "judge": grade("skipped")})
    put(service, name, "e", LATE, {"exact": grade("skipped"), "judge": grade("skipped")})
    return name


def summary_of(call: Any, run: str) -> Any:
    return call("GET", f"/api/evaluations/{run}/results", params={"limit": 1}).data["summary"]


def test_the_whole_summary(call: Any, run: str) -> None:
    half, none = wilson(1, 2), wilson(0, 1)
    assert summary_of(call, run) == {
        "total_results": 5,
        "successful_responses": 3,
        "failed_responses": 1,
        "timeout_responses": 1,
        "grader_pass_counts": {"exact": 1, "judge": 0},
        "grader_fail_counts": {"exact": 1, "judge": 1},
        "grader_error_counts": {"exact": 1, "judge": 2},
        "grader_skipped_counts": {"exact": 2, "judge": 2},
        "grader_not_applicable_counts": {"exact": 0, "judge": 0},
        "average_scores": {
            "exact": {"value": 0.5, "low": half.low, "high": half.high, "scored": 2, "total": 5},
            "judge": {"value": 0.25, "low": None, "high": None, "scored": 1, "total": 5},
        },
        "pass_rates": {
            "exact": {"value": 0.5, "low": half.low, "high": half.high, "scored": 2, "total": 5},
            "judge": {"value": 0.0, "low": none.low, "high": none.high, "scored": 1, "total": 5},
        },
        "average_latency_ms": 20.0,
        "p50_latency_ms": 20.0,
        "p95_latency_ms": pytest.approx(29.0),
        "p99_latency_ms": pytest.approx(29.8),
        "coverage": {
            "exact": {"scored": 2, "total": 5, "share": 0.4},
            "judge": {"scored": 1, "total": 5, "share": 0.2},
        },
        "orders": {},
        "sentence": "2 responses graded, 3 grader errors",
        "clusters": None,
        "calibration": {},
        "corrected": {},
        "corrected_means": {},
        "selective": {},
        "probes": {},
    }


@pytest.mark.parametrize("repeats", [1, 2])
def test_how_often_the_order_of_two_answers_decided(call: Any, service: Service, repeats: int) -> None:
    graders = {"better": RunGrader("pairwise", "f1", ("m",), both_orders=True), "exact": GRADERS["exact"]}
    flipped = Grade(
        "pairwise",
        "f1",
        Outcome.ERROR,
        metadata={"favoured": "second"},
        error=ErrorInfo("order_decided", "the orders disagree", Fault.GRADER),
    )
    name = service.storage.save_run(Run(name="n", suite="s", status="completed", graders=graders, repeats=repeats))
    for repeat in range(repeats):
        for case, one in enumerate([flipped, flipped, grade("pass"), grade("error")]):
            put(service, name, str(case), Response(text="x"), {"better": one, "exact": grade("pass")}, repeat)
    assert summary_of(call, name)["orders"] == {
        "better": {
            "decided": 2 * repeats,
            "of": 3 * repeats,
            "first": 0,
            "second": 2 * repeats,
            "p": 2 / 4**repeats,
            "verdict": "not_enough_flips",
            "sentence": f"order decided {2 * repeats} of {3 * repeats} (shown first 0, second {2 * repeats};"
            f" p {2 / 4**repeats:.2g}): not enough flips to tell",
        }
    }


def test_a_run_with_nothing_yet_has_no_value_anywhere(call: Any, service: Service) -> None:
    name = service.storage.save_run(Run(name="n", suite="s", graders={"exact": GRADERS["exact"]}))
    summary = summary_of(call, name)
    assert summary["average_scores"] == {"exact": {"value": None, "low": None, "high": None, "scored": 0, "total": 0}}
    assert summary["coverage"] == {"exact": {"scored": 0, "total": 0, "share": None}}
    assert summary["average_latency_ms"] is None
    assert summary["sentence"] == "0 responses graded, 0 grader errors"


def test_one_response_is_in_the_singular(call: Any, service: Service) -> None:
    name = service.storage.save_run(Run(name="n", suite="s", graders=GRADERS, total=1))
    put(service, name, "a", Response(text="x"), {"exact": grade("pass"), "judge": grade("error")})
    assert summary_of(call, name)["sentence"] == "1 response graded, 1 grader error"


def test_repeats_of_a_case_have_a_wider_interval_than_separate_cases(call: Any, service: Service) -> None:
    graders = {"exact": GRADERS["exact"]}
    repeated = service.storage.save_run(
        Run(name="n", suite="s", status="completed", graders=graders, repeats=5, total=20)
    )
    single = service.storage.save_run(Run(name="n", suite="s", status="completed", graders=graders, total=20))
    for number in range(20):
        word = {"exact": grade("pass" if number < 10 else "fail")}
        put(service, repeated, f"c{number // 5}", Response(text="x"), word, number % 5)
        put(service, single, f"c{number}", Response(text="x"), word)
    wide = summary_of(call, repeated)["pass_rates"]["exact"]
    narrow = summary_of(call, single)["pass_rates"]["exact"]
    assert (wide["value"], narrow["value"]) == (0.5, 0.5)
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_both_computations_agree_for_a_run_without_repeats(service: Service, run: str) -> None:
    stored = service.storage.get_run(run)
    assert stored is not None
    counts = service.storage.counts(run)
    summaries = Summaries(service.database, service.storage)
    quick = summaries._compute(stored, counts)
    slow = summaries._compute_by_case(stored)
    assert quick == msgspec.structs.replace(slow, mean_intervals={}, rate_intervals={})


class Computations:
    """Counts how often statistics are computed over all rows of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        compute = Summaries._compute

        def counted(*args: Any) -> Any:
            self.number += 1
            return compute(*args)

        monkeypatch.setattr(Summaries, "_compute", counted)


@pytest.fixture
def computations(monkeypatch: pytest.MonkeyPatch) -> Computations:
    return Computations(monkeypatch)


def test_statistics_of_an_ended_run_are_computed_once(service: Service, run: str, computations: Computations) -> None:
    summaries = Summaries(service.database, service.storage)
    stored = service.storage.get_run(run)
    assert stored is not None
    assert [summaries.of(stored) for _ in range(3)] == [summaries.of(stored)] * 3
    assert computations.number == 1


def test_a_change_of_the_counts_is_visible_at_once(service: Service, run: str, computations: Computations) -> None:
    summaries = Summaries(service.database, service.storage)
    stored = service.storage.get_run(run)
    assert stored is not None
    before = summaries.of(stored)
    put(service, run, "d", Response(text="x", latency_ms=40.0), {"exact": grade("pass"), "judge": grade("pass")})
    after = summaries.of(stored)
    assert (before.sentence, after.sentence) == (
        "2 responses graded, 3 grader errors",
        "3 responses graded, 3 grader errors",
    )
    assert (before.average_latency_ms, after.average_latency_ms) == (20.0, 25.0)
    assert computations.number == 2


def test_statistics_of_a_large_run_survive_a_restart(
    service: Service, run: str, computations: Computations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "_MIN_RESULTS_TO_STORE", 5)
    stored = service.storage.get_run(run)
    assert stored is not None
    first = Summaries(service.database, service.storage).of(stored)
    assert Summaries(service.database, service.storage).of(stored) == first
    assert computations.number == 1
    put(service, run, "d", Response(text="x"), {"exact": grade("pass")})
    assert Summaries(service.database, service.storage).of(stored).sentence == "3 responses graded, 3 grader errors"
    service.storage.delete_run(run)
    assert service.database.read("SELECT * FROM run_cache") == []


def test_statistics_of_a_run_in_progress_are_not_computed_for_every_page(
    service: Service, run: str, computations: Computations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "_STALE_FACTOR", 1e9)
    stored = service.storage.update_run(run, status="running")
    summaries = Summaries(service.database, service.storage)
    summaries.of(stored)
    put(service, run, "d", Response(text="x", latency_ms=40.0), {"exact": grade("pass"), "judge": grade("pass")})
    later = summaries.of(stored)
    assert (computations.number, later.successful_responses, later.grader_pass_counts["exact"]) == (1, 4, 2)
    done = msgspec.structs.replace(stored, status="completed")
    assert summaries.of(done).average_latency_ms == 25.0
    assert computations.number == 2


def test_no_request_waits_for_the_statistics_of_a_large_run_in_progress(
    service: Service, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_RESULTS_TO_WAIT_FOR", 5)
    monkeypatch.setattr(run_cache, "_STALE_FACTOR", 1e9)
    may_compute, compute = Event(), Summaries._compute

    def slow(*args: Any) -> Any:
        assert may_compute.wait(20)
        return compute(*args)

    monkeypatch.setattr(Summaries, "_compute", slow)
    stored = service.storage.update_run(run, status="running")
    summaries = Summaries(service.database, service.storage)
    before = [summaries.of(stored) for _ in range(3)][-1]
    assert (before.average_latency_ms, before.grader_pass_counts) == (None, {"exact": 1, "judge": 0})
    assert before.sentence == "2 responses graded, 3 grader errors"
    may_compute.set()
    for thread in enumerate_threads():
        if thread.name == "statistics":
            thread.join(20)
    assert summaries.of(stored).average_latency_ms == 20.0
