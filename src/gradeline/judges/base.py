"""Base of the graders that call a judge: its endpoint, its calls, and how their failures become errors."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, cast

import msgspec

from gradeline.adapters import create, sync
from gradeline.adapters.chat import ChatRequest, Note
from gradeline.adapters.errors import CallerRefused, ModelError, ProviderAccess
from gradeline.adapters.registry import PROVIDERS
from gradeline.adapters.wire import AdapterSettings, model_transport
from gradeline.errors import BudgetExceeded, ConfigError, GraderError, Problem, ProviderRefusedError
from gradeline.graders.base import C, DeclaredGrader
from gradeline.judges.calls import JudgeAnswer, ask
from gradeline.judges.options import JudgeModel, SelectiveOptions, missing_model
from gradeline.judges.reply_parsing import ReplyError
from gradeline.judges.selective import (
    Confidence,
    decided_first,
    decided_second,
    not_measured,
    selective_threshold,
    unsure,
)
from gradeline.model import GradeContext, GradeResult, MeteredResult, fingerprint, quote
from gradeline.model.config import canonical_options
from gradeline.model.grade import PASS_SCORE
from gradeline.model.learned_judging import LabelledConfidences, LearnedJudging, PanelWeighting, SelectiveThreshold
from gradeline.model.llm import Budget, LLMAdapter, LLMResponse, RunConfig
from gradeline.model.resources import Resources
from gradeline.model.response import Usage, total_usage

T = TypeVar("T")

CAVEATS = (
    "Length: judges tend to prefer the longer answer, whatever it says.",
    "Format: lists, bold words, links and a confident tone move scores.",
    "Position: of two answers the one shown first (or last) is favoured; compare in both orders.",
    "Self-preference: a model favours answers of its own family; let another family judge.",
)
"""Known biases of language models as judges."""
MAX_CHARS = 2_000_000
"""Maximum length of a submission; no model reads more."""
VERSION_DIGITS = 8
"""Number of digits of the fingerprint in a judge's ID."""
_MAX_QUOTED = 300
_ENDPOINT_OPTIONS = ("provider", "model", "base_url", "api_key_env")
_PROVIDER_ALIASES = {"google": "gemini"}
_FORBIDDEN = "the provider does not allow this key to make the call"
_REFUSALS = {
    "key": "the provider does not accept this key",
    "model": "the provider does not know this model or address",
    "quota": "the provider reports that the account is used up",
}


class JudgeFailedError(GraderError):
    """The call failed: the judge's server failed or could not be reached."""

    type = "judge_failed"


class JudgeRefusedError(GraderError):
    """The provider refused this request: a content filter, or HTTP 400, 403 or 404."""

    type = "refused"


class OverBudgetError(GraderError):
    """The call was not made because it would have exceeded a budget."""

    type = "budget"


class EndpointOptions(Protocol):
    """Options that define a judge's endpoint."""

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


class JudgeEndpoint(NamedTuple):
    """The model that judges, where it is served, and the limits of a call."""

    provider: str
    model: str | None
    base_url: str | None = None
    api_key_env: str | None = None
    max_retries: int = 2
    timeout: float = 120.0

    @classmethod
    def of(cls, options: EndpointOptions) -> JudgeEndpoint:
        """The endpoint that the options define."""
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
        """The ID of its adapter."""
        return f"{_PROVIDER_ALIASES.get(self.provider, self.provider)}:{self.model or ''}"

    def adapter(self, resources: Resources) -> LLMAdapter:
        """An adapter for this endpoint; `ConfigError` if the key or the model's name is missing."""
        if not self.model:
            raise ConfigError(missing_model(self.provider))
        provider, _, model = self.judge.partition(":")
        environment = resources.environment
        with self.explain_missing_key():
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
        """Retries, timeout, prices and transport of its calls."""
        return AdapterSettings(
            retries=self.max_retries,
            timeout_s=self.timeout,
            prices=resources.prices,
            transport_factory=model_transport(resources),
        )

    @contextmanager
    def explain_missing_key(self) -> Iterator[None]:
        """Replace an adapter's error about a missing key by one that names the suite option."""
        try:
            yield
        except ConfigError as error:
            if [problem.path for problem in error.problems] != ["api_key"]:
                raise
            message = f"{self.judge} needs a key; {self.remedy('key')}, in the environment or in .env next to the suite"
            raise ConfigError(Problem("api_key_env", message)) from None

    def remedy(self, obstacle: str) -> str:
        """What the user can do about an obstacle."""
        if obstacle == "model":
            return "check model, provider and base_url"
        if obstacle == "quota":
            return "top it up, or use another model as the judge"
        known = None if self.base_url else PROVIDERS.get(self.judge.partition(":")[0])
        names = self.api_key_env or " or ".join(known.key_names if known else ())
        return f"put a valid key into {names}" if names else "name the variable that holds a valid key by api_key_env"

    def key(self, environment: Mapping[str, str] | None) -> str | None:
        """The key from the variable that the options name, if any; `ConfigError` if that variable is not set."""
        if self.api_key_env is None:
            return None
        key = (os.environ if environment is None else environment).get(self.api_key_env)
        if not key:
            raise ConfigError(Problem("api_key_env", f"the environment has no {self.api_key_env}; set it to the key"))
        return key


class JudgeFailure(NamedTuple):
    """A call of a judge that gave no verdict."""

    error: GraderError
    usage: Usage | None


class JudgeGrader(DeclaredGrader[C]):
    """A grader that calls models; implement `grade_case`, `prepare`, `judges` and ``fingerprint``.

    Files and keys come from the resources that it is bound to; unbound, it uses the current folder and the
    environment of this process.
    """

    max_chars = MAX_CHARS
    local_chars = 2 * MAX_CHARS  # a model grades them
    caveats: ClassVar[tuple[str, ...]] = CAVEATS
    both_orders: ClassVar[bool] = False
    """Shows the judge two answers in both orders, so that a run can report how often the order decided."""
    pass_threshold: float | None = None
    """The score from which the suite lets its grades pass; None: the grader decides."""

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
        bound.prepare()
        bound._prepare_second()
        return bound

    def _new_access(self) -> ProviderAccess:
        return ProviderAccess()

    def resume_access(self, *, succeeded: bool, failed: int | None = None) -> None:
        """See `ProviderAccess.resume`."""
        self._access.resume(succeeded=succeeded, failed=failed)

    async def agrade(self, ctx: GradeContext, /) -> MeteredResult:
        """Grade one submission. Raises only `ConfigError`, for errors that would fail every case."""
        try:
            graded = await self.grade_case(ctx)
        except GraderError as error:
            return MeteredResult(error)
        return graded if self.agreement is None else await self._if_sure(ctx, graded)

    def result(self, ctx: GradeContext) -> GradeResult:
        result = sync.run(self.agrade(ctx)).result
        if isinstance(result, GraderError):
            raise result
        return result

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The judges whose calls have no known price."""
        adapter = vars(self).get("_adapter")
        own = () if adapter is None or getattr(adapter, "priced", False) else self.judges
        return own if self.second is None else (*own, *self.second.unpriced)

    async def aclose(self) -> None:
        """Close this event loop's connections to the judges; the grader may be used again."""
        close = getattr(vars(self).get("_adapter"), "aclose", None)
        if close is not None and vars(self).get("_adapter_override") is None:
            await close()
        if self.second is not None:
            await self.second.aclose()

    @property
    def judge_id(self) -> str:
        """The judge and its version, whichever run is the baseline; empty for graders without a baseline."""
        return ""

    @property
    def judge_fingerprint(self) -> str:
        """The fingerprint without what the judge learned from labels, and without a baseline run."""
        return self.fingerprint

    @property
    def learned(self) -> LearnedJudging | None:
        """What the judge learned from labels; None if it is not calibrated, or if the run does not look for it."""
        return (self.resources.calibrations or {}).get(self.judge_fingerprint)

    @property
    def learns(self) -> bool:
        """Whether its options use what it learned from labels."""
        return self.agreement is not None

    @property
    def weighting(self) -> PanelWeighting | None:
        """How it weights several judges; None for one that has no weights."""
        return None

    @property
    def agreement(self) -> float | None:
        """The agreement with labels below which a verdict does not count; None: every verdict counts."""
        return self.options.agreement if isinstance(self.options, SelectiveOptions) else None

    @cached_property
    def selective(self) -> SelectiveThreshold | None:
        """From which confidence its verdicts count; None if all do."""
        if self.agreement is None:
            return None
        labelled = self.labelled_confidences
        if labelled is None or not labelled.consistent:
            return not_measured(self.agreement)
        return selective_threshold(labelled, self.agreement)

    @property
    def labelled_confidences(self) -> LabelledConfidences | None:
        """Its confidences and agreement on labels; None if it is not calibrated."""
        return None if self.learned is None else self.learned.selective

    @cached_property
    def second(self) -> JudgeGrader[Any] | None:
        """The judge of the cases that this one is not sure of; None if there is none."""
        escalate = self.options.escalate if isinstance(self.options, SelectiveOptions) else None
        return None if escalate is None else self.second_judge(escalate)

    def second_judge(self, model: JudgeModel) -> JudgeGrader[Any]:
        """The same judge with another model."""
        own = canonical_options(self.options)
        kept = {name: value for name, value in own.items() if name not in (*_ENDPOINT_OPTIONS, "escalate")}
        judge = type(self)(self.grader_id, {**kept, **canonical_options(model)}, budget=self.budget)
        judge.resources = self.resources
        judge.pass_threshold = self.pass_threshold
        return judge

    def pass_score_of(self, ctx: GradeContext) -> float:  # noqa: ARG002 - some have rubrics of their own for a case
        """The score from which a grade passes."""
        return PASS_SCORE if self.pass_threshold is None else self.pass_threshold

    def confidence_of(self, ctx: GradeContext, score: float) -> Confidence:
        """The verdict of a score, and how confident it is."""
        return Confidence.of(score, self.pass_score_of(ctx))

    def with_learned(self, own: str) -> str:
        """The fingerprint ``own`` with what was learned from labels, so that grades by other values are not mixed."""
        if self.selective is None:
            return own
        second = None if self.second is None else self.second.fingerprint
        return fingerprint("selective", own, self.selective.labels > 0, self.selective.threshold, second)

    async def _if_sure(self, ctx: GradeContext, graded: MeteredResult) -> MeteredResult:
        """The grade if its verdict counts, else that of the second judge, else the error that no verdict does."""
        result, threshold = graded.result, self.selective
        if threshold is None or isinstance(result, GraderError) or result.score is None:
            return graded
        own = self.confidence_of(ctx, result.score)
        if threshold.counts(own.confidence):
            return graded._replace(result=decided_first(result, threshold, own))
        if self.second is None:
            return graded._replace(result=unsure(result, threshold, own))
        other = await self.second.agrade(ctx)
        usage = total_usage((graded.usage, other.usage))
        if isinstance(other.result, GraderError):
            return MeteredResult(unsure(result, threshold, own, other.result), usage)
        return MeteredResult(decided_second(result, other.result, threshold, own), usage)

    def _prepare_second(self) -> None:
        if self.second is None:
            return
        try:
            self.second.prepare()
        except ConfigError as error:
            raise ConfigError([problem.within("escalate") for problem in error.problems]) from None

    @property
    def prompt_hash(self) -> str:
        """Digest of the prompt's text, so that a calibration can say that it changed; empty if it has none."""
        return ""

    @property
    def rubric_version(self) -> str:
        """The id of the shipped rubric; empty for the suite's own."""
        return ""

    @property
    @abstractmethod
    def judges(self) -> tuple[str, ...]:
        """The adapter IDs of the models that give the score."""

    @abstractmethod
    def prepare(self) -> None:
        """Load everything that grading needs; `ConfigError` lists all that is missing."""

    @abstractmethod
    async def grade_case(self, ctx: GradeContext) -> MeteredResult:
        """Grade one submission; may raise `GraderError` before the first call."""


class OneModelGrader(JudgeGrader[C]):
    """A judge grader whose options define one endpoint. ``adapter`` replaces the configured model."""

    def __init__(
        self,
        grader_id: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        adapter: LLMAdapter | None = None,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(grader_id, config, budget=budget)
        self._adapter_override = adapter

    @property
    def judges(self) -> tuple[str, ...]:
        return (self._endpoint.judge if self._adapter_override is None else self._adapter_override.adapter_id,)

    @cached_property
    def _endpoint(self) -> JudgeEndpoint:
        return JudgeEndpoint.of(cast(EndpointOptions, self.options))

    @cached_property
    def _adapter(self) -> LLMAdapter:
        return self._adapter_override or self._endpoint.adapter(self.resources)


async def ask_judge(
    adapter: LLMAdapter,
    endpoint: JudgeEndpoint,
    access: ProviderAccess,
    request: ChatRequest,
    config: RunConfig,
    read: Callable[[LLMResponse], T],
) -> JudgeAnswer[T] | JudgeFailure:
    """Call a judge once. Raises `ProviderRefusedError` if every other call would fail in the same way."""

    async def send() -> JudgeAnswer[T] | ReplyError:
        try:
            return await ask(adapter, request, config, read)
        except ReplyError as error:  # the call succeeded, although the reply holds no verdict
            return error

    try:
        answered = await access.call(send)
    except BudgetExceeded as error:
        return JudgeFailure(OverBudgetError(str(error)), None)
    except (ModelError, CallerRefused) as error:
        return call_failure(error, adapter.adapter_id, endpoint)
    return JudgeFailure(answered, answered.usage) if isinstance(answered, ReplyError) else answered


def call_failure(failure: ModelError | CallerRefused, judge: str, endpoint: JudgeEndpoint) -> JudgeFailure:
    """The failure for one case; raises `ProviderRefusedError` if every call would fail in the same way."""
    error = failure.error if isinstance(failure, CallerRefused) else failure
    if not isinstance(error, ModelError):
        raise failure
    said = quote(error.provider_message if error.provider_message is not None else str(error), _MAX_QUOTED)
    status = "" if error.http_status is None else f"HTTP {error.http_status}: "
    if isinstance(failure, CallerRefused) and error.obstacle is not None:
        what = _FORBIDDEN if error.http_status == 403 else _REFUSALS[error.obstacle]
        message = f"{what} ({status}{said}); {endpoint.remedy(error.obstacle)}"
        raise ProviderRefusedError(Problem(f"judge {judge}", message)) from error
    usage = None if error.unbilled else Usage()
    if error.refused:
        return JudgeFailure(JudgeRefusedError(f"{judge} refused this request ({status}{said})"), usage)
    message = f"{judge} could not be called ({error.type}, {error.attempts} attempts): {error}"
    return JudgeFailure(JudgeFailedError(message), usage)


async def gather_all(questions: Iterable[Awaitable[T]]) -> list[T]:
    """Run all calls concurrently. Waits for all of them, because they are paid for, before it raises an error."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    failed = next((answer for answer in answers if isinstance(answer, BaseException)), None)
    if failed is None:
        return [answer for answer in answers if not isinstance(answer, BaseException)]
    try:
        raise failed
    finally:
        del answers, failed  # the error holds this frame, and the frame must not hold the error


def usage_metadata(usage: Usage | None) -> dict[str, Any] | None:
    """Usage for a grade's metadata; None stays None."""
    return None if usage is None else msgspec.structs.asdict(usage)


def notes_metadata(answers: Iterable[JudgeAnswer[Any]]) -> list[dict[str, str]]:
    """The adapters' notes about requested features they do not support, each once."""
    notes: dict[Note, None] = dict.fromkeys(note for answered in answers for note in answered.notes)
    return [{"what": note.what, "why": note.why} for note in notes]


def run_steps(*steps: Callable[[], object]) -> None:
    """Run all steps, then raise one `ConfigError` with the problems of those that failed."""
    problems: list[Problem] = []
    for step in steps:
        try:
            step()
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems)
