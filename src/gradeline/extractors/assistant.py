"""The assistant's messages: the last, the first, all of them, or those of the last turn."""

from __future__ import annotations

from typing import Annotated

from gradeline.extractors.base import DeclaredExtractor, assistant_texts
from gradeline.model import Config, Response, described
from gradeline.model.declared import NoOptions


class JoinConfig(Config, frozen=True):
    """Options of `AllAssistantExtractor` and `LastTurnExtractor`."""

    separator: Annotated[str, described("The text between two messages.")] = "\n"


class LastAssistantExtractor(DeclaredExtractor[NoOptions]):
    """Takes the last message of the assistant, whichever turn it stands in."""

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
    """Joins the assistant's messages of the last turn; finds nothing where that turn has none."""

    kind = "last_turn"
    name = "Last turn"

    def extract(self, response: Response) -> str:
        turns = response.steps.turns
        return self.options.separator.join(assistant_texts(turns[-1])) if turns else ""
