"""Agent files (.af): what letta exports an agent to, and makes one from again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from gradeline.errors import Problem
from gradeline.model import quote

ENDING = ".af"
_MOST_NAMED = 10


class AgentFile:
    """An agent file beside a suite. It is read once, so that every agent made from it is the same."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def content(self) -> bytes:
        """The file as it is now; `OSError` where it cannot be read."""
        return self._path.read_bytes()

    @property
    def digest(self) -> str:
        """Changes with the content; empty where there is none."""
        try:
            return sha256(self.content).hexdigest()
        except OSError:
            return ""

    def problems(self) -> Iterator[Problem]:
        """Why no one agent can be made from it."""
        try:
            data = json.loads(self.content)
        except OSError as error:
            yield Problem("agent_file", f"{self._path} cannot be read: {error.strerror}")
            return
        except (ValueError, RecursionError):
            yield Problem("agent_file", f"{self._path} is no agent file: it is not JSON; export the agent again")
            return
        agents = data.get("agents") if isinstance(data, dict) else []
        # the older form of the file is the one agent itself
        if agents is not None and (not isinstance(agents, list) or len(agents) != 1):
            held = f"{len(agents)} agents" if isinstance(agents, list) and agents else "none"
            yield Problem("agent_file", f"{self._path} must hold one agent, it holds {held}")

    def judge_problems(self, tool: str) -> Iterator[Problem]:
        """Why its agent cannot judge: it needs a tool of that name, with the parameters score and rationale."""
        before = list(self.problems())
        if before:
            yield from before
            return
        given = json.loads(self.content).get("tools")
        tools = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
        found = next((one for one in tools if one.get("name") == tool), None)
        if found is None:
            names = ", ".join(quote(one.get("name"), 60) for one in tools[:_MOST_NAMED]) or "none"
            told = f"the agent of {self._path} has no tool {quote(tool)} to grade with; its tools: {names}"
            yield Problem("judge_tool_name", f"{told}; name one of them, or give the agent such a tool")
            return
        missing = [name for name in ("score", "rationale") if not _takes(found, name)]
        if missing:
            told = f"the tool {quote(tool)} of {self._path} has no parameter {' and no '.join(missing)}"
            yield Problem("judge_tool_name", f"{told}; it must be (score: float, rationale: str)")


def _takes(tool: Mapping[str, Any], parameter: str) -> bool:
    """Whether a tool takes a parameter, as its source says, or its schema where it has no source."""
    source = tool.get("source_code")
    if isinstance(source, str) and source.strip():
        return re.search(rf"\b{parameter}\b", source) is not None
    return parameter in json.dumps(tool.get("json_schema"))
