"""A suite file as a `Suite`, with everything that is wrong in it told at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradeline import extractors, graders, targets
from gradeline.errors import Problem, UnknownNameError, closest
from gradeline.graders.registry import ALIASES
from gradeline.model import quote, read_struct
from gradeline.suite.document import Document, read_document
from gradeline.suite.environment import read_environment, substitute
from gradeline.suite.places import DocumentError, KeyPath, SuiteProblem
from gradeline.suite.spec import GraderSpec, Suite, TargetSpec
from gradeline.verdict.gates import Gate

_KEYS = (
    "name", "description", "dataset", "target", "graders", "gate", "setup_script", "max_samples", "sample_tags",
    "num_runs", "repeats", "max_concurrent", "concurrency", "coverage_floor",
)  # fmt: skip
_WITHOUT_EFFECT = frozenset({"output", "cleanup", "sandbox", "reward"})
"""Keys of letta that change nothing here, or nothing yet."""
_GRADER_KEYS = frozenset(
    {"kind", "type", "config", "function", "extractor", "extractor_config", "pass_threshold", "timeout", "display_name"}
)
_JUDGES = frozenset({"model_judge", "rubric", "letta_judge"})
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def read_suite(path: Path) -> Suite:
    """Read a suite; `DocumentError` lists every fault with file, line and column."""
    return _Reader(read_document(path), path.resolve()).suite()


class _Reader:
    def __init__(self, document: Document, file: Path) -> None:
        self._document = document
        self._data: dict[str, Any] = document.data
        self._file = file
        self._problems: list[SuiteProblem] = []
        self._warnings: list[str] = []

    def suite(self) -> Suite:
        self._check_keys()
        name = self._text("name", required=True)
        read = self._graders()
        target = self._target()
        gate = self._gate([spec.key for spec in read])
        repeats = self._number("num_runs", "repeats", default=1, least=1)
        concurrency = self._number("max_concurrent", "concurrency", default=15, least=1)
        limit = self._number("max_samples", default=0, least=0)
        floor = self._data.get("coverage_floor", 0.95)
        if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor <= 1:
            self._fault(("coverage_floor",), f"must be a number from 0 to 1, got {quote(floor)}")
        tags = self._data.get("sample_tags") or []
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            self._fault(("sample_tags",), f"must be a list of texts, got {quote(tags)}")
        dataset = self._dataset()
        description, setup = self._text("description"), self._text("setup_script")
        if self._problems:
            raise DocumentError(sorted(self._problems, key=lambda problem: (problem.line, problem.column)))
        return Suite(
            name=name or "",
            description=description,
            file=self._file,
            digest=self._document.digest,
            dataset=dataset,
            target=target,
            graders=tuple(read),
            gate=gate,
            setup=setup,
            repeats=repeats,
            concurrency=concurrency,
            limit=limit,
            tags=tuple(tags),
            coverage_floor=float(floor),
            warnings=tuple(self._warnings),
        )

    def _fault(self, path: KeyPath, message: str) -> None:
        self._problems.append(self._document.problem(path, message))

    def _take(self, found: list[Problem], prefix: KeyPath) -> None:
        """Problems whose paths begin with the text of ``prefix``."""
        for problem in found:
            self._problems.append(self._document.problem((*prefix, *_steps(problem.path)), problem.message))

    def _check_keys(self) -> None:
        for key in self._data:
            if key in _KEYS or key.startswith("x-"):
                continue
            if key in _WITHOUT_EFFECT:
                self._warnings.append(str(self._document.problem((key,), "has no effect here")))
                continue
            near = closest(key, _KEYS)
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(_KEYS)}"
            self._fault((key,), f"unknown key; {hint}")

    def _text(self, key: str, *, required: bool = False) -> str | None:
        value = self._data.get(key)
        if value is None:
            if required:
                self._fault((key,), "is required")
            return None
        if not isinstance(value, str) or not value.strip():
            self._fault((key,), f"must be a text, got {quote(value)}")
            return None
        return value

    def _number(self, *names: str, default: int, least: int) -> int:
        given = [name for name in names if self._data.get(name) is not None]
        if len(given) > 1:
            self._fault((given[1],), f"is another name of {given[0]!r}; keep one of them")
        if not given:
            return default
        value = self._data[given[0]]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._fault((given[0],), f"must be a whole number from {least} on, got {quote(value)}")
            return default
        return value

    def _dataset(self) -> Path | list[Any]:
        value = self._data.get("dataset")
        if isinstance(value, list):
            return value
        if not isinstance(value, str) or not value.strip():
            self._fault(("dataset",), f"must be a path or a list of cases, got {quote(value)}")
            return []
        path = self._file.parent / value
        if not path.is_file():
            known = [entry.name for entry in self._file.parent.iterdir() if entry.is_file()]
            near = closest(value, known)
            self._fault(("dataset",), f"no file {value!r}" + (f"; did you mean {near!r}?" if near else ""))
        return path

    def _target(self) -> TargetSpec:
        given = self._data.get("target")
        if not isinstance(given, dict):
            self._fault(("target",), f"must say which agent is asked: {{kind: http, url: …}}, got {quote(given)}")
            return TargetSpec(kind="")
        environment = read_environment(self._file.parent)
        substituted = substitute(given, environment.values, self._document.place, ("target",))
        self._problems += substituted.problems
        config = {key: value for key, value in substituted.tree.items() if key != "kind"}
        kind = given.get("kind")
        try:
            declaration = targets.registry.get(str(kind))
        except UnknownNameError as error:
            self._fault(("target", "kind"), error.problems[0].message)
            return TargetSpec(kind="")
        reading = declaration.read(config, "")
        self._take([*reading.problems, *reading.unknown], ("target",))
        return TargetSpec(kind=str(kind), config=config, secrets=frozenset(substituted.secrets))

    def _graders(self) -> list[GraderSpec]:
        given = self._data.get("graders")
        if not isinstance(given, dict) or not given:
            self._fault(("graders",), f"must name at least one grader, got {quote(given)}")
            return []
        read = [self._grader(key, entry) for key, entry in given.items()]
        return [spec for spec in read if spec is not None]

    def _grader(self, key: str, entry: Any) -> GraderSpec | None:
        path: KeyPath = ("graders", key)
        if not isinstance(entry, dict):
            self._fault(path, f"must be a mapping such as {{kind: exact_match}}, got {quote(entry)}")
            return None
        kind = entry.get("kind", entry.get("type"))
        function = entry.get("function")
        if kind in _JUDGES:
            self._fault((*path, "kind"), f"{kind} needs a judge, which this version does not have")
            return None
        if kind == "tool":
            if not isinstance(function, str):
                self._fault((*path, "function"), f"must name a grader, got {quote(function)}")
                return None
            kind, function = (function, None) if function in graders.registry else ("tool", function)
        options = self._options(entry, path)
        if function is None:
            self._check_builtin(str(kind), options, path, entry.get("config") or {})
        elif options:
            self._fault((*path, next(iter(options))), "a custom grader takes no options; it reads sample.metadata")
        threshold, timeout = entry.get("pass_threshold"), entry.get("timeout", 5.0)
        if threshold is not None and not _is_number(threshold, 0, 1):
            self._fault((*path, "pass_threshold"), f"must be a number from 0 to 1, got {quote(threshold)}")
        if not _is_number(timeout, 0, 86_400) or timeout == 0:
            self._fault((*path, "timeout"), f"must be a number of seconds, got {quote(timeout)}")
        extractor, extractor_config = self._extractor(entry, path)
        return GraderSpec(
            key=key,
            kind=ALIASES.get(str(kind), str(kind)),
            config=options,
            function=function,
            extractor=extractor,
            extractor_config=extractor_config,
            pass_threshold=threshold,
            timeout=timeout,
        )

    def _options(self, entry: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        config = entry.get("config") or {}
        if not isinstance(config, dict):
            self._fault((*path, "config"), f"must be a mapping, got {quote(config)}")
            return {}
        flat = {key: value for key, value in entry.items() if key not in _GRADER_KEYS and not key.startswith("x-")}
        for key in flat.keys() & config.keys():
            self._fault((*path, key), "stands both beside and inside 'config'; keep one")
        return {**config, **flat}

    def _check_builtin(self, kind: str, options: dict[str, Any], path: KeyPath, nested: Mapping[str, Any]) -> None:
        try:
            declaration = graders.registry.get(ALIASES.get(kind, kind))
        except UnknownNameError as error:
            self._fault((*path, "kind"), error.problems[0].message)
            return
        if issubclass(declaration, graders.DeclaredGrader):
            reading = declaration.read(options, "")
            for problem in (*reading.problems, *reading.unknown):
                inside = next(_steps(problem.path), None) in nested
                self._take([problem], (*path, "config") if inside else path)

    def _extractor(self, entry: Mapping[str, Any], path: KeyPath) -> tuple[str, dict[str, Any]]:
        name, config = entry.get("extractor", "last_assistant"), entry.get("extractor_config") or {}
        if not isinstance(name, str) or not isinstance(config, dict):
            self._fault((*path, "extractor"), f"must be a name, with extractor_config a mapping, got {quote(name)}")
            return "last_assistant", {}
        if name in extractors.registry:
            reading = extractors.registry.get(name).read(config, "")
            self._take([*reading.problems, *reading.unknown], (*path, "extractor_config"))
        return name, config

    def _gate(self, keys: list[str]) -> Gate | None:
        given = self._data.get("gate")
        if given is None:
            return None
        reading = read_struct(Gate, given, "")
        self._take([*reading.problems, *reading.unknown], ("gate",))
        gate = reading.options
        if gate is not None and isinstance(gate.metric_key, str) and keys and gate.metric_key not in keys:
            near = closest(gate.metric_key, keys)
            hint = f"did you mean {near!r}?" if near else f"the graders are {', '.join(keys)}"
            self._fault(("gate", "metric_key"), f"no grader {gate.metric_key!r}; {hint}")
        return gate


def _steps(path: str) -> Iterator[str | int]:
    for name, index in _STEP.findall(path):
        yield name or int(index)


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
