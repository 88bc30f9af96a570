"""From a suite to what a run needs: code loaded, graders made, the target open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import UNSET, Struct
from msgspec.json import decode, encode

from gradeline import extractors, graders, targets
from gradeline.engine.execute import Rate
from gradeline.engine.grade import GraderUse, UserExtractor, UserGrader
from gradeline.engine.local import RunTask, now
from gradeline.errors import ConfigError, Problem
from gradeline.model import Extractor, Grader, Run, RunGrader, Sample, Storage
from gradeline.suite.dataset import open_dataset
from gradeline.suite.spec import GraderSpec, Suite
from gradeline.targets.base import DeclaredTarget
from gradeline.usercode.loader import TARGET, CodeSpec, Entry, Wanted, load
from gradeline.usercode.pool import WorkerPool


class Choice(NamedTuple):
    """What of a suite is to be run."""

    limit: int | None = None
    tags: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    graders: tuple[str, ...] = ()
    repeats: int | None = None
    concurrency: int | None = None


class Definition(Struct, frozen=True):
    """What a run was asked to do, as the run keeps it."""

    suite: str
    choice: Choice

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

    def samples(self) -> Iterator[Sample]:
        """The chosen cases, read anew each time."""
        chosen = self.choice
        dataset = open_dataset(
            self.suite.dataset,
            tags=chosen.tags or self.suite.tags,
            limit=0 if chosen.samples else self.suite.limit if chosen.limit is None else chosen.limit,
        )
        for sample in dataset:
            if not chosen.samples or sample.case_key in chosen.samples:
                problems = self.target.problems_with(sample)
                if problems:
                    raise ConfigError(problems, f"case {sample.case_key!r}")
                yield sample

    def new_run(self, name: str | None = None, parent: str | None = None, seed: int | None = None) -> Run:
        """The run as it is saved before anything is asked."""
        suite = self.suite
        return Run(
            name=name or suite.name,
            suite=suite.name,
            suite_digest=suite.digest,
            target={"kind": self.target.kind, "fingerprint": self.target.fingerprint, **self.target.shown},
            graders={use.key: RunGrader(use.grader.kind, use.grader.fingerprint) for use in self.graders},
            parent=parent,
            seed=seed,
            repeats=self.choice.repeats or suite.repeats,
            started_at=now(),
            definition=encode(Definition(str(suite.file), self.choice)).decode(),
        )

    def task(self, run: Run, on_progress: Callable[[Any], None] = lambda _: None) -> RunTask:
        options = self.target.options
        rate = getattr(options, "rate", None)
        return RunTask(
            run,
            self.samples,
            self.target,
            self.graders,
            self.choice.concurrency or getattr(options, "concurrency", None) or self.suite.concurrency,
            None if rate is None else Rate(rate.calls, rate.seconds),
            self.pool,
            on_progress=on_progress,
        )


@asynccontextmanager
async def prepare(suite: Suite, choice: Choice, storage: Storage | None = None) -> AsyncIterator[Prepared]:
    """Load, make and open everything a run of the suite needs; `ConfigError` for what is wrong."""
    chosen = _chosen(suite, choice)
    async with AsyncExitStack() as stack:
        spec = _code(suite, chosen)
        pool = await stack.enter_async_context(WorkerPool(spec))
        entries = (await pool.start()).entries if spec is not None else ()
        if suite.setup is not None:
            await pool.set_up({"name": suite.name, "description": suite.description})
        loaded = {(entry.role, entry.reference): entry for entry in entries}
        uses = tuple(_use(grader, loaded) for grader in chosen)
        target = await stack.enter_async_context(_target(suite, pool, storage))
        yield Prepared(suite, choice, target, uses, pool)


def _chosen(suite: Suite, choice: Choice) -> list[GraderSpec]:
    known = {spec.key: spec for spec in suite.graders}
    unknown = [key for key in choice.graders if key not in known]
    if unknown:
        raise ConfigError(Problem("--grader", f"no grader {unknown[0]!r} in the suite; it has {', '.join(known)}"))
    chosen = [spec for spec in suite.graders if not choice.graders or spec.key in choice.graders]
    needed = suite.gate.metric_key if suite.gate is not None else UNSET
    if needed is not UNSET and needed not in {spec.key for spec in chosen}:
        raise ConfigError(Problem("--grader", f"the suite's gate needs {needed!r}; choose it too"))
    return chosen


def _code(suite: Suite, chosen: list[GraderSpec]) -> CodeSpec | None:
    """The user code that the workers load; None where there is none."""
    wanted = [Wanted("grader", spec.function) for spec in chosen if spec.function is not None]
    wanted += [Wanted("extractor", spec.extractor) for spec in chosen if spec.extractor not in extractors.registry]
    exclude: tuple[str, ...] = ()
    if suite.target.kind == "python":
        function = str(suite.target.config.get("function"))
        exclude = (function.rpartition(":")[0],) if ".py:" in function else ()
        if suite.target.config.get("isolation") != "none":
            wanted.append(Wanted(TARGET, function))
    if not wanted and suite.setup is None:
        return None
    return CodeSpec(str(suite.folder), tuple(wanted), suite.setup, exclude)


def _use(spec: GraderSpec, loaded: dict[tuple[str, str], Entry]) -> GraderUse:
    grader: Grader | UserGrader
    if spec.function is not None:
        grader = UserGrader(spec.function, loaded["grader", spec.function].fingerprint, spec.timeout)
    else:
        grader = graders.create(spec.kind, spec.config)
    extractor: Extractor | UserExtractor
    if spec.extractor in extractors.registry:
        extractor = extractors.create(spec.extractor, spec.extractor_config)
    else:
        entry = loaded["extractor", spec.extractor]
        extractor = UserExtractor(spec.extractor, entry.fingerprint, spec.extractor_config, spec.timeout)
    return GraderUse(spec.key, grader, extractor, spec.pass_threshold)


def _target(suite: Suite, pool: WorkerPool, storage: Storage | None) -> DeclaredTarget[Any]:
    config = dict(suite.target.config)
    given: dict[str, Any] = {}
    if suite.target.kind == "python":
        given["pool"] = pool
        if config.get("isolation") == "none":
            given = {"function": _load_here(suite.folder, str(config["function"]))}
    if suite.target.kind == "replay":
        if config.get("responses"):
            config["responses"] = str(suite.folder / str(config["responses"]))
        elif storage is not None:
            given["responses"] = _stored_responses(storage, str(config["run"]))
    return targets.create(suite.target.kind, config, suite.target.secrets, **given)


def _load_here(folder: Path, reference: str) -> Callable[..., Any]:
    loaded = load(CodeSpec(str(folder), (Wanted(TARGET, reference),)))
    if loaded.manifest.faults:
        raise ConfigError([Problem(fault.file or reference, fault.message) for fault in loaded.manifest.faults])
    return loaded.function(TARGET, reference)


def _stored_responses(storage: Storage, wanted: str) -> Callable[[Sample], Any]:
    from gradeline.model import ResponseKey

    run = storage.find_run(wanted)
    return lambda sample: storage.get_response(ResponseKey(run.id, sample.case_key, 0))
