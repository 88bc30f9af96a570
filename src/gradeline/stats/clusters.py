"""Paired scores of cases that belong to clusters: the clusters are independent of each other, their cases are not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import fsum
from typing import NamedTuple

from gradeline.stats.changes import Range, Weighed, weigh

MIN_CLUSTERS = 6
"""With fewer clusters nothing is decided: even if all change in one direction, chance does so in 1 of 16 times."""

_DECIMALS = 9
"""A smaller difference of scores is rounding."""


class ClusterChanges(NamedTuple):
    """What the differences of clusters tell of the mean difference over the cases."""

    differences: tuple[float, ...]
    """One for each cluster: the sum over its cases, divided by the mean number of cases of a cluster."""
    found: Weighed
    """The test of the differences as parts of the greatest possible one."""
    largest: float
    """The greatest possible difference of a cluster: 1 where all are of the same size."""

    @property
    def test(self) -> str:
        return self.found.test

    @property
    def p(self) -> float:
        return self.found.p

    @property
    def interval(self) -> Range:
        """The 95 % interval of the mean difference."""
        low, high = self.found.interval
        return max(-1.0, low * self.largest), min(1.0, high * self.largest)


def weigh_clusters(differences: Sequence[float], clusters: Sequence[Hashable]) -> ClusterChanges:
    """Test differences of cases, as `stats.changes.changes_of` gives them, with the cluster as the unit.

    Up to 15 clusters that changed, every sign is tried; with more it is Student's over the clusters.
    """
    if len(differences) != len(clusters):
        raise ValueError(f"{len(differences)} differences but {len(clusters)} clusters; give one for each")
    members: dict[Hashable, list[float]] = {}
    for cluster, difference in zip(clusters, differences, strict=True):
        members.setdefault(cluster, []).append(difference)
    size = len(differences) / len(members)
    largest = max(map(len, members.values())) / size
    sums = tuple(fsum(group) / size for group in members.values())
    return ClusterChanges(
        sums, weigh([round(total / largest, _DECIMALS) for total in sums], pass_or_fail=False), largest
    )
