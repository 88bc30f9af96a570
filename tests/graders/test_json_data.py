from __future__ import annotations

import json
import socket
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, GraderError, Problem, TooLargeError, UngradableError
from gradeline.graders import create, grade
from gradeline.graders.json_data import MAX_DEPTH, MAX_UNORDERED, JsonMatchGrader, JsonSchemaGrader
from gradeline.model import GradeResult

ANY_ORDER = {"ignore_list_order": True}
SUBSET = {"mode": "subset"}
LOOSE = {"mode": "subset", "ignore_list_order": True}

EQUAL = GradeResult(1.0, "The response is the expected data", {}, True)
HELD = GradeResult(1.0, "The response contains the expected data", {}, True)


def differs(path: str, what: str) -> GradeResult:
    return GradeResult(0.0, f"{path}: {what}", {"path": path}, False)


def matches(actual: object, expected: object, config: dict[str, Any] | None = None) -> bool:
    return grade("json_match", json.dumps(actual), json.dumps(expected), config).passed


class TestEqual:
    def test_equal_data_match(self) -> None:
        assert grade("json_match", '{"a": [1, null]}', '{"a": [1, null]}') == EQUAL

    def test_the_order_of_keys_is_free(self) -> None:
        assert grade("json_match", '{"b": 2, "a": 1}', '{"a": 1, "b": 2}') == EQUAL

    def test_a_code_fence_around_the_response_is_allowed(self) -> None:
        assert grade("json_match", '```json\n{"a": 1}\n```', '{"a": 1}') == EQUAL

    def test_1_is_1_point_0_but_not_true(self) -> None:
        assert grade("json_match", "[1.0, 0]", "[1, -0.0]") == EQUAL
        assert grade("json_match", "[true]", "[1]") == differs("$[0]", "expected 1, got true")
        assert grade("json_match", "[0]", "[false]") == differs("$[0]", "expected false, got 0")

    def test_integers_are_compared_exactly(self) -> None:
        assert matches(2**53 + 1, 2**53 + 1)
        assert not matches(2**53 + 1, float(2**53))

    def test_the_path_of_the_first_difference_is_named(self) -> None:
        expected = '{"x": 1, "a": [0, 0, {"b": 3}]}'
        assert grade("json_match", '{"a": [0, 0, {"b": 4}], "x": 1}', expected) == differs(
            "$.a[2].b", "expected 3, got 4"
        )

    def test_a_missing_key_is_named(self) -> None:
        assert grade("json_match", "{}", '{"a": "x"}') == differs("$.a", "expected 'x', but it is missing")

    def test_an_additional_key_is_named(self) -> None:
        assert grade("json_match", '{"a": 1, "b": [2]}', '{"a": 1}') == differs(
            "$.b", "not expected, got a list of 1 element"
        )

    def test_a_key_that_is_not_an_identifier_is_quoted(self) -> None:
        assert grade("json_match", '{"a b": 1}', '{"a b": 2}') == differs("$['a b']", "expected 2, got 1")

    def test_another_length_is_reported(self) -> None:
        assert grade("json_match", "[1, 2]", "[1]") == differs("$", "expected 1 element, got 2")
        assert grade("json_match", "[]", "[1, 2]") == differs("$", "expected 2 elements, got 0")

    def test_another_type_is_reported(self) -> None:
        assert grade("json_match", "[]", '{"a": 1, "b": 2}') == differs(
            "$", "expected an object of 2 keys, got a list of 0 elements"
        )
        assert grade("json_match", "null", '""') == differs("$", "expected '', got null")

    def test_lists_keep_their_order(self) -> None:
        assert grade("json_match", "[2, 1]", "[1, 2]") == differs("$[0]", "expected 1, got 2")


class TestEqualInAnyOrder:
    def test_lists_match_in_any_order_at_every_depth(self) -> None:
        assert grade("json_match", '[[3, 2], {"a": [1, 0]}]', '[{"a": [0, 1]}, [2, 3]]', ANY_ORDER) == EQUAL

    def test_elements_are_counted(self) -> None:
        assert grade("json_match", "[1, 2, 2]", "[1, 1, 2]", ANY_ORDER) == differs(
            "$", "no element matches the expected [1], 1"
        )

    def test_the_list_of_the_first_difference_is_named(self) -> None:
        assert grade("json_match", '{"a": [{"b": 1}]}', '{"a": [{"b": 2}]}', ANY_ORDER) == differs(
            "$.a", "no element matches the expected [0], an object of 1 key"
        )

    def test_1_is_1_point_0_but_not_true(self) -> None:
        assert matches([True, 1.0, "1"], ["1", 1, True], ANY_ORDER)
        assert not matches([1, 1], [True, 1], ANY_ORDER)

    def test_another_length_is_reported(self) -> None:
        assert grade("json_match", "[1, 2]", "[1]", ANY_ORDER) == differs("$", "expected 1 element, got 2")

    def test_nested_lists_that_make_a_search_explode_finish(self) -> None:
        def tree(depth: int, leaf: int) -> object:
            return leaf if depth == 0 else [tree(depth - 1, leaf), tree(depth - 1, leaf), 0]

        assert not matches([tree(12, 1), tree(12, 2)], [tree(12, 2), tree(12, 3)], ANY_ORDER)

    def test_numbers_with_the_same_hash_finish(self) -> None:
        numbers = [index * (2**61 - 1) for index in range(50_000)]
        assert matches(numbers, numbers[::-1], ANY_ORDER)


class TestSubset:
    def test_additional_keys_are_allowed_at_every_depth(self) -> None:
        assert grade("json_match", '{"a": {"b": 1, "c": 2}, "d": 3}', '{"a": {"b": 1}}', SUBSET) == HELD

    def test_an_expected_key_is_required(self) -> None:
        assert grade("json_match", '{"a": {}}', '{"a": {"b": 1}}', SUBSET) == differs(
            "$.a.b", "expected 1, but it is missing"
        )

    def test_lists_have_the_same_length_and_match_one_by_one(self) -> None:
        assert grade("json_match", '[{"a": 1, "b": 2}]', '[{"a": 1}]', SUBSET) == HELD
        assert grade("json_match", '[{"a": 1}, 2]', '[{"a": 1}]', SUBSET) == differs("$", "expected 1 element, got 2")

    def test_a_response_may_be_nested_deeper_where_nothing_is_expected(self) -> None:
        assert grade("json_match", '{"a": 1, "b": ' + "[" * 500 + "]" * 500 + "}", '{"a": 1}', SUBSET) == HELD


class TestSubsetInAnyOrder:
    def test_each_expected_element_matches_a_different_one(self) -> None:
        assert grade("json_match", '[3, {"a": 1, "b": 2}]', '[{"a": 1}]', LOOSE) == HELD
        assert grade("json_match", '[{"a": 1, "b": 2}]', '[{"a": 1}, {"b": 2}]', LOOSE) == differs(
            "$", "expected 2 elements, got 1"
        )
        assert grade("json_match", '[{"a": 1, "b": 2}, 0]', '[{"a": 1}, {"b": 2}]', LOOSE) == differs(
            "$", "no element matches the expected [1], an object of 1 key"
        )

    def test_an_early_match_does_not_block_a_later_one(self) -> None:
        expected = [{"a": 1}, {"a": 1, "b": 2}]
        assert matches([{"a": 1, "b": 2, "x": 0}, {"a": 1, "x": 0}], expected, LOOSE)

    def test_nested_lists_are_matched_in_any_order_too(self) -> None:
        assert matches([[{"a": 1, "z": 1}, 2, 3], [4]], [[4], [2, {"a": 1}]], LOOSE)

    def test_equal_lists_of_any_length_match(self) -> None:
        numbers = list(range(MAX_UNORDERED * 2))
        assert matches(numbers, numbers[::-1], LOOSE)

    @pytest.mark.slow
    @pytest.mark.usefixtures("as_in_a_worker")
    def test_the_longest_list_is_matched(self) -> None:
        expected = [{"a": index} for index in range(MAX_UNORDERED)]
        assert matches([{"a": index, "b": 0} for index in reversed(range(MAX_UNORDERED))], expected, LOOSE)

    def test_a_longer_one_is_too_large(self) -> None:
        actual = [{"a": 1, "b": index} for index in range(MAX_UNORDERED + 1)]
        with pytest.raises(TooLargeError, match="1,001 elements are too many to match in any order"):
            matches(actual, [{"a": 1}], LOOSE)

    @pytest.mark.usefixtures("as_in_a_worker")
    def test_lists_of_lists_that_take_too_long_are_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gradeline.graders.json_data.MAX_STEPS", 100_000)
        actual = [[*range(index, index + 30)] for index in range(90)]
        with pytest.raises(TooLargeError, match="too large to match in any order; remove ignore_list_order"):
            matches(actual, [[*row[:-1], -1] for row in actual], LOOSE)

    @given(
        st.lists(st.frozensets(st.sampled_from("abc")), max_size=4),
        st.lists(st.frozensets(st.sampled_from("abc")), max_size=4),
    )
    def test_it_finds_a_matching_whenever_there_is_one(
        self, expected: list[frozenset[str]], actual: list[frozenset[str]]
    ) -> None:
        there_is_one = any(
            all(keys <= taken for keys, taken in zip(expected, chosen, strict=True))
            for chosen in permutations(actual, len(expected))
        )
        held, wanted = ([dict.fromkeys(sorted(keys), 1) for keys in side] for side in (actual, expected))
        assert matches(held, wanted, LOOSE) is there_is_one


class TestInvalidJson:
    def test_an_invalid_json_response_scores_zero(self) -> None:
        assert grade("json_match", "I do not know", "{}") == GradeResult(
            0.0, "The response is not JSON: invalid character (byte 0)", {}, False
        )
        assert grade("json_match", "[NaN]", "{}").score == 0.0

    def test_a_response_nested_too_deep_scores_zero(self) -> None:
        assert grade("json_match", "[" * 100_000 + "]" * 100_000, "[]") == GradeResult(
            0.0, "The response is not JSON: nested too deeply", {}, False
        )

    def test_a_response_nested_deeper_than_expected_differs(self) -> None:
        assert grade("json_match", "[" * 500 + "]" * 500, "[[1]]") == differs(
            "$[0][0]", "expected 1, got a list of 1 element"
        )
        assert grade("json_match", "[" * 500 + "]" * 500, "[[1]]", ANY_ORDER).score == 0.0

    def test_a_missing_ground_truth_cannot_be_graded(self) -> None:
        with pytest.raises(UngradableError, match="there is no ground_truth"):
            grade("json_match", "{}")

    def test_an_invalid_json_ground_truth_cannot_be_graded(self) -> None:
        with pytest.raises(UngradableError, match="the ground_truth 'Paris' is not JSON: invalid character"):
            grade("json_match", "{}", "Paris")

    @pytest.mark.parametrize("config", [{}, ANY_ORDER, SUBSET, LOOSE])
    def test_a_ground_truth_may_nest_to_the_bound_and_no_deeper(self, config: dict[str, Any]) -> None:
        deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
        assert grade("json_match", deep, deep, config).score == 1.0
        with pytest.raises(UngradableError, match="the ground_truth is nested more than 100 levels deep"):
            grade("json_match", f"[{deep}]", f"[{deep}]", config)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5, "", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


@pytest.mark.parametrize("config", [{}, ANY_ORDER, SUBSET, LOOSE])
@given(value=json_values)
def test_every_value_matches_itself(config: dict[str, Any], value: object) -> None:
    assert matches(value, value, config)


@given(value=json_values, other=json_values)
def test_equality_is_symmetric(value: object, other: object) -> None:
    assert matches(value, other) == (matches(value, other, SUBSET) and matches(other, value, SUBSET))
    assert matches(value, other, ANY_ORDER) == (matches(value, other, LOOSE) and matches(other, value, LOOSE))


@pytest.mark.parametrize("config", [{}, ANY_ORDER, SUBSET, LOOSE])
@given(submission=st.text('[]{}":,01.eEnulltrue \n`\0\ud800'), expected=st.text('[]{}":,01'))
def test_any_text_gets_one_score_or_a_grader_error(config: dict[str, Any], submission: str, expected: str) -> None:
    try:
        result = grade("json_match", submission, expected, config)
    except GraderError:
        return
    assert result.score in (0.0, 1.0)
    assert grade("json_match", submission, expected, config) == result


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}
BRANCHING = {
    "$defs": {
        "tree": {
            "anyOf": [
                {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                {"type": "array", "items": {"$ref": "#/$defs/tree"}, "minItems": 1},
            ]
        }
    },
    "$ref": "#/$defs/tree",
}


def checked(submission: str, schema: object) -> GradeResult:
    return grade("json_schema", submission, config={"schema": schema})


def schema_problems(schema: object) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        create("json_schema", {"schema": schema})
    return list(caught.value.problems)


class TestJsonSchema:
    def test_valid_data_passes_without_a_ground_truth(self) -> None:
        assert checked('{"name": "Ada", "age": 36}', PERSON) == GradeResult(1.0, "The response is valid", {}, True)

    def test_a_code_fence_around_the_response_is_allowed(self) -> None:
        assert checked('```json\n{"name": "Ada"}\n```', PERSON).score == 1.0

    def test_faults_are_listed_with_their_paths(self) -> None:
        assert checked('{"age": "x"}', PERSON) == GradeResult(
            0.0, '$: "name" is a required property\n$.age: "x" is not of type "integer"', {}, False
        )

    def test_five_faults_are_listed(self) -> None:
        result = checked("[1, 2, 3, 4, 5, 6]", {"items": {"type": "string"}})
        assert (result.rationale or "").splitlines() == [
            *(f'$[{index}]: {index + 1} is not of type "string"' for index in range(5)),
            "and more",
        ]

    def test_an_invalid_json_response_scores_zero(self) -> None:
        assert checked("Ada", PERSON) == GradeResult(
            0.0, "The response is not JSON: invalid character (byte 0)", {}, False
        )

    def test_a_bool_is_a_schema(self) -> None:
        assert checked("1", True).score == 1.0
        assert checked("1", False).score == 0.0

    def test_the_schema_names_its_draft(self) -> None:
        draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
        assert checked("[1]", draft_7).score == 0.0


class TestBadSchemas:
    def test_a_schema_is_required(self) -> None:
        with pytest.raises(ConfigError, match=r"config\.schema: is required"):
            create("json_schema")

    def test_an_invalid_schema_is_a_fault_with_its_path(self) -> None:
        [problem] = schema_problems({"properties": {"a": {"type": "strnig"}}})
        assert problem.path == "config.schema"
        assert problem.message.startswith('$.properties.a.type: "strnig" is not valid')

    def test_a_schema_that_is_not_a_mapping_is_a_fault(self) -> None:
        [problem] = schema_problems(["type"])
        assert problem.path == "config.schema"

    def test_a_faulty_schema_is_never_built(self) -> None:
        with pytest.raises(ConfigError, match="strnig"):
            JsonSchemaGrader({"schema": {"type": "strnig"}})

    def test_a_pattern_with_backtracking_is_an_explained_fault(self) -> None:
        assert schema_problems({"properties": {"a": {"pattern": "(?=b)"}}}) == [
            Problem(
                "config.schema",
                '$.properties.a.pattern: "(?=b)" is not a "regex" '
                "(patterns run on a linear engine: no lookaround, no backreferences)",
            )
        ]

    @pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
    @pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "https://127.0.0.1:9/x", "file:///etc/hostname"])
    def test_a_reference_to_another_document_is_a_fault_that_names_it(self, keyword: str, url: str) -> None:
        [problem] = schema_problems({keyword: url})
        assert url in problem.message

    def test_nothing_is_fetched(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
            [problem] = schema_problems({"properties": {"a": {"$ref": url}}, "$defs": {"b": {"$ref": url}}})
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        assert f"references to other documents are not fetched ({url}); put the schema under $defs" in problem.message


class TestHostileResponses:
    def test_a_pattern_that_hangs_others_does_not_hang_here(self) -> None:
        assert checked(json.dumps("a" * 50_000 + "b"), {"pattern": "^(a+)+$"}).score == 0.0

    def test_a_nesting_with_too_many_faults_is_only_scored(self) -> None:
        assert checked("[[1]]", BRANCHING).rationale == (
            "$: [[1]] is not valid under any of the schemas listed in the 'anyOf' keyword"
        )
        assert checked("[" * 60 + "1" + "]" * 60, BRANCHING) == GradeResult(
            0.0, "$: invalid, and too large to list the faults", {}, False
        )

    def test_faults_in_a_recursion_without_branches_are_listed_at_any_usual_depth(self) -> None:
        chain = {"items": {"$ref": "#"}, "type": "array"}
        assert checked("[" * 60 + "1" + "]" * 60, chain).rationale == f'${"[0]" * 60}: 1 is not of type "array"'

    def test_faults_behind_any_number_of_non_recursive_references_are_listed(self) -> None:
        shared = {f"k{index}": {"$ref": "#/$defs/deep"} for index in range(20)}
        schema = {"$defs": {"deep": {"additionalProperties": {"additionalProperties": False}}}, "properties": shared}
        assert (checked('{"k0": {"a": {"b": {"c": [[1]]}}}}', schema).rationale or "").startswith("$.k0.a: ")

    def test_a_million_faults_are_only_scored(self) -> None:
        assert checked("[" + "1," * 1_000_000 + "1]", {"items": {"type": "string"}}) == GradeResult(
            0.0, "$: invalid, and too large to list the faults", {}, False
        )

    def test_numbers_of_any_size_are_scored(self) -> None:
        assert checked("9" * 4_000, {"type": "integer", "maximum": 5}).score == 0.0
        assert checked("9" * 5_000, {"type": "integer"}).score == 0.0

    @pytest.mark.parametrize("depth", [200, 500, 800, 100_000])
    def test_any_depth_gets_a_score(self, depth: int) -> None:
        assert checked("[" * depth + "1" + "]" * depth, {"items": {"$ref": "#"}, "type": "array"}).score == 0.0

    @given(st.text('[]{}":,01.eEnametrue \n`\0\ud800'))
    def test_any_text_gets_one_score(self, submission: str) -> None:
        result = checked(submission, PERSON)
        assert result.score in (0.0, 1.0)
        assert checked(submission, PERSON) == result


def test_the_listing_describes_both() -> None:
    assert JsonMatchGrader.describe()["description"] == (
        "Compares the JSON in the response with the JSON in the ground truth."
    )
    assert JsonSchemaGrader.describe()["description"] == "Validates the JSON in the response against a JSON Schema."
    assert JsonSchemaGrader.describe()["config_schema"]["required"] == ["schema"]
