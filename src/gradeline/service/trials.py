"""Asking an agent once, before there is a run: nothing of it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gradeline import targets
from gradeline.engine.outside import Outside
from gradeline.engine.prepare import Choice, prepare
from gradeline.errors import ConfigError, Fault
from gradeline.model import ErrorInfo, Response, Sample, Storage, quote
from gradeline.model.resources import Resources
from gradeline.service.caller import Caller
from gradeline.service.egress import ServiceEgress
from gradeline.service.failures import ApiError, Code
from gradeline.service.secrets import Secrets
from gradeline.service.settings import ServeSettings
from gradeline.service.suites_of import Asked, SuiteMaker, refused
from gradeline.service.test_cases import TestCases
from gradeline.service.trial_shapes import MOST_BYTES, Tried, tried
from gradeline.service.world import outside_of, secrets_of, suite_for_run, within_maximum
from gradeline.suite.spec import Suite
from gradeline.targets.base import DeclaredTarget
from gradeline.targets.registry import MODELS
from gradeline.transport.egress import allow_all
from gradeline.transport.observed import ObservedTransport
from gradeline.transport.redact import safe_url

MOST_S = 60.0
"""Seconds that a try may take, whatever the target says."""

_CASE = "try"
_SLACK_S = 5.0
"""For what a target does around its call; its own limit strikes first, and says more."""


class TryAsked(Struct, frozen=True, kw_only=True):
    """An agent and one case."""

    agent_endpoint_url: str | None = None
    target: dict[str, Any] | None = None
    input: str | None = None
    test_case_id: str | None = None
    timeout_s: float | None = None


class Trials:
    """Asks agents once; `ApiError` says what cannot be asked."""

    def __init__(
        self,
        settings: ServeSettings,
        storage: Storage,
        cases: TestCases,
        egress: ServiceEgress,
        secrets: Secrets,
        maker: SuiteMaker,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._cases = cases
        self._egress = egress
        self._secrets = secrets
        self._maker = maker

    def prepared(self, asked: TryAsked, caller: Caller) -> Trial:
        """The agent and the case, looked at as for a run; nobody is asked yet."""
        sample = self._sample(asked)
        agent = Asked(agent_endpoint_url=asked.agent_endpoint_url, target=asked.target, timeout_s=asked.timeout_s)
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
            outside_of(secrets, self._egress, self._settings.max_concurrency),
            self._settings,
        )

    def ask(self, trial: Trial) -> Tried:
        """What the agent makes of the case. Waits for it."""
        try:
            return asyncio.run(trial.asked())
        except ConfigError as error:
            raise refused(error) from None

    def _sample(self, asked: TryAsked) -> Sample:
        if asked.input is not None and asked.test_case_id is not None:
            raise ApiError(Code.INVALID_INPUT, "Fields 'input' and 'test_case_id' exclude each other")
        if asked.input is not None:
            return Sample(id=_CASE, input=asked.input)
        if asked.test_case_id is None:
            raise ApiError(Code.MISSING_FIELD, "Field 'input' is required (or 'test_case_id')")
        found = self._cases.find([asked.test_case_id])
        if asked.test_case_id not in found:
            message = f"Field 'test_case_id': no test case {quote(asked.test_case_id, 60)}"
            raise ApiError(Code.INVALID_TEST_CASE_ID, message)
        return found[asked.test_case_id].sample()


class Trial:
    """One question to one agent."""

    def __init__(
        self, suite: Suite, sample: Sample, storage: Storage, outside: Outside, settings: ServeSettings
    ) -> None:
        self._suite = _asked_once(suite)
        self._sample = sample
        self._storage = storage
        self._outside = outside
        self._settings = settings
        self._wire = ObservedTransport(outside.policy or allow_all, keep=MOST_BYTES, secrets=outside.secrets)

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

    async def asked(self) -> Tried:
        """What came of it; `ConfigError` for what a person must change before the agent can be asked at all."""
        async with self._opened() as target:
            problems = target.problems_with(self._sample)
            if problems:
                raise ConfigError([problem.within("target") for problem in problems])
            response = await _response(target, self._sample)
            return tried(
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
            choice = within_maximum(Choice(model=model), self._suite, self._settings)
            async with prepare(self._suite, choice, self._storage, outside=outside) as ready:
                yield ready.target
            return
        config = spec.config if model is None else {**spec.config, "model": model}
        if self.kind == "http":
            http = targets.create("http", config, spec.secrets, transport=self._wire).bind(resources)
            async with self._wire, http as target:
                yield target
            return
        from gradeline.adapters.endpoint import Settings  # few agents are a bare model

        settings = Settings(open_transport=lambda: self._wire)
        given: dict[str, Any] = {"environment": outside.environment, "settings": settings}
        async with targets.create(self.kind, config, spec.secrets, **given).bind(resources) as target:
            yield target


async def _response(target: DeclaredTarget[Any], sample: Sample) -> Response:
    try:
        async with asyncio.timeout(MOST_S + _SLACK_S):
            return await target.respond(sample)
    except TimeoutError:
        error = ErrorInfo("timeout", f"no answer within {MOST_S:g} s", Fault.AGENT)
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
        config["timeout"] = min(timeout, MOST_S)
    return replace(suite, target=replace(spec, config=config))
