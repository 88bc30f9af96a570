from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.fuzz import ratio

from gradeline.errors import ConfigError, TooLargeError, UngradableError
from gradeline.graders import create, grade
from gradeline.graders.text_match import SimilarityGrader, nfc
from gradeline.graders.text_overlap import RougeGrader
from gradeline.model import GradeResult

any_text = st.text(st.characters(exclude_categories=()))
words = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "mat"])).map(" ".join)


class TestSimilarity:
    def test_equal_texts_score_one(self) -> None:
        assert grade("similarity", "Paris", "Paris") == GradeResult(1.0, "Similarity 1.000, threshold 0.8", {}, True)

    def test_texts_without_a_common_character_score_zero(self) -> None:
        assert grade("similarity", "abc", "xyz") == GradeResult(0.0, "Similarity 0.000, threshold 0.8", {}, False)

    def test_the_score_is_the_ratio_of_rapidfuzz(self) -> None:
        result = grade("similarity", "colour", "color")
        assert result.score == ratio("colour", "color") / 100
        assert result.score == pytest.approx(10 / 11)

    def test_only_the_threshold_decides_whether_it_passes(self) -> None:
        assert grade("similarity", "colour", "color", {"threshold": 0.95}) == GradeResult(
            ratio("colour", "color") / 100, "Similarity 0.909, threshold 0.95", {}, False
        )
        assert grade("similarity", "abc", "xyz", {"threshold": 0}).passed is True

    def test_case_counts_unless_disabled(self) -> None:
        assert grade("similarity", "PARIS", "paris").score == 0.0
        assert grade("similarity", "STRASSE", "straße", {"case_sensitive": False}).score == 1.0

    def test_texts_are_compared_after_nfc(self) -> None:
        assert grade("similarity", "cafe\u0301", "caf\u00e9").score == 1.0

    def test_an_empty_ground_truth_is_a_string(self) -> None:
        assert grade("similarity", "a", "").score == 0.0

    @given(any_text, any_text)
    def test_any_text_gets_one_score(self, left: str, right: str) -> None:
        result = grade("similarity", left, right)
        assert math.isfinite(result.score)
        assert 0.0 <= result.score <= 1.0
        assert grade("similarity", left, right) == result

    @given(st.text(st.characters(exclude_characters="\0")))
    def test_every_text_equals_itself(self, text: str) -> None:
        assert grade("similarity", text, text).score == 1.0


class TestRouge:
    def test_equal_texts_score_one(self) -> None:
        assert grade("rouge", "the cat sat", "the cat sat") == GradeResult(
            1.0, "ROUGE-L F1 1.000, threshold 0.5", {}, True
        )

    def test_it_is_the_f1_of_the_longest_common_subsequence(self) -> None:
        # 3 of 4 words of the response and 3 of 6 expected words, in order: P = 3/4, R = 1/2
        result = grade("rouge", "the cat lay mat", "the cat sat on the mat")
        assert result == GradeResult(0.6, "ROUGE-L F1 0.600, threshold 0.5", {}, True)

    def test_order_counts(self) -> None:
        assert grade("rouge", "mat cat", "cat mat").score == 0.5

    def test_case_and_punctuation_do_not_count(self) -> None:
        assert grade("rouge", "The CAT, sat!", "the cat sat").score == 1.0

    def test_words_are_not_stemmed(self) -> None:
        assert grade("rouge", "cats", "cat").score == 0.0

    def test_words_of_other_scripts_count(self) -> None:
        assert grade("rouge", "Привет мир", "привет, мир").score == 1.0
        assert grade("rouge", "cafe\u0301", "caf\u00e9").score == 1.0

    @pytest.mark.parametrize(("submission", "expected"), [("", ""), ("...", "!?"), ("a", "..."), ("...", "a")])
    def test_texts_without_words_score_zero(self, submission: str, expected: str) -> None:
        assert grade("rouge", submission, expected) == GradeResult(0.0, "ROUGE-L F1 0.000, threshold 0.5", {}, False)

    def test_the_threshold_decides_whether_it_passes(self) -> None:
        assert grade("rouge", "mat cat", "cat mat", {"threshold": 0.6}).passed is False
        assert grade("rouge", "mat cat", "cat mat", {"threshold": 0.5}).passed is True

    @given(words, words)
    def test_it_equals_the_textbook_formula(self, submission: str, expected: str) -> None:
        left, right = submission.split(), expected.split()
        assert grade("rouge", submission, expected).score == pytest.approx(textbook_f1(left, right))

    @given(any_text, any_text)
    def test_any_text_gets_one_score(self, left: str, right: str) -> None:
        result = grade("rouge", left, right)
        assert math.isfinite(result.score)
        assert 0.0 <= result.score <= 1.0
        assert grade("rouge", left, right) == result


def textbook_f1(left: list[str], right: list[str]) -> float:
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    common = table[-1][-1]
    if not common:
        return 0.0
    precision, recall = common / len(left), common / len(right)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("kind", ["similarity", "rouge"])
class TestBoth:
    def test_a_missing_ground_truth_cannot_be_graded(self, kind: str) -> None:
        with pytest.raises(UngradableError, match=f"there is no ground_truth: {kind} needs the expected text there"):
            grade(kind, "a")

    def test_more_than_100_000_characters_are_too_large(self, kind: str) -> None:
        with pytest.raises(TooLargeError, match=f"{kind} takes at most 100,000"):
            grade(kind, "a" * 100_001, "a")

    @pytest.mark.usefixtures("as_in_a_worker")
    def test_texts_of_the_maximum_size_finish(self, kind: str) -> None:
        assert grade(kind, "a b " * 25_000, "b a " * 25_000).score > 0.9

    @pytest.mark.usefixtures("as_in_a_worker")
    def test_many_combining_marks_finish(self, kind: str) -> None:
        flood = "a" + "\u0301" * 49_999 + "\u0323" * 49_999
        assert 0.0 <= grade(kind, flood, flood[::-1]).score <= 1.0

    @pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan, "high"])
    def test_a_threshold_outside_0_to_1_is_refused(self, kind: str, threshold: object) -> None:
        with pytest.raises(ConfigError, match=r"config\.threshold: "):
            create(kind, {"threshold": threshold})


class TestNfc:
    def test_marks_are_composed(self) -> None:
        assert nfc("e\u0301") == "\u00e9"

    def test_more_marks_in_a_row_than_any_language_has_stay_as_they_are(self) -> None:
        assert nfc("e" + "\u0301" * 30) == "\u00e9" + "\u0301" * 29
        assert nfc("e" + "\u0301" * 31) == "e" + "\u0301" * 31


def test_the_listing_describes_both() -> None:
    assert SimilarityGrader.describe()["description"] == (
        "Scores the similarity of response and expected text, character by character."
    )
    assert sorted(SimilarityGrader.describe()["config_schema"]["properties"]) == ["case_sensitive", "threshold"]
    assert RougeGrader.describe()["description"] == (
        "Scores the words or phrases that response and expected text share: ROUGE-L or ROUGE-N, its F1."
    )
    assert sorted(RougeGrader.describe()["config_schema"]["properties"]) == ["references", "threshold", "variant"]
