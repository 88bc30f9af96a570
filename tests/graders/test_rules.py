"""The JSON rules grader."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import GradeContext, GradeResult, Sample
from gradeline.errors import ConfigError, UngradableError
from gradeline.graders import create, from_definition, grade, run_grader
from gradeline.graders.rules import CONDITIONS, RulesGrader


def holds(rule: dict[str, Any], text: str, **sample: Any) -> bool:
    grader = create("custom-rules", {"rules": [rule]})
    return grader.grade(GradeContext(Sample(**{"id": 0, "input": "", **sample}), text)).passed


def faults(config: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        create("custom-rules", config)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        ({"condition": "contains", "value": "Paris"}, ["in paris", "PARIS"], ["Par is", ""]),
        ({"condition": "contains", "value": "Paris", "case_sensitive": True}, ["in Paris"], ["paris"]),
        ({"condition": "contains", "value": "straße"}, ["STRASSE"], ["strase"]),
        ({"condition": "contains", "value": "caf\u00e9"}, ["cafe\u0301"], ["cafe"]),
        ({"condition": "not_contains", "value": "x"}, ["abc", ""], ["aXc"]),
        ({"condition": "contains_all", "value": ["a", "b"]}, ["B a"], ["a", "b", ""]),
        ({"condition": "contains_any", "value": ["a", "b"]}, ["B", "a"], ["c", ""]),
        ({"condition": "equals", "value": "Yes"}, ["yes", "YES"], [" yes", "yes!"]),
        ({"condition": "equals", "value": ""}, [""], [" "]),
        ({"condition": "not_equals", "value": "Yes"}, ["no", ""], ["YES"]),
        ({"condition": "starts_with", "value": "dear"}, ["Dear Ann"], ["Oh dear", ""]),
        ({"condition": "ends_with", "value": "bye."}, ["Good Bye."], ["bye"]),
        ({"condition": "regex", "value": r"\d{3}-\d{4}"}, ["call 555-0199"], ["555 0199"]),
        ({"condition": "regex", "value": "(?i)PARIS"}, ["paris"], ["london"]),
        ({"condition": "regex", "value": "PARIS"}, ["PARIS"], ["paris"]),
        ({"condition": "regex", "value": "PARIS", "case_sensitive": False}, ["paris"], ["london"]),
        ({"condition": "count", "pattern": r"\b", "max": 0}, ["ab cd"], []),
        ({"condition": "count", "pattern": "a*", "equals": 2}, ["baab a"], ["bb"]),
        ({"condition": "split", "pattern": r"\s*", "count": 2}, ["ab cd"], ["abcd"]),
        ({"condition": "not_regex", "value": r"\bsorry\b"}, ["sorrying"], ["so sorry."]),
        ({"condition": "length_min", "value": 3}, ["abc", "ééé"], ["ab"]),
        ({"condition": "length_max", "value": 3}, ["abc", ""], ["abcd"]),
        ({"condition": "word_count_min", "value": 2}, ["a, b"], ["a", "don"]),
        ({"condition": "word_count_max", "value": 2}, ["a b", ""], ["a b c", "don't go"]),
        ({"condition": "line_count_min", "value": 2}, ["a\nb", "a\r\nb"], ["a\n"]),
        ({"condition": "line_count_max", "value": 1}, ["a\n", ""], ["a\nb"]),
        ({"condition": "count", "text": "ab", "min": 2}, ["abAB"], ["ab"]),
        ({"condition": "count", "text": "aa", "equals": 1}, ["aaa"], ["aaaa"]),
        ({"condition": "count", "pattern": r"\d", "max": 1}, ["1", ""], ["12"]),
        ({"condition": "count", "text": "A", "case_sensitive": True, "equals": 1}, ["aA"], ["aa"]),
        ({"condition": "is_upper"}, ["ABC 1!"], ["aBC", "1", ""]),
        ({"condition": "length_max", "value": 3, "case_sensitive": True}, ["abc"], ["abcd"]),
        ({"condition": "is_lower"}, ["abc 1!"], ["Abc", "1", ""]),
        ({"condition": "split", "separator": ",", "count": 3}, ["a,b,c", ",,"], ["a,b"]),
        ({"condition": "split", "separator": ",", "min": 2, "max": 3}, ["a,b"], ["a", "a,b,c,d"]),
        ({"condition": "split", "separator": ",", "skip_blank": True, "count": 2}, ["a, ,b", ",a,b,"], ["a,,"]),
        ({"condition": "split", "pattern": r"\s*(;|,)\s*", "count": 2}, ["a ; b", "a,b"], ["a b"]),
        (
            {"condition": "split", "separator": "\n", "item": -1, "rules": [{"condition": "equals", "value": "end"}]},
            ["a\nEnd", "end"],
            ["end\na"],
        ),
        (
            {"condition": "split", "separator": "\n", "item": 1, "rules": [{"condition": "length_min", "value": 2}]},
            ["a\nbb"],
            ["aa", "aa\nb"],
        ),
        ({"condition": "is_json"}, ["[1]", "```json\n{}\n```", " 3 ", '"x"'], ["{", "NaN", "", "yes {}"]),
        ({"condition": "json_schema", "value": {"type": "object"}}, ["{}"], ["[]", "no"]),
        ({"condition": "json", "path": "a.b", "operator": "equals", "value": 3}, ['{"a":{"b":3.0}}'], ['{"a":{}}', "x"]),
        ({"condition": "json", "path": "a", "operator": "equals", "value": True}, ['{"a":true}'], ['{"a":1}']),
        ({"condition": "json", "path": "a", "operator": "not_equals", "value": 3}, ['{"a":4}'], ['{"a":3}', "x", "{}", '{"a":null}']),
        (
            {"condition": "json", "path": "a", "operator": "contains", "value": "x"},
            ['{"a":["x"]}', '{"a":"axb"}', '{"a":{"x":1}}'],
            ['{"a":["y"]}', '{"a":3}', "{}"],
        ),
        ({"condition": "json", "path": "a", "operator": "gt", "value": 3}, ['{"a":4}'], ['{"a":3}', '{"a":"4"}', "{}"]),
        ({"condition": "json", "path": "a", "operator": "gte", "value": 3}, ['{"a":3}'], ['{"a":2}', '{"a":true}']),
        ({"condition": "json", "path": "a", "operator": "lt", "value": 3}, ['{"a":2}'], ['{"a":3}']),
        ({"condition": "json", "path": "a", "operator": "lte", "value": 3}, ['{"a":3}'], ['{"a":4}']),
        ({"condition": "json", "path": "a", "operator": "exists"}, ['{"a":0}'], ['{"a":null}', "{}", "x"]),
        ({"condition": "json", "path": "a", "operator": "exists", "value": False}, ["{}"], ['{"a":0}', "x"]),
        ({"condition": "numeric_equals", "value": 42}, ["It is 42.0", "#### 42"], ["41", "none"]),
        ({"condition": "numeric_equals", "value": 0.3, "tolerance": 0.1}, ["0.2", "0.4"], ["0.41"]),
        ({"condition": "numeric_range", "value": [1, 2]}, ["1", "2", "1.5"], ["0.9", "2.1", "x"]),
        ({"condition": "one_of", "value": ["red", "green"]}, ["Red"], ["blue", "red "]),
        ({"condition": "is_url"}, ["https://a.example/x?y=1", " http://[::1]:80 ", "http://localhost:8000/it's/%C3%A9", "https://bücher.example/ü"], ['https://a.example"', "https://a.example'", "https://a.example/x\">", "<https://a.example>", "'https://a.example'", "https://a.example/%zz", "https://a.example/100%", "https://..", "a.example", "ftp://a", "http://", "https://a b", "http://a:99999", "javascript:alert(1)"]),
        ({"condition": "is_email"}, ["ann.b+c@mail.example"], ["ann@", "@x.y", "a b@c.d", "a@localhost", "a@-x.y"]),
        ({"all": [{"condition": "contains", "value": "a"}, {"condition": "contains", "value": "b"}]}, ["ab"], ["a"]),
        ({"any": [{"condition": "contains", "value": "a"}, {"condition": "contains", "value": "b"}]}, ["b"], ["c"]),
        ({"none": [{"condition": "contains", "value": "a"}, {"condition": "contains", "value": "b"}]}, ["c"], ["b"]),
        (
            {"at_least": {"n": 2, "rules": [{"condition": "contains", "value": c} for c in "abc"]}},
            ["ab", "abc"],
            ["a", ""],
        ),
        ({"condition": "any", "rules": [{"condition": "is_json"}, {"condition": "is_url"}]}, ["1"], ["x"]),
    ],
    ids=lambda value: json.dumps(value, ensure_ascii=True)[:70] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_condition_is_true_for_some_texts_and_false_for_others(
    rule: dict[str, Any], yes: list[str], no: list[str]
) -> None:
    assert [holds(rule, text) for text in yes] == [True] * len(yes)
    assert [holds(rule, text) for text in no] == [False] * len(no)
    assert [holds({**rule, "negate": True}, text) for text in yes] == [False] * len(yes)


ABSENT = [
    ({"condition": "json", "path": "a", "operator": "equals", "value": 3}, "{}"),
    ({"condition": "json", "path": "a", "operator": "equals", "value": 3}, '{"a": null}'),
    ({"condition": "json", "path": "a", "operator": "not_equals", "value": 3}, "{}"),
    ({"condition": "json", "path": "a", "operator": "contains", "value": "x"}, "{}"),
    ({"condition": "json", "path": "a", "operator": "gt", "value": 3}, "{}"),
    ({"condition": "json", "path": "a", "operator": "equals", "value": 3}, "not JSON"),
    ({"condition": "json", "path": "a", "operator": "exists"}, "not JSON"),
    ({"condition": "json_schema", "value": {"type": "object"}}, "not JSON"),
    ({"condition": "numeric_equals", "value": 3}, "no number"),
    ({"condition": "numeric_equals", "value": 3}, "1/0"),
    ({"condition": "numeric_range", "value": [1, 2]}, "no number"),
    ({"condition": "split", "separator": ",", "item": 3, "rules": [{"condition": "contains", "value": "a"}]}, "a,b"),
]


@pytest.mark.parametrize(("rule", "text"), ABSENT)
def test_neither_a_condition_nor_its_negation_is_true_for_an_absent_value(rule: dict[str, Any], text: str) -> None:
    other = {"condition": "contains", "value": "a string that is nowhere"}
    for one in (
        rule,
        {**rule, "negate": True},
        {"none": [rule]},
        {"none": [other, rule]},
        {"all": [rule], "negate": True},
        {"any": [other, rule], "negate": True},
        {"at_least": {"n": 1, "rules": [rule]}, "negate": True},
        {"all": [{**rule, "negate": True}]},
    ):
        assert not holds(one, text), one


def test_what_does_not_depend_on_the_absent_value_is_decided() -> None:
    absent = {"condition": "json", "path": "a", "value": 3}
    held = {"condition": "contains", "value": "{"}
    assert holds({"any": [absent, held]}, "{}")
    assert holds({"all": [absent, {**held, "negate": True}], "negate": True}, "{}")
    assert holds({"at_least": {"n": 1, "rules": [absent, held]}}, "{}")


def test_absence_itself_can_be_required() -> None:
    for rule in (
        {"condition": "json", "path": "a", "operator": "exists", "value": False},
        {"condition": "json", "path": "a", "operator": "exists", "negate": True},
        {"condition": "json", "path": "a", "operator": "equals", "value": None},
    ):
        assert holds(rule, "{}")
        assert not holds(rule, "not JSON")
        assert not holds(rule, '{"a": 1}')


@pytest.mark.parametrize("condition", ["regex", "not_regex", "contains", "not_contains", "not_equals"])
def test_a_null_from_the_case_is_an_error_and_not_the_word_none(condition: str) -> None:
    rules = create("custom-rules", {"rules": [{"condition": condition, "value": "$metadata.pattern"}]})
    ctx = GradeContext(Sample(id=0, input="", metadata={"pattern": None}), "some text")
    with pytest.raises(UngradableError, match=r"\$metadata.pattern is None, not text"):
        rules.grade(ctx)


def test_a_text_that_differs_only_in_whitespace_is_named_as_such() -> None:
    config = {"rules": [{"condition": "equals", "value": "New York"}]}
    seen = "0 of 1 rules hold; failed: rules[0] equals 'New York' (saw {})"
    result = grade("custom-rules", "New  York\n", config=config)
    assert result.rationale == seen.format(r"'New  York\n', which differs only in whitespace")
    assert grade("custom-rules", "Boston", config=config).rationale == seen.format("'Boston'")


def test_every_documented_condition_is_known() -> None:
    assert set(CONDITIONS) == set(
        [
            "contains",
            "not_contains",
            "contains_all",
            "contains_any",
            "equals",
            "not_equals",
            "starts_with",
            "ends_with",
            "regex",
            "not_regex",
            "length_min",
            "length_max",
            "word_count_min",
            "word_count_max",
            "line_count_min",
            "line_count_max",
            "count",
            "is_upper",
            "is_lower",
            "split",
            "is_json",
            "json_schema",
            "json",
            "numeric_equals",
            "numeric_range",
            "one_of",
            "is_url",
            "is_email",
            "all",
            "any",
            "none",
            "at_least",
            "weighted",
            "contains_json",
            "edit_distance_max",
            "is_xml",
            "contains_xml",
            "is_html",
            "contains_html",
            "is_refusal",
        ]
    )


class TestReferences:
    def test_references_take_expected_input_and_metadata_of_the_case(self) -> None:
        case = {"input": "Where is Ann?", "ground_truth": "Oslo", "metadata": {"name": "Ann", "deep": {"min": 4}}}
        assert holds({"condition": "contains", "value": "$expected"}, "in oslo", **case)
        assert holds({"condition": "not_contains", "value": "$input"}, "in oslo", **case)
        assert holds({"condition": "contains", "value": "$metadata.name"}, "ann!", **case)
        assert holds({"condition": "length_min", "value": "$metadata.deep.min"}, "abcd", **case)
        assert not holds({"condition": "length_min", "value": "$metadata.deep.min"}, "abc", **case)

    def test_references_can_be_lists_and_numbers(self) -> None:
        case = {"ground_truth": "12", "metadata": {"words": ["a", "b"], "n": 3, "flag": True}}
        assert holds({"condition": "contains_all", "value": "$metadata.words"}, "ba", **case)
        assert holds({"condition": "numeric_equals", "value": "$expected"}, "12.0", **case)
        assert holds({"condition": "equals", "value": "$metadata.n"}, "3", **case)
        assert holds({"condition": "equals", "value": "$metadata.flag"}, "true", **case)
        assert holds({"condition": "json", "path": "@", "value": "$metadata.words"}, '["a","b"]', **case)
        assert holds({"condition": "regex", "value": "$metadata.words"}, "a", metadata={"words": "^a$"})

    def test_an_absent_reference_is_an_error_and_no_score(self) -> None:
        grader = create("custom-rules", {"rules": [{"condition": "contains", "value": "$metadata.key"}]})
        outcome = run_grader(grader, GradeContext(Sample(0, "q", metadata={"other": 1}), "text"))
        assert (outcome.outcome, outcome.score) == ("error", None)
        assert outcome.error is not None
        assert (outcome.error.type, outcome.error.message) == (
            "missing",
            "rules[0].value: $metadata.key is absent; the case's metadata keys are 'other'",
        )

    @pytest.mark.parametrize(
        ("rule", "metadata", "message"),
        [
            (
                {"condition": "contains", "value": "$expected"},
                {},
                "rules[0].value: $expected is absent; the case has no",
            ),
            (
                {"condition": "length_min", "value": "$metadata.n"},
                {"n": "x"},
                "rules[0].value: $metadata.n is 'x', not a",
            ),
            (
                {"condition": "contains", "value": "$metadata.n"},
                {"n": [1]},
                "rules[0].value: $metadata.n is [1], not text",
            ),
            (
                {"condition": "regex", "value": "$metadata.n"},
                {"n": "("},
                "rules[0].value: $metadata.n: '(' is not a valid RE2",
            ),
            (
                {"condition": "numeric_equals", "value": "$metadata.n"},
                {"n": "nan"},
                "rules[0].value: nan is not a finite",
            ),
        ],
    )
    def test_a_reference_of_the_wrong_kind_is_named(
        self, rule: dict[str, Any], metadata: dict[str, Any], message: str
    ) -> None:
        grader = create("custom-rules", {"rules": [rule]})
        with pytest.raises(UngradableError) as caught:
            grader.grade(GradeContext(Sample(0, "q", metadata=metadata), "text 3"))
        assert str(caught.value).startswith(message)


class TestScoring:
    RULES = (
        {"condition": "contains", "value": "a", "weight": 3},
        {"condition": "contains", "value": "b"},
    )

    def test_the_score_is_the_weighted_share(self) -> None:
        assert grade("custom-rules", "a", config={"rules": list(self.RULES)}) == GradeResult(
            0.75, "1 of 2 rules hold; failed: rules[1] contains 'b' (saw 'a')", {"failed": ["rules[1]"]}, False
        )

    @pytest.mark.parametrize(
        ("mode", "threshold", "text", "passed"),
        [
            ("all", 0.5, "a", False),
            ("all", 0.5, "ab", True),
            ("any", 0.5, "b", True),
            ("any", 0.5, "c", False),
            ("weighted", 0.75, "a", True),
            ("weighted", 0.76, "a", False),
            ("weighted", 0.0, "c", True),
        ],
    )
    def test_mode_decides_what_passes(self, mode: str, threshold: float, text: str, passed: bool) -> None:
        config = {"rules": list(self.RULES), "mode": mode, "threshold": threshold}
        assert grade("custom-rules", text, config=config).passed is passed

    def test_a_failed_required_rule_makes_the_grade_0(self) -> None:
        config = {"mode": "any", "rules": [*self.RULES, {"condition": "is_json", "required": True, "weight": 0}]}
        result = grade("custom-rules", "ab", config=config)
        assert (result.score, result.passed) == (0.0, False)

    def test_the_rationale_names_ten_failed_rules_and_counts_the_rest(self) -> None:
        rules = [{"condition": "contains", "value": f"w{index}"} for index in range(13)]
        rationale = grade("custom-rules", "x", config={"rules": rules}).rationale
        assert rationale is not None
        assert rationale.startswith("0 of 13 rules hold; failed: rules[0] contains 'w0' (saw 'x'); ")
        assert rationale.endswith("rules[9] contains 'w9' (saw 'x'); and 3 more")

    def test_a_negated_rule_is_named_as_such(self) -> None:
        rule = {"condition": "length_max", "value": 5, "negate": True}
        assert grade("custom-rules", "abc", config={"rules": [rule]}).rationale == (
            "0 of 1 rules hold; failed: rules[0] not length_max 5 (saw 3)"
        )

    @pytest.mark.parametrize(
        ("rule", "text", "seen"),
        [
            ({"condition": "count", "text": "a", "min": 2}, "a", "count 'a' min 2 (saw 1)"),
            ({"condition": "split", "separator": ",", "count": 2}, "a", "split ',' count 2 (saw 1 parts)"),
            (
                {"condition": "split", "separator": ",", "item": 0, "rules": [{"condition": "is_json"}]},
                "a,b",
                "split ',' item 0 (saw 2 parts, item 0 is 'a')",
            ),
            ({"condition": "is_json"}, "{", "is_json (saw not JSON: it ends too early)"),
            (
                {"condition": "json_schema", "value": {"type": "object"}},
                "[]",
                'json_schema (saw $: [] is not of type "object")',
            ),
            ({"condition": "json", "path": "a", "value": 1}, '{"a": 2}', "json a equals 1 (saw 2)"),
            ({"condition": "numeric_equals", "value": 3}, "it is 4", "numeric_equals 3.0 (saw 4)"),
            ({"condition": "numeric_range", "value": [1, 2]}, "x", "numeric_range [1.0, 2.0] (saw no number)"),
            ({"all": [{"condition": "is_json"}, {"condition": "is_url"}]}, "1", "all of 2 rules (saw 1 of 2 hold)"),
        ],
    )
    def test_a_failed_rule_shows_the_value(self, rule: dict[str, Any], text: str, seen: str) -> None:
        rationale = grade("custom-rules", text, config={"rules": [rule]}).rationale
        assert rationale == f"0 of 1 rules hold; failed: rules[0] {seen}"


class TestBadConfig:
    def test_all_faults_are_named_at_once_with_their_paths(self) -> None:
        assert faults(
            {
                "rules": [
                    {"condition": "contain", "value": "x"},
                    {"all": []},
                    {"condition": "regex", "value": "a(?=b)"},
                    {"condition": "count", "text": "a"},
                    "text",
                    {"any": [{"condition": "length_min", "value": "ten"}]},
                    {"at_least": {"n": 3, "rules": [{"condition": "is_json"}]}},
                    {"condition": "contains", "value": 3, "wieght": 2},
                    {"condition": "contains", "value": ""},
                    {"value": "x"},
                ],
                "mod": "all",
                "threshold": 1.5,
            }
        ) == [
            "config.rules[0].condition: no condition named 'contain'; did you mean 'contains'?",
            "config.rules[1].all: is empty: write at least one rule",
            "config.rules[2].value: 'a(?=b)' is not a valid RE2 pattern: invalid perl operator: (?= "
            "(RE2 has no lookaround: split it into two rules, one of them negated)",
            "config.rules[3].min: set at least one of 'min', 'max', 'equals'",
            "config.rules[4]: expected a rule such as {condition: contains, value: …}, got 'text'",
            "config.rules[5].any[0].value: expected a whole number of at least 0, $expected, $input, "
            "$ground_truth.key or $metadata.key, "
            "got 'ten'",
            "config.rules[6].n: 3 is more than the number of rules (1)",
            "config.rules[7].value: expected a string (in quotes), got 3",
            "config.rules[7].wieght: unknown option; did you mean 'weight'?",
            "config.rules[8].value: must not be empty",
            "config.rules[9]: has no 'condition', got {'value': 'x'}",
            "config.threshold: expected float <= 1.0, got 1.5",
            "config.mod: unknown option; did you mean 'mode'?",
        ]

    @pytest.mark.parametrize(
        ("config", "fault"),
        [
            ({}, "config.rules: is required"),
            ({"rules": []}, "config.rules: is empty: write at least one rule"),
            ({"rules": {"condition": "is_json"}}, "config.rules: expected a list of rules, got {'condition': 'is_json'}"),
            ({"rules": [{"condition": "is_json", "weight": 0}]}, "config.rules: all weights are 0: set a weight above 0 for at least one rule"),
            ({"rules": [{"condition": "is_json", "weight": -1}]}, "config.rules[0].weight: expected float >= 0.0, got -1"),
            ({"rules": [{"condition": "is_json", "weight": float("nan")}]}, "config.rules[0].weight: nan is not a finite number; leave it out or use null"),
            ({"rules": [{"all": [{"condition": "is_json"}], "any": []}]}, "config.rules[0]: names both 'all' and 'any'; keep one, got"),
            ({"rules": [{"at_least": [1]}]}, "config.rules[0].at_least: expected {n: …, rules: […]}, got [1]"),
            ({"rules": [{"condition": "json", "path": "a["}]}, "config.rules[0].path: 'a[' is not a valid JMESPath"),
            ({"rules": [{"condition": "json", "path": "a", "operator": "gt", "value": "3"}]}, "config.rules[0].value: must be a number"),
            ({"rules": [{"condition": "json_schema", "value": {"type": "text"}}]}, 'config.rules[0].value: $.type: "text"'),
            ({"rules": [{"condition": "split", "separator": ","}]}, "config.rules[0].count: set 'count'"),
            ({"rules": [{"condition": "split", "separator": ",", "item": 0}]}, "config.rules[0].item: 'item' requires 'rules', and 'rules' requires 'item'"),
            ({"rules": [{"condition": "numeric_range", "value": [2, 1]}]}, "config.rules[0].value: must be [low, high]"),
            ({"rules": [{"condition": "numeric_range", "value": [1]}]}, "config.rules[0].value: expected two numbers [low, high], got [1]"),
            ({"rules": [{"condition": "one_of", "value": []}]}, "config.rules[0].value: expected a list of strings"),
            ({"rules": [{"condition": "one_of", "value": "red"}]}, "config.rules[0].value: expected a list of strings, $expected"),
            ({"rules": [{"condition": ["x"], "value": "red"}]}, "config.rules[0].condition: no condition named ['x']"),
            ("rules", "config: expected a mapping, got 'rules'"),
        ],
    )  # fmt: skip
    def test_a_fault_is_named(self, config: Any, fault: str) -> None:
        assert faults(config)[0].startswith(fault)

    def test_at_most_32_levels_are_allowed(self) -> None:
        def nested(levels: int) -> dict[str, Any]:
            rule: dict[str, Any] = {"condition": "is_json"}
            for _ in range(levels):
                rule = {"all": [rule]}
            return rule

        assert holds(nested(31), "1")
        assert faults({"rules": [nested(32)]})[0].endswith("is nested more than 32 levels deep")
        assert faults({"rules": [nested(50_000)]})[0].endswith("is nested more than 32 levels deep")


texts = st.text(alphabet=st.sampled_from('abcAB ,\n19{}[]":é\0\ud800'), max_size=30)
leaves = st.one_of(
    st.builds(lambda v: {"condition": "contains", "value": v}, st.text("abc", min_size=1, max_size=2)),
    st.builds(lambda v: {"condition": "length_min", "value": v}, st.integers(0, 20)),
    st.builds(lambda v: {"condition": "regex", "value": v}, st.sampled_from(["a+", "^b", r"\d", "[ab]c"])),
    st.sampled_from([{"condition": "is_json"}, {"condition": "is_upper"}, {"condition": "is_email"}]),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda rules: {"all": rules}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda rules: {"any": rules}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda rules: {"none": rules}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)


class TestAlgebra:
    @given(trees, texts)
    def test_negate_inverts_and_two_negations_cancel(self, rule: dict[str, Any], text: str) -> None:
        negated = {"all": [{**rule, "negate": True}]}
        assert holds({**rule, "negate": True}, text) is not holds(rule, text)
        assert holds({**negated, "negate": True}, text) is holds(rule, text)

    @given(st.lists(trees, min_size=1, max_size=4), texts)
    def test_combinators_behave_like_their_logic(self, rules: list[dict[str, Any]], text: str) -> None:
        each = [holds(rule, text) for rule in rules]
        assert holds({"all": rules}, text) is all(each)
        assert holds({"any": rules}, text) is any(each)
        assert holds({"none": rules}, text) is not any(each)
        for n in range(len(rules) + 1):
            assert holds({"at_least": {"n": n, "rules": rules}}, text) is (sum(each) >= n)

    @given(st.lists(trees, min_size=1, max_size=4), texts)
    def test_de_morgan(self, rules: list[dict[str, Any]], text: str) -> None:
        inverted = [{**rule, "negate": True} for rule in rules]
        assert holds({"all": rules, "negate": True}, text) is holds({"any": inverted}, text)

    @given(st.lists(st.tuples(trees, st.floats(0, 100)), min_size=1, max_size=5), texts)
    def test_the_score_is_the_share_of_the_weights_that_hold(
        self, weighted: list[tuple[dict[str, Any], float]], text: str
    ) -> None:
        weights = [weight for _, weight in weighted]
        if not sum(weights):
            return
        rules = [{**rule, "weight": weight} for rule, weight in weighted]
        each = [holds(rule, text) for rule, _ in weighted]
        result = grade("custom-rules", text, config={"rules": rules})
        expected = sum(weight for weight, held in zip(weights, each, strict=True) if held) / sum(weights)
        assert result.score == pytest.approx(expected)
        assert 0.0 <= result.score <= 1.0
        assert result.passed is all(held or not weight for weight, held in zip(weights, each, strict=True))

    @given(st.lists(trees, min_size=1, max_size=4), texts)
    def test_a_definition_survives_storage(self, rules: list[dict[str, Any]], text: str) -> None:
        grader = create("custom-rules", {"rules": rules})
        assert isinstance(grader, RulesGrader)
        rebuilt = from_definition(json.loads(json.dumps(grader.definition())))
        assert rebuilt.fingerprint == grader.fingerprint
        assert rebuilt.grade(GradeContext(Sample(0, ""), text)) == grader.grade(GradeContext(Sample(0, ""), text))


def test_one_grader_serves_eight_threads() -> None:
    rules = [
        {"condition": "regex", "value": "(a|b)+c"},
        {"condition": "json", "path": "a", "operator": "exists"},
        {"condition": "word_count_max", "value": 3},
    ]
    grader = create("custom-rules", {"rules": rules})
    contexts = [GradeContext(Sample(0, ""), text) for text in ("abc", '{"a": 1}', "one two three four", "")] * 50
    sequential = [grader.grade(context) for context in contexts]
    with ThreadPoolExecutor(8) as threads:
        together = [list(threads.map(grader.grade, contexts)) for _ in range(8)]
    assert all(answers == sequential for answers in together)


@pytest.fixture(scope="module")
def schema() -> Any:
    return jsonschema_rs.validator_for(RulesGrader.describe()["config_schema"])


class TestSchema:
    @given(rules=st.lists(trees, min_size=1, max_size=4))
    def test_what_the_reader_accepts_the_schema_accepts(self, schema: Any, rules: list[dict[str, Any]]) -> None:
        assert schema.is_valid({"rules": rules})

    @pytest.mark.parametrize(
        "config",
        [
            {"rules": []},
            {"rules": [{"condition": "nope"}]},
            {"rules": [{"condition": "contains"}]},
            {"rules": [{"all": [{"condition": "contains"}]}]},
            {"rules": [{"condition": "is_json", "wieght": 1}]},
            {"rules": [{"condition": "is_json"}], "threshold": 2},
            {"rules": [{"condition": "length_min", "value": "ten"}]},
        ],
    )
    def test_what_the_reader_refuses_the_schema_refuses(self, schema: Any, config: dict[str, Any]) -> None:
        assert not schema.is_valid(config)
        assert faults(config)
