"""A configuration of promptfoo as data: its file, its references, and the keys that become keys of the suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.errors import ConfigError, Problem
from gradeline.importers.promptfoo_files import SCHEME, FileReference, FileReferenceError, SourceFolder
from gradeline.importers.report import ImportReport, item_name
from gradeline.model import quote
from gradeline.suite.document import read_document

NAMES = ("promptfooconfig.yaml", "promptfooconfig.yml", "promptfooconfig.json")
_CODE_SUFFIXES = frozenset((".js", ".cjs", ".mjs", ".ts", ".cts", ".mts", ".py"))
TEMPLATES = "#/assertionTemplates/"
"""References that the mapping of assertions follows."""
_MAX_NODES = 500_000
"""Values of a configuration with everything that it refers to."""
_MAX_DEPTH = 60
_CONFIG_KEYS = frozenset(("prompts", "providers", "targets", "tests", "scenarios", "defaultTest"))
_READ = frozenset((*_CONFIG_KEYS, "$schema", "description", "assertionTemplates", "env"))
"""The keys that are read elsewhere or have no meaning."""


class PromptfooConfig(NamedTuple):
    """A configuration with its references resolved; ``name`` is that of its file."""

    name: str
    data: Mapping[str, Any]
    folder: SourceFolder

    @property
    def environment(self) -> Mapping[str, object]:
        """The variables that the configuration sets itself."""
        found = self.data.get("env")
        return found if isinstance(found, Mapping) else {}


def is_config(data: Mapping[str, Any]) -> bool:
    """Whether a mapping looks like a configuration."""
    keys = set(data)
    tests = {"tests", "scenarios", "defaultTest", "redteam"}
    return bool(keys & {"prompts", "providers", "targets"}) and bool(keys & {*tests, "prompts", "assertionTemplates"})


def config_file(path: Path) -> Path:
    """The configuration in a folder, or the file itself; `ConfigError` if it is code, or there is none."""
    if path.is_dir():
        found = next((path / name for name in NAMES if (path / name).is_file()), None)
        code = next((one for one in sorted(path.glob("promptfooconfig.*")) if one.suffix in _CODE_SUFFIXES), None)
        if found is None and code is None:
            raise ConfigError(Problem("SOURCE", f"{path} has no {NAMES[0]}; name the file of the configuration"))
        path = found or code or path
    if path.suffix in _CODE_SUFFIXES:
        remedy = "write it as YAML, or import results: promptfoo eval -o results.json has the whole configuration"
        raise ConfigError(Problem("SOURCE", f"{path} is code, which an import never executes; {remedy}"))
    return path


def read_config(path: Path, report: ImportReport) -> PromptfooConfig:
    """Read a configuration; `ConfigError` if it is not YAML or JSON."""
    data = read_document(path).data
    return resolved_config(path.name, data, SourceFolder(path.parent), report)


def resolved_config(name: str, data: Mapping[str, Any], folder: SourceFolder, report: ImportReport) -> PromptfooConfig:
    """A configuration with its ``$ref`` replaced by what they name, but for those of assertion templates."""
    whole = _References(data, folder, report).resolved(data, name, ())
    return PromptfooConfig(name, whole if isinstance(whole, Mapping) else {}, folder)


class _References:
    """Replaces ``{$ref: "#/path"}`` and ``{$ref: "file.yaml#/path"}``."""

    def __init__(self, root: Mapping[str, Any], folder: SourceFolder, report: ImportReport) -> None:
        self._documents: dict[str, object] = {"": root}
        self._folder = folder
        self._report = report
        self._nodes = 0

    def resolved(self, value: object, place: str, stack: tuple[str, ...], file: str = "", depth: int = 0) -> object:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise ConfigError(Problem(place, f"has more than {_MAX_NODES:,} values with its references; use fewer"))
        if depth > _MAX_DEPTH:
            raise ConfigError(Problem(place, f"is nested more than {_MAX_DEPTH} levels deep; write a flatter one"))
        if isinstance(value, list):
            return [
                self.resolved(item, f"{place}[{index}]", stack, file, depth + 1) for index, item in enumerate(value)
            ]
        if not isinstance(value, Mapping):
            return value
        reference = value.get("$ref")
        if isinstance(reference, str) and not reference.startswith(TEMPLATES):
            return self._followed(value, reference, place, stack, file, depth)
        return {key: self.resolved(item, f"{place}.{key}", stack, file, depth + 1) for key, item in value.items()}

    def _followed(
        self, value: Mapping[str, Any], reference: str, place: str, stack: tuple[str, ...], file: str, depth: int
    ) -> object:
        name, _, pointer = reference.partition("#")
        name = name or file
        key = f"{name}#{pointer}"
        what = item_name("$ref", reference)
        if key in stack:
            self._report.not_mapped(place, what, "refers to itself; write the value out")
            return None
        try:
            found = _at(self._document(name), pointer)
        except FileReferenceError as error:
            self._report.not_mapped(place, what, f"is not read: {error}")
            return None
        except LookupError:
            return dict(value)  # of a JSON Schema, relative to that
        result = self.resolved(found, place, (*stack, key), name, depth + 1)
        others = {name: item for name, item in value.items() if name != "$ref"}
        return {**result, **others} if others and isinstance(result, Mapping) else result

    def _document(self, name: str) -> object:
        if name not in self._documents:
            if "://" in name and not name.startswith(SCHEME):
                raise FileReferenceError(f"{quote(name, 60)} is not a file; download it into the folder")
            self._documents[name] = self._folder.value(FileReference(name.removeprefix(SCHEME)))
        return self._documents[name]


def _at(document: object, pointer: str) -> object:
    """The value at a JSON pointer; `LookupError` if there is none."""
    for step in filter(None, pointer.split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping):
            document = document[key]
        elif isinstance(document, list) and key.isdecimal() and len(key) < 10:
            document = document[int(key)]
        else:
            raise LookupError(key)
    return document


def suite_keys(config: PromptfooConfig, report: ImportReport) -> dict[str, object]:
    """The keys of the suite for the run's options and the configuration's description; others are reported."""
    data = config.data
    keys: dict[str, object] = {}
    if data.get("description"):
        keys["description"] = str(data["description"])
    for key in ("tags", "metadata"):
        if data.get(key):
            keys[f"x-{key}"] = data[key]
            report.mapped(f"{config.name}.{key}", key, f"x-{key}")
    for key in ("evaluateOptions", "commandLineOptions"):
        options = data.get(key)
        if isinstance(options, Mapping):
            keys |= _run_options(options, f"{config.name}.{key}", key, report)
        elif options is not None:
            report.not_mapped(f"{config.name}.{key}", key, f"is {quote(options, 40)}, and should be a mapping")
    for key, value in data.items():
        if key not in (*_READ, *keys, "tags", "metadata", "commandLineOptions", "evaluateOptions"):
            _report_key(f"{config.name}.{key}", str(key), value, report)
    if config.environment:
        names = ", ".join(map(str, list(config.environment)[:20]))
        differs = f"the values of secrets are not copied: set the variables in the environment or in .env ({names})"
        report.approximated(f"{config.name}.env", "env", "variables ${NAME} of the target", differs)
    return keys


_DROPPED_KEYS: Mapping[str, str] = {
    "assert": "is not a key of a configuration, and promptfoo ignores it; write it in defaultTest",
    "derivedMetrics": "there is no score that is computed over a whole run; use a gate over several graders, or a"
    " grader of kind formula for each case",
    "nunjucksFilters": "are code, which an import never executes; write the filtered values out",
    "extensions": "are code, which an import never executes; write a setup_script",
    "tracing": "responses have trajectories instead of spans; map response.trajectory of the target",
    "redteam": "generated attacks are not part of an import; export the generated tests and import those",
}


def _report_key(place: str, key: str, value: object, report: ImportReport) -> None:
    if key.startswith("x-"):
        return
    if key in _DROPPED_KEYS and value:
        report.not_mapped(place, key, _DROPPED_KEYS[key])
    elif key == "outputPath":
        report.approximated(place, key, "gradeline export", "results are in the store; export writes a file of them")
    elif key in ("sharing", "writeLatestResults") or value in (None, [], {}, ""):
        shared = "results are only shared by gradeline push"
        report.mapped(place, key, shared if key == "sharing" else "nothing")
    else:
        report.not_mapped(place, item_name("key", key), "is not imported; write its counterpart into the suite")


_IGNORED_OPTIONS = frozenset(
    """
    table share write progressBar verbose showProgressBar interactiveProviders generateSuggestions suggestPrompts
    tableCellMaxLength watch silent eventSource
    """.split()  # noqa: SIM905
)
"""Options of promptfoo's display and storage."""
_COMMAND_OPTIONS: Mapping[str, str] = {
    "filterFirstN": "--limit",
    "filterRange": "--limit or --sample",
    "filterSample": "--limit",
    "filterPattern": "--sample",
    "filterMetadata": "--tag",
    "filterFailing": "--failed-of",
    "filterFailingOnly": "--failed-of",
    "filterProviders": "--variant",
    "filterTargets": "--variant",
    "filterPrompts": "--variant",
    "output": "gradeline export",
    "envFile": "a file .env next to the suite",
    "envPath": "a file .env next to the suite",
    "maxEvalTimeMs": "timeout of the target, and budget",
    "grader": "model of the judges",
    "description": "--name",
}


def _run_options(options: Mapping[str, Any], place: str, where: str, report: ImportReport) -> dict[str, object]:
    keys: dict[str, object] = {}
    for key, value in options.items():
        what, at = f"{where} {key}", f"{place}.{key}"
        if key in ("maxConcurrency", "repeat"):
            ours = "concurrency" if key == "maxConcurrency" else "repeats"
            if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
                keys[ours] = value
                report.mapped(at, what, ours)
            else:
                report.not_mapped(at, what, f"is {quote(value, 40)}; write {ours} with a whole number, at least 1")
        elif key == "cache" and isinstance(value, bool):
            keys["cache"] = value
            report.mapped(at, what, "cache")
        elif key in ("timeoutMs", "delay") and positive(value):
            ours = "timeout of the target" if key == "timeoutMs" else "rate of the target"
            report.mapped(at, what, ours)
        elif key in _IGNORED_OPTIONS or value in (None, False, [], {}, "", 0):
            report.mapped(at, what, "nothing: an option of promptfoo's display and storage")
        elif key in _COMMAND_OPTIONS:
            report.approximated(at, what, _COMMAND_OPTIONS[key], "is not part of a suite; give it to the command")
        else:
            report.not_mapped(at, item_name(where, key), "has no counterpart; see gradeline run --help")
    return keys


def positive(value: object) -> bool:
    """True for a number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


def run_option(config: PromptfooConfig, key: str) -> object:
    """An option of the run, of the command line's or the evaluation's."""
    for where in ("commandLineOptions", "evaluateOptions"):
        options = config.data.get(where)
        if isinstance(options, Mapping) and key in options:
            return options[key]
    return None


def load_value(value: object, folder: SourceFolder) -> object:
    """A value, or the content of the file that it names with ``file://``; `FileReferenceError` if that is not read."""
    if not isinstance(value, str) or not value.startswith(SCHEME):
        return value
    reference = FileReference.of(value)
    if reference.suffix in _CODE_SUFFIXES:
        raise FileReferenceError(f"{quote(value, 80)} is code, which an import never executes; write the value out")
    return folder.value(reference)


def is_code(reference: FileReference) -> bool:
    """True for a file with a program."""
    return reference.suffix in _CODE_SUFFIXES


def as_list(value: object) -> Sequence[object]:
    """A list as it is, nothing for null, and anything else as the only item."""
    return value if isinstance(value, list) else [] if value is None else [value]
