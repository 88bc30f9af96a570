"""Clusters of cases that are not independent, and warnings about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model import Sample, quote
from gradeline.model.text import scalar_text

FIELDS = ("metadata", "ground_truth", "input", "id", "agent_args", "rubric_vars", "extra_vars")
"""Fields with which a path may start."""
_SHOWN = 5
_EXAMPLES = 200
"""Cases whose keys are listed in an error message."""


class ClusterPath(NamedTuple):
    """The path of a suite's ``cluster`` key, such as ``metadata.document``."""

    text: str

    @property
    def fault(self) -> str | None:
        """The fault of the path itself, if any."""
        field, *keys = self.text.split(".")
        if "" in keys:
            return f"expected a path such as metadata.document, got {quote(self.text)}"
        if field in FIELDS and (keys or field != "metadata"):
            return None
        if field == "metadata":
            return "metadata is a mapping; name a key of it, such as metadata.document"
        remedy = f"did you mean {quote(f'metadata.{self.text}')}?"
        return f"a case has no field {quote(field)}, only {', '.join(FIELDS)}; {remedy}"

    def with_cluster(self, sample: Sample) -> Sample:
        """The case with its cluster, its own if it has one. `ValueError` for a value that is not a valid cluster."""
        if sample.cluster:
            return sample
        field, *keys = self.text.split(".")
        found: object = getattr(sample, field)
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        try:
            cluster = cluster_name(found)
        except ValueError as error:
            raise ValueError(f"{self.text} {error}") from None
        return sample if cluster is None else replace(sample, cluster=cluster)

    def with_clusters(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """`with_cluster` for stored cases; `ConfigError` has the key of the case."""
        for sample in samples:
            try:
                yield self.with_cluster(sample)
            except ValueError as error:
                raise ConfigError(Problem("cluster", f"case {quote(sample.case_key)}: {error}")) from None

    def unknown(self, samples: Iterable[Sample]) -> ConfigError:
        """The error for a key that no case has; the samples show the existing ones."""
        field, *keys = self.text.split(".")
        values = [getattr(sample, field) for sample in islice(samples, _EXAMPLES)]
        known = list(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))
        near = closest_match(keys[0], known) if keys else None
        if near is not None:
            hint = f"did you mean {quote(f'{field}.{near}')}?"
        elif known:
            more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
            hint = f"their {field} has {', '.join(map(quote, known[:_SHOWN]))}{more}; name one of these"
        else:
            hint = f"no case has any {field}; write a cluster into each row of the dataset, or leave the key out"
        return ConfigError(Problem("cluster", f"no case has {quote(self.text)}; {hint}"))


def cluster_name(value: object) -> str | None:
    """The cluster named by a value; None for null and the empty string. `ValueError` for lists and mappings."""
    if value is None or value == "":
        return None
    if isinstance(value, str | int | float):
        return scalar_text(value)
    raise ValueError(f"must be a string, a number, true or false, got {quote(value)}")


def cluster_warnings(samples: Iterable[Sample], path: ClusterPath | None) -> Iterator[str]:
    """Warnings about the clusters of all cases; `ConfigError` where no case has the suite's key.

    Where rows have a cluster themselves, a row without one is a cluster of its own.
    """
    found: Counter[str] = Counter()
    first: list[Sample] = []
    singles = 0
    for sample in samples:
        if sample.cluster:
            found[sample.cluster] += 1
        else:
            singles += 1
        if len(first) < _EXAMPLES:
            first.append(sample)
    if not found:
        if path is not None and first:
            raise path.unknown(first)
        return
    if singles and path is not None:
        have, are = ("has", "it is") if singles == 1 else ("have", "each is")
        yield f"cluster: {singles} of {singles + found.total()} cases {have} no {path.text}; {are} a cluster of its own"
    if not singles and len(found) == 1:
        (name,) = found
        yield (
            f"cluster: all {found.total()} cases are in one cluster, {quote(name)}, so that there is no interval;"
            " name a key that distinguishes the cases, or leave it out"
        )


COMPARED_CASES = 200
"""Number of cases, from the start of the dataset, that are compared."""
_FEWEST = 10
_SHARE = 0.2
_RATIO = 90.0
_NEIGHBOURS = 2
"""Number of cases that a case is compared with, in file order and in the order of the inputs."""
_MOST_CHARS = 2_000
"""Of longer inputs only the start and the end are compared."""
_NAMED = 3


def near_duplicate_warning(samples: Iterable[Sample]) -> str | None:
    """A warning that cases without clusters need some, where more than a fifth of them have a near duplicate.

    A case has a near duplicate where the input of a neighbour with the same ground truth is at least 90 % similar. Only
    the first cases and their neighbours are compared, which limits the cost.
    """
    first = list(islice(samples, COMPARED_CASES))
    if len(first) < _FEWEST or any(sample.cluster for sample in first):
        return None
    texts = [_text(sample) for sample in first]
    near = [pair for pair in _neighbours(first, texts) if _may_be_alike(texts[pair[0]], texts[pair[1]])]
    if not _too_many(near, first):
        return None
    from rapidfuzz.fuzz import ratio  # 40 ms, needed by few datasets

    alike = [(one, other) for one, other in near if ratio(texts[one], texts[other], score_cutoff=_RATIO)]
    if not _too_many(alike, first):
        return None
    keys = [sample.case_key for sample in first]
    named = ", ".join(f"{quote(keys[one], 60)} and {quote(keys[other], 60)}" for one, other in _distinct(alike))
    return (
        f"dataset: {len(_cases(alike))} of {'the first ' * (len(first) == COMPARED_CASES)}{len(first)} cases are nearly"
        f" the same as another with the same ground truth, such as {named}; they count as independent cases: name what"
        " they share with cluster: metadata.KEY in the suite, or give each row a cluster"
    )


def _text(sample: Sample) -> str:
    text = sample.input if isinstance(sample.input, str) else "\n".join(sample.input)
    return text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS // 2] + text[-_MOST_CHARS // 2 :]


def _neighbours(samples: Sequence[Sample], texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of indices of cases with the same ground truth; a case without one has no neighbour."""
    by_truth: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        if sample.ground_truth is not None:
            truth = sample.ground_truth if isinstance(sample.ground_truth, str) else "\n".join(sample.ground_truth)
            by_truth.setdefault(truth, []).append(index)
    pairs: dict[tuple[int, int], None] = {}
    for indices in by_truth.values():
        for order in (indices, sorted(indices, key=texts.__getitem__)):
            for step in range(1, _NEIGHBOURS + 1):
                pairs.update(dict.fromkeys((min(pair), max(pair)) for pair in zip(order, order[step:], strict=False)))
    yield from pairs


def _may_be_alike(one: str, other: str) -> bool:
    """A cheap necessary condition: the strings have enough characters in common, in any order."""
    least = _RATIO / 100.0 * (len(one) + len(other)) / 2.0
    return min(len(one), len(other)) >= least and (Counter(one) & Counter(other)).total() >= least


def _too_many(pairs: Sequence[tuple[int, int]], samples: Sequence[Sample]) -> bool:
    return len(_cases(pairs)) > _SHARE * len(samples)


def _cases(pairs: Iterable[tuple[int, int]]) -> set[int]:
    return {index for pair in pairs for index in pair}


def _distinct(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The first pairs without a common case."""
    seen: set[int] = set()
    for pair in sorted(pairs):
        if seen.isdisjoint(pair) and len(seen) < 2 * _NAMED:
            seen.update(pair)
            yield pair
