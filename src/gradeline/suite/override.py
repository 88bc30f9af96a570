"""``--set key=value``: values that stand over what a suite file says, for one run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any

from gradeline.errors import ConfigError, Problem
from gradeline.model import quote
from gradeline.model.secrets import contains_secret
from gradeline.suite.document import Document, parse_document
from gradeline.suite.places import DocumentError, KeyPath, show_path

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[\d+\])*")


def override(document: Document, settings: Sequence[str]) -> Document:
    """The document with these values in it. What it means is checked as if it stood in the file."""
    if not settings:
        return document
    data = deepcopy(document.data)
    for setting in settings:
        _put(data, setting)
    digest = sha256("\0".join((document.digest, *settings)).encode()).hexdigest()
    return replace(document, data=data, digest=digest)


def _put(data: Any, setting: str) -> None:
    name, separator, text = setting.partition("=")
    name = name.strip()
    if not separator or not _PATH.fullmatch(name):
        raise _wrong(setting, "write key=value, such as target.url=http://localhost:9000 or graders.exact.timeout=2")
    steps: KeyPath = tuple(word or int(index) for word, index in _STEP.findall(name))
    value = _value(setting, text)
    if steps[0] == "target" and contains_secret(value, str(steps[-1])):
        # a run keeps what it was told, and so would the store
        raise ConfigError(Problem("--set", f"{name} may be a secret; export it and write {name}='${{NAME}}'"))
    inside = data
    for depth, step in enumerate(steps):
        place = show_path(steps[:depth]) or "the suite"
        if isinstance(step, int):
            if not isinstance(inside, list) or step >= len(inside):
                raise _wrong(setting, f"{place} has no item [{step}]")
        elif not isinstance(inside, dict):
            raise _wrong(setting, f"{place} is {quote(inside)}, which has no keys")
        if depth == len(steps) - 1:
            inside[step] = value
        elif isinstance(step, str):
            inside = inside.setdefault(step, {})
        else:
            inside = inside[step]


def _value(setting: str, text: str) -> Any:
    try:
        return parse_document(text.encode(), "--set", top="any").data if text.strip() else None
    except DocumentError as error:
        raise _wrong(setting, error.placed[0].message) from None


def _wrong(setting: str, message: str) -> ConfigError:
    return ConfigError(Problem("--set", f"{quote(setting)}: {message}"))
