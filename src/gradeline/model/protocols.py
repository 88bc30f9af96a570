"""The seams: what the engine asks of graders, extractors, targets and stores.

`Judge`, `LLMAdapter` and `EmbeddingAdapter` stand in `gradeline.model.llm`, beside what they speak of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from gradeline.model.case import TestCase
from gradeline.model.context import GradeContext, Need
from gradeline.model.grade import Grade, GradeResult
from gradeline.model.record import GradeKey, Record, ResponseKey
from gradeline.model.response import Response
from gradeline.model.sample import Sample


@runtime_checkable
class Grader(Protocol):
    """Every grader, whatever its seed's signature, as the engine calls it.

    Raises `gradeline.errors.GraderError` (or anything else) when there is no score to give.
    """

    @property
    def kind(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def needs(self) -> frozenset[Need]: ...

    @property
    def max_chars(self) -> int: ...

    @property
    def reads_submission(self) -> bool: ...

    def grade(self, ctx: GradeContext, /) -> GradeResult: ...


@runtime_checkable
class Extractor(Protocol):
    """Takes the submission out of a response; an empty text means that nothing was found."""

    @property
    def kind(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def extract(self, response: Response) -> str: ...


@runtime_checkable
class Target(Protocol):
    """The agent under test. A failed call is a response with an error, not an exception."""

    @property
    def fingerprint(self) -> str: ...

    async def respond(self, sample: Sample) -> Response: ...


@runtime_checkable
class Storage(Protocol):
    """Keeps cases, responses and grades. Synchronous and thread-safe."""

    def save_test_case(self, test_case: TestCase) -> str:
        """Store a test case, return its id."""

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - the seed's name
        """Retrieve a test case by its id."""

    def list_test_cases(self) -> list[TestCase]:
        """List all test cases."""

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - the seed's name
        """Delete a test case, return success."""

    def put_response(self, key: ResponseKey, response: Response) -> None: ...

    def put_grade(self, key: GradeKey, grade: Grade) -> None: ...

    def records(self, run: str) -> Iterator[Record]: ...
