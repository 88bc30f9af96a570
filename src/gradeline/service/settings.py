"""How a service was started."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class ServeSettings(Struct, frozen=True, kw_only=True):
    """What the operator said on the command line or in the environment."""

    host: str = "127.0.0.1"
    port: int = 8000
    store: str = ""
    secret_key: bytes | None = None
    """Encrypts stored secrets and peppers API keys; None: neither can be made."""
    graders_dir: Path | None = None
    """Python graders are loaded from here alone."""
    allow_agent_net: tuple[str, ...] = ()
    allow_target: tuple[str, ...] = ()
    """Kinds of targets that may be named over REST beside the data-only ones."""
    runs_at_once: int = 4
    queue_limit: int = 1000
    """Runs that may wait; beyond it starting one is refused for now."""
    max_body: int = 10_000_000
    """Bytes of a request's body; imports are streamed and have a bound of their own."""
    max_import: int = 200_000_000
    lease_s: float = 15.0
    """How long a run stays claimed without a heartbeat."""
    drain_s: float = 8.0
    """How long a stop waits for what is in flight."""
