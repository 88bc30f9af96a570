"""Real servers for tests of the proxy: models with planted failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


@dataclass
class Upstream:
    """A model behind an OpenAI-compatible API."""

    name: str
    behaviour: str = "ok"
    """``ok``, ``500``, ``429``, ``redirect``, ``silent``, ``empty``, ``cut``, ``stall``, ``hang-up`` or ``echo-key``."""
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        match self.behaviour:
            case "500" | "429":
                return web.json_response({"error": {"message": "broken"}}, status=int(self.behaviour))
            case "redirect":
                raise web.HTTPFound("http://127.0.0.1:9/elsewhere")
            case "silent":
                await asyncio.sleep(30)
            case "hang-up":
                assert request.transport is not None
                request.transport.close()
            case "echo-key":
                return web.json_response({"error": {"message": request.headers["Authorization"]}}, status=401)
        if body.get("stream"):
            return await self._stream(request)
        if self.behaviour == "cut":
            cut = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
            await cut.prepare(request)
            await cut.write(b'{"choices"')
            assert request.transport is not None
            request.transport.close()
            return cut
        message = {"role": "assistant", "content": f"from {self.name}"}
        return web.json_response({"model": body["model"], "choices": [{"message": message}], "usage": USAGE})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if self.behaviour == "empty":
            return response
        for word in ("from", self.name):
            await response.write(f'data: {{"choices": [{{"delta": {{"content": "{word}"}}}}]}}\n\n'.encode())
            if self.behaviour == "stall":
                await asyncio.sleep(30)
            if self.behaviour == "cut":
                await asyncio.sleep(0.05)
                assert request.transport is not None
                request.transport.close()
                return response
        await response.write(b'data: {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def serving(*upstreams: Upstream) -> AsyncIterator[None]:
    """The upstreams at free ports."""
    runners = []
    for one in upstreams:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", one.answer)
        app.router.add_post("/v1/responses", one.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        one.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        runners.append(runner)
    try:
        yield
    finally:
        for runner in runners:
            await runner.cleanup()
