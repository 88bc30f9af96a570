from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError, Fault
from gradeline.model import ErrorInfo, Message, Response, Sample, ToolCall, Trajectory, Usage, to_json
from gradeline.targets import create
from gradeline.targets.base import TargetContext


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.jsonl"


def write(path: Path, *rows: object) -> None:
    path.write_text("\n\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")


def replay(path: Path, *ids: int | str) -> list[Response]:
    async def ask() -> list[Response]:
        async with create("replay", {"responses": str(path)}) as target:
            return [await target.respond(Sample(id=one, input="x")) for one in ids]

    return asyncio.run(ask())


STORED = Response(
    text="Paris",
    trajectory=Trajectory(((Message("assistant", "Paris", (ToolCall("f", "{}"),)),),)),
    usage=Usage(1, 2, None, 0.5),
    latency_ms=12.5,
)
FAILED = Response(status="timeout", error=ErrorInfo("timeout", "too slow", Fault.AGENT), latency_ms=30.0)


def test_texts_and_whole_responses_are_found_by_case(path: Path) -> None:
    write(
        path,
        {"id": 1, "text": "one"},
        {"sample_id": "2", "response": "two"},
        {"case": "3", "response": json.loads(to_json(STORED))},
        {"run": "r", "case": "4", "repeat": 0, "response": json.loads(to_json(FAILED)), "grades": {}},
    )
    one, two, three, four = replay(path, "1", 2, "3", "4")
    assert (one.text, two.text) == ("one", "two")
    assert one.latency_ms is None
    assert (three, four) == (STORED, FAILED)


def test_an_exported_response_needs_no_schema(path: Path) -> None:
    write(path, {"case": "1", "response": {"status": "success", "text": "x", "trajectory": None, "error": None}})
    assert replay(path, 1)[0].text == "x"


def test_a_missing_case_is_a_bad_response(path: Path) -> None:
    write(path, {"id": 1, "text": "one"})
    [response] = replay(path, "7")
    assert response.error == ErrorInfo("bad_response", "no stored response for case '7'", Fault.AGENT)
    assert response.status == "error"


def test_repeats_of_a_case_are_replayed_in_order(path: Path) -> None:
    write(path, {"id": 1, "text": "a"}, {"id": 2, "text": "c"}, {"id": "1", "text": "b"})
    assert [response.text for response in replay(path, 1, 1, 2, 1, 2)] == ["a", "b", "c", "a", "c"]


def test_every_faulty_line_is_named_when_the_file_is_opened(path: Path) -> None:
    write(path, '{"id": 1', [], {"text": "x"}, {"id": True, "text": "x"}, {"id": 1}, {"id": 1, "response": {"status": "odd"}},
          {"id": 1, "response": {"status": "success"}}, {"id": 1, "response": {"status": "error"}}, {"id": 1, "text": "ok"})  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        replay(path, 1)
    assert [problem.path for problem in caught.value.problems] == [f"{path}:{number}" for number in range(1, 16, 2)]


def test_a_file_that_cannot_be_read_is_a_config_fault(tmp_path: Path) -> None:
    for place in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            replay(place, 1)


def test_hostile_text_is_cleaned(path: Path) -> None:
    write(path, '{"id": 1, "text": "a\\u0000b"}')
    [response] = replay(path, 1)
    assert (response.text, response.cleaned) == ("a\u2400b", True)


def test_a_stored_run_is_read_by_the_function_of_the_caller() -> None:
    async def ask() -> list[Response]:
        stored = {"1": STORED}
        context = TargetContext(responses=lambda sample: stored.get(sample.case_key))
        async with create("replay", {"run": "r1"}, context=context) as target:
            return [await target.respond(Sample(id=one, input="x")) for one in (1, 2)]

    found, missing = asyncio.run(ask())
    assert found == STORED
    assert missing.error is not None
    assert missing.error.type == "bad_response"


def test_a_run_without_a_store_cannot_be_opened() -> None:
    with pytest.raises(ConfigError, match="needs a store"):
        asyncio.run(create("replay", {"run": "r1"}).open())


@pytest.mark.parametrize("config", [{}, {"run": "a", "responses": "b"}, {"responses": "b", "cached": "c"}])
def test_exactly_one_source_is_required(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="write one of run: ID, responses: FILE and cached: FOLDER"):
        create("replay", config)


def test_the_fingerprint_is_that_of_the_content(path: Path, tmp_path: Path) -> None:
    write(path, {"id": 1, "text": "a"})
    other = tmp_path / "other.jsonl"
    write(other, {"id": 1, "text": "a"})

    def fingerprint(place: Path) -> str:
        return create("replay", {"responses": str(place)}).fingerprint

    assert fingerprint(path) == fingerprint(other)
    write(other, {"id": 1, "text": "b"})
    assert fingerprint(path) != fingerprint(other)


class TestResultsOfLetta:
    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        """Two runs of one model; the answers to case 1 differ."""
        samples = [{"id": 1, "input": "Capital of France?"}, {"id": 2, "input": "Capital of Italy?"}]
        (tmp_path / "openai-gpt").mkdir()
        (tmp_path / "suite.json").write_text(json.dumps({"suite": "s", "config": {}, "samples": samples}))
        for number, answer in ((1, "Paris"), (2, "Lyon")):
            turn = [{"message_type": "assistant_message", "id": "m", "content": answer}]
            line = {"sample_id": 1, "model_handle": "openai/gpt", "trajectory": [turn], "timing": {"target": 0.5}}
            (tmp_path / "openai-gpt" / f"run_{number}.jsonl").write_text(json.dumps(line) + "\n")
        return tmp_path

    @staticmethod
    def ask(home: Path, *samples: Sample, **options: str) -> list[Response]:
        async def ask() -> list[Response]:
            async with create("replay", {"cached": str(home), **options}) as target:
                return [await target.respond(sample) for sample in samples]

        return asyncio.run(ask())

    def test_results_are_replayed_in_order(self, home: Path) -> None:
        sample = Sample(id="1", input="Capital of France?")
        first, second, third = self.ask(home, sample, sample, sample)
        assert first == Response(text="Paris", trajectory=Trajectory.of_text("Paris"), latency_ms=500.0)
        assert (second.text, third.text) == ("Lyon", "Paris")

    def test_results_without_the_case_are_a_bad_response(self, home: Path) -> None:
        [response] = self.ask(home, Sample(id=2, input="Capital of Italy?"))
        assert response.error == ErrorInfo("bad_response", "no stored response for case '2'", Fault.AGENT)

    def test_results_of_another_question_are_refused(self, home: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"case '1': input: the input of the dataset is 'Why\?', but .* 'Capital of France\?'"
        ):
            self.ask(home, Sample(id=1, input="Why?"))

    def test_another_question_is_reported_before_the_call(self, home: Path) -> None:
        async def look() -> list[int]:
            async with create("replay", {"cached": str(home)}) as target:
                asked = [Sample(id=1, input="Capital of France?"), Sample(id=1, input="Why?"), Sample(id=9, input="?")]
                return [len(target.problems_with(sample)) for sample in asked]

        assert asyncio.run(look()) == [0, 1, 0]

    def test_results_are_those_of_the_named_model(self, home: Path) -> None:
        assert self.ask(home, Sample(id=1, input="Capital of France?"), model="openai/gpt")[0].text == "Paris"
        with pytest.raises(ConfigError, match="has no results of 'other'; it has openai/gpt"):
            self.ask(home, model="other")

    def test_results_show_their_model_without_naming_it(self, home: Path) -> None:
        async def look() -> tuple[str | None, dict[str, Any]]:
            async with create("replay", {"cached": str(home)}) as target:
                return target.model, target.shown

        assert asyncio.run(look()) == ("openai/gpt", {"cached": str(home), "model": "openai/gpt"})

    def test_results_have_the_fingerprint_of_their_content(self, home: Path) -> None:
        def fingerprint(**options: str) -> str:
            return create("replay", {"cached": str(home), **options}).fingerprint

        before = fingerprint()
        assert fingerprint() == before
        assert fingerprint(model="openai/gpt") != before
        with (home / "openai-gpt" / "run_2.jsonl").open("a") as file:
            file.write("\n")
        assert fingerprint() != before

    def test_unreadable_results_are_a_config_error(self, tmp_path: Path) -> None:
        target = create("replay", {"cached": str(tmp_path / "none")})
        with pytest.raises(ConfigError, match="does not exist"):
            asyncio.run(target.open())
        with pytest.raises(ConfigError, match="does not exist"):
            _ = target.fingerprint
