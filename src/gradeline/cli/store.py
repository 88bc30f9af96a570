"""``gradeline store``: back up, restore, check, shrink, move and prune a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import current_settings, global_options
from gradeline.cli.terminal import TableColumn, console, mebibytes, print_message, print_table, safe_text
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.service.retention import RunDecision
    from gradeline.store import PostgresStorage, SqliteStorage, StoreMode
    from gradeline.store.backup import TableCopy

EXIT_FAULTS = 1
_PROGRESS_S = 2.0


@click.group()
def store() -> None:
    """Back up, restore, check, shrink, move and prune a store.

    Every command works while a service and runs use the store, in SQLite and in PostgreSQL.

    \b
    gradeline store backup monday.db
    gradeline store check
    gradeline store migrate .gradeline/store.db postgresql://me@db.example/evals
    gradeline store prune --older-than 90d --keep 100 --dry-run
    """


@store.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@global_options
def backup(file: Path, overwrite: bool) -> None:
    """Write a verified copy of the store into FILE.

    FILE is a SQLite store, even if the store is PostgreSQL: every command reads it with --store FILE. It appears only
    after the row count and digest of every table were compared and the file was checked. Secrets in it are encrypted;
    keep the secret key elsewhere.
    """
    from gradeline.service.service import PARTS
    from gradeline.store.backup import write_backup

    if file.exists() and not overwrite:
        raise ConfigError(Problem("FILE", f"{file} exists; name another file, or replace it with --overwrite"))
    if not file.parent.is_dir():
        raise ConfigError(Problem("FILE", f"the folder {file.parent} does not exist; create it first"))
    with _open("read") as storage:
        copied = write_backup(storage.database, file, PARTS, _progress())
    size = file.stat().st_size
    _report(
        {"file": str(file), "bytes": size, **_tables_as_json(copied.tables), "faults": copied.faults},
        f"wrote {file}: {_rows_in_words(copied.tables)}, {mebibytes(size)}; verified",
        copied.faults,
    )


@store.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--replace", is_flag=True, help="Delete everything in the store first.")
@global_options
def restore(file: Path, replace: bool) -> None:
    """Restore a backup into the store.

    A store that is not empty requires --replace. Everything is written in one transaction: if it is interrupted, the
    store is unchanged.
    """
    settings = current_settings()
    from gradeline.cli.stores import store_url

    _copy(str(file), store_url(settings), replace=replace)


@store.command()
@click.argument("source")
@click.argument("destination")
@click.option("--replace", is_flag=True, help="Delete everything in the destination first.")
@global_options
def migrate(source: str, destination: str, replace: bool) -> None:
    """Copy the store SOURCE into the store DESTINATION and verify it.

    Each is a path, sqlite:///path or postgresql://host/database. Everything is copied: cases, runs, responses, grades,
    graders, events, labels, the ledger, keys, encrypted secrets, the audit log and the queue. SOURCE does not change.
    Stop the service first: data written during the copy is not copied. An interrupted copy leaves DESTINATION
    unchanged.
    """
    _copy(source, destination, replace=replace)


@store.command()
@global_options
def check() -> None:
    """Check the store for faults; the exit code is 1 if there are any.

    Checks the database file (SQLite), the references between tables, every counter against its rows, and that every
    record can be read. Changes nothing.
    """
    from gradeline.store.maintenance import check_store

    with _open("read") as storage:
        report = check_store(storage.database, _progress())
        place = _location(storage)
    rows = sum(report.rows.values())
    state = f"{len(report.faults)} faults" if report.faults else "no faults"
    for note in report.notes:
        print_message(f"note: {note}")
    _report(
        {"store": place, "rows": report.rows, "faults": report.faults, "notes": report.notes},
        f"{place}: {state} in {rows:,} rows of {len(report.rows)} tables",
        report.faults,
    )


@store.command()
@global_options
def vacuum() -> None:
    """Free the space of deleted rows.

    Finishes interrupted deletions first. SQLite rewrites the whole file: it needs the same amount of free disk space,
    and runs wait. PostgreSQL makes the space reusable and updates its statistics without blocking.
    """
    from gradeline.store.maintenance import size_of

    with _open("existing") as storage:
        database = storage.database
        before, _ = database.snapshot(lambda transaction: size_of(transaction, database.dialect))
        storage.vacuum()
        after, _ = database.snapshot(lambda transaction: size_of(transaction, database.dialect))
        place = _location(storage)
    _report(
        {"store": place, "bytes_before": before, "bytes": after},
        f"{place}: {mebibytes(before)} before, {mebibytes(after)} now",
    )


@store.command()
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of runs to show."
)
@global_options
def usage(limit: int) -> None:
    """Show the size of each run, largest first.

    The size of a run is an estimate: the stored values without indexes and database overhead.
    """
    from gradeline.store.maintenance import usage_of

    settings = current_settings()
    with _open("read") as storage:
        found = usage_of(storage.database)
        place = _location(storage)
    if settings.json:
        runs = [{"id": run.id, "name": run.name, "rows": run.rows, "estimated_bytes": run.bytes} for run in found.runs]
        click.echo(json.dumps({"store": place, "bytes": found.bytes, "free_bytes": found.free_bytes, "runs": runs}))
        return

    columns = (
        TableColumn("run", key=True),
        TableColumn("name", wraps=True),
        TableColumn("rows", right=True),
        TableColumn("size (est.)", right=True),
    )
    rows = [(run.id[:8], safe_text(run.name), f"{run.rows:,}", mebibytes(run.bytes)) for run in found.runs[:limit]]
    print_table(console(settings), columns, rows)
    if not settings.quiet:
        free = "" if found.free_bytes is None else f", {mebibytes(found.free_bytes)} of it free"
        click.echo(f"{place}: {len(found.runs):,} runs, {mebibytes(found.bytes)} on disk{free}")


@store.command()
@click.option("--older-than", metavar="AGE", help="Delete runs that ended longer ago: 90d, 12h, 2w.")
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Keep the newest N runs.")
@click.option("--keep-tag", multiple=True, metavar="TAG", help="Keep runs of cases with this tag (repeatable).")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted without deleting it.")
@global_options
def prune(older_than: str | None, keep: int | None, keep_tag: tuple[str, ...], dry_run: bool) -> None:
    """Delete old runs.

    With both --older-than and --keep, a run must be old enough and not among the newest to be deleted. Runs that have
    not ended, baselines with a name, parents and baselines of kept runs, runs that kept runs replay, and runs with
    labels are always kept. The reason is shown for each run.
    """
    from gradeline.service.retention import decide
    from gradeline.service.retention import prune as prune_runs
    from gradeline.service.settings import RetentionRules, age_of

    seconds = None if older_than is None else age_of(older_than, "--older-than")
    rules = RetentionRules(older_than_s=seconds, keep=keep, keep_tags=keep_tag)
    with _open("existing") as storage:
        decisions = decide(storage.database, rules) if dry_run else prune_runs(storage, rules)
        _show_decisions(decisions, dry_run=dry_run)


def _show_decisions(decisions: Iterator[RunDecision], *, dry_run: bool) -> None:
    settings = current_settings()
    word = "would delete" if dry_run else "deleted"
    if settings.json:
        found = [decision._asdict() for decision in decisions]
        click.echo(json.dumps({"dry_run": dry_run, "runs": found}, ensure_ascii=False))
        return
    from gradeline.report.formatting import visible

    deleted = kept = 0
    for one in decisions:
        deleted += one.deleted
        kept += not one.deleted
        if not settings.quiet:
            click.echo(f"{word if one.deleted else 'kept'} {one.id[:8]} {visible(one.name)}: {visible(one.reason)}")
    click.echo(f"{word} {deleted:,} run{'' if deleted == 1 else 's'}, kept {kept:,}")


def _copy(source: str, destination: str, *, replace: bool) -> None:
    from gradeline.service.service import PARTS
    from gradeline.store.backup import copy_store

    with _open("read", source) as source_store, _open("create", destination) as destination_store:
        if _same(source_store, destination_store):
            raise ConfigError(Problem("", f"source and destination are the same store: {_location(destination_store)}"))
        copied = copy_store(
            source_store.database, destination_store.database, PARTS, replace=replace, progress=_progress()
        )
        locations = _location(source_store), _location(destination_store)
    _report(
        {"source": locations[0], "destination": locations[1], **_tables_as_json(copied)},
        f"copied {locations[0]} to {locations[1]}: {_rows_in_words(copied)}; verified",
    )


@contextmanager
def _open(mode: StoreMode, url: str | None = None) -> Iterator[SqliteStorage | PostgresStorage]:
    """The store at the URL, else the one of the command; `ConfigError` if it does not exist."""
    from gradeline.cli.stores import in_database, open_store, store_file, store_url
    from gradeline.store import InMemoryStorage

    settings = current_settings() if url is None else current_settings()._replace(store=url)
    with open_store(settings, mode) as storage:
        if isinstance(storage, InMemoryStorage):
            if store_url(settings) == "memory://":
                raise ConfigError(Problem("store", "memory:// is always empty; name a file or a database"))
            place = store_file(settings) or "this database"
            raise ConfigError(Problem("store", f"no store at {place}; name another with --store"))
        yield in_database(storage)


def _location(storage: SqliteStorage | PostgresStorage) -> str:
    """The location without user and password."""
    return storage.location if hasattr(storage, "location") else str(storage.path)


def _same(one: SqliteStorage | PostgresStorage, other: SqliteStorage | PostgresStorage) -> bool:
    if hasattr(one, "path") and hasattr(other, "path"):
        return bool(one.path.samefile(other.path))
    return _location(one) == _location(other)


def _progress() -> Callable[[str, int], None]:
    """Reports the rows done so far every few seconds."""
    settings = current_settings()
    last = monotonic()

    def report(table: str, rows: int) -> None:
        nonlocal last
        if not settings.quiet and monotonic() - last >= _PROGRESS_S:
            last = monotonic()
            print_message(f"{table}: {rows:,} rows")

    return report


def _report(data: dict[str, object], line: str, faults: list[str] | None = None) -> None:
    if current_settings().json:
        click.echo(json.dumps(data, ensure_ascii=False))
    else:
        from gradeline.report.formatting import visible

        for fault in faults or ():
            click.echo(f"fault: {visible(fault)}")
        click.echo(line)
    if faults:
        raise click.exceptions.Exit(EXIT_FAULTS)


def _tables_as_json(copied: list[TableCopy]) -> dict[str, object]:
    return {"tables": {one.name: {"rows": one.rows, "digest": one.digest} for one in copied}}


def _rows_in_words(copied: list[TableCopy]) -> str:
    return f"{sum(one.rows for one in copied):,} rows of {len(copied)} tables"
