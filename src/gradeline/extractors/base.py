"""What an extractor is: the declared ones, and what they mean by an assistant message."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from gradeline.errors import UngradableError
from gradeline.model import Config, Message, Response, clean_text
from gradeline.model.declared import Declared

C = TypeVar("C", bound=Config)


class DeclaredExtractor(Declared[C]):
    """An extractor with a kind and typed options; implement `extract`.

    Unlike a grader it reads its config strictly: a submission taken out by other options than
    those written would be graded unnoticed.
    """

    noun = "extractor"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.check(config)
        super().__init__(config)

    @abstractmethod
    def extract(self, response: Response) -> str:
        """The submission in a response; an empty text means that nothing was found.

        Raises a `GraderError` when it cannot be told whether there is something to find.
        """
        raise NotImplementedError(f"{type(self).__name__} must override extract()")


def assistant_texts(messages: Iterable[Message]) -> list[str]:
    """What the assistant said, in order.

    A message that only carries tool calls says nothing: in letta it is a message of another type.
    """
    return [message.content for message in messages if message.role == "assistant" and message.content]


def compact_json(value: object) -> str:
    """Data as JSON text without spaces, keys in their order; `UngradableError` for what JSON cannot say."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise UngradableError("nested too deeply to be written as JSON") from None
    except (TypeError, ValueError) as error:
        raise UngradableError(f"cannot be written as JSON: {error}") from None
    return clean_text(text).text
