"""Runs as a result directory of letta-evals, in the layout of its releases from 0.17 on.

``suite.json`` holds the suite and its samples, ``<model>.jsonl`` (of several repeats ``<model>/run_N.jsonl``) a result
a line, ``summary.json`` what each model came to. Letta's own ``--cached`` reads it, and so does the replay target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import msgspec

from gradeline.engine.aggregate import Summary
from gradeline.engine.conclude import RunReport
from gradeline.graders import default_extractor
from gradeline.model import Record, Run, Sample
from gradeline.report.letta_records import REWARD, letta_result, letta_sample
from gradeline.report.letta_summary import Metrics, Tally, model_summary, repeat_summary
from gradeline.targets.letta_cache import DEFAULT_MODEL, segment


class LettaRun(NamedTuple):
    """A run to be written."""

    run: Run
    summary: Summary
    records: Callable[[], Iterator[Record]]
    """Gives the run's records by case, then repeat, each time anew."""
    suite: Mapping[str, Any]
    """The suite's document as plain data, without secrets."""
    passed: bool | None = None
    """What its gate says; None where there is none or it could not decide."""

    @classmethod
    def of(cls, report: RunReport, suite: Mapping[str, Any]) -> LettaRun:
        passed = {"pass": True, "fail": False}.get(report.verdict.result)
        return cls(report.run, report.summary, report.records, suite, passed)


def write_letta_layout(folder: Path, runs: Sequence[LettaRun]) -> None:
    """Write at least one run, each of another model, into the folder.

    The files appear when all of them are whole, in place of earlier results of the same models. Raises `OSError`.
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
        _remove_stale(folder, _file_name(model), staging.places)


def _models(runs: Sequence[LettaRun]) -> list[str]:
    """The runs' models; where the names of their files would be the same, they are numbered."""
    names: list[str] = []
    taken: set[str] = set()
    for one in runs:
        model = name = str(one.run.target.get("model") or DEFAULT_MODEL)
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
    """Files that appear together: written under other names, and given their own when all are whole."""

    def __init__(self) -> None:
        self._files = ExitStack()
        self._places: dict[Path, Path] = {}

    @property
    def places(self) -> Set[Path]:
        return set(self._places.values())

    def open(self, place: Path) -> BinaryIO:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}.{os.getpid()}.part")
        self._places[part] = place
        return self._files.enter_context(part.open("wb"))

    def write(self, place: Path, data: Mapping[str, Any]) -> None:
        self.open(place).write(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._files.close()
            if error is None:
                for part, place in self._places.items():
                    part.replace(place)
        finally:
            for part in self._places:
                part.unlink(missing_ok=True)


def _write_results(staging: _Staging, folder: Path, model: str, one: LettaRun) -> dict[str, Any]:
    """Write a model's results, and give its entry in the summary."""
    metrics = _metrics(one)
    several = one.run.repeats > 1
    home = folder / _file_name(model)
    files: dict[int, BinaryIO] = {}
    tallies: dict[int, Tally] = {}
    if not several:
        files[0] = staging.open(folder / f"{_file_name(model)}.jsonl")
    for record in one.records():
        repeat = record.repeat if several else 0
        if repeat not in files:
            files[repeat] = staging.open(home / f"run_{repeat + 1}.jsonl")
        result = letta_result(record, model, metrics.score)
        files[repeat].write(msgspec.json.encode(result) + b"\n")
        tallies.setdefault(repeat, Tally()).add(record, result)
    entry = model_summary(model, one.summary, metrics, tallies)
    if several:
        each = [repeat_summary(repeat + 1, metrics, tally) for repeat, tally in sorted(tallies.items())]
        staging.write(home / "summary.json", {**entry, "runs": each})
    return entry


def _metrics(one: LettaRun) -> Metrics:
    """The score is that of the reward, else of the metric of the gate, else of the first grader."""
    columns = one.run.graders
    graders = tuple(key for key, column in columns.items() if column.kind != REWARD)
    made = [key for key, column in columns.items() if column.kind == REWARD]
    blocks = [one.suite.get(name) for name in ("reward", "gate")]
    named = [block.get("metric_key") for block in blocks if isinstance(block, Mapping)]
    score = next((key for key in (*made, *named, *graders) if key in columns), None)
    return Metrics(graders, score)


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
    """The cases of all runs, each once; only where there are several runs their names are kept."""
    seen: set[str] | None = set() if len(runs) > 1 else None
    for one in runs:
        for case, records in groupby(one.records(), lambda record: record.case):
            if seen is None or case not in seen:
                yield next(records).sample
            if seen is not None:
                seen.add(case)


def _letta_config(models: Sequence[str], one: LettaRun) -> dict[str, Any]:
    """The suite as letta's current release accepts it: it reads no directory without, though it makes no use of it.

    It knows neither our targets nor our graders, nor gates any more; the suite as it was stands beside it.
    """
    metrics = _metrics(one)
    dataset = one.suite.get("dataset")
    described = one.suite.get("graders")
    documents = described if isinstance(described, Mapping) else {}
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
    given = document if isinstance(document, Mapping) else {}
    function = given.get("function")
    extractor = given.get("extractor")
    return {
        "kind": "tool",
        "function": function if isinstance(function, str) else kind,
        "extractor": extractor if isinstance(extractor, str) else default_extractor(kind),
    }


def _remove_stale(folder: Path, name: str, written: Set[Path]) -> None:
    """Take away earlier results of the model: in the other form, or of repeats that are no more."""
    home = folder / name
    repeats = list(home.glob("run_*.jsonl"))
    for file in [folder / f"{name}.jsonl", *repeats]:
        if file not in written:
            file.unlink(missing_ok=True)
    if repeats and written.isdisjoint(repeats):
        (home / "summary.json").unlink(missing_ok=True)
        with suppress(OSError):  # it holds something else
            home.rmdir()
