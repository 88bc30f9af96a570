"""An agent over HTTP that outlives the runs that ask it, and remembers every call it ever got."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Event, Thread
from time import sleep
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

Answer = Callable[[str, int], str | None]
"""The response to the n-th call for a case; None fails the call."""

_PATIENCE = 30.0


class Call(NamedTuple):
    """A call that arrived. The answer carries its number, so that no two answers are alike."""

    number: int
    case: str
    failed: bool


class CountingAgent:
    """Answers ``{"case": id}`` with ``{"answer": "… by call 17"}``, or with a 500 of the same text."""

    def __init__(self, answer: Answer, seconds: float = 0.002) -> None:
        self.calls: list[Call] = []
        self.on_call: Callable[[int], None] = lambda _: None
        """Told the number of each call before it is answered."""
        self.may_answer = Event()
        self.may_answer.set()
        self._answer = answer
        self._seconds = seconds
        self._asked: Counter[str] = Counter()
        self._changed = Condition()
        self._connections = 0
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/ask"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    def settle(self) -> None:
        """Wait until every call that a dead run had sent is counted.

        Connections are accepted in their order: once this one is, all before it are.
        """
        connection = HTTPConnection("127.0.0.1", self._server.server_address[1], timeout=_PATIENCE)
        connection.request("GET", "/")
        connection.getresponse().read()
        connection.close()
        with self._changed:
            assert self._changed.wait_for(lambda: self._connections == 0, _PATIENCE), "a connection stays open"

    def respond(self, case: str) -> tuple[int, dict[str, str]]:
        """Count a call; returns the status and the body of its response."""
        with self._changed:
            self._asked[case] += 1
            text = self._answer(case, self._asked[case])
            call = Call(len(self.calls) + 1, case, text is None)
            self.calls.append(call)
        self.on_call(call.number)
        self.may_answer.wait()
        sleep(self._seconds)
        if text is None:
            return 500, {"error": f"out of order by call {call.number}"}
        return 200, {"answer": f"{text} by call {call.number}"}

    def connected(self, by: int) -> None:
        with self._changed:
            self._connections += by
            self._changed.notify_all()


class _Server(ThreadingHTTPServer):
    request_queue_size = 256

    def __init__(self, agent: CountingAgent) -> None:
        self.agent = agent
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.agent.connected(1)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.agent.connected(-1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The caller was killed; print any other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._reply(200, {})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) == length:  # else it died during the call
            self._reply(*cast(_Server, self.server).agent.respond(str(json.loads(body)["case"])))

    def _reply(self, status: int, body: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """It is not read."""
