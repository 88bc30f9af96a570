"""How a service was started."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from gradeline.errors import ConfigError
from gradeline.store.postgres_url import read_url

_HIDDEN = "<hidden>"


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
    engine: Literal["local", "ray"] = "local"
    """Where the cases of runs are worked on."""
    ray_address: str | None = None
    """The cluster; None: one of this machine alone."""
    ray_workers: int | None = None
    """How many workers of the cluster the runs share; None: one for each of its cores."""
    queue_limit: int = 1000
    """Runs that may wait; beyond it starting one is refused for now."""
    max_body: int = 10_000_000
    """Bytes of a request's body; imports are streamed and have a bound of their own."""
    max_import: int = 200_000_000
    lease_s: float = 15.0
    """How long a run stays claimed without a heartbeat."""
    drain_s: float = 8.0
    """How long a stop waits for what is in flight."""

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({told})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What may stand in a log or a traceback: no secret key, and no password of a database."""
        told = {name: getattr(self, name) for name in self.__struct_fields__}
        told["secret_key"] = None if self.secret_key is None else _HIDDEN
        told["store"] = _place(self.store)
        return list(told.items())


def _place(store: str) -> str:
    """Where a store is, without who connects to it and how."""
    if "://" not in store or store.startswith(("sqlite:", "memory:")):
        return store
    try:
        return read_url(store).place
    except ConfigError:
        return _HIDDEN
