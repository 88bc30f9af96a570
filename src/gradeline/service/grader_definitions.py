"""Definitions of graders that callers send: read with every fault named, before anything is stored or run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gradeline import graders
from gradeline.errors import ConfigError, DataError, Problem
from gradeline.graders.registry import ALIASES, registry
from gradeline.model import Grader, clean_data, clean_text, quote
from gradeline.service.egress import ServiceEgress
from gradeline.service.failures import ApiError, Code
from gradeline.service.judge_places import places_of, remote_faults

MAX_NAME = 100
MAX_DESCRIPTION = 500
MAX_CONFIG = 200_000
"""Characters of a config as JSON."""
ID_PATTERN = "^[A-Za-z0-9_.-]{1,100}$"
UNSAVED = "new"
"""The id of a definition that is not stored."""
PYTHON = "python"
"""The type of the operator's own functions, which nobody can define over REST."""

_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


class Draft(NamedTuple):
    """A definition that was found right."""

    name: str
    description: str | None
    kind: str
    config: dict[str, Any]
    fingerprint: str


def read_definition(fields: Mapping[str, object], egress: ServiceEgress | None) -> Draft:
    """A definition: ``{name, description?, type or kind, config?, rules?}``, or `ApiError`."""
    name, description = fields.get("name"), fields.get("description")
    if name is None:
        raise ApiError(Code.MISSING_FIELD, "Field 'name' is required")
    own_name = checked_text("name", name, MAX_NAME)
    own_description = None
    if description is not None:
        own_description = checked_text("description", description, MAX_DESCRIPTION, least=0)
    kind = _checked_kind(fields)
    config = checked_config(_whole_config(fields))
    return Draft(own_name, own_description, kind, config, made(kind, config, egress).fingerprint)


def made(kind: str, config: Mapping[str, Any], egress: ServiceEgress | None) -> Grader:
    """The grader of a definition from outside; all that is wrong with it is told at once."""
    try:
        grader = graders.create(kind, config)
        problems = list(remote_faults(grader))
    except ConfigError as error:
        problems = list(error.problems)
    if problems:
        raise refused(Code.INVALID_GRADER, problems)
    if egress is not None:
        for place in places_of(grader):
            if place.base_url is not None:
                egress.check_url(place.base_url, f"{place.path}.base_url")
    return grader


def _whole_config(fields: Mapping[str, object]) -> Mapping[str, Any]:
    """The config; rules may stand beside it, as seeds of definitions have them."""
    config: Any = fields.get("config")
    config = {} if config is None else config
    rules = fields.get("rules")
    if rules is None:
        return dict(config)
    if "rules" in config:
        raise refused(Code.INVALID_GRADER, [Problem("rules", "stands both beside and inside 'config'; keep one")])
    return {**config, "rules": rules}


def _checked_kind(fields: Mapping[str, object]) -> str:
    named = [str(fields[key]) for key in ("type", "kind") if fields.get(key) is not None]
    if not named:
        raise ApiError(Code.MISSING_FIELD, "Field 'type' is required: the kind of the grader, such as custom-rules")
    if len(set(named)) > 1:
        problem = Problem("kind", f"{quote(named[1], 60)} is not the type {quote(named[0], 60)}; keep one")
        raise refused(Code.INVALID_GRADER, [problem])
    kind = ALIASES.get(named[0], named[0])
    if kind == PYTHON:
        problem = Problem("type", "Python graders are files of the operator's folder; see --graders-dir")
        raise refused(Code.INVALID_GRADER, [problem])
    try:
        known = not clean_text(kind).changed and registry.get(kind)
    except ConfigError as error:
        raise refused(Code.INVALID_GRADER, [problem.within("type") for problem in error.problems]) from None
    if not known:
        raise refused(Code.INVALID_GRADER, [Problem("type", f"no grader of the kind {quote(kind, 60)}")])
    return kind


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config, if a record can hold it as it is."""
    try:
        cleaned: dict[str, Any] = clean_data(config, "config")
    except DataError as error:
        raise ApiError(Code.INVALID_INPUT, f"Field 'config': {error}") from None
    if cleaned != config:
        raise ApiError(Code.INVALID_INPUT, "Field 'config' holds NUL or half a surrogate pair; leave it out")
    size = len(msgspec.json.encode(cleaned).decode())
    if size > MAX_CONFIG:
        told = f"Field 'config' must have at most {MAX_CONFIG:,} characters as JSON, it has {size:,}"
        raise ApiError(Code.INVALID_LENGTH, told)
    return cleaned


def checked_id(wanted: object) -> str:
    """The id that a caller chose for a grader."""
    grader = checked_text("id", wanted, MAX_NAME)
    if grader == UNSAVED or not _ID_CHARACTERS.issuperset(grader):
        told = f"Field 'id' must be of the letters a to z, digits, '-', '_' and '.', and not {UNSAVED!r}"
        raise ApiError(Code.INVALID_INPUT, f"{told}; got {quote(grader, 60)}")
    return grader


def checked_text(field: str, text: object, most: int, least: int = 1) -> str:
    """The text, if it keeps the rules of every text in a request."""
    if not isinstance(text, str):
        raise ApiError(Code.INVALID_INPUT, f"Field '{field}' must be a text, got {quote(text, 60)}")
    if not least <= len(text) <= most:
        told = f"Field '{field}' must have {least} to {most:,} characters, it has {len(text):,}"
        raise ApiError(Code.INVALID_LENGTH, told)
    if text and not text.strip():
        raise ApiError(Code.INVALID_INPUT, f"Field '{field}' must not be blank")
    if clean_text(text).changed:
        raise ApiError(Code.INVALID_INPUT, f"Field '{field}' holds NUL or half a surrogate pair; leave it out")
    return text


def refused(code: Code, problems: Sequence[Problem]) -> ApiError:
    """An error with all problems, each by its path."""
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    errors = [{"field": problem.path, "message": problem.message} for problem in problems]
    return ApiError(code, f"{first}{more}", details={"errors": errors})
