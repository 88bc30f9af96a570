"""A run in one process: everything stored once, nothing called twice, whatever stops it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.engine.aggregate import summarise
from gradeline.engine.definition import RunBudget
from gradeline.engine.execute import CallLimits, Rate, Stop
from gradeline.engine.grade import GraderUse, UserExtractor, UserGrader
from gradeline.engine.lifecycle import ExecutionResult, run_local
from gradeline.engine.pipeline import RunTask
from gradeline.engine.plan import Work
from gradeline.errors import ConfigError, Fault
from gradeline.extractors import create as extractor
from gradeline.graders import create as grader
from gradeline.model import ErrorInfo, Response, Run, RunGrader, Sample, Storage, Usage
from gradeline.store import open_storage
from gradeline.usercode.loader import CodeRequest, CodeSpec
from gradeline.usercode.pool import WorkerPool


class Agent:
    """Answers with its input in upper case; counts, fails and waits as configured."""

    fingerprint = "agent"

    def __init__(self, *, fails: Callable[[Sample], bool] = lambda _: False, seconds: float = 0.0) -> None:
        self.calls: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0
        self._fails = fails
        self._seconds = seconds

    def cache_key(self, sample: Sample, repeat: int) -> str:
        return f"{sample.input}/{repeat}"

    async def respond(self, sample: Sample) -> Response:
        self.calls[sample.case_key] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self._seconds)
        self.at_once -= 1
        if self._fails(sample):
            return Response(status="error", error=ErrorInfo("status", "503", Fault.AGENT), latency_ms=1.0)
        return Response(text=str(sample.input).upper(), latency_ms=1.0)


def samples(count: int) -> Callable[[], list[Sample]]:
    return lambda: [Sample(index, f"word{index}", f"WORD{index if index % 4 else 'x'}") for index in range(count)]


EXACT = GraderUse("exact", grader("exact_match"), extractor("last_assistant"))
RULES = GraderUse(
    "short", grader("custom-rules", {"rules": [{"condition": "length_max", "value": 5}]}), extractor("last_assistant")
)


def task(
    storage: Storage, agent: Agent, count: int = 20, graders: tuple[GraderUse, ...] = (EXACT,), **fields: Any
) -> RunTask:
    run = Run(
        name="test",
        suite="test",
        repeats=fields.pop("repeats", 1),
        parent=fields.pop("parent", None),
        graders={use.key: RunGrader(use.grader.kind, use.grader.fingerprint) for use in graders},
    )
    saved = storage.get_run(storage.save_run(run))
    assert saved is not None
    return RunTask(saved, samples(count), agent, graders, **fields)


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    url = "memory://" if request.param == "memory" else str(tmp_path / "store.db")
    with open_storage(url) as opened:
        yield opened


def run(storage: Storage, order: RunTask) -> ExecutionResult:
    return asyncio.run(run_local(storage, order))


class TestRun:
    def test_every_case_is_answered_and_graded_once_in_order(self, storage: Storage) -> None:
        agent = Agent()
        result = run(storage, task(storage, agent, 20, (EXACT, RULES)))
        records = list(storage.records(result.run.id))
        assert [record.case for record in records] == [str(index) for index in range(20)]
        assert [record.grades["exact"].score for record in records] == [float(index % 4 > 0) for index in range(20)]
        assert set(agent.calls.values()) == {1}
        assert result.work == {Work.RERUN: 20}
        assert (result.run.status, result.run.total) == ("completed", 20)

    def test_the_summary_has_every_denominator(self, storage: Storage) -> None:
        agent = Agent(fails=lambda sample: sample.id == 3)
        done = run(storage, task(storage, agent, 20)).run
        summary = summarise(done, storage.counts(done.id))
        column = summary.graders["exact"]
        assert (column.passed, column.failed, column.errors, column.skipped) == (14, 5, 0, 1)
        assert (column.scored, column.total, column.pass_rate) == (19, 20, 14 / 19)
        assert column.mean == pytest.approx(14 / 19)
        assert column.mean_ci is not None
        assert column.pass_rate_ci is not None
        assert 0 < column.pass_rate_ci[0] < 14 / 19 < column.pass_rate_ci[1] < 1
        assert summary.responses == {"success": 19, "error": 1, "timeout": 0}
        assert summary.coverage == 0.95
        assert summary.sentence == "19 responses graded, 1 failed call"

    def test_repeats_are_calls_of_their_own(self, storage: Storage) -> None:
        agent = Agent()
        result = run(storage, task(storage, agent, 5, repeats=3))
        assert [(record.case, record.repeat) for record in storage.records(result.run.id)] == [
            (str(case), repeat) for case in range(5) for repeat in range(3)
        ]
        assert set(agent.calls.values()) == {3}

    def test_no_more_calls_than_the_concurrency_are_in_flight(self, storage: Storage) -> None:
        agent = Agent(seconds=0.005)
        run(storage, task(storage, agent, 60, limits=CallLimits(7)))
        assert agent.most_at_once == 7

    def test_calls_keep_to_their_rate(self, storage: Storage) -> None:
        starts: list[float] = []

        class Timed(Agent):
            async def respond(self, sample: Sample) -> Response:
                starts.append(time.monotonic())
                return await super().respond(sample)

        began = time.monotonic()
        run(storage, task(storage, Timed(), 9, limits=CallLimits(rate=Rate(3, 0.1))))
        # not the time between two calls: on a busy machine the earlier one may begin after its turn
        assert all(start - began >= number // 3 * 0.099 for number, start in enumerate(starts))

    def test_progress_is_reported_case_by_case(self, storage: Storage) -> None:
        called_inputs = []
        run(storage, task(storage, Agent(), 5, on_progress=lambda case: called_inputs.append(case.planned.key.case)))
        assert sorted(called_inputs) == ["0", "1", "2", "3", "4"]


class TestResume:
    def test_a_finished_run_is_reused_whole(self, storage: Storage) -> None:
        agent = Agent()
        order = task(storage, agent)
        run(storage, order)
        assert run(storage, order).work == {Work.REUSE: 20}
        assert sum(agent.calls.values()) == 20

    def test_a_stopped_run_stores_its_calls_in_flight_and_can_be_resumed(self, storage: Storage) -> None:
        agent = Agent(seconds=0.002)
        order = task(storage, agent, 200, limits=CallLimits(4))

        async def stopped() -> ExecutionResult:
            stop = Stop()
            asyncio.get_running_loop().call_later(0.05, stop.set, "enough")
            return await run_local(storage, order, stop)

        first = asyncio.run(stopped())
        assert (first.run.status, first.run.error_message, first.stopped) == ("cancelled", "enough", "enough")
        assert 0 < sum(first.work.values()) < 200
        second = run(storage, order)
        assert second.run.status == "completed"
        assert sum(agent.calls.values()) == 200
        assert summarise(second.run, storage.counts(second.run.id)).graders["exact"].scored == 200

    def test_failed_calls_are_retried_on_resume(self, storage: Storage) -> None:
        broken = Agent(fails=lambda sample: int(sample.id) < 5)
        order = task(storage, broken)
        run(storage, order)
        fixed = Agent()
        result = run(storage, order._replace(target=fixed))
        assert result.work == {Work.RERUN: 5, Work.REUSE: 15}
        counts = storage.counts(result.run.id)
        assert counts.responses == {"success": 20, "error": 0, "timeout": 0}
        assert summarise(result.run, counts).graders["exact"].skipped == 0

    def test_a_changed_grader_grades_again_without_calls(self, storage: Storage) -> None:
        agent = Agent()
        order = task(storage, agent)
        run(storage, order)
        other = GraderUse("exact", grader("contains"), extractor("last_assistant"))
        result = run(storage, order._replace(graders=(other,)))
        assert result.work == {Work.REGRADE: 20}
        assert sum(agent.calls.values()) == 20

    def test_a_regrade_is_a_new_run_on_the_parents_responses(self, storage: Storage) -> None:
        agent = Agent()
        parent = run(storage, task(storage, agent)).run
        result = run(storage, task(storage, agent, graders=(RULES,), parent=parent.id))
        assert result.work == {Work.REGRADE: 20}
        assert sum(agent.calls.values()) == 20
        assert [set(record.grades) for record in storage.records(result.run.id)] == [{"short"}] * 20
        assert [set(record.grades) for record in storage.records(parent.id)] == [{"exact"}] * 20

    def test_an_error_of_the_harness_leaves_the_run_failed_with_its_reason(self, storage: Storage) -> None:
        class Raises(Agent):
            async def respond(self, sample: Sample) -> Response:
                raise RuntimeError("a target must not raise")

        order = task(storage, Raises())
        with pytest.raises(RuntimeError, match="a target must not raise"):
            run(storage, order)
        stored = storage.get_run(order.run.id)
        assert stored is not None
        assert (stored.status, stored.error_message) == ("failed", "RuntimeError: a target must not raise")


class TestUserCode:
    SOURCE = (
        "import os\nfrom gradeline import GradeResult, extractor, grader\n"
        "@extractor\ndef shout(trajectory, config): return trajectory[-1][-1].content + config['mark']\n"
        "@grader\ndef ends_well(sample, submission):\n"
        "    if sample.id == 7: os._exit(1)\n"
        "    return GradeResult(score=1.0 if submission.endswith('!') else 0.0)\n"
    )

    def test_custom_extractors_and_graders_run_in_workers(self, storage: Storage, tmp_path: Path) -> None:
        (tmp_path / "own.py").write_text(self.SOURCE)
        requests = (CodeRequest("grader", "ends_well"), CodeRequest("extractor", "shout"))

        async def body() -> ExecutionResult:
            async with WorkerPool(CodeSpec(str(tmp_path), requests), size=1) as pool:
                manifest = await pool.start()
                prints = {entry.role: entry.fingerprint for entry in manifest.entries}
                shout = UserExtractor("shout", prints["extractor"], {"mark": "!"})
                uses = (
                    EXACT,
                    GraderUse("well", UserGrader("ends_well", prints["grader"]), shout),
                    GraderUse("plain", UserGrader("ends_well", prints["grader"]), extractor("last_assistant")),
                    GraderUse("rules", RULES.grader, shout),
                )
                return await run_local(storage, task(storage, Agent(), 10, uses, pool=pool))

        result = asyncio.run(body())
        records = list(storage.records(result.run.id))
        assert records[0].submissions == {"exact": "WORD0", "well": "WORD0!", "plain": "WORD0", "rules": "WORD0!"}
        scores = {key: [record.grades[key].score for record in records] for key in ("well", "plain", "rules")}
        assert scores["well"] == [1.0] * 7 + [None] + [1.0] * 2
        assert scores["plain"] == [0.0] * 7 + [None] + [0.0] * 2
        assert scores["rules"] == [0.0] * 10
        assert records[7].grades["well"].error is not None
        assert records[7].grades["well"].error.type == "crashed"


class Priced(Agent):
    async def respond(self, sample: Sample) -> Response:
        answer = await super().respond(sample)
        return Response(text=answer.text, usage=Usage(cost=0.5), latency_ms=1.0)


class TestBudgets:
    def test_calls_are_counted_exactly_and_the_rest_follows_with_the_next_budget(self, storage: Storage) -> None:
        agent = Agent()
        order = task(storage, agent, 20, limits=CallLimits(budget=RunBudget(calls=7)))
        first = run(storage, order)
        assert (first.run.status, first.stopped) == ("cancelled", "the budget of 7 calls is spent")
        assert sum(agent.calls.values()) == 7
        again = run(storage, order)
        assert sum(agent.calls.values()) == 7
        assert again.stopped == "the budget of 7 calls is spent"
        rest = run(storage, order._replace(limits=CallLimits(budget=RunBudget(calls=20))))
        assert (rest.run.status, sum(agent.calls.values())) == ("completed", 20)

    def test_a_cost_limit_stops_the_run(self, storage: Storage) -> None:
        agent = Priced()
        result = run(storage, task(storage, agent, 20, limits=CallLimits(1, budget=RunBudget(cost=2.0))))
        assert result.stopped == "the budget of 2 is spent: 2 after 4 calls"
        assert sum(agent.calls.values()) == 4

    def test_a_limit_on_the_cost_stops_a_run_whose_answers_have_no_known_cost(self, storage: Storage) -> None:
        agent = Agent()
        result = run(storage, task(storage, agent, 20, limits=CallLimits(1, budget=RunBudget(cost=0.001))))
        assert result.stopped is not None
        assert result.stopped.startswith("no cost is known for the calls of the agent, so that the budget of 0.001")
        assert sum(agent.calls.values()) == 1

    def test_an_unknown_cost_among_known_ones_is_a_warning(
        self, storage: Storage, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Mixed(Priced):
            async def respond(self, sample: Sample) -> Response:
                found = await super().respond(sample)
                return found if sum(self.calls.values()) % 2 else Response(text=found.text)

        order = task(storage, Mixed(), 6, limits=CallLimits(1, budget=RunBudget(cost=100)))
        assert run(storage, order).run.status == "completed"
        assert len([message for message in caplog.messages if "do not count towards the budget of 100" in message]) == 1


class TestCache:
    def test_a_cached_response_is_used_without_a_call(self, storage: Storage) -> None:
        agent = Agent()
        cached = CallLimits(cache=True)
        run(storage, task(storage, agent, 10, repeats=2, limits=cached))
        again = run(storage, task(storage, agent, 10, repeats=2, limits=cached))
        assert sum(agent.calls.values()) == 20
        assert storage.counts(again.run.id).responses["success"] == 20
        run(storage, task(storage, agent, 10, repeats=2))
        assert sum(agent.calls.values()) == 40

    def test_a_failed_call_is_not_cached(self, storage: Storage) -> None:
        cached = CallLimits(cache=True)
        run(storage, task(storage, Agent(fails=lambda sample: sample.id == 3), 10, limits=cached))
        fixed = Agent()
        run(storage, task(storage, fixed, 10, limits=cached))
        assert fixed.calls == {"3": 1}


class TestFailFast:
    def test_it_ends_at_the_first_case_that_does_not_pass(self, storage: Storage) -> None:
        agent = Agent()
        result = run(storage, task(storage, agent, 200, limits=CallLimits(1), fail_fast=True))
        assert result.stopped == "fail-fast: case '0': exact is fail"
        assert sum(agent.calls.values()) < 200

    def test_a_failed_call_counts(self, storage: Storage) -> None:
        order = task(storage, Agent(fails=lambda _: True), 200, limits=CallLimits(1), fail_fast=True)
        assert run(storage, order).stopped == "fail-fast: case '0': the call failed (status)"


def test_a_run_of_another_process_is_not_executed(storage: Storage) -> None:
    order = task(storage, Agent(), 5)
    storage.claim_run(order.run.id, "elsewhere:1:1", None)
    with pytest.raises(ConfigError, match="was claimed by another process"):
        run(storage, order)


def test_another_extractor_changes_the_fingerprint() -> None:
    def column(**fields: Any) -> str:
        return GraderUse(**{"key": "k", "grader": EXACT.grader, "extractor": EXACT.extractor, **fields}).fingerprint

    assert column() == EXACT.grader.fingerprint
    prints = {
        column(),
        column(pass_threshold=0.9),
        column(extractor=extractor("first_assistant")),
        column(extractor=UserExtractor("x.py:f", "1")),
        column(extractor=UserExtractor("x.py:f", "1", {"a": 1})),
    }
    assert len(prints) == 5
    assert column(noise=0.01) == column()  # the scores are the same


def test_a_column_s_grades_carry_its_own_fingerprint(storage: Storage) -> None:
    strict = EXACT._replace(pass_threshold=0.9)
    result = run(storage, task(storage, Agent(), 3, (strict,)))
    records = list(storage.records(result.run.id))
    assert {record.grades["exact"].fingerprint for record in records} == {strict.fingerprint}
    again = task(storage, Agent(), 3, (strict,))
    assert run(storage, again._replace(run=result.run)).work == {Work.REUSE: 3}
