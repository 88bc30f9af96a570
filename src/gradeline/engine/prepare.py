"""From a suite to what a run needs: code loaded, graders made, the target open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from msgspec.json import encode
from msgspec.structs import replace

from gradeline.engine.access import (
    UNRESTRICTED,
    Access,
    RecordingEnvironment,
    WorkerObserver,
)
from gradeline.engine.components import (
    REWARD,
    baseline_responses,
    baseline_runs,
    build_grader_use,
    build_reward_use,
    build_target,
    code_spec,
    is_loaded,
    needs_baseline,
    run_prices,
    target_spec,
    with_baseline_run,
)
from gradeline.engine.definition import Rules, RunBudget, RunDefinition, RunOptions, requested_concurrency
from gradeline.engine.execute import AGENT, DEFAULT_LIMIT, CallLimits, Rate
from gradeline.engine.grade import GraderUse
from gradeline.engine.lifecycle import now
from gradeline.engine.pipeline import RunTask, paid_parts, unpriced_of
from gradeline.errors import ConfigError, Problem
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
from gradeline.suite.clusters import cluster_warnings
from gradeline.suite.dataset import open_dataset
from gradeline.suite.environment import read_environment
from gradeline.suite.near_duplicates import LOOKED_AT, near_duplicate_warning
from gradeline.suite.places import PlacedError, SuiteProblem
from gradeline.suite.read import SuiteFileError, locate
from gradeline.suite.spec import CodeReference, GraderSpec, Suite
from gradeline.targets.base import DeclaredTarget
from gradeline.usercode.loader import SETUP, TARGET, CodeSpec, Entry, LoadError, LoadFault, Reserved, Wanted
from gradeline.usercode.pool import WorkerPool
from gradeline.usercode.pools import CodeRunner, WorkerPools
from gradeline.verdict import graders_of

T = TypeVar("T")


class ProblemCollector:
    """Collects what is wrong with a suite step by step, so that one error can report all of it."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._errors: list[ConfigError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """What is wrong within is kept, and the next step can still be taken."""
        try:
            yield
        except ConfigError as error:
            self._errors.append(error)

    def report(self) -> None:
        """Raise what was collected, if anything was."""
        if not self._errors:
            return
        first = self._errors[0]
        if len(self._errors) == 1 and not isinstance(first, LoadError):
            raise first
        found = [problem for error in self._errors for problem in placed_problems(error, self._suite)]
        raise PlacedError(_in_order(found))


def placed_problems(error: ConfigError, suite: Suite | None) -> list[SuiteProblem]:
    """The faults of an error, each with its file and line as far as they are known."""
    references = () if suite is None else suite.references
    file = next((reference.file for reference in references), "")
    if isinstance(error, PlacedError):
        known = list(error.placed)
        return [one if one.file else locate(Problem(one.path, one.message), file) for one in known]
    if isinstance(error, LoadError):
        return list(_code_problems(error.faults, references))
    return [locate(problem, file) for problem in error.problems]


async def read_with_code(read: Callable[[], T]) -> T:
    """Read a suite; where it is wrong, the faults of the code that it names are reported too."""
    try:
        return read()
    except SuiteFileError as error:
        found = error
    spec = _code_of(found.folder, found.references)
    if spec is None:
        raise found
    try:
        async with WorkerPool(spec, size=1) as pool:
            await pool.start()
    except LoadError as error:
        code = _code_problems(error.faults, found.references)
        raise PlacedError(_in_order([*found.placed, *code])) from None
    except ConfigError:
        pass  # this system cannot run code; what is wrong in the file is reported all the same
    raise found


def _code_of(folder: Path, references: Sequence[CodeReference]) -> CodeSpec | None:
    own = [reference for reference in references if reference.origin is None]
    if not own:
        return None
    target = next((reference.name for reference in own if reference.role == TARGET), "")
    return CodeSpec(
        str(folder),
        tuple(Wanted(reference.role, reference.name) for reference in own if reference.role != SETUP),
        next((reference.name for reference in own if reference.role == SETUP), None),
        (target.rpartition(":")[0],) if ".py:" in target else (),
        tuple(
            Reserved(reference.role, reference.name, reference.origin)
            for reference in references
            if reference.origin is not None
        ),
    )


def _code_problems(faults: Iterable[LoadFault], references: Sequence[CodeReference]) -> Iterator[SuiteProblem]:
    """Faults of code with the key path that names it; a file that several keys need is reported once."""
    by_name = {(reference.role, reference.name): reference for reference in reversed(references)}
    seen: dict[tuple[str | None, int | None, str], SuiteProblem] = {}
    for fault in faults:
        named = by_name.get((fault.role, fault.reference))
        path = fault.reference if named is None else named.path
        if fault.file is not None or named is None:
            problem = SuiteProblem(fault.file or "", fault.line or 0, 0, path, fault.message)
        else:
            problem = SuiteProblem(named.file, named.line, named.column, path, fault.message)
        key = (fault.file or fault.reference, fault.line, fault.message)
        if key not in seen or not seen[key].path:
            seen[key] = problem
    yield from seen.values()


def _in_order(problems: Iterable[SuiteProblem]) -> list[SuiteProblem]:
    """Those of the suite's own file first: only that has columns.

    A fault of the code that the file has too is left out: both are checked for names that a built-in has.
    """
    found = list(problems)
    own = next((problem.file for problem in found if problem.column), "")
    known = {(one.path, one.message) for one in found if one.file == own}
    kept = [one for one in found if one.file == own or (one.path, one.message) not in known]
    return sorted(kept, key=lambda one: (one.file != own, one.file, one.line, one.column))


if TYPE_CHECKING:
    from gradeline.adapters.costs import Prices

_QUICKLY_READ = 5_000_000
_MOST_WORKERS = 32


ReadSamples: TypeAlias = "Callable[[], Iterable[Sample]]"
"""Gives the cases of a run, anew each time."""


@runtime_checkable
class Closable(Protocol):
    """A grader that holds connections."""

    async def aclose(self) -> None: ...


class PreparedRun(NamedTuple):
    """A suite that is ready to run."""

    suite: Suite
    choice: RunOptions
    target: DeclaredTarget[Any]
    graders: tuple[GraderUse, ...]
    pool: CodeRunner
    rules: Rules
    baselines: Mapping[str, str] = {}
    environment: RecordingEnvironment = RecordingEnvironment({})
    policy: EgressPolicy | None = None
    notes: tuple[str, ...] = ()
    """What was found while it was made ready, and a person should know."""
    prepared_s: float = 0.0
    """Seconds that it took to make it ready."""
    prices: Prices | None = None
    """The table with the user's prices over it; None where the user gave none."""
    secrets: SecretSet | None = None
    """The secrets whose markers are in the suite and in the variables."""
    observer: WorkerObserver = WorkerObserver()

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
        return encode(RunDefinition(file, self.choice, self.rules, dict(self.baselines), document)).decode()

    def task(self, run: Run) -> RunTask:
        price = None if self.prices is None else self.prices.user_price(self.target.model)
        task = RunTask(run, self.samples, self.target, self.graders, self.pace(), self.pool)
        return task._replace(prepared_s=self.prepared_s, price=price)

    def pace(self) -> CallLimits:
        options = self.target.options
        rate = getattr(options, "rate", None)
        return CallLimits(
            requested_concurrency(self.suite, self.choice).calls,
            None if rate is None else Rate(rate.calls, rate.seconds),
            self.choice.budget or RunBudget(self.suite.budget.calls, self.suite.budget.cost),
            self.suite.cache,
            # stored answers reach no agent: a failed call among them does not show that one is down now
            getattr(options, "stop_after_connection_failures", DEFAULT_LIMIT) if self.target.timed else 0,
        )


def _judges(use: GraderUse) -> tuple[str, ...]:
    return use.grader.judges if isinstance(use.grader, AsyncGrader) else ()


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
    choice: RunOptions,
    storage: Storage | None = None,
    *,
    set_up: bool = True,
    asking: bool = True,
    baselines: Mapping[str, str] | None = None,
    outside: Access = UNRESTRICTED,
) -> AsyncIterator[PreparedRun]:
    """Load, make and open everything a run of the suite needs; `ConfigError` for what is wrong.

    Without ``set_up`` the suite's setup function is loaded and not called: it may need what a check must not touch.
    Without ``asking`` the target is not opened: grading needs none of what it needs, such as a key.
    ``baselines`` says by grader which runs are compared with; where it is silent, the suite says.
    ``outside`` bounds what agents and models are reached by.
    """
    started = perf_counter()
    chosen = _chosen(suite, choice)
    target_options = target_spec(suite, choice)
    async with AsyncExitStack() as stack:
        spec = code_spec(suite, chosen, target_options)
        faults = ProblemCollector(suite)
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
        environment = RecordingEnvironment(values)
        outside = outside._replace(environment=environment)
        prices = run_prices(suite, choice)
        resources = Resources(suite.folder, outside.environment, outside.policy, prices, outside.secrets)
        compared: dict[str, str] = {}
        if storage is not None:
            with faults.collected():
                compared = baseline_runs(chosen, baselines or {}, storage)
        uses: list[GraderUse] = []
        for grader in chosen:
            if is_loaded(grader, loaded):
                with faults.collected():
                    uses.append(build_grader_use(with_baseline_run(grader, compared), loaded, resources))
        for use in uses:
            if isinstance(use.grader, Closable):
                stack.push_async_callback(use.grader.aclose)
        if storage is not None:
            answers = {key: baseline_responses(storage, run) for key, run in compared.items()}
            uses = [use._replace(baseline=answers.get(use.key)) for use in uses]
        if suite.reward is not None and (REWARD, suite.reward) in loaded:
            uses.append(build_reward_use(suite, suite.reward, loaded))
        target: DeclaredTarget[Any] | None = None
        with faults.collected():
            target = build_target(suite, target_options, pool, loaded, storage, resources)
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
        yield PreparedRun(
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


async def _set_up(
    suite: Suite,
    function: str,
    choice: RunOptions,
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


def _check_rows(suite: Suite, choice: RunOptions) -> None:
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


def _chosen(suite: Suite, choice: RunOptions) -> list[GraderSpec]:
    known = {spec.key: spec for spec in suite.graders}
    unknown = [key for key in choice.graders if key not in known]
    if unknown:
        raise ConfigError(Problem("--grader", f"no grader {unknown[0]!r} in the suite; it has {', '.join(known)}"))
    chosen = [spec for spec in suite.graders if not choice.graders or spec.key in choice.graders]
    if not choice.comparing:
        return [spec for spec in chosen if not needs_baseline(spec)]
    if suite.gate is not None:
        missing = set(graders_of(suite.gate, suite.columns)) - {spec.key for spec in chosen} - {suite.reward_key}
        if missing:
            needed = ", ".join(map(repr, sorted(missing)))
            raise ConfigError(Problem("--grader", f"the suite's gate needs {needed}; choose it too"))
    return chosen


def _budget_notes(
    suite: Suite, choice: RunOptions, target: DeclaredTarget[Any], uses: list[GraderUse], *, asking: bool
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
