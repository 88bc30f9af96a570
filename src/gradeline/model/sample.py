"""A sample: one row of a dataset or one stored test case."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Sample(msgspec.Struct, frozen=True, tag_field="schema", tag=1):
    """What the agent is asked, and what is expected of it."""

    id: int | str
    input: str | list[str]
    ground_truth: str | list[str] | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    agent_args: dict[str, Any] = msgspec.field(default_factory=dict)
    rubric_vars: dict[str, Any] = msgspec.field(default_factory=dict)
    extra_vars: dict[str, Any] = msgspec.field(default_factory=dict)
    tags: tuple[str, ...] = ()
    rubric: str | None = None
    rubric_path: str | None = None
    cluster: str | UnsetType | None = UNSET
    """What this case has in common with others, such as their document: cases of one cluster are not independent.

    Unset (false, and not stored), the case is a cluster of its own. It is not part of what is asked: a case whose
    cluster changes is not an edited one.
    """

    def __post_init__(self) -> None:
        # an explicit None is an empty mapping; written out, since a sample is made for every row of a dataset
        if self.metadata is None:
            msgspec.structs.force_setattr(self, "metadata", {})
        if self.agent_args is None:
            msgspec.structs.force_setattr(self, "agent_args", {})
        if self.rubric_vars is None:
            msgspec.structs.force_setattr(self, "rubric_vars", {})
        if self.extra_vars is None:
            msgspec.structs.force_setattr(self, "extra_vars", {})
        if self.cluster is None:
            msgspec.structs.force_setattr(self, "cluster", UNSET)

    @property
    def case_key(self) -> str:
        """The case's name in its suite: ids 1 and "1" are the same case."""
        return str(self.id)
