"""The kinds of sources that can be imported, and how the kind of a source is detected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from msgspec import Struct

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.importers.output import ImportOutput, Progress, require_new_folder
from gradeline.importers.report import ImportReport
from gradeline.importers.zip_members import LOCAL_MARK, ZipMembers
from gradeline.model import Run, Storage, quote
from gradeline.suite.document import read_document
from gradeline.suite.text_files import open_file

_NAME = re.compile(r'"([A-Za-z_]{1,40})"\s*+:')
HEAD_BYTES = 256 * 1024
"""Bytes of a file that detection reads."""


class ImportOptions(Struct, frozen=True):
    """The options of an import."""

    kind: str | None = None
    """The kind of source; None: detected."""
    input_path: str | None = None
    """JMESPath of a case's input, for sources with JSON inputs."""
    expected_path: str | None = None
    """JMESPath of a case's expected value."""
    name: str | None = None
    """Name of the suite and its runs; None: the source's."""


class Source:
    """A file or folder to import. Detection reads only its names and the first bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise ConfigError(Problem("SOURCE", f"{path} does not exist"))

    @cached_property
    def head(self) -> str:
        """The first characters of a file, unpacked if it is gzipped; empty for a folder."""
        if self.path.is_dir():
            return ""
        head = b""
        with open_file(self.path) as file:
            for chunk in file.chunks():
                head += chunk
                if len(head) >= HEAD_BYTES:
                    break
        return head[:HEAD_BYTES].decode("utf-8-sig", errors="replace")

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the entries of a folder or a ZIP archive, without those of subfolders."""
        if self.path.is_dir():
            return frozenset(entry.name for entry in self.path.iterdir())
        if not self.head.startswith(LOCAL_MARK.decode()):
            return frozenset()
        try:
            with ZipMembers(self.path) as archive:
                return frozenset(archive.members)
        except ConfigError:  # the importer that reads it reports why
            return frozenset()

    @cached_property
    def first_row(self) -> Mapping[str, Any]:
        """The first object of a JSON or JSON Lines file, or of a JSON list, or the start of a YAML mapping.

        Empty if there is none, or if a JSON document is larger than what detection reads.
        """
        text = self.head.lstrip()
        if not text:
            return {}
        text = text[1:].lstrip() if text.startswith("[") else text
        try:
            value, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            value = self._yaml if self.path.suffix in {".yaml", ".yml"} else None
        return value if isinstance(value, dict) else {}

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of `first_row`; of a JSON document that is too large for detection, the names in its first bytes."""
        return frozenset(map(str, self.first_row)) or frozenset(_names_in(self.head))

    @property
    def _yaml(self) -> object:
        try:
            return read_document(self.path).data
        except ConfigError:
            return None


def _names_in(text: str) -> set[str]:
    return set(_NAME.findall(text))


class Importer(Protocol):
    """A module of an importer."""

    def matches(self, source: Source) -> bool:
        """Whether the source looks like this kind."""

    def read(self, source: Source, options: ImportOptions, output: ImportOutput) -> None:
        """Read the source and write what it became; `ConfigError` if it cannot be read at all."""


class ImportKind(NamedTuple):
    """A kind of source."""

    name: str
    module: str
    description: str


_KINDS = (
    ImportKind("inspect", "gradeline.importers.inspect_log", "logs of Inspect, .eval or .json, or their folder"),
    ImportKind("promptfoo", "gradeline.importers.promptfoo", "promptfooconfig.yaml, or results as JSON or JSON Lines"),
    ImportKind(
        "openai-evals",
        "gradeline.importers.openai_evals",
        "exports of OpenAI's hosted evals, or their folder; registry and logs of the repository openai/evals",
    ),
    ImportKind("lm-eval", "gradeline.importers.lm_eval", "samples_*.jsonl of lm-evaluation-harness, or their folder"),
    ImportKind(
        "langfuse", "gradeline.importers.langfuse", "dataset items, dataset runs, traces, observations and scores"
    ),
    ImportKind("langsmith", "gradeline.importers.langsmith", "examples of a dataset, runs and feedback"),
    ImportKind("braintrust", "gradeline.importers.braintrust", "rows of datasets, experiments and logs"),
)
KINDS: Mapping[str, ImportKind] = {kind.name: kind for kind in _KINDS}
"""The kinds in the order in which detection tries them."""


class ImportResult(NamedTuple):
    """A finished import."""

    report: ImportReport
    folder: Path
    written: Sequence[str]
    runs: Sequence[Run]


def run_import(
    path: Path,
    folder: Path,
    options: ImportOptions,
    open_storage: Callable[[], Storage],
    progress: Progress = lambda *_: None,
) -> ImportResult:
    """Import a source into a new folder, and its results into a store, which is only opened if there are any.

    Code in the source is never executed.
    """
    require_new_folder(folder)
    source = Source(path)
    kind = _kind(source, options)
    report = ImportReport(path.resolve().name, kind.name)
    with ExitStack() as stack:
        output = stack.enter_context(ImportOutput(folder, report, open_storage, progress))
        _importer(kind).read(source, options, output)
    return ImportResult(report, folder, output.written, output.runs)


def _kind(source: Source, options: ImportOptions) -> ImportKind:
    names = ", ".join(KINDS)
    if options.kind is not None:
        kind = KINDS.get(options.kind)
        if kind is None:
            near = closest_match(options.kind, KINDS)
            hint = f"did you mean {near!r}?" if near else f"use one of {names}"
            raise ConfigError(Problem("--from", f"unknown kind {quote(options.kind)}; {hint}"))
        return kind
    for kind in KINDS.values():
        if _importer(kind).matches(source):
            return kind
    raise ConfigError(Problem("SOURCE", f"cannot detect what {source.path} is; use --from with one of {names}"))


def _importer(kind: ImportKind) -> Importer:
    return cast(Importer, import_module(kind.module))
