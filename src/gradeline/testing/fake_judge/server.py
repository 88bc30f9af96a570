"""The fake judge as a server on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
from aiohttp import web

from gradeline.testing.fake_judge.behaviours import MODEL_PREFIX, Behaviour, behaviour_names, read_behaviour
from gradeline.testing.fake_judge.replies import Decision, Question, count_tokens, fault_of, judge, read_question
from gradeline.testing.fake_judge.verdicts import ParsedPrompt, Truths, parse_prompt, read_truths
from gradeline.testing.fake_judge.wire import (
    FAILURES,
    ApiFailure,
    JudgeRequest,
    JudgeResponse,
    RawRequest,
    RequestRejectedError,
    TokenCounts,
    WireFormat,
    bad_request,
    retry_after_headers,
)
from gradeline.testing.fake_judge.wire_anthropic import Messages
from gradeline.testing.fake_judge.wire_gemini import GenerateContent
from gradeline.testing.fake_judge.wire_openai import ChatCompletions, Responses

_KEPT = 100_000
_PATH = re.compile(
    r"(?:/(?P<behaviour>[^/]+))??/"
    r"(?:(?:v1/)?(?P<simple>chat/completions|responses|messages)"
    r"|v1(?:beta)?/.+:(?P<gemini>generateContent|streamGenerateContent))"
)
_WIRES: Mapping[str, WireFormat] = {
    "chat/completions": ChatCompletions(),
    "responses": Responses(),
    "messages": Messages(),
    "generateContent": GenerateContent("generateContent"),
    "streamGenerateContent": GenerateContent("streamGenerateContent"),
}
_BODY_LIMIT = 64 * 1024 * 1024


class BehaviourRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A behaviour for the requests that match all conditions of the rule."""

    behaviour: str | dict[str, object]
    """The name of a behaviour, or the fields to change."""
    model: str | None = None
    """A glob pattern for the model."""
    contains: str | None = None
    """A string in the prompt."""
    item: str | None = None
    """A glob pattern for the item of an answer."""

    def matches(self, judge_request: JudgeRequest, prompt: ParsedPrompt) -> bool:
        if self.model is not None and not fnmatchcase(judge_request.model, self.model):
            return False
        if self.contains is not None and self.contains not in judge_request.text:
            return False
        return self.item is None or any(fnmatchcase(one.item, self.item) for one in prompt.shown)


class SeenRequest(NamedTuple):
    """A request that the server received."""

    path: str
    model: str
    digest: str
    """Digest of its body: the same for all attempts of one request."""
    attempt: int
    outcome: str
    """The status, or the name of the fault."""


class RequestCounts(msgspec.Struct, frozen=True):
    """Counts of the requests that a server received."""

    requests: int
    retries: int
    """Requests with a body that was received before."""
    paths: dict[str, int]
    models: dict[str, int]
    outcomes: dict[str, int]
    tries: dict[str, int]
    """Requests by the digest of their body."""


class FakeJudge:
    """Serves on 127.0.0.1. ``decisions`` has the verdicts with the true ones, ``requests`` all that were received."""

    def __init__(
        self,
        behaviour: Behaviour | str | Mapping[str, object] | None = None,
        *,
        seed: int = 0,
        items: Truths | None = None,
        rules: Sequence[BehaviourRule] = (),
        key: str | None = None,
        port: int = 0,
    ) -> None:
        self.behaviour = behaviour if isinstance(behaviour, Behaviour) else read_behaviour(behaviour or {})
        self.seed = seed
        self.items: Truths = items or {}
        self.rules = tuple(rules)
        for rule in self.rules:
            read_behaviour(rule.behaviour)
        self._key = key
        self._port = port
        self._runner: web.AppRunner | None = None
        self.reset()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def base_url(self, behaviour: str = "", version: str = "v1") -> str:
        """The base URL for an OpenAI client; the name of a behaviour in it applies to all its requests."""
        return "/".join(part for part in (self.url, behaviour, version) if part)

    def reset(self) -> None:
        """Delete all recorded requests and decisions."""
        self._tries: Counter[tuple[str, str]] = Counter()
        self._sightings: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self.decisions: deque[Decision] = deque(maxlen=_KEPT)
        self.requests: deque[SeenRequest] = deque(maxlen=_KEPT)

    def counts(self) -> RequestCounts:
        requests = list(self.requests)  # the server may run in another thread
        return RequestCounts(
            requests=len(requests),
            retries=sum(1 for seen in requests if seen.attempt > 1),
            paths=Counter(seen.path for seen in requests),
            models=Counter(seen.model for seen in requests),
            outcomes=Counter(seen.outcome for seen in requests),
            tries=Counter(seen.digest for seen in requests),
        )

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_get("/fake/counts", self._get_counts)
        app.router.add_get("/fake/decisions", self._get_decisions)
        app.router.add_post("/fake/reset", self._reset_records)
        app.router.add_get("/v1/models", self._get_models)
        app.router.add_post("/{path:.*}", self._answer)
        # Handlers that wait until their client disconnects must end with it.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Serve from a thread, for clients that block their own."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="fake-judge", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result()
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.__aexit__(None, None, None), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _get_counts(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode(self.counts()))

    async def _get_decisions(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode(list(self.decisions)))

    async def _reset_records(self, _: web.Request) -> web.Response:
        self.reset()
        return _json(b"{}")

    async def _get_models(self, _: web.Request) -> web.Response:
        models = [{"id": f"{MODEL_PREFIX}{name}", "object": "model", "created": 0} for name in behaviour_names()]
        return _json(msgspec.json.encode({"object": "list", "data": [{**one, "owned_by": "fake"} for one in models]}))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = _PATH.fullmatch(request.path)
        if path is None:
            return _json(b'{"error": {"message": "no such path", "type": "invalid_request_error"}}', 404)
        wire = _WIRES[path["simple"] or path["gemini"]]
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = RawRequest(request.path, dict(request.query), headers, await request.read())
        digest = blake2b(received.body, digest_size=8).hexdigest()
        self._tries[received.path, digest] += 1
        attempt = self._tries[received.path, digest]
        seen = SeenRequest(received.path, "", digest, attempt, "200")
        try:
            judge_request = self._read(wire, received)
            seen = seen._replace(model=judge_request.model)
            question, behaviour = self._read_question(judge_request, path["behaviour"])
        except RequestRejectedError as error:
            return self._fail(wire, error.failure, seen)
        fault = fault_of(question, behaviour, self.seed, attempt)
        if fault is not None and fault in FAILURES:
            failure = FAILURES[fault]
            return self._fail(wire, failure._replace(headers=retry_after_headers(fault, behaviour.retry_after_s)), seen)
        if fault in ("reset", "close"):
            self.requests.append(seen._replace(outcome=fault))
            return _hang_up(request, reset=fault == "reset")
        self.requests.append(seen._replace(outcome=fault or "200"))
        answer = self._respond(question, behaviour, f"{digest}{attempt}")
        return await deliver(request, wire, judge_request, answer, fault, behaviour.delay_s)

    def _read(self, wire: WireFormat, received: RawRequest) -> JudgeRequest:
        if self._key is not None and wire.key(received) != self._key:
            raise RequestRejectedError(FAILURES["401"])
        return wire.read(received)

    def _read_question(self, judge_request: JudgeRequest, name: str | None) -> tuple[Question, Behaviour]:
        try:
            prompt = parse_prompt(judge_request.text, self.items)
        except ValueError as error:
            raise bad_request(str(error)) from error
        behaviour = self._behaviour(judge_request, prompt, name)
        for common in behaviour.unsupported:
            if common in judge_request.used:
                raise RequestRejectedError(_unsupported(judge_request.used[common]))
        return read_question(judge_request, prompt, behaviour), behaviour

    def _behaviour(self, judge_request: JudgeRequest, prompt: ParsedPrompt, name: str | None) -> Behaviour:
        """The server's behaviour, overridden by those of path, model and rules."""
        behaviour = self.behaviour
        try:
            if name:
                behaviour = read_behaviour(name, behaviour)
            if judge_request.model.startswith(MODEL_PREFIX):
                behaviour = read_behaviour(judge_request.model.removeprefix(MODEL_PREFIX), behaviour)
        except ValueError as error:
            raise RequestRejectedError(FAILURES["404"]._replace(message=str(error))) from error
        for rule in self.rules:
            if rule.matches(judge_request, prompt):
                behaviour = read_behaviour(rule.behaviour, behaviour)
        return behaviour

    def _respond(self, question: Question, behaviour: Behaviour, name: str) -> JudgeResponse:
        judge_request = question.request
        sighting, call = self._sightings[question.digest], self._calls[judge_request.model]
        self._sightings[question.digest] += 1
        self._calls[judge_request.model] += 1
        made = [
            judge(question, behaviour, self.seed, choice=choice, sighting=sighting, call=call)
            for choice in range(judge_request.choices)
        ]
        self.decisions.extend(decision for decision, _ in made)
        replies = tuple(reply for _, reply in made if reply is not None)
        drifted = behaviour.drift_after is not None and call >= behaviour.drift_after
        changed = "_changed" if drifted and behaviour.drift_fingerprint else ""
        prompt_tokens = count_tokens(judge_request.text)
        usage = TokenCounts(
            prompt_tokens, round(prompt_tokens * behaviour.cached_share), sum(len(reply.tokens) for reply in replies)
        )
        reported = {"true": usage, "zero": TokenCounts(0, 0, 0), "missing": None}[behaviour.usage]
        return JudgeResponse(
            name, behaviour.echo_model or judge_request.model, behaviour.fingerprint + changed, replies, reported
        )

    def _fail(self, wire: WireFormat, failure: ApiFailure, seen: SeenRequest) -> web.Response:
        self.requests.append(seen._replace(outcome=str(failure.status)))
        if failure.name == "502":
            page = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"
            return web.Response(text=page, status=502, content_type="text/html")
        return _json(wire.failure(failure), failure.status, failure.headers)


def _unsupported(param: str) -> ApiFailure:
    hint = " Use 'max_completion_tokens' instead." if param == "max_tokens" else ""
    message = f"Unsupported parameter: '{param}' is not supported with this model.{hint}"
    return ApiFailure("unsupported", 400, message, param, "unsupported_parameter")


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=dict(headers or {}))


def _hang_up(request: web.Request, *, reset: bool) -> web.Response:
    transport = request.transport
    if transport is not None:
        if reset:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
    return web.Response()


_KEEP_ALIVE = b": keep-alive\n\n"
_ODD_SIZES = (1, 2, 3, 5, 7, 11)


async def deliver(
    request: web.Request,
    wire: WireFormat,
    judge_request: JudgeRequest,
    answer: JudgeResponse,
    fault: str | None,
    delay_s: float,
) -> web.StreamResponse:
    """Send the response, with a connection or delivery fault if there is one."""
    if fault == "hang":
        await _until_gone()
    if fault == "slow-start":
        await asyncio.sleep(delay_s)
    chunks, length = _chunks(wire, judge_request, answer, fault)
    response = web.StreamResponse()
    response.content_type = "text/event-stream" if judge_request.stream else "application/json"
    response.content_length = length
    await response.prepare(request)
    async for chunk in _paced(chunks, delay_s if fault == "slow-stream" else 0.0):
        await response.write(chunk)
    if fault == "stall":
        await _until_gone()
    if fault == "cut" and request.transport is not None:
        request.transport.close()
        return response
    await response.write_eof()
    return response


def _chunks(
    wire: WireFormat, judge_request: JudgeRequest, answer: JudgeResponse, fault: str | None
) -> tuple[Sequence[bytes], int | None]:
    """The chunks to send, and the Content-Length."""
    if judge_request.stream:
        streamed = wire.stream(judge_request, answer)
        events = [*streamed.events, *streamed.end]
        length = None
        if fault == "no-done":
            events = list(streamed.events)
        elif fault == "error-in-stream":
            events = [*events[: len(events) // 2], wire.stream_failure()]
        elif fault == "keep-alive":
            events = [part for event in events for part in (_KEEP_ALIVE, event)]
    else:
        body = wire.whole(judge_request, answer)
        if fault == "keep-alive":  # gateways keep a connection open with whitespace before the body
            body = b"\n\n" + body
        length = len(body)
        events = [body[at : at + 64] for at in range(0, length, 64)] if fault == "slow-stream" else [body]
    if fault in ("stall", "cut"):
        everything = b"".join(events)
        return [everything[: len(everything) // 2]], length
    if fault == "split":
        return list(_split(b"".join(events))), length
    return events, length


def _split(data: bytes) -> Iterable[bytes]:
    at = number = 0
    while at < len(data):
        size = _ODD_SIZES[number % len(_ODD_SIZES)]
        yield data[at : at + size]
        at, number = at + size, number + 1


async def _paced(chunks: Iterable[bytes], pause_s: float) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if pause_s:
            await asyncio.sleep(pause_s)
        yield chunk


async def _until_gone() -> None:
    """Wait; the server cancels the handler when the client disconnects."""
    await asyncio.Event().wait()


class FakeJudgeScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``{"seed": 7, "behaviour": {…}, "items": {"17-a": 0.8}, "rules": [{"item": "17-*", "behaviour": "fenced"}]}``"""

    seed: int = 0
    behaviour: str | dict[str, object] = {}
    """The name of a behaviour, or its fields."""
    items: dict[str, object] = {}
    rules: tuple[BehaviourRule, ...] = ()


def load_script(path: Path, port: int = 0, seed: int | None = None) -> FakeJudge:
    """The judge that a script file describes; `ValueError` names the file and the error."""
    try:
        script = msgspec.json.decode(path.read_bytes(), type=FakeJudgeScript)
        return FakeJudge(
            read_behaviour(script.behaviour),
            seed=script.seed if seed is None else seed,
            items=read_truths(script.items),
            rules=script.rules,
            port=port,
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
