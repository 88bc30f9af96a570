"""The blocking client."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from ssl import create_default_context
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from gradeline.client import endpoints
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
    from gradeline.model import Storage

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 256 * 1024
FIRST_POLL_S = 0.05
LAST_POLL_S = 2.0


def _method(make: Callable[P, ApiCall[T]]) -> Callable[Concatenate[Client, P], T]:
    """A method that sends one request."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(make(*args, **kwargs))

    endpoints.copy_signature(method, make)
    return method


def _iterator(make: Callable[P, Listing[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """A method that iterates over a list and fetches its pages on demand."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        listing = make(*args, **kwargs)
        cursor: str | None = None
        while True:
            page = self.send(listing.page(cursor))
            yield from page.entries
            cursor = page.next_cursor
            if cursor is None:
                return

    endpoints.copy_signature(method, make)
    return method


class Client:
    """The REST API of a service::

        with Client("http://127.0.0.1:8000") as client:
            case = client.create_test_case("What is 1 + 1?", "2")
            run = client.start_evaluation(test_case_ids=[case.id], agent_endpoint_url=url, grader_ids=["string-match"])
            client.wait(run.id)
            for result in client.results(run.id): ...

    ``key`` is an API key, if the service requires one. ``timeout_s`` bounds every network operation. Error responses
    raise `ApiError`. Reads, and starting an evaluation, are retried on 429 and 503. Thread-safe.
    """

    def __init__(self, base_url: str, key: str | None = None, *, timeout_s: float = 60.0) -> None:
        self._service = ServiceUrl.parse(base_url)
        self._key = key
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s
        self._tls = create_default_context() if self._service.scheme == "https" else None

    def __repr__(self) -> str:
        return f"Client({self._service.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Does nothing: every request has its own connection."""

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

    def wait(self, id: str, *, timeout_s: float | None = None) -> Evaluation:  # noqa: A002 - as the service names it
        """Wait until an evaluation has ended; `WaitTimeoutError` after ``timeout_s``.

        This includes an ``interrupted`` run of the command line whose process is gone: only ``gradeline resume``
        continues it.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        pause = FIRST_POLL_S
        while True:
            evaluation = self.get_evaluation(id)
            if evaluation.ended:
                return evaluation
            if deadline is not None and monotonic() + pause > deadline:
                raise WaitTimeoutError(f"evaluation {id} is still {evaluation.status} after {timeout_s:g} s")
            sleep(pause)
            pause = min(pause * 1.5, LAST_POLL_S)

    def events(self, id: str, *, after: str | None = None) -> Iterator[EvaluationEvent]:  # noqa: A002 - as the service names it
        """The events of an evaluation until it is done; ``after`` is the id of the last known event.

        A broken connection is opened again and continues after the last event.
        """
        reader = EventStreamReader(after)
        failures = 0
        while True:
            reader.reset()
            try:
                with self._open(endpoints.events_request(id, reader.last_id)) as response:
                    if response.status != http.client.OK:
                        require_success(self._read(response))
                        return  # 204: there are no more events
                    while raw := _read_line(response):
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
            sleep(backoff(failures - 1))

    def download(
        self,
        id: str,  # noqa: A002 - as the service names it
        path: str | PathLike[str],
        format: endpoints.ExportFormat = "json",  # noqa: A002 - as the service names it
    ) -> Path:
        """Export an evaluation to a file, written atomically."""
        destination = Path(path)
        with (
            atomic_path(destination) as partial,
            self._open(endpoints.export_request(id, format)) as response,
            partial.open("wb") as file,
        ):
            if response.status != http.client.OK:
                require_success(self._read(response))
            while chunk := _read(response, _CHUNK):
                file.write(chunk)
        return destination

    def upload_run(
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
        return self._drive(upload_steps(run, store, suite, on_progress))

    def download_run(
        self, run: str, store: str | PathLike[str] | Storage | None = None, *, suite: str | None = None
    ) -> str:
        """Copy a run of the service into a store, to compare others with it; returns its id.

        ``run`` is an id or a baseline (of ``suite``); ``store`` is the project's by default. A run that the store has
        is not copied again.
        """
        return self._drive(download_steps(run, store, suite))

    def _drive(self, steps: Generator[ApiCall[Any], Any, T]) -> T:
        """Send the calls that a generator yields; returns what it returns."""
        try:
            call = next(steps)
            while True:
                try:
                    answer = self.send(call)
                except ApiError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    def send(self, call: ApiCall[T]) -> T:
        """Send a call of `gradeline.client.endpoints`, with retries."""
        attempt = 0
        while True:
            try:
                with self._open(call.request) as response:
                    reply = self._read(response)
            except ServiceUnreachableError:
                if not call.request.repeatable or attempt >= 2 or not rewind_body(call.request):
                    raise
                pause: float | None = backoff(attempt)
            else:
                pause = retry_delay(call.request, reply, attempt)
                if pause is None:
                    return call.read(require_success(reply))
            sleep(pause or 0.0)
            attempt += 1

    def _read(self, response: http.client.HTTPResponse) -> ApiResponse:
        headers = {name.lower(): value for name, value in response.getheaders()}
        return mask_key(ApiResponse(response.status, headers, _read(response, None)), self._key)

    @contextmanager
    def _open(self, request: ApiRequest) -> Iterator[http.client.HTTPResponse]:
        service = self._service
        if self._tls is None:
            connection = http.client.HTTPConnection(service.host, service.port, timeout=self._timeout_s)
        else:
            connection = http.client.HTTPSConnection(
                service.host, service.port, timeout=self._timeout_s, context=self._tls
            )
        try:
            with _network_errors(service):
                connection.request(
                    request.method,
                    f"{service.prefix}{request.target}",
                    body=request.body,
                    headers={"Accept": "application/json", **self._headers, **request.headers},
                    encode_chunked=False,
                )
                response = connection.getresponse()
            yield response
        finally:
            connection.close()


@contextmanager
def _network_errors(service: ServiceUrl) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnreachableError(f"no response from {service.url}: {error or type(error).__name__}") from error


def _read(response: http.client.HTTPResponse, size: int | None) -> bytes:
    try:
        read = response.read(size)
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnreachableError(f"the response broke off: {error or type(error).__name__}") from error
    if not read and response.length:  # http.client does not report this for partial reads
        raise ServiceUnreachableError(f"the response broke off {response.length:,} bytes before its end")
    return read


def _read_line(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.readline()
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnreachableError(f"the stream broke off: {error or type(error).__name__}") from error
