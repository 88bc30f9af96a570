"""The graders that callers may use: built-in ones, stored ones, and the operator's Python functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from time import time
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Struct

from gradeline import graders
from gradeline.errors import ConfigError, Problem
from gradeline.graders.base import DEFAULT_EXTRACTOR
from gradeline.graders.registry import ALIASES, registry
from gradeline.model import clean_text, quote
from gradeline.rest_types import GraderInfo, utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.grader_definitions import (
    MAX_NAME,
    PYTHON,
    UNSAVED,
    GraderDraft,
    GraderFolder,
    PythonGrader,
    build_grader,
    checked_config,
    checked_id,
    checked_text,
    problems_error,
    read_definition,
)
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor
from gradeline.service.run_access import ServiceEgress
from gradeline.service.settings import ServeSettings
from gradeline.store.database import Database, Dialect, Row, Transaction, migrate

_ITEM = "grader"
_PYTHON_GUIDE = "A score from 0.0 to 1.0, as returned by the function; 0.5 or more passes."
_SELECT = (
    "SELECT g.n, g.id, g.deleted, g.created_at, v.created_at, v.version, v.name, v.description, v.kind, v.config,"
    " v.fingerprint FROM stored_graders g JOIN stored_grader_versions v ON v.grader = g.id"
)


def create_graders(transaction: Transaction, dialect: Dialect) -> None:
    """Versions are never changed or deleted: runs may have used them."""
    transaction.run(
        f"CREATE TABLE stored_graders (n {dialect.serial}, id TEXT NOT NULL UNIQUE, version INTEGER NOT NULL,"
        " deleted INTEGER NOT NULL DEFAULT 0, created_at TEXT NOT NULL)"
    )
    transaction.run(
        "CREATE TABLE stored_grader_versions (grader TEXT NOT NULL, version INTEGER NOT NULL, name TEXT NOT NULL,"
        " description TEXT, kind TEXT NOT NULL, config TEXT NOT NULL, fingerprint TEXT NOT NULL,"
        " created_at TEXT NOT NULL, PRIMARY KEY (grader, version))"
    )


GRADER_STEPS = (create_graders,)


class GraderPage(NamedTuple):
    """A page of the list: built-in graders, then Python graders, then stored ones, oldest first."""

    graders: list[GraderInfo]
    total: int
    next_cursor: str | None


class ResolvedGrader(Struct, frozen=True, kw_only=True):
    """A grader of a run: its key, and everything that is needed to build its present version.

    ``function`` names a Python grader of the operator's folder; otherwise ``kind`` is a built-in one. ``definition`` is
    stored with the run.
    """

    key: str
    name: str
    kind: str
    config: dict[str, Any]
    function: str | None
    definition: dict[str, Any]


class _StoredVersion(NamedTuple):
    """A version of a stored grader."""

    n: int
    id: str
    deleted: bool
    created_at: str
    modified_at: str
    version: int
    name: str
    description: str | None
    kind: str
    config: dict[str, Any]
    fingerprint: str


class StoredGraders:
    """All graders of a service. Invalid requests raise `ServiceError`; permissions are not checked here."""

    def __init__(self, database: Database, settings: ServeSettings, egress: ServiceEgress | None = None) -> None:
        self._database = database
        self._egress = egress
        self._allowed = settings.allow_grader
        self.files = GraderFolder(settings.graders_dir)
        migrate(database, "graders", GRADER_STEPS)

    def page(self, page: PageRequest) -> GraderPage:
        """A page of the list."""
        listed = self._list()
        after = (-1, -1) if page.cursor is None else decode_cursor(page.cursor, int, int)
        rest = [one for one in listed if one[0] > after][page.skip :]
        kept = rest[: page.limit]
        following = encode_cursor(*kept[-1][0]) if len(rest) > page.limit else None
        return GraderPage([info for _, info in kept], len(listed), following)

    def get(self, grader: str, version: int | None = None) -> GraderInfo:
        """A grader, or a version of it, which exists even if the grader was deleted."""
        info = self._find(grader, version)
        if info is None or (version is not None and info.version != version):
            raise not_found(_ITEM, grader if version is None else f"{grader} of version {version}")
        return info

    def create(self, fields: Mapping[str, object], record: Recorder = unrecorded) -> GraderInfo:
        """Store a definition: ``{id?, name, description?, type or kind, config?}``."""
        draft = read_definition(fields, self._egress, self._allowed)
        wanted = fields.get("id")
        grader = str(uuid4()) if wanted is None else checked_id(wanted)
        if ALIASES.get(grader, grader) in registry:
            raise _duplicate_id(grader, f"a {registry.origin(ALIASES.get(grader, grader))}")
        if grader in self.files.graders():
            raise _duplicate_id(grader, "a Python grader of the operator's folder")
        now = utc_timestamp(time())

        def work(transaction: Transaction) -> bool:
            added = transaction.run(
                "INSERT INTO stored_graders (id, version, created_at) VALUES (?, 1, ?)"
                " ON CONFLICT (id) DO NOTHING RETURNING id",
                grader,
                now,
            )
            if added:
                _put_version(transaction, grader, 1, draft, now)
                record(transaction, f"grader/{grader}", {"version": 1, "fingerprint": draft.fingerprint})
            return bool(added)

        if not self._database.transact(work):
            raise _duplicate_id(grader)
        return self.get(grader)

    def change(self, grader: str, fields: Mapping[str, object], record: Recorder = unrecorded) -> GraderInfo:
        """Replace some fields, as a new version unless nothing changes."""
        self._require_stored(grader)
        while True:
            rows = self._database.read(f"{_SELECT} AND v.version = g.version WHERE g.id = ? AND g.deleted = 0", grader)
            if not rows:
                raise not_found(_ITEM, grader)
            before = _decode_row(rows[0])
            draft = read_definition(_merged(before, fields), self._egress, self._allowed)
            if draft[:4] == (before.name, before.description, before.kind, before.config):
                return _info_of(before)
            if self._put_next(before, draft, record):
                return self.get(grader)

    def _put_next(self, before: _StoredVersion, draft: GraderDraft, record: Recorder) -> bool:
        """Store the next version, if ``before`` is still the newest."""

        def work(transaction: Transaction) -> bool:
            moved = transaction.run(
                "UPDATE stored_graders SET version = version + 1 WHERE id = ? AND version = ? AND deleted = 0"
                " RETURNING version",
                before.id,
                before.version,
            )
            if moved:
                version = before.version + 1
                _put_version(transaction, before.id, version, draft, utc_timestamp(time()))
                details = {"version": version, "fingerprint": draft.fingerprint}
                record(transaction, f"grader/{before.id}", details)
            return bool(moved)

        return self._database.transact(work)

    def delete(self, grader: str, record: Recorder = unrecorded) -> None:
        """Remove a grader from lists and new runs; its versions remain for the runs that used them."""
        self._require_stored(grader)

        def work(transaction: Transaction) -> None:
            hide = "UPDATE stored_graders SET deleted = 1 WHERE id = ? AND deleted = 0 RETURNING id"
            if not transaction.run(hide, grader):
                raise not_found(_ITEM, grader)
            record(transaction, f"grader/{grader}")

        self._database.transact(work)

    def resolve(self, entries: Iterable[str | Mapping[str, Any]], field: str = "grader_ids") -> list[ResolvedGrader]:
        """The graders of a run, each an id or ``{id, config?, name?}``.

        The error has all faults; its code is that of the first: INVALID_GRADER_ID, DUPLICATE_ID or INVALID_GRADER.
        """
        faults: list[tuple[Code, Problem]] = []
        found: dict[str, ResolvedGrader] = {}
        for place, entry in enumerate(entries):
            path = f"{field}[{place}]"
            named: Mapping[str, Any] = {"id": entry} if isinstance(entry, str) else entry
            try:
                one = self.resolve_one(str(named.get("id")), named.get("config"), named.get("name"))
            except ServiceError as error:
                errors = (error.details or {}).get("errors") or [{"field": "", "message": error.message}]
                code = Code.INVALID_GRADER_ID if error.code is Code.NOT_FOUND else error.code
                faults += [(code, Problem(each["field"], each["message"]).within(path)) for each in errors]
                continue
            if one.key in found:
                reason = f"the grader {quote(one.key, 60)} is named twice; give one of them another name"
                faults.append((Code.DUPLICATE_ID, Problem(path, reason)))
            found[one.key] = one
        if faults:
            raise problems_error(faults[0][0], [problem for _, problem in faults])
        return list(found.values())

    def resolve_one(
        self, grader: str, config: Mapping[str, Any] | None = None, name: str | None = None
    ) -> ResolvedGrader:
        """One grader; ``config`` overrides stored options, ``name`` replaces its key in the run."""
        info = self._find(grader, None)
        if info is None or info.status == "deleted":
            raise not_found(_ITEM, grader)
        if info.source == "built-in" and self._read_stored(grader):
            reason = (
                f"{grader!r} is the id of a {registry.origin(info.id)} and of a stored grader; store the definition"
                " under another id, and delete this one"
            )
            raise problems_error(Code.INVALID_GRADER, [Problem("", reason)])
        if info.error is not None:
            raise problems_error(Code.INVALID_GRADER, [Problem("", f"{info.name} cannot be used: {info.error}")])
        if name is not None:
            checked_text("name", name, MAX_NAME)
        function = self._function(info, config)
        merged = {**info.config, **checked_config(config or {})}
        fingerprint = info.fingerprint
        if not function:
            fingerprint = build_grader(info.type, merged, self._egress, self._allowed).fingerprint
        definition = {
            "id": info.id,
            "source": info.source,
            "version": info.version,
            "name": name or info.name,
            "type": info.type,
            "config": merged,
            "fingerprint": fingerprint,
        }
        return ResolvedGrader(
            key=name or info.id,
            name=name or info.name,
            kind=info.type,
            config=merged,
            function=function,
            definition=definition,
        )

    def unsaved(self, definition: Mapping[str, object]) -> ResolvedGrader:
        """A grader from a definition that is not stored."""
        draft = read_definition({"name": UNSAVED, **definition}, self._egress, self._allowed)
        return ResolvedGrader(
            key=UNSAVED,
            name=draft.name,
            kind=draft.kind,
            config=draft.config,
            function=None,
            definition={"type": draft.kind, "config": draft.config, "fingerprint": draft.fingerprint},
        )

    def _list(self) -> list[tuple[tuple[int, int], GraderInfo]]:
        rows = self._database.read(f"{_SELECT} AND v.version = g.version WHERE g.deleted = 0 ORDER BY g.n")
        stored = [_decode_row(row) for row in rows]
        taken = {one.id for one in stored}
        groups: tuple[list[tuple[int, GraderInfo]], ...] = (
            list(enumerate(_builtins().values())),
            list(enumerate(_python_info(one, taken) for one in self.files.graders().values())),
            [(one.n, _info_of(one)) for one in stored],
        )
        return [((number, place), info) for number, group in enumerate(groups) for place, info in group]

    def _find(self, grader: str, version: int | None) -> GraderInfo | None:
        if clean_text(grader).changed:
            return None
        built_in = _builtins().get(ALIASES.get(grader, grader))
        if built_in is not None:
            return built_in
        if version is None:
            rows = self._read_stored(grader)
        else:
            rows = self._database.read(f"{_SELECT} WHERE g.id = ? AND v.version = ?", grader, version)
        if rows:
            return _info_of(_decode_row(rows[0]))
        python = self.files.graders().get(grader)
        return None if python is None else _python_info(python, ())

    def _read_stored(self, grader: str) -> list[Row]:
        return self._database.read(f"{_SELECT} AND v.version = g.version WHERE g.id = ? AND g.deleted = 0", grader)

    def _function(self, info: GraderInfo, config: Mapping[str, Any] | None) -> str | None:
        if info.source != "python":
            return None
        if config:
            problem = Problem("config", "a Python grader takes no config; it reads the metadata of the case")
            raise problems_error(Code.INVALID_GRADER, [problem])
        return self.files.graders()[info.id].reference

    def _require_stored(self, grader: str) -> None:
        info = self._find(grader, None)
        if info is None:
            raise not_found(_ITEM, grader)
        if info.source != "stored" and not self._read_stored(grader):
            what = "is built in" if info.source == "built-in" else "is a file in the operator's folder"
            raise ServiceError(Code.FORBIDDEN, f"The grader {quote(grader, 60)} {what} and cannot be changed here")


@cache
def _builtins() -> Mapping[str, GraderInfo]:
    """Built-in graders and installed plugins, by id."""
    return {
        entry["id"]: GraderInfo(status="active", source="built-in", **_known(entry))
        for entry in graders.registry.list()
    }


def _known(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name in GraderInfo.__struct_fields__}


def _python_info(one: PythonGrader, taken: Collection[str]) -> GraderInfo:
    if one.id in taken:
        reason = f"a stored grader has the id {one.id!r}; rename this one"
        one = msgspec.structs.replace(one, id=one.reference, error=reason)
    return GraderInfo(
        id=one.id,
        name=one.id,
        description=one.description,
        type=PYTHON,
        config_schema={"type": "object", "additionalProperties": False},
        scoring_guide=_PYTHON_GUIDE,
        default_extractor=DEFAULT_EXTRACTOR,
        version=1,
        fingerprint=one.fingerprint,
        status="active" if one.error is None else "error",
        source="python",
        error=one.error,
    )


def _info_of(one: _StoredVersion) -> GraderInfo:
    kind = _builtins().get(one.kind)
    fingerprint, error = one.fingerprint, None
    try:
        fingerprint = graders.create(one.kind, one.config).fingerprint
    except ConfigError as fault:  # another version of the program stored it
        error = str(fault).strip()
    return GraderInfo(
        id=one.id,
        name=one.name,
        description=one.description,
        type=one.kind,
        config_schema={} if kind is None else kind.config_schema,
        scoring_guide="" if kind is None else kind.scoring_guide,
        default_extractor=DEFAULT_EXTRACTOR if kind is None else kind.default_extractor,
        version=one.version,
        fingerprint=fingerprint,
        status="deleted" if one.deleted else "active" if error is None else "error",
        source="stored",
        config=one.config,
        caveats=[] if kind is None else kind.caveats,
        created_at=one.created_at,
        modified_at=one.modified_at,
        error=error,
    )


def _decode_row(row: Row) -> _StoredVersion:
    n, grader, deleted, created_at, modified_at, version, name, description, kind, config, fingerprint = row
    return _StoredVersion(
        n,
        grader,
        bool(deleted),
        created_at,
        modified_at,
        version,
        name,
        description,
        kind,
        msgspec.json.decode(config),
        fingerprint,
    )


def _put_version(transaction: Transaction, grader: str, version: int, draft: GraderDraft, now: str) -> None:
    transaction.run(
        "INSERT INTO stored_grader_versions"
        " (grader, version, name, description, kind, config, fingerprint, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        grader,
        version,
        draft.name,
        draft.description,
        draft.kind,
        msgspec.json.encode(draft.config).decode(),
        draft.fingerprint,
        now,
    )


def _merged(before: _StoredVersion, fields: Mapping[str, object]) -> dict[str, object]:
    merged: dict[str, object] = {"name": before.name, "description": before.description, **fields}
    if "type" not in fields and "kind" not in fields:
        merged["type"] = before.kind
    if "config" not in fields and "rules" not in fields:
        merged["config"] = before.config
    return merged


def _duplicate_id(grader: str, by: str = "a stored grader, perhaps a deleted one") -> ServiceError:
    message = f"The id {quote(grader, 60)} is taken by {by}; choose another"
    return ServiceError(Code.DUPLICATE_ID, message, status=409)
