"""From a suite to what a run needs: code loaded, graders made, the target open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from gradeline import extractors, graders, targets
from gradeline.engine.baselines import answers_of
from gradeline.engine.carry_out import now
from gradeline.engine.conclude import Rules
from gradeline.engine.execute import Budget, Pace, Rate
from gradeline.engine.grade import GraderUse, UserExtractor, UserGrader, UserReward
from gradeline.engine.outside import EVERYWHERE, NotedEnvironment, Outside
from gradeline.engine.pipeline import RunTask
from gradeline.errors import ConfigError, Problem
from gradeline.graders.base import Surroundings
from gradeline.model import AskingGrader, Extractor, Grader, ResponseKey, Run, RunGrader, Sample, Storage, quote
from gradeline.suite.dataset import open_dataset
from gradeline.suite.environment import read_environment
from gradeline.suite.spec import GraderSpec, Suite, TargetSpec
from gradeline.targets.base import DeclaredTarget
from gradeline.targets.registry import MODELS
from gradeline.usercode.agent_factories import ROLE as FACTORY
from gradeline.usercode.loader import TARGET, CodeSpec, Entry, Wanted, load
from gradeline.usercode.pool import WorkerPool
from gradeline.verdict import graders_of

if TYPE_CHECKING:
    from gradeline.transport import EgressPolicy

REWARD = "reward_composer"
LETTA = frozenset({"letta_agent", "letta_code"})
_QUICKLY_READ = 5_000_000
_MOST_WORKERS = 32


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


class Prepared(NamedTuple):
    """A suite that is ready to run."""

    suite: Suite
    choice: Choice
    target: DeclaredTarget[Any]
    graders: tuple[GraderUse, ...]
    pool: WorkerPool
    rules: Rules
    baselines: Mapping[str, str] = {}
    environment: NotedEnvironment = NotedEnvironment({})
    policy: EgressPolicy | None = None

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

    def expected(self, run: Run) -> int | None:
        """How many (case, repeat) there will be, where that is quickly told."""
        if self.choice.samples:
            return len(self.choice.samples) * run.repeats
        source = self.suite.dataset
        if source == []:
            return run.total  # its cases are in the store
        if isinstance(source, Path) and source.stat().st_size > _QUICKLY_READ:
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
    ) -> Run:
        """The run as it is saved before anything is asked."""
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
        )

    def described_target(self) -> dict[str, Any]:
        return {"kind": self.target.kind, "fingerprint": self.target.fingerprint, **self.target.shown}

    def run_graders(self) -> dict[str, RunGrader]:
        return {use.key: RunGrader(use.grader.kind, use.fingerprint, _judges(use)) for use in self.graders}

    def warnings(self) -> Iterator[str]:
        """What is allowed and a person should know."""
        model = (self.target.model or "").rpartition("/")[2]
        for use in self.graders:
            if model and model in {judge.partition(":")[2].rpartition("/")[2] for judge in _judges(use)}:
                yield (
                    f"{use.key}: the judge is {model}, the very model it judges; models favour their own answers,"
                    " so let one of another family judge"
                )

    def definition(self, document: dict[str, Any] | None = None) -> str:
        """What the run keeps of it; a ``document`` is the suite that is in no file."""
        file = str(self.suite.file) if document is None else ""
        return encode(Definition(file, self.choice, self.rules, dict(self.baselines), document)).decode()

    def task(self, run: Run) -> RunTask:
        return RunTask(run, self.samples, self.target, self.graders, self.pace(), self.pool)

    def pace(self) -> Pace:
        options = self.target.options
        rate = getattr(options, "rate", None)
        return Pace(
            self.choice.concurrency or getattr(options, "concurrency", None) or self.suite.concurrency,
            None if rate is None else Rate(rate.calls, rate.seconds),
            self.choice.budget or Budget(self.suite.budget.calls, self.suite.budget.cost),
            self.suite.cache,
        )


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
    reason = "changed while the run read it; look at it, then go on with: gradeline resume"
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
    chosen = _chosen(suite, choice)
    target_spec = _target_spec(suite, choice)
    async with AsyncExitStack() as stack:
        spec = _code(suite, chosen, target_spec)
        at_once = choice.concurrency or target_spec.config.get("concurrency") or suite.concurrency
        pool = await stack.enter_async_context(WorkerPool(spec, most=min(_MOST_WORKERS, int(at_once))))
        entries = (await pool.start()).entries if spec is not None else ()
        loaded = {(entry.role, entry.reference): entry for entry in entries}
        values = read_environment(suite.folder).values if outside.environment is None else outside.environment
        environment = NotedEnvironment(values)
        outside = outside._replace(environment=environment)
        surroundings = Surroundings(suite.folder, outside.environment, outside.open_transport)
        compared = {} if storage is None else _baselines(chosen, baselines or {}, storage)
        uses = [_use(_settled(grader, compared), loaded, surroundings) for grader in chosen]
        if storage is not None:
            answers = {key: answers_of(storage, run) for key, run in compared.items()}
            uses = [use._replace(baseline=answers.get(use.key)) for use in uses]
        if suite.reward is not None:
            uses.append(_reward_use(suite, suite.reward, loaded))
        given = _given(suite, target_spec, pool, loaded, storage, environment)
        if outside.policy is not None and target_spec.kind in {"http", *LETTA} and asking:
            from gradeline.transport import Transport  # loads aiohttp

            given["transport"] = await stack.enter_async_context(Transport(outside.policy))
        elif target_spec.kind in MODELS:
            given |= _model_access(outside)
        target = targets.create(target_spec.kind, _target_config(suite, target_spec), target_spec.secrets, **given)
        if suite.setup is not None and set_up:
            connection = getattr(target, "client_options", None)
            await pool.set_up({**suite.shown, "model_handle": choice.model, "connection": connection})
        if asking:
            await stack.enter_async_context(target)
        rules = _rules(suite, storage if choice.comparing else None)
        if not choice.comparing:
            rules = replace(rules, gate=None)
        yield Prepared(suite, choice, target, tuple(uses), pool, rules, compared, environment, outside.policy)


def _rules(suite: Suite, storage: Storage | None) -> Rules:
    """How the run will be judged. A baseline is the run that its name means now, before this run is the latest."""
    gate = suite.shown.get("gate")
    return Rules(
        gate if storage is None else _with_baselines(gate, storage),
        suite.coverage_floor,
        suite.agent_errors,
        suite.require_calibrated,
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
    wanted = [Wanted("grader", spec.function) for spec in chosen if spec.function is not None]
    wanted += [Wanted("extractor", spec.extractor) for spec in chosen if spec.extractor not in extractors.registry]
    if suite.reward is not None:
        wanted.append(Wanted(REWARD, suite.reward))
    exclude: tuple[str, ...] = ()
    if target.kind == "python":
        function = str(target.config.get("function"))
        exclude = (function.rpartition(":")[0],) if ".py:" in function else ()
        if target.config.get("isolation") != "none":
            wanted.append(Wanted(TARGET, function))
    if target.kind in LETTA and target.config.get("agent_script") is not None:
        wanted.append(Wanted(FACTORY, str(target.config["agent_script"])))
    if not wanted and suite.setup is None:
        return None
    return CodeSpec(str(suite.folder), tuple(wanted), suite.setup, exclude)


def _use(spec: GraderSpec, loaded: dict[tuple[str, str], Entry], surroundings: Surroundings) -> GraderUse:
    grader: Grader | UserGrader
    if spec.function is not None:
        grader = UserGrader(spec.function, loaded["grader", spec.function].fingerprint, spec.timeout)
    else:
        grader = graders.create(spec.kind, spec.config)
        if isinstance(grader, graders.DeclaredGrader):
            grader = _placed(spec, grader, surroundings)
    extractor: Extractor | UserExtractor
    if spec.extractor in extractors.registry:
        extractor = extractors.create(spec.extractor, spec.extractor_config)
    else:
        entry = loaded["extractor", spec.extractor]
        extractor = UserExtractor(spec.extractor, entry.fingerprint, spec.extractor_config, spec.timeout)
    return GraderUse(spec.key, grader, extractor, spec.pass_threshold)


def _placed(spec: GraderSpec, grader: graders.DeclaredGrader[Any], surroundings: Surroundings) -> Grader:
    try:
        return grader.within(surroundings)
    except ConfigError as error:
        raise ConfigError([problem.within(f"graders.{spec.key}") for problem in error.problems]) from None


def _reward_use(suite: Suite, function: str, loaded: dict[tuple[str, str], Entry]) -> GraderUse:
    reward = UserReward(function, loaded[REWARD, function].fingerprint)
    return GraderUse(suite.reward_key, reward, extractors.create("last_assistant"))


def _given(
    suite: Suite,
    spec: TargetSpec,
    pool: WorkerPool,
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
            return {"function": here, "code": code}
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


def _model_access(outside: Outside) -> dict[str, Any]:
    if outside.policy is None:
        return {"environment": outside.environment}
    from gradeline.adapters.endpoint import Settings  # few runs are given a policy

    return {"environment": outside.environment, "settings": Settings(open_transport=outside.open_transport)}


def _load_here(folder: Path, reference: str) -> tuple[Callable[..., Any], str]:
    """The function and the fingerprint of its code."""
    loaded = load(CodeSpec(str(folder), (Wanted(TARGET, reference),)))
    if loaded.manifest.faults:
        raise ConfigError([Problem(fault.file or reference, fault.message) for fault in loaded.manifest.faults])
    return loaded.function(TARGET, reference), loaded.manifest.entries[0].fingerprint


def _stored_responses(storage: Storage, wanted: str) -> Callable[[Sample], Any]:
    run = storage.find_run(wanted)
    return lambda sample: storage.get_response(ResponseKey(run.id, sample.case_key, 0))
