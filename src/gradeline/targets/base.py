"""Base class of targets: an agent that is called with a sample and always returns a response."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import msgspec

from gradeline.errors import AgentError, ConfigError, GradelineError, Problem, response_policy
from gradeline.model import Config, ErrorInfo, Response, Sample, Trajectory, clean_text, described, to_json
from gradeline.model.config import canonical_options
from gradeline.model.context import is_own_class
from gradeline.model.documents import read_documents
from gradeline.model.fingerprint import fingerprint
from gradeline.model.registry import Declaration
from gradeline.model.resources import Resources
from gradeline.model.secrets import MARKER, MASK, Mask
from gradeline.model.text import is_clean, quote_typed, user_traceback
from gradeline.targets.documents import ToolDocuments, tool_documents

if TYPE_CHECKING:
    from gradeline.adapters.wire import AdapterSettings
    from gradeline.transport import Transport
    from gradeline.usercode.pools import CodeRunner

ResponseSource = Callable[[Sample], Response | None]
"""Returns the stored response to a sample, or None."""

HIDDEN = MASK
MAX_TEXT = 10_000_000
"""Maximum bytes of an answer's text in UTF-8."""
EXCERPT = 2048

_EXPECTATION: Mapping[str, Any] = {
    "ground_truth": None,
    "tags": (),
    "rubric": None,
    "rubric_path": None,
    "rubric_vars": {},
}
"""Fields of a sample that only graders read, cleared."""
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}


class RateLimit(Config, frozen=True):
    """Maximum number of calls per time."""

    calls: Annotated[int, described("Maximum calls started.", ge=1)]
    per: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | Literal["second", "minute", "hour"],
        described("Period: second, minute, hour or a number of seconds."),
    ] = "second"

    @property
    def seconds(self) -> float:
        return _SECONDS[self.per] if isinstance(self.per, str) else self.per


class TargetConfig(Config, frozen=True):
    """The options that every target has; the engine enforces the limits."""

    concurrency: Annotated[Annotated[int, msgspec.Meta(ge=1)] | None, described("Maximum calls in flight.")] = None
    rate: Annotated[RateLimit | None, described("Rate limit of calls: {calls, per}.")] = None
    model: Annotated[
        str | None, described("Model of the agent, if it takes one; list several in the suite's models.")
    ] = None
    stop_after_connection_failures: Annotated[
        int,
        described(
            "End the run after this number of calls in a row that could not reach the agent (default 20; 0: never).",
            ge=0,
        ),
    ] = 20
    documents: Annotated[
        ToolDocuments | None,
        described("Tool whose results are the documents of a response that reports none: {tool, path}."),
    ] = None

    def faults(self) -> Iterator[Problem]:
        if self.documents is not None:
            yield from (fault.within("documents") for fault in self.documents.faults())


C = TypeVar("C", bound=Config)

Pricing = Literal["reported", "priced", "unpriced", "free"]
"""Source of the cost of an answer: reported by the agent, computed from a known price, unknown, or free."""


class TargetContext(NamedTuple):
    """Resources of the run for a target; passed to its ``bind``."""

    resources: Resources = Resources()
    """Folder, environment, egress policy, prices, secrets."""
    transport: Transport | None = None
    """An open HTTP client of the caller, never closed by the target; None: it opens its own under the policy."""
    settings: AdapterSettings | None = None
    """For chat models: prices, transport and pauses between retries."""
    pool: CodeRunner | None = None
    """Worker processes that have loaded the target's function or agent factory."""
    code: str = ""
    """Fingerprint of that code."""
    function: Callable[..., Any] | None = None
    """The target's function, called in this process."""
    responses: ResponseSource | None = None
    """Responses of the stored run that is replayed."""
    cleanup: bool = False
    """Delete agents that were created for a sample afterwards."""


class CodeOption(NamedTuple):
    """An option that names a function of the suite's code."""

    option: str
    role: str
    """What the function is: ``target`` or ``agent_factory``."""


class DeclaredTarget(Declaration[C]):
    """A target with a kind and typed options; implement `call`.

    Its config is read strictly, because a misspelt option would silently test another configuration.
    """

    noun = "target"
    pacing: ClassVar[frozenset[str]] = frozenset({"concurrency", "rate", "stop_after_connection_failures"})
    """Options that do not affect the answers, and are not part of the fingerprint."""
    sees_expectation: ClassVar[bool] = False
    """Whether the agent receives the whole sample, including ground truth and rubrics."""
    without_effect: ClassVar[Mapping[str, str]] = {}
    """Accepted options that have no effect, each with the reason for a warning."""
    timed: ClassVar[bool] = True
    """Whether the duration of a call is the agent's latency."""
    user_code: ClassVar[CodeOption | None] = None
    """The option for user code, which is loaded in worker processes; ``context`` has these and its fingerprint."""

    context: TargetContext = TargetContext()

    def __init__(self, config: Mapping[str, Any] | None = None, secrets: Collection[str] = ()) -> None:
        self.secrets: frozenset[str] = frozenset(secret for secret in secrets if secret)
        try:
            self.check(config)
        except ConfigError as error:
            raise ConfigError(self._without_secrets(error.problems, config), self.kind) from None
        super().__init__(config)

    def bind(self, context: TargetContext) -> Self:
        """Set the resources of the run; `gradeline.targets.create` calls it before the target is opened."""
        self.context = context
        return self

    @property
    def resources(self) -> Resources:
        """Call servers through ``resources.transport()``, which enforces the egress policy."""
        return self.context.resources

    async def open(self) -> None:
        """Prepare for calls; `ConfigError` for problems to fix first."""

    async def close(self) -> None:
        """Release what `open` acquired."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def call(self, sample: Sample) -> Response:
        """Call the agent; returns its answer or raises `AgentError`. `respond` makes it storable."""
        raise NotImplementedError(f"{type(self).__name__} must override call()")

    async def respond(self, sample: Sample) -> Response:
        """The response to a sample; a failure of the agent is a response with an error, not an exception.

        Raises `ConfigError` for a sample that cannot be sent at all (see `problems_with`).
        """
        started = perf_counter()
        try:
            response = _storable(await (self.call(sample) if self._is_ours else self._guarded_call(sample)))
            if response.documents is None and self._document_source is not None:
                found = await tool_documents(response, self._document_source)
                response = msgspec.structs.replace(response, documents=found)
        except AgentError as error:
            response = self._failure(error)
        if self._mask is not None:
            response = _masked(response, self._mask)
        if self.timed and response.latency_ms is None:
            response = msgspec.structs.replace(response, latency_ms=(perf_counter() - started) * 1000)
        return response

    async def _guarded_call(self, sample: Sample) -> Response:
        """`call` of a plugin, which may raise or return anything: both are failed calls."""
        try:
            answer: object = await self.call(sample)
        except GradelineError:
            raise
        except Exception as error:
            reason = f"target {self.kind!r} raised {type(error).__name__}: {error}"
            raise AgentError("agent_error", reason, traceback=user_traceback(error)) from error
        if not isinstance(answer, Response):
            raise AgentError("bad_response", f"target {self.kind!r} returned {quote_typed(answer)}; return a Response")
        return answer

    def problems_with(self, sample: Sample) -> list[Problem]:  # noqa: ARG002 - most targets take any sample
        """Why this sample cannot be sent, found without calling the agent."""
        return []

    @cached_property
    def model(self) -> str | None:
        """The model of the agent, if the target names one."""
        model: str | None = getattr(self.options, "model", None)
        return model

    @property
    def _document_source(self) -> ToolDocuments | None:
        source: ToolDocuments | None = getattr(self.options, "documents", None)
        return source if isinstance(source, ToolDocuments) else None

    @property
    def pricing(self) -> Pricing:
        """Source of the cost of an answer."""
        return "reported"

    def cache_key(self, sample: Sample, repeat: int) -> str:
        """A digest of everything that affects the answer."""
        visible = sample if self.sees_expectation else msgspec.structs.replace(sample, **_EXPECTATION)
        return fingerprint("answer", self.fingerprint, to_json(visible), repeat)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the options that affect answers. Secrets are masked, so that a new key does not change it."""
        options = {key: value for key, value in canonical_options(self.options).items() if key not in self.pacing}
        return fingerprint(self.noun, self.kind, self.version, mask(options, self.hidden))

    @property
    def shown(self) -> dict[str, Any]:
        """The options that differ from their defaults, without secrets."""
        shown: dict[str, Any] = mask(canonical_options(self.options), self.hidden)
        return shown

    @property
    def hidden(self) -> frozenset[str]:
        """All values that must never be shown: declared secrets, and values of options with secret names."""
        return json_spellings(self.secrets)

    @property
    def credentials(self) -> Collection[str]:
        """API keys and the like. Only these are masked in answers; other hidden values may be ordinary words."""
        return ()

    @cached_property
    def _is_ours(self) -> bool:
        own: type = type(self)
        return is_own_class(own)

    @cached_property
    def _mask(self) -> Mask | None:
        """Masks credentials and bound secrets in answers; None if there are none."""
        bound = self.resources.secrets
        values = {value for value in self.credentials if MARKER not in value}
        return Mask(values | (bound.mask.values if bound is not None else set())) or None

    def _failure(self, error: AgentError) -> Response:
        policy = response_policy(error.type, getattr(error, "http_status", None))
        message = clean_text(hide(str(error), self.hidden)).text
        status: Literal["timeout", "error"] = "timeout" if error.type == "timeout" else "error"
        info = ErrorInfo(error.type, message, policy.fault, self._without_values(error.traceback))
        return Response(status=status, error=info, output=self._without_values(error.output))

    def _without_values(self, text: str | None) -> str | None:
        """Output of user code without hidden values."""
        return None if text is None else clean_text(hide(text, self.hidden)).text

    def _without_secrets(self, problems: Iterable[Problem], config: object) -> list[Problem]:
        """Messages may quote part of a secret, so the problems of the masked config are used where they match."""
        reading = self.read(mask({} if config is None else config, self.secrets))
        masked = {problem.path: problem for problem in reading.problems}
        return [
            masked.get(problem.path, Problem(problem.path, hide(problem.message, self.secrets))) for problem in problems
        ]


class NetworkTarget(DeclaredTarget[C]):
    """A target that calls a server; it has an HTTP client while it is open."""

    _own_transport: Transport | None = None

    async def open(self) -> None:
        if self.context.transport is None and self._own_transport is None:
            self._own_transport = await self.resources.transport().__aenter__()

    async def close(self) -> None:
        own, self._own_transport = self._own_transport, None
        if own is not None:
            await own.__aexit__(None, None, None)

    @property
    def transport(self) -> Transport:
        transport = self.context.transport or self._own_transport
        if transport is None:
            raise RuntimeError("call a target inside `async with`")
        return transport


def _storable(response: Response) -> Response:
    if response.documents is not None:
        documents = read_documents(response.documents)
        if documents != response.documents:
            response = msgspec.structs.replace(response, documents=documents)
    if response.text is None:
        return response
    if len(response.text) <= MAX_TEXT and is_clean(response.text):
        return response
    text, changed = clean_text(response.text)
    if len(text) > MAX_TEXT or len(text.encode()) > MAX_TEXT:
        raise AgentError("too_large", f"the text of the response is larger than {MAX_TEXT:,} bytes")
    return msgspec.structs.replace(response, text=text, cleaned=True) if changed else response


def _masked(response: Response, mask: Mask) -> Response:
    """The response with credentials masked that the agent echoed, even in fragments."""
    text = None if response.text is None else mask.text(response.text)
    output = None if response.output is None else mask.text(response.output)
    steps, error = response.trajectory, response.error
    if steps is not None:
        raw = msgspec.json.encode(steps)
        if mask.body(raw) is not raw:  # otherwise it contains no credential
            steps = msgspec.convert(mask.tree(msgspec.to_builtins(steps)), Trajectory)
    if error is not None:
        trace = None if error.traceback is None else mask.text(error.traceback)
        error = msgspec.structs.replace(error, message=mask.text(error.message), traceback=trace)
    documents = response.documents
    if documents is not None:
        documents = tuple(
            msgspec.structs.replace(one, text=mask.text(one.text), id=None if one.id is None else mask.text(one.id))
            for one in documents
        )
    masked = msgspec.structs.replace(
        response, text=text, output=output, trajectory=steps, error=error, documents=documents
    )
    return response if masked == response else msgspec.structs.replace(masked, cleaned=True)


def json_spellings(secrets: Iterable[str]) -> frozenset[str]:
    """The secrets, also in JSON and in JSON within JSON: agents echo their requests."""
    found = frozenset(secrets)
    for _ in range(2):
        found |= {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for secret in found for ascii_only in (True, False)}
    return found


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text with these values masked."""
    # the longest first: a secret may contain another one
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def mask(tree: object, secrets: Collection[str]) -> Any:
    """The tree with these values masked in all strings; keys are never secret."""
    if isinstance(tree, str):
        return hide(tree, secrets)
    if isinstance(tree, Mapping):
        return {key: mask(item, secrets) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [mask(item, secrets) for item in tree]
    return tree


def tail(data: bytes, secrets: Iterable[str]) -> str:
    """The end of an output for an error message: clean, without secrets, at most 2 KB."""
    text = hide(clean_text(data).text, secrets).strip()
    raw = text.encode()
    return text if len(raw) <= EXCERPT else "…" + raw[len("…".encode()) - EXCERPT :].decode(errors="ignore")
