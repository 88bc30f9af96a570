"""Which cases belong together: the cluster of each, by the path that a suite names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model import Sample, quote
from gradeline.model.text import scalar_text

FIELDS = ("metadata", "ground_truth", "input", "id", "agent_args", "rubric_vars", "extra_vars")
"""Those that a path may begin with."""
_SHOWN = 5
_EXAMPLES = 200
"""Cases whose keys are looked at for an error message."""


class ClusterPath(NamedTuple):
    """The path of a suite's ``cluster`` key, such as ``metadata.document``."""

    text: str

    @property
    def fault(self) -> str | None:
        """What is wrong with the path itself."""
        field, *keys = self.text.split(".")
        if "" in keys:
            return f"expected a path such as metadata.document, got {quote(self.text)}"
        if field in FIELDS and (keys or field != "metadata"):
            return None
        if field == "metadata":
            return "metadata is a mapping; name a key of it, such as metadata.document"
        remedy = f"did you mean {quote(f'metadata.{self.text}')}?"
        return f"a case has no field {quote(field)}, only {', '.join(FIELDS)}; {remedy}"

    def clustered(self, sample: Sample) -> Sample:
        """The case with its cluster; what the case itself gives wins. `ValueError` for a value that names none."""
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

    def of_cases(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """`clustered` of stored cases; `ConfigError` names the case."""
        for sample in samples:
            try:
                yield self.clustered(sample)
            except ValueError as error:
                raise ConfigError(Problem("cluster", f"case {quote(sample.case_key)}: {error}")) from None

    def unknown(self, samples: Iterable[Sample]) -> ConfigError:
        """No case has the key; the samples show which others there are."""
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
    """The cluster that a value names; None for no value. `ValueError` where it cannot name one."""
    if value is None or value == "":
        return None
    if isinstance(value, str | int | float):
        return scalar_text(value)
    raise ValueError(f"must be a string, a number, true or false, got {quote(value)}")


def cluster_warnings(samples: Iterable[Sample], path: ClusterPath | None) -> Iterator[str]:
    """What a person should know of the clusters of all cases; `ConfigError` where no case has the suite's key.

    Where the rows themselves give clusters, one without is meant to be a cluster of its own.
    """
    found: Counter[str] = Counter()
    first: list[Sample] = []
    alone = 0
    for sample in samples:
        if sample.cluster:
            found[sample.cluster] += 1
        else:
            alone += 1
        if len(first) < _EXAMPLES:
            first.append(sample)
    if not found:
        if path is not None and first:
            raise path.unknown(first)
        return
    if alone and path is not None:
        have, are = ("has", "it is") if alone == 1 else ("have", "each is")
        yield f"cluster: {alone} of {alone + found.total()} cases {have} no {path.text}; {are} a cluster of its own"
    if not alone and len(found) == 1:
        (name,) = found
        yield (
            f"cluster: all {found.total()} cases are in one cluster, {quote(name)}, so that no interval can be made;"
            " name a key that tells the cases apart, or leave it out"
        )
