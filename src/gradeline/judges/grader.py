"""What all graders with a judge share: where they find it, how they ask it, and what becomes of its failures."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import msgspec

from gradeline.adapters import blocking, create
from gradeline.adapters.chat import ChatRequest, Note
from gradeline.adapters.endpoint import Settings
from gradeline.adapters.failures import ModelError
from gradeline.adapters.registry import PROVIDERS
from gradeline.errors import BudgetExceeded, ConfigError, GraderError, Problem
from gradeline.graders.base import C, DeclaredGrader, Surroundings
from gradeline.judges.asking import Answered, ask
from gradeline.judges.options import DEFAULT_MODELS
from gradeline.judges.replies import ReplyError
from gradeline.model import GradeContext, GradeResult, Judged, quote
from gradeline.model.llm import Budget, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.response import Usage

T = TypeVar("T")

CAVEATS = (
    "Length: judges tend to prefer the longer answer, whatever it says.",
    "Format: lists, bold words, links and a confident tone move scores.",
    "Position: of two answers the one shown first (or last) is favoured; compare in both orders.",
    "Self-preference: a model favours answers of its own family; let another family judge.",
)
"""What is known to bend the scores of language models as judges."""
MAX_CHARS = 2_000_000
"""More than any model reads."""
_MAX_SAID = 300
_SAME = {"google": "gemini"}
_REFUSALS = {
    "key": "the provider lets nobody in with this key",
    "model": "the provider does not know this model or address",
    "quota": "the provider says that the account is used up",
}


class JudgeFailedError(GraderError):
    """The judge could not be asked: its server failed, or could not be reached."""

    type = "judge_failed"


class OverBudgetError(GraderError):
    """The judge was not asked, because that would have passed a limit."""

    type = "budget"


class Findable(Protocol):
    """Options that say where a judge is found."""

    @property
    def provider(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    @property
    def base_url(self) -> str | None: ...

    @property
    def api_key_env(self) -> str | None: ...

    @property
    def max_retries(self) -> int: ...

    @property
    def timeout(self) -> float: ...


class Place(NamedTuple):
    """Where a judge is found."""

    provider: str
    model: str | None
    base_url: str | None = None
    api_key_env: str | None = None
    max_retries: int = 2
    timeout: float = 120.0

    @classmethod
    def of(cls, options: Findable) -> Place:
        """The place that the options name."""
        return cls(
            options.provider,
            options.model,
            options.base_url,
            options.api_key_env,
            options.max_retries,
            options.timeout,
        )

    @property
    def judge(self) -> str:
        """What its adapter is called."""
        provider = _SAME.get(self.provider, self.provider)
        return f"{provider}:{self.model or DEFAULT_MODELS.get(provider, '')}"

    def adapter(self, surroundings: Surroundings) -> LLMAdapter:
        """Speaks with it; `ConfigError` where a key is missing."""
        provider, _, model = self.judge.partition(":")
        environment = surroundings.environment
        with self.asking_for_key():
            found: LLMAdapter = create(
                provider,
                model,
                base_url=self.base_url,
                api_key=self.key(environment),
                settings=self.settings(surroundings),
                environment=environment,
            )
        return found

    def settings(self, surroundings: Surroundings) -> Settings:
        """How it is called."""
        return Settings(retries=self.max_retries, timeout_s=self.timeout, open_transport=surroundings.open_transport)

    @contextmanager
    def asking_for_key(self) -> Iterator[None]:
        """Says of a key that an adapter misses how a suite gives one."""
        try:
            yield
        except ConfigError as error:
            if [problem.path for problem in error.problems] != ["api_key"]:
                raise
            told = f"{self.judge} needs a key; {self.remedy('key')}, in the environment or in .env beside the suite"
            raise ConfigError(Problem("api_key_env", told)) from None

    def remedy(self, obstacle: str) -> str:
        """What a person can do about an obstacle."""
        if obstacle == "model":
            return "check model, provider and base_url"
        if obstacle == "quota":
            return "top it up, or let another model judge"
        known = None if self.base_url else PROVIDERS.get(self.judge.partition(":")[0])
        names = self.api_key_env or " or ".join(known.key_names if known else ())
        return f"put a valid key into {names}" if names else "name the variable that holds a valid key by api_key_env"

    def key(self, environment: Mapping[str, str] | None) -> str | None:
        """What lets the caller in, where the options name its variable; `ConfigError` where that is missing."""
        if self.api_key_env is None:
            return None
        key = (os.environ if environment is None else environment).get(self.api_key_env)
        if not key:
            raise ConfigError(Problem("api_key_env", f"the environment has no {self.api_key_env}; set it to the key"))
        return key


class Failed(NamedTuple):
    """A question without a verdict."""

    error: GraderError
    usage: Usage | None


class JudgeGrader(DeclaredGrader[C]):
    """A grader that asks models; implement `judged`, `make_ready`, `judges` and ``fingerprint``.

    It reads files and keys where it is put by `within`; one that was put nowhere is in the current folder, with the
    environment of this process.
    """

    max_chars = MAX_CHARS
    caveats: ClassVar[tuple[str, ...]] = CAVEATS

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(grader_id, config)
        self.budget = budget
        self.surroundings = Surroundings()

    def within(self, surroundings: Surroundings) -> Self:
        placed = copy(self)
        for name in [name for name in vars(placed) if isinstance(getattr(type(self), name, None), cached_property)]:
            del placed.__dict__[name]
        placed.surroundings = surroundings
        placed.make_ready()
        return placed

    async def agrade(self, ctx: GradeContext, /) -> Judged:
        """Grade one submission. Raises `ConfigError` alone, for what every case would fail by."""
        try:
            return await self.judged(ctx)
        except GraderError as error:
            return Judged(error)

    def result(self, ctx: GradeContext) -> GradeResult:
        result, _ = blocking.run(self.agrade(ctx))
        if isinstance(result, GraderError):
            raise result
        return result

    @property
    @abstractmethod
    def judges(self) -> tuple[str, ...]:
        """The models whose word the score is, by their adapters' ids."""

    @abstractmethod
    def make_ready(self) -> None:
        """Read and open all that grading needs, or `ConfigError` with all that is missing."""

    @abstractmethod
    async def judged(self, ctx: GradeContext) -> Judged:
        """Grade one submission; a `GraderError` may be raised before anything is asked."""


async def put_question(
    adapter: LLMAdapter, place: Place, request: ChatRequest, config: RunConfig, read: Callable[[LLMResponse], T]
) -> Answered[T] | Failed:
    """What a judge answered, or why there is no verdict; `ConfigError` where no other question would fare better."""
    try:
        return await ask(adapter, request, config, read)
    except ReplyError as error:
        return Failed(error, error.usage)
    except BudgetExceeded as error:
        return Failed(OverBudgetError(str(error)), None)
    except ModelError as error:
        return not_asked(error, adapter.adapter_id, place)


def not_asked(error: ModelError, judge: str, place: Place) -> Failed:
    """What becomes of a failed call: a missing grade, or `ConfigError` where every call would fail like it."""
    if error.obstacle is not None:
        said = quote(error.said if error.said is not None else str(error), _MAX_SAID)
        told = f"{_REFUSALS[error.obstacle]} ({said}); {place.remedy(error.obstacle)}"
        raise ConfigError(Problem(f"judge {judge}", told)) from error
    message = f"{judge} could not be asked ({error.type}, {error.attempts} attempts): {error}"
    return Failed(JudgeFailedError(message), None if error.unpaid else Usage())


async def together(questions: Iterable[Awaitable[T]]) -> list[T]:
    """The answers to all questions, asked side by side. All are waited for, since they are paid; then errors raise."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


def usage_shown(usage: Usage | None) -> dict[str, Any] | None:
    """Usage as metadata holds it; unknown stays unknown."""
    return None if usage is None else msgspec.structs.asdict(usage)


def notes_shown(answers: Iterable[Answered[Any]]) -> list[dict[str, str]]:
    """What was asked for and not done, each once."""
    notes: dict[Note, None] = dict.fromkeys(note for answered in answers for note in answered.notes)
    return [{"what": note.what, "why": note.why} for note in notes]


def collected(*steps: Callable[[], object]) -> None:
    """Take all steps, then raise one `ConfigError` with the problems of those that failed."""
    problems: list[Problem] = []
    for step in steps:
        try:
            step()
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems)
