"""Suites written in Python: data with the keys of a suite file, and functions in place of names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gradeline import graders
from gradeline.api.callables import Function, InProcessFunctions, shown_name
from gradeline.errors import ConfigError, DataError, Problem
from gradeline.model import GraderProtocol, Sample, canonical_json, clean_data, quote
from gradeline.suite.document import override, parse_document
from gradeline.suite.problems import DocumentError
from gradeline.suite.read import SuiteFileError, read_suite_document, without_line
from gradeline.suite.spec import CodeReference, SuiteDefinition
from gradeline.usercode.decorators import definition_location, mark_of, unwrapped_function
from gradeline.usercode.function_calls import ParameterError, read_parameters
from gradeline.usercode.loader import TARGET

FILE = "<suite given in Python>"
"""The file name of such a suite in messages."""


class SuiteData(NamedTuple):
    """A suite as data that names its functions, and the functions by role and name."""

    data: dict[str, Any]
    folder: Path
    rows: list[Any] | None
    """The cases; None if the data names a file or has none."""
    functions: Mapping[tuple[str, str], Function | GraderProtocol]

    @property
    def in_process(self) -> InProcessFunctions:
        return InProcessFunctions(self.functions)

    def read(self, overrides: Sequence[str] = ()) -> SuiteDefinition:
        """The suite, checked as a suite file is; `ConfigError` names every problem by its key path."""
        try:
            document = override(parse_document(json.dumps(self.data).encode(), "suite.json"), overrides)
            suite = read_suite_document(document, self.folder / FILE)
        except DocumentError as error:
            # the data has no lines that a person wrote
            placed = error.without_lines()
            if isinstance(placed, SuiteFileError):
                placed.references = tuple(self._in_files(placed.references))
            raise placed from None
        suite = msgspec.structs.replace(suite, references=tuple(self._in_files(suite.references)))
        if self.rows is None or suite.dataset != []:
            return suite
        digest = sha256(suite.digest.encode() + canonical_json(self.rows)).hexdigest()
        return msgspec.structs.replace(
            suite, dataset=self.rows, digest=digest, shown={**suite.shown, "dataset": self.rows}
        )

    def _in_files(self, references: Iterable[CodeReference]) -> Iterator[CodeReference]:
        """The references to code in files."""
        names = {name for _, name in self.functions}
        return (without_line(reference) for reference in references if reference.name not in names)


def separate_functions(data: Mapping[str, Any], folder: str | Path | None = None) -> SuiteData:
    """Separate the data of a suite from its functions; `ConfigError` for values that are neither."""
    problems: list[Problem] = []
    found: dict[str, Function | GraderProtocol] = {}
    plain = dict(data)
    rows = _rows(plain.get("dataset"), problems)
    if rows is not None:
        plain["dataset"] = []
    target = _target(plain, problems)
    entries = plain.get("graders")
    if isinstance(entries, Mapping):
        plain["graders"] = {str(key): _grader(str(key), entry, found, problems) for key, entry in entries.items()}
        problems += _shared_names(plain["graders"], found)
    try:
        plain = clean_data(plain, "")
    except DataError as error:
        problems.append(Problem(error.problem.path.removeprefix("."), error.problem.message))
    if problems:
        raise ConfigError(problems)
    functions = {("grader", name): code for name, code in found.items()}
    if target is not None:
        functions[TARGET, shown_name(target)] = target
    return SuiteData(plain, Path(folder or ".").resolve(), rows, functions)


def _rows(dataset: object, problems: list[Problem]) -> list[Any] | None:
    if dataset is None or isinstance(dataset, str | Mapping) or not isinstance(dataset, Iterable):
        return None
    try:
        rows: list[Any] = clean_data([_row(row) for row in dataset], "dataset")
    except DataError as error:
        problems.append(error.problem)
        return []
    return rows


def _row(row: object) -> object:
    if not isinstance(row, Sample):
        return row
    data: dict[str, Any] = msgspec.to_builtins(row)
    del data["schema"]
    return data


def _target(data: dict[str, Any], problems: list[Problem]) -> Function | None:
    """The function that is the agent; the data gets its name instead."""
    entry = data.get("target")
    config: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"function": entry}
    function: object = config.get("function")
    if not callable(function):
        return None
    if config.get("isolation", "none") != "none":
        problems.append(Problem("target.isolation", "a function object runs in this process; leave it out"))
    if config.get("memory") is not None:
        problems.append(Problem("target.memory", "a function object runs in this process; leave it out"))
    try:
        read_parameters(function)
    except ParameterError as error:
        problems.append(Problem("target", f"{shown_name(function)} {error}"))
    data["target"] = {"kind": "python", **config, "function": shown_name(function), "isolation": "none"}
    return function


def _grader(key: str, entry: object, found: dict[str, Function | GraderProtocol], problems: list[Problem]) -> object:
    """The entry as a suite file has it: a function by its name, a built-in by its definition."""
    config: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"function": entry}
    code: object = config.get("function")
    name = f"graders.{key}"
    if isinstance(code, graders.DeclaredGrader) and _is_registered(code):
        return {**{key: value for key, value in config.items() if key != "function"}, **code.definition()}
    if isinstance(code, graders.Grader):
        found[name] = graders.as_grader(code, key)
    elif callable(code):
        problems += _not_a_grader(name, code)
        found[name] = code
    else:
        return entry
    if config.get("memory") is not None:
        problems.append(Problem(f"{name}.memory", "a grader object runs in this process; leave it out"))
    return {"kind": "tool", **config, "function": name}


def _is_registered(grader: graders.DeclaredGrader[Any]) -> bool:
    """True if the kind of the object names its own class: a subclass may have the kind of its base."""
    return grader.kind in graders.registry and graders.registry.get(grader.kind) is type(grader)


def _shared_names(entries: Mapping[str, object], found: Mapping[str, Function | GraderProtocol]) -> Iterator[Problem]:
    """Names of built-ins that a marked function has too: either could be meant."""
    marked = {mark.name: code for code in found.values() if (mark := mark_of(code)) is not None}
    for key, entry in entries.items():
        name = entry.get("function") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or name not in marked or name not in graders.registry:
            continue
        inner = unwrapped_function(marked[name])
        where = "" if inner is None else f" at {definition_location(inner)}"
        yield Problem(
            f"graders.{key}.function",
            f"{name!r} is the name of a {graders.registry.origin(name)}, and a function of the suite is marked @grader"
            f" with the same name{where}; pass the function itself, or write kind: {name} for the built-in grader",
        )


def _not_a_grader(place: str, function: Function) -> Iterator[Problem]:
    mark, name = mark_of(function), shown_name(function)
    if mark is None:
        yield Problem(place, f"{quote(name)} is not marked; put @grader above its def")
    elif mark.role != "grader":
        yield Problem(place, f"{quote(name)} is marked @{mark.role}; a grader is marked @grader")
