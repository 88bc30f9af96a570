"""Where stored judges are asked, and which key goes there.

Whoever may store or preview a grader must not be able to read the server's files or environment by it. So a judge has
its text in its definition, and its key from one of two sources: the provider's own variable, which goes to the
provider's own address alone, or a stored secret, which goes to the host it is bound to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from gradeline.adapters.registry import PROVIDERS
from gradeline.errors import Problem
from gradeline.graders.base import DeclaredGrader, Surroundings
from gradeline.model import Grader
from gradeline.service.secrets import Secrets
from gradeline.transport.egress import EgressPolicy

if TYPE_CHECKING:
    from gradeline.transport import Transport

_SAME = {"google": "gemini"}
_PORTS = {"http": 80, "https": 443}
_OWN_KEYS = frozenset(name for provider in PROVIDERS.values() for name in provider.key_names)
_OWN_URLS = frozenset(provider.url_name for provider in PROVIDERS.values() if provider.url_name)


class JudgePlace(NamedTuple):
    """Where one judge of a grader is asked; ``path`` is where its options stand in the config."""

    path: str
    provider: str
    base_url: str | None
    key_name: str | None

    @property
    def own_keys(self) -> tuple[str, ...]:
        """The variables that hold a key for the provider's own address."""
        provider = PROVIDERS.get(self.provider)
        return () if self.base_url or provider is None else provider.key_names

    @property
    def host(self) -> str:
        """``host:port``, to which a secret must be bound to be sent there."""
        provider = PROVIDERS.get(self.provider)
        named = os.environ.get(provider.url_name) if provider is not None and provider.url_name else None
        url = self.base_url or named or ("" if provider is None else provider.base_url)
        try:
            parts = urlsplit(url)
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
            return f"{host}:{parts.port or _PORTS.get(parts.scheme, 0)}"
        except ValueError:
            return ""


def places_of(grader: Grader) -> Iterator[JudgePlace]:
    """Where the judges of a grader are asked; nowhere for a grader without any."""
    if not isinstance(grader, DeclaredGrader):
        return
    options: Any = grader.options
    members = getattr(options, "judges", None) or ()
    for path, one in (("config", options), *((f"config.judges[{n}]", member) for n, member in enumerate(members))):
        if hasattr(one, "base_url") and hasattr(one, "provider"):
            provider = str(one.provider)
            yield JudgePlace(path, _SAME.get(provider, provider), one.base_url, one.api_key_env)


def remote_faults(grader: Grader) -> Iterator[Problem]:
    """What a suite file may say and a definition over REST may not."""
    if not isinstance(grader, DeclaredGrader):
        return
    if getattr(grader.options, "prompt_path", None) is not None:
        yield Problem("config.prompt_path", "no file of the server is read; put the text itself into prompt")
    if getattr(grader.options, "agent_file", None) is not None:
        yield Problem("config.agent_file", "no file of the server is read; name a judge that is there by agent_id")
    for place in places_of(grader):
        if place.key_name in _OWN_KEYS and place.key_name not in place.own_keys:
            yield Problem(
                f"{place.path}.api_key_env",
                "this variable's key goes to its provider's own address alone; store the key with"
                " PUT /api/secrets/NAME and put that name here",
            )


def judge_environment(places: Iterable[JudgePlace], secrets: Secrets) -> dict[str, str]:
    """The variables that these judges may see; `ApiError` where a secret is missing or is bound to another host."""
    seen = {name: os.environ[name] for name in (*_OWN_KEYS, *_OWN_URLS) if name in os.environ}
    for place in places:
        if place.key_name is not None and place.key_name not in place.own_keys:
            seen[place.key_name], _ = secrets.resolve({"secret": place.key_name}, place.host)
    return seen


def surroundings_of(graders: Iterable[Grader], secrets: Secrets, egress: EgressPolicy) -> Surroundings:
    """What the service lets graders see and call: no folder, their own keys, the addresses that the policy allows."""
    places = [place for grader in graders for place in places_of(grader)]
    environment: Mapping[str, str] = judge_environment(places, secrets)

    def open_transport() -> Transport:
        from gradeline.adapters.sending import ModelTransport  # loads aiohttp

        return ModelTransport(egress)

    return Surroundings(None, environment, open_transport)
