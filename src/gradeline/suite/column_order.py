"""The order of a suite's graders: one that reads the grades of others comes after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from gradeline import graders
from gradeline.graders.registry import ALIASES
from gradeline.suite.spec import GraderSpec


def grader_inputs(spec: GraderSpec) -> tuple[str, ...]:
    """The graders whose grades a grader reads; none if its options are faulty."""
    kind = ALIASES.get(spec.kind, spec.kind)
    if spec.function is not None or kind not in graders.registry:
        return ()
    declaration = graders.registry.get(kind)
    if not issubclass(declaration, graders.DeclaredGrader) or "grades" not in declaration.needs:
        return ()
    if declaration.read(spec.config, "").problems:
        return ()
    return declaration(config=spec.config).inputs


def find_cycle(inputs: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The keys of graders that are computed from each other, the first also as the last; empty if there are none."""
    try:
        TopologicalSorter({key: set(names) for key, names in inputs.items()}).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return tuple(reversed(found))
    return ()


def in_order(specs: Iterable[GraderSpec]) -> list[GraderSpec]:
    """The graders in their own order, but each one after its inputs."""
    waiting = {spec.key: spec for spec in specs}
    ordered: dict[str, GraderSpec] = {}

    def take(spec: GraderSpec) -> None:
        for name in grader_inputs(spec):
            if name in waiting and name not in ordered:
                take(waiting[name])
        ordered.setdefault(spec.key, spec)

    for spec in waiting.values():
        take(spec)
    return list(ordered.values())
