"""Options shared by graders with a judge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, field

from gradeline.errors import ConfigError, Problem
from gradeline.judges.prompts import RESERVED, shipped_rubric
from gradeline.judges.reply_parsing import PatternReply
from gradeline.model import Config, described, quote
from gradeline.model.llm import Budget, RunConfig

_SUGGESTED = {"openai": "gpt-6-luna", "openai_responses": "gpt-6-luna", "anthropic": "claude-haiku-5-5"}
"""A model to suggest in messages, by provider: small ones that their providers recommend (2026-11-17)."""
_RETIRED_DEFAULT = "earlier releases used gpt-4o-mini, which OpenAI retires on 14 January 2027"
DEFAULT_TIMEOUT_S = 120.0
DEFAULT_SAMPLES = 5
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_LABELS, MAX_LABEL_CHARS = 50, 50
_MAX_PROMPT_BYTES = 1_000_000

_Text = Annotated[str, Meta(min_length=1)]
ProviderName = Literal["openai", "openai_responses", "anthropic", "google", "gemini", "ollama", "vllm"]
Provider = Annotated[ProviderName, described("Provider of the judge; google and gemini are the same.")]
Model = Annotated[_Text | None, described("Model that judges, by the provider's name; required.")]
BaseUrl = Annotated[_Text | None, described("Base URL of the model, if not the provider's own.")]
ApiKeyEnv = Annotated[
    _Text | None,
    described("Environment variable with the API key, if not the provider's own."),
]
Prompt = Annotated[str | None, described("Rubric: instructions for grading.")]
PromptPath = Annotated[str | None, described("File with the rubric, relative to the suite.")]
SystemPrompt = Annotated[str | None, described("System prompt, sent before the rubric.")]
RubricVars = Annotated[
    dict[str, Any] | list[str],
    described("Values of the rubric's placeholders; a list names variables that every case must define."),
]
Reasoning = Annotated[bool, described("Request the rationale before the score (default after).")]


class CallOptions(Config, frozen=True, kw_only=True):
    """Parameters of a judge's calls."""

    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        described("Sampling temperature (default 0.0, with `scoring: samples` 1.0)."),
    ] = None
    max_tokens: Annotated[
        int, described("Maximum tokens of a reply; one that is cut off is retried with four times as many.", ge=1)
    ] = 2048
    seed: Annotated[int | None, described("Seed for reproducible replies; few providers honour it.")] = None
    max_retries: Annotated[int, described("Retries of a call after 429, 5xx and connection errors.", ge=0, le=20)] = 2
    timeout: Annotated[float, described("Timeout of a judge call in seconds, including retries.", gt=0, le=86_400)] = (
        DEFAULT_TIMEOUT_S
    )
    model_params: Annotated[dict[str, Any], described("Further parameters, as the provider names them.")] = field(
        default_factory=dict
    )

    def run_config(
        self,
        model: str | None,
        system: str | None,
        budget: Budget | None,
        *,
        default_temperature: float = 0.0,
        number: int = 0,
    ) -> RunConfig:
        """The config of one call; ``number`` counts repeats and is added to the seed."""
        seed = {} if self.seed is None else {"seed": self.seed + number}
        return RunConfig(
            model=model or "",
            temperature=default_temperature if self.temperature is None else self.temperature,
            max_tokens=self.max_tokens,
            system=system,
            timeout_s=self.timeout,
            model_params={**self.model_params, **seed},
            budget=budget,
        )


class JudgeModel(Config, frozen=True, kw_only=True):
    """A further model of a judge; options it does not set are those of the grader."""

    provider: Provider = "openai"
    model: Model = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, described("Temperature of this judge.")] = None
    max_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, described("Maximum tokens of this judge's replies.")] = (
        None
    )
    seed: Annotated[int | None, described("Seed of this judge.")] = None
    model_params: Annotated[dict[str, Any] | None, described("Further parameters of this judge.")] = None

    def faults(self) -> Iterator[Problem]:
        yield from model_faults(self.provider, self.model, self.base_url, self.api_key_env)


class SelectiveOptions(CallOptions, frozen=True, kw_only=True):
    """Options of judges that decide only what they are sure of."""

    agreement: Annotated[
        Annotated[float, Meta(gt=0.5, lt=1)] | None,
        described(
            "Minimum share of decided cases in which the verdict agrees with labels, such as 0.9 (default: every case"
            " is decided); takes effect after gradeline calibrate."
        ),
    ] = None
    escalate: Annotated[
        JudgeModel | None,
        described("Model that judges the cases that this judge is not sure of (default: they are errors, unsure)."),
    ] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        if self.escalate is None:
            return
        if self.agreement is None:
            yield Problem("escalate", "has no effect without agreement; write agreement: 0.9 too, or leave it out")
        yield from (fault.within("escalate") for fault in self.escalate.faults())


SELECTIVE_OPTIONS = ("agreement", "escalate")
"""Options that do not change a judge's verdicts, only which of them count."""


class ReplyOptions(Config, frozen=True, kw_only=True):
    """One of several labels, or a rating in free text, instead of a score."""

    choices: Annotated[
        dict[str, float],
        described("Labels of which the judge replies with exactly one, each with its score from 0 to 1."),
    ] = field(default_factory=dict)
    pattern: Annotated[
        _Text | None, described("RE2 pattern whose only group is the number, such as \\[\\[(\\d+)\\]\\].")
    ] = None
    min: Annotated[float | None, described("Worst rating of pattern; scores 0.0.")] = None
    max: Annotated[float | None, described("Best rating of pattern; scores 1.0.")] = None

    def faults(self) -> Iterator[Problem]:
        if self.choices:
            yield from label_faults(self.choices)
            for name in ("pattern", "min", "max"):
                if getattr(self, name) is not None:
                    yield Problem(name, "conflicts with choices, whose labels have scores; keep one of them")
            return
        missing = [name for name in ("pattern", "min", "max") if getattr(self, name) is None]
        if len(missing) == 3:
            yield Problem("choices", "is required: write choices: {label: score}, or pattern with min and max")
            return
        for name in missing:
            yield Problem(name, "is required")
        try:
            self.pattern_reply()
        except ConfigError as error:
            yield from error.problems

    def pattern_reply(self) -> PatternReply | None:
        """The rating's pattern; `ConfigError` if it is invalid, None if it is not complete."""
        if self.pattern is None or self.min is None or self.max is None:
            return None
        return PatternReply(self.pattern, self.min, self.max)


def label_faults(choices: dict[str, float]) -> Iterator[Problem]:
    """Problems of the labels that a judge may reply with."""
    if not 2 <= len(choices) <= MAX_LABELS:
        yield Problem("choices", f"has {len(choices)} label{'' if len(choices) == 1 else 's'}; write 2 to {MAX_LABELS}")
    seen: dict[str, str] = {}
    for label, score in choices.items():
        if not 1 <= len(label) <= MAX_LABEL_CHARS or label != label.strip() or not label.isprintable():
            yield Problem(
                "choices", f"invalid label {quote(label)}: use 1 to {MAX_LABEL_CHARS} characters on one line, trimmed"
            )
        elif '"' in label or "\\" in label:
            yield Problem("choices", f"invalid label {quote(label)}: leave out quotation marks and backslashes")
        if not 0 <= score <= 1:
            yield Problem(f"choices.{label}", f"must be a score from 0 to 1, got {score!r}")
        earlier = seen.setdefault(label.casefold(), label)
        if earlier != label:
            yield Problem("choices", f"{quote(label)} and {quote(earlier)} differ only in case; rename one of them")


class CheckOption(Config, frozen=True, kw_only=True):
    """A question of a checklist."""

    question: Annotated[str, described("Yes/no question for the judge; yes is good.", min_length=1)]
    weight: Annotated[float, described("Relative weight (default 1).", gt=0, le=1_000_000)] = 1.0


class PromptOptions(SelectiveOptions, frozen=True, kw_only=True):
    """The judge's prompt, and how its reply becomes a score."""

    prompt: Prompt = None
    prompt_path: PromptPath = None
    rubric: Annotated[
        _Text | None,
        described(
            "Shipped rubric: answer_relevance, closed_qa, context_recall, context_relevance, factuality, faithfulness,"
            " helpfulness, refusal or summary_quality; factuality@1 selects a version."
        ),
    ] = None
    system_prompt: SystemPrompt = None
    rubric_vars: RubricVars = field(default_factory=dict)
    reply: Annotated[
        ReplyOptions | None,
        described("Read one of several labels (choices), or a rating such as [[8]] in free text (pattern)."),
    ] = None
    checklist: Annotated[
        list[str | CheckOption], described("Yes/no questions; the score is the weighted share of yes.", max_length=50)
    ] = field(default_factory=list)
    reasoning: Reasoning = False
    scoring: Annotated[
        Literal["greedy", "samples", "logprobs"],
        described("Score of one reply (greedy), mean of several (samples), or mean by log-probabilities."),
    ] = "greedy"
    samples: Annotated[
        Annotated[int, Meta(ge=2, le=50)] | None, described("Number of replies for `scoring: samples` (default 5).")
    ] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        yield from exclusive_sources(self, "prompt", "prompt_path", "rubric")
        if self.prompt is self.prompt_path is self.rubric is None and not self.checklist:
            yield Problem("prompt", "is required: define the grading with prompt, prompt_path, rubric or checklist")
        yield from reserved_names(self.rubric_vars)
        yield from self._faults_of_rubric()
        if self.reply is not None:
            yield from (fault.within("reply") for fault in self.reply.faults())
            if self.checklist:
                yield Problem("checklist", "conflicts with reply; keep one of them")
            if self.reasoning and self.reply.pattern is not None:
                yield Problem("reasoning", "conflicts with reply.pattern, where the prompt defines the format")
        if self.checklist and self.scoring == "logprobs":
            yield Problem("scoring", "logprobs needs one number in the reply, but a checklist has none; use samples")
        if self.samples is not None and self.scoring != "samples":
            yield Problem("samples", "has no effect without scoring: samples")

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        reply = schema["$defs"][ReplyOptions.__name__]
        reply["oneOf"] = [{"required": ["choices"]}, {"required": ["pattern", "min", "max"]}]
        return schema

    def _faults_of_rubric(self) -> Iterator[Problem]:
        if self.rubric is None:
            return
        try:
            shipped = shipped_rubric(self.rubric)
        except ConfigError as error:
            yield from error.problems
            return
        if self.reply is not None:
            yield Problem("reply", f"the rubric {shipped.id} has a scale of its own; keep one of them")
        if self.checklist:
            yield Problem("checklist", f"conflicts with the rubric {shipped.id}; keep one of them")
        form = "is a checklist" if shipped.checklist else "judges statements" if shipped.statements else None
        if form is not None and self.scoring == "logprobs":
            yield Problem("scoring", f"logprobs needs one number, and {shipped.id} {form}; use samples")
        if shipped.statements and self.reasoning:
            yield Problem("reasoning", f"has no effect: {shipped.id} asks for the evidence before each verdict")

    @property
    def shows_submission(self) -> bool:
        """Whether the judge sees the submission; some shipped rubrics judge only what was retrieved."""
        return self.rubric is None or shipped_rubric(self.rubric).shows_submission


def model_faults(provider: str, model: str | None, base_url: str | None, key_name: str | None) -> Iterator[Problem]:
    """Problems of the options that define a judge's endpoint."""
    if model is None:
        yield missing_model(provider)
    if base_url is not None:
        try:
            parts = urlsplit(base_url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            yield Problem("base_url", "must be an address such as http://127.0.0.1:8000/v1")
        elif parts.username or parts.password:
            yield Problem("base_url", "must not contain a password; name the key's variable with api_key_env")
    if key_name is not None and not _VARIABLE.fullmatch(key_name):
        # Not quoted: it may be the key itself.
        yield Problem("api_key_env", "must be the name of an environment variable such as OPENAI_API_KEY, not a key")


def missing_model(provider: str) -> Problem:
    """The problem of a judge without a model."""
    suggested = _SUGGESTED.get(provider)
    such_as = f", such as model: {suggested}" if suggested else f" of {provider}"
    earlier = f"; {_RETIRED_DEFAULT}" if provider == "openai" else ""
    return Problem("model", f"name the judging model{such_as}, here or with --set{earlier}")


def exclusive_sources(options: Config, *names: str) -> Iterator[Problem]:
    """Problems if several of these options are set, or one of them is blank."""
    present = [name for name in names if getattr(options, name) is not None]
    if len(present) > 1:
        yield Problem(present[1], f"conflicts with {present[0]!r}; keep one of them")
    for name in present:
        if not getattr(options, name).strip():
            yield Problem(name, "is empty; write something, or leave it out")


def reserved_names(variables: dict[str, Any] | list[str]) -> Iterator[Problem]:
    """A problem for each variable with a reserved name."""
    for name in variables:
        if name in RESERVED:
            yield Problem("rubric_vars", f"{name!r} is reserved for the case; use another name")


def file_text(folder: Path | None, path: str, option: str) -> str:
    """The text of a file relative to the suite; `ConfigError` if it cannot be read."""
    file = (folder or Path()) / path
    try:
        if file.stat().st_size > _MAX_PROMPT_BYTES:
            raise ConfigError(
                Problem(option, f"{quote(path)} is larger than {_MAX_PROMPT_BYTES:,} bytes, the maximum of a rubric")
            )
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or type(error).__name__
        raise ConfigError(Problem(option, f"{quote(path)} cannot be read: {reason}")) from None
    except UnicodeDecodeError:
        raise ConfigError(Problem(option, f"{quote(path)} is not valid UTF-8")) from None
    if not text.strip():
        raise ConfigError(Problem(option, f"{quote(path)} is empty"))
    return text
