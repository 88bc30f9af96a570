"""Exports that are broken, or made to do harm: refused, or read as far as they are whole, with a clear message."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from export_project import ExportProject

KINDS = ("langfuse", "langsmith", "braintrust")
CASES: dict[str, dict[str, Any]] = {
    "langfuse": {"id": "a", "datasetId": "d", "datasetName": "d", "input": "hi", "expectedOutput": "ho"},
    "langsmith": {"id": "a", "dataset_id": "d", "inputs": {"question": "hi"}, "outputs": {"answer": "ho"}},
    "braintrust": {"id": "a", "dataset_id": "d", "_xact_id": "1", "input": "hi", "expected": "ho"},
}
"""A dataset's case of each tool."""
INPUTS = {"langfuse": "input", "langsmith": "inputs", "braintrust": "input"}
TRACES: dict[str, dict[str, Any]] = {
    "langfuse": {
        "id": "t", "timestamp": "2026-11-16T10:00:00Z", "input": "hi", "output": "ho", "scores": [], "observations": [],
    },
    "langsmith": {"id": "t", "run_type": "chain", "inputs": {"q": "hi"}, "outputs": {"output": "ho"}},
    "braintrust": {"id": "t", "span_id": "t", "root_span_id": "t", "span_attributes": {}, "input": "hi", "output": "ho"},
}  # fmt: skip
"""A trace of each tool."""
LIMIT = """
import sys
from pathlib import Path
from gradeline.cli.commands import run_command
code = run_command(sys.argv[1:])
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))  # ru_maxrss includes the parent's
print(peak // 1024, file=sys.stderr)
sys.exit(code)
"""


def import_and_measure(folder: Path, source: str, kind: str, output: str = "imported") -> tuple[int, str, int]:
    """The exit code, the last message and the megabytes of an import in a process of its own."""
    command = [sys.executable, "-c", LIMIT, "import", source, "--from", kind, "--output", output, "--store", "runs.db"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    *messages, megabytes = done.stderr.splitlines()
    return done.returncode, "\n".join(messages), int(megabytes)


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("kind", KINDS)
class TestBrokenFiles:
    def test_two_gigabytes_without_a_line_break(self, exports: ExportProject, kind: str) -> None:
        path = exports.write("big.jsonl", [CASES[kind]])
        os.truncate(path, 2 * 1024**3)  # a sparse file: it takes no space
        code, message, megabytes = import_and_measure(exports.folder, "big.jsonl", kind)
        assert code == 2
        assert "big.jsonl:2: contains a string of more than 10,000,000 characters" in message
        assert megabytes < 400
        assert not (exports.folder / "imported").exists()

    @pytest.mark.parametrize("options", [[], ["--from", "KIND"]])
    def test_gzip_that_was_cut_off(self, exports: ExportProject, kind: str, options: list[str]) -> None:
        rows = "".join(f"{json.dumps({**CASES[kind], 'id': str(number)})}\n" for number in range(9_999))
        whole = gzip.compress(rows.encode())
        (exports.folder / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
        assert "cut.jsonl.gz: is not a complete gzip file" in exports.refused(
            "cut.jsonl.gz", *(option.replace("KIND", kind) for option in options)
        )

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
    def test_another_encoding(self, exports: ExportProject, kind: str, encoding: str) -> None:
        (exports.folder / "export.jsonl").write_bytes(f"{json.dumps(CASES[kind])}\n".encode(encoding))
        message = exports.refused("export.jsonl", "--from", kind)
        assert f"has no dataset items or traces of {kind}; export.jsonl:1 is not " in message

    def test_one_row_in_another_encoding(self, exports: ExportProject, kind: str) -> None:
        rows = [json.dumps(CASES[kind]).encode(), '{"id": "é"}'.encode("latin-1")]
        (exports.folder / "export.jsonl").write_bytes(b"\n".join(rows))
        imported = exports.imports("export.jsonl", "--from", kind)
        assert imported.code == 1
        assert "is not UTF-8: byte 0xe9" in imported.notes("not mapped")["row"]
        assert [case["id"] for case in imported.lines("cases.jsonl")] == ["a"]

    def test_a_byte_order_mark_and_carriage_returns(self, exports: ExportProject, kind: str) -> None:
        (exports.folder / "export.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(CASES[kind]).encode() + b"\r\n\r\n")
        imported = exports.imports("export.jsonl")
        assert (imported.report["kind"], imported.code) == (kind, 3)

    def test_a_list_that_was_cut_off_is_read_as_far_as_it_is_whole(self, exports: ExportProject, kind: str) -> None:
        text = json.dumps([{**CASES[kind], "id": str(number)} for number in range(10)])
        exports.write("export.json", text[:-20])
        imported = exports.imports("export.json", "--from", kind)
        assert imported.code == 1
        assert "ends too early" in imported.notes("not mapped")["rest of the file"]
        assert len(imported.lines("cases.jsonl")) == 9

    def test_a_table_that_is_none(self, exports: ExportProject, kind: str) -> None:
        pytest.importorskip("duckdb")
        exports.write("export.parquet", "PAR1, not really")
        assert "export.parquet: cannot be read as Parquet" in exports.refused("export.parquet", "--from", kind)

    def test_a_folder_without_files(self, exports: ExportProject, kind: str) -> None:
        (exports.folder / "export").mkdir()
        assert "export has no files *.json, *.jsonl, *.ndjson, *.parquet" in exports.refused("export", "--from", kind)

    def test_a_link_that_leads_back_is_not_followed(self, exports: ExportProject, kind: str) -> None:
        exports.write("export/cases.jsonl", [CASES[kind]])
        (exports.folder / "export" / "again").symlink_to(exports.folder / "export")
        assert exports.imports("export", "--from", kind).code == 3


@pytest.mark.parametrize("kind", KINDS)
class TestHostileRows:
    @pytest.mark.parametrize("levels", [150, 190, 300, 900, 5000, 200_000])
    def test_deep_values(self, exports: ExportProject, kind: str, levels: int) -> None:
        deep = json.dumps({**CASES[kind], INPUTS[kind]: "@"}).replace('"@"', nested(levels))
        exports.write("export.jsonl", [deep, {**CASES[kind], "id": "b"}])
        imported = exports.imports("export.jsonl", "--from", kind)
        assert "b" in [case["id"] for case in imported.lines("cases.jsonl")]
        assert imported.code == (3 if levels < 200 else 1)

    @pytest.mark.parametrize("levels", [150, 300, 900, 5000])
    def test_deep_values_in_text(self, exports: ExportProject, kind: str, levels: int) -> None:
        exports.write("export.jsonl", [{**CASES[kind], INPUTS[kind]: nested(levels)}, {**CASES[kind], "id": "b"}])
        imported = exports.imports("export.jsonl", "--from", kind)
        assert "b" in [case["id"] for case in imported.lines("cases.jsonl")]

    @pytest.mark.parametrize("value", ['"\\u0000"', "1e308", "1" + "0" * 30, "1" * 400, "-0.0", '"\\ud800"', "NaN"])
    def test_strange_values_anywhere(self, exports: ExportProject, kind: str, value: str) -> None:
        rows = [json.dumps(CASES[kind]), json.dumps(TRACES[kind])]
        for row in (CASES[kind], TRACES[kind]):
            for key in row:
                rows.append(json.dumps({**row, "id": f"{len(rows)}", key: "@"}).replace('"@"', value))
        exports.write("export.jsonl", rows)
        imported = exports.imports("export.jsonl", "--from", kind)
        assert imported.code in (1, 3)
        assert "\0" not in (imported.folder / "cases.jsonl").read_text()
        assert imported.lines("cases.jsonl")[0]["id"] == "a"

    @pytest.mark.parametrize("value", [None, True, 7, "text", [], [1], {}, {"a": 1}, [[]], [{"a": None}]])
    def test_another_type_anywhere(self, exports: ExportProject, kind: str, value: object) -> None:
        rows: list[object] = [CASES[kind]]
        for row in (CASES[kind], TRACES[kind]):
            rows += [{**row, "id": f"{number}", key: value} for number, key in enumerate(row)]
            rows += [{**row, key: value} for key in _FIELDS]
        exports.write("export.jsonl", rows)
        imported = exports.imports("export.jsonl", "--from", kind)
        assert imported.lines("cases.jsonl")[0]["id"] == "a"

    def test_text_of_the_source_does_not_reach_the_terminal(self, exports: ExportProject, kind: str) -> None:
        exports.write("export.jsonl", [{**CASES[kind], "id": "\x1b[2J<script>|"}, {"\x1b]0;x\x07": "\x1b[31m"}])
        imported = exports.imports("export.jsonl", "--from", kind)
        assert "\x1b" not in (imported.folder / "import.md").read_text()
        assert "\x1b" not in imported.lines("cases.jsonl")[0]["id"]

    def test_many_kinds_of_problems(self, exports: ExportProject, kind: str) -> None:
        rows = [CASES[kind], *(f"[{number}]" for number in range(5_000))]
        exports.write("export.jsonl", rows)
        imported = exports.imports("export.jsonl", "--from", kind)
        assert imported.report["counts"]["not_mapped"] == 5_000
        assert len(imported.report["items"]) < 2_010


_FIELDS = (
    *("metadata", "tags", "name", "latency", "totalCost", "sessionId", "observations", "scores", "mediaReferences"),
    *("child_runs", "extra", "events", "error", "prompt_tokens", "total_cost", "feedback_stats", "split"),
    *("metrics", "span_parents", "span_attributes", "origin", "start_time", "end_time", "reference_example_id"),
    *("parent_run_id", "trace_id", "session_name", "attachments", "expected", "dataset_record_id"),
)


def observation(ident: str, parent: str | None) -> dict[str, Any]:
    own = {"id": ident, "traceId": "t", "parentObservationId": parent, "type": "SPAN"}
    return {**own, "startTime": "2026-11-16T10:00:00Z", "input": "hi", "output": f"from {ident}"}


class TestTraces:
    @pytest.mark.parametrize(
        "parents", [{"a": "b", "b": "a"}, {"a": "a"}, {"a": "b", "b": "c", "c": "a"}, {"a": "gone", "b": "a"}]
    )
    def test_parents_in_a_circle(self, exports: ExportProject, parents: dict[str, str]) -> None:
        exports.write("trace.jsonl", [observation(ident, parent) for ident, parent in parents.items()])
        imported = exports.imports("trace.jsonl", "--from", "langfuse")
        (record,) = exports.records(imported.report["runs"][0]).values()
        assert record["response"]["text"] == "from a"

    def test_a_chain_of_ten_thousand_parents(self, exports: ExportProject) -> None:
        exports.write("trace.jsonl", [observation(str(n), str(n - 1) if n else None) for n in range(10_000)])
        imported = exports.imports("trace.jsonl", "--from", "langfuse")
        (record,) = exports.records(imported.report["runs"][0]).values()
        assert record["response"]["text"] == "from 0"
        assert "the trace is too large: 5,000 of its spans are left out" in imported.notes("not mapped")["spans"]

    def test_runs_within_runs(self, exports: ExportProject) -> None:
        inner: dict[str, Any] = {"id": "0", "run_type": "chain", "inputs": {"q": "hi"}, "outputs": {"output": "in"}}
        for number in range(1, 150):
            inner = {**inner, "id": str(number), "child_runs": [inner]}
        exports.write("runs.jsonl", [inner])
        imported = exports.imports("runs.jsonl")
        assert "nested more than 100 levels deep" in imported.notes("not mapped")["child_runs"]

    def test_ids_that_differ_only_at_their_end(self, exports: ExportProject) -> None:
        rows = [{**TRACES["langfuse"], "id": "x" * 300 + str(number)} for number in range(3)]
        exports.write("traces.jsonl", rows)
        imported = exports.imports("traces.jsonl")
        assert imported.counts("not mapped") == {"trace": 2}
        assert len(imported.lines("cases.jsonl")) == 1

    def test_names_of_scores_that_are_too_many(self, exports: ExportProject) -> None:
        scores = [{"id": str(n), "traceId": "t", "name": f"score {n}", "value": 1, "source": "API"} for n in range(300)]
        exports.write("trace.json", {**TRACES["langfuse"], "scores": scores})
        imported = exports.imports("trace.json")
        assert "there are more than 200 names" in imported.notes("not mapped")["scores"]
        (record,) = exports.records(imported.report["runs"][0]).values()
        assert len(record["grades"]) == 200

    def test_runs_that_are_too_many(self, exports: ExportProject) -> None:
        rows = [{**TRACES["langsmith"], "id": str(number), "session_name": f"p{number}"} for number in range(250)]
        exports.write("runs.jsonl", rows)
        imported = exports.imports("runs.jsonl")
        assert len(imported.report["runs"]) == 200
        assert "are more than 200" in imported.notes("not mapped")["runs"]


def test_memory_does_not_grow_with_the_export(tmp_path: Path) -> None:
    peaks = []
    for count in (200, 4_000):
        with (tmp_path / f"{count}.jsonl").open("w") as file:
            for number in range(count):
                scores = [{"id": f"s{number}", "traceId": str(number), "name": "ok", "value": 1, "source": "API"}]
                row = {**TRACES["langfuse"], "id": str(number), "output": "x" * 20_000, "scores": scores}
                file.write(f"{json.dumps(row)}\n")
        code, _, megabytes = import_and_measure(tmp_path, f"{count}.jsonl", "langfuse", output=str(count))
        assert code == 3
        peaks.append(megabytes)
    assert peaks[1] < peaks[0] + 30  # the larger file has 80 MB
