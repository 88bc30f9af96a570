"""The client for code that waits."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from ssl import create_default_context
from time import monotonic, sleep
from typing import Concatenate, ParamSpec, Self, TypeVar

from gradeline.client import calls
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

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 256 * 1024
FIRST_POLL_S = 0.05
LAST_POLL_S = 2.0


def _method(make: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """A method that sends the call."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(make(*args, **kwargs))

    calls.told_by(method, make)
    return method


def _listed(make: Callable[P, Listing[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """A method that fetches page after page, while they are asked for."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        listing = make(*args, **kwargs)
        cursor: str | None = None
        while True:
            page = self.send(listing.page(cursor))
            yield from page.entries
            cursor = page.next_cursor
            if cursor is None:
                return

    calls.told_by(method, make)
    return method


class Client:
    """The REST API of a service::

        with Client("http://127.0.0.1:8000") as client:
            case = client.create_test_case("What is 1 + 1?", "2")
            run = client.start_evaluation(test_case_ids=[case.id], agent_endpoint_url=url, grader_ids=["string-match"])
            client.wait(run.id)
            for result in client.results(run.id): ...

    ``key`` is an API key, where the service wants one. ``timeout_s`` bounds every wait for the network. What the
    service refuses is an `ApiError`. Reads, and starting an evaluation, are repeated while the service asks for
    patience (429, 503). Safe to use from several threads.
    """

    def __init__(self, base_url: str, key: str | None = None, *, timeout_s: float = 60.0) -> None:
        self._place = Place.of(base_url)
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s
        self._tls = create_default_context() if self._place.scheme == "https" else None

    def __repr__(self) -> str:
        return f"Client({self._place.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open between calls; this is here so that ``with`` works."""

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

    def wait(self, id: str, *, timeout_s: float | None = None) -> Evaluation:  # noqa: A002 - as the service names it
        """The evaluation once it has ended; `WaitTimeoutError` where that takes longer than ``timeout_s``.

        It has also ended where it is ``interrupted`` and the service does not hold it: a run of the command line whose
        process is gone. `gradeline resume` continues it.
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

    def events(self, id: str, *, after: str | None = None) -> Iterator[Event]:  # noqa: A002 - as the service names it
        """What happens in an evaluation, until it is done; ``after`` is the id of the last event that is known.

        A connection that breaks is taken up again where it broke.
        """
        reader = EventReader(after)
        failures = 0
        while True:
            reader.begin()
            try:
                with self._opened(calls.events_request(id, reader.last_id)) as response:
                    if response.status != http.client.OK:
                        checked(_answer(response))
                        return  # 204: all was read already
                    while raw := _read_line(response):
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
            sleep(backoff(failures - 1))

    def download(
        self,
        id: str,  # noqa: A002 - as the service names it
        path: str | PathLike[str],
        format: calls.ExportFormat = "json",  # noqa: A002 - as the service names it
    ) -> Path:
        """Write an evaluation to a file, which is there as a whole or not at all."""
        place = Path(path)
        partial = place.with_name(f".{place.name}.partial")
        try:
            with self._opened(calls.export_request(id, format)) as response, partial.open("wb") as file:
                if response.status != http.client.OK:
                    checked(_answer(response))
                while chunk := _read(response, _CHUNK):
                    file.write(chunk)
            return partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)

    def send(self, call: Call[T]) -> T:
        """Send a call of `gradeline.client.calls`, again while the service asks for patience."""
        attempt = 0
        while True:
            try:
                with self._opened(call.request) as response:
                    answer = _answer(response)
            except ServiceUnreachableError:
                if not call.request.repeatable or attempt >= 2 or not rewound(call.request):
                    raise
                pause: float | None = backoff(attempt)
            else:
                pause = wait_before_next(call.request, answer, attempt)
                if pause is None:
                    return call.read(checked(answer))
            sleep(pause or 0.0)
            attempt += 1

    @contextmanager
    def _opened(self, request: Request) -> Iterator[http.client.HTTPResponse]:
        place = self._place
        if self._tls is None:
            connection = http.client.HTTPConnection(place.host, place.port, timeout=self._timeout_s)
        else:
            connection = http.client.HTTPSConnection(place.host, place.port, timeout=self._timeout_s, context=self._tls)
        try:
            with _reaching(place):
                connection.request(
                    request.method,
                    f"{place.prefix}{request.target}",
                    body=request.body,
                    headers={"Accept": "application/json", **self._headers, **request.headers},
                    encode_chunked=False,
                )
                response = connection.getresponse()
            yield response
        finally:
            connection.close()


@contextmanager
def _reaching(place: Place) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnreachableError(f"no answer from {place.url}: {error or type(error).__name__}") from error


def _answer(response: http.client.HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, _read(response, None))


def _read(response: http.client.HTTPResponse, most: int | None) -> bytes:
    try:
        read = response.read(most)
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnreachableError(f"the answer broke off: {error or type(error).__name__}") from error
    if not read and response.length:  # of a read in parts the standard library does not say so
        raise ServiceUnreachableError(f"the answer broke off {response.length:,} bytes before its end")
    return read


def _read_line(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.readline()
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnreachableError(f"the stream broke off: {error or type(error).__name__}") from error
