"""Builds what a run needs from its suite: code loaded, graders and target created, options checked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from msgspec.json import encode
from msgspec.structs import replace

from gradeline.engine.calibrated_judges import CalibrationLookup, learning_notes, with_calibration
from gradeline.engine.components import (
    REWARD,
    UNRESTRICTED,
    Access,
    InProcessCode,
    RecordingEnvironment,
    WorkerObserver,
    baseline_responses,
    baseline_runs,
    build_grader_use,
    build_reward_use,
    build_target,
    code_spec,
    is_loaded,
    needs_baseline,
    run_prices,
    with_baseline_run,
    with_inputs,
)
from gradeline.engine.definition import Rules, RunBudget, RunDefinition, RunOptions, now, requested_concurrency
from gradeline.engine.execute import DEFAULT_LIMIT, CallLimits, Rate
from gradeline.engine.grade import GraderUse
from gradeline.engine.pipeline import RunTask
from gradeline.engine.validation import ProblemCollector, budget_notes, check_rows, is_small
from gradeline.errors import ConfigError, GraderError, Problem
from gradeline.model import (
    AsyncGrader,
    Run,
    RunGrader,
    Sample,
    Storage,
    quote,
)
from gradeline.model.resources import EgressPolicy, Resources
from gradeline.model.secrets import SecretSet
from gradeline.suite.clusters import COMPARED_CASES, cluster_warnings, near_duplicate_warning
from gradeline.suite.column_order import grader_inputs, in_order
from gradeline.suite.dataset import open_dataset
from gradeline.suite.dataset_source import DatasetSource, pinned_digest, with_local_files
from gradeline.suite.environment import read_environment
from gradeline.suite.spec import GraderSpec, SuiteDefinition, Variant
from gradeline.targets.base import DeclaredTarget
from gradeline.usercode.loader import SETUP, CodeSpec, FunctionEntry
from gradeline.usercode.pools import CodeRunner, WorkerPools
from gradeline.verdict import graders_of

if TYPE_CHECKING:
    from gradeline.adapters.costs import Prices

_MAX_WORKERS = 32


ReadSamples: TypeAlias = "Callable[[], Iterable[Sample]]"
"""Reads the cases of a run, anew on each call."""


@runtime_checkable
class Closable(Protocol):
    """A grader that holds connections."""

    async def aclose(self) -> None: ...


class LoadedCode(NamedTuple):
    """User code that was loaded, and what was found in it."""

    spec: CodeSpec | None = None
    """None: the suite has no code."""
    entries: tuple[FunctionEntry, ...] = ()


NO_CODE = LoadedCode()


class PreparedRun(NamedTuple):
    """A suite with its code loaded, its graders created and its target open."""

    suite: SuiteDefinition
    options: RunOptions
    target: DeclaredTarget[Any]
    graders: tuple[GraderUse, ...]
    pool: CodeRunner
    workers: WorkerPools
    rules: Rules
    baselines: Mapping[str, str] = {}
    environment: RecordingEnvironment = RecordingEnvironment({})
    policy: EgressPolicy | None = None
    notes: tuple[str, ...] = ()
    """Warnings found while preparing."""
    prepared_s: float = 0.0
    """Seconds spent on preparing."""
    prices: Prices | None = None
    """The price table with the user's prices; None if the user set none."""
    secrets: SecretSet | None = None
    """The secrets whose markers are in the suite and in the environment."""
    observer: WorkerObserver = WorkerObserver()
    code: LoadedCode = NO_CODE
    """The user code of the suite."""
    code_loaded: bool = True
    """False: `start` loads the code."""
    calibrations: Mapping[str, int] = {}
    """The calibrations that its judges use, as `CalibrationLookup.used`."""

    async def start(self) -> None:
        """Load the code, unless that is done, and call the setup function; `ConfigError` if either fails.

        Planning does not call this: a setup function may change what a check must not touch.
        """
        if self.code.spec is not None and not self.code_loaded:
            await self.workers.start()
        if self.suite.setup is not None and not _skips_setup(self.suite, self.options, self.code.entries):
            connection = getattr(self.target, "client_options", None)
            suite = {**self.suite.shown, "model_handle": self.target.model, "connection": connection}
            await self.workers.set_up(suite)

    def samples(self) -> Iterator[Sample]:
        """The selected cases, read anew on each call."""
        options = self.options
        wanted = set(options.samples)
        source = self.suite.dataset
        before = source.state
        dataset = open_dataset(
            source,
            tags=options.tags or self.suite.tags,
            limit=0 if wanted else self.suite.limit if options.limit is None else options.limit,
            folder=self.suite.folder,
            cluster=self.suite.cluster,
        )
        for sample in _unchanged(dataset, source, before):
            if options.samples:
                if sample.case_key not in wanted:
                    continue
                wanted.discard(sample.case_key)
            problems = self.target.problems_with(sample)
            if problems:
                raise ConfigError(problems, f"case {sample.case_key!r}")
            yield sample
        if wanted:
            missing = ", ".join(map(quote, sorted(wanted)[:5]))
            hint = ""
            if source.scheme == "content" and all(map(str.isdecimal, wanted)):
                hint = "; rows without an id are named by a digest of their content, unless columns has id: $number"
            raise ConfigError(Problem("--sample", f"the dataset has no case {missing}{hint}"))
        if source.state != before:
            raise _changed_meanwhile(source)

    def require_cases(self) -> None:
        """`ConfigError` if no case is selected."""
        for _ in self.samples():
            return
        place = str(self.suite.dataset)
        tags = self.options.tags or self.suite.tags
        having = f" with the tags {', '.join(map(quote, tags))}" if tags else ""
        raise ConfigError(Problem(place, f"holds no case to run{having}"))

    def expected(self, run: Run) -> int | None:
        """The number of (case, repeat), unless the dataset is too large to be counted first."""
        if self.options.samples:
            return len(self.options.samples) * run.repeats
        if self.suite.dataset.is_empty:
            return run.total  # its cases are in the store
        if not is_small(self.suite.dataset):
            return None
        try:
            return sum(1 for _ in self.samples()) * run.repeats
        except ConfigError:
            return None  # the run itself reports what is wrong, with its place

    def new_run(
        self,
        name: str | None = None,
        parent: str | None = None,
        seed: int | None = None,
        group: str | None = None,
        warnings: Iterable[str] = (),
        document: dict[str, Any] | None = None,
    ) -> Run:
        """The run as it is stored before the first call, with the suite's own warnings and these."""
        suite = self.suite
        return Run(
            name=name or suite.name,
            suite=suite.name,
            suite_digest=suite.digest,
            target=self.described_target(),
            variant=suite.variants[0].name,
            graders=self.run_graders(),
            group=group,
            parent=parent,
            seed=suite.seed if seed is None else seed,
            repeats=self.options.repeats or suite.repeats,
            started_at=now(),
            definition=self.definition(document),
            warnings=(*suite.warnings, *warnings),
        )

    def described_target(self) -> dict[str, Any]:
        return {"kind": self.target.kind, "fingerprint": self.target.fingerprint, **self.target.shown}

    def run_graders(self) -> dict[str, RunGrader]:
        judges = judges_by_column(self.graders)
        return {
            use.key: RunGrader(
                use.grader.kind,
                use.fingerprint,
                judges[use.key],
                use.pass_threshold,
                use.turns,
                getattr(use.grader, "both_orders", False),
                getattr(use.grader, "judge_id", ""),
                use.noise,
                "" if use.judge_fingerprint == use.fingerprint else use.judge_fingerprint,
                getattr(use.grader, "prompt_hash", ""),
                getattr(use.grader, "rubric_version", ""),
                getattr(use.grader, "weighting", None),
                getattr(use.grader, "selective", None),
            )
            for use in self.graders
        }

    def warnings(self, samples: ReadSamples | None = None) -> Iterator[str]:
        """What is allowed and a person should know before the run begins.

        ``samples`` reads the cases if they are not in the suite. `ConfigError` if no case has the cluster key.
        """
        yield from self.notes
        yield from self.cluster_warnings(samples)
        if is_small(self.suite.dataset):
            with suppress(ConfigError):  # the run itself reports an invalid row, with its place
                yield from self.rubric_warnings(samples)
                if not (self.options.samples or self.options.tags or self.options.limit):
                    yield from self.condition_warnings(samples)
        model = (self.target.model or "").rpartition("/")[2]
        for use in self.graders:
            if model and model in {judge.partition(":")[2].rpartition("/")[2] for judge in _judges(use)}:
                yield (
                    f"{use.key}: the judge is {model}, the very model it judges; models favour their own answers,"
                    " so let one of another family judge"
                )

    def cluster_warnings(self, samples: ReadSamples | None = None) -> Iterator[str]:
        """What a person should know of the cases' clusters; `ConfigError` if no case has the suite's key.

        All cases are read if they have clusters, else only the first.
        """
        if samples is None:
            if self.suite.dataset.is_empty:
                return  # they are in the store, and were checked when they were stored
            samples = self.samples
        if self.suite.cluster is None:
            with suppress(ConfigError):  # the run itself reports an invalid row, with its place
                first = list(islice(samples(), COMPARED_CASES))
                warning = near_duplicate_warning(first)
                if warning is not None:
                    yield warning
                if any(sample.cluster for sample in first):
                    yield from cluster_warnings(samples(), None)
            return
        yield from cluster_warnings(samples(), self.suite.cluster)

    def rubric_warnings(self, samples: ReadSamples | None = None) -> Iterator[str]:
        """The cases whose own rubric leaves the answer out; reads all cases if a judge uses such rubrics."""
        if not any(getattr(use.grader, "case_rubrics", False) for use in self.graders):
            return
        from gradeline.judges.prompts import mentions_submission  # few suites have judges

        read = samples or self.samples
        found = [one.case_key for one in read() if one.rubric and not mentions_submission(one.rubric)]
        if found:
            cases = f"case {quote(found[0])}" + (f" and {len(found) - 1} more" if len(found) > 1 else "")
            yield f"dataset: the rubric of {cases} does not mention {{submission}}; the submission is appended"

    def condition_warnings(self, samples: ReadSamples | None = None) -> Iterator[str]:
        """The graders that apply to no case; reads the cases until each grader has one that it applies to."""
        unmet = {str(use.when): use for use in reversed(self.graders) if use.when is not None}
        if not unmet or (samples is None and self.suite.dataset.is_empty):
            return
        cases = 0
        for sample in (samples or self.samples)():
            cases += 1
            unmet = {shown: use for shown, use in unmet.items() if not _applies(use, sample)}
            if not unmet:
                return
        if cases:
            for shown, use in reversed(unmet.items()):
                condition = quote(shown)
                yield f"{use.key}: when applies to no case, so it grades nothing: {condition}; correct it or the cases"

    def definition(self, document: dict[str, Any] | None = None) -> str:
        """The definition to store with a run; a ``document`` is the suite if it has no file."""
        file = str(self.suite.file) if document is None else ""
        source = self.suite.dataset
        definition = RunDefinition(
            file,
            self.options,
            self.rules,
            dict(self.baselines),
            document,
            source.scheme,
            dict(source.revisions),
            dict(self.calibrations),
        )
        return encode(definition).decode()

    def task(self, run: Run) -> RunTask:
        price = None if self.prices is None else self.prices.user_price(self.target.model)
        task = RunTask(run, self.samples, self.target, self.graders, self.call_limits(), self.pool)
        return task._replace(prepared_s=self.prepared_s, price=price)

    def call_limits(self) -> CallLimits:
        options = self.target.options
        rate = getattr(options, "rate", None)
        return CallLimits(
            requested_concurrency(self.suite, self.options).calls,
            None if rate is None else Rate(rate.calls, rate.seconds),
            self.options.budget or RunBudget(self.suite.budget.calls, self.suite.budget.cost),
            self.suite.cache,
            # stored answers reach no agent: a failed call among them does not show that one is down now
            getattr(options, "stop_after_connection_failures", DEFAULT_LIMIT) if self.target.timed else 0,
        )


def _judges(use: GraderUse) -> tuple[str, ...]:
    if not isinstance(use.grader, AsyncGrader):
        return ()
    second = getattr(use.grader, "second", None)
    return use.grader.judges if second is None else tuple(dict.fromkeys((*use.grader.judges, *second.judges)))


def judges_by_column(uses: Iterable[GraderUse]) -> dict[str, tuple[str, ...]]:
    """The models that each column's scores come from; those of a column that is computed are those of its inputs."""
    judges: dict[str, tuple[str, ...]] = {}
    for use in uses:
        inherited = (judge for name in use.inputs for judge in judges[name])
        judges[use.key] = tuple(dict.fromkeys((*_judges(use), *inherited)))
    return judges


def _unchanged(dataset: Iterator[Sample], source: DatasetSource, before: object) -> Iterator[Sample]:
    """The samples; a row that is invalid because the file was overwritten is reported as that."""
    try:
        yield from dataset
    except ConfigError:
        if source.state == before:
            raise
        raise _changed_meanwhile(source) from None


def _changed_meanwhile(source: DatasetSource) -> ConfigError:
    reason = "changed while the run read it; check what changed"
    return ConfigError(Problem(str(source), reason))


@asynccontextmanager
async def prepare(
    suite: SuiteDefinition,
    options: RunOptions,
    storage: Storage | None = None,
    *,
    calls_agent: bool = True,
    baselines: Mapping[str, str] | None = None,
    access: Access = UNRESTRICTED,
    in_process: InProcessCode | None = None,
    loaded_code: Iterable[LoadedCode] = (),
    calibrations: Mapping[str, int] | None = None,
    calibration_store: Storage | None = None,
) -> AsyncIterator[PreparedRun]:
    """Build and open everything a run of the suite's only variant needs; one `ConfigError` reports all that is wrong.

    Nothing is called, but two things are opened because no check can do without. The code of a suite is loaded in a
    worker: its fingerprint covers the modules that it imports, which only loading shows. The target is opened: only
    that reads the keys, files and programs it needs. ``loaded_code`` was loaded before, for other variants of the
    suite; if it is that of this one, only `PreparedRun.start` loads it.

    Without ``calls_agent`` the target is not opened: grading needs none of its keys. ``baselines`` overrides the
    suite's baseline run of each grader. ``access`` limits which addresses agents and models are reached at.
    ``calibrations`` are those that a stored run began with; None: the latest. ``calibration_store`` has them where
    there is no other use for a store.
    """
    started = perf_counter()
    chosen = _chosen(suite, options)
    async with AsyncExitStack() as stack:
        spec = code_spec(suite, chosen, in_process)
        known = next((code for code in loaded_code if code.spec == spec), None)
        problems = ProblemCollector(suite)
        requested = requested_concurrency(suite, options)
        with problems.collect():
            requested.check(access.max_concurrency)
        most = min(_MAX_WORKERS, requested.calls)
        workers = await stack.enter_async_context(
            WorkerPools(spec, max_size=most, on_death=access.observer.worker_died)
        )
        entries = () if known is None else known.entries
        if spec is not None and known is None:
            with problems.collect():
                entries = (await workers.start()).entries
        pool: CodeRunner = workers if in_process is None else in_process.runner(workers)
        loaded = {(entry.role, entry.reference): entry for entry in entries}
        values = read_environment(suite.folder).values if access.environment is None else access.environment
        environment = RecordingEnvironment(values)
        prices = run_prices(suite, options)
        resources = Resources(suite.folder, environment, access.policy, prices, access.secrets)
        if calls_agent:
            with problems.collect():
                suite = await _with_dataset(suite, options, resources, values, access)
        compared: dict[str, str] = {}
        if storage is not None:
            with problems.collect():
                compared = baseline_runs(chosen, baselines or {}, storage, suite.name)
        uses: list[GraderUse] = []
        lookup = CalibrationLookup(calibration_store or storage, suite.name, calibrations)
        for grader in chosen:
            if is_loaded(grader, loaded, in_process):
                with problems.collect():
                    use = build_grader_use(with_baseline_run(grader, compared), loaded, resources, in_process)
                    uses.append(with_calibration(use, lookup, resources))
        uses = with_inputs(uses)
        for use in uses:
            if isinstance(use.grader, Closable):
                stack.push_async_callback(use.grader.aclose)
        if storage is not None:
            answers = {key: baseline_responses(storage, run) for key, run in compared.items()}
            uses = [use._replace(baseline=answers.get(use.key)) for use in uses]
        if suite.reward is not None and (REWARD, suite.reward) in loaded:
            uses.append(build_reward_use(suite, suite.reward, loaded))
        target: DeclaredTarget[Any] | None = None
        with problems.collect(), _naming(suite.variants[0]):
            target = build_target(suite, pool, loaded, storage, resources, in_process)
        if calls_agent and target is not None:
            with problems.collect(), _naming(suite.variants[0]):
                await stack.enter_async_context(target)
        notes = list(learning_notes(uses))
        if target is not None and not problems:
            if _skips_setup(suite, options, entries):
                reason = "it needs a client, and with --cached no agent is called"
                notes.append(f"setup_script: {suite.setup} was not called: {reason}")
            with problems.collect():
                notes += budget_notes(suite, options, target, uses, calls_agent=calls_agent)
        if problems:
            with problems.collect():
                check_rows(suite, options)
        problems.raise_collected()
        assert target is not None  # noqa: S101 - without one there were problems
        rules = _rules(suite, storage if options.comparing else None)
        if not options.comparing:
            rules = replace(rules, gate=None)
        yield PreparedRun(
            suite,
            options,
            target,
            tuple(uses),
            pool,
            workers,
            rules,
            compared,
            environment,
            access.policy,
            tuple(notes),
            perf_counter() - started,
            prices,
            access.secrets,
            access.observer,
            LoadedCode(spec, entries),
            known is None,
            lookup.used,
        )


@contextmanager
def _naming(variant: Variant) -> Iterator[None]:
    """Name the variant in what is wrong with its target: others may not have the fault."""
    try:
        yield
    except ConfigError as error:
        if variant.name is None or type(error) is not ConfigError:
            raise
        raise ConfigError(error.problems, f"{variant.target.kind} (variant {quote(variant.name)})") from None


async def _with_dataset(
    suite: SuiteDefinition, options: RunOptions, resources: Resources, environment: Mapping[str, str], access: Access
) -> SuiteDefinition:
    """The suite with what its dataset needs: files of the Hub are downloaded, and their commits pinned."""
    source = suite.dataset
    if options.cached is not None:
        source = replace(source, ids="number")  # as in the result files of letta-evals
    if not source.hub_datasets:
        return replace(suite, dataset=source)
    local = await with_local_files(source, resources, environment, access.note)
    found = {name: commit for name, commit in local.revisions.items() if name not in source.revisions}
    return replace(suite, dataset=local, digest=pinned_digest(suite.digest, found))


def _skips_setup(suite: SuiteDefinition, options: RunOptions, code: Iterable[FunctionEntry]) -> bool:
    """True for a setup function that needs a client while responses come from stored results."""
    if options.cached is None or suite.setup is None:
        return False
    return any(one.role == SETUP and one.reference == suite.setup and "client" in one.parameters for one in code)


def _rules(suite: SuiteDefinition, storage: Storage | None) -> Rules:
    """How the verdict is reached. A baseline is the run that its name means now, before this run is the latest."""
    gate = suite.shown.get("gate")
    return Rules(
        gate if storage is None else _with_baselines(gate, storage, suite.name),
        suite.coverage_floor,
        suite.agent_errors,
        suite.require_calibrated,
        suite.primary,
        suite.corrected,
    )


def _with_baselines(gate: Any, storage: Storage, suite: str) -> Any:
    if isinstance(gate, list):
        return [_with_baselines(item, storage, suite) for item in gate]
    if not isinstance(gate, dict):
        return gate
    found = {key: _with_baselines(value, storage, suite) for key, value in gate.items()}
    if isinstance(found.get("baseline"), str):
        found["baseline"] = storage.find_run(found["baseline"], suite).id
    return found


def _chosen(suite: SuiteDefinition, options: RunOptions) -> list[GraderSpec]:
    known = {spec.key: spec for spec in suite.graders}
    unknown = [key for key in options.graders if key not in known]
    if unknown:
        raise ConfigError(Problem("--grader", f"no grader {unknown[0]!r} in the suite; it has {', '.join(known)}"))
    chosen = in_order(spec for spec in suite.graders if not options.graders or spec.key in options.graders)
    present = {spec.key for spec in chosen}
    for spec in chosen:
        missing = [name for name in grader_inputs(spec) if name not in present]
        if missing:
            needed = ", ".join(map(repr, missing))
            raise ConfigError(Problem("--grader", f"{spec.key!r} is computed from {needed}; choose it too"))
    if not options.comparing:
        left_out: set[str] = set()
        for spec in chosen:
            if needs_baseline(spec) or not left_out.isdisjoint(grader_inputs(spec)):
                left_out.add(spec.key)
        return [spec for spec in chosen if spec.key not in left_out]
    if suite.gate is not None:
        without = set(graders_of(suite.gate, suite.columns)) - present - {suite.reward_key}
        if without:
            needed = ", ".join(map(repr, sorted(without)))
            raise ConfigError(Problem("--grader", f"the suite's gate needs {needed}; choose it too"))
    return chosen


def _applies(use: GraderUse, sample: Sample) -> bool:
    """True if the grader applies to the case, or fails to find out: the case's grade reports that."""
    try:
        return use.when is None or use.when.holds(sample)
    except GraderError:
        return True
