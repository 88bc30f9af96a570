"""`QualityLedger`: add what a grader observed, ask what is known of an adapter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Self, overload
from weakref import finalize

import msgspec

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.ledger.files import write_file
from gradeline.ledger.paired import observation_of
from gradeline.ledger.rows import QualityRow, row_of
from gradeline.model.llm import GradingResult, LLMAdapter
from gradeline.model.observation import Observation, ObservationFilter, calibration_state, new_observation
from gradeline.model.protocols import Storage
from gradeline.model.text import clean_text, quote
from gradeline.store import open_storage

_AT_ONCE = 1000
_GIVEN = tuple(name for name in Observation.__struct_fields__ if name != "id")
_NOT_GIVEN = ("schema", "id")
"""What an exported row says beside what can be appended."""
_REQUIRED = _GIVEN[: _GIVEN.index("cost")]


class QualityLedger:
    """An append-only list of observations in a store: nothing in it is changed or deleted.

    ``store`` is a `Storage`, which stays open, or a path or URL, which the ledger opens and `close` (or the end of a
    ``with``) closes. Safe for threads; several processes may append to the same store.
    """

    def __init__(self, store: Storage | str | Path) -> None:
        self._close: finalize[[], QualityLedger] | None = None
        if isinstance(store, str | Path):
            self._storage = open_storage(store)
            self._close = finalize(self, self._storage.close)
        elif isinstance(store, Storage):
            self._storage = store
        else:
            problem = f"expected a path, a URL such as sqlite:///ledger.db or memory://, or a store, got {quote(store)}"
            raise ConfigError(Problem("store", problem))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store if the ledger opened it."""
        if self._close is not None:
            self._close()

    def append(
        self,
        *,
        task_family: str,
        baseline_adapter: str,
        candidate_adapter: str,
        grader_id: str,
        grader_fingerprint: str,
        score: float | None,
        baseline_digest: str,
        candidate_digest: str,
        cost: float | None = None,
        latency_ms: float | None = None,
        calibration_state: str = "uncalibrated",
        observed_at: str | datetime | None = None,
        idempotency_key: str | None = None,
        case_key: str | None = None,
    ) -> int:
        """Add one observation and give its id; it is durable when this returns.

        ``score=None`` is "no verdict". A key that is used keeps its first observation and gives that one's id. Without
        a key, the very same observation of the very same time is added once; without a time, each call adds one.
        ``case_key`` names the case, which counts once in `query` (`prompt_key` makes one); without it, the observation
        is a case of its own. Raises `ConfigError` with everything that is wrong.
        """
        observation = new_observation(
            task_family=task_family,
            baseline_adapter=baseline_adapter,
            candidate_adapter=candidate_adapter,
            grader_id=grader_id,
            grader_fingerprint=grader_fingerprint,
            score=score,
            baseline_digest=baseline_digest,
            candidate_digest=candidate_digest,
            cost=cost,
            latency_ms=latency_ms,
            calibration_state=calibration_state,
            observed_at=observed_at,
            idempotency_key=idempotency_key,
            case_key=case_key,
        )
        return self._storage.put_observations([observation])[0]

    def append_many(self, observations: Iterable[Observation | Mapping[str, Any]]) -> list[int]:
        """Add many, and give their ids: each an `Observation`, or a mapping of what `append` takes or `export` gives.

        They are committed in batches: after a fault those of the batches before it are there. Doing all of it again
        adds none twice, if each has a key or a time.
        """
        ids: list[int] = []
        given = iter(observations)
        while batch := list(islice(given, _AT_ONCE)):
            problems: list[Problem] = []
            sound = [_read(one, place, problems) for place, one in enumerate(batch, len(ids))]
            if problems:
                raise ConfigError(problems, "observations that cannot be kept")
            ids += self._storage.put_observations([one for one in sound if one is not None])
        return ids

    def record(
        self,
        result: GradingResult,
        *,
        task_family: str,
        baseline_adapter: str | LLMAdapter,
        candidate_adapter: str | LLMAdapter,
        grader_fingerprint: str | None = None,
        calibration_state: str = "uncalibrated",
        observed_at: str | datetime | None = None,
        idempotency_key: str | None = None,
        case_key: str | None = None,
        prompt: str | None = None,
    ) -> int:
        """Add what a judge said of a pair (see `observation_of`), and give its id."""
        observation = observation_of(
            result,
            task_family=task_family,
            baseline_adapter=baseline_adapter,
            candidate_adapter=candidate_adapter,
            grader_fingerprint=grader_fingerprint,
            calibration_state=calibration_state,
            observed_at=observed_at,
            idempotency_key=idempotency_key,
            case_key=case_key,
            prompt=prompt,
        )
        return self._storage.put_observations([observation])[0]

    def query(
        self,
        task_family: str | None = None,
        adapter: str | None = None,
        *,
        baseline_adapter: str | None = None,
        grader_id: str | None = None,
        grader_fingerprint: str | None = None,
        calibration_state: str | None = None,
    ) -> list[QualityRow]:
        """A row per task family, candidate, baseline and judge, in their order, of the observations that have all that
        is named.

        A case counts once in a row, with the mean of its scores. Versions of a judge with the same ``grader_id`` are
        not distinguished, unless ``grader_fingerprint`` names one of them.
        """
        where = _filter(task_family, adapter, baseline_adapter, grader_id, grader_fingerprint, calibration_state)
        now = datetime.now(UTC)
        return [row_of(sums, now) for sums in self._storage.observation_sums(where)]

    def observations(
        self, task_family: str | None = None, adapter: str | None = None, *, after: int = 0, limit: int = _AT_ONCE
    ) -> list[Observation]:
        """A page, in the order of arrival; ``after`` is the id of the last one of the page before."""
        if limit < 1:
            raise ConfigError(Problem("limit", f"expected at least 1, got {limit!r}"))
        return self._storage.observations(_filter(task_family, adapter), after, limit)

    @overload
    def export(
        self, path: None = None, *, task_family: str | None = None, adapter: str | None = None
    ) -> Iterator[dict[str, Any]]: ...

    @overload
    def export(self, path: str | Path, *, task_family: str | None = None, adapter: str | None = None) -> int: ...

    def export(
        self, path: str | Path | None = None, *, task_family: str | None = None, adapter: str | None = None
    ) -> Iterator[dict[str, Any]] | int:
        """Every observation as a mapping, in the order of arrival and in constant memory.

        With a path, write them to that file instead and give their number: JSON lines, or CSV where the name ends in
        ``.csv``. The file is there as a whole or not at all.
        """
        found = self.each(task_family, adapter)
        if path is None:
            return (msgspec.to_builtins(one) for one in found)
        return write_file(Path(path), found)

    def each(self, task_family: str | None = None, adapter: str | None = None) -> Iterator[Observation]:
        """Every observation, in the order of arrival and in constant memory."""
        where = _filter(task_family, adapter)
        after = 0
        while page := self._storage.observations(where, after, _AT_ONCE):
            yield from page
            after = page[-1].id


def _filter(
    task_family: str | None,
    adapter: str | None,
    baseline_adapter: str | None = None,
    grader_id: str | None = None,
    grader_fingerprint: str | None = None,
    state: str | None = None,
) -> ObservationFilter:
    """What is asked for, its texts as the store holds them."""
    return ObservationFilter(
        _cleaned(task_family),
        _cleaned(adapter),
        _cleaned(baseline_adapter),
        _cleaned(grader_id),
        _cleaned(grader_fingerprint),
        None if state is None else calibration_state(state),
    )


def _cleaned(name: str | None) -> str | None:
    return None if name is None else clean_text(name).text


def _read(given: Observation | Mapping[str, Any], place: int, problems: list[Problem]) -> Observation | None:
    """One of many, checked as `append` checks it; None where something is wrong with it."""
    if isinstance(given, Observation):
        fields: Mapping[str, Any] = msgspec.structs.asdict(given)
    elif isinstance(given, Mapping):
        fields = given
    else:
        problems.append(Problem(f"[{place}]", f"expected an Observation or a mapping, got {quote(given)}"))
        return None
    found = [Problem(str(name), _unknown(str(name))) for name in fields if name not in (*_GIVEN, *_NOT_GIVEN)]
    found += [Problem(name, "is missing") for name in _REQUIRED if name not in fields]
    observation = None
    if not found:
        try:
            observation = new_observation(**{name: fields[name] for name in _GIVEN if name in fields})
        except ConfigError as error:
            found += error.problems
    problems += [problem.within(f"[{place}]") for problem in found]
    return observation


def _unknown(name: str) -> str:
    close = closest_match(name, _GIVEN)
    return "an observation has no such field; " + (
        f"did you mean {close!r}?" if close else f"it has {', '.join(_GIVEN)}"
    )
