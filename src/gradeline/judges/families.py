"""Whose model a model is, as far as its name tells: judges favour their own family."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_FAMILIES: Mapping[str, str] = {
    "gpt": "openai",
    "chatgpt": "openai",
    "o": "openai",
    "claude": "anthropic",
    "gemini": "google",
    "gemma": "google",
    "llama": "meta",
    "mistral": "mistral",
    "mixtral": "mistral",
    "ministral": "mistral",
    "magistral": "mistral",
    "codestral": "mistral",
    "command": "cohere",
    "phi": "microsoft",
}
"""By the first word of a model's name; a word that is not here is a family of its own."""
_WORD = re.compile(r"[a-z]+")


def family(judge: str) -> str:
    """The family of a model (``claude-sonnet-4``) or of an adapter's id (``openai:gpt-6-luna``)."""
    model = judge.partition(":")[2] or judge
    word = _WORD.search(model.rpartition("/")[2].lower())
    return _FAMILIES.get(word[0], word[0]) if word else judge


def one_family(judges: Iterable[str]) -> str | None:
    """The family that all of them are of; None where there are several."""
    found = {family(judge) for judge in judges}
    return found.pop() if len(found) == 1 else None
