"""A suite stored with a run as data, with names in place of secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gradeline.errors import ConfigError, Problem
from gradeline.suite.document import override, parse_document
from gradeline.suite.problems import DocumentError
from gradeline.suite.read import read_suite_document, without_line
from gradeline.suite.spec import TARGET_KEYS, SuiteDefinition

FILE = "<suite stored with the run>"
"""Shown instead of the path of a suite file."""

_SECRET = "secret"  # noqa: S105 - a key's name


def stored_suite(
    document: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    folder: Path | None = None,
    secrets: Mapping[str, str] | None = None,
) -> SuiteDefinition:
    """Read a stored suite; `ConfigError` has the key path of every fault.

    ``{secret: NAME}`` in its target is replaced by the value of that name in ``secrets``.
    """
    known = secrets or {}
    missing = [name for name in target_secrets(document) if name not in known]
    if missing:
        names = ", ".join(map(repr, missing))
        raise ConfigError(Problem("target", f"requires the secret {names}, which only the service has; continue there"))
    data = json.dumps(with_targets(document, _with_markers)).encode()
    try:
        read = override(parse_document(data, "suite.json"), overrides)
        suite = read_suite_document(read, (folder or Path.cwd()) / FILE)
    except DocumentError as error:
        # the lines of a generated text would not help
        raise error.without_lines() from None
    suite = replace(suite, references=tuple(map(without_line, suite.references)))
    if not known:
        return suite
    values = {_marker(name): value for name, value in known.items()}
    secret = frozenset(known.values())
    return suite.with_targets(lambda spec: replace(spec, config=_with_values(spec.config, values), secrets=secret))


def target_secrets(document: Mapping[str, Any]) -> list[str]:
    """The names of the secrets in the target of a suite and in its variants, each once."""
    return list(dict.fromkeys(name for key in TARGET_KEYS for name in secret_names(document.get(key))))


def with_targets(document: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The suite with the values of its targets changed, those of its variants too."""
    return {key: change(value) if key in TARGET_KEYS else value for key, value in document.items()}


def secret_names(tree: object) -> Iterator[str]:
    """The names in ``{secret: NAME}``, in order, with duplicates."""
    yield from (name for _, name in secret_paths(tree))


def secret_paths(tree: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The path and the name of every ``{secret: NAME}``."""
    if isinstance(tree, Mapping):
        name = _secret_name(tree)
        if name is not None:
            yield path, name
        else:
            for key, item in tree.items():
                yield from secret_paths(item, (*path, key))
    elif isinstance(tree, list | tuple):
        for number, item in enumerate(tree):
            yield from secret_paths(item, (*path, number))


def with_variables(tree: object) -> Any:
    """The tree with ``${NAME}`` for ``{secret: NAME}``, as in a suite file."""
    if isinstance(tree, Mapping):
        name = _secret_name(tree)
        return f"${{{name}}}" if name is not None else {key: with_variables(item) for key, item in tree.items()}
    return [with_variables(item) for item in tree] if isinstance(tree, list | tuple) else tree


def _secret_name(tree: Mapping[str, Any]) -> str | None:
    name = tree.get(_SECRET)
    return name if len(tree) == 1 and isinstance(name, str) else None


def _marker(name: str) -> str:
    return f"<secret {name}>"


def _with_markers(tree: object) -> Any:
    """The tree with a string in place of each secret, so that the options can be checked."""
    if isinstance(tree, Mapping):
        name = _secret_name(tree)
        return _marker(name) if name is not None else {key: _with_markers(item) for key, item in tree.items()}
    return [_with_markers(item) for item in tree] if isinstance(tree, list | tuple) else tree


def _with_values(tree: object, values: Mapping[str, str]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _with_values(item, values) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_with_values(item, values) for item in tree]
    return values.get(tree, tree) if isinstance(tree, str) else tree
