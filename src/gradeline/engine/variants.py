"""Which variants of a suite are run: each is one run, and several are a group."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gradeline.engine.components import UNRESTRICTED, Access, InProcessCode
from gradeline.engine.definition import RunOptions
from gradeline.engine.prepare import LoadedCode, prepare
from gradeline.engine.validation import placed_problems
from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model import Storage, quote
from gradeline.suite.problems import SuiteProblem
from gradeline.suite.spec import SuiteDefinition, TargetSpec, Variant

VARIANT = "--variant"


class SuiteCheck(NamedTuple):
    """The faults and warnings of a suite that could be read."""

    problems: list[SuiteProblem]
    warnings: list[str]


def variants_to_run(suite: SuiteDefinition, options: RunOptions) -> tuple[Variant, ...]:
    """The configuration of each run of a suite; `ConfigError` for a name that the suite does not have.

    ``variants`` of the options select by name; the name of a variant, a prompt or a model that is part of several
    names, or several of these joined, selects all of them.
    """
    known = _all_variants(suite, options)
    chosen: dict[str | None, Variant] = {}
    problems: list[Problem] = []
    for wanted in options.variants:
        found = [one for one in known if one.name == wanted] or [one for one in known if one.has(wanted)]
        if not found:
            problems.append(Problem(VARIANT, _unknown(wanted, known)))
        chosen |= {one.name: one for one in found}
    if problems:
        raise ConfigError(problems)
    return tuple(one for one in known if one.name in chosen) if options.variants else known


def suite_of_variant(suite: SuiteDefinition, options: RunOptions, *, required: bool = True) -> SuiteDefinition:
    """The suite with the variant of a stored run only.

    Unless ``required``, one that the suite no longer has is replaced by the first.
    """
    known = _all_variants(suite, options)
    name = options.own_variant
    if name is None:
        return suite.with_variant(known[0])
    found = next((one for one in known if one.name == name), None)
    if found is None and required:
        raise ConfigError(Problem(VARIANT, _unknown(name, known)))
    return suite.with_variant(found or known[0])


async def check_variants(
    suite: SuiteDefinition,
    in_process: InProcessCode | None = None,
    access: Access = UNRESTRICTED,
    calibration_store: Storage | None = None,
) -> SuiteCheck:
    """Build what each run of the suite needs, and read its cases, without a call.

    ``calibration_store`` has what judges learned from labels.
    """
    problems: dict[SuiteProblem, None] = {}
    warnings: dict[str, None] = {}
    code: list[LoadedCode] = []
    for variant in suite.run_variants():
        one = suite.with_variant(variant)
        try:
            preparing = prepare(
                one,
                RunOptions(),
                access=access,
                in_process=in_process,
                loaded_code=code,
                calibration_store=calibration_store,
            )
            async with preparing as prepared:
                code.append(prepared.code)
                prepared.require_cases()
                for _ in prepared.samples():
                    pass
                warnings |= dict.fromkeys(prepared.cluster_warnings())
                warnings |= dict.fromkeys(prepared.rubric_warnings())
                warnings |= dict.fromkeys(prepared.condition_warnings())
                warnings |= dict.fromkeys(prepared.notes)
        except ConfigError as error:
            problems |= dict.fromkeys(placed_problems(error, one))
    return SuiteCheck(list(problems), list(warnings))


def _all_variants(suite: SuiteDefinition, options: RunOptions) -> tuple[Variant, ...]:
    if options.cached is None:
        return suite.run_variants(options.chosen_models)
    from gradeline.letta.cache import models_in  # few runs read letta's results

    stored = Variant(None, TargetSpec(kind="replay", config={"cached": options.cached}))
    return tuple(map(stored.with_model, options.chosen_models or models_in(Path(options.cached)))) or (stored,)


def _unknown(name: str, known: tuple[Variant, ...]) -> str:
    names = [one.name for one in known if one.name is not None]
    if not names:
        return f"no variant {quote(name)}: the suite has no variants; list them under variants, prompts or models"
    near = closest_match(name, names)
    hint = f"did you mean {near!r}?" if near else f"the variants are {', '.join(names[:20])}"
    return f"no variant {quote(name)}; {hint}"
