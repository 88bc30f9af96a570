"""The cases of observations that were kept without them: those of runs that are still in the store can be found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from gradeline.model.codec import from_json
from gradeline.model.observation import judged_key, prompt_key
from gradeline.model.run import Run
from gradeline.model.sample import Sample


class _Definition(msgspec.Struct):
    baselines: dict[str, str] = {}


def comparing_graders(run: str) -> frozenset[str]:
    """The graders of a run, given as JSON, whose grades are observations: those that compare with a baseline."""
    try:
        definition = msgspec.json.decode(from_json(Run, run).definition or "{}", type=_Definition)
    except ValueError:
        return frozenset()
    return frozenset(definition.baselines)


def found_case_keys(run: str, grades: Iterable[tuple[str, int, str, str]]) -> Iterator[tuple[str, str]]:
    """The case key of each grade and the key of its observation; a grade is (case, repeat, grader, sample)."""
    for case, repeat, grader, sample in grades:
        yield prompt_key(from_json(Sample, sample).input), judged_key(run, case, repeat, grader)
