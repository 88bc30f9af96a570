"""Baselines with a name over REST: list, set and clear them, and find the run that a request names."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gradeline.errors import ConfigError
from gradeline.model import Run, Storage, clean_text
from gradeline.model.baseline import Baseline, check_baseline_name
from gradeline.rest_types import BaselinePage, NamedBaseline, utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.auth import Caller
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor
from gradeline.store.baselines import (
    baseline_run,
    one_baseline,
    put_baseline,
    read_baselines,
    remove_baseline,
    unknown_baseline,
)
from gradeline.store.database import Database, Transaction

LOCAL = "local"
"""Who sets a baseline without a key."""


class Baselines:
    """The baselines of a store."""

    def __init__(self, database: Database, storage: Storage, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._storage = storage
        self._clock = clock

    def page(self, suite: str | None, page: PageRequest) -> BaselinePage:
        """A page of the baselines, by suite and name."""
        after = ("", "")
        if page.cursor is not None:
            of_suite, name = decode_cursor(page.cursor, str, str)
            after = (str(of_suite), str(name))
        found = read_baselines(self._database.read, suite, after, page.limit + 1)
        shown = found[: page.limit]
        following = encode_cursor(shown[-1].suite, shown[-1].name) if len(found) > page.limit else None
        return BaselinePage(baselines=[as_shown(one) for one in shown], count=len(shown), next_cursor=following)

    def set(self, name: str, run_id: str, caller: Caller, record: Recorder = unrecorded) -> NamedBaseline:
        """Make a completed run the baseline of its suite with that name; ``record`` gets the one that it replaces."""
        try:
            check_baseline_name(name, "name")
        except ConfigError as error:
            raise ServiceError(Code.INVALID_INPUT, str(error)) from None
        run = self._run(run_id)
        by, at = caller.key_id or LOCAL, utc_timestamp(self._clock())

        def work(transaction: Transaction) -> None:
            replaced = put_baseline(transaction, name, run, by=by, at=at)
            before = None if replaced is None else replaced.run
            record(transaction, name, {"suite": run.suite, "run": run.id, "replaced": before})

        try:
            self._database.transact(work)
        except ConfigError as error:
            raise ServiceError(Code.CONFLICT, str(error)) from None
        return NamedBaseline(name=name, suite=run.suite, evaluation_id=run.id, set_by=by, set_at=at)

    def clear(self, name: str, suite: str | None, record: Recorder = unrecorded) -> None:
        """Remove a baseline; `ServiceError` if there is none, or if several suites have one and none is named."""

        def work(transaction: Transaction) -> None:
            if one_baseline(transaction.run, name, suite) is None:
                raise ServiceError(Code.NOT_FOUND, str(unknown_baseline(transaction.run, name, suite)))
            removed = remove_baseline(transaction, name, suite)
            record(transaction, name, {"suite": removed.suite, "run": removed.run})

        if clean_text(name).changed or clean_text(suite or "").changed:
            raise not_found("baseline", name)
        try:
            self._database.transact(work)
        except ConfigError as error:
            raise ServiceError(Code.CONFLICT, _rest_words(error)) from None

    def find(self, reference: str, suite: str | None) -> Run:
        """The run with this id, else that of the suite's baseline with this name."""
        if not clean_text(reference).changed:
            try:
                found = self._storage.get_run(reference) or baseline_run(self._database.read, reference, suite)
            except ConfigError as error:
                raise ServiceError(Code.CONFLICT, _rest_words(error)) from None
            if found is not None:
                return found
        raise not_found("evaluation", reference)

    def find_pair(self, baseline: str, candidate: str, suite: str | None) -> Sequence[Run]:
        """The runs of a comparison; the baseline is one of ``suite``, else of the candidate's suite."""
        second = self.find(candidate, suite)
        return self.find(baseline, suite or second.suite), second

    def _run(self, run_id: str) -> Run:
        run = None if clean_text(run_id).changed else self._storage.get_run(run_id)
        if run is None:
            raise not_found("evaluation", run_id)
        return run


def as_shown(one: Baseline) -> NamedBaseline:
    """A baseline as the API returns it."""
    return NamedBaseline(name=one.name, suite=one.suite, evaluation_id=one.run, set_by=one.set_by, set_at=one.set_at)


def _rest_words(error: ConfigError) -> str:
    return str(error).replace("--suite", "the parameter 'suite'")
