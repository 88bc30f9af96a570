"""Server-Sent Events of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gradeline.service.access import Scope, requires
from gradeline.service.documented import documented
from gradeline.service.envelope import nothing
from gradeline.service.event_log import Event
from gradeline.service.event_streams import EventStreams
from gradeline.service.events import Events
from gradeline.service.limits import address_of
from gradeline.service.state import caller_of, service_of

router = APIRouter(prefix="/api/evaluations", tags=["evaluations"])

_EXAMPLE = 'id: 7\nevent: progress\ndata: {"total":200,"answered":12,"graded":11,"errors":0}\n\n'
_RESPONSES = {
    **documented({"type": "string"}, errors=(404, 429), content_type="text/event-stream", example=_EXAMPLE),
    204: {"description": "All was read already: there is nothing to come, and a browser need not ask again."},
}


@router.get("/{evaluation_id}/events", responses=_RESPONSES)
@requires(Scope.READ)
async def follow_evaluation(
    request: Request,
    evaluation_id: str,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", description="Goes on behind this one.")] = None,
) -> Response:
    """What happens in a run, as it happens: `snapshot`, `progress`, `result`, `status` and `done`.

    An id is a position in the run's log, which is kept as long as the run. A stream begins with a snapshot, or behind
    `Last-Event-ID` with no gap and no repeat; it closes after `done`, when the key is revoked or expires, and when its
    session is signed out of. One key and one address may have a limited number of streams open.
    """
    events: Events = service_of(request).events
    if await run_in_threadpool(events.is_over, evaluation_id, last_event_id):
        return nothing()
    streams: EventStreams = request.app.state.streams
    content = _stream(events, evaluation_id, last_event_id)
    return streams.open(content, caller_of(request), address_of(request.scope))


async def _stream(events: Events, run: str, last_id: str | None) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    batches = events.batches(run, last_id)
    async with aclosing(batches):
        async for batch in batches:
            yield b"".join(map(_block, batch)) or b":\n\n"


def _block(event: Event) -> bytes:
    """The event as the stream has it; its data is JSON on one line. Position 0 is none: the run has no log."""
    place = f"id: {event.n}\n" if event.n else ""
    return f"{place}event: {event.kind}\ndata: {event.data}\n\n".encode()
