"""A model as the judge between a submission and a baseline's answer, in both orders."""

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
    JudgeFailure,
    OneModelGrader,
    ask_judge,
    gather_all,
    notes_metadata,
    run_steps,
    usage_metadata,
)
from gradeline.judges.calls import JudgeAnswer
from gradeline.judges.fencing import Fence
from gradeline.judges.model_judge import prompt_case, sample_rubric, system_prompt_issues
from gradeline.judges.options import (
    SELECTIVE_OPTIONS,
    ApiKeyEnv,
    BaseUrl,
    Model,
    Prompt,
    PromptPath,
    Provider,
    Reasoning,
    RubricVars,
    SelectiveOptions,
    SystemPrompt,
    exclusive_sources,
    file_text,
    model_faults,
    reserved_names,
)
from gradeline.judges.prompts import (
    GROUND_TRUTH,
    INPUT,
    SUBMISSION,
    PromptCase,
    Section,
    fill,
    mentions_submission,
    sections_prompt,
)
from gradeline.judges.reply_formats import RATIONALE, object_schema
from gradeline.judges.reply_parsing import InvalidReply, bounded_notes, read_object, read_score, require_reply
from gradeline.model import GradeContext, GradeResult, Message, MeteredResult, Sample, described, fingerprint, quote
from gradeline.model.config import canonical_options
from gradeline.model.llm import LLMResponse
from gradeline.model.response import total_usage, usage_of_calls

Winner = Literal["candidate", "baseline", "tie"]
Position = Literal["first", "second"]

TIE = 0.5
"""The score of a tie, and the lowest score that passes (not worse)."""
_TOLERANCE = 1e-9
"""Rounding tolerance for differences of decimal scores."""


class BothOrders(NamedTuple):
    """The preference for the candidate, from -1 to 1, when shown first and when shown second.

    None is an order without a verdict: no preference, and no agreement with any verdict.
    """

    candidate_first: float | None
    candidate_second: float | None

    @property
    def difference(self) -> float:
        """The mean over both orders."""
        return ((self.candidate_first or 0.0) + (self.candidate_second or 0.0)) / 2

    @property
    def score(self) -> float | None:
        """0 if the baseline is better by the maximum, 0.5 for a tie, 1 if the candidate is.

        None if the order decided, or if an order has no verdict.
        """
        return None if self.flipped or self.candidate_first is None else (1 + self.difference) / 2

    @property
    def passed(self) -> bool | None:
        """True if the candidate is not worse; None without a score."""
        return None if self.score is None else self.score >= TIE - _TOLERANCE

    @property
    def winner(self) -> Winner:
        return winner_of(self.difference)

    @property
    def flipped(self) -> bool:
        """True if the two verdicts differ."""
        first, second = (
            None if difference is None else winner_of(difference)
            for difference in (self.candidate_first, self.candidate_second)
        )
        return first != second

    @property
    def favoured(self) -> Position | None:
        """The position that both verdicts prefer; None if the orders agree."""
        if self.candidate_first is None or self.candidate_second is None or not self.flipped:
            return None
        return "first" if self.candidate_first > self.candidate_second else "second"


def winner_of(difference: float) -> Winner:
    """The winner by a difference of scores."""
    if abs(difference) < _TOLERANCE:
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
_RESULT_TEXT = {"candidate": "is better", "baseline": "is worse", "tie": "ties"}
_NOT_IN_FINGERPRINT = (
    *("prompt", "prompt_path", "provider", "model", "api_key_env", "max_retries", "timeout"),
    *SELECTIVE_OPTIONS,
)


class PairwiseConfig(SelectiveOptions, frozen=True, kw_only=True):
    """Options of `PairwiseGrader`."""

    baseline: Annotated[str | None, described("Run to compare with: ID, name or latest.")] = None
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
        yield from exclusive_sources(self, "prompt", "prompt_path")
        yield from reserved_names(self.rubric_vars)
        yield from model_faults(self.provider, self.model, self.base_url, self.api_key_env)


class PairVerdict(NamedTuple):
    """A judge's scores of two answers, in the order shown."""

    first: float
    second: float
    notes: str


class OrderDecidedError(GraderError):
    """The two orders name different winners, so there is no verdict."""

    type = ORDER_DECIDED

    def __init__(self, both: BothOrders, rationale: str | None, metadata: Mapping[str, Any]) -> None:
        first, second = (f"{_RESULT_TEXT[winner_of(value or 0.0)]} ({value or 0.0:+.3g})" for value in both)
        super().__init__(
            f"no score, because the orders disagree: the submission {first} when shown first,"
            f" and {second} when shown second"
        )
        self.rationale = rationale
        self.metadata = {**metadata, "favoured": both.favoured}


class PairwiseGrader(OneModelGrader[PairwiseConfig]):
    """Has a language model compare the submission with a baseline run's answer to the same case.

    Two calls show the answers in both orders. If both name the same winner, the mean difference of the scores counts;
    if not, the grade is an error of type ``order_decided``. The prompt is the criterion; both answers are appended to
    it. ``adapter`` replaces the configured model.
    """

    kind = "pairwise"
    name = "Pairwise judge"
    version = 2
    both_orders = True
    scoring_guide = (
        "0.5 for a tie, more if the submission is better than the baseline's answer, over both orders; passes from"
        " 0.5 (not worse); an error if the orders disagree. Beware of the biases of judges: length, format,"
        " position, self-preference."
    )
    needs = frozenset({"baseline"})

    @cached_property
    def fingerprint(self) -> str:
        """Covers the text of the prompt, the judge, its parameters, what it learned, and the baseline; never a key."""
        return self.with_learned(self._digest(_NOT_IN_FINGERPRINT))

    @property
    def judge_fingerprint(self) -> str:
        return self._digest((*_NOT_IN_FINGERPRINT, "baseline"))

    @property
    def prompt_hash(self) -> str:
        return self._prompt_fingerprint(self._text)

    @property
    def judge_id(self) -> str:
        return f"{self.kind}:{self.judges[0]}@{self.judge_fingerprint[:VERSION_DIGITS]}"

    def _digest(self, left_out: Sequence[str]) -> str:
        options = canonical_options(self.options)
        decided = {name: value for name, value in options.items() if name not in left_out}
        instruction = _instruction(self.options.reasoning)
        return fingerprint(self.noun, self.kind, self.version, self.judges, self._text, instruction, decided)

    def prepare(self) -> None:
        run_steps(lambda: self._text, lambda: self._adapter)

    def config_issues(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:  # noqa: ARG002 - no case is needed
        try:
            text = self._read(folder)
        except ConfigError as error:
            yield from (ConfigIssue(problem, fatal=True) for problem in error.problems)
            return
        if mentions_submission(text):
            source = "prompt" if self.options.prompt_path is None else "prompt_path"
            yield ConfigIssue(Problem(source, f"{{{SUBMISSION}}} is not filled in here; both answers are appended"))
        yield from system_prompt_issues(self.options.system_prompt)

    @cached_property
    def _text(self) -> str:
        return self._read(self.resources.folder)

    def _read(self, folder: Path | None) -> str:
        if self.options.prompt_path is not None:
            return file_text(folder, self.options.prompt_path, "prompt_path")
        return self.options.prompt or RUBRIC

    async def grade_case(self, ctx: GradeContext) -> MeteredResult:
        other = baseline_text(ctx)
        if other == ctx.submission:
            same = {"winner": "tie", "difference": 0.0, "flipped": False, "identical": True}
            return MeteredResult(GradeResult(TIE, "both answers are the same text; no judge was called", same, True))
        case = prompt_case(ctx, self.options.rubric_vars)
        rubric = sample_rubric(ctx.sample, self.resources.folder) or self._text
        shown = [(case.submission, other), (other, case.submission)]
        outcomes = await gather_all(self._asked(rubric, case, first, second) for first, second in shown)
        usage = total_usage(outcome.usage for outcome in outcomes)
        answers: list[JudgeAnswer[PairVerdict]] = []
        for outcome in outcomes:
            if isinstance(outcome, JudgeFailure):
                return MeteredResult(outcome.error, usage)
            answers.append(outcome)
        return MeteredResult(self._graded(rubric, answers), usage)

    async def _asked(
        self, rubric: str, case: PromptCase, first: str, second: str
    ) -> JudgeAnswer[PairVerdict] | JudgeFailure:
        options = self.options
        values = {**case.variables, INPUT: case.input, GROUND_TRUTH: case.ground_truth or ""}
        context = [("Task", "task", case.input), ("Ground truth", "ground truth", case.ground_truth)]
        sections = [Section(title, label, text) for title, label, text in context if text]
        sections += [Section("First answer", "first answer", first), Section("Second answer", "second answer", second)]
        prompt = sections_prompt(_TASK, fill(rubric, values), sections, _instruction(options.reasoning), Fence())
        request = ChatRequest(
            (Message("user", prompt),), response_schema=_schema(options.reasoning), schema_name=SCHEMA_NAME
        )
        config = options.run_config(options.model, options.system_prompt, self.budget)
        return await ask_judge(self._adapter, self._endpoint, self._access, request, config, _read_pair)

    def _prompt_fingerprint(self, rubric: str) -> str:
        return fingerprint("prompt", self.options.system_prompt, rubric, _instruction(self.options.reasoning))

    def _graded(self, rubric: str, answers: list[JudgeAnswer[PairVerdict]]) -> GradeResult | OrderDecidedError:
        shown_first, shown_second = (answered.value for answered in answers)
        both = BothOrders(shown_first.first - shown_first.second, shown_second.second - shown_second.first)
        metadata: dict[str, Any] = {
            "judge": self.judges[0],
            "model": answers[0].model,
            "prompt": self._prompt_fingerprint(rubric),
            "winner": both.winner,
            "difference": both.difference,
            "differences": both._asdict(),
            "flipped": both.flipped,
            "usage": usage_metadata(usage_of_calls(answered.usage for answered in answers)),
        }
        notes = notes_metadata(answers)
        if notes:
            metadata["notes"] = notes
        rationales = [("shown first", shown_first.notes), ("shown second", shown_second.notes)]
        reasons = "\n".join(f"{order}: {text}" for order, text in rationales if text) or None
        if both.score is None:
            return OrderDecidedError(both, reasons, metadata)
        return GradeResult(both.score, reasons, metadata, both.passed)


def baseline_text(ctx: GradeContext) -> str:
    """The baseline's submission; `MissingDataError` if there is none."""
    if ctx.baseline is None and ctx.baseline_submission is None:
        raise MissingDataError(
            "there is no baseline; name the run to compare with by the option baseline, or --baseline"
        )
    if ctx.baseline is not None and ctx.baseline.error is not None:
        raise MissingDataError(
            f"the baseline's call failed ({ctx.baseline.error.type}), so there is no answer to compare with"
        )
    text = ctx.baseline_submission
    if text is None and ctx.baseline is not None:
        text = ctx.baseline.text
    if text is None:
        raise MissingDataError("the baseline has no response to this case")
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
    scores: dict[str, Any] = {
        FIRST: number,
        SECOND: number,
        WINNER: {"type": "string", "enum": ["first", "second", "tie"]},
    }
    text = {RATIONALE: {"type": "string"}}
    return object_schema({**text, **scores} if reasoning else {**scores, **text})


def _read_pair(response: LLMResponse) -> PairVerdict:
    """Both scores; `InvalidReply` if they contradict the winner."""
    text = require_reply(response)
    data = read_object(text)
    first, second = read_score(data, FIRST, text), read_score(data, SECOND, text)
    winner = data.get(WINNER)
    loser = {"candidate": "second", "baseline": "first", "tie": None}[winner_of(first - second)]
    if winner not in ("first", "second", "tie", None) or (winner is not None and winner == loser):
        reason = f"the judge's reply names {quote(winner, 40)} the winner of {first:g} to {second:g}"
        raise InvalidReply(f"{reason}: {quote(text, 300)}", text)
    return PairVerdict(first, second, bounded_notes(data.get(RATIONALE)))
