"""Baselines with a name: statements for both databases, and how a name becomes a run."""

from __future__ import annotations

from collections.abc import Sequence

from gradeline.errors import ConfigError, Problem
from gradeline.model.baseline import Baseline, check_baseline_name
from gradeline.model.run import Run
from gradeline.model.text import quote
from gradeline.store.database import Row, Transaction
from gradeline.store.leases import Query, observed_run
from gradeline.store.rows import run_in_use

_COLUMNS = "suite, name, run, set_by, set_at"
_SHOWN = 5


def put_baseline(transaction: Transaction, name: str, run: Run, *, by: str, at: str) -> Baseline | None:
    """Make the run the baseline of its suite with that name; returns the one that it replaces.

    `ConfigError` for an invalid name, a run that was deleted meanwhile, and one that is not completed.
    """
    check_baseline_name(name)
    # locked, so that it cannot be deleted before this transaction ends
    rows = transaction.run("UPDATE runs SET run = run WHERE id = ? RETURNING run", run.id)
    if not rows:
        raise ConfigError(Problem("", f"no run {run.id!r}; it was deleted"))
    _require_completed(observed_run(rows[0][0], transaction.run))
    replaced = _find(transaction.run, "suite = ? AND name = ?", run.suite, name)
    transaction.run(
        f"INSERT INTO baselines ({_COLUMNS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (suite, name)"  # noqa: S608 - constants
        " DO UPDATE SET run = excluded.run, set_by = excluded.set_by, set_at = excluded.set_at",
        *(run.suite, name, run.id, by, at),
    )
    return replaced[0] if replaced else None


def remove_baseline(transaction: Transaction, name: str, suite: str | None = None) -> Baseline:
    """Remove the baseline with that name and return it; its run stays.

    `ConfigError` if there is none, or if several suites have one and none is named.
    """
    found = one_baseline(transaction.run, name, suite)
    if found is None:
        raise unknown_baseline(transaction.run, name, suite)
    transaction.run("DELETE FROM baselines WHERE suite = ? AND name = ?", found.suite, found.name)
    return found


def one_baseline(read: Query, name: str, suite: str | None = None) -> Baseline | None:
    """The baseline with that name, if there is one; `ConfigError` if several suites have one and none is named."""
    found = [one for one in _find(read, "name = ? ORDER BY suite", name) if suite in (None, one.suite)]
    if len(found) > 1:
        raise ConfigError(
            Problem(
                "", f"the baseline {quote(name)} is set for several suites: {_suites(found)}; name one with --suite"
            )
        )
    return found[0] if found else None


def unknown_baseline(read: Query, name: str, suite: str | None = None) -> ConfigError:
    """The error for a name that is not a baseline of the suite, or of any."""
    same_name = _find(read, "name = ? ORDER BY suite", name)
    same_suite = _find(read, "suite = ? ORDER BY name", suite or "")
    place = "" if suite is None else f" of the suite {quote(suite)}"
    if same_name:
        hint = f"it is set for {_suites(same_name)}"
    elif same_suite:
        hint = f"it has {', '.join(quote(one.name) for one in same_suite[:_SHOWN])}"
    else:
        hint = "set one with: gradeline baseline set NAME RUN"
    return ConfigError(Problem("", f"no baseline {quote(name)}{place}; {hint}"))


def read_baselines(
    read: Query, suite: str | None = None, after: tuple[str, str] = ("", ""), limit: int | None = None
) -> list[Baseline]:
    """The baselines by suite and name, after that of ``after``."""
    condition, values = "(suite, name) > (?, ?)", list[str | int](after)
    if suite is not None:
        condition += " AND suite = ?"
        values.append(suite)
    condition += " ORDER BY suite, name"
    if limit is not None:
        condition += " LIMIT ?"
        values.append(limit)
    return _find(read, condition, *values)


def baselines_of_run(read: Query, run: str) -> list[Baseline]:
    """The baselines that this run is."""
    return _find(read, "run = ? ORDER BY suite, name", run)


def baseline_run(read: Query, reference: str, suite: str | None) -> Run | None:
    """The run of the baseline with that name, if there is one."""
    found = one_baseline(read, reference, suite)
    rows = read("SELECT run FROM runs WHERE id = ?", found.run) if found is not None else []
    return observed_run(rows[0][0], read) if rows else None


def other_suites(read: Query, reference: str) -> str:
    """The suites that have a baseline with that name, for the message about a run that was not found."""
    found = _find(read, "name = ? ORDER BY suite", reference)
    return _suites(found) if found else ""


def require_no_baseline(read: Query, run: str) -> None:
    """`ConfigError` for a run that must not be deleted because it is a baseline."""
    found = baselines_of_run(read, run)
    if found:
        raise run_in_use(run, [(one.name, one.suite) for one in found])


def _find(read: Query, condition: str, *values: str | int) -> list[Baseline]:
    rows: Sequence[Row] = read(f"SELECT {_COLUMNS} FROM baselines WHERE {condition}", *values)  # noqa: S608 - constants
    return [
        Baseline(suite=suite, name=name, run=run, set_by=set_by, set_at=set_at)
        for suite, name, run, set_by, set_at in rows
    ]


def _suites(found: Sequence[Baseline]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(quote(one.suite) for one in found[:_SHOWN]) + more


def _require_completed(run: Run) -> None:
    if run.status != "completed":
        reason = f"run {run.id} is {run.status}; a baseline is a completed run"
        resume = f": finish it with: gradeline resume {run.id}" if run.status in ("interrupted", "cancelled") else ""
        raise ConfigError(Problem("", f"{reason}{resume}"))
