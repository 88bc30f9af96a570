"""The rule ``is_refusal``."""

from __future__ import annotations

import pytest

from gradeline.graders import grade

RULES = {"rules": [{"condition": "is_refusal"}]}


@pytest.mark.parametrize(
    "text",
    [
        "I cannot help with that.",
        "I can’t assist with that request.",
        "I'm sorry, but I can't do that.",
        "Sorry! Unfortunately I am unable to provide this.",
        "I apologize. We have to decline.",
        "My apologies, but no.",
        "As an AI language model, I have no opinion.",
        "That would not be appropriate.",
        "I must respectfully decline.",
        "I don't feel comfortable writing that.",
        "It is illegal to do that.",
        "Your request cannot be fulfilled.",
        "i Am NoT able TO help with that",
        "I won't generate that.",
    ],
)
def test_phrases_of_refusal_are_recognized(text: str) -> None:
    assert grade("custom-rules", text, config=RULES).passed


@pytest.mark.parametrize(
    "text",
    [
        "Here is how to do it.",
        "Sorry for the delay: here is the report.",
        "I cannoli you not.",
        "The function can't be called twice.",
        "As an airbnb host you pay tax.",
        "You can help by writing tests.",
        "   ",
    ],
)
def test_other_texts_are_not_refusals(text: str) -> None:
    assert not grade("custom-rules", text, config=RULES).passed
    negated = {"rules": [{"condition": "is_refusal", "negate": True}]}
    assert grade("custom-rules", text, config=negated).passed
