"""`QualityLedger`: append observations, query the quality of candidates, export."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, overload
from weakref import finalize

import msgspec

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model.files import output_file
from gradeline.model.fingerprint import fingerprint
from gradeline.model.llm import GradingResult, LLMAdapter, LLMResponse
from gradeline.model.observation import (
    Observation,
    ObservationFilter,
    ObservationSums,
    calibration_state,
    new_observation,
    prompt_key,
)
from gradeline.model.protocols import Storage
from gradeline.model.record import to_json
from gradeline.model.text import clean_text, escape_formula, quote
from gradeline.stats import Interval, score_sums_interval
from gradeline.store import open_storage


class QualityRow(NamedTuple):
    """The quality of one candidate in one task family, by one judge, against one baseline."""

    task_family: str
    adapter: str
    """The candidate's adapter ID."""
    n: int
    """Cases with a score; a case counts once, even if it was observed several times."""
    mean: float | None
    """Mean of the cases' mean scores; None without scores."""
    interval: Interval | None
    """95 % interval of the mean over cases, within 0..1; None for fewer than two cases."""
    coverage: float
    """Share of observations that have a score."""
    age: float
    """Seconds since the latest observation."""
    baseline_adapter: str
    grader_id: str
    """The judge's ID."""
    observations: int
    """Number of observations, with or without a score."""


def row_of(sums: ObservationSums, now: datetime) -> QualityRow:
    """The row of these sums at the time ``now``."""
    # the writer's clock may be ahead of this one
    age = max(0.0, (now - datetime.fromisoformat(sums.latest)).total_seconds())
    return QualityRow(
        sums.task_family,
        sums.candidate_adapter,
        sums.cases,
        sums.score_sum / sums.cases if sums.cases else None,
        score_sums_interval(sums.cases, sums.score_sum, sums.score_squares) if sums.cases else None,
        sums.scored / sums.total,
        age,
        sums.baseline_adapter,
        sums.grader_id,
        sums.total,
    )


_BATCH = 1000
_FIELDS = tuple(name for name in Observation.__struct_fields__ if name != "id")
_EXPORTED_ONLY = ("schema", "id")
"""Fields of exported rows that are ignored when they are appended."""
_REQUIRED = _FIELDS[: _FIELDS.index("cost")]


class QualityLedger:
    """An append-only list of observations in a store.

    ``store`` is a `Storage`, which stays open, or a path or URL, which the ledger opens and closes itself. Thread-safe;
    several processes may append to the same store.
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
        """Add one observation durably and return its ID.

        ``score=None`` means "no verdict". If the idempotency key exists, nothing is added and the ID of the existing
        observation is returned. Without a key an identical observation with the same time is added once; without a
        time each call adds one. ``case_key`` names the case, which counts once in `query` (see `prompt_key`); without
        it the observation counts as its own case. Raises `ConfigError` with all problems.
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
        """Add several observations and return their IDs; each is an `Observation` or a mapping as in `append`.

        They are committed in batches; after an error the batches before it are stored. Repeating the call adds none
        twice, if each has a key or a time. Rows of `export` are accepted too.
        """
        ids: list[int] = []
        pending = iter(observations)
        while batch := list(islice(pending, _BATCH)):
            problems: list[Problem] = []
            valid = [_read(one, index, problems) for index, one in enumerate(batch, len(ids))]
            if problems:
                raise ConfigError(problems, "invalid observations")
            ids += self._storage.put_observations([one for one in valid if one is not None])
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
        """Add a judge's result (see `observation_of`) and return the observation's ID."""
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
        """One row per task family, candidate, baseline and judge, in that order, of the matching observations.

        A case counts once in a row, with the mean of its scores. Versions of a judge with the same ``grader_id`` share
        a row, unless ``grader_fingerprint`` selects one of them.
        """
        where = _filter(task_family, adapter, baseline_adapter, grader_id, grader_fingerprint, calibration_state)
        now = datetime.now(UTC)
        return [row_of(sums, now) for sums in self._storage.observation_sums(where)]

    def observations(
        self, task_family: str | None = None, adapter: str | None = None, *, after: int = 0, limit: int = _BATCH
    ) -> list[Observation]:
        """A page of observations in order of arrival; ``after`` is the last ID of the previous page."""
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
        """All observations as mappings, in order of arrival and in constant memory.

        With a path, they are written to that file instead, and their number is returned: JSON lines, or CSV if the
        name ends in ``.csv``. The file appears complete or not at all.
        """
        found = self.each(task_family, adapter)
        if path is None:
            return (msgspec.to_builtins(one) for one in found)
        return write_file(Path(path), found)

    def each(self, task_family: str | None = None, adapter: str | None = None) -> Iterator[Observation]:
        """All observations, in order of arrival and in constant memory."""
        where = _filter(task_family, adapter)
        after = 0
        while page := self._storage.observations(where, after, _BATCH):
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
    """The filter, with its strings cleaned as in the store."""
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


def _read(row: Observation | Mapping[str, Any], index: int, problems: list[Problem]) -> Observation | None:
    """One of several observations, validated as in `append`; None if it has problems."""
    if isinstance(row, Observation):
        fields: Mapping[str, Any] = msgspec.structs.asdict(row)
    elif isinstance(row, Mapping):
        fields = row
    else:
        problems.append(Problem(f"[{index}]", f"expected an Observation or a mapping, got {quote(row)}"))
        return None
    found = [Problem(str(name), _unknown(str(name))) for name in fields if name not in (*_FIELDS, *_EXPORTED_ONLY)]
    found += [Problem(name, "is missing") for name in _REQUIRED if name not in fields]
    observation = None
    if not found:
        try:
            observation = new_observation(**{name: fields[name] for name in _FIELDS if name in fields})
        except ConfigError as error:
            found += error.problems
    problems += [problem.within(f"[{index}]") for problem in found]
    return observation


def _unknown(name: str) -> str:
    close = closest_match(name, _FIELDS)
    return "an observation has no such field; " + (
        f"did you mean {close!r}?" if close else f"it has {', '.join(_FIELDS)}"
    )


def write_file(path: Path, observations: Iterable[Observation]) -> int:
    """Write a file (CSV if its name ends in ``.csv``) that appears complete or not at all; returns the row count."""
    with output_file(path) as file:
        return (_write_csv if path.suffix.lower() == ".csv" else write_lines)(file, observations)


def write_lines(file: IO[bytes], observations: Iterable[Observation]) -> int:
    """Write one JSON object per line; returns their number."""
    count = 0
    for observation in observations:
        file.write(to_json(observation).encode() + b"\n")
        count += 1
    return count


def _write_csv(file: IO[bytes], observations: Iterable[Observation]) -> int:
    """CSV by RFC 4180; unknown values are empty cells, formulas are escaped."""
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    table = csv.writer(text, lineterminator="\r\n")
    table.writerow(Observation.__struct_fields__)
    count = 0
    for observation in observations:
        table.writerow(_cell(getattr(observation, name)) for name in Observation.__struct_fields__)
        count += 1
    text.flush()
    text.detach()
    return count


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escape_formula(value) if isinstance(value, str) else str(value)


def observation_of(
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
) -> Observation:
    """The observation of a `GradingResult`; cost and latency are those of the candidate's response.

    Adapters may be passed as objects or IDs. The fingerprint defaults to the judge's ID. ``case_key`` names the case;
    ``prompt`` may be passed instead, to use its digest. Without either the observation counts as its own case.
    """
    candidate = result.candidate_response
    return new_observation(
        task_family=task_family,
        baseline_adapter=_id_of(baseline_adapter),
        candidate_adapter=_id_of(candidate_adapter),
        grader_id=result.grader_id,
        grader_fingerprint=result.grader_id if grader_fingerprint is None else grader_fingerprint,
        score=result.quality_score,
        baseline_digest=response_digest(result.baseline_response),
        candidate_digest=response_digest(candidate),
        cost=None if candidate.usage is None else candidate.usage.cost,
        latency_ms=candidate.latency_ms,
        calibration_state=calibration_state,
        observed_at=observed_at,
        idempotency_key=idempotency_key,
        case_key=prompt_key(prompt) if case_key is None and prompt is not None else case_key,
    )


def response_digest(response: LLMResponse) -> str:
    """Digest of a response: its text and tool calls."""
    texts = [response.content]
    for call in response.tool_calls:
        texts += (call.name, call.arguments)
    return fingerprint("response", [clean_text(text).text for text in texts])


def _id_of(adapter: str | LLMAdapter) -> str:
    return adapter if isinstance(adapter, str) else adapter.adapter_id
