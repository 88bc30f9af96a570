"""Asking an agent once, before there is a run: nothing of it is stored."""

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
from gradeline.api.threads import wait_for
from gradeline.engine.access import Access
from gradeline.engine.components import bind_grader
from gradeline.engine.definition import RunOptions
from gradeline.engine.grade import Graded, GraderUse, Grading, UserGrader, grade_once
from gradeline.engine.prepare import prepare
from gradeline.errors import ConfigError, Fault, Outcome
from gradeline.graders.base import DEFAULT_EXTRACTOR
from gradeline.model import ErrorInfo, Grade, Response, ResponseKey, Sample, Storage, ToolCall, clean_text, quote
from gradeline.model.resources import Resources
from gradeline.model.secrets import is_secret_name, secrets_in_url
from gradeline.rest_types import RawAnswer, Score, SentRequest, ShownExchange, TrialResult, read_result_id
from gradeline.service.auth import Caller
from gradeline.service.egress import ServiceEgress
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.grader_definitions import GraderFolder, problems_error
from gradeline.service.graders import ResolvedGrader
from gradeline.service.results import score_of
from gradeline.service.secrets import Secrets
from gradeline.service.settings import ServeSettings
from gradeline.service.suites_of import EvaluationRequest, SuiteBuilder, refused
from gradeline.service.test_cases import TestCases
from gradeline.service.world import check_judges, run_access, secrets_of, suite_for_run, within_maximum
from gradeline.suite.spec import Suite
from gradeline.targets.answer import decode
from gradeline.targets.base import HIDDEN, DeclaredTarget, hide, spellings
from gradeline.targets.registry import MODELS
from gradeline.transport.client import RecordedExchange, RecordingTransport
from gradeline.transport.egress import allow_all
from gradeline.transport.redaction import known_secrets, safe_url
from gradeline.usercode.pool import WorkerPool

MAX_SHOWN_BYTES = 100_000
"""Of each body and text that is shown."""

_MOST_HEADERS = 50
_LONGEST_HEADER = 1_000
_TELLING = frozenset(
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
"""Headers of an answer that say something of the call, beside those that begin with ``x-``."""


class SecretMasker:
    """Hides what lets the caller in, however the agent says it back."""

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
        self._forms = spellings(found) | encoded

    def text(self, text: str) -> str:
        """The text without secrets, and as a store could keep it."""
        return clean_text(hide(text, self._forms)).text

    def beginning(self, text: str) -> str:
        """The same of a text that was cut off: half a secret at its end is one too."""
        text = hide(text, self._forms)
        half = max((_overlap(text, form) for form in self._forms), default=0)
        return clean_text(text[: len(text) - half]).text


def _overlap(text: str, form: str) -> int:
    """How much of a form's beginning the text ends with."""
    return next((size for size in range(min(len(form) - 1, len(text)), 0, -1) if text.endswith(form[:size])), 0)


def trial_result(
    response: Response,
    exchanges: Collection[RecordedExchange] = (),
    *,
    omitted: int = 0,
    secrets: Iterable[str] = (),
    timeout_s: float | None = None,
) -> TrialResult:
    """What may be told of a call."""
    veil = SecretMasker(secrets, exchanges)
    text, cut = (None, False) if response.text is None else _within(veil.text(response.text))
    made = list(response.steps.tool_calls())
    calls = list(_fitting(made, veil)) if made or response.steps.tools_known else None
    return TrialResult(
        response_status=response.status,
        agent_response=text,
        agent_response_truncated=cut,
        tool_calls=calls,
        tool_calls_omitted=len(made) - len(calls or ()),
        usage=response.usage,
        response_latency_ms=response.latency_ms,
        error_type=None if response.error is None else response.error.type,
        error_message=None if response.error is None else veil.text(response.error.message),
        timeout_s=timeout_s,
        exchanges=[_shown(exchange, veil) for exchange in exchanges],
        exchanges_omitted=omitted,
    )


def _fitting(calls: Iterable[ToolCall], veil: SecretMasker) -> Iterator[ToolCall]:
    """As many calls as may be shown."""
    room = MAX_SHOWN_BYTES
    for call in calls:
        name, arguments = veil.text(call.name), veil.text(call.arguments)
        shown = ToolCall(name, arguments, None if call.id is None else veil.text(call.id))
        room -= len(msgspec.json.encode(shown))
        if room < 0:
            return
        yield shown


def _shown(exchange: RecordedExchange, veil: SecretMasker) -> ShownExchange:
    body, cut = (None, False) if exchange.body is None else _within(veil.text(decode(exchange.body).text))
    request = SentRequest(
        method=exchange.method,
        url=veil.text(exchange.url),
        headers=dict(_headers(exchange.headers, veil)),
        body=body,
        body_truncated=cut,
    )
    if exchange.status is None:
        return ShownExchange(request=request, answer=None)
    telling = {name: value for name, value in exchange.answer_headers.items() if _tells(name)}
    answer = RawAnswer(
        status=exchange.status,
        headers=dict(_headers(telling, veil)),
        body=_answer_body(exchange, veil),
        body_truncated=exchange.cut,
    )
    return ShownExchange(request=request, answer=answer)


def _answer_body(exchange: RecordedExchange, veil: SecretMasker) -> str | None:
    if exchange.answer is None:
        return None
    kind = next((value for name, value in exchange.answer_headers.items() if name.lower() == "content-type"), "")
    text = decode(exchange.answer, kind).text
    # the cut may be within a character
    return veil.beginning(text.rstrip("\ufffd")) if exchange.cut else veil.text(text)


def _tells(header: str) -> bool:
    return header.lower() in _TELLING or header.lower().startswith("x-")


def _headers(headers: Mapping[str, str], veil: SecretMasker) -> Iterator[tuple[str, str]]:
    for name, value in list(headers.items())[:_MOST_HEADERS]:
        hidden = HIDDEN if is_secret_name(name) else hide(veil.text(value), secrets_in_url(value))
        yield veil.text(name), hidden[:_LONGEST_HEADER]


def _within(text: str) -> tuple[str, bool]:
    """The text as far as it is shown, and whether there is more."""
    raw = text.encode()
    return (text, False) if len(raw) <= MAX_SHOWN_BYTES else (raw[:MAX_SHOWN_BYTES].decode(errors="ignore"), True)


MAX_TRIAL_S = 60.0
"""Seconds that a try may take, whatever the target says."""

_CASE = "try"
_SLACK_S = 5.0
"""For what a target does around its call; its own limit strikes first, and says more."""


class TrialRequest(Struct, frozen=True, kw_only=True):
    """An agent and one case."""

    agent_endpoint_url: str | None = None
    target: dict[str, Any] | None = None
    input: str | None = None
    test_case_id: str | None = None
    timeout_s: float | None = None


class Trials:
    """Asks agents once; `ServiceError` says what cannot be asked."""

    def __init__(
        self,
        settings: ServeSettings,
        storage: Storage,
        cases: TestCases,
        egress: ServiceEgress,
        secrets: Secrets,
        maker: SuiteBuilder,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._cases = cases
        self._egress = egress
        self._secrets = secrets
        self._maker = maker

    def prepared(self, asked: TrialRequest, caller: Caller) -> Trial:
        """The agent and the case, looked at as for a run; nobody is asked yet."""
        sample = self._sample(asked)
        agent = EvaluationRequest(
            agent_endpoint_url=asked.agent_endpoint_url, target=asked.target, timeout_s=asked.timeout_s
        )
        document = {
            "name": _CASE,
            "dataset": [],
            "target": self._maker.agent(agent, caller),
            # a suite has graders; these are not asked
            "graders": {"latency": {"kind": "latency"}},
        }
        try:
            secrets = secrets_of(document, self._secrets)
            suite = suite_for_run(document, secrets, self._settings)
        except ConfigError as error:
            raise refused(error) from None
        return Trial(
            suite,
            sample,
            self._storage,
            run_access(secrets, self._egress, self._settings.max_concurrency),
            self._settings,
        )

    def ask(self, trial: Trial) -> TrialResult:
        """What the agent makes of the case. Waits for it."""
        try:
            return asyncio.run(trial.asked())
        except ConfigError as error:
            raise refused(error) from None

    def _sample(self, asked: TrialRequest) -> Sample:
        if asked.input is not None and asked.test_case_id is not None:
            raise ServiceError(Code.INVALID_INPUT, "Fields 'input' and 'test_case_id' exclude each other")
        if asked.input is not None:
            return Sample(id=_CASE, input=asked.input)
        if asked.test_case_id is None:
            raise ServiceError(Code.MISSING_FIELD, "Field 'input' is required (or 'test_case_id')")
        found = self._cases.find([asked.test_case_id])
        if asked.test_case_id not in found:
            message = f"Field 'test_case_id': no test case {quote(asked.test_case_id, 60)}"
            raise ServiceError(Code.INVALID_TEST_CASE_ID, message)
        return found[asked.test_case_id].sample()


class Trial:
    """One question to one agent."""

    def __init__(
        self, suite: Suite, sample: Sample, storage: Storage, outside: Access, settings: ServeSettings
    ) -> None:
        self._suite = _asked_once(suite)
        self._sample = sample
        self._storage = storage
        self._outside = outside
        self._settings = settings
        self._wire = RecordingTransport(outside.policy or allow_all, keep=MAX_SHOWN_BYTES, secrets=outside.secrets)

    @property
    def kind(self) -> str:
        """The kind of the target."""
        return self._suite.target.kind

    @property
    def place(self) -> str:
        """Who is asked, as a log may show it."""
        config = self._suite.target.config
        url = config.get("url") or config.get("base_url")
        return safe_url(url) if isinstance(url, str) else self.kind

    @property
    def _over_http(self) -> bool:
        return self.kind == "http" or self.kind in MODELS

    async def asked(self) -> TrialResult:
        """What came of it; `ConfigError` for what a person must change before the agent can be asked at all."""
        async with self._opened() as target:
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
    async def _opened(self) -> AsyncIterator[DeclaredTarget[Any]]:
        outside = self._outside
        resources = Resources(None, outside.environment, outside.policy, secrets=outside.secrets)
        spec = self._suite.target
        model = spec.models[0] if spec.models else None
        if not self._over_http:
            choice = within_maximum(RunOptions(model=model), self._suite, self._settings)
            async with prepare(self._suite, choice, self._storage, outside=outside) as ready:
                yield ready.target
            return
        config = spec.config if model is None else {**spec.config, "model": model}
        if self.kind == "http":
            context = targets.TargetContext(resources, transport=self._wire)
            async with self._wire, targets.create("http", config, spec.secrets, context) as target:
                yield target
            return
        from gradeline.adapters.wire import AdapterSettings  # few agents are a bare model

        settings = AdapterSettings(transport_factory=lambda: self._wire)
        context = targets.TargetContext(resources, settings=settings)
        async with targets.create(self.kind, config, spec.secrets, context) as target:
            yield target


async def _response(target: DeclaredTarget[Any], sample: Sample) -> Response:
    try:
        async with asyncio.timeout(MAX_TRIAL_S + _SLACK_S):
            return await target.respond(sample)
    except TimeoutError:
        error = ErrorInfo("timeout", f"no answer within {MAX_TRIAL_S:g} s", Fault.AGENT)
        return Response(status="timeout", error=error)
    except ConfigError as error:
        # what would end a run, such as a key that is refused: a look at the exchange tells more than its message
        return Response(status="error", error=ErrorInfo("config", str(error), Fault.INFRASTRUCTURE))


def _asked_once(suite: Suite) -> Suite:
    """No retries, and no longer than a try may take."""
    spec = suite.target
    options = targets.registry.get(spec.kind).read(spec.config).options
    config = dict(spec.config)
    if hasattr(options, "retries"):
        config["retries"] = 0
    timeout = getattr(options, "timeout", None)
    if timeout is not None:
        config["timeout"] = min(timeout, MAX_TRIAL_S)
    return replace(suite, target=replace(spec, config=config))


MAX_PREVIEW_S = 60.0
"""Seconds that a preview may take, whatever a judge's own timeout and retries are."""


class PreviewInput(NamedTuple):
    """An answer to grade for a look."""

    sample: Sample
    response: Response
    stored: bool
    """Whether it is a run's result; else its text is the submission."""


class Previewer:
    """Runs graders for a look at what they say. User code runs in worker processes, judges within the egress policy."""

    def __init__(self, files: GraderFolder, secrets: Secrets, egress: ServiceEgress, caller: Caller) -> None:
        self._files = files
        self._secrets = secrets
        self._egress = egress
        self._caller = caller

    def score(self, grader: ResolvedGrader, answer: PreviewInput) -> Score:
        """The grader's score; an error of its own is a score of status ``error``.

        `ServiceError` where it cannot be asked at all: a key is missing, its code cannot be loaded.
        """
        try:
            if grader.function is not None:
                graded = self._by_function(grader, grader.function, answer)
            else:
                graded = self._by_definition(grader, answer)
        except ConfigError as error:
            raise problems_error(Code.INVALID_GRADER, error.problems) from None
        return score_of(grader.key, graded.grade, grader.name)

    def _by_definition(self, grader: ResolvedGrader, answer: PreviewInput) -> Graded:
        document = {"graders": {grader.key: {"kind": grader.kind, "config": grader.config}}}
        check_judges(document["graders"], self._egress, self._secrets, self._caller)
        outside = run_access(secrets_of(document, self._secrets), self._egress)
        resources = Resources(None, outside.environment, outside.policy, secrets=outside.secrets)
        made = bind_grader(grader.kind, grader.config, resources)
        extractor = extractors.create(graders.default_extractor(grader.kind) if answer.stored else DEFAULT_EXTRACTOR)
        return wait_for(lambda _: _bounded(grader, grade_once(made, extractor, answer.sample, answer.response)))

    def _by_function(self, grader: ResolvedGrader, function: str, answer: PreviewInput) -> Graded:
        async def grade() -> Graded:
            async with WorkerPool(self._files.code([function]), size=1) as pool:
                (entry,) = (await pool.start()).entries
                user = UserGrader(function, entry.fingerprint)
                grading = Grading([GraderUse(grader.key, user, extractors.create(DEFAULT_EXTRACTOR))], pool)
                return (await grading.grade(answer.sample, answer.response))[grader.key]

        return wait_for(lambda _: _bounded(grader, grade()))


async def _bounded(grader: ResolvedGrader, grading: Coroutine[object, object, Graded]) -> Graded:
    """What the grader says in time, whatever its own options allow."""
    try:
        async with asyncio.timeout(MAX_PREVIEW_S):
            return await grading
    except TimeoutError:
        error = ErrorInfo("timeout", f"no score within {MAX_PREVIEW_S:g} s, the maximum of a preview", Fault.GRADER)
        return Graded(None, Grade(grader.kind, str(grader.definition["fingerprint"]), Outcome.ERROR, error=error))


def preview_texts(agent_response: str, expected_output: str | None, asked: str | None) -> PreviewInput:
    """An answer to grade that belongs to no run: its text is the submission."""
    for name, text in (("agent_response", agent_response), ("expected_output", expected_output), ("input", asked)):
        if text is not None and clean_text(text).changed:
            raise ServiceError(Code.INVALID_INPUT, f"Field '{name}' holds NUL or half a surrogate pair; leave it out")
    sample = Sample(id="preview", input=asked or "", ground_truth=expected_output)
    return PreviewInput(sample, Response(text=agent_response), stored=False)


def preview_stored_result(storage: Storage, evaluation: str, result: str) -> PreviewInput:
    """An answer to grade that a run has: the grader takes out of it what it grades."""
    if clean_text(evaluation).changed or storage.get_run(evaluation) is None:
        raise not_found("evaluation", evaluation)
    for case, repeat in read_result_id(result):
        if not clean_text(case).changed:
            record = storage.get_record(ResponseKey(evaluation, case, repeat))
            if record is not None:
                return PreviewInput(record.sample, record.response, stored=True)
    raise not_found("result", result)
