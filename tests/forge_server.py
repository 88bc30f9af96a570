"""A stand-in for the comments of GitHub and GitLab: an HTTP server with their paths, pages, authors and refusals."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

_PATHS = {
    "github": re.compile(r"/repos/owner/repo/issues/(?:12/comments|comments/(?P<id>\d+))$"),
    "gitlab": re.compile(r"/projects/77/merge_requests/5/notes(?:/(?P<id>\d+))?$"),
}
_EDIT = {"github": "PATCH", "gitlab": "PUT"}
_ME = {
    "github": {"login": "github-actions[bot]", "type": "Bot", "id": 1},
    "gitlab": {"username": "project_77_bot", "id": 1},
}
OTHER = {
    "github": {"login": "someone", "type": "User", "id": 9},
    "gitlab": {"username": "someone", "id": 9},
}


class ForgeServer:
    """The comments of pull request 12 of ``owner/repo``, or of merge request 5 of project 77."""

    def __init__(self, forge: str, token: str) -> None:
        self.forge = forge
        self.comments: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.faults: list[tuple[str, int, str, bool]] = []
        """Method, status and text of answers that fail, in order; the last says whether the request is executed."""
        self.read_only = False
        self._authorization = ("Authorization", f"Bearer {token}") if forge == "github" else ("PRIVATE-TOKEN", token)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
                pass

            def _answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                data = json.loads(self.rfile.read(size)) if size else None
                authorized = self.headers.get(server._authorization[0]) == server._authorization[1]
                status, answer = server.answer(self.command, self.path, data, authorized=authorized)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_PUT = _answer  # noqa: N815

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def add(self, body: str, *, own: bool = False) -> dict[str, Any]:
        """A comment that exists already."""
        number = len(self.comments) + 100
        author = (_ME if own else OTHER)[self.forge]
        comment: dict[str, Any] = {"id": number, "body": body, "author": author}
        if self.forge == "github":
            url = f"https://forge.example/comments/{number}"
            comment = {"id": number, "body": body, "user": author, "html_url": url}
        self.comments.append(comment)
        return self.comments[-1]

    def answer(self, method: str, target: str, data: Any, *, authorized: bool) -> tuple[int, object]:
        url = urlsplit(target)
        self.requests.append(f"{method} {url.path}")
        if not authorized:
            return 401, {"message": "Bad credentials"}
        fault = next((one for one in self.faults if one[0] == method), None)
        if fault is not None:
            self.faults.remove(fault)
            if fault[3]:
                self._execute(method, url.path, data)
            return fault[1], {"message": fault[2]}
        if url.path == "/user":
            if self.forge == "github":  # a job's token belongs to an app
                return 403, {"message": "Resource not accessible by integration"}
            return 200, _ME[self.forge]
        if self.read_only and method != "GET":
            return 403, {"message": "Resource not accessible by integration"}
        if method == "GET":
            return self._page(url.path, parse_qs(url.query))
        return self._execute(method, url.path, data)

    def _page(self, path: str, query: dict[str, list[str]]) -> tuple[int, object]:
        if not _PATHS[self.forge].fullmatch(path):
            return 404, {"message": "Not Found"}
        size, page = int(query["per_page"][0]), int(query["page"][0])
        newest_first = self.forge == "gitlab" and query.get("sort") != ["asc"]
        found = self.comments[::-1] if newest_first else self.comments
        return 200, found[(page - 1) * size : page * size]

    def _execute(self, method: str, path: str, data: Any) -> tuple[int, object]:
        found = _PATHS[self.forge].fullmatch(path)
        if found is None:
            return 404, {"message": "Not Found"}
        if method == "POST" and found["id"] is None:
            return 201, self.add(data["body"], own=True)
        if method == _EDIT[self.forge] and found["id"] is not None:
            comment = next(one for one in self.comments if one["id"] == int(found["id"]))
            comment["body"] = data["body"]
            return 200, comment
        return 405, {"message": "Method Not Allowed"}
