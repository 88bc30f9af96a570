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
    """A behaviour for some requests alone: those that fit all that is told."""

    behaviour: str | dict[str, object]
    """A name, or the fields that differ."""
    model: str | None = None
    """A pattern as of file names."""
    contains: str | None = None
    """A text in the prompt."""
    item: str | None = None
    """A pattern for the name of an answer shown."""

    def fits(self, asked: JudgeRequest, prompt: ParsedPrompt) -> bool:
        if self.model is not None and not fnmatchcase(asked.model, self.model):
            return False
        if self.contains is not None and self.contains not in asked.text:
            return False
        return self.item is None or any(fnmatchcase(one.item, self.item) for one in prompt.shown)


class SeenRequest(NamedTuple):
    """A request that came."""

    path: str
    model: str
    digest: str
    """Of its body: the tries of one request share it."""
    attempt: int
    outcome: str
    """The status, or the fault it met on the way."""


class RequestCounts(msgspec.Struct, frozen=True):
    """What a server saw."""

    requests: int
    retries: int
    """Requests whose very body had come before."""
    paths: dict[str, int]
    models: dict[str, int]
    outcomes: dict[str, int]
    tries: dict[str, int]
    """By the digest of the body."""


class FakeJudge:
    """Serves on 127.0.0.1. ``decisions`` holds what was said beside what is true, ``requests`` all that came."""

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
        """The address to give an OpenAI client; a behaviour's name in it holds for every request there."""
        return "/".join(part for part in (self.url, behaviour, version) if part)

    def reset(self) -> None:
        """Forget all that was seen."""
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
        app.router.add_get("/fake/counts", self._tell_counts)
        app.router.add_get("/fake/decisions", self._tell_decisions)
        app.router.add_post("/fake/reset", self._forget)
        app.router.add_get("/v1/models", self._tell_models)
        app.router.add_post("/{path:.*}", self._answer)
        # Handlers that wait for their client to go away must go with it.
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
        """Serves from a thread, for clients that block their own."""
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

    async def _tell_counts(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode(self.counts()))

    async def _tell_decisions(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode(list(self.decisions)))

    async def _forget(self, _: web.Request) -> web.Response:
        self.reset()
        return _json(b"{}")

    async def _tell_models(self, _: web.Request) -> web.Response:
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
            asked = self._read(wire, received)
            seen = seen._replace(model=asked.model)
            question, behaviour = self._understood(asked, path["behaviour"])
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
        answer = self._judged(question, behaviour, f"{digest}{attempt}")
        return await deliver(request, wire, asked, answer, fault, behaviour.delay_s)

    def _read(self, wire: WireFormat, received: RawRequest) -> JudgeRequest:
        if self._key is not None and wire.key(received) != self._key:
            raise RequestRejectedError(FAILURES["401"])
        return wire.read(received)

    def _understood(self, asked: JudgeRequest, name: str | None) -> tuple[Question, Behaviour]:
        try:
            prompt = parse_prompt(asked.text, self.items)
        except ValueError as error:
            raise bad_request(str(error)) from error
        behaviour = self._behaviour(asked, prompt, name)
        for common in behaviour.unsupported:
            if common in asked.used:
                raise RequestRejectedError(_unsupported(asked.used[common]))
        return read_question(asked, prompt, behaviour), behaviour

    def _behaviour(self, asked: JudgeRequest, prompt: ParsedPrompt, name: str | None) -> Behaviour:
        """The server's own behaviour, and over it what path, model and rules say."""
        behaviour = self.behaviour
        try:
            if name:
                behaviour = read_behaviour(name, behaviour)
            if asked.model.startswith(MODEL_PREFIX):
                behaviour = read_behaviour(asked.model.removeprefix(MODEL_PREFIX), behaviour)
        except ValueError as error:
            raise RequestRejectedError(FAILURES["404"]._replace(message=str(error))) from error
        for rule in self.rules:
            if rule.fits(asked, prompt):
                behaviour = read_behaviour(rule.behaviour, behaviour)
        return behaviour

    def _judged(self, question: Question, behaviour: Behaviour, name: str) -> JudgeResponse:
        asked = question.asked
        sighting, call = self._sightings[question.digest], self._calls[asked.model]
        self._sightings[question.digest] += 1
        self._calls[asked.model] += 1
        made = [
            judge(question, behaviour, self.seed, choice=choice, sighting=sighting, call=call)
            for choice in range(asked.choices)
        ]
        self.decisions.extend(decision for decision, _ in made)
        replies = tuple(reply for _, reply in made if reply is not None)
        drifted = behaviour.drift_after is not None and call >= behaviour.drift_after
        changed = "_changed" if drifted and behaviour.drift_fingerprint else ""
        prompt_tokens = count_tokens(asked.text)
        usage = TokenCounts(
            prompt_tokens, round(prompt_tokens * behaviour.cached_share), sum(len(reply.tokens) for reply in replies)
        )
        told = {"true": usage, "zero": TokenCounts(0, 0, 0), "missing": None}[behaviour.usage]
        return JudgeResponse(name, behaviour.echo_model or asked.model, behaviour.fingerprint + changed, replies, told)

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
    asked: JudgeRequest,
    answer: JudgeResponse,
    fault: str | None,
    delay_s: float,
) -> web.StreamResponse:
    """Sends the answer; the fault, if any, is one of the connection or of the delivery."""
    if fault == "hang":
        await _until_gone()
    if fault == "slow-start":
        await asyncio.sleep(delay_s)
    portions, length = _portions(wire, asked, answer, fault)
    response = web.StreamResponse()
    response.content_type = "text/event-stream" if asked.stream else "application/json"
    response.content_length = length
    await response.prepare(request)
    async for portion in _paced(portions, delay_s if fault == "slow-stream" else 0.0):
        await response.write(portion)
    if fault == "stall":
        await _until_gone()
    if fault == "cut" and request.transport is not None:
        request.transport.close()
        return response
    await response.write_eof()
    return response


def _portions(
    wire: WireFormat, asked: JudgeRequest, answer: JudgeResponse, fault: str | None
) -> tuple[Sequence[bytes], int | None]:
    """What is sent, piece by piece, and the length that is announced."""
    if asked.stream:
        streamed = wire.stream(asked, answer)
        events = [*streamed.events, *streamed.end]
        length = None
        if fault == "no-done":
            events = list(streamed.events)
        elif fault == "error-in-stream":
            events = [*events[: len(events) // 2], wire.stream_failure()]
        elif fault == "keep-alive":
            events = [part for event in events for part in (_KEEP_ALIVE, event)]
    else:
        body = wire.whole(asked, answer)
        if fault == "keep-alive":  # gateways keep a plain answer's line open with blanks
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


async def _paced(portions: Iterable[bytes], pause_s: float) -> AsyncIterator[bytes]:
    for portion in portions:
        if pause_s:
            await asyncio.sleep(pause_s)
        yield portion


async def _until_gone() -> None:
    """For ever; the server ends the handlers of clients that have left."""
    await asyncio.Event().wait()


class FakeJudgeScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``{"seed": 7, "behaviour": {…}, "items": {"17-a": 0.8}, "rules": [{"item": "17-*", "behaviour": "fenced"}]}``"""

    seed: int = 0
    behaviour: str | dict[str, object] = {}
    """A name, or fields."""
    items: dict[str, object] = {}
    rules: tuple[BehaviourRule, ...] = ()


def load_script(path: Path, port: int = 0, seed: int | None = None) -> FakeJudge:
    """The judge that a file describes; `ValueError` names the file and what is wrong with it."""
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
