"""YAML and JSON files as plain data, with the position of every value and all faults reported at once.

Scalars follow the core schema of YAML 1.2, so ``no`` is a string and ``012`` is twelve.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gradeline.errors import ConfigError, Problem
from gradeline.model import quote
from gradeline.model.secrets import contains_secret
from gradeline.suite.document_tree import JsonParser, Node, TreeBuilder, child, plain
from gradeline.suite.problems import (
    DocumentError,
    KeyPath,
    SourcePosition,
    SuiteProblem,
    file_error,
    problem_at,
    show_path,
)

if TYPE_CHECKING:
    import yaml

Top = Literal["mapping", "list", "any"]

_MAX_BYTES = 10_000_000
_MAX_DIRECTIVES = 100
"""libyaml compares each directive with all before it."""

_LOADER: Any = None
"""None: libyaml's loader where it is installed."""


@dataclass(frozen=True, slots=True)
class SuiteDocument:
    """A file's data and the position of each value."""

    file: str
    data: Any
    digest: str
    """SHA-256 of the file's bytes."""
    _root: Node = field(repr=False, compare=False)

    def position(self, path: KeyPath = ()) -> SourcePosition:
        """Position of the value at ``path``, or of its nearest parent that exists."""
        node = self._root
        for step in path:
            below = child(node.value, step)
            if below is None:
                break
            node = below
        return SourcePosition(self.file, node.line, node.column)

    def problem(self, path: KeyPath, message: str) -> SuiteProblem:
        """A fault of the value at ``path``."""
        return problem_at(self.position(path), path, message)


def read_document(path: Path, *, top: Top = "mapping") -> SuiteDocument:
    """Read a YAML or JSON file; `DocumentError` has every fault that one pass can find."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise file_error(str(path), "no such file") from None
    except OSError as error:
        raise file_error(str(path), f"cannot be read: {error.strerror}") from None
    return parse_document(raw, str(path), top=top)


def parse_document(raw: bytes, file: str, *, top: Top = "mapping") -> SuiteDocument:
    """`read_document` for bytes; they are JSON if the name of the file ends in ``.json``."""
    if len(raw) > _MAX_BYTES:
        raise file_error(file, f"is larger than {_MAX_BYTES // 1_000_000} MB; large datasets belong in a .jsonl file")
    text = decode_utf8(raw, file)
    builder = TreeBuilder(file)
    if file.lower().endswith(".json"):
        JsonParser(text, builder).run()
    else:
        _parse_yaml(text, builder)
    root = builder.finish()
    _check_top(root, file, top)
    return SuiteDocument(file, plain(root), sha256(raw).hexdigest(), root)


def decode_utf8(raw: bytes, file: str) -> str:
    """Decode UTF-8 with or without a BOM; `DocumentError` has the position of the first bad byte."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw[:4]:
        raise file_error(file, "is UTF-16 or UTF-32; save it as UTF-8")
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode()
        line = before.count("\n") + 1
        column = len(before) - before.rfind("\n")
        reason = f"is not UTF-8: byte 0x{raw[error.start]:02x}; save it as UTF-8"
        raise DocumentError(SuiteProblem(file, line, column, "", reason)) from None


def _check_top(root: Node, file: str, top: Top) -> None:
    expected = {"mapping": dict, "list": list, "any": object}[top]
    if not isinstance(root.value, expected):
        form = "keys and values (name: …)" if top == "mapping" else "a list of rows (- input: …)"
        kind = "a mapping" if isinstance(root.value, dict) else "a list" if isinstance(root.value, list) else None
        actual = kind or quote(root.value)
        raise DocumentError(SuiteProblem(file, root.line, root.column, "", f"expected {form}, got {actual}"))


# characters outside of YAML's printable ones, and line breaks of YAML 1.1 that no editor counts as lines
_NOT_YAML = "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
_SPACES = dict.fromkeys(map(ord, "\t\n\r"))


def _parse_yaml(text: str, builder: TreeBuilder) -> None:
    import yaml  # takes 10 ms, not needed for JSON

    # most files are printable, and compiling the pattern is slow
    bad = None if text.translate(_SPACES).isprintable() else re.search(_NOT_YAML, text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        code = f"{ord(bad[0]):04X}"
        builder.fail(line, column, f'the character U+{code} is not allowed in YAML; write "\\u{code}" in double quotes')
    if text.count("%TAG") > _MAX_DIRECTIVES:
        builder.fail(1, 1, f"more than {_MAX_DIRECTIVES} %TAG directives; tags are not supported, leave them out")
    try:
        loader = _LOADER or getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _build_from_events(yaml.parse(text, Loader=loader), builder)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        builder.fail(line, column, _explain(error, text, line, column))
    except yaml.YAMLError as error:
        builder.fail(0, 0, f"not YAML: {error}")


def _build_from_events(events: Iterable[Any], builder: TreeBuilder) -> None:
    import yaml  # loaded by now

    documents = 0
    for event in events:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        match event:
            case yaml.ScalarEvent():
                plain = event.implicit[0]
                builder.scalar(event.value, line, column, plain=plain, tag=event.tag, anchor=event.anchor)
            case yaml.MappingStartEvent():
                builder.check_tag(event.tag, "map", line, column)
                builder.open({}, line, column, event.anchor)
            case yaml.SequenceStartEvent():
                builder.check_tag(event.tag, "seq", line, column)
                builder.open([], line, column, event.anchor)
            case yaml.CollectionEndEvent():
                builder.close()
            case yaml.AliasEvent():
                builder.alias(str(event.anchor), line, column)
            case yaml.DocumentStartEvent():
                documents += 1
                if documents > 1:
                    builder.fail(line, column, "a second document starts here; keep one per file")


def _explain(error: yaml.MarkedYAMLError, text: str, line: int, column: int) -> str:
    reason = f"not YAML: {error.problem or error.context}"
    if error.context and error.context_mark and error.context_mark.line + 1 != line:
        reason += f" ({error.context} that starts in line {error.context_mark.line + 1})"
    lines = text.split("\n")
    written = lines[line - 1] if 0 < line <= len(lines) else ""
    indent = written[: len(written) - len(written.lstrip())]
    at = written[column - 1 : column]
    if "\t" in indent or at == "\t":
        hint = "indent with spaces, not with tabs"
    elif "cannot start any token" in reason:
        hint = f"put a string that starts with {at} in quotes"
    elif "mapping values" in reason:
        hint = "put a string that contains ': ' in quotes, and check the indentation"
    elif "escape" in reason:
        hint = "in double quotes a backslash starts an escape; use single quotes, or write the character itself"
    else:
        hint = "check the indentation, quotes and brackets here and above"
    return f"{reason}; {hint}"


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[\d+\])*")


def override(document: SuiteDocument, settings: Sequence[str]) -> SuiteDocument:
    """Apply ``--set key=value`` to a document; the values are checked like those of the file."""
    if not settings:
        return document
    data = deepcopy(document.data)
    for setting in settings:
        _apply(data, setting)
    digest = sha256("\0".join((document.digest, *settings)).encode()).hexdigest()
    return replace(document, data=data, digest=digest)


def _apply(data: Any, setting: str) -> None:
    name, separator, text = setting.partition("=")
    name = name.strip()
    steps = override_steps(name)
    if not separator or not steps:
        raise _setting_error(
            setting, "write key=value, such as target.url=http://localhost:9000 or graders.exact.timeout=2"
        )
    value = _value(setting, text)
    if steps[0] in ("target", "variants") and contains_secret(value, str(steps[-1])):
        # the store keeps the overrides of a run
        raise ConfigError(Problem("--set", f"{name} may be a secret; export it and write {name}='${{NAME}}'"))
    fault = apply_override(data, steps, value)
    if fault is not None:
        raise _setting_error(setting, fault)


def override_steps(name: str) -> KeyPath:
    """The key path that a name such as ``target.messages[0].content`` means; empty for an invalid name."""
    if not _PATH.fullmatch(name):
        return ()
    return tuple(word or int(index) for word, index in _STEP.findall(name))


def apply_override(data: Any, steps: KeyPath, value: object) -> str | None:
    """Set the value at a key path, in place; missing mappings are created. Returns why that is not possible."""
    inside = data
    for depth, step in enumerate(steps):
        parent = show_path(steps[:depth]) or "the suite"
        if isinstance(step, int):
            if not isinstance(inside, list) or step >= len(inside):
                return f"{parent} has no item [{step}]"
        elif not isinstance(inside, dict):
            return f"{parent} is {quote(inside)}, which has no keys"
        if depth == len(steps) - 1:
            inside[step] = value
        elif isinstance(step, str):
            inside = inside.setdefault(step, {})
        else:
            inside = inside[step]
    return None


def _value(setting: str, text: str) -> Any:
    try:
        return parse_document(text.encode(), "--set", top="any").data if text.strip() else None
    except DocumentError as error:
        raise _setting_error(setting, error.suite_problems[0].message) from None


def _setting_error(setting: str, message: str) -> ConfigError:
    return ConfigError(Problem("--set", f"{quote(setting)}: {message}"))
