"""The client for code that runs in an event loop."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

from gradeline.client import calls
from gradeline.client.blocking import FIRST_POLL_S, LAST_POLL_S
from gradeline.client.errors import ServiceUnreachableError, WaitTimeoutError
from gradeline.client.event_stream import EventReader
from gradeline.client.shapes import Evaluation, Event
from gradeline.client.wire import (
    ATTEMPTS,
    Answer,
    Call,
    Listing,
    Place,
    Request,
    backoff,
    checked,
    rewound,
    wait_before_next,
)

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 256 * 1024
_OK = 200


def _method(make: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """A method that sends the call."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(make(*args, **kwargs))

    calls.told_by(method, make)
    return method


def _listed(make: Callable[P, Listing[T]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """A method that fetches page after page, while they are asked for."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        listing = make(*args, **kwargs)
        cursor: str | None = None
        while True:
            page = await self.send(listing.page(cursor))
            for entry in page.entries:
                yield entry
            cursor = page.next_cursor
            if cursor is None:
                return

    calls.told_by(method, make)
    return method


class AsyncClient:
    """`Client` for an event loop: the same calls, awaited, and ``async for`` over lists and events."""

    def __init__(self, base_url: str, key: str | None = None, *, timeout_s: float = 60.0) -> None:
        self._place = Place.of(base_url)
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s
        self._session: ClientSession | None = None

    def __repr__(self) -> str:
        return f"AsyncClient({self._place.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    create_test_case = _method(calls.create_test_case)
    get_test_case = _method(calls.get_test_case)
    update_test_case = _method(calls.update_test_case)
    delete_test_case = _method(calls.delete_test_case)
    test_cases = _listed(calls.all_test_cases)
    import_test_cases = _method(calls.import_test_cases)
    export_test_cases = _method(calls.export_test_cases)

    graders = _listed(calls.graders)
    get_grader = _method(calls.get_grader)
    create_grader = _method(calls.create_grader)
    update_grader = _method(calls.update_grader)
    delete_grader = _method(calls.delete_grader)
    preview_grader = _method(calls.preview_grader)

    try_agent = _method(calls.try_agent)
    start_evaluation = _method(calls.start_evaluation)
    get_evaluation = _method(calls.get_evaluation)
    evaluations = _listed(calls.evaluations)
    cancel = _method(calls.cancel)
    resume = _method(calls.resume)
    retry_failed = _method(calls.retry_failed)
    regrade = _method(calls.regrade)
    delete_evaluation = _method(calls.delete_evaluation)
    suite_of = _method(calls.suite_of)

    results = _listed(calls.results)
    get_result = _method(calls.get_result)
    summary = _method(calls.summary)
    histograms = _method(calls.histograms)
    export = _method(calls.export)
    compare = _method(calls.compare)
    rank = _method(calls.rank)
    trend = _method(calls.trend)

    async def wait(
        self,
        id: str,  # noqa: A002 - as the service names it
        *,
        timeout_s: float | None = None,
    ) -> Evaluation:
        """The evaluation once it has ended; `WaitTimeoutError` where that takes longer than ``timeout_s``.

        It has also ended where it is ``interrupted`` and the service does not hold it: a run of the command line whose
        process is gone. `gradeline resume` continues it.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        pause = FIRST_POLL_S
        while True:
            evaluation = await self.get_evaluation(id)
            if evaluation.ended:
                return evaluation
            if deadline is not None and monotonic() + pause > deadline:
                raise WaitTimeoutError(f"evaluation {id} is still {evaluation.status} after {timeout_s:g} s")
            await sleep(pause)
            pause = min(pause * 1.5, LAST_POLL_S)

    async def events(
        self,
        id: str,  # noqa: A002 - as the service names it
        *,
        after: str | None = None,
    ) -> AsyncIterator[Event]:
        """What happens in an evaluation, until it is done; ``after`` is the id of the last event that is known.

        A connection that breaks is taken up again where it broke.
        """
        reader = EventReader(after)
        failures = 0
        while True:
            reader.begin()
            try:
                async with self._opened(calls.events_request(id, reader.last_id)) as response:
                    if response.status != _OK:
                        checked(await _answer(response))
                        return  # 204: all was read already
                    async for raw in response.content:
                        event = reader.line(raw)
                        if event is not None:
                            failures = 0
                            yield event
                            if event.type == "done":
                                return
            except ServiceUnreachableError:
                if failures >= ATTEMPTS:
                    raise
            failures += 1
            if failures > ATTEMPTS:
                raise ServiceUnreachableError(f"the events of {id} at {self._place.url} end before it is done")
            await sleep(backoff(failures - 1))

    async def download(
        self,
        id: str,  # noqa: A002 - as the service names it
        path: str | PathLike[str],
        format: calls.ExportFormat = "json",  # noqa: A002 - as the service names it
    ) -> Path:
        """Write an evaluation to a file, which is there as a whole or not at all."""
        place = Path(path)
        partial = place.with_name(f".{place.name}.partial")
        try:
            async with self._opened(calls.export_request(id, format)) as response:
                if response.status != _OK:
                    checked(await _answer(response))
                with partial.open("wb") as file:
                    async for chunk in response.content.iter_chunked(_CHUNK):
                        file.write(chunk)
            return partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)

    async def send(self, call: Call[T]) -> T:
        """Send a call of `gradeline.client.calls`, again while the service asks for patience."""
        attempt = 0
        while True:
            try:
                async with self._opened(call.request) as response:
                    answer = await _answer(response)
            except ServiceUnreachableError:
                if not call.request.repeatable or attempt >= 2 or not rewound(call.request):
                    raise
                pause: float | None = backoff(attempt)
            else:
                pause = wait_before_next(call.request, answer, attempt)
                if pause is None:
                    return call.read(checked(answer))
            await sleep(pause or 0.0)
            attempt += 1

    @asynccontextmanager
    async def _opened(self, request: Request) -> AsyncIterator[ClientResponse]:
        from aiohttp import ClientError, ClientTimeout  # 60 ms, which the other client need not pay
        from yarl import URL

        url = URL(f"{self._place.url}{request.target}", encoded=True)
        try:
            async with self._opened_session().request(
                request.method,
                url,
                data=request.body,
                headers={"Accept": "application/json", **self._headers, **request.headers},
                allow_redirects=False,
                timeout=ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s),
            ) as response:
                yield response
        except (ClientError, OSError, TimeoutError) as error:
            told = f"no answer from {self._place.url}: {error or type(error).__name__}"
            raise ServiceUnreachableError(told) from error

    def _opened_session(self) -> ClientSession:
        from aiohttp import ClientSession

        if self._session is None:
            self._session = ClientSession(trust_env=False, auto_decompress=True)
        return self._session


async def _answer(response: ClientResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status, headers, await response.read())
