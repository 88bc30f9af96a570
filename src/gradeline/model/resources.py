"""What graders and targets may use of the place they run in."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gradeline.model.bound_secret import SecretSet


class EgressPolicy(Protocol):
    """Decides before every connection, for each address that a host name resolved to."""

    def check(self, host: str, address: str, port: int) -> str | None:
        """Why this address may not be reached, or None where it may."""


class Resources(NamedTuple):
    """Passed to the ``bind`` of every grader and target, built-in or plugin, before it is used."""

    folder: Path | None = None
    """Where relative paths begin; None: the current folder."""
    environment: Mapping[str, str] | None = None
    """The variables that hold keys; None: those of this process."""
    policy: EgressPolicy | None = None
    """Which addresses may be reached; None: any."""
    prices: Any = None
    """What models cost (`gradeline.adapters.Prices`); None: those of the table."""

    secrets: SecretSet | None = None
    """The secrets whose markers are in the options and in the environment; the transport fills them in."""

    def transport(self) -> Any:
        """A new `gradeline.transport.Transport` that keeps to the policy; open it with ``async with``."""
        transport: Any = import_module("gradeline.transport")  # a higher layer, and it loads aiohttp
        policy = () if self.policy is None else (self.policy,)
        return transport.Transport(*policy, secrets=self.secrets)
