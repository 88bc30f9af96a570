"""The members of an exported log. That Inspect reads them is tested with the importer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from gradeline.engine.aggregate import RunReport
from gradeline.errors import Outcome
from gradeline.importers.inspect_files import PlacedSample, open_log
from gradeline.model import Grade, Message, Response, Sample, ToolCall, Trajectory, Usage
from gradeline.report.inspect_log import model_name, write_inspect_log


@pytest.fixture
def members(tmp_path: Path) -> Any:
    """The members of a report's log, parsed."""

    def write(report: RunReport) -> dict[str, Any]:
        path = tmp_path / "run.eval"
        write_inspect_log(path, report)
        with ZipFile(path) as archive:
            assert archive.testzip() is None
            return {name: json.loads(archive.read(name)) for name in archive.namelist()}

    return write


def test_samples_then_what_is_known_after_them(bench: Any, members: Any) -> None:
    written = members(bench.mixed())
    cases = ("france", "spain", "norway", "peru", "chad")
    assert set(written) == {
        *(f"samples/{case}_epoch_1.json" for case in cases),
        "_journal/start.json",
        "summaries.json",
        "header.json",
    }
    scores = {
        summary["id"]: summary["scores"].get("exact", {}).get("value", "none") for summary in written["summaries.json"]
    }
    assert {key: repr(value) for key, value in scores.items()} == {
        "france": "'C'",
        "spain": "0.25",
        "norway": "nan",
        "peru": "'none'",
        "chad": "'none'",
    }
    header = written["header.json"]
    assert (header["status"], header["eval"]["task"]) == ("success", "capitals")
    assert sorted(header["eval"]["dataset"]["sample_ids"]) == sorted(cases)
    assert (header["results"]["total_samples"], header["results"]["completed_samples"]) == (5, 4)
    (exact,) = header["results"]["scores"]
    assert (exact["scored_samples"], exact["unscored_samples"]) == (2, 2)
    assert exact["metrics"]["mean"]["value"] == pytest.approx(0.625)
    assert exact["metrics"]["stderr"]["value"] == pytest.approx(0.375)
    assert exact["metrics"]["pass_rate"]["value"] == pytest.approx(0.5)
    assert written["_journal/start.json"]["eval"] == header["eval"]


def test_no_score_is_the_bare_token_that_inspect_reads(bench: Any, tmp_path: Path) -> None:
    write_inspect_log(tmp_path / "run.eval", bench.mixed())
    with ZipFile(tmp_path / "run.eval") as archive:
        assert re.search(rb'"value":NaN[,}]', archive.read("samples/norway_epoch_1.json"))


def test_pass_and_fail_are_letters_and_their_mean_the_accuracy(bench: Any, members: Any) -> None:
    rows = [
        (Sample(str(number), "q"), bench.answer(), {"exact": bench.grade(float(number > 0))}) for number in range(4)
    ]
    written = members(bench.report(rows))
    assert [one["scores"]["exact"]["value"] for one in written["summaries.json"]] == ["I", "C", "C", "C"]
    (exact,) = written["header.json"]["results"]["scores"]
    assert {name: metric["value"] for name, metric in exact["metrics"].items()} == {"accuracy": 0.75, "stderr": 0.25}


def test_a_score_that_passes_by_another_threshold_is_a_number(bench: Any, members: Any) -> None:
    grade = Grade("string-match", "f1", Outcome.FAIL, 0.75, False, metadata={"why": "below 0.8"})
    written = members(bench.report([(Sample("a", "q"), bench.answer(), {"exact": grade})]))
    score = written["samples/a_epoch_1.json"]["scores"]["exact"]
    assert (score["value"], score["metadata"]) == (0.75, {"why": "below 0.8", "gradeline": {"passed": False}})


def test_repeats_are_epochs_without_a_standard_error(bench: Any, members: Any) -> None:
    rows = [(Sample("a", "q"), [bench.answer("x"), bench.answer("y")], {"exact": bench.grade(1.0)})]
    written = members(bench.report(rows))
    assert [(one["id"], one["epoch"]) for one in written["summaries.json"]] == [("a", 1), ("a", 2)]
    header = written["header.json"]
    assert header["eval"]["config"] == {"epochs": 2, "epochs_reducer": ["mean"]}
    (exact,) = header["results"]["scores"]
    assert (exact["reducer"], set(exact["metrics"])) == ("mean", {"accuracy"})


def test_input_tokens_are_without_those_from_a_cache(bench: Any, members: Any) -> None:
    response = Response(text="a", usage=Usage(10, 3, 4, 0.5))
    unknown = Response(text="a", usage=Usage(None, 3))
    report = bench.report([(Sample("a", "q"), response, {}), (Sample("b", "q"), unknown, {})])
    written = members(report)
    usage = {
        "input_tokens": 6,
        "output_tokens": 3,
        "total_tokens": 13,
        "input_tokens_cache_read": 4,
        "total_cost": 0.5,
    }
    (model,) = written["samples/a_epoch_1.json"]["model_usage"]
    assert written["samples/a_epoch_1.json"]["model_usage"] == {model: usage}
    assert written["samples/b_epoch_1.json"]["model_usage"] == {}
    assert written["header.json"]["stats"]["model_usage"] == {model: usage}


def test_messages(bench: Any, members: Any) -> None:
    """The case's questions where the agent reports only its own messages; reasoning is a part of what it leads to."""
    called = Message("assistant", tool_calls=(ToolCall("f", '{"x":1}'), ToolCall("g", "no object")))
    turns = ((Message("reasoning", "hm"), called, Message("tool", "1", name="f")), (Message("assistant", "done"),))
    response = Response(text="done", trajectory=Trajectory(turns))
    written = members(bench.report([(Sample("a", ["one", "two"]), response, {})]))
    assert written["samples/a_epoch_1.json"]["messages"] == [
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "content": [{"type": "reasoning", "reasoning": "hm"}],
            "tool_calls": [
                {"id": "call_1", "function": "f", "arguments": {"x": 1}, "type": "function"},
                {"id": "call_2", "function": "g", "arguments": {}, "type": "function", "parse_error": "no object"},
            ],
        },
        {"role": "tool", "content": "1", "function": "f"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "done"},
    ]


def test_tool_use_that_is_unknown_is_not_none(bench: Any, members: Any) -> None:
    written = members(bench.report([(Sample("a", "q"), bench.answer(), {})]))
    sample = written["samples/a_epoch_1.json"]
    assert sample["metadata"] == {"gradeline": {"tools_known": False}}
    assert [message["role"] for message in sample["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize("ident", ["../x", "a/../../b", "x" * 600, "a\0b", "..\\b"])
def test_ids_that_cannot_be_names_of_members(ident: str, bench: Any, members: Any) -> None:
    written = members(bench.report([(Sample(ident, "q"), bench.answer(), {})]))
    (name,) = [name for name in written if name.startswith("samples/")]
    assert re.fullmatch(r"samples/case-[0-9a-f]{16}_epoch_1\.json", name)
    assert written[name]["metadata"]["gradeline"]["id"] == ident


def test_an_export_of_hostile_text_can_be_imported(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.eval"
    report = bench.hostile_report()
    write_inspect_log(path, report)
    log = open_log(path)
    samples = [*log.samples()]
    log.close()
    assert all(isinstance(sample, PlacedSample) for sample in samples)
    assert len(samples) == sum(report.summary.responses.values())


def test_two_exports_are_equal(bench: Any, tmp_path: Path) -> None:
    report = bench.mixed()
    for name in ("one.eval", "two.eval"):
        write_inspect_log(tmp_path / name, report)
    assert (tmp_path / "one.eval").read_bytes() == (tmp_path / "two.eval").read_bytes()


def test_a_run_that_failed(bench: Any, members: Any) -> None:
    report = bench.mixed(status="failed", error_message="the agent refused the key")
    header = members(report)["header.json"]
    assert (header["status"], header["error"]["message"]) == ("error", "the agent refused the key")


@pytest.mark.parametrize(
    ("target", "variant", "name"),
    [
        ({"kind": "openai", "model": "gpt-5"}, None, "openai/gpt-5"),
        ({"kind": "http", "url": "http://x"}, "strict", "http/strict"),
        ({"kind": "python"}, None, "python/agent"),
        ({"kind": "inspect", "imported": "inspect", "model": "openai/gpt-5"}, None, "openai/gpt-5"),
    ],
)
def test_the_model_of_a_log(target: dict[str, Any], variant: str | None, name: str, bench: Any) -> None:
    assert model_name(bench.mixed(target=target, variant=variant).run) == name
