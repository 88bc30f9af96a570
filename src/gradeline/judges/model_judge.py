"""A model as the judge of a submission, by a rubric."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from gradeline.adapters.chat import ChatRequest, ChatResponse
from gradeline.errors import ConfigError, MissingDataError, Problem, UngradableError
from gradeline.graders.base import ConfigIssue, as_text
from gradeline.judges.base import (
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
from gradeline.judges.logprobs import ALTERNATIVES, ExpectedScore, expected_score
from gradeline.judges.options import (
    DEFAULT_SAMPLES,
    SELECTIVE_OPTIONS,
    ApiKeyEnv,
    BaseUrl,
    Model,
    PromptOptions,
    Provider,
    file_text,
    model_faults,
)
from gradeline.judges.prompts import (
    CONTEXT,
    GROUND_TRUTH,
    INPUT,
    PLACEHOLDERS,
    RESERVED,
    SUBMISSION,
    PromptCase,
    doubled,
    judge_prompt,
    mentions_submission,
    placeholders,
    shipped_rubric,
    with_submission,
)
from gradeline.judges.reply_formats import ChecklistFormat, Item, LabelFormat, PatternFormat, ReplyFormat, ScoreFormat
from gradeline.judges.reply_parsing import JudgeVerdict, require_reply
from gradeline.judges.statements import STATEMENTS, StatementsFormat, Verdicts
from gradeline.model import GradeContext, GradeResult, Message, MeteredResult, Sample, fingerprint
from gradeline.model.config import canonical_options
from gradeline.model.grade import PASS_SCORE
from gradeline.model.llm import LLMResponse, RunConfig
from gradeline.model.response import UNKNOWN_DOCUMENTS, total_usage, usage_of_calls

SCHEMA_NAME = "JudgeResponse"
NOT_MENTIONED = f"the rubric does not mention {{{SUBMISSION}}}; the submission is appended"
_ONLY_QUESTIONS = "Answer the questions about the submission."
_NOT_IN_FINGERPRINT = (
    *("prompt", "prompt_path", "rubric", "provider", "model", "api_key_env", "max_retries", "timeout"),
    *SELECTIVE_OPTIONS,
)
"""Options that the fingerprint covers in another form, or that do not affect scores."""


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
    """What a judge grades by. ``needs`` are the placeholders that every case must fill."""

    text: str
    reply_format: ReplyFormat
    needs: tuple[str, ...] = ()
    pass_score: float = PASS_SCORE
    id: str | None = None
    shows_submission: bool = True

    @property
    def whole_text(self) -> str:
        """The text with the placeholder of the submission, unless the judge does not see that."""
        return with_submission(self.text) if self.shows_submission else self.text


class ModelJudge(OneModelGrader[ModelJudgeConfig]):
    """Has a language model grade the submission by a rubric.

    The submission is fenced as data. Judges are biased by length, format, position and model family: see the caveats
    in the listing, and calibrate a judge before you use it in a gate. ``adapter`` replaces the configured model.
    """

    kind = "model_judge"
    name = "Model judge"
    case_rubrics = True
    scoring_guide = (
        "The judge's score from 0.0 to 1.0, or the weighted share of yes in a checklist; a reply without one is an"
        " error. Passes from 0.5, or from the threshold of a shipped rubric. Beware of the biases of judges: length,"
        " format, position, self-preference."
    )

    @property
    def reads_submission(self) -> bool:
        return self.options.shows_submission

    @cached_property
    def fingerprint(self) -> str:
        """Covers the text of the prompt, the judge, its parameters and what it learned; never a key."""
        return self.with_learned(self.judge_fingerprint)

    @cached_property
    def judge_fingerprint(self) -> str:
        rubric = self.rubric
        options = canonical_options(self.options)
        return fingerprint(
            self.noun,
            self.kind,
            self.version,
            self.judges,
            rubric.whole_text,
            rubric.reply_format.instruction,
            rubric.pass_score,
            {name: value for name, value in options.items() if name not in _NOT_IN_FINGERPRINT},
        )

    @property
    def prompt_hash(self) -> str:
        return self._prompt_fingerprint(self.rubric)

    @property
    def rubric_version(self) -> str:
        return self.rubric.id or ""

    def prepare(self) -> None:
        run_steps(lambda: self.rubric, lambda: self._adapter)

    def config_issues(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:
        yield from prompt_issues(self.options, folder, case)

    @cached_property
    def rubric(self) -> Rubric:
        """The grader's rubric, for cases without a rubric of their own."""
        return rubric_of(self.options, self.resources.folder)

    def rubric_for(self, sample: Sample) -> Rubric:
        """The rubric for a case: its own, or else the grader's."""
        own = sample_rubric(sample, self.resources.folder)
        return self.rubric if own is None else Rubric(own, reply_format_of(self.options))

    def pass_score_of(self, ctx: GradeContext) -> float:
        return self.rubric_for(ctx.sample).pass_score if self.pass_threshold is None else self.pass_threshold

    def question(self, ctx: GradeContext) -> tuple[Rubric, PromptCase]:
        """Rubric and texts for the prompt; `GraderError` if the case lacks something that the rubric needs."""
        rubric = self.rubric_for(ctx.sample)
        case = prompt_case(ctx, self.options.rubric_vars)
        require_context(rubric.text, case)
        require_placeholders(rubric, case)
        if isinstance(rubric.reply_format, StatementsFormat):
            texts = (case.submission,) if rubric.reply_format.cites == SUBMISSION else case.documents or ()
            rubric = rubric._replace(reply_format=rubric.reply_format.for_texts(texts))
        return rubric, case

    async def grade_case(self, ctx: GradeContext) -> MeteredResult:
        rubric, case = self.question(ctx)
        count = (self.options.samples or DEFAULT_SAMPLES) if self.options.scoring == "samples" else 1
        outcomes = await gather_all(self._asked(rubric, case, number) for number in range(count))
        usage = total_usage(outcome.usage for outcome in outcomes)
        answers: list[JudgeAnswer[JudgeVerdict]] = []
        for outcome in outcomes:
            if isinstance(outcome, JudgeFailure):
                return MeteredResult(outcome.error, usage)
            answers.append(outcome)
        return MeteredResult(self._graded(rubric, case, answers), usage)

    async def _asked(self, rubric: Rubric, case: PromptCase, number: int) -> JudgeAnswer[JudgeVerdict] | JudgeFailure:
        prompt = judge_prompt(
            rubric.text, case, rubric.reply_format.instruction, Fence(), shows_submission=rubric.shows_submission
        )
        request = ChatRequest(
            (Message("user", prompt),),
            response_schema=rubric.reply_format.schema,
            schema_name=SCHEMA_NAME,
            logprobs=ALTERNATIVES if self.options.scoring == "logprobs" else None,
        )

        def read(response: LLMResponse) -> JudgeVerdict:
            return rubric.reply_format.read(require_reply(response))

        return await ask_judge(self._adapter, self._endpoint, self._access, request, self._config(number), read)

    def _config(self, number: int) -> RunConfig:
        options = self.options
        default_temperature = 1.0 if options.scoring == "samples" else 0.0
        return options.run_config(
            options.model, options.system_prompt, self.budget, default_temperature=default_temperature, number=number
        )

    def _graded(self, rubric: Rubric, case: PromptCase, answers: list[JudgeAnswer[JudgeVerdict]]) -> GradeResult:
        verdicts = [answered.value for answered in answers]
        score, scoring = self._score(rubric, answers)
        nearest = min(verdicts, key=lambda verdict: abs(verdict.score - score))
        metadata: dict[str, Any] = {
            "judge": self.judges[0],
            "model": answers[0].model,
            "prompt": self._prompt_fingerprint(rubric),
            **scoring,
            "usage": usage_metadata(usage_of_calls(answered.usage for answered in answers)),
        }
        if rubric.id is not None:
            metadata["rubric"] = rubric.id
        if nearest.raw_score is not None:
            metadata["raw_score"] = nearest.raw_score
        if nearest.label is not None:
            metadata["label"] = nearest.label
            if len(verdicts) > 1:
                metadata["labels"] = [verdict.label for verdict in verdicts]
        if isinstance(rubric.reply_format, ChecklistFormat):
            metadata["checklist"] = rubric.reply_format.answers(nearest)
        if isinstance(rubric.reply_format, StatementsFormat):
            metadata[STATEMENTS] = nearest.data[STATEMENTS]
        notes = [*notes_metadata(answers), *unfilled(rubric.text, case)]
        if notes:
            metadata["notes"] = notes
        return GradeResult(score, nearest.notes or None, metadata, score >= rubric.pass_score)

    def _prompt_fingerprint(self, rubric: Rubric) -> str:
        return fingerprint("prompt", self.options.system_prompt, rubric.whole_text, rubric.reply_format.instruction)

    def _score(self, rubric: Rubric, answers: list[JudgeAnswer[JudgeVerdict]]) -> tuple[float, dict[str, Any]]:
        """The score, and the metadata about how it was computed."""
        scores = [answered.value.score for answered in answers]
        if self.options.scoring == "samples":
            return fmean(scores), {"scoring": "samples", "scores": scores}
        if self.options.scoring == "greedy":
            return scores[0], {"scoring": "greedy"}
        found = _by_logprobs(rubric.reply_format, answers[0].response)
        if found.score is None:
            return scores[0], {"scoring": "mode", "scoring_reason": found.reason}
        return found.score, {"scoring": "logprobs", "mode": scores[0]}


def rubric_of(options: PromptOptions, folder: Path | None) -> Rubric:
    """The rubric that the options define; `ConfigError` if its file cannot be read."""
    reply_format = reply_format_of(options)
    if options.rubric is not None:
        shipped = shipped_rubric(options.rubric)
        if shipped.checklist:
            reply_format = ChecklistFormat(
                [Item(item.question, item.weight) for item in shipped.checklist], options.reasoning
            )
        listed = shipped.statements
        if listed is not None:
            reply_format = StatementsFormat(listed.of, Verdicts(listed.good, listed.others), listed.cites)
        return Rubric(
            shipped.text, reply_format, shipped.needs, shipped.pass_threshold, shipped.id, shipped.shows_submission
        )
    if options.prompt_path is not None:
        return Rubric(file_text(folder, options.prompt_path, "prompt_path"), reply_format)
    return Rubric(options.prompt or _ONLY_QUESTIONS, reply_format)


def reply_format_of(options: PromptOptions) -> ReplyFormat:
    """The reply format that the options request."""
    if options.reply is not None and options.reply.choices:
        return LabelFormat(options.reply.choices, options.reasoning)
    rating = None if options.reply is None else options.reply.pattern_reply()
    if rating is not None:
        return PatternFormat(rating)
    if options.checklist:
        items = [Item(one) if isinstance(one, str) else Item(one.question, one.weight) for one in options.checklist]
        return ChecklistFormat(items, options.reasoning)
    return ScoreFormat(options.reasoning)


def sample_rubric(sample: Sample, folder: Path | None) -> str | None:
    """The case's own rubric. Its file must be in the suite's folder, because its text is sent to the judge."""
    if sample.rubric:
        return sample.rubric
    if not sample.rubric_path:
        return None
    home = (folder or Path()).resolve()
    if not (home / sample.rubric_path).resolve().is_relative_to(home):
        raise UngradableError(
            f"rubric_path: {sample.rubric_path!r} is outside the suite's folder; move the file into it"
        )
    try:
        return file_text(home, sample.rubric_path, "rubric_path")
    except ConfigError as error:
        raise MissingDataError(str(error)) from None


def prompt_case(ctx: GradeContext, variables: dict[str, Any] | list[str]) -> PromptCase:
    """The texts of a case for the prompt, with the variables of grader and case."""
    own = ctx.sample.rubric_vars
    taken = [name for name in own if name in RESERVED]
    if taken:
        raise UngradableError(f"rubric_vars: {taken[0]!r} is reserved for the case; use another name")
    if isinstance(variables, list):
        missing = [name for name in variables if name not in own]
        if missing:
            raise MissingDataError(f"the case has no rubric_vars {', '.join(missing)}, which the grader requires")
        variables = {}
    turns = ctx.sample.input
    texts = {name: as_text(value) or "" for name, value in {**variables, **own}.items()}
    documents = None if ctx.documents is None else tuple(document.text for document in ctx.documents)
    return PromptCase(
        "\n".join(turns) if isinstance(turns, list) else turns,
        ctx.submission,
        ctx.expected,
        texts,
        (texts[CONTEXT],) if CONTEXT in texts else documents,
    )


def require_context(text: str, case: PromptCase) -> None:
    """Raise `MissingDataError` if a rubric mentions the documents and they are unknown."""
    if case.documents is None and CONTEXT in placeholders(text):
        raise MissingDataError(f"the rubric mentions {{{CONTEXT}}}; {UNKNOWN_DOCUMENTS}; or set it in rubric_vars")


def require_placeholders(rubric: Rubric, case: PromptCase) -> None:
    """Raise `MissingDataError` if a case lacks a placeholder that the rubric needs."""
    values = {**case.variables, INPUT: case.input, SUBMISSION: case.submission, GROUND_TRUTH: case.ground_truth}
    missing = [name for name in rubric.needs if name != CONTEXT and not values.get(name)]
    if missing:
        where = "" if missing[0] in RESERVED else "; set it in rubric_vars, of the grader or of the case"
        raise MissingDataError(f"the rubric {rubric.id} needs {{{missing[0]}}}, and the case has none{where}")


def unfilled(text: str, case: PromptCase) -> list[dict[str, str]]:
    """Notes for the placeholders of a rubric that this case did not fill."""
    known = {*PLACEHOLDERS, *case.variables}
    why = "the case has no such rubric_vars, so the placeholder was sent as literal text"
    return [{"what": f"{{{name}}}", "why": why} for name in placeholders(text) if name not in known]


def prompt_issues(options: PromptOptions, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:
    """Missing files, and placeholders of the rubric that are probably mistakes."""
    source = "prompt" if options.prompt_path is None else "prompt_path"
    try:
        text = rubric_of(options, folder).text
    except ConfigError as error:
        yield from (ConfigIssue(problem, fatal=True) for problem in error.problems)
        return
    if options.prompt is not None or options.prompt_path is not None:
        yield from placeholder_issues(text, source, options.rubric_vars, case)
    yield from system_prompt_issues(options.system_prompt)


def system_prompt_issues(text: str | None) -> Iterator[ConfigIssue]:
    """Placeholders in a system prompt, which is sent as literal text."""
    for name in placeholders(text or ""):
        if name in PLACEHOLDERS:
            yield ConfigIssue(Problem("system_prompt", f"{{{name}}} is not filled in here; use it in the rubric"))


def placeholder_issues(
    text: str, source: str, variables: dict[str, Any] | list[str], case: Sample | None
) -> Iterator[ConfigIssue]:
    """Placeholders of a rubric that are probably mistakes; ``source`` is the option that contains it."""
    if not mentions_submission(text):
        yield ConfigIssue(Problem(source, NOT_MENTIONED))
    known = {*PLACEHOLDERS, *variables, *(case.rubric_vars if case is not None else ())}
    for name in placeholders(text):
        if name not in known:
            reason = f"{{{name}}} is literal text, not a placeholder, unless a case has {name!r} in its rubric_vars"
            yield ConfigIssue(Problem(source, reason))
    for name in doubled(text):
        yield ConfigIssue(
            Problem(source, f"{{{{{name}}}}} is literal text here; write {{{name}}} for the case's {name}")
        )


def _by_logprobs(reply_format: ReplyFormat, response: LLMResponse) -> ExpectedScore:
    tokens = response.logprobs if isinstance(response, ChatResponse) else ()
    span = reply_format.score_span(response.content)
    return expected_score(tokens, response.content, span, reply_format.scale)
