"""A model that answers at once, and the least proxy that passes requests on: ``model`` or ``proxy URL``.

The proxy is what a program with aiohttp does at least: it parses the request, replaces the model, and passes the answer
on. It has no routes, no log, no limits and no fallback.
"""

from __future__ import annotations

import json
import socket
import sys

import aiohttp
from aiohttp import web

TEXT = "Paris is the capital of France. " * 10
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "small",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 60},
}


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if not body.get("stream"):
        return web.json_response(ANSWER)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for word in TEXT.split():
        await response.write(f'data: {{"choices": [{{"delta": {{"content": "{word} "}}}}]}}\n\n'.encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def bare_proxy(upstream: str) -> web.Application:
    app = web.Application()

    async def forward(request: web.Request) -> web.StreamResponse:
        session: aiohttp.ClientSession = request.app["session"]
        body = await request.json()
        body["model"] = "small"
        async with session.post(upstream + request.path, json=body) as answered:
            if not body.get("stream"):
                return web.Response(body=await answered.read(), content_type=answered.content_type)
            response = web.StreamResponse(headers={"Content-Type": answered.headers["Content-Type"]})
            await response.prepare(request)
            async for piece in answered.content.iter_any():
                await response.write(piece)
            return response

    async def lifetime(app: web.Application):  # type: ignore[no-untyped-def]
        async with aiohttp.ClientSession() as app["session"]:
            yield

    app.cleanup_ctx.append(lifetime)
    app.router.add_post("/v1/chat/completions", forward)
    return app


def main() -> None:
    if sys.argv[1] == "model":
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
    else:
        app = bare_proxy(sys.argv[2])
    web.run_app(app, sock=_bound(), print=None, access_log=None)


def _bound() -> socket.socket:
    """A socket whose port is printed, because port 0 picks a free one."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    print(json.dumps({"url": f"http://127.0.0.1:{bound.getsockname()[1]}"}), flush=True)
    return bound


if __name__ == "__main__":
    main()
