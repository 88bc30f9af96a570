"""Paired grading: send one prompt to a baseline and a candidate, and have a judge compare the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from gradeline.adapters import sync
from gradeline.adapters.chat import ChatAdapter
from gradeline.errors import BadReplyError, GradelineError
from gradeline.judges.calls import complete, complete_sync, require_name
from gradeline.model.fingerprint import fingerprint
from gradeline.model.llm import GradingResult, Judge, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.text import quote

Side = Literal["baseline", "candidate", "both"]
Answer = LLMResponse | Exception


@runtime_checkable
class BaselineGrader(Protocol):
    """Grades a candidate against a baseline that the caller chooses."""

    def grade(
        self, baseline_adapter: LLMAdapter, candidate_adapter: LLMAdapter, prompt: str, run_config: RunConfig
    ) -> GradingResult: ...


class SideFailed(GradelineError):  # noqa: N818 - the name that callers were promised
    """An adapter failed, so there is nothing to compare.

    ``side`` is the failed side ("baseline", "candidate" or "both"), ``response`` the response of the other side (None
    if both failed), ``errors`` the error of each failed side; the first one is the cause.
    """

    def __init__(self, errors: Mapping[str, Exception], response: LLMResponse | None) -> None:
        self.side: Side = "both" if len(errors) > 1 else "baseline" if "baseline" in errors else "candidate"
        self.response = response
        self.errors = dict(errors)
        reasons = (f"the {side} failed: {type(error).__name__}: {error}" for side, error in errors.items())
        super().__init__("; ".join(reasons))
        self.__cause__ = next(iter(errors.values()))


@dataclass
class PairedGrader:
    """Sends the same prompt with the same config to both adapters and has ``judge`` compare the answers.

    Raises `SideFailed` if an adapter fails, after the other one has finished. Errors of the judge pass through, and so
    does cancellation.
    """

    judge: Judge

    def grade(
        self, baseline_adapter: LLMAdapter, candidate_adapter: LLMAdapter, prompt: str, run_config: RunConfig
    ) -> GradingResult:
        """The judge's result; also works inside a running event loop, which it blocks.

        Adapters of this package are called concurrently. Others are called in turn, the baseline first, in the
        caller's thread, because they may not be thread-safe.
        """
        if isinstance(baseline_adapter, ChatAdapter) and isinstance(candidate_adapter, ChatAdapter):
            baseline, candidate = sync.run(_both(baseline_adapter, candidate_adapter, prompt, run_config))
        else:
            baseline = _one_sync(baseline_adapter, prompt, run_config)
            candidate = _one_sync(candidate_adapter, prompt, run_config)
        first, second = _answers(baseline, candidate)
        if not hasattr(self.judge, "judge"):
            result = sync.run(self.judge.ajudge(first, second, prompt=prompt, run_config=run_config))
        else:
            result = self.judge.judge(first, second, prompt=prompt, run_config=run_config)
        return _checked(self.judge, result)

    async def agrade(
        self, baseline_adapter: LLMAdapter, candidate_adapter: LLMAdapter, prompt: str, run_config: RunConfig
    ) -> GradingResult:
        """The judge's result; both adapters are called concurrently."""
        first, second = _answers(*await _both(baseline_adapter, candidate_adapter, prompt, run_config))
        if not hasattr(self.judge, "ajudge"):
            result = await asyncio.to_thread(self.judge.judge, first, second, prompt=prompt, run_config=run_config)
        else:
            result = await self.judge.ajudge(first, second, prompt=prompt, run_config=run_config)
        return _checked(self.judge, result)


def _checked(judge: Judge, result: object) -> GradingResult:
    if isinstance(result, GradingResult):
        return result
    name = quote(getattr(judge, "grader_id", type(judge).__name__), 80)
    shown = "None" if result is None else f"{quote(result, 80)} ({type(result).__name__})"
    raise BadReplyError(f"the judge {name} returned {shown}; judge and ajudge must return a GradingResult")


async def _both(
    baseline: LLMAdapter, candidate: LLMAdapter, prompt: str, run_config: RunConfig
) -> tuple[Answer, Answer]:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_one(baseline, prompt, run_config))
        second = group.create_task(_one(candidate, prompt, run_config))
    return first.result(), second.result()


async def _one(adapter: LLMAdapter, prompt: str, run_config: RunConfig) -> Answer:
    try:
        return await complete(adapter, prompt, run_config)
    except Exception as error:
        return error


def _one_sync(adapter: LLMAdapter, prompt: str, run_config: RunConfig) -> Answer:
    try:
        return complete_sync(adapter, prompt, run_config)
    except Exception as error:
        return error


def _answers(baseline: Answer, candidate: Answer) -> tuple[LLMResponse, LLMResponse]:
    if not isinstance(baseline, Exception) and not isinstance(candidate, Exception):
        return baseline, candidate
    sides = {"baseline": baseline, "candidate": candidate}
    errors = {side: answer for side, answer in sides.items() if isinstance(answer, Exception)}
    raise SideFailed(errors, next((one for one in sides.values() if isinstance(one, LLMResponse)), None))


_VERSION = 1


@dataclass
class ExactMatchJudge:
    """1.0 if the candidate's text equals the baseline's, else 0.0.

    Leading and trailing whitespace is ignored; ``case_sensitive=False`` ignores case, ``normalize_whitespace``
    collapses each run of whitespace. For short answers of a fixed form; free text is rarely identical.
    """

    grader_id: str = "exact-match"
    case_sensitive: bool = True
    normalize_whitespace: bool = False

    def __post_init__(self) -> None:
        require_name(self.grader_id)

    @property
    def fingerprint(self) -> str:
        """Changes with everything that could change a score."""
        options = {"case_sensitive": self.case_sensitive, "normalize_whitespace": self.normalize_whitespace}
        return fingerprint("exact-match", _VERSION, options)

    def judge(
        self,
        baseline_response: LLMResponse,
        candidate_response: LLMResponse,
        *,
        prompt: str,  # noqa: ARG002 - the protocol passes it, the comparison does not need it
        run_config: RunConfig,  # noqa: ARG002
    ) -> GradingResult:
        """Compare the two texts."""
        same = self._compared(baseline_response.content) == self._compared(candidate_response.content)
        ways = ["stripped"]
        if not self.case_sensitive:
            ways.append("case ignored")
        if self.normalize_whitespace:
            ways.append("whitespace normalized")
        notes = f"{'match' if same else 'no match'} ({', '.join(ways)})"
        return GradingResult(float(same), notes, self.grader_id, baseline_response, candidate_response)

    async def ajudge(
        self, baseline_response: LLMResponse, candidate_response: LLMResponse, *, prompt: str, run_config: RunConfig
    ) -> GradingResult:
        """`judge`; it makes no calls."""
        return self.judge(baseline_response, candidate_response, prompt=prompt, run_config=run_config)

    def _compared(self, text: str) -> str:
        text = " ".join(text.split()) if self.normalize_whitespace else text.strip()
        return text if self.case_sensitive else text.casefold()
