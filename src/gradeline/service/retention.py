"""Retention: which runs are deleted, by age, number and tag.

Runs that others depend on are never deleted: baselines with a name, parents and baselines of kept runs, runs that a
kept run replays, runs with labels, and runs that have not ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.definition import RunDefinition
from gradeline.errors import ConfigError, GradelineError
from gradeline.model import Run
from gradeline.service.audit import Audit
from gradeline.service.auth import Caller, KeyScope
from gradeline.service.settings import RetentionRules
from gradeline.store.baselines import baselines_of_run
from gradeline.store.database import Database, SharedStorage, parts_of
from gradeline.store.labels import has_labels
from gradeline.store.queries import NEWEST, newest_runs

_log = logging.getLogger("gradeline.service")

INTERVAL_S = 3600.0
"""How often the service applies its rules."""
_PER_QUERY = 200
_SHORTEST_PREFIX = 4


class RunDecision(NamedTuple):
    """Whether a run is deleted, and why."""

    id: str
    name: str
    ended_at: str | None
    deleted: bool
    """In a dry run: would be deleted."""
    reason: str


def decide(database: Database, rules: RetentionRules, now: datetime | None = None) -> Iterator[RunDecision]:
    """The decision on each run, newest first. Deletes nothing."""
    now = now or datetime.now(UTC)
    facts = _ServiceFacts(database)
    needed: dict[str, str] = {}
    for place, run in enumerate(_runs(database)):
        request = facts.request(run.id)
        reason = facts.unfinished(run) or _rule_that_keeps(run, request, rules, place, now)
        reason = reason or facts.baseline(run.id) or _reason_needed(needed, run) or facts.labelled(run.id)
        if reason is not None:
            needed.update(_needs(run, request))
        ended = run.completed_at or run.started_at
        yield RunDecision(run.id, run.name, ended, reason is None, reason or _why_deleted(rules, ended))


def prune(
    storage: SharedStorage, rules: RetentionRules, *, caller: Caller | None = None, now: datetime | None = None
) -> Iterator[RunDecision]:
    """Delete the runs that the rules do not keep; yields the decision on each run. The audit log has each deletion."""
    database = storage.database
    audit = Audit(database)
    caller = caller or Caller(None, KeyScope.ADMIN, "retention")
    # children come before their parents, which cannot be deleted before them
    for decision in list(decide(database, rules, now)):
        if decision.deleted:
            kept = _delete(storage, decision.id)
            if kept is not None:
                yield decision._replace(deleted=False, reason=kept)
                continue
            audit.note(caller, "evaluation.delete", decision.id, {"reason": decision.reason})
        yield decision


def _delete(storage: SharedStorage, run_id: str) -> str | None:
    """Delete a run; returns the reason if it must be kept after all, for example because it was resumed."""
    run = storage.get_run(run_id)
    if run is None:
        return "another process has deleted it"
    facts = _ServiceFacts(storage.database)
    reason = facts.unfinished(run) or facts.baseline(run_id) or facts.labelled(run_id)
    if reason is None:
        try:
            storage.delete_run(run_id)
        except ConfigError as error:
            reason = str(error)
    return reason


class RetentionTask:
    """Applies the rules periodically, in a thread."""

    def __init__(self, storage: SharedStorage, rules: RetentionRules, interval_s: float = INTERVAL_S) -> None:
        self._storage = storage
        self._rules = rules
        self._interval_s = interval_s
        self._stopping = Event()
        self._thread = Thread(target=self._work, name="gradeline-retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the next process that opens the store completes an interrupted deletion."""
        self._stopping.set()

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                for decision in prune(self._storage, self._rules):
                    if decision.deleted:
                        _log.info("retention: deleted the run %s: %s", decision.id, decision.reason)
                    if self._stopping.is_set():
                        return
            except GradelineError as error:
                _log.warning("retention: %s", error)
            except Exception:
                _log.exception("retention")
            self._stopping.wait(self._interval_s)


class _ServiceFacts:
    """What the tables of the service contain about runs. A store that no service has used does not have them."""

    def __init__(self, database: Database) -> None:
        self._read = database.read
        self._parts = parts_of(database.read)

    def request(self, run: str) -> dict[str, Any]:
        """The request that started the run."""
        rows = self._read("SELECT asked FROM jobs WHERE run = ?", run) if "queue" in self._parts else []
        return dict(msgspec.json.decode(rows[0][0])) if rows else {}

    def unfinished(self, run: Run) -> str | None:
        """The reason to keep a run that has not ended."""
        if run.status in ("running", "pending"):
            return f"it is {run.status}"
        rows = self._read("SELECT state FROM jobs WHERE run = ?", run.id) if "queue" in self._parts else []
        return "it waits in the queue" if any(state != "done" for (state,) in rows) else None

    def baseline(self, run: str) -> str | None:
        """The reason to keep a run that is a baseline with a name."""
        found = baselines_of_run(self._read, run)
        return f"it is the baseline {found[0].name!r} of {found[0].suite!r}" if found else None

    def labelled(self, run: str) -> str | None:
        """The reason to keep a run with labels."""
        if "labels" not in self._parts:
            return None
        return "it has labels" if has_labels(self._read, run) else None


def _runs(database: Database) -> Iterator[Run]:
    before = NEWEST
    while rows := newest_runs(database.read, before, _PER_QUERY):
        yield from (run for _, run in rows)
        before = rows[-1][0]


def _rule_that_keeps(run: Run, request: dict[str, Any], rules: RetentionRules, place: int, now: datetime) -> str | None:
    if rules.keep is not None and place < rules.keep:
        return f"it is one of the newest {rules.keep}"
    tags = sorted(_tags(run, request) & set(rules.keep_tags))
    if tags:
        return f"it has the tag {tags[0]!r}"
    if rules.older_than_s is not None:
        ended = run.completed_at or run.started_at
        if ended is None:
            return "it has no time"
        if now - _moment(ended) <= timedelta(seconds=rules.older_than_s):
            return f"it ended {ended}, which is not long enough ago"
    return None


def _tags(run: Run, request: dict[str, Any]) -> set[str]:
    tags = {request["tag"]} if isinstance(request.get("tag"), str) else set[str]()
    definition = _definition(run)
    if definition is not None:
        tags |= set(definition.options.tags)
        listed = (definition.document or {}).get("tags")
        tags |= {tag for tag in listed if isinstance(tag, str)} if isinstance(listed, list | tuple) else set()
    return tags


def _needs(run: Run, request: dict[str, Any]) -> dict[str, str]:
    """The runs that a kept run refers to, each with the reason to keep it."""
    needs = {}
    if isinstance(request.get("baseline_id"), str):
        needs[request["baseline_id"]] = f"it is the baseline of {run.id}"
    definition = _definition(run)
    for baseline in definition.baselines.values() if definition is not None else ():
        needs[baseline] = f"it is the baseline of {run.id}"
    for target in (run.target, (definition.document or {}).get("target") if definition is not None else None):
        if isinstance(target, dict) and target.get("kind") == "replay" and isinstance(target.get("run"), str):
            needs[target["run"]] = f"its responses are used by {run.id}"
    if run.parent is not None:
        needs[run.parent] = f"it is the parent of {run.id}"
    return needs


def _reason_needed(needed: dict[str, str], run: Run) -> str | None:
    """A reference is an id, the beginning of one, or a name."""
    beginnings = (run.id[:length] for length in range(_SHORTEST_PREFIX, len(run.id)))
    return next((needed[name] for name in (run.id, run.name, *beginnings) if name in needed), None)


def _why_deleted(rules: RetentionRules, ended: str | None) -> str:
    age = f"it ended {ended}" if rules.older_than_s is not None else ""
    place = f"it is not one of the newest {rules.keep}" if rules.keep is not None else ""
    return ", and ".join(part for part in (age, place) if part)


def _definition(run: Run) -> RunDefinition | None:
    with suppress(ConfigError):
        return RunDefinition.of(run)
    return None


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
