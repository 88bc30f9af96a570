"""What all graders with a judge share: where they find it, how they ask it, and what becomes of its failures."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import msgspec

from gradeline.adapters import create, sync
from gradeline.adapters.chat import ChatRequest, Note
from gradeline.adapters.errors import CallerRefused, ModelError, ProviderAccess
from gradeline.adapters.registry import PROVIDERS
from gradeline.adapters.wire import AdapterSettings, model_transport
from gradeline.errors import BudgetExceeded, ConfigError, GraderError, Problem, ProviderRefusedError
from gradeline.graders.base import C, DeclaredGrader
from gradeline.judges.calls import Answered, ask
from gradeline.judges.options import unnamed_model
from gradeline.judges.reply_parsing import ReplyError
from gradeline.model import GradeContext, GradeResult, MeteredResult, quote
from gradeline.model.llm import Budget, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.resources import Resources
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
VERSION_DIGITS = 8
"""Of the digest that tells versions of a judge apart."""
_MAX_SAID = 300
_SAME = {"google": "gemini"}
_FORBIDDEN = "the provider does not allow this key to make the call"
_REFUSALS = {
    "key": "the provider does not accept this key",
    "model": "the provider does not know this model or address",
    "quota": "the provider reports that the account is used up",
}


class JudgeFailedError(GraderError):
    """The judge could not be asked: its server failed, or could not be reached."""

    type = "judge_failed"


class JudgeRefusedError(GraderError):
    """The provider refused this request: a content filter, or HTTP 400, 403 or 404."""

    type = "refused"


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
        return f"{_SAME.get(self.provider, self.provider)}:{self.model or ''}"

    def adapter(self, resources: Resources) -> LLMAdapter:
        """Speaks with it; `ConfigError` where a key is missing, or the model is not named."""
        if not self.model:
            raise ConfigError(unnamed_model(self.provider))
        provider, _, model = self.judge.partition(":")
        environment = resources.environment
        with self.asking_for_key():
            found: LLMAdapter = create(
                provider,
                model,
                base_url=self.base_url,
                api_key=self.key(environment),
                settings=self.settings(resources),
                environment=environment,
            )
        return found

    def settings(self, resources: Resources) -> AdapterSettings:
        """How it is called."""
        return AdapterSettings(
            retries=self.max_retries,
            timeout_s=self.timeout,
            prices=resources.prices,
            transport_factory=model_transport(resources),
        )

    @contextmanager
    def asking_for_key(self) -> Iterator[None]:
        """Says of a key that an adapter misses how a suite gives one."""
        try:
            yield
        except ConfigError as error:
            if [problem.path for problem in error.problems] != ["api_key"]:
                raise
            message = f"{self.judge} needs a key; {self.remedy('key')}, in the environment or in .env beside the suite"
            raise ConfigError(Problem("api_key_env", message)) from None

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

    It reads files and keys as the resources that it is bound to define; unbound, it uses the current folder and the
    environment of this process.
    """

    max_chars = MAX_CHARS
    caveats: ClassVar[tuple[str, ...]] = CAVEATS
    both_orders: ClassVar[bool] = False
    """Whether it shows a judge two answers in both orders, so that a run can tell how often the order decided."""

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(grader_id, config)
        self.budget = budget
        self._access = self._new_access()

    def bind(self, resources: Resources) -> Self:
        bound = super().bind(resources)
        for name in [name for name in vars(bound) if isinstance(getattr(type(self), name, None), cached_property)]:
            del bound.__dict__[name]
        bound._access = bound._new_access()
        bound.make_ready()
        return bound

    def _new_access(self) -> ProviderAccess:
        return ProviderAccess()

    def resume_access(self, *, succeeded: bool, failed: int | None = None) -> None:
        """See `ProviderAccess.resume`."""
        self._access.resume(succeeded=succeeded, failed=failed)

    async def agrade(self, ctx: GradeContext, /) -> MeteredResult:
        """Grade one submission. Raises only `ConfigError`, for what every case would fail by."""
        try:
            return await self.judged(ctx)
        except GraderError as error:
            return MeteredResult(error)

    def result(self, ctx: GradeContext) -> GradeResult:
        result, _ = sync.run(self.agrade(ctx))
        if isinstance(result, GraderError):
            raise result
        return result

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Those of its judges whose calls have no known price."""
        adapter = vars(self).get("_adapter")
        return () if adapter is None or getattr(adapter, "priced", False) else self.judges

    async def aclose(self) -> None:
        """Close the connections of this event loop to its own judges; it may be used again."""
        close = getattr(vars(self).get("_adapter"), "aclose", None)
        if close is not None and vars(self).get("_given") is None:
            await close()

    @property
    def judge_id(self) -> str:
        """Of a grader that compares with a baseline: the judge and its version, whichever run it compares with."""
        return ""

    @property
    @abstractmethod
    def judges(self) -> tuple[str, ...]:
        """The models whose word the score is, by their adapters' ids."""

    @abstractmethod
    def make_ready(self) -> None:
        """Read and open all that grading needs, or `ConfigError` with all that is missing."""

    @abstractmethod
    async def judged(self, ctx: GradeContext) -> MeteredResult:
        """Grade one submission; a `GraderError` may be raised before anything is asked."""


async def put_question(
    adapter: LLMAdapter,
    place: Place,
    access: ProviderAccess,
    request: ChatRequest,
    config: RunConfig,
    read: Callable[[LLMResponse], T],
) -> Answered[T] | Failed:
    """What a judge answered, or why there is no verdict; `ProviderRefusedError` where no other question would fare
    better."""

    async def send() -> Answered[T] | ReplyError:
        try:
            return await ask(adapter, request, config, read)
        except ReplyError as error:  # an answer, although it holds no verdict
            return error

    try:
        answered = await access.call(send)
    except BudgetExceeded as error:
        return Failed(OverBudgetError(str(error)), None)
    except (ModelError, CallerRefused) as error:
        return not_asked(error, adapter.adapter_id, place)
    return Failed(answered, answered.usage) if isinstance(answered, ReplyError) else answered


def not_asked(failure: ModelError | CallerRefused, judge: str, place: Place) -> Failed:
    """What becomes of a failed call: a missing grade, or `ProviderRefusedError` where every call would fail like it."""
    error = failure.error if isinstance(failure, CallerRefused) else failure
    if not isinstance(error, ModelError):
        raise failure
    said = quote(error.provider_message if error.provider_message is not None else str(error), _MAX_SAID)
    status = "" if error.http_status is None else f"HTTP {error.http_status}: "
    if isinstance(failure, CallerRefused) and error.obstacle is not None:
        what = _FORBIDDEN if error.http_status == 403 else _REFUSALS[error.obstacle]
        message = f"{what} ({status}{said}); {place.remedy(error.obstacle)}"
        raise ProviderRefusedError(Problem(f"judge {judge}", message)) from error
    usage = None if error.unbilled else Usage()
    if error.refused:
        return Failed(JudgeRefusedError(f"{judge} refused this request ({status}{said})"), usage)
    message = f"{judge} could not be asked ({error.type}, {error.attempts} attempts): {error}"
    return Failed(JudgeFailedError(message), usage)


async def together(questions: Iterable[Awaitable[T]]) -> list[T]:
    """The answers to all questions, asked side by side. All are waited for, since they are paid; then errors raise."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    failed = next((answer for answer in answers if isinstance(answer, BaseException)), None)
    if failed is None:
        return [answer for answer in answers if not isinstance(answer, BaseException)]
    try:
        raise failed
    finally:
        del answers, failed  # the error holds this frame, and the frame must not hold the error


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
