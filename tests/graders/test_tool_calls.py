from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, GraderError, Outcome, TooLargeError, UngradableError
from gradeline.graders import create, from_definition, run_grader
from gradeline.graders.bfcl import json_key
from gradeline.graders.tool_calls import MAX_CALLS, ToolCallsGrader, maximum_matching
from gradeline.model import Grade, GradeContext, GradeResult, Sample

WEATHER = {"name": "weather", "arguments": {"city": ["Paris", "Paris, France"], "unit": ["C", ""]}}
TIME = {"name": "time", "arguments": {"city": ["Paris"]}}

WEATHER_MADE = {"name": "weather", "arguments": {"city": "Paris"}}
TIME_MADE = {"name": "time", "arguments": {"city": "Paris"}}


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def context(expected: object, made: object, metadata: dict[str, Any] | None = None) -> GradeContext:
    truth = None if expected is None else as_text(expected)
    return GradeContext(Sample(id=0, input="", ground_truth=truth, metadata=metadata or {}), as_text(made))


def grade(expected: object, made: object, mode: str = "strict") -> GradeResult:
    return create("tool_calls", {"mode": mode}).grade(context(expected, made))


def one_argument(allowed: object, value: object) -> bool:
    expected = [{"name": "f", "arguments": {"x": allowed}}]
    return grade(expected, [{"name": "f", "arguments": {"x": value}}]).passed


def calls(*values: object, name: str = "f") -> list[dict[str, Any]]:
    return [{"name": name, "arguments": {"x": value}} for value in values]


class TestOneCall:
    def test_the_expected_call_scores_one(self) -> None:
        assert grade([WEATHER], [WEATHER_MADE]) == GradeResult(
            1.0, "1 call made, as expected", {"matched": 1, "expected": 1, "made": 1}, True
        )

    def test_a_wrong_argument_scores_zero_and_is_named_with_the_value_seen(self) -> None:
        made = [{"name": "weather", "arguments": {"city": "Rome"}}]
        assert grade([WEATHER], made) == GradeResult(
            0.0,
            "call 1, 'weather': argument 'city' is 'Rome', expected 'Paris' or 'Paris, France'",
            {"matched": 0, "expected": 1, "made": 1},
            False,
        )

    def test_a_missing_argument_is_named(self) -> None:
        result = grade([WEATHER], [{"name": "weather", "arguments": {"unit": "C"}}])
        assert result.rationale == (
            "call 1, 'weather': argument 'city' is missing, expected 'Paris' or 'Paris, France'"
        )

    def test_an_unknown_argument_is_named_with_its_value(self) -> None:
        result = grade([TIME], [{"name": "time", "arguments": {"city": "Paris", "zone": 1}}])
        assert result.rationale == "call 1, 'time': argument 'zone' is 1, but no such argument is expected"

    def test_another_function_is_missing_and_extra(self) -> None:
        assert grade([WEATHER], [TIME_MADE]).rationale == "missing: 'weather'; extra: 'time'"

    def test_names_are_compared_exactly(self) -> None:
        assert not grade([{"name": "a.b", "arguments": {}}], [{"name": "a_b", "arguments": {}}]).passed

    def test_arguments_can_be_a_json_string(self) -> None:
        assert grade([TIME], [{"name": "time", "arguments": '{"city": "Paris"}'}]).passed

    def test_a_call_without_arguments_has_none(self) -> None:
        assert grade([{"name": "now", "arguments": {}}], [{"name": "now"}]).passed

    @pytest.mark.parametrize("arguments", ["{broken", "[1]", [1], None, 5, "[" * 100_000])
    def test_arguments_that_are_not_an_object_never_match(self, arguments: object) -> None:
        result = grade([TIME], [{"name": "time", "arguments": arguments}])
        assert result.score == 0.0
        assert str(result.rationale).startswith("call 1, 'time': the arguments are not a JSON object but ")


class TestValues:
    @pytest.mark.parametrize(
        ("allowed", "value"),
        [
            ([1], 1.0),
            ([1.0], 1),
            ([10**20], 1e20),
            ([-0.0], 0),
            ([None], None),
            (None, None),
            ("a", "a"),
            (3, 3),
            ({"k": 1}, {"k": 1}),
            ([{"a": 1, "b": [True]}], {"b": [True], "a": 1.0}),
            ([[1, 2]], [1, 2]),
            ([[]], []),
            ([""], ""),
        ],
    )
    def test_equal_as_json(self, allowed: object, value: object) -> None:
        assert one_argument(allowed, value)

    @pytest.mark.parametrize(
        ("allowed", "value"),
        [
            ([1], True),
            ([True], 1),
            ([[1]], [True]),
            ([0], False),
            (["1"], 1),
            (["a"], "A"),
            ([None], "None"),
            ([[1, 2]], [2, 1]),
            ([1, 2], [1, 2]),
            ([{"a": 1}], {"a": 1, "b": 2}),
            ([10**20], 10**20 + 1),
            ([2**53], 2**53 + 1),
            ([10**400], 10**400 + 1),
            ([["ab", "c"]], ["a", "bc"]),
        ],
    )
    def test_different_as_json(self, allowed: object, value: object) -> None:
        assert not one_argument(allowed, value)

    def test_an_empty_string_among_the_allowed_makes_an_argument_optional(self) -> None:
        expected = [{"name": "f", "arguments": {"x": [1, ""]}}]
        outcomes = [grade(expected, [{"name": "f", "arguments": given}]).passed for given in ({}, {"x": 1}, {"x": 2})]
        assert outcomes == [True, True, False]

    json_values = st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text("a1:,[{", max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a1:,", max_size=2), inner, max_size=3),
        max_leaves=6,
    )

    @given(json_values, json_values)
    def test_keys_are_equal_exactly_when_the_values_are(self, left: object, right: object) -> None:
        assert (json_key(left) == json_key(right)) is plain_equal(left, right)


def plain_equal(left: object, right: object) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(plain_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(plain_equal(left[key], right[key]) for key in left)
    return left == right


class TestModes:
    TWO = (WEATHER, TIME)

    @pytest.mark.parametrize(
        ("made", "passing"),
        [
            ([WEATHER_MADE, TIME_MADE], {"strict", "unordered", "subset", "superset"}),
            ([TIME_MADE, WEATHER_MADE], {"unordered", "subset", "superset"}),
            ([TIME_MADE], {"subset"}),
            ([], {"subset"}),
            ([WEATHER_MADE, TIME_MADE, TIME_MADE], {"superset"}),
            ([TIME_MADE, TIME_MADE], set()),
            ([{"name": "x", "arguments": {}}, TIME_MADE, WEATHER_MADE], {"superset"}),
        ],
    )
    def test_which_modes_accept_which_calls(self, made: list[Any], passing: set[str]) -> None:
        modes = ("strict", "unordered", "subset", "superset")
        assert {mode for mode in modes if grade(self.TWO, made, mode).passed} == passing

    def test_no_calls_expected_and_none_made_passes(self) -> None:
        assert grade([], []) == GradeResult(
            1.0, "0 calls made, as expected", {"matched": 0, "expected": 0, "made": 0}, True
        )

    def test_strict_is_the_default(self) -> None:
        result = create("tool_calls").grade(context(self.TWO, [TIME_MADE, WEATHER_MADE]))
        assert result == GradeResult(
            0.0,
            "The expected calls were made in another order: call 1, 'time': expected 'weather'",
            {"matched": 2, "expected": 2, "made": 2},
            False,
        )

    def test_another_order_of_one_function_names_the_argument(self) -> None:
        assert grade(calls([1], [2]), calls(2, 1)).rationale == (
            "The expected calls were made in another order: call 1, 'f': argument 'x' is 2, expected 1"
        )

    def test_unordered_names_what_is_missing(self) -> None:
        assert grade(self.TWO, [TIME_MADE], "unordered") == GradeResult(
            0.0, "missing: 'weather'", {"matched": 1, "expected": 2, "made": 1}, False
        )

    def test_subset_names_extra_calls_and_not_missing_ones(self) -> None:
        assert grade(self.TWO, [TIME_MADE, TIME_MADE], "subset") == GradeResult(
            0.0, "extra: 'time'", {"matched": 1, "expected": 2, "made": 2}, False
        )

    def test_superset_names_missing_calls_and_not_extra_ones(self) -> None:
        assert grade([WEATHER, WEATHER], [TIME_MADE], "superset") == GradeResult(
            0.0, "missing: 'weather' (2 times)", {"matched": 0, "expected": 2, "made": 1}, False
        )

    def test_superset_ignores_an_extra_call_with_broken_arguments(self) -> None:
        assert grade([TIME], [{"name": "time", "arguments": "{broken"}, TIME_MADE], "superset") == GradeResult(
            1.0, "2 calls made, with all of the 1 expected call", {"matched": 1, "expected": 1, "made": 2}, True
        )

    def test_long_lists_are_cut_short(self) -> None:
        expected = [{"name": f"f{number}", "arguments": {}} for number in range(9)]
        assert grade(expected, []).rationale == "missing: 'f0', 'f1', 'f2', 'f3', 'f4', 4 more"

    def test_many_wrong_calls_are_cut_short(self) -> None:
        rationale = str(grade(calls(*[[0]] * 9), calls(*[1] * 9)).rationale)
        assert rationale.endswith("call 5, 'f': argument 'x' is 1, expected 0; 4 more calls with a wrong argument")


class TestMatching:
    def test_a_call_is_reassigned_to_one_that_matches_nothing_else(self) -> None:
        assert grade(calls([1, 2], [1]), calls(1, 2), "unordered").passed

    def test_a_chain_of_calls_is_reassigned(self) -> None:
        assert grade(calls([1, 2], [2, 3], [3, 4], [1]), calls(1, 2, 3, 4), "unordered").passed

    @given(st.lists(st.integers(0, 2**5 - 1), max_size=5))
    def test_no_assignment_has_more_pairs(self, fits: list[int]) -> None:
        pairs = maximum_matching(fits)
        assert all(fits[left] >> right & 1 for left, right in pairs.items())
        assert len(set(pairs.values())) == len(pairs)
        best = max(
            sum(fits[left] >> right & 1 for left, right in enumerate(order[: len(fits)]))
            for order in permutations(range(5))
        )
        assert len(pairs) == best

    @pytest.mark.slow
    def test_calls_that_must_all_be_reassigned(self) -> None:
        expected = calls(*[list(range(size + 1)) for size in range(300)])
        result = grade(expected, calls(*range(300)), "unordered")
        assert result.metadata == {"matched": 300, "expected": 300, "made": 300}


class TestInvalidSubmissions:
    @pytest.mark.parametrize(
        ("submission", "rationale"),
        [
            ("I cannot do that", "The submission is not JSON (invalid character (byte 0)): 'I cannot do that'"),
            ("[NaN]", "The submission is not JSON (invalid character (byte 1)): '[NaN]'"),
            ("{}", "The submission is not a list of calls: {}"),
            ("5", "The submission is not a list of calls: 5"),
            ("[5]", "Call 1 of the submission is not a call with a name: 5"),
            ('[{"name": 5}]', "Call 1 of the submission is not a call with a name: {'name': 5}"),
            (
                '[{"name": "time"}, {"arguments": {}}]',
                "Call 2 of the submission is not a call with a name: {'arguments': {}}",
            ),
        ],
    )
    def test_score_zero_with_a_reason(self, submission: str, rationale: str) -> None:
        assert grade([TIME], submission) == GradeResult(0.0, rationale, {"matched": 0, "expected": 1, "made": 0}, False)

    @pytest.mark.parametrize(
        "submission",
        [
            "[" * 100_000,
            "[" * 100_000 + "]" * 100_000,
            '[{"name":"time","arguments":' + '{"a":' * 50_000,
            "1" * 5000,
            '[{"name": "time", "arguments": {"city": 1e999}}]',
            '[{"name": "\ud800", "arguments": {"\ud800": "\ud800"}}]',
            '[{"name": "time", "arguments": {"city": "\\ud800"}}]',
            '[{"name": "time", "arguments": {"city": ' + "9" * 4000 + "}}]",
        ],
    )
    def test_hostile_json_scores_zero(self, submission: str) -> None:
        assert grade([TIME], submission).score == 0.0

    def test_deeply_nested_arguments_are_compared(self) -> None:
        deep = "[" * 800 + "]" * 800
        expected = '[{"name": "f", "arguments": {"x": [' + deep + "]}}]"
        same, other = ('[{"name": "f", "arguments": {"x": ' + value + "}}]" for value in (deep, f"[{deep}]"))
        assert [grade(expected, same).passed, grade(expected, other).passed] == [True, False]

    @given(st.text() | TestValues.json_values.map(json.dumps))
    def test_any_text_gets_a_score(self, submission: str) -> None:
        for config in ({"mode": "unordered"}, {"preset": "bfcl"}):
            result = create("tool_calls", config).grade(
                context([WEATHER], submission, {"functions": {"name": "weather"}})
            )
            assert result.score == 0.0


class TestFaultyCases:
    @pytest.mark.parametrize(
        ("truth", "message"),
        [
            (None, 'ground_truth is missing: tool_calls needs [{"name": ..., "arguments": {...}}] as JSON'),
            ("Paris", "ground_truth is not JSON (invalid character (byte 0)): 'Paris'"),
            ("{}", "ground_truth must be a list of calls, got {}"),
            ("[1]", 'ground_truth[0] must be {"name": ..., "arguments": {...}}, got 1'),
            ('[{"name": 1, "arguments": {}}]', "ground_truth[0].name must be a string, got 1"),
            (
                '[{"name": "f", "arguments": {}}, {"name": "f", "args": {}}]',
                "ground_truth[1].arguments must map each argument to its allowed values, got None",
            ),
            (
                '[{"name": "f", "arguments": {"x": []}}]',
                "ground_truth[0].arguments.x allows no value; an empty list is written [[]]",
            ),
        ],
    )
    def test_the_case_is_ungradable_and_the_place_is_named(self, truth: str | None, message: str) -> None:
        with pytest.raises(UngradableError) as raised:
            grade(truth, [])
        assert str(raised.value) == message

    def test_the_outcome_is_an_error_and_no_score(self) -> None:
        outcome = run_grader(create("tool_calls"), context("Paris", [TIME_MADE]))
        assert (outcome.outcome, outcome.score, outcome.error and outcome.error.type) == (
            Outcome.ERROR,
            None,
            "ungradable",
        )

    def test_two_strings_never_raise(self) -> None:
        assert ToolCallsGrader().grade("[]", "Paris") == {
            "passed": False,
            "score": 0.0,
            "details": {
                "reason": "ground_truth is not JSON (invalid character (byte 0)): 'Paris'",
                "error": "ungradable",
            },
        }


class TestBounds:
    @pytest.mark.slow
    def test_too_many_calls_made(self) -> None:
        with pytest.raises(TooLargeError, match="the submission has 1,001 calls; tool_calls takes at most 1,000"):
            grade([], calls(*range(MAX_CALLS + 1)))

    def test_too_many_calls_expected(self) -> None:
        with pytest.raises(TooLargeError, match="the ground_truth has 1,001 calls; tool_calls takes at most 1,000"):
            grade(calls(*range(MAX_CALLS + 1)), [])

    def test_too_many_comparisons(self) -> None:
        wide = [{"name": "f", "arguments": {f"x{number}": 1 for number in range(30)}}] * MAX_CALLS
        with pytest.raises(GraderError, match="may take 31,000,000 comparisons") as caught:
            grade(wide, calls(*range(MAX_CALLS)))
        assert caught.value.type == TooLargeError.type


class TestConfig:
    def test_an_unknown_mode_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"config\.mode: expected one of strict, unordered, subset, superset"):
            create("tool_calls", {"mode": "sorted"})

    def test_an_unknown_preset_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"config\.preset: .*'tau'"):
            create("tool_calls", {"preset": "tau"})

    def test_the_stored_form_rebuilds_the_grader(self) -> None:
        grader = ToolCallsGrader({"mode": "subset", "preset": "bfcl"})
        assert grader.definition() == {"kind": "tool_calls", "config": {"mode": "subset", "preset": "bfcl"}}
        assert from_definition(grader.definition()).fingerprint == grader.fingerprint

    def test_the_listing_describes_modes_and_presets(self) -> None:
        listed = ToolCallsGrader.describe()
        assert listed["id"] == "tool_calls"
        assert listed["description"] == (
            "Compares the agent's tool calls with the expected ones and their allowed arguments."
        )
        options = listed["config_schema"]["properties"]
        assert sorted(options["mode"]["enum"]) == ["f1", "schema", "strict", "subset", "superset", "unordered"]
        assert options["preset"]["enum"] == ["bfcl"]


def bfcl(properties: dict[str, Any], allowed: dict[str, Any], arguments: object, **description: Any) -> GradeResult:
    functions = {"name": "f", "parameters": {"type": "dict", "properties": properties, **description}}
    ctx = context(
        [{"name": "f", "arguments": allowed}], [{"name": "f", "arguments": arguments}], {"functions": functions}
    )
    return create("tool_calls", {"preset": "bfcl"}).grade(ctx)


def bfcl_value(declared: dict[str, Any] | str, allowed: list[Any], value: object) -> bool:
    declared = {"type": declared} if isinstance(declared, str) else declared
    return bfcl({"x": declared}, {"x": allowed}, {"x": value}).passed


def array(item: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": item}}


class TestBfclValues:
    @pytest.mark.parametrize(
        ("declared", "allowed", "value"),
        [
            ("string", ["New York, NY"], "new-york ny"),
            ("string", ["it's"], 'IT"S'),
            ("integer", [5], 5),
            ("float", [5.0], 5),
            ("float", [5], 5.0),
            ("boolean", [True], True),
            (array("string"), [["Red", "Dark-Blue"]], ["red", "dark blue"]),
            (array("float"), [[1.0, 2.5]], [1.0, 2.5]),
            (array("float"), [[1, 2.5]], [1, 2.5]),
            (array("integer"), [[1], ""], []),
            ({"type": "tuple", "items": {"type": "float"}}, [[1.5, 2.5]], [1.5, 2.5]),
            ("dict", [{"a": ["X"], "b": [1, ""]}], {"a": "x"}),
            ("dict", [{"a": ["X"], "b": [1, ""]}], {"a": "x", "b": 1}),
            ("dict", [{"a": "X"}], {"a": "x"}),
            (array("dict"), [[{"a": ["X"]}, {"a": [1]}]], [{"a": "x"}, {"a": 1}]),
            ("any", [5], 5),
            ("any", ["Five"], "five"),
            ("integer", ["n"], "n"),
        ],
    )
    def test_accepted(self, declared: dict[str, Any] | str, allowed: list[Any], value: object) -> None:
        assert bfcl_value(declared, allowed, value)

    @pytest.mark.parametrize(
        ("declared", "allowed", "value"),
        [
            ("string", ["a:b"], "ab"),
            ("string", ["5"], 5),
            ("integer", [5], "5"),
            ("integer", [5], 5.0),
            ("integer", [1], True),
            ("boolean", [True], 1),
            ("boolean", [True], "true"),
            ("float", [1.0], True),
            (array("float"), [[1.0, 2.5]], [1, 2.5]),
            (array("string"), [["a", "b"]], ["b", "a"]),
            (array("string"), [["a"]], "a"),
            (array("integer"), [[1]], []),
            ("dict", [{"a": ["X"], "b": [1]}], {"a": "x"}),
            ("dict", [{"a": ["X"]}], {"a": "x", "c": 1}),
            ("dict", [{"a": ["X"]}], {"a": "y"}),
            ("dict", [{"a": ["X"]}, ""], ["a"]),
            (array("dict"), [[{"a": ["X"]}]], [{"a": "x"}, {"a": "x"}]),
            (array("dict"), [[{"a": ["X"]}], ""], ["x"]),
            ("any", [5], 5.0),
            ("integer", ["n"], "N"),
        ],
    )
    def test_refused(self, declared: dict[str, Any] | str, allowed: list[Any], value: object) -> None:
        assert not bfcl_value(declared, allowed, value)

    def test_a_value_of_the_wrong_type_is_named(self) -> None:
        assert bfcl({"x": {"type": "integer"}}, {"x": [5]}, {"x": "5"}).rationale == (
            "call 1, 'f': argument 'x' is '5', which is not of the declared type, expected 5"
        )


PROPERTIES = {"x": {"type": "integer"}, "y": {"type": "integer"}}


class TestBfclCalls:
    def test_an_optional_argument_may_be_left_out_where_that_is_allowed(self) -> None:
        assert bfcl(PROPERTIES, {"x": [1], "y": [2, ""]}, {"x": 1}).passed

    def test_an_optional_argument_may_not_be_left_out_otherwise(self) -> None:
        assert not bfcl(PROPERTIES, {"x": [1], "y": [2]}, {"x": 1}).passed

    def test_a_required_argument_may_never_be_left_out(self) -> None:
        result = bfcl(PROPERTIES, {"x": [1], "y": [2, ""]}, {"x": 1}, required=["x", "y"])
        assert result.rationale == "call 1, 'f': argument 'y' is missing, expected 2"

    def test_an_argument_without_expectation_is_refused(self) -> None:
        assert not bfcl(PROPERTIES, {"x": [1]}, {"x": 1, "y": 2}).passed

    def test_an_expected_argument_that_the_function_lacks_can_only_be_left_out(self) -> None:
        allowed = {"x": [1], "z": [2, ""]}
        outcomes = [bfcl(PROPERTIES, allowed, arguments).passed for arguments in ({"x": 1}, {"x": 1, "z": 2})]
        assert outcomes == [True, False]

    def grade(self, expected: object, made: object, *functions: str) -> Grade:
        descriptions = [{"name": name, "parameters": {"properties": PROPERTIES}} for name in functions]
        grader = create("tool_calls", {"preset": "bfcl", "mode": "strict"})
        return run_grader(grader, context(expected, made, {"functions": descriptions}))

    def test_dots_and_underscores_in_names_are_alike(self) -> None:
        assert self.grade(calls([1], name="a.f"), calls(1, name="a_f"), "a.f", "g").passed

    def test_the_order_is_ignored_in_every_mode(self) -> None:
        assert self.grade(calls([1], [2]), calls(2, 1), "f").passed

    def test_the_number_of_calls_must_match(self) -> None:
        assert not self.grade(calls([1], [2]), calls(2, 1, 1), "f").passed

    def test_the_only_described_function_is_used(self) -> None:
        assert self.grade(calls([1], name="find"), calls(1, name="shop.find"), "shop.find").passed

    def test_a_function_without_description_is_judged_by_the_allowed_values(self) -> None:
        outcomes = [
            self.grade(calls(["One"], name="h"), calls(value, name="h"), "f", "g").passed for value in ("one", 1)
        ]
        assert outcomes == [True, False]

    @pytest.mark.parametrize(
        ("functions", "message"),
        [
            (None, "metadata.functions is missing: preset bfcl needs the functions' descriptions"),
            ("f", "metadata.functions must be a list, got 'f'"),
            ([{"name": "g"}, 5], "metadata.functions[1] must be a mapping, got 5"),
            ({"name": 5}, "metadata.functions.name must be a string, got 5"),
            ({"name": "f", "parameters": []}, "metadata.functions.parameters must be a mapping, got []"),
            (
                [{"name": "f", "parameters": {"properties": 1}}],
                "metadata.functions[0].parameters.properties must be a mapping, got 1",
            ),
            (
                {"name": "f", "parameters": {"required": "x"}},
                "metadata.functions.parameters.required must be a list, got 'x'",
            ),
            (
                {"name": "f", "parameters": {"properties": {"x": {"type": "HashMap"}}}},
                "metadata.functions.parameters.properties.x.type must be one of string, integer, float, number, "
                "boolean, array, tuple, dict, object, any, got 'HashMap'",
            ),
            (
                {"name": "f", "parameters": {"properties": {"x": {"type": "array", "items": {"type": ["string"]}}}}},
                "metadata.functions.parameters.properties.x.items.type must be one of string, integer, float, number, "
                "boolean, array, tuple, dict, object, any, got ['string']",
            ),
        ],
    )
    def test_a_faulty_description_makes_the_case_ungradable(self, functions: object, message: str) -> None:
        metadata = {} if functions is None else {"functions": functions}
        with pytest.raises(UngradableError) as raised:
            create("tool_calls", {"preset": "bfcl"}).grade(context(calls([1]), calls(1), metadata))
        assert str(raised.value) == message
