from __future__ import annotations

import re
import unicodedata
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradeline.errors import NeedsIsolationError
from gradeline.parsing.patterns import PatternError, compile_pattern, compile_python_pattern

ATOMS = [
    *("a", "b", r"\d", r"\w", r"\s", r"\b", ".", "[ab]", "[^a]", r"[\d.]", "(a|b)", "(?:ab)?", "$", "^", "é", r"\."),
    *("a{2}", "a{1,2}", "a*", "b+?", r"\n", "[]a]", "x|", "(?i)", "(?=a)", r"[\w-]", "[[a]", r"\\$", r"\$"),
    *("[[]", r"[\[]", "[a[]", "[^]]", r"[\]]", r"[\s\S]", r"[^\s]", r"\S", r"\W", r"\D", r"\B", r"\A", r"\Z", r"\x61"),
    *("(", "(?:", ")", "|", "*", "+", "?", "{2}", "{,2}", "(a*)", "(|b)", "(b*)*", "((a)|b)*", "(?P<n>a)", r"\1"),
]
patterns = st.builds(
    lambda flags, atoms: flags + "".join(atoms),
    st.sampled_from(["", "", "", "(?i)", "(?m)", "(?s)", "(?im)"]),
    st.lists(st.sampled_from(ATOMS), min_size=1, max_size=5),
)
texts = st.text(st.sampled_from("ab1 \né.٣-$[\\\x1c\x0bxA_]—ſ"), max_size=8)


def reference(pattern: str) -> re.Pattern[str] | None:
    with warnings.catch_warnings(action="ignore"):
        try:
            return re.compile(pattern)
        except re.error:
            return None


class TestPythonPatterns:
    @pytest.mark.slow
    @settings(max_examples=1_500)
    @given(patterns, texts)
    @example(r"\B", "")
    @example("[[]a]", "a]")
    @example("[a[][^]]", "ab")
    @example(r"($)\n", "\n")
    @example(r"(a$|b)\n", "a\n")
    @example("a$", "a\n")
    @example(r"\bé", "é")
    @example("(?i)s", "ſ")
    def test_matches_agree_with_re(self, pattern: str, text: str) -> None:
        expected = reference(pattern)
        try:
            found = compile_python_pattern(pattern, text, consuming=False).search(text)
        except NeedsIsolationError:
            return
        except re.error:
            assert expected is None
            return
        assert expected is not None
        assert (found is not None) == (expected.search(text) is not None)

    @pytest.mark.slow
    @settings(max_examples=1_500)
    @given(patterns, texts)
    @example("(b*)*", "bba")
    @example("(|b)*-", "b-")
    @example("a$", "a\n")
    @example("((a)|b)*", "ab")
    def test_matched_text_agrees_with_re(self, pattern: str, text: str) -> None:
        expected = reference(pattern)
        try:
            found = compile_python_pattern(pattern, text, consuming=True).search(text)
        except NeedsIsolationError:
            return
        except re.error:
            assert expected is None
            return
        assert expected is not None
        expected_match = expected.search(text)
        assert (found is not None) == (expected_match is not None)
        if found is not None and expected_match is not None:
            assert (found.group(0), found.groups()) == (expected_match.group(0), expected_match.groups())

    @pytest.mark.parametrize(
        ("pattern", "text"),
        [
            (r"\bParis\b", "It’s “Paris” — 🎉"),
            (r"(?i)paris", "It’s PARIS!"),
            (r"\w+@\w+\.\w+", "é@ñ.com"),
            (r"^\s*\d+\s*$", "42\n"),
            (r"<b>[\s\S]*</b>", "<b>\n</b>"),
            (r"(?m)^- ", "list:\n- a"),
            (r"[\w.-]+", "a"),
            (r"\A\d+\Z", "42"),
            (r"(?:\$|USD)?\s?\d+(?:,\d{3})*", "USD 1,000"),
        ],
    )
    def test_usual_patterns_need_no_isolation(self, pattern: str, text: str) -> None:
        assert compile_python_pattern(pattern, text, consuming=False).search(text) is not None

    @pytest.mark.parametrize("letter", ["d", "D", "w", "W", "s", "S"])
    @pytest.mark.usefixtures("as_in_a_worker")
    def test_character_classes_agree_with_re(self, letter: str) -> None:
        text = "".join(char for char in map(chr, range(0x3400)) if unicodedata.category(char) != "Cn")
        pattern = compile_python_pattern(rf"\{letter}", text, consuming=True)
        assert pattern.findall(text) == re.findall(rf"\{letter}", text)

    @pytest.mark.parametrize("plane", [0x11000, 0x1E000, 0x31300])
    def test_a_character_that_only_one_engine_supports_needs_isolation(self, plane: int) -> None:
        for char in map(chr, range(plane, plane + 0x1000)):
            try:
                found = compile_python_pattern(r"\w", char, consuming=False).search(char)
            except NeedsIsolationError:
                continue
            assert (found is not None) == (re.search(r"\w", char) is not None)

    def test_a_pattern_that_hangs_re_returns(self) -> None:
        text = "a" * 50_000 + "b"
        assert compile_python_pattern("(a+)+$", text, consuming=False).search(text) is None

    @pytest.mark.parametrize(
        "pattern",
        [
            *("(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", r"(a)\1", "(?P<n>a)(?P=n)", "(?>a)", "a++", "a*+", "a{1}+"),
            *("(?i:a)", "(?x) a", "(?a)a", "(?(1)a|b)", "(?#note)a", r"[^\W]", r"\u00e9", r"\0", "a{,2}", "a{1001}"),
        ],
    )
    def test_patterns_that_only_re_supports_need_isolation(self, pattern: str) -> None:
        pattern = f"(a)?{pattern}" if "(1)" in pattern else pattern
        with pytest.raises(NeedsIsolationError, match=re.escape(repr(pattern))):
            compile_python_pattern(pattern, "ab", consuming=False)

    @pytest.mark.parametrize(
        ("pattern", "text", "consuming"),
        [
            (r"\bé", "é", False),
            ("(?i)i", "ı", False),
            ("(?i)é", "a", False),
            ("a$", "a\n", True),
            ("(a$)b", "a\n", False),
            ("(a*)*", "a", True),
            ("a", "\ud800a", False),
            ("\ud800", "a", False),
        ],
    )
    def test_text_that_re2_may_match_differently_needs_isolation(
        self, pattern: str, text: str, consuming: bool
    ) -> None:
        with pytest.raises(NeedsIsolationError):
            compile_python_pattern(pattern, text, consuming=consuming)

    @pytest.mark.parametrize(
        "pattern", ["(", "[", "*", "a{2,1}", r"\q", "(?P<n>a)(?P<n>b)", "(?i", "a{" + "9" * 5_000 + "}", "(" * 3_000]
    )
    def test_an_invalid_pattern_is_an_error_of_re(self, pattern: str) -> None:
        with pytest.raises(re.error):
            compile_python_pattern(pattern, "a", consuming=False)

    def test_a_pattern_of_20_000_characters_needs_isolation(self) -> None:
        with pytest.raises(NeedsIsolationError, match=r"a pattern of 20,000 characters is too long \(at most 10,000\)"):
            compile_python_pattern("a" * 20_000, "a", consuming=False)

    def test_warnings_of_re_are_suppressed_and_filters_unchanged(self) -> None:
        before = list(warnings.filters)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: compile_python_pattern(f"[[a]{n}", "a", consuming=False), range(200)))
        assert list(warnings.filters) == before


class TestRe2Patterns:
    def test_a_pattern_is_searched(self) -> None:
        found = compile_pattern(r"(\d+) km").search("It is 42 km.")
        assert found is not None
        assert (found.group(0), found.groups()) == ("42 km", ("42",))

    @pytest.mark.parametrize(
        ("pattern", "message"),
        [
            (
                "(?=a)",
                "'(?=a)' is not a valid RE2 pattern: invalid perl operator: (?= "
                "(RE2 has no lookaround: split it into two rules, one of them negated)",
            ),
            (r"(a)\1", r"'(a)\\1' is not a valid RE2 pattern: invalid escape sequence: \1 (RE2 has no backreferences)"),
            ("(a", "'(a' is not a valid RE2 pattern: missing ): (a"),
            ("\ud800", r"'\ud800' is not a valid RE2 pattern: lone surrogates are not text"),
        ],
    )
    def test_a_refusal_quotes_the_pattern_and_has_a_remedy(self, pattern: str, message: str) -> None:
        with pytest.raises(PatternError) as caught:
            compile_pattern(pattern)
        assert str(caught.value) == message

    def test_a_pattern_of_20_000_characters_is_refused(self) -> None:
        with pytest.raises(PatternError, match=r"a pattern of 20,000 characters is too long \(at most 10,000\): 'aaa"):
            compile_pattern("a" * 20_000)

    def test_a_pattern_that_hangs_other_engines_returns(self) -> None:
        assert compile_pattern("(a+)+$").search("a" * 50_000 + "b") is None
