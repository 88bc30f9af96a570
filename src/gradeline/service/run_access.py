"""Which addresses a run of the service may call, and which key or secret may be sent to which of them.

The one place for both rules: requests that start or try something (`check_graders`, `check_target`), definitions that
are stored (`definition_faults`), and the runner (`open_secrets`, `run_access`) all use it.

A caller who may store, preview or use a grader must not be able to read the server's files or environment through it.
So a judge has its text in its definition, and its key from one of two sources: the provider's own variable, which is
sent only to the provider's own address (that of OPENAI_BASE_URL and the like, if the operator sets one), or a stored
secret, which is sent only to the addresses it is bound to.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from yarl import URL

from gradeline.adapters.registry import PROVIDERS, Provider, provider_url
from gradeline.engine.components import MAX_CONCURRENCY, Access, is_plugin_grader
from gradeline.engine.definition import RunDefinition, RunOptions, command, requested_concurrency
from gradeline.errors import Problem
from gradeline.graders.base import DeclaredGrader
from gradeline.graders.registry import ALIASES as GRADER_ALIASES
from gradeline.graders.registry import registry
from gradeline.letta.server import CLOUD
from gradeline.model import GraderProtocol, quote
from gradeline.model.secrets import BoundSecret, Scheme, SecretLocation, SecretSet
from gradeline.model.variables import variable_names
from gradeline.service.auth import Caller
from gradeline.service.errors import Code, ServiceError
from gradeline.service.secrets import Secrets, SecretUse
from gradeline.service.settings import ServeSettings
from gradeline.service.telemetry import LabelledCounter
from gradeline.suite.letta_dialects import AGENT_JUDGE, LETTA_TARGETS, target_kind
from gradeline.suite.spec import SuiteDefinition
from gradeline.suite.stored import secret_paths, stored_suite, target_secrets
from gradeline.suite.variants import unchecked_variants
from gradeline.targets.registry import MODELS
from gradeline.transport.egress import PublicOnly
from gradeline.transport.redaction import safe_url

_LOOPBACK = ("127.0.0.0/8", "::1/128")
_MAX_URL = 2048
_PORTS = {"http": 80, "https": 443}

Resolve = Callable[[str, int], list[str]]


def resolve_host(host: str, port: int) -> list[str]:
    """All addresses of a host name, by the system's resolver, which also reads ``127.1`` and ``0x7f000001``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class ServiceEgress:
    """The egress policy: public addresses and the operator's networks; in local mode also loopback.

    Applied when a URL is sent in a request, and again at every connection.
    """

    def __init__(
        self, allow: Iterable[str] = (), *, local: Callable[[], bool], resolve: Resolve = resolve_host
    ) -> None:
        allow = tuple(allow)
        self._with_keys = PublicOnly(allow)
        self._in_local_mode = PublicOnly((*allow, *_LOOPBACK))
        self._local = local
        self._resolve = resolve
        self.refusals = LabelledCounter()
        """Refused addresses, by where they were refused: ``request`` or ``connection``."""

    def check(self, host: str, address: str, port: int) -> str | None:
        """The reason why this address must not be called; None if it may be."""
        reason = self.current().check(host, address, port)
        if reason is not None:
            self.refusals.add("connection")
        return reason

    def current(self) -> PublicOnly:
        """The policy at this moment, for a process that cannot see whether the service is still in local mode."""
        return self._in_local_mode if self._local() else self._with_keys

    def check_url(self, url: str, field: str = "agent_endpoint_url") -> None:
        """Refuse a URL that must not be called: `ServiceError` INVALID_URL or URL_NOT_ALLOWED. Opens no connection.

        A name that cannot be resolved now is accepted: every connection is checked again.
        """
        parts = _split_url(url, field)
        port = parts.port or _PORTS[parts.scheme]
        host = parts.hostname or ""
        try:
            # a resolver may know `localhost` but not `localhost.`, which a later one does
            addresses = self._resolve(host.rstrip("."), port)
        except (OSError, UnicodeError):
            return
        for address in addresses:
            reason = self.current().check(host, address, port)
            if reason is not None:
                self.refusals.add("request")
                raise ServiceError(
                    Code.URL_NOT_ALLOWED,
                    f"Field {field!r}: {safe_url(url)} may not be called: {reason} (--allow-agent-net)",
                )

    def check_urls_in(self, options: object, field: str) -> None:
        """Apply `check_url` to all URLs in the options of a plugin.

        It is not known which options hold URLs, so every string that is a URL is checked.
        """
        for path, text in _strings(options, field):
            if text.lower().startswith(("http://", "https://")):
                self.check_url(text, path)

    def allowed_hosts(self, port: int) -> list[str]:
        """The hosts that the operator allows by name on that port."""
        return self.current().allowed_hosts(port)


def _strings(tree: object, path: str) -> Iterator[tuple[str, str]]:
    """Each string in a tree, after its path."""
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _strings(value, f"{path}.{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _strings(value, f"{path}[{index}]")


def _split_url(url: str, field: str) -> SplitResult:
    def invalid(reason: str) -> ServiceError:
        return ServiceError(Code.INVALID_URL, f"Field {field!r}: {reason}")

    if len(url) > _MAX_URL:
        raise invalid(f"a URL has at most {_MAX_URL:,} characters")
    if not url.isprintable() or any(letter.isspace() for letter in url) or "\\" in url:
        raise invalid(f"{quote(safe_url(url))} contains whitespace, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise invalid("invalid URL") from None
    if parts.scheme not in _PORTS:
        raise invalid(
            f"{quote(url if '@' not in url else safe_url(url), 80)} is neither an http:// nor an https:// URL"
        )
    if not parts.hostname or port == 0:
        raise invalid("the URL has no host or an invalid port")
    if parts.username is not None or parts.password is not None:
        raise invalid("credentials in a URL are not allowed; store them as a secret and send them in a header")
    return parts


_SAME_PROVIDER = {"google": "gemini"}
_LETTA = "letta"
_HTTP = "http"
_LETTA_KINDS = frozenset({AGENT_JUDGE, *LETTA_TARGETS})
_PROVIDER_KEYS = frozenset(name for provider in PROVIDERS.values() for name in provider.key_names)
_SCHEMES: dict[str, Scheme] = {"http": "http", "https": "https"}


class JudgeConnection(NamedTuple):
    """Where a judge is called and by which key; ``path`` is the path of its options in the request."""

    path: str
    provider: str
    base_url: str | None
    key_name: str | None
    url_option: str = "base_url"
    key_option: str = "api_key_env"

    @property
    def url(self) -> str:
        return model_url(self.provider, self.base_url)

    @property
    def secret_name(self) -> str | None:
        """The name of the stored secret that holds the key; None if there is none, or the provider's own is used."""
        in_environment = self.key_name in _PROVIDER_KEYS and os.environ.get(self.key_name or "")
        return None if in_environment else self.key_name

    @property
    def fault(self) -> str | None:
        """The reason why this key must not be named here: a provider's own key is sent only to its own address."""
        provider = PROVIDERS.get(self.provider)
        own = () if self.base_url or provider is None else provider.key_names
        if self.key_name not in _PROVIDER_KEYS or self.key_name in own:
            return None
        return (
            "the key in this variable is sent only to its provider's own address; store the key with"
            " PUT /api/secrets/NAME and use that name here"
        )


def model_url(provider: str, base_url: str | None) -> str:
    """The URL at which a provider's model is called; empty for an unknown provider without a base URL."""
    if base_url:
        return base_url
    if provider == _LETTA or provider in _LETTA_KINDS:
        return CLOUD
    found = PROVIDERS.get(provider)
    return "" if found is None else provider_url(found, os.environ)


def judge_connections(graders: object, path: str = "graders") -> Iterator[JudgeConnection]:
    """The endpoints that the graders of a suite name by a base URL or a key; the options decide, parsed or not."""
    for key, entry in graders.items() if isinstance(graders, Mapping) else ():
        yield from _connections_of(_kind_of(entry), entry, f"{path}.{key}")


def _connections_of(kind: str, options: object, path: str) -> Iterator[JudgeConnection]:
    yield from _connections_in(options, path, _fixed_provider(kind))
    if kind == _HTTP and isinstance(options, Mapping):
        nested = options.get("config")
        yield from _http_connections({**(nested if isinstance(nested, Mapping) else {}), **options}, path)


def _http_connections(options: Mapping[str, Any], path: str) -> Iterator[JudgeConnection]:
    """The server that is a grader, once for each variable in its headers: over REST, variables are stored secrets."""
    url, headers = options.get("url"), options.get("headers")
    texts = headers.values() if isinstance(headers, Mapping) else ()
    names = dict.fromkeys(name for text in texts if isinstance(text, str) for name in variable_names(text))
    for name in names or (None,):
        yield JudgeConnection(path, _HTTP, url if isinstance(url, str) else None, name, "url", "headers")


def _kind_of(entry: object) -> str:
    kind = str(entry.get("function") or entry.get("kind")) if isinstance(entry, Mapping) else ""
    return GRADER_ALIASES.get(kind, kind)


def _fixed_provider(kind: str) -> str | None:
    """The provider of a kind of grader whose options do not choose it."""
    return _LETTA if kind in _LETTA_KINDS else None


def _connections_in(tree: object, path: str, fixed: str | None) -> Iterator[JudgeConnection]:
    if isinstance(tree, Mapping):
        base_url, name = tree.get("base_url"), tree.get("api_key_env")
        if isinstance(base_url, str) or isinstance(name, str):
            provider = fixed or str(tree.get("provider", "openai"))
            known = (base_url if isinstance(base_url, str) else None, name if isinstance(name, str) else None)
            yield JudgeConnection(path, _SAME_PROVIDER.get(provider, provider), *known)
        for key, value in tree.items():
            yield from _connections_in(value, f"{path}.{key}", fixed)
    elif isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from _connections_in(item, f"{path}[{index}]", fixed)


def definition_faults(
    kind: str, config: Mapping[str, Any], grader: GraderProtocol, allowed: Collection[str]
) -> Iterator[Problem]:
    """What a suite file may contain and a grader definition sent over REST may not.

    ``allowed`` are the kinds of graders that may run programs.
    """
    fault = _program_fault(kind, allowed)
    if fault is not None:
        yield Problem("type", fault)
    options: object = grader.options if isinstance(grader, DeclaredGrader) else None
    if getattr(options, "prompt_path", None) is not None:
        yield Problem("config.prompt_path", "files of the server are not read; put the text itself into prompt")
    if getattr(options, "agent_file", None) is not None:
        yield Problem("config.agent_file", "files of the server are not read; name an existing judge by agent_id")
    for connection in definition_connections(kind, config):
        if connection.fault is not None:
            yield Problem(f"{connection.path}.{connection.key_option}", connection.fault)


def definition_connections(kind: str, config: Mapping[str, Any]) -> Iterator[JudgeConnection]:
    """As `judge_connections`, for one grader definition."""
    return _connections_of(GRADER_ALIASES.get(kind, kind), config, "config")


def _program_fault(kind: str, allowed: Collection[str]) -> str | None:
    """The reason why a grader of this kind must not run here; None if it may."""
    kind = GRADER_ALIASES.get(kind, kind)
    declaration = registry.get(kind) if kind in registry else None
    if not getattr(declaration, "runs_programs", False) or kind in allowed:
        return None
    return (
        f"graders of the kind {kind!r} run programs of the server; its operator allows them with --allow-grader {kind}"
    )


def check_graders(
    graders: object, egress: ServiceEgress, secrets: Secrets, caller: Caller, allowed: Collection[str] = ()
) -> None:
    """Refuse graders that run a program, call an address, or name a key, that the caller may not use.

    ``allowed`` are the kinds of graders that may run programs.
    """
    for key, entry in graders.items() if isinstance(graders, Mapping) else ():
        kind = _kind_of(entry)
        fault = _program_fault(kind, allowed)
        if fault is not None:
            raise ServiceError(Code.FORBIDDEN, f"Field 'graders.{key}': {fault}")
        if kind in registry and is_plugin_grader(kind):
            egress.check_urls_in(entry, f"graders.{key}")
    for connection in judge_connections(graders):
        if connection.base_url is not None:
            egress.check_url(connection.base_url, connection.url_option)
        if connection.fault is not None:
            message = f"Field {connection.key_option!r}: {quote(connection.key_name)}: {connection.fault}"
            raise ServiceError(Code.INVALID_GRADER, message)
    secrets.check(_judge_uses(graders), caller)


def check_target(target: Mapping[str, Any], secrets: Secrets, caller: Caller) -> None:
    """Refuse a target with a secret that the caller may not use, or that must not be sent there."""
    secrets.check(_target_uses(target), caller)


def check_document(document: Mapping[str, Any], secrets: Secrets, caller: Caller, *, calls_target: bool) -> None:
    """Refuse to run a stored suite again with a secret that the caller may not use."""
    for variant in unchecked_variants(document) if calls_target else ():
        check_target(variant.target, secrets, caller)
    secrets.check(_judge_uses(document.get("graders")), caller)


_LOCATIONS: dict[str, SecretLocation] = {"headers": "header", "api_key": "header", "query": "query"}
_BODY_OPTIONS = frozenset({"request", "prompt", "system", "messages", "params", "tools", "response_schema"})


def _target_uses(target: Mapping[str, Any]) -> Iterator[SecretUse]:
    kind = target_kind(target.get("kind"))
    named = next((target[option] for option in ("url", "base_url") if isinstance(target.get(option), str)), None)
    url = model_url(kind, named)
    for path, name in secret_paths(target):
        option = str(path[0]) if path else ""
        location = _LOCATIONS.get(option) or ("body" if option in _BODY_OPTIONS else None)
        field = ".".join(map(str, ("target", *path)))
        if location is None and (kind == "http" or kind in MODELS):
            allowed = "headers, query or request" if kind == "http" else "api_key, headers or the request's texts"
            raise ServiceError(Code.INVALID_INPUT, f"Field {field!r}: a secret cannot be here; send it in {allowed}")
        yield SecretUse(name, url, location, field)


def _judge_uses(graders: object) -> Iterator[SecretUse]:
    for connection in judge_connections(graders):
        if connection.secret_name is not None:
            yield SecretUse(
                connection.secret_name, connection.url, "header", f"{connection.path}.{connection.key_option}"
            )


def provider_secrets() -> Iterator[BoundSecret]:
    """The keys in the providers' own variables, each bound to its provider's address."""
    for name in sorted(_PROVIDER_KEYS):
        value = os.environ.get(name)
        if value:
            provider = next(one for one in PROVIDERS.values() if name in one.key_names)
            yield _bound_key(name, value, provider)


def _bound_key(name: str, value: str, provider: Provider) -> BoundSecret:
    try:
        url = URL(provider_url(provider, os.environ))
        hosts = (f"[{url.host}]:{url.port}" if ":" in (url.host or "") else f"{url.raw_host}:{url.port}",)
        return BoundSecret(name, value, hosts, _SCHEMES[url.scheme])
    except (ValueError, KeyError):
        return BoundSecret(name, value, ())  # the operator's address is invalid: the key cannot be sent anywhere


class RunSecrets(NamedTuple):
    """The secrets of a run, of which its configs contain only the markers; the transport inserts the values."""

    known: SecretSet
    target: Mapping[str, str]
    """The markers of the secrets that the target names."""
    environment: Mapping[str, str]
    """The markers of keys, by the names of their variables."""


def open_secrets(document: Mapping[str, Any], secrets: Secrets, *, calls_target: bool = True) -> RunSecrets:
    """The providers' own keys and the secrets that a suite names; those of its target only if that is called."""
    named = target_secrets(document)
    target = secrets.open(named) if calls_target else {}
    judges = secrets.open(use.name for use in _judge_uses(document.get("graders")))
    keys = {secret.name: secret for secret in provider_secrets()} | judges
    return RunSecrets(
        SecretSet((*target.values(), *keys.values()), secrets.values()),
        {name: target[name].marker if calls_target else "not needed" for name in named},
        {name: secret.marker for name, secret in keys.items()},
    )


def run_access(secrets: RunSecrets, egress: ServiceEgress, max_concurrency: int = MAX_CONCURRENCY) -> Access:
    """What a run may use: the providers' addresses, the markers of keys, the egress policy, the maximum of calls."""
    names = {provider.url_name for provider in PROVIDERS.values() if provider.url_name}
    addresses = {name: os.environ[name] for name in names if os.environ.get(name)}
    return Access({**addresses, **secrets.environment}, egress, secrets.known, max_concurrency)


_NO_FOLDER = Path(os.devnull) / "nowhere"
"""A folder in which no file can be: suites over REST name no files."""
DATA_TARGETS = frozenset({"http", "openai", "anthropic", "gemini", "replay"})
"""Kinds of targets that run no program and read no file of the server."""


def suite_for_run(document: Mapping[str, Any], secrets: RunSecrets, settings: ServeSettings) -> SuiteDefinition:
    """The suite with markers for its secrets."""
    return stored_suite(document, folder=_folder(document, settings), secrets=secrets.target)


def _folder(document: Mapping[str, Any], settings: ServeSettings) -> Path:
    """The base of relative paths: programs that the operator allows run in the operator's folder."""
    if settings.graders_dir is not None:
        return settings.graders_dir
    targets = {target_kind(variant.target.get("kind")) for variant in unchecked_variants(document)}
    graders = document.get("graders")
    kinds = map(_kind_of, graders.values()) if isinstance(graders, Mapping) else ()
    runs_programs = not targets <= DATA_TARGETS or any(_program_fault(one, ()) is not None for one in kinds)
    return Path.cwd() if runs_programs else _NO_FOLDER


def limit_concurrency(choice: RunOptions, suite: SuiteDefinition, settings: ServeSettings) -> RunOptions:
    """The options with at most the operator's maximum of calls in flight, for a suite that was accepted before."""
    calls = requested_concurrency(suite, choice).calls
    return choice._replace(concurrency=min(calls, settings.max_concurrency))


def document_of(definition: RunDefinition, run: str) -> dict[str, Any]:
    """The suite that is stored with a run; `ServiceError` CONFLICT for a run of a suite file."""
    if definition.document is None:
        resume = command("resume", run)
        message = f"The run belongs to the file {quote(definition.suite)}; continue with: {resume}"
        raise ServiceError(Code.CONFLICT, message)
    return definition.document
