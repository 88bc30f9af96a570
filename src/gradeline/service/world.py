"""What a run of the service sees of the world: addresses, keys and secrets, each for its host alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gradeline.adapters.registry import PROVIDERS, Provider
from gradeline.engine.outside import Outside
from gradeline.engine.prepare import Definition
from gradeline.model import quote
from gradeline.service.egress import ServiceEgress
from gradeline.service.failures import ApiError, Code
from gradeline.service.secrets import Secrets
from gradeline.service.settings import ServeSettings
from gradeline.suite.spec import Suite
from gradeline.suite.stored import secret_names, stored_suite

_NOWHERE = Path(os.devnull) / "nowhere"
"""A folder in which nothing can be: over REST no file is named."""
DATA_TARGETS = frozenset({"http", "openai", "anthropic", "gemini", "replay"})
"""Kinds of targets that are data alone: they run nothing here and read no file."""
_PORTS = {"http": 80, "https": 443}
_PROVIDER_KEYS = frozenset(name for provider in PROVIDERS.values() for name in provider.key_names)


def suite_for_run(
    document: Mapping[str, Any], secrets: Secrets, settings: ServeSettings, *, asking: bool = True
) -> Suite:
    """The suite with its secrets in their places, where the agent is to be asked."""
    target = document.get("target")
    known: dict[str, str] = {}
    if isinstance(target, Mapping):
        names = list(dict.fromkeys(secret_names(target)))
        if not asking:
            known = dict.fromkeys(names, "not needed")
        elif names:
            values, _ = secrets.resolve([{"secret": name} for name in names], host_of(str(target.get("kind")), target))
            known = dict(zip(names, values, strict=True))
    return stored_suite(document, folder=_folder(target, settings), secrets=known)


def _folder(target: object, settings: ServeSettings) -> Path:
    """Where paths begin: programs that the operator allows run in his own folder, and data has none."""
    if settings.graders_dir is not None:
        return settings.graders_dir
    kind = target.get("kind") if isinstance(target, Mapping) else None
    return _NOWHERE if kind in DATA_TARGETS else Path.cwd()


def outside_of(document: Mapping[str, Any], egress: ServiceEgress, secrets: Secrets) -> Outside:
    """The providers' own variables, the secrets that judges name, and the service's egress policy."""
    names = {name for provider in PROVIDERS.values() for name in (*provider.key_names, provider.url_name or "")}
    environment = {name: os.environ[name] for name in names if os.environ.get(name)}
    for name, host in _judges_keys(document.get("graders")):
        if name not in environment:
            environment[name] = str(secrets.resolve({"secret": name}, host)[0])
    return Outside(environment, egress)


def check_judges(graders: object, egress: ServiceEgress, secrets: Secrets) -> None:
    """Where judges are and which keys they name; a provider's own key goes to the provider alone."""
    for options in _asking(graders):
        base_url, name = options.get("base_url"), options.get("api_key_env")
        own: tuple[str, ...] = ()
        if isinstance(base_url, str):
            egress.check_url(base_url, "base_url")
        else:
            provider = _provider(options)
            own = provider.key_names if provider else ()
        if name in _PROVIDER_KEYS and name not in own:
            reason = "goes to its own provider alone; store a secret for this judge's host and name that"
            raise ApiError(Code.INVALID_GRADER, f"Field 'api_key_env': {quote(name)} {reason}")
    for name, host in _judges_keys(graders):
        if not os.environ.get(name) or name not in _PROVIDER_KEYS:
            secrets.check({"secret": name}, host)


def host_of(kind: str, target: Mapping[str, Any]) -> str:
    """``host:port`` of an agent: what a secret is bound to."""
    url = target.get("url") if kind == "http" else target.get("base_url")
    if not isinstance(url, str):
        url = PROVIDERS[kind].base_url if kind in PROVIDERS else ""
    return _host(url)


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        return f"{host}:{parts.port or _PORTS.get(parts.scheme, 0)}"
    except ValueError:
        return ""


def _judges_keys(graders: object) -> Iterator[tuple[str, str]]:
    """The variable that each judge names for its key, and where the key goes."""
    for options in _asking(graders):
        name, url = options.get("api_key_env"), options.get("base_url")
        if isinstance(name, str):
            provider = _provider(options)
            yield name, _host(url if isinstance(url, str) else provider.base_url if provider else "")


def _provider(options: Mapping[str, Any]) -> Provider | None:
    name = str(options.get("provider", "openai"))
    return PROVIDERS.get("gemini" if name == "google" else name)


def _asking(tree: object) -> Iterator[Mapping[str, Any]]:
    """All options in a tree that say how a model is reached."""
    if isinstance(tree, Mapping):
        if "api_key_env" in tree or "base_url" in tree:
            yield tree
        for value in tree.values():
            yield from _asking(value)
    elif isinstance(tree, list):
        for item in tree:
            yield from _asking(item)


def document_of(definition: Definition) -> dict[str, Any]:
    """The suite that a run keeps; of a run without one nothing can be made here."""
    if definition.document is None:
        raise ApiError(Code.CONFLICT, f"The run is of the file {quote(definition.suite)}; go on with: gradeline resume")
    return definition.document
