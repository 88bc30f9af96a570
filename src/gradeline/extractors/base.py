"""Base class of extractors, extractors of assistant messages, and the registry."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Annotated, Any, TypeVar

from gradeline.errors import NeedsIsolationError, UngradableError
from gradeline.model import Config, Extractor, Message, Response, clean_text, described
from gradeline.model.registry import Declaration, NoOptions, Registry

C = TypeVar("C", bound=Config)


class DeclaredExtractor(Declaration[C]):
    """An extractor with a kind and typed options; implement `extract`.

    Unlike a grader it reads its config strictly, because a misspelt option would silently extract another submission.
    """

    noun = "extractor"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.check(config)
        super().__init__(config)

    @abstractmethod
    def extract(self, response: Response) -> str:
        """The submission in a response; an empty string means that nothing was found.

        Raises a `GraderError` if the response lacks the data to decide that.
        """
        raise NotImplementedError(f"{type(self).__name__} must override extract()")


def assistant_texts(messages: Iterable[Message]) -> list[str]:
    """The texts of the assistant's messages, in order, without messages that only contain tool calls."""
    return [message.content for message in messages if message.role == "assistant" and message.content]


def compact_json(value: object) -> str:
    """Data as JSON without spaces, in the order of its keys; `UngradableError` for data that JSON does not support."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise UngradableError("nested too deeply to be written as JSON") from None
    except (TypeError, ValueError) as error:
        raise UngradableError(f"cannot be written as JSON: {error}") from None
    return clean_text(text).text


class JoinConfig(Config, frozen=True):
    """Options of `AllAssistantExtractor` and `LastTurnExtractor`."""

    separator: Annotated[str, described("Text between messages (default a line break).")] = "\n"


class LastAssistantExtractor(DeclaredExtractor[NoOptions]):
    """Takes the last message of the assistant, in any turn."""

    kind = "last_assistant"
    name = "Last assistant message"

    def extract(self, response: Response) -> str:
        if response.trajectory is None:
            return response.text or ""
        texts = assistant_texts(response.steps.messages())
        return texts[-1] if texts else ""


class FirstAssistantExtractor(DeclaredExtractor[NoOptions]):
    """Takes the first message of the assistant."""

    kind = "first_assistant"
    name = "First assistant message"

    def extract(self, response: Response) -> str:
        texts = assistant_texts(response.steps.messages())
        return texts[0] if texts else ""


class AllAssistantExtractor(DeclaredExtractor[JoinConfig]):
    """Joins all messages of the assistant, over all turns."""

    kind = "all_assistant"
    name = "All assistant messages"

    def extract(self, response: Response) -> str:
        return self.options.separator.join(assistant_texts(response.steps.messages()))


class LastTurnExtractor(DeclaredExtractor[JoinConfig]):
    """Joins the assistant's messages of the last turn; finds nothing if that turn has none."""

    kind = "last_turn"
    name = "Last turn"

    def extract(self, response: Response) -> str:
        turns = response.steps.turns
        return self.options.separator.join(assistant_texts(turns[-1])) if turns else ""


BUILTINS = {
    "last_assistant": "gradeline.extractors.base:LastAssistantExtractor",
    "first_assistant": "gradeline.extractors.base:FirstAssistantExtractor",
    "all_assistant": "gradeline.extractors.base:AllAssistantExtractor",
    "last_turn": "gradeline.extractors.base:LastTurnExtractor",
    "pattern": "gradeline.extractors.text:PatternExtractor",
    "after_marker": "gradeline.extractors.text:AfterMarkerExtractor",
    "tool_arguments": "gradeline.extractors.trajectory:ToolArgumentsExtractor",
    "tool_output": "gradeline.extractors.trajectory:ToolOutputExtractor",
    "memory_block": "gradeline.extractors.trajectory:MemoryBlockExtractor",
    "json": "gradeline.extractors.text:JsonExtractor",
    "tool_calls": "gradeline.extractors.trajectory:ToolCallsExtractor",
    "full_trajectory": "gradeline.extractors.trajectory:FullTrajectoryExtractor",
}

GROUP = "gradeline.extractors"

registry: Registry[DeclaredExtractor[Any]] = Registry(
    "extractor", DeclaredExtractor, BUILTINS, GROUP, lambda _, declaration: declaration.describe()
)


def create(kind: str, config: Mapping[str, Any] | None = None) -> Extractor:
    """Create an extractor.

    Raises `ConfigError` (a `ValueError`) with the path of every problem in the config.
    """
    return registry.get(kind)(config)


def extract(kind: str, response: Response | str, config: Mapping[str, Any] | None = None) -> str:
    """The submission in a response or a plain text; empty if nothing was found.

    Work that could take too long in this process runs in a worker process.
    """
    if isinstance(response, str):
        response = Response(text=response)
    try:
        return create(kind, config).extract(response)
    except NeedsIsolationError:
        pools: Any = import_module("gradeline.usercode.pools")  # a higher layer, which starts processes
        found: str = pools.ISOLATED.extract(kind, config or {}, response)
        return found
