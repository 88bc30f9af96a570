"""The options that graders with a judge share, declared once."""

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
"""A model to name in a message, by provider: small ones that their providers recommend (2026-11-17)."""
_RETIRED = "earlier releases used gpt-4o-mini, which OpenAI retires on 14 January 2027"
DEFAULT_TIMEOUT_S = 120.0
DEFAULT_SAMPLES = 5
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_PROMPT_BYTES = 1_000_000

_Text = Annotated[str, Meta(min_length=1)]
ProviderName = Literal["openai", "openai_responses", "anthropic", "google", "gemini", "ollama", "vllm"]
Provider = Annotated[ProviderName, described("Who serves the judging model; google and gemini are the same.")]
Model = Annotated[_Text | None, described("The judging model, by the provider's name for it; required.")]
BaseUrl = Annotated[_Text | None, described("Where the model is served, if not at the provider's own address.")]
ApiKeyEnv = Annotated[
    _Text | None,
    described("The environment variable that holds the key, if not the provider's own."),
]
Prompt = Annotated[str | None, described("The rubric: how to grade, in words.")]
PromptPath = Annotated[str | None, described("The file that holds the rubric, beside the suite.")]
SystemPrompt = Annotated[str | None, described("What the judge is told before the rubric.")]
RubricVars = Annotated[
    dict[str, Any] | list[str],
    described("What the rubric's placeholders stand for; a list names those that every case must bring itself."),
]
Reasoning = Annotated[bool, described("Whether the judge gives its rationale before the score, not after it.")]


class CallOptions(Config, frozen=True, kw_only=True):
    """How a judging model is called."""

    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        described("How freely the judge chooses its words: 0.0, or 1.0 where `scoring` is samples."),
    ] = None
    max_tokens: Annotated[
        int, described("How long a reply may be; one that is cut off gets four times as much.", ge=1)
    ] = 2048
    seed: Annotated[
        int | None, described("Asks for the same reply to the same question; few providers keep to it.")
    ] = None
    max_retries: Annotated[
        int, described("How often a call is tried again after 429, 5xx and connection faults.", ge=0, le=20)
    ] = 2
    timeout: Annotated[
        float, described("Seconds that one call to the judge may take, retries included.", gt=0, le=86_400)
    ] = DEFAULT_TIMEOUT_S
    model_params: Annotated[dict[str, Any], described("Further parameters, as the provider names them.")] = field(
        default_factory=dict
    )

    def run_config(
        self, model: str | None, system: str | None, budget: Budget | None, *, usual: float = 0.0, number: int = 0
    ) -> RunConfig:
        """How one call is made; ``usual`` is the temperature unless one is said, ``number`` counts its repeats."""
        seed = {} if self.seed is None else {"seed": self.seed + number}
        return RunConfig(
            model=model or "",
            temperature=usual if self.temperature is None else self.temperature,
            max_tokens=self.max_tokens,
            system=system,
            timeout_s=self.timeout,
            model_params={**self.model_params, **seed},
            budget=budget,
        )


class ReplyOptions(Config, frozen=True, kw_only=True):
    """A rating in free text instead of JSON."""

    pattern: Annotated[
        str, described("An RE2 pattern whose one group is the number, such as \\[\\[(\\d+)\\]\\].", min_length=1)
    ]
    min: Annotated[float, described("The worst rating; it scores 0.0.")]
    max: Annotated[float, described("The best rating; it scores 1.0.")]

    def faults(self) -> Iterator[Problem]:
        try:
            PatternReply(self.pattern, self.min, self.max)
        except ConfigError as error:
            yield from error.problems


class CheckOption(Config, frozen=True, kw_only=True):
    """A question of a checklist."""

    question: Annotated[str, described("What the judge answers by yes or no; yes is good.", min_length=1)]
    weight: Annotated[float, described("How much it counts.", gt=0, le=1_000_000)] = 1.0


class PromptOptions(CallOptions, frozen=True, kw_only=True):
    """What a judge is asked, and how its reply becomes a score."""

    prompt: Prompt = None
    prompt_path: PromptPath = None
    rubric: Annotated[
        _Text | None,
        described(
            "A rubric of this package: closed_qa, factuality, faithfulness, helpfulness, refusal or summary_quality;"
            " factuality@1 names a version."
        ),
    ] = None
    system_prompt: SystemPrompt = None
    rubric_vars: RubricVars = field(default_factory=dict)
    reply: Annotated[
        ReplyOptions | None, described("Reads a rating such as [[8]] out of free text, instead of JSON.")
    ] = None
    checklist: Annotated[
        list[str | CheckOption], described("Yes/no questions; the score is the weighted share of yes.", max_length=50)
    ] = field(default_factory=list)
    reasoning: Reasoning = False
    scoring: Annotated[
        Literal["greedy", "samples", "logprobs"],
        described("One reply's score (greedy), the mean of several (samples), or the mean by log-probabilities."),
    ] = "greedy"
    samples: Annotated[
        Annotated[int, Meta(ge=2, le=50)] | None, described("How many replies `scoring: samples` takes: 5.")
    ] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        yield from one_source(self, "prompt", "prompt_path", "rubric")
        if self.prompt is self.prompt_path is self.rubric is None and not self.checklist:
            yield Problem("prompt", "is required: say how to grade by prompt, prompt_path, rubric or checklist")
        yield from reserved_names(self.rubric_vars)
        yield from self._faults_of_rubric()
        if self.reply is not None:
            yield from (fault.within("reply") for fault in self.reply.faults())
            for name, given in (("checklist", self.checklist), ("reasoning", self.reasoning)):
                if given:
                    yield Problem(name, "does not go with reply, where the prompt alone says how to answer; keep one")
        if self.checklist and self.scoring == "logprobs":
            yield Problem("scoring", "logprobs needs one number in the reply, and a checklist has none; use samples")
        if self.samples is not None and self.scoring != "samples":
            yield Problem("samples", "has no effect without scoring: samples")

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
            yield Problem("checklist", f"stands beside the rubric {shipped.id}; keep one of them")
        if shipped.checklist and self.scoring == "logprobs":
            yield Problem("scoring", f"logprobs needs one number, and {shipped.id} is a checklist; use samples")


def model_faults(provider: str, model: str | None, base_url: str | None, key_name: str | None) -> Iterator[Problem]:
    """What is wrong with where a judge is found."""
    if model is None:
        yield unnamed_model(provider)
    if base_url is not None:
        try:
            parts = urlsplit(base_url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            yield Problem("base_url", "must be an address such as http://127.0.0.1:8000/v1")
        elif parts.username or parts.password:
            yield Problem("base_url", "must hold no password; put the key into a variable that api_key_env names")
    if key_name is not None and not _VARIABLE.fullmatch(key_name):
        # Not quoted: it may well be the key itself.
        yield Problem("api_key_env", "must be the name of an environment variable such as OPENAI_API_KEY, not a key")


def unnamed_model(provider: str) -> Problem:
    """The problem of a judge that names no model."""
    suggested = _SUGGESTED.get(provider)
    such_as = f", such as model: {suggested}" if suggested else f" of {provider}"
    earlier = f"; {_RETIRED}" if provider == "openai" else ""
    return Problem("model", f"name the judging model{such_as}, here or with --set{earlier}")


def one_source(options: Config, *names: str) -> Iterator[Problem]:
    """A problem where a text comes from two places, or is none."""
    given = [name for name in names if getattr(options, name) is not None]
    if len(given) > 1:
        yield Problem(given[1], f"stands beside {given[0]!r}; keep one of them")
    for name in given:
        if not getattr(options, name).strip():
            yield Problem(name, "is empty; write something, or leave it out")


def reserved_names(variables: dict[str, Any] | list[str]) -> Iterator[Problem]:
    """A problem for each variable that would hide a part of the case."""
    for name in variables:
        if name in RESERVED:
            yield Problem("rubric_vars", f"{name!r} always stands for the case's own; take another name")


def file_text(folder: Path | None, path: str, option: str) -> str:
    """The text of a file beside the suite, or `ConfigError`."""
    file = (folder or Path()) / path
    try:
        if file.stat().st_size > _MAX_PROMPT_BYTES:
            raise ConfigError(Problem(option, f"{quote(path)} has over {_MAX_PROMPT_BYTES:,} bytes; that is no rubric"))
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or type(error).__name__
        raise ConfigError(Problem(option, f"{quote(path)} cannot be read: {reason}")) from None
    except UnicodeDecodeError:
        raise ConfigError(Problem(option, f"{quote(path)} is no text in UTF-8")) from None
    if not text.strip():
        raise ConfigError(Problem(option, f"{quote(path)} is empty"))
    return text
