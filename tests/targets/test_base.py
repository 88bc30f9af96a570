from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gradeline.errors import ConfigError, Problem
from gradeline.model import Response, Sample
from gradeline.targets.base import DeclaredTarget, TargetConfig

SAMPLE = Sample(id=0, input="hi")


class Plugin(DeclaredTarget[TargetConfig]):
    """A target of an installed package that calls a given function."""

    kind = "plugin"
    name = "Plugin"

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__({})
        self._act = act

    async def call(self, sample: Sample) -> Response:
        answer: Response = self._act()
        return answer


def respond(act: Callable[[], Any]) -> Response:
    return asyncio.run(Plugin(act).respond(SAMPLE))


def test_an_exception_of_a_plugin_is_a_failed_call() -> None:
    response = respond(lambda: {}["answer"])
    assert response.error is not None
    assert (response.status, response.error.type, response.error.message) == (
        "error",
        "agent_error",
        "target 'plugin' raised KeyError: 'answer'",
    )
    assert "test_base.py" in (response.error.traceback or "")


@pytest.mark.parametrize("returned", ["text", None, {"text": "hi"}])
def test_anything_but_a_response_is_a_failed_call(returned: object) -> None:
    response = respond(lambda: returned)
    assert response.error is not None
    assert response.error.type == "bad_response"
    assert response.error.message.startswith("target 'plugin' returned ")
    assert response.error.message.endswith("; return a Response")


def test_errors_that_a_person_must_fix_are_raised() -> None:
    def refuse() -> Response:
        raise ConfigError(Problem("key", "is missing"))

    with pytest.raises(ConfigError, match="key: is missing"):
        respond(refuse)
