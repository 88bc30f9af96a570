"""Protocols of graders, extractors, targets and stores. Those of judges and adapters are in `gradeline.model.llm`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from gradeline.errors import GraderError
from gradeline.model.baseline import Baseline
from gradeline.model.context import GradeContext, Need
from gradeline.model.grade import Grade, GradeResult
from gradeline.model.observation import EVERYTHING, Observation, ObservationFilter, ObservationSums
from gradeline.model.record import GradeKey, Record, ResponseKey
from gradeline.model.response import Response, Usage
from gradeline.model.run import Columns, Counts, Measure, OrderCounts, Run, SelectiveCounts, StoredKey
from gradeline.model.sample import Sample, TestCase


@runtime_checkable
class GraderProtocol(Protocol):
    """A grader as the engine calls it; `gradeline.Grader` is the base class for users.

    Raises `gradeline.errors.GraderError` (or anything else) if there is no score.
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


class MeteredResult(NamedTuple):
    """The result of a grader that waits for others, and the usage of all its calls, failed ones included."""

    result: GradeResult | GraderError
    usage: Usage | None = None
    output: str | None = None
    """What a program printed."""


@runtime_checkable
class AsyncGrader(GraderProtocol, Protocol):
    """A grader that waits for models, servers or programs.

    Raises `ConfigError` for a fault that affects every case (API key, model name), which ends the run.
    """

    @property
    def judges(self) -> tuple[str, ...]:
        """Adapter ids of the models that score, which need calibration."""

    async def agrade(self, ctx: GradeContext, /) -> MeteredResult: ...


@runtime_checkable
class Extractor(Protocol):
    """Extracts the submission from a response; an empty string means that nothing was found."""

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
        """Digest of everything that determines the answer, to find stored responses."""


class StoreWriter(Protocol):
    """Writes for the tasks of one event loop; a put returns after the commit (`gradeline.store.Writer`)."""

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
        """Queue the grades; they are committed soon, at the latest by `flush`."""

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """Stores cases, runs, responses, grades and the quality ledger. Synchronous and thread-safe.

    A write is durable when the call returns, and idempotent. Raises `StoreError` if the store fails and `ConfigError`
    for an unknown run.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Close files and connections; the store is unusable afterwards."""

    def save_test_case(self, test_case: TestCase) -> str:
        """Store a test case and return its id, a new one if it is empty. A deleted case is restored."""

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - public name
        """Get a test case by id."""

    def list_test_cases(self) -> list[TestCase]:
        """All test cases, in the order in which they were first stored."""

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - public name
        """Delete a test case and return success. It is only hidden: runs still refer to it."""

    def save_run(self, run: Run) -> str:
        """Store a run and return its id, a new one if it is empty. Its parent must exist."""

    def get_run(self, id: str) -> Run | None:  # noqa: A002 - public name
        """Get a run by its full id."""

    def find_run(self, reference: str, suite: str | None = None) -> Run:
        """Find a run by id, baseline, name, unique prefix of an id, ``latest`` or ``latest~N``; the first that matches.

        A baseline is one of the ``suite`` if it is given. `ConfigError` lists the candidates if none or several match.
        """

    def list_runs(self, limit: int = 50, before: str | None = None) -> list[Run]:
        """Runs, the last saved first; ``before`` is the id of the last run of the previous page."""

    def update_run(self, id: str, **changes: Any) -> Run:  # noqa: A002 - public name
        """Replace fields of a run in one transaction and return the run."""

    def claim_run(self, id: str, owner: str, previous: str | None) -> Run | None:  # noqa: A002 - public name
        """Make ``owner`` the owner of a run if it still is ``previous``; None if another process was faster."""

    def delete_run(self, id: str) -> bool:  # noqa: A002 - public name
        """Delete a run with all its rows and return success.

        Refused while another run regrades it, or while it is a baseline.
        """

    def set_baseline(self, name: str, run: Run, *, by: str, at: str) -> Baseline | None:
        """Make a completed run the baseline of its suite with that name; returns the one that it replaces."""

    def clear_baseline(self, name: str, suite: str | None = None) -> Baseline:
        """Remove a baseline and return it; `ConfigError` if there is none, or several suites have one of that name."""

    def list_baselines(self, suite: str | None = None) -> list[Baseline]:
        """The baselines of all suites or of one, by suite and name."""

    def put_samples(self, run: str, samples: Iterable[Sample], start: int = 0) -> None:
        """Store cases of a run, with positions from ``start``."""

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

        Replacing a response drops its grades. ``position`` is the case's position in the suite; by default a new case
        is last. `cached_response` finds the response by ``cache_key``.
        """

    def cached_response(self, cache_key: str) -> Response | None:
        """A successful response of any run stored with this key."""

    def get_response(self, key: ResponseKey) -> Response | None:
        """A response of a run, or of the run it regrades."""

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> None:
        """Store a grade and its submission."""

    def get_record(self, key: ResponseKey) -> Record | None:
        """One record of a run."""

    def records(self, run: str, after: ResponseKey | None = None) -> Iterator[Record]:
        """The run's records by case position, then repeat, in constant memory, starting after ``after``.

        A run with a parent and without own responses has its parent's responses. Concurrent writes may be included or
        not.
        """

    def keys_of(self, run: str, cases: Sequence[str] | None = None) -> Iterator[StoredKey]:
        """Which responses and grades exist, in the order of `records`.

        With ``cases``, only these, at a cost that does not depend on the size of the run.
        """

    def measures(self, run: str, *, digests: bool = False) -> Iterator[Measure]:
        """The numbers of the run's records, in the order of `records`; ``digests`` adds digests and clusters."""

    def put_clusters(self, run: str, clusters: Iterable[tuple[str, str]]) -> None:
        """Replace the clusters of the run's cases by these (case, cluster) pairs."""

    def clusters(self, run: str) -> dict[str, str]:
        """The cluster of each case that has one. A regrade without clusters of its own has those of its parent."""

    def columns(self, run: str, *, named: bool = True, digests: bool = False) -> Iterator[Columns]:
        """The columns a summary needs, in chunks of cases, ordered by case key, then repeat.

        Without ``named``, cases and outcomes, which only repeats need, are empty; this saves two thirds of the time.
        ``digests`` adds digests and positions for comparisons.
        """

    def counts(self, run: str) -> Counts:
        """Responses by status, and outcomes and score sums per grader; fast at any size."""

    def order_counts(self, run: str) -> dict[str, OrderCounts]:
        """Per grader, the number of grades decided by the order of two answers; graders without any are omitted."""

    def selective_counts(self, run: str) -> dict[str, SelectiveCounts]:
        """Per grader, the number of grades that its judge was not sure of; graders without any are omitted."""

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        """Append to the ledger atomically and return the ids. Of a duplicate idempotency key the first is kept."""

    def observations(
        self, where: ObservationFilter = EVERYTHING, after: int = 0, limit: int = 1000
    ) -> list[Observation]:
        """A page of the ledger, oldest first; ``after`` is the id of the last one of the previous page."""

    def observation_sums(self, where: ObservationFilter = EVERYTHING) -> list[ObservationSums]:
        """Sums by family and adapter, in this order; fast at any size."""

    def writer(self) -> StoreWriter:
        """A writer for the tasks of an event loop. Close it before the store."""
