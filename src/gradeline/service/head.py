"""HEAD: what GET would answer, without its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_WITHOUT_END = ("/events", "/export")
"""Answers that are made while they are sent: to make one for nobody is dear, or takes for ever."""


class HeadAsGet:
    """Hands a HEAD request on as GET and keeps the body back. What streams has no HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(_WITHOUT_END):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)
