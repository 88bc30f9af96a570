"""What a run sees of the world: variables that hold keys, and the addresses that may be reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gradeline.adapters.sending import OpenTransport
    from gradeline.transport import EgressPolicy


class Outside(NamedTuple):
    """What a run sees of the world."""

    environment: Mapping[str, str] | None = None
    """The variables that hold keys; None: those of this process, and the ``.env`` beside the suite."""
    policy: EgressPolicy | None = None
    """Which addresses agents and models may have; None: any."""

    @property
    def open_transport(self) -> OpenTransport | None:
        """Makes what models are called through."""
        policy = self.policy
        if policy is None:
            return None
        from gradeline.adapters.sending import ModelTransport  # loads aiohttp

        return lambda: ModelTransport(policy)


EVERYWHERE = Outside()


class NotedEnvironment(Mapping[str, str]):
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
