"""Results over REST: pages, filters, cursors, complete results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import pytest

from gradeline.model import (
    ErrorInfo,
    Fault,
    Grade,
    GradeKey,
    Message,
    Outcome,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    ToolCall,
    Trajectory,
)
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

GRADERS = {"exact": RunGrader("exact", "f1"), "judge": RunGrader("model_judge", "f2")}
HOSTILE = "‮<script>alert('é')</script> \x1b[31m 𝄞 \u0000".replace("\0", "\u2400")


def grade(outcome: str, score: float | None = None, **more: Any) -> Grade:
    passed = {"pass": True, "fail": False}.get(outcome)
    score = score if score is not None or passed is None else float(passed)
    return Grade("exact", "f1", Outcome(outcome), score, passed, **more)


BROKEN = grade("error", error=ErrorInfo("timeout", "the judge took too long", Fault.GRADER))


@pytest.fixture
def save(service: Service) -> Callable[..., str]:
    """Stores a run of (sample, repeat, response, grades), and returns its ID."""

    def saved(rows: Iterable[tuple[Sample, int, Response, dict[str, Grade]]], **fields: Any) -> str:
        rows = list(rows)
        run = Run(
            **{"name": "n", "suite": "s", "status": "completed", "graders": GRADERS, "total": len(rows), **fields}
        )
        name = service.storage.save_run(run)
        for sample, repeat, response, grades in rows:
            key = ResponseKey(name, sample.case_key, repeat)
            service.storage.put_response(key, response, sample)
            for grader, one in grades.items():
                service.storage.put_grade(GradeKey(*key, grader), one)
        return name

    return saved


@pytest.fixture
def four(save: Callable[..., str]) -> str:
    """A run with one of everything."""
    refused = Response("error", error=ErrorInfo("connect", "nobody listens", Fault.INFRASTRUCTURE), latency_ms=3.0)
    late = Response("timeout", error=ErrorInfo("timeout", "no answer in 30 s", Fault.AGENT), latency_ms=30_000.0)
    skipped = {"exact": grade("skipped"), "judge": grade("skipped")}
    return save(
        [
            (
                Sample("a", "What is 1 + 1?", "2", tags=("math", "smoke")),
                0,
                Response(text="2", latency_ms=10.0),
                {"exact": grade("pass", rationale="equal", latency_ms=0.5), "judge": grade("pass", 0.8)},
            ),
            (
                Sample("b", "What is the capital of France?", "Paris", tags=("geo",)),
                0,
                Response(text="Lyon", latency_ms=20.0),
                {"exact": grade("fail"), "judge": BROKEN},
            ),
            (Sample("c", "Is anybody there?", "Yes", tags=("smoke",)), 0, refused, skipped),
            (Sample("d", "Are you quick?", "Yes"), 0, late, skipped),
        ]
    )


def ids(answer: Any) -> list[str]:
    return [result["test_case_id"] for result in answer.data["results"]]


def test_a_page_has_results_scores_and_the_summary_of_the_whole_run(call: Any, four: str) -> None:
    answer = call("GET", f"/api/evaluations/{four}/results", params={"limit": 1})
    data = answer.data
    assert answer.status == 200
    assert set(data) == {"evaluation_id", "results", "summary", "next_cursor"}
    assert data["evaluation_id"] == four
    assert data["results"] == [
        {
            "result_id": "a~0",
            "test_case_id": "a",
            "repeat": 0,
            "test_case_input": "What is 1 + 1?",
            "test_case_expected": "2",
            "agent_response": "2",
            "response_status": "success",
            "response_latency_ms": 10.0,
            "error_message": None,
            "scores": [
                {
                    "grader_id": "exact",
                    "grader_name": "exact",
                    "score_value": 1.0,
                    "score_status": "pass",
                    "rationale": "equal",
                    "details": {},
                    "error_type": None,
                    "error_message": None,
                    "latency_ms": 0.5,
                },
                {
                    "grader_id": "judge",
                    "grader_name": "judge",
                    "score_value": 0.8,
                    "score_status": "pass",
                    "rationale": None,
                    "details": {},
                    "error_type": None,
                    "error_message": None,
                    "latency_ms": None,
                },
            ],
            "scores_succeeded": 2,
            "scores_failed": 0,
            "truncated": False,
        }
    ]
    assert data["summary"]["total_results"] == 4


def test_a_grader_that_broke_has_no_value_and_counts_as_failed(call: Any, four: str) -> None:
    result = call("GET", f"/api/evaluations/{four}/results").data["results"][1]
    assert (result["scores_succeeded"], result["scores_failed"]) == (1, 1)
    assert result["scores"][1] == {
        "grader_id": "judge",
        "grader_name": "judge",
        "score_value": None,
        "score_status": "error",
        "rationale": None,
        "details": {},
        "error_type": "timeout",
        "error_message": "the judge took too long",
        "latency_ms": None,
    }


def test_a_failed_call_has_its_error_and_skipped_scores(call: Any, four: str) -> None:
    result = call("GET", f"/api/evaluations/{four}/results").data["results"][2]
    assert (result["response_status"], result["error_message"], result["agent_response"]) == (
        "error",
        "nobody listens",
        None,
    )
    assert [score["score_status"] for score in result["scores"]] == ["skipped", "skipped"]
    assert (result["scores_succeeded"], result["scores_failed"]) == (0, 0)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"status": "success"}, ["a", "b"]),
        ({"status": "timeout"}, ["d"]),
        ({"outcome": "pass"}, ["a"]),
        ({"outcome": "error"}, ["b"]),
        ({"outcome": "skipped"}, ["c", "d"]),
        ({"grader": "judge", "outcome": "error"}, ["b"]),
        ({"grader": "exact", "outcome": "error"}, []),
        ({"grader": "judge"}, ["a", "b", "c", "d"]),
        ({"grader": "nobody"}, []),
        ({"tag": "smoke"}, ["a", "c"]),
        ({"tag": "mo"}, ["a", "c"]),
        ({"tag": "none"}, []),
        ({"q": "CAPITAL"}, ["b"]),
        ({"q": "lyon"}, ["b"]),
        ({"q": "listens"}, ["c"]),
        ({"q": "yes"}, ["c", "d"]),
        ({"q": "yes", "status": "timeout"}, ["d"]),
        ({"tag": "smoke", "outcome": "skipped", "q": "there"}, ["c"]),
        ({"q": ""}, ["a", "b", "c", "d"]),
        ({"q": "%"}, []),
        ({"grader": "judge", "score_min": 0.8, "score_max": 0.8}, ["a"]),
        ({"grader": "judge", "score_min": 0.81}, []),
        ({"grader": "exact", "score_max": 0}, ["b"]),
        ({"grader": "exact", "score_min": 0}, ["a", "b"]),
        ({"grader": "exact", "outcome": "pass", "score_max": 0.5}, []),
        ({"latency_min": 10, "latency_max": 20}, ["a", "b"]),
        ({"latency_min": 10.5}, ["b"]),
        ({"latency_max": 10}, ["a"]),
        ({"latency_min": 1, "status": "timeout"}, []),
        ({"latency_min": 1, "grader": "exact", "score_min": 0.5, "q": "what"}, ["a"]),
    ],
)
def test_filters_are_combined(call: Any, four: str, params: dict[str, str], expected: list[str]) -> None:
    answer = call("GET", f"/api/evaluations/{four}/results", params=params)
    assert ids(answer) == expected
    assert answer.data["summary"]["total_results"] == 4
    assert answer.data["next_cursor"] is None


@pytest.mark.parametrize("params", [{}, {"status": "success"}, {"q": "question"}, {"tag": "even"}, {"outcome": "pass"}])
def test_cursors_lead_through_all_results_once(call: Any, save: Callable[..., str], params: dict[str, str]) -> None:
    run = save(
        (
            Sample(f"case-{number}", f"question {number}", tags=("even" if number % 2 == 0 else "odd",)),
            repeat,
            Response(text="x"),
            {"exact": grade("pass" if number % 3 else "fail")},
        )
        for number in range(13)
        for repeat in range(2)
    )
    whole = call("GET", f"/api/evaluations/{run}/results", params=params).data["results"]
    seen, cursor = [], None
    while True:
        sent = {**params, "limit": 3, **({} if cursor is None else {"cursor": cursor})}
        page = call("GET", f"/api/evaluations/{run}/results", params=sent).data
        assert len(page["results"]) <= 3
        seen += page["results"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == whole
    assert len(whole) > 5


def test_skip_leaves_out_the_first_of_those_that_match(call: Any, four: str) -> None:
    path = f"/api/evaluations/{four}/results"
    assert ids(call("GET", path, params={"skip": 1, "limit": 2})) == ["b", "c"]
    assert ids(call("GET", path, params={"skip": 1, "status": "success"})) == ["b"]
    assert ids(call("GET", path, params={"skip": 1, "q": "yes"})) == ["d"]
    assert ids(call("GET", path, params={"skip": 10_000})) == []


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"skip": -1}, "skip"),
        ({"skip": 10_001}, "skip"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"cursor": "WzEsIm5vcGUiLDAsMF0"}, "cursor"),
        ({"cursor": ""}, "cursor"),
        ({"cursor": "WzAsIiIsLTEsMF0", "skip": 0}, "skip"),
        ({"status": "fine"}, "status"),
        ({"outcome": "great"}, "outcome"),
        ({"q": "a\0b"}, "q"),
        ({"grader": "a\0b"}, "grader"),
        ({"score_min": 0.5}, "'score_min' requires 'grader'"),
        ({"score_max": 0.5, "grader": ""}, "'score_max' requires 'grader'"),
        ({"score_min": -0.1, "grader": "exact"}, "score_min"),
        ({"score_max": 1.1, "grader": "exact"}, "score_max"),
        ({"score_max": "nan", "grader": "exact"}, "score_max"),
        ({"score_min": 0.8, "score_max": 0.2, "grader": "exact"}, "'score_min' must not be above 'score_max'"),
        ({"latency_min": "soon"}, "latency_min"),
        ({"latency_max": "inf"}, "latency_max"),
        ({"latency_min": 2, "latency_max": 1}, "'latency_min' must not be above 'latency_max', got 2.0 and 1.0"),
    ],
)
def test_what_cannot_be_a_page_is_refused(call: Any, four: str, params: dict[str, Any], word: str) -> None:
    answer = call("GET", f"/api/evaluations/{four}/results", params=params)
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
    assert word in answer.error["message"]


def test_the_edges_of_limit_and_skip_are_allowed(call: Any, four: str) -> None:
    path = f"/api/evaluations/{four}/results"
    assert call("GET", path, params={"limit": 1000}).status == 200
    assert call("GET", path, params={"limit": 1, "skip": 10_000}).status == 200


def test_a_cursor_of_another_run_is_unknown(call: Any, four: str, save: Callable[..., str]) -> None:
    other = save([(Sample("a", "?"), 0, Response(text=""), {}), (Sample("b", "?"), 0, Response(text=""), {})])
    cursor = call("GET", f"/api/evaluations/{other}/results", params={"limit": 1}).data["next_cursor"]
    answer = call("GET", f"/api/evaluations/{four}/results", params={"cursor": cursor})
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")


@pytest.mark.parametrize("name", ["nope", "00000000-0000-4000-8000-000000000000", "a%00b", "%ED%A0%80", "x" * 3000])
@pytest.mark.parametrize("path", ["results", "results/a~0", "export"])
def test_an_unknown_run_is_not_found(call: Any, name: str, path: str) -> None:
    answer = call("GET", f"/api/evaluations/{name}/{path}")
    assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "name", ["z~0", "a~1", "a", "a~", "~0", "a~00", "a~x", "a~-1", "a~9999999999", "a%00~0", "a~²"]
)
def test_an_unknown_result_is_not_found(call: Any, four: str, name: str) -> None:
    answer = call("GET", f"/api/evaluations/{four}/results/{name}")
    assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND")


def test_long_texts_are_cut_only_in_lists(call: Any, save: Callable[..., str]) -> None:
    long, edge = "é" * 2001, "x" * 2000
    marked = grade("pass", rationale=long, metadata={"prompt": [long, {"deep": long}], "many": list(range(150))})
    run = save(
        [
            (Sample("long", long, edge), 0, Response(text=long), {"exact": marked}),
            (Sample("edge", edge, edge), 0, Response(text=edge), {"exact": grade("pass", rationale=edge)}),
        ]
    )
    cut, uncut = call("GET", f"/api/evaluations/{run}/results").data["results"]
    assert (cut["truncated"], uncut["truncated"]) == (True, False)
    assert cut["test_case_input"] == cut["agent_response"] == cut["scores"][0]["rationale"] == "é" * 2000
    assert cut["scores"][0]["details"]["prompt"] == ["é" * 2000, {"deep": "é" * 2000}]
    assert len(cut["scores"][0]["details"]["many"]) == 100
    assert uncut["agent_response"] == edge
    single = call("GET", f"/api/evaluations/{run}/results/long~0").data
    assert (single["truncated"], single["agent_response"], single["test_case_input"]) == (False, long, long)
    assert single["scores"][0]["details"] == marked.metadata


@pytest.mark.parametrize("key", ["a/b", "a~1", "100%", "%41", "ключ 𝄞", " ", "..", "a?b#c", "x" * 2000, HOSTILE])
def test_every_case_key_makes_an_id_that_finds_its_result(call: Any, save: Callable[..., str], key: str) -> None:
    rows = [(Sample(key, HOSTILE, HOSTILE), repeat, Response(text=HOSTILE), {}) for repeat in range(2)]
    run = save(rows)
    first = call("GET", f"/api/evaluations/{run}/results", params={"limit": 1}).data
    page = call("GET", f"/api/evaluations/{run}/results", params={"cursor": first["next_cursor"]}).data
    [result] = page["results"]
    single = call("GET", f"/api/evaluations/{run}/results/{quote(result['result_id'], safe='')}").data
    assert (single["test_case_id"], single["repeat"], single["agent_response"]) == (key, 1, HOSTILE)


def test_a_single_result_has_everything_stored(call: Any, save: Callable[..., str]) -> None:
    sample = Sample("a", ["first", "second"], "x", metadata={"level": 3}, tags=("t",))
    trajectory = Trajectory(((Message("assistant", "", (ToolCall("look", '{"at": 1}', "1"),)), Message("tool", "7")),))
    judged = grade("pass", 0.9, rationale="good", metadata={"prompt": "Is it good?"})
    run = save([(sample, 0, Response(text="y", trajectory=trajectory), {"judge": judged})])
    data = call("GET", f"/api/evaluations/{run}/results/a~0").data
    assert data["test_case_input"] == "first\n\nsecond"
    assert data["sample"]["metadata"] == {"level": 3}
    assert data["response"]["trajectory"]["turns"][0][0]["tool_calls"][0]["name"] == "look"
    assert data["grades"]["judge"]["metadata"] == {"prompt": "Is it good?"}
    assert (data["evaluation_id"], data["submissions"], data["history"]) == (run, {}, [])


class TestCaseHistory:
    CASE = Sample(0, "What is 1 + 1?", "2", metadata={"level": 1}, tags=("math",))

    def run(self, save: Callable[..., str], sample: Sample = CASE, text: str = "2", **fields: Any) -> str:
        return save([(sample, 0, Response(text=text), {"exact": grade("pass")})], **fields)

    def others(self, call: Any, run: str, result: str = "0~0", **params: Any) -> list[tuple[str, str]]:
        data = call("GET", f"/api/evaluations/{run}/results/{result}/case-history", params=params).data
        assert (data["evaluation_id"], data["result_id"]) == (run, result)
        return [(one["evaluation_id"], one["result"]["agent_response"]) for one in data["runs"]]

    def test_the_same_case_of_the_same_suite_is_found_the_newest_first(
        self, call: Any, save: Callable[..., str]
    ) -> None:
        runs = [self.run(save, text=text, name=text) for text in ("1", "2", "3")]
        assert self.others(call, runs[1]) == [(runs[2], "3"), (runs[0], "1")]
        assert self.others(call, runs[1], limit=1) == [(runs[2], "3")]

    def test_another_suite_s_case_with_the_same_row_number_is_another_case(
        self, call: Any, save: Callable[..., str]
    ) -> None:
        run = self.run(save)
        self.run(save, Sample(0, "What is the capital of France?", "Paris"), suite="capitals")
        self.run(save, suite="the same text in another suite")
        assert self.others(call, run) == []

    @pytest.mark.parametrize(
        "edited",
        [
            Sample(0, "What is 1 + 2?", "2", metadata={"level": 1}),
            Sample(0, "What is 1 + 1?", "3", metadata={"level": 1}),
            Sample(0, "What is 1 + 1?", "2", metadata={"level": 2}),
        ],
    )
    def test_a_case_that_was_edited_is_another_case(self, call: Any, save: Callable[..., str], edited: Sample) -> None:
        run = self.run(save)
        self.run(save, edited)
        assert self.others(call, run) == []

    def test_other_tags_make_no_other_case(self, call: Any, save: Callable[..., str]) -> None:
        run = self.run(save)
        retagged = self.run(save, Sample(0, "What is 1 + 1?", "2", metadata={"level": 1}, tags=("sums",)))
        assert self.others(call, run) == [(retagged, "2")]

    def test_a_stored_test_case_is_the_same_in_every_suite(self, call: Any, save: Callable[..., str]) -> None:
        case = call("POST", "/api/test-cases", json={"input": "Where?", "expected_output": "Here"}).data["id"]
        runs = [self.run(save, Sample(case, "Where?", "Here"), suite=suite) for suite in ("first", "second")]
        call("DELETE", f"/api/test-cases/{case}")
        assert self.others(call, runs[0], f"{case}~0") == [(runs[1], "2")]

    def test_a_regraded_run_has_the_answers_of_its_parent(self, call: Any, save: Callable[..., str]) -> None:
        parent = self.run(save)
        regraded = save([], parent=parent)
        assert self.others(call, parent) == [(regraded, "2")]
        assert self.others(call, regraded) == [(parent, "2")]

    def test_a_run_that_has_not_answered_the_repeat_is_left_out(self, call: Any, save: Callable[..., str]) -> None:
        twice = save([(self.CASE, repeat, Response(text="2"), {}) for repeat in (0, 1)], repeats=2)
        self.run(save)
        assert self.others(call, twice, "0~1") == []

    def test_an_unknown_result_is_not_found(self, call: Any, save: Callable[..., str]) -> None:
        run = self.run(save)
        for place in (f"{run}/results/9~0", "nope/results/0~0"):
            assert call("GET", f"/api/evaluations/{place}/case-history").status == 404


def test_a_replaced_attempt_stays_in_the_history(call: Any, service: Service, save: Callable[..., str]) -> None:
    sample = Sample("a", "?")
    failed = Response("error", error=ErrorInfo("connect", "nobody listens", Fault.INFRASTRUCTURE))
    run = save([(sample, 0, failed, {"exact": grade("skipped")})])
    before = call("GET", f"/api/evaluations/{run}/results").data["results"][0]["result_id"]
    service.storage.put_response(ResponseKey(run, "a"), Response(text="there"), sample)
    data = call("GET", f"/api/evaluations/{run}/results/{before}").data
    assert data["agent_response"] == "there"
    [attempt] = data["history"]
    assert (attempt["attempt"], attempt["response"]["error"]["message"]) == (1, "nobody listens")
    assert attempt["grades"]["exact"]["outcome"] == "skipped"


class TestTracebacks:
    def test_tracebacks_of_the_agents_code_are_shown_with_its_output(self, call: Any, save: Callable[..., str]) -> None:
        trace = 'Traceback (most recent call last):\n  File "/home/me/agent.py", line 3, in answer\nKeyError: 1\n'
        error = ErrorInfo("agent_error", "KeyError: 1 (agent.py:3 in answer)", Fault.AGENT, trace)
        run = save([(Sample("a", "?"), 0, Response("error", error=error, output="looking\n"), {})])
        response = call("GET", f"/api/evaluations/{run}/results/a~0").data["response"]
        assert response["output"] == "looking\n"
        assert response["error"]["type"] == "agent_error"
        assert response["error"]["traceback"] == trace.replace("/home/me/", "…/")

    @pytest.fixture
    def settings(self, settings: ServeSettings, tmp_path: Any) -> ServeSettings:
        import msgspec

        return msgspec.structs.replace(settings, graders_dir=tmp_path / "graders")

    def test_paths_are_those_of_the_graders_folder(self, call: Any, save: Callable[..., str], tmp_path: Any) -> None:
        trace = (
            f'Traceback (most recent call last):\n  File "{tmp_path}/graders/deep/mine.py", line 3, in grade\n'
            '  File "/usr/lib/python3.11/json/decoder.py", line 9, in decode\nValueError: no\n'
        )
        broken = grade("error", error=ErrorInfo("ValueError", "no", Fault.GRADER, trace))
        run = save([(Sample("a", "?"), 0, Response(text=""), {"exact": broken})])
        shown = (
            'Traceback (most recent call last):\n  File "deep/mine.py", line 3, in grade\n'
            '  File "…/decoder.py", line 9, in decode\nValueError: no\n'
        )
        data = call("GET", f"/api/evaluations/{run}/results/a~0").data
        assert data["grades"]["exact"]["error"]["traceback"] == shown
        for wanted in ("json", "jsonl", "csv", "junit", "html"):
            answer = call("GET", f"/api/evaluations/{run}/export", params={"format": wanted})
            assert answer.status == 200
            assert str(tmp_path) not in str(answer.body)


def test_a_regraded_run_shows_its_parents_answers_with_its_own_grades(call: Any, service: Service, four: str) -> None:
    child = service.storage.save_run(
        Run(name="again", suite="s", status="completed", parent=four, graders={"exact": GRADERS["exact"]}, total=4)
    )
    service.storage.put_grade(GradeKey(child, "b", 0, "exact"), grade("pass"))
    data = call("GET", f"/api/evaluations/{child}/results").data
    listed = [(one["test_case_id"], [score["score_status"] for score in one["scores"]]) for one in data["results"]]
    assert listed == [("a", []), ("b", ["pass"]), ("c", []), ("d", [])]
    assert ids(call("GET", f"/api/evaluations/{child}/results", params={"outcome": "pass"})) == ["b"]
    assert call("GET", f"/api/evaluations/{child}/results/b~0").data["agent_response"] == "Lyon"


def test_the_text_of_a_case_is_that_of_the_time_of_the_run(call: Any, save: Callable[..., str]) -> None:
    made = call("POST", "/api/test-cases", json={"input": "before", "expected_output": "x"}).data
    run = save([(Sample(made["id"], made["input"], made["expected_output"]), 0, Response(text="y"), {})])
    call("PUT", f"/api/test-cases/{made['id']}", json={"input": "after"})
    call("DELETE", f"/api/test-cases/{made['id']}")
    [result] = call("GET", f"/api/evaluations/{run}/results").data["results"]
    assert (result["test_case_id"], result["test_case_input"]) == (made["id"], "before")


def test_a_run_without_results_is_an_empty_page(call: Any, service: Service) -> None:
    run = service.storage.save_run(Run(name="n", suite="s", graders=GRADERS, total=2))
    service.storage.put_samples(run, [Sample("a", "?"), Sample("b", "?")])
    data = call("GET", f"/api/evaluations/{run}/results").data
    assert (data["results"], data["next_cursor"]) == ([], None)
    assert data["summary"]["sentence"] == "0 responses graded, 0 grader errors"


def test_ten_thousand_results_come_page_by_page_each_once(call: Any, service: Service) -> None:
    total = 10_000
    run = service.storage.save_run(Run(name="n", suite="s", status="completed", graders=GRADERS, total=total))
    samples = [Sample(f"c{number}", "?") for number in range(total)]
    service.storage.put_samples(run, samples)
    import asyncio

    async def write() -> None:
        async with service.storage.writer() as writer:
            await asyncio.gather(
                *(
                    writer.put_response(ResponseKey(run, sample.case_key), Response(text="x"), sample, place)
                    for place, sample in enumerate(samples)
                )
            )

    asyncio.run(write())
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": 1000, **({} if cursor is None else {"cursor": cursor})}
        page = call("GET", f"/api/evaluations/{run}/results", params=params)
        seen += ids(page)
        cursor = page.data["next_cursor"]
        if cursor is None:
            break
    assert seen == [sample.case_key for sample in samples]
    last = call("GET", f"/api/evaluations/{run}/results", params={"skip": 9_999})
    assert ids(last) == ["c9999"]


def test_a_filter_that_examines_many_rows_returns_a_cursor_to_continue(
    call: Any, save: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeline.store.result_pages.TEXTS_EXAMINED", 3)
    monkeypatch.setattr("gradeline.store.result_pages.ROWS_EXAMINED", 3)
    monkeypatch.setattr("gradeline.store.result_pages._TEXTS_PER_QUERY", 2)
    rows = [(Sample(f"c{number}", f"n{number % 7}"), 0, Response(text=""), {}) for number in range(30)]
    run = save(rows)
    for params in ({"q": "n6"}, {"q": "n6", "skip": 2}, {"status": "success"}, {"status": "error"}):
        found: list[str] = []
        sent: dict[str, Any] = {**params, "limit": 2}
        for _ in range(40):
            page = call("GET", f"/api/evaluations/{run}/results", params=sent)
            found += ids(page)
            if page.data["next_cursor"] is None:
                break
            sent = {**params, "limit": 2, "cursor": page.data["next_cursor"]}
            sent.pop("skip", None)
        expected = {
            "n6": ["c6", "c13", "c20", "c27"][params.get("skip", 0) :],
            "success": [f"c{number}" for number in range(30)],
            "error": [],
        }[str(params.get("q") or params["status"])]
        assert found == expected


def test_reading_needs_a_key_once_there_is_one(
    call: Any, call_with: Callable[[str], dict[str, str]], four: str
) -> None:
    headers = call_with("read")
    for path in (
        f"{four}/results",
        f"{four}/results/a~0",
        f"{four}/histograms",
        f"{four}/export",
        f"compare?baseline={four}&candidate={four}",
    ):
        assert call("GET", f"/api/evaluations/{path}").status == 401
        assert call("GET", f"/api/evaluations/{path}", headers=headers).status == 200


def test_responses_match_the_openapi_document(call: Any, four: str) -> None:
    import jsonschema_rs

    document = call("GET", "/api/openapi.json").body
    answers = {
        "/api/evaluations/{evaluation_id}/results": call("GET", f"/api/evaluations/{four}/results"),
        "/api/evaluations/{evaluation_id}/results/{result_id}": call("GET", f"/api/evaluations/{four}/results/b~0"),
        "/api/evaluations/{evaluation_id}/histograms": call("GET", f"/api/evaluations/{four}/histograms"),
        "/api/evaluations/compare": call("GET", f"/api/evaluations/compare?baseline={four}&candidate={four}"),
    }
    for path, answer in answers.items():
        listed = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        schema = {**listed["schema"], "components": document["components"]}
        assert [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(answer.body)] == []
        assert [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(listed["example"])] == []
