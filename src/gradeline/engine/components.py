"""The components of a run, built from its suite: graders, target, user code, prices, and what they may access."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from msgspec.structs import replace

from gradeline import extractors, graders, targets
from gradeline.engine.definition import RunOptions
from gradeline.engine.grade import Baseline, GraderUse, UserExtractor, UserGrader, UserReward
from gradeline.errors import ConfigError, MissingDataError, Problem
from gradeline.graders.base import AdaptedGrader
from gradeline.graders.registry import ALIASES as GRADER_ALIASES
from gradeline.model import (
    Extractor,
    GraderProtocol,
    Response,
    ResponseKey,
    Sample,
    Storage,
    quote,
    sample_digest,
)
from gradeline.model.resources import EgressPolicy, Resources
from gradeline.model.secrets import SecretSet
from gradeline.suite.case_condition import CaseCondition
from gradeline.suite.spec import CodeReference, GraderSpec, SuiteDefinition, TargetSpec
from gradeline.targets.base import DeclaredTarget, TargetContext
from gradeline.targets.registry import guard_methods, guarded_code
from gradeline.usercode.loader import TARGET, CodeRequest, CodeSpec, FunctionEntry, LoadError, ReservedName, load
from gradeline.usercode.pools import CodeRunner
from gradeline.usercode.process_control import target_memory_limit

if TYPE_CHECKING:
    from gradeline.adapters.costs import Prices

REWARD = "reward_composer"

LoadedCode = Mapping[tuple[str, str], FunctionEntry]
"""What the workers loaded, by role and reference."""

MAX_CONCURRENCY = 10_000
"""Maximum calls in flight of a run that a person starts; a service has the maximum that its operator sets."""


class WorkerObserver(NamedTuple):
    """Callbacks for incidents of a run, in this process and in those of a cluster."""

    worker_died: Callable[[str], None] = lambda _: None
    """Called with the reason when a worker process or a Ray worker (``ray_worker``) ended unexpectedly."""
    address_refused: Callable[[], None] = lambda: None
    """Called when the egress policy of another process refused an address; that of this one counts by itself."""


class Access(NamedTuple):
    """The keys and addresses that a run may use."""

    environment: Mapping[str, str] | None = None
    """The environment variables; None: those of this process, and the ``.env`` file next to the suite."""
    policy: EgressPolicy | None = None
    """Which addresses agents, models and plugins may reach; None: any."""
    secrets: SecretSet | None = None
    """The secrets whose markers are in the suite and in the environment."""
    max_concurrency: int = MAX_CONCURRENCY
    """Maximum calls in flight that a run may request."""
    observer: WorkerObserver = WorkerObserver()
    note: Callable[[str], None] = lambda _: None
    """Reports the progress of a download."""


UNRESTRICTED = Access()


class RecordingEnvironment(Mapping[str, str]):
    """Environment variables that record which of them were read: a worker on another node needs no others."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self._read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        self._read.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def read(self) -> dict[str, str]:
        return {name: self._values[name] for name in self._read if name in self._values}


class InProcessCode(Protocol):
    """Functions and graders that a caller passed as objects: they run in this process, and no file names them."""

    def __contains__(self, code: tuple[str, str]) -> bool:
        """True for a role and a reference that were passed."""

    def fingerprint(self, role: str, reference: str) -> str: ...

    def runner(self, workers: CodeRunner) -> CodeRunner:
        """Runs this code, and any other in ``workers``."""


def baseline_responses(storage: Storage, run_id: str) -> Baseline:
    """The responses of that run. A repeat that it does not have is compared with one that it has."""
    run = storage.find_run(run_id)

    def answer(sample: Sample, repeat: int) -> Response:
        record = storage.get_record(ResponseKey(run.id, sample.case_key, repeat % run.repeats))
        case = f"case {quote(sample.case_key)}"
        if record is None:
            raise MissingDataError(f"the baseline {run.id} has no response to {case}")
        if sample_digest(record.sample) != sample_digest(sample):
            raise MissingDataError(f"{case} was edited since the baseline {run.id} answered it")
        if record.response.error is not None:
            error = record.response.error
            raise MissingDataError(f"the baseline {run.id} failed at {case}: {error.type}: {error.message}")
        return record.response

    return answer


def is_loaded(spec: GraderSpec, loaded: LoadedCode, in_process: InProcessCode | None = None) -> bool:
    """True if the code that a grader needs could be loaded."""
    own = [("grader", spec.function)] if spec.function is not None else []
    if spec.extractor not in extractors.registry:
        own.append(("extractor", spec.extractor))
    return all(one in loaded or (in_process is not None and one in in_process) for one in own)


def build_target(
    suite: SuiteDefinition,
    pool: CodeRunner,
    loaded: LoadedCode,
    storage: Storage | None,
    resources: Resources,
    in_process: InProcessCode | None = None,
) -> DeclaredTarget[Any] | None:
    """The target, not opened yet; None if its code could not be loaded."""
    spec = suite.target
    function = str(spec.config.get("function"))
    if spec.kind == "python" and in_process is not None and (TARGET, function) in in_process:
        context = TargetContext(resources, pool=pool, code=in_process.fingerprint(TARGET, function))
    elif spec.kind == "python" and spec.config.get("isolation") != "none" and (TARGET, function) not in loaded:
        return None
    else:
        context = _target_context(suite, spec, pool, loaded, storage, resources)
    return targets.create(spec.kind, _target_config(suite, spec), spec.secrets, context)


def baseline_runs(
    chosen: list[GraderSpec], overrides: Mapping[str, str], storage: Storage, suite: str
) -> dict[str, str]:
    """The run that each grader compares with, by its id: what ``latest`` means must not change during a run."""
    found: dict[str, str] = {}
    for spec in chosen:
        if not needs_baseline(spec):
            continue
        name = overrides.get(spec.key) or spec.config.get("baseline")
        if not name:
            reason = (
                "names no run to compare with; write baseline: RUN there, use --baseline RUN, or choose the other"
                " graders with --grader"
            )
            raise ConfigError(Problem(f"graders.{spec.key}.baseline", reason))
        found[spec.key] = storage.find_run(str(name), suite).id
    return found


def needs_baseline(spec: GraderSpec) -> bool:
    """True if the grader also needs the response of a baseline."""
    if spec.function is not None:
        return False
    declaration = graders.registry.get(spec.kind)
    return issubclass(declaration, graders.DeclaredGrader) and "baseline" in declaration.needs


def with_baseline_run(spec: GraderSpec, baselines: Mapping[str, str]) -> GraderSpec:
    """The grader with the id of its baseline run, which becomes part of its fingerprint."""
    if spec.key not in baselines:
        return spec
    return replace(spec, config={**spec.config, "baseline": baselines[spec.key]})


def code_spec(
    suite: SuiteDefinition, chosen: list[GraderSpec], in_process: InProcessCode | None = None
) -> CodeSpec | None:
    """The user code that the workers load; None if there is none."""
    wanted = [
        CodeRequest("grader", spec.function, spec.memory)
        for spec in chosen
        if spec.function is not None and (in_process is None or ("grader", spec.function) not in in_process)
    ]
    wanted += [
        CodeRequest("extractor", spec.extractor, spec.memory)
        for spec in chosen
        if spec.extractor not in extractors.registry
    ]
    if suite.reward is not None:
        wanted.append(CodeRequest(REWARD, suite.reward))
    target = suite.target
    # those of all variants: what discovery finds must not depend on the variant
    exclude = target_files(suite.references)
    code = targets.registry.get(target.kind).user_code
    function = None if code is None else target.config.get(code.option)
    if code is not None and code.role == TARGET:
        if target.config.get("isolation") != "none":
            wanted.append(CodeRequest(TARGET, str(function), target_memory_limit(target.config.get("memory"))))
    elif code is not None and function is not None:
        wanted.append(CodeRequest(code.role, str(function)))
    if not wanted and suite.setup is None:
        return None
    keys = {spec.key for spec in chosen}
    reserved = tuple(
        ReservedName(reference.role, reference.name, reference.origin)
        for reference in suite.references
        if reference.origin is not None and reference.grader in keys
    )
    return CodeSpec(str(suite.folder), tuple(wanted), suite.setup, exclude, reserved)


def target_files(references: Iterable[CodeReference]) -> tuple[str, ...]:
    """The files of functions that are agents; discovery never loads them."""
    names = (reference.name for reference in references if reference.role == TARGET)
    return tuple(dict.fromkeys(name.rpartition(":")[0] for name in names if ".py:" in name))


def build_grader_use(
    spec: GraderSpec, loaded: LoadedCode, resources: Resources, in_process: InProcessCode | None = None
) -> GraderUse:
    grader: GraderProtocol | UserGrader
    if spec.function is not None and in_process is not None and ("grader", spec.function) in in_process:
        grader = UserGrader(spec.function, in_process.fingerprint("grader", spec.function), spec.timeout)
    elif spec.function is not None:
        grader = UserGrader(
            spec.function, loaded["grader", spec.function].fingerprint, spec.timeout, memory=spec.memory
        )
    else:
        grader = bind_grader(spec.kind, spec.config, resources, f"graders.{spec.key}")
    extractor: Extractor | UserExtractor
    if spec.extractor in extractors.registry:
        extractor = extractors.create(spec.extractor, spec.extractor_config)
    else:
        entry = loaded["extractor", spec.extractor]
        extractor = UserExtractor(spec.extractor, entry.fingerprint, spec.extractor_config, spec.timeout, spec.memory)
    return GraderUse(
        spec.key,
        grader,
        extractor,
        spec.pass_threshold,
        turns=spec.turns,
        noise=spec.noise,
        when=None if spec.when is None else CaseCondition(spec.when),
        expected=spec.expected,
    )


def with_inputs(uses: Iterable[GraderUse]) -> list[GraderUse]:
    """The graders, in their order, with the fingerprints of those whose grades they read."""
    ready: dict[str, GraderUse] = {}
    for use in uses:
        names = use.grader.inputs if isinstance(use.grader, graders.DeclaredGrader) else ()
        ready[use.key] = use._replace(inputs={name: ready[name].fingerprint for name in names if name in ready})
    return list(ready.values())


def bind_grader(kind: str, config: Mapping[str, Any], resources: Resources, place: str = "") -> GraderProtocol:
    """A grader with these resources; ``place`` is prepended to the problems of a `ConfigError`."""
    with guarded_code(resources.policy if is_plugin_grader(kind) else None):
        grader = graders.create(kind, config)
        try:
            bound = grader.bind(resources) if isinstance(grader, graders.DeclaredGrader | AdaptedGrader) else grader
        except ConfigError as error:
            raise ConfigError([problem.within(place) if place else problem for problem in error.problems]) from None
    guard_grader(bound, resources.policy, kind)
    return bound


def build_reward_use(suite: SuiteDefinition, function: str, loaded: LoadedCode) -> GraderUse:
    reward = UserReward(function, loaded[REWARD, function].fingerprint)
    return GraderUse(suite.reward_key, reward, extractors.create("last_assistant"))


def _target_context(
    suite: SuiteDefinition,
    spec: TargetSpec,
    pool: CodeRunner,
    loaded: LoadedCode,
    storage: Storage | None,
    resources: Resources,
) -> TargetContext:
    """What the target may use: resources, user code, stored responses."""
    config = spec.config
    context = TargetContext(resources)
    if spec.kind == "python" and config.get("isolation") == "none":
        here, fingerprint = _load_in_process(suite.folder, str(config["function"]))
        return context._replace(function=here, code=fingerprint)
    code = targets.registry.get(spec.kind).user_code
    if code is not None:
        entry = loaded.get((code.role, str(config.get(code.option))))
        fingerprint = "" if entry is None else entry.fingerprint
        return context._replace(pool=pool, code=fingerprint, cleanup=suite.cleanup)
    if spec.kind == "replay" and config.get("run") and storage is not None:
        return context._replace(responses=_stored_responses(storage, str(config["run"])))
    return context


def _target_config(suite: SuiteDefinition, spec: TargetSpec) -> dict[str, Any]:
    """The target's options, with the files they name."""
    config = dict(spec.config)
    if spec.kind == "replay":
        for key in ("responses", "cached"):
            if config.get(key):
                config[key] = str(suite.folder / str(config[key]))
    return config


def run_prices(suite: SuiteDefinition, options: RunOptions) -> Prices | None:
    """The price table with the user's prices; None if the user set none."""
    if not suite.prices and not options.prices:
        return None
    from gradeline.adapters.costs import Prices, assumed_prices, flat_price  # few runs are given prices

    own = {
        model: flat_price(price.input, price.output, price.cached_input, price.cache_write)
        for model, price in suite.prices.items()
    }
    by_model, assumed = assumed_prices(options.prices)
    return Prices.load().updated(Prices(own={**own, **by_model}, assumed=assumed))


def _load_in_process(folder: Path, reference: str) -> tuple[Callable[..., Any], str]:
    """The function and the fingerprint of its code."""
    with _exits_as_exceptions():
        loaded = load(CodeSpec(str(folder), (CodeRequest(TARGET, reference),)), interruptible=True)
    if loaded.manifest.faults:
        raise LoadError(loaded.manifest.faults)
    return loaded.function(TARGET, reference), loaded.manifest.entries[0].fingerprint


@contextmanager
def _exits_as_exceptions() -> Iterator[None]:
    """Report code that ends the process while it is loaded, as code that calls ``sys.exit``."""
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


def is_plugin_grader(kind: str) -> bool:
    return not graders.registry.is_builtin(GRADER_ALIASES.get(kind, kind))


def guard_grader(grader: object, policy: EgressPolicy | None, kind: str) -> None:
    """Apply the egress policy to the sockets of a plugin's grader; a refused connection is an error of that grade."""
    if policy is None or not is_plugin_grader(kind):
        return
    guard_methods(grader, policy, ("grade",), ("agrade",) if hasattr(grader, "agrade") else ())
