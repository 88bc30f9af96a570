"""Cases: a row of a dataset (`Sample`) and a test case in the store (`TestCase`)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Sample(msgspec.Struct, frozen=True, tag_field="schema", tag=1):
    """One case: the input of the agent and the expected value."""

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
    """Name of the cluster, such as a shared document: cases of one cluster are not independent.

    Unset (falsy, not stored): the case is its own cluster. Changing the cluster does not count as editing the case.
    """
    checks: list[Any] | UnsetType = UNSET
    """The case's own checks, for the grader ``checks``; unset (falsy, not stored) if it has none."""

    def __post_init__(self) -> None:
        # an explicit None is an empty mapping; unrolled because it runs for every row of a dataset
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
        if self.checks is None:
            msgspec.structs.force_setattr(self, "checks", UNSET)

    @property
    def case_key(self) -> str:
        """The case's key in its suite: ids 1 and "1" are the same case."""
        return str(self.id)


class TestCase(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """A test case of the service: an input and its expected output."""

    __test__ = False  # keeps pytest from collecting it

    id: str
    input: str
    expected_output: str
    description: str | None = None
    tags: tuple[str, ...] = ()
    checks: list[Any] | None = None
    """The case's own checks, for the grader ``checks``; None if it has none."""
    created_at: str | None = None
    modified_at: str | None = None

    def sample(self) -> Sample:
        """The test case as a `Sample`."""
        return Sample(
            id=self.id,
            input=self.input,
            ground_truth=self.expected_output,
            tags=self.tags,
            checks=self.checks or UNSET,
        )


def join_turns(value: str | list[str]) -> str:
    """The turns of a conversation as one text."""
    return value if isinstance(value, str) else "\n\n".join(value)
