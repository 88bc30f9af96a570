"""Adapters and judges of users: an invalid return value is an error of one case and names its source."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gradeline import GradeContext, Sample
from gradeline.adapters import LLMResponse, RunConfig, Usage
from gradeline.errors import BadReplyError, GraderError
from gradeline.graders import run_async_grader
from gradeline.judges import ExactMatchJudge, GradingResult, LLMJudge, PairedGrader, SideFailed
from gradeline.judges.model_judge import ModelJudge
from gradeline.model import Grade, GradeResult, MeteredResult

GOOD = '{"score": 0.8, "rationale": "mostly right"}'
CONFIG = RunConfig(model="m")


class Adapter:
    """Returns the given value, or raises it."""

    adapter_id = "mine"

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def complete(self, prompt: str, run_config: RunConfig) -> Any:
        if isinstance(self._reply, BaseException):
            raise self._reply
        return self._reply

    async def acomplete(self, prompt: str, run_config: RunConfig) -> Any:
        return self.complete(prompt, run_config)


class HostileString(str):
    """A string whose methods raise."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    def strip(self, *_: Any) -> str:
        raise RuntimeError("no")


def judged(reply: Any) -> MeteredResult:
    judge = ModelJudge(config={"prompt": "{submission}", "model": "m"}, adapter=Adapter(reply))
    return asyncio.run(judge.agrade(GradeContext(Sample("s", "q"), "a")))


def failure(reply: Any) -> tuple[str, str]:
    result = judged(reply).result
    assert isinstance(result, GraderError), result
    return result.type, str(result)


def test_missing_content_is_an_empty_reply() -> None:
    none: Any = None
    assert failure(LLMResponse(content=none)) == ("empty_reply", "the judge's reply is empty")
    assert failure(LLMResponse(content=none, finish_reason="refusal"))[0] == "refused"
    assert failure(LLMResponse(content=none, finish_reason="length"))[0] == "truncated"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (None, "the adapter 'mine' returned None; complete and acomplete must return an LLMResponse"),
        (GOOD, f"the adapter 'mine' returned {GOOD!r} (str); complete and acomplete must return an LLMResponse"),
        (LLMResponse(7), "the adapter 'mine' returned an LLMResponse whose content is 7 (int), not str"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_response_is_named(reply: Any, message: str) -> None:
    assert failure(reply) == ("invalid_reply", message)


def test_fields_of_a_wrong_type_are_unknown() -> None:
    odd: Any = "a lot"
    usage = Usage(input_tokens=odd, output_tokens=3, cost=float("nan"))
    response = LLMResponse(
        HostileString(GOOD), model=odd, finish_reason=odd, usage=usage, latency_ms=odd, tool_calls=odd
    )
    found = judged(response)
    assert isinstance(found.result, GradeResult), found.result
    assert (found.result.score, found.usage) == (0.8, Usage(None, 3, None, None))
    assert judged(LLMResponse(GOOD, usage=odd)).usage is None


def test_an_adapter_that_exits_fails_one_grade() -> None:
    with pytest.raises(RuntimeError, match=r"the adapter 'mine' raised SystemExit\(3\)"):
        judged(SystemExit(3))


class Judge:
    """Returns the given value."""

    grader_id = "my-judge"

    def __init__(self, result: Any) -> None:
        self._result = result

    def judge(self, *_: Any, **__: Any) -> Any:
        return self._result

    async def ajudge(self, *_: Any, **__: Any) -> Any:
        return self._result


@pytest.mark.parametrize(
    ("result", "shown"), [(None, "None"), (0.7, "0.7 (float)"), ({"score": 1}, "{'score': 1} (dict)")]
)
def test_a_judge_with_an_invalid_result_is_named_with_what_it_returned(result: Any, shown: str) -> None:
    grader = PairedGrader(Judge(result))
    adapter = Adapter(LLMResponse("a"))
    message = f"the judge 'my-judge' returned {shown}; judge and ajudge must return a GradingResult"
    with pytest.raises(BadReplyError) as caught:
        grader.grade(adapter, adapter, "q", CONFIG)
    assert str(caught.value) == message
    with pytest.raises(BadReplyError) as caught:
        asyncio.run(grader.agrade(adapter, adapter, "q", CONFIG))
    assert str(caught.value) == message


def test_sides_without_content_are_empty_answers() -> None:
    none: Any = None
    silent = Adapter(LLMResponse(none))
    found = PairedGrader(ExactMatchJudge()).grade(silent, silent, "q", CONFIG)
    assert isinstance(found, GradingResult)
    assert (found.quality_score, found.baseline_response.content) == (1.0, "")


def test_a_side_that_returns_no_response_has_failed() -> None:
    good = Adapter(LLMResponse("a"))
    with pytest.raises(SideFailed, match="the candidate failed: InvalidReply: the adapter 'mine' returned 'b'"):
        PairedGrader(ExactMatchJudge()).grade(good, Adapter("b"), "q", CONFIG)


def test_the_llm_judge_reports_an_empty_reply() -> None:
    none: Any = None
    answer = LLMResponse("a")
    with pytest.raises(ValueError, match="the judge's reply is empty"):
        LLMJudge(Adapter(LLMResponse(none))).judge(answer, answer, prompt="q", run_config=CONFIG)


def test_an_invalid_result_affects_one_grade_and_not_the_run() -> None:
    class Half(Adapter):
        def complete(self, prompt: str, run_config: RunConfig) -> Any:
            none: Any = None
            if "q1" in prompt:
                raise SystemExit(1)
            return LLMResponse(GOOD if "q0" in prompt else none)

    judge = ModelJudge(config={"prompt": "{input} {submission}", "model": "m"}, adapter=Half(None))
    contexts = [GradeContext(Sample(f"c{n}", f"q{n}"), "a") for n in range(3)]

    async def run() -> list[Grade]:
        return await asyncio.gather(*(run_async_grader(judge, ctx) for ctx in contexts))

    grades = asyncio.run(run())
    assert [grade.error and grade.error.type for grade in grades] == [None, "RuntimeError", "empty_reply"]
