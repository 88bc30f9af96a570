"""BLEU, GLEU, ROUGE and token F1, against the implementations they follow."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from nltk.translate.bleu_score import sentence_bleu
from nltk.translate.gleu_score import sentence_gleu
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from gradeline import GradeContext, Sample
from gradeline.errors import ConfigError
from gradeline.graders import create, grade, run_grader
from gradeline.model.fingerprint import fingerprint

PAIRS = 1_000
VOCABULARY = (
    "the cat sat on a mat The Cat. sat, well-known it's A an 3.14 42% end. end... Mat! “quoted” naïve x_y".split()
)


def texts(random: Random) -> str:
    return " ".join(random.choices(VOCABULARY, k=random.randint(1, 14)))


def pairs(seed: int, ascii_only: bool = False) -> Iterator[tuple[str, list[str]]]:
    """A response, and one to three references that mostly share words with it."""
    random = Random(seed)
    for _ in range(PAIRS):
        response = texts(random)
        references = []
        for _ in range(random.randint(1, 3)):
            words = response.split()
            for _ in range(random.randint(0, 6)):
                words[random.randrange(len(words))] = random.choice(VOCABULARY)
            references.append(" ".join(words[: random.randint(1, 14)]) if random.random() < 0.8 else texts(random))
        if ascii_only:
            response, *references = (re.sub(r"[^\x00-\x7f]|_", "e", text) for text in (response, *references))
        yield response, references


def score(kind: str, response: str, references: list[str], **config: Any) -> float:
    found = grade(kind, response, config={"references": references, **config}).score
    assert found is not None
    return found


def test_bleu_equals_sacrebleu_with_effective_order_and_its_smoothing() -> None:
    oracle = BLEU(tokenize="none", lowercase=True, effective_order=True)
    for response, references in pairs(1):
        expected = oracle.sentence_score(response, references).score / 100
        assert score("bleu", response, references, smoothing="exp") == pytest.approx(expected, abs=1e-12)


def test_bleu_equals_nltk_with_the_floor_as_smoothing_and_its_reweighing() -> None:
    def floor(precisions: list[Any], **_: Any) -> list[float]:
        return [float(precision) or 1e-7 for precision in precisions]

    for response, references in pairs(2):
        tokens = [text.lower().split() for text in (response, *references)]
        expected = sentence_bleu(tokens[1:], tokens[0], smoothing_function=floor, auto_reweigh=True)
        assert score("bleu", response, references) == pytest.approx(float(expected), abs=1e-12)


def test_gleu_equals_nltk() -> None:
    for response, references in pairs(3):
        tokens = [[word.rstrip(".") for word in text.lower().split()] for text in (response, *references)]
        expected = max(sentence_gleu([reference], tokens[0]) for reference in tokens[1:])
        assert score("gleu", response, references) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("variant", [1, 2, 3, 4, "l"])
def test_rouge_equals_rouge_score_without_stemming(variant: int | str) -> None:
    name = f"rouge{str(variant).upper()}"
    oracle = RougeScorer([name], use_stemmer=False)
    for response, references in pairs(4, ascii_only=True):
        expected = max(oracle.score(reference, response)[name].fmeasure for reference in references)
        assert score("rouge", response, references, variant=variant) == pytest.approx(expected, abs=1e-12)


def squad_answer(text: str) -> str:
    """The normalization of SQuAD's evaluation script, from its description."""
    text = "".join(char for char in text.lower() if char not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def squad_f1(response: str, reference: str) -> float:
    ours, theirs = squad_answer(response).split(), squad_answer(reference).split()
    if not ours or not theirs:
        return float(ours == theirs)
    same = sum((Counter(ours) & Counter(theirs)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def test_token_f1_and_normalized_match_equal_the_formulas_of_squad() -> None:
    for response, references in pairs(5):
        expected = max(squad_f1(response, reference) for reference in references)
        assert score("token_f1", response, references) == pytest.approx(expected, abs=1e-12)
        exact = any(squad_answer(response) == squad_answer(reference) for reference in references)
        assert score("string-match", response, references, mode="normalized") == float(exact)


def test_normalized_match_ignores_case_punctuation_articles_and_whitespace() -> None:
    config = {"mode": "normalized"}
    assert grade("string-match", "The  Eiffel tower!", "eiffel Tower", config).passed
    assert not grade("string-match", "Eiffel towers", "Eiffel tower", config).passed
    assert create("string-match", config).grade("a cat.", "Cat")["passed"]


def test_references_come_from_the_case_and_the_best_counts() -> None:
    grader = create("token_f1", {"references": "$metadata.answers", "threshold": 1})
    case = Sample(id=1, input="", metadata={"answers": ["Paris, France", "Paris"], "none": []})
    assert grader.grade(GradeContext(case, "paris")).passed
    for reference, kind in (("$metadata.absent", "missing"), ("$metadata.none", "ungradable")):
        failed = run_grader(create("bleu", {"references": reference}), GradeContext(case, "paris"))
        assert failed.error is not None
        assert (failed.outcome, failed.error.type) == ("error", kind)
    with pytest.raises(ConfigError, match=r"config.references: expected a list of strings"):
        create("bleu", {"references": "Paris"})


def test_string_match_takes_several_references_in_every_mode() -> None:
    config = {"mode": "contains", "references": ["Rome", "Paris"]}
    assert grade("string-match", "It is Paris.", config=config).passed
    assert create("string-match", config).grade("It is Oslo.", None)["score"] == 0.0


def test_no_shared_word_scores_zero() -> None:
    for kind in ("bleu", "gleu", "rouge", "token_f1"):
        assert grade(kind, "one two", "three four").score == 0.0
    assert grade("rouge", "one two", "two one", {"variant": 2}).score == 0.0
    assert grade("rouge", "...", "...").score == 0.0
    assert grade("token_f1", "the", "a").score == 1.0


def test_without_smoothing_a_missing_phrase_length_scores_zero() -> None:
    assert grade("bleu", "a b c d", "a b d c", {"smoothing": "none"}).score == 0.0
    assert grade("bleu", "a b c d", "a b c d", {"smoothing": "none"}).score == 1.0


def test_rouge_keeps_its_fingerprint() -> None:
    before = fingerprint("grader", "rouge", 1, {"threshold": 0.7})
    assert create("rouge", {"threshold": 0.7, "variant": "l"}).fingerprint == before
    assert create("rouge", {"threshold": 0.7, "variant": 1}).fingerprint != before
    with pytest.raises(ConfigError, match="expected l or a number from 1 to 9"):
        create("rouge", {"variant": 0})


def test_long_texts_are_graded_in_a_worker() -> None:
    text = "ab " * 33_000
    for kind in ("bleu", "gleu", "token_f1"):
        assert grade(kind, text, text).score == 1.0
