"""Everything the agent did."""

from __future__ import annotations

from msgspec import to_builtins

from gradeline.extractors.base import DeclaredExtractor, compact_json
from gradeline.model import Response
from gradeline.model.declared import NoOptions


class FullTrajectoryExtractor(DeclaredExtractor[NoOptions]):
    """Takes the whole trajectory as compact JSON text: {"turns": [[message, ...], ...], "memory": ...}.

    It is the stored form of a trajectory: ``gradeline.model.from_json`` reads it. A trajectory
    without any message counts as nothing found. A response that does not report tool calls is an
    error of type `missing`.
    """

    kind = "full_trajectory"
    name = "Full trajectory"
    version = 2

    def extract(self, response: Response) -> str:
        steps = response.tool_use()
        if not any(steps.turns):
            return ""
        return compact_json({"turns": to_builtins(steps.turns), "memory": steps.memory})
