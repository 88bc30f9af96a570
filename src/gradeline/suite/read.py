"""A suite file as a `Suite`, with everything that is wrong in it told at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from gradeline import extractors, graders, targets
from gradeline.errors import ConfigError, Problem, UnknownNameError, closest_match
from gradeline.graders.registry import ALIASES
from gradeline.model import Sample, quote, read_struct
from gradeline.model.run import TurnRule
from gradeline.suite.clusters import ClusterPath
from gradeline.suite.dataset import open_dataset
from gradeline.suite.document import Document, read_document
from gradeline.suite.environment import read_environment, substitute
from gradeline.suite.keys import (
    AGENT_JUDGE,
    AGENT_JUDGE_KEYS,
    GRADER_KEYS,
    REWARDS,
    RUBRIC,
    SUITE_KEYS,
    CustomReward,
    MetricReward,
    default_of,
)
from gradeline.suite.override import override
from gradeline.suite.places import DocumentError, KeyPath, SuiteProblem, show_path
from gradeline.suite.spec import BudgetSpec, CodeReference, GraderSpec, PriceSpec, Suite, TargetSpec
from gradeline.targets.registry import ALIASES as TARGET_ALIASES
from gradeline.usercode.decorators import Mark, MarkedFunctionInFile, find_marked_functions, name_conflict
from gradeline.usercode.process_control import GRADER_MEMORY, parse_size
from gradeline.verdict import Gate, read_gate

_KEYS = tuple(name for name, key in SUITE_KEYS.items() if key.used)
_WITHOUT_EFFECT = frozenset(name for name, key in SUITE_KEYS.items() if not key.used)
"""Keys of letta that change nothing here."""
_GRADER_KEYS = frozenset(GRADER_KEYS)
_MODELS = ("models", "model_handles")
_LETTA_TODAY = "letta_code"
"""The kind of a target that names none, in the releases of letta that have rewards."""
_LETTA = ("letta_agent", "letta_code")
_LETTA_SERVER = ("base_url", "project_id")
"""Where a letta target is; its key is another matter."""
_ONE_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


_PRICE = "{input: 0.15, output: 0.60} in US dollars per million tokens"
_PRICES = "{gpt-6-luna: {input: 0.10, output: 0.50}} in US dollars per million tokens"


class SuiteFileError(DocumentError):
    """A suite that is wrong; its code may be wrong too, and can be looked at by its ``references``."""

    def __init__(self, placed: Iterable[SuiteProblem], folder: Path, references: Iterable[CodeReference] = ()) -> None:
        super().__init__(placed)
        self.folder = folder
        self.references = tuple(references)

    def without_lines(self) -> SuiteFileError:
        return SuiteFileError(super().without_lines().placed, self.folder, map(without_line, self.references))


def without_line(reference: CodeReference) -> CodeReference:
    """A reference of a suite that is in no file."""
    return replace(reference, file="", line=0, column=0)


def locate(problem: Problem, file: str) -> SuiteProblem:
    """The problem with the place of its key path, where it has one in that suite file."""
    steps = tuple(_steps(problem.path))
    if steps and steps[0] in SUITE_KEYS and file:
        try:
            return read_document(Path(file)).problem(steps, problem.message)
        except DocumentError:
            return SuiteProblem(file, 0, 0, *problem)
    return SuiteProblem("", 0, 0, *problem)


def read_suite(path: Path, overrides: Sequence[str] = ()) -> Suite:
    """Read a suite; `DocumentError` lists every fault with file, line and column.

    ``overrides`` are texts such as ``target.url=http://…``, each with a YAML value, that stand over the file.
    """
    return suite_of(override(read_document(path), overrides), path.resolve())


def suite_of(document: Document, file: Path) -> Suite:
    """The suite in a document; its relative paths begin beside ``file``, which need not be there."""
    return _Reader(document, file).suite()


class _Reader:
    def __init__(self, document: Document, file: Path) -> None:
        self._document = document
        self._data: dict[str, Any] = document.data
        self._file = file
        self._problems: list[SuiteProblem] = []
        self._warnings: list[str] = []
        self._references: list[CodeReference] = []

    def suite(self) -> Suite:
        self._check_keys()
        name = self._text("name", required=True)
        target = self._target()
        read = self._graders(target)
        keys = [spec.key for spec in read]
        reward = self._reward(keys)
        if reward is not None:
            keys.append("reward_composer" if "reward" in keys else "reward")
        gate = self._gate(keys)
        repeats = self._number("num_runs", "repeats", default=1, least=1)
        concurrency = self._number("max_concurrent", "concurrency", default=15, least=1)
        limit = self._number("max_samples", default=0, least=0)
        floor = self._data.get("coverage_floor", 0.95)
        if not _is_number(floor, 0, 1):
            self._fault(("coverage_floor",), f"must be a number from 0 to 1, got {quote(floor)}")
        agent_errors = self._data.get("agent_errors", "exclude")
        if agent_errors not in ("exclude", "fail"):
            self._fault(("agent_errors",), f"must be exclude or fail, got {quote(agent_errors)}")
        primary = self._primary(keys)
        cluster = self._cluster()
        seed = self._data.get("seed")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            self._fault(("seed",), f"must be a whole number, got {quote(seed)}")
        tags = self._data.get("sample_tags") or []
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            self._fault(("sample_tags",), f"must be a list of texts, got {quote(tags)}")
        dataset = self._dataset()
        description, setup, output = (self._text(key) for key in ("description", "setup_script", "output"))
        budget = self._budget()
        prices = self._prices()
        flags = {key: self._flag(key) for key in ("cache", "cleanup", "require_calibrated")}
        if setup is not None:
            self._refer("suite_setup", setup, ("setup_script",))
        self._check_shared_names()
        if self._problems:
            placed = sorted(self._problems, key=lambda problem: (problem.line, problem.column))
            raise SuiteFileError(placed, self._file.parent, self._references)
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
            agent_errors=agent_errors,
            primary=primary,
            cluster=cluster,
            reward=reward,
            budget=budget,
            prices=prices,
            seed=seed,
            output=None if output is None else self._file.parent / output,
            shown=self._data,
            **flags,
            warnings=tuple(self._warnings),
            references=tuple(self._references),
        )

    def _primary(self, keys: Sequence[str]) -> tuple[str, ...]:
        given = self._data.get("primary") or []
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._fault(("primary",), f"must be a list of graders, got {quote(given)}")
            return ()
        for place, name in enumerate(names):
            if name not in keys:
                path = ("primary",) if isinstance(given, str) else ("primary", place)
                self._fault(path, f"no grader {quote(name)}; {_hint(name, keys)}")
        return tuple(dict.fromkeys(names))

    def _cluster(self) -> ClusterPath | None:
        given = self._text("cluster")
        path = None if given is None else ClusterPath(given.strip())
        if path is not None and path.fault is not None:
            self._fault(("cluster",), path.fault)
        return path

    def _fault(self, path: KeyPath, message: str) -> None:
        self._problems.append(self._document.problem(path, message))

    def _warn(self, path: KeyPath, message: str) -> None:
        self._warnings.append(str(self._document.problem(path, message)))

    def _refer(self, role: str, name: str, path: KeyPath, grader: str | None = None, origin: str | None = None) -> None:
        place = self._document.place(path)._asdict()
        self._references.append(
            CodeReference(role=role, name=name, path=show_path(path), **place, grader=grader, origin=origin)
        )

    def _check_shared_names(self) -> None:
        """Refuse names of built-ins that functions of the suite's folder have too: either could be meant."""
        known = {Mark(ref.role, ref.name): ref for ref in self._references if ref.origin is not None}
        found: dict[Mark, list[MarkedFunctionInFile]] = {}
        for one in find_marked_functions(self._file.parent, known.keys()):
            found.setdefault(one.found.mark, []).append(one)
        for ref in self._references:
            if ref.origin is None or not (same := found.get(Mark(ref.role, ref.name))):
                continue
            places = [f"{one.file.name}:{one.found.line}" for one in same]
            reference = f"{same[0].file.name}:{same[0].found.attribute}"
            message = name_conflict(ref.role, ref.name, ref.origin, places, reference)
            self._problems.append(SuiteProblem(ref.file, ref.line, ref.column, ref.path, message))

    def _take(self, found: list[Problem], prefix: KeyPath) -> None:
        """Problems whose paths begin with the text of ``prefix``."""
        for problem in found:
            self._problems.append(self._document.problem((*prefix, *_steps(problem.path)), problem.message))

    def _check_keys(self) -> None:
        for key in self._data:
            if key in _KEYS or key.startswith("x-"):
                continue
            if key in _WITHOUT_EFFECT:
                self._warn((key,), "has no effect here")
                continue
            near = closest_match(key, _KEYS)
            hint = f"did you mean {near!r}?" if near else f"use one of {', '.join(_KEYS)}"
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

    def _flag(self, key: str) -> bool:
        value = self._data.get(key)
        if value is not None and not isinstance(value, bool):
            self._fault((key,), f"must be true or false, got {quote(value)}")
        return value is True

    def _budget(self) -> BudgetSpec:
        given = self._data.get("budget")
        if given is None:
            return BudgetSpec()
        reading = read_struct(BudgetSpec, given, "")
        self._take([*reading.problems, *reading.unknown], ("budget",))
        return reading.options or BudgetSpec()

    def _prices(self) -> dict[str, PriceSpec]:
        given = self._data.get("prices")
        if given is None:
            return {}
        if not isinstance(given, dict):
            self._fault(("prices",), f"must be a mapping such as {_PRICES}, got {quote(given)}")
            return {}
        found: dict[str, PriceSpec] = {}
        for model, price in given.items():
            if not isinstance(price, dict):
                self._fault(("prices", model), f"must be a mapping such as {_PRICE}, got {quote(price)}")
                continue
            reading = read_struct(PriceSpec, price, "")
            self._take([*reading.problems, *reading.unknown], ("prices", model))
            if reading.options is not None:
                found[str(model)] = reading.options
        return found

    def _reward(self, keys: list[str]) -> str | None:
        """The function of a custom reward; a reward that is one grader's score is that grader's column."""
        given = self._data.get("reward")
        if given is None:
            return None
        kind = str(given.get("kind")) if isinstance(given, dict) else ""
        if kind not in REWARDS:
            written = "{kind: metric, metric_key: …} or {kind: custom, function: …}"
            self._fault(("reward",), f"must be {written}, got {quote(given)}")
            return None
        reading = read_struct(REWARDS[kind], given, "")
        self._take([*reading.problems, *reading.unknown], ("reward",))
        if isinstance(reading.options, CustomReward):
            self._refer("reward_composer", reading.options.function, ("reward", "function"))
            return reading.options.function
        if isinstance(reading.options, MetricReward) and keys and reading.options.metric_key not in keys:
            wanted = reading.options.metric_key
            self._fault(("reward", "metric_key"), f"no grader {wanted!r}; {_hint(wanted, keys)}")
        return None

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
            near = closest_match(value, known)
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
        config = {key: value for key, value in substituted.tree.items() if key not in ("kind", *_MODELS)}
        models = self._models(substituted.tree)
        kind = str(given.get("kind", _LETTA_TODAY if "reward" in self._data and "gate" not in self._data else None))
        kind = TARGET_ALIASES.get(kind, kind)
        try:
            declaration = targets.registry.get(kind)
        except UnknownNameError as error:
            self._fault(("target", "kind"), error.problems[0].message)
            return TargetSpec(kind="")
        for key, reason in declaration.without_effect.items():
            if config.get(key) is not None:
                self._warn(("target", key), reason)
        reading = declaration.read(config, "")
        self._take([*reading.problems, *reading.unknown], ("target",))
        role, key = ("target", "function") if kind == "python" else ("agent_factory", "agent_script")
        if kind in ("python", *_LETTA) and isinstance(config.get(key), str):
            self._refer(role, config[key], ("target", key))
        return TargetSpec(kind=kind, config=config, secrets=frozenset(substituted.secrets), models=models)

    def _models(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """One run each; ``model_handles`` is letta's word for them."""
        given = [key for key in _MODELS if target.get(key) is not None]
        if len(given) > 1:
            self._fault(("target", given[1]), f"is another name of {given[0]!r}; keep one of them")
        models = target[given[0]] if given else []
        if not isinstance(models, list) or not all(isinstance(model, str) and model for model in models):
            self._fault(("target", given[0]), f"must be a list of names, got {quote(models)}")
            return ()
        twice = next((model for model in models if models.count(model) > 1), None)
        if twice is not None:
            self._fault(("target", given[0]), f"names {twice!r} twice; for several runs of one, write repeats")
        if models and target.get("model") is not None:
            self._fault(("target", "model"), f"stands beside {given[0]!r}; keep one of them")
        return tuple(models)

    def _turns(self, path: KeyPath, given: object) -> TurnRule:
        rule = default_of(GraderSpec, "turns") if given is None else given
        for known in get_args(TurnRule):
            if rule == known:
                return known  # type: ignore[no-any-return]
        self._fault((*path, "turns"), f"must be all or mean, got {quote(given)}")
        return "all"

    def _noise(self, path: KeyPath, given: Any) -> float:
        if given is None:
            return 0.0
        if _is_number(given, 0, 1) and given < 1:
            return float(given)
        self._fault((*path, "noise"), f"must be a number from 0 to below 1, such as 0.01, got {quote(given)}")
        return 0.0

    def _graders(self, target: TargetSpec) -> list[GraderSpec]:
        given = self._data.get("graders")
        if not isinstance(given, dict) or not given:
            self._fault(("graders",), f"must name at least one grader, got {quote(given)}")
            return []
        read = [self._grader(key, entry, target) for key, entry in given.items()]
        return [spec for spec in read if spec is not None]

    def _grader(self, key: str, entry: Any, target: TargetSpec) -> GraderSpec | None:
        path: KeyPath = ("graders", key)
        if not isinstance(entry, dict):
            self._fault(path, f"must be a mapping such as {{kind: exact_match}}, got {quote(entry)}")
            return None
        kind = entry.get("kind", entry.get("type"))
        function = entry.get("function")
        if kind is None and function is not None:
            self._fault((*path, "kind"), "is required; a custom grader's is 'tool'")
            return None
        if kind != "tool" and function is not None:
            self._fault((*path, "function"), f"belongs to kind: tool, and this is {quote(kind)}; keep one of them")
            return None
        if kind == "tool":
            if not isinstance(function, str):
                self._fault((*path, "function"), f"must name a grader, got {quote(function)}")
                return None
            known = ALIASES.get(function, function) in graders.registry
            origin = graders.registry.origin(ALIASES.get(function, function)) if known else None
            self._refer("grader", function, (*path, "function"), key, origin)
            kind, function = (function, None) if known else ("tool", function)
        options = self._options(entry, path)
        if kind == RUBRIC and any(options.get(name) is not None for name in AGENT_JUDGE_KEYS):
            kind = AGENT_JUDGE
        if kind == AGENT_JUDGE:
            options |= self._server_of_judge(options, target, path)
        threshold, timeout = entry.get("pass_threshold"), entry.get("timeout", default_of(GraderSpec, "timeout"))
        if function is None:
            timeout = self._check_builtin(str(kind), options, path, entry)
        for name in options if function is not None else ():
            message = _misspelt(name) or "a custom grader takes no options; it reads sample.metadata"
            self._fault((*path, name) if name in entry else (*path, "config", name), message)
        if threshold is not None and not _is_number(threshold, 0, 1):
            self._fault((*path, "pass_threshold"), f"must be a number from 0 to 1, got {quote(threshold)}")
        if not _is_number(timeout, 0, 86_400) or timeout == 0:
            self._fault((*path, "timeout"), f"must be a number of seconds, got {quote(timeout)}")
        usual = graders.default_extractor(str(kind)) if function is None else default_of(GraderSpec, "extractor")
        extractor, extractor_config = self._extractor(entry, path, usual)
        return GraderSpec(
            key=key,
            kind=ALIASES.get(str(kind), str(kind)),
            config=options,
            function=function,
            extractor=extractor,
            extractor_config=extractor_config,
            pass_threshold=threshold,
            noise=self._noise(path, entry.get("noise")),
            turns=self._turns(path, entry.get("turns")),
            timeout=timeout,
            memory=self._memory(entry, path, custom=function is not None or extractor not in extractors.registry),
        )

    def _memory(self, entry: Mapping[str, Any], path: KeyPath, *, custom: bool) -> int:
        given = entry.get("memory")
        if given is None:
            return GRADER_MEMORY
        if not custom:
            self._fault((*path, "memory"), "only custom graders and extractors have a memory limit; leave it out")
            return GRADER_MEMORY
        try:
            return parse_size(given)
        except ValueError as error:
            self._fault((*path, "memory"), str(error))
            return GRADER_MEMORY

    def _options(self, entry: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        config = entry.get("config") or {}
        if not isinstance(config, dict):
            self._fault((*path, "config"), f"must be a mapping, got {quote(config)}")
            config = {}
        flat = {key: value for key, value in entry.items() if key not in _GRADER_KEYS and not key.startswith("x-")}
        for key in flat.keys() & config.keys():
            self._fault((*path, key), "stands both beside and inside 'config'; keep one")
        return {**config, **flat}

    def _server_of_judge(self, options: Mapping[str, Any], target: TargetSpec, path: KeyPath) -> dict[str, Any]:
        """Where the agent that judges is, and the variable of its key: as in letta, with the agent that is judged.

        A judge with a server of its own gets neither, for the target's key is not to be sent there.
        """
        if target.kind not in _LETTA or options.get("base_url") is not None:
            return {}
        found = {
            name: target.config[name]
            for name in _LETTA_SERVER
            if isinstance(target.config.get(name), str) and options.get(name) is None
        }
        key = self._data["target"].get("api_key")
        if key is None or options.get("api_key_env") is not None:
            return found
        variable = _ONE_VARIABLE.fullmatch(key) if isinstance(key, str) else None
        if variable is None:
            told = "a judge's key is read from a variable, and the target's stands in the suite"
            self._fault((*path, "api_key_env"), f"{told}; write api_key: ${{LETTA_API_KEY}} there, and export it")
            return found
        return {**found, "api_key_env": variable[1]}

    def _check_builtin(self, kind: str, options: dict[str, Any], path: KeyPath, entry: Mapping[str, Any]) -> Any:
        """Takes the options for what they are, and gives the seconds that the grader may take."""
        timeout = entry.get("timeout", default_of(GraderSpec, "timeout"))
        try:
            declaration = graders.registry.get(ALIASES.get(kind, kind))
        except UnknownNameError as error:
            own = find_marked_functions(self._file.parent, {Mark("grader", kind)})
            message = error.problems[0].message
            if own:
                message = f"{kind!r} is a function of {own[0].file.name}; write kind: tool, function: {kind}"
            self._fault((*path, "kind"), message)
            return timeout
        if not issubclass(declaration, graders.DeclaredGrader):
            return timeout
        nested = entry["config"] if isinstance(entry.get("config"), dict) else {}
        if "timeout" in declaration.option_names():
            # A key of every grader that this one knows as an option: of how long it waits for others.
            if "timeout" in entry and "timeout" in nested:
                self._fault((*path, "timeout"), "stands both beside and inside 'config'; keep one")
            options |= {"timeout": entry["timeout"]} if "timeout" in entry else {}
        reading = declaration.read(options, "")
        for problem in (*reading.problems, *reading.unknown):
            key = str(next(_steps(problem.path), ""))
            if problem in reading.unknown and key not in nested and not closest_match(key, declaration.option_names()):
                problem = problem._replace(message=_misspelt(key) or problem.message)
            self._take([problem], (*path, "config") if key in nested else path)
        if not reading.problems:
            self._look_around(declaration(config=options), path, nested)
        return getattr(reading.options, "timeout", timeout)

    def _look_around(self, grader: graders.DeclaredGrader[Any], path: KeyPath, nested: Mapping[str, Any]) -> None:
        """What a grader says of the files that it names."""
        if type(grader).config_issues is graders.DeclaredGrader.config_issues:
            return
        for problem, fatal in grader.config_issues(self._file.parent, self._first_case):
            steps = tuple(_steps(problem.path))
            place = (*path, "config", *steps) if steps and steps[0] in nested else (*path, *steps)
            if fatal:
                self._fault(place, problem.message)
            else:
                self._warn(place, problem.message)

    @cached_property
    def _first_case(self) -> Sample | None:
        """One of the cases, where it can be read: it tells which variables the others have too."""
        given = self._data.get("dataset")
        source = given if isinstance(given, list) else self._file.parent / str(given)
        if isinstance(source, Path) and not source.is_file():
            return None
        try:
            return next(iter(open_dataset(source, limit=1)), None)
        except (ConfigError, OSError):
            return None

    def _extractor(self, entry: Mapping[str, Any], path: KeyPath, usual: str) -> tuple[str, dict[str, Any]]:
        name, config = entry.get("extractor", usual), entry.get("extractor_config") or {}
        if not isinstance(name, str) or not isinstance(config, dict):
            self._fault((*path, "extractor"), f"must be a name, with extractor_config a mapping, got {quote(name)}")
            return usual, {}
        known = name in extractors.registry
        origin = extractors.registry.origin(name) if known else None
        self._refer("extractor", name, (*path, "extractor"), str(path[-1]), origin)
        if known:
            reading = extractors.registry.get(name).read(config, "")
            self._take([*reading.problems, *reading.unknown], (*path, "extractor_config"))
        return name, config

    def _gate(self, keys: list[str]) -> Gate | None:
        given = self._data.get("gate")
        if given is None:
            return None
        reading = read_gate(given, keys)
        self._take(list(reading.problems), ("gate",))
        for warning in reading.warnings:
            self._warn(("gate", *_steps(warning.path)), warning.message)
        return reading.gate


def _hint(value: str, known: Sequence[str]) -> str:
    near = closest_match(value, known)
    return f"did you mean {near!r}?" if near else f"the graders are {', '.join(known)}"


def _steps(path: str) -> Iterator[str | int]:
    for name, index in _STEP.findall(path):
        yield name or int(index)


def _misspelt(key: str) -> str | None:
    """A message for a key of a grader that is nearly one of those that every grader has."""
    near = closest_match(key, _GRADER_KEYS)
    return None if near is None else f"unknown key; did you mean {near!r}?"


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
