"""The suite's graders for promptfoo's tests: what a test asserts becomes checks of its case, and graders of some cases.

A test of promptfoo has one verdict. Here every grader is a column, and the gate requires that every column passes on
every case that it applies to, which is the same where a test has no threshold. A test with a threshold gets one column
that decides, from the scores of others that decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.json import decode

from gradeline.graders.formula import Formula, FormulaError
from gradeline.importers.promptfoo_judges import CRITERION
from gradeline.importers.promptfoo_rules import negate_check
from gradeline.importers.promptfoo_types import (
    EXPECTED,
    FILE,
    JudgedCriterion,
    NoCounterpartError,
    Outcome,
    RuleCheck,
    Scope,
    Several,
    SuiteGrader,
    least_score,
    negated_least,
    number_text,
)
from gradeline.model import canonical_json

METADATA = "promptfoo"
"""The key of a case's metadata with what its graders need."""
MAX_COLUMNS = 200
"""Maximum graders of an imported suite."""
_MAX_NAME = 40
_CHECKS = "checks"
_MEASURED = 0.0
"""The lowest score with which a column passes that only measures."""


class Entry(NamedTuple):
    """An assertion that was mapped."""

    outcome: Outcome
    name: str
    """Its type, with ``not-``."""
    negated: bool = False
    weight: float = 1.0
    metric: str | None = None
    judge: Mapping[str, object] = {}
    """The judge of a criterion."""


class EntrySet(NamedTuple):
    """An ``assert-set``."""

    entries: Sequence[Entry]
    weight: float = 1.0
    metric: str | None = None
    threshold: float | None = None

    @property
    def name(self) -> str:
        return "assert-set"

    @property
    def is_rules(self) -> bool:
        """True if all of it can be one check."""
        weights = [entry.weight for entry in self.entries]
        measured = self.threshold is None and any(entry.metric for entry in self.entries)
        return any(weights) and not measured and all(isinstance(entry.outcome, RuleCheck) for entry in self.entries)


class ColumnsOfCase(NamedTuple):
    """What a test became; ``lost`` are the assertions for which there is no grader, with the reason."""

    checks: list[dict[str, object]]
    metadata: dict[str, object]
    lost: list[tuple[str, str]]


class _Column(Struct):
    """A grader of the suite, with the number of cases that it applies to."""

    config: dict[str, object]
    decides: bool
    cases: int = 0


class _ChecksColumn(NamedTuple):
    """Which cases share a grader of kind checks."""

    threshold: float | None
    """The share of the checks that is needed; None: all of them."""
    judge: bytes
    """The options of the judge, as JSON; empty: there are no criteria."""


class PromptfooColumns:
    """The graders of the suite; `case` adds those of one test after the other."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self._columns: dict[str, _Column] = {}
        self._names: dict[tuple[bytes, int], str] = {}
        self._checks: dict[str, _ChecksColumn] = {}
        self._cases = 0

    def case(self, entries: Sequence[Entry | EntrySet], scope: Scope, least: float | None) -> ColumnsOfCase:
        """The checks of a case and its metadata. ``least`` is the score from which the test passes, None: all must.

        `NoCounterpartError` if the threshold cannot be computed.
        """
        self._cases += 1
        case = _Case(self, scope)
        try:
            if least is None:
                case.add_all(entries)
            else:
                case.add_with_threshold(entries, least)
        except NoCounterpartError:
            self._cases += 1  # what was counted for this case need not apply to all of them
            raise
        if case.lost:
            self._cases += 1
        return ColumnsOfCase(case.checks, case.metadata, case.lost)

    @property
    def graders(self) -> dict[str, dict[str, object]]:
        """The graders by name; those that do not apply to every case have a ``when``."""
        found: dict[str, dict[str, object]] = {}
        for name, column in self._columns.items():
            config = dict(column.config)
            if name in self._checks and self._checks[name].judge:
                config |= decode(self._checks[name].judge, type=dict[str, object])
            if column.cases < self._cases:
                config["when"] = {f"metadata.{METADATA}.graders": name}
            found[name] = config
        return found

    def gate(self) -> dict[str, object] | None:
        """Every case has a grade and passes on every grader that decides; None if there is none."""
        deciding = [name for name, column in self._columns.items() if column.decides]
        conditions: list[dict[str, object]] = [
            {"metric_key": name, "aggregation": "accuracy", "op": "gte", "value": 1} for name in deciding
        ]
        if not conditions:
            return None
        if len(conditions) == 1:
            return {"kind": "simple", **conditions[0], "coverage_floor": 1}
        return {"kind": "logical", "operator": "and", "conditions": conditions, "coverage_floor": 1}

    def use(
        self, config: Mapping[str, object], base: str, occurrence: int = 0, *, decides: bool, code: str = ""
    ) -> str:
        """The name of the column with these options, for a case that already uses ``occurrence`` like it."""
        key = canonical_json([config, base, decides, code]), occurrence
        name = self._names.get(key)
        if name is None:
            name = self._new(base)
            self._names[key] = name
            self._columns[name] = _Column(_named(dict(config), name), decides)
        self._columns[name].cases += 1
        return name

    def use_checks(self, wanted: _ChecksColumn, *, decides: bool) -> str:
        """The name of the column that runs checks; one without criteria can share any."""
        for name, found in self._checks.items():
            if found.threshold == wanted.threshold and (not wanted.judge or found.judge in (b"", wanted.judge)):
                self._checks[name] = wanted if wanted.judge else found
                self._columns[name].cases += 1
                return name
        config: dict[str, object] = {"kind": "checks"}
        base = _CHECKS
        if wanted.threshold is not None:
            config |= {"mode": "weighted", "threshold": wanted.threshold}
            base = f"{_CHECKS}_{wanted.threshold:g}".replace(".", "_") if wanted.threshold else f"{_CHECKS}_measured"
        name = self._new(base)
        self._columns[name] = _Column(config, decides, 1)
        self._checks[name] = wanted
        return name

    def use_metrics(self, metrics: Sequence[str], checks: str) -> Iterator[str]:
        """The names of the columns of the metrics that checks have."""
        for metric in metrics:
            config = {"kind": "checks_metric", "metric": metric, "checks": checks}
            yield self.use(config, metric, decides=False)

    def _new(self, base: str) -> str:
        if len(self._columns) >= MAX_COLUMNS:
            raise NoCounterpartError(f"needs a grader of its own, and the suite has {MAX_COLUMNS}; split the source")
        plain = re.sub(r"\W+", "_", base).strip("_").lower()[:_MAX_NAME] or "metric"
        name, number = plain, 1
        while name in self._columns:
            number += 1
            name = f"{plain}_{number}"
        return name


def _named(config: dict[str, object], name: str) -> dict[str, object]:
    """The options of a grader, with its name in the places of its file and its expected value."""
    value = f"$metadata.{METADATA}.expected.{name}"
    return {key: _with_name(option, name, value) for key, option in config.items()}


def _with_name(option: object, name: str, value: str) -> object:
    if isinstance(option, list):
        return [_with_name(item, name, value) for item in option]
    if option == EXPECTED:
        return value
    return option.replace(FILE, f"graders/{name}") if isinstance(option, str) and option.startswith(FILE) else option


class _Case(Struct):
    """What one test becomes."""

    columns: PromptfooColumns
    scope: Scope
    checks: list[dict[str, object]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    expected: dict[str, object] = field(default_factory=dict)
    used: dict[bytes, int] = field(default_factory=dict)
    lost: list[tuple[str, str]] = field(default_factory=list)
    sees_variables: bool = False
    judge: Mapping[str, object] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, object]:
        if not self.names:
            return {}
        own: dict[str, object] = {"graders": list(dict.fromkeys(self.names))}
        if self.expected:
            own["expected"] = self.expected
        if self.sees_variables:
            own["vars"] = dict(self.scope.variables)
        return {METADATA: own}

    def add_all(self, entries: Sequence[Entry | EntrySet]) -> None:
        """A test that passes if everything with a weight does."""
        for entry in _flat(entries):
            if _is_check(entry):
                self._add_check(entry)
                continue
            try:
                if isinstance(entry, EntrySet):
                    base = entry.metric or "assert_set"
                    self._add_scored(entry.entries, entry.threshold or 0.0, base, decides=entry.weight > 0)
                else:
                    self._grader(entry, decides=entry.weight > 0)
            except NoCounterpartError as error:
                self.lost.append((entry.name, str(error)))
        self._close_checks(None)

    def add_with_threshold(self, entries: Sequence[Entry | EntrySet], least: float) -> None:
        """A test that passes if its score does."""
        checks = [entry for entry in entries if _is_check(entry)]
        others = [entry for entry in entries if not _is_check(entry)]
        for entry in checks:
            self._add_check(entry)
        if not others:
            self._close_checks(least)
            return
        weight = sum(entry.weight for entry in checks)
        name = self._close_checks(_MEASURED, decides=False)
        measured = [] if name is None or not weight else [(weight, name)]
        self._add_scored(_members(others), least, "test", decides=True, measured=measured)

    def _add_check(self, entry: Entry | EntrySet) -> None:
        check = _set_check(entry) if isinstance(entry, EntrySet) else self._check(entry)
        if entry.weight != 1:
            check["weight"] = _number(entry.weight)
        if entry.metric is not None:
            check["metric"] = entry.metric
        self.checks.append(check)

    def _check(self, entry: Entry) -> dict[str, object]:
        if isinstance(entry.outcome, JudgedCriterion):
            self.judge = entry.judge
            check: dict[str, object] = {"judge": entry.outcome.text}
            return {**check, "negate": True} if entry.negated else check
        return _rule(entry)

    def _close_checks(self, threshold: float | None, *, decides: bool = True) -> str | None:
        """Use a column for the checks; None if there are none."""
        if not self.checks:
            return None
        if not any(check.get("weight", 1) for check in self.checks):  # they only measure, and a score needs weights
            self.checks = [{key: value for key, value in check.items() if key != "weight"} for check in self.checks]
            threshold, decides = _MEASURED, False
        judge = canonical_json(self.judge) if self.judge else b""
        name = self.columns.use_checks(_ChecksColumn(threshold, judge), decides=decides)
        self.names.append(name)
        metrics = dict.fromkeys(str(check["metric"]) for check in self.checks if "metric" in check)
        self.names += self.columns.use_metrics(list(metrics), name)
        return name

    def _add_scored(
        self,
        entries: Sequence[Entry],
        least: float,
        base: str,
        *,
        decides: bool,
        measured: Sequence[tuple[float, str]] = (),
    ) -> None:
        """A column with the weighted mean of others, which decide nothing; some of them may be ``measured`` already."""
        columns = [(entry.weight, self._grader(entry, decides=False)) for entry in entries]
        counted = [(weight, name) for weight, name in (*measured, *columns) if weight]
        if counted:
            total = sum(weight for weight, _ in counted)
            terms = " + ".join(_term(weight, name) for weight, name in counted)
            config = {"kind": "formula", "formula": f"min(1, ({terms}) / {number_text(total)})"}
            self._formula({**config, "pass_threshold": least}, base, decides=decides)

    def _grader(self, entry: Entry, *, decides: bool) -> str:
        """The column of an assertion."""
        outcome = entry.outcome
        base = entry.metric or entry.name
        if isinstance(outcome, RuleCheck | JudgedCriterion):
            outcome = _as_grader(entry)
        if isinstance(outcome, Several):
            parts = [self._use(one, entry.name.removeprefix("not-"), decides=False) for one in outcome.graders]
            least = least_score(outcome.graders[0].config)
            terms = [_quoted(part) for part in parts]
            term = f"({' + '.join(terms)}) / {len(terms)}" if outcome.mean else f"max({', '.join(terms)})"
            return self._computed(term, least, base, entry.negated, decides)
        if entry.negated and not outcome.inverted:
            part = self._use(outcome, entry.name.removeprefix("not-"), decides=False)
            return self._computed(_quoted(part), least_score(outcome.config), base, True, decides)
        return self._use(outcome, base, decides=decides)

    def _computed(self, term: str, least: float, base: str, negated: bool, decides: bool) -> str:
        if negated:
            term, least = f"1 - {term}", negated_least(least)
        least = least if decides else _MEASURED
        return self._formula({"kind": "formula", "formula": term, "pass_threshold": least}, base, decides=decides)

    def _formula(self, config: Mapping[str, object], base: str, *, decides: bool) -> str:
        try:
            Formula(str(config["formula"]))
        except FormulaError as error:
            raise NoCounterpartError(f"has too many assertions for a formula: {error}; write fewer") from None
        return self._count(config, base, decides=decides)

    def _use(self, grader: SuiteGrader, base: str, *, decides: bool) -> str:
        config = dict(grader.config)
        if grader.expected is not None and EXPECTED not in config.values():
            config["expected"] = EXPECTED
        if not decides:
            config["pass_threshold"] = _MEASURED
        code = grader.code
        if code is not None:
            config = {key: _with_suffix(option, code.suffix) for key, option in config.items()}
        name = self._count(config, base, decides=decides, code=code.text if code else "")
        if grader.expected is not None:
            self.expected[name] = grader.expected
        if code is not None:
            self.columns.files |= {f"graders/{name}{code.suffix}": code.text, **code.others}
        self.sees_variables = self.sees_variables or grader.sees_variables
        return name

    def _count(self, config: Mapping[str, object], base: str, *, decides: bool, code: str = "") -> str:
        """The column for these options; another one than those that the case uses already."""
        key = canonical_json([config, base, decides, code])
        occurrence = self.used.get(key, 0)
        self.used[key] = occurrence + 1
        name = self.columns.use(config, base, occurrence, decides=decides, code=code)
        self.names.append(name)
        return name


def _with_suffix(option: object, suffix: str) -> object:
    """The place of a generated file, with its suffix."""
    if isinstance(option, list):
        return [_with_suffix(item, suffix) for item in option]
    return option.replace(FILE, FILE + suffix) if isinstance(option, str) and option.startswith(FILE) else option


def _term(weight: float, name: str) -> str:
    return _quoted(name) if weight == 1 else f"{number_text(weight)} * {_quoted(name)}"


def _number(value: float) -> float:
    """A whole number without its fraction, as it was written."""
    return int(value) if value == int(value) else value


def _quoted(name: str) -> str:
    """A grader in a formula."""
    return name if name.isascii() and name.isidentifier() and not iskeyword(name) else f"'{name}'"


def _is_check(entry: Entry | EntrySet) -> bool:
    if isinstance(entry, EntrySet):
        return entry.is_rules
    return isinstance(entry.outcome, RuleCheck | JudgedCriterion)


def _rule(entry: Entry) -> dict[str, object]:
    assert isinstance(entry.outcome, RuleCheck)  # noqa: S101 - checked by the callers
    return negate_check(entry.outcome) if entry.negated else dict(entry.outcome.rule)


def _set_check(entries: EntrySet) -> dict[str, object]:
    """A set of rules as one check."""
    rules = [
        {**_rule(entry), **({"weight": _number(entry.weight)} if entry.weight != 1 else {})}
        for entry in entries.entries
    ]
    check: dict[str, object] = {"weighted": rules}
    return check if entries.threshold is None else {**check, "threshold": entries.threshold}


def _as_grader(entry: Entry) -> SuiteGrader:
    """A check as a grader of its own, which a formula can name."""
    if isinstance(entry.outcome, RuleCheck):
        return SuiteGrader({"kind": "custom-rules", "rules": [_rule(entry)]}, "", inverted=True)
    assert isinstance(entry.outcome, JudgedCriterion)  # noqa: S101 - the only other one
    config = {"kind": "model_judge", **entry.judge, "prompt": CRITERION}
    return SuiteGrader(config, "", entry.outcome.text)


def _flat(entries: Sequence[Entry | EntrySet]) -> Iterator[Entry | EntrySet]:
    """The entries, with those of sets that only require that all of them pass."""
    for entry in entries:
        if isinstance(entry, EntrySet) and not entry.is_rules and entry.threshold is None:
            yield from _members([entry])
        else:
            yield entry


def _members(entries: Sequence[Entry | EntrySet]) -> list[Entry]:
    """The entries without sets: a set's weight is distributed to its members."""
    found: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Entry):
            found.append(entry)
            continue
        total = sum(member.weight for member in entry.entries)
        for member in entry.entries:
            weight = member.weight * entry.weight / total if total else 0.0
            found.append(member._replace(weight=weight, metric=member.metric or entry.metric))
    return found
