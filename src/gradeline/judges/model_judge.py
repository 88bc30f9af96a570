"""A model as the judge of one submission, by a rubric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from gradeline.adapters.chat import ChatRequest, ChatResponse
from gradeline.errors import ConfigError, MissingDataError, Problem, UngradableError
from gradeline.graders.base import ConfigIssue, as_text
from gradeline.judges.base import (
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
from gradeline.judges.logprobs import ALTERNATIVES, Expected, expected_score
from gradeline.judges.options import (
    DEFAULT_SAMPLES,
    ApiKeyEnv,
    BaseUrl,
    Model,
    PromptOptions,
    Provider,
    file_text,
    model_faults,
)
from gradeline.judges.prompts import (
    GROUND_TRUTH,
    INPUT,
    RESERVED,
    SUBMISSION,
    Case,
    doubled,
    judge_prompt,
    mentions_submission,
    placeholders,
    shipped_rubric,
    with_submission,
)
from gradeline.judges.reply_formats import ChecklistForm, Form, Item, PatternForm, ScoreForm
from gradeline.judges.reply_parsing import PatternReply, Verdict, require_reply
from gradeline.model import GradeContext, GradeResult, Message, MeteredResult, Sample, fingerprint
from gradeline.model.config import canonical_options
from gradeline.model.grade import PASS_SCORE
from gradeline.model.llm import Budget, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.response import total_usage, usage_of_calls

SCHEMA_NAME = "JudgeResponse"
NOT_MENTIONED = f"the rubric does not mention {{{SUBMISSION}}}; the answer is appended"
_ONLY_QUESTIONS = "Answer the questions about the submission."
_NOT_DECIDING = ("prompt", "prompt_path", "rubric", "provider", "model", "api_key_env", "max_retries", "timeout")
"""Options that the fingerprint holds in another form, or that change no score."""


class ModelJudgeConfig(PromptOptions, frozen=True, kw_only=True):
    """Options of `ModelJudge`."""

    provider: Provider = "openai"
    model: Model = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        yield from model_faults(self.provider, self.model, self.base_url, self.api_key_env)


class Rubric(NamedTuple):
    """What a judge grades by. ``needs`` are the placeholders that a case must have a text for."""

    text: str
    form: Form
    needs: tuple[str, ...] = ()
    pass_score: float = PASS_SCORE
    id: str | None = None


class ModelJudge(JudgeGrader[ModelJudgeConfig]):
    """Asks a language model to grade the submission by a rubric.

    The submission is fenced off as data. Judges are biased by length, format, position and kinship: see the caveats
    of the listing, and calibrate a judge before it gates. ``adapter`` asks another than the configured model.
    """

    kind = "model_judge"
    name = "Model judge"
    case_rubrics = True
    scoring_guide = (
        "The judge's score from 0.0 to 1.0, or the weighted share of yes in a checklist; a reply without one is an"
        " error. Passes from 0.5, or where the shipped rubric says. Beware of the biases of judges: length, format,"
        " position, self-preference."
    )

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
        """Covers the text of the prompt, the judge and its parameters; never a key."""
        rubric = self.rubric
        options = canonical_options(self.options)
        return fingerprint(
            self.noun,
            self.kind,
            self.version,
            self.judges,
            with_submission(rubric.text),
            rubric.form.instruction,
            rubric.pass_score,
            {name: value for name, value in options.items() if name not in _NOT_DECIDING},
        )

    def make_ready(self) -> None:
        collected(lambda: self.rubric, lambda: self._adapter)

    def remarks(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:
        yield from prompt_remarks(self.options, folder, case)

    @cached_property
    def rubric(self) -> Rubric:
        """What it grades by, unless a case has a rubric of its own."""
        return rubric_of(self.options, self.resources.folder)

    def rubric_for(self, sample: Sample) -> Rubric:
        """What a case is graded by: a rubric of its own wins."""
        own = sample_rubric(sample, self.resources.folder)
        return self.rubric if own is None else Rubric(own, form_of(self.options))

    @cached_property
    def _place(self) -> Place:
        return Place.of(self.options)

    @cached_property
    def _adapter(self) -> LLMAdapter:
        return self._given or self._place.adapter(self.resources)

    def question(self, ctx: GradeContext) -> tuple[Rubric, Case]:
        """What the judge is asked; `GraderError` where the case lacks what the rubric speaks of."""
        rubric = self.rubric_for(ctx.sample)
        case = case_of(ctx, self.options.rubric_vars)
        require(rubric, case)
        return rubric, case

    async def judged(self, ctx: GradeContext) -> MeteredResult:
        rubric, case = self.question(ctx)
        count = (self.options.samples or DEFAULT_SAMPLES) if self.options.scoring == "samples" else 1
        outcomes = await together(self._asked(rubric, case, number) for number in range(count))
        usage = total_usage(outcome.usage for outcome in outcomes)
        answers: list[Answered[Verdict]] = []
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                return MeteredResult(outcome.error, usage)
            answers.append(outcome)
        return MeteredResult(self._graded(rubric, case, answers), usage)

    async def _asked(self, rubric: Rubric, case: Case, number: int) -> Answered[Verdict] | Failed:
        prompt = judge_prompt(rubric.text, case, rubric.form.instruction, Fence())
        request = ChatRequest(
            (Message("user", prompt),),
            response_schema=rubric.form.schema,
            schema_name=SCHEMA_NAME,
            logprobs=ALTERNATIVES if self.options.scoring == "logprobs" else None,
        )

        def read(response: LLMResponse) -> Verdict:
            return rubric.form.read(require_reply(response))

        return await put_question(self._adapter, self._place, self._access, request, self._config(number), read)

    def _config(self, number: int) -> RunConfig:
        options = self.options
        usual = 1.0 if options.scoring == "samples" else 0.0
        return options.run_config(options.model, options.system_prompt, self.budget, usual=usual, number=number)

    def _graded(self, rubric: Rubric, case: Case, answers: list[Answered[Verdict]]) -> GradeResult:
        verdicts = [answered.value for answered in answers]
        score, scoring = self._score(rubric, answers)
        nearest = min(verdicts, key=lambda verdict: abs(verdict.score - score))
        metadata: dict[str, Any] = {
            "judge": self.judges[0],
            "model": answers[0].model,
            "prompt": self._prompt_fingerprint(rubric),
            **scoring,
            "usage": usage_shown(usage_of_calls(answered.usage for answered in answers)),
        }
        if rubric.id is not None:
            metadata["rubric"] = rubric.id
        if nearest.raw_score is not None:
            metadata["raw_score"] = nearest.raw_score
        if isinstance(rubric.form, ChecklistForm):
            metadata["checklist"] = rubric.form.answers(nearest)
        notes = [*notes_shown(answers), *unfilled(rubric.text, case)]
        if notes:
            metadata["notes"] = notes
        return GradeResult(score, nearest.notes or None, metadata, score >= rubric.pass_score)

    def _prompt_fingerprint(self, rubric: Rubric) -> str:
        return fingerprint("prompt", self.options.system_prompt, with_submission(rubric.text), rubric.form.instruction)

    def _score(self, rubric: Rubric, answers: list[Answered[Verdict]]) -> tuple[float, dict[str, Any]]:
        """The score, and how it was come by."""
        scores = [answered.value.score for answered in answers]
        if self.options.scoring == "samples":
            return fmean(scores), {"scoring": "samples", "scores": scores}
        if self.options.scoring == "greedy":
            return scores[0], {"scoring": "greedy"}
        found = _by_logprobs(rubric.form, answers[0].response)
        if found.score is None:
            return scores[0], {"scoring": "mode", "scoring_reason": found.reason}
        return found.score, {"scoring": "logprobs", "mode": scores[0]}


def rubric_of(options: PromptOptions, folder: Path | None) -> Rubric:
    """What the options say to grade by; `ConfigError` where a file cannot be read."""
    form = form_of(options)
    if options.rubric is not None:
        shipped = shipped_rubric(options.rubric)
        if shipped.checklist:
            form = ChecklistForm([Item(item.question, item.weight) for item in shipped.checklist], options.reasoning)
        return Rubric(shipped.text, form, shipped.needs, shipped.pass_threshold, shipped.id)
    if options.prompt_path is not None:
        return Rubric(file_text(folder, options.prompt_path, "prompt_path"), form)
    return Rubric(options.prompt or _ONLY_QUESTIONS, form)


def form_of(options: PromptOptions) -> Form:
    """The form of reply that the options ask for."""
    if options.reply is not None:
        return PatternForm(PatternReply(options.reply.pattern, options.reply.min, options.reply.max))
    if options.checklist:
        items = [Item(one) if isinstance(one, str) else Item(one.question, one.weight) for one in options.checklist]
        return ChecklistForm(items, options.reasoning)
    return ScoreForm(options.reasoning)


def sample_rubric(sample: Sample, folder: Path | None) -> str | None:
    """The rubric of a case alone. Its file must lie beside the suite: it is sent to the judge."""
    if sample.rubric:
        return sample.rubric
    if not sample.rubric_path:
        return None
    home = (folder or Path()).resolve()
    if not (home / sample.rubric_path).resolve().is_relative_to(home):
        raise UngradableError(
            f"rubric_path: {sample.rubric_path!r} leads out of the suite's folder; put the file there"
        )
    try:
        return file_text(home, sample.rubric_path, "rubric_path")
    except ConfigError as error:
        raise MissingDataError(str(error)) from None


def case_of(ctx: GradeContext, given: dict[str, Any] | list[str]) -> Case:
    """What the judge is told of a case, with the variables of grader and case."""
    own = ctx.sample.rubric_vars
    taken = [name for name in own if name in RESERVED]
    if taken:
        raise UngradableError(f"rubric_vars: {taken[0]!r} always stands for the case's own; take another name")
    if isinstance(given, list):
        missing = [name for name in given if name not in own]
        if missing:
            raise MissingDataError(f"the case has no rubric_vars {', '.join(missing)}, which the grader asks for")
        given = {}
    asked = ctx.sample.input
    return Case(
        "\n".join(asked) if isinstance(asked, list) else asked,
        ctx.submission,
        ctx.expected,
        {name: as_text(value) or "" for name, value in {**given, **own}.items()},
    )


def require(rubric: Rubric, case: Case) -> None:
    """`MissingDataError` where a case lacks what the rubric speaks of."""
    told = {**case.variables, INPUT: case.input, SUBMISSION: case.submission, GROUND_TRUTH: case.ground_truth}
    missing = [name for name in rubric.needs if not told.get(name)]
    if missing:
        where = "" if missing[0] in RESERVED else "; give it in rubric_vars, of the grader or of the case"
        raise MissingDataError(f"the rubric {rubric.id} needs {{{missing[0]}}}, and the case has none{where}")


def unfilled(text: str, case: Case) -> list[dict[str, str]]:
    """The words in braces of a rubric that this case had nothing for, as metadata holds them."""
    known = {*RESERVED, *case.variables}
    why = "the case has no such rubric_vars, so it stood there as it is"
    return [{"what": f"{{{name}}}", "why": why} for name in placeholders(text) if name not in known]


def prompt_remarks(options: PromptOptions, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:
    """What a look at the files shows: a missing one, and a rubric whose placeholders are not as they may be meant."""
    source = "prompt" if options.prompt_path is None else "prompt_path"
    try:
        text = rubric_of(options, folder).text
    except ConfigError as error:
        yield from (ConfigIssue(problem, fatal=True) for problem in error.problems)
        return
    if options.prompt is not None or options.prompt_path is not None:
        yield from placeholder_remarks(text, source, options.rubric_vars, case)
    yield from system_prompt_remarks(options.system_prompt)


def system_prompt_remarks(text: str | None) -> Iterator[ConfigIssue]:
    """The parts of a case that a system prompt names: it is sent as it is."""
    for name in placeholders(text or ""):
        if name in RESERVED:
            yield ConfigIssue(Problem("system_prompt", f"{{{name}}} is not filled in here; use it in the rubric"))


def placeholder_remarks(
    text: str, source: str, given: dict[str, Any] | list[str], case: Sample | None
) -> Iterator[ConfigIssue]:
    """What may not be meant in a rubric's placeholders; ``source`` is the option that holds it."""
    if not mentions_submission(text):
        yield ConfigIssue(Problem(source, NOT_MENTIONED))
    known = {*RESERVED, *given, *(case.rubric_vars if case is not None else ())}
    for name in placeholders(text):
        if name not in known:
            told = f"{{{name}}} is no placeholder and stays as it is, unless a case has {name!r} in its rubric_vars"
            yield ConfigIssue(Problem(source, told))
    for name in doubled(text):
        yield ConfigIssue(
            Problem(source, f"{{{{{name}}}}} is literal text here; write {{{name}}} for the case's {name}")
        )


def _by_logprobs(form: Form, response: LLMResponse) -> Expected:
    tokens = response.logprobs if isinstance(response, ChatResponse) else ()
    return expected_score(tokens, response.content, form.place(response.content), form.scale)
