"""The agent's memory as the run left it."""

from __future__ import annotations

from typing import Annotated

from gradeline.errors import MissingDataError
from gradeline.extractors.base import DeclaredExtractor
from gradeline.model import Config, Response, described, quote


class MemoryBlockConfig(Config, frozen=True):
    """Options of `MemoryBlockExtractor`."""

    block_label: Annotated[str, described("The label of the block, such as 'human'.", min_length=1)]


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
