"""The seams: what the engine asks of graders, extractors, targets and stores.

`Judge`, `LLMAdapter` and `EmbeddingAdapter` stand in `gradeline.model.llm`, beside what they speak of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from gradeline.errors import GraderError
from gradeline.model.case import TestCase
from gradeline.model.context import GradeContext, Need
from gradeline.model.grade import Grade, GradeResult
from gradeline.model.observation import EVERYTHING, Observation, ObservationFilter, ObservationSums
from gradeline.model.record import GradeKey, Record, ResponseKey
from gradeline.model.response import Response, Usage
from gradeline.model.run import Columns, Counts, Measure, OrderCounts, Run, StoredKey
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


class Judged(NamedTuple):
    """What came of asking a model to grade, and what the asking used, the asking that failed included."""

    result: GradeResult | GraderError
    usage: Usage | None = None


@runtime_checkable
class AskingGrader(Grader, Protocol):
    """A grader that asks models, and so is waited for.

    Raises `ConfigError` for what is wrong for every case alike (a key, a model's name): that ends the run.
    """

    @property
    def judges(self) -> tuple[str, ...]:
        """The models whose word the score is, by their adapters' ids: they want calibration."""

    async def agrade(self, ctx: GradeContext, /) -> Judged: ...


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

    def cache_key(self, sample: Sample, repeat: int) -> str:
        """A digest of all that decides the answer, by which a store finds one again."""


class StoreWriter(Protocol):
    """Writes for the tasks of one event loop; a put returns once it is committed (`gradeline.store.Writer`)."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def put_response(
        self,
        key: ResponseKey,
        response: Response,
        sample: Sample,
        position: int | None = None,
        cache_key: str | None = None,
    ) -> Awaitable[None]: ...

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> Awaitable[None]: ...

    def put_grades(self, key: ResponseKey, grades: Mapping[str, tuple[str | None, Grade]]) -> Awaitable[None]: ...

    def post_grades(self, key: ResponseKey, grades: Mapping[str, tuple[str | None, Grade]]) -> Awaitable[None]:
        """Queue the grades; they are committed soon, and at the latest by `flush`."""

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """Keeps cases, runs, responses, grades and the quality ledger. Synchronous and thread-safe.

    A write is durable when its call returns, and doing it again changes nothing. Raises
    `StoreError` when the store fails, `ConfigError` for a run that is not there.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Let go of files and connections; nothing works afterwards."""

    def save_test_case(self, test_case: TestCase) -> str:
        """Store a test case, return its id (a new one where it is empty). A deleted case comes back."""

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - the seed's name
        """Retrieve a test case by its id."""

    def list_test_cases(self) -> list[TestCase]:
        """List all test cases, in the order in which they were first stored."""

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - the seed's name
        """Delete a test case, return success. It is only hidden: runs speak of it still."""

    def save_run(self, run: Run) -> str:
        """Store a run, return its id (a new one where it is empty). Its parent must be there."""

    def get_run(self, id: str) -> Run | None:  # noqa: A002 - as the seed names it
        """Retrieve a run by its whole id."""

    def find_run(self, wanted: str) -> Run:
        """The run that a person means: by id, name, unique start of an id, ``latest`` or ``latest~N``.

        `ConfigError` lists the candidates when none or several are meant.
        """

    def list_runs(self, limit: int = 50, before: str | None = None) -> list[Run]:
        """Runs, the last saved first; ``before`` is the id of the last run of the page before."""

    def update_run(self, id: str, **changes: Any) -> Run:  # noqa: A002 - as the seed names it
        """Replace fields of a run in one transaction, return the run."""

    def claim_run(self, id: str, owner: str, previous: str | None) -> Run | None:  # noqa: A002 - as the seed names it
        """Make a run this owner's if it still is ``previous``'s; None where somebody else was faster."""

    def delete_run(self, id: str) -> bool:  # noqa: A002 - as the seed names it
        """Delete a run and all its rows, return success. Refused while another run regrades it."""

    def put_samples(self, run: str, samples: Iterable[Sample], start: int = 0) -> None:
        """Store the cases of a run, whose positions count from ``start``."""

    def samples(self, run: str) -> Iterator[Sample]:
        """The run's own cases by position, in constant memory."""

    def get_sample(self, run: str, case: str) -> Sample | None:
        """A case of a run, or of the run it regrades."""

    def put_response(
        self,
        key: ResponseKey,
        response: Response,
        sample: Sample,
        position: int | None = None,
        cache_key: str | None = None,
    ) -> None:
        """Store a response, and its case once for all repeats.

        An answer in the place of another has no grades: those of the other are dropped.
        ``position`` is the case's place in the suite; without it a new case comes last.
        ``cache_key`` lets `cached_response` find it again.
        """

    def cached_response(self, cache_key: str) -> Response | None:
        """A successful response of any run that was stored with this key."""

    def get_response(self, key: ResponseKey) -> Response | None:
        """A response of a run, or of the run it regrades."""

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> None:
        """Store a grade, and the text that was graded."""

    def get_record(self, key: ResponseKey) -> Record | None:
        """One record of a run."""

    def records(self, run: str, after: ResponseKey | None = None) -> Iterator[Record]:
        """The run's records by position of the case, then repeat, in constant memory.

        A run with a parent and no response of its own has its parent's responses. ``after`` goes on
        behind a record. What is written meanwhile may show up or not.
        """

    def keys_of(self, run: str, cases: Sequence[str] | None = None) -> Iterator[StoredKey]:
        """What is there already, as (key, status of the response, fingerprint by grader), ordered as `records`.

        ``cases`` asks of these alone; in a database that costs what they cost, however large the run.
        """

    def measures(self, run: str, *, digests: bool = False) -> Iterator[Measure]:
        """The run's records in numbers, ordered as `records`; ``digests`` adds the digest and cluster of each case."""

    def put_clusters(self, run: str, clusters: Iterable[tuple[str, str]]) -> None:
        """Replace the clusters of the run's cases by these, each as (case, cluster)."""

    def clusters(self, run: str) -> dict[str, str]:
        """The cluster of each case that has one: of a run that regrades another, that run's unless it has its own."""

    def columns(self, run: str, *, named: bool = True, digests: bool = False) -> Iterator[Columns]:
        """What a summary needs of the run, some cases at a time, ordered by the name of the case, then repeat.

        Not ``named``, what only repeats need is left empty: the cases and the outcomes, a third of the time.
        ``digests`` adds what a comparison needs to the names: the digests and the positions.
        """

    def counts(self, run: str) -> Counts:
        """Responses by status, and per grader the outcomes and the moments of its scores; cheap at any size."""

    def order_counts(self, run: str) -> dict[str, OrderCounts]:
        """Per grader the grades that the order of two answers decided; without those there is no entry."""

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        """Add to the ledger, all or none; give the id of each. A key that is used keeps its first observation."""

    def observations(
        self, where: ObservationFilter = EVERYTHING, after: int = 0, limit: int = 1000
    ) -> list[Observation]:
        """A page of the ledger, the oldest first; ``after`` is the id of the last one of the page before."""

    def observation_sums(self, where: ObservationFilter = EVERYTHING) -> list[ObservationSums]:
        """The ledger summed up by family and adapter, in their order; cheap at any size."""

    def writer(self) -> StoreWriter:
        """A writer for the tasks of an event loop. Close it before the store."""
