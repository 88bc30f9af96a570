"""The memory extractor."""

from __future__ import annotations

import pytest

from gradeline.errors import ConfigError, MissingDataError, Problem
from gradeline.extractors import create, extract
from gradeline.model import Message, Response, Trajectory


def remembers(memory: dict[str, str] | None) -> Response:
    return Response(trajectory=Trajectory(((Message("assistant", "Noted."),),), memory))


def test_takes_the_value_of_the_block() -> None:
    response = remembers({"persona": "helpful", "human": "Likes tea.\n"})
    assert create("memory_block", {"block_label": "human"}).extract(response) == "Likes tea.\n"


@pytest.mark.parametrize("memory", [{"persona": "helpful"}, {}, {"human": ""}])
def test_a_missing_or_empty_block_is_not_found(memory: dict[str, str]) -> None:
    assert create("memory_block", {"block_label": "human"}).extract(remembers(memory)) == ""


def test_an_agent_that_reports_no_memory_cannot_be_graded_on_it() -> None:
    message = "does not report the agent's memory, so block 'human' is unknown"
    with pytest.raises(MissingDataError, match=message):
        create("memory_block", {"block_label": "human"}).extract(remembers(None))
    with pytest.raises(MissingDataError, match=message):
        extract("memory_block", "Noted.", {"block_label": "human"})


@pytest.mark.parametrize(
    ("config", "message"),
    [({}, "is required"), ({"block_label": ""}, "expected str of length >= 1, got ''")],
)
def test_the_label_of_the_block_is_required(config: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create("memory_block", config)
    assert caught.value.problems == (Problem("config.block_label", message),)
