from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Annotated

import pytest

from gradeline.errors import RESPONSE_POLICY, AgentError, ConfigError, UnknownNameError
from gradeline.model import Response, Sample, Target, described
from gradeline.targets import DeclaredTarget, RateLimit, TargetConfig, create, registry


class FixedConfig(TargetConfig, frozen=True):
    text: Annotated[str, described("What it says.")] = "x"


class FixedTarget(DeclaredTarget[FixedConfig]):
    """Returns the configured text."""

    kind = "fixed"
    name = "Fixed"

    async def call(self, sample: Sample) -> Response:
        if sample.input in RESPONSE_POLICY:
            raise AgentError(str(sample.input), f"failed with {self.options.text}\0")
        return Response(text=self.options.text)


def ask(target: DeclaredTarget[FixedConfig], text: str = "x") -> Response:
    return asyncio.run(target.respond(Sample(id=1, input=text)))


def test_every_target_lists_itself_with_a_schema() -> None:
    listing = registry.list()
    assert {"http", "python", "command", "replay"} <= {entry["id"] for entry in listing}
    for entry in listing:
        assert entry["description"]
        assert {"concurrency", "rate"} <= set(entry["config_schema"]["properties"])
        for name, option in entry["config_schema"]["properties"].items():
            assert option.get("description"), (entry["id"], name)


def test_an_unknown_kind_offers_the_closest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'http'"):
        create("htttp", {})


def test_importing_the_layer_loads_no_http_client() -> None:
    code = "import gradeline.targets, sys; sys.exit('aiohttp' in sys.modules or 'jmespath' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_target_implements_the_protocol_of_the_engine() -> None:
    target: Target = FixedTarget()
    assert isinstance(target, Target)
    assert FixedTarget().model is None


@pytest.mark.parametrize("kind", RESPONSE_POLICY)
def test_a_failure_of_the_agent_is_a_response(kind: str) -> None:
    response = ask(FixedTarget({"text": "s3cr3t"}, ["s3cr3t"]), kind)
    assert response.error is not None
    assert response.status == ("timeout" if kind == "timeout" else "error")
    assert (response.error.type, response.error.message) == (kind, "failed with ***\u2400")
    assert response.error.fault == RESPONSE_POLICY[kind].fault
    assert response.latency_ms is not None


def test_text_is_cleaned_and_truncated() -> None:
    assert ask(FixedTarget({"text": "é" * 5_000_000})).status == "success"
    too_large = ask(FixedTarget({"text": "é" * 5_000_001}))
    assert too_large.error is not None
    assert too_large.error.type == "too_large"


def test_limits_are_plain_options_outside_the_fingerprint() -> None:
    target = FixedTarget({"concurrency": 3, "rate": {"calls": 60, "per": "minute"}})
    assert (target.options.concurrency, target.options.rate) == (3, RateLimit(calls=60, per="minute"))
    assert target.fingerprint == FixedTarget().fingerprint
    assert [
        RateLimit(calls=1).seconds,
        RateLimit(calls=1, per="hour").seconds,
        RateLimit(calls=1, per=2.5).seconds,
    ] == [1, 3600, 2.5]


@pytest.mark.parametrize(
    "config",
    [
        {"concurrency": 0},
        {"rate": {"calls": 0}},
        {"rate": {"calls": 1, "per": 0}},
        {"rate": {"per": "hour"}},
        {"txt": 1},
    ],
)
def test_a_config_is_read_strictly(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        FixedTarget(config)
