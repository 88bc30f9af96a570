"""Exports of OpenAI's hosted evals, and the registry and logs of the repository openai/evals.

Each hosted run becomes a stored run with its grades; the testing criteria become graders of a suite that grades the
recorded samples again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from gradeline.compat.openai_evals import (
    DERIVED,
    EvalVariable,
    Namespaces,
    Template,
    render,
    text_of,
    value_of,
    whole_variable,
)
from gradeline.errors import ConfigError, MissingDataError, Problem
from gradeline.graders.grading import skipped_grade
from gradeline.importers import openai_logs, openai_registry
from gradeline.importers.grades import imported_grade
from gradeline.importers.json_values import ValuePath, json_text
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.openai_export import (
    Export,
    ExportedItem,
    ExportedRun,
    call_error,
    files_of,
    input_text,
    is_hosted,
    response_of,
)
from gradeline.importers.openai_graders import SOURCE, GraderTranslator
from gradeline.importers.openai_inference import infer_comparisons
from gradeline.importers.openai_prompts import OUTPUT_TEXT, NotMappedError, read_template
from gradeline.importers.openai_targets import ChatSource, chat_source, chat_target
from gradeline.importers.output import ANSWERS, MODEL_SUITE, SUITE, ImportedResult, ImportedRun, ImportOutput
from gradeline.importers.report import item_name
from gradeline.model import Grade, Response, Sample, clean_data, clean_text, quote

_LOOKED_AT = 20
_KEYS = (
    {"testing_criteria", "data_source_config"},
    {"eval_id", "data_source"},
    {"datasource_item"},
    {"data_source_idx"},
)
"""Names of which one set is in the first bytes of a document that is too large to be read for detection."""
_PLACEHOLDER = {"kind": "http", "url": "http://127.0.0.1:8000/"}
_ANSWER = re.compile(
    r"(?:^|_)(?:answers?|outputs?|responses?|completion|prediction|predicted|submission|generated|reply)(?:_|$)"
)
_NOT_AN_ANSWER = re.compile(r"reference|expected|correct|ideal|truth|gold|label|target|true")


def matches(source: Source) -> bool:
    """Whether the source is part of an export, of the registry, or a log."""
    if openai_registry.matches(source) or openai_logs.matches(source):
        return True
    if source.path.is_dir():
        return any(_is_hosted_file(Source(file)) for file in files_of(source.path)[:_LOOKED_AT])
    return _is_hosted_file(source)


def _is_hosted_file(source: Source) -> bool:
    return is_hosted(source.first_row) or any(names <= source.keys for names in _KEYS)


def read(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Store a run for each graded run, and write a suite that grades the recorded responses again."""
    if openai_registry.matches(source):
        logs = openai_logs.read_logs(source.path, output.report)
        logged = {identifier for log in logs for identifier in log.samples}
        cases = openai_registry.read(source, options, output, logged)
        openai_logs.store_logs(logs, cases, output)
        return
    if openai_logs.matches(source):
        openai_logs.read(source, options, output)
        return
    export = Export(files_of(source.path), output.report)
    if not export.evals and not export.runs:
        remedy = "export the eval, its runs and their output items"
        raise ConfigError(Problem("SOURCE", f"{source.path} has no eval, run or output item; {remedy}"))
    HostedImport(export, options, output, source.path.name.split(".")[0]).write()


class HostedImport:
    """The import of one eval: of its definition if the export has it, and of its runs."""

    def __init__(self, export: Export, options: ImportOptions, output: ImportOutput, fallback: str) -> None:
        self._export = export
        self._output = output
        self._report = output.report
        self._eval: Mapping[str, Any] = {}
        self._eval_place = ""
        self._runs = self._select()
        name = options.name or self._eval.get("name")
        self._name = clean_text(name).text if isinstance(name, str) and name.strip() else fallback
        self._with_samples = any(run.has_samples for run in self._runs)
        answer = OUTPUT_TEXT if self._with_samples else self._answer_in_items()
        self._answer = answer
        self._translator = GraderTranslator(self._report, answer or OUTPUT_TEXT)
        self._chat: ChatSource | None = None
        self._chat_place = ""
        self._question: Template | None = None
        self._input_path = ValuePath("--input", options.input_path)
        self._expected_path = ValuePath("--expected", options.expected_path)
        self._digests: dict[int, str] = {}
        self._written: set[str] = set()

    def write(self) -> None:
        """Write the files, and store the runs."""
        self._add_graders()
        self._find_chat_source()
        chat = self._chat_target()
        recorded = self._recorded_run()
        for path, text in self._translator.code.items():
            self._output.write_file(path, text)
        for run in self._runs:
            self._write_rows(run, answers=run is recorded)
        self._write_suites(recorded, chat)

    def _select(self) -> list[ExportedRun]:
        """The runs of the eval that is imported; others are reported."""
        evals = self._export.evals
        used = {str(run.data.get("eval_id")) for run in self._export.runs}
        chosen = next((ident for ident in evals if ident in used), next(iter(evals), None))
        for ident, row in evals.items():
            if ident == chosen:
                self._eval, self._eval_place = row.data, row.place
            else:
                why = "a suite has one eval; import it from a file or folder of its own"
                self._report.not_mapped(row.place, item_name("eval", row.data.get("name") or ident), why)
        named = (str(run.data["eval_id"]) for run in self._export.runs if run.data.get("eval_id"))
        chosen = chosen or next(named, None)
        runs = []
        for run in self._export.runs:
            if not run.data.get("eval_id") or str(run.data["eval_id"]) == chosen:
                runs.append(run)
            else:
                why = "it is of another eval; import it from a file or folder of its own"
                self._report.not_mapped(run.place, item_name("run", run.name), why)
        return runs

    def _answer_in_items(self) -> EvalVariable | None:
        """The part of the items that was graded, where the export has no samples."""
        criteria = [one for one in self._eval.get("testing_criteria") or () if isinstance(one, Mapping)]
        found: Counter[EvalVariable] = Counter()
        for criterion in criteria:
            with suppress(NotMappedError):
                variable = whole_variable(read_template(criterion.get("input")))
                if variable is not None and variable.namespace == "item":
                    found[variable] += 1
        item = next((item.item for run in self._runs for item in self._export.items_of(run)), {})
        if not found:
            keys = [key for key, value in item.items() if isinstance(value, str) and _is_answer(str(key))]
            found.update(EvalVariable("item", (key,)) for key in keys[:1])
        if not found or not item:
            return None
        (answer, _), *_ = found.most_common(1)
        self._report.approximated(
            "output items", "responses", ANSWERS, f"the export has no samples; {answer} is taken as the response"
        )
        return answer

    def _add_graders(self) -> None:
        criteria = self._eval.get("testing_criteria") or []
        for number, criterion in enumerate(criteria):
            self._translator.add(criterion, f"{self._eval_place}: testing_criteria[{number}]")
        recorded = {name: run for run in self._runs for name in run.grader_names}
        unknown = [name for name in recorded if not self._translator.is_defined(name)]
        if not unknown:
            return
        items = (item for run in self._runs for item in self._export.items_of(run))
        inferred = infer_comparisons(items) if self._with_samples else {}
        for name in unknown:
            place = recorded[name].place
            if name in inferred:
                agreed = f"the export does not define it; found in its {inferred[name].verdicts:,} verdicts"
                self._translator.add(inferred[name].criterion(name), place, agreed)
            else:
                self._report.not_mapped(
                    place,
                    item_name("grader", name),
                    "the export has its grades and not its definition; export the eval too, or write a grader",
                )

    def _find_chat_source(self) -> None:
        """How the last run that called a model called it."""
        for run in reversed(self._runs):
            what = item_name("data source of run", run.name)
            try:
                source = chat_source(run.data)
            except NotMappedError as error:
                self._report.not_mapped(run.place, what, str(error))
                continue
            if source is None:
                continue
            if self._chat is None:
                self._chat, self._question, self._chat_place = source, source.question, run.place
            elif source != self._chat:
                differs = f"another model or prompt than {MODEL_SUITE}, which is of the last run; add it as a variant"
                self._report.approximated(run.place, what, MODEL_SUITE, differs)

    def _chat_target(self) -> dict[str, Any] | None:
        if self._chat is None:
            return None
        what = f"data source {self._chat.api}"
        place = self._chat_place
        if self._chat.item_messages is not None:
            self._report.approximated(
                place, what, MODEL_SUITE, "each item has messages of its own; only the last one of the user is sent"
            )
        try:
            target = chat_target(self._chat, self._translator.derived)
        except NotMappedError as error:
            self._report.not_mapped(place, what, str(error))
            return None
        if self._chat.item_messages is None:
            self._report.mapped(place, what, MODEL_SUITE)
        return target

    def _recorded_run(self) -> ExportedRun | None:
        """The last run with responses; ``answers.jsonl`` has these."""
        if self._answer is None:
            return None
        with_rows = [run for run in self._runs if run.rows and (run.has_samples or not self._with_samples)]
        return with_rows[-1] if with_rows else None

    def _write_rows(self, run: ExportedRun, *, answers: bool) -> None:
        """Write the cases and responses of a run, and store it if it has grades."""
        if run.grader_names:
            self._output.add_run(self._imported_run(run), self._results(run, answers=answers))
            self._report.mapped(run.place, item_name("run", run.name or self._name), "run in the store")
            return
        for _ in self._results(run, answers=answers):
            pass
        if run.id:
            became = ANSWERS if answers else "cases"
            self._report.mapped(run.place, item_name("run without grades", run.name), became)

    def _imported_run(self, run: ExportedRun) -> ImportedRun:
        model = run.data.get("model")
        error = run.data.get("error")
        message = error.get("message") if isinstance(error, Mapping) else None
        created = _timestamp(run.data.get("created_at"))
        failed = run.data.get("status") in ("failed", "canceled")
        return ImportedRun(
            name=clean_text(run.name or self._name).text,
            suite=self._name,
            target=clean_data({"kind": SOURCE, "run": run.id or None, "model": model if model else None}),
            variant=None if run.name is None else clean_text(run.name).text,
            graders={found.name: found.grader for found in map(self._translator.criterion, run.grader_names)},
            started_at=created,
            error_message=clean_text(str(message or run.data["status"])).text if failed else None,
        )

    def _results(self, run: ExportedRun, *, answers: bool) -> Iterator[ImportedResult]:
        became = "case, response and grades" if run.grader_names else "case and response"
        for number, item in enumerate(self._export.items_of(run)):
            sample = self._sample(item, item.number if item.number is not None else number)
            response = self._response(item)
            if sample.case_key not in self._written:
                self._output.add_case(_case(sample))
                self._written.add(sample.case_key)
            if answers:
                self._output.add_answer(sample.case_key, response)
            self._report.mapped(item.place, "output item", became)
            yield ImportedResult(sample, response, self._grades(run, item))

    def _grades(self, run: ExportedRun, item: ExportedItem) -> dict[str, Grade]:
        failed = item.sample is not None and call_error(item.sample) is not None
        grades: dict[str, Grade] = {}
        for name in run.grader_names:
            criterion = self._translator.criterion(name)
            recorded = item.grades.get(name)
            if failed:
                grades[criterion.name] = skipped_grade(criterion.grader.kind, criterion.grader.fingerprint)
                if recorded is not None:
                    why = "is of a failed call, which has no grade"
                    self._report.not_mapped(item.place, item_name("grade", criterion.name), why)
                continue
            score = None if recorded is None or recorded.score is None else criterion.range.share(recorded.score)
            original = {"score": recorded.score} if recorded and recorded.score != score else {}
            grades[criterion.name] = imported_grade(
                criterion.grader,
                score,
                passed=None if recorded is None else recorded.passed,
                rationale=None if recorded is None else recorded.rationale,
                metadata=original,
                missing="the export has no grade of it for this item",
            )
        return grades

    def _response(self, item: ExportedItem) -> Response:
        if item.sample is not None:
            return response_of(item.sample)
        if self._answer is not None and not self._with_samples:
            with suppress(MissingDataError):
                return Response(text=clean_text(text_of(value_of(self._answer, {"item": item.item}))).text)
        return response_of({})

    def _sample(self, item: ExportedItem, number: int) -> Sample:
        """The case of an item. Items with one number and different data, as runs may have them, are different cases."""
        data = clean_data(dict(item.item))
        digest = sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:12]
        key = f"item-{number}"
        if self._digests.setdefault(number, digest) != digest:
            key = f"{key}-{digest}"
        namespaces: Namespaces = {"item": data}
        derived = {}
        for name, template in self._translator.derived.templates.items():
            with suppress(MissingDataError):
                derived[name] = render(template, namespaces)
        return Sample(
            key,
            clean_text(self._input(item, namespaces)).text,
            self._expected(item, namespaces),
            data | ({DERIVED: derived} if derived else {}),
            rubric_vars=self._rubric_vars(item.place, namespaces),
        )

    def _input(self, item: ExportedItem, namespaces: Namespaces) -> str:
        chosen = self._chosen(self._input_path, item)
        if chosen is not None:
            return chosen
        if self._question is not None:
            with suppress(MissingDataError):
                return render(self._question, namespaces)
        own = self._chat.question_in(item.item) if self._chat is not None else None
        recorded = input_text(item.sample) if item.sample is not None else None
        return own or recorded or text_of(namespaces["item"])

    def _expected(self, item: ExportedItem, namespaces: Namespaces) -> str | None:
        chosen = self._chosen(self._expected_path, item)
        if chosen is not None:
            return chosen
        for variable in self._translator.references[:1]:
            with suppress(MissingDataError):
                return text_of(value_of(variable, namespaces))
        return None

    def _chosen(self, path: ValuePath, item: ExportedItem) -> str | None:
        """The value at the path that the caller chose; None without one, or if the item has nothing there."""
        if path.is_default:
            return None
        try:
            return json_text(path.find(item.item))
        except LookupError as error:
            self._report.not_mapped(item.place, "value", str(error))
            return None

    def _rubric_vars(self, place: str, namespaces: Namespaces) -> dict[str, Any]:
        values = {}
        for name, variable in self._translator.variables.items():
            try:
                values[name] = text_of(value_of(variable, namespaces))
            except MissingDataError:
                differs = "the item has no such value; it is empty in the judge's prompt"
                self._report.approximated(place, item_name("value", variable), "rubric_vars", differs)
                values[name] = ""
        return values

    def _write_suites(self, recorded: ExportedRun | None, chat: dict[str, Any] | None) -> None:
        self._report_data_source()
        cases = any(run.rows for run in self._runs)
        if not cases:
            why = "the export has no items; export the output items of a run"
            self._report.not_mapped(self._eval_place or "source", "cases", why)
        if recorded is None and cases:
            why = f"the export has no responses; name your agent as the target in {SUITE}"
            self._report.not_mapped("output items", "responses", why)
        graders = self._translator.graders
        if not cases or not graders:
            if cases:
                self._report.not_mapped(SUITE, "graders", f"none was mapped; write {SUITE} with graders of your own")
            return
        suite: dict[str, Any] = {"name": self._name}
        if self._eval.get("metadata"):
            suite["description"] = quote(self._eval["metadata"], 1000)
        target = {"kind": "replay", "responses": ANSWERS} if recorded is not None else chat or _PLACEHOLDER
        self._output.write_suite({**suite, "target": target, "graders": graders})
        if chat is not None and recorded is not None:
            self._output.write_suite({**suite, "target": chat, "graders": graders}, MODEL_SUITE)

    def _report_data_source(self) -> None:
        config = self._eval.get("data_source_config")
        if not isinstance(config, Mapping):
            return
        what = item_name("data_source_config", config.get("type"))
        place = f"{self._eval_place}: data_source_config"
        if config.get("type") == "custom":
            self._report.mapped(place, what, "cases.jsonl")
        else:
            self._report.approximated(place, what, "cases.jsonl", "the cases are the exported items; logs are not read")


def _is_answer(key: str) -> bool:
    return bool(_ANSWER.search(key.lower())) and not _NOT_AN_ANSWER.search(key.lower())


def _timestamp(created: object) -> str | None:
    """A time in seconds as ISO 8601 in UTC."""
    if not isinstance(created, int | float) or isinstance(created, bool):
        return None
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return None


def _case(sample: Sample) -> dict[str, object]:
    case: dict[str, object] = {"id": sample.id, "input": sample.input}
    if sample.ground_truth is not None:
        case["ground_truth"] = sample.ground_truth
    case["metadata"] = sample.metadata
    if sample.rubric_vars:
        case["rubric_vars"] = sample.rubric_vars
    return case
