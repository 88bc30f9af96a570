"""Trials: one call of an agent, or one grade, without a run. Nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote as percent_encode
from urllib.parse import quote_plus

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gradeline import extractors, graders, targets
from gradeline.engine.components import Access, bind_grader
from gradeline.engine.definition import RunOptions
from gradeline.engine.grade import GraderUse, Grading, UserGrader, grade_once
from gradeline.engine.lifecycle import wait_for
from gradeline.engine.plan import Graded
from gradeline.engine.prepare import prepare
from gradeline.errors import ConfigError, Fault, Outcome
from gradeline.graders.base import DEFAULT_EXTRACTOR
from gradeline.model import ErrorInfo, Grade, Response, ResponseKey, Sample, Storage, ToolCall, clean_text, quote
from gradeline.model.resources import Resources
from gradeline.model.secrets import is_secret_name, secrets_in_url
from gradeline.rest_types import RawAnswer, Score, SentRequest, ShownExchange, TrialResult, read_result_id
from gradeline.service.auth import Caller
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.grader_definitions import GraderFolder, problems_error
from gradeline.service.graders import ResolvedGrader
from gradeline.service.results import score_of
from gradeline.service.run_access import (
    ServiceEgress,
    check_graders,
    limit_concurrency,
    open_secrets,
    run_access,
    suite_for_run,
)
from gradeline.service.secrets import Secrets
from gradeline.service.settings import ServeSettings
from gradeline.service.suite_builder import EvaluationRequest, SuiteBuilder, config_error
from gradeline.service.test_cases import TestCases
from gradeline.suite.spec import SuiteDefinition
from gradeline.targets.answer import decode
from gradeline.targets.base import HIDDEN, DeclaredTarget, hide, json_spellings
from gradeline.targets.registry import MODELS
from gradeline.transport.client import RecordedExchange, RecordingTransport
from gradeline.transport.egress import allow_all
from gradeline.transport.redaction import known_secrets, safe_url
from gradeline.usercode.pool import WorkerPool

MAX_SHOWN_BYTES = 100_000
"""Maximum size of each body and text in a trial result."""

_MAX_HEADERS = 50
_MAX_HEADER_CHARS = 1_000
_SHOWN_HEADERS = frozenset(
    {
        "allow",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "location",
        "retry-after",
        "server",
        "transfer-encoding",
        "via",
        "www-authenticate",
    }
)
"""Response headers in a trial result, in addition to those that begin with ``x-``."""


class SecretMasker:
    """Masks credentials in everything that the agent returns, in any encoding."""

    def __init__(self, secrets: Iterable[str], exchanges: Iterable[RecordedExchange]) -> None:
        found = set(secrets)
        for exchange in exchanges:
            found |= set(known_secrets(exchange.url, exchange.headers, (), ()))
        found = {secret for secret in found if secret}
        encoded = {
            form
            for secret in found
            for form in (percent_encode(secret), percent_encode(secret, safe=""), quote_plus(secret))
        }
        self._forms = json_spellings(found) | encoded

    def text(self, text: str) -> str:
        """The text with secrets masked, and without characters that a store cannot hold."""
        return clean_text(hide(text, self._forms)).text

    def beginning(self, text: str) -> str:
        """As `text`, for a truncated text: a prefix of a secret at its end is masked too."""
        text = hide(text, self._forms)
        half = max((_overlap(text, form) for form in self._forms), default=0)
        return clean_text(text[: len(text) - half]).text


def _overlap(text: str, form: str) -> int:
    """The length of the longest prefix of a form at the end of the text."""
    return next((size for size in range(min(len(form) - 1, len(text)), 0, -1) if text.endswith(form[:size])), 0)


def trial_result(
    response: Response,
    exchanges: Collection[RecordedExchange] = (),
    *,
    omitted: int = 0,
    secrets: Iterable[str] = (),
    timeout_s: float | None = None,
) -> TrialResult:
    """The result of a call, with secrets masked."""
    masker = SecretMasker(secrets, exchanges)
    text, cut = (None, False) if response.text is None else _within(masker.text(response.text))
    tool_calls = list(response.steps.tool_calls())
    calls = list(_fitting(tool_calls, masker)) if tool_calls or response.steps.tools_known else None
    return TrialResult(
        response_status=response.status,
        agent_response=text,
        agent_response_truncated=cut,
        tool_calls=calls,
        tool_calls_omitted=len(tool_calls) - len(calls or ()),
        usage=response.usage,
        response_latency_ms=response.latency_ms,
        error_type=None if response.error is None else response.error.type,
        error_message=None if response.error is None else masker.text(response.error.message),
        timeout_s=timeout_s,
        exchanges=[_to_shown_exchange(exchange, masker) for exchange in exchanges],
        exchanges_omitted=omitted,
    )


def _fitting(calls: Iterable[ToolCall], masker: SecretMasker) -> Iterator[ToolCall]:
    """The calls that fit into a trial result."""
    room = MAX_SHOWN_BYTES
    for call in calls:
        name, arguments = masker.text(call.name), masker.text(call.arguments)
        shown = ToolCall(name, arguments, None if call.id is None else masker.text(call.id))
        room -= len(msgspec.json.encode(shown))
        if room < 0:
            return
        yield shown


def _to_shown_exchange(exchange: RecordedExchange, masker: SecretMasker) -> ShownExchange:
    body, cut = (None, False) if exchange.body is None else _within(masker.text(decode(exchange.body).text))
    request = SentRequest(
        method=exchange.method,
        url=masker.text(exchange.url),
        headers=dict(_headers(exchange.headers, masker)),
        body=body,
        body_truncated=cut,
    )
    if exchange.status is None:
        return ShownExchange(request=request, answer=None)
    shown = {name: value for name, value in exchange.answer_headers.items() if _is_shown(name)}
    answer = RawAnswer(
        status=exchange.status,
        headers=dict(_headers(shown, masker)),
        body=_answer_body(exchange, masker),
        body_truncated=exchange.cut,
    )
    return ShownExchange(request=request, answer=answer)


def _answer_body(exchange: RecordedExchange, masker: SecretMasker) -> str | None:
    if exchange.answer is None:
        return None
    kind = next((value for name, value in exchange.answer_headers.items() if name.lower() == "content-type"), "")
    text = decode(exchange.answer, kind).text
    # the cut may be within a character
    return masker.beginning(text.rstrip("\ufffd")) if exchange.cut else masker.text(text)


def _is_shown(header: str) -> bool:
    return header.lower() in _SHOWN_HEADERS or header.lower().startswith("x-")


def _headers(headers: Mapping[str, str], masker: SecretMasker) -> Iterator[tuple[str, str]]:
    for name, value in list(headers.items())[:_MAX_HEADERS]:
        hidden = HIDDEN if is_secret_name(name) else hide(masker.text(value), secrets_in_url(value))
        yield masker.text(name), hidden[:_MAX_HEADER_CHARS]


def _within(text: str) -> tuple[str, bool]:
    """The beginning of the text, and whether there is more."""
    raw = text.encode()
    return (text, False) if len(raw) <= MAX_SHOWN_BYTES else (raw[:MAX_SHOWN_BYTES].decode(errors="ignore"), True)


MAX_TRIAL_S = 60.0
"""Maximum duration of a trial in seconds, whatever the timeout of the target."""

_CASE = "try"
_SLACK_S = 5.0
"""Time for what a target does around its call; its own timeout comes first, and has a better message."""


class TrialRequest(Struct, frozen=True, kw_only=True):
    """A trial of an agent with one case."""

    agent_endpoint_url: str | None = None
    target: dict[str, Any] | None = None
    input: str | None = None
    test_case_id: str | None = None
    timeout_s: float | None = None


class Trials:
    """Calls agents once. An invalid request is a `ServiceError`."""

    def __init__(
        self,
        settings: ServeSettings,
        storage: Storage,
        cases: TestCases,
        egress: ServiceEgress,
        secrets: Secrets,
        suites: SuiteBuilder,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._cases = cases
        self._egress = egress
        self._secrets = secrets
        self._suites = suites

    def prepare(self, request: TrialRequest, caller: Caller) -> Trial:
        """Check the agent and the case as for a run. Makes no calls."""
        sample = self._sample(request)
        agent = EvaluationRequest(
            agent_endpoint_url=request.agent_endpoint_url, target=request.target, timeout_s=request.timeout_s
        )
        document = {
            "name": _CASE,
            "dataset": [],
            "target": self._suites.build_target(agent, caller),
            # a suite must have graders; they are not called
            "graders": {"latency": {"kind": "latency"}},
        }
        try:
            secrets = open_secrets(document, self._secrets)
            suite = suite_for_run(document, secrets, self._settings)
        except ConfigError as error:
            raise config_error(error) from None
        return Trial(
            suite,
            sample,
            self._storage,
            run_access(secrets, self._egress, self._settings.max_concurrency),
            self._settings,
        )

    def run(self, trial: Trial) -> TrialResult:
        """Call the agent and wait for its response."""
        try:
            return asyncio.run(trial.run())
        except ConfigError as error:
            raise config_error(error) from None

    def _sample(self, request: TrialRequest) -> Sample:
        if request.input is not None and request.test_case_id is not None:
            raise ServiceError(Code.INVALID_INPUT, "Fields 'input' and 'test_case_id' exclude each other")
        if request.input is not None:
            return Sample(id=_CASE, input=request.input)
        if request.test_case_id is None:
            raise ServiceError(Code.MISSING_FIELD, "Field 'input' is required (or 'test_case_id')")
        found = self._cases.find([request.test_case_id])
        if request.test_case_id not in found:
            message = f"Field 'test_case_id': no test case {quote(request.test_case_id, 60)}"
            raise ServiceError(Code.INVALID_TEST_CASE_ID, message)
        return found[request.test_case_id].sample()


class Trial:
    """One call of one agent."""

    def __init__(
        self, suite: SuiteDefinition, sample: Sample, storage: Storage, access: Access, settings: ServeSettings
    ) -> None:
        self._suite = _without_retries(suite)
        self._sample = sample
        self._storage = storage
        self._access = access
        self._settings = settings
        self._wire = RecordingTransport(access.policy or allow_all, keep=MAX_SHOWN_BYTES, secrets=access.secrets)

    @property
    def kind(self) -> str:
        """The kind of the target."""
        return self._suite.target.kind

    @property
    def place(self) -> str:
        """The address of the agent, without secrets, for logs."""
        config = self._suite.target.config
        url = config.get("url") or config.get("base_url")
        return safe_url(url) if isinstance(url, str) else self.kind

    @property
    def _over_http(self) -> bool:
        return self.kind == "http" or self.kind in MODELS

    async def run(self) -> TrialResult:
        """The result of the call; `ConfigError` if the target is invalid."""
        async with self._open_target() as target:
            problems = target.problems_with(self._sample)
            if problems:
                raise ConfigError([problem.within("target") for problem in problems])
            response = await _response(target, self._sample)
            return trial_result(
                response,
                self._wire.exchanges,
                omitted=self._wire.omitted,
                secrets=target.hidden,
                timeout_s=getattr(target.options, "timeout", None),
            )

    @asynccontextmanager
    async def _open_target(self) -> AsyncIterator[DeclaredTarget[Any]]:
        access = self._access
        resources = Resources(None, access.environment, access.policy, secrets=access.secrets)
        spec = self._suite.target
        if not self._over_http:
            choice = limit_concurrency(RunOptions(), self._suite, self._settings)
            async with prepare(self._suite, choice, self._storage, access=access) as prepared:
                yield prepared.target
            return
        config = spec.config
        if self.kind == "http":
            context = targets.TargetContext(resources, transport=self._wire)
            async with self._wire, targets.create("http", config, spec.secrets, context) as target:
                yield target
            return
        from gradeline.adapters.wire import AdapterSettings  # only agents that are a model need it

        settings = AdapterSettings(transport_factory=lambda: self._wire)
        context = targets.TargetContext(resources, settings=settings)
        async with targets.create(self.kind, config, spec.secrets, context) as target:
            yield target


async def _response(target: DeclaredTarget[Any], sample: Sample) -> Response:
    try:
        async with asyncio.timeout(MAX_TRIAL_S + _SLACK_S):
            return await target.respond(sample)
    except TimeoutError:
        error = ErrorInfo("timeout", f"no response within {MAX_TRIAL_S:g} s", Fault.AGENT)
        return Response(status="timeout", error=error)
    except ConfigError as error:
        # it would end a run, such as a refused key; the exchange shows more than the message
        return Response(status="error", error=ErrorInfo("config", str(error), Fault.INFRASTRUCTURE))


def _without_retries(suite: SuiteDefinition) -> SuiteDefinition:
    """The suite of the first variant without retries, and with the timeout of a trial."""
    suite = suite.with_variant(suite.run_variants()[0])
    spec = suite.target
    options = targets.registry.get(spec.kind).read(spec.config).options
    config = dict(spec.config)
    if hasattr(options, "retries"):
        config["retries"] = 0
    timeout = getattr(options, "timeout", None)
    if timeout is not None:
        config["timeout"] = min(timeout, MAX_TRIAL_S)
    return suite.with_targets(lambda spec: replace(spec, config=config))


MAX_PREVIEW_S = 60.0
"""Maximum duration of a preview in seconds, whatever the timeout and the retries of a judge."""


class PreviewInput(NamedTuple):
    """A response to grade in a preview."""

    sample: Sample
    response: Response
    stored: bool
    """Whether it is a result of a run; otherwise its text is the submission."""


class Previewer:
    """Runs graders once. User code runs in worker processes, judges within the egress policy."""

    def __init__(
        self,
        files: GraderFolder,
        secrets: Secrets,
        egress: ServiceEgress,
        caller: Caller,
        allowed: Collection[str] = (),
    ) -> None:
        """``allowed`` are the kinds of graders that may run programs."""
        self._allowed = allowed
        self._files = files
        self._secrets = secrets
        self._egress = egress
        self._caller = caller

    def score(self, grader: ResolvedGrader, preview: PreviewInput) -> Score:
        """The grader's score; an error of its own is a score of status ``error``.

        `ServiceError` if it cannot be called, because a key is missing or its code cannot be loaded.
        """
        try:
            if grader.function is not None:
                graded = self._by_function(grader, grader.function, preview)
            else:
                graded = self._by_definition(grader, preview)
        except ConfigError as error:
            raise problems_error(Code.INVALID_GRADER, error.problems) from None
        return score_of(grader.key, graded.grade, grader.name)

    def _by_definition(self, grader: ResolvedGrader, preview: PreviewInput) -> Graded:
        document = {"graders": {grader.key: {"kind": grader.kind, "config": grader.config}}}
        check_graders(document["graders"], self._egress, self._secrets, self._caller, self._allowed)
        access = run_access(open_secrets(document, self._secrets), self._egress)
        resources = Resources(self._files.folder, access.environment, access.policy, secrets=access.secrets)
        bound = bind_grader(grader.kind, grader.config, resources)
        extractor = extractors.create(graders.default_extractor(grader.kind) if preview.stored else DEFAULT_EXTRACTOR)
        return wait_for(lambda _: _bounded(grader, grade_once(bound, extractor, preview.sample, preview.response)))

    def _by_function(self, grader: ResolvedGrader, function: str, preview: PreviewInput) -> Graded:
        async def grade() -> Graded:
            async with WorkerPool(self._files.code([function]), size=1) as pool:
                (entry,) = (await pool.start()).entries
                user = UserGrader(function, entry.fingerprint)
                grading = Grading([GraderUse(grader.key, user, extractors.create(DEFAULT_EXTRACTOR))], pool)
                return (await grading.grade(preview.sample, preview.response))[grader.key]

        return wait_for(lambda _: _bounded(grader, grade()))


async def _bounded(grader: ResolvedGrader, grading: Coroutine[object, object, Graded]) -> Graded:
    """The grade, or a timeout error after `MAX_PREVIEW_S`."""
    try:
        async with asyncio.timeout(MAX_PREVIEW_S):
            return await grading
    except TimeoutError:
        error = ErrorInfo("timeout", f"no score within {MAX_PREVIEW_S:g} s, the maximum of a preview", Fault.GRADER)
        return Graded(None, Grade(grader.kind, str(grader.definition["fingerprint"]), Outcome.ERROR, error=error))


def preview_texts(agent_response: str, expected_output: str | None, prompt: str | None) -> PreviewInput:
    """A response that belongs to no run: its text is the submission."""
    for name, text in (("agent_response", agent_response), ("expected_output", expected_output), ("input", prompt)):
        if text is not None and clean_text(text).changed:
            raise ServiceError(Code.INVALID_INPUT, f"Field '{name}' contains NUL or half a surrogate pair; remove it")
    sample = Sample(id="preview", input=prompt or "", ground_truth=expected_output)
    return PreviewInput(sample, Response(text=agent_response), stored=False)


def preview_stored_result(storage: Storage, evaluation: str, result: str) -> PreviewInput:
    """A response of a run: the grader's extractor picks what is graded."""
    if clean_text(evaluation).changed or storage.get_run(evaluation) is None:
        raise not_found("evaluation", evaluation)
    for case, repeat in read_result_id(result):
        if not clean_text(case).changed:
            record = storage.get_record(ResponseKey(evaluation, case, repeat))
            if record is not None:
                return PreviewInput(record.sample, record.response, stored=True)
    raise not_found("result", result)
