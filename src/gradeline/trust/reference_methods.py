"""Methods that replace people's labels when a judge is calibrated: exact match, inclusion, embedding similarity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Literal, NamedTuple

from gradeline.errors import ConfigError, Problem
from gradeline.graders.text_overlap import squad_normal
from gradeline.model.grade import PASS_SCORE

ReferenceMethodName = Literal["exact", "inclusion", "embedding"]


class ReferenceMethod(NamedTuple):
    """A method that decides whether an answer is right by the expected values."""

    name: ReferenceMethodName
    passes: Callable[[str, Sequence[str]], bool]
    """Whether the answer matches one of the expected values."""
    validity: str
    """When its verdicts can stand for those of people."""


def _exact(answer: str, expected: Sequence[str]) -> bool:
    found = squad_normal(answer)
    return any(found == squad_normal(value) for value in expected)


def _inclusion(answer: str, expected: Sequence[str]) -> bool:
    found = f" {squad_normal(answer)} "
    values = [squad_normal(value) for value in expected]
    return any(value and f" {value} " in found for value in values)


_VALIDITY: Mapping[ReferenceMethodName, str] = {
    "exact": (
        "exact match, without case, punctuation and articles, fails every right answer in other words: of free text"
        " it can agree with people on one answer in five; valid only where answers are short and have one form"
    ),
    "inclusion": (
        "inclusion of the expected value, without case, punctuation and articles, passes an answer that names the value"
        " and denies it, and fails a right one in other words; valid for short facts"
    ),
    "embedding": (
        "embedding similarity measures the topic, not whether the answer is right: opposites are close; valid only"
        " where you checked its verdicts yourself"
    ),
}


def reference_method(name: ReferenceMethodName) -> ReferenceMethod:
    """The method of that name; `ConfigError` if it needs a package that is not installed."""
    if name == "exact":
        return ReferenceMethod(name, _exact, _VALIDITY[name])
    if name == "inclusion":
        return ReferenceMethod(name, _inclusion, _VALIDITY[name])
    return ReferenceMethod(name, _embedding(), _VALIDITY[name])


def _embedding() -> Callable[[str, Sequence[str]], bool]:
    from gradeline.adapters.registry import OFFLINE, create_embeddings  # only for this method
    from gradeline.judges.embedding import cosine_of_two

    if find_spec(OFFLINE) is None:
        remedy = "install it with pip install 'gradeline[embeddings]', or use exact or inclusion"
        raise ConfigError(Problem("against", f"embedding needs {OFFLINE}, which is not installed; {remedy}"))
    adapter = create_embeddings(OFFLINE)

    def passes(answer: str, expected: Sequence[str]) -> bool:
        pairs = (adapter.embed([answer, value]) for value in expected)
        return any(cosine_of_two(vectors, adapter.adapter_id) >= PASS_SCORE for vectors in pairs)

    return passes
