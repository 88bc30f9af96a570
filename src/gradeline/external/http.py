"""The grader that is a server: one POST per case."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakKeyDictionary

import msgspec

from gradeline.adapters.errors import CallerRefused, FailureScope, ProviderAccess
from gradeline.errors import AgentError, ConfigError, Problem, ProviderRefusedError
from gradeline.external.base import MAX_REPLY, ExternalError, ExternalGrader, variable_faults
from gradeline.model import Config, MeteredResult, described, fingerprint
from gradeline.model.config import canonical_options
from gradeline.model.resources import Resources
from gradeline.model.secrets import contains_secret

if TYPE_CHECKING:
    from gradeline.adapters.transport import TransportPool
    from gradeline.transport import HttpRequest

_NOT_IN_FINGERPRINT = ("timeout", "retries", "concurrency")
_ERROR_TYPES = {"timeout": "timeout", "too_large": "too_large", "truncated": "bad_reply", "bad_response": "bad_reply"}
"""The error types of calls as those of grades; any other is `judge_failed`."""
_REFUSED: Mapping[int, FailureScope] = {401: "caller", 403: "unclear", 404: "unclear", 405: "unclear"}


class HttpGraderConfig(Config, frozen=True, kw_only=True):
    """Options of `HttpGrader`."""

    url: Annotated[str, described("URL that grades a case.")]
    headers: Annotated[dict[str, str], described("HTTP headers, with ${NAME} for secrets.")] = msgspec.field(
        default_factory=dict
    )
    parameters: Annotated[dict[str, Any], described("Data for the server, passed on as `config`.")] = msgspec.field(
        default_factory=dict
    )
    timeout: Annotated[float, described("Seconds per call, including retries (default 30).", gt=0, le=86_400)] = 30.0
    retries: Annotated[int, described("Retries after 429, 5xx and connection errors.", ge=0, le=100)] = 2
    concurrency: Annotated[int, described("Maximum calls in flight.", ge=1, le=10_000)] = 16

    def faults(self) -> Iterator[Problem]:
        from gradeline.transport import HttpRequest  # loads aiohttp

        if contains_secret(self.url):
            yield Problem("url", "contains a secret; send it in headers, as ${NAME}")
        if "${" in self.url:
            yield Problem("url", "variables are replaced in headers only; write the URL, or give it with --set")
        yield from variable_faults(self, "headers")
        try:
            HttpRequest("POST", self.url, self.headers).checked_url()
        except ConfigError as error:
            yield from error.problems


class HttpGrader(ExternalGrader[HttpGraderConfig]):
    """Posts each case to a server as JSON and reads its verdict as JSON.

    It sends ``{sample, submission, response, config}`` and reads ``{score | passed, rationale?, metadata?}``.
    """

    kind = "http"
    name = "HTTP server"
    scoring_guide = "The `score` that the server returns, from 0.0 to 1.0; `passed` scores 1.0 or 0.0."
    caveats = ("The fingerprint covers the URL and the headers; it cannot show that the server's code changed.",)
    variables = "headers"

    def bind(self, resources: Resources) -> HttpGrader:
        bound = super().bind(resources)
        bound._access = ProviderAccess(_scope)
        return bound

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(grader_id, config)
        self._access = ProviderAccess(_scope)

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.options.parameters

    @cached_property
    def fingerprint(self) -> str:
        """Covers the URL, the headers without the values of variables, and the parameters."""
        options = canonical_options(self.options)
        decided = {name: value for name, value in options.items() if name not in _NOT_IN_FINGERPRINT}
        return fingerprint(self.noun, self.kind, self.version, decided)

    def resume_access(self, *, succeeded: bool, failed: int | None = None) -> None:
        """See `ProviderAccess.resume`."""
        self._access.resume(succeeded=succeeded, failed=failed)

    def prepare(self) -> None:
        self._request(b"").checked_url()

    async def grade_case(self, request: bytes) -> MeteredResult:
        async with self._slots:
            try:
                body = await self._access.call(lambda: self._post(request))
            except CallerRefused as error:
                message = f"it would refuse every other call too: {error}; check url and headers"
                raise ProviderRefusedError(Problem(f"grader {self._place}", self.shown(message))) from error
            except AgentError as error:
                return MeteredResult(
                    ExternalError(_ERROR_TYPES.get(error.type, "judge_failed"), self.shown(str(error)))
                )
        return MeteredResult(self.read_verdict(body, self._place))

    async def aclose(self) -> None:
        """Close this event loop's connections; the grader may be used again."""
        await self._transports.close()

    async def _post(self, body: bytes) -> bytes:
        transport = await self._transports.get()
        answer = await transport.request(self._request(body))
        return answer.body

    def _request(self, body: bytes) -> HttpRequest:
        from gradeline.transport import HttpRequest  # loads aiohttp

        headers = {"Content-Type": "application/json", "Accept": "application/json", **self.values}
        return HttpRequest(
            "POST",
            self.options.url,
            headers,
            body,
            deadline_s=self.options.timeout,
            retries=self.options.retries,
            secret_headers=self._secret_headers,
            secrets=tuple(self.mask.values),
        )

    @cached_property
    def _secret_headers(self) -> frozenset[str]:
        return frozenset(name for name, value in self.values.items() if value != self.options.headers[name])

    @cached_property
    def _place(self) -> str:
        from gradeline.transport.redaction import safe_url  # loads aiohttp

        return safe_url(self.options.url)

    @cached_property
    def _transports(self) -> TransportPool:
        from gradeline.adapters.transport import TransportPool  # loads aiohttp

        return TransportPool(lambda: self.resources.transport(max_body=MAX_REPLY))

    @property
    def _slots(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = asyncio.Semaphore(self.options.concurrency)
        return self._by_loop[loop]

    @cached_property
    def _by_loop(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]:
        return WeakKeyDictionary()


def _scope(error: AgentError) -> FailureScope:
    """What a refusal concerns: 401 every call; others every call if none succeeded, such as a wrong path."""
    return _REFUSED.get(getattr(error, "http_status", None) or 0, "request")
