"""`QualityLedger`: add what a grader observed, ask what is known of an adapter."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, overload
from weakref import finalize

import msgspec

from gradeline.errors import ConfigError, Problem, closest_match
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
    """One adapter in one task family, as one judge found it against one baseline."""

    task_family: str
    adapter: str
    """The candidate's."""
    n: int
    """The cases that have a score: a case counts once, however often it was observed."""
    mean: float | None
    """Of the cases' mean scores; None where there is none."""
    interval: Interval | None
    """95 % of the mean over cases, within 0..1; one case alone says nothing of its uncertainty."""
    coverage: float
    """The share of all observations that have a score."""
    age: float
    """Seconds since the latest observation, with a score or without."""
    baseline_adapter: str
    grader_id: str
    """The judge."""
    observations: int
    """With a score or without."""


def row_of(sums: ObservationSums, now: datetime) -> QualityRow:
    """The row of these sums, seen from now."""
    # a clock that runs ahead of this one makes nothing younger than new
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


def write_file(path: Path, observations: Iterable[Observation]) -> int:
    """Write a file that is there as a whole or not at all, CSV where its name ends so; gives how many there are."""
    with _new_file(path) as file:
        return (_write_csv if path.suffix.lower() == ".csv" else write_lines)(file, observations)


def write_lines(file: IO[bytes], observations: Iterable[Observation]) -> int:
    """One JSON object a line."""
    count = 0
    for observation in observations:
        file.write(to_json(observation).encode() + b"\n")
        count += 1
    return count


def _write_csv(file: IO[bytes], observations: Iterable[Observation]) -> int:
    """By RFC 4180; what is not known is an empty cell, and no text is taken for a formula."""
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


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Written under another name, then renamed. A pipe or a device is no file to put another in the place of."""
    path = path.resolve()
    if path.is_dir():
        raise ConfigError(Problem(str(path), "is a folder; name a file"))
    in_place = path.exists() and not path.is_file()
    written = path if in_place else path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with written.open("wb") as file:
            yield file
        if not in_place:
            written.replace(path)
    except OSError as error:
        reason = f"cannot be written: {error.strerror}; name a place where you may write"
        raise ConfigError(Problem(str(path), reason)) from None
    finally:
        if not in_place:
            written.unlink(missing_ok=True)


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
    """What a `GradingResult` adds to the ledger; cost and latency are those of the candidate's response.

    Adapters are given as they are or by their ids. Where no fingerprint is given, the judge's id stands for it.
    ``case_key`` names the case, or ``prompt``, whose digest then is the key; with neither it is a case of its own.
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
    """A digest of what a model said: its text and the tools it called."""
    texts = [response.content]
    for call in response.tool_calls:
        texts += (call.name, call.arguments)
    return fingerprint("response", [clean_text(text).text for text in texts])


def _id_of(adapter: str | LLMAdapter) -> str:
    return adapter if isinstance(adapter, str) else adapter.adapter_id
