"""Results of promptfoo: a run for each prompt with each provider, its grades, and the verdicts of people as labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.json import decode, encode

from gradeline.errors import ConfigError, Problem
from gradeline.graders.grading import skipped_grade
from gradeline.importers.grades import imported_grader, not_graded
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.output import ANSWERS, ImportedLabel, ImportedResult, ImportedRun, ImportOutput
from gradeline.importers.promptfoo_assertions import AssertionMapper
from gradeline.importers.promptfoo_cases import CaseMaker, TestScan
from gradeline.importers.promptfoo_files import SourceFolder
from gradeline.importers.promptfoo_prompts import ChatPart, PromptfooPrompt, unique_name
from gradeline.importers.promptfoo_rows import (
    OVERALL,
    ResultRow,
    all_components,
    component_grade,
    components_of,
    derived_scores,
    is_number,
    overall_grade,
    provider_of,
    response_of,
    run_key,
    test_of,
    type_of,
)
from gradeline.importers.promptfoo_tags import parse_page
from gradeline.importers.promptfoo_templates import TemplateError
from gradeline.importers.promptfoo_tests import MAX_CASES, CaseNames
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.rows import read_json_document, read_rows
from gradeline.model import (
    Response,
    RunGrader,
    Sample,
    clean_data,
    clean_text,
    quote,
)
from gradeline.store.rows import new_run_id

_ROW = frozenset(("promptIdx", "testIdx", "testCase"))
_MAX_RUNS = 200
_MAX_COLUMNS = 100
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def is_results(source: Source) -> bool:
    """Whether a file has results: the whole document, or a row a line."""
    keys = source.keys
    whole = "results" in keys and ("evalId" in keys or keys >= {"config", "shareableUrl"})
    old = keys >= {"results", "stats"} and bool(keys & {"version", "table"}) and "eval" not in keys
    return whole or old or keys >= _ROW


def read_results(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Store a run for each prompt with each provider, and write a suite that grades the outputs again."""
    _ResultsImport(_Results.of(source), options, output).store()


class _Results(NamedTuple):
    """The rows of a file: of a document that is in memory, or of JSON Lines that are read again each time."""

    path: Path
    document: Mapping[str, Any] | None

    @classmethod
    def of(cls, source: Source) -> _Results:
        if source.keys >= _ROW and "results" not in source.keys:
            return cls(source.path, None)
        data = read_json_document(source.path)
        if not isinstance(data, Mapping):
            raise ConfigError(Problem(str(source.path), "is not a file of results; write it with promptfoo eval -o"))
        return cls(source.path, data)

    @property
    def inner(self) -> Mapping[str, Any]:
        """The object with the rows: the value of ``results``, or the document itself."""
        found = (self.document or {}).get("results")
        return found if isinstance(found, Mapping) else self.document or {}

    @property
    def config(self) -> Mapping[str, Any]:
        found = (self.document or {}).get("config")
        return found if isinstance(found, Mapping) else {}

    def rows(self, report: ImportReport) -> Iterator[ResultRow]:
        """The rows that are results; others are reported."""
        for row in self._all(report):
            if not row.data.keys() & {"promptIdx", "response", "success", "gradingResult"}:
                report.not_mapped(row.place, "result", "is not a result; write results with promptfoo eval -o")
            else:
                yield row

    def _all(self, report: ImportReport) -> Iterator[ResultRow]:
        if self.document is None:
            yield from (ResultRow(row.place, row.data) for row in read_rows(self.path, report))
            return
        written = self.inner.get("results")
        if not isinstance(written, list):
            raise ConfigError(Problem(str(self.path), f"has no list of results: {quote(written, 60)}"))
        for index, row in enumerate(written):
            place = f"{self.path.name}:results[{index}]"
            if isinstance(row, Mapping):
                yield ResultRow(place, row)
            else:
                report.not_mapped(place, "result", f"is not an object: {quote(row, 60)}")


class _Run:
    """A prompt with a provider, and what its results have."""

    def __init__(self, key: str, name: str, provider: str, file: str) -> None:
        self.key = key
        self.name = name
        self.provider = provider
        self.file = file
        self.graders: dict[str, RunGrader] = {OVERALL: imported_grader("promptfoo", OVERALL)}
        self.repeats: Counter[str] = Counter()


class _Cases:
    """The cases by the digest of their test, kept in a file."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._places: dict[str, tuple[int, int]] = {}

    def add(self, digest: str, case: Mapping[str, object]) -> None:
        raw = encode(case)
        self._places[digest] = (self._file.seek(0, 2), len(raw))
        self._file.write(raw)

    def sample(self, digest: str) -> Sample | None:
        """The case; None if it was left out."""
        if digest not in self._places:
            return None
        at, size = self._places[digest]
        self._file.seek(at)
        case = decode(self._file.read(size))
        return Sample(case["id"], case["input"], metadata=case["metadata"], checks=case.get("checks") or UNSET)

    def close(self) -> None:
        self._file.close()


class _ResultsImport:
    """Reads the rows once for what they have in common, once for the cases, and once for each run."""

    def __init__(self, results: _Results, options: ImportOptions, output: ImportOutput) -> None:
        self._results = results
        self._output = output
        self._report = output.report
        self._runs: dict[str, _Run] = {}
        self._scan = TestScan(())
        self._outputs: set[bool] = set()
        """Whether outputs are data, and whether some are not."""
        self._tests: dict[str, int] = {}
        """The digests of the tests, each with the number of its results."""
        description = " ".join(str(results.config.get("description") or "").split())
        stem = results.path.name.split(".")[0]
        self._name = clean_text(options.name or (description if 0 < len(description) <= 60 else stem)).text

    def store(self) -> None:
        for row in self._results.rows(self._report):
            self._look_at(row)
        if not self._runs:
            raise ConfigError(Problem(str(self._results.path), "has no results of promptfoo that can be read"))
        prompts = list(self._prompts())
        plan = self._scan.plan(prompts, {})
        mapper = AssertionMapper(self._report, SourceFolder(self._results.path.parent).root)
        templates = self._results.config.get("assertionTemplates")
        data = self._outputs == {True}
        maker = CaseMaker(prompts, plan, self._scan, mapper, templates, self._report, outputs_data=data)
        cases = _Cases()
        try:
            self._write_cases(maker, cases)
            group = new_run_id() if len(self._runs) > 1 else None
            for run in self._runs.values():
                self._output.add_run(self._imported(run, group), self._run_results(run, cases))
        finally:
            cases.close()
        for name, text in maker.files.items():
            self._output.write_file(name, clean_text(text).text)
        repeats = {count for run in self._runs.values() for count in run.repeats.values()}
        keys = {"repeats": repeats.pop()} if len(repeats) == 1 and repeats != {1} else {}
        self._output.write_suite({"name": self._name, **self._targets(), **keys, **maker.graders()})

    def _look_at(self, row: ResultRow) -> None:
        test = test_of(row)
        digest = test.whole_digest
        if digest not in self._tests:
            if len(self._tests) >= MAX_CASES:
                raise ConfigError(Problem(row.place, f"more than {MAX_CASES:,} cases; split the results"))
            self._scan.add(test)
            self._tests[digest] = 0
        run = self._run(row)
        if run is None:
            return
        self._tests[digest] += 1
        response = row.data.get("response")
        if isinstance(response, Mapping) and response.get("output") is not None:
            self._outputs.add(isinstance(response["output"], dict | list))
        run.repeats[digest] += 1
        for component in components_of(row.data):
            if component.column not in run.graders:
                if len(run.graders) >= _MAX_COLUMNS:
                    note = f"is one of more than {_MAX_COLUMNS} columns; compute it from the answers"
                    self._report.not_mapped(row.place, item_name("grades of", component.column), note)
                    continue
                run.graders[component.column] = imported_grader("promptfoo", component.column)
        for name in derived_scores(row.data):
            note = "is computed from other scores; write a grader of kind formula"
            self._report.not_mapped(row.place, item_name("derived metric", name), note)
        self._report.mapped(row.place, "result", "response and grades")

    def _run(self, row: ResultRow) -> _Run | None:
        provider, label = provider_of(row.data)
        key = run_key(row.data)
        if key not in self._runs:
            if len(self._runs) >= _MAX_RUNS:
                note = f"is of one of more than {_MAX_RUNS} runs; split the results"
                self._report.not_mapped(row.place, "result", note)
                return None
            prompt = row.data.get("prompt")
            named = prompt.get("label", prompt.get("display")) if isinstance(prompt, Mapping) else None
            short = str(named) if named and len(str(named)) <= 40 and "{{" not in str(named) else ""
            names = {run.name for run in self._runs.values()}
            name = unique_name(f"{short}@{label or provider}".lstrip("@").replace("@", "-at-"), names, "run")
            number = len(self._runs) + 1
            file = ANSWERS if number == 1 else ANSWERS.replace(".", f"-{number}.")
            self._runs[key] = _Run(key, name, provider, file)
            self._report.mapped(row.place, item_name("provider", label or provider), f"run, and {file}")
        return self._runs[key]

    def _prompts(self) -> Iterator[PromptfooPrompt]:
        """The prompts as templates, where the results have them."""
        written = self._results.inner.get("prompts")
        seen: set[str] = set()
        for prompt in written if isinstance(written, list) else []:
            text = prompt.get("raw") if isinstance(prompt, Mapping) else None
            if not isinstance(text, str) or text in seen:
                continue
            seen.add(text)
            try:
                parse_page(text)
            except TemplateError:
                continue
            yield PromptfooPrompt(f"prompt-{len(seen)}", (ChatPart("user", text),), (text,), "prompts")
        if not seen and (name := self._scan.question) is not None:
            text = f"{{{{{name}}}}}"
            yield PromptfooPrompt("prompt-1", (ChatPart("user", text),), (text,), "prompts")

    def _write_cases(self, maker: CaseMaker, cases: _Cases) -> None:
        names = CaseNames()
        done: set[str] = set()
        for row in self._results.rows(ImportReport("", "")):
            test = test_of(row)
            digest = test.whole_digest
            if digest in done or not self._tests.get(digest):
                continue
            done.add(digest)
            prompt = row.data.get("prompt")
            raw = prompt.get("raw") if isinstance(prompt, Mapping) else None
            case = maker.case(test, names.name(test), raw if isinstance(raw, str) else None)
            if case is not None:
                clean = clean_data(case)
                assert isinstance(clean, dict)  # noqa: S101 - as the case is
                self._output.add_case(clean)
                cases.add(digest, clean)

    def _imported(self, run: _Run, group: str | None) -> ImportedRun:
        several = len(self._runs) > 1
        written = self._results.inner.get("timestamp")
        time = written if isinstance(written, str) and _TIME.fullmatch(written) else None
        return ImportedRun(
            name=f"{self._name} [{run.name}]" if several else self._name,
            suite=self._name,
            target={"kind": "promptfoo", "model": clean_text(run.provider).text},
            variant=run.name if several else None,
            group=group,
            graders=run.graders,
            repeats=max(run.repeats.values(), default=1),
            started_at=time,
        )

    def _run_results(self, run: _Run, cases: _Cases) -> Iterator[ImportedResult]:
        done: Counter[str] = Counter()
        for row in self._results.rows(ImportReport("", "")):
            if run_key(row.data) != run.key:
                continue
            digest = test_of(row).whole_digest
            sample = cases.sample(digest)
            if sample is None:
                continue
            response = response_of(row.data)
            self._output.add_answer(sample.case_key, response, run.file)
            repeat = done[digest]
            done[digest] += 1
            yield self._result(run, row, sample, response, repeat)

    def _result(self, run: _Run, row: ResultRow, sample: Sample, response: Response, repeat: int) -> ImportedResult:
        components = list(components_of(row.data))
        human = next((one for one in all_components(row.data) if type_of(one) == "human"), None)
        if response.error is not None:
            grades = {name: skipped_grade(grader.kind, grader.fingerprint) for name, grader in run.graders.items()}
        else:
            grades = {name: not_graded(grader) for name, grader in run.graders.items()}
            for component in components:
                if component.column in run.graders:
                    grades[component.column] = component_grade(run.graders[component.column], component.result)
            grades[OVERALL] = overall_grade(run.graders[OVERALL], row.data, components, judged=human is not None)
        label = None if human is None else self._label(human, row)
        return ImportedResult(sample, response, grades, repeat, {} if label is None else {OVERALL: label})

    def _label(self, human: Mapping[str, Any], row: ResultRow) -> ImportedLabel | None:
        verdict = human.get("pass")
        if not isinstance(verdict, bool):
            self._report.not_mapped(row.place, "verdict of a person", "has no pass, true or false")
            return None
        grading = row.data.get("gradingResult")
        comment = grading.get("comment") if isinstance(grading, Mapping) else None
        score = human.get("score")
        self._report.mapped(row.place, "verdict of a person", f"label of {OVERALL}")
        return ImportedLabel(
            "pass" if verdict else "fail",
            float(score) if is_number(score) and 0 <= score <= 1 else None,
            str(comment or human.get("reason") or ""),
        )

    def _targets(self) -> dict[str, object]:
        first, *others = self._runs.values()
        target: dict[str, object] = {"kind": "replay", "responses": first.file}
        if not others:
            return {"target": target}
        variants = [{"name": run.name, "set": {"target.responses": run.file}} for run in self._runs.values()]
        return {"target": target, "variants": variants}
