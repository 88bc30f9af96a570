"""Where judges and provider targets are called, and which key goes there.

A caller who may store, preview or use a grader must not be able to read the server's files or environment by it. So
a judge has its text in its definition, and its key from one of two sources: the provider's own variable, which goes to
the provider's own address only (that of OPENAI_BASE_URL and its siblings, where the operator sets one), or a stored
secret, which goes to the addresses it is bound to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from yarl import URL

from gradeline.adapters.registry import PROVIDERS, Provider, provider_url
from gradeline.errors import Problem
from gradeline.graders.base import DeclaredGrader
from gradeline.model import GraderProtocol
from gradeline.model.secrets import BoundSecret, Scheme

_SAME = {"google": "gemini"}
_OWN_KEYS = frozenset(name for provider in PROVIDERS.values() for name in provider.key_names)
_SCHEMES: dict[str, Scheme] = {"http": "http", "https": "https"}


class JudgePlace(NamedTuple):
    """Where one judge of a grader is called; ``path`` is where its options are in the config."""

    path: str
    provider: str
    base_url: str | None
    key_name: str | None

    @property
    def url(self) -> str:
        """The address that is called."""
        return model_url(self.provider, self.base_url)

    @property
    def secret_name(self) -> str | None:
        """The stored secret that is the key; None: the provider's own variable has it, or there is none."""
        in_environment = self.key_name in _OWN_KEYS and os.environ.get(self.key_name or "")
        return None if in_environment else self.key_name

    @property
    def fault(self) -> str | None:
        """Why the key may not be named here."""
        provider = PROVIDERS.get(self.provider)
        own = () if self.base_url or provider is None else provider.key_names
        if self.key_name not in _OWN_KEYS or self.key_name in own:
            return None
        return (
            "this variable's key goes to its provider's own address only; store the key with"
            " PUT /api/secrets/NAME and put that name here"
        )


def model_url(provider: str, base_url: str | None) -> str:
    """Where a provider's model is called; empty for what is not a provider."""
    found = PROVIDERS.get(provider)
    return base_url or ("" if found is None else provider_url(found, os.environ))


def places_of(grader: GraderProtocol) -> Iterator[JudgePlace]:
    """Where the judges of a grader are called; nowhere for a grader without any."""
    if not isinstance(grader, DeclaredGrader):
        return
    options: Any = grader.options
    members = getattr(options, "judges", None) or ()
    for path, one in (("config", options), *((f"config.judges[{n}]", member) for n, member in enumerate(members))):
        if hasattr(one, "base_url") and hasattr(one, "provider"):
            provider = str(one.provider)
            yield JudgePlace(path, _SAME.get(provider, provider), one.base_url, one.api_key_env)


def places_in(tree: object, path: str) -> Iterator[JudgePlace]:
    """Where the judges of a suite are called, as far as their options name an address or a key."""
    if isinstance(tree, Mapping):
        base_url, name = tree.get("base_url"), tree.get("api_key_env")
        if isinstance(base_url, str) or isinstance(name, str):
            provider = str(tree.get("provider", "openai"))
            known = (base_url if isinstance(base_url, str) else None, name if isinstance(name, str) else None)
            yield JudgePlace(path, _SAME.get(provider, provider), *known)
        for key, value in tree.items():
            yield from places_in(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from places_in(item, f"{path}[{number}]")


def remote_faults(grader: GraderProtocol) -> Iterator[Problem]:
    """What a suite file may contain and a definition over REST may not."""
    if not isinstance(grader, DeclaredGrader):
        return
    if getattr(grader.options, "prompt_path", None) is not None:
        yield Problem("config.prompt_path", "no file of the server is read; put the text itself into prompt")
    if getattr(grader.options, "agent_file", None) is not None:
        yield Problem("config.agent_file", "no file of the server is read; name a judge that is there by agent_id")
    for place in places_of(grader):
        if place.fault is not None:
            yield Problem(f"{place.path}.api_key_env", place.fault)


def provider_secrets() -> Iterator[BoundSecret]:
    """The keys in the providers' own variables, each bound to its provider's address."""
    for name in sorted(_OWN_KEYS):
        value = os.environ.get(name)
        if value:
            provider = next(one for one in PROVIDERS.values() if name in one.key_names)
            yield _bound_key(name, value, provider)


def provider_addresses() -> dict[str, str]:
    """The variables with which the operator moves a provider to another address."""
    names = {provider.url_name for provider in PROVIDERS.values() if provider.url_name}
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _bound_key(name: str, value: str, provider: Provider) -> BoundSecret:
    try:
        url = URL(provider_url(provider, os.environ))
        hosts = (f"[{url.host}]:{url.port}" if ":" in (url.host or "") else f"{url.raw_host}:{url.port}",)
        return BoundSecret(name, value, hosts, _SCHEMES[url.scheme])
    except (ValueError, KeyError):
        return BoundSecret(name, value, ())  # the address is not valid: nothing can be sent there
