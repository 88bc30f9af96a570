"""Results of every letta-evals release can be replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError, Fault, Problem
from gradeline.letta.cache import LettaCache, models_in
from gradeline.model import ErrorInfo, Message, Response, Sample, ToolCall, Trajectory, Usage

FRANCE = Sample(id="fr", input="Capital of France?")
ITALY = Sample(id=7, input=["Hello", "Capital of Italy?"])
QUESTIONS = [{"id": "fr", "input": FRANCE.input}, {"id": 7, "input": ITALY.input}]


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def suite(home: Path, *models: str, samples: list[dict[str, Any]] | None = None) -> Path:
    config = {"name": "capitals", "target": {"kind": "letta_code", "model_handles": list(models) or None}}
    write(home / "suite.json", {"suite": "capitals", "config": config, "samples": samples or QUESTIONS})
    return home


def message(kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": "message-1", "date": "2026-01-01T00:00:00Z", "message_type": f"{kind}_message", **fields}


def turns(text: str) -> list[list[dict[str, Any]]]:
    return [[message("assistant", content=text)]]


def result(sample_id: int | str, text: str, **fields: Any) -> dict[str, Any]:
    """A line from 0.17 on."""
    return {"sample_id": sample_id, "trajectory": turns(text), "grades": {}, "timing": {"total": 1.0}, **fields}


def older(sample: dict[str, Any], text: str, model: str | None = "m", **fields: Any) -> dict[str, Any]:
    """A line up to 0.16."""
    reason = {
        "sample": sample,
        "submission": text,
        "trajectory": turns(text),
        "model_name": model,
        "grade": {"score": 1},
    }
    return {"type": "result", "result": {**reason, **fields}}


def texts(cache: LettaCache, sample: Sample) -> list[str | None]:
    return [cache.response(sample, number).text for number in range(cache.count(sample))]


def problems(path: Path, model: str | None = None) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        LettaCache(path, model)
    return list(caught.value.problems)


def test_a_result_contains_the_whole_answer(tmp_path: Path) -> None:
    turn = [
        message("user", content="Capital of France?"),
        message("reasoning", reasoning="I must search."),
        message("tool_call", tool_call={"name": "search", "arguments": '{"q": 1}', "tool_call_id": "c"}, id="m2"),
        message("tool_return", tool_return="Paris!", tool_call_id="c", status="success", name="search"),
        message("assistant", content=[{"type": "text", "text": "It is"}, {"type": "text", "text": "Paris"}], id="m4"),
    ]
    line = {
        "sample_id": "fr",
        "agent_id": "agent-1",
        "model_handle": "openai/gpt-4.1",
        "agent_usage": [{"message_type": "usage_statistics", "prompt_tokens": 30, "completion_tokens": 4}],
        "trajectory": [turn],
        "agent_state": {"id": "agent-1", "blocks": [{"label": "human", "value": "asks a lot"}]},
        "submissions": {"exact": "It is Paris"},
        "grades": {"exact": {"score": 0.0, "metadata": {}}},
        "usage": {"prompt_tokens": 30, "completion_tokens": 4, "cached_input_tokens": 0, "cost": 0.25},
        "timing": {"total": 1.5, "target": 1.25},
    }
    write(suite(tmp_path, "openai/gpt-4.1") / "openai-gpt-4.1.jsonl", line)
    cache = LettaCache(tmp_path)
    assert cache.model == "openai/gpt-4.1"
    assert cache.count(FRANCE) == 1
    assert cache.response(FRANCE, 0) == Response(
        text="It is Paris",
        trajectory=Trajectory(
            (
                (
                    Message("user", "Capital of France?"),
                    Message("reasoning", "I must search."),
                    Message("assistant", tool_calls=(ToolCall("search", '{"q": 1}', "c"),)),
                    Message("tool", "Paris!", tool_call_id="c", name="search"),
                    Message("assistant", "It is Paris"),
                ),
            ),
            {"human": "asks a lot"},
        ),
        usage=Usage(30, 4, None, 0.25),
        latency_ms=1250.0,
    )


class TestLayouts:
    def test_a_file_for_each_model(self, tmp_path: Path) -> None:
        suite(tmp_path, "b/x", "a")
        write(tmp_path / "b-x.jsonl", result(7, "Rome", model_handle="b/x"), result("fr", "Paris", model_handle="b/x"))
        write(tmp_path / "a.jsonl", result("fr", "Lyon", model_handle="a"))
        assert models_in(tmp_path) == ["a", "b/x"]
        assert texts(LettaCache(tmp_path, "b/x"), ITALY) == ["Rome"]
        assert texts(LettaCache(tmp_path, "a"), FRANCE) == ["Lyon"]
        assert texts(LettaCache(tmp_path, "a"), ITALY) == []

    def test_a_folder_for_each_model_with_a_file_for_each_run(self, tmp_path: Path) -> None:
        suite(tmp_path)
        for number in (10, 2, 1):
            write(tmp_path / "m" / f"run_{number}.jsonl", result("fr", f"answer {number}"))
        write(tmp_path / "m" / "summary.json", {})
        write(tmp_path / "m.jsonl", result("fr", "of a run before"))
        assert texts(LettaCache(tmp_path), FRANCE) == ["answer 1", "answer 2", "answer 10"]

    def test_one_file_for_all_models_with_the_samples_in_it(self, tmp_path: Path) -> None:
        write(tmp_path / "header.json", {"type": "header", "suite": "capitals", "config": {}})
        write(
            tmp_path / "results.jsonl",
            older({"id": 0, "input": "Capital of France?"}, "Paris", "m1"),
            older({"id": 0, "input": "Capital of France?"}, "Lyon", "m2"),
        )
        assert models_in(tmp_path) == ["m1", "m2"]
        assert texts(LettaCache(tmp_path, "m2"), Sample(id=0, input="Capital of France?")) == ["Lyon"]

    def test_one_file_with_the_samples_in_it_for_each_run(self, tmp_path: Path) -> None:
        for number in (2, 1):
            write(tmp_path / f"run_{number}" / "results.jsonl", older(QUESTIONS[0], f"answer {number}"))
        write(tmp_path / "aggregate_stats.json", {})
        assert texts(LettaCache(tmp_path), FRANCE) == ["answer 1", "answer 2"]
        assert texts(LettaCache(tmp_path / "run_2"), FRANCE) == ["answer 2"]

    def test_a_file_with_header_and_summary_among_its_lines(self, tmp_path: Path) -> None:
        lines = ({"type": "header"}, older(QUESTIONS[0], "Paris", None), {"type": "summary", "metrics": {}})
        file = write(tmp_path / "capitals.jsonl", *lines)
        for place in (file, tmp_path):
            cache = LettaCache(place)
            assert (cache.model, texts(cache, FRANCE)) == ("default", ["Paris"])

    def test_only_the_file_of_a_model(self, tmp_path: Path) -> None:
        suite(tmp_path)
        file = write(tmp_path / "a.jsonl", result("fr", "Paris"))
        write(tmp_path / "b.jsonl", result("fr", "Lyon"))
        assert models_in(file) == ["a"]
        assert texts(LettaCache(file), FRANCE) == ["Paris"]
        assert LettaCache(file).problems_with(Sample(id="fr", input="Another?")) != []

    def test_blank_lines_and_a_byte_order_mark_are_no_fault(self, tmp_path: Path) -> None:
        text = f"\ufeff{json.dumps(older(QUESTIONS[0], 'Paris'))}\n\n  \n"
        (tmp_path / "results.jsonl").write_text(text, encoding="utf-8")
        assert texts(LettaCache(tmp_path), FRANCE) == ["Paris"]

    def test_the_last_of_two_results_of_a_case_counts(self, tmp_path: Path) -> None:
        write(tmp_path / "results.jsonl", older(QUESTIONS[0], "before"), older(QUESTIONS[0], "after"))
        assert texts(LettaCache(tmp_path), FRANCE) == ["after"]


class TestModels:
    def test_the_full_name_comes_from_the_suite_if_missing_in_the_results(self, tmp_path: Path) -> None:
        write(suite(tmp_path, "openai/gpt-4:x") / "openai-gpt-4-x.jsonl", result("fr", "Paris"))
        assert models_in(tmp_path) == ["openai/gpt-4:x"]

    def test_a_result_that_failed_early_belongs_to_the_model_of_its_file(self, tmp_path: Path) -> None:
        suite(tmp_path)
        write(tmp_path / "a-b.jsonl", result(7, "Rome"), result("fr", "Paris", model_handle="a/b"))
        assert models_in(tmp_path) == ["a/b"]
        assert texts(LettaCache(tmp_path), ITALY) == ["Rome"]

    def test_a_file_that_was_renamed_counts_by_its_name(self, tmp_path: Path) -> None:
        suite(tmp_path, "openai/gpt-4")
        write(tmp_path / "before.jsonl", result("fr", "Paris", model_handle="openai/gpt-4"))
        assert models_in(tmp_path) == ["before"]

    def test_a_model_is_named_in_full_or_as_its_file_is(self, tmp_path: Path) -> None:
        suite(tmp_path, "a/b", "c")
        write(tmp_path / "a-b.jsonl", result("fr", "Paris"))
        write(tmp_path / "c.jsonl", result("fr", "Lyon"))
        assert LettaCache(tmp_path, "a/b").model == LettaCache(tmp_path, "a-b").model == "a/b"

    def test_of_several_models_one_must_be_named(self, tmp_path: Path) -> None:
        suite(tmp_path)
        write(tmp_path / "gpt.jsonl", result("fr", "Paris"))
        write(tmp_path / "claude.jsonl", result("fr", "Paris"))
        expected = f"{tmp_path} holds the results of several models; name one of them: claude, gpt"
        assert problems(tmp_path) == [Problem("model", expected)]
        assert problems(tmp_path, "gtp") == [
            Problem("model", f"{tmp_path} has no results of 'gtp'; did you mean 'gpt'?")
        ]
        assert problems(tmp_path, "llama") == [
            Problem("model", f"{tmp_path} has no results of 'llama'; it has claude, gpt")
        ]


class TestQuestions:
    def test_an_answer_to_another_question_is_reported_with_both(self, tmp_path: Path) -> None:
        write(suite(tmp_path / "new") / "m.jsonl", result("fr", "Paris"))
        write(tmp_path / "old" / "results.jsonl", older(QUESTIONS[0], "Paris"))
        for home in (tmp_path / "new", tmp_path / "old"):
            cache = LettaCache(home)
            edited = Sample(id="fr", input="Capital of Spain?")
            assert cache.problems_with(FRANCE) == []
            assert cache.problems_with(edited) == [
                Problem(
                    "input",
                    f"the input of the dataset is 'Capital of Spain?', but {home} has the response to 'Capital of France?'; "
                    "use the dataset of that run, or call the agent again",
                )
            ]
            assert cache.count(edited) == 0

    def test_a_missing_case_is_not_another_question(self, tmp_path: Path) -> None:
        write(suite(tmp_path) / "m.jsonl", result("fr", "Paris"))
        cache = LettaCache(tmp_path)
        assert (cache.count(ITALY), cache.problems_with(ITALY)) == (0, [])

    def test_where_no_question_is_stored_none_is_compared(self, tmp_path: Path) -> None:
        suite(tmp_path, samples=[{"id": "es", "input": "Capital of Spain?"}])
        write(tmp_path / "m.jsonl", result("fr", "Paris"))
        assert texts(LettaCache(tmp_path), FRANCE) == ["Paris"]

    def test_releases_that_named_samples_by_row_are_matched_by_question(self, tmp_path: Path) -> None:
        rows = [{"id": number, "input": one["input"]} for number, one in enumerate(QUESTIONS)]
        write(tmp_path / "results.jsonl", older(rows[0], "Paris"), older(rows[1], "Rome"))
        cache = LettaCache(tmp_path)
        assert (texts(cache, FRANCE), texts(cache, ITALY)) == (["Paris"], ["Rome"])
        shifted = Sample(id=1, input=FRANCE.input)
        assert (texts(cache, shifted), cache.problems_with(shifted)) == (["Paris"], [])

    def test_rows_with_the_same_question_are_not_matched_by_question(self, tmp_path: Path) -> None:
        rows = [{"id": number, "input": FRANCE.input} for number in (0, 1)]
        write(tmp_path / "results.jsonl", older(rows[0], "Paris"), older(rows[1], "Lyon"))
        cache = LettaCache(tmp_path)
        assert texts(cache, Sample(id=1, input=FRANCE.input)) == ["Lyon"]
        assert texts(cache, FRANCE) == []


class TestFailures:
    def response(self, tmp_path: Path, **fields: Any) -> Response:
        write(suite(tmp_path) / "m.jsonl", result("fr", "Paris", **fields))
        return LettaCache(tmp_path).response(FRANCE, 0)

    @pytest.mark.parametrize(
        ("exception", "status", "kind", "fault", "message"),
        [
            ("TimeoutError", "timeout", "timeout", Fault.AGENT, "TimeoutError: it failed"),
            ("APIConnectionError", "error", "connect", Fault.INFRASTRUCTURE, "APIConnectionError: it failed"),
            ("RuntimeError", "error", "bad_response", Fault.AGENT, "RuntimeError: it failed"),
            ("rate_limited", "error", "rate_limited", Fault.INFRASTRUCTURE, "it failed"),
        ],
    )
    def test_a_failed_call_is_replayed_as_a_failure(
        self, tmp_path: Path, exception: str, status: str, kind: str, fault: Fault, message: str
    ) -> None:
        error = {"category": "target", "exception_type": exception, "message": "it failed"}
        response = self.response(tmp_path, error=error, timing={"total": 2.5, "target": 0.0})
        assert response.status == status
        assert response.error == ErrorInfo(kind, message, fault)
        assert (response.text, response.latency_ms) == (None, 2500.0)
        assert response.trajectory == Trajectory.of_text("Paris")

    def test_an_answer_counts_although_its_grading_failed(self, tmp_path: Path) -> None:
        error = {"category": "grading", "exception_type": "ValueError", "message": "no score"}
        assert self.response(tmp_path, error=error) == Response(text="Paris", trajectory=Trajectory.of_text("Paris"))

    def test_an_answer_that_was_lost_in_grading_is_not_an_empty_one(self, tmp_path: Path) -> None:
        error = {"category": "grading", "exception_type": "ValueError", "message": "no score"}
        response = self.response(tmp_path, error=error, trajectory=[])
        assert response.error == ErrorInfo("bad_response", "ValueError: no score", Fault.AGENT)

    def test_an_agent_without_text_gave_an_empty_answer(self, tmp_path: Path) -> None:
        error = {"category": "extraction", "exception_type": "ExtractionError", "message": "Empty trajectory"}
        assert self.response(tmp_path, error=error, trajectory=[]) == Response(text="", trajectory=Trajectory())

    def test_a_crash_in_the_rationale_of_older_releases_is_an_error(self, tmp_path: Path) -> None:
        crash = {"score": 0.0, "rationale": "Error: All connection attempts failed"}
        write(tmp_path / "results.jsonl", older(QUESTIONS[0], "", grade=crash, grades=None, trajectory=[]))
        response = LettaCache(tmp_path).response(FRANCE, 0)
        assert response.error == ErrorInfo("bad_response", "All connection attempts failed", Fault.AGENT)


@pytest.mark.parametrize(
    ("reason", "usage"),
    [
        ({}, None),
        ({"agent_usage": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0, "cached_input_tokens": 0}}, None),
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.0}}, Usage(5, 2, None, 0.0)),
        ({"prompt_tokens": 5, "completion_tokens": None, "cost": 0.5}, Usage(5, None, None, 0.5)),
        ({"agent_usage": None, "cost": 0.0}, None),
        (
            {
                "agent_usage": [
                    {"message_type": "usage_statistics", "prompt_tokens": 5, "cached_input_tokens": 0},
                    {"message_type": "usage_statistics", "prompt_tokens": 6, "completion_tokens": 1,
                     "prompt_tokens_details": {"cache_read_tokens": 4}},
                    {"message_type": "stop_reason"},
                ]
            },
            Usage(11, None, 4),
        ),
        ({"agent_usage": [{"message_type": "usage_statistics", "prompt_tokens": "5", "completion_tokens": True}]}, None),
    ],
)  # fmt: skip
def test_usage_that_is_not_known_is_not_zero(tmp_path: Path, reason: dict[str, Any], usage: Usage | None) -> None:
    write(suite(tmp_path) / "m.jsonl", result("fr", "Paris", **reason))
    assert LettaCache(tmp_path).response(FRANCE, 0).usage == usage


def test_text_that_cannot_be_stored_is_cleaned(tmp_path: Path) -> None:
    write(suite(tmp_path) / "m.jsonl", result("fr", "a\0b"), result(7, "a\\u0000b"))
    cache = LettaCache(tmp_path)
    assert cache.response(FRANCE, 0) == Response(
        text="a\u2400b", trajectory=Trajectory.of_text("a\u2400b"), cleaned=True
    )
    assert (cache.response(ITALY, 0).text, cache.response(ITALY, 0).cleaned) == ("a\\u0000b", False)


class TestFaults:
    def test_every_faulty_line_is_named_at_once(self, tmp_path: Path) -> None:
        suite(tmp_path)
        faulty = [
            ('{"sample_id": 1', "is not JSON"),
            ("[]", "expected an object, got []"),
            ('{"trajectory": []}', "it has neither sample_id nor sample.id"),
            ('{"sample_id": true}', "it has neither sample_id nor"),
            ('{"type": "result", "result": 3}', "it has neither sample_id nor"),
            ('{"sample_id": 1, "model_handle": 5}', "its model should be a name, got 5"),
            (
                '{"sample": {"id": 1, "input": [1]}}',
                "its sample's input should be a string or a list of strings, got [1]",
            ),
            ('{"sample_id": 1, "trajectory": ["hi"]}', "its trajectory should be a list of turns"),
            ('{"sample_id": 1, "trajectory": [["hi"]]}', "$[0][0]: 'hi' is not a letta message"),
            ('{"sample_id": 1, "trajectory": [[{"message_type": "user_message", "name": 5}]]}', "$.turns[0][0].name"),
            ('{"sample_id": 1, "trajectory": [[{"message_type": "user_message", "content": 5}]]}', "got 5"),
            ('{"sample_id": 1, "trajectory": [], "agent_state": {"blocks": 5}}', "its trajectory is not valid"),
            ('{"sample_id": 1}', "has neither a trajectory nor an error, so what the agent answered is unknown"),
        ]
        file = tmp_path / "m.jsonl"
        file.write_text("".join(f"{line}\n\n" for line, _ in faulty), encoding="utf-8")
        found = problems(tmp_path)
        assert [problem.path for problem in found] == [f"{file}:{2 * number + 1}" for number in range(len(faulty))]
        for problem, (_, expected) in zip(found, faulty, strict=True):
            assert expected in problem.message

    def test_at_most_twenty_faulty_lines_are_named(self, tmp_path: Path) -> None:
        suite(tmp_path)
        for model in ("a", "b"):
            (tmp_path / f"{model}.jsonl").write_text("{\n" * 15, encoding="utf-8")
        assert len(problems(tmp_path)) == 20

    def test_invalid_utf8_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "results.jsonl").write_bytes(b'{"sample_id": "\xff"}\n')
        assert problems(tmp_path) == [Problem(f"{tmp_path / 'results.jsonl'}:1", "is not UTF-8")]

    def test_an_invalid_result_directory_is_refused(self, tmp_path: Path) -> None:
        nothing = tmp_path / "nothing"
        nothing.mkdir()
        several = write(tmp_path / "several" / "a.jsonl", {}).parent
        write(several / "b.jsonl", {})
        empty = write(suite(tmp_path / "empty") / "m.jsonl").parent
        assert problems(tmp_path / "absent") == [
            Problem("cached", f"{tmp_path / 'absent'} does not exist; name a folder of letta-evals' results")
        ]
        assert problems(nothing) == [
            Problem("cached", f"{nothing} holds no results of letta-evals: it has no .jsonl file in the expected place")
        ]
        assert problems(several) == [
            Problem(
                "cached",
                f"{several} has no suite.json and several files of results; name one of them: a.jsonl, b.jsonl",
            )
        ]
        assert problems(empty) == [Problem("cached", f"{empty} holds no results: m.jsonl is empty")]

    def test_an_invalid_suite_json_is_refused_with_its_location(self, tmp_path: Path) -> None:
        write(tmp_path / "m.jsonl", result("fr", "Paris"))
        (tmp_path / "suite.json").write_text('{"samples": 3}', encoding="utf-8")
        [problem] = problems(tmp_path)
        assert problem.path == str(tmp_path / "suite.json")
        assert "is not a suite.json of letta-evals" in problem.message

    def test_a_file_that_changed_meanwhile_gives_no_answer(self, tmp_path: Path) -> None:
        file = write(suite(tmp_path) / "m.jsonl", result("fr", "Paris"))
        cache = LettaCache(tmp_path)
        write(file, {"type": "header"})
        with pytest.raises(ValueError, match="has changed"):
            cache.response(FRANCE, 0)


def test_the_digest_covers_only_the_content(tmp_path: Path) -> None:
    for home in ("a", "b"):
        write(suite(tmp_path / home) / "m.jsonl", result("fr", "Paris"))
    write(tmp_path / "b" / "summary.json", {"models": []})
    before = LettaCache.digest(tmp_path / "a")
    assert LettaCache.digest(tmp_path / "b") == before
    write(tmp_path / "b" / "m.jsonl", result("fr", "Lyon"))
    assert LettaCache.digest(tmp_path / "b") != before
    (tmp_path / "a" / "m.jsonl").rename(tmp_path / "a" / "n.jsonl")
    assert LettaCache.digest(tmp_path / "a") != before
