"""The cases of a probe: for each answer the original, and copies with one thing changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple

import msgspec

from gradeline.model import Response, Sample
from gradeline.model.probe import ProbeName
from gradeline.trust.probe_texts import (
    INJECTIONS,
    NON_ANSWER,
    Change,
    changed_text,
    injected_text,
    is_data,
    is_formatted,
)

ORIGINAL, CONTROL = "original", "control"
REPEATS = 2
"""Further verdicts on the same answer."""
MAX_REPEATED = 60
"""Answers that are judged repeatedly."""
MAX_INJECTED = 10
"""Cases with canaries; each has one for every method."""
MAX_ANSWER_CHARS = 20_000
"""Longer answers are left out: padded copies of them would be expensive."""
TEXT_PROBES: dict[ProbeName, Change] = {
    "length": "padded",
    "format": "formatted",
    "verbosity": "filler",
    "authority": "authority",
}
"""The probes that change an answer, and the change."""
_PAIRED: frozenset[ProbeName] = frozenset({"length", "format", "verbosity", "authority", "repeat", "self_preference"})
"""The probes that need a verdict on the original answer."""


class ProbeAnswer(NamedTuple):
    """An answer to probe a judge with."""

    sample: Sample
    response: Response
    text: str
    other: str | None = None
    """Another answer to the same case, for judges of two answers."""


class ProbeCase(NamedTuple):
    """One verdict to ask for: an answer, or a changed copy."""

    variant: str
    answer: ProbeAnswer
    text: str
    baseline: str | None
    """The answer that a judge of two answers compares with."""

    @property
    def key(self) -> str:
        """The ID of its case in the probe's run."""
        return f"{self.variant}: {self.answer.sample.case_key}"

    @property
    def sample(self) -> Sample:
        return msgspec.structs.replace(self.answer.sample, id=self.key)

    @property
    def response(self) -> Response:
        """The agent's response with the changed text, and nothing that shows the original."""
        documents = self.answer.response.documents
        return Response(text=self.text, documents=documents)


class UnusableAnswers:
    """Counts the answers that cannot be used, by the reason."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}

    def add(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


def choose_answers(
    answers: Iterable[ProbeAnswer], count: int, seed: int, left_out: UnusableAnswers
) -> list[ProbeAnswer]:
    """A random sample of the usable answers, in a random order, the same for the same seed; in constant memory."""
    random = Random(seed)  # noqa: S311 - a sample, not a key
    chosen: list[ProbeAnswer] = []
    seen = 0
    for answer in answers:
        reason = _unusable(answer.text)
        if reason is not None:
            left_out.add(reason)
            continue
        seen += 1
        if len(chosen) < count:
            chosen.append(answer)
        elif (place := random.randrange(seen)) < count:
            chosen[place] = answer
    random.shuffle(chosen)
    return chosen


def _unusable(text: str) -> str | None:
    if not text.strip():
        return "empty answer"
    if len(text) > MAX_ANSWER_CHARS:
        return f"answer of more than {MAX_ANSWER_CHARS:,} characters"
    return "code or JSON, which a change would break" if is_data(text) else None


def probe_cases(
    answers: Sequence[ProbeAnswer], probes: Collection[ProbeName], *, compares: bool
) -> Iterator[ProbeCase]:
    """The verdicts to ask for, case by case. A judge that ``compares`` is shown two answers.

    Such a judge compares each changed copy with its original; it judges the original against another answer, if the
    case has one.
    """
    wanted = [name for name in TEXT_PROBES if name in probes]
    needs_original = bool(_PAIRED.intersection(probes)) if not compares else bool({"position", "repeat"} & set(probes))
    for place, answer in enumerate(answers):
        baseline = answer.other
        has_original = needs_original and not (compares and (baseline is None or baseline == answer.text))
        if has_original:
            yield ProbeCase(ORIGINAL, answer, answer.text, baseline)
        against = answer.text if compares else baseline
        for name in wanted:
            change = change_of(name, answer.text)
            text = changed_text(answer.text, change)
            if text.strip() and text != answer.text:
                yield ProbeCase(change, answer, text, against)
        if "repeat" in probes and has_original and place < MAX_REPEATED:
            for number in range(1, REPEATS + 1):
                yield ProbeCase(f"{ORIGINAL} again {number}", answer, answer.text, baseline)
        if "injection" in probes and place < MAX_INJECTED:
            yield from _canaries(answer, against)


def change_of(probe: ProbeName, text: str) -> Change:
    """The change that a probe makes: an answer with markup loses it."""
    return "plain" if probe == "format" and is_formatted(text) else TEXT_PROBES[probe]


def _canaries(answer: ProbeAnswer, against: str | None) -> Iterator[ProbeCase]:
    """A text that deserves nothing, and the same with instructions to the judge."""
    if answer.text == NON_ANSWER:
        return
    yield ProbeCase(CONTROL, answer, NON_ANSWER, against)
    for method in INJECTIONS:
        yield ProbeCase(f"{CONTROL} with {method}", answer, injected_text(NON_ANSWER, method), against)
