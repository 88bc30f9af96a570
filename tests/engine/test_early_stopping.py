"""Runs that end as soon as their comparison with a baseline is decided."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradeline.engine import orchestrate
from gradeline.engine.aggregate import conclude
from gradeline.engine.comparison import compare
from gradeline.engine.early_stopping import LookMonitor, ShuffledSamples
from gradeline.engine.execute import Stop
from gradeline.engine.lifecycle import RunObserver
from gradeline.engine.orchestrate import RunOutcome, RunRequest
from gradeline.engine.plan import CompletedCase, Graded, LookReport, Planned, ProgressCount, Work
from gradeline.errors import ConfigError, Outcome
from gradeline.model import EarlyStopping, Grade, Response, ResponseKey, Run, Sample
from gradeline.stats.sequential import boundaries
from gradeline.store import SqliteStorage

CASES = 300
ALL = ["yes"] * CASES
WORSE = ["no" if case % 4 == 0 else "yes" for case in range(CASES)]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "runs.db") as opened:
        yield opened


def suite(folder: Path, answers: Sequence[str], file: str = "suite", **keys: Any) -> Path:
    """A suite whose agent has given these answers; an empty one is a failed call."""
    failed = {"status": "error", "error": {"type": "connect", "message": "down", "fault": "infrastructure"}}
    rows = [{"id": case, "text": one} if one else {"id": case, "response": failed} for case, one in enumerate(answers)]
    cases = [{"id": case, "input": f"q{case}", "ground_truth": "yes"} for case in range(len(answers))]
    (folder / f"{file}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    document = {
        "name": "capitals",
        "dataset": f"{file}-cases.jsonl",
        "target": {"kind": "replay", "responses": f"{file}.jsonl"},
        "graders": {"right": {"kind": "contains"}},
        "concurrency": 5,
        **keys,
    }
    (folder / f"{file}-cases.jsonl").write_text("\n".join(map(json.dumps, document.pop("cases", cases))))
    (folder / f"{file}.json").write_text(json.dumps(document))
    return folder / f"{file}.json"


def run(storage: SqliteStorage, path: Path, warnings: list[str] | None = None, **options: Any) -> RunOutcome:
    watcher = RunObserver((warnings if warnings is not None else []).append)
    return asyncio.run(orchestrate.run_suite(storage, RunRequest(path, **options), watcher)).runs[0]


def resume(storage: SqliteStorage, run_name: str, **options: Any) -> RunOutcome:
    return asyncio.run(orchestrate.resume_run(storage, run_name, **options))


def against_baseline(storage: SqliteStorage, folder: Path, answers: Sequence[str], **options: Any) -> RunOutcome:
    run(storage, suite(folder, ALL), name="base")
    return run(storage, suite(folder, answers), name="new", baseline="base", stop_early=True, seed=7, **options)


def early_of(ran: RunOutcome) -> EarlyStopping:
    assert ran.report.run.early is not None
    return ran.report.run.early


def test_a_run_ends_when_it_is_certainly_worse(storage: SqliteStorage, tmp_path: Path) -> None:
    ran = against_baseline(storage, tmp_path, WORSE)
    report, early = ran.report, early_of(ran)
    assert (report.run.status, report.exit_code, ran.stopped) == ("completed", 1, None)
    assert early.stopped
    assert early.n == 15 * early.look < early.of == CASES
    called = sum(report.summary.responses.values())
    assert early.n <= called < early.n + 10  # those that were in flight
    assert report.run.total == called
    assert report.summary.coverage == 1.0  # cases that were not called are not missing
    saved = CASES - called
    assert report.verdict.reasons[0] == f"decided after {early.n} of {CASES} cases; {saved} calls saved"
    assert report.to_data()["stopped"] == {"look": early.look, "n": early.n, "of": CASES}
    assert report.to_data()["run"]["stopped"] == report.to_data()["stopped"]


def test_a_run_ends_when_it_is_certainly_not_worse(storage: SqliteStorage, tmp_path: Path) -> None:
    ran = against_baseline(storage, tmp_path, ALL)
    (gate,) = ran.report.verdict.gates
    early = early_of(ran)
    assert (gate.result, ran.report.exit_code, early.stopped) == ("pass", 0, True)
    reach = boundaries(0.05)[early.look - 1] / (early.n * (early.n + 1)) ** 0.5
    assert gate.observed_ci == pytest.approx((-reach, reach))
    assert reach <= 0.02 < boundaries(0.05)[early.look - 2] / (early.n - 15)


def test_cases_are_called_in_the_order_of_the_seed(storage: SqliteStorage, tmp_path: Path) -> None:
    ran = against_baseline(storage, tmp_path, WORSE)
    run(storage, suite(tmp_path, WORSE), name="again", baseline="base", stop_early=True, seed=7)
    run(storage, suite(tmp_path, WORSE), name="other", baseline="base", stop_early=True, seed=8)
    new, again, other = (
        [one.case for one in storage.measures(storage.find_run(name).id)][:100] for name in ("new", "again", "other")
    )
    assert new == again
    assert new[:30] != other[:30]
    assert new != sorted(new, key=int)
    assert run(storage, suite(tmp_path, WORSE), baseline="base", stop_early=True).report.run.seed is not None
    assert early_of(ran) == storage.find_run("again").early


def test_the_order_does_not_depend_on_that_of_the_dataset() -> None:
    samples = [Sample(number, f"q{number}") for number in range(50)]
    one, other = ShuffledSamples(samples, 3), ShuffledSamples(reversed(samples), 3)
    assert one.cases == other.cases
    assert list(one()) == list(other())
    assert sorted(one(), key=lambda sample: sample.id) == samples
    for each in (one, other):
        each.close()


def test_the_gate_and_the_comparison_use_the_interval_of_the_last_look(storage: SqliteStorage, tmp_path: Path) -> None:
    ran = against_baseline(storage, tmp_path, WORSE)
    base, new = storage.find_run("base"), storage.find_run("new")
    (gate,) = ran.report.verdict.gates
    there, back = compare(storage, base, new), compare(storage, new, base)
    found = there.graders["right"]
    assert (found.test, found.pairs, found.missing, found.coverage) == ("repeated_looks", early_of(ran).n, 0, 1.0)
    assert (gate.observed, gate.observed_ci) == (found.difference, found.difference_ci)
    assert (there.decision, back.decision, there.comparable) == ("worse", "better", True)
    assert back.graders["right"].difference_ci == pytest.approx([-one for one in reversed(found.difference_ci or ())])
    assert any(f"ended early, after {early_of(ran).n} of {CASES} cases" in reason for reason in there.reasons)


def test_a_stopped_run_is_compared_with_any_other_by_its_look(storage: SqliteStorage, tmp_path: Path) -> None:
    ran = against_baseline(storage, tmp_path, WORSE)
    other = run(storage, suite(tmp_path, WORSE), name="other").report.run
    found = compare(storage, other, ran.report.run).graders["right"]
    assert (found.test, found.pairs, found.missing) == ("repeated_looks", early_of(ran).n, 0)
    gated = run(storage, suite(tmp_path, ALL), name="next", baseline="new").report
    assert f"over {early_of(ran).n} cases" in gated.verdict.reasons[0]
    assert gated.verdict.result == "pass"


def test_two_stopped_runs_are_not_compared(storage: SqliteStorage, tmp_path: Path) -> None:
    against_baseline(storage, tmp_path, WORSE)
    run(storage, suite(tmp_path, ALL), name="other", baseline="base", stop_early=True, seed=8)
    found = compare(storage, storage.find_run("new"), storage.find_run("other"))
    assert (found.comparable, found.exit_code) == (False, 2)
    assert "both runs ended early" in found.reasons[0]
    assert f"gradeline resume {found.candidate.id} --all" in found.reasons[0]
    forced = compare(storage, storage.find_run("new"), storage.find_run("other"), force=True)
    assert forced.decision == "undecided"


def test_resume_all_runs_the_rest_and_replaces_the_verdict(storage: SqliteStorage, tmp_path: Path) -> None:
    early = early_of(against_baseline(storage, tmp_path, WORSE))
    whole = resume(storage, "new", all_cases=True)
    report = whole.report
    assert (report.run.status, sum(report.summary.responses.values()), report.run.total) == ("completed", CASES, CASES)
    assert (
        report.verdict.reasons[0]
        == f"all {CASES} cases have run: this verdict replaces the one after {early.n} of them"
    )
    found = compare(storage, storage.find_run("base"), storage.find_run("new")).graders["right"]
    assert (found.test, found.pairs) == ("mcnemar_mid_p", CASES)
    assert "stopped" not in report.to_data()


def test_resume_all_that_is_refused_leaves_the_run_as_it_ended(storage: SqliteStorage, tmp_path: Path) -> None:
    before = against_baseline(storage, tmp_path, WORSE).report.run
    suite(tmp_path, WORSE, graders={"right": {"kind": "exact_match"}})
    with pytest.raises(ConfigError, match="changed since the run began"):
        resume(storage, "new", all_cases=True)
    assert storage.find_run("new") == before


def test_a_regrade_of_a_stopped_run_has_no_other_cases_to_run(storage: SqliteStorage, tmp_path: Path) -> None:
    parent = against_baseline(storage, tmp_path, WORSE).report.run
    again = asyncio.run(orchestrate.regrade_run(storage, "new", name="again")).report.run
    assert (again.early, again.calls_saved) == (parent.early, 0)
    reason = f"grades the responses of the run {parent.id}; finish that with: gradeline resume {parent.id} --all"
    with pytest.raises(ConfigError, match=reason):
        resume(storage, "again", all_cases=True)
    assert storage.find_run("again") == again


def test_resume_of_a_stopped_run_makes_no_calls_and_has_the_same_verdict(
    storage: SqliteStorage, tmp_path: Path
) -> None:
    before = against_baseline(storage, tmp_path, WORSE)
    after = resume(storage, "new")
    assert after.report.verdict == before.report.verdict
    assert after.report.run.early == before.report.run.early
    assert after.report.run.total == before.report.run.total


def test_a_run_that_is_not_decided_before_its_end_is_judged_by_the_last_look(
    storage: SqliteStorage, tmp_path: Path
) -> None:
    answers = ["no" if case % 40 == 0 else "yes" for case in range(CASES)]
    ran = against_baseline(storage, tmp_path, answers)
    early = early_of(ran)
    assert (early.look, early.n, early.stopped) == (20, CASES, False)
    assert ran.report.exit_code == 3
    found = compare(storage, storage.find_run("base"), storage.find_run("new")).graders["right"]
    assert (found.test, found.pairs) == ("repeated_looks", CASES)
    assert not any("decided after" in reason for reason in ran.report.verdict.reasons)


def test_regraded_answers_are_judged_by_the_looks_at_the_run(storage: SqliteStorage, tmp_path: Path) -> None:
    ran = against_baseline(storage, tmp_path, WORSE)
    regraded = asyncio.run(orchestrate.regrade_run(storage, "new")).report.run
    assert regraded.early == ran.report.run.early
    found = compare(storage, storage.find_run("base"), regraded).graders["right"]
    assert (found.test, found.pairs) == ("repeated_looks", early_of(ran).n)


def test_each_model_has_looks_of_its_own(storage: SqliteStorage, tmp_path: Path) -> None:
    run(storage, suite(tmp_path, ALL), name="base")
    path = suite(tmp_path, WORSE, target={"kind": "replay", "responses": "suite.jsonl", "models": ["a", "b"]})
    order = RunRequest(path, name="new", baseline="base", stop_early=True, seed=7)
    try:
        done = asyncio.run(orchestrate.run_suite(storage, order)).runs
    except ConfigError:
        pytest.skip("a replay has no models")
    assert [early_of(ran).stopped for ran in done] == [True, True]


def test_the_gate_of_a_suite_enables_it(storage: SqliteStorage, tmp_path: Path) -> None:
    run(storage, suite(tmp_path, ALL), name="base")
    gate = {"kind": "regression", "baseline": "base", "stop_early": True}
    assert early_of(run(storage, suite(tmp_path, WORSE, gate=gate), seed=1)).stopped
    del gate["stop_early"]
    assert run(storage, suite(tmp_path, WORSE, gate=gate), seed=1).report.run.early is None
    assert early_of(run(storage, suite(tmp_path, WORSE, gate=gate), seed=1, stop_early=True)).stopped


def test_a_guard_that_is_worse_ends_the_run(storage: SqliteStorage, tmp_path: Path) -> None:
    graders = {"right": {"kind": "ascii_printable_only"}, "guard": {"kind": "contains"}}
    run(storage, suite(tmp_path, ALL, graders=graders), name="base")
    path = suite(tmp_path, ["no" if case % 2 else "yes" for case in range(CASES)], graders=graders)
    ran = run(storage, path, baseline="base", stop_early=True, seed=1)
    assert (early_of(ran).graders, early_of(ran).stopped, ran.report.exit_code) == (2, True, 1)
    guard = compare(storage, storage.find_run("base"), ran.report.run).graders["guard"]
    assert (guard.difference_ci or (0.0, 0.0))[1] < -0.02
    assert guard.p_adjusted is not None
    assert guard.p_adjusted <= 0.05


CONSISTENT = {"kind": "consistency", "k": 1, "n": 1, "op": "gte", "value": 0.1}


@pytest.mark.parametrize(
    ("base", "new", "reason"),
    [
        ({"answers": ALL[:80]}, {"answers": ALL[:80]}, "80 cases in common with the baseline are fewer than the 100"),
        ({}, {"repeats": 2}, "the baseline ran each case once, this run runs it 2 times"),
        ({}, {"graders": {"right": {"kind": "contains", "pass_threshold": 0.5}}}, "grader 'right' is not the same"),
        ({}, {"gate": CONSISTENT}, "a consistency gate needs all cases"),
        (
            {},
            {"cases": [{"id": case, "input": f"Q{case}", "ground_truth": "yes"} for case in range(CASES)]},
            "case '0' and 299 more was edited",
        ),
        ({}, {"answers": ALL[:200]}, "only 200 of the baseline's 300 cases are run"),
    ],
)
def test_all_cases_run_if_the_run_cannot_stop_early(
    storage: SqliteStorage, tmp_path: Path, base: dict[str, Any], new: dict[str, Any], reason: str
) -> None:
    run(storage, suite(tmp_path, **{"answers": ALL, **base}), name="base")
    warnings: list[str] = []
    path = suite(tmp_path, **{"answers": ALL, **new})
    ran = run(storage, path, warnings, baseline="base", stop_early=True)
    answers = len(new.get("answers", ALL)) * new.get("repeats", 1)
    assert sum(ran.report.summary.responses.values()) == answers
    assert len([one for one in warnings if reason in one]) == 1
    assert reason in conclude(storage, ran.report.run).verdict.reasons[0]
    assert "stopped" not in ran.report.to_data()
    cases = [one.case for one in storage.measures(ran.report.run.id) if one.repeat == 0]
    assert cases == sorted(cases, key=int)


def test_a_stopped_baseline_cannot_stop_another_run(storage: SqliteStorage, tmp_path: Path) -> None:
    stopped = against_baseline(storage, tmp_path, ALL).report.run
    warnings: list[str] = []
    ran = run(storage, suite(tmp_path, ALL), warnings, baseline="new", stop_early=True)
    assert sum(ran.report.summary.responses.values()) == CASES
    assert f"finish it with: gradeline resume {stopped.id} --all" in warnings[0]


def test_a_look_with_too_many_cases_without_a_score_decides_nothing(storage: SqliteStorage, tmp_path: Path) -> None:
    answers = ["" if case % 10 == 0 else "no" for case in range(CASES)]
    ran = against_baseline(storage, tmp_path, answers)
    assert early_of(ran).look == 20
    assert sum(ran.report.summary.responses.values()) == CASES


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        ({}, {}, "needs a run to compare with: name one with --baseline RUN"),
        ({"name": "cities"}, {"baseline": "base"}, "is a run of the suite 'capitals', this is 'cities'"),
        (
            {"cases": [{"id": f"x{case}", "input": "?", "ground_truth": "yes"} for case in range(CASES)]},
            {"baseline": "base"},
            "has no case in common with this run",
        ),
    ],
)
def test_incomparable_runs_are_refused(
    storage: SqliteStorage, tmp_path: Path, keys: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    run(storage, suite(tmp_path, ALL), name="base")
    with pytest.raises(ConfigError, match=message):
        run(storage, suite(tmp_path, ALL, **keys), stop_early=True, **options)
    assert [one.name for one in storage.list_runs()] == ["base"]


def test_an_interrupted_run_continues_with_the_same_looks(storage: SqliteStorage, tmp_path: Path) -> None:
    whole = against_baseline(storage, tmp_path, WORSE)
    path = suite(tmp_path, WORSE)

    async def interrupted(after: int) -> str:
        stop, done = Stop(), 0

        class Counting:
            def __enter__(self) -> Any:
                return self.count

            def __exit__(self, *_: object) -> None:
                pass

            def count(self, one: CompletedCase | ProgressCount | LookReport) -> None:
                nonlocal done
                done += isinstance(one, CompletedCase)
                if done == after:
                    stop.set("interrupted")

        watcher = RunObserver(progress=lambda *_: Counting(), stop=stop)
        order = RunRequest(path, name=f"after {after}", baseline="base", stop_early=True, seed=7)
        ran = (await orchestrate.run_suite(storage, order, watcher)).runs[0]
        assert (ran.stopped, ran.report.run.status, ran.report.exit_code) == ("interrupted", "cancelled", 3)
        return ran.report.run.id

    for after in (1, 14, 40):
        name = asyncio.run(interrupted(after))
        found = compare(storage, storage.find_run("base"), storage.find_run(name)).graders["right"]
        assert found.test == "repeated_looks"
        resumed = resume(storage, name)
        assert resumed.report.run.early == whole.report.run.early
        assert resumed.report.verdict.gates == whole.report.verdict.gates


class ManualLooks:
    """A run of 200 cases whose looks are fed by hand."""

    def __init__(self, storage: SqliteStorage, folder: Path) -> None:
        base = run(storage, suite(folder, ALL[:200]), name="base").report.run
        gate = {"kind": "regression", "baseline": base.id, "stop_early": True}
        definition = json.dumps({"rules": {"gate": gate}})
        new = Run(name="new", suite="capitals", graders=base.graders, definition=definition)
        new_id = storage.save_run(new)
        self.run = storage.find_run(new_id)
        self.stop = Stop()
        self.texts: list[str] = []
        order = [str(case) for case in range(200)]
        early = EarlyStopping(base.id, 200, 200)
        self.looks = LookMonitor(storage, self.run, early, order, {}, self._hear, self.stop)

    def _hear(self, done: CompletedCase | ProgressCount | LookReport) -> None:
        if isinstance(done, LookReport):
            self.texts.append(done.text)

    def done(self, case: int, score: float) -> None:
        planned = Planned(ResponseKey(self.run.id, str(case), 0), Sample(case, "?"), case, Work.RERUN, "", ("right",))
        outcome = Outcome.PASS if score == 1.0 else Outcome.FAIL
        graded = {"right": Graded(None, Grade("contains", "x", outcome, score, passed=score == 1.0))}
        self.looks(CompletedCase(planned, Response(text=""), graded))


def test_a_look_waits_for_the_cases_before_it(storage: SqliteStorage, tmp_path: Path) -> None:
    watched = ManualLooks(storage, tmp_path)
    for case in range(1, 120):
        watched.done(case, 0.0)
    assert (watched.texts, watched.stop.decided) == ([], False)
    watched.done(0, 0.0)
    assert watched.stop.decided
    assert watched.looks.reached.n == 10
    assert watched.texts[-1].endswith(", worse")


def test_the_live_line_shows_the_running_decision(storage: SqliteStorage, tmp_path: Path) -> None:
    watched = ManualLooks(storage, tmp_path)
    for case in range(20):
        watched.done(case, 1.0)
    assert watched.texts == [
        "after 10 of 200: +0.000 (-0.354 to +0.354), continuing",
        "after 20 of 200: +0.000 (-0.177 to +0.177), continuing",
    ]


def test_a_decided_run_does_not_end_another() -> None:
    async def main() -> None:
        outer = Stop()
        one, other = Stop(outer), Stop(outer)
        one.decide("decided")
        assert (one.reason, one.decided, outer.reason, other.reason) == ("decided", True, None, None)
        one.set("too late")
        assert (one.reason, outer.reason) == ("decided", None)
        other.set("budget", failed=True)
        assert (outer.reason, outer.failed, other.decided, one.reason) == ("budget", True, False, "decided")
        assert Stop(outer).reason == "budget"
        one.decide("again")
        late = Stop(outer)
        late.decide("decided")
        assert not late.decided

    asyncio.run(main())


def test_cases_of_other_processes_are_read_from_the_store(storage: SqliteStorage, tmp_path: Path) -> None:
    watched = ManualLooks(storage, tmp_path)

    async def answered(cases: range) -> None:
        async with storage.writer() as writer:
            for case in cases:
                key = ResponseKey(watched.run.id, str(case), 0)
                await writer.put_response(key, Response(text=""), Sample(case, "?"), case, None)
                grade = Grade("contains", "x", Outcome.FAIL, 0.0, passed=False)
                await writer.put_grades(key, {"right": Graded(None, grade)})

    asyncio.run(answered(range(5, 30)))
    watched.looks(ProgressCount(done=25))
    assert watched.texts == []
    asyncio.run(answered(range(5)))
    watched.looks(ProgressCount(done=5))
    assert (watched.stop.decided, watched.looks.last().n) == (True, 10)


def test_the_last_look_includes_cases_of_other_processes(storage: SqliteStorage, tmp_path: Path) -> None:
    watched = ManualLooks(storage, tmp_path)

    async def answered() -> None:
        async with storage.writer() as writer:
            for case in range(200):
                key = ResponseKey(watched.run.id, str(case), 0)
                await writer.put_response(key, Response(text=""), Sample(case, "?"), case, None)
                passed = case % 30 > 0
                outcome = Outcome.PASS if passed else Outcome.FAIL
                grade = Grade("contains", "x", outcome, float(passed), passed=passed)
                await writer.put_grades(key, {"right": Graded(None, grade)})

    asyncio.run(answered())
    last = watched.looks.last()
    assert (last.look, last.n, last.stopped, watched.stop.decided) == (20, 200, False, False)


PHRASES = {
    "kind": "custom-rules",
    "rules": [
        {"condition": "contains", "value": "yes", "weight": 70},
        {"condition": "contains", "value": "please", "weight": 30},
    ],
}
"""``yes, please`` scores 1, ``yes`` 0.7."""


def test_changes_that_are_noise_to_the_grader_do_not_keep_a_run_undecided(
    storage: SqliteStorage, tmp_path: Path
) -> None:
    before, after = ["yes, please", "yes"] * (CASES // 2), ["yes", "yes, please"] * (CASES // 2)

    def against_base(name: str, answers: Sequence[str], **grader: Any) -> RunOutcome:
        graders = {"right": {**PHRASES, **grader}}
        path = suite(tmp_path, answers, graders=graders)
        return run(storage, path, name=name, baseline="base", stop_early=True, seed=7)

    run(storage, suite(tmp_path, before, graders={"right": PHRASES}), name="base")
    every = against_base("every", after)
    assert (every.report.exit_code, early_of(every).stopped) == (3, False)
    noisy, equal = against_base("noisy", after, noise=0.31), against_base("equal", before, noise=0.31)
    assert (noisy.report.exit_code, early_of(noisy).stopped) == (0, True)
    assert early_of(noisy) == early_of(equal)  # to the looks, the answers are those of the baseline
    assert noisy.report.verdict.gates[0].observed_ci == equal.report.verdict.gates[0].observed_ci
    found = compare(storage, storage.find_run("base"), storage.find_run("noisy"))
    right = found.graders["right"]
    assert (right.test, right.decision, right.difference) == ("repeated_looks", "not_worse", 0.0)
    assert right.within_noise == right.same == early_of(noisy).n
    assert right.difference_ci == noisy.report.verdict.gates[0].observed_ci
    assert noisy.report.summary.graders["right"].mean == pytest.approx(0.85, abs=0.05)
