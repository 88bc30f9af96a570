"""A test case as the service stores it."""

from __future__ import annotations

import msgspec

from gradeline.model.sample import Sample


class TestCase(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """An input with the output expected for it, kept in the store."""

    __test__ = False  # not a test class, whatever its name says to pytest

    id: str
    input: str
    expected_output: str
    description: str | None = None
    tags: tuple[str, ...] = ()
    created_at: str | None = None
    modified_at: str | None = None

    def sample(self) -> Sample:
        """The case as a run sees it."""
        return Sample(id=self.id, input=self.input, ground_truth=self.expected_output, tags=self.tags)
