"""The output of an import: a folder with a suite, its cases, code and responses, and runs in the store.

The folder appears when all of it is written, and the runs are removed again if the import fails.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml
from msgspec import Struct
from msgspec.json import encode

from gradeline.engine.definition import RunDefinition, RunOptions
from gradeline.errors import ConfigError, Problem
from gradeline.importers.grades import not_graded
from gradeline.importers.report import ImportReport
from gradeline.model import (
    Grade,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    Storage,
    clean_data,
    clean_text,
    to_json,
)
from gradeline.model.files import atomic_path
from gradeline.model.label import HumanVerdict, LabelKey, LabelRow, Verdict
from gradeline.rest_types import utc_timestamp
from gradeline.store.database import SharedStorage, Transaction
from gradeline.store.labels import create_label_tables, insert_label, label_row
from gradeline.store.rows import new_run_id

SUITE = "suite.yaml"
MODEL_SUITE = "model.yaml"
"""The suite that calls a model again, where ``suite.yaml`` grades the recorded responses."""
CASES = "cases.jsonl"
ANSWERS = "answers.jsonl"
REPORT = "import.md"
_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")
_BATCH = 200
"""Results of a run that are stored together."""

Progress = Callable[[str, int], None]
"""Called with what is counted, such as ``cases``, and the number so far."""


class ImportedLabel(Struct, frozen=True):
    """A person's verdict in the source. It is stored next to the grade, which it does not change."""

    verdict: Verdict
    score: float | None = None
    reason: str = ""
    author: str | None = None
    at: str | None = None
    """Time of the verdict, in ISO 8601 and UTC; if the source has none, that of the import."""


class ImportedResult(Struct, frozen=True):
    """One response of an imported run, with the grades and labels that the source has for it."""

    sample: Sample
    response: Response
    grades: Mapping[str, Grade] = {}
    repeat: int = 0
    labels: Mapping[str, ImportedLabel] = {}
    """By grader of the run, which may be one of `ImportedRun.label_only`."""


class ImportedRun(Struct, frozen=True, kw_only=True):
    """A run of another tool. Two runs are comparable where the fingerprints of their graders are equal."""

    name: str
    suite: str
    target: dict[str, Any]
    graders: dict[str, RunGrader]
    variant: str | None = None
    group: str | None = None
    repeats: int = 1
    started_at: str | None = None
    completed_at: str | None = None
    error_message: str | None = None
    """Why the run ended early; None if it is complete."""
    warnings: tuple[str, ...] = ()
    label_only: frozenset[str] = frozenset()
    """Graders of which the source has only human verdicts: all grades are ``not_applicable``, outside their coverage,
    so that a label is never counted as a grade."""


class _SuiteDumper(yaml.SafeDumper):
    """Writes strings of several lines as blocks, and escapes the line breaks of YAML 1.1, which suites may not have."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = '"' if _LINE_BREAKS.search(data) else "|" if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_SuiteDumper.add_representer(str, _SuiteDumper.represent_str)


class ImportOutput:
    """Where an importer writes. Use it in a ``with`` statement: the folder appears when that ends without an error."""

    def __init__(
        self, folder: Path, report: ImportReport, storage: Callable[[], Storage], progress: Progress = lambda *_: None
    ) -> None:
        self.folder = folder
        self.report = report
        self.written: list[str] = []
        """One line for each file and run, for the report."""
        self.runs: list[Run] = []
        self._storage = storage
        self._progress = progress
        self._counts: dict[str, int] = {}
        self._files: dict[str, IO[bytes]] = {}
        self._stack = ExitStack()
        self._partial = Path()

    def __enter__(self) -> ImportOutput:
        require_new_folder(self.folder)
        with _write_errors(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self._partial = self._stack.enter_context(atomic_path(self.folder))
            self._partial.mkdir()
        self._stack.push(self._remove_on_error)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            with _write_errors(self.folder):
                self._finish()
        for file in self._files.values():
            file.close()
        self._stack.__exit__(*error)

    def add_case(self, case: Mapping[str, object]) -> None:
        """Append a case to ``cases.jsonl``, with the keys of a suite's dataset."""
        self._append(CASES, encode(clean_data(case)))

    def add_answer(self, case: str, response: Response, name: str = ANSWERS) -> None:
        """Append a response to ``answers.jsonl``, which the target ``replay`` reads. Several for a case are repeats."""
        self._append(name, b'{"case":' + encode(case) + b',"response":' + to_json(response).encode() + b"}")

    def write_file(self, name: str, text: str) -> None:
        """Write a text file in the folder; ``name`` is a relative path that the importer chose, not the source."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"not a path in the folder: {name}")
        place = self._partial / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        self.written.append(name)

    def write_suite(self, suite: Mapping[str, object], name: str = SUITE) -> None:
        """Write the suite file; a dataset that is not named is ``cases.jsonl``."""
        data = {"name": suite["name"], "dataset": CASES, **suite}
        text = yaml.dump(clean_data(data), Dumper=_SuiteDumper, sort_keys=False, allow_unicode=True, width=120)
        self.write_file(name, text)

    def add_run(self, run: ImportedRun, results: Iterable[ImportedResult]) -> Run:
        """Store a run with its results, which are read one batch at a time; returns it as stored."""
        storage = self._storage()
        definition = RunDefinition(str((self.folder / SUITE).resolve()), RunOptions())
        stored = Run(
            id=new_run_id(),
            name=run.name,
            suite=run.suite,
            status="running",
            target={"imported": self.report.kind, **run.target},
            variant=run.variant,
            graders=run.graders,
            group=run.group,
            repeats=run.repeats,
            started_at=run.started_at,
            definition=encode(definition).decode(),
            warnings=run.warnings,
        )
        storage.save_run(stored)
        self.runs.append(stored)
        total = asyncio.run(self._store(storage, stored, run.label_only, results))
        status = "completed" if run.error_message is None else "failed"
        changes = {"status": status, "total": total, "completed_at": run.completed_at or run.started_at}
        self.runs[-1] = storage.update_run(stored.id, error_message=run.error_message, **changes)
        return self.runs[-1]

    async def _store(
        self, storage: Storage, run: Run, label_only: frozenset[str], results: Iterable[ImportedResult]
    ) -> int:
        total = 0
        labels = _LabelBatch(storage, run)
        async with storage.writer() as writer:
            for result in results:
                key = ResponseKey(run.id, result.sample.case_key, result.repeat)
                grades = {**_ungraded(run, label_only), **result.grades}
                put = writer.put_response(key, result.response, result.sample)
                await writer.post_grades(key, {name: (result.response.text, one) for name, one in grades.items()})
                labels.add(result, grades)
                total += 1
                if total % _BATCH == 0:
                    await put
                if labels.is_full:
                    await writer.flush()
                    labels.store()
                self._count("results")
            await writer.flush()
        labels.store()
        return total

    def _append(self, name: str, line: bytes) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = (self._partial / name).open("wb")
        file.write(line + b"\n")
        self._count(name)

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1
        self._progress(what, self._counts[what])

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of lines of each file, and of results in runs."""
        return self._counts

    def _finish(self) -> None:
        for file in self._files.values():
            file.close()
        self.written += [f"{name}: {self._counts[name]:,} lines" for name in self._files]
        self.written += [f"run {run.id} ({run.name}): {run.total or 0:,} results" for run in self.runs]
        (self._partial / REPORT).write_text(self.report.markdown(self.written), encoding="utf-8")
        self.written.append(REPORT)
        if self.folder.is_dir():
            self.folder.rmdir()  # it is empty; not every platform replaces a folder on rename

    def _remove_on_error(self, kind: object, *_: object) -> None:
        if kind is None:
            return
        shutil.rmtree(self._partial, ignore_errors=True)
        for run in self.runs:
            self._storage().delete_run(run.id)


class _LabelBatch:
    """Labels of a run that are stored together, after their results."""

    def __init__(self, storage: Storage, run: Run) -> None:
        self._storage = storage
        self._run = run
        self._rows: list[LabelRow] = []
        self._now = utc_timestamp(time.time())

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= _BATCH

    def add(self, result: ImportedResult, grades: Mapping[str, Grade]) -> None:
        for grader, label in result.labels.items():
            self._rows.append(self._row(result, grader, grades, label))

    def _row(self, result: ImportedResult, grader: str, grades: Mapping[str, Grade], label: ImportedLabel) -> LabelRow:
        if grader not in self._run.graders:
            raise ValueError(f"a label of {grader!r}, which is not a grader of the run")
        grade = grades.get(grader) or not_graded(self._run.graders[grader])
        key = LabelKey(self._run.id, result.sample.case_key, result.repeat, grader)
        verdict = HumanVerdict(label.verdict, clean_text(label.reason).text, label.score)
        author = clean_text(label.author or "").text
        return label_row(key, result.sample, result.response, grade, verdict, author, label.at or self._now)

    def store(self) -> None:
        if not self._rows:
            return
        if not isinstance(self._storage, SharedStorage):
            raise ConfigError(Problem("store", f"{type(self._storage).__name__} cannot store labels; use a database"))
        create_label_tables(self._storage.database)
        self._storage.database.transact(self._insert)
        self._rows = []

    def _insert(self, transaction: Transaction) -> None:
        for row in self._rows:
            insert_label(transaction, self._run.id, row)


def _ungraded(run: Run, label_only: frozenset[str]) -> dict[str, Grade]:
    return {name: not_graded(run.graders[name]) for name in sorted(label_only)}


def require_new_folder(folder: Path) -> None:
    """`ConfigError` unless the folder is missing or empty: an import never overwrites files."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        what = "has files" if folder.is_dir() else "is a file"
        raise ConfigError(Problem("--output", f"{folder} {what}; choose a new or empty folder"))


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            Problem("--output", f"cannot write {folder}: {error.strerror}; choose another folder")
        ) from None
