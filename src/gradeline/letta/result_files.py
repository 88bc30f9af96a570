"""Write runs as a result directory of letta-evals, in the layout of its releases since 0.17.

``suite.json`` holds the suite and its samples, ``<model>.jsonl`` (or with repeats ``<model>/run_N.jsonl``) one result
per line, ``summary.json`` the totals of each model. Letta's ``--cached`` and the replay target read it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path
from statistics import stdev
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import msgspec

from gradeline.graders import default_extractor
from gradeline.letta.cache import DEFAULT_MODEL, segment
from gradeline.letta.results import REWARD, letta_result, letta_sample
from gradeline.model import Record, Run, Sample
from gradeline.model.files import atomic_path
from gradeline.model.response import known_cost
from gradeline.stats import percentile

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_input_tokens")


class SummaryColumns(NamedTuple):
    """The columns of a summary."""

    graders: tuple[str, ...]
    score: str | None
    """The column with the overall score."""


class ResultTotals:
    """Totals of results, updated as they are written; needs eight bytes per result."""

    def __init__(self) -> None:
        self.results = 0
        self.cost_missing = 0
        """Results with token counts but no cost."""
        self._categories: Counter[str] = Counter()
        self._exceptions: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._cost: float | None = None
        self._totals = array("d")
        self._target = 0.0
        self._scores: dict[str, float] = {}
        self._scored: Counter[str] = Counter()

    def add(self, record: Record, result: Mapping[str, Any]) -> None:
        """Add a record and its `letta_result`."""
        self.results += 1
        self._totals.append(result["timing"]["total"])
        self._target += result["timing"]["target"]
        if "error" in result:
            self._categories[result["error"]["category"]] += 1
            self._exceptions[result["error"]["exception_type"]] += 1
        usage = result.get("usage", {})
        self._tokens.update({name: usage[name] for name in _TOKENS if name in usage})
        if "cost" in usage:
            self._cost = known_cost((self._cost, usage["cost"]))
        elif usage:
            self.cost_missing += 1
        for key, grade in record.grades.items():
            if grade.score is not None:
                self._scores[key] = self._scores.get(key, 0.0) + grade.score
                self._scored[key] += 1

    @classmethod
    def of(cls, tallies: Iterable[ResultTotals]) -> ResultTotals:
        """The sum of several totals, without the scores."""
        whole = cls()
        for one in tallies:
            whole.results += one.results
            whole.cost_missing += one.cost_missing
            whole._categories.update(one._categories)
            whole._exceptions.update(one._exceptions)
            whole._tokens.update(one._tokens)
            whole._cost = known_cost((whole._cost, one._cost))
            whole._totals += one._totals
            whole._target += one._target
        return whole

    @property
    def failed(self) -> int:
        return self._categories.total()

    def mean(self, key: str | None) -> float | None:
        """A column's mean score; None without scores."""
        return self._scores[key] / self._scored[key] if key is not None and self._scored[key] else None

    def usage(self) -> dict[str, Any]:
        return dict(self._tokens) if self._cost is None else {**self._tokens, "cost": self._cost}

    def timing(self) -> dict[str, float]:
        """In seconds; letta requires numbers."""
        ordered = sorted(self._totals) or [0.0]
        return {
            "mean_total": sum(ordered) / len(ordered),
            "mean_target": self._target / len(ordered),
            "p50_total": percentile(ordered, 0.5),
            "p95_total": percentile(ordered, 0.95),
        }

    def errors(self) -> dict[str, Any] | None:
        if not self.failed:
            return None
        kinds = {"by_category": dict(self._categories), "by_exception_type": dict(self._exceptions)}
        return {"total_errors": self.failed, **kinds}


def model_summary(
    model: str, means: Mapping[str, float | None], metrics: SummaryColumns, repeats: Mapping[int, ResultTotals]
) -> dict[str, Any]:
    """A model's entry. The scores are those of the run's summary."""
    whole = ResultTotals.of(repeats.values())
    spreads = {key: _spread(key, repeats.values()) for key in (*metrics.graders, *filter(None, [metrics.score]))}
    several = len(repeats) > 1
    entry: dict[str, Any] = {
        "model": model,
        "n_total": whole.results // max(1, len(repeats)),
        "n_attempted": whole.results - whole.failed,
        **_score(means.get(metrics.score or ""), ""),
        **_score(spreads.get(metrics.score or ""), "_std"),
        "per_metric": _known({key: means.get(key) for key in metrics.graders}),
        "per_metric_std": _known({key: spreads[key] for key in metrics.graders}) if several else None,
        "usage": whole.usage(),
        "timing": whole.timing(),
        "cost_missing": whole.cost_missing,
        "errors": whole.errors(),
    }
    return _known(entry)


def repeat_summary(number: int, metrics: SummaryColumns, tally: ResultTotals) -> dict[str, Any]:
    """The entry of one repeat of a model."""
    return {
        "run": number,
        **_score(tally.mean(metrics.score), ""),
        "per_metric": _known({key: tally.mean(key) for key in metrics.graders}),
        "usage": tally.usage(),
        "timing": tally.timing(),
        "n_errors": tally.failed,
        "cost_missing": tally.cost_missing,
    }


def _score(value: float | None, ending: str) -> dict[str, Any]:
    """The value under both names: 0.21 renamed ``score`` to ``reward``."""
    return {} if value is None else {f"score{ending}": value, f"reward{ending}": value}


def _spread(key: str, tallies: Iterable[ResultTotals]) -> float | None:
    means = [mean for one in tallies if (mean := one.mean(key)) is not None]
    return stdev(means) if len(means) > 1 else None


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class LettaRun(NamedTuple):
    """A run to write."""

    run: Run
    means: Mapping[str, float | None]
    """The mean score of each column."""
    records: Callable[[], Iterator[Record]]
    """Iterates over the run's records by case, then repeat; may be called repeatedly."""
    suite: Mapping[str, Any]
    """The suite's document as plain data, without secrets."""
    passed: bool | None = None
    """The result of its gate; None if there is no gate or it is undecided."""

    @classmethod
    def of(cls, report: Any, suite: Mapping[str, Any]) -> LettaRun:
        """From a run's report (`gradeline.engine`, which imports this package)."""
        means = {key: column.mean for key, column in report.summary.graders.items()}
        passed = {"pass": True, "fail": False}.get(report.verdict.result)
        return cls(report.run, means, report.records, suite, passed)


def write_letta_layout(folder: Path, runs: Sequence[LettaRun]) -> None:
    """Write one or more runs, each of another model or variant, into the folder.

    The files replace earlier results of the same models once all of them are complete. Raises `OSError`.
    """
    models = _models(runs)
    folder.mkdir(parents=True, exist_ok=True)
    with _Staging() as staging:
        entries = [_write_results(staging, folder, model, one) for model, one in zip(models, runs, strict=True)]
        _write_suite(staging.open(folder / "suite.json"), models, runs)
        summary = {"suite": runs[0].run.suite, "models": entries}
        verdict = _all_passed([one.passed for one in runs])
        staging.write(folder / "summary.json", summary if verdict is None else {**summary, "gates_passed": verdict})
    for model in models:
        _remove_stale(folder, _file_name(model), staging.paths)


def _models(runs: Sequence[LettaRun]) -> list[str]:
    """The runs' variants, else their models, numbered where their file names would collide."""
    names: list[str] = []
    taken: set[str] = set()
    for one in runs:
        model = name = str(one.run.variant or one.run.target.get("model") or DEFAULT_MODEL)
        number = 1
        while _file_name(name).lower() in taken:
            number += 1
            name = f"{model}-{number}"
        taken.add(_file_name(name).lower())
        names.append(name)
    return names


def _file_name(model: str) -> str:
    name = segment(model)
    return name.replace(".", "-") if name in (".", "..") else name


def _all_passed(verdicts: Sequence[bool | None]) -> bool | None:
    if False in verdicts:
        return False
    return None if None in verdicts else True


class _Staging:
    """Files that appear together: written under temporary names, renamed when all are complete."""

    def __init__(self) -> None:
        self._renames = ExitStack()
        self._files = ExitStack()
        self.paths: set[Path] = set()

    def open(self, path: Path) -> BinaryIO:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.paths.add(path)
        return self._files.enter_context(self._renames.enter_context(atomic_path(path)).open("wb"))

    def write(self, path: Path, data: Mapping[str, Any]) -> None:
        self.open(path).write(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._files.close()
        except OSError as failure:  # a full disk: nothing may be renamed
            self._renames.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._renames.__exit__(kind, error, trace)


def _write_results(staging: _Staging, folder: Path, model: str, one: LettaRun) -> dict[str, Any]:
    """Write a model's results and return its entry for the summary."""
    metrics = _metrics(one)
    several = one.run.repeats > 1
    home = folder / _file_name(model)
    files: dict[int, BinaryIO] = {}
    tallies: dict[int, ResultTotals] = {}
    if not several:
        files[0] = staging.open(folder / f"{_file_name(model)}.jsonl")
    for record in one.records():
        repeat = record.repeat if several else 0
        if repeat not in files:
            files[repeat] = staging.open(home / f"run_{repeat + 1}.jsonl")
        result = letta_result(record, model, metrics.score)
        files[repeat].write(msgspec.json.encode(result) + b"\n")
        tallies.setdefault(repeat, ResultTotals()).add(record, result)
    entry = model_summary(model, one.means, metrics, tallies)
    if several:
        each = [repeat_summary(repeat + 1, metrics, tally) for repeat, tally in sorted(tallies.items())]
        staging.write(home / "summary.json", {**entry, "runs": each})
    return entry


def _metrics(one: LettaRun) -> SummaryColumns:
    """The score column is the reward, or else the gate's metric, or else the first grader."""
    columns = one.run.graders
    graders = tuple(key for key, column in columns.items() if column.kind != REWARD)
    made = [key for key, column in columns.items() if column.kind == REWARD]
    blocks = [one.suite.get(name) for name in ("reward", "gate")]
    named = [block.get("metric_key") for block in blocks if isinstance(block, Mapping)]
    score = next((key for key in (*made, *named, *graders) if key in columns), None)
    return SummaryColumns(graders, score)


def _write_suite(file: BinaryIO, models: Sequence[str], runs: Sequence[LettaRun]) -> None:
    first = runs[0]
    head = {
        "suite": first.run.suite,
        "config": _letta_config(models, first),
        "gradeline": {"suite": first.suite, "runs": [one.run.id for one in runs]},
    }
    file.write(msgspec.json.encode(head)[:-1] + b',"samples":[')
    separator = b"\n"
    for sample in _samples(runs):
        file.write(separator + msgspec.json.encode(letta_sample(sample)))
        separator = b",\n"
    file.write(b"\n]}\n")


def _samples(runs: Sequence[LettaRun]) -> Iterator[Sample]:
    """The cases of all runs, each once; their names are held in memory only if there are several runs."""
    seen: set[str] | None = set() if len(runs) > 1 else None
    for one in runs:
        for case, records in groupby(one.records(), lambda record: record.case):
            if seen is None or case not in seen:
                yield next(records).sample
            if seen is not None:
                seen.add(case)


def _letta_config(models: Sequence[str], one: LettaRun) -> dict[str, Any]:
    """A suite that letta's current release accepts; it requires one to read a directory, but does not use it.

    Letta does not know our targets, graders and gates; the original suite is stored next to this one.
    """
    metrics = _metrics(one)
    dataset = one.suite.get("dataset")
    graders = one.suite.get("graders")
    documents = graders if isinstance(graders, Mapping) else {}
    handles = {} if list(models) == [DEFAULT_MODEL] else {"model_handles": list(models)}
    return {
        "name": one.run.suite,
        "dataset": dataset if isinstance(dataset, str) else "inline",
        "target": {"kind": "letta_code", **handles},
        "graders": {key: _letta_grader(documents.get(key), one.run.graders[key].kind) for key in metrics.graders},
        "reward": {"kind": "metric", "metric_key": metrics.score or ""},
        "num_runs": one.run.repeats,
    }


def _letta_grader(document: object, kind: str) -> dict[str, Any]:
    options = document if isinstance(document, Mapping) else {}
    function = options.get("function")
    extractor = options.get("extractor")
    return {
        "kind": "tool",
        "function": function if isinstance(function, str) else kind,
        "extractor": extractor if isinstance(extractor, str) else default_extractor(kind),
    }


def _remove_stale(folder: Path, name: str, written: Set[Path]) -> None:
    """Remove earlier results of the model: in the other layout, or of repeats that no longer exist."""
    home = folder / name
    repeats = list(home.glob("run_*.jsonl"))
    for file in [folder / f"{name}.jsonl", *repeats]:
        if file not in written:
            file.unlink(missing_ok=True)
    if repeats and written.isdisjoint(repeats):
        (home / "summary.json").unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            home.rmdir()
