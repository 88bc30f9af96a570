"""The asyncio client."""

from __future__ import annotations

from asyncio import sleep, to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from gradeline.client import endpoints
from gradeline.client.client import FIRST_POLL_S, LAST_POLL_S
from gradeline.client.downloads import download_steps
from gradeline.client.errors import ApiError, ServiceUnreachableError, WaitTimeoutError
from gradeline.client.protocol import (
    MAX_RETRIES,
    ApiCall,
    ApiRequest,
    ApiResponse,
    EvaluationEvent,
    EventStreamReader,
    Listing,
    ServiceUrl,
    backoff,
    mask_key,
    require_success,
    retry_delay,
    rewind_body,
)
from gradeline.client.uploads import ReportProgress, ignore_progress, upload_steps
from gradeline.model.files import atomic_path
from gradeline.rest_types import Evaluation, RunUpload

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

    from gradeline.model import Storage

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 256 * 1024
_OK = 200


def _method(make: Callable[P, ApiCall[T]]) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """A method that sends one request."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(make(*args, **kwargs))

    endpoints.copy_signature(method, make)
    return method


def _iterator(make: Callable[P, Listing[T]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """A method that iterates over a list and fetches its pages on demand."""

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

    endpoints.copy_signature(method, make)
    return method


class AsyncClient:
    """`Client` for asyncio: the same methods are awaited; lists and events are iterated with ``async for``."""

    def __init__(self, base_url: str, key: str | None = None, *, timeout_s: float = 60.0) -> None:
        self._service = ServiceUrl.parse(base_url)
        self._key = key
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s
        self._session: ClientSession | None = None

    def __repr__(self) -> str:
        return f"AsyncClient({self._service.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    create_test_case = _method(endpoints.create_test_case)
    get_test_case = _method(endpoints.get_test_case)
    update_test_case = _method(endpoints.update_test_case)
    delete_test_case = _method(endpoints.delete_test_case)
    test_cases = _iterator(endpoints.all_test_cases)
    import_test_cases = _method(endpoints.import_test_cases)
    export_test_cases = _method(endpoints.export_test_cases)

    graders = _iterator(endpoints.graders)
    get_grader = _method(endpoints.get_grader)
    create_grader = _method(endpoints.create_grader)
    update_grader = _method(endpoints.update_grader)
    delete_grader = _method(endpoints.delete_grader)
    preview_grader = _method(endpoints.preview_grader)

    try_agent = _method(endpoints.try_agent)
    start_evaluation = _method(endpoints.start_evaluation)
    get_evaluation = _method(endpoints.get_evaluation)
    evaluations = _iterator(endpoints.evaluations)
    cancel = _method(endpoints.cancel)
    resume = _method(endpoints.resume)
    retry_failed = _method(endpoints.retry_failed)
    regrade = _method(endpoints.regrade)
    delete_evaluation = _method(endpoints.delete_evaluation)
    suite_of = _method(endpoints.suite_of)

    results = _iterator(endpoints.results)
    get_result = _method(endpoints.get_result)
    summary = _method(endpoints.summary)
    histograms = _method(endpoints.histograms)
    export = _method(endpoints.export)
    baselines = _iterator(endpoints.baselines)
    set_baseline = _method(endpoints.set_baseline)
    clear_baseline = _method(endpoints.clear_baseline)

    compare = _method(endpoints.compare)
    rank = _method(endpoints.rank)
    trend = _method(endpoints.trend)

    async def wait(
        self,
        id: str,  # noqa: A002 - as the service names it
        *,
        timeout_s: float | None = None,
    ) -> Evaluation:
        """Wait until an evaluation has ended; `WaitTimeoutError` after ``timeout_s``.

        This includes an ``interrupted`` run of the command line whose process is gone: only ``gradeline resume``
        continues it.
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
    ) -> AsyncIterator[EvaluationEvent]:
        """The events of an evaluation until it is done; ``after`` is the id of the last known event.

        A broken connection is opened again and continues after the last event.
        """
        reader = EventStreamReader(after)
        failures = 0
        while True:
            reader.reset()
            try:
                async with self._open(endpoints.events_request(id, reader.last_id)) as response:
                    if response.status != _OK:
                        require_success(await self._read(response))
                        return  # 204: there are no more events
                    async for raw in response.content:
                        event = reader.feed(raw)
                        if event is not None:
                            failures = 0
                            yield event
                            if event.type == "done":
                                return
            except ServiceUnreachableError:
                if failures >= MAX_RETRIES:
                    raise
            failures += 1
            if failures > MAX_RETRIES:
                raise ServiceUnreachableError(
                    f"the event stream of {id} at {self._service.url} ended before the evaluation was done"
                )
            await sleep(backoff(failures - 1))

    async def download(
        self,
        id: str,  # noqa: A002 - as the service names it
        path: str | PathLike[str],
        format: endpoints.ExportFormat = "json",  # noqa: A002 - as the service names it
    ) -> Path:
        """Export an evaluation to a file, written atomically."""
        destination = Path(path)
        with atomic_path(destination) as partial:
            async with self._open(endpoints.export_request(id, format)) as response:
                if response.status != _OK:
                    require_success(await self._read(response))
                with partial.open("wb") as file:
                    async for chunk in response.content.iter_chunked(_CHUNK):
                        file.write(chunk)
        return destination

    async def upload_run(
        self,
        run: str,
        store: str | PathLike[str] | Storage | None = None,
        *,
        suite: str | None = None,
        on_progress: ReportProgress = ignore_progress,
    ) -> RunUpload:
        """Upload a completed run of a store, with all its records and the runs that it needs, as ``gradeline push``.

        ``run`` is an id, a baseline (of ``suite``), a name or ``latest``; ``store`` is the project's by default. A run
        that the service has is not stored again, and an upload that broke off continues.
        """
        return await self._drive(upload_steps(run, store, suite, on_progress))

    async def download_run(
        self, run: str, store: str | PathLike[str] | Storage | None = None, *, suite: str | None = None
    ) -> str:
        """Copy a run of the service into a store, to compare others with it; returns its id.

        ``run`` is an id or a baseline (of ``suite``); ``store`` is the project's by default. A run that the store has
        is not copied again.
        """
        return await self._drive(download_steps(run, store, suite))

    async def _drive(self, steps: Generator[ApiCall[Any], Any, T]) -> T:
        """Send the calls that a generator yields, which reads and writes a store in a thread."""
        step: Callable[[], ApiCall[Any]] = partial(next, steps)
        while True:
            reached = await to_thread(_advance, step)
            if isinstance(reached, _Returned):
                result: T = reached.value
                return result
            try:
                step = partial(steps.send, await self.send(reached))
            except ApiError as error:
                step = partial(steps.throw, error)

    async def send(self, call: ApiCall[T]) -> T:
        """Send a call of `gradeline.client.endpoints`, with retries."""
        attempt = 0
        while True:
            try:
                async with self._open(call.request) as response:
                    reply = await self._read(response)
            except ServiceUnreachableError:
                if not call.request.repeatable or attempt >= 2 or not rewind_body(call.request):
                    raise
                pause: float | None = backoff(attempt)
            else:
                pause = retry_delay(call.request, reply, attempt)
                if pause is None:
                    return call.read(require_success(reply))
            await sleep(pause or 0.0)
            attempt += 1

    async def _read(self, response: ClientResponse) -> ApiResponse:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return mask_key(ApiResponse(response.status, headers, await response.read()), self._key)

    @asynccontextmanager
    async def _open(self, request: ApiRequest) -> AsyncIterator[ClientResponse]:
        from aiohttp import ClientError, ClientTimeout  # 60 ms that the blocking client does not need
        from yarl import URL

        url = URL(f"{self._service.url}{request.target}", encoded=True)
        try:
            async with self._open_session().request(
                request.method,
                url,
                data=request.body,
                headers={"Accept": "application/json", **self._headers, **request.headers},
                allow_redirects=False,
                timeout=ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s),
            ) as response:
                yield response
        except (ClientError, OSError, TimeoutError) as error:
            message = f"no response from {self._service.url}: {error or type(error).__name__}"
            raise ServiceUnreachableError(message) from error

    def _open_session(self) -> ClientSession:
        from aiohttp import ClientSession

        if self._session is None:
            self._session = ClientSession(trust_env=False, auto_decompress=True)
        return self._session


class _Returned(NamedTuple):
    """What a generator returned; a thread cannot raise its StopIteration."""

    value: Any


def _advance(step: Callable[[], ApiCall[Any]]) -> ApiCall[Any] | _Returned:
    try:
        return step()
    except StopIteration as done:
        return _Returned(done.value)
