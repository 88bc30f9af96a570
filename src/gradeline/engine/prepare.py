"""From a suite to what a run needs: code loaded, graders made, the target open."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from gradeline import extractors, graders, targets
from gradeline.engine.baselines import answers_of
from gradeline.engine.breaker import DEFAULT_LIMIT
from gradeline.engine.carry_out import now
from gradeline.engine.conclude import Rules
from gradeline.engine.execute import AGENT, Budget, Pace, Rate
from gradeline.engine.faults import Faults
from gradeline.engine.grade import GraderUse, UserExtractor, UserGrader, UserReward
from gradeline.engine.outside import EVERYWHERE, NotedEnvironment, Observer, Outside
from gradeline.engine.pipeline import RunTask, paid_parts, unpriced_of
from gradeline.engine.plugins import guard_grader, guard_target, is_plugin_grader, is_plugin_target, plugin_code
from gradeline.errors import ConfigError, Problem
from gradeline.graders.adapt import AdaptedGrader
from gradeline.model import AskingGrader, Extractor, Grader, ResponseKey, Run, RunGrader, Sample, Storage, quote
from gradeline.model.bound_secret import SecretSet
from gradeline.model.resources import EgressPolicy, Resources
from gradeline.suite.clusters import cluster_warnings
from gradeline.suite.dataset import open_dataset
from gradeline.suite.environment import read_environment
from gradeline.suite.near_duplicates import LOOKED_AT, near_duplicate_warning
from gradeline.suite.spec import GraderSpec, Suite, TargetSpec
from gradeline.targets.base import DeclaredTarget
from gradeline.usercode.agent_factories import ROLE as FACTORY
from gradeline.usercode.loader import SETUP, TARGET, CodeSpec, Entry, LoadError, Reserved, Wanted, load
from gradeline.usercode.memory import target_memory
from gradeline.usercode.pools import CodeRunner, WorkerPools
from gradeline.usercode.sources import user_folders
from gradeline.verdict import graders_of

if TYPE_CHECKING:
    from gradeline.adapters.prices import Prices

REWARD = "reward_composer"
LETTA = frozenset({"letta_agent", "letta_code"})
_QUICKLY_READ = 5_000_000
_MOST_WORKERS = 32


ReadSamples: TypeAlias = "Callable[[], Iterable[Sample]]"
"""Gives the cases of a run, anew each time."""


class Choice(NamedTuple):
    """What of a suite is to be run, and how."""

    limit: int | None = None
    tags: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    graders: tuple[str, ...] = ()
    repeats: int | None = None
    concurrency: int | None = None
    model: str | None = None
    cached: str | None = None
    """A folder of letta's results that answers instead of the agent."""
    overrides: tuple[str, ...] = ()
    """``key=value`` texts that stand over what the suite file says."""
    budget: Budget | None = None
    comparing: bool = True
    """Whether graders that need a baseline are used; without them a gate over them is not judged."""
    models: tuple[str, ...] = ()
    """Those that are run one after the other, as a group; ``model`` is the run's own."""
    output: str | None = None
    """A folder that gets letta's result files at the end."""
    prices: tuple[str, ...] = ()
    """``0.15/0.60`` or ``MODEL=0.15/0.60``: what tokens cost, in US dollars per million."""


class Definition(Struct, frozen=True):
    """What a run was asked to do, as the run keeps it."""

    suite: str
    """The file."""
    choice: Choice
    rules: Rules = Rules()
    baselines: dict[str, str] = {}
    """The run that each grader compares with, where it compares."""
    document: dict[str, Any] | None = None
    """The suite itself, where there is no file; the run then has its cases stored from the beginning."""

    @classmethod
    def of(cls, run: Run) -> Definition:
        """What that run was asked to do, or `ConfigError` where it does not say."""
        try:
            return decode(run.definition or "", type=cls)
        except ValueError:
            raise ConfigError(Problem(run.id, "the run does not say which suite it is of")) from None


@runtime_checkable
class Closable(Protocol):
    """A grader that holds connections."""

    async def aclose(self) -> None: ...


class Prepared(NamedTuple):
    """A suite that is ready to run."""

    suite: Suite
    choice: Choice
    target: DeclaredTarget[Any]
    graders: tuple[GraderUse, ...]
    pool: CodeRunner
    rules: Rules
    baselines: Mapping[str, str] = {}
    environment: NotedEnvironment = NotedEnvironment({})
    policy: EgressPolicy | None = None
    notes: tuple[str, ...] = ()
    """What was found while it was made ready, and a person should know."""
    prepared_s: float = 0.0
    """Seconds that it took to make it ready."""
    prices: Prices | None = None
    """The table with the user's prices over it; None where the user gave none."""
    secrets: SecretSet | None = None
    """The secrets whose markers are in the suite and in the variables."""
    observer: Observer = Observer()

    def samples(self) -> Iterator[Sample]:
        """The chosen cases, read anew each time."""
        chosen = self.choice
        wanted = set(chosen.samples)
        source = self.suite.dataset
        before = _state(source)
        dataset = open_dataset(
            source,
            tags=chosen.tags or self.suite.tags,
            limit=0 if wanted else self.suite.limit if chosen.limit is None else chosen.limit,
            folder=self.suite.folder,
            cluster=self.suite.cluster,
        )
        for sample in _unchanged(dataset, source, before):
            if chosen.samples:
                if sample.case_key not in wanted:
                    continue
                wanted.discard(sample.case_key)
            problems = self.target.problems_with(sample)
            if problems:
                raise ConfigError(problems, f"case {sample.case_key!r}")
            yield sample
        if wanted:
            missing = ", ".join(map(quote, sorted(wanted)[:5]))
            raise ConfigError(Problem("--sample", f"the dataset has no case {missing}"))
        if _state(source) != before:
            raise _changed_meanwhile(source)

    def require_cases(self) -> None:
        """`ConfigError` where there is nothing to run."""
        for _ in self.samples():
            return
        source = self.suite.dataset
        place = str(source) if isinstance(source, Path) else "dataset"
        tags = self.choice.tags or self.suite.tags
        having = f" with the tags {', '.join(map(quote, tags))}" if tags else ""
        raise ConfigError(Problem(place, f"holds no case to run{having}"))

    @property
    def _quickly_read(self) -> bool:
        source = self.suite.dataset
        return not isinstance(source, Path) or source.stat().st_size <= _QUICKLY_READ

    def expected(self, run: Run) -> int | None:
        """How many (case, repeat) there will be, where that is quickly told."""
        if self.choice.samples:
            return len(self.choice.samples) * run.repeats
        source = self.suite.dataset
        if source == []:
            return run.total  # its cases are in the store
        if not self._quickly_read:
            return None
        try:
            return sum(1 for _ in self.samples()) * run.repeats
        except ConfigError:
            return None  # the run itself will say what is wrong, at its place

    def new_run(
        self,
        name: str | None = None,
        parent: str | None = None,
        seed: int | None = None,
        group: str | None = None,
        warnings: Iterable[str] = (),
    ) -> Run:
        """The run as it is saved before anything is asked; it keeps the suite's own warnings and these."""
        suite = self.suite
        return Run(
            name=name or suite.name,
            suite=suite.name,
            suite_digest=suite.digest,
            target=self.described_target(),
            graders=self.run_graders(),
            group=group,
            parent=parent,
            seed=suite.seed if seed is None else seed,
            repeats=self.choice.repeats or suite.repeats,
            started_at=now(),
            definition=self.definition(),
            warnings=(*suite.warnings, *warnings),
        )

    def described_target(self) -> dict[str, Any]:
        return {"kind": self.target.kind, "fingerprint": self.target.fingerprint, **self.target.shown}

    def run_graders(self) -> dict[str, RunGrader]:
        return {
            use.key: RunGrader(
                use.grader.kind,
                use.fingerprint,
                _judges(use),
                use.pass_threshold,
                use.turns,
                getattr(use.grader, "both_orders", False),
                getattr(use.grader, "judge_id", ""),
                use.noise,
            )
            for use in self.graders
        }

    def warnings(self, samples: ReadSamples | None = None) -> Iterator[str]:
        """What is allowed and a person should know before the run begins.

        ``samples`` reads the cases where they are not in the suite. `ConfigError` where no case has its cluster key.
        """
        yield from self.notes
        yield from self.cluster_warnings(samples)
        if self._quickly_read:
            with suppress(ConfigError):  # the run itself reports a faulty row, at its place
                yield from self.rubric_warnings(samples)
        model = (self.target.model or "").rpartition("/")[2]
        for use in self.graders:
            if model and model in {judge.partition(":")[2].rpartition("/")[2] for judge in _judges(use)}:
                yield (
                    f"{use.key}: the judge is {model}, the very model it judges; models favour their own answers,"
                    " so let one of another family judge"
                )

    def cluster_warnings(self, samples: ReadSamples | None = None) -> Iterator[str]:
        """What a person should know of the cases' clusters; `ConfigError` where no case has the suite's key.

        All cases are read where they have clusters, else only the first.
        """
        if samples is None:
            if self.suite.dataset == []:
                return  # they are in the store, and were looked at when they came there
            samples = self.samples
        if self.suite.cluster is None:
            with suppress(ConfigError):  # the run itself reports a faulty row, at its place
                first = list(islice(samples(), LOOKED_AT))
                warning = near_duplicate_warning(first)
                if warning is not None:
                    yield warning
                if any(sample.cluster for sample in first):
                    yield from cluster_warnings(samples(), None)
            return
        yield from cluster_warnings(samples(), self.suite.cluster)

    def rubric_warnings(self, samples: ReadSamples | None = None) -> Iterator[str]:
        """Which cases have a rubric of their own that leaves the answer out; reads all cases where judges use those."""
        if not any(getattr(use.grader, "case_rubrics", False) for use in self.graders):
            return
        from gradeline.judges.prompts import mentions_submission  # few suites have judges

        read = samples or self.samples
        found = [one.case_key for one in read() if one.rubric and not mentions_submission(one.rubric)]
        if found:
            cases = f"case {quote(found[0])}" + (f" and {len(found) - 1} more" if len(found) > 1 else "")
            yield f"dataset: the rubric of {cases} does not mention {{submission}}; the answer is appended"

    def definition(self, document: dict[str, Any] | None = None) -> str:
        """What the run keeps of it; a ``document`` is the suite that is in no file."""
        file = str(self.suite.file) if document is None else ""
        return encode(Definition(file, self.choice, self.rules, dict(self.baselines), document)).decode()

    def task(self, run: Run) -> RunTask:
        price = None if self.prices is None else self.prices.given(self.target.model)
        task = RunTask(run, self.samples, self.target, self.graders, self.pace(), self.pool)
        return task._replace(prepared_s=self.prepared_s, price=price)

    def pace(self) -> Pace:
        options = self.target.options
        rate = getattr(options, "rate", None)
        return Pace(
            requested_concurrency(self.suite, self.choice).calls,
            None if rate is None else Rate(rate.calls, rate.seconds),
            self.choice.budget or Budget(self.suite.budget.calls, self.suite.budget.cost),
            self.suite.cache,
            # stored answers reach no agent: a failed call among them does not show that one is down now
            getattr(options, "stop_after_connection_failures", DEFAULT_LIMIT) if self.target.timed else 0,
        )


class RequestedConcurrency(NamedTuple):
    """The calls in flight that a run asks for, and where that is written."""

    calls: int
    path: str

    def check(self, most: int) -> None:
        """`ConfigError` where it asks for more than it may."""
        if self.calls > most:
            reason = f"{self.calls:,} calls in flight are more than the maximum of {most:,}; use {most:,} or fewer"
            raise ConfigError(Problem(self.path, reason))


def requested_concurrency(suite: Suite, choice: Choice) -> RequestedConcurrency:
    """The choice decides, else the target, else the suite."""
    own = suite.target.config.get("concurrency")
    if choice.concurrency:
        return RequestedConcurrency(choice.concurrency, "concurrency")
    if isinstance(own, int) and own > 0:
        return RequestedConcurrency(own, "target.concurrency")
    return RequestedConcurrency(suite.concurrency, "concurrency")


def _judges(use: GraderUse) -> tuple[str, ...]:
    return use.grader.judges if isinstance(use.grader, AskingGrader) else ()


def _unchanged(dataset: Iterator[Sample], source: object, before: object) -> Iterator[Sample]:
    """The samples; where a row is wrong because the file was written over, that is what is said."""
    try:
        yield from dataset
    except ConfigError:
        if _state(source) == before:
            raise
        raise _changed_meanwhile(source) from None


def _changed_meanwhile(source: object) -> ConfigError:
    reason = "changed while the run read it; check what changed"
    return ConfigError(Problem(str(source), reason))


def _state(source: object) -> tuple[int, int, int] | None:
    """What tells that a file was written to."""
    if not isinstance(source, Path):
        return None
    try:
        stat = source.stat()
    except OSError:
        return (0, 0, 0)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@asynccontextmanager
async def prepare(
    suite: Suite,
    choice: Choice,
    storage: Storage | None = None,
    *,
    set_up: bool = True,
    asking: bool = True,
    baselines: Mapping[str, str] | None = None,
    outside: Outside = EVERYWHERE,
) -> AsyncIterator[Prepared]:
    """Load, make and open everything a run of the suite needs; `ConfigError` for what is wrong.

    Without ``set_up`` the suite's setup function is loaded and not called: it may need what a check must not touch.
    Without ``asking`` the target is not opened: grading needs none of what it needs, such as a key.
    ``baselines`` says by grader which runs are compared with; where it is silent, the suite says.
    ``outside`` bounds what agents and models are reached by.
    """
    started = perf_counter()
    chosen = _chosen(suite, choice)
    target_spec = _target_spec(suite, choice)
    async with AsyncExitStack() as stack:
        spec = _code(suite, chosen, target_spec)
        faults = Faults(suite)
        requested = requested_concurrency(suite, choice)
        with faults.collected():
            requested.check(outside.max_concurrency)
        most = min(_MOST_WORKERS, requested.calls)
        pool = await stack.enter_async_context(WorkerPools(spec, most=most, on_death=outside.observer.worker_died))
        entries: tuple[Entry, ...] = ()
        if spec is not None:
            with faults.collected():
                entries = (await pool.start()).entries
        loaded = {(entry.role, entry.reference): entry for entry in entries}
        values = read_environment(suite.folder).values if outside.environment is None else outside.environment
        environment = NotedEnvironment(values)
        outside = outside._replace(environment=environment)
        prices = _prices(suite, choice)
        resources = Resources(suite.folder, outside.environment, outside.policy, prices, outside.secrets)
        compared: dict[str, str] = {}
        if storage is not None:
            with faults.collected():
                compared = _baselines(chosen, baselines or {}, storage)
        uses: list[GraderUse] = []
        for grader in chosen:
            if _is_loaded(grader, loaded):
                with faults.collected():
                    uses.append(_use(_settled(grader, compared), loaded, resources))
        for use in uses:
            if isinstance(use.grader, Closable):
                stack.push_async_callback(use.grader.aclose)
        if storage is not None:
            answers = {key: answers_of(storage, run) for key, run in compared.items()}
            uses = [use._replace(baseline=answers.get(use.key)) for use in uses]
        if suite.reward is not None and (REWARD, suite.reward) in loaded:
            uses.append(_reward_use(suite, suite.reward, loaded))
        target: DeclaredTarget[Any] | None = None
        with faults.collected():
            target = _made_target(suite, target_spec, pool, loaded, storage, resources)
        notes: list[str] = []
        if suite.setup is not None and set_up and target is not None and not faults:
            notes += await _set_up(suite, suite.setup, choice, loaded, pool, target)
        if asking and target is not None:
            with faults.collected():
                await stack.enter_async_context(target)
        if target is not None and not faults:
            with faults.collected():
                notes += _budget_notes(suite, choice, target, uses, asking=asking)
        if faults:
            with faults.collected():
                _check_rows(suite, choice)
        faults.report()
        assert target is not None  # noqa: S101 - without one there were faults
        rules = _rules(suite, storage if choice.comparing else None)
        if not choice.comparing:
            rules = replace(rules, gate=None)
        yield Prepared(
            suite,
            choice,
            target,
            tuple(uses),
            pool,
            rules,
            compared,
            environment,
            outside.policy,
            tuple(notes),
            perf_counter() - started,
            prices,
            outside.secrets,
            outside.observer,
        )


def _is_loaded(spec: GraderSpec, loaded: Mapping[tuple[str, str], Entry]) -> bool:
    """Whether the code that a grader needs could be loaded."""
    own = [("grader", spec.function)] if spec.function is not None else []
    if spec.extractor not in extractors.registry:
        own.append(("extractor", spec.extractor))
    return all(one in loaded for one in own)


def _made_target(
    suite: Suite,
    spec: TargetSpec,
    pool: WorkerPools,
    loaded: dict[tuple[str, str], Entry],
    storage: Storage | None,
    resources: Resources,
) -> DeclaredTarget[Any] | None:
    """The target, not opened yet; None where its code could not be loaded."""
    function = str(spec.config.get("function"))
    if spec.kind == "python" and spec.config.get("isolation") != "none" and (TARGET, function) not in loaded:
        return None
    given = _given(suite, spec, pool, loaded, storage, resources.environment or {})
    with plugin_code(resources.policy, is_plugin_target(spec.kind)):
        target = targets.create(spec.kind, _target_config(suite, spec), spec.secrets, **given).bind(resources)
    guard_target(target, resources.policy)
    return target


async def _set_up(
    suite: Suite,
    function: str,
    choice: Choice,
    loaded: Mapping[tuple[str, str], Entry],
    pool: WorkerPools,
    target: DeclaredTarget[Any],
) -> list[str]:
    """Call the setup function; gives a warning where it cannot be called."""
    if choice.cached is not None and "client" in loaded[SETUP, function].parameters:
        reason = "it needs a client, and with --cached no agent is called"
        return [f"setup_script: {function} was not called: {reason}"]
    connection = getattr(target, "client_options", None)
    await pool.set_up({**suite.shown, "model_handle": choice.model, "connection": connection})
    return []


def _check_rows(suite: Suite, choice: Choice) -> None:
    """`ConfigError` for a row that is wrong; of a large dataset the run itself reports it."""
    source = suite.dataset
    if isinstance(source, Path) and source.stat().st_size > _QUICKLY_READ:
        return
    for _ in open_dataset(source, tags=choice.tags or suite.tags, folder=suite.folder, cluster=suite.cluster):
        pass


def _rules(suite: Suite, storage: Storage | None) -> Rules:
    """How the run will be judged. A baseline is the run that its name means now, before this run is the latest."""
    gate = suite.shown.get("gate")
    return Rules(
        gate if storage is None else _with_baselines(gate, storage),
        suite.coverage_floor,
        suite.agent_errors,
        suite.require_calibrated,
        suite.primary,
    )


def _with_baselines(gate: Any, storage: Storage) -> Any:
    if isinstance(gate, list):
        return [_with_baselines(item, storage) for item in gate]
    if not isinstance(gate, dict):
        return gate
    found = {key: _with_baselines(value, storage) for key, value in gate.items()}
    if isinstance(found.get("baseline"), str):
        found["baseline"] = storage.find_run(found["baseline"]).id
    return found


def _baselines(chosen: list[GraderSpec], given: Mapping[str, str], storage: Storage) -> dict[str, str]:
    """The run that each grader compares with, by its id: what ``latest`` means must not change while a run goes on."""
    found: dict[str, str] = {}
    for spec in chosen:
        if not compares(spec):
            continue
        name = given.get(spec.key) or spec.config.get("baseline")
        if not name:
            reason = (
                "names no run to compare with; write baseline: RUN there, use --baseline RUN, or choose the other"
                " graders with --grader"
            )
            raise ConfigError(Problem(f"graders.{spec.key}.baseline", reason))
        found[spec.key] = storage.find_run(str(name)).id
    return found


def compares(spec: GraderSpec) -> bool:
    """Whether the grader looks at a baseline's answer too."""
    if spec.function is not None:
        return False
    declaration = graders.registry.get(spec.kind)
    return issubclass(declaration, graders.DeclaredGrader) and "baseline" in declaration.needs


def _settled(spec: GraderSpec, baselines: Mapping[str, str]) -> GraderSpec:
    """The grader with the run it compares with by its id, which then is part of its fingerprint."""
    if spec.key not in baselines:
        return spec
    return replace(spec, config={**spec.config, "baseline": baselines[spec.key]})


def _chosen(suite: Suite, choice: Choice) -> list[GraderSpec]:
    known = {spec.key: spec for spec in suite.graders}
    unknown = [key for key in choice.graders if key not in known]
    if unknown:
        raise ConfigError(Problem("--grader", f"no grader {unknown[0]!r} in the suite; it has {', '.join(known)}"))
    chosen = [spec for spec in suite.graders if not choice.graders or spec.key in choice.graders]
    if not choice.comparing:
        return [spec for spec in chosen if not compares(spec)]
    if suite.gate is not None:
        missing = set(graders_of(suite.gate, suite.columns)) - {spec.key for spec in chosen} - {suite.reward_key}
        if missing:
            needed = ", ".join(map(repr, sorted(missing)))
            raise ConfigError(Problem("--grader", f"the suite's gate needs {needed}; choose it too"))
    return chosen


def _target_spec(suite: Suite, choice: Choice) -> TargetSpec:
    """The target as this run asks it: with its model, or letta's stored results in its place."""
    if choice.cached is not None:
        config: dict[str, Any] = {"cached": choice.cached}
        return TargetSpec(kind="replay", config=config if choice.model is None else {**config, "model": choice.model})
    if choice.model is None:
        return suite.target
    config = {**suite.target.config, "model": choice.model}
    return TargetSpec(kind=suite.target.kind, config=config, secrets=suite.target.secrets)


def _code(suite: Suite, chosen: list[GraderSpec], target: TargetSpec) -> CodeSpec | None:
    """The user code that the workers load; None where there is none."""
    wanted = [Wanted("grader", spec.function, spec.memory) for spec in chosen if spec.function is not None]
    wanted += [
        Wanted("extractor", spec.extractor, spec.memory) for spec in chosen if spec.extractor not in extractors.registry
    ]
    if suite.reward is not None:
        wanted.append(Wanted(REWARD, suite.reward))
    exclude: tuple[str, ...] = ()
    if target.kind == "python":
        function = str(target.config.get("function"))
        exclude = (function.rpartition(":")[0],) if ".py:" in function else ()
        if target.config.get("isolation") != "none":
            wanted.append(Wanted(TARGET, function, target_memory(target.config.get("memory"))))
    if target.kind in LETTA and target.config.get("agent_script") is not None:
        wanted.append(Wanted(FACTORY, str(target.config["agent_script"])))
    if not wanted and suite.setup is None:
        return None
    keys = {spec.key for spec in chosen}
    reserved = tuple(
        Reserved(reference.role, reference.name, reference.origin)
        for reference in suite.references
        if reference.origin is not None and reference.grader in keys
    )
    return CodeSpec(str(suite.folder), tuple(wanted), suite.setup, exclude, reserved)


def _use(spec: GraderSpec, loaded: dict[tuple[str, str], Entry], resources: Resources) -> GraderUse:
    grader: Grader | UserGrader
    if spec.function is not None:
        grader = UserGrader(
            spec.function, loaded["grader", spec.function].fingerprint, spec.timeout, memory=spec.memory
        )
    else:
        grader = bound_grader(spec.kind, spec.config, resources, f"graders.{spec.key}")
    extractor: Extractor | UserExtractor
    if spec.extractor in extractors.registry:
        extractor = extractors.create(spec.extractor, spec.extractor_config)
    else:
        entry = loaded["extractor", spec.extractor]
        extractor = UserExtractor(spec.extractor, entry.fingerprint, spec.extractor_config, spec.timeout, spec.memory)
    return GraderUse(spec.key, grader, extractor, spec.pass_threshold, turns=spec.turns, noise=spec.noise)


def bound_grader(kind: str, config: Mapping[str, Any], resources: Resources, place: str = "") -> Grader:
    """A grader that is ready to be used with these resources; ``place`` leads the problems of a `ConfigError`."""
    with plugin_code(resources.policy, is_plugin_grader(kind)):
        grader = graders.create(kind, config)
        try:
            bound = grader.bind(resources) if isinstance(grader, graders.DeclaredGrader | AdaptedGrader) else grader
        except ConfigError as error:
            raise ConfigError([problem.within(place) if place else problem for problem in error.problems]) from None
    guard_grader(bound, resources.policy, kind)
    return bound


def _reward_use(suite: Suite, function: str, loaded: dict[tuple[str, str], Entry]) -> GraderUse:
    reward = UserReward(function, loaded[REWARD, function].fingerprint)
    return GraderUse(suite.reward_key, reward, extractors.create("last_assistant"))


def _given(
    suite: Suite,
    spec: TargetSpec,
    pool: WorkerPools,
    loaded: dict[tuple[str, str], Entry],
    storage: Storage | None,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """What a target takes beside its config."""
    config = spec.config
    if spec.kind == "python":
        function = str(config["function"])
        if config.get("isolation") == "none":
            here, code = _load_here(suite.folder, function)
            return {"function": here, "code": code, "folders": user_folders(suite.folder)}
        return {"pool": pool, "code": loaded[TARGET, function].fingerprint}
    if spec.kind == "command":
        return {"folder": suite.folder}
    if spec.kind in LETTA:
        factory = loaded.get((FACTORY, str(config.get("agent_script"))))
        return {
            "folder": suite.folder,
            "environment": environment,
            "pool": pool,
            "code": "" if factory is None else factory.fingerprint,
            "cleanup": suite.cleanup,
        }
    if spec.kind == "replay" and config.get("run") and storage is not None:
        return {"responses": _stored_responses(storage, str(config["run"]))}
    return {}


def _target_config(suite: Suite, spec: TargetSpec) -> dict[str, Any]:
    """The target's options, with the files they name."""
    config = dict(spec.config)
    if spec.kind == "replay":
        for key in ("responses", "cached"):
            if config.get(key):
                config[key] = str(suite.folder / str(config[key]))
    return config


def _budget_notes(
    suite: Suite, choice: Choice, target: DeclaredTarget[Any], uses: list[GraderUse], *, asking: bool
) -> Iterator[str]:
    """What a limit on the cost does not cover; `ConfigError` where it covers nothing."""
    limit = suite.budget.cost if choice.budget is None else choice.budget.cost
    parts = paid_parts(target, uses, asking=asking)
    without = {use.key: [judge.partition(":")[2] for judge in unpriced_of(use)] for use in uses if unpriced_of(use)}
    if parts.get(AGENT, True) is False:
        without = {AGENT: [target.model or target.kind], **without}
    if limit is None or not without:
        return
    models = [model for named in without.values() for model in named]
    unpriced = "no price is known for " + ", ".join(f"{name} ({', '.join(named)})" for name, named in without.items())
    remedy = (
        f"give one with prices: {{{models[0]}: {{input: …, output: …}}}} in the suite, or with --assume-price"
        f" {models[0]}=INPUT/OUTPUT (US dollars per million tokens), or limit calls instead"
    )
    if len(without) < len(parts):
        yield f"the budget of {limit:g} does not count all calls: {unpriced}; {remedy}"
        return
    place = "budget.cost" if choice.budget is None else "--budget"
    raise ConfigError(Problem(place, f"{unpriced}, so a budget of {limit:g} would limit nothing; {remedy}"))


def _prices(suite: Suite, choice: Choice) -> Prices | None:
    """The table with the user's prices over it; None where the user gave none."""
    if not suite.prices and not choice.prices:
        return None
    from gradeline.adapters.prices import Prices, assumed_prices, flat_price  # few runs are given prices

    own = {
        model: flat_price(price.input, price.output, price.cached_input, price.cache_write)
        for model, price in suite.prices.items()
    }
    by_model, assumed = assumed_prices(choice.prices)
    return Prices.load().updated(Prices(own={**own, **by_model}, assumed=assumed))


def _load_here(folder: Path, reference: str) -> tuple[Callable[..., Any], str]:
    """The function and the fingerprint of its code."""
    with _exits_raised():
        loaded = load(CodeSpec(str(folder), (Wanted(TARGET, reference),)), interruptible=True)
    if loaded.manifest.faults:
        raise LoadError(loaded.manifest.faults)
    return loaded.function(TARGET, reference), loaded.manifest.entries[0].fingerprint


@contextmanager
def _exits_raised() -> Iterator[None]:
    """Code that ends the process while it is loaded is reported, as code that calls ``sys.exit`` is."""
    leave, process = os._exit, os.getpid()

    def exit_or_raise(status: int) -> NoReturn:
        if os.getpid() != process:  # a child that the code forked
            leave(status)
        raise SystemExit(status)

    os._exit = exit_or_raise
    try:
        yield
    finally:
        os._exit = leave


def _stored_responses(storage: Storage, wanted: str) -> Callable[[Sample], Any]:
    run = storage.find_run(wanted)
    return lambda sample: storage.get_response(ResponseKey(run.id, sample.case_key, 0))
