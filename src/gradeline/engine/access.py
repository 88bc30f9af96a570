"""What a run sees of the world: variables that hold keys, and the addresses that may be reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from gradeline.graders.registry import ALIASES as GRADER_ALIASES
from gradeline.graders.registry import registry as graders
from gradeline.model.resources import EgressPolicy
from gradeline.model.secrets import SecretSet
from gradeline.targets.registry import guard_methods

MAX_CONCURRENCY = 10_000
"""Of a run that a person starts on their own machine; a service has a bound of its operator's."""


class WorkerObserver(NamedTuple):
    """Is called for what happens around the cases of a run, in this process and in those of a cluster."""

    worker_died: Callable[[str], None] = lambda _: None
    """With the reason: a process of user code ended that was not let go, or a Ray worker did (``ray_worker``)."""
    address_refused: Callable[[], None] = lambda: None
    """The policy refused an address in another process; in this one the policy itself knows."""


class Access(NamedTuple):
    """What a run sees of the world."""

    environment: Mapping[str, str] | None = None
    """The variables that hold keys; None: those of this process, and the ``.env`` beside the suite."""
    policy: EgressPolicy | None = None
    """Which addresses agents, models and plugins may reach; None: any."""
    secrets: SecretSet | None = None
    """The secrets whose markers are in the suite and in the variables."""
    max_concurrency: int = MAX_CONCURRENCY
    """The most calls in flight that a run may ask for."""
    observer: WorkerObserver = WorkerObserver()


UNRESTRICTED = Access()


class RecordingEnvironment(Mapping[str, str]):
    """Variables, and which of them were asked for: a process elsewhere needs no others."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self._asked.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        self._asked.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def asked(self) -> dict[str, str]:
        return {name: self._values[name] for name in self._asked if name in self._values}


T = TypeVar("T")


def is_plugin_grader(kind: str) -> bool:
    return not graders.is_builtin(GRADER_ALIASES.get(kind, kind))


def guard_grader(grader: object, policy: EgressPolicy | None, kind: str) -> None:
    """Hold the sockets of a plugin's grader to the policy; a refused connection is an error of that grade."""
    if policy is None or not is_plugin_grader(kind):
        return
    guard_methods(grader, policy, ("grade",), ("agrade",) if hasattr(grader, "agrade") else ())
