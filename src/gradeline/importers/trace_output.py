"""From the traces, scores and dataset items of an export to cases, runs and a suite."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gradeline.errors import ConfigError, DataError, Problem
from gradeline.importers.exported_objects import timestamp
from gradeline.importers.json_values import ValuePath, decoded, expected_value, input_text, messages_of, output_text
from gradeline.importers.kinds import ImportOptions
from gradeline.importers.output import ANSWERS, ImportedResult, ImportedRun, ImportOutput
from gradeline.importers.report import ImportReport
from gradeline.importers.trace_response import response_of, root_of
from gradeline.importers.trace_scores import ScoreGraders
from gradeline.importers.trace_spool import DatasetItem, Span, Trace, TraceSpool
from gradeline.model import Response, Sample, clean_data, clean_text
from gradeline.report.formatting import one_line
from gradeline.suite.case_ids import CaseKeySet

MAX_RUNS = 200
"""Maximum number of experiments in one source."""
_MAX_REASONS = 3
_MAX_NAME = 120
_MAX_KEY = 200
_SAME_KEY = f"has an id whose first {_MAX_KEY} characters equal those of another; give it a shorter id"
_IN_METADATA = "the whole value is in the metadata"
_PLACEHOLDER = {"kind": "http", "url": "http://127.0.0.1:9000/evaluate"}
_NOT_EMPTY = {"kind": "custom-rules", "rules": [{"condition": "regex", "value": r"\S"}]}


def write_traces(spool: TraceSpool, tool: str, name: str, options: ImportOptions, output: ImportOutput) -> None:
    """Write what was collected: a case for each dataset item and each trace without one, a run for each experiment.

    ``tool`` names the source, ``name`` the suite if the options do not.
    """
    spool.finish()
    _TraceWriter(spool, tool, one_line(options.name or name, _MAX_NAME), options, output).write()


class _TraceWriter:
    """Writes the cases, runs and suite of one import."""

    def __init__(self, spool: TraceSpool, tool: str, name: str, options: ImportOptions, output: ImportOutput) -> None:
        self._spool = spool
        self._tool = tool
        self._name = name
        self._input = ValuePath("--input", options.input_path)
        self._expected = ValuePath("--expected", options.expected_path)
        self._output = output
        self._report = output.report
        self._written = CaseKeySet()
        self._has_expected = False
        self._lacks_expected = False
        self._has_sessions = False
        self._has_answers = False

    def write(self) -> None:
        for item in self._spool.items():
            sample = self._case_of_item(item, self._report)
            if sample is not None and not self._add_case(sample):
                self._report.not_mapped(item.place, "dataset item", _SAME_KEY)
        runs = self._spool.runs(MAX_RUNS + 1)
        if len(runs) > MAX_RUNS:
            self._report.not_mapped(
                self._tool, "runs", f"there are more than {MAX_RUNS}; export fewer experiments at a time"
            )
        for run in runs[:MAX_RUNS]:
            self._add_run(run, plain=len(runs) == 1)
        self._report_unmatched()
        if not self._output.counts:
            left_out = [f"{item.places[0]} {item.note}" for item in islice(self._report.items, _MAX_REASONS)]
            reasons = "".join(f"; {reason}" for reason in left_out)
            raise ConfigError(Problem("SOURCE", f"has no dataset items or traces of {self._tool}{reasons}"))
        self._write_suite()

    def _add_run(self, run: str, *, plain: bool) -> None:
        scores = ScoreGraders.of(self._spool, run, self._tool, self._report)
        first, last = self._spool.times(run)
        shown = one_line(clean_text(run).text, _MAX_NAME)
        imported = ImportedRun(
            name=shown or self._name,
            suite=self._name,
            target={"kind": self._tool, **({"run": shown} if shown else {})},
            variant=None if plain else shown or self._tool,
            graders=scores.graders,
            label_only=scores.label_only,
            repeats=self._spool.repeats(run),
            started_at=timestamp(first),
            completed_at=timestamp(last),
        )
        self._output.add_run(imported, self._results(run, scores, with_answers=not self._has_answers))
        self._has_answers = True

    def _results(self, run: str, scores: ScoreGraders, *, with_answers: bool) -> Iterator[ImportedResult]:
        """The results of a run. Each case is written once, and answers only for the first run."""
        seen = CaseKeySet()
        for trace in self._spool.traces(run):
            sample = self._case_of_trace(trace)
            if sample is None:
                continue
            key = sample.case_key
            if not seen.add(f"{trace.repeat} {key}"):
                self._report.not_mapped(trace.spans[0].place, "trace", _SAME_KEY)
                continue
            self._add_case(sample)
            response = self._response(trace)
            if with_answers:
                self._output.add_answer(key, response)
            grade = scores.grades if response.error is None else scores.skipped
            labels = scores.labels(trace, self._report)
            yield ImportedResult(sample, response, grade(trace, self._report), trace.repeat, labels)

    def _response(self, trace: Trace) -> Response:
        response = response_of(trace.spans)
        root = root_of(trace.spans)
        missing = self._spool.span_count(trace.id) - len(trace.spans)
        if missing:
            self._report.not_mapped(
                root.place, "spans", f"the trace is too large: {missing:,} of its spans are left out"
            )
        if response.error is not None and root.error is None:
            self._report.approximated(
                root.place, "trace", "a failed call", "has no output, so there is nothing to grade"
            )
        else:
            self._item(root.place, "output", "response", _difference(root.output, response))
        return response

    def _case_of_trace(self, trace: Trace) -> Sample | None:
        """The case of the trace's dataset item, or a case of its own if it has none."""
        root = root_of(trace.spans)
        item = None if trace.item is None else self._spool.item(trace.item)
        if item is not None:
            return self._case_of_item(item, ImportReport("", ""))
        source = DatasetItem(
            trace.item or trace.id,
            root.place,
            root.input,
            next((span.expected for span in (root, *trace.spans) if span.expected is not None), None),
            self._metadata(root, trace),
            tuple(dict.fromkeys(tag for span in trace.spans for tag in span.tags)),
        )
        sample = self._case_of_item(source, self._report)
        session = next((span.session for span in trace.spans if span.session), None)
        return sample if sample is None or session is None else self._with_session(sample, session, root.place)

    def _metadata(self, root: Span, trace: Trace) -> dict[str, object]:
        around = next((span.metadata for span in trace.spans if span.kind == "trace"), {})
        return {**around, **root.metadata}

    def _with_session(self, sample: Sample, session: str, place: str) -> Sample:
        self._has_sessions = True
        session = one_line(clean_text(session).text, _MAX_KEY)
        differs = "the traces of a session are cases of one cluster, not turns of one case"
        self._report.approximated(place, "session", "cluster", differs)
        metadata = {**sample.metadata, "session": session}
        return Sample(sample.id, sample.input, sample.ground_truth, metadata, tags=sample.tags, cluster=session)

    def _case_of_item(self, item: DatasetItem, report: ImportReport) -> Sample | None:
        """The case; None if it has no input, which is reported."""
        try:
            found = input_text(self._input.find(item.input))
            expected = None if item.expected is None else expected_value(self._expected.find(item.expected))
            picked = output_text(item.expected)
            kept = _structured("expected", item.expected) if picked.is_part else {}
            metadata = clean_data({**item.metadata, **_structured("input", item.input), **kept})
        except (LookupError, DataError) as error:
            report.not_mapped(item.place, "case", str(error))
            return None
        if not found.text.strip():
            report.not_mapped(item.place, "case", "has no input; export the inputs too, or choose them with --input")
            return None
        differs = picked.difference(_IN_METADATA) if self._expected.is_default else ""
        self._item(item.place, "input", "input", found.difference(_IN_METADATA), report)
        if expected is not None:
            self._item(item.place, "expected output", "ground_truth", differs, report)
        key = one_line(clean_text(item.id).text, _MAX_KEY)
        tags = tuple(clean_text(tag).text for tag in item.tags)
        return Sample(key, found.text, expected, metadata, tags=tags)

    def _item(self, place: str, what: str, became: str, differs: str, report: ImportReport | None = None) -> None:
        report = report or self._report
        if differs:
            report.approximated(place, what, became, differs)
        else:
            report.mapped(place, what, became)

    def _add_case(self, sample: Sample) -> bool:
        """Write a case; False if it was written before."""
        if not self._written.add(sample.case_key):
            return False
        if sample.ground_truth is None:
            self._lacks_expected = True
        else:
            self._has_expected = True
        data = {
            "id": sample.id,
            "input": sample.input,
            "ground_truth": sample.ground_truth,
            "tags": list(sample.tags),
            "metadata": sample.metadata,
        }
        self._output.add_case({key: value for key, value in data.items() if value not in (None, [], {})})
        return True

    def _report_unmatched(self) -> None:
        scores, links = self._spool.unmatched()
        if scores:
            why = f"{scores:,} scores belong to traces that are not in the source; export these traces too"
            self._report.not_mapped(self._tool, "scores", why)
        if links:
            why = f"{links:,} items of experiments belong to traces that are not in the source; export them too"
            self._report.not_mapped(self._tool, "experiment items", why)

    def _write_suite(self) -> None:
        target = {"kind": "replay", "responses": ANSWERS} if self._output.counts.get(ANSWERS) else _PLACEHOLDER
        if target is _PLACEHOLDER:
            differs = "an export has no agent: write the URL of yours, or another kind of target"
            self._report.approximated("suite.yaml", "target", "target http", differs)
        graders: dict[str, object] = {}
        if self._has_expected:
            applies = {"when": "ground_truth"} if self._lacks_expected else {}
            graders["exact_match"] = {"kind": "exact_match", **applies}
        else:
            graders["not_empty"] = _NOT_EMPTY
        differs = "an export has no evaluators: this grader is a start; write the graders you need"
        self._report.approximated("suite.yaml", "evaluators", f"grader {next(iter(graders))}", differs)
        suite: dict[str, object] = {"name": self._name, "target": target, "graders": graders}
        if self._has_sessions:
            suite["cluster"] = "metadata.session"
        self._output.write_suite(suite)


def _difference(output: object, response: Response) -> str:
    """How the text of a response differs from the recorded output."""
    if output is None or (response.trajectory is not None and messages_of(output)):
        return ""
    return output_text(output).difference("the rest is left out")


def _structured(name: str, value: object) -> dict[str, object]:
    """The whole value, for the metadata of its case, where its text is only a part of it."""
    value = decoded(value)
    return {name: value} if isinstance(value, dict | list) else {}
