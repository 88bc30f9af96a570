"""Resources that graders and targets receive from the run: folder, environment, egress policy, secrets."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gradeline.model.learned_judging import LearnedJudging
from gradeline.model.secrets import SecretSet


class EgressPolicy(Protocol):
    """Decides before each connection, for every address a host name resolves to."""

    def check(self, host: str, address: str, port: int) -> str | None:
        """Why this address may not be reached; None if it may."""


class Resources(NamedTuple):
    """Passed to the ``bind`` of every grader and target, built-in or plugin, before it is used."""

    folder: Path | None = None
    """Base of relative paths; None: the current folder."""
    environment: Mapping[str, str] | None = None
    """Variables with API keys; None: those of this process."""
    policy: EgressPolicy | None = None
    """Addresses that may be reached; None: any."""
    prices: Any = None
    """Model prices (`gradeline.adapters.Prices`); None: the built-in table."""
    secrets: SecretSet | None = None
    """Secrets whose markers are in options and environment; the transport inserts the values."""
    calibrations: Mapping[str, LearnedJudging] | None = None
    """What judges learned from labels, by `JudgeGrader.judge_fingerprint`."""

    def transport(self, **options: Any) -> Any:
        """A new `gradeline.transport.Transport` under the policy; open it with ``async with``."""
        transport: Any = import_module("gradeline.transport")  # a higher layer, and it loads aiohttp
        policy = () if self.policy is None else (self.policy,)
        return transport.Transport(*policy, secrets=self.secrets, **options)
