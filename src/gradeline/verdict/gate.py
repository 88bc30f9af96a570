"""Base classes of gates: settings, evidence, results, and the conditions that make a gate undecided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import eq, ge, gt, le, lt
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.model import Config, described
from gradeline.verdict.corrected import LabelledScores
from gradeline.verdict.evidence import (
    AgentErrors,
    JudgeDoubt,
    OrderFinding,
    PairedScores,
    Range,
    ScoreColumn,
    count_failed_calls,
)

Result = Literal["pass", "fail", "undecided"]

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
SHARE = "a number from 0 to 1"


class GateSettings(NamedTuple):
    """Settings of a suite for gates without settings of their own."""

    coverage_floor: float = 0.95
    agent_errors: AgentErrors = "exclude"
    require_calibrated: bool = False
    primary: tuple[str, ...] = ()
    corrected: bool | None = None
    """True: values of judges only count after a correction by labels. None: comparisons use labels where they can."""


class Evidence(NamedTuple):
    """The data for a gate. The first column is that of the first grader.

    ``paired`` is keyed by baseline and grader; ``uncalibrated`` has the graders whose judge is not calibrated, and
    why; ``orders`` has the findings about judges that compare two answers in both orders; ``labelled`` has the labels.
    """

    columns: Mapping[str, ScoreColumn]
    paired: Mapping[tuple[str, str], PairedScores]
    uncalibrated: Mapping[str, JudgeDoubt]
    orders: Mapping[str, OrderFinding]
    settings: GateSettings
    labelled: Mapping[str, LabelledScores] = MappingProxyType({})


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a gate.

    The comparison is ``observed op value``, with shares as fractions; ``observed_ci`` is the 95 % interval of the
    observed value, if it has one. A logical gate has ``conditions`` instead, and ``and`` or ``or`` as its ``op``.
    """

    kind: str
    metric_key: str | None = None
    aggregation: str | None = None
    op: str
    value: float | None = None
    observed: float | None = None
    observed_ci: Range | None = None
    result: Result = "undecided"
    reasons: tuple[str, ...] = ()
    conditions: tuple[GateResult, ...] = ()


class BaseGate(Config, frozen=True, kw_only=True, tag_field="kind"):
    """Settings of any gate; conditions of a logical gate inherit them."""

    coverage_floor: Annotated[
        Share | UnsetType,
        described(
            "Minimum share of grades with a score; below it a pass is undecided (default the suite's).",
            expected=SHARE,
        ),
    ] = UNSET
    agent_errors: Annotated[
        AgentErrors | UnsetType,
        described("Exclude failed agent calls, or count them as a score of 0 (fail)."),
    ] = UNSET
    require_calibrated: Annotated[bool | UnsetType, described("Uncalibrated judges make the gate undecided.")] = UNSET
    corrected: Annotated[
        bool | UnsetType,
        described(
            "Decide on judges' values corrected by labels of this run; undecided where there are too few (default no;"
            " a comparison uses labels where both runs have them).",
            expected="true or false",
        ),
    ] = UNSET

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Allow null for optional settings."""
        for name, option in schema["properties"].items():
            if name not in schema["required"] and name != "kind":
                annotations = {key: option.pop(key) for key in ("description", "default") if key in option}
                schema["properties"][name] = annotations | {"anyOf": [option, {"type": "null"}]}
        return schema

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    def grader_keys(self, graders: Sequence[str]) -> tuple[str, ...]:
        """The graders whose scores it needs; the first grader if it names none."""
        raise NotImplementedError

    def primary(self, graders: Sequence[str]) -> tuple[str, ...]:
        """The graders that decide it, a subset of those it needs."""
        return self.grader_keys(graders)

    def baselines(self) -> tuple[str, ...]:
        """The runs it compares with."""
        return ()

    def warnings(self) -> Iterator[Problem]:
        """Valid settings that are probably mistakes. Paths are relative to the gate."""
        yield from ()

    def evaluate(self, evidence: Evidence) -> GateResult:
        """Pass, fail or undecided, with the reasons."""
        raise NotImplementedError

    def effective_settings(self, settings: GateSettings) -> GateSettings:
        """The settings, overridden by this gate's own."""
        return GateSettings(
            settings.coverage_floor if self.coverage_floor is UNSET else self.coverage_floor,
            settings.agent_errors if self.agent_errors is UNSET else self.agent_errors,
            settings.require_calibrated if self.require_calibrated is UNSET else self.require_calibrated,
            settings.primary,
            settings.corrected if self.corrected is UNSET else self.corrected,
        )

    def corrects(self, key: str, evidence: Evidence) -> bool:
        """Whether this grader's value only counts after a correction by labels.

        A setting of the suite, or of the gate around it, is about judges; the gate's own is about its graders.
        """
        if not evidence.settings.corrected:
            return False
        return self.corrected is True or (key in evidence.labelled and evidence.labelled[key].corrects)


class Finding(NamedTuple):
    """The result by the scores only, regardless of coverage and calibration."""

    result: Result
    reason: str
    observed: float | None = None
    ci: Range | None = None
    further: tuple[str, ...] = ()
    """More reasons."""
    by_labels: frozenset[str] = frozenset()
    """The graders whose values are corrected by labels, so that the judge's own faults do not matter."""


class ScoreGate(BaseGate, frozen=True, kw_only=True):
    """A gate over scores. Subclasses define the observed value and the bound."""

    def outline(self, keys: Sequence[str]) -> GateResult:
        """The result without observations."""
        raise NotImplementedError

    def usable(self, column: ScoreColumn) -> ScoreColumn:
        """The column without scores that the gate cannot use."""
        return column

    @property
    def needed(self) -> str:
        """For the message about low coverage: what too few grades have."""
        return "have a score"

    def measure(self, evidence: Evidence) -> Finding:
        """The finding over the columns of `grader_keys`; each has at least one score."""
        raise NotImplementedError

    def evaluate(self, evidence: Evidence) -> GateResult:
        settings = self.effective_settings(evidence.settings)
        keys = self.grader_keys(tuple(evidence.columns))
        outline = self.outline(keys)
        columns = {
            key: count_failed_calls(evidence.columns[key], settings.agent_errors)
            for key in keys
            if key in evidence.columns
        }
        ungraded = tuple(_ungraded(keys, columns))
        if ungraded:
            biased = tuple(_position_bias(keys, evidence.orders))
            return msgspec.structs.replace(outline, reasons=(*ungraded, *biased))
        columns = {key: self.usable(column) for key, column in columns.items()}
        finding = self.measure(evidence._replace(columns=columns, settings=settings))
        thin = tuple(low_coverage(columns, settings.coverage_floor, self.needed))
        by_judges = [key for key in keys if key not in finding.by_labels]
        biased = tuple(_position_bias(by_judges, evidence.orders))
        doubtful = {key: evidence.uncalibrated[key] for key in by_judges if key in evidence.uncalibrated}
        untrusted = any(
            settings.require_calibrated or doubt.state == "drifted" or doubt.needed_by for doubt in doubtful.values()
        )
        is_open = (thin and finding.result == "pass") or untrusted or biased
        return msgspec.structs.replace(
            outline,
            observed=finding.observed,
            observed_ci=finding.ci,
            result="undecided" if is_open else finding.result,
            reasons=(
                finding.reason,
                *finding.further,
                *thin,
                *_failed_calls(columns, settings.agent_errors),
                *_calibration(doubtful, settings.require_calibrated),
                *biased,
            ),
        )


def low_coverage(columns: Mapping[str, ScoreColumn], floor: float, needed: str = "have a score") -> Iterator[str]:
    """Messages for columns in which too few grades have a score. 19 of 20 reaches a floor of 0.95."""
    for key, column in columns.items():
        if column.total and len(column.scores) / column.total < floor - 1e-12:
            yield f"{key}: only {len(column.scores)} of {column.total} {needed}, below the floor of {floor:g}"


def _ungraded(keys: Sequence[str], columns: Mapping[str, ScoreColumn]) -> Iterator[str]:
    if not keys:
        yield "there is no grader to evaluate"
    for key in keys:
        if key not in columns:
            yield f"{key}: is not among the graders of this run"
        elif not columns[key].scores:
            yield f"{key}: none of {columns[key].total} has a score"


def _failed_calls(columns: Mapping[str, ScoreColumn], agent_errors: AgentErrors) -> Iterator[str]:
    for key, column in columns.items():
        if agent_errors == "fail" and column.failed_calls:
            calls = "failed call counts" if column.failed_calls == 1 else "failed calls count"
            yield f"{key}: {column.failed_calls} {calls} as 0"


def _calibration(doubtful: Mapping[str, JudgeDoubt], required: bool) -> Iterator[str]:
    for key, doubt in doubtful.items():
        ending = ", which this gate requires" if required else ""
        if doubt.state == "drifted" and not required:
            ending = ", so its scores decide no gate"
        elif doubt.needed_by is not None and not required:
            ending = f", which {doubt.needed_by} requires"
        yield f"{key}: {doubt.sentence}{ending}"


def _position_bias(keys: Sequence[str], orders: Mapping[str, OrderFinding]) -> Iterator[str]:
    """Messages for judges whose scores are not used because they prefer a position."""
    for key in keys:
        if key in orders and orders[key].verdict == "position_biased":
            yield f"{key}: {orders[key].sentence}, so its scores decide no gate"


Operator = Literal["gt", "gte", "lt", "lte", "eq"]

SLACK = 1e-9
"""Rounding tolerance of computed values: (0.7 + 0.8 + 0.9) / 3 is less than 0.8 in its last bit."""

_COMPARE: Mapping[Operator, Callable[[float, float], bool]] = {"gt": gt, "gte": ge, "lt": lt, "lte": le, "eq": eq}
SIGNS: Mapping[Operator, str] = {"gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "eq": "="}


def satisfies(op: Operator, found: float, bound: float, slack: float = SLACK) -> bool:
    """Whether ``found op bound`` holds. Scores of graders are compared without slack."""
    if op == "eq":
        return abs(found - bound) <= slack
    return _COMPARE[op](found, bound - slack if op in ("gte", "lt") else bound + slack)


def as_fraction(value: float) -> float:
    """A bound of a share as a fraction: values above 1 are percentages."""
    return value / 100.0 if value > 1.0 else value


def comparison_text(op: Operator, found: float, bound: float) -> str:
    """``0.625 ≥ 0.8 is false``, with enough digits to distinguish the numbers."""
    digits = 4
    while abs(found - bound) > SLACK and f"{found:.{digits}g}" == f"{bound:g}" and digits < 16:
        digits += 2
    return f"{found:.{digits}g} {SIGNS[op]} {bound:g} is {'true' if satisfies(op, found, bound) else 'false'}"
