"""Documents from the results of an agent's tool calls, for agents that report their calls but not their documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated

from gradeline.errors import AgentError, Problem, UngradableError
from gradeline.extractors.base import compact_json
from gradeline.model import Config, Document, Message, Response, Trajectory, described
from gradeline.model.documents import ID_KEYS, TEXT_KEYS, read_documents
from gradeline.parsing.jmespath import BadPathError, JmesPath
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.targets.answer_values import search, with_workers


class ToolDocuments(Config, frozen=True):
    """The tool whose results are the documents of a response."""

    tool: Annotated[str, described("Name of the tool; the results of all its calls count.", min_length=1)]
    path: Annotated[
        str | None,
        described("JMESPath of the documents in the JSON of a result (default the whole result; a list is split)."),
    ] = None

    def faults(self) -> Iterator[Problem]:
        try:
            self.compiled()
        except BadPathError as error:
            yield Problem("path", str(error))

    def compiled(self) -> JmesPath | None:
        return None if self.path is None else JmesPath(self.path)


async def tool_documents(response: Response, source: ToolDocuments) -> tuple[Document, ...] | None:
    """The documents that the tool returned; None if they are unknown.

    They are if tool calls or their results are not reported, or if a result is not what the source expects.
    """
    if response.trajectory is None:
        return None
    results = _results(response.trajectory, source.tool)
    if results is None:
        return None
    path = source.compiled()
    try:
        found = [item for result in results for item in await with_workers(partial(_items, result, path))]
        return read_documents(found)
    except (AgentError, NotJsonError, UngradableError):
        # the answer is not lost: a grader that needs documents reports that they are missing
        return None


def _results(steps: Trajectory, tool: str) -> list[str] | None:
    """What the calls of a tool returned, without failed calls; None if a result is not reported."""
    if not steps.tools_known:
        return None
    calls = [call for call in steps.tool_calls() if call.name == tool]
    idents = {call.id for call in calls if call.id is not None}
    results = [message for message in steps.messages("tool") if _is_result(message, tool, idents)]
    if len(results) < len(calls):
        return None
    return [message.content for message in results if not message.is_error]


def _is_result(message: Message, tool: str, idents: set[str]) -> bool:
    return message.tool_call_id in idents if message.tool_call_id is not None and idents else message.name == tool


def _items(result: str, path: JmesPath | None) -> list[object]:
    """The documents in a result: a text that is not JSON is one document, a list is split."""
    if not result.strip():
        return []
    try:
        data = parse_json(result)
    except NotJsonError:
        if path is not None:
            raise
        return [result]
    if path is None and data is None:
        return []
    found = data if path is None else search(path, data)
    if found is None:
        raise NotJsonError("nothing at the path")
    if isinstance(found, list):
        return [_item(item) for item in found]
    return [_item(found)] if path is not None or isinstance(found, Mapping) else [result]


def _item(value: object) -> object:
    """A document as `read_documents` takes it; data without its keys is a text of JSON."""
    known = isinstance(value, Mapping) and any(value.get(key) is not None for key in (*TEXT_KEYS, *ID_KEYS))
    return value if known or isinstance(value, str) else compact_json(value)
