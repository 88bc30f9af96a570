"""Extractors for a pattern and for the text after a marker."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, NeedsIsolationError, Problem, TooLargeError
from gradeline.extractors import create, extract
from gradeline.extractors.text import MAX_MATCHES
from gradeline.model import Message, Response, Trajectory


def response_of(*texts: str) -> Response:
    return Response(trajectory=Trajectory(tuple((Message("user", "?"), Message("assistant", text)) for text in texts)))


def faults(kind: str, config: dict[str, Any]) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        create(kind, config)
    return list(caught.value.problems)


class TestPattern:
    def test_takes_the_whole_match(self) -> None:
        assert extract("pattern", "It is 42 km.", {"pattern": r"(\d+) km"}) == "42 km"

    def test_takes_a_group(self) -> None:
        assert extract("pattern", "It is 42 km.", {"pattern": r"(\d+) (km)", "group": 2}) == "km"

    def test_takes_the_first_match_of_a_message(self) -> None:
        assert extract("pattern", "1 then 2", {"pattern": r"\d"}) == "1"

    def test_the_last_message_with_a_match_wins(self) -> None:
        assert create("pattern", {"pattern": r"\d+"}).extract(response_of("1", "22 and 23", "none")) == "22"

    def test_only_the_assistant_is_searched(self) -> None:
        response = Response(trajectory=Trajectory(((Message("user", "7"), Message("tool", "8")),)))
        assert create("pattern", {"pattern": r"\d"}).extract(response) == ""

    def test_without_a_match_nothing_is_found(self) -> None:
        assert extract("pattern", "none", {"pattern": r"\d"}) == ""
        assert extract("pattern", "none", {"pattern": r"\d", "search_all": True}) == ""

    def test_an_unmatched_group_is_empty_and_its_message_still_wins(self) -> None:
        assert create("pattern", {"pattern": "(a)?b", "group": 1}).extract(response_of("ab", "b")) == ""

    def test_search_all_joins_all_matches_by_a_space(self) -> None:
        assert extract("pattern", "1, 22 and 3", {"pattern": r"\d+", "search_all": True}) == "1 22 3"

    def test_search_all_reads_only_one_message(self) -> None:
        config = {"pattern": r"\d", "search_all": True}
        assert create("pattern", config).extract(response_of("1 2", "3 4", "none")) == "3 4"

    def test_search_all_takes_the_only_group_whatever_the_group_option_says(self) -> None:
        for group in (0, 1):
            config = {"pattern": r"(\d) km", "search_all": True, "group": group}
            assert extract("pattern", "1 km 2 km", config) == "1 2"

    @pytest.mark.parametrize(("group", "found"), [(0, "a b"), (1, "1 2")])
    def test_search_all_counts_several_groups_from_0(self, group: int, found: str) -> None:
        config = {"pattern": r"(\w)=(\d)", "search_all": True, "group": group}
        assert extract("pattern", "a=1, b=2", config) == found

    def test_search_all_writes_an_unmatched_group_as_empty(self) -> None:
        config = {"pattern": r"(x)?(\d)", "search_all": True}
        assert extract("pattern", "1x23", config) == " x "

    def test_patterns_have_the_meaning_of_python(self) -> None:
        assert extract("pattern", "٣", {"pattern": r"\d"}) == "٣"

    def test_patterns_that_only_re_supports_require_isolation(self) -> None:
        extractor = create("pattern", {"pattern": r"(?<=A: )\d+"})
        with pytest.raises(NeedsIsolationError, match="lookaround"):
            extractor.extract(response_of("A: 4"))

    def test_search_all_with_an_empty_match_requires_isolation(self) -> None:
        extractor = create("pattern", {"pattern": "a*", "search_all": True})
        with pytest.raises(NeedsIsolationError, match="matches the empty string"):
            extractor.extract(response_of("baac"))

    def test_a_pattern_cannot_make_it_hang(self) -> None:
        assert extract("pattern", "a" * 5_000_000, {"pattern": "(?:a+)+b"}) == ""

    @pytest.mark.slow
    @pytest.mark.usefixtures("as_in_a_worker")
    def test_matches_over_the_limit_are_refused(self) -> None:
        extractor = create("pattern", {"pattern": "a", "search_all": True})
        with pytest.raises(TooLargeError, match=f"matches more than {MAX_MATCHES:,} times"):
            extractor.extract(response_of("a" * 10_000_000))

    def test_lone_surrogates_are_read_as_stored(self) -> None:
        assert extract("pattern", "a\ud800b", {"pattern": "a.b"}) == "a\ufffdb"

    def test_refuses_invalid_patterns(self) -> None:
        message = "'(a' is not a valid regular expression: missing ), unterminated subpattern at position 0"
        assert faults("pattern", {"pattern": "(a"}) == [Problem("config.pattern", message)]

    @pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 5_000 + ")" * 5_000, "(?L)a", r"\N{no such}"])
    def test_refuses_strange_patterns_too(self, pattern: str) -> None:
        assert [fault.path for fault in faults("pattern", {"pattern": pattern})] == ["config.pattern"]

    @pytest.mark.parametrize(
        ("pattern", "message"),
        [
            ("a", "the pattern has no groups, got 3"),
            ("(a)", "the pattern has one group, got 3"),
            ("(a)(b)", "the pattern has 2 groups, got 3"),
            ("(?=a)(b)", "the pattern has one group, got 3"),
        ],
    )
    def test_refuses_a_group_missing_from_the_pattern(self, pattern: str, message: str) -> None:
        assert faults("pattern", {"pattern": pattern, "group": 3}) == [Problem("config.group", message)]

    def test_refuses_a_group_past_the_last_when_counting_from_0(self) -> None:
        config = {"pattern": "(a)(b)", "group": 2, "search_all": True}
        message = "with search_all the 2 groups count from 0, got 2"
        assert faults("pattern", config) == [Problem("config.group", message)]

    def test_refuses_a_negative_group(self) -> None:
        message = "expected int >= 0, got -1"
        assert faults("pattern", {"pattern": "(a)", "group": -1}) == [Problem("config.group", message)]

    def test_all_faults_are_reported_at_once(self) -> None:
        config = {"pattern": "(", "group": "x", "search_all": 1, "serch_all": True}
        assert [fault.path for fault in faults("pattern", config)] == [
            "config.group",
            "config.search_all",
            "config.pattern",
            "config.serch_all",
        ]

    @given(st.data(), st.text("ab1_ é\n٣.", max_size=12), st.booleans())
    def test_agrees_with_re_or_requires_isolation(self, data: st.DataObject, text: str, search_all: bool) -> None:
        pattern = data.draw(_patterns)
        compiled = re.compile(pattern)
        last = compiled.groups - 1 if search_all and compiled.groups > 1 else compiled.groups
        group = data.draw(st.integers(0, last))
        try:
            found = extract("pattern", text, {"pattern": pattern, "group": group, "search_all": search_all})
        except NeedsIsolationError:
            assume(False)
        assert found == _by_re(compiled, text, group, search_all)

    @given(st.text(max_size=20), st.text(max_size=20), st.integers(-1, 3), st.booleans())
    def test_any_pattern_is_refused_isolated_or_matched(
        self, pattern: str, text: str, group: int, search_all: bool
    ) -> None:
        config = {"pattern": pattern, "group": group, "search_all": search_all}
        with suppress(ConfigError, NeedsIsolationError):
            assert isinstance(extract("pattern", text, config), str)


_atoms = st.sampled_from(["a", "b", ".", r"\d", r"\w", r"\s", "[ab]", "[^a]", r"\b1", "^a", "b$", "é", r"\n", r"\."])
_patterns = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
        inner.map("({})".format),
        st.tuples(inner, st.sampled_from(["+", "+?", "{2}"])).map("({0[0]}){0[1]}".format),
        st.tuples(inner, inner, st.sampled_from(["?", "*", "??"])).map("{0[0]}(?:{0[1]}){0[2]}".format),
    ),
    max_leaves=6,
)
"""No repeated part matches the empty string: RE2 and ``re`` then disagree on the value of a group."""


def _by_re(pattern: re.Pattern[str], text: str, group: int, search_all: bool) -> str:
    if search_all:
        return " ".join(found[group] if isinstance(found, tuple) else found for found in pattern.findall(text))
    match = pattern.search(text)
    return (match[group] or "") if match else ""


class TestAfterMarker:
    def test_takes_what_follows_the_marker_stripped(self) -> None:
        assert extract("after_marker", "Well.\nAnswer:  Paris \n", {"marker": "Answer:"}) == "Paris"

    def test_the_last_message_with_the_marker_counts(self) -> None:
        response = response_of("Answer: Lyon", "Answer: Paris", "Anything else?")
        assert create("after_marker", {"marker": "Answer:"}).extract(response) == "Paris"

    def test_the_first_marker_of_a_message_counts(self) -> None:
        assert extract("after_marker", "A: 1, A: 2", {"marker": "A:"}) == "1, A: 2"

    def test_the_marker_can_be_included_with_the_space_after_it(self) -> None:
        config = {"marker": "Answer:", "include_marker": True}
        assert extract("after_marker", "Well. Answer:  Paris \n", config) == "Answer:  Paris"

    def test_the_result_is_stripped_with_the_marker_too(self) -> None:
        config = {"marker": "\nAnswer:", "include_marker": True}
        assert extract("after_marker", "Well.\nAnswer: Paris\n", config) == "Answer: Paris"

    def test_case_counts(self) -> None:
        assert extract("after_marker", "answer: Paris", {"marker": "Answer:"}) == ""

    def test_without_the_marker_nothing_is_found(self) -> None:
        assert create("after_marker", {"marker": "####"}).extract(response_of("72")) == ""

    def test_with_nothing_after_the_marker_nothing_is_found(self) -> None:
        assert create("after_marker", {"marker": "####"}).extract(response_of("#### 72", "####  \n")) == ""

    def test_an_empty_marker_takes_the_last_message(self) -> None:
        assert create("after_marker", {"marker": ""}).extract(response_of("one", " two ")) == "two"

    def test_huge_texts_are_read(self) -> None:
        assert extract("after_marker", "#" * 10_000_000 + "! 72", {"marker": "#!"}) == "72"

    def test_the_marker_is_required(self) -> None:
        assert faults("after_marker", {}) == [Problem("config.marker", "is required")]
