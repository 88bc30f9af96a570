"""A warning for cases that are nearly the same and have no cluster: they count as independent, and are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from gradeline.model import Sample, quote

LOOKED_AT = 200
"""The first cases of a dataset: enough to see how it is made."""
_FEWEST = 10
_SHARE = 0.2
_RATIO = 90.0
_NEIGHBOURS = 2
"""Cases that a case is compared with, in the order of the file and in that of their texts."""
_MOST_CHARS = 2_000
"""Of longer inputs only the beginning and the end are compared."""
_NAMED = 3


def near_duplicate_warning(samples: Iterable[Sample]) -> str | None:
    """Says that cases need clusters where more than a fifth of them has a near duplicate; None where not, or they have.

    A case has a near duplicate where the input of a neighbour with the same ground truth is at least 90 % like its own.
    Only the first cases are looked at, and of each only its neighbours: the cost is bounded, and the answer always the
    same.
    """
    first = list(islice(samples, LOOKED_AT))
    if len(first) < _FEWEST or any(sample.cluster for sample in first):
        return None
    texts = [_text(sample) for sample in first]
    near = [pair for pair in _neighbours(first, texts) if _may_be_alike(texts[pair[0]], texts[pair[1]])]
    if not _are_many(near, first):
        return None
    from rapidfuzz.fuzz import ratio  # 40 ms, needed by few datasets

    alike = [(one, other) for one, other in near if ratio(texts[one], texts[other], score_cutoff=_RATIO)]
    if not _are_many(alike, first):
        return None
    keys = [sample.case_key for sample in first]
    named = ", ".join(f"{quote(keys[one], 60)} and {quote(keys[other], 60)}" for one, other in _distinct(alike))
    return (
        f"dataset: {len(_cases(alike))} of {'the first ' * (len(first) == LOOKED_AT)}{len(first)} cases are nearly the"
        f" same as another with the same ground truth, such as {named}; they count as independent cases: name what they"
        " share with cluster: metadata.KEY in the suite, or give each row a cluster"
    )


def _text(sample: Sample) -> str:
    asked = sample.input if isinstance(sample.input, str) else "\n".join(sample.input)
    return asked if len(asked) <= _MOST_CHARS else asked[: _MOST_CHARS // 2] + asked[-_MOST_CHARS // 2 :]


def _neighbours(samples: Sequence[Sample], texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of places with the same ground truth; a case without one is like no other."""
    by_truth: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        if sample.ground_truth is not None:
            truth = sample.ground_truth if isinstance(sample.ground_truth, str) else "\n".join(sample.ground_truth)
            by_truth.setdefault(truth, []).append(place)
    pairs: dict[tuple[int, int], None] = {}
    for places in by_truth.values():
        for order in (places, sorted(places, key=texts.__getitem__)):
            for step in range(1, _NEIGHBOURS + 1):
                pairs.update(dict.fromkeys((min(pair), max(pair)) for pair in zip(order, order[step:], strict=False)))
    yield from pairs


def _may_be_alike(one: str, other: str) -> bool:
    """Whether the texts have enough characters in common, in whatever order."""
    least = _RATIO / 100.0 * (len(one) + len(other)) / 2.0
    return min(len(one), len(other)) >= least and (Counter(one) & Counter(other)).total() >= least


def _are_many(pairs: Sequence[tuple[int, int]], samples: Sequence[Sample]) -> bool:
    return len(_cases(pairs)) > _SHARE * len(samples)


def _cases(pairs: Iterable[tuple[int, int]]) -> set[int]:
    return {place for pair in pairs for place in pair}


def _distinct(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The first pairs that have no case in common."""
    seen: set[int] = set()
    for pair in sorted(pairs):
        if seen.isdisjoint(pair) and len(seen) < 2 * _NAMED:
            seen.update(pair)
            yield pair
