"""The variants of a suite: the target with other values, each a run of one group.

A file writes them as ``variants`` and as ``prompts``. Both are changes of the target's values, each with its place, so
that a fault of a changed value is reported where it is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from gradeline import targets
from gradeline.errors import closest_match
from gradeline.model import quote, read_struct
from gradeline.model.config import C
from gradeline.suite.declaration import PromptEntry, VariantEntry
from gradeline.suite.document import apply_override, decode_utf8, override_steps, read_document
from gradeline.suite.letta_dialects import key_names, target_kind
from gradeline.suite.problems import DocumentError, KeyPath
from gradeline.suite.spec import joined_name
from gradeline.targets.template import placeholders

Fault = tuple[KeyPath, str]
"""A key path in the data of the file, and the fault there."""

MAX_RUNS = 1_000
"""Maximum number of runs that one suite makes."""
_MAX_PROMPT = 1_000_000
_MESSAGES = (".json", ".yaml", ".yml")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_FILE_NAME = re.compile(r"\S+|.*\.(?:md|markdown|txt|json|ya?ml|prompt|j2|jinja2?)", re.IGNORECASE)
_NOT_TARGET = (
    "only values of the target can be set, such as target.prompt: graders, cases and gate are the same in all variants,"
    " so that their runs are comparable"
)
_ONE_RUN = "a variant is one run; list the models next to variants, or write target.model"


class Change(NamedTuple):
    """A value of the target that a variant has instead of the suite's; ``place`` is where it is written."""

    path: KeyPath
    value: Any
    place: KeyPath


class DeclaredVariant(NamedTuple):
    """A variant whose target has not been checked yet; the name is None if the suite has no variants."""

    name: str | None
    target: dict[str, Any]
    places: Mapping[KeyPath, KeyPath]
    """The places of its own values in the file."""


class Prompt(NamedTuple):
    """A prompt of a file: a text, or messages."""

    name: str
    value: str | list[Any]
    place: KeyPath

    @property
    def option(self) -> str:
        """The option of a target that it sets."""
        if not isinstance(self.value, str):
            return "messages"
        return "prompt" if any(name == "input" for _, name in placeholders(self.value)) else "system"


def declared_variants(data: Mapping[str, Any], folder: Path) -> tuple[list[DeclaredVariant], list[Fault]]:
    """The variants in the data of a suite: each of ``variants`` with each of ``prompts``."""
    target = data.get("target")
    if not isinstance(target, Mapping):
        return [], []
    faults: list[Fault] = []
    variants = list(_variants(target, data.get("variants"), faults))
    prompts = list(_prompts(data.get("prompts"), folder, faults))
    if len(variants) * max(1, len(prompts)) > MAX_RUNS:
        key = "prompts" if len(prompts) > len(variants) else "variants"
        faults.append(((key,), f"more than {MAX_RUNS:,} runs; split the suite"))
        return [], faults
    if not prompts:
        return variants, faults
    found: list[DeclaredVariant] = []
    for variant, prompt in product(variants, prompts):
        fault = _no_option(variant.target, prompt)
        if fault is not None:
            faults.append(fault)
            continue
        path = ("target", prompt.option)
        changed, _ = _changed(variant.target, [Change(path, prompt.value, prompt.place)])
        name = joined_name(variant.name, prompt.name)
        found.append(DeclaredVariant(name, changed, {**variant.places, path: prompt.place}))
    return found, list(dict.fromkeys(faults))


def unchecked_variants(data: Mapping[str, Any]) -> list[DeclaredVariant]:
    """The variants of a suite before any check, without its prompts; those with a fault may be left out."""
    target = data.get("target")
    return list(_variants(target, data.get("variants"), [])) if isinstance(target, Mapping) else []


def is_file_name(text: str) -> bool:
    """True for an entry of ``prompts`` that names a file and is not a text itself."""
    return "\n" not in text and "{{" not in text and _FILE_NAME.fullmatch(text.strip()) is not None


def _variants(target: Mapping[str, Any], written: object, faults: list[Fault]) -> Iterator[DeclaredVariant]:
    if not isinstance(written, list) or not written:
        yield DeclaredVariant(None, dict(target), {})
        return
    entries = [(index, _entry(VariantEntry, one, ("variants", index), faults)) for index, one in enumerate(written)]
    known = [(index, entry) for index, entry in entries if entry is not None]
    faults += _twice([(entry.name, ("variants", index, "name")) for index, entry in known])
    for index, entry in known:
        changes: list[Change] = []
        for key, value in (entry.set or {}).items():
            path, place = override_steps(key), ("variants", index, "set", key)
            fault = _not_settable(path, value)
            if fault is None:
                changes.append(Change(path, value, place))
            else:
                faults.append((place, fault))
        changed, wrong = _changed(target, changes)
        faults += wrong
        yield DeclaredVariant(entry.name, changed, {change.path: change.place for change in changes})


def _entry(kind: type[C], written: object, place: KeyPath, faults: list[Fault]) -> C | None:
    if not isinstance(written, Mapping):
        faults.append((place, f"expected a mapping, got {quote(written)}"))
        return None
    reading = read_struct(kind, written, "")
    for problem in (*reading.problems, *reading.unknown):
        steps = (name or int(index) for name, index in _STEP.findall(problem.path))
        faults.append(((*place, *steps), problem.message))
    return reading.options


def _not_settable(path: KeyPath, value: object) -> str | None:
    """Why a variant must not set this value."""
    if path[:1] != ("target",):
        return _NOT_TARGET
    models = key_names("target", "models")
    if path[1:2] and path[1] in models:
        return _ONE_RUN
    if len(path) > 1:
        return None
    if not isinstance(value, Mapping):
        return f"expected a whole target such as {{kind: http, url: …}}, got {quote(value)}"
    return _ONE_RUN if any(value.get(name) for name in models) else None


def _changed(target: Mapping[str, Any], changes: Sequence[Change]) -> tuple[dict[str, Any], list[Fault]]:
    """The target with these changes; the whole target is replaced before a part of it."""
    data = {"target": deepcopy(dict(target))}
    faults = []
    for change in sorted(changes, key=lambda change: len(change.path)):
        fault = apply_override(data, change.path, deepcopy(change.value))
        if fault is not None:
            faults.append((change.place, fault))
    return data["target"], faults


def _prompts(written: object, folder: Path, faults: list[Fault]) -> Iterator[Prompt]:
    if not isinstance(written, list):
        return
    found: list[tuple[PromptEntry, KeyPath]] = []
    for index, one in enumerate(written):
        place: KeyPath = ("prompts", index)
        if isinstance(one, str) and one.strip():
            is_file = is_file_name(one) or _is_file(folder, one)
            found.append((PromptEntry(file=one) if is_file else PromptEntry(text=one), place))
        elif isinstance(one, Mapping):
            entry = _entry(PromptEntry, one, place, faults)
            if entry is not None and (entry.file is None) is not (entry.text is None):
                found.append((entry, place))
        else:
            faults.append((place, f"expected a file or a text, got {quote(one)}"))
    stems = Counter(PurePosixPath(entry.file).stem for entry, _ in found if entry.file is not None)
    prompts = []
    for entry, place in found:
        name = f"prompt-{int(place[1]) + 1}"
        if entry.file is not None:
            stem = PurePosixPath(entry.file).stem
            name = stem if stems[stem] == 1 else entry.file
        value = entry.text if entry.file is None else _content(folder, entry.file, place, faults)
        if value is not None:
            prompts.append(Prompt(entry.name or name, value, place))
    faults += _twice([(prompt.name, prompt.place) for prompt in prompts])
    yield from prompts


def _is_file(folder: Path, name: str) -> bool:
    try:
        return "\n" not in name and (folder / name).is_file()
    except (OSError, ValueError):  # too long for a name
        return False


def _content(folder: Path, name: str, place: KeyPath, faults: list[Fault]) -> str | list[Any] | None:
    """The prompt in a file, with ``${`` escaped: only the suite's own values have variables."""
    path = folder / name
    if not _is_file(folder, name):
        known = [entry.name for entry in folder.iterdir() if entry.is_file()] if folder.is_dir() else []
        near = closest_match(name, known)
        hint = f"did you mean {near!r}?" if near else "a text is written as {text: …}"
        faults.append((place, f"no file {quote(name)}; {hint}"))
        return None
    try:
        if path.suffix.lower() in _MESSAGES:
            messages = _escaped(read_document(path, top="any").data)
            if isinstance(messages, list):
                return messages
            faults.append((place, f"{quote(name)}: expected a list of messages such as {{role: user, content: …}}"))
            return None
        with path.open("rb") as file:
            raw = file.read(_MAX_PROMPT + 1)
        if len(raw) > _MAX_PROMPT:
            faults.append((place, f"{quote(name)} is larger than {_MAX_PROMPT // 1_000_000} MB"))
            return None
        text = decode_utf8(raw, str(path)).replace("\r\n", "\n").removesuffix("\n")
    except DocumentError as error:
        faults.extend((place, str(problem)) for problem in error.suite_problems)
        return None
    except OSError as error:
        faults.append((place, f"{quote(name)} cannot be read: {error.strerror}"))
        return None
    if not text.strip():
        faults.append((place, f"{quote(name)} is empty"))
        return None
    return str(_escaped(text))


def _escaped(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _escaped(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_escaped(value) for value in tree]
    return tree.replace("${", "$${") if isinstance(tree, str) else tree


def _no_option(target: Mapping[str, Any], prompt: Prompt) -> Fault | None:
    kind = target_kind(target.get("kind"))
    if kind not in targets.registry:
        return None  # reported with the target itself
    names = targets.registry.get(kind).option_names()
    if prompt.option in names:
        return None
    chat = ", ".join(name for name in targets.registry.names() if "prompt" in targets.registry.get(name).option_names())
    message = (
        f"a target of kind {kind} has no option {prompt.option!r} for a prompt, as {chat} have; write variants that set"
        " what it has, such as {name: …, set: {target.OPTION: …}}"
    )
    return (prompt.place, message)


def _twice(names: Sequence[tuple[str, KeyPath]]) -> Iterator[Fault]:
    seen: set[str] = set()
    for name, place in names:
        if name in seen:
            yield (place, f"{name!r} is the name of an earlier one too; give each its own name")
        seen.add(name)
