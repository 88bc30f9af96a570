"""A suite that is written in Python: data as a file has it, and functions that stand in it as they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gradeline import graders, targets
from gradeline.api.callables import CallablePool, Function, Given
from gradeline.api.code import code_fingerprint, shown_name
from gradeline.engine.grade import GraderUse, UserGrader
from gradeline.engine.prepare import PreparedRun
from gradeline.errors import ConfigError, DataError, Problem
from gradeline.model import GraderProtocol, Sample, canonical_json, clean_data, quote
from gradeline.suite.document import parse_document
from gradeline.suite.override import override
from gradeline.suite.places import DocumentError
from gradeline.suite.read import SuiteFileError, suite_of, without_line
from gradeline.suite.spec import CodeReference, GraderSpec, Suite, TargetSpec
from gradeline.usercode.decorators import definition_location, mark_of, unwrapped_function
from gradeline.usercode.function_calls import ParameterError, read_parameters
from gradeline.usercode.loader import TARGET

FILE = "<suite given in Python>"
"""Stands where the path of a suite file would."""

_NOBODY = TargetSpec(kind="command", config={"command": [sys.executable]})
"""A target that is never asked: it keeps the place of a function while everything else is made ready."""
_PLACEHOLDER = "exact_match"


class GivenSuite(NamedTuple):
    """What was given. In ``data`` a name stands for each function: it is found by that here."""

    data: dict[str, Any]
    folder: Path
    rows: list[Any] | None
    """The cases, where they were given too."""
    target: Function | None
    graders: Mapping[str, Given]

    def read(self, overrides: Sequence[str] = ()) -> Suite:
        """The suite as a file would give it; `ConfigError` names every fault by its key path."""
        try:
            document = override(parse_document(json.dumps(self.data).encode(), "suite.json"), overrides)
            suite = suite_of(document, self.folder / FILE)
        except DocumentError as error:
            # lines of a text that nobody wrote would help nobody
            placed = error.without_lines()
            if isinstance(placed, SuiteFileError):
                placed.references = tuple(self._named(placed.references))
            raise placed from None
        suite = msgspec.structs.replace(suite, references=tuple(self._named(suite.references)))
        if self.rows is None or suite.dataset != []:
            return suite
        digest = sha256(suite.digest.encode() + canonical_json(self.rows)).hexdigest()
        return msgspec.structs.replace(
            suite, dataset=self.rows, digest=digest, shown={**suite.shown, "dataset": self.rows}
        )

    def _named(self, references: Iterable[CodeReference]) -> Iterator[CodeReference]:
        """What the data names; what was given itself is not looked for in files."""
        given = {*self.graders, *([] if self.target is None else [shown_name(self.target)])}
        return (without_line(reference) for reference in references if reference.name not in given)

    def with_placeholders(self, suite: Suite) -> Suite:
        """The suite without the given functions, which nothing that looks into files could find."""
        specs = (
            msgspec.structs.replace(spec, kind=_PLACEHOLDER, function=None) if spec.function in self.graders else spec
            for spec in suite.graders
        )
        target = suite.target
        if self._answering(suite) is not None:
            target = msgspec.structs.replace(_NOBODY, models=suite.target.models)
        return msgspec.structs.replace(suite, target=target, graders=tuple(specs))

    def filled(self, prepared: PreparedRun, suite: Suite) -> PreparedRun:
        """What was prepared with placeholders, with the given functions in their places."""
        functions: dict[tuple[str, str], Given] = {("grader", name): given for name, given in self.graders.items()}
        agent = None if prepared.choice.cached is not None else self._answering(suite)
        if agent is not None:
            functions[TARGET, shown_name(agent)] = agent
        pool = CallablePool(functions, prepared.pool)
        specs = {spec.key: spec for spec in suite.graders}
        uses = tuple(self._use(use, specs[use.key]) if use.key in specs else use for use in prepared.graders)
        filled = prepared._replace(suite=suite, graders=uses, pool=pool)
        if agent is None:
            return filled
        config = dict(suite.target.config)
        if prepared.choice.model is not None:
            config["model"] = prepared.choice.model
        code = code_fingerprint(TARGET, shown_name(agent), agent)
        context = targets.TargetContext(pool=pool, code=code)
        return filled._replace(target=targets.create("python", config, suite.target.secrets, context))

    def _answering(self, suite: Suite) -> Function | None:
        """The given target, unless an override has put another one there."""
        if self.target is None or suite.target.config.get("function") != shown_name(self.target):
            return None
        return self.target

    def _use(self, use: GraderUse, spec: GraderSpec) -> GraderUse:
        given = self.graders.get(spec.function or "")
        if given is None:
            return use
        name = str(spec.function)
        code = given.fingerprint if isinstance(given, GraderProtocol) else code_fingerprint("grader", name, given)
        return use._replace(grader=UserGrader(name, code, spec.timeout))


def read_given(data: Mapping[str, Any], folder: str | Path | None = None) -> GivenSuite:
    """Tell data from functions; `ConfigError` for what is neither."""
    problems: list[Problem] = []
    found: dict[str, Given] = {}
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
    return GivenSuite(plain, Path(folder or ".").resolve(), rows, target, found)


def _rows(given: object, problems: list[Problem]) -> list[Any] | None:
    if given is None or isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        return None
    try:
        rows: list[Any] = clean_data([_row(row) for row in given], "dataset")
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
    """The function that is the agent; a name takes its place in the data."""
    given = data.get("target")
    config: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"function": given}
    function: object = config.get("function")
    if not callable(function):
        return None
    if config.get("isolation", "none") != "none":
        problems.append(Problem("target.isolation", "a function that is given runs in this process; leave it out"))
    if config.get("memory") is not None:
        problems.append(Problem("target.memory", "a function that is given runs in this process; leave it out"))
    try:
        read_parameters(function)
    except ParameterError as error:
        problems.append(Problem("target", f"{shown_name(function)} {error}"))
    data["target"] = {"kind": "python", **config, "function": shown_name(function), "isolation": "none"}
    return function


def _grader(key: str, entry: object, found: dict[str, Given], problems: list[Problem]) -> object:
    """The entry as a file would say it: a name in the place of a function, a built-in as its definition."""
    config: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"function": entry}
    given: object = config.get("function")
    name = f"graders.{key}"
    if isinstance(given, graders.DeclaredGrader) and _is_registered(given):
        return {**{key: value for key, value in config.items() if key != "function"}, **given.definition()}
    if isinstance(given, graders.Grader):
        found[name] = graders.as_grader(given, key)
    elif callable(given):
        problems += _not_a_grader(name, given)
        found[name] = given
    else:
        return entry
    if config.get("memory") is not None:
        problems.append(Problem(f"{name}.memory", "a grader that is given runs in this process; leave it out"))
    return {"kind": "tool", **config, "function": name}


def _is_registered(given: graders.DeclaredGrader[Any]) -> bool:
    """Whether the kind of the object names this very class: a subclass may have kept the name of its base."""
    return given.kind in graders.registry and graders.registry.get(given.kind) is type(given)


def _shared_names(entries: Mapping[str, object], found: Mapping[str, Given]) -> Iterator[Problem]:
    """Built-ins that are named by a bare name which a given function has too: either could be meant."""
    marked = {mark.name: given for given in found.values() if (mark := mark_of(given)) is not None}
    for key, entry in entries.items():
        name = entry.get("function") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or name not in marked or name not in graders.registry:
            continue
        inner = unwrapped_function(marked[name])
        where = "" if inner is None else f" at {definition_location(inner)}"
        yield Problem(
            f"graders.{key}.function",
            f"{name!r} is the name of a {graders.registry.origin(name)}, and a given function is marked @grader with"
            f" the same name{where}; give the function itself, or write kind: {name} for the built-in grader",
        )


def _not_a_grader(place: str, function: Function) -> Iterator[Problem]:
    mark, name = mark_of(function), shown_name(function)
    if mark is None:
        yield Problem(place, f"{quote(name)} is not marked; put @grader above its def")
    elif mark.role != "grader":
        yield Problem(place, f"{quote(name)} is marked @{mark.role}; a grader is marked @grader")
