"""The settings of a service."""

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
    """Which runs may be deleted: those that are old enough and not among the newest. At least one of the two is set."""

    older_than_s: float | None = None
    """Age in seconds, since the end of a run, or since its start if it has no end."""
    keep: int | None = None
    """Number of newest runs to keep."""
    keep_tags: tuple[str, ...] = ()
    """Keep runs whose cases were chosen by one of these tags."""

    def __post_init__(self) -> None:
        if self.older_than_s is None and self.keep is None:
            raise ConfigError(Problem("", "no retention rule is set; set an age, a number to keep, or both"))


def age_of(text: str, option: str) -> float:
    """The seconds of an age such as ``90d``."""
    form = _AGE.fullmatch(text)
    if form is None:
        raise ConfigError(Problem(option, f"invalid age {text!r}: use a whole number and h, d or w, such as 90d"))
    return float(int(form[1]) * _AGE_UNITS[form[2]])


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The settings from the command line and the environment."""

    host: str = "127.0.0.1"
    port: int = 8000
    store: str = ""
    secret_key: bytes | None = None
    """Encrypts stored secrets and peppers API keys; None: neither can be created."""
    graders_dir: Path | None = None
    """The only folder from which Python graders are loaded."""
    allow_agent_net: tuple[str, ...] = ()
    allow_target: tuple[str, ...] = ()
    """Kinds of targets that are allowed over REST, in addition to those that are only data."""
    allow_grader: tuple[str, ...] = ()
    """Kinds of graders that run programs and are allowed over REST."""
    runs_at_once: int = 4
    engine: Literal["local", "ray"] = "local"
    """Where the cases of runs are executed."""
    ray_address: str | None = None
    """The address of the cluster; None: a cluster on this machine."""
    ray_workers: int | None = None
    """Number of workers for all runs; None: one for each core of the cluster."""
    queue_limit: int = 1000
    """Maximum number of queued runs; above it, new ones are refused."""
    max_body: int = 10_000_000
    """Maximum size of a body in bytes; imports are streamed and have their own maximum."""
    max_import: int = 200_000_000
    max_upload: int = 2_000_000_000
    """Maximum size of a run that is pushed, in bytes."""
    lease_s: float = 15.0
    """Seconds for which a run stays claimed without a heartbeat."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted."""
    max_concurrency: int = 200
    """Maximum calls in flight of one run, whatever its suite, target or request sets."""
    retention: RetentionRules | None = None
    """Which runs are deleted automatically; None: none."""
    drain_s: float = 8.0
    """Seconds for which a stop waits for calls and requests in flight."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The settings for logs and tracebacks, without the secret key and the password of the database."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["secret_key"] = None if self.secret_key is None else _HIDDEN
        shown["store"] = _place(self.store)
        return list(shown.items())


def _place(store: str) -> str:
    """The location of a store, without user and password."""
    if "://" not in store or store.startswith(("sqlite:", "memory:")):
        return store
    try:
        return read_url(store).location
    except ConfigError:
        return _HIDDEN
