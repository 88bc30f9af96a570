"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from gradeline.extractors.base import BUILTINS as EXTRACTORS
from gradeline.graders.registry import BUILTINS as GRADERS
from gradeline.model import Record, from_json
from gradeline.report.formatting import visible
from gradeline_command import COMMAND, run_command


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


def gradeline(*arguments: str, stdin: str | bytes = b"") -> CommandResult:
    done = run_command(
        [COMMAND, *arguments],
        input=stdin if isinstance(stdin, bytes) else stdin.encode(),
        env={**os.environ, "NO_COLOR": "1"},
    )
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


class TestHelp:
    def test_help_lists_every_command_with_its_purpose(self) -> None:
        ran = gradeline("--help")
        assert ran.code == 0
        assert "Grade any agent, and know whether the difference is real." in ran.out
        for command in ("grade ", "graders ", "extractors ", "demo "):
            assert f"\n  {command}" in ran.out

    def test_no_command_shows_the_help(self) -> None:
        assert "Usage: gradeline" in gradeline().err + gradeline().out

    @pytest.mark.parametrize("command", ["grade", "graders", "extractors", "demo"])
    def test_every_command_has_help(self, command: str) -> None:
        assert f"Usage: gradeline {command}" in gradeline(command, "-h").out

    def test_a_misspelt_command_is_corrected(self) -> None:
        ran = gradeline("grad")
        assert ran.code == 2
        assert "No command 'grad'; did you mean 'grade'?" in ran.err


class TestListing:
    def test_graders_lists_every_grader(self) -> None:
        out = gradeline("graders").out
        assert all(f"\n{name}" in out for name in GRADERS)

    def test_extractors_lists_every_extractor(self) -> None:
        out = gradeline("extractors").out
        assert all(f"\n{name}" in out for name in EXTRACTORS)

    def test_json_is_one_object_with_whole_declarations(self) -> None:
        listed = json.loads(gradeline("graders", "--json").out)["graders"]
        assert [entry["id"] for entry in listed] == list(GRADERS)
        for entry in listed:
            assert set(entry) == {
                "id",
                "name",
                "description",
                "type",
                "config_schema",
                "scoring_guide",
                "caveats",
                "default_extractor",
                "version",
                "fingerprint",
            }
            assert all(entry[key] for key in entry if key != "caveats")
        biased = {entry["id"] for entry in listed if "Position" in " ".join(entry["caveats"])}
        assert biased == {"model_judge", "panel", "pairwise", "baseline", "letta_judge"}
        others = {entry["id"]: entry["default_extractor"] for entry in listed}
        assert {kind: name for kind, name in others.items() if name != "last_assistant"} == {"tool_calls": "tool_calls"}
        assert "Default extractor: tool_calls" in gradeline("graders", "tool_calls").out

    def test_global_options_work_before_and_after_the_command(self) -> None:
        assert gradeline("--json", "extractors").out == gradeline("extractors", "--json").out

    def test_one_grader_is_shown_with_its_options_and_conditions(self) -> None:
        out = gradeline("graders", "custom-rules").out
        assert "threshold" in out
        assert "word_count_min" in out
        assert "a word is a run of" in " ".join(out.split())

    def test_an_unknown_name_suggests_the_closest(self) -> None:
        assert gradeline("graders", "numerik") == (
            2,
            "",
            "gradeline: no grader named 'numerik'; did you mean 'numeric'?\n",
        )
        assert gradeline("extractors", "patern").err == (
            "gradeline: no extractor named 'patern'; did you mean 'pattern'?\n"
        )


class TestGrade:
    def test_a_pass_exits_with_0(self) -> None:
        ran = gradeline("grade", "numeric", "--expected", "42", stdin="The answer is 42.\n")
        assert ran.code == 0
        assert ran.out.startswith("pass  score 1\n")

    def test_a_fail_exits_with_1_and_a_reason(self) -> None:
        ran = gradeline("grade", "true-false", "--expected", "true", stdin="maybe")
        assert ran.code == 1
        assert ran.out.startswith("fail  score 0\nResponse 'maybe' does not represent a boolean value\n")

    def test_no_score_exits_with_4_and_names_the_cause(self) -> None:
        ran = gradeline("grade", "numeric", "--expected", "none", stdin="3")
        assert ran.code == 4
        assert ran.out.startswith("error  no score\nungradable: ")
        assert "(grader's fault)" in ran.out

    def test_quiet_prints_only_the_result(self) -> None:
        assert gradeline("grade", "contains", "--expected", "a", "--quiet", stdin="cat").out == "pass 1\n"

    def test_json_is_the_export_record_on_one_line(self) -> None:
        ran = gradeline("grade", "true-false", "--expected", "true", "--json", stdin="Yes\n")
        record = from_json(Record, ran.out)
        assert ran.out.count("\n") == 1
        assert (record.case, record.repeat, record.submissions) == ("stdin", 0, {"true-false": "Yes"})
        assert (record.response.status, record.response.text) == ("success", "Yes")
        grade = record.grades["true-false"]
        assert (grade.kind, grade.outcome, grade.score, grade.passed) == ("true-false", "pass", 1.0, True)
        assert set(json.loads(ran.out)) == {
            "schema",
            "run",
            "case",
            "repeat",
            "sample",
            "response",
            "submissions",
            "grades",
        }

    def test_rules_with_metadata_input_and_a_threshold(self, tmp_path: Path) -> None:
        config = tmp_path / "rules.json"
        config.write_text(
            json.dumps(
                {
                    "rules": [
                        {"condition": "contains", "value": "$metadata.name"},
                        {"condition": "contains", "value": "$input"},
                    ]
                }
            )
        )
        call = ["grade", "custom-rules", "--config", f"@{config}", "--metadata", '{"name": "Ann"}', "--input", "Bob"]
        assert gradeline(*call, stdin="ann").code == 1
        assert gradeline(*call, "--pass-threshold", "0.5", stdin="ann").code == 0

    def test_a_whole_response_can_be_graded(self) -> None:
        response = json.dumps(
            {
                "text": "4 °C",
                "latency_ms": 900,
                "trajectory": {
                    "turns": [[{"role": "assistant", "tool_calls": [{"name": "w", "arguments": '{"c": 1}'}]}]]
                },
            }
        )
        assert gradeline("grade", "latency", "--response", "--config", '{"max_ms": 1000}', stdin=response).code == 0
        call = ["grade", "tool_calls", "--response", "--extractor", "tool_calls", "--expected"]
        assert gradeline(*call, '[{"name": "w", "arguments": {"c": [1]}}]', stdin=response).code == 0
        assert gradeline(*call, '[{"name": "w", "arguments": {"c": [2]}}]', stdin=response).code == 1
        usual = ["grade", "tool_calls", "--response", "--expected"]
        assert gradeline(*usual, '[{"name": "w", "arguments": {"c": [1]}}]', stdin=response).code == 0
        text = ["grade", "tool_calls", "--expected", '[{"name": "w", "arguments": {}}]']
        assert gradeline(*text, stdin='[{"name": "w", "arguments": {}}]').code == 0

    def test_unreported_tool_use_has_no_score(self) -> None:
        ran = gradeline("grade", "trajectory", "--config", '{"max_tool_calls": 0}', stdin="done")
        assert (ran.code, ran.out.splitlines()[0]) == (4, "error  no score")
        assert ran.out.splitlines()[1].startswith("missing: tool calls are unknown")

    def test_an_extractor_takes_its_own_options(self) -> None:
        options = ["--extractor", "pattern", "--extractor-config", '{"pattern": "TKT-(\\\\d+)", "group": 1}']
        assert gradeline("grade", "exact_match", "--expected", "12", *options, stdin="see TKT-12").code == 0

    def test_patterns_that_only_re_supports_run_in_a_worker(self) -> None:
        assert gradeline("grade", "regex_match", "--expected", "(?=P)Paris", stdin="in Paris").code == 0
        options = ["--extractor", "pattern", "--extractor-config", '{"pattern": "(?<=is )\\\\w+"}']
        assert gradeline("grade", "exact_match", "--expected", "Paris", *options, stdin="it is Paris").code == 0

    def test_a_catastrophic_pattern_is_timed_out(self) -> None:
        ran = gradeline("grade", "regex_match", "--expected", r"(?=a)(a+)+$", stdin="a" * 60 + "b")
        assert ran.code == 4
        assert ran.out.startswith("error  no score\ntimeout: regex_match took longer than 5 s")

    def test_an_extractor_that_finds_nothing_is_an_error_without_a_score(self) -> None:
        options = ["--extractor", "memory_block", "--extractor-config", '{"block_label": "human"}']
        ran = gradeline("grade", "contains", "--expected", "a", *options, stdin="abc")
        assert ran.code == 4
        assert ran.out.startswith("error  no score\nmissing: the response does not report the agent's memory")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["numerik"], "gradeline: no grader named 'numerik'; did you mean 'numeric'?"),
            (["numeric", "--config", "{"], "--config: not JSON: it ends too early, got '{'"),
            (["numeric", "--config", "[1]"], '--config: expected a JSON object such as {"key": "value"}, got \'[1]\''),
            (["numeric", "--config", "@/no/such/file"], "--config: cannot read '/no/such/file': No such file"),
            (
                ["numeric", "--config", '{"tolerence": 1}'],
                "config.tolerence: unknown option; did you mean 'tolerance'?",
            ),
            (["json_schema"], "json_schema: config.schema: is required"),
            (["numeric", "--extractor", "pattern"], "pattern: config.pattern: is required"),
            (["numeric", "--response"], "standard input: not a stored Response"),
            (["numeric", "--pass-threshold", "7"], "--pass-threshold"),
            (["memory", "--metadata", "x"], "no grader named 'memory'"),
            ([], "Missing argument 'GRADER'"),
        ],
    )
    def test_invalid_usage_exits_with_2_and_a_remedy(self, arguments: list[str], message: str) -> None:
        ran = gradeline("grade", *arguments, stdin="text")
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
        assert "Traceback" not in ran.err

    def test_invalid_utf_8_is_replaced_with_a_warning(self) -> None:
        ran = gradeline("grade", "contains", "--expected", "caf", "--json", stdin=b"caf\xe9 \0")
        assert from_json(Record, ran.out).response.text == "caf\ufffd \u2400"
        assert "invalid UTF-8" in ran.err

    def test_escape_sequences_in_an_answer_do_not_reach_the_terminal(self) -> None:
        ran = gradeline("grade", "true-false", "--expected", "true", stdin="\x1b[31mred\x1b]0;owned\x07 [bold]x[/bold]")
        assert "\x1b" not in ran.out
        assert "\x07" not in ran.out
        assert "[bold]x[/bold]" in ran.out

    def test_an_empty_answer_is_graded_0(self) -> None:
        ran = gradeline("grade", "custom-rules", "--config", '{"rules": [{"condition": "length_max", "value": 5}]}')
        assert (ran.code, ran.out) == (1, "fail  score 0\nEmpty submission - extractor found no content\n")

    def test_a_text_above_the_size_limit_is_an_error(self) -> None:
        ran = gradeline("grade", "similarity", "--expected", "a", "--quiet", stdin="x" * 100_001)
        assert (ran.code, ran.out) == (4, "error\n")


class TestDemo:
    def test_it_ends_with_two_models_compared_and_their_runs_in_a_store(self, tmp_path: Path) -> None:
        store = str(tmp_path / "demo.db")
        ran = gradeline("demo", "--store", store)
        assert (ran.code, ran.err) == (0, "")
        assert "0.775 → 1.000" in ran.out
        assert "0.2500  9    0   31    0 undecided" in ran.out
        assert "decision: undecided (right)" in ran.out
        assert "40 cases in 24 clusters" in ran.out
        runs = json.loads(gradeline("list", "--json", "--store", store).out)
        assert [run["name"] for run in runs["runs"]] == ["demo [large]", "demo [small]"]

    def test_every_family_of_grader_is_shown_with_its_outcome(self) -> None:
        lines = gradeline("demo", "--json").out.splitlines()
        records = [from_json(Record, line) for line in lines]
        kinds = {grade.kind for record in records for grade in record.grades.values()}
        asking = {"model_judge", "panel", "pairwise", "baseline", "embedding", "letta_judge", "command", "http"}
        assert kinds == {*GRADERS, "tool"} - asking
        outcomes = {grade.outcome for record in records for grade in record.grades.values()}
        assert outcomes == {"pass", "fail", "error", "skipped", "not_applicable"}

    def test_a_closed_pipe_is_not_an_error(self) -> None:
        done = subprocess.run(
            f"{COMMAND} graders --json | head -c 10", shell=True, capture_output=True, check=False, text=True
        )
        assert done.stderr == ""


def test_hostile_text_is_escaped() -> None:
    assert visible("a\x1b[2J\x07\x7f\x9b\u202eb\ud800\tc\n") == "a<1B>[2J<07><7F><9B><202E>b\ufffd\tc\n"
