"""Read a suite file into a `SuiteDefinition`, with every fault reported at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from gradeline import extractors, graders, targets
from gradeline.errors import ConfigError, Problem, UnknownNameError, closest_match
from gradeline.graders.case_values import is_reference
from gradeline.graders.registry import ALIASES
from gradeline.model import Config, Sample, quote, read_struct
from gradeline.model.config import Reader
from gradeline.suite.case_checks import (
    CHECKS,
    ChecksInDataset,
    checks_faults,
    metric_columns,
    metric_names,
    read_checks_of,
)
from gradeline.suite.case_condition import condition_faults
from gradeline.suite.case_ids import CaseIdScheme
from gradeline.suite.clusters import ClusterPath
from gradeline.suite.column_order import find_cycle, grader_inputs
from gradeline.suite.columns import column_faults
from gradeline.suite.dataset import open_dataset
from gradeline.suite.dataset_source import DatasetNameError, DatasetSource, read_source
from gradeline.suite.declaration import (
    REWARD,
    REWARDS,
    BudgetSpec,
    CustomReward,
    GraderEntry,
    MetricReward,
    PriceSpec,
    SuiteFile,
    TargetEntry,
    default_of,
    keys_of,
)
from gradeline.suite.document import SuiteDocument, override, read_document
from gradeline.suite.environment import read_environment, substitute
from gradeline.suite.letta_dialects import (
    AGENT_JUDGE,
    LETTA_TARGETS,
    aliases_of,
    judge_connection,
    rewrite_suite,
    target_kind,
)
from gradeline.suite.problems import (
    DocumentError,
    KeyPath,
    SourceError,
    SourcePosition,
    SuiteProblem,
    path_steps,
    show_path,
)
from gradeline.suite.spec import CodeReference, GraderSpec, SuiteDefinition, TargetSpec, Variant, joined_name
from gradeline.suite.variants import DeclaredVariant, declared_variants
from gradeline.usercode.decorators import Mark, MarkedFunctionInFile, find_marked_functions, name_conflict
from gradeline.usercode.process_control import GRADER_MEMORY, parse_size
from gradeline.verdict import Gate, read_gate

_KEYS = (*keys_of(SuiteFile), *(alias.spelling for alias in aliases_of("suite")))
_SHARED_KEYS = ("timeout", "memory")
"""Keys of every grader that are options of some kinds."""
_PRICE = "a mapping such as {input: 0.15, output: 0.60} in US dollars per million tokens"

S = TypeVar("S", bound=Config)


class SuiteFileError(DocumentError):
    """A faulty suite; ``references`` name the code it refers to, which can be checked nevertheless."""

    def __init__(
        self, problems: Iterable[SuiteProblem], folder: Path, references: Iterable[CodeReference] = ()
    ) -> None:
        super().__init__(problems)
        self.folder = folder
        self.references = tuple(references)

    def without_lines(self) -> SuiteFileError:
        return SuiteFileError(super().without_lines().suite_problems, self.folder, map(without_line, self.references))


def without_line(reference: CodeReference) -> CodeReference:
    """A reference of a suite that is in no file."""
    return replace(reference, file="", line=0, column=0)


def locate(problem: Problem, file: str) -> SuiteProblem:
    """The problem with the position of its key path in the suite file, where it has one."""
    steps = tuple(path_steps(problem.path))
    if steps and steps[0] in keys_of(SuiteFile) and file:
        try:
            document = read_document(Path(file))
            return document.problem(rewrite_suite(document.data).written(steps), problem.message)
        except DocumentError:
            return SuiteProblem(file, 0, 0, *problem)
    return SuiteProblem("", 0, 0, *problem)


def read_suite(path: Path, overrides: Sequence[str] = ()) -> SuiteDefinition:
    """Read a suite; `DocumentError` lists every fault with file, line and column.

    ``overrides`` are strings such as ``target.url=http://…``, each with a YAML value, that replace values of the file.
    """
    return read_suite_document(override(read_document(path), overrides), path.resolve())


def read_suite_document(document: SuiteDocument, file: Path, cases: Sequence[object] | None = None) -> SuiteDefinition:
    """The suite in a document; its relative paths start at the folder of ``file``, which need not exist.

    ``cases`` are the rows of its dataset, if they are not in the document.
    """
    return _SuiteReader(document, file, cases).suite()


_OF_TARGET = "$target."
_READABLE = ("tools", "response_schema")
"""Options of a target that a grader's option can refer to; others may hold secrets."""


class _SuiteReader:
    def __init__(self, document: SuiteDocument, file: Path, cases: Sequence[object] | None) -> None:
        self._document = document
        self._cases = cases
        self._rewritten = rewrite_suite(document.data)
        self._data = self._rewritten.data
        self._file = file
        self._problems = [document.problem(*fault) for fault in self._rewritten.problems]
        self._warnings = [str(document.problem(*warning)) for warning in self._rewritten.warnings]
        self._references: list[CodeReference] = []

    def suite(self) -> SuiteDefinition:
        written = self._top_level()
        environment = read_environment(self._file.parent).values
        models = self._models(environment)
        target = self._target(DeclaredVariant(None, dict(self._mapping("target")), {}), environment, models)
        variants = self._variants(target, environment, models)
        keys = list(map(str, self._mapping("graders")))
        dataset = self._dataset(target)
        source = dataset if self._cases is None else replace(dataset, rows=self._cases)
        specs = self._with_metrics(self._graders(target), keys, source)
        keys += [spec.key for spec in specs if spec.key not in keys]
        self._check_inputs(specs, keys)
        reward = self._reward(keys)
        if reward is not None:
            keys.append("reward_composer" if "reward" in keys else "reward")
        gate = self._gate(keys)
        primary = self._primary(keys)
        cluster = self._cluster()
        if isinstance(setup := self._data.get("setup_script"), str):
            self._refer("suite_setup", setup, ("setup_script",))
        self._check_name_conflicts()
        if self._problems or written is None:
            found = dict.fromkeys(self._problems)  # a fault of the target is one of each of its variants
            problems = sorted(found, key=lambda problem: (problem.line, problem.column))
            raise SuiteFileError(problems, self._file.parent, self._references)
        return SuiteDefinition(
            name=written.name,
            description=written.description,
            file=self._file,
            digest=self._document.digest,
            dataset=dataset,
            variants=variants,
            models=models,
            graders=tuple(specs),
            gate=gate,
            setup=written.setup_script,
            repeats=written.value_of("repeats"),
            concurrency=written.value_of("concurrency"),
            limit=written.value_of("max_samples"),
            tags=tuple(written.sample_tags or ()),
            coverage_floor=written.coverage_floor,
            agent_errors=written.agent_errors,
            require_calibrated=written.value_of("require_calibrated"),
            corrected=written.corrected,
            primary=primary,
            cluster=cluster,
            reward=reward,
            budget=written.budget or BudgetSpec(),
            prices=written.prices or {},
            cache=written.value_of("cache"),
            cleanup=written.value_of("cleanup"),
            seed=written.seed,
            output=None if written.output is None else self._file.parent / written.output,
            shown=self._document.data,
            warnings=tuple(self._warnings),
            references=tuple(dict.fromkeys(self._references)),
        )

    def _fault(self, path: KeyPath, message: str) -> None:
        self._problems.append(self._document.problem(self._rewritten.written(path), message))

    def _warn(self, path: KeyPath, message: str) -> None:
        warning = str(self._document.problem(self._rewritten.written(path), message))
        if warning not in self._warnings:
            self._warnings.append(warning)

    def _position(self, path: KeyPath) -> SourcePosition:
        return self._document.position(self._rewritten.written(path))

    def _take(self, found: Iterable[Problem], prefix: KeyPath) -> None:
        """Report problems whose paths start after ``prefix``."""
        for problem in found:
            self._fault((*prefix, *path_steps(problem.path)), problem.message)

    def _read(
        self, kind: type[S], data: object, path: KeyPath, readers: Mapping[str, Reader] | None = None
    ) -> S | None:
        reading = read_struct(kind, data, "", readers)
        self._take([*reading.problems, *reading.unknown], path)
        return reading.options

    def _refer(self, role: str, name: str, path: KeyPath, grader: str | None = None, origin: str | None = None) -> None:
        self._references.append(
            CodeReference(
                role=role,
                name=name,
                path=show_path(self._rewritten.written(path)),
                **self._position(path)._asdict(),
                grader=grader,
                origin=origin,
            )
        )

    def _check_name_conflicts(self) -> None:
        """Refuse a built-in's name that a function in the suite's folder has too: either could be meant."""
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

    def _top_level(self) -> SuiteFile | None:
        known = {key: value for key, value in self._data.items() if key in keys_of(SuiteFile)}
        for key in self._data:
            if key not in known and not key.startswith("x-"):
                near = closest_match(key, _KEYS)
                hint = f"did you mean {near!r}?" if near else f"use one of {', '.join(_KEYS)}"
                self._fault((key,), f"unknown key; {hint}")
        unread: Reader = lambda value, *_: value  # noqa: E731 - read below, with the place of each part
        readers = {"budget": self._read_budget, "reward": unread}
        if isinstance(known.get("prices"), dict):
            readers["prices"] = self._read_prices
        return self._read(SuiteFile, known, (), readers)

    def _read_budget(self, value: object, _path: str, _problems: list[Problem]) -> BudgetSpec | None:
        return None if value is None else self._read(BudgetSpec, value, ("budget",))

    def _read_prices(self, value: Any, _path: str, _problems: list[Problem]) -> dict[str, PriceSpec]:
        prices: dict[str, PriceSpec] = {}
        for model, price in value.items():
            if not isinstance(price, dict):
                self._fault(("prices", model), f"expected {_PRICE}, got {quote(price)}")
            elif (read := self._read(PriceSpec, price, ("prices", model))) is not None:
                prices[model] = read
        return prices

    def _mapping(self, key: str) -> Mapping[str, Any]:
        """The value of a key; empty where it is none, which `_top_level` reports."""
        value = self._data.get(key)
        return value if isinstance(value, dict) else {}

    def _reward(self, keys: Sequence[str]) -> str | None:
        """The function of a custom reward; a reward that is the score of one grader is that grader's column."""
        written = self._data.get("reward")
        if written is None:
            return None
        kind = str(written.get("kind")) if isinstance(written, dict) else ""
        if kind not in REWARDS:
            self._fault(("reward",), f"expected {REWARD}, got {quote(written)}")
            return None
        reward: MetricReward | CustomReward | None = self._read(REWARDS[kind], written, ("reward",))
        if isinstance(reward, CustomReward):
            self._refer("reward_composer", reward.function, ("reward", "function"))
            return reward.function
        if reward is not None and keys and reward.metric_key not in keys:
            self._fault(("reward", "metric_key"), _no_grader(reward.metric_key, keys))
        return None

    def _gate(self, keys: Sequence[str]) -> Gate | None:
        written = self._data.get("gate")
        if not isinstance(written, dict):
            return None
        reading = read_gate(written, keys)
        self._take(reading.problems, ("gate",))
        for warning in reading.warnings:
            self._warn(("gate", *path_steps(warning.path)), warning.message)
        return reading.gate

    def _primary(self, keys: Sequence[str]) -> tuple[str, ...]:
        written = self._data.get("primary") or []
        names = [written] if isinstance(written, str) else written
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return ()
        for index, name in enumerate(names):
            if name not in keys:
                path = ("primary",) if isinstance(written, str) else ("primary", index)
                self._fault(path, _no_grader(name, keys))
        return tuple(dict.fromkeys(names))

    def _cluster(self) -> ClusterPath | None:
        written = self._data.get("cluster")
        if not isinstance(written, str) or not written.strip():
            return None
        path = ClusterPath(written.strip())
        if path.fault is not None:
            self._fault(("cluster",), path.fault)
        return path

    def _dataset(self, target: TargetSpec) -> DatasetSource:
        columns = self._mapping("columns")
        self._take(column_faults(columns), ("columns",))
        # letta-evals names rows by their number, also in its result files
        ids: CaseIdScheme = "number" if target.kind in LETTA_TARGETS else "content"
        try:
            return replace(read_source(self._data.get("dataset"), self._file.parent), columns=columns, ids=ids)
        except DatasetNameError as error:
            self._fault(("dataset", *error.path), str(error))
            return DatasetSource()

    def _variants(
        self, target: TargetSpec, environment: Mapping[str, str], models: Sequence[str]
    ) -> tuple[Variant, ...]:
        """The configurations of the target; only the suite's own if there are no variants."""
        written = self._mapping("target")
        declared, faults = declared_variants(self._data, self._file.parent)
        for path, message in faults:
            self._fault(path, message)
        variants = tuple(
            Variant(one.name, target if one.target == written else self._target(one, environment, models))
            for one in declared
        )
        chosen: set[str | None] = {*models} or {None}
        names = Counter(joined_name(one.name, model) for one in variants for model in chosen)
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None and not faults:
            key = "variants" if self._data.get("variants") else "prompts"
            self._fault((key,), f"two runs would have the name {twice!r}; rename one")
        return variants or (Variant(None, target),)

    def _target(self, variant: DeclaredVariant, environment: Mapping[str, str], models: Sequence[str]) -> TargetSpec:
        before, self._rewritten = self._rewritten, self._rewritten.moved(variant.places)
        try:
            return self._read_target(variant.target, environment, models)
        finally:
            self._rewritten = before

    def _read_target(
        self, written: Mapping[str, Any], environment: Mapping[str, str], models: Sequence[str]
    ) -> TargetSpec:
        if not isinstance(self._data.get("target"), dict):
            return TargetSpec(kind="")
        substituted = substitute(written, environment, self._position, ("target",))
        for problem in substituted.problems:
            path = self._rewritten.written(tuple(path_steps(problem.path)))
            self._problems.append(problem._replace(path=show_path(path)))
        entry = {key: value for key, value in substituted.tree.items() if key in keys_of(TargetEntry)}
        config = {key: value for key, value in substituted.tree.items() if key not in entry}
        self._read(TargetEntry, entry, ("target",))
        if models and config.get("model") is not None:
            self._fault(("target", "model"), f"conflicts with {self._models_key[-1]!r}; keep one of them")
        if not isinstance(written.get("kind"), str):
            return TargetSpec(kind="")
        kind = target_kind(written["kind"])
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
        code = declaration.user_code
        if code is not None and isinstance(config.get(code.option), str):
            self._refer(code.role, config[code.option], ("target", code.option))
        return TargetSpec(kind=kind, config=config, secrets=frozenset(substituted.secrets))

    @property
    def _models_key(self) -> KeyPath:
        """Where the models are written: next to the target, or in it."""
        return ("models",) if self._data.get("models") else self._rewritten.written(("target", "models"))

    def _models(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        inside = self._mapping("target").get("models")
        if self._data.get("models") and inside:
            self._fault(("models",), "is written in the target too; keep one of them")
        models = self._data.get("models") or substitute(inside, environment, self._position, ("target", "models")).tree
        if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
            return ()
        twice = next((model for model in models if models.count(model) > 1), None)
        if twice is not None:
            self._fault(self._models_key, f"names {twice!r} twice; for several runs of one model use repeats")
        return tuple(models)

    def _graders(self, target: TargetSpec) -> list[GraderSpec]:
        specs = [self._grader(key, entry, target) for key, entry in self._mapping("graders").items()]
        return [spec for spec in specs if spec is not None]

    def _with_metrics(self, specs: list[GraderSpec], keys: Sequence[str], source: DatasetSource) -> list[GraderSpec]:
        """The graders, with a column for each metric that the checks of the cases name."""
        own = [spec for spec in specs if spec.kind == CHECKS]
        if not own:
            if self._first_case is not None and self._first_case.checks:
                self._warn(("graders",), "the cases have checks, and no grader is of kind checks: they have no effect")
            return specs
        for spec, found in zip(own, self._checks_of_cases(source, own), strict=True):
            path: KeyPath = ("graders", spec.key)
            for fault in checks_faults(spec, found):
                self._fault((*path, *path_steps(fault.path)), fault.message)
            named = spec.config.get("metrics")
            default = spec.config.get("default")
            metrics = dict.fromkeys(metric_names(found, default) if named is None else named)
            for column in metric_columns(spec, metrics, specs):
                if column.key in keys or column.key in {one.key for one in specs}:
                    message = f"{quote(column.key)} is a metric of checks and also a grader; rename one of them"
                    self._fault(path, message)
                else:
                    specs.append(column)
            if found.without and not default and spec.when is None:
                total = found.with_checks + found.without
                self._warn(
                    path,
                    f"{found.without:,} of {total:,} cases have no checks: they are skipped and count as without a"
                    " score; give them checks, set default, or limit the grader with when: checks",
                )
        return specs

    def _checks_of_cases(self, source: DatasetSource, specs: Sequence[GraderSpec]) -> list[ChecksInDataset]:
        """The checks of the cases, for each of the graders."""
        try:
            if not source.hub_datasets:  # those are not downloaded yet
                samples = open_dataset(source, position_of=self._position)
                return read_checks_of(samples, [spec.when for spec in specs])
        except SourceError as error:
            self._problems += error.suite_problems
        except (ConfigError, OSError):
            pass  # reported with the dataset
        return [ChecksInDataset()] * len(specs)

    def _check_inputs(self, specs: Sequence[GraderSpec], keys: Sequence[str]) -> None:
        """Report inputs that are not graders, and graders that are computed from themselves."""
        inputs = {spec.key: grader_inputs(spec) for spec in specs}
        for key, names in inputs.items():
            for name in names:
                if name not in keys:
                    self._fault(("graders", key), _no_grader(name, [one for one in keys if one != key]))
        cycle = find_cycle(inputs)
        if cycle:
            self._fault(("graders", cycle[0]), f"is computed from itself: {' → '.join(cycle)}")

    def _grader(self, key: str, entry: Any, target: TargetSpec) -> GraderSpec | None:
        path: KeyPath = ("graders", key)
        if not isinstance(entry, dict):
            self._fault(path, f"expected a mapping such as {{kind: exact_match}}, got {quote(entry)}")
            return None
        kind, function = self._kind(entry, path)
        if kind is None:
            return None
        kind = ALIASES.get(kind, kind)
        options = self._options(entry, path)
        for name, value in options.items():
            options[name] = self._of_target(value, target, (*path, name) if name in entry else (*path, "config", name))
        if kind == AGENT_JUDGE:
            written_key = self._mapping("target").get("api_key")
            inherited, fault = judge_connection(options, target.kind, target.config, written_key)
            options |= inherited
            if fault is not None:
                self._fault((*path, "api_key_env"), fault)
        known = {name: value for name, value in entry.items() if name in keys_of(GraderEntry)}
        timeout = None
        if function is None:
            timeout = self._check_builtin(kind, options, path, entry)
            if timeout is not None:
                known.pop("timeout", None)
            if "memory" in options:
                entry = {name: value for name, value in entry.items() if name != "memory"}
        else:
            for name in options:
                message = _misspelt(name) or "a custom grader takes no options; it reads sample.metadata"
                self._fault((*path, name) if name in entry else (*path, "config", name), message)
        unread: Reader = lambda value, *_: value  # noqa: E731 - read below, with faults of their own
        written = self._read(GraderEntry, known, path, {"memory": unread, "when": unread}) or GraderEntry()
        usual = graders.default_extractor(kind) if function is None else default_of(GraderEntry, "extractor")
        extractor, extractor_config = self._extractor(entry, path, usual)
        return GraderSpec(
            key=key,
            kind=kind,
            config=options,
            function=function,
            extractor=extractor,
            extractor_config=extractor_config,
            when=self._when(entry, path),
            expected=self._expected(written, path),
            pass_threshold=written.pass_threshold,
            noise=written.value_of("noise"),
            turns=written.value_of("turns"),
            timeout=written.timeout if timeout is None else timeout,
            memory=self._memory(entry, path, custom=function is not None or extractor not in extractors.registry),
        )

    def _kind(self, entry: Mapping[str, Any], path: KeyPath) -> tuple[str | None, str | None]:
        """The kind of a built-in grader, or `tool` and the function of a custom one; no kind where it is faulty."""
        kind = entry.get("kind", entry.get("type"))
        function = entry.get("function")
        if kind is None:
            self._fault((*path, "kind"), "is required; a custom grader's is 'tool'")
        elif not isinstance(kind, str):
            self._fault((*path, "kind"), f"expected the kind of a grader, got {quote(kind)}")
        elif kind != "tool" and function is not None:
            self._fault((*path, "function"), f"requires kind: tool, but the kind is {quote(kind)}; keep one of them")
        elif kind == "tool" and not isinstance(function, str):
            self._fault((*path, "function"), f"expected the name of a grader, got {quote(function)}")
        elif kind == "tool":
            name = ALIASES.get(str(function), str(function))
            origin = graders.registry.origin(name) if name in graders.registry else None
            self._refer("grader", str(function), (*path, "function"), str(path[-1]), origin)
            return ("tool", function) if origin is None else (name, None)
        else:
            return kind, None
        return None, None

    def _when(self, entry: Mapping[str, Any], path: KeyPath) -> dict[str, Any] | str | None:
        written = entry.get("when")
        if written is None:
            return None
        faults = list(condition_faults(written))
        for fault in faults:
            self._fault((*path, "when"), fault.message)
        return None if faults else written

    def _expected(self, written: GraderEntry, path: KeyPath) -> str | None:
        if written.expected is None or is_reference(written.expected):
            return written.expected
        message = f"expected a reference such as $metadata.answer, got {quote(written.expected)}"
        self._fault((*path, "expected"), f"{message}; write a value for all cases into the ground_truth of each case")
        return None

    def _memory(self, entry: Mapping[str, Any], path: KeyPath, *, custom: bool) -> int:
        written = entry.get("memory")
        if written is None:
            return GRADER_MEMORY
        if not custom:
            self._fault((*path, "memory"), "only custom graders and extractors have a memory limit; leave it out")
            return GRADER_MEMORY
        try:
            return parse_size(written)
        except ValueError as error:
            self._fault((*path, "memory"), str(error))
            return GRADER_MEMORY

    def _of_target(self, value: object, target: TargetSpec, path: KeyPath) -> object:
        """The value of an option: for ``$target.tools`` that of the target, otherwise as it is."""
        if not isinstance(value, str) or not value.startswith(_OF_TARGET):
            return value
        name = value.removeprefix(_OF_TARGET)
        if name not in _READABLE:
            names = " and ".join(f"{_OF_TARGET}{one}" for one in _READABLE)
            self._fault(path, f"a grader can take {names} from the target, got {quote(value)}")
        elif target.config.get(name) is None:
            self._fault(path, f"the target has no {name}; write them under target:, or here")
        return target.config.get(name)

    def _options(self, entry: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        config = entry.get("config")
        config = config if isinstance(config, dict) else {}
        flat = {
            key: value for key, value in entry.items() if key not in keys_of(GraderEntry) and not key.startswith("x-")
        }
        for key in flat.keys() & config.keys():
            self._fault((*path, key), "is written both inside 'config' and next to it; keep one")
        return {**config, **flat}

    def _check_builtin(
        self, kind: str, options: dict[str, Any], path: KeyPath, entry: Mapping[str, Any]
    ) -> float | None:
        """Check the options; returns the grader's timeout where it is an option of this kind."""
        try:
            declaration = graders.registry.get(kind)
        except UnknownNameError as error:
            own = find_marked_functions(self._file.parent, {Mark("grader", kind)})
            message = error.problems[0].message
            if own:
                message = f"{kind!r} is a function of {own[0].file.name}; write kind: tool, function: {kind}"
            self._fault((*path, "kind"), message)
            return None
        if not issubclass(declaration, graders.DeclaredGrader):
            return None
        nested = entry["config"] if isinstance(entry.get("config"), dict) else {}
        for name in _SHARED_KEYS:
            if name in declaration.option_names() and name in entry:
                if name in nested:
                    self._fault((*path, name), "is written both inside 'config' and next to it; keep one")
                options[name] = entry[name]
        reading = declaration.read(options, "")
        for problem in (*reading.problems, *reading.unknown):
            key = str(next(path_steps(problem.path), ""))
            if problem in reading.unknown and key not in nested and not closest_match(key, declaration.option_names()):
                problem = problem._replace(message=_misspelt(key) or problem.message)
            self._take([problem], (*path, "config") if key in nested else path)
        if not reading.problems:
            self._check_files(declaration(config=options), path, nested)
        timeout = getattr(reading.options, "timeout", None)
        if timeout is None and "timeout" in declaration.option_names():
            return float(default_of(GraderEntry, "timeout"))
        return timeout

    def _check_files(self, grader: graders.DeclaredGrader[Any], path: KeyPath, nested: Mapping[str, Any]) -> None:
        """Report what the grader finds in the files it names."""
        if type(grader).config_issues is graders.DeclaredGrader.config_issues:
            return
        for problem, fatal in grader.config_issues(self._file.parent, self._first_case):
            steps = tuple(path_steps(problem.path))
            place = (*path, "config", *steps) if steps and steps[0] in nested else (*path, *steps)
            if fatal:
                self._fault(place, problem.message)
            else:
                self._warn(place, problem.message)

    @cached_property
    def _first_case(self) -> Sample | None:
        """The first case, if it can be read: it shows which variables the others have too."""
        try:
            source = read_source(self._data.get("dataset"), self._file.parent)
            source = replace(source, columns=self._mapping("columns"))
            return None if source.hub_datasets else next(iter(open_dataset(source, limit=1)), None)
        except (ConfigError, DatasetNameError, OSError):
            return None

    def _extractor(self, entry: Mapping[str, Any], path: KeyPath, usual: str) -> tuple[str, dict[str, Any]]:
        name, config = entry.get("extractor", usual), entry.get("extractor_config") or {}
        if not isinstance(name, str) or not isinstance(config, dict):
            return usual, {}
        known = name in extractors.registry
        origin = extractors.registry.origin(name) if known else None
        self._refer("extractor", name, (*path, "extractor"), str(path[-1]), origin)
        if known:
            reading = extractors.registry.get(name).read(config, "")
            self._take([*reading.problems, *reading.unknown], (*path, "extractor_config"))
        return name, config


def _no_grader(name: str, known: Sequence[str]) -> str:
    near = closest_match(name, known)
    hint = f"did you mean {near!r}?" if near else f"the graders are {', '.join(known)}"
    return f"no grader {quote(name)}; {hint}"


def _misspelt(key: str) -> str | None:
    """A message for an unknown option that resembles a key of every grader."""
    near = closest_match(key, keys_of(GraderEntry))
    return None if near is None else f"unknown key; did you mean {near!r}?"
