"""A dataset of paraphrases without clusters is warned of; others are not."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from gradeline.model import Sample
from gradeline.suite.near_duplicates import LOOKED_AT, near_duplicate_warning

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima", "Norway": "Oslo"}
WORDINGS = ("What is the capital of {}?", "What is the capital city of {}?", "What's the capital of {}?")


def paraphrases(**fields: str) -> list[Sample]:
    return [
        Sample(f"{country}-{number}", wording.format(country), city, **fields)
        for country, city in CAPITALS.items()
        for number, wording in enumerate(WORDINGS)
    ]


def test_three_pairs_are_named_with_what_to_add() -> None:
    assert near_duplicate_warning(paraphrases()) == (
        "dataset: 12 of 12 cases are nearly the same as another with the same ground truth, such as 'France-0' and"
        " 'France-1', 'Spain-0' and 'Spain-1', 'Peru-0' and 'Peru-1'; they count as independent cases: name what they"
        " share with cluster: metadata.KEY in the suite, or give each row a cluster"
    )


def test_it_is_the_same_whatever_the_order_of_the_file() -> None:
    cases = paraphrases()
    Random(2).shuffle(cases)
    assert "12 of 12 cases" in (near_duplicate_warning(cases) or "")


def test_cases_with_clusters_are_in_order() -> None:
    assert near_duplicate_warning(paraphrases(cluster="capitals")) is None


def test_another_ground_truth_is_another_question() -> None:
    cases = [Sample(n, f"What is the capital of country {n}?", f"city {n}") for n in range(40)]
    assert near_duplicate_warning(cases) is None


def test_an_unknown_ground_truth_is_not_the_same() -> None:
    assert near_duplicate_warning(Sample(n, "What is the capital of France?") for n in range(40)) is None


def test_different_questions_with_one_answer_are_in_order() -> None:
    random = Random(4)
    cases = [Sample(n, " ".join(random.choices("abcdefghij", k=30)), "yes") for n in range(40)]
    assert near_duplicate_warning(cases) is None


def test_a_fifth_of_the_cases_is_no_reason_yet() -> None:
    others = [Sample(f"other {n}", f"{n} {'x' * n}", f"answer {n}") for n in range(48)]
    assert near_duplicate_warning([*paraphrases(), *others]) is None
    assert near_duplicate_warning([*paraphrases(), *others[:47]]) is not None


def test_few_cases_are_left_alone() -> None:
    assert near_duplicate_warning(paraphrases()[:9]) is None


def test_only_the_first_cases_are_read() -> None:
    seen = 0

    def cases() -> Iterator[Sample]:
        nonlocal seen
        while True:
            seen += 1
            yield Sample(seen, f"How many wheels has bicycle number {seen}?", "2")

    assert f"of the first {LOOKED_AT} cases" in (near_duplicate_warning(cases()) or "")
    assert seen == LOOKED_AT


def test_conversations_and_long_texts_are_compared_too() -> None:
    text = "A long text about the sea. " * 200
    cases = [Sample(n, [text, f"question {n % 10}"], ["a", "b"]) for n in range(12)]
    assert near_duplicate_warning(cases) is not None
