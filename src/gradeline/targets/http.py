"""An agent behind an HTTP API: one request per turn, described as data."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from functools import cache, cached_property, partial
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model import Config, Response, Sample, described
from gradeline.model.secrets import is_secret_name
from gradeline.targets.answer import (
    AnswerReader,
    NoJsonError,
    ParsedAnswer,
    ResponseMap,
    compiled,
    decode,
    is_truthy,
    json_text,
    parse,
    path_faults,
    response_of,
)
from gradeline.targets.answer_values import bad_response, search, with_workers
from gradeline.targets.base import NetworkTarget, TargetConfig, json_spellings
from gradeline.targets.template import (
    ABSENT,
    JsonAroundInput,
    PlaceholderValues,
    as_text,
    fill,
    fill_url,
    input_turns,
    placeholder_faults,
    placeholders,
    whole_placeholder,
    write_json,
)

if TYPE_CHECKING:
    from gradeline.transport import HttpRequest, HttpResponse

_PLACEHOLDERS = ("input", "id", "model", "metadata.")
_BODYLESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_END = "[DONE]"


class PollConfig(Config, frozen=True):
    """Polling for a response that is not ready at once."""

    url: Annotated[
        str, described("URL to poll, relative to the target's url; {{response.PATH}} is read from the first response.")
    ]
    until: Annotated[str, described("JMESPath that is true once the response is ready.")]
    output: Annotated[str | None, described("JMESPath of the text (default response.output).")] = None
    interval: Annotated[float, described("Seconds between polls (default 0.5).", gt=0)] = 0.5

    def faults(self) -> Iterator[Problem]:
        yield from placeholder_faults(self.url, "url", (*_PLACEHOLDERS, "response."))
        yield from path_faults(self.until, "until")
        yield from path_faults(self.output, "output")


class SessionConfig(Config, frozen=True):
    """The session that connects the turns of one sample."""

    read: Annotated[str, described("JMESPath of the session in a response.")]
    send: Annotated[str | None, described("Key of the request for the session; or use {{session}} in it.")] = None

    def faults(self) -> Iterator[Problem]:
        yield from path_faults(self.read, "read")


class HttpConfig(TargetConfig, frozen=True, kw_only=True):
    """Options of `HttpTarget`."""

    url: Annotated[str, described("URL of the agent; placeholders in its path and query are percent-encoded.")]
    method: Annotated[
        str, described("HTTP method (default POST); GET, HEAD and DELETE send no body unless request is set.")
    ] = "POST"
    headers: Annotated[dict[str, str], described("HTTP headers.")] = msgspec.field(default_factory=dict)
    query: Annotated[dict[str, str], described("Query parameters, added to url.")] = msgspec.field(default_factory=dict)
    request: Annotated[
        Any,
        described(
            "Body as data with the placeholders {{input}}, {{id}}, {{model}}, {{metadata.x}}, {{session}}"
            ' (default {input: "{{input}}"}).'
        ),
    ] = None
    response: Annotated[ResponseMap, described("JMESPaths of the parts of the response.")] = msgspec.field(
        default_factory=ResponseMap
    )
    timeout: Annotated[
        float, described("Timeout of one turn in seconds, including retries, pauses and polling.", gt=0, le=86_400)
    ] = 30.0
    retries: Annotated[int, described("Retries after 429, 5xx and connection errors.", ge=0, le=100)] = 2
    stream: Annotated[Literal["none", "sse", "ndjson"], described("Format of a streamed response (default none).")] = (
        "none"
    )
    poll: Annotated[PollConfig | None, described("Polling for a response that is not ready at once.")] = None
    session: Annotated[SessionConfig | None, described("Session that connects the turns of one sample.")] = None

    @property
    def tree(self) -> Any:
        """The request's body before its placeholders are filled in; None for no body."""
        if self.request is None:
            return None if self.method.upper() in _BODYLESS else {"input": "{{input}}"}
        return self.request

    @property
    def whole_url(self) -> str:
        """The URL with its query parameters, before its placeholders are filled in."""
        if not self.query:
            return self.url
        base, mark, fragment = self.url.partition("#")
        return f"{base}{'&' if '?' in base else '?'}{urlencode(self.query)}{mark}{fragment}"

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        known = (*_PLACEHOLDERS, "session") if self.session else _PLACEHOLDERS
        yield from placeholder_faults(self.url, "url", known)
        yield from placeholder_faults(self.tree, "request", known)
        for option in ("headers", "query"):
            for path, name in placeholders(getattr(self, option), option):
                yield Problem(path, f"{{{{{name}}}}} is not filled in here; write it into request or url")
        yield from self._call_faults()
        yield from (fault.within("response") for fault in self.response.faults())
        if self.session is not None:
            yield from (fault.within("session") for fault in self.session.faults())
            yield from self._session_faults(self.session)
        if self.poll is not None:
            yield from (fault.within("poll") for fault in self.poll.faults())
            if self.stream != "none":
                yield Problem("poll", f"conflicts with stream: {self.stream}; keep one of them")

    def _call_faults(self) -> Iterator[Problem]:
        from gradeline.transport import HttpRequest  # loads aiohttp

        one, other = fill_url(self.url, lambda _: "a"), fill_url(self.url, lambda _: "b")
        if urlsplit(one)[:2] != urlsplit(other)[:2]:
            yield Problem("url", "placeholders are allowed in the path and the query, not in the host")
            return
        try:
            HttpRequest(self.method, one, self.headers).checked_url()
        except ConfigError as error:
            yield from error.problems

    def _session_faults(self, session: SessionConfig) -> Iterator[Problem]:
        if session.send is None:
            names = {name for _, name in placeholders([self.tree, self.url])}
            if "session" not in names:
                yield Problem("session", "is read but never sent; name the key in send or write {{session}} in request")
        elif not isinstance(self.tree, Mapping):
            yield Problem("session.send", "needs a request that is a mapping")


class HttpTarget(NetworkTarget[HttpConfig]):
    """Calls an agent over HTTP: the request is data with placeholders, the text is read by JMESPath.

    A list input is one call per turn. Without ``response.output`` the text is read from the usual keys, and a body
    that is not JSON is the text. An empty body is a bad response.
    """

    kind = "http"
    name = "HTTP agent"

    def __init__(self, config: Mapping[str, Any] | None = None, secrets: Collection[str] = ()) -> None:
        super().__init__(config, secrets)
        # system randomness for each trace ID would release the interpreter's lock in the middle of a call
        self._random = Random()  # noqa: S311 - for IDs, not for keys
        paths = self.options.response
        self._reader = AnswerReader(paths)
        poll = self.options.poll
        if poll is not None:
            self._reader = AnswerReader(msgspec.structs.replace(paths, output=poll.output or paths.output))
        self._tree = self.options.tree
        self._url = self.options.whole_url
        later = (name for _, name in placeholders(poll.url if poll else ""))
        self._poll_metadata = tuple(name for name in later if name.startswith("metadata."))
        self._until = compiled(poll.until) if poll else None
        self._session_path = compiled(self.options.session.read) if self.options.session else None

    async def open(self) -> None:
        self._random.seed()  # a copy in another process must not create the same trace IDs
        await super().open()

    @cached_property
    def hidden(self) -> frozenset[str]:
        from gradeline.transport.redaction import known_secrets

        return json_spellings(known_secrets(self._url, self.options.headers, (), self.secrets))

    @cached_property
    def credentials(self) -> frozenset[str]:
        from gradeline.transport.redaction import known_secrets

        return frozenset(known_secrets(self._url, self.options.headers, (), ()))

    @cached_property
    def _headers(self) -> Mapping[str, str]:
        """Headers of the first request."""
        headers = self.options.headers
        if self._tree is None or any(name.lower() == "content-type" for name in headers):
            return headers
        return {**headers, "Content-Type": "application/json"}

    @cached_property
    def _secret_headers(self) -> frozenset[str]:
        return frozenset(
            name for name, value in self.options.headers.items() if any(secret in value for secret in self.hidden)
        )

    @cached_property
    def _takes_any_sample(self) -> bool:
        """Whether no placeholder depends on optional fields of a sample."""
        poll = self.options.poll
        in_urls = [*placeholders(self.options.url), *placeholders(poll.url if poll else "")]
        return not in_urls and all(name in ("input", "id", "model") for _, name in placeholders(self.options.tree))

    def problems_with(self, sample: Sample) -> list[Problem]:
        if self._takes_any_sample and isinstance(sample.input, str):
            return []
        try:
            for turn in input_turns(sample):
                self._question(PlaceholderValues(sample, turn, model=self.model))
        except ConfigError as error:
            return list(error.problems)
        return []

    async def call(self, sample: Sample) -> Response:
        found: list[ParsedAnswer] = []
        latency = 0.0
        session: object = None
        turns = input_turns(sample)
        for number, turn in enumerate(turns, 1):
            one, took = await self._ask(PlaceholderValues(sample, turn, session, model=self.model), sample, turn)
            found.append(one)
            latency += took
            if self._session_path is not None and number < len(turns):
                session = await with_workers(partial(self._session, one, session))
        return response_of(found, latency)

    async def _ask(self, scope: PlaceholderValues, sample: Sample, turn: str) -> tuple[ParsedAnswer, float]:
        """One turn: the answer, and the milliseconds of the last attempt and of polling."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.options.timeout
        try:
            url, body = self._question(scope)
        except ConfigError as error:
            if scope("session") is ABSENT:
                raise
            raise bad_response(f"its session cannot be sent: {error}") from None
        answer = await self._send(self.options.method, url, body, self._headers, self.options.timeout)
        latency = answer.latency_ms
        if self.options.poll is None:
            return await with_workers(lambda: self._read(answer, url)), latency
        poll = self.options.poll
        try:
            first = await with_workers(lambda: self._data(answer))
            poll_values = PlaceholderValues(sample, turn, answer=first, model=self.model)
            poll_url = await with_workers(lambda: self._poll_url(poll, poll_values))
        except AgentError as error:
            raise self._explained(error, url, answer) from None
        answered = clock()
        answer = await self._poll(poll, poll_url, deadline)
        found = await with_workers(lambda: self._read(answer, poll_url))
        if isinstance(first, Mapping) and isinstance(found.data, Mapping):
            # either answer may contain the session
            found = found._replace(data={**first, **found.data})
        return found, latency + (clock() - answered) * 1000

    @cached_property
    def _around_input(self) -> JsonAroundInput | None:
        """The body as a prepared template, if the request depends only on the input."""
        options, tree = self.options, self._tree
        fixed = options.session is None and options.poll is None and not any(placeholders(options.url))
        if not fixed or tree is None or isinstance(tree, str):
            return None
        return JsonAroundInput.of(tree, self.model)

    def _question(self, scope: PlaceholderValues) -> tuple[str, bytes | None]:
        """The URL and the body of a call."""
        if self._around_input is not None:
            return self._url, self._around_input.fill(scope.turn)
        tree = fill(self._tree, scope)
        session = self.options.session
        if session is not None and session.send is not None and scope("session") is not ABSENT:
            tree[session.send] = scope("session")
        url = fill_url(self._url, scope)
        for name in self._poll_metadata:
            scope(name)  # missing metadata is reported before the agent does its work
        if self._tree is None:
            return url, None
        if isinstance(tree, str) and not _is_json(self.options.headers):
            return url, tree.encode(errors="replace")
        return url, write_json(tree).encode()

    async def _send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> HttpResponse:
        request = _request_class()(
            method,
            url,
            headers,
            body,
            deadline_s=seconds,
            retries=self.options.retries,
            stream=self.options.stream,
            secret_headers=self._secret_headers,
            secrets=self.hidden,
            traceparent=self._new_trace(),
        )
        return await self.transport.request(request)

    def _new_trace(self) -> str:
        """A ``traceparent``: version, trace ID, span ID, and the flag for recorded traces."""
        token = f"{self._random.getrandbits(192):048x}"
        return f"00-{token[:32]}-{token[32:]}-01"

    def _read(self, answer: HttpResponse, url: str) -> ParsedAnswer:
        try:
            if self.options.stream != "none":
                found = self._read_stream(answer)
            else:
                header = answer.headers.get("Content-Type", "")
                found = self._reader.read_plain(decode(answer.body, header), header)
            return found._replace(cleaned=True) if answer.masked else found
        except AgentError as error:
            raise self._explained(error, url, answer) from None

    def _read_stream(self, answer: HttpResponse) -> ParsedAnswer:
        events: list[str] = []
        ended = False
        for event in answer.events:
            if event.data.strip() == _END:
                ended = True
                break
            if event.event == "error":
                raise bad_response("the stream reported an error")
            events.append(event.data)
        if not (ended or answer.complete or (events and _is_last(events[-1]))):
            raise AgentError("truncated", "the stream ended without its end marker")
        if not events:
            raise bad_response("the stream has no events")
        return self._reader.read_stream(events)._replace(cleaned=decode(answer.body).cleaned)

    def _data(self, answer: HttpResponse) -> Any:
        """The JSON of an answer that is not ready yet."""
        text = json_text(decode(answer.body, answer.headers.get("Content-Type", "")))
        data = parse(text) if text.strip() else None
        self._reader.check_error(data)
        return data

    def _explained(self, error: AgentError, url: str, answer: HttpResponse) -> AgentError:
        """The error with the URL and the start of the faulty answer."""
        from gradeline.transport import excerpt, safe_url

        # invalid JSON in a body that only the connection's close ended was probably cut off
        cut = isinstance(error, NoJsonError) and not answer.complete
        start = excerpt(answer.body, self.hidden)
        message = f"{safe_url(url)} answered {answer.status}: {error}" + (f"; the body: {start}" if start else "")
        return AgentError("truncated" if cut else error.type, message)

    def _poll_url(self, poll: PollConfig, scope: PlaceholderValues) -> str:
        """The URL to poll; one that the agent returned is used as it is, if valid."""
        from gradeline.transport import HttpRequest, safe_url

        whole = whole_placeholder(poll.url)
        for name in {name for _, name in placeholders(poll.url) if name.startswith("response.")}:
            if not is_truthy(scope(name)):
                raise bad_response(f"the first response has nothing at {name.removeprefix('response.')!r} for poll.url")
        target = as_text(scope(whole)) if whole else poll.url
        try:
            target = target if whole else fill_url(target, scope)
            url = urljoin(self.options.url, target)
            HttpRequest("GET", url).checked_url()
        except ValueError:
            raise bad_response(f"it names {safe_url(target)} for polling, which is not a valid URL") from None
        return url

    async def _poll(self, poll: PollConfig, url: str, deadline: float) -> HttpResponse:
        from gradeline.transport.redaction import safe_url

        headers = self.options.headers
        if urlsplit(url)[:2] != urlsplit(self.options.url)[:2]:
            # as with redirects: an agent must not make its caller send keys to another host
            dropped = {name for name in headers if is_secret_name(name)} | self._secret_headers
            headers = {name: value for name, value in headers.items() if name not in dropped}
        clock = asyncio.get_running_loop().time
        while (left := deadline - clock()) > 0:
            answer = await self._send("GET", url, None, headers, left)
            try:
                if await with_workers(partial(self._is_ready, answer)):
                    return answer
            except AgentError as error:
                raise self._explained(error, url, answer) from None
            if clock() + poll.interval >= deadline:
                break
            await asyncio.sleep(poll.interval)
        raise AgentError("timeout", f"{safe_url(url)}: {poll.until!r} not true within {self.options.timeout:g} s")

    def _is_ready(self, answer: HttpResponse) -> bool:
        return is_truthy(search(self._until, self._data(answer)))

    def _session(self, found: ParsedAnswer, before: object) -> object:
        """The session for the next turn: that of the answer, or else the previous one."""
        events = found.data if self.options.stream != "none" and isinstance(found.data, list) else [found.data]
        sessions = [value for value in (search(self._session_path, event) for event in events) if value is not None]
        if sessions:
            return sessions[-1]
        if before is None and self.options.session is not None:
            raise bad_response(f"the response has no session at session.read, {self.options.session.read!r}")
        return before


@cache
def _request_class() -> type[HttpRequest]:
    """Cached, because importing it for each call takes longer than creating the request."""
    from gradeline.transport import HttpRequest  # loads aiohttp

    return HttpRequest


def _is_json(headers: Mapping[str, str]) -> bool:
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "application/json")
    return "json" in kind.lower()


def _is_last(event: str) -> bool:
    """Whether the event is the end marker of a stream of JSON lines."""
    data = parse(event) if event.lstrip().startswith("{") else None
    return isinstance(data, Mapping) and data.get("done") is True
