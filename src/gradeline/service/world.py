"""What a run of the service sees of the world: addresses, keys and secrets, each for its own address only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.engine.access import MAX_CONCURRENCY, Access, is_plugin_grader
from gradeline.engine.definition import RunDefinition, RunOptions, command, requested_concurrency
from gradeline.graders.registry import registry
from gradeline.model import quote
from gradeline.model.secrets import SecretLocation, SecretSet
from gradeline.service.auth import Caller
from gradeline.service.egress import ServiceEgress
from gradeline.service.errors import Code, ServiceError
from gradeline.service.judge_places import model_url, places_in, provider_addresses, provider_secrets
from gradeline.service.secrets import Secrets, SecretUse
from gradeline.service.settings import ServeSettings
from gradeline.suite.spec import Suite
from gradeline.suite.stored import secret_names, secret_places, stored_suite
from gradeline.targets.registry import ALIASES, MODELS

_NOWHERE = Path(os.devnull) / "nowhere"
"""A folder in which nothing can be: over REST no file is named."""
DATA_TARGETS = frozenset({"http", "openai", "anthropic", "gemini", "replay"})
"""Kinds of targets that are data alone: they run nothing here and read no file."""
_PLACES: dict[str, SecretLocation] = {"headers": "header", "api_key": "header", "query": "query"}
_BODY_OPTIONS = frozenset({"request", "prompt", "system", "messages", "params", "tools", "response_schema"})


class RunSecrets(NamedTuple):
    """The secrets of a run; what it is given of them are markers, which the transport fills in."""

    known: SecretSet
    target: Mapping[str, str]
    """The markers of the secrets that the target names."""
    environment: Mapping[str, str]
    """The markers of keys, by the names of their variables."""


def secrets_of(document: Mapping[str, Any], secrets: Secrets, *, asking: bool = True) -> RunSecrets:
    """The providers' own keys, and the secrets that a suite names.

    Without ``asking`` the agent is not called, and needs no secret.
    """
    named = list(secret_names(document.get("target")))
    target = secrets.opened(named) if asking else {}
    judges = secrets.opened(use.name for use in _judge_uses(document.get("graders")))
    keys = {secret.name: secret for secret in provider_secrets()} | judges
    return RunSecrets(
        SecretSet((*target.values(), *keys.values()), secrets.values()),
        {name: target[name].marker if asking else "not needed" for name in named},
        {name: secret.marker for name, secret in keys.items()},
    )


def suite_for_run(document: Mapping[str, Any], secrets: RunSecrets, settings: ServeSettings) -> Suite:
    """The suite with markers in the places of its secrets."""
    return stored_suite(document, folder=_folder(document.get("target"), settings), secrets=secrets.target)


def _folder(target: object, settings: ServeSettings) -> Path:
    """Where paths begin: programs that the operator allows run in his own folder, and data has none."""
    if settings.graders_dir is not None:
        return settings.graders_dir
    kind = target.get("kind") if isinstance(target, Mapping) else None
    return _NOWHERE if kind in DATA_TARGETS else Path.cwd()


def within_maximum(choice: RunOptions, suite: Suite, settings: ServeSettings) -> RunOptions:
    """The choice with no more calls in flight than the operator allows, for a suite that was accepted before."""
    calls = requested_concurrency(suite, choice).calls
    return choice._replace(concurrency=min(calls, settings.max_concurrency))


def run_access(secrets: RunSecrets, egress: ServiceEgress, max_concurrency: int = MAX_CONCURRENCY) -> Access:
    """The addresses of providers, the markers of keys under the names of their variables, the egress policy, and the
    most calls in flight."""
    environment = {**provider_addresses(), **secrets.environment}
    return Access(environment, egress, secrets.known, max_concurrency)


def check_judges(graders: object, egress: ServiceEgress, secrets: Secrets, caller: Caller) -> None:
    """Where judges and plugins connect to, and which keys judges name; a provider's own key goes there only."""
    for key, entry in graders.items() if isinstance(graders, Mapping) else ():
        kind = str(entry.get("function") or entry.get("kind")) if isinstance(entry, Mapping) else ""
        if kind in registry and is_plugin_grader(kind):
            egress.check_urls_in(entry, f"graders.{key}")
    for place in places_in(graders, "graders"):
        if place.base_url is not None:
            egress.check_url(place.base_url, "base_url")
        if place.fault is not None:
            raise ServiceError(Code.INVALID_GRADER, f"Field 'api_key_env': {quote(place.key_name)}: {place.fault}")
    secrets.check(_judge_uses(graders), caller)


def check_target(target: Mapping[str, Any], secrets: Secrets, caller: Caller) -> None:
    """Refuse a target with a secret that the caller may not use, or that may not be sent there."""
    secrets.check(_target_uses(target), caller)


def check_document(document: Mapping[str, Any], secrets: Secrets, caller: Caller, *, asking: bool) -> None:
    """Refuse a suite that is to be run again with a secret that the caller may not use."""
    target = document.get("target")
    if asking and isinstance(target, Mapping):
        check_target(target, secrets, caller)
    secrets.check(_judge_uses(document.get("graders")), caller)


def _target_uses(target: Mapping[str, Any]) -> Iterator[SecretUse]:
    kind = ALIASES.get(str(target.get("kind")), str(target.get("kind")))
    named = next((target[option] for option in ("url", "base_url") if isinstance(target.get(option), str)), None)
    url = model_url(kind, named)
    for path, name in secret_places(target):
        option = str(path[0]) if path else ""
        place = _PLACES.get(option) or ("body" if option in _BODY_OPTIONS else None)
        field = ".".join(map(str, ("target", *path)))
        if place is None and (kind == "http" or kind in MODELS):
            allowed = "headers, query or request" if kind == "http" else "api_key, headers or the request's texts"
            raise ServiceError(Code.INVALID_INPUT, f"Field {field!r}: a secret cannot be here; send it in {allowed}")
        yield SecretUse(name, url, place, field)


def _judge_uses(graders: object) -> Iterator[SecretUse]:
    for place in places_in(graders, "graders"):
        if place.secret_name is not None:
            yield SecretUse(place.secret_name, place.url, "header", f"{place.path}.api_key_env")


def document_of(definition: RunDefinition, run: str) -> dict[str, Any]:
    """The suite that a run keeps; of a run without one nothing can be made here."""
    if definition.document is None:
        resume = command("resume", run)
        raise ServiceError(Code.CONFLICT, f"The run is of the file {quote(definition.suite)}; continue with: {resume}")
    return definition.document
