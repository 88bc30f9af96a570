"""Baseline and candidate get the same prompt, and a failed side is named."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from gradeline.adapters import create
from gradeline.errors import GradelineError
from gradeline.judges import BaselineGrader, ExactMatchJudge, GradingResult, PairedGrader, SideFailed
from gradeline.model.llm import LLMResponse, RunConfig
from gradeline.testing import ScriptedAdapter
from gradeline.testing.fake_judge import FakeJudge

CONFIG = RunConfig(model="m", temperature=0.7, max_tokens=9, system="Be brief.", model_params={"top_p": 0.5})
GRADER = PairedGrader(ExactMatchJudge())
FORMS = pytest.mark.parametrize("form", ["sync", "async"])


def grade(form: str, baseline: Any, candidate: Any, grader: PairedGrader = GRADER) -> GradingResult:
    if form == "sync":
        return grader.grade(baseline, candidate, "2 + 2?", CONFIG)
    return asyncio.run(grader.agrade(baseline, candidate, "2 + 2?", CONFIG))


@FORMS
def test_both_adapters_get_the_same_prompt_and_config(form: str) -> None:
    baseline, candidate = ScriptedAdapter(["4"], "big"), ScriptedAdapter(["4"], "small")
    result = grade(form, baseline, candidate)
    reply = LLMResponse("4", model="m", finish_reason="stop")
    assert result == GradingResult(1.0, "match (stripped)", "exact-match", reply, reply)
    for adapter in (baseline, candidate):
        [asked] = adapter.calls
        assert asked.prompt == "2 + 2?"
        assert asked.run_config is CONFIG


@FORMS
def test_one_adapter_can_be_both_sides(form: str) -> None:
    result = grade(form, *[ScriptedAdapter(["first", "second"])] * 2)
    assert (result.baseline_response.content, result.candidate_response.content) == ("first", "second")


@FORMS
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_failed_side_is_named_and_the_other_response_is_stored(form: str, side: str) -> None:
    error = RuntimeError("out of order")
    good, bad = ScriptedAdapter(["4"]), ScriptedAdapter([error])
    with pytest.raises(SideFailed) as caught:
        grade(form, *((bad, good) if side == "baseline" else (good, bad)))
    failed = caught.value
    assert (failed.side, failed.response, failed.__cause__, failed.errors) == (
        side,
        LLMResponse("4", model="m", finish_reason="stop"),
        error,
        {side: error},
    )
    assert str(failed) == f"the {side} failed: RuntimeError: out of order"
    assert isinstance(failed, GradelineError)


@FORMS
def test_two_failed_sides_are_both_reported(form: str) -> None:
    first, second = RuntimeError("no"), ValueError("never")
    with pytest.raises(SideFailed) as caught:
        grade(form, ScriptedAdapter([first]), ScriptedAdapter([second]))
    failed = caught.value
    assert (failed.side, failed.response, failed.__cause__) == ("both", None, first)
    assert failed.errors == {"baseline": first, "candidate": second}
    assert str(failed) == "the baseline failed: RuntimeError: no; the candidate failed: ValueError: never"


@FORMS
def test_exceptions_of_the_judge_propagate(form: str) -> None:
    class Broken:
        grader_id = "broken"

        def judge(self, *_: object, **__: object) -> GradingResult:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        grade(form, ScriptedAdapter("4"), ScriptedAdapter("4"), PairedGrader(Broken()))  # type: ignore[arg-type]


@FORMS
def test_a_judge_of_one_form_works_in_both(form: str) -> None:
    class OnlyAsync:
        grader_id = "later"

        async def ajudge(self, *args: Any, **named: Any) -> GradingResult:
            return ExactMatchJudge("later").judge(*args, **named)

    result = grade(form, ScriptedAdapter("4"), ScriptedAdapter("5"), PairedGrader(OnlyAsync()))  # type: ignore[arg-type]
    assert (result.quality_score, result.grader_id) == (0.0, "later")


@FORMS
def test_adapters_of_one_form_work_in_both(form: str) -> None:
    class OnlySync:
        adapter_id = "now"

        def complete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
            return LLMResponse("4")

    class OnlyAsync:
        adapter_id = "later"

        async def acomplete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
            return LLMResponse("4")

    assert grade(form, OnlySync(), OnlyAsync()).quality_score == 1.0


class Rendezvous:
    """Two adapters that each answer only when the other is called too."""

    adapter_id = "meeting"

    def __init__(self, barrier: asyncio.Barrier) -> None:
        self._barrier = barrier

    async def acomplete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
        await self._barrier.wait()
        return LLMResponse("4")


def test_both_sides_are_called_concurrently() -> None:
    async def meet() -> GradingResult:
        adapter: Any = Rendezvous(asyncio.Barrier(2))
        return await GRADER.agrade(adapter, adapter, "2 + 2?", CONFIG)

    assert asyncio.run(asyncio.wait_for(meet(), 30)).quality_score == 1.0


def test_blocking_adapters_are_called_concurrently_by_the_asynchronous_form() -> None:
    barrier = threading.Barrier(2, timeout=30)

    class Blocking:
        adapter_id = "blocking"

        def complete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
            barrier.wait()
            return LLMResponse("4")

    assert grade("async", Blocking(), Blocking()).quality_score == 1.0


def test_the_packages_adapters_work_in_both_forms_and_inside_a_running_loop() -> None:
    with FakeJudge().in_thread() as server:
        adapter = create("openai", "m", base_url=server.base_url())

        async def inside() -> GradingResult:
            return GRADER.grade(adapter, adapter, "Say something.", RunConfig(model=""))

        results = [GRADER.grade(adapter, adapter, "Say something.", RunConfig(model="")), asyncio.run(inside())]
        assert [result.quality_score for result in results] == [1.0, 1.0]
        assert server.counts().requests == 4


class TestCancellation:
    def test_a_cancelled_caller_cancels_both_sides(self) -> None:
        async def cancelled() -> list[str]:
            ended: list[str] = []
            begun = asyncio.Semaphore(0)

            class Endless:
                adapter_id = "endless"

                async def acomplete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
                    begun.release()
                    try:
                        await asyncio.Event().wait()
                    finally:
                        ended.append("cancelled")
                    raise AssertionError

            adapter: Any = Endless()
            task = asyncio.create_task(GRADER.agrade(adapter, adapter, "?", CONFIG))
            await begun.acquire()
            await begun.acquire()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return ended

        assert asyncio.run(cancelled()) == ["cancelled", "cancelled"]

    @FORMS
    @pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt])
    def test_exceptions_that_are_not_failures_propagate(self, form: str, kind: type[BaseException]) -> None:
        with pytest.raises(kind):
            grade(form, ScriptedAdapter([kind()]), ScriptedAdapter(["4"]))


def test_it_is_a_baseline_grader() -> None:
    assert isinstance(GRADER, BaselineGrader)
