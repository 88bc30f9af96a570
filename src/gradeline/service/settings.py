"""How a service was started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from gradeline.errors import ConfigError, Problem
from gradeline.store.postgres_connections import read_url

_HIDDEN = "<hidden>"
_AGE = re.compile(r"([1-9][0-9]{0,5})([hdw])")
_AGE_UNITS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}


class RetentionRules(Struct, frozen=True, kw_only=True):
    """Which runs may be deleted: those that are old enough and not among the newest; one of the two has to be set."""

    older_than_s: float | None = None
    """Seconds since the end of a run, or since its beginning where it has no end."""
    keep: int | None = None
    """This number of the newest runs stays."""
    keep_tags: tuple[str, ...] = ()
    """Runs stay whose cases were chosen by one of these tags."""

    def __post_init__(self) -> None:
        if self.older_than_s is None and self.keep is None:
            raise ConfigError(
                Problem("", "no rule says which runs may be deleted; set an age, a number to keep, or both")
            )


def age_of(text: str, option: str) -> float:
    """Seconds, from a text such as ``90d``."""
    form = _AGE.fullmatch(text)
    if form is None:
        raise ConfigError(Problem(option, f"invalid age {text!r}: use a whole number and h, d or w, such as 90d"))
    return float(int(form[1]) * _AGE_UNITS[form[2]])


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
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed."""
    max_concurrency: int = 200
    """The most calls of one run in flight, whatever its suite, its target or its request asks for."""
    retention: RetentionRules | None = None
    """Which runs are deleted by themselves; None: no run is."""
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
        return read_url(store).location
    except ConfigError:
        return _HIDDEN
