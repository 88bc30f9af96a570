"""Samples, responses, trajectories, records: stored data round-trips exactly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import Response, Sample
from gradeline.errors import DataError, MissingDataError
from gradeline.model import (
    ErrorInfo,
    Fault,
    Grade,
    GradeKey,
    Message,
    Outcome,
    Record,
    ResponseKey,
    TestCase,
    ToolCall,
    Trajectory,
    Usage,
    case_digest,
    fingerprint,
    from_json,
    to_json,
)
from gradeline.model.response import usage_of_calls

text = st.text(max_size=20)
json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(text, json_data, max_size=3)
samples = st.builds(
    Sample,
    id=st.integers(0, 10**9) | text,
    input=text | st.lists(text, max_size=3),
    ground_truth=st.none() | text | st.lists(text, max_size=3),
    metadata=mappings,
    agent_args=mappings,
    rubric_vars=mappings,
    extra_vars=mappings,
    tags=st.lists(text, max_size=3).map(tuple),
    rubric=st.none() | text,
)
calls = st.builds(ToolCall, name=text, arguments=text, id=st.none() | text)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool", "reasoning", "event"]),
    content=text,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=st.none() | text,
    name=st.none() | text,
    is_error=st.booleans(),
)
trajectories = st.builds(
    Trajectory,
    turns=st.lists(st.lists(messages, max_size=3).map(tuple), max_size=3).map(tuple),
    memory=st.none() | st.dictionaries(text, text, max_size=2),
    tools_known=st.booleans(),
)
numbers = st.none() | st.integers(0, 10**9)
responses = st.builds(
    Response,
    text=text,
    trajectory=st.none() | trajectories,
    usage=st.none() | st.builds(Usage, numbers, numbers, numbers, st.none() | st.floats(0, 100)),
    latency_ms=st.none() | st.floats(0, 1e6),
    cleaned=st.booleans(),
) | st.builds(
    Response,
    status=st.sampled_from(["error", "timeout"]),
    error=st.builds(ErrorInfo, text, text, st.sampled_from(Fault), st.none() | text),
)
grades = st.builds(
    lambda score, passed, rationale, metadata: Grade(
        "k", "f", Outcome.PASS if passed else Outcome.FAIL, score, passed, rationale, metadata
    ),
    st.floats(0, 1),
    st.booleans(),
    st.none() | text,
    mappings,
)


class TestRoundTrips:
    @given(samples)
    def test_sample(self, sample: Sample) -> None:
        assert from_json(Sample, to_json(sample)) == sample
        assert to_json(from_json(Sample, to_json(sample))) == to_json(sample)

    @given(responses)
    def test_response(self, response: Response) -> None:
        assert from_json(Response, to_json(response)) == response

    @given(samples, responses, st.dictionaries(text, grades, max_size=2), st.dictionaries(text, text, max_size=2))
    def test_record(
        self, sample: Sample, response: Response, grades: dict[str, Grade], submissions: dict[str, str]
    ) -> None:
        record = Record("r", sample.case_key, 0, sample, response, submissions, grades)
        assert from_json(Record, to_json(record)) == record
        assert to_json(from_json(Record, to_json(record))) == to_json(record)

    def test_stored_data_has_its_schema_version(self) -> None:
        for stored in (Sample(1, "a"), Response(text="a"), Grade("k", "f", Outcome.SKIPPED)):
            assert to_json(stored).startswith('{"schema":1,')

    @pytest.mark.parametrize(
        ("stored", "message"),
        [
            ('{"schema":2,"id":1,"input":"a"}', "a newer version of gradeline: upgrade"),
            ('{"schema":1,"id":1}', "missing required field `input`"),
            ("{", "not a stored Sample"),
            ("[" * 100_000, "not a stored Sample"),
        ],
    )
    def test_unreadable_data_is_explained(self, stored: str, message: str) -> None:
        with pytest.raises(DataError, match=message):
            from_json(Sample, stored)


class TestSample:
    def test_it_is_built_as_in_the_seed(self) -> None:
        sample = Sample(id=0, input="What is 2+2?", ground_truth="4")
        assert (sample.metadata, sample.agent_args, sample.rubric_vars, sample.extra_vars) == ({}, {}, {}, {})

    def test_mappings_are_not_shared_and_an_explicit_none_is_empty(self) -> None:
        nothing: Any = None
        assert Sample(0, "a", metadata=nothing).metadata == {}
        assert Sample(0, "a").metadata is not Sample(0, "a").metadata

    def test_ids_1_and_text_1_are_the_same_case(self) -> None:
        assert Sample(1, "a").case_key == Sample("1", "a").case_key == "1"

    def test_it_is_immutable(self) -> None:
        with pytest.raises(AttributeError):
            Sample(0, "a").input = "b"  # type: ignore[misc]


class TestResponse:
    def test_a_success_has_no_error_and_a_failure_has_one(self) -> None:
        error = ErrorInfo("timeout", "30 s", Fault.AGENT)
        with pytest.raises(ValueError, match="'success' has an error"):
            Response(text="a", error=error)
        with pytest.raises(ValueError, match="'timeout' lacks an error"):
            Response(status="timeout")

    def test_without_a_trajectory_the_text_is_one_turn_and_tool_use_is_unknown(self) -> None:
        assert Response(text="hi").steps == Trajectory(((Message("assistant", "hi"),),), tools_known=False)
        assert Response(text="").steps == Trajectory(tools_known=False)

    def test_a_reported_trajectory_states_its_tool_use_unless_only_turn_texts_are_known(self) -> None:
        assert Response(text="hi", trajectory=Trajectory()).steps.tools_known
        texts = Trajectory.of_turn_texts(["a", "", "c"])
        assert not Response(text="c", trajectory=texts).steps.tools_known
        assert texts.turns == ((Message("assistant", "a"),), (), (Message("assistant", "c"),))

    def test_trajectories_stored_before_tools_known_existed_are_read_as_complete(self) -> None:
        assert from_json(Trajectory, '{"turns":[],"memory":null}') == Trajectory()

    @pytest.mark.parametrize("trajectory", [None, Trajectory(((Message("assistant", "hi"),),), tools_known=False)])
    def test_tool_use_is_unknown_unless_it_is_reported(self, trajectory: Trajectory | None) -> None:
        with pytest.raises(MissingDataError, match=r"as tool_calls \|\| `\[\]`"):
            Response(text="hi", trajectory=trajectory).tool_use()

    def test_an_empty_trajectory_means_no_tool_was_called(self) -> None:
        assert list(Response(text="hi", trajectory=Trajectory()).tool_use().tool_calls()) == []

    def test_total_usage_is_unknown_if_one_calls_usage_is(self) -> None:
        one, other = Usage(1, 2, 0, 0.5), Usage(3, None, 0, 0.25)
        assert usage_of_calls([one, other]) == Usage(4, None, 0, 0.75)
        assert usage_of_calls([one, None]) is None
        assert usage_of_calls([None]) is None
        assert usage_of_calls([]) is None

    def test_tool_calls_are_in_order_with_arguments_as_sent(self) -> None:
        first, second = ToolCall("a", '{"x": 1}'), ToolCall("b", '{"x": ')
        trajectory = Trajectory(
            ((Message("assistant", tool_calls=(first,)),), (Message("assistant", tool_calls=(second,)),))
        )
        assert list(trajectory.tool_calls()) == [first, second]
        assert (first.parsed(), second.parsed(), ToolCall("c", "[1]").parsed()) == ({"x": 1}, None, None)
        assert ToolCall("d", "[" * 100_000).parsed() is None


class TestKeysAndDigests:
    def test_a_grade_key_knows_its_response(self) -> None:
        assert GradeKey("r", "c", 2, "exact").response == ResponseKey("r", "c", 2)
        assert ResponseKey("r", "c", 2).result_id == "r/c/2"

    def test_equal_data_has_one_fingerprint_whatever_its_order(self) -> None:
        assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
        assert fingerprint({"a": 1}) != fingerprint({"a": 2})
        assert len(fingerprint("x")) == 32

    def test_editing_a_case_changes_its_digest_and_retagging_does_not(self) -> None:
        digest = case_digest(Sample(1, "a", "b"))
        assert case_digest(Sample(2, "a", "b", tags=("t",))) == digest
        assert case_digest(Sample(1, "a", "c")) != digest
        assert case_digest(Sample(1, "a", "b", metadata={"k": 1})) != digest

    def test_a_stored_test_case_is_a_sample_of_a_run(self) -> None:
        case = TestCase(id="c1", input="q", expected_output="a", tags=("t",))
        assert case.sample() == Sample("c1", "q", "a", tags=("t",))
