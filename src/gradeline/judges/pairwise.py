"""A model as the judge between a submission and a baseline's, in both orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import field

from gradeline.adapters.chat import ChatRequest
from gradeline.errors import ORDER_DECIDED, ConfigError, GraderError, MissingDataError, Problem
from gradeline.graders.base import ConfigIssue
from gradeline.judges.base import (
    VERSION_DIGITS,
    Failed,
    JudgeGrader,
    Place,
    collected,
    notes_shown,
    put_question,
    together,
    usage_shown,
)
from gradeline.judges.calls import Answered
from gradeline.judges.fencing import Fence
from gradeline.judges.model_judge import case_of, sample_rubric, system_prompt_remarks
from gradeline.judges.options import (
    ApiKeyEnv,
    BaseUrl,
    CallOptions,
    Model,
    Prompt,
    PromptPath,
    Provider,
    Reasoning,
    RubricVars,
    SystemPrompt,
    file_text,
    model_faults,
    one_source,
    reserved_names,
)
from gradeline.judges.prompts import (
    GROUND_TRUTH,
    INPUT,
    SUBMISSION,
    Case,
    Section,
    fill,
    mentions_submission,
    sections_prompt,
)
from gradeline.judges.reply_formats import RATIONALE, object_schema
from gradeline.judges.reply_parsing import InvalidReply, bounded_notes, read_object, read_score, require_reply
from gradeline.model import GradeContext, GradeResult, Message, MeteredResult, Sample, described, fingerprint, quote
from gradeline.model.config import canonical_options
from gradeline.model.llm import Budget, LLMAdapter, LLMResponse
from gradeline.model.response import total_usage, usage_of_calls

Winner = Literal["candidate", "baseline", "tie"]
Position = Literal["first", "second"]

TIE = 0.5
"""The score of a tie, and the least score that passes: not worse."""
_TINY = 1e-9
"""Differences of decimal scores miss 0 by less."""


class BothOrders(NamedTuple):
    """By how much the candidate was preferred, from -1 to 1: shown first, and shown second.

    None is an order without a verdict: it prefers nobody, and agrees with no verdict.
    """

    candidate_first: float | None
    candidate_second: float | None

    @property
    def difference(self) -> float:
        """The mean over both orders."""
        return ((self.candidate_first or 0.0) + (self.candidate_second or 0.0)) / 2

    @property
    def score(self) -> float | None:
        """From 0, where the baseline is all that is better, over 0.5 for a tie, to 1.

        None where the order decided, or where an order has no verdict.
        """
        return None if self.flipped or self.candidate_first is None else (1 + self.difference) / 2

    @property
    def passed(self) -> bool | None:
        """Whether the candidate is not worse; None without a score."""
        return None if self.score is None else self.score >= TIE - _TINY

    @property
    def winner(self) -> Winner:
        return winner_of(self.difference)

    @property
    def flipped(self) -> bool:
        """Whether the two verdicts are not the same."""
        first, second = (
            None if difference is None else winner_of(difference)
            for difference in (self.candidate_first, self.candidate_second)
        )
        return first != second

    @property
    def favoured(self) -> Position | None:
        """The position that decided: of the answer that was shown first, or second. None where neither did."""
        if self.candidate_first is None or self.candidate_second is None or not self.flipped:
            return None
        return "first" if self.candidate_first > self.candidate_second else "second"


def winner_of(difference: float) -> Winner:
    """Whom a difference of scores speaks for."""
    if abs(difference) < _TINY:
        return "tie"
    return "candidate" if difference > 0 else "baseline"


SCHEMA_NAME = "PairResponse"
FIRST, SECOND, WINNER = "score_first", "score_second", "winner"

RUBRIC = """\
Judge which of the two answers serves the task better.

1. What counts is, in this order: that the answer does what was asked, that it is right, that it is complete.
2. Where a ground truth is given, it is right, and an answer that contradicts it is wrong.
3. A longer answer is not a better one. Headings, lists, bold words, emoji and a confident tone earn nothing.
4. Which answer is shown first is chance, and says nothing about it.
5. Score each answer on its own, from 0.0 (useless) to 1.0 (could not be better). Answers that are equally good get
   the same score."""

_TASK = "Compare two answers to the same task by the rubric."
_TOLD = {"candidate": "is better", "baseline": "is worse", "tie": "ties"}
_NOT_DECIDING = ("prompt", "prompt_path", "provider", "model", "api_key_env", "max_retries", "timeout")


class PairwiseConfig(CallOptions, frozen=True, kw_only=True):
    """Options of `PairwiseGrader`."""

    baseline: Annotated[
        str | None, described("The run whose answers are the other side: its id, its name, or latest.")
    ] = None
    prompt: Prompt = None
    prompt_path: PromptPath = None
    system_prompt: SystemPrompt = None
    rubric_vars: RubricVars = field(default_factory=dict)
    reasoning: Reasoning = False
    provider: Provider = "openai"
    model: Model = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        yield from one_source(self, "prompt", "prompt_path")
        yield from reserved_names(self.rubric_vars)
        yield from model_faults(self.provider, self.model, self.base_url, self.api_key_env)


class PairVerdict(NamedTuple):
    """What a judge said of two answers, as they were shown."""

    first: float
    second: float
    notes: str


class OrderDecidedError(GraderError):
    """The two orders name different winners, so there is no verdict on the answers."""

    type = ORDER_DECIDED

    def __init__(self, both: BothOrders, rationale: str | None, metadata: Mapping[str, Any]) -> None:
        first, second = (f"{_TOLD[winner_of(value or 0.0)]} ({value or 0.0:+.3g})" for value in both)
        super().__init__(
            f"no score, because the orders disagree: the submission {first} where it is shown first,"
            f" and {second} where it is shown second"
        )
        self.rationale = rationale
        self.metadata = {**metadata, "favoured": both.favoured}


class PairwiseGrader(JudgeGrader[PairwiseConfig]):
    """Asks a language model whether the submission or a baseline run's answer to the same case is better.

    It is asked twice, each answer once shown first. Where both orders name the same winner, the mean difference of the
    scores counts; where they do not, the grade is an error of type ``order_decided``. The prompt is what to compare
    by; both answers are put behind it. ``adapter`` asks another than the configured model.
    """

    kind = "pairwise"
    name = "Pairwise judge"
    version = 2
    both_orders = True
    scoring_guide = (
        "0.5 for a tie, more the better the submission is than the baseline's answer, over both orders; passes from"
        " 0.5: not worse; an error where the orders disagree. Beware of the biases of judges: length, format,"
        " position, self-preference."
    )
    needs = frozenset({"baseline"})

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        adapter: LLMAdapter | None = None,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(grader_id, config, budget=budget)
        self._given = adapter

    @property
    def judges(self) -> tuple[str, ...]:
        return (self._place.judge if self._given is None else self._given.adapter_id,)

    @cached_property
    def fingerprint(self) -> str:
        """Covers the text of the prompt, the judge, its parameters and the baseline; never a key."""
        return self._digest(_NOT_DECIDING)

    @property
    def judge_id(self) -> str:
        return f"{self.kind}:{self.judges[0]}@{self._digest((*_NOT_DECIDING, 'baseline'))[:VERSION_DIGITS]}"

    def _digest(self, left_out: Sequence[str]) -> str:
        options = canonical_options(self.options)
        decided = {name: value for name, value in options.items() if name not in left_out}
        instruction = _instruction(self.options.reasoning)
        return fingerprint(self.noun, self.kind, self.version, self.judges, self._text, instruction, decided)

    def make_ready(self) -> None:
        collected(lambda: self._text, lambda: self._adapter)

    def remarks(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:  # noqa: ARG002 - no case is needed
        try:
            text = self._read(folder)
        except ConfigError as error:
            yield from (ConfigIssue(problem, fatal=True) for problem in error.problems)
            return
        if mentions_submission(text):
            source = "prompt" if self.options.prompt_path is None else "prompt_path"
            yield ConfigIssue(Problem(source, f"{{{SUBMISSION}}} is not filled in here; both answers are appended"))
        yield from system_prompt_remarks(self.options.system_prompt)

    @cached_property
    def _text(self) -> str:
        return self._read(self.resources.folder)

    def _read(self, folder: Path | None) -> str:
        if self.options.prompt_path is not None:
            return file_text(folder, self.options.prompt_path, "prompt_path")
        return self.options.prompt or RUBRIC

    @cached_property
    def _place(self) -> Place:
        return Place.of(self.options)

    @cached_property
    def _adapter(self) -> LLMAdapter:
        return self._given or self._place.adapter(self.resources)

    async def judged(self, ctx: GradeContext) -> MeteredResult:
        other = baseline_text(ctx)
        if other == ctx.submission:
            same = {"winner": "tie", "difference": 0.0, "flipped": False, "identical": True}
            return MeteredResult(GradeResult(TIE, "both gave the same text; no judge was asked", same, True))
        case = case_of(ctx, self.options.rubric_vars)
        rubric = sample_rubric(ctx.sample, self.resources.folder) or self._text
        shown = [(case.submission, other), (other, case.submission)]
        outcomes = await together(self._asked(rubric, case, first, second) for first, second in shown)
        usage = total_usage(outcome.usage for outcome in outcomes)
        answers: list[Answered[PairVerdict]] = []
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                return MeteredResult(outcome.error, usage)
            answers.append(outcome)
        return MeteredResult(self._graded(rubric, answers), usage)

    async def _asked(self, rubric: str, case: Case, first: str, second: str) -> Answered[PairVerdict] | Failed:
        options = self.options
        values = {**case.variables, INPUT: case.input, GROUND_TRUTH: case.ground_truth or ""}
        given = [("Task", "task", case.input), ("Ground truth", "ground truth", case.ground_truth)]
        sections = [Section(title, label, text) for title, label, text in given if text]
        sections += [Section("First answer", "first answer", first), Section("Second answer", "second answer", second)]
        prompt = sections_prompt(_TASK, fill(rubric, values), sections, _instruction(options.reasoning), Fence())
        request = ChatRequest(
            (Message("user", prompt),), response_schema=_schema(options.reasoning), schema_name=SCHEMA_NAME
        )
        config = options.run_config(options.model, options.system_prompt, self.budget)
        return await put_question(self._adapter, self._place, self._access, request, config, _read_pair)

    def _graded(self, rubric: str, answers: list[Answered[PairVerdict]]) -> GradeResult | OrderDecidedError:
        ahead, behind = (answered.value for answered in answers)
        both = BothOrders(ahead.first - ahead.second, behind.second - behind.first)
        metadata: dict[str, Any] = {
            "judge": self.judges[0],
            "model": answers[0].model,
            "prompt": fingerprint("prompt", self.options.system_prompt, rubric, _instruction(self.options.reasoning)),
            "winner": both.winner,
            "difference": both.difference,
            "differences": both._asdict(),
            "flipped": both.flipped,
            "usage": usage_shown(usage_of_calls(answered.usage for answered in answers)),
        }
        notes = notes_shown(answers)
        if notes:
            metadata["notes"] = notes
        told = [("shown first", ahead.notes), ("shown second", behind.notes)]
        reasons = "\n".join(f"{where}: {said}" for where, said in told if said) or None
        if both.score is None:
            return OrderDecidedError(both, reasons, metadata)
        return GradeResult(both.score, reasons, metadata, both.passed)


def baseline_text(ctx: GradeContext) -> str:
    """What the baseline said, or `MissingDataError`."""
    if ctx.baseline is None and ctx.baseline_submission is None:
        raise MissingDataError("the context has no baseline; name the run to compare with by baseline, or --baseline")
    if ctx.baseline is not None and ctx.baseline.error is not None:
        raise MissingDataError(f"the baseline's call failed ({ctx.baseline.error.type}), so there is no other side")
    text = ctx.baseline_submission
    if text is None and ctx.baseline is not None:
        text = ctx.baseline.text
    if text is None:
        raise MissingDataError("the baseline has no answer to this case")
    return text


def _instruction(reasoning: bool) -> str:
    scores = (
        f'"{FIRST}" and "{SECOND}", a number from 0.0 to 1.0 for the first and for the second answer shown, and'
        f' "{WINNER}": "first", "second" or "tie", as the scores say'
    )
    start = "Reply with one JSON object and nothing else:"
    if reasoning:
        return f'{start} first "{RATIONALE}", a text that compares them point by point, then {scores}.'
    return f'{start} first {scores}, then "{RATIONALE}", a short text that says why.'


def _schema(reasoning: bool) -> Mapping[str, Any]:
    number = {"type": "number", "minimum": 0, "maximum": 1}
    told: dict[str, Any] = {
        FIRST: number,
        SECOND: number,
        WINNER: {"type": "string", "enum": ["first", "second", "tie"]},
    }
    text = {RATIONALE: {"type": "string"}}
    return object_schema({**text, **told} if reasoning else {**told, **text})


def _read_pair(response: LLMResponse) -> PairVerdict:
    """Both scores; a winner that they contradict makes the reply no verdict."""
    text = require_reply(response)
    data = read_object(text)
    first, second = read_score(data, FIRST, text), read_score(data, SECOND, text)
    said = data.get(WINNER)
    contrary = {"candidate": "second", "baseline": "first", "tie": None}[winner_of(first - second)]
    if said not in ("first", "second", "tie", None) or (said is not None and said == contrary):
        told = f"the judge's reply names {quote(said, 40)} the winner of {first:g} to {second:g}: {quote(text, 300)}"
        raise InvalidReply(told, text)
    return PairVerdict(first, second, bounded_notes(data.get(RATIONALE)))
