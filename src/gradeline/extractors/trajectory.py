"""Extractors of tool calls, tool results, memory, and the whole trajectory."""

from __future__ import annotations

from typing import Annotated

from msgspec import to_builtins

from gradeline.errors import MissingDataError, UngradableError
from gradeline.extractors.base import DeclaredExtractor, compact_json
from gradeline.model import Config, Message, Response, ToolCall, described, quote
from gradeline.model.registry import NoOptions
from gradeline.model.response import UNKNOWN_TOOL_RESULTS


class FullTrajectoryExtractor(DeclaredExtractor[NoOptions]):
    """Takes the whole trajectory as compact JSON: {"turns": [[message, ...], ...], "memory": ...}.

    This is the stored form of a trajectory, readable by ``gradeline.model.from_json``. A trajectory without messages
    counts as nothing found. A response that does not report tool calls is an error of type `missing`.
    """

    kind = "full_trajectory"
    name = "Full trajectory"
    version = 2

    def extract(self, response: Response) -> str:
        steps = response.tool_use()
        if not any(steps.turns):
            return ""
        return compact_json({"turns": to_builtins(steps.turns), "memory": steps.memory})


class ToolConfig(Config, frozen=True):
    """Options of `ToolArgumentsExtractor` and `ToolOutputExtractor`."""

    tool_name: Annotated[str, described("Name of the tool; its first call counts.")]


class ToolArgumentsExtractor(DeclaredExtractor[ToolConfig]):
    """Takes the arguments of the first call of a tool, as the agent sent them; "{}" if it was never called.

    A response that does not report tool calls is an error of type `missing`.
    """

    kind = "tool_arguments"
    name = "Tool arguments"
    version = 2

    def extract(self, response: Response) -> str:
        for call in response.tool_use().tool_calls():
            if call.name == self.options.tool_name:
                return call.arguments
        return "{}"


class ToolOutputExtractor(DeclaredExtractor[ToolConfig]):
    """Takes the result of the first call of a tool.

    The result is the first later one with the call's ID; for calls without IDs, the first one with the tool's name. A
    response that does not report tool calls is an error of type `missing`; so is one that reports a call of the tool
    but no results at all.
    """

    kind = "tool_output"
    name = "Tool output"
    version = 2

    def extract(self, response: Response) -> str:
        call: ToolCall | None = None
        steps = response.tool_use()
        for message in steps.messages():
            if call is None:
                call = next((made for made in message.tool_calls if made.name == self.options.tool_name), None)
            elif _answers(message, call):
                return message.content
        if call is not None and not any(steps.messages("tool")):
            raise MissingDataError(UNKNOWN_TOOL_RESULTS)
        return ""


class ToolCallsExtractor(DeclaredExtractor[NoOptions]):
    """Takes all tool calls in order, as JSON: [{"name": ..., "arguments": ...}], "[]" if there are none.

    Arguments that are not a JSON object stay the string that the agent sent. A response that does not report tool
    calls is an error of type `missing`.
    """

    kind = "tool_calls"
    name = "Tool calls"
    version = 2

    def extract(self, response: Response) -> str:
        return f"[{','.join(map(_call_json, response.tool_use().tool_calls()))}]"


def _answers(message: Message, call: ToolCall) -> bool:
    if message.role != "tool" or message.tool_call_id != call.id:
        return False
    return call.id is not None or message.name == call.name


def _call_json(call: ToolCall) -> str:
    arguments = call.parsed()
    if arguments is not None:
        try:
            return compact_json({"name": call.name, "arguments": arguments})
        except UngradableError:
            pass  # nested too deeply to be encoded again: use the original string
    return compact_json({"name": call.name, "arguments": call.arguments})


class MemoryBlockConfig(Config, frozen=True):
    """Options of `MemoryBlockExtractor`."""

    block_label: Annotated[str, described("Label of the block, such as 'human'.", min_length=1)]


class MemoryBlockExtractor(DeclaredExtractor[MemoryBlockConfig]):
    """Takes the value of a memory block from the agent's final state.

    An agent that reports no memory at all cannot be graded on it: an error of type `missing`, not an empty string.
    """

    kind = "memory_block"
    name = "Memory block"

    def extract(self, response: Response) -> str:
        memory = response.steps.memory
        if memory is None:
            raise MissingDataError(
                f"the response does not report the agent's memory, so block {quote(self.options.block_label)} is "
                "unknown; use a target that reports it: letta_agent, letta_code, or a Response whose trajectory "
                "has memory"
            )
        return memory.get(self.options.block_label, "")
