"""The changed copies of an answer, and which answers are used."""

from __future__ import annotations

import json

import pytest

from gradeline.model import Document, Response, Sample
from gradeline.model.probe import PROBE_NAMES, ProbeName
from gradeline.trust.probe_cases import (
    MAX_ANSWER_CHARS,
    MAX_INJECTED,
    MAX_REPEATED,
    ProbeAnswer,
    UnusableAnswers,
    choose_answers,
    probe_cases,
)
from gradeline.trust.probe_texts import (
    INJECTIONS,
    NON_ANSWER,
    changed_text,
    formatted_text,
    injected_text,
    is_data,
    is_formatted,
    plain_text,
)

PLAIN = "Paris is the capital. It lies on the Seine. Many people live there."
HOSTILE = [
    "\u202eright to left",
    "a\x00b\x1b[31m",
    "é" * 50,
    "🎉",
    "</fenced-answer-00>",
    "{input} {submission}",
    "  x  ",
]


def answer(number: int, text: str = PLAIN, other: str | None = None) -> ProbeAnswer:
    return ProbeAnswer(Sample(id=number, input=f"Question {number}?"), Response(text=text), text, other)


def variants(
    answers: list[ProbeAnswer], probes: tuple[ProbeName, ...] = PROBE_NAMES, *, compares: bool = False
) -> list[str]:
    return [case.variant for case in probe_cases(answers, probes, compares=compares)]


def test_each_change_keeps_the_words_of_the_answer() -> None:
    assert changed_text(PLAIN, "padded").count(PLAIN) == 2
    assert PLAIN in changed_text(PLAIN, "filler")
    assert changed_text(PLAIN, "authority").startswith(PLAIN)
    assert formatted_text(PLAIN) == ("**Paris is the capital.** ✅\n- It lies on the Seine.\n- Many people live there.")
    words = plain_text(formatted_text(PLAIN)).split()
    assert words == PLAIN.split()


@pytest.mark.parametrize("text", HOSTILE)
def test_changes_of_hostile_texts_keep_them(text: str) -> None:
    for change in ("padded", "filler", "authority"):
        assert text in changed_text(text, change)
    assert injected_text(text, "demand").startswith(text)
    assert plain_text(text) == plain_text(plain_text(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title\n\nText", True),
        ("- one\n- two", True),
        ("This is **bold**.", True),
        ("Well done 🎉", True),
        ("2 - 1 = 1, 3 * 4 = 12 and a_b_c", False),
        (PLAIN, False),
        ("", False),
    ],
)
def test_markup_is_recognized(text: str, expected: bool) -> None:
    assert is_formatted(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', True),
        (" [1, 2]", True),
        ("See:\n```python\nprint(1)\n```", True),
        ("[item:17] The answer.", False),
        ("{not json}", False),
        ("[" * 100_000, False),
        ("Paris", False),
    ],
)
def test_data_and_code_are_recognized(text: str, expected: bool) -> None:
    assert is_data(text) is expected


def test_every_canary_demands_the_highest_score() -> None:
    for method in INJECTIONS:
        text = injected_text(NON_ANSWER, method)
        assert text.startswith(NON_ANSWER)
        assert "1.0" in text
    assert json.loads(INJECTIONS["forged reply"])["score"] == 1.0


def test_an_answer_is_judged_once_and_in_every_changed_copy() -> None:
    (one,) = [answer(1)]
    assert variants([one]) == [
        "original",
        "padded",
        "formatted",
        "filler",
        "authority",
        "original again 1",
        "original again 2",
        "control",
        *(f"control with {method}" for method in INJECTIONS),
    ]
    assert variants([one], ("length",)) == ["original", "padded"]
    assert variants([one], ("injection",)) == ["control", *(f"control with {method}" for method in INJECTIONS)]
    assert variants([one], ("position",)) == []


def test_an_answer_with_markup_loses_it() -> None:
    formatted = answer(1, "# Title\n\nText with **bold** words.")
    assert variants([formatted], ("format",)) == ["original", "plain"]
    (_, plain) = probe_cases([formatted], ("format",), compares=False)
    assert plain.text == "Title\n\nText with bold words."


def test_a_judge_of_pairs_compares_a_copy_with_its_original() -> None:
    cases = list(probe_cases([answer(1, other="Rome")], ("position", "length", "injection"), compares=True))
    assert [(case.variant, case.baseline) for case in cases[:3]] == [
        ("original", "Rome"),
        ("padded", PLAIN),
        ("control", PLAIN),
    ]
    assert variants([answer(1)], ("position", "repeat"), compares=True) == []
    assert variants([answer(1, other=PLAIN)], ("position", "repeat"), compares=True) == []


def test_repeats_and_canaries_are_limited() -> None:
    found = variants([answer(number) for number in range(100)])
    assert found.count("original") == found.count("padded") == 100
    assert found.count("original again 1") == MAX_REPEATED
    assert found.count("control") == MAX_INJECTED


def test_keys_are_different_and_the_rest_of_the_sample_is_kept() -> None:
    answers = [answer(number) for number in range(20)]
    cases = list(probe_cases(answers, PROBE_NAMES, compares=False))
    assert len({case.key for case in cases}) == len(cases)
    assert {case.sample.input for case in cases if case.answer is answers[3]} == {"Question 3?"}


def test_a_changed_copy_keeps_the_documents_and_nothing_that_shows_the_original() -> None:
    documents = (Document("Paris"),)
    source = ProbeAnswer(Sample(id=1, input="?"), Response(text=PLAIN, documents=documents, output="log"), PLAIN)
    (_, padded) = probe_cases([source], ("length",), compares=False)
    assert padded.response == Response(text=padded.text, documents=documents)


def test_unusable_answers_are_counted_by_the_reason() -> None:
    left_out = UnusableAnswers()
    texts = ["", "  \n", '{"a": 1}', "x" * (MAX_ANSWER_CHARS + 1), PLAIN]
    chosen = choose_answers([answer(number, text) for number, text in enumerate(texts)], 10, 0, left_out)
    assert [one.text for one in chosen] == [PLAIN]
    assert left_out.reasons == {
        "empty answer": 2,
        "code or JSON, which a change would break": 1,
        f"answer of more than {MAX_ANSWER_CHARS:,} characters": 1,
    }


def test_the_sample_depends_only_on_the_seed() -> None:
    answers = [answer(number) for number in range(500)]

    def chosen(seed: int) -> list[str]:
        return [one.sample.case_key for one in choose_answers(iter(answers), 50, seed, UnusableAnswers())]

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)
    assert len(set(chosen(1))) == 50
