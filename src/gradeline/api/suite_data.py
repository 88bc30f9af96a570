"""Suites written in Python: data with the keys of a suite file, and functions in place of names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gradeline import graders
from gradeline.api.callables import Function, InProcessFunctions, shown_name
from gradeline.api.frames import BinaryColumnError, is_file_list, table_rows
from gradeline.errors import ConfigError, DataError, Problem
from gradeline.model import GraderProtocol, Sample, canonical_json, clean_data, quote
from gradeline.suite.dataset_source import DatasetSource
from gradeline.suite.document import override, parse_document
from gradeline.suite.problems import DocumentError
from gradeline.suite.read import SuiteFileError, read_suite_document, without_line
from gradeline.suite.spec import CodeReference, SuiteDefinition
from gradeline.usercode.decorators import definition_location, mark_of, unwrapped_function
from gradeline.usercode.function_calls import ParameterError, read_grader_parameters, read_parameters
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
            suite = read_suite_document(document, self.folder / FILE, self.rows)
        except DocumentError as error:
            # the data has no lines that a person wrote
            placed = error.without_lines()
            if isinstance(placed, SuiteFileError):
                placed.references = tuple(self._in_files(placed.references))
            raise placed from None
        suite = msgspec.structs.replace(suite, references=tuple(self._in_files(suite.references)))
        if self.rows is None or not suite.dataset.is_empty:
            return suite
        return with_rows(suite, self.rows)

    def _in_files(self, references: Iterable[CodeReference]) -> Iterator[CodeReference]:
        """The references to code in files."""
        names = {name for _, name in self.functions}
        return (without_line(reference) for reference in references if reference.name not in names)


def with_rows(suite: SuiteDefinition, rows: list[Any]) -> SuiteDefinition:
    """The suite with these cases in place of its own."""
    digest = sha256(suite.digest.encode() + canonical_json(rows)).hexdigest()
    source = DatasetSource(rows=rows, columns=suite.dataset.columns, ids=suite.dataset.ids)
    return msgspec.structs.replace(suite, dataset=source, digest=digest, shown={**suite.shown, "dataset": rows})


def separate_functions(data: Mapping[str, Any], folder: str | Path | None = None) -> SuiteData:
    """Separate the data of a suite from its functions; `ConfigError` for values that are neither."""
    problems: list[Problem] = []
    found: dict[str, Function | GraderProtocol] = {}
    plain = dict(data)
    rows = listed_cases(plain.get("dataset"), problems)
    if rows is not None:
        plain["dataset"] = []
    functions: Functions = {}
    if "target" in plain:
        plain["target"] = _target(plain["target"], "target", functions, problems)
    if isinstance(plain.get("variants"), list | tuple):
        plain["variants"] = [
            _variant(entry, f"variants[{index}]", functions, problems) for index, entry in enumerate(plain["variants"])
        ]
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
    functions |= {("grader", name): code for name, code in found.items()}
    return SuiteData(plain, Path(folder or ".").resolve(), rows, functions)


def listed_cases(dataset: object, problems: list[Problem]) -> list[Any] | None:
    """The cases of a list or a data frame; None for data that names files or has none."""
    if dataset is None or isinstance(dataset, str | Mapping) or is_file_list(dataset):
        return None
    try:
        rows = table_rows(dataset)
        if rows is None and isinstance(dataset, Iterable):
            rows = [_row(row) for row in dataset]
        return None if rows is None else clean_data(rows, "dataset")
    except BinaryColumnError as error:
        problems.append(Problem("dataset", str(error)))
    except DataError as error:
        problems.append(error.problem)
    return []


def _row(row: object) -> Any:
    if not isinstance(row, Sample):
        return row
    data: dict[str, Any] = msgspec.to_builtins(row)
    del data["schema"]
    return data


Functions = dict[tuple[str, str], "Function | GraderProtocol"]


def _target(entry: object, place: str, found: Functions, problems: list[Problem]) -> object:
    """The target as a suite file has it: a function by its name."""
    config: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"function": entry}
    function: object = config.get("function")
    if not callable(function):
        return entry
    wrong = {"isolation": config.get("isolation", "none") != "none", "memory": config.get("memory") is not None}
    reason = "a function object runs in this process; leave it out"
    problems += [Problem(f"{place}.{option}", reason) for option, given in wrong.items() if given]
    name = _reference(function, place, found, problems)
    return {"kind": "python", **config, "function": name, "isolation": "none"}


def _variant(entry: object, place: str, found: Functions, problems: list[Problem]) -> object:
    """The variant with the names of its functions."""
    changes = entry.get("set") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(changes, Mapping):
        return entry
    named: dict[str, Any] = dict(changes)
    for key, value in changes.items():
        if key == "target":
            named[key] = _target(value, f"{place}.set.target", found, problems)
        elif key == "target.function" and callable(value):
            named[key] = _reference(value, f"{place}.set.{key}", found, problems)
            named.setdefault("target.isolation", "none")
    return {**entry, "set": named}


def _reference(function: Function, place: str, found: Functions, problems: list[Problem]) -> str:
    """Add a function that is an agent; returns its name, which is its own among them."""
    try:
        read_parameters(function)
    except ParameterError as error:
        problems.append(Problem(place, f"{shown_name(function)} {error}"))
    name = shown_name(function)
    if found.get((TARGET, name), function) is not function:
        name = next(f"{name}~{n}" for n in count(2) if found.get((TARGET, f"{name}~{n}"), function) is function)
    found[TARGET, name] = function
    return name


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
    if mark is not None and mark.role != "grader":
        yield Problem(place, f"{quote(name)} is marked @{mark.role}; a grader is marked @grader")
    try:
        read_grader_parameters(function)
    except ParameterError as error:
        yield Problem(place, f"{quote(name)} {error}")
