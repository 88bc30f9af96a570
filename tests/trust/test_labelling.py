"""Answers and names of raters."""

from __future__ import annotations

import pytest

from gradeline.errors import ConfigError
from gradeline.model.label import HumanVerdict, LabelRow, ReferenceLabel, reference_label
from gradeline.trust.labelling import LabelScale, check_label_name, read_scale


def test_a_scale_is_read() -> None:
    assert read_scale(None, None) == LabelScale()
    assert read_scale("1-5", None) == LabelScale(1, 5)
    assert read_scale(None, "polite, rude") == LabelScale(categories=("polite", "rude"))


@pytest.mark.parametrize(("choice", "score"), [(1, 0.0), (3, 0.5), (5, 1.0)])
def test_a_rating_is_a_score_from_0_to_1(choice: int, score: float) -> None:
    assert read_scale("1-5", None).value(choice) == HumanVerdict(score=score)


def test_a_category_has_its_number() -> None:
    scale = read_scale(None, "polite,rude")
    assert list(scale.choices) == [1, 2]
    assert scale.value(2) == HumanVerdict(category="rude")


@pytest.mark.parametrize("scale", ["1-10", "5-1", "3-3", "5", "a-b", "-1-5", "", "١-٥"])
def test_a_scale_has_a_key_for_each_rating(scale: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid scale .*: use two digits such as 1-5 or 0-9"):
        read_scale(scale, None)


@pytest.mark.parametrize("categories", ["a", "a,a", "a,", "a,b\x1b", ",".join("abcdefghij"), "a," + "b" * 201])
def test_categories_have_names_and_keys(categories: str) -> None:
    with pytest.raises(ConfigError, match="use 2 to 9 different names"):
        read_scale(None, categories)


def test_a_scale_and_categories_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="use a scale or categories, not both"):
        read_scale("1-5", "a,b")


@pytest.mark.parametrize("name", ["", " ", " a", "a\n", "a\tb", "\x1b[2J", "x" * 201, "\u202ea"])
def test_a_name_is_one_trimmed_line(name: str) -> None:
    with pytest.raises(ConfigError, match=r"rater: invalid rater .*: use 1 to 200 characters on one line, trimmed"):
        check_label_name(name, "rater")


def label(
    rater: str, verdict: str | None = None, score: float | None = None, category: str | None = None, **fields: object
) -> LabelRow:
    row = LabelRow("c", 0, "q", verdict, score, category, "", rater, "rater", None, None, "", None, None, "", "", "")  # type: ignore[arg-type]
    return row._replace(**fields)  # type: ignore[arg-type]


def test_the_majority_decides() -> None:
    labels = [label("a", "pass"), label("b", "fail"), label("c", "pass", probability=0.5)]
    assert reference_label(labels) == ReferenceLabel("c", 0, True, None, None, 0.5, 3)


def test_a_tie_decides_nothing() -> None:
    assert reference_label([label("a", "pass"), label("b", "fail")]) is None
    assert reference_label([label("a", category="x"), label("b", category="y")]) is None


def test_the_last_adjudication_decides_alone() -> None:
    labels = [
        *(label("a", "pass"), label("b", "pass")),
        label("j", "pass", role="adjudicator"),
        label("k", "fail", role="adjudicator"),
    ]
    assert reference_label(labels) == ReferenceLabel("c", 0, False, None, None, None, 4)


@pytest.mark.parametrize(("threshold", "passed"), [(0.5, True), (0.75, True), (0.8, False)])
def test_a_score_passes_at_the_threshold_of_the_grader(threshold: float, passed: bool) -> None:
    found = reference_label([label("a", score=0.75)], threshold)
    assert found is not None
    assert (found.passed, found.score, found.value) == (passed, 0.75, 0.75)


def test_scores_are_averaged_and_categories_counted() -> None:
    found = reference_label([label("a", score=1.0, category="x"), label("b", score=0.5), label("c", "fail")])
    assert found == ReferenceLabel("c", 0, True, 0.75, "x", None, 3)
